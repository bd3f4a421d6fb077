"""Getting memory back on a real GPU: what a check found is reclaimed and the bytes are held against NVML, `wait` against
an independent poller, `check --cleanup` against NVML's list. Each has the card to itself.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import roles
from cases_more import torchrun
from harness import MIB, SLACK, TORCH, case, holder, launcher, program

# What a device that is in use may keep while a context of somebody else's is on it; nobody else is here.
NOTHING = 8 * MIB


def tool(t, *arguments, limit=90):
    """Runs the tool; the finished process, its output as text."""
    argv = [t.binary, *map(str, arguments)]
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, env=t.env, check=False
    )


def reclaim(t, *arguments, code=0):
    """`reclaim … --json`: the report, with the exit code held."""
    answer = tool(t, "reclaim", *arguments, "--json")
    t.want(answer.returncode == code, f"reclaim {arguments} ended with {answer.returncode}, not {code}: {answer.stderr}")
    try:
        return json.loads(answer.stdout)
    except ValueError:
        raise AssertionError(f"reclaim wrote no JSON: {answer.stdout!r} {answer.stderr!r}") from None


def given_back(t, check, *more, holders=None):
    """Plan first, which must change nothing; then carried out: everything of the run is back, by NVML too."""
    facts = holders or [f for f in roles.told(t.facts) if f["role"] == "holder"]
    baseline, used = t.baseline[0], t.nvml.used(0)
    plan = reclaim(t, "--report", check.report_path)
    named = {s["pid"] for s in plan["steps"]}
    t.want({f["pid"] for f in facts} <= named, f"the plan names {named}, not {[f['pid'] for f in facts]}")
    t.want(all(roles.alive(f) for f in facts), "the plan alone ended somebody")
    expected = plan["devices"][0]["expected_bytes"]
    done = reclaim(t, "--report", check.report_path, "--yes", *more)
    after = t.nvml.used(0)
    device = done["devices"][0]
    t.want(not any(roles.alive(f) for f in facts), f"somebody lives: {done['steps']}")
    t.want(after <= baseline + NOTHING, f"{(after - baseline) >> 20} MiB more are in use than before the run")
    t.want(device["remaining_bytes"] is not None and device["remaining_bytes"] <= NOTHING, f"it says {device}")
    came_back = device["came_back_bytes"] or 0
    t.want(expected is None or abs(came_back - expected) <= SLACK, f"planned {expected}, came back {came_back}")
    t.want(abs(came_back - (used - after)) <= SLACK, f"it says {came_back >> 20} MiB, NVML {(used - after) >> 20}")
    t.row["truth"] = used - after
    t.after(alone=True)
    return done


@case("R3", "reclaim: orphaned rank (PyTorch)", group="reclaim")
def orphan(t):
    check = t.check(launcher(t.facts, run=[*TORCH, program("torch_train.py"), t.facts, "--then", "sleep"]), "--settle", "5s")
    t.judge(check, "residue", 121)
    given_back(t, check)


@case("R4", "reclaim: forked copy (PyTorch)", group="reclaim")
def forked(t):
    check = t.check([*TORCH, program("torch_fork.py"), t.facts], "--settle", "5s")
    t.judge(check, "residue", 121)
    given_back(t, check)


@case("R8", "reclaim: stopped holder", group="reclaim")
def stopped(t):
    check = t.check(launcher(t.facts, "--stop", run=holder(t.facts, "--mib", 1300)), "--settle", "5s")
    t.judge(check, "residue", 121)
    done = given_back(t, check)
    t.want(done["steps"][0]["sent"] == ["TERM", "CONT"], f"it sent {done['steps'][0]['sent']}")


@case("R9", "reclaim: main thread gone, others alive", group="reclaim")
def half_dead(t):
    check = t.check(launcher(t.facts, run=holder(t.facts, "--half-dead", "--mib", 1400)), "--settle", "5s")
    t.judge(check, "residue", 121)
    given_back(t, check)


@case("R12", "reclaim: torchrun left running, its agent first", group="reclaim")
def agent(t):
    check = t.check(
        launcher(t.facts, "--wait", "holder:2", run=torchrun(t, "--max-restarts", "3")), "--settle", "5s", limit=120
    )
    t.judge(check, "residue", 121)
    done = given_back(t, check, "--grace", "30s")
    agent = [h["pid"] for h in check.report["holders"] if h["cause"] == "orphan"]
    t.want(done["steps"][0]["pid"] in agent, f"the first is {done['steps'][0]['pid']}, the agent is {agent}")


@case("R16c", "reclaim --orphans: the orphan of a check, not what is merely detached", group="reclaim")
def orphans(t):
    check = t.check(launcher(t.facts, run=holder(t.facts, "--mib", 600)), "--settle", "3s")
    t.judge(check, "residue", 121)
    subprocess.run(
        ["sh", "-c", 'nohup "$@" >/dev/null 2>&1 &', "sh", *holder(t.facts, "--role", "training", "--mib", 500)],
        env=t.env, check=True, timeout=30,
    )
    training, left = t.wait_role("training"), t.role("holder")
    done = reclaim(t, "--orphans", "--yes")
    t.want(not roles.alive(left), "the orphan lives")
    t.want(roles.alive(training), "the training was ended")
    t.want(training["pid"] in [x["pid"] for x in done["left_alone"]], f"left alone are {done['left_alone']}")
    roles.send(training)
    t.want(t.gone([training], 20), "the training could not be ended")


@case("R17", "reclaim --orphans: a killed check, its command, then what that left", group="reclaim")
def killed(t):
    run = launcher(t.facts, "--linger", 600, run=holder(t.facts, "--mib", 600))
    check = t.start([t.binary, "check", "--quiet", "--", *run])
    left, command = t.wait_role("holder"), t.role("launcher")
    os.kill(check.pid, signal.SIGKILL)
    check.wait(20)
    done = reclaim(t, "--orphans", "--yes")
    t.want(done["steps"] == [] and roles.alive(left) and roles.alive(command), f"its run went on: {done['steps']}")
    roles.send(command)
    t.want(t.gone([command], 20), "the command could not be ended")
    done = reclaim(t, "--orphans", "--yes")
    t.want([s["pid"] for s in done["steps"]] == [left["pid"]], f"ended were {done['steps']}")
    t.want(not roles.alive(left), "the orphan lives")


@case("R18", "reclaim --orphans: what the plan tells of ranks without their agent; ended only when asked", group="reclaim")
def ranks(t):
    agent = t.start(torchrun(t))
    t.wait_role("holder", count=2)
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait(20)
    ranks = [f for f in roles.told(t.facts) if f["role"] == "holder"]
    plan = reclaim(t, "--orphans")
    lives = {s["pid"]: s.get("life") for s in plan["steps"]}
    t.want({f["pid"] for f in ranks} == set(lives), f"the plan names {set(lives)}")
    t.want(all(life and life["cpu_ms"] is not None for life in lives.values()), f"of their lives it tells {lives}")
    t.want(all(roles.alive(f) for f in ranks), "the plan alone ended somebody")
    reclaim(t, "--orphans", "--yes")
    t.want(not any(roles.alive(f) for f in ranks), "ranks live that a person wanted to be ended")


@case("R19", "reclaim --unattended: what leave was given for, not ranks that train on without their agent", group="reclaim")
def unattended(t):
    above = tempfile.mkdtemp(prefix="records", dir="/tmp")
    records = os.path.join(above, "records")
    os.chmod(above, 0o755)
    os.mkdir(records)
    os.chmod(records, 0o1733)
    agent = t.start(torchrun(t))
    t.wait_role("holder", count=2)
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait(20)
    ranks = [f for f in roles.told(t.facts) if f["role"] == "holder"]
    left = launcher(t.facts, run=holder(t.facts, "--role", "left", "--mib", 600))
    check = t.start([t.binary, "check", "--quiet", "--settle", "3s", "--leave", "--records", records, "--", *left])
    fact = t.wait_role("left")
    done = reclaim(t, "--unattended", "--all-users", "--records", records, "--yes")
    t.want(done["steps"] == [], f"ended were {done['steps']} while the run went on")
    check.wait(60)
    done = reclaim(t, "--unattended", "--all-users", "--records", records, "--yes")
    t.want([s["pid"] for s in done["steps"]] == [fact["pid"]], f"ended were {done['steps']}")
    t.want(not roles.alive(fact), "what leave was given for lives")
    t.want(all(roles.alive(f) for f in ranks), "a rank was ended that trained on")
    t.want(os.listdir(records) == [], f"records stay: {os.listdir(records)}")
    shutil.rmtree(above)
    for rank in ranks:
        roles.send(rank)
    t.want(t.gone(ranks, 20), "the ranks could not be ended")


@case("W1", "wait ends within 100 ms of the memory's return", group="reclaim")
def wait(t):
    behind = []
    for number in range(8):
        go = t.path(f"go{number}")
        child = t.start(holder(t.facts, "--mib", 2048, "--then", f"go:{go}"))
        t.wait_role("holder", count=number + 1)
        log = t.path(f"wait{number}.err")
        with open(log, "wb") as err:
            waiting = subprocess.Popen(
                [t.binary, "wait", "--below", "200MiB", "--timeout", "60s"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err, env=t.env,
            )
        t.started.append(waiting)
        # Long enough for it to be looking; that it still waits is asked below.
        time.sleep(1.0)
        if not t.want(waiting.poll() is None, f"it ended with {waiting.poll()} while 2 GiB were in use"):
            return
        t.touch(f"go{number}")
        back = None
        while waiting.poll() is None:
            if back is None and t.nvml.used(0) < 200 * MIB:
                back = time.monotonic()
            time.sleep(0.0005)
        ended = time.monotonic()
        child.wait(20)
        t.want(waiting.returncode == 0, f"it ended with {waiting.returncode}")
        # It may see the return in the same millisecond as we do.
        behind.append(0.0 if back is None else ended - back)
    t.want(max(behind) <= 0.1, f"{max(behind) * 1000:.0f} ms behind the memory")
    t.note(f"behind: median {statistics.median(behind) * 1000:.0f}, most {max(behind) * 1000:.0f} ms")


@case("W2", "wait: the time limit names the holder; an excepted one is not waited for", group="reclaim")
def wait_names(t):
    t.start(holder(t.facts, "--mib", 1024))
    fact = t.wait_role("holder")
    late = tool(t, "wait", "--below", "100MiB", "--timeout", "1s")
    t.want(late.returncode == 124, f"it ended with {late.returncode}")
    t.want(str(fact["pid"]) in late.stderr, f"the holder is not named: {late.stderr}")
    apart = tool(t, "wait", "--below", "100MiB", "--timeout", "20s", "--except", fact["pid"])
    t.want(apart.returncode == 0, f"it waited for the excepted one: {apart.returncode} {apart.stderr}")


@case("C1", "check --cleanup leaves nothing in 20 of 20 runs", group="reclaim")
def cleanup(t):
    shapes = (
        ["--mib", 600],
        ["--daemon", "--mib", 500],
        ["--half-dead", "--mib", 400],
        ["--erase-env", "--daemon", "--mib", 300],
    )
    for number in range(20):
        run = launcher(t.facts, "--wait", f"holder:{number + 1}", run=holder(t.facts, *shapes[number % len(shapes)]))
        check = t.check(run, "--cleanup", "--grace", "1s", "--settle", "200ms")
        if not t.want(check.code == 121, f"run {number}: exit code {check.code}"):
            return
        fact = t.role("holder")
        t.want(not roles.alive(fact), f"run {number}: PID {fact['pid']} lives")
        done = check.report["cleanup"]
        t.want(done["nothing_lives"] is True, f"run {number}: {done}")
        t.want(fact["pid"] in [e["pid"] for e in done["ended"]], f"run {number}: {fact['pid']} is not among {done['ended']}")
        device = done["devices"][0]
        back = (device["used_before_bytes"] or 0) - (device["used_after_bytes"] or 0)
        t.want(back >= 300 * MIB, f"run {number}: it says that {back >> 20} MiB came back")
        used = t.nvml.used(0)
        t.want(used <= t.baseline[0] + NOTHING, f"run {number}: {(used - t.baseline[0]) >> 20} MiB are left")
        os.remove(check.report_path)
