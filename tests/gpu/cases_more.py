"""Scenarios that cost more or need more: IPC, torchrun, DataLoader, MPS, another user, looks after the fact, many runs in
a row, two GPUs.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import roles
from cases_main import around, innocent
from harness import LITE, MIB, TORCH, Skip, case, holder, launcher, program

NOBODY = 65534


@case("5", "DataLoader worker stuck, main killed", group="more", pool=True)
def loader_stuck(t):
    check = t.check([*TORCH, program("torch_loader.py"), t.facts, "stuck"])
    t.want(check.code in (-9, 137), f"exit code is {check.code}, not that of the killed command")
    t.residue(check, "forked_copy", listed_role="ghost", code=(-9, 137))
    t.says(check.report, "DataLoader", "that it is a DataLoader worker")
    t.clean_up(check)


@case("5b", "DataLoader with idle workers, main killed", group="more")
def loader_idle(t):
    check = t.check([*TORCH, program("torch_loader.py"), t.facts, "idle"])
    t.clean(check, code=(-9, 137))
    t.note(f"settled after {check.report['settled_seconds']:.2f} s")


@case("10", "zombie that held GPU memory, its parent does not wait", group="more", pool=True)
def zombie(t):
    check = t.check([*LITE, program("zombie.py"), t.facts])
    t.clean(check)
    t.finding(check.report, "still_running")
    t.want(t.role("zombie")["pid"] not in [h["pid"] for h in check.report["holders"]], "the zombie is named as a holder")


@case("11", "CUDA IPC: our consumer keeps our dead producer's memory", group="more", pool=True)
def ipc_own(t):
    check = t.check([*LITE, program("ipc.py"), t.facts, "1024", "own"])
    t.residue(check, ("orphan", "peer_mapping"), code=(-9, 137))
    t.want(t.row["low"] > 1000 * MIB, f"charged only {t.row['low'] >> 20} MiB")
    t.clean_up(check)


@case("11b", "CUDA IPC: a neighbour keeps our dead producer's memory", group="more")
def ipc_moved(t):
    other = t.neighbour()
    check = t.begin([*LITE, program("ipc.py"), t.facts, "1024", "export", t.path("go")])
    t.order(other, f"ipc-open {t.wait_role('producer')['handle']}")
    time.sleep(0.4)
    t.touch("go")
    check.finish()
    # Raw IPC leaves no trace, and a run this short cannot tell it from the neighbour's own growth: who grew is said.
    t.judge(check, ("clean",), (-9, 137))
    t.row["truth"] = t.truth(t.role("neighbour"))
    t.finding(check.report, "grown")
    t.not_blamed(check.report, t.role("neighbour"))


def torchrun(t, *options):
    return [*TORCH, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options, program("torch_rank.py"), t.facts]


@case("12", "torchrun, two ranks, agent killed", group="more")
def agent_killed(t):
    check = t.check(launcher(t.facts, "--wait", "holder:2", "--kill-role", "agent", run=torchrun(t)), limit=120)
    ranks = [f for f in roles.told(t.facts) if f["role"] == "holder"]
    device = t.judge(check, "residue", 121)
    t.row["truth"] = t.truth(*ranks)
    t.want(abs(device["charged_residue_bytes"] - t.row["truth"]) <= 32 * MIB, f"charged {device['charged_residue_bytes'] >> 20} MiB")
    for rank in ranks:
        t.named(check.report, rank, "orphan")
    t.clean_up(check)


@case("12b", "torchrun left running: its agent before its ranks", group="more", pool=True)
def agent_alive(t):
    check = t.check(launcher(t.facts, "--wait", "holder:2", run=torchrun(t, "--max-restarts", "3")), limit=120)
    t.judge(check, "residue", 121)
    ranks = {f["pid"] for f in roles.told(t.facts) if f["role"] == "holder"}
    agent = t.role("agent")["pid"]
    order = [int(n) for a in check.report["advice"] for n in re.findall(r"\b\d+\b", a["command"] or "")]
    named = [n for n in order if n in ranks or n == agent]
    t.row["pid"] = "yes" if agent in named else "NO"
    t.want(named and named[0] == agent, f"the agent {agent} does not stand first in the advice: {named}")
    roles.send(t.role("agent"))
    t.gone([t.role("agent")], 5)


@case("13a", "MPS: the daemon is of others, the client ours", group="more")
def mps_of_others(t):
    environment, quit_it = mps(t)
    t.start(["nvidia-cuda-mps-control", "-d"], env=environment).wait(20)
    try:
        t.env = environment
        # A client of somebody else starts the server, so that it stands before our run.
        other = t.neighbour("alloc 256")
        check = around(t, lambda: None)
        t.clean(check)
        t.order(other, "end")
    finally:
        quit_it()


@case("13b", "MPS: the command starts the daemon", group="more")
def mps_of_ours(t):
    environment, quit_it = mps(t)
    t.env = environment
    try:
        client = " ".join(map(str, holder(t.facts, "--mib", 512, "--then", "hold:0.5")))
        check = t.check(["bash", "-c", f"nvidia-cuda-mps-control -d && {client}"])
        device = t.judge(check, "residue", 121)
        t.row["truth"] = t.nvml.used(0) - t.baseline[0]
        t.want(20 * MIB < device["charged_residue_bytes"] < 160 * MIB, f"charged {device['charged_residue_bytes'] >> 20} MiB")
        t.says(check.report, r"mps", "that the MPS server holds it")
    finally:
        quit_it()
    t.after()


def mps(t):
    if not shutil.which("nvidia-cuda-mps-control"):
        raise Skip("no nvidia-cuda-mps-control")
    environment = {**t.env, "CUDA_MPS_PIPE_DIRECTORY": t.path("mps"), "CUDA_MPS_LOG_DIRECTORY": t.path("mpslog")}
    for name in ("mps", "mpslog"):
        os.mkdir(t.path(name))

    def quit_it():
        # The daemon of this pipe directory alone; if it does not quit, it and its servers are ended by PID.
        try:
            with open(os.path.join(t.path("mps"), "nvidia-cuda-mps-control.pid"), encoding="ascii") as file:
                daemon = int(file.read())
        except (OSError, ValueError):
            daemon = None
        try:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=environment, timeout=20, check=False, capture_output=True)
            if daemon:
                roles.wait_until(lambda: roles.stat(daemon) is None, 10, "the MPS daemon's end")
        except (subprocess.TimeoutExpired, TimeoutError):
            t.want(False, "the MPS daemon had to be killed")
            servers = [int(p) for p in os.listdir("/proc") if p.isdigit() and (roles.stat(p) or [0] * 4)[3] == daemon]
            for pid in [daemon, *servers] if daemon else []:
                roles.tell(t.facts, "mps", pid)

    return environment, quit_it


@case("14i", "16 neighbours at once", group="more")
def sixteen(t):
    for _ in range(8):
        t.neighbour("alloc 128")
    check = around(t, lambda: [t.neighbour("alloc 64") for _ in range(8)])
    innocent(t, check)


@case("15", "as nobody, beside a neighbour of root", group="more")
def as_nobody(t):
    if os.geteuid() != 0:
        raise Skip("needs root")
    copy = t.path("gpuresid")
    shutil.copy(t.binary, copy)
    os.chmod(copy, 0o755)
    t.binary = copy
    t.neighbour("alloc 512")
    other = t.role("neighbour")
    value = t.status(user=NOBODY)
    found = [h for h in value["holders"] if h["pid"] == other["pid"]]
    t.row["pid"] = "yes" if found else "NO"
    if t.want(found, "the neighbour is not named"):
        t.want(found[0]["user"] in ("root", "0"), f"its user is {found[0]['user']}")
        t.want((found[0]["devices"][0]["held_bytes"] or 0) > 500 * MIB, f"it holds {found[0]['devices']}")
    t.want(value["gaps"], "that it cannot be inspected is not among the gaps")
    t.want(not any(str(other["pid"]) in (a["command"] or "") and "kill" in a["command"] for a in value["advice"]), "its end is advised")
    check = t.begin(["true"], user=NOBODY).finish()
    t.judge(check, "clean", 0)
    t.want(check.report["gaps"], "check: no gap is said")


@case("17", "holder inside a PID namespace, tool outside", group="more")
def inner_pid(t):
    unshare = shutil.which("unshare")
    if not unshare:
        raise Skip("no unshare")
    t.start([unshare, "-pf", "--kill-child", "--mount-proc", *holder(t.facts, "--mib", 512)])
    t.wait_role("holder")
    listed = t.nvml.listed(0)
    value = t.status()
    found = [h for h in value["holders"] if h["pid"] in listed]
    t.row["pid"] = "yes" if found else "NO"
    if t.want(found, f"NVML lists {list(listed)}, named are {[h['pid'] for h in value['holders']]}"):
        inner = t.role("holder")["pid"]
        t.want(found[0]["inner_pid"] == inner, f"its inner PID is {found[0]['inner_pid']}, not {inner}")


@case("16c-status", "after the fact: forked copy, orphan of a check, nohup, service", group="more")
def after_the_fact(t):
    parts = {}
    for name, argv in {
        "copy": holder(t.path("r-copy"), "--fork-copy", "--mib", 600),
        "nohup": ["sh", "-c", f"nohup {' '.join(map(str, holder(t.path('r-nohup'), '--mib', 400)))} >/dev/null 2>&1 &"],
        "service": holder(t.path("r-service"), "--daemon", "--mib", 500),
    }.items():
        leader = t.start(argv)
        parts[name] = roles.wait_role(t.path(f"r-{name}"), "holder")[0]
        leader.wait(30)  # reaped: what stays has no parent of ours
    check = t.check(launcher(t.facts, run=holder(t.facts, "--mib", 300)), "--settle", "1s")
    t.judge(check, ("residue", "inconclusive"), (121, 122))
    parts["orphan"] = t.role("holder")
    try:
        value = t.status()
        causes = {h["pid"]: h["cause"] for h in value["holders"]}
        expected = {"copy": "forked_copy", "orphan": "orphan", "nohup": "detached", "service": "detached"}
        for name, cause in expected.items():
            seen = causes.get(parts[name]["pid"])
            t.want(seen == cause, f"{name} ({parts[name]['pid']}): {seen}, not {cause}")
        ghost = [f for f in roles.told(t.path("r-copy")) if f["role"] == "ghost"][0]
        found = [g for g in value["ghosts"] if g["pid"] == ghost["pid"]]
        t.want(found and found[0]["candidates"] == [parts["copy"]["pid"]], f"ghosts are {value['ghosts']}")
        for name in ("nohup", "service"):
            bad = [a["command"] for a in value["advice"] if re.search(rf"\bkill\b.*\b{parts[name]['pid']}\b", a["command"] or "")]
            t.want(not bad, f"the end of {name} is advised: {bad}")
        t.row.update(verdict="status", cause=",".join(str(causes.get(p["pid"])) for p in parts.values()))
        refused = subprocess.run(
            [t.binary, "status", "--fail-on", "orphan"], stdin=subprocess.DEVNULL, capture_output=True, env=t.env, timeout=60, check=False
        )
        t.want(refused.returncode == 121, f"--fail-on orphan ended with {refused.returncode}")
    finally:
        for part in parts.values():
            roles.send(part)
        t.gone(list(parts.values()), 20)
    t.after()


@case("25a", "out of memory in the run", group="more", pool=True)
def out_of_memory(t):
    check = t.check([*TORCH, program("torch_train.py"), t.facts, "--then", "oom", "--hold", "0"])
    t.clean(check, code=1)


@case("25b", "device-side assert", group="more")
def device_assert(t):
    check = t.check([*TORCH, program("torch_train.py"), t.facts, "--then", "assert", "--hold", "0.3"])
    device = t.device(check)
    t.want(check.code not in (0, 121, 122, 125), f"exit code is {check.code}")
    t.clean(check, code=check.code)
    xids = [e["xid"] for e in check.report["events"]]
    t.want(xids, "no Xid event is in the report")
    t.note(f"Xid {xids}, {device['verdict']}")


@case("28", "16 runs in a row, clean and dirty mixed, neighbours at random", group="more")
def many(t):
    dice = random.Random(28)
    kinds = ["clean", "fails", "orphan", "copy"] * 4
    dice.shuffle(kinds)
    wrong = []
    neighbour = None
    for number, kind in enumerate(kinds):
        if neighbour is None and dice.random() < 0.4:
            neighbour = t.neighbour(f"alloc {dice.choice([256, 700, 1500])}")
        elif neighbour is not None and dice.random() < 0.5:
            t.order(neighbour, "end")
            neighbour = None
        facts = t.path(f"run{number}")
        run = {
            "clean": holder(facts, "--mib", 400, "--then", "hold:0.2"),
            "fails": holder(facts, "--mib", 300, "--then", "exit:3"),
            "orphan": launcher(facts, run=holder(facts, "--mib", 350)),
            "copy": holder(facts, "--fork-copy", "--mib", 450),
        }[kind]
        check = t.check(run, "--settle", "1500ms")
        device = t.device(check)
        left = [f for f in roles.told(facts) if f["role"] == "holder" and roles.alive(f)]
        listed = t.truth(*roles.told(facts))
        wanted = {"clean": ("clean", 0), "fails": ("clean", 3), "orphan": ("residue", 121), "copy": ("residue", 121)}[kind]
        got = (check.report["verdict"], check.code)
        off = abs(device["charged_residue_bytes"] - listed)
        if got != wanted or off > 24 * MIB:
            wrong.append(f"run {number} {kind}{' beside a neighbour' if neighbour else ''}: {got}, charged {device['charged_residue_bytes'] >> 20}, NVML {listed >> 20} MiB")
        for fact in left:
            roles.send(fact)
        t.gone(left, 10)
        pids = {f["pid"] for f in roles.told(facts)}
        roles.wait_until(lambda pids=pids: not pids & set(t.nvml.listed(0)), 10, "the memory of the run to be back")
    t.row.update(verdict=f"{len(kinds) - len(wrong)}/{len(kinds)}")
    t.problems.extend(wrong)


@case("30", "a check inside a check", group="more")
def nested(t):
    inner_report = t.path("inner.json")
    inner = [t.binary, "check", "--report", f"json:{inner_report}", "--settle", "2s", "--", *launcher(t.facts, run=holder(t.facts, "--mib", 512))]
    check = t.check(inner)
    t.residue(check, ("orphan", "still_running"), code=121)
    with open(inner_report, encoding="utf-8") as file:
        first = json.load(file)
    t.want(first["verdict"] == "residue", f"the inner verdict is {first['verdict']}")
    t.clean_up(check)


@case("18c", "16 GiB pinned, killed by a launcher", group="more")
def pinned_more(t):
    check = t.check(launcher(t.facts, "--kill", run=holder(t.facts, "--mib", 1024, "--pinned", 16384)))
    t.clean(check)
    t.note(f"settled after {check.report['settled_seconds']:.2f} s")


@case("22", "TERM to gpuresid ends the command, the report is written", group="more")
def told_to_stop(t):
    check = t.begin(holder(t.facts, "--mib", 512))
    t.wait_role("holder")
    check.child.send_signal(signal.SIGTERM)
    check.finish(30)
    t.clean(check, code=(-signal.SIGTERM, 143))


# Two GPUs.


@case("27", "opens all GPUs, memory on the second", group="two", gpus=2)
def second_gpu(t):
    check = t.check(launcher(t.facts, run=holder(t.facts, "--device", 1, "--mib", 1024)))
    t.residue(check, "orphan", index=1)
    first = t.device(check, 0)
    t.want(first["verdict"] == "clean", f"GPU 0 is {first['verdict']}: {first['because']}")
    # A process that opened a GPU without a context costs it 3.25 MiB: that is there, and far below the limit.
    t.want(first["charged_residue_bytes"] <= 4 * MIB, f"GPU 0 is charged with {first['charged_residue_bytes']} bytes")
    t.row["verdict"] = f"{first['verdict']}/{t.row['verdict']}"
    t.clean_up(check, index=1)


@case("27b", "clean run on both, a neighbour on the first", group="two", gpus=2)
def both(t):
    t.neighbour("alloc 512", device=0)
    check = t.check(holder(t.facts, "--device", 1, "--mib", 1024, "--then", "hold:0.4"))
    t.clean(check, index=1)
    t.clean(check, index=0)


@case("27c", "torchrun, a rank a GPU, agent killed", group="two", gpus=2)
def ranks_on_two(t):
    check = t.check(launcher(t.facts, "--wait", "holder:2", "--kill-role", "agent", run=torchrun(t)), limit=120)
    ranks = [f for f in roles.told(t.facts) if f["role"] == "holder"]
    for index in (0, 1):
        device = t.judge(check, "residue", 121, index)
        true = t.truth(*ranks, index=index)
        t.want(true > 0 and abs(device["charged_residue_bytes"] - true) <= 32 * MIB, f"GPU {index}: charged {device['charged_residue_bytes'] >> 20} MiB, NVML {true >> 20}")
    for rank in ranks:
        t.named(check.report, rank, "orphan")
    t.clean_up(check)


@case("27d", "CUDA_VISIBLE_DEVICES hides the first GPU", group="two", gpus=2)
def hidden_gpu(t):
    t.env["CUDA_VISIBLE_DEVICES"] = "1"
    t.env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    check = t.check(launcher(t.facts, run=holder(t.facts, "--device", 0, "--mib", 1024)), "--visible", "--settle", "2s")
    indices = [d["index"] for d in check.report["devices"]]
    t.want(indices == [1], f"--visible chose {indices}, not [1]")
    if indices == [1]:
        t.residue(check, "orphan", index=1)
    t.clean_up(check, index=1)
