"""Runs the real binary on real GPUs and holds what it says against NVML.

    python3 tests/gpu/run.py --binary target/release/gpuresid                 the main scenarios, one GPU
    python3 tests/gpu/run.py --binary … --only 3,4,14g                        some (a number takes its letters along)
    python3 tests/gpu/run.py --binary … --group main,more,two,reclaim,torch   all
    python3 tests/gpu/run.py churn --binary … --seconds 480                   a busy card, counted: see churn.py

Needs the binary, Python 3.9 or newer, PyTorch for the scenarios that say so, and a driver. It takes a few GiB of GPU
memory at a time, changes no setting of a card, and ends everything it started, by PID. Whoever else uses the cards
meanwhile makes assertions on the used memory fail: run it on idle ones.

Prints one row a scenario: verdict, charged MiB (low and high), what NVML lists for the holder, cause, whether the holder
is named by its PID, exit code, seconds. A failed one is followed by what did not hold, the tool's stderr and its JSON.
Exit code: 0 all ok, 1 something failed, 2 it could not begin.
"""

import argparse
import atexit
import concurrent.futures
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from xml.sax.saxutils import quoteattr

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import cases_main  # noqa: E402,F401
import cases_namespaces  # noqa: E402,F401
import cases_more  # noqa: E402,F401
import cases_reclaim  # noqa: E402,F401
import cases_rounds  # noqa: E402,F401
import cases_torch  # noqa: E402,F401
import churn  # noqa: E402
import harness  # noqa: E402
import nvml  # noqa: E402
import simulated  # noqa: E402

COLUMNS = ("scenario", "title", "verdict", "low", "high", "NVML", "cause", "pid", "exit", "s", "result")
WIDTHS = (10, 46, 16, 7, 7, 7, 16, 4, 5, 6, 6)


def mib(value):
    return "-" if value is None else f"{value / harness.MIB:.0f}"


def line(values):
    return " ".join(str(v)[: w - 1].ljust(w) if i < len(WIDTHS) - 1 else str(v) for i, (v, w) in enumerate(zip(values, WIDTHS)))


def row(s):
    r = s.row
    return line(
        (s.entry["id"], s.entry["title"], r["verdict"], mib(r["low"]), mib(r["high"]), mib(r["truth"]), r["cause"], r["pid"], r["code"], f"{s.seconds:.1f}", s.result)
    ) + (f"  {'; '.join(s.notes)}" if s.notes else "")


def failure(s):
    """Everything needed to understand a failure without running it again."""
    parts = [f"--- {s.entry['id']} {s.entry['title']}"]
    parts += [f"    * {p}" for p in s.problems]
    for check in s.checks:
        parts.append(f"    $ {' '.join(check.argv)}  -> {check.code}")
        parts.append(indent(check.text("err") or "(no stderr)"))
        parts.append(indent(json.dumps(check.report, ensure_ascii=False)))
    for value in s.statuses:
        parts.append(indent("status: " + json.dumps(value, ensure_ascii=False)))
    for result in s.inner:
        parts.append(f"    inside: {result['name']} -> {result['code']}")
        for name in ("err", "out", "report"):
            if result[name]:
                parts.append(indent(f"{name}: {result[name]}"))
        parts.append(indent(f"truth: {json.dumps(result['truth'])}"))
    facts = harness.roles.told(s.facts)
    parts.append(indent("roles: " + json.dumps(facts)))
    return "\n".join(parts)


def indent(text):
    return "\n".join("      " + part for part in text.rstrip().splitlines())


def wanted(entry, only, groups, gpus):
    if only:
        letterless = re.match(r"[A-Z]*\d+", entry["id"])[0]
        chosen = entry["id"] in only or letterless in only
    else:
        chosen = entry["group"] in groups
    return chosen and entry["gpus"] <= gpus


