//! `check --cleanup`: after the verdict, nothing of the run outlives it.
//!
//! We are the subreaper, so everybody of the run is below us, whatever it did to its session, its parents or its name;
//! descent is the proof here, and no NVIDIA file is asked for. TERM, the grace, KILL, one process at a time through
//! [`crate::act::signal`]; whoever is born meanwhile is caught in the next round; `waitid` saying ECHILD is the proof of
//! the end.
//!
//! Whoever keeps people's terminals or windows is left alone, and with it all that runs in these: the run may have started
//! what somebody sits at now.
//!
//! Where others are below us too (children of the process that became us by exec, everybody of a container whose first
//! process we are) descent alone proves nothing: there only those are ended that were seen below the command or carry
//! this run's marker.

use super::{outcome::Outcome, reap::Reaper, session::Session, signal_child::Running, signals::ends_us};
use crate::{
    act::{
        guard::Guard,
        refusal::{Never, Refusal},
        signal::{self, Aim, Grounds, Target},
    },
    model::{
        Ancestor, CleanedDevice, Cleanup, Ended, LeftAlone, Look, ProcId, Process, ProcessState, Trace, Uuid,
        marker_names,
    },
    observe::driver::Extras,
    text::name::Name,
};
use rustix::process::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Whoever does not end of SIGKILL within this time is stuck in the kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Between two rounds.
const ROUND: Duration = Duration::from_millis(20);
/// How long memory is looked for after nobody lives any more.
const LOOKS: Duration = Duration::from_secs(5);
/// Less than this is jitter.
const JITTER: u64 = 16 << 20;

/// What is left in our hands after the verdict.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) reaper: Reaper,
    pub(super) running: Running,
}

/// One who is to end. It is held by a pidfd for the moment of a signal only: there may be more of them than descriptors.
struct One {
    command: String,
    sent: Vec<Signal>,
    /// Why the last signal could not be sent. The next round tries again.
    trouble: Option<String>,
}

impl Session {
    /// Ends everybody of the run who still lives. `selected`: the devices to look at afterwards.
    pub fn clean_up(&mut self, outcome: &mut Outcome, selected: &[Uuid], grace: Duration) -> Cleanup {
        let start = Instant::now();
        let mut work = match Work::new(self, outcome) {
            Ok(work) => work,
            Err(error) => {
                let nothing_lives = outcome.launch.all_gone == Some(true);
                let why = format!("the clean-up could not begin: {error:#}");
                let left = outcome.launch.survivors.iter();
                let left_alone = left.map(|id| LeftAlone { pid: id.pid, command: None, why: why.clone() }).collect();
                return Cleanup { ended: Vec::new(), left_alone, nothing_lives, seconds: 0.0, devices: Vec::new() };
            }
        };
        let mut kill_at = start + grace;
        loop {
            work.rest.reaper.reap(&mut work.rest.running);
            if work.nothing_lives(self) {
                break;
            }
            let now = Instant::now();
            if now >= kill_at + KILL_PATIENCE {
                break;
            }
            if !work.round(self, now >= kill_at) {
                break;
            }
            self.inbox.wait(now + ROUND);
            // Who presses Ctrl-C now does not want to wait for the grace.
            while let Some(caught) = self.inbox.signals.pop_front() {
                if ends_us(caught.signal) {
                    kill_at = kill_at.min(Instant::now());
                }
            }
        }
        let nothing_lives = work.nothing_lives(self);
        let (ended, left_alone) = work.finish(self, nothing_lives);
        let devices = self.looks_after(outcome, selected, nothing_lives && !ended.is_empty());
        Cleanup { ended, left_alone, nothing_lives, seconds: start.elapsed().as_secs_f64(), devices }
    }

