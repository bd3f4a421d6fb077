"""A handle of GPU memory that was sent into a socket and that nobody receives: the memory is on no list.

    in_flight.py ROLES listen PATH                    somebody else: listens, and never accepts
    in_flight.py ROLES send PATH --mib N --hold S     sends to that listener, ends after S seconds
    in_flight.py ROLES keep - --mib N --hold S        sends to a `sleep` of its own, which has the other end, and ends
"""

import argparse
import os
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cudalite  # noqa: E402
import roles  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("roles")
    parser.add_argument("mode", choices=("listen", "send", "keep"))
    parser.add_argument("path")
    parser.add_argument("--mib", type=int, default=1000)
    parser.add_argument("--hold", type=float, default=0.5)
    args = parser.parse_args()

    if args.mode == "listen":
        server = socket.socket(socket.AF_UNIX)
        server.bind(args.path)
        server.listen()
        roles.tell(args.roles, "keeper")
        time.sleep(3600)
    if args.mode == "send":
        here = socket.socket(socket.AF_UNIX)
        here.connect(args.path)
    else:
        here, there = socket.socketpair()
        keeper = subprocess.Popen(["sleep", "3600"], pass_fds=[there.fileno()], start_new_session=True)
        roles.wait_until(lambda: os.readlink(f"/proc/{keeper.pid}/exe") != os.readlink("/proc/self/exe"), 5, "exec of sleep")
        there.close()
        roles.tell(args.roles, "holder", keeper.pid)
    cuda = cudalite.Cuda()
    socket.send_fds(here, [b"x"], cuda.exported_descriptors(args.mib))
    roles.tell(args.roles, "producer")
    time.sleep(args.hold)
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        roles.tell(sys.argv[1], "failed", error=f"{sys.argv[1:]}: {error!r}")
        raise
