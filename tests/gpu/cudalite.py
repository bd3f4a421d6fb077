"""The few CUDA driver calls that the micro programs need, through ctypes.

A micro program on libcuda starts in a third of a second where PyTorch needs several, and it does exactly one thing to
the GPU's memory. Sizes are in MiB unless a name says bytes. Every call that fails raises CudaError with the call's name
and code; nothing is retried and nothing is guessed.
"""

import ctypes
import os

MIB = 1 << 20

# Spins for a number of nanoseconds, so that work is in flight for a known time.
SPIN_PTX = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 spin_ns)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [spin_ns];
    mov.u64 %rd2, %globaltimer;
LOOP:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra LOOP;
    ret;
}
"""


class CudaError(RuntimeError):
    """A driver call answered with another code than 0."""

    def __init__(self, call, code):
        super().__init__(f"{call} answered {code}")
        self.code = code


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _AllocProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _AllocFlags),
    ]


def _load():
    names = ["libcuda.so.1"]
    names += [f"{d}/libcuda.so.1" for d in ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError("dlopen libcuda.so.1", "not found")


class Cuda:
    """One device with its primary context, made current for the calling thread."""

    def __init__(self, device=0, context=True):
        self.lib = _load()
        self.device_id = device
        self.call("cuInit", ctypes.c_uint(0))
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(device))
        self.pointers = []
        if context:
            ctx = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), self.device)
            self.call("cuCtxSetCurrent", ctx)

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise CudaError(name, code)

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, mib):
        """Plain device memory. The pointer is kept; `free_last` gives it back."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
        self.pointers.append(pointer)
        return pointer

    def free_last(self):
        self.call("cuMemFree_v2", self.pointers.pop())

    def managed(self, mib):
        """Managed memory, touched from the device. Refused unless twice as much is free, because an oversubscribed
        managed pool can hang the device."""
        if mib * MIB * 2 > self.free_bytes():
            raise CudaError("managed memory", "refused: too little is free")
        pointer = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(mib * MIB), ctypes.c_uint(1))
        self.pointers.append(pointer)
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(mib * MIB))
        self.call("cuCtxSynchronize")
        return pointer

    def pinned(self, mib):
        """Page-locked host memory."""
        pointer = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(mib * MIB), ctypes.c_uint(0))
        return pointer

    def exported_descriptors(self, mib):
        """Physical memory behind a POSIX descriptor, which alone keeps it: the descriptor is inheritable."""
        prop = _AllocProp(type=1, handle_types=1, location=_Location(1, self.device_id))
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(mib * MIB), ctypes.byref(prop), ctypes.c_uint64(0))
        fd = ctypes.c_int(-1)
        self.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, ctypes.c_int(1), ctypes.c_uint64(0))
        os.set_inheritable(fd.value, True)
        return [fd.value]

    def ipc_export(self, pointer):
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        return ctypes.string_at(ctypes.byref(handle), 64)

    def ipc_open(self, raw):
        handle = IpcHandle.from_buffer_copy(raw)
        pointer = ctypes.c_uint64()
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, ctypes.c_uint(1))
        return pointer

    def in_flight(self, seconds, mib):
        """Starts a kernel of that many seconds and asynchronous copies behind it on another stream; does not wait."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(SPIN_PTX))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"spin"))
        streams = [ctypes.c_void_p(), ctypes.c_void_p()]
        for stream in streams:
            self.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
        ns = ctypes.c_uint64(int(seconds * 1e9))
        params = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(ns), ctypes.c_void_p))
        for stream in streams:
            one = [ctypes.c_uint(1)] * 6
            self.call("cuLaunchKernel", function, *one, ctypes.c_uint(0), stream, params, None)
        device, host = self.alloc(mib), self.pinned(mib)
        size = ctypes.c_size_t(mib * MIB)
        for _ in range(8):
            self.call("cuMemcpyDtoHAsync_v2", host, device, size, streams[0])
            self.call("cuMemcpyHtoDAsync_v2", device, host, size, streams[1])


if os.environ.get("FAKE_NVML_LEDGER"):
    from simulated import Cuda  # noqa: F401,F811
