"""A stand-in for PyTorch: as much of it as the probe asks, on the rig's fake GPU. Memory is bookkeeping, the caching
allocator keeps what was freed until `empty_cache`, and what it reserves is listed for this process by the fake driver.
"""

import importlib.util
import itertools
import os
import types
import weakref

__version__ = "2.11.0+stand-in"
CREATED = itertools.count(1 << 20)
PROGRAM = []


class dtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __repr__(self):
        return "torch." + self.name


float32 = dtype("float32", 4)
uint8 = dtype("uint8", 1)


class Allocator:
    """One device: sums, and the segments that are kept."""

    def __init__(self):
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.count = self.ooms = self.retries = 0
        self.limit = 1 << 37

    def take(self, size):
        size = -(-size // 512) * 512
        if size > self.limit:
            self.ooms += 1
            self.retries += 1
            raise RuntimeError("CUDA out of memory")
        self.allocated += size
        self.count += 1
        self.reserved = max(self.reserved, self.allocated)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        tell()
        return size

    def give(self, size):
        self.allocated -= size


ALLOCATORS = [Allocator()]


class Storage:
    """Memory of one device. Held by its tensors; `tensor.held_in_cpp()` keeps it without any Python object."""

    def __init__(self, size):
        self.size, self.address = size, next(CREATED) * 512
        taken = ALLOCATORS[0].take(size)
        weakref.finalize(self, ALLOCATORS[0].give, taken).atexit = False

    def data_ptr(self):
        return self.address

    def nbytes(self):
        return self.size


class Tensor:
    is_cuda = True
    requires_grad = False
    is_leaf = True
    grad = None
    # The collector sees neither the storage nor what lies in it, as with the real one.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, storage, shape, kind=float32):
        self.__dict__.update(shape=shape, dtype=kind, key=next(CREATED))
        STORAGES[self.key] = storage
        weakref.finalize(self, STORAGES.pop, self.key, None).atexit = False

    def untyped_storage(self):
        return STORAGES[self.key]

    def get_device(self):
        return 0

    def view(self, *shape):
        return type(self)(self.untyped_storage(), shape, self.dtype)

    def held_in_cpp(self):
        """As a saved activation: the memory stays when the Python object goes."""
        HELD.append(Opaque(self.untyped_storage()))


class Opaque:
    """Something that the walk through Python objects does not see into: not a container for it."""

    def __init__(self, inner):
        self.get = lambda: inner


STORAGES, HELD = {}, []


class Parameter(Tensor):
    requires_grad = True


def zeros(*shape, device="cuda", kind=float32, cls=Tensor):
    cuda._lazy_init()
    size = kind.itemsize
    for n in shape:
        size *= n
    return cls(Storage(size), shape, kind)


def rig():
    """This process on the rig's fake machine, if there is one."""
    if "FAKE_NVML_LEDGER" not in os.environ:
        return None
    if not PROGRAM:
        file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "programs", "cuda.py")
        spec = importlib.util.spec_from_file_location("cuda_program", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        PROGRAM.append(module.Program(os.environ["FAKE_NVML_LEDGER"], os.environ["FAKE_DEV"]))
        PROGRAM.append(module.CONTEXT)
    return PROGRAM


def tell():
    """Brings the fake driver's list up to date."""
    if cuda.is_initialized() and rig():
        program, context = rig()
        program.context(0)
        program.record(0, bytes=context + ALLOCATORS[0].reserved)


class _Undisturbed:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


_C = types.SimpleNamespace(DisableTorchFunctionSubclass=_Undisturbed)

from torch import cuda  # noqa: E402,F401
from torch import nn  # noqa: E402,F401
