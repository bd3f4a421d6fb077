//! Rounds of chance: orphans, copies behind ghosts and stopped ones that ought to end, among neighbours, working agents and
//! lookalikes that must not get a signal, asked for in each way that there is. Everything that should come back does, and
//! nobody else is touched.
//!
//! `TRIAL_ROUNDS` sets how many (500 before a release), `TRIAL_SEED` where to begin: a failure names its seed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use std::fs;
use support::{Finished, Records, Rig, Running, alive, marker_of_an_ended_run, start_ticks, wait_until};

/// A small generator; what matters is that a seed gives the same round again.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a process of others wrote down of the signals that it got.
const SIGNALS: &str = "\
import os, signal, sys
log = sys.argv[1]
def note(number, _):
    with open(log, 'a') as f:
        f.write(f'{os.getpid()} {number}\\n')
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT, signal.SIGUSR1):
    signal.signal(number, note)
files = [os.open(path, os.O_RDWR) for path in sys.argv[3:]]
with open(sys.argv[2] + '.new', 'w') as f:
    f.write(str(os.getpid()))
os.replace(f.name, sys.argv[2])
while os.path.exists(os.path.dirname(log)):
    signal.pause()
";

/// The way in which `reclaim` is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// `--orphans`: a person, who ends what seems left over.
    Orphans,
    /// `--pid`: a person, who names them.
    Pids,
    /// `--ci`: the hook of a job.
    Ci,
    /// `--unattended`: a timer, for what leave was given for.
    Unattended,
}

/// The job of which we are the hook.
const JOB: (&str, &str) = ("CI_JOB_ID", "4711");

struct Round {
    rig: Rig,
    chance: Chance,
    way: Way,
    records: Option<Records>,
    /// Others: they must live at the end.
    others: Vec<(String, Running)>,
    /// Left overs: they must be gone.
    left: Vec<String>,
    number: u32,
}

impl Round {
    fn name(&mut self, kind: &str) -> String {
        self.number += 1;
        format!("{kind}{}", self.number)
    }

    fn start_with(&mut self, verbs: &str, environment: &[(&str, &str)]) -> Running {
        let mut command = self.rig.beside(&self.rig.program(verbs));
        command.envs(environment.iter().copied());
        self.rig.launch(command)
    }

    /// Options of a check that records what it leaves.
    fn recorded(&self, leave: &str) -> String {
        let records = self.records.as_ref().map(Records::option).unwrap_or_default();
        format!("--settle 300ms {leave} {records}")
    }

    fn start(&mut self, verbs: &str, marker: Option<&str>) -> Running {
        let program = self.rig.program(verbs);
        match marker {
            Some(marker) => self.rig.start_marked(&program, marker),
            None => self.rig.start_of(&program),
        }
    }

