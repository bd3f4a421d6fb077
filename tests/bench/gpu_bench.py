"""What the tool costs on a real GPU and how exactly it sees peaks, in one table.

    python3 tests/bench/gpu_bench.py --binary target/release/gpuresid [--runs 15] [--floor PATH] [--json FILE]

- Time of whole processes: the floor (floor.c: a C program that does no more than any NVML look must), `status --json`,
  `status`, `nvidia-smi`, `check -- true`. All in one go, in an order that changes each round, medians, on idle cards and
  beside one CUDA context, with the ratio to the floor and to nvidia-smi of the same condition.
- Delay of the verdict: from the end of the command, seen through a pidfd, to the end of the tool; and what the report
  says about it (`settled_seconds`).
- Cost of sampling: time on a core of all processes of the tool while the command sleeps, start and end left out.
- Peaks: plateaus of 300 ms and more against a poller of 1 kHz that shares nothing with the tool.

The cards should be idle; nothing is set on them. Python's standard library is enough.
"""

import argparse
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
GPU = os.path.join(os.path.dirname(HERE), "gpu")
sys.path.insert(0, GPU)
import nvml  # noqa: E402
import roles  # noqa: E402

MIB = 1 << 20
LITE = [sys.executable, "-SB"]
ROWS = []


def program(name):
    return os.path.join(GPU, "programs", name)


def environment():
    return {**{k: v for k, v in os.environ.items() if not k.startswith("GPURESID_")}, "PYTHONDONTWRITEBYTECODE": "1"}


def note(measure, values, unit, *, floor=None, smi=None, text=""):
    """A row: median, smallest and largest of the values, and the ratios of medians."""
    values = [v for v in values if v is not None]
    middle = statistics.median(values) if values else None
    row = {
        "measure": measure, "n": len(values), "median": middle,
        "min": min(values, default=None), "max": max(values, default=None), "unit": unit,
        "x_floor": middle / floor if middle is not None and floor else None,
        "x_nvidia_smi": middle / smi if middle is not None and smi else None, "note": text,
    }
    ROWS.append(row)
    return middle


def show():
    head = ("measure", "n", "median", "min", "max", "unit", "x floor", "x smi", "note")
    table = [head]
    for row in ROWS:
        number = lambda v: "-" if v is None else f"{v:.2f}"  # noqa: E731
        table.append(
            (row["measure"], str(row["n"]), number(row["median"]), number(row["min"]), number(row["max"]), row["unit"],
             number(row["x_floor"]), number(row["x_nvidia_smi"]), row["note"])
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    for line in table:
        print("  ".join(part.ljust(width) if i in (0, 5, 8) else part.rjust(width) for i, (part, width) in enumerate(zip(line, widths))).rstrip())


def build_floor(given, folder):
    """The floor program: the given one, or built here; None if there is no compiler."""
    if given:
        return os.path.abspath(given)
    target = os.path.join(folder, "floor")
    for compiler in ("cc", "gcc", "clang"):
        if shutil.which(compiler):
            subprocess.run([compiler, "-O2", "-o", target, os.path.join(HERE, "floor.c"), "-ldl"], check=True)
            return target
    if shutil.which("nvcc"):
        subprocess.run(["nvcc", "-x", "c", "-O2", "-o", target, os.path.join(HERE, "floor.c"), "-ldl"], check=True)
        return target
    print("no C compiler: the floor is left out (name one built elsewhere with --floor)", file=sys.stderr)
    return None


def timed(argv, codes=(0,)):
    """Milliseconds of one whole process."""
    began = time.perf_counter()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(), check=False)
    taken = (time.perf_counter() - began) * 1000
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-400:]}")
    return taken


def start_holder(folder, mib):
    facts = os.path.join(folder, f"neighbour{mib}")
    child = subprocess.Popen([*LITE, program("holder.py"), facts, "--mib", str(mib)], stdin=subprocess.DEVNULL)
    try:
        roles.wait_role(facts, "holder")
    except BaseException:
        child.kill()
        raise
    return child


def commands(binary, floor, runs, condition):
    """Whole processes, each round in another order."""
    what = {
        "floor (C)": [floor] if floor else None,
        "status --json": [binary, "status", "--json"],
        "status": [binary, "status"],
        "nvidia-smi": ["nvidia-smi"] if shutil.which("nvidia-smi") else None,
        "check -- true": [binary, "check", "--", "true"],
        "--version": [binary, "--version"],
    }
    what = {name: argv for name, argv in what.items() if argv}
    times = {name: [] for name in what}
    names = list(what)
    for turn in range(runs + 1):
        for name in names[turn % len(names):] + names[: turn % len(names)]:
            taken = timed(what[name])
            if turn:  # the first round warms files and caches
                times[name].append(taken)
    base = statistics.median(times["floor (C)"]) if floor else None
    smi = statistics.median(times["nvidia-smi"]) if "nvidia-smi" in times else None
    for name in names:
        note(f"{name}, {condition}", times[name], "ms", floor=base, smi=smi)


def run_check(binary, folder, number, argv, *options, watch=None):
    """(report, exit code, ms from the end of the watched role's process to the end of the tool)."""
    path = os.path.join(folder, f"report{number}.json")
    child = subprocess.Popen(
        [binary, "check", *options, "--report", f"json:{path}", "--", *argv],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )
    ended = []
    if watch:
        def wait_for_end():
            fact = roles.wait_role(watch, "holder")[-1]
            pidfd = os.pidfd_open(fact["pid"])
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(60000)
            ended.append(time.perf_counter())
            os.close(pidfd)

        thread = threading.Thread(target=wait_for_end, daemon=True)
        thread.start()
    # Popen.wait with a time limit polls in steps of up to 50 ms: the kernel tells the moment itself.
    own = os.pidfd_open(child.pid)
    ready, _, _ = select.select([own], [], [], 90)
    finished = time.perf_counter()
    os.close(own)
    if not ready:
        child.kill()
        child.wait()
        raise RuntimeError(f"check -- {' '.join(argv)} did not end")
    code = child.wait()
    if watch:
        thread.join(5)
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    return report, code, (finished - ended[0]) * 1000 if ended else None


