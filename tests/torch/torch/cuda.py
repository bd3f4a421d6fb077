"""The part of torch.cuda that the probe uses, with the calls that the real one queues until it is initialised."""

import os
import types

import torch

_initialized = False
_queued_calls = []
_forked_from = None
calls = []


def _lazy_init():
    global _initialized, _forked_from
    if _initialized:
        if _forked_from != os.getpid():
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return
    for queued, traceback in _queued_calls:
        queued()
    _initialized, _forked_from = True, os.getpid()
    torch.tell()


def is_initialized():
    return _initialized and _forked_from == os.getpid()


def device_count():
    return len(torch.ALLOCATORS)


def get_device_properties(index):
    program = torch.rig()
    uuid = program[0].machine()["devices"][index]["uuid"] if program else "GPU-00000000"
    return types.SimpleNamespace(uuid=uuid.replace("GPU-", "", 1))


def memory_stats_as_nested_dict(index):
    if not is_initialized():
        raise AssertionError("the probe must not touch CUDA before it is initialised")
    if os.environ.get("FAKE_TORCH_BROKEN"):
        raise RuntimeError("a stand-in that fails on purpose")
    calls.append(index)
    a = torch.ALLOCATORS[index]
    return {
        "allocated_bytes": {"all": {"current": a.allocated, "peak": a.peak_allocated}},
        "reserved_bytes": {"all": {"current": a.reserved, "peak": a.peak_reserved}},
        "requested_bytes": {"all": {"current": a.allocated}},
        "allocation": {"all": {"allocated": a.count}},
        "active": {"all": {"current": a.count}},
        "num_ooms": a.ooms,
        "num_alloc_retries": a.retries,
    }


def memory_snapshot():
    a = torch.ALLOCATORS[0]
    return [
        {"device": 0, "total_size": a.allocated, "active_size": a.allocated, "segment_type": "large"},
        {"device": 0, "total_size": a.reserved - a.allocated, "active_size": 0, "segment_type": "large"},
    ]


def empty_cache():
    torch.ALLOCATORS[0].reserved = torch.ALLOCATORS[0].allocated
    torch.tell()
