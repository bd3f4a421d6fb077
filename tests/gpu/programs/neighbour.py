"""Somebody else on the card, who does what it is told on standard input and answers each line with `ok`.

Orders: `alloc MIB`, `free` (the last allocation), `managed MIB`, `fork` (a copy of itself stays when it ends; answers
`ok PID`), `ipc-open HEX` (maps another process's memory), `end`.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cudalite  # noqa: E402
import roles  # noqa: E402


def answer(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main():
    facts = sys.argv[1]
    cuda = cudalite.Cuda(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    roles.tell(facts, "neighbour")
    answer("ok")
    for line in sys.stdin:
        order, _, value = line.strip().partition(" ")
        if order == "alloc":
            cuda.alloc(int(value))
        elif order == "managed":
            cuda.managed(int(value))
        elif order == "free":
            cuda.free_last()
        elif order == "ipc-open":
            cuda.ipc_open(bytes.fromhex(value))
        elif order == "fork":
            copy = os.fork()
            if copy == 0:
                roles.tell(facts, "neighbour_copy")
                os.close(0)
                os.close(1)
                time.sleep(3600)
                os._exit(0)
            roles.wait_role(facts, "neighbour_copy")
        elif order == "end":
            answer("ok")
            return
        else:
            answer(f"unknown order {order}")
            continue
        answer("ok")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        answer(f"failed: {error!r}")
        raise