    /// Reads the devices until what was used before the run is all that is used, or for a while.
    fn looks_after(&mut self, outcome: &Outcome, selected: &[Uuid], wait: bool) -> Vec<CleanedDevice> {
        let until = Instant::now() + LOOKS;
        let mut last: Option<Look> = None;
        loop {
            self.inbox.look = None;
            self.looker().request_look(selected, Extras::default());
            while self.inbox.look.is_none() && Instant::now() < until {
                self.inbox.wait(until);
            }
            match self.inbox.look.take() {
                Some(Ok(look)) => last = Some(look),
                Some(Err(_)) | None => break,
            }
            let back = |uuid: &Uuid| {
                let then = outcome.before.device(uuid).and_then(|d| d.look.used());
                let now = last.as_ref().and_then(|l| l.devices.iter().find(|d| d.uuid == *uuid)).and_then(|d| d.used());
                then.zip(now).is_none_or(|(then, now)| now.0 <= then.0 + JITTER)
            };
            if !wait || selected.iter().all(back) || Instant::now() >= until {
                break;
            }
            self.inbox.wait(Instant::now() + ROUND);
        }
        let after = |uuid: &Uuid| last.as_ref()?.devices.iter().find(|d| d.uuid == *uuid)?.used();
        let one = |device: &crate::model::Device| CleanedDevice {
            uuid: device.identity.uuid.clone(),
            used_before_bytes: device.look.used(),
            used_after_bytes: after(&device.identity.uuid),
        };
        outcome.after.devices.iter().map(one).collect()
    }
}

/// The state of one clean-up.
struct Work<'a> {
    rest: &'a mut Rest,
    trace: &'a Trace,
    run_id: &'a str,
    command: Option<ProcId>,
    root: ProcId,
    guard: Guard,
    ones: BTreeMap<ProcId, One>,
    refused: BTreeMap<ProcId, LeftAlone>,
    /// Those of them that people's sessions hang on.
    keepers: BTreeSet<ProcId>,
}

impl<'a> Work<'a> {
    fn new(session: &Session, outcome: &'a mut Outcome) -> anyhow::Result<Self> {
        let guard = Guard::new(&session.reader, &session.looker().tool_processes())?.seeing(&outcome.after);
        guard.may_signal_at_all().map_err(|never| anyhow::anyhow!("{never}"))?;
        Ok(Self {
            rest: &mut outcome.rest,
            trace: &outcome.trace,
            run_id: &outcome.launch.run_id,
            command: outcome.launch.command.as_ref().map(|c| c.id),
            root: session.myself.id,
            guard,
            ones: BTreeMap::new(),
            refused: BTreeMap::new(),
            keepers: BTreeSet::new(),
        })
    }

    fn nothing_lives(&self, session: &Session) -> bool {
        self.rest.reaper.all_gone(&session.looker().tool_processes())
    }

    /// Signals everybody who is there now; whether there is anybody to wait for.
    fn round(&mut self, session: &Session, kill: bool) -> bool {
        let mut below = session.reader.descendants(self.root.pid);
        // Who starts others goes before those.
        below.sort_by_key(|p| (p.ancestors.len(), p.id));
        self.guard = self.guard.among(below.iter().map(|p| p.id).collect(), true);
        below.retain(|process| !self.refused.contains_key(&process.id));
        let mut anybody = false;
        for process in below {
            if !self.is_of_the_run(&process, session) {
                self.refuse(&process, "it is not known to be of the run: gpuresid had children before the command");
                continue;
            }
            if let Some(keeper) = process.ancestors.iter().find(|a| self.keepers.contains(&a.id)) {
                self.refuse(&process, &format!("it runs in what PID {} keeps open for people", keeper.id));
                continue;
            }
            self.signal(session, &process, kill);
            anybody |= !self.refused.contains_key(&process.id);
        }
        // Nobody shows, yet somebody lives: a process between two readings, or a zombie of somebody else.
        anybody || self.refused.is_empty()
    }

