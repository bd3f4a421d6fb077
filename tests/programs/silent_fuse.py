#!/usr/bin/env python3
"""A FUSE file system on DIR that takes every request and answers none: whoever asks it for something waits.

    silent_fuse.py DIR

Needs root. Prints `mounted` once it is there. When its stdin ends it ends too, which ends every wait.
"""

import ctypes
import os
import struct
import sys
import threading

INIT = 26


def main():
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"silent", os.fsencode(sys.argv[1]), b"fuse", ctypes.c_ulong(0), os.fsencode(options)) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    threading.Thread(target=serve, args=(fuse,), daemon=True).start()
    print("mounted", flush=True)
    sys.stdin.read()


def serve(fuse):
    while True:
        request = os.read(fuse, 1 << 20)
        opcode, number = struct.unpack_from("=4xIQ", request)
        if opcode == INIT:
            major, minor = struct.unpack_from("=II", request, 40)
            # struct fuse_init_out: 64 bytes from version 7.23 on.
            answer = struct.pack("=IIIIHHII", major, minor, 0, 0, 12, 9, 1 << 16, 1).ljust(64, b"\0")
            os.write(fuse, struct.pack("=IiQ", 16 + len(answer), 0, number) + answer)


main()
