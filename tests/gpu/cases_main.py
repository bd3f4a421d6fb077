"""The scenarios that every change must pass: clean runs and failing commands, the kinds of leftovers, neighbours,
memory that returns late. All on one GPU.
"""

import os
import signal
import time

import nvml
import roles
from harness import MIB, TORCH, case, holder, launcher, program


# Clean runs and failing commands.


@case("1", "normal exit: PyTorch model, global tensor, cache")
def normal_exit(t):
    poller = nvml.Poller(t.nvml)
    poller.start()
    check = t.check([*TORCH, program("torch_train.py"), t.facts])
    poller.stop()
    device = t.clean(check)
    t.want(device["residue_rate"] == 0, f"residue rate is {device['residue_rate']}")
    t.want(check.report["settle_end"] == "all_gone", f"settling ended with {check.report['settle_end']}")
    t.want(check.report["settled_seconds"] < 0.5, f"the verdict took {check.report['settled_seconds']} s")
    peak = device["peak_bytes"]
    off = abs(peak - poller.peak) / poller.peak
    t.want(poller.peak > 2048 * MIB, f"the poller saw only {poller.peak >> 20} MiB: the scenario is wrong")
    t.want(off <= 0.02, f"peak {peak >> 20} MiB, the poller saw {poller.peak >> 20} MiB ({off:.1%} off)")
    command_peak = device["command_peak_bytes"]
    t.want(abs(command_peak - poller.peak) / poller.peak <= 0.02, f"command peak {command_peak >> 20} MiB against {poller.peak >> 20}")
    t.note(f"peak {peak >> 20}/{poller.peak >> 20} MiB, verdict after {check.report['settled_seconds'] * 1000:.0f} ms")
    t.after()


@case("2a", "command exits with 3")
def exits_3(t):
    check = t.check(holder(t.facts, "--mib", 512, "--then", "exit:3"))
    t.clean(check, code=3)
    t.want(check.report["command"]["exit_code"] == 3, f"the report has {check.report['command']}")


@case("2b", "command dies of SIGSEGV")
def segfault(t):
    check = t.check(holder(t.facts, "--mib", 512, "--then", "segv"))
    t.clean(check, code=(-signal.SIGSEGV, 139))
    t.want(check.report["command"]["signal"] == 11, f"the report has {check.report['command']}")


@case("2c", "command killed from outside")
def killed(t):
    check = t.begin(holder(t.facts, "--mib", 512))
    roles.send(t.wait_role("holder"))
    check.finish()
    t.clean(check, code=(-signal.SIGKILL, 137))
    t.want(check.report["command"]["signal"] == 9, f"the report has {check.report['command']}")


@case("2d", "command not found, command not executable")
def not_runnable(t):
    with open(t.path("plain"), "w", encoding="ascii") as file:
        file.write("not a program\n")
    os.chmod(t.path("plain"), 0o644)
    for argv, code in ((["/nonexistent/program"], 127), ([t.path("plain")], 126)):
        check = t.check(argv)
        t.row["code"] = check.code
        t.want(check.code == code, f"{argv[0]}: exit code {check.code}, not {code}")
        t.want(argv[0] in check.text("err"), f"{argv[0]} is not named on stderr")
        t.want(check.report is not None, f"{argv[0]}: no report")


# Leftovers. They run beside each other: each is a neighbour of the others.


@case("3", "orphaned rank (PyTorch)", pool=True)
def orphan_torch(t):
    run = [*TORCH, program("torch_train.py"), t.facts, "--then", "sleep"]
    check = t.check(launcher(t.facts, run=run))
    t.residue(check, "orphan")
    one = [h for h in check.report["holders"] if h["pid"] == t.role("holder")["pid"]]
    t.want(one and "torch_train.py" in one[0]["command"], "its command line is not there")
    t.want(one and one[0]["launcher_gone"] is True, "that its launcher is gone is not said")
    t.want(check.report["settle_end"] == "unchanged", f"settling ended with {check.report['settle_end']}")
    t.clean_up(check)


@case("4", "forked copy (PyTorch)", pool=True)
def forked_torch(t):
    check = t.check([*TORCH, program("torch_fork.py"), t.facts])
    forked(t, check)
    t.says(check.report, r"spawn|before CUDA", "how to avoid it (start workers before CUDA, or spawn)")


@case("4b", "forked copy (driver calls only)", pool=True)
def forked_lite(t):
    forked(t, t.check(holder(t.facts, "--fork-copy")))


def forked(t, check):
    t.residue(check, "forked_copy", listed_role="ghost")
    ghost, copy = t.role("ghost"), t.role("holder")
    found = [g for g in check.report["ghosts"] if g["pid"] == ghost["pid"]]
    if t.want(found, f"ghost {ghost['pid']} is not named: {check.report['ghosts']}"):
        t.want(found[0]["lineage"] == "own", f"the ghost is {found[0]['lineage']}")
        t.want(found[0]["candidates"] == [copy["pid"]], f"candidates are {found[0]['candidates']}, not {copy['pid']}")
        true = t.truth(ghost)
        t.want(found[0]["bytes"] == true, f"the ghost has {found[0]['bytes']} bytes, NVML lists {true}")
    t.clean_up(check)


