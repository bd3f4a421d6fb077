"""What `check --torch` says, against PyTorch's own numbers and NVML's: group `torch`."""

import importlib.util
import json
import sys
import threading
import time

import roles
from harness import MIB, TORCH, Skip, case, program

TOLERANCE = 0.02


class Listed(threading.Thread):
    """What NVML lists for the process that tells that it is the holder, read while nothing changes."""

    def __init__(self, t, count=1):
        super().__init__(daemon=True)
        self.t, self.count, self.found = t, count, {}
        self.start()

    def run(self):
        try:
            facts = roles.wait_role(self.t.facts, "holder", 90, self.count)
        except (TimeoutError, RuntimeError):
            return
        end = time.monotonic() + 5
        while time.monotonic() < end and len(self.found) < self.count:
            listed = self.t.nvml.listed(0)
            self.found.update({f["pid"]: listed[f["pid"]] for f in facts if listed.get(f["pid"])})
            time.sleep(0.02)


def need_torch():
    if importlib.util.find_spec("torch") is None:
        raise Skip("PyTorch is not installed")


def look(t, what, *options, then="exit", code=0):
    """One run with `--torch`: the check, the process in the report, its device, what it told of itself."""
    need_torch()
    listed = Listed(t)
    check = t.check([*TORCH, program("torch_view.py"), t.facts, what, "--then", then, *options], "--torch")
    t.row["code"] = check.code
    t.row["verdict"] = check.report["verdict"]
    t.want(check.code == code, f"exit code is {check.code}, not {code}")
    fact = t.role("holder")
    found = [p for p in check.report["torch"] if p["pid"] == fact["pid"]]
    if not found:
        raise AssertionError(f"process {fact['pid']} is not in the report: {check.report['torch']}, gaps {check.report['gaps']}")
    t.row["pid"] = "yes"
    process = found[0]
    device = process["devices"][0]
    t.want(device["uuid"] == check.report["devices"][0]["uuid"], f"its device is {device['uuid']}")
    listed.join(10)
    return check, process, device, fact, listed.found.get(fact["pid"])


def near(t, name, said, true):
    if said is None or true is None:
        return t.want(False, f"{name}: said {said}, true {true}")
    off = abs(said - true) / max(true, 1)
    return t.want(off <= TOLERANCE or abs(said - true) <= MIB, f"{name}: said {said / MIB:.1f} MiB, true {true / MIB:.1f} ({off:.1%} off)")


def split(t, device, fact, listed):
    """Live, cache and context against torch's own numbers and NVML's."""
    end = device["end"]
    near(t, "live", end["live_bytes"], fact["allocated"])
    near(t, "cache", end["cached_bytes"], fact["reserved"] - fact["allocated"])
    near(t, "peak live", device["peak"]["live_bytes"], fact["peak_allocated"])
    context = listed - fact["reserved"] if listed is not None else None
    near(t, "context", end["context_bytes"], context)
    near(t, "listed", end["listed_bytes"], listed)
    parts = [end[k] or 0 for k in ("live_bytes", "cached_bytes", "context_bytes")]
    t.note(f"live {parts[0] >> 20} cache {parts[1] >> 20} context {parts[2] >> 20} NVML {(listed or 0) >> 20} MiB")


def names(device):
    if device["live"] is None:
        return {}
    return {r["name"]: (s["bytes"], r["kind"], r["scope"]) for s in device["live"]["largest"] for r in s["references"]}


def named(t, device, name, kind, size, scope=None):
    found = names(device).get(name)
    if t.want(found, f"{name} is not named; named are {json.dumps(names(device))}"):
        t.row["cause"] = kind
        t.want(found[1] == kind, f"{name} is a {found[1]}, not a {kind}")
        t.want(found[0] == size, f"{name} has {found[0]} bytes, not {size}")
        t.want(not scope or scope in (found[2] or ""), f"{name} belongs to {found[2]!r}, not to {scope!r}")


