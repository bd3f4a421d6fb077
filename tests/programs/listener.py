#!/usr/bin/env python3
"""Notes each signal that it gets, one name a line, in the file `got` of the directory PLACE. It writes its PID into `up`
when it is ready, and ends with 0 when `go` exists. What was ignored when it started stays so.

    listener.py PLACE
"""

import os
import signal
import sys
import time

place = sys.argv[1]
# Python ignores these two itself.
OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}


def note(number, _):
    name = signal.Signals(number).name if number < 32 else f"real-time {number}"
    with open(place + "/got", "a") as file:
        file.write(name + "\n")


for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    if number in OF_PYTHON or signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, note)
open(place + "/got", "w").close()
with open(place + "/up.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(place + "/up.new", place + "/up")
while not os.path.exists(place + "/go"):
    time.sleep(0.005)
