//! Carries a plan out: whoever would start others again first, then the holders. Each signal goes through
//! [`super::signal`], which looks again; each decision is a line of log.

use super::{
    guard::Guard,
    plan::{Allowed, Plan, Step},
    refusal::Refusal,
    signal::{self, Aim, Grounds},
};
use crate::{
    model::{ProcId, Process, ProcessState, ReclaimStep, Role, StepOutcome},
    observe::proc::{ProcReader, ticks_now},
    text,
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

impl Hands<'_> {
    /// Does it; what became of each step is written into it.
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

    /// TERM, grace, KILL for these steps together.
    fn end(&self, plan: &mut Plan, places: &[usize]) {
        let mut turns: Vec<Turn> = places.iter().map(|place| Turn { place: *place, aim: None }).collect();
        for turn in &mut turns {
            if let Some(step) = plan.steps.get_mut(turn.place) {
                turn.aim = self.terminate(step);
            }
        }
        self.wait(&turns, self.allowed.grace, |_| true);
        // Before SIGKILL, which shows as the same until it is taken.
        let leaving: BTreeSet<ProcId> =
            turns.iter().filter_map(|t| Some(t.aim.as_ref()?.target.id)).filter(|id| self.is_leaving(*id)).collect();
        if self.allowed.force {
            for turn in &mut turns {
                if let (Some(aim), Some(step)) = (&turn.aim, plan.steps.get_mut(turn.place))
                    && !aim.has_ended()
                {
                    self.send(step, aim, Signal::KILL);
                    // What was not sent is not waited for.
                    turn.aim.take_if(|_| step.shown.outcome.is_some());
                }
            }
            self.wait(&turns, KILL_PATIENCE, |_| true);
        }
        self.wait(&turns, EXIT_PATIENCE, |id| leaving.contains(&id));
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
                    "SIGKILL does not end it: it is stuck in the kernel".to_owned()
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

    /// Until all have ended or the time is over.
    fn wait(&self, turns: &[Turn], patience: Duration, counts: impl Fn(ProcId) -> bool) {
        let until = Instant::now() + patience;
        let lives = |turn: &Turn| turn.aim.as_ref().is_some_and(|aim| !aim.has_ended() && counts(aim.target.id));
        while turns.iter().any(lives) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }

    /// It is exiting: no further signal makes that faster.
    fn is_leaving(&self, id: ProcId) -> bool {
        self.reader.find(id).ok().flatten().is_some_and(|process| process.dying)
    }

    fn say(&self, step: &ReclaimStep, what: &str) {
        (self.log)(&format!("PID {} ({}): {what}", step.pid, text::shorten(&step.command, 80)));
    }
}

fn places(plan: &Plan, first: bool) -> Vec<usize> {
    plan.steps.iter().enumerate().filter(|(_, s)| s.first == first).map(|(place, _)| place).collect()
}
