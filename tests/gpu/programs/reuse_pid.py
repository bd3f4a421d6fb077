"""The number of a ghost goes to an innocent process. Only inside a PID namespace of its own, where the next number can
be chosen without touching anybody else's.

    reuse_pid.py ROLES MIB
"""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402


def main():
    facts, mib = sys.argv[1], sys.argv[2]
    holder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "holder.py")
    # No session or group of its own: a number stays taken while it names the group of a living process.
    first = subprocess.Popen([sys.executable, "-SB", holder, facts, "--mib", mib, "--fork-copy"])
    roles.wait_role(facts, "holder")
    ghost = roles.wait_role(facts, "ghost")[0]["pid"]
    first.wait()
    if first.pid != ghost:
        raise RuntimeError(f"the ghost is {ghost}, not {first.pid}")
    for _ in range(50):
        with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
            file.write(str(ghost - 1))
        innocent = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        if innocent.pid == ghost:
            break
        innocent.kill()
        innocent.wait()
    else:
        raise RuntimeError(f"the number {ghost} could not be had again")
    roles.tell(facts, "innocent", innocent.pid)
    time.sleep(0.4)
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        roles.tell(sys.argv[1], "failed", error=repr(error))
        raise