def write_json(path, done, seconds):
    value = {
        "seconds": seconds,
        "scenarios": [
            {**{k: s.entry[k] for k in ("id", "title", "group")}, **s.row, "result": s.result, "seconds": s.seconds, "problems": s.problems, "notes": s.notes}
            for s in done
        ],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def write_junit(path, done, seconds):
    failed = sum(s.result == "FAIL" for s in done)
    skipped = sum(s.result == "skip" for s in done)
    rows = [f'<testsuite name="gpu" tests="{len(done)}" failures="{failed}" skipped="{skipped}" time="{seconds:.1f}">']
    for s in done:
        rows.append(f'<testcase classname={quoteattr(s.entry["group"])} name={quoteattr(s.entry["id"] + " " + s.entry["title"])} time="{s.seconds:.1f}">')
        if s.result == "FAIL":
            rows.append(f"<failure message={quoteattr(' | '.join(s.problems))}/>")
        if s.result == "skip":
            rows.append(f"<skipped message={quoteattr('; '.join(s.notes))}/>")
        rows.append("</testcase>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(rows + ["</testsuite>", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("what", nargs="?", choices=("scenarios", "churn"), default="scenarios")
    parser.add_argument("--only", help="scenario numbers, or parts of the churn; comma-separated")
    parser.add_argument("--group", default="main", help="main, more, two, reclaim, rounds, torch; comma-separated")
    parser.add_argument("--gpus", type=int, help="how many GPUs may be used (default: all)")
    parser.add_argument("--serial", action="store_true", help="no scenarios beside each other")
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing after so many seconds")
    parser.add_argument("--lanes", type=int, default=6, help="so many checks beside each other in a cell of the churn")
    parser.add_argument("--goal", default="200,60", help="clean and dirty runs in a cell of the churn")
    parser.add_argument("--open", type=float, default=2, metavar="PERCENT", help="so many of a cell's clean runs may be inconclusive")
    parser.add_argument("--seed", type=int, default=1, help="of the churn's draws")
    parser.add_argument("--simulated", metavar="LIBRARY", help="no GPU: the fake driver (see simulated.py)")
    parser.add_argument("--json")
    parser.add_argument("--junit")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()

    binary = os.path.abspath(args.binary)
    if not args.list and not os.access(binary, os.X_OK):
        print(f"{binary} is not a program that can be run", file=sys.stderr)
        return 2
    only = set(args.only.split(",")) if args.only else set()
    groups = set(args.group.split(","))
    if args.list:
        for entry in harness.CASES:
            print(entry["id"].ljust(11), entry["group"].ljust(5), "pool " if entry["pool"] else "alone", entry["title"])
        return 0
    if args.simulated:
        place = tempfile.mkdtemp(prefix="gpu-simulated-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        binary = simulated.make_machine(place, binary, args.simulated)
    try:
        library = nvml.Nvml(args.simulated)
    except nvml.NvmlError as error:
        print(error, file=sys.stderr)
        return 2
    if args.what == "churn":
        return churn.main(args, binary, library)
    # Told to stop, we still end what we started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    gpus = min(args.gpus or 99, len(library.handles))
    chosen = [e for e in harness.CASES if wanted(e, only, groups, gpus)]
    if not chosen:
        print("no scenario has such a number or group on this machine", file=sys.stderr)
        return 2
    begin = time.monotonic()
    for index in range(len(library.handles)):
        print(f"GPU {index}: {library.name(index)}, {library.used(index) >> 20} MiB in use, {len(library.listed(index))} processes")
    print(line(COLUMNS), flush=True)
    done = []

    def run(entry):
        if time.monotonic() - begin > args.seconds:
            return None
        return harness.run_one(entry, binary, library)

    def show(scenario, entry):
        if scenario is None:
            print(line((entry["id"], entry["title"], *["-"] * 8, "NOT RUN")), flush=True)
            done_not.append(entry)
            return
        print(row(scenario), flush=True)
        if scenario.result == "FAIL":
            print(failure(scenario), flush=True)
        scenario.forget()
        done.append(scenario)

    done_not = []
    together = [] if args.serial else [e for e in chosen if e["pool"]]
    alone = [e for e in chosen if e not in together]
    if together:
        before = [library.used(i) for i in range(len(library.handles))]
        with concurrent.futures.ThreadPoolExecutor(len(together)) as pool:
            futures = {pool.submit(run, e): e for e in together}
            for future in concurrent.futures.as_completed(futures):
                show(future.result(), futures[future])
        for index, used in enumerate(before):
            left = library.used(index) - used
            if left > 8 * harness.MIB:
                print(f"FAIL: after the scenarios that ran together {left >> 20} MiB more are in use on GPU {index}")
                done_not.append({"id": f"pool-{index}"})
    for entry in alone:
        show(run(entry), entry)

    seconds = time.monotonic() - begin
    failed = [s.entry["id"] for s in done if s.result == "FAIL"] + [e["id"] for e in done_not]
    skipped = [s.entry["id"] for s in done if s.result == "skip"]
    print(f"{len(done)} scenarios in {seconds:.0f} s, {len(failed)} failed {' '.join(failed)}, {len(skipped)} skipped {' '.join(skipped)}")
    if args.json:
        write_json(args.json, done, seconds)
    if args.junit:
        write_junit(args.junit, done, seconds)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
