"""Starts a program in a session of its own, waits until it told its role, and leaves it behind.

    launcher.py ROLES [--wait ROLE[:COUNT]] [--stop] [--kill] [--env-i] [--exit CODE] [--linger S] -- PROGRAM ARG…

`--stop` stops it (SIGSTOP) before leaving, `--kill` kills it (SIGKILL) and leaves at once, without reaping it, `--env-i`
starts it with an empty environment, `--no-setsid` in our own session, `--linger` waits that long before it leaves.
`--kill-role ROLE` kills another told process and leaves.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402


def main():
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("roles")
    parser.add_argument("--wait", default="holder")
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--kill-role")
    parser.add_argument("--env-i", action="store_true")
    parser.add_argument("--no-setsid", action="store_true")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--linger", type=float, default=0.0)
    args = parser.parse_args(sys.argv[1:split])
    program = sys.argv[split + 1 :]

    environment = None
    if args.env_i:
        # The driver's libraries must still be found; nothing else travels.
        environment = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
    roles.tell(args.roles, "launcher")
    child = subprocess.Popen(
        program, env=environment, start_new_session=not args.no_setsid, stdin=subprocess.DEVNULL
    )
    role, _, count = args.wait.partition(":")
    fact = roles.wait_role(args.roles, role, seconds=60, count=int(count or 1))[-1]
    # A real launcher lives long enough for a sampler to see its children.
    time.sleep(args.linger)
    if args.stop:
        os.kill(fact["pid"], signal.SIGSTOP)
        roles.wait_until(lambda: (roles.stat(fact["pid"]) or "?")[0] == "T", 5, "the stop")
    if args.kill_role:
        for victim in [f for f in roles.told(args.roles) if f["role"] == args.kill_role]:
            roles.send(victim)
    if args.kill:
        child.kill()
    os._exit(args.exit)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        roles.tell(sys.argv[1], "failed", error=f"{sys.argv[1:]}: {error!r}")
        raise
