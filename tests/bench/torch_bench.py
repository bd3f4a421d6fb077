"""What `check --torch` costs: the start of Python, training, the exit.

    python3 tests/bench/torch_bench.py --binary target/release/gpuresid [--pairs 16] [--steps 4000] [--only training]
        [--budget 200] [--json FILE]

Each is measured in pairs, with and without, in an order that alternates, so that what drifts falls on both sides; told
are the difference and its 95 % interval. On a machine with two GPUs the two of a pair run beside each other, a GPU and
half of the processor's cores each; then they change places, and only both together are a pair. The two of a pair share
the seed of Python's hashes and have fixed addresses: both make one program several percent faster or slower.

Training is told for a GPU that is busy all the time (`--steps` / 4 large steps) and, as the worst that can be, for one
that waits for the processor (small steps), there also by pairs of moments in the runs with the probe: the steps in the
100 ms around each of its looks, against those in 100 ms between two looks.

No pair is begun after `--budget` seconds of one measurement. Without PyTorch or a GPU only the start is measured. Exit
code: 0 all within the limits (start 10 ms, training 1 %, exit with 10,000 live tensors 150 ms), 1 not.
"""

import argparse
import bisect
import concurrent.futures
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "gpu", "programs", "torch_steps.py")
SOURCES = os.path.join(HERE, "..", "..", "src", "torch")
# Two-sided 95 % of Student's t, by degrees of freedom.
T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 11: 2.20, 12: 2.18, 15: 2.13, 20: 2.09, 30: 2.04}


def interval(values):
    """Mean and half the width of its 95 % interval."""
    middle = mean(*values)
    if len(values) < 2:
        return middle, math.inf
    degrees = len(values) - 1
    t = T[max(k for k in T if k <= degrees)]
    return middle, t * statistics.stdev(values) / math.sqrt(len(values))


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPURESID_", "PYTHON"))}
    return {**env, "PYTHONDONTWRITEBYTECODE": "1", **more}


def pairs(count, measure):
    """`measure(with_it, seed)` in alternating order; the first pair warms caches and does not count."""
    found, end = [], time.monotonic() + BUDGET
    for turn in range(count + 1):
        if len(found) > 1 and time.monotonic() > end:
            break
        order = (False, True) if turn % 2 else (True, False)
        one = {with_it: measure(with_it, turn) for with_it in order}
        if turn:
            found.append((one[False], one[True]))
    return found


def pairs_on_gpus(count, folder, measure):
    """`measure(place, with_it, seed)`; on two GPUs at once, where there are two."""
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=False).stdout
    several = sum(line.startswith("GPU ") for line in listed.splitlines()) > 1
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2 if several else len(cores)
    places = [Place(os.path.join(folder, f"gpu{gpu}"), gpu, cores[gpu * half :][:half]) for gpu in range(1 + several)]
    for place in places:
        os.makedirs(place.folder, exist_ok=True)
    if not several:
        return pairs(count, lambda with_it, seed: measure(places[0], with_it, seed))

    def both(with_it, seed):
        sides = [pool.submit(measure, places[probed != with_it], probed, seed) for probed in (False, True)]
        return [side.result() for side in sides]

    # A pair of pairs: each of the two has been on each GPU.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = pairs(count, both)
    return [(mean(first[0], second[0]), mean(first[1], second[1])) for first, second in found]


class Place(typing.NamedTuple):
    """Where one of a pair runs."""

    folder: str
    gpu: int
    cores: list


def mean(*values):
    return statistics.fmean(values)


def start(folder, count):
    probe = os.path.join(folder, "probe")
    os.mkdir(probe)
    for name in ("sitecustomize.py", "probe.py", "tensors.py", "names.py"):
        shutil.copy(os.path.join(SOURCES, name), probe)

    def measure(with_it, seed):
        env = environment(PYTHONPATH=probe if with_it else "", PYTHONHASHSEED=str(seed))
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
        return (time.perf_counter() - began) * 1000

    return pairs(count, measure)


def checked(binary, place, with_it, seed, *words):
    folder, out = place.folder, os.path.join(place.folder, "told")
    fixed = ["taskset", "-c", ",".join(map(str, place.cores)), "setarch", "-R"]
    option = ["--torch"] if with_it else []
    argv = [*fixed, binary, "check", "--quiet", *option, "--report", f"json:{folder}/report.json", "--", sys.executable, PROGRAM, out, *words]
    env = environment(CUDA_VISIBLE_DEVICES=str(place.gpu), PYTHONHASHSEED=str(seed))
    done = subprocess.run(argv, env=env, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-400:]}")
    with open(out, encoding="ascii") as file:
        told = json.load(file)
    with open(f"{folder}/report.json", encoding="utf-8") as file:
        report = json.load(file)
    if with_it and not report["torch"]:
        raise RuntimeError(f"the probe told nothing: {report['gaps']}")
    return told, report


