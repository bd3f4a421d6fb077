"""PyTorch's CUDA memory seen from inside the process: a short look about once a second, a thorough one at the exit and
whenever the process has come to rest. Loaded only when CUDA is in use. It creates no context, changes nothing, and
writes one JSON file a process, atomically.
"""

import json
import os
import sys
import time
from _thread import allocate_lock

SCHEMA = "gpuresid.torch/1"
PERIOD = 1.0  # seconds between two looks
SHARE = 300  # at most one part in so many of the time goes into looks
REST = 3  # so many looks without a new allocation are a process at rest
POINTS = 256  # of the timeline, before every second one goes
BUDGET = 0.1  # seconds of CPU time for a thorough look
BLOCKS = 20000  # more blocks than this are not listed one by one
UNIT = {"small": 2 << 20, "large": 20 << 20}  # what the allocator maps and unmaps at a time, with expandable segments


def milliseconds():
    return int(time.monotonic() * 1000)


def number(nested, *path):
    for key in path:
        nested = nested.get(key) if hasattr(nested, "get") else None
    return nested if isinstance(nested, int) else None


class View:
    """The view of one process."""

    def __init__(self, watch, identity):
        self.watch, self.identity = watch, identity
        self.forget()

    def forget(self):
        """Nothing is known yet: this process is new, or was forked just now."""
        self.lock = allocate_lock()
        self.who = None
        self.gaps = []
        self.known = {}  # device -> what does not change about it
        self.peaks = {}
        self.timeline, self.stride, self.looks = [], 1, 0
        self.counter, self.rest, self.thorough_at = None, 0, None
        self.live = self.threads = None

    # ---- when to look ----------------------------------------------------------------------------------------------

    def look_on(self):
        """The loop of the thread that looks. Without `threading`, and without anything that would import."""
        pause = 0.02  # PyTorch calls in the middle of its initialisation
        quiet_until = 0.0
        while not self.watch.ended:
            time.sleep(pause)
            if self.watch.ended or not self.ready():
                continue
            began = time.monotonic()
            try:
                with_names = self.at_rest() and began >= quiet_until
                self.look("sample", thorough=with_names)
                if with_names:
                    quiet_until = began + (time.monotonic() - began) * SHARE
            except Exception as error:
                self.gap("a look at PyTorch failed", error)
            pause = max(PERIOD, (time.monotonic() - began) * SHARE if self.rest < REST else PERIOD)

    def at_exit(self):
        if not self.ready():
            return
        try:
            self.look("exit", thorough=True)
        except Exception as error:
            self.gap("the look at the exit failed", error)
            self.write("exit", [])

    @staticmethod
    def ready():
        """CUDA is in use in this very process (not in the one that it was forked from)."""
        cuda = sys.modules.get("torch.cuda")
        return bool(cuda is not None and cuda.is_initialized())

    def at_rest(self):
        return self.rest == REST and self.thorough_at != self.counter

    def gap(self, what, error):
        text = "%s: %s: %s" % (what, type(error).__name__, str(error)[:200])
        if text not in self.gaps and len(self.gaps) < 8:
            self.gaps.append(text)

    # ---- looking ---------------------------------------------------------------------------------------------------

    def look(self, stage, thorough):
        torch = sys.modules["torch"]
        deadline = time.thread_time() + BUDGET
        now = milliseconds()
        devices = self.devices(torch, now)
        if thorough:
            self.thorough_at = self.counter
            self.live = self.names(torch, devices, deadline)
            for device in devices:
                try:
                    self.releasable(torch, device, deadline)
                except Exception as error:
                    self.gap("the blocks of the allocator could not be read", error)
        try:
            self.threads = self.kept_by()
        except Exception as error:
            self.gap("the threads could not be read", error)
        self.write(stage, devices, now)

    def devices(self, torch, now):
        cuda = torch.cuda
        devices, counter = [], []
        if "count" not in self.known:
            self.known["count"] = cuda.device_count()
        self.looks += 1
        for index in range(self.known["count"]):
            try:
                stats = cuda.memory_stats_as_nested_dict(index)
            except Exception as error:
                self.gap("the memory of CUDA device %d could not be read" % index, error)
                continue
            reserved = number(stats, "reserved_bytes", "all", "current")
            peak = number(stats, "reserved_bytes", "all", "peak")
            if not reserved and not peak:
                continue
            allocated = number(stats, "allocated_bytes", "all", "current")
            counter.append((index, number(stats, "allocation", "all", "allocated"), allocated, reserved))
            # The program may set the peaks back; ours stay.
            peaks = self.peaks.setdefault(index, [0, 0])
            peaks[0] = max(peaks[0], number(stats, "allocated_bytes", "all", "peak") or 0)
            peaks[1] = max(peaks[1], peak or 0)
            device = {
                "index": index,
                "allocated_bytes": allocated,
                "reserved_bytes": reserved,
                "requested_bytes": number(stats, "requested_bytes", "all", "current"),
                "peak_allocated_bytes": peaks[0],
                "peak_reserved_bytes": peaks[1],
                "ooms": number(stats, "num_ooms"),
                "retries": number(stats, "num_alloc_retries"),
                "blocks": number(stats, "active", "all", "current"),
                "releasable_bytes": None,
            }
            device.update(self.constant(cuda, index))
            devices.append(device)
            if self.looks % self.stride == 0:
                self.timeline.append([now, index, allocated, reserved])
        if len(self.timeline) > POINTS:
            several = max(1, len(counter))
            self.timeline = [p for i, p in enumerate(self.timeline) if (i // several) % 2 == 0]
            self.stride *= 2
        self.rest = self.rest + 1 if counter == self.counter else 0
        self.rest = min(self.rest, REST)
        self.counter = counter
        return devices

    def constant(self, cuda, index):
        if index not in self.known:
            known = self.known[index] = {"uuid": None, "pci": None}
            try:
                properties = cuda.get_device_properties(index)
                if getattr(properties, "uuid", None) is not None:
                    known["uuid"] = str(properties.uuid)
                if getattr(properties, "pci_bus_id", None) is not None:
                    known["pci"] = "%08X:%02X:%02X.0" % (
                        getattr(properties, "pci_domain_id", 0), properties.pci_bus_id, getattr(properties, "pci_device_id", 0))
            except Exception as error:
                self.gap("which GPU CUDA device %d is could not be read" % index, error)
        return self.known[index]

    def names(self, torch, devices, deadline):
        """Who refers to what; the collector rests meanwhile, because a full collection takes longer than all of this."""
        import gc

        tensors, names = self.watch.part("tensors.py"), self.watch.part("names.py")
        was_on = gc.isenabled()
        gc.disable()
        try:
            return names["live"](torch, tensors, devices, deadline, self.watch.directories[0], self.watch.main)
        except Exception as error:
            self.gap("the live tensors could not be named", error)
            return None
        finally:
            if was_on:
                gc.enable()

    def releasable(self, torch, device, deadline):
        """What empty_cache() would give back now: segments without a block in use; with expandable segments whole
        units of them. Memory pools of CUDA graphs stay."""
        if not device["reserved_bytes"] or device["reserved_bytes"] == device["allocated_bytes"]:
            device["releasable_bytes"] = 0
            return
        recording = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if (device["blocks"] or 0) > BLOCKS or time.thread_time() > deadline or (recording and recording()):
            return
        total = 0
        for segment in torch.cuda.memory_snapshot():
            if segment.get("device") != device["index"]:
                continue
            if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
                continue
            if segment.get("is_expandable"):
                unit = UNIT.get(segment.get("segment_type"), 2 << 20)
                address = segment.get("address", 0)
                for block in segment.get("blocks", ()):
                    end = address + block["size"]
                    if block.get("state") == "inactive":
                        base = segment.get("address", 0)
                        first = -(-(address - base) // unit)
                        total += max(0, (end - base) // unit - first) * unit
                    address = end
            elif not segment.get("active_size", segment.get("allocated_size")):
                total += segment["total_size"]
        device["releasable_bytes"] = total

    @staticmethod
    def kept_by():
        """Threads that keep the process alive after its main thread has ended."""
        threading = sys.modules.get("threading")
        if threading is None or threading.main_thread().is_alive():
            return None
        kept = []
        for thread in list(threading._active.values()):
            if thread is not threading.main_thread() and not thread.daemon and thread.is_alive():
                target = getattr(thread, "_target", None)
                kept.append({"name": str(thread.name), "function": getattr(target, "__qualname__", None)})
        return kept or None

    # ---- telling ---------------------------------------------------------------------------------------------------

    def write(self, stage, devices, now=None):
        if self.who is None:
            torch = sys.modules.get("torch")
            pid, start = self.identity()
            self.who = {
                "schema": SCHEMA, "pid": pid, "start_ticks": start,
                "python": "%d.%d.%d" % sys.version_info[:3],
                "torch": str(getattr(torch, "__version__", "")) or None,
            }
        value = dict(
            self.who, stage=stage, at_ms=now or milliseconds(), devices=devices, timeline=self.timeline,
            live=self.live, threads=self.threads, gaps=self.gaps,
        )
        # Half a surrogate, as in the name of a file that is no UTF-8, is no JSON.
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        # The last word is the exit's: a look that was under way must not come after it.
        if not self.lock.acquire(True, 1.0):
            return
        try:
            if stage != "exit" and self.watch.ended:
                return
            for directory in self.watch.directories:
                self.replace(directory, text)
        finally:
            self.lock.release()

    def replace(self, directory, text):
        path = os.path.join(directory, "%d-%d.json" % (self.who["pid"], self.who["start_ticks"]))
        try:
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                while text:
                    text = text[os.write(fd, text):]
            finally:
                os.close(fd)
            os.rename(path + ".new", path)
        except OSError:
            pass  # gpuresid has ended and taken the directory with it, or the disk is full