@case("26a", "PyTorch: the article's program, 10000 × 10000", group="torch")
def article(t):
    check, process, device, fact, listed = look(t, "article")
    split(t, device, fact, listed)
    named(t, device, "torch_view.global_tensor", "global", 400_000_000)
    t.want(process["stage"] == "exit", f"the last record is a {process['stage']}")
    text = check.text("err")
    t.want("381 MiB torch_view.global_tensor" in text, "stderr does not say `381 MiB torch_view.global_tensor`")
    owners = [o["name"] for o in device["live"]["owners"]]
    t.want("torch_view.model" in owners, f"the model is not among the owners: {owners}")
    t.want(not process["gaps"], f"gaps: {process['gaps']}")
    t.after()


@case("26b", "PyTorch: the article's own 1000 × 1000", group="torch")
def article_small(t):
    check, _, device, fact, listed = look(t, "article", "--side", "1000")
    split(t, device, fact, listed)
    named(t, device, "torch_view.global_tensor", "global", 4_000_000)
    t.want("3.8 MiB torch_view.global_tensor" in check.text("err"), "stderr does not say `3.8 MiB torch_view.global_tensor`")


def holder_case(number, what, name, kind, size, scope=None):
    @case(number, f"PyTorch: held by {what}", group="torch")
    def run(t):
        _, _, device, fact, listed = look(t, what)
        split(t, device, fact, listed)
        named(t, device, name, kind, size, scope)

    return run


holder_case("26c", "attribute", "torch_view.keeper.buffer", "attribute", 64 * MIB)
holder_case("26d", "closure", "hidden", "closure", 64 * MIB, "torch_view.step")
holder_case("26e", "list", "torch_view.history[0]", "element", 16 * MIB)
holder_case("26f", "generator", "batch", "generator", 64 * MIB, "torch_view.batches")


@case("26g", "PyTorch: held by C++ alone (a loss's graph)", group="torch")
def graph(t):
    _, process, device, fact, listed = look(t, "graph")
    split(t, device, fact, listed)
    live = device["live"]
    t.want(live["hidden_bytes"] >= 64 * MIB, f"held by C++: {live['hidden_bytes']} bytes")
    t.want("torch_view.loss" in live["graphs"], f"the loss is not named: {live['graphs']}")
    t.want(any("detach()" in a["why"] for a in process["advice"]), "no advice names detach()")
    t.row["cause"] = "cpp"


@case("26h", "PyTorch: a CUDA graph's pool is no cache to give back", group="torch")
def cuda_graph(t):
    _, _, device, fact, listed = look(t, "cudagraph")
    split(t, device, fact, listed)
    cached = device["end"]["cached_bytes"]
    t.want(cached >= 64 * MIB, f"the graph's pool is not there: cache {cached}")
    t.want(device["releasable_bytes"] <= cached - 64 * MIB, f"empty_cache() would give {device['releasable_bytes']} of {cached}")


@case("26i", "PyTorch: DataLoader workers", group="torch")
def data_loader(t):
    check, _, device, fact, listed = look(t, "loader")
    split(t, device, fact, listed)
    named(t, device, "torch_view.kept[8]", "element", 64 * MIB)
    t.want(len(check.report["torch"]) == 1, f"{len(check.report['torch'])} processes told of CUDA")


@case("26j", "PyTorch: torch.compile", group="torch")
def compiled(t):
    _, _, device, fact, listed = look(t, "compile")
    split(t, device, fact, listed)
    named(t, device, "torch_view.result", "global", 4096 * 2048 * 4)


@case("26k", "PyTorch: out of memory", group="torch")
def out_of_memory(t):
    check, process, device, fact, listed = look(t, "oom")
    split(t, device, fact, listed)
    t.want(device["ooms"] == fact["ooms"] and device["ooms"] >= 1, f"{device['ooms']} OOMs, torch counts {fact['ooms']}")
    t.want("allocations that failed" in check.text("err"), "stderr does not count them")
    t.want(any("failed" in a["why"] for a in process["advice"]), "no advice about it")


