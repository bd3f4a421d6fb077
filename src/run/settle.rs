//! When is it time to judge? A state machine without IO or clock: it is told what was seen and when, and says whether
//! to look again or why it is over.
//!
//! - Nothing of the run lives, and nothing charged is listed or unaccounted any more: over at once.
//! - Own processes live: looked at until nothing about them has changed for the quiet time. A server that still
//!   imports its modules is not clean yet.
//! - Something is on its way out, or memory of the dead is still there: waited for up to the cap. A flat number is no
//!   proof: unpinning host memory takes seconds in which nothing moves.

use crate::model::{Bytes, DeviceFiles, ProcId, SettleEnd};
use std::{collections::BTreeMap, time::Duration};

/// Own listed memory that moves by less than this is unchanged.
const SAME_MEMORY: Bytes = Bytes::mib(2);
/// A tree that used this much CPU time since the last change is at work (clock ticks, 100 a second).
const AT_WORK_TICKS: u64 = 100;
/// How long to ask again for memory that the driver did not tell, when nothing of the run lives.
const UNKNOWN_PATIENCE: Duration = Duration::from_secs(1);

/// The limits of settling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Longest time from the end of the command to the verdict.
    pub cap: Duration,
    /// So long nothing may change about living processes.
    pub quiet: Duration,
    /// Unaccounted growth up to here does not change the verdict and is not waited for.
    pub tolerated: Bytes,
}

/// What the last look said about the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookFacts {
    /// Listed memory that is charged, on the devices that could be read; `None`: not known.
    pub listed: Option<Bytes>,
    /// Every device could be read.
    pub complete: bool,
    /// Charged entries.
    pub entries: usize,
    /// Unaccounted growth that can be charged.
    pub growth: Bytes,
    /// More looks may tell whether memory that is on no list was the run's.
    pub undecided: bool,
    /// The look was asked for when nothing of the run lived any more.
    pub after_all_gone: bool,
}

/// A living own process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// Its open NVIDIA files; `None`: not readable.
    pub files: Option<DeviceFiles>,
    /// CPU time so far in clock ticks.
    pub cpu_ticks: u64,
    /// It is on its way out.
    pub dying: bool,
}

/// The living of the run, at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TreeFacts {
    /// When they were read, since the end of the command.
    pub at: Duration,
    /// Who.
    pub members: BTreeMap<ProcId, Member>,
}

/// What is known at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    /// Time since the command ended.
    pub now: Duration,
    /// The proof that nothing of the run lives.
    pub all_gone: bool,
    /// The last look that was asked for after the command ended.
    pub look: Option<LookFacts>,
    /// The last reading of the tree after the command ended.
    pub tree: Option<&'a TreeFacts>,
    /// The driver does not answer any more.
    pub blind: bool,
    /// The user wants the report now.
    pub told: bool,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The next reading.
    Look,
    /// Memory on its way back; `None`: how much is not known.
    Draining(Option<Bytes>),
    /// So many own processes still run.
    Living(usize),
    /// Whether memory that others keep was the run's; it is told by this time since the end of the command.
    Telling(Duration),
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Look again.
    Wait(Waiting),
    /// Judge.
    Done(SettleEnd),
}

/// The state of settling.
#[derive(Debug)]
pub(super) struct Settle {
    rules: Rules,
    quiet: Option<Quiet>,
    unknown_since: Option<Duration>,
    undecided_since: Option<Duration>,
}

/// Since when nothing has changed, and what it was.
#[derive(Debug)]
struct Quiet {
    since: Duration,
    tree: TreeFacts,
    listed: Option<Bytes>,
}

