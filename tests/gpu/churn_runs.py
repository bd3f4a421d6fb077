"""One checked run of the churn, whatever it leaves: it is started, judged against what is known, and cleared away.

A kind of run is a function that starts the check and does what belongs to it, and the verdicts that are right for it.
What is known does not come from the tool: every program tells its role, and NVML is asked who has how much.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import roles
from harness import LITE, MIB, SLACK, TORCH, holder, launcher, program
from neighbours import still

SIZE = 1000
CLEAN, LEFT = {"clean"}, {"residue"}
NOT_CLEAN, ANY = {"residue", "inconclusive"}, {"clean", "residue", "inconclusive"}
# Long enough for the looks that go on because memory may have changed hands.
PATIENT = ("--settle", "14s")
SOON = ("--settle", "600ms")


class Run:
    def __init__(self, card, part, kind):
        self.card, self.part, self.kind = card, part, kind
        self.dir = card.directory(kind)
        self.facts = os.path.join(self.dir, "roles")
        self.began, self.seconds = time.monotonic(), 0.0
        self.child, self.programs, self.after = None, [], []
        self.report, self.verdict, self.word, self.note = None, "-", "failed", ""
        self.code, self.low, self.high, self.truth = None, None, None, None

    # What a kind does.

    def check(self, argv, *options):
        """Starts the check; the kind goes on beside it."""
        out = [f"--report=json:{self.path('report.json')}", f"--report=observation:{self.path('looks.json')}"]
        with open(self.path("out"), "wb") as stdout, open(self.path("err"), "wb") as stderr:
            self.child = subprocess.Popen(
                [self.card.binary, "check", *out, *options, "--", *argv],
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=self.card.env, start_new_session=True,
            )

    def start(self, argv):
        """A program of somebody else, ended with the run."""
        with open(self.path(f"program{len(self.programs)}.err"), "wb") as stderr:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=self.card.env, start_new_session=True
            )
        self.programs.append(child)

    def keeper(self):
        """A neighbour of this run's own, still until it is told something."""
        one = self.card.neighbour(still)
        self.after.append(one.stop)
        if not one.up.wait(30) or one.failure:
            raise RuntimeError(one.failure or "a neighbour did not start")
        return one

    def path(self, name):
        return os.path.join(self.dir, name)

    def wait_role(self, name):
        return roles.wait_role(self.facts, name, max(1.0, min(60.0, self.card.left(hard=True))))[-1]

    # The end.

    def finish(self, limit):
        while self.code is None:
            self.seconds = time.monotonic() - self.began
            if self.seconds > limit or self.card.left(hard=True) < 0:
                raise RuntimeError(f"no end within {self.seconds:.0f} s")
            try:
                self.code = self.child.wait(0.5)
            except subprocess.TimeoutExpired:
                pass
        self.seconds = time.monotonic() - self.began

    def judge(self, right):
        self.truth = self.listed()
        try:
            with open(self.path("report.json"), encoding="utf-8") as file:
                self.report = json.load(file)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"exit code {self.code}, no report ({error}): {self.text('err')[-300:]}") from None
        device, command = self.report["devices"][0], self.report["command"]
        self.verdict, self.low, self.high = self.report["verdict"], device["charged_residue_bytes"], device["charged_residue_max_bytes"]
        if command["exit_code"] == 77:
            self.word, self.note = "skipped", self.text("err").strip()[-200:]
            return
        # A producer of shared memory is killed, all others end by themselves.
        killed = command["signal"] == signal.SIGKILL and self.kind.startswith("ipc")
        if command["exit_code"] != 0 and not killed:
            raise RuntimeError(f"the command ended with {command}: {self.text('err')[-600:]}")
        said = {"clean": 0, "residue": 121, "inconclusive": 122}[self.verdict]
        if self.code != (-signal.SIGKILL if killed else said):
            raise RuntimeError(f"exit code {self.code} for {self.verdict}")
        if self.verdict in right:
            self.word = "right"
        else:
            self.word = "open" if self.verdict == "inconclusive" else "wrong"
            self.note = "; ".join(device["because"] or ["-"])[:400]
        if self.truth is not None and self.verdict == "residue" and abs(self.low - self.truth) > SLACK:
            self.word, self.note = "off", f"charged {self.low >> 20} MiB, NVML lists {self.truth >> 20}"
        self.in_peace()

    def listed(self):
        """What NVML lists for what this run left, where a list can tell; None where not."""
        told = {f["role"]: f for f in roles.told(self.facts)}
        if self.kind not in ("orphan", "copy"):
            return None
        listed = self.card.nvml.listed(0).get(told["ghost" if self.kind == "copy" else "holder"]["pid"])
        if not listed or not roles.alive(told["holder"]):
            raise RuntimeError(f"NVML lists {listed} bytes of what was left: the run is not what it should be")
        return listed

    def in_peace(self):
        """No advice is to end somebody who is known to be another's."""
        own = {str(f["pid"]) for f in roles.told(self.facts) if f["role"] not in ("keeper", "keeper_up")}
        own |= {str(h["pid"]) for h in self.report["holders"] if h["lineage"] == "unknown"}
        for advice in self.report["advice"]:
            words = (advice["command"] or "").split()
            if words[:1] == ["kill"] and not own.issuperset(w for w in words if w.isdigit()):
                self.word, self.note = "off", f"advises {advice['command']!r}"

    def text(self, name):
        with open(self.path(name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def tear_down(self):
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(5)
            except subprocess.TimeoutExpired:
                # The session is its own.
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()
        for child in self.programs:
            child.kill()
            child.wait()
        for action in self.after:
            action()
        facts = [f for f in roles.told(self.facts) if f["role"] != "launcher"]
        for fact in facts:
            roles.send(fact)
        try:
            roles.wait_until(lambda: not any(map(roles.alive, facts)), 20, "what was left to end")
        except TimeoutError as error:
            self.card.problem(f"{self.kind}: {error}")

    def summary(self):
        mib = lambda value: None if value is None else value >> 20  # noqa: E731
        return {
            "part": self.part, "kind": self.kind, "word": self.word, "verdict": self.verdict, "low_mib": mib(self.low), "high_mib": mib(self.high),
            "truth_mib": mib(self.truth), "code": self.code, "began": round(self.began - self.card.begin, 3), "seconds": round(self.seconds, 3),
            "settled_seconds": self.report and self.report["settled_seconds"], "note": self.note,
        }

    def forget(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def clean(run):
    run.check(holder(run.facts, "--mib", SIZE, "--then", "hold:0.3"))


def long(run):
    run.check(holder(run.facts, "--mib", SIZE, "--then", f"hold:{60 * run.card.scale}"))


def orphan(run):
    run.check(launcher(run.facts, run=holder(run.facts, "--mib", SIZE)), *SOON)


def copy(run):
    run.check(holder(run.facts, "--mib", SIZE, "--fork-copy"), *SOON)


def handle(run):
    run.check(holder(run.facts, "--mib", SIZE, "--export", "--then", "hold:0.2"), *SOON)


def ipc(seconds):
    """Raw CUDA IPC to somebody else, who keeps the memory."""

    def play(run):
        keeper = run.keeper()
        go = run.path("go")
        run.check([*LITE, program("ipc.py"), run.facts, str(SIZE), "export", go], *PATIENT)
        keeper.tell("ipc-open " + run.wait_role("producer")["handle"])
        time.sleep(seconds * run.card.scale)
        with open(go, "w", encoding="ascii"):
            pass

    return play


def socket_of_others(run, settle=PATIENT):
    """The handle waits in a socket of somebody else."""
    run.start([*LITE, program("in_flight.py"), run.facts, "listen", run.path("socket")])
    run.wait_role("keeper")
    run.check([*LITE, program("in_flight.py"), run.facts, "send", run.path("socket"), "--mib", str(SIZE)], *settle)


def socket_of_the_run(run, settle=PATIENT):
    run.check([*LITE, program("in_flight.py"), run.facts, "keep", "-", "--mib", str(SIZE)], *settle)


def torch_share(run):
    """PyTorch's own sharing, with a process of others that keeps the tensor."""
    run.start([*TORCH, program("torch_share.py"), run.facts, "consume", run.path("tensor")])
    run.wait_role("keeper_up")
    run.check([*TORCH, program("torch_share.py"), run.facts, "produce", run.path("tensor"), "2"], *PATIENT)


def framework(name):
    return lambda run: run.check([sys.executable, "-B", program("frameworks.py"), name])


def play(card, part, kind, function, right, limit=90.0):
    """One run with its tear-down; what came out goes to the card."""
    run = Run(card, part, kind)
    try:
        function(run)
        run.finish(limit)
        run.judge(right)
    except Exception as error:
        run.word, run.note = "failed", f"{type(error).__name__}: {error}"
    finally:
        run.seconds = run.seconds or time.monotonic() - run.began
        run.tear_down()
    card.take(run)
    run.forget()
    return run.word