@case("26l", "PyTorch: cache", group="torch")
def cache(t):
    _, process, device, fact, listed = look(t, "cache")
    split(t, device, fact, listed)
    t.want(device["releasable_bytes"] >= 1000 * MIB, f"empty_cache() would give {device['releasable_bytes']}")
    t.want(any("empty_cache" in a["why"] for a in process["advice"]), "no advice about it")


@case("26m", "PyTorch: ended by os._exit", group="torch")
def os_exit(t):
    _, process, device, fact, listed = look(t, "list", then="osexit")
    t.want(process["stage"] == "sample", f"the last record is a {process['stage']}")
    near(t, "live", device["end"]["live_bytes"], fact["allocated"])


@case("26n", "PyTorch: still running", group="torch")
def still_running(t):
    need_torch()
    listed = Listed(t)
    run = [sys.executable, program("launcher.py"), t.facts, "--", *TORCH, program("torch_view.py"), t.facts, "list", "--then", "sleep"]
    check = t.check(run, "--torch")
    t.want(check.code == 121, f"exit code is {check.code}")
    listed.join(10)
    fact = t.role("holder")
    process = [p for p in check.report["torch"] if p["pid"] == fact["pid"]][0]
    t.want(process["alive"] and process["stage"] == "sample", f"alive {process['alive']}, {process['stage']}")
    split(t, process["devices"][0], fact, listed.found.get(fact["pid"]))
    named(t, process["devices"][0], "torch_view.history[0]", "element", 16 * MIB)
    t.clean_up(check)


@case("26o", "PyTorch: torchrun with two ranks on one GPU", group="torch")
def torchrun(t):
    need_torch()
    listed = Listed(t, 2)
    run = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check = t.check([*run, program("torch_view_rank.py"), t.facts], "--torch")
    t.want(check.code == 0, f"exit code is {check.code}")
    listed.join(10)
    facts = [f for f in roles.told(t.facts) if f["role"] == "holder"]
    t.want(len(facts) == 2, f"{len(facts)} ranks told")
    for fact in facts:
        found = [p for p in check.report["torch"] if p["pid"] == fact["pid"]]
        if not t.want(found, f"rank {fact['rank']} (PID {fact['pid']}) is not in the report"):
            continue
        device = found[0]["devices"][0]
        size = 256 * MIB * (fact["rank"] + 1)
        named(t, device, "torch_view_rank.rank_tensor", "global", size)
        true = listed.found.get(fact["pid"])
        near(t, f"context of rank {fact['rank']}", device["end"]["context_bytes"], true and true - fact["reserved"])


@case("26p", "PyTorch: what is often said of its memory", group="torch")
def claims(t):
    """The claims of the guide (memory, folklore) that need PyTorch and a GPU."""
    need_torch()
    out = t.facts + ".claims"
    check = t.check([*TORCH, program("torch_claims.py"), out])
    t.want(check.code == 0, f"exit code is {check.code}")
    with open(out, encoding="ascii") as file:
        found = json.load(file)
    t.want("same device" in (found["mixed_devices"] or ""), f"model on the CPU, input on the GPU: {found['mixed_devices']}")
    cache = found["empty_cache"]
    t.want(cache["before"] >= 2048 * MIB, f"cached: {cache}")
    t.want(cache["after_another_process"] == cache["before"], f"another process emptied the cache: {cache}")
    t.want(cache["after_own"] < MIB, f"the own empty_cache() left something: {cache}")
    late = found["gc_last"]
    t.want(late["reserved"] >= 1024 * MIB > late["after_empty_cache"], f"empty_cache() before gc: {late}")
    t.want(found["square_bytes"] == 4000000, f"1000 × 1000 floats are {found['square_bytes']} bytes")
    plans = found["cufft"]
    t.want(plans["plans"] > 0 and plans["grown"] > 0 and plans["reserved_grown"] == 0, f"plans of cuFFT: {plans}")
    t.want(plans["cleared"] > 0, f"clearing the plans gave nothing back: {plans}")
    t.want(found["fraction_limits"], "set_per_process_memory_fraction did not limit")
    t.note(f"plans of cuFFT: {plans['grown'] >> 20} MiB beside the allocator, {plans['cleared'] >> 20} back after clear()")
