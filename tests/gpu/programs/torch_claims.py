"""Tries what is often said about PyTorch's memory, and writes what happened as one JSON object.

    torch_claims.py OUT
"""

import gc
import json
import subprocess
import sys

import torch

GIB = 1 << 30
EMPTIES = "import torch; torch.cuda.init(); torch.empty(1, device='cuda'); torch.cuda.empty_cache()"
found = {}


def reserved():
    return torch.cuda.memory_reserved()


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def cached(size):
    """A block that the allocator keeps for its next tensor."""
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    del block
    return reserved()


# The model on the CPU, its input on the GPU.
try:
    torch.nn.Linear(10, 10)(torch.randn(2, 10, device="cuda"))
    found["mixed_devices"] = None
except RuntimeError as error:
    found["mixed_devices"] = str(error).splitlines()[0]

before = cached(2 * GIB)
subprocess.run([sys.executable, "-c", EMPTIES], check=True)
after_another = reserved()
torch.cuda.empty_cache()
found["empty_cache"] = {"before": before, "after_another_process": after_another, "after_own": reserved()}


class Node:
    """Half of a cycle."""


gc.collect()
gc.disable()
one, other = Node(), Node()
one.held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
one.other, other.other = other, one
del one, other
torch.cuda.empty_cache()
gc.collect()
wrong = reserved()
torch.cuda.empty_cache()
gc.enable()
found["gc_last"] = {"reserved": wrong, "after_empty_cache": reserved()}

square = torch.randn(1000, 1000, device="cuda")
found["square_bytes"] = square.numel() * square.element_size()
del square
torch.cuda.empty_cache()

# Plans of many sizes; the allocator's part is given back, the plans' is not.
used_before, reserved_before = used(), reserved()
for n in range(1, 60):
    torch.fft.rfft(torch.randn(3000 + n, 997, device="cuda"))
torch.cuda.empty_cache()
with_plans = used()
plans = torch.backends.cuda.cufft_plan_cache[0]
count = plans.size
plans.clear()
torch.cuda.empty_cache()
found["cufft"] = {
    "plans": count, "grown": with_plans - used_before, "reserved_grown": reserved() - reserved_before, "cleared": with_plans - used(),
}

torch.cuda.set_per_process_memory_fraction(0.01)
try:
    torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    found["fraction_limits"] = False
except torch.cuda.OutOfMemoryError:
    found["fraction_limits"] = True

with open(sys.argv[1], "w", encoding="ascii") as file:
    json.dump(found, file)
