"""A busy card: what `check` says of clean and dirty commands while others start, grow, shrink and end. Group `churn`.

    python3 tests/gpu/run.py churn --binary target/release/gpuresid --seconds 480            everything
    … churn --only 3                     one cell of the table; parts: alone, quiet, amid, programs, long, 1, 3, 8
    … churn --only 1,3,8 --lanes 1       no checks beside each other: only the neighbours are others
    … churn --seed N                     other draws

Parts
    1, 3, 8     so many restless neighbours; 200 clean commands of 0.6 s and 60 dirty ones, in lanes side by side, so that
                each is also a neighbour of the others. Exported handles come last, apart from the clean ones: their
                memory goes to no list while others' commands end, which nobody can tell from a hand-over of those.
    long        commands of a minute beside four neighbours that grow once in half a minute, 16 at a time
    programs    nine frameworks beside each other, three rounds
    alone       a handle in a socket on a card without others
    quiet       memory that changes hands beside neighbours that do nothing
    amid        the same beside three restless ones: raw IPC is only counted here

Prints a row for each part and kind, and what was not as it should be. `--json` has every run and, for those, what the
neighbours did meanwhile; beside it `churn-looks.jsonl.gz` has the looks of all runs.
"""

import gzip
import importlib.util
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time

import churn_runs as runs
import roles
from churn_runs import ANY, CLEAN, LEFT, NOT_CLEAN
from neighbours import Neighbour, Street, restless, seldom, still

MIB = 1 << 20
# Compressed bytes of looks that are kept.
LOOKS = 15 << 20
PARTS = ("programs", "long", "alone", "quiet", "amid", "1", "3", "8")
FRAMEWORKS = ("training", "loader", "compiled", "spawned", "transformers", "lightning", "cupy", "jax", "graphs")


