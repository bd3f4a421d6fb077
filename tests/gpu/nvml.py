"""NVML through ctypes: the suite's own truth, independent of the tool that it tests.

Memory is the v2 call (`used` without what the driver reserves), lists are the v3 calls, each PID once with its largest
value over the compute, graphics and MPS lists. Needs nothing beside the driver.
"""

import ctypes
import json
import sys
import threading
import time

MIB = 1 << 20
_NOT_AVAILABLE = (1 << 64) - 1


class _Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


class NvmlError(RuntimeError):
    """An NVML call answered with another code than 0."""


class Nvml:
    """An open NVML session with the handles of all devices."""

    LISTS = ("Compute", "Graphics", "MPSCompute")

    def __init__(self, library=None):
        self.lib = None
        for name in [library] if library else ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/local/nvidia/lib/libnvidia-ml.so.1"):
            try:
                self.lib = ctypes.CDLL(name)
                break
            except OSError:
                continue
        if self.lib is None:
            raise NvmlError(f"{library or 'libnvidia-ml.so.1'} could not be loaded: is an NVIDIA driver installed?")
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self.handles.append(handle)

    def _call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise NvmlError(f"{name} answered {code}")

    def uuid(self, index):
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetUUID", self.handles[index], text, ctypes.c_uint(96))
        return text.value.decode()

    def name(self, index):
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", self.handles[index], text, ctypes.c_uint(96))
        return text.value.decode()

    def used(self, index):
        """Bytes in use."""
        memory = _Memory(version=ctypes.sizeof(_Memory) | (2 << 24))
        self._call("nvmlDeviceGetMemoryInfo_v2", self.handles[index], ctypes.byref(memory))
        return memory.used

    def listed(self, index):
        """{pid: bytes or None where NVML has none}."""
        found = {}
        for kind in self.LISTS:
            buffer = (_Process * 512)()
            count = ctypes.c_uint(512)
            self._call(f"nvmlDeviceGet{kind}RunningProcesses_v3", self.handles[index], ctypes.byref(count), buffer)
            for entry in buffer[: count.value]:
                used = None if entry.used == _NOT_AVAILABLE else entry.used
                if used is None:
                    found.setdefault(entry.pid, None)
                else:
                    found[entry.pid] = max(found.get(entry.pid) or 0, used)
        return found

    def look(self):
        """A value that JSON can hold: one object a device."""
        return [
            {"index": i, "uuid": self.uuid(i), "used": self.used(i), "listed": {str(p): b for p, b in self.listed(i).items()}}
            for i in range(len(self.handles))
        ]


class Poller(threading.Thread):
    """Reads the used memory of all devices about once a millisecond and keeps the largest. `curve` holds
    (monotonic seconds, used) of device `index` where it changed."""

    def __init__(self, nvml, index=0, period=0.001):
        super().__init__(daemon=True)
        self.nvml, self.index, self.period = nvml, index, period
        self.peak, self.reads, self.curve, self.error = 0, 0, [], None
        self.peak_listed = {}
        self._end = threading.Event()

    def run(self):
        last = None
        try:
            while not self._end.is_set():
                used = self.nvml.used(self.index)
                self.reads += 1
                self.peak = max(self.peak, used)
                if used != last:
                    self.curve.append((time.monotonic(), used))
                    last = used
                if self.reads % 10 == 0:
                    for pid, size in self.nvml.listed(self.index).items():
                        self.peak_listed[pid] = max(self.peak_listed.get(pid, 0), size or 0)
                time.sleep(self.period)
        except NvmlError as error:
            self.error = error

    def stop(self):
        self._end.set()
        self.join()
        if self.error:
            raise self.error
        return self


if __name__ == "__main__":
    json.dump(Nvml().look(), sys.stdout)
