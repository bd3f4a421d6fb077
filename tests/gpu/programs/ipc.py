"""CUDA IPC: a producer shares its memory, a consumer maps it, the producer is killed, the consumer keeps the memory.

    ipc.py ROLES MIB own            both are ours; the consumer stays
    ipc.py ROLES MIB export GO      only the producer: tells its handle, is killed when the file GO appears
"""

import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cudalite  # noqa: E402
import roles  # noqa: E402


def main():
    facts, mib, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if mode == "consume":
        cuda = cudalite.Cuda()
        cuda.ipc_open(bytes.fromhex(sys.argv[4]))
        roles.tell(facts, "holder")
        time.sleep(3600)
    cuda = cudalite.Cuda()
    handle = cuda.ipc_export(cuda.alloc(mib)).hex()
    roles.tell(facts, "producer", handle=handle)
    if mode == "own":
        subprocess.Popen([sys.executable, "-SB", __file__, facts, str(mib), "consume", handle], start_new_session=True)
        roles.wait_role(facts, "holder")
        time.sleep(0.4)
    else:
        roles.wait_until(lambda: os.path.exists(sys.argv[4]), 60, "the order to end")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        roles.tell(sys.argv[1], "failed", error=repr(error))
        raise
