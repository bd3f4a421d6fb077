"""What is often advised for freeing GPU memory, tried with stand-ins: Python's own rules decide these, not CUDA's.

Each function returns what happened; the last lines print it as JSON.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import weakref


class Tensor:
    """Stands for something that holds memory."""


def name_of_a_module_in_a_function():
    """`if 'torch' in locals()` with `torch` imported at the top of the file."""
    return "json" in locals(), "json" in globals()


def cleaning_as_it_is_printed(*objects):
    """The loop of the advice: it runs only if the name is local, and then deletes the loop's own name."""
    ran = False
    if "json" in locals():
        for obj in objects:
            ran = True
            del obj
    return ran


def deleting_in_a_loop():
    """Deletes each element by the loop's name, and tells whether the elements went."""
    objects = [Tensor(), Tensor()]
    watched = [weakref.ref(o) for o in objects]
    for obj in objects:
        del obj
    gc.collect()
    alive = sum(w() is not None for w in watched)
    objects.clear()
    gc.collect()
    return alive, sum(w() is not None for w in watched)


def cycles_need_the_collector():
    """A cycle outlives its last name until the collector runs: emptying a cache before that finds it in use."""
    gc.disable()
    try:
        tensor, module = Tensor(), Tensor()
        tensor.owner, module.weight = module, tensor
        watched = weakref.ref(tensor)
        del tensor, module
        before = watched() is not None
        gc.collect()
        return before, watched() is not None
    finally:
        gc.enable()


def waiting_for_a_child():
    """Whether a grandchild still lives when wait() for the child has returned."""
    grandchild = "import time; time.sleep(600)"
    child = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {grandchild!r}], stdout=subprocess.DEVNULL)\n"
        "print(p.pid, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    code = process.wait()
    try:
        with open(f"/proc/{pid}/stat") as stat:
            alive = stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        alive = False
    if alive:
        os.kill(pid, signal.SIGKILL)
    return code, alive


def size_of_the_example():
    """MiB of 1000 x 1000 and of 10000 x 10000 numbers of 4 bytes."""
    return round(1000 * 1000 * 4 / 2**20, 1), round(10000 * 10000 * 4 / 2**20, 1)


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "module_in_locals": name_of_a_module_in_a_function(),
                "printed_loop_ran": cleaning_as_it_is_printed(Tensor()),
                "alive_after_del_in_loop": deleting_in_a_loop(),
                "cycle_alive_before_and_after_gc": cycles_need_the_collector(),
                "child_code_and_grandchild_alive": waiting_for_a_child(),
                "mib": size_of_the_example(),
            }
        )
    )
