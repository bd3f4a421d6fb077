#!/usr/bin/env python3
"""A person at a terminal: starts a program on a new terminal and acts on what is seen there.

    terminal.py STEP… -- PROGRAM ARGUMENT…

Steps run in order:
    see TEXT      wait until TEXT has appeared since the last step that saw something
    file PATH     wait until PATH exists
    key c|z|d     press Ctrl-C, Ctrl-Z, Ctrl-D
    type TEXT     type TEXT and Enter
    hang-up       close the terminal

Afterwards waits for the program's end, prints all that was seen, and on the last line `exit N` or `signal N`.
"""

import os
import pty
import select
import sys
import time

LIMIT = 40


def main():
    split = sys.argv.index("--")
    steps, argv = sys.argv[1:split], sys.argv[split + 1:]
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(argv[0], argv)
    deadline = time.monotonic() + LIMIT
    seen, mark, closed = b"", 0, False

    def read(timeout):
        nonlocal seen, closed
        if closed:
            time.sleep(timeout)
            return
        if select.select([terminal], [], [], timeout)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                data = b""
            if not data:
                closed = True
            seen += data

    def wait(what, condition):
        while not condition():
            if time.monotonic() > deadline:
                sys.exit(f"waited in vain for {what}; seen: {seen!r}")
            read(0.01)

    steps = iter(steps)
    for step in steps:
        if step == "see":
            text = next(steps).encode()
            wait(text, lambda: text in seen[mark:])
            mark = seen.index(text, mark) + len(text)
        elif step == "file":
            path = next(steps)
            wait(path, lambda: os.path.exists(path))
        elif step == "key":
            os.write(terminal, bytes([ord(next(steps)) - ord("a") + 1]))
        elif step == "type":
            os.write(terminal, next(steps).encode() + b"\n")
        elif step == "hang-up":
            os.close(terminal)
            closed = True
        else:
            sys.exit(f"unknown step {step}")
    status = None

    def ended():
        nonlocal status
        pid, raw = os.waitpid(child, os.WNOHANG)
        status = raw if pid else None
        return pid != 0

    wait("the end", ended)
    while not closed and select.select([terminal], [], [], 0)[0]:
        read(0)
    sys.stdout.write(seen.decode(errors="replace").replace("\r\n", "\n") + "\n")
    kind, number = ("signal", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ("exit", os.WEXITSTATUS(status))
    print(kind, number)


main()
