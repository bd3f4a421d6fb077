#!/usr/bin/env python3
"""A client of an NVML library through its bare C ABI.

    nvml_client.py LIBRARY CALL …

Prints one JSON line `{"call": …, "code": …, "value": …}` for each call:
    init, shutdown, count, driver, cuda
    name:G, uuid:G, minor:G, pci:G, index:G, memory:G, memory_v2:G, utilization:G, mig:G
    list:SYMBOL:G:STRIDE   one of the process lists in records of STRIDE bytes: [pid, bytes, gi, ci]
    process:PID            the process's name
    xid:G                  registers for events, prints `registered`, waits for one: [device, type, xid]
    set:SYMBOL:G           a function that takes a device and a number
    has:SYMBOL             whether the symbol is there
G is an index; `G.I` is the MIG instance I of GPU G.
"""

import ctypes as c
import json
import struct
import sys

lib = c.CDLL(sys.argv[1])


def show(call, code, value=None):
    print(json.dumps({"call": call, "code": code, "value": value}), flush=True)


def device(text):
    gpu, _, instance = text.partition(".")
    handle = c.c_void_p()
    code = lib.nvmlDeviceGetHandleByIndex_v2(c.c_uint(int(gpu)), c.byref(handle))
    if code == 0 and instance:
        code = lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, c.c_uint(int(instance)), c.byref(handle))
    if code:
        raise LookupError(code)
    return handle


def text(function, *first):
    buffer = c.create_string_buffer(96)
    code = function(*first, buffer, c.c_uint(96))
    return code, buffer.value.decode() if code == 0 else None


def numbers(function, handle, layout):
    buffer = c.create_string_buffer(struct.calcsize(layout))
    code = function(handle, buffer)
    return code, list(struct.unpack(layout, buffer.raw)) if code == 0 else None


def memory_v2(handle):
    buffer = c.create_string_buffer(struct.pack("@IQQQQ", 40 | 2 << 24, 0, 0, 0, 0), 40)
    code = lib.nvmlDeviceGetMemoryInfo_v2(handle, buffer)
    return code, list(struct.unpack("@IQQQQ", buffer.raw)[1:]) if code == 0 else None


def pci(handle):
    buffer = c.create_string_buffer(68)
    code = lib.nvmlDeviceGetPciInfo_v3(handle, buffer)
    domain, bus, dev, pci_device, _ = struct.unpack_from("@5I", buffer.raw, 16)
    return code, [domain, bus, dev, pci_device & 0xFFFF, buffer.raw[36:].split(b"\0")[0].decode()]


def process_list(symbol, handle, stride):
    """Asks for the number first, as many clients do, then for the records; behind them nothing may be written."""
    function, count = getattr(lib, symbol), c.c_uint(0)
    code = function(handle, c.byref(count), None)
    if code not in (0, 7):
        return code, None
    buffer = c.create_string_buffer(b"\xa5" * (stride * (count.value + 1)), stride * (count.value + 1))
    code = function(handle, c.byref(count), buffer)
    records = []
    for at in range(0, stride * count.value, stride):
        pid, used = struct.unpack_from("@IxxxxQ", buffer.raw, at)
        records.append([pid, used, *(struct.unpack_from("@II", buffer.raw, at + 16) if stride > 16 else ())])
    assert buffer.raw[stride * count.value :] == b"\xa5" * stride, "written past the records"
    return code, records


def xid(call, handle):
    events = c.c_void_p()
    for code in (
        lib.nvmlEventSetCreate(c.byref(events)),
        lib.nvmlDeviceRegisterEvents(handle, c.c_ulonglong(8), events),
    ):
        if code:
            return code, None
    show(call, 0, "registered")
    data = c.create_string_buffer(32)
    code = lib.nvmlEventSetWait_v2(events, data, c.c_uint(20000))
    lib.nvmlEventSetFree(events)
    where, kind, number = struct.unpack_from("@PQQ", data.raw)
    return code, [where == handle.value, kind, number]


def answer(call):
    name, *rest = call.split(":")
    if name == "init":
        return lib.nvmlInit_v2(), None
    if name == "shutdown":
        return lib.nvmlShutdown(), None
    if name == "has":
        return 0, hasattr(lib, rest[0])
    if name in ("count", "cuda"):
        number = c.c_int()
        ask = {"count": "nvmlDeviceGetCount_v2", "cuda": "nvmlSystemGetCudaDriverVersion_v2"}[name]
        return getattr(lib, ask)(c.byref(number)), number.value
    if name == "driver":
        return text(lib.nvmlSystemGetDriverVersion)
    if name == "process":
        return text(lib.nvmlSystemGetProcessName, c.c_uint(int(rest[0])))
    if name in ("list", "set"):
        handle = device(rest[1])
        return process_list(rest[0], handle, int(rest[2])) if name == "list" else (
            getattr(lib, rest[0])(handle, c.c_uint(0)), None)
    handle = device(rest[0])
    if name == "xid":
        return xid(call, handle)
    if name == "memory_v2":
        return memory_v2(handle)
    if name == "pci":
        return pci(handle)
    if name in ("name", "uuid"):
        return text(getattr(lib, {"name": "nvmlDeviceGetName", "uuid": "nvmlDeviceGetUUID"}[name]), handle)
    if name == "mig":
        mode, pending = c.c_uint(), c.c_uint()
        return lib.nvmlDeviceGetMigMode(handle, c.byref(mode), c.byref(pending)), mode.value
    function, layout = {
        "minor": ("nvmlDeviceGetMinorNumber", "@I"),
        "index": ("nvmlDeviceGetIndex", "@I"),
        "memory": ("nvmlDeviceGetMemoryInfo", "@QQQ"),
        "utilization": ("nvmlDeviceGetUtilizationRates", "@II"),
        "instance": ("nvmlDeviceGetGpuInstanceId", "@I"),
    }[name]
    return numbers(getattr(lib, function), handle, layout)


for call in sys.argv[2:]:
    try:
        show(call, *answer(call))
    except LookupError as error:
        show(call, error.args[0])
