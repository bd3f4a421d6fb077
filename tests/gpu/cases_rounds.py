"""Rounds of `reclaim` on a real GPU, asked in each of its ways, among lookalikes that are alive and well: what is left of
the round's run comes back, and nobody else gets a signal.

    python3 tests/gpu/run.py --binary target/release/gpuresid --group rounds      ROUNDS=50 SEED=1 by the environment
"""

import os
import random
import shutil
import tempfile

import roles
from cases_reclaim import NOTHING, reclaim
from harness import MIB, case, holder, launcher

JOB = {"CI_JOB_ID": "4711"}
SHAPES = ((), ("--half-dead",), ("--fork-copy",), ("--rename", "left"))
WAYS = ("orphans", "pid", "ci", "unattended")


def detached(t, role, mib, environment, *shape):
    """A holder whose launcher is gone; its fact."""
    run = launcher(t.facts, "--wait", role, run=holder(t.facts, "--role", role, "--mib", mib, *shape))
    t.start(run, env=dict(t.env, **environment)).wait(60)
    return t.wait_role(role)


def others(t, place):
    """Those who must live through all of it. Each looks left over to somebody."""
    rank = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "29500"}
    found = [
        detached(t, "rank without its agent", 500, rank),
        detached(t, "training under nohup", 400, {}),
        detached(t, "of a job whose number begins like ours", 300, {"CI_JOB_ID": "47110"}),
        detached(t, "of a job that opted out", 200, {"CI_JOB_ID": ""}),
    ]
    # Of a run without leave; it has erased its environment, so that a person's plan does not name it either.
    kept = launcher(t.facts, "--wait", "kept", run=holder(t.facts, "--role", "kept", "--mib", 100, "--erase-env"))
    t.check(kept, "--quiet", "--settle", "300ms", "--records", place)
    found.append(t.wait_role("kept"))
    # Of a run with leave that goes on.
    run = holder(t.facts, "--role", "goes on", "--mib", 100)
    t.start([t.binary, "check", "--quiet", "--leave", "--records", place, "--", *run])
    found.append(t.wait_role("goes on"))
    return found


def leave_behind(t, way, role, draw, place):
    """One leftover of this round; its fact."""
    shape, mib = draw.choice(SHAPES), draw.randrange(100, 1500, 100)
    if way == "ci":
        return detached(t, role, mib, JOB, *shape)
    more = ("--leave", "--records", place) if way == "unattended" else ()
    stop = ("--stop",) if not shape and draw.random() < 0.4 else ()
    run = launcher(t.facts, *stop, "--wait", role, run=holder(t.facts, "--role", role, "--mib", mib, *shape))
    t.check(run, "--quiet", "--settle", "300ms", *more)
    return t.wait_role(role)


@case("R20", "reclaim in each way, in rounds, among lookalikes", group="rounds")
def rounds(t):
    count, seed = int(os.environ.get("ROUNDS", "50")), int(os.environ.get("SEED", "1"))
    draw = random.Random(seed)
    above = tempfile.mkdtemp(prefix="records", dir="/tmp")
    place = os.path.join(above, "records")
    os.chmod(above, 0o755)
    os.mkdir(place)
    os.chmod(place, 0o1733)
    living = others(t, place)
    ended = 0
    for number in range(count):
        way = WAYS[number % len(WAYS)]
        before = t.nvml.used(0)
        left = [leave_behind(t, way, f"left {number}.{i}", draw, place) for i in range(draw.randint(1, 3))]
        whom = {
            "orphans": ["--orphans"],
            "pid": ["--pid", ",".join(str(f["pid"]) for f in left)],
            "ci": ["--ci"],
            "unattended": ["--unattended", "--all-users", "--records", place],
        }[way]
        # The hook alone is of the job.
        t.env.update(JOB)
        done = reclaim(t, *whom, "--yes", "--grace", "1s", "--force")
        for name in JOB:
            del t.env[name]
        told = f"round {number} ({way}, SEED={seed})"
        steps = {s["pid"] for s in done["steps"] if s["sent"]}
        t.want(not any(roles.alive(f) for f in left), f"{told}: somebody who was left lives: {done}")
        t.want(steps <= {f["pid"] for f in left}, f"{told}: signals went to {steps}, left are {[f['pid'] for f in left]}")
        for fact in living:
            t.want(roles.alive(fact), f"{told}: {fact['role']} was ended")
        more = t.nvml.used(0) - before
        t.want(more <= NOTHING, f"{told}: {more // MIB} MiB did not come back")
        ended += len(left)
        if t.problems:
            break
    t.note(f"{number + 1} rounds, {ended} ended, {len(living)} others alive")
    for fact in living:
        roles.send(fact)
    t.want(t.gone(living, 20), "the others could not be ended")
    shutil.rmtree(above)
