"""PID namespaces: tool and command together in one, a holder outside, and a ghost whose number was reused, which can be
arranged only where the next number can be chosen. The inner numbers mean nothing outside, so `inside.py` runs the steps.
"""

import json
import os
import shutil

from harness import LITE, MIB, Skip, case, holder, launcher, program


def inside(t, *steps):
    """Runs steps below the first process of a new PID namespace; their results."""
    unshare = shutil.which("unshare")
    if not unshare:
        raise Skip("no unshare")
    probe = t.start([unshare, "-pf", "--kill-child", "--mount-proc", "true"])
    if probe.wait(10) != 0:
        raise Skip("no PID namespace may be made here")
    with open(t.path("plan.json"), "w", encoding="utf-8") as file:
        json.dump([{"roles": t.facts, **step} for step in steps], file)
    child = t.start([unshare, "-pf", "--kill-child", "--mount-proc", *LITE, program("inside.py"), t.path("plan.json"), t.path("inside.json")])
    code = child.wait(150)
    if code != 0:
        with open(t.path(f"started{len(t.started) - 1}.err"), encoding="utf-8", errors="replace") as file:
            raise AssertionError(f"the plan inside the namespace ended with {code}: {file.read()[-600:]}")
    with open(t.path("inside.json"), encoding="utf-8") as file:
        results = json.load(file)
    for result in results:
        t.inner.append(result)
    return results


def check_step(t, name, argv, **more):
    report = t.path(f"{name}.json")
    return {"name": name, "argv": [t.binary, "check", "--report", f"json:{report}", "--", *argv], "report": report, **more}


class InnerCheck:
    """A check that ran inside the namespace, in the form that the wants take."""

    def __init__(self, result):
        self.code, self.report = result["code"], json.loads(result["report"]) if result["report"] else None
        self.report_error = result["err"]


def inner_truth(result, *facts):
    listed = result["truth"][0]["listed"]
    return sum(listed.get(str(f["pid"])) or 0 for f in facts)


@case("16a", "tool and command in one PID namespace: clean run")
def namespace_clean(t):
    (result,) = inside(t, check_step(t, "clean", holder(t.facts, "--mib", 1024, "--then", "hold:0.4")))
    check = InnerCheck(result)
    t.judge(check, "clean", 0)
    t.want(check.report["gaps"], "that others may be out of sight is not among the gaps")


@case("16b", "tool and command in one PID namespace: own orphan")
def namespace_orphan(t):
    first, second = inside(
        t,
        check_step(t, "orphan", launcher(t.facts, run=holder(t.facts, "--mib", 1024))),
        {"name": "after", "argv": [t.binary, "--json"], "clean": ["holder"]},
    )
    check = InnerCheck(first)
    device = t.judge(check, "residue", 121)
    fact = t.role("holder")
    true = inner_truth(first, fact) or first["truth"][0]["used"]
    t.row["truth"] = true
    t.want(abs(device["charged_residue_bytes"] - true) <= 32 * MIB, f"charged {device['charged_residue_bytes'] >> 20} MiB, NVML {true >> 20}")
    t.named(check.report, fact, "orphan")
    after_inside(t, second, fact)


def after_inside(t, result, *facts):
    t.want(result["code"] == 0, f"the look after the clean-up ended with {result['code']}: {result['err']}")
    value = json.loads(result["out"])
    left = [h["pid"] for h in value["holders"] if h["pid"] in {f["pid"] for f in facts}]
    t.want(not left, f"after the clean-up the next look still names {left}")
    used = value["devices"][0]["used_bytes"]
    t.want(used <= t.baseline[0] + 8 * MIB, f"after the clean-up {used >> 20} MiB are in use")


@case("16c", "PID namespace: the holder is outside")
def namespace_outside(t):
    t.neighbour("alloc 1024")
    look, run = inside(
        t,
        {"name": "look", "argv": [t.binary, "--json"]},
        check_step(t, "beside", holder(t.facts, "--mib", 512, "--then", "hold:0.4")),
    )
    t.want(look["code"] == 0, f"status ended with {look['code']}: {look['err']}")
    value = json.loads(look["out"])
    t.want(value["devices"][0]["used_bytes"] > 1024 * MIB, "the used memory is not shown")
    words = json.dumps([value[k] for k in ("holders", "findings", "gaps", "advice")])
    t.want("out_of_sight" in words or "out of sight" in words, "that the holder is out of sight is not said")
    t.want(value["advice"], "no advice from where to look")
    check = InnerCheck(run)
    t.judge(check, "clean", 0)
    t.want(check.report["gaps"], "no gap is said")


@case("23", "a ghost's PID is reused by an innocent process")
def reused(t):
    if os.geteuid() != 0:
        raise Skip("needs root")
    first, look, refuse, second = inside(
        t,
        check_step(t, "reused", [*LITE, program("reuse_pid.py"), t.facts, "1024"]),
        {"name": "look", "argv": [t.binary, "--json"]},
        {"name": "refuse", "argv": ["sh", "-c", 'n=$(sed -n "s/.*\\"role\\": \\"innocent\\", \\"pid\\": \\([0-9]*\\).*/\\1/p" "$1"); exec "$0" reclaim --pid "$n" --yes', t.binary, t.facts]},
        {"name": "after", "argv": [t.binary, "--json"], "clean": ["holder"]},
    )
    check = InnerCheck(first)
    device = t.judge(check, "residue", 121)
    ghost, copy, innocent_fact = t.role("ghost"), t.role("holder"), t.role("innocent")
    t.want(ghost["pid"] == innocent_fact["pid"], "the number was not reused: the scenario is wrong")
    true = inner_truth(first, ghost)
    t.row["truth"] = true
    t.want(true > 1000 * MIB, f"NVML lists {true >> 20} MiB for the ghost: the scenario is wrong")
    t.want(abs(device["charged_residue_bytes"] - true) <= 32 * MIB, f"charged {device['charged_residue_bytes'] >> 20} MiB")
    t.named(check.report, copy, "forked_copy")
    found = [g for g in check.report["ghosts"] if g["pid"] == ghost["pid"]]
    if t.want(found, "check: the ghost is not named"):
        t.want(found[0]["impostor"], "check: that the number was reused is not said")
        t.want(copy["pid"] in found[0]["candidates"], f"check: candidates are {found[0]['candidates']}")
    # A look that never saw the ghost alive cannot resolve a number in a private PID namespace: it says so, and names
    # the process that has the GPU open without being listed.
    status = json.loads(look["out"])
    unresolved = [h for h in status["holders"] if h["pid"] == ghost["pid"]]
    t.want(unresolved and unresolved[0]["cause"] == "out_of_sight", f"status: {unresolved}")
    t.want(any(h["pid"] == copy["pid"] for h in status["holders"]), "status: the copy is not named")
    for value in (check.report, status):
        blamed = [h for h in value["holders"] if h["pid"] == innocent_fact["pid"] and h["start_ticks"] is not None]
        t.want(not blamed, f"{innocent_fact['pid']} (innocent) is blamed")
    advised = " ".join(step["command"] or "" for step in check.report["advice"] + status["advice"]).split()
    t.want(str(innocent_fact["pid"]) not in advised, "it is advised to end the innocent")
    t.want(refuse["code"] != 0, f"reclaim of the innocent process ended with {refuse['code']}")
    survived = any(f["role"] == "innocent" for f in refuse["alive"])
    t.want(survived, "reclaim ended the innocent process")
    after_inside(t, second, copy)