@case("6a", "daemonised twice", pool=True)
def daemon(t):
    t.clean_up(own_by_descent(t, launcher(t.facts, run=holder(t.facts, "--daemon", "--mib", 700))))


@case("6b", "renamed by prctl, in a session of its own", pool=True)
def renamed(t):
    t.clean_up(own_by_descent(t, launcher(t.facts, run=holder(t.facts, "--rename", "kworker/u8:1", "--mib", 800))))


@case("6c", "environment overwritten, as by setproctitle", pool=True)
def erased(t):
    t.clean_up(own_by_descent(t, launcher(t.facts, run=holder(t.facts, "--erase-env", "--daemon", "--mib", 900))))


@case("6d", "started with an empty environment", pool=True)
def env_i(t):
    t.clean_up(own_by_descent(t, launcher(t.facts, "--env-i", run=holder(t.facts, "--daemon", "--mib", 1000))))


def own_by_descent(t, argv):
    check = t.check(argv)
    t.residue(check, "orphan")
    return check


@case("7", "server left on purpose, 5 s of imports before CUDA", pool=True)
def server(t):
    quoted = " ".join(map(str, holder(t.facts, "--delay", 5, "--mib", 1200)))
    check = t.check(["bash", "-c", f"{quoted} & exit 0"])
    t.residue(check, "orphan")
    t.want(check.report["settled_seconds"] > 5, f"judged after {check.report['settled_seconds']} s, before it touched the GPU")
    t.says(check.report, r"meant|purpose|on purpose|want it|should stay|keep", "that it may be meant to stay")
    t.clean_up(check)


@case("7b", "server that never touches the GPU")
def server_without_gpu(t):
    quoted = " ".join(map(str, holder(t.facts, "--no-gpu", "--role", "bystander")))
    check = t.check(["bash", "-c", f"{quoted} & exit 0"])
    t.clean(check)
    t.finding(check.report, "still_running")
    own = t.role("bystander")
    t.want(own["pid"] in [s["pid"] for s in check.report["survivors"]], "it is not among the survivors")
    t.want(own["pid"] not in [h["pid"] for h in check.report["holders"]], "it is named as a holder")


@case("8", "stopped holder", pool=True)
def stopped(t):
    check = t.check(launcher(t.facts, "--stop", run=holder(t.facts, "--mib", 1300)))
    t.residue(check, "stopped")
    commands = " ; ".join(a["command"] or "" for a in check.report["advice"])
    t.want("CONT" in commands or "KILL" in commands or "-9" in commands, f"the advice has neither CONT nor KILL: {commands}")
    t.clean_up(check)


@case("9", "main thread gone, others alive", pool=True)
def half_dead(t):
    check = t.check(launcher(t.facts, run=holder(t.facts, "--half-dead", "--mib", 1400)))
    t.residue(check, "half_dead")
    t.clean_up(check)


# Neighbours.


def around(t, action, *options):
    """Our clean run, during which `action` happens to the neighbours."""
    check = t.begin(holder(t.facts, "--mib", 2048, "--then", f"go:{t.path('go')}"), *options)
    t.wait_role("holder")
    time.sleep(0.3)
    action()
    time.sleep(0.3)
    t.touch("go")
    return check.finish()


def innocent(t, check):
    t.clean(check)
    t.not_blamed(check.report, *[f for f in roles.told(t.facts) if f["role"].startswith("neighbour")])


@case("14a", "neighbour grows")
def grows(t):
    other = t.neighbour("alloc 1024")
    innocent(t, around(t, lambda: t.order(other, "alloc 2048")))


@case("14b", "neighbour shrinks")
def shrinks(t):
    other = t.neighbour("alloc 2048")
    innocent(t, around(t, lambda: t.order(other, "free")))


@case("14c", "neighbour starts and stays")
def starts(t):
    innocent(t, around(t, lambda: t.neighbour("alloc 2048")))


@case("14d", "neighbour ends, another starts and ends")
def ends(t):
    other = t.neighbour("alloc 2048")

    def action():
        third = t.neighbour("alloc 512")
        t.order(other, "end")
        t.order(third, "end")

    innocent(t, around(t, action))


@case("14e", "neighbour touches 4 GiB of managed memory")
def managed_touched(t):
    other = t.neighbour()
    innocent(t, around(t, lambda: t.order(other, "managed 4096")))


@case("14h", "neighbour frees 4 GiB of managed memory")
def managed_freed(t):
    other = t.neighbour("managed 4096")
    innocent(t, around(t, lambda: t.order(other, "free")))