    fn signal(&mut self, session: &Session, process: &Process, kill: bool) {
        let one = self.ones.entry(process.id).or_insert_with(|| One {
            command: Name::from(process).whole(),
            sent: Vec::new(),
            trouble: None,
        });
        let mut wanted = Vec::new();
        if !one.sent.contains(&Signal::TERM) && !kill {
            wanted.push(Signal::TERM);
        }
        if kill && !one.sent.contains(&Signal::KILL) {
            wanted.push(Signal::KILL);
        } else if process.state == ProcessState::Stopped && !one.sent.contains(&Signal::CONT) {
            wanted.push(Signal::CONT);
        }
        if wanted.is_empty() {
            return;
        }
        let grounds = Grounds::DescendantOf(self.root);
        let aim = match Aim::take(Target { id: process.id, uid: process.uid.unwrap_or(u32::MAX), grounds }) {
            Ok(aim) => aim,
            Err(refusal) => {
                one.trouble = Some(refusal.to_string());
                return;
            }
        };
        for signal in wanted {
            match aim.send(&session.reader, &self.guard, signal) {
                Ok(_) => {
                    one.sent.push(signal);
                    one.trouble = None;
                }
                Err(Refusal::Gone | Refusal::Reused(_)) => return,
                // It may go better in the next round.
                Err(refusal @ (Refusal::NotSeen(_) | Refusal::Failed(_) | Refusal::Never(Never::UnreadableFiles))) => {
                    one.trouble = Some(refusal.to_string());
                    return;
                }
                Err(refusal) => {
                    if matches!(&refusal, Refusal::Never(never) if never.keeps_sessions()) {
                        self.keepers.insert(process.id);
                        self.ones.remove(&process.id);
                    }
                    self.refuse(process, &refusal.to_string());
                    return;
                }
            }
        }
    }

    fn refuse(&mut self, process: &Process, why: &str) {
        self.refused.entry(process.id).or_insert_with(|| LeftAlone {
            pid: process.id.pid,
            command: Some(Name::from(process).whole()),
            why: why.into(),
        });
    }

    /// The rule of the module's last paragraph.
    fn is_of_the_run(&self, process: &Process, session: &Session) -> bool {
        let tool = session.looker().tool_processes();
        if tool.contains(&process.id) || process.ancestors.iter().any(|a| tool.contains(&a.id)) {
            return false;
        }
        if !self.rest.reaper.has_company() {
            return true;
        }
        let Some(command) = self.command else { return false };
        let below_found = |chain: &[Ancestor]| chain.iter().any(|a| self.ones.contains_key(&a.id));
        process.id == command
            || self.trace.was_below(command, process.id, &process.ancestors)
            || below_found(&process.ancestors)
            || self.trace.seen(process.id).is_some_and(|seen| below_found(&seen.ancestors))
            || process.marker.as_deref().is_some_and(|m| marker_names(m, self.run_id))
    }

    /// Who has ended, and who has not: only an end that was seen is one.
    fn finish(self, session: &Session, nothing_lives: bool) -> (Vec<Ended>, Vec<LeftAlone>) {
        let mut left: BTreeMap<ProcId, LeftAlone> = self.refused;
        let mut ended = Vec::new();
        for (id, one) in self.ones {
            if nothing_lives || has_ended(session, id) {
                left.remove(&id);
                if !one.sent.is_empty() {
                    let sent = one.sent.into_iter().map(signal::name).collect();
                    ended.push(Ended { pid: id.pid, start_ticks: id.start_ticks, command: one.command, sent });
                }
                continue;
            }
            let why = one.trouble.unwrap_or_else(|| {
                if one.sent.contains(&Signal::KILL) {
                    "SIGKILL does not end it: it is stuck in the kernel, or belongs to another user now".into()
                } else {
                    "it still runs: SIGKILL could not be sent".into()
                }
            });
            left.entry(id).or_insert_with(|| LeftAlone { pid: id.pid, command: Some(one.command), why });
        }
        (ended, left.into_values().collect())
    }
}

/// What cannot be looked at has not ended.
fn has_ended(session: &Session, id: ProcId) -> bool {
    let ended = |now: Process| now.is_zombie() || now.state == ProcessState::Dead;
    session.reader.find(id).is_ok_and(|found| found.is_none_or(ended))
}