def training(binary, folder, count, kind, steps):
    """Pairs of seconds, and pairs of steps: without a look in 100 ms, and with one."""
    moments, distances = [], []

    def measure(place, with_it, seed):
        told = checked(binary, place, with_it, seed, kind, str(steps))[0]
        ends = told["ends"]
        looks = [at for at in told["looks"] if ends[0] < at - WINDOW and at + 0.5 + WINDOW < ends[-2]]
        distances.extend(later - earlier for earlier, later in zip(looks, looks[1:]))
        for at in looks:
            quiet = at + 0.5
            if not any(quiet - WINDOW < other < quiet + WINDOW for other in looks):
                moments.append((done(ends, quiet - BEFORE), done(ends, at - BEFORE)))
        return ends[-1] - ends[0]

    return pairs_on_gpus(count, folder, measure), moments, distances


WINDOW = 0.1
BEFORE = 0.02  # the step that a look falls into lies in its window as a whole


def done(ends, since):
    """Steps from `since` on in one window, with the parts of the first and the last."""

    def until(moment):
        place = bisect.bisect_right(ends, moment)
        return place + (moment - ends[place - 1]) / (ends[place] - ends[place - 1])

    return until(since + WINDOW) - until(since)


def exits(binary, folder, count):
    """From the program's last line to the end of gpuresid, which follows the command's by a few milliseconds."""

    def measure(place, with_it, seed):
        told, report = checked(binary, place, with_it, seed, "tensors", "10000")
        taken = (time.monotonic() - told["begins"]) * 1000
        if with_it:
            live = report["torch"][0]["devices"][0]["live"]
            if live["storages"] < 10000 or live["owners"][0]["name"] != "torch_steps.kept":
                raise RuntimeError(f"the tensors were not named: {json.dumps(live)[:400]}")
        return taken

    return pairs_on_gpus(count, folder, measure)


BUDGET = 200.0


def main():
    global BUDGET
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--only", choices=("start", "exit", "training"))
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("--json")
    args = parser.parse_args()
    BUDGET = args.budget
    wanted = {args.only} if args.only else {"start", "exit", "training"}
    binary = os.path.abspath(args.binary)
    rows, over = [], []

    def tell(name, found, unit, limit, relative=False):
        values = [(b / a - 1) * 100 if relative else b - a for a, b in found]
        show(name, values, statistics.median(a for a, _ in found), unit, limit)

    def show(name, values, without, unit, limit):
        middle, half = interval(values)
        rows.append({"measure": name, "pairs": len(values), "without": without, "difference": middle, "half_width": half, "unit": unit, "limit": limit, "values": values})
        if middle - half > limit:
            over.append(name)
        unsure = "" if middle + half <= limit or middle - half > limit else ": too few pairs to tell"
        print(f"{name}: {middle:+.2f} ± {half:.2f} {unit} (95 %, {len(values)} pairs; median without {without:.2f}; limit {limit}){unsure}", flush=True)

    with tempfile.TemporaryDirectory(prefix="torch-bench-") as folder:
        if "start" in wanted:
            tell("start of Python without torch", start(folder, max(args.pairs, 30)), "ms", 10)
        if importlib.util.find_spec("torch") is None:
            print("no PyTorch: training and exit are left out")
            wanted.clear()
        if "exit" in wanted:
            tell("exit with 10,000 live tensors", exits(binary, folder, args.pairs), "ms", 150)
        if "training" in wanted:
            busy = training(binary, folder, args.pairs, "busy", args.steps // 4)[0]
            tell("training, GPU busy", busy, "%", 1, relative=True)
            processes, moments, distances = training(binary, folder, args.pairs, "steps", args.steps)
            tell("training, GPU waits", processes, "%", 1, relative=True)
            if not distances:
                raise RuntimeError("no two looks fell into the training: give more --steps")
            # Of a look's window, which is this part of the time.
            part = WINDOW / mean(*distances)
            values = [(1 - with_look / quiet) * part * 100 for quiet, with_look in moments]
            show("training, GPU waits, looks against pauses", values, statistics.median(q for q, _ in moments), "%", 1)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "over": over}, file, indent=1)
    for name in over:
        print(f"FAIL {name} is over its limit")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