class Card:
    """What all runs share."""

    def __init__(self, args, binary, nvml):
        self.binary, self.nvml, self.lanes = binary, nvml, args.lanes
        self.simulated = bool(args.simulated)
        # The fake driver has no noise that would need long runs.
        self.scale = 0.05 if self.simulated else 1.0
        self.dir = tempfile.mkdtemp(prefix="gpu-churn-")
        self.begin, self.seconds = time.monotonic(), args.seconds
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPURESID_")}
        self.token = f"{os.getpid()}-{self.begin}"
        self.env.update(PYTHONDONTWRITEBYTECODE="1", GPU_SUITE_RUN=self.token)
        self.draw, self.lock, self.count = random.Random(args.seed), threading.Lock(), 0
        self.events, self.results, self.problems, self.neighbours = [], [], [], []
        self.looks = self.looks_path = None
        if args.json:
            self.looks_path = os.path.join(os.path.dirname(os.path.abspath(args.json)), "churn-looks.jsonl.gz")
            self.looks = gzip.open(self.looks_path, "wt", encoding="utf-8")
        self.used = nvml.used(0)

    def left(self, hard=False):
        """Seconds; what has begun may take a little longer than what is to begin."""
        return self.begin + self.seconds + (15 if hard else 0) - time.monotonic()

    def interrupt(self, *_):
        """Nothing begins any more, and what runs is ended."""
        self.problem("interrupted")
        self.seconds = float("-inf")

    def directory(self, kind):
        with self.lock:
            self.count += 1
            path = os.path.join(self.dir, f"{self.count}-{kind.replace(' ', '-')}")
        os.mkdir(path)
        return path

    def neighbour(self, temperament):
        with self.lock:
            draw = random.Random(self.draw.random())
            one = Neighbour(os.path.join(self.dir, "neighbours"), self.env, self.events, temperament, draw)
            self.neighbours.append(one)
        return one

    def problem(self, text):
        self.problems.append(text)

    def take(self, run):
        one = run.summary()
        if run.word not in ("right", "skipped"):
            begin, end = run.began - 0.2, run.began + run.seconds + 0.2
            one["meanwhile"] = [[round(t - run.began, 3), pid, order] for t, pid, order in list(self.events) if begin <= t <= end]
            one["report"] = run.report
        try:
            looks = run.text("looks.json")
        except OSError:
            looks = "null"
        with self.lock:
            self.results.append(one)
            if self.looks and self.looks.buffer.fileobj.tell() < LOOKS:
                head = json.dumps({k: one[k] for k in ("part", "kind", "word", "verdict", "began", "seconds")})
                self.looks.write(head[:-1] + ', "observation": ' + looks.strip() + "}\n")

    def close(self):
        """Ends what is left, and says what should not have been."""
        for one in self.neighbours:
            one.stop()
            if one.failure:
                self.problem(one.failure)
        for fact in strays(self.token):
            self.problem(f"PID {fact['pid']} was left over: {fact['command']}")
            roles.send(fact)
        try:
            roles.wait_until(lambda: self.nvml.used(0) <= self.used + 8 * MIB, 10, "the memory to come back")
        except TimeoutError:
            self.problem(f"{(self.nvml.used(0) - self.used) >> 20} MiB more are in use than at the start")
        if self.looks:
            self.looks.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def strays(token):
    """Processes that were started here and still live, known by the mark in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = f"GPU_SUITE_RUN={token}".encode() in file.read()
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")[:200]
        except OSError:
            continue
        seen = roles.stat(int(name))
        if marked and seen and seen[0] not in "ZX":
            found.append({"pid": int(name), "start_ticks": seen[1], "pid_ns": roles.namespace(), "command": command})
    return found


def together(actions):
    """Runs them side by side; returns when all have ended."""
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def lanes(card, count, pick):
    """Side by side, one run after the other, as long as `pick` names one."""

    def lane():
        while card.left() > 0:
            chosen = pick()
            if chosen is None:
                return
            runs.play(card, *chosen)

    together([lane] * count)


def cell(card, part, seconds, goal):
    count, end = int(part), time.monotonic() + seconds
    kinds = {"clean": (runs.clean, CLEAN), "orphan": (runs.orphan, LEFT), "copy": (runs.copy, LEFT), "handle": (runs.handle, NOT_CLEAN)}
    clean, dirty = goal
    wanted = {"clean": clean, "orphan": dirty // 3, "copy": dirty // 3}
    lock = threading.Lock()

    def pick():
        """Whatever is wanted most often still; all of it is spread over the whole time."""
        with lock:
            open_ = [k for k, n in wanted.items() for _ in range(n)]
            if not open_ or time.monotonic() > end:
                return None
            kind = card.draw.choice(open_)
            wanted[kind] -= 1
        return part, kind, *kinds[kind]

    with Street(card, count, restless):
        end -= seconds * 0.15
        lanes(card, card.lanes, pick)
        end += seconds * 0.15
        wanted = {"handle": dirty - 2 * (dirty // 3)}
        lanes(card, card.lanes, pick)


def programs(card, seconds):
    if card.simulated:
        return
    # All three rounds are worth more than a share that is kept: the first compiles and loads what the others find.
    end, took = time.monotonic() + 1.6 * seconds, 0.0
    for number in range(3):
        if number and time.monotonic() + 0.8 * took > end:
            card.problem(f"programs: no time for round {number + 1}")
            return
        began = time.monotonic()
        together([lambda n=name: runs.play(card, "programs", n, runs.framework(n), CLEAN, 100.0) for name in FRAMEWORKS])
        took = time.monotonic() - began


def long(card, seconds):
    each, end = 60 * card.scale, time.monotonic() + seconds

    def lane(number):
        time.sleep(number * 0.37)
        while card.left() > 0 and time.monotonic() + each < end:
            runs.play(card, "long", "long", runs.long, CLEAN, each + 60)

    with Street(card, 4, seldom):
        together([lambda n=n: lane(n) for n in range(16 if not card.simulated else 3)])


def with_torch(card):
    return not card.simulated and importlib.util.find_spec("torch") is not None


def alone(card, _):
    for kind, function in (("socket of others", runs.socket_of_others), ("socket of the run", runs.socket_of_the_run)):
        runs.play(card, "alone", kind, lambda run, f=function: f(run, runs.SOON), LEFT)


def quiet(card, _):
    """The moments are apart, so that no hand-over is another's coincidence."""
    plan = [
        (0, "ipc after 22 s", runs.ipc(22)),
        (0, "ipc after 25 s", runs.ipc(25)),
        (2, "socket of others", runs.socket_of_others),
        (18, "socket of the run", runs.socket_of_the_run),
    ]
    if with_torch(card):
        plan.append((0, "tensor of PyTorch", runs.torch_share))

    def later(seconds, kind, function):
        time.sleep(seconds * card.scale)
        # A rehearsal is over too soon to tell it from chance.
        runs.play(card, "quiet", kind, function, ANY if card.simulated and kind.startswith("ipc") else NOT_CLEAN)

    with Street(card, 1, still):
        together([lambda p=p: later(*p) for p in plan])


def amid(card, seconds):
    end = time.monotonic() + seconds - 14 * min(1.0, card.scale * 4)
    # One lane for the sockets: beside each other they would be one another's coincidences.
    plan = [[("socket of others", runs.socket_of_others, NOT_CLEAN), ("socket of the run", runs.socket_of_the_run, NOT_CLEAN)]]
    plan += [[("ipc amid", runs.ipc(seconds), ANY)] for seconds in (0.3, 1, 4)]
    if with_torch(card):
        plan += [[("tensor of PyTorch", runs.torch_share, NOT_CLEAN)]]

    def lane(kinds):
        number = 0
        while card.left() > 0 and (number == 0 or time.monotonic() < end):
            runs.play(card, "amid", *kinds[number % len(kinds)])
            number += 1

    with Street(card, 3, restless):
        together([lambda k=k: lane(k) for k in plan])


# What a part may take of the whole; the cells share the rest.
SHARES = {"programs": (programs, 0.165), "long": (long, 0.275), "alone": (alone, 0.02), "quiet": (quiet, 0.085), "amid": (amid, 0.085)}
COLUMNS = ("part", "kind", "n", "clean", "residue", "inconcl.", "wrong clean", "wrong residue", "off", "failed", "median s")
WIDTHS = (10, 20, 6, 7, 9, 10, 13, 15, 5, 8, 9)


