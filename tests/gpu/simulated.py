"""The suite's own rehearsal: its programs and its tool on the fake driver of the other tests, where there is no GPU.

    cargo test --no-run && python3 tests/gpu/run.py churn --binary target/debug/gpuresid --simulated target/debug/deps/libfake_nvml.so

It shows that the suite starts, counts and ends what it should. What it says about verdicts holds for the fake driver
alone, which has no noise, and reads so slowly that beside eight restless neighbours hardly any look is whole.
"""

import importlib.util
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def make_machine(directory, binary, library):
    """A machine with one GPU in this directory, for every process that is started from now on; the program that stands
    for the binary on it."""
    ledger, dev = os.path.join(directory, "ledger"), os.path.join(directory, "dev")
    os.makedirs(os.path.join(ledger, "allocations"))
    os.mkdir(dev)
    gpu = {
        "uuid": "GPU-00000000-5a1e-4c0d-9e57-000000000000", "name": "NVIDIA H200 (simulated)", "total": 143_771 << 20,
        "reserved": 615 << 20, "minor": 0, "pci": "00000000:0A:00.0",
    }
    machine = {"driver_version": "580.159.04", "nvml_version": "13.580.159.04", "cuda_version": 13_000, "devices": [gpu]}
    with open(os.path.join(ledger, "machine.json"), "w", encoding="ascii") as file:
        json.dump(machine, file)
    for path in (*(f"{dev}/{n}" for n in ("nvidia0", "nvidiactl", "nvidia-uvm")), f"{ledger}/started.log", f"{ledger}/calls.log", f"{ledger}/xids"):
        with open(path, "w", encoding="ascii"):
            pass
    os.environ.update(FAKE_NVML_LEDGER=ledger, FAKE_DEV=dev)
    tool = os.path.join(directory, "gpuresid")
    with open(tool, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec "{binary}" --nvml-lib "{os.path.abspath(library)}" --dev "{dev}" "$@"\n')
    os.chmod(tool, 0o755)
    return tool


def _program():
    """The other tests' CUDA program, as a module."""
    path = os.path.join(os.path.dirname(HERE), "programs", "cuda.py")
    spec = importlib.util.spec_from_file_location("fake_cuda_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Cuda:
    """What `cudalite.Cuda` is on a real GPU, as far as the programs of the churn need it."""

    def __init__(self, device=0, context=True):
        self.device = device
        self.program = _program().Program(os.environ["FAKE_NVML_LEDGER"], os.environ["FAKE_DEV"])
        self.sizes = []
        if context:
            self.program.context(device)

    def alloc(self, mib):
        self.sizes.append(mib << 20)
        self.program.alloc(self.device, mib << 20)
        return mib << 20

    def free_last(self):
        self.program.alloc(self.device, -self.sizes.pop())

    def managed(self, mib):
        self.program.managed(self.device, mib << 20)

    def exported_descriptors(self, mib):
        """Two stand for the one of a real driver: the lock that keeps the memory, and the control node."""
        exporter = self.program.alloc(self.device, mib << 20)
        heir = f"{exporter}-handle"
        lock = self.program.take_lock(f"{heir}.lock")
        self.program.write(heir, {"device": self.device, "inherits": [{"from": exporter, "bytes": mib << 20}]})
        control = os.open(os.path.join(os.environ["FAKE_DEV"], "nvidiactl"), os.O_RDWR)
        for fd in (lock, control):
            os.set_inheritable(fd, True)
        return [lock, control]

    def ipc_export(self, size):
        name, _ = self.program.records[self.device]
        raw = json.dumps([name, size >> 20]).encode()
        if len(raw) > 64:
            raise RuntimeError(f"a handle of {len(raw)} bytes")
        return raw.ljust(64)

    def ipc_open(self, raw):
        name, mib = json.loads(raw)
        inherits = self.program.has(self.device, "inherits", []) + [{"from": name, "bytes": mib << 20}]
        self.program.record(self.device, inherits=inherits)