    /// Somebody else: a monitor that notes its signals, a training, a nohup one, one with a living run's marker, the
    /// command of a check that was killed, the worker of an agent that a check left running.
    fn add_other(&mut self) {
        let name = self.name("other");
        let gib = 1 + self.chance.below(4);
        match self.chance.below(if self.way == Way::Orphans { 7 } else { 9 }) {
            0 => {
                let (log, dev) = (self.rig.path("signals"), self.rig.dev());
                let mut argv: Vec<std::ffi::OsString> = vec!["python3".into(), "-c".into(), SIGNALS.into(), log.into()];
                argv.push(self.rig.path(&name).into());
                argv.extend(["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| dev.join(node).into_os_string()));
                let running = self.rig.start_of(&argv);
                self.others.push((name, running));
            }
            1 => {
                let running = self
                    .start(&format!("daemonize-twice {{ alloc 0 {gib}GiB ready {name} hold }} wait-file {name}"), None);
                self.others.push((name, running));
            }
            2 => {
                let (boot, myself) = (&marker_of_an_ended_run()[..8], std::process::id());
                let living = format!("{boot}-{myself}-{}-4194306", start_ticks(myself));
                let running = self.start(&format!("alloc 0 {gib}GiB ready {name} hold"), Some(&living));
                self.others.push((name, running));
            }
            3 => {
                // A check that was killed, as the kernel does when memory is short: the command goes on.
                let check = self.rig.spawn_check("", &format!("alloc 0 {gib}GiB ready {name} hold"));
                self.rig.wait_for(&name);
                check.signal(Signal::KILL);
                self.others.push((name, check));
            }
            4 => {
                let verbs = format!("daemonize-twice {{ supervise 1 {{ alloc 0 {gib}GiB ready {name} hold }} }}");
                let running = self.start(&verbs, Some(&marker_of_an_ended_run()));
                self.others.push((name, running));
            }
            5 => {
                let running = self.start(&format!("rename left alloc 0 {gib}GiB ready {name} hold"), None);
                self.others.push((name, running));
            }
            6 => {
                // A rank that trains on without its agent.
                let rank = [("TORCHELASTIC_RUN_ID", "none"), ("RANK", "0"), ("LOCAL_RANK", "0")];
                let verbs = format!("daemonize-twice {{ alloc 0 {gib}GiB ready {name} hold }} wait-file {name}");
                let running = self.start_with(&verbs, &rank);
                self.others.push((name, running));
            }
            7 => {
                // It looks left over to a person, who did not name it, and no leave was given.
                let options = self.recorded("");
                let verbs = format!("daemonize-twice {{ alloc 0 {gib}GiB ready {name} hold }} wait-file {name}");
                let running = self.rig.spawn_check(&options, &verbs);
                self.others.push((name, running));
            }
            _ => {
                // Of a job whose number begins like ours, of one that opted out, of a run with leave that goes on.
                let verbs = format!("daemonize-twice {{ alloc 0 {gib}GiB ready {name} hold }} wait-file {name}");
                let running = match self.chance.below(3) {
                    0 => self.start_with(&verbs, &[(JOB.0, "47110")]),
                    1 => self.start_with(&verbs, &[(JOB.0, "")]),
                    _ => {
                        let options = self.recorded("--leave");
                        self.rig.spawn_check(&options, &format!("alloc 0 {gib}GiB ready {name} hold"))
                    }
                };
                self.others.push((name, running));
            }
        }
    }

    /// Somebody whose run has ended.
    fn add_left(&mut self) {
        let name = self.name("left");
        let gib = 1 + self.chance.below(4);
        let ignore = if self.chance.one_in(4) { "ignore TERM " } else { "" };
        let marker = marker_of_an_ended_run();
        let verbs = match self.chance.below(4) {
            0 => format!("alloc 0 {gib}GiB sleep 0.1 fork-and-exit {ignore}ready {name} hold"),
            1 => format!("{ignore}alloc 0 {gib}GiB ready {name} stop-self hold"),
            2 => format!("{ignore}alloc 0 {gib}GiB exit-main-thread ready {name} hold"),
            _ => format!("rename left {ignore}alloc 0 {gib}GiB ready {name} hold"),
        };
        let all = format!("daemonize-twice {{ {verbs} }}");
        match self.way {
            Way::Orphans | Way::Pids => {
                self.start(&all, Some(&marker)).wait().expect_code(0);
            }
            Way::Ci => {
                self.start_with(&all, &[JOB]).wait().expect_code(0);
            }
            Way::Unattended => {
                let options = self.recorded("--leave");
                self.rig.check(&options, &format!("{all} wait-file {name}")).expect_code(121);
            }
        }
        self.left.push(name);
    }

    /// Asks in the round's way.
    fn reclaim(&self, left: &[u32]) -> Finished {
        let named: Vec<String> = left.iter().map(ToString::to_string).collect();
        let whom = match self.way {
            Way::Orphans => "--orphans".into(),
            Way::Pids => format!("--pid {}", named.join(",")),
            Way::Ci => "--ci".into(),
            Way::Unattended => {
                format!("--unattended --all-users {}", self.records.as_ref().map(Records::option).unwrap_or_default())
            }
        };
        let line = format!("reclaim {whom} --grace 300ms --force --yes --json --settle 10s");
        let mut command = self.rig.gpuresid(line.split_whitespace());
        command.env_remove("RUNNER_TRACKING_ID").env_remove("JENKINS_NODE_COOKIE").env(JOB.0, JOB.1);
        self.rig.launch(command).wait()
    }
}

fn play(seed: u64) {
    let rig = Rig::new();
    let mut chance = Chance(seed);
    let ways = [Way::Orphans, Way::Pids, Way::Ci, Way::Unattended];
    let way = ways[usize::try_from(chance.below(4)).unwrap()];
    let records = if way == Way::Orphans { None } else { Records::new() };
    if way == Way::Unattended && records.is_none() {
        return;
    }
    let mut round = Round { rig, chance, way, records, others: vec![], left: vec![], number: 0 };
    for _ in 0..1 + round.chance.below(3) {
        round.add_other();
    }
    let others: Vec<u32> = round.others.iter().map(|(name, _)| round.rig.wait_for(name)).collect();
    let before = round.rig.used(0);
    for _ in 0..1 + round.chance.below(3) {
        round.add_left();
    }
    let left: Vec<u32> = round.left.iter().map(|name| round.rig.wait_for(name)).collect();
    // Everything has taken its memory before it is counted; the stopped ones have stopped.
    wait_until("everybody to be listed", || round.rig.used(0) > before + (left.len() as u64) * (1 << 30));
    let end = round.reclaim(&left);
    let told = format!("TRIAL_SEED={seed} {way:?}\n{}\n{}", end.stdout, end.stderr);
    assert_eq!(end.code, Some(0), "{told}");
    for pid in &left {
        assert!(!alive(*pid), "PID {pid} was to end\n{told}");
    }
    for pid in &others {
        assert!(alive(*pid), "PID {pid} of others has ended\n{told}");
        assert!(
            !end.stderr.contains(&format!("PID {pid} (")) || !sent(&end.stderr, *pid),
            "PID {pid} got a signal\n{told}"
        );
    }
    assert!(
        !round.rig.path("signals").exists(),
        "others got signals: {:?}\n{told}",
        fs::read_to_string(round.rig.path("signals"))
    );
    // All that the left overs had, and not a byte of the others'.
    assert_eq!(round.rig.used(0), before, "{told}");
}

fn sent(log: &str, pid: u32) -> bool {
    log.lines().any(|l| l.contains(&format!("PID {pid} (")) && l.contains(" sent;"))
}

#[test]
fn what_should_come_back_does_and_nobody_else_is_touched() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, rounds) = (number("TRIAL_SEED").unwrap_or(1), number("TRIAL_ROUNDS").unwrap_or(8));
    for seed in first..first + rounds {
        // Stands above what broke.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("TRIAL_SEED={seed}\n").as_bytes());
        play(seed);
    }
}
