//! Carries a plan out: whoever would start others again first, then the holders. Each signal goes through
//! [`super::signal`], which looks again; each decision is a line of log.

use super::{
    guard::Guard,
    plan::{Allowed, Plan, Step},
    signal::{self, Aim, Grounds, Refusal, Target},
};
use crate::{
    model::{LeftAlone, ProcId, Process, ProcessState, ReclaimStep, Role, StepOutcome},
    observe::proc::{ProcReader, ticks_now},
    text::{self, name::Name},
};
use rustix::process::Signal;
use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

/// A process that does not end of SIGKILL is stuck in the kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// So long the kernel may take to tear a process down that has obeyed SIGTERM (much pinned host memory).
const EXIT_PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// What a supervisor starts while it ends is looked for so often.
const WATCH: Duration = Duration::from_millis(50);

/// The means.
pub struct Hands<'a> {
    /// To look.
    pub reader: &'a ProcReader,
    /// Who is never touched.
    pub guard: &'a Guard,
    /// What the user allows.
    pub allowed: Allowed,
    /// Takes a line of log.
    pub log: &'a dyn Fn(&str),
}

/// Who is being ended.
struct Turn {
    place: usize,
    aim: Option<Aim>,
}

/// The moment before the first signal, and who stood below the supervisors then. A process that the list missed is too
/// old by its start; one that was started within the same tick of the clock stands in the list, or not.
struct Before {
    ticks: Option<u64>,
    below: BTreeSet<ProcId>,
}

impl Before {
    fn is_older_than(&self, id: ProcId) -> bool {
        self.ticks.is_some_and(|ticks| id.start_ticks >= ticks) && !self.below.contains(&id)
    }
}

