//! Who would start a process again that is ended alone, and whether that has happened. What started it and lives may be a
//! supervisor (a nanny, an agent, a shell's loop) or may not care: that cannot be seen before. So it is named before, and
//! looked at afterwards, for a moment longer than the memory takes to come back.

use super::{
    plan::{Plan, Step},
    refusal::Never,
    targets::{World, command},
};
use crate::{
    judge::{starter, supervisorctl, systemctl},
    model::{ProcId, Process, Restarter, StepOutcome},
    observe::proc::ProcReader,
};
use std::{collections::BTreeSet, time::Duration};

/// So long after the end a supervisor may take: Dask's nanny and Ray's raylet need about a second.
pub const WATCH: Duration = Duration::from_secs(3);

/// Shells that wait for what a person types start nothing by themselves.
const SHELLS: [&str; 9] = ["bash", "sh", "dash", "zsh", "fish", "ksh", "tcsh", "csh", "nu"];

/// Who started this process, lives, and is not in the plan: it may start it again.
pub(super) fn restarter(world: &World<'_>, process: &Process, planned: &BTreeSet<ProcId>) -> Option<Restarter> {
    let parent = starter(process).filter(|parent| !planned.contains(&parent.id))?;
    let parent = world.find(parent.id).ok().flatten()?;
    let unit = match world.guard.never(&parent) {
        Ok(()) if is_at_a_prompt(&parent) => return None,
        Ok(()) => None,
        Err(Never::UnitMain(unit)) => Some(unit),
        Err(Never::Manages { .. }) if is_at_a_prompt(&parent) => return None,
        Err(Never::Manages { .. }) => None,
        // What we run in, what sessions hang on, a container's first process: no supervisor of its own choice, or none
        // that could be named instead.
        Err(_) => return None,
    };
    // Whoever else it keeps, and does not merely run the same: they are not to be ended for this one.
    let mut others = world.reader.children(parent.id.pid);
    others.retain(|child| {
        child.id != process.id && !planned.contains(&child.id) && world.guard.never_us(child.id).is_ok()
    });
    let same = |child: &Process| is_alike(child.argv.words(), process.argv.words());
    Some(Restarter {
        pid: parent.id.pid,
        start_ticks: parent.id.start_ticks,
        command: command(&parent),
        stop: supervisorctl(process, &parent).or_else(|| systemctl("stop", unit.as_ref()?)),
        unit: unit.map(|unit| unit.name),
        keeps_others: !others.iter().all(same),
        alike: others.iter().filter(|child| same(child)).map(|child| child.id.pid).collect(),
    })
}

fn is_at_a_prompt(process: &Process) -> bool {
    let name = process.argv.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program));
    SHELLS.contains(&name) && process.argv.words().iter().skip(1).all(|a| a.starts_with('-') && a != "-c")
}

/// Somebody who may start it again lives: it is worth looking on.
pub(super) fn is_to_be_watched(plan: &Plan, reader: &ProcReader) -> bool {
    ended(plan).any(|step| {
        let restarter = step.shown.restarter.as_ref().map(|r| ProcId { pid: r.pid, start_ticks: r.start_ticks });
        restarter.is_some_and(|id| reader.find(id).ok().flatten().is_some())
    })
}

/// Processes that a living parent started in the place of one that was ended: who, and by whom.
pub(super) fn started(plan: &Plan, reader: &ProcReader) -> Vec<(ProcId, ProcId)> {
    let known: BTreeSet<ProcId> = plan.steps.iter().map(|s| s.target.id).collect();
    let mut again = Vec::new();
    for step in ended(plan) {
        let Some(parent) = step.ancestors.first().filter(|p| p.pid > 1 && !step.argv.is_empty()) else { continue };
        for process in reader.descendants(parent.pid) {
            let same_place = process.ancestors.first().is_some_and(|p| p.id == *parent);
            // Whoever stood beside it before is a sibling.
            let since = plan.began.unwrap_or(step.target.id.start_ticks + 1);
            let younger = process.id.start_ticks >= since && !known.contains(&process.id);
            if same_place
                && younger
                && is_alike(process.argv.words(), step.argv.words())
                && !again.contains(&(process.id, *parent))
            {
                again.push((process.id, *parent));
            }
        }
    }
    again
}

fn ended(plan: &Plan) -> impl Iterator<Item = &Step> {
    plan.steps.iter().filter(|s| matches!(s.shown.outcome, Some(StepOutcome::Ended | StepOutcome::GoneBefore)))
}

/// The same command line but for numbers: of descriptors, ports, ranks.
fn is_alike(one: &[String], other: &[String]) -> bool {
    let words = |text: &str| {
        let parts = text.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty());
        parts.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| words(a) == words(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_was_started_again_has_other_numbers() {
        let line = |text: &str| text.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>();
        let spawned = |fd: u32| line(&format!("python -c spawn_main(tracker_fd={fd},pipe_handle=1{fd}) --fork"));
        assert!(is_alike(&spawned(5), &spawned(77)));
        assert!(!is_alike(&line("sleep 1"), &line("sleep 1 2")) && !is_alike(&line("a 1"), &line("b 1")));
    }
}