impl Settle {
    /// At the end of the command.
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, quiet: None, unknown_since: None, undecided_since: None }
    }

    /// Takes what is known now.
    pub(super) fn step(&mut self, facts: Facts<'_>) -> Step {
        let next = self.without_limits(facts);
        match next {
            Step::Done(_) => next,
            Step::Wait(_) if facts.told => Step::Done(SettleEnd::Interrupted),
            Step::Wait(_) if facts.blind => Step::Done(SettleEnd::Blind),
            Step::Wait(_) if facts.now >= self.rules.cap && facts.look.is_some() => Step::Done(SettleEnd::Cap),
            Step::Wait(_) => next,
        }
    }

    fn without_limits(&mut self, facts: Facts<'_>) -> Step {
        let Some(look) = facts.look else { return Step::Wait(Waiting::Look) };
        if facts.all_gone {
            self.dead(facts, look)
        } else {
            self.unknown_since = None;
            self.living(facts, look)
        }
    }

    /// Nothing of the run lives.
    fn dead(&mut self, facts: Facts<'_>, look: LookFacts) -> Step {
        if !look.after_all_gone {
            return Step::Wait(Waiting::Look);
        }
        let left = match look.listed {
            Some(listed) => listed,
            None if look.entries > 0 => return self.outside(facts, None),
            None => return self.unknown(facts),
        };
        let unaccounted = if look.growth > self.rules.tolerated { look.growth } else { Bytes::ZERO };
        let left = left + unaccounted;
        if left == Bytes::ZERO && !look.complete {
            return self.unknown(facts);
        }
        self.unknown_since = None;
        if left > Bytes::ZERO {
            return self.outside(facts, Some(left));
        }
        if look.undecided {
            let since = *self.undecided_since.get_or_insert(facts.now);
            let until = since.saturating_add(self.rules.quiet);
            if facts.now < until {
                return Step::Wait(Waiting::Telling(until));
            }
        }
        Step::Done(SettleEnd::AllGone)
    }

    /// What can be read shows nothing of the run, and something cannot be read: it is asked for a little longer.
    fn unknown(&mut self, facts: Facts<'_>) -> Step {
        let since = *self.unknown_since.get_or_insert(facts.now);
        if facts.now.saturating_sub(since) >= UNKNOWN_PATIENCE {
            Step::Done(SettleEnd::AllGone)
        } else {
            Step::Wait(Waiting::Look)
        }
    }

    /// Memory is there and nothing of the run lives below us. It may still be on its way; when it does not change any
    /// more, somebody elsewhere keeps it, or the driver does. (Memory that is slow to come back, as when host memory is
    /// unpinned, keeps its process from ending.)
    fn outside(&mut self, facts: Facts<'_>, left: Option<Bytes>) -> Step {
        let nobody = TreeFacts { at: facts.now, ..TreeFacts::default() };
        if self.quiet(nobody, left) { Step::Done(SettleEnd::Unchanged) } else { Step::Wait(Waiting::Draining(left)) }
    }

    /// Something of the run lives.
    fn living(&mut self, facts: Facts<'_>, look: LookFacts) -> Step {
        let Some(tree) = facts.tree else { return Step::Wait(Waiting::Look) };
        let quiet = self.quiet(tree.clone(), look.listed);
        if tree.members.values().any(|m| m.dying) {
            // Leaving takes as long as it takes; what stays is judged when it stays alone.
            self.quiet = None;
            return Step::Wait(Waiting::Draining(look.listed));
        }
        if quiet { Step::Done(SettleEnd::Unchanged) } else { Step::Wait(Waiting::Living(tree.members.len())) }
    }

    /// Whether nothing has changed for the quiet time, up to the moment in which the tree was read.
    fn quiet(&mut self, tree: TreeFacts, listed: Option<Bytes>) -> bool {
        match &self.quiet {
            Some(quiet) if quiet.same(&tree, listed) => tree.at.saturating_sub(quiet.since) >= self.rules.quiet,
            _ => {
                self.quiet = Some(Quiet { since: tree.at, tree, listed });
                false
            }
        }
    }
}

impl Quiet {
    fn same(&self, tree: &TreeFacts, listed: Option<Bytes>) -> bool {
        let memory = match (self.listed, listed) {
            (Some(before), Some(now)) => before.minus(now).unsigned_abs() <= u128::from(SAME_MEMORY.0),
            (before, now) => before == now,
        };
        let cpu = |t: &TreeFacts| t.members.values().map(|m| m.cpu_ticks).sum::<u64>();
        memory
            && self.tree.members.len() == tree.members.len()
            && self.tree.members.iter().zip(&tree.members).all(|((a, x), (b, y))| a == b && x.files == y.files)
            && cpu(tree).saturating_sub(cpu(&self.tree)) < AT_WORK_TICKS
    }
}

#[cfg(test)]
mod tests;