@case("14f", "neighbour's own ghost, there before and new in the run")
def neighbours_ghost(t):
    first = t.neighbour("alloc 512", "fork")
    t.order(first, "end")
    second = t.neighbour("alloc 768", "fork")

    def action():
        t.order(second, "end")

    check = around(t, action)
    innocent(t, check)
    t.want(len(check.report["ghosts"]) == 2, f"{len(check.report['ghosts'])} ghosts are named, not 2")
    t.want(all(g["lineage"] != "own" for g in check.report["ghosts"]), "a neighbour's ghost is taken for own")


@case("14g", "our orphan, while the neighbour shrinks by as much")
def orphan_and_shrink(t):
    other = t.neighbour("alloc 2048")
    check = t.begin(launcher(t.facts, "--linger", 1.5, run=holder(t.facts, "--mib", 2048 - 518)))
    t.wait_role("holder")
    t.order(other, "free")
    check.finish()
    device = t.residue(check, "orphan")
    grown = (device["used_after_bytes"] or 0) - (device["used_before_bytes"] or 0)
    t.want(abs(grown) < 128 * MIB, f"used grew by {grown >> 20} MiB: the scenario is wrong")
    t.not_blamed(check.report, t.role("neighbour"))
    t.clean_up(check, alone=False)


# Memory that returns late, work in flight, handles.


@case("18a", "pinned host memory: draining, then clean")
def pinned(t):
    check = t.check(launcher(t.facts, "--kill", run=holder(t.facts, "--mib", 1024, "--pinned", 8192)))
    t.clean(check)
    t.want(check.report["settle_end"] == "all_gone", f"settling ended with {check.report['settle_end']}")
    t.note(f"settled after {check.report['settled_seconds']:.2f} s")
    t.want(check.report["settled_seconds"] > 0.2, "it did not drain: the scenario is wrong")


@case("18b", "pinned host memory, shorter --settle")
def pinned_short(t):
    check = t.check(launcher(t.facts, "--kill", run=holder(t.facts, "--mib", 1024, "--pinned", 8192)), "--settle", "100ms")
    fact = t.role("holder")
    device = t.judge(check, "residue", 121)
    t.want(device["charged_residue_bytes"] > 1024 * MIB, f"charged only {device['charged_residue_bytes'] >> 20} MiB")
    found = [h for h in check.report["holders"] if h["pid"] == fact["pid"]]
    t.row["pid"] = "yes" if found else "NO"
    t.row["cause"] = found[0]["cause"] if found else "-"
    t.want(found and found[0]["cause"] == "draining", f"cause is {t.row['cause']}, not draining")
    t.want(t.gone([fact], 20), "it does not end")
    t.after()


@case("29", "kernel of seconds and asynchronous copies in flight at exit")
def in_flight(t):
    check = t.check(holder(t.facts, "--mib", 512, "--in-flight", 2, "--then", "return"))
    t.clean(check)
    t.note(f"settled after {check.report['settled_seconds']:.2f} s")


@case("29b", "the same, killed by a launcher that leaves at once")
def in_flight_killed(t):
    check = t.check(launcher(t.facts, "--kill", run=holder(t.facts, "--mib", 512, "--in-flight", 3)))
    t.clean(check)
    t.note(f"settled after {check.report['settled_seconds']:.2f} s")


@case("32", "exported handle kept by a plain sleep")
def exported(t):
    check = t.check(holder(t.facts, "--export", "--mib", 2048))
    device = t.judge(check, "residue", 121)
    fact = t.role("holder")
    t.row["truth"] = t.nvml.used(0) - t.baseline[0]
    t.want(t.row["truth"] > 2000 * MIB, "the memory is not held: the scenario is wrong")
    low = device["charged_residue_bytes"]
    t.want(abs(low - t.row["truth"]) <= 32 * MIB, f"charged {low >> 20} MiB, {t.row['truth'] >> 20} MiB are held")
    t.named(check.report, fact, "exported_handle")
    t.clean_up(check)


@case("32b", "exported handle, with a neighbour's context beside it")
def exported_beside(t):
    t.neighbour("alloc 512")
    check = t.check(holder(t.facts, "--export", "--mib", 2048))
    device = t.judge(check, "inconclusive", 122)
    fact = t.role("holder")
    t.row["truth"] = t.nvml.used(0) - t.baseline[0] - t.truth(t.role("neighbour"))
    t.want(t.row["truth"] > 2000 * MIB, "the memory is not held: the scenario is wrong")
    t.want((device["charged_residue_max_bytes"] or 1 << 62) >= 2000 * MIB, f"at most {device['charged_residue_max_bytes']}")
    t.named(check.report, fact, ("exported_handle", "orphan"))
    t.want(device["because"], "why it is inconclusive is not said")
    t.clean_up(check, alone=False)
