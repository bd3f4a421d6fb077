"""A CUDA process in any shape that a leftover can have. It takes memory, tells its role, and does what it was asked.

    holder.py ROLES [--role NAME] [--mib N] [--device D] [--delay S] [shape…] [--then WHAT]

`--then` is what follows once it is ready: `sleep` (until ended), `exit:CODE`, `segv`, `go:FILE` (ends when FILE
appears), `hold:S` (ends after S seconds), `return` (ends at once with work in flight or not).
"""

import argparse
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cudalite  # noqa: E402
import roles  # noqa: E402


def erase_environment():
    """Overwrites the environment area of this process, as programs do that set their title."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    if not 0 < end - start < 1 << 22:
        raise RuntimeError(f"environment area {start:#x}-{end:#x} is not plausible")
    ctypes.memset(start, 0, end - start)
    with open("/proc/self/environ", "rb") as file:
        if b"GPURESID" in file.read():
            raise RuntimeError("the environment was not erased")


def daemonise():
    """Twice forked, in a session of its own, without the terminal."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def half_die():
    """Ends the main thread alone. Other threads go on and keep everything."""
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(0))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("roles")
    parser.add_argument("--role", default="holder")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--pinned", type=int, default=0)
    parser.add_argument("--managed", type=int, default=0)
    parser.add_argument("--in-flight", type=float, default=0.0)
    parser.add_argument("--daemon", action="store_true")
    parser.add_argument("--rename")
    parser.add_argument("--erase-env", action="store_true")
    parser.add_argument("--half-dead", action="store_true")
    parser.add_argument("--fork-copy", action="store_true", help="fork after CUDA, end the parent, tell ghost and copy")
    parser.add_argument("--export", action="store_true", help="leave an exported handle to a plain sleep, then end")
    parser.add_argument("--no-gpu", action="store_true")
    parser.add_argument("--then", default="sleep")
    args = parser.parse_args()

    if args.daemon:
        daemonise()
    time.sleep(args.delay)
    if args.no_gpu:
        roles.tell(args.roles, args.role)
        time.sleep(3600)
    cuda = cudalite.Cuda(args.device)
    if args.export:
        descriptors = cuda.exported_descriptors(args.mib)
        keeper = subprocess.Popen(["sleep", "3600"], pass_fds=descriptors, start_new_session=True)
        roles.wait_until(lambda: os.readlink(f"/proc/{keeper.pid}/exe") != os.readlink("/proc/self/exe"), 5, "exec of sleep")
        roles.tell(args.roles, args.role, keeper.pid)
        time.sleep(float(args.then.partition(":")[2] or 0))
        os._exit(0)
    if args.mib:
        cuda.alloc(args.mib)
    if args.managed:
        cuda.managed(args.managed)
    if args.pinned:
        cuda.pinned(args.pinned)
    if args.rename:
        ctypes.CDLL(None).prctl(15, args.rename.encode(), 0, 0, 0)
    if args.erase_env:
        erase_environment()
    if args.fork_copy:
        me = os.getpid()
        roles.tell(args.roles, "ghost")
        if os.fork():
            time.sleep(0.3)  # so that a sampler sees the parent alive, as it would any real one
            os._exit(0)
        ghost = [f for f in roles.told(args.roles) if f["pid"] == me][-1]
        roles.wait_until(lambda: not roles.alive(ghost), 10, "the parent's end")
    if args.in_flight:
        cuda.in_flight(args.in_flight, 256)
    if args.half_dead:
        threading.Thread(target=time.sleep, args=(3600,)).start()

        def tell_when_half_dead():
            pid = os.getpid()
            roles.wait_until(lambda: (roles.stat(pid) or "?")[0] == "Z", 10, "the main thread's end")
            roles.tell(args.roles, args.role)

        threading.Thread(target=tell_when_half_dead).start()
        half_die()
    roles.tell(args.roles, args.role, bytes=args.mib << 20)

    what, _, value = args.then.partition(":")
    if what == "sleep":
        time.sleep(3600)
    elif what == "exit":
        sys.exit(int(value))
    elif what == "segv":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "go":
        roles.wait_until(lambda: os.path.exists(value), 60, value)
    elif what == "hold":
        time.sleep(float(value))
    elif what == "return":
        os._exit(0) if args.in_flight else None
    else:
        raise SystemExit(f"--then {args.then}?")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the suite must hear of it at once, not after a time limit
        roles.tell(sys.argv[1], "failed", error=f"{sys.argv[1:]}: {error!r}")
        raise