def verdict_delay(binary, folder, runs, condition):
    told, seen, verdicts = [], [], set()
    for number in range(runs):
        facts = os.path.join(folder, f"delay-{condition.replace(' ', '-')}-{number}")
        argv = [*LITE, program("holder.py"), facts, "--mib", "1024", "--then", "hold:0.25"]
        report, code, delay = run_check(binary, folder, f"delay{number}", argv, watch=facts)
        verdicts.add(f"{report['verdict']}/{code}")
        told.append(report["settled_seconds"] * 1000)
        seen.append(delay)
    text = " ".join(sorted(verdicts))
    note(f"verdict delay, told, {condition}", told, "ms", text=text)
    note(f"verdict delay, seen outside, {condition}", seen, "ms", text="until the tool has ended, report written")


def on_core(pid):
    """Nanoseconds on a core of all threads, or None if it is gone; and where the number came from."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
        if total:
            return total, "schedstat"
    except (OSError, ValueError, IndexError):
        pass
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None, ""
    return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), "stat"


def tool_processes(binary, since_ticks):
    """All processes that run this binary and began no earlier than that: the tool, its nursery, its NVML helper."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            same = os.path.samefile(f"/proc/{pid}/exe", binary)
        except OSError:
            continue
        seen = roles.stat(pid)
        if same and seen and seen[1] >= since_ticks:
            found[pid] = seen[1]
    return found


def sampling_cost(binary, folder, seconds, condition, *options):
    child = subprocess.Popen(
        [binary, "check", *options, "--report", f"json:{os.path.join(folder, 'cost.json')}", "--", "sleep", str(seconds)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )
    try:
        since = roles.stat(child.pid)[1]
        time.sleep(1.5)
        first = {pid: on_core(pid) for pid in tool_processes(binary, since)}
        if not first:
            raise RuntimeError("no process of the tool was found: its cost cannot be measured")
        began = time.monotonic()
        time.sleep(seconds - 2.5)
        spent, source, gone = 0, "", 0
        for pid, (before, kind) in first.items():
            after, _ = on_core(pid)
            if after is None or before is None:
                gone += 1
                continue
            spent, source = spent + after - before, kind
        taken = time.monotonic() - began
        code = child.wait(60)
    except BaseException:
        child.kill()
        child.wait()
        raise
    lost = f", {gone} ended meanwhile" if gone else ""
    note(f"sampling, {condition}", [spent / taken / 1e7], "% of a core", text=f"{len(first)} processes{lost}, {taken:.1f} s, {source}, exit {code}")


def peaks(binary, folder, library, milliseconds, sizes, label):
    off, off_command = [], []
    texts = []
    for number, size in enumerate(sizes):
        poller = nvml.Poller(library)
        poller.start()
        argv = [*LITE, program("plateaus.py"), str(milliseconds), str(size)]
        report, _, _ = run_check(binary, folder, f"peak{milliseconds}-{number}", argv)
        poller.stop()
        device = report["devices"][0]
        off.append(abs(device["peak_bytes"] - poller.peak) / poller.peak * 100)
        listed = max(poller.peak_listed.values(), default=0)
        if listed:
            off_command.append(abs(device["command_peak_bytes"] - listed) / listed * 100)
        texts.append(f"{device['peak_bytes'] >> 20}/{poller.peak >> 20}")
    note(f"peak off, {label}", off, "%", text=f"MiB told/polled: {' '.join(texts)}")
    note(f"command peak off, {label}", off_command, "%", text="against the largest listed value of the poller")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--floor")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json")
    args = parser.parse_args()
    binary = os.path.abspath(args.binary)
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as folder:
        failed = []

        def part(function, *arguments):
            """One part that fails does not take the others with it; the exit code says so."""
            try:
                function(*arguments)
            except Exception as error:
                failed.append(f"{function.__name__}{arguments[2:]}: {error!r}")

        floor = build_floor(args.floor, folder)
        # Before this process opens NVML itself: an open client could keep the driver warm for the others.
        part(commands, binary, floor, args.runs, "idle")
        part(verdict_delay, binary, folder, min(args.runs, 10), "alone")
        part(sampling_cost, binary, folder, 10, "100 ms, idle")
        neighbour = start_holder(folder, 512)
        try:
            part(commands, binary, floor, args.runs, "with a context")
            part(verdict_delay, binary, folder, min(args.runs, 10), "beside a neighbour")
            part(sampling_cost, binary, folder, 10, "100 ms, with a context")
        finally:
            neighbour.kill()
            neighbour.wait()
        library = nvml.Nvml()
        part(peaks, binary, folder, library, 300, [512, 1024, 2048, 4096, 8192], "plateaus of 300 ms")
        part(peaks, binary, folder, library, 150, [1024, 4096], "plateaus of 150 ms")
        show()
        print(f"GPUs: {', '.join(library.name(i) for i in range(len(library.handles)))}; {os.cpu_count()} cores; medians of {args.runs}")
        for text in failed:
            print(f"FAIL {text}")
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump({"rows": ROWS, "failed": failed}, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