def table(results):
    """Rows with one object for each part and kind."""
    rows = {}
    for one in results:
        rows.setdefault((PARTS.index(one["part"]), one["part"], one["kind"]), []).append(one)
    out = []
    for (_, part, kind), all_ in sorted(rows.items(), key=lambda item: item[0]):
        judged = [o for o in all_ if o["word"] not in ("failed", "skipped")]
        verdicts = [o["verdict"] for o in judged]
        wrong = [o["verdict"] for o in judged if o["word"] == "wrong"]
        out.append({
            "part": part, "kind": kind, "n": len(judged), **{v: verdicts.count(v) for v in ("clean", "residue", "inconclusive")},
            "wrong_clean": wrong.count("clean"), "wrong_residue": wrong.count("residue"),
            # The verdict is right; what is charged, or an advice, is not.
            "off": sum(o["word"] == "off" for o in judged),
            "failed": sum(o["word"] == "failed" for o in all_), "skipped": sum(o["word"] == "skipped" for o in all_),
            "open": sum(o["word"] == "open" for o in judged),
            "median_seconds": round(statistics.median(o["seconds"] for o in all_), 2),
        })
    return out


def complaints(row, percent):
    """What of a row is not as it should be."""
    name = f"{row['part']} {row['kind']}"
    for key in ("wrong_clean", "wrong_residue", "off", "failed"):
        if row[key]:
            yield f"{name}: {row[key]} {key.replace('_', ' ')}"
    allowed = int(row["n"] * percent / 100) if row["kind"] == "clean" else 0
    if row["open"] > allowed:
        yield f"{name}: {row['open']} of {row['n']} inconclusive, {allowed} may be"


def show(values):
    return "".join(str(v).ljust(w) for v, w in zip(values, WIDTHS, strict=True)).rstrip()


def main(args, binary, nvml):
    only = set(args.only.split(",")) if args.only else set(PARTS)
    if not only <= set(PARTS):
        print(f"no such part: {', '.join(sorted(only - set(PARTS)))}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    card = Card(args, binary, nvml)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, card.interrupt)
    goal = tuple(map(int, args.goal.split(",")))
    share = {part: value for part, (_, value) in SHARES.items() if part in only}
    whole = sum(share.values()) + (sum(v for p, (_, v) in SHARES.items() if p not in only) if only & {"1", "3", "8"} else 0)
    cells = [p for p in PARTS if p in only and p.isdigit()]
    spent = []
    try:
        for part in (p for p in PARTS if p in only):
            began = time.monotonic()
            if card.left() < 5:
                card.problem(f"part {part}: no time left")
                continue
            if part.isdigit():
                cell(card, part, card.left() / (len(cells) - cells.index(part)), goal)
            else:
                of = share[part] if cells else share[part] / whole
                SHARES[part][0](card, min(args.seconds * of, card.left()))
            spent.append({"part": part, "seconds": round(time.monotonic() - began, 1)})
            rows = [r for r in table(card.results) if r["part"] == part]
            if len(spent) == 1:
                print(show(COLUMNS), flush=True)
            for r in rows:
                print(show((part, r["kind"], r["n"], r["clean"], r["residue"], r["inconclusive"], r["wrong_clean"], r["wrong_residue"], r["off"], r["failed"], r["median_seconds"])), flush=True)
    finally:
        card.close()
        rows = table(card.results)
        wrong = [text for row in rows for text in complaints(row, args.open)] + card.problems
        report(args, card, rows, spent, wrong)
    return 1 if wrong else 0


def report(args, card, rows, spent, wrong):
    orders = [order.partition(" ")[0] for _, _, order in card.events]
    counts = {order: orders.count(order) for order in sorted(set(orders))}
    seconds = time.monotonic() - card.begin
    print(f"{len(card.results)} runs in {seconds:.0f} s, parts {json.dumps({s['part']: s['seconds'] for s in spent})}, orders of neighbours {json.dumps(counts)}")
    unexpected = [o for o in card.results if o["word"] in ("wrong", "off", "failed", "open")]
    # The wrong ones first: the list may be cut.
    unexpected.sort(key=lambda o: ("wrong", "off", "failed", "open").index(o["word"]))
    for one in unexpected[:24]:
        print(f"  {one['word']}: {one['part']} {one['kind']} at {one['began']:.1f} s: {one['verdict']} {one['low_mib']}–{one['high_mib']} MiB, truth {one['truth_mib']}: {one['note']}")
    if len(unexpected) > 24:
        print(f"  … and {len(unexpected) - 24} more")
    skipped = sorted({o["kind"] for o in card.results if o["word"] == "skipped"})
    if skipped:
        print(f"not installed: {', '.join(skipped)}")
    print("\n".join(f"NOT RIGHT {text}" for text in wrong) or "all right", flush=True)
    if args.json:
        value = {"seconds": seconds, "seed": args.seed, "lanes": args.lanes, "parts": spent, "rows": rows, "orders": counts, "wrong": wrong, "runs": card.results}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(value, file)
