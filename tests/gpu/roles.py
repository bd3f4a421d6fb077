"""How the programs tell the suite who they are: one JSON line a fact in a file that they all append to.

A role names a process by PID, start time and PID namespace, so that the suite ends exactly that process and never one
that got its number later, or one that has the same number in another namespace.
"""

import json
import os
import signal
import time


def stat(pid, proc="/proc"):
    """(state letter, start ticks, threads, parent) of a process, or None if there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[19]), int(fields[17]), int(fields[1])


def namespace(pid="self"):
    """The PID namespace as the kernel names it, or None where it may not be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def tell(path, role, pid=None, **more):
    """Appends the fact that `pid` (this process) plays `role`, with anything else worth knowing."""
    pid = pid or os.getpid()
    seen = stat(pid)
    fact = {"role": role, "pid": pid, "start_ticks": seen[1] if seen else None, "pid_ns": namespace(), **more}
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(fd, (json.dumps(fact) + "\n").encode())
    finally:
        os.close(fd)


def told(path):
    """All facts so far, oldest first."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def wait_until(condition, seconds, what):
    """Polls a condition until it holds; its value. Raises TimeoutError that says what was waited for."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.005)


def wait_role(path, role, seconds=40, count=1):
    """Waits until `count` processes told that they play `role`."""

    def there():
        facts = [f for f in told(path) if f["role"] == role]
        failed = [f for f in told(path) if f["role"] == "failed"]
        if failed:
            raise RuntimeError(f"a program failed: {failed[0].get('error')}")
        return facts if len(facts) >= count else None

    return wait_until(there, seconds, f"role {role} in {path}")


def alive(fact):
    """Whether that very process still lives: a zombie without threads does not, one with living threads does."""
    seen = stat(fact["pid"])
    if seen is None or seen[1] != fact["start_ticks"]:
        return False
    return seen[0] not in "ZX" or seen[2] > 1


def send(fact, number=signal.SIGKILL):
    """Signals exactly that process if it is in our PID namespace and still the same one; whether it was sent."""
    if fact["start_ticks"] is None or fact["pid_ns"] != namespace():
        return False
    try:
        pidfd = os.pidfd_open(fact["pid"])
    except OSError:
        return False
    try:
        seen = stat(fact["pid"])
        if seen is None or seen[1] != fact["start_ticks"]:
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
