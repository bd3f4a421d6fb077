"""What a scenario is made of: processes that are started and always ended, checks that are run and read, wants that
must hold, and one row of the table.

A scenario fails when a want does not hold, when anything raises, or when something is left over. Nothing is ended by
name: every process is one that the scenario started or that told its role, and is signalled through a pidfd after its
start time was compared.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import roles

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
# Micro programs need no site packages: a third of the start-up time.
LITE = [sys.executable, "-SB"]
TORCH = [sys.executable, "-B"]
# Context cost, rounding of the list and what a look may be off: see the tool's own arithmetic.
SLACK = 24 * MIB
CASES = []


class Skip(Exception):
    """The machine lacks what the scenario needs."""


def program(name):
    return os.path.join(HERE, "programs", name)


def holder(facts, *options):
    return [*LITE, program("holder.py"), facts, *map(str, options)]


def launcher(facts, *options, run):
    return [*LITE, program("launcher.py"), facts, *map(str, options), "--", *run]


def case(number, title, group="main", pool=False, gpus=1):
    """Registers a scenario. `pool`: may run while others run on the same card, because it asserts on nothing that
    neighbours change; the others have the card to themselves."""

    def register(function):
        CASES.append({"id": number, "title": title, "group": group, "pool": pool, "gpus": gpus, "run": function})
        return function

    return register


class Check:
    """One run of `gpuresid check` and what it left: report, exit code, stderr."""

    def __init__(self, scenario, options, argv, before=(), user=None):
        self.name = f"check{len(scenario.checks)}"
        self.base = os.path.join(scenario.dir, self.name)
        self.report_path = self.base + ".json"
        self.argv = [*before, scenario.binary, "check", "--report", f"json:{self.report_path}", *options, "--", *argv]
        self.began = time.monotonic()
        # Files, not pipes: a leftover keeps a pipe open and the reader would wait for it.
        with open(self.base + ".out", "wb") as out, open(self.base + ".err", "wb") as err:
            extra = {"user": user, "group": user, "extra_groups": []} if user is not None else {}
            self.child = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=scenario.env, **extra)
        scenario.started.append(self.child)
        self.code = self.seconds = None
        self.report = None
        scenario.checks.append(self)

    def finish(self, limit=90):
        try:
            self.code = self.child.wait(limit)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise AssertionError(f"gpuresid did not end within {limit} s: {' '.join(self.argv)}") from None
        self.seconds = time.monotonic() - self.began
        self.load()
        return self

    def load(self):
        try:
            with open(self.report_path, encoding="utf-8") as file:
                self.report = json.load(file)
        except (OSError, ValueError) as error:
            self.report, self.report_error = None, error

    def text(self, kind):
        try:
            with open(f"{self.base}.{kind}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


class Scenario:
    """The hands of one scenario."""

    def __init__(self, entry, binary, library):
        self.entry, self.binary, self.nvml = entry, binary, library
        self.dir = tempfile.mkdtemp(prefix="gpu-scenario-")
        os.chmod(self.dir, 0o777)
        self.facts = os.path.join(self.dir, "roles")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPURESID_")}
        self.env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.started, self.checks, self.problems, self.notes = [], [], [], []
        self.row = {"verdict": "-", "low": None, "high": None, "truth": None, "cause": "-", "pid": "-", "code": "-"}
        self.neighbours = []
        self.statuses, self.inner = [], []
        self.baseline = [library.used(i) for i in range(len(library.handles))]

    # Wants.

    def want(self, holds, text):
        if not holds:
            self.problems.append(text)
        return bool(holds)

    def note(self, text):
        self.notes.append(text)

    # Programs.

    def path(self, name):
        return os.path.join(self.dir, name)

    def touch(self, name):
        with open(self.path(name), "w", encoding="ascii"):
            pass

    def role(self, name):
        """The newest process that told this role."""
        found = [f for f in roles.told(self.facts) if f["role"] == name]
        if not found:
            raise AssertionError(f"no process told that it is {name}")
        return found[-1]

    def wait_role(self, name, seconds=60, count=1):
        return roles.wait_role(self.facts, name, seconds, count)[-1]

    def start(self, argv, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.DEVNULL)
        with open(self.path(f"started{len(self.started)}.err"), "wb") as err:
            child = subprocess.Popen(argv, stderr=err, env=options.pop("env", self.env), **options)
        self.started.append(child)
        return child

    def neighbour(self, *orders, device=0):
        """Somebody else with a context, asked through `order`."""
        child = self.start(
            [*LITE, program("neighbour.py"), self.facts, str(device)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
        self.neighbours.append(child)
        self.expect_ok(child)
        for text in orders:
            self.order(child, text)
        return child

    def order(self, child, text):
        child.stdin.write(text + "\n")
        child.stdin.flush()
        self.expect_ok(child)
        if text == "end":
            child.wait(20)

    @staticmethod
    def expect_ok(child):
        answer = child.stdout.readline().strip()
        if answer != "ok":
            raise AssertionError(f"the neighbour answered {answer!r}")

    # The tool.

    def begin(self, argv, *options, before=(), user=None):
        return Check(self, [str(o) for o in options], argv, before, user)

    def check(self, argv, *options, limit=90):
        return self.begin(argv, *options).finish(limit)

    def status(self, *options, user=None):
        extra = {"user": user, "group": user, "extra_groups": []} if user is not None else {}
        answer = subprocess.run(
            [self.binary, "--json", *options], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=self.env, check=False, **extra
        )
        if answer.returncode != 0:
            raise AssertionError(f"gpuresid --json ended with {answer.returncode}: {answer.stderr.decode(errors='replace')}")
        value = json.loads(answer.stdout)
        self.statuses.append(value)
        return value

    # Judging a report.

    def device(self, check, index=0):
        if check.report is None:
            raise AssertionError(f"no report: {getattr(check, 'report_error', None)}")
        found = [d for d in check.report["devices"] if d["index"] == index]
        if len(found) != 1:
            raise AssertionError(f"the report has {len(found)} devices with index {index}")
        return found[0]

    def truth(self, *facts, index=0):
        """What NVML lists for these processes now."""
        listed = self.nvml.listed(index)
        return sum(listed.get(f["pid"]) or 0 for f in facts)

    def judge(self, check, verdict, code, index=0):
        """Verdict of run and device, exit code here and in the report; fills the row."""
        device = self.device(check, index)
        self.row.update(
            verdict=check.report["verdict"], code=check.code,
            low=device["charged_residue_bytes"], high=device["charged_residue_max_bytes"],
        )
        allowed = verdict if isinstance(verdict, (tuple, set, list)) else (verdict,)
        self.want(device["verdict"] in allowed, f"device verdict is {device['verdict']}, not {'/'.join(allowed)}")
        if len(check.report["devices"]) == 1:
            self.want(check.report["verdict"] in allowed, f"verdict is {check.report['verdict']}, not {'/'.join(allowed)}")
        codes = code if isinstance(code, (tuple, set, list)) else (code,)
        self.want(check.code in codes, f"exit code is {check.code}, not {'/'.join(map(str, codes))}")
        reported = check.report["exit_code"]
        here = 128 - check.code if check.code < 0 else check.code
        self.want(reported == here, f"the report says exit code {reported}, the process ended with {here}")
        low, high = device["charged_residue_bytes"], device["charged_residue_max_bytes"]
        self.want(high is None or high >= low, f"high {high} is below low {low}")
        return device

    def clean(self, check, code=0, index=0):
        """Clean, nothing charged, and NVML agrees that nothing of the run is left."""
        device = self.judge(check, "clean", code, index)
        self.want(device["charged_residue_bytes"] <= 16 * MIB, f"charged {device['charged_residue_bytes']} bytes")
        mine = [f for f in roles.told(self.facts) if f["role"] in ("holder", "ghost", "zombie")]
        self.row["truth"] = self.truth(*mine, index=index)
        self.want(self.row["truth"] == 0, f"NVML still lists {self.row['truth']} bytes of the run: the scenario is wrong")
        return device

    def residue(self, check, causes, holder_role="holder", listed_role=None, index=0, code=121, exact=True):
        """Residue, charged with what NVML lists for the ghost or the holder; the holder is named with its cause."""
        device = self.judge(check, "residue", code, index)
        fact = self.role(holder_role)
        true = self.truth(self.role(listed_role or holder_role), index=index)
        self.row["truth"] = true
        self.want(true > 0, "NVML lists nothing for the holder: the scenario is wrong")
        low = device["charged_residue_bytes"]
        if exact:
            self.want(abs(low - true) <= SLACK, f"charged {low / MIB:.0f} MiB, NVML lists {true / MIB:.0f} MiB")
        rate = device["residue_rate"]
        self.want(rate is None or 0 <= rate <= 1, f"residue_rate is {rate}")
        self.named(check.report, fact, causes)
        return device

    def named(self, report, fact, causes, lineage="own"):
        """The holder with this role stands in the report, with one of the causes, a reason, and a place in the advice."""
        found = [h for h in report["holders"] if h["pid"] == fact["pid"]]
        pids = [h["pid"] for h in report["holders"]]
        self.row["pid"] = "yes" if found else "NO"
        if not self.want(found, f"holder {fact['pid']} is not named; named are {pids}"):
            return None
        one = found[0]
        self.row["cause"] = one["cause"]
        causes = (causes,) if isinstance(causes, str) else causes
        self.want(one["cause"] in causes, f"cause is {one['cause']}, not {'/'.join(causes)}")
        if lineage:
            self.want(one["lineage"] == lineage, f"lineage is {one['lineage']}, not {lineage}")
        self.want(one["why"], "the holder has no reasons (why)")
        self.want(one["start_ticks"] == fact["start_ticks"], f"start_ticks {one['start_ticks']} is not {fact['start_ticks']}")
        if lineage == "own":
            commands = [a["command"] or "" for a in report["advice"]]
            # Where several are to be ended, one command stands for all, and says for whom.
            commands += [a["why"] for a in report["advice"] if (a["command"] or "").startswith("gpuresid reclaim")]
            self.want(
                any(re.search(rf"\b{fact['pid']}\b", c) for c in commands), f"no advice names {fact['pid']}: {commands}"
            )
        return one

    def says(self, report, pattern, what):
        """Somewhere among reasons, findings, advice and gaps the report says this."""
        text = json.dumps([report.get(k) for k in ("holders", "ghosts", "findings", "advice", "gaps", "devices")])
        return self.want(re.search(pattern, text, re.I), f"the report does not say {what} (/{pattern}/)")

    def finding(self, report, kind):
        kinds = [f["kind"] for f in report["findings"]]
        return self.want(kind in kinds, f"no finding {kind}, only {kinds}")

    def not_blamed(self, report, *facts):
        """These are neither charged nor named in a command to paste."""
        for fact in facts:
            blamed = [h for h in report["holders"] if h["pid"] == fact["pid"] and h["lineage"] == "own"]
            self.want(not blamed, f"{fact['pid']} ({fact['role']}) is taken for own")
            for advice in report["advice"]:
                self.want(
                    not re.search(rf"\bkill\b.*\b{fact['pid']}\b", advice["command"] or ""),
                    f"the advice is to end the innocent {fact['pid']}: {advice['command']}",
                )

    # Getting memory back: the negative control.

    def clean_up(self, check_or_report, *role_names, index=0, alone=None):
        """Follows the advised kill commands for the told processes (others are never touched), ends by PID what is
        left after that, and wants the next look to be clean."""
        report = check_or_report.report if isinstance(check_or_report, Check) else check_or_report
        facts = [f for f in roles.told(self.facts) if f["role"] in (role_names or ("holder",))]
        advised = False
        for advice in report["advice"]:
            sent = [self.obey(part.strip(), facts) for part in re.split(r"&&|;", advice["command"] or "")]
            if any(sent):
                advised = True
                if self.gone(facts, 4):
                    break
        if not self.gone(facts, 0.5):
            self.note("ended by PID" if not advised else "advice did not end it")
            self.want(not advised, f"the advised kill did not end {[f['pid'] for f in facts if roles.alive(f)]}")
            for fact in facts:
                roles.send(fact)
        elif advised:
            self.note("ended as advised")
        self.want(self.gone(facts, 20), "the holder could not be ended")
        self.after(index, alone)

    @staticmethod
    def obey(command, facts):
        """Sends what a `kill` line says, to told processes alone; whether anything was sent."""
        kill = re.fullmatch(r"(?:sudo )?kill(?: -(?:s )?(?:SIG)?(\w+))?((?: \d+)+)", command)
        if not kill:
            return False
        name = (kill[1] or "TERM").upper()
        number = int(name) if name.isdigit() else getattr(signal, f"SIG{name}")
        pids = set(map(int, kill[2].split()))
        return any([roles.send(f, number) for f in facts if f["pid"] in pids])

    def gone(self, facts, seconds):
        try:
            roles.wait_until(lambda: not any(roles.alive(f) for f in facts), seconds, "their end")
        except TimeoutError:
            return False
        return True

    def after(self, index=0, alone=None):
        """The next look: nothing of the run among holders and ghosts, and used is where it was if we are alone."""
        mine = {f["pid"] for f in roles.told(self.facts) if f["role"] in ("holder", "ghost", "zombie")}
        try:
            roles.wait_until(lambda: not mine & set(self.nvml.listed(index)), 15, "NVML to forget the run")
        except TimeoutError as error:
            self.want(False, str(error))
        value = self.status()
        left = [h["pid"] for h in value["holders"] if h["pid"] in mine] + [g["pid"] for g in value["ghosts"] if g["pid"] in mine]
        self.want(not left, f"after the clean-up the next look still names {left}")
        if alone if alone is not None else not self.entry["pool"]:
            self.back_to_baseline()

    def back_to_baseline(self, seconds=10):
        for index, used in enumerate(self.baseline):
            try:
                roles.wait_until(lambda i=index, u=used: self.nvml.used(i) <= u + 8 * MIB, seconds, f"GPU {index} to be back at {used >> 20} MiB")
            except TimeoutError as error:
                self.want(False, f"{error}; it uses {self.nvml.used(index) >> 20} MiB")

    # The end.

    def tear_down(self):
        """Ends everything that was started or told; never anything else."""
        for child in self.started:
            if child.poll() is None:
                child.kill()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                self.problems.append(f"{child.args} (PID {child.pid}) could not be ended")
            for pipe in (child.stdin, child.stdout):
                if pipe:
                    try:
                        pipe.close()
                    except OSError:
                        pass
        facts = roles.told(self.facts)
        for fact in facts:
            roles.send(fact)
        if not self.gone([f for f in facts if f["pid_ns"] == roles.namespace()], 30):
            self.problems.append("a process of the scenario could not be ended")

    def forget(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def run_one(entry, binary, library):
    """One scenario with its tear-down: the finished row."""
    began = time.monotonic()
    scenario = Scenario(entry, binary, library)
    skipped = None
    try:
        entry["run"](scenario)
    except Skip as reason:
        skipped = str(reason)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        scenario.problems.append(f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})")
    finally:
        scenario.tear_down()
    if skipped is None and not entry["pool"]:
        scenario.back_to_baseline()
    scenario.result = "skip" if skipped else "FAIL" if scenario.problems else "ok"
    if skipped:
        scenario.notes.append(skipped)
    scenario.seconds = time.monotonic() - began
    return scenario