impl Hands<'_> {
    /// Does it; what became of each step is written into it. Workers that a supervisor started meanwhile are added.
    pub fn carry_out(&self, plan: &mut Plan) {
        plan.began = ticks_now();
        let first: Vec<usize> = places(plan, true);
        let supervised: BTreeSet<ProcId> =
            plan.steps.iter().filter(|s| s.shown.role == Role::Supervisor).map(|s| s.target.id).collect();
        self.end(plan, &first);
        let living: Vec<ProcId> = first
            .iter()
            .filter_map(|place| plan.steps.get(*place))
            .filter(|s| matches!(s.shown.outcome, Some(StepOutcome::Lives)) && supervised.contains(&s.target.id))
            .map(|s| s.target.id)
            .collect();
        let mut second = places(plan, false);
        second.retain(|place| {
            let Some(step) = plan.steps.get_mut(*place) else { return false };
            let Some(above) = step.ancestors.iter().find(|a| living.contains(a)) else { return true };
            let why = format!("PID {above}, which would start it again, still lives");
            self.say(&step.shown, &format!("left alone: {why}"));
            (step.shown.outcome, step.shown.outcome_why) = (Some(StepOutcome::Refused), Some(why));
            false
        });
        self.end(plan, &second);
    }

    /// Who is below these now, before anybody is signalled.
    fn before(&self, plan: &Plan, places: &[usize]) -> Before {
        let ticks = ticks_now();
        let supervisors = places.iter().filter_map(|place| plan.steps.get(*place)).map(|s| s.target);
        let below = supervisors
            .filter(|target| target.grounds == Grounds::Supervisor)
            .flat_map(|target| self.reader.descendants(target.id.pid))
            .map(|process| process.id)
            .collect();
        Before { ticks, below }
    }

    /// TERM, grace, KILL for these steps together.
    fn end(&self, plan: &mut Plan, places: &[usize]) {
        let before = self.before(plan, places);
        let mut turns: Vec<Turn> = places.iter().map(|place| Turn { place: *place, aim: None }).collect();
        for turn in &mut turns {
            if let Some(step) = plan.steps.get_mut(turn.place) {
                turn.aim = self.terminate(step);
            }
        }
        self.wait(plan, &turns, &before, self.allowed.grace, |_| true);
        // Before SIGKILL, which shows as the same until it is taken.
        let leaving: BTreeSet<ProcId> =
            turns.iter().filter_map(|t| Some(t.aim.as_ref()?.target.id)).filter(|id| self.is_leaving(*id)).collect();
        if self.allowed.force {
            for turn in &turns {
                if let (Some(aim), Some(step)) = (&turn.aim, plan.steps.get_mut(turn.place))
                    && !aim.has_ended()
                {
                    self.send(step, aim, Signal::KILL);
                }
            }
            self.wait(plan, &turns, &before, KILL_PATIENCE, |_| true);
        }
        self.wait(plan, &turns, &before, EXIT_PATIENCE, |id| leaving.contains(&id));
        for turn in &turns {
            let (Some(aim), Some(step)) = (&turn.aim, plan.steps.get_mut(turn.place)) else { continue };
            if step.shown.outcome.is_some() {
                continue;
            }
            if aim.has_ended() {
                step.shown.outcome = Some(StepOutcome::Ended);
                self.say(&step.shown, "ended");
            } else {
                let why = if self.allowed.force {
                    "it does not end of SIGKILL: it is stuck in the kernel".to_owned()
                } else {
                    format!("it did not end within {} of TERM", humantime::format_duration(self.allowed.grace))
                };
                self.say(&step.shown, &format!("lives: {why}"));
                (step.shown.outcome, step.shown.outcome_why) = (Some(StepOutcome::Lives), Some(why));
            }
        }
    }

    /// Takes aim and asks it to end; `None` if that is over already.
    fn terminate(&self, step: &mut Step) -> Option<Aim> {
        let aim = match Aim::take(step.target) {
            Ok(aim) => aim,
            Err(refusal) => {
                self.refused(&mut step.shown, &refusal);
                return None;
            }
        };
        let process = self.send(step, &aim, Signal::TERM)?;
        // A stopped process takes the signal only when it may go on.
        if process.state == ProcessState::Stopped && !aim.has_ended() {
            self.send(step, &aim, Signal::CONT);
        }
        Some(aim)
    }

    fn send(&self, step: &mut Step, aim: &Aim, signal: Signal) -> Option<Process> {
        match aim.send(self.reader, self.guard, signal) {
            Ok(process) => {
                let name = signal::name(signal);
                let what = match aim.target.grounds {
                    Grounds::Supervisor => "start time, user, and a holder below it",
                    _ => "start time, user, and an open NVIDIA file",
                };
                self.say(&step.shown, &format!("{name} sent; its {what} were seen at that moment"));
                step.shown.sent.push(name);
                Some(process)
            }
            Err(Refusal::Gone) if !step.shown.sent.is_empty() => None,
            // What was to be ended for the memory has let it go after the first signal.
            Err(Refusal::NoNvidiaFile | Refusal::SupervisesNobody) if !step.shown.sent.is_empty() => {
                self.say(&step.shown, "it lives, but holds no GPU memory any more: left alone");
                step.shown.outcome = Some(StepOutcome::Ended);
                step.shown.outcome_why = Some("it lives, but holds no GPU memory any more".into());
                None
            }
            Err(refusal) => {
                self.refused(&mut step.shown, &refusal);
                None
            }
        }
    }

    fn refused(&self, shown: &mut ReclaimStep, refusal: &Refusal) {
        let gone = *refusal == Refusal::Gone;
        shown.outcome = Some(if gone { StepOutcome::GoneBefore } else { StepOutcome::Refused });
        shown.outcome_why = Some(refusal.to_string());
        self.say(shown, &if gone { "no signal: it has ended".to_owned() } else { format!("no signal: {refusal}") });
    }

    /// Until all have ended or the time is over. Whoever a supervisor starts meanwhile is added to the plan.
    fn wait(
        &self,
        plan: &mut Plan,
        turns: &[Turn],
        before: &Before,
        patience: Duration,
        counts: impl Fn(ProcId) -> bool,
    ) {
        let until = Instant::now() + patience;
        let mut next_watch = Instant::now();
        loop {
            let lives = |aim: &Aim| !aim.has_ended() && counts(aim.target.id);
            let living: Vec<&Turn> = turns.iter().filter(|t| t.aim.as_ref().is_some_and(lives)).collect();
            if living.is_empty() || Instant::now() >= until {
                return;
            }
            if Instant::now() >= next_watch {
                let supervisors: Vec<Target> = living
                    .iter()
                    .filter_map(|t| Some(t.aim.as_ref()?.target))
                    .filter(|t| t.grounds == Grounds::Supervisor)
                    .collect();
                for supervisor in supervisors {
                    self.add_newborn(plan, supervisor, before);
                }
                next_watch = Instant::now() + WATCH;
            }
            thread::sleep(PAUSE);
        }
    }

    /// It is exiting: no further signal makes that faster.
    fn is_leaving(&self, id: ProcId) -> bool {
        self.reader.identify(id.pid).ok().flatten().is_some_and(|p| p.id == id && p.dying)
    }

    /// Holders below a supervisor that it has started since its signal: it is on its way out and will not look after
    /// them. Whoever stood there before, and was not in the plan that the user has seen, is none of them.
    fn add_newborn(&self, plan: &mut Plan, supervisor: Target, before: &Before) {
        for process in self.reader.descendants(supervisor.id.pid) {
            let below = process.ancestors.iter().any(|a| a.id == supervisor.id);
            if !below || process.uid != Some(supervisor.uid) || plan.steps.iter().any(|s| s.target.id == process.id) {
                continue;
            }
            let target = Target { id: process.id, uid: supervisor.uid, grounds: Grounds::Holder };
            let Ok(process) = signal::stands(self.reader, self.guard, &target) else { continue };
            if !before.is_older_than(process.id) {
                self.leave(plan, &process, supervisor);
                continue;
            }
            let shown = ReclaimStep {
                pid: process.id.pid,
                start_ticks: process.id.start_ticks,
                user: process.user.clone().or_else(|| process.uid.map(|u| u.to_string())),
                uid: supervisor.uid,
                command: Name::from(&process).whole(),
                role: Role::Holder,
                cause: None,
                why: vec![format!("PID {} started it while it was being ended", supervisor.id)],
                signals: vec!["TERM".into()],
                gives_back: Vec::new(),
                disturbs: "whoever still uses it".into(),
                restarter: None,
                sent: Vec::new(),
                outcome: None,
                outcome_why: None,
            };
            self.say(&shown, &format!("added to the plan: PID {} started it meanwhile", supervisor.id));
            plan.steps.push(Step {
                shown,
                target,
                first: false,
                ancestors: process.ancestors.iter().map(|a| a.id).collect(),
                argv: process.argv,
            });
        }
    }

    /// Somebody below a supervisor whom the plan never named; told once.
    fn leave(&self, plan: &mut Plan, process: &Process, supervisor: Target) {
        if plan.left_alone.iter().any(|left| left.pid == process.id.pid) {
            return;
        }
        let command = Name::from(process).whole();
        let why = format!("it stood below PID {} before that was ended, and was not in the plan", supervisor.id);
        (self.log)(&format!("PID {} ({}): left alone: {why}", process.id, text::shorten(&command, 80)));
        plan.left_alone.push(LeftAlone { pid: process.id.pid, command: Some(command), why });
    }

    fn say(&self, step: &ReclaimStep, what: &str) {
        (self.log)(&format!("PID {} ({}): {what}", step.pid, text::shorten(&step.command, 80)));
    }
}

fn places(plan: &Plan, first: bool) -> Vec<usize> {
    plan.steps.iter().enumerate().filter(|(_, s)| s.first == first).map(|(place, _)| place).collect()
}
