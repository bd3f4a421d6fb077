//! Where `gpuresid reclaim` is offered, and the sign by the marker that it goes by. One place for both, so that what is
//! offered and what it would then plan do not differ.

use super::{
    adoption::{Parent, is_only_heir},
    advice::step,
    cause::NOTICEABLE,
    programs::{Remedy, recognise},
    scene::Scene,
};
use crate::{
    model::{Advice, Bytes, Cause, Holder, Lineage, ListKind, ProcId, Process, groups},
    text,
};

/// What speaks for the end of the run of a process with this cause: a sign, and no proof. The marker is inherited, below a
/// shell that lives on also by what that starts today, so it says something only of a process that was adopted.
pub(crate) fn sign_of_end(cause: Cause, process: &Process) -> bool {
    match cause {
        Cause::Detached | Cause::StuckInKernel | Cause::Draining => false,
        _ => process.marker_alive == Some(false) && Parent::of(process).may_have_adopted(),
    }
}

/// The same in a single look.
pub(super) fn sign_in_a_look(scene: &Scene<'_>, cause: Cause, process: &Process) -> bool {
    scene.run.is_none() && sign_of_end(cause, process)
}

/// After a single look: where the plan would name processes of the user who asks.
pub(super) fn of_orphans(scene: &Scene<'_>, holders: &[Holder]) -> Option<Advice> {
    let observer = &scene.snapshot.observer;
    let named = |h: &Holder| {
        let process = scene.living(h).filter(|p| p.uid == Some(observer.uid) && !scene.is_above_us(p.id));
        process.is_some_and(|p| h.cause == Cause::Orphan || sign_in_a_look(scene, h.cause, p))
    };
    (!observer.foreign_procfs && holders.iter().any(named)).then(|| {
        step(
            Some("gpuresid reclaim --orphans".into()),
            "or see a plan for all of your processes that seem left over: why, who would be ended, in which order, and how \
             much memory comes back. Nothing is ended unless you add --yes",
            "nobody",
        )
    })
}

/// How many of them get a step.
const MOST_DETACHED: usize = 3;

/// After a single look: whose parent is gone may be left over, or let go on purpose, which only people know. So they
/// are named, the largest first, and shown what ending them would give back; not those that have an owner who ends them,
/// and not those that the plan would leave alone.
pub(super) fn of_detached(scene: &Scene<'_>, holders: &[Holder]) -> Vec<Advice> {
    if scene.snapshot.observer.foreign_procfs {
        return Vec::new();
    }
    let detached: Vec<&Holder> = holders.iter().filter(|h| may_be_left(scene, h)).collect();
    let held = |group: &[&Holder]| group.iter().map(|h| h.held()).sum::<Bytes>();
    let mut detached = groups(&detached);
    detached.sort_by_key(|group| std::cmp::Reverse(held(group)));
    let why = "gpuresid cannot tell whether its run is over: nohup and services look the same. If you know that it is";
    detached.iter().take(MOST_DETACHED).map(|group| see_all(group, why)).collect()
}

/// Detached with memory that is worth a word, of the user who asks, and nobody is known who started it to stay.
fn may_be_left(scene: &Scene<'_>, holder: &Holder) -> bool {
    let observer = &scene.snapshot.observer;
    let within_reach = |process: &Process| {
        process.uid == Some(observer.uid)
            && !scene.is_above_us(process.id)
            && process.pid_namespace == observer.pid_namespace
            && !recognise(process).is_some_and(|known| matches!(known.program.remedy, Remedy::LeaveAlone(_)))
    };
    holder.cause == Cause::Detached
        && holder.held() > NOTICEABLE
        && holder.ends_with.is_none()
        && holder.lineage != Lineage::Own
        && scene.living(holder).is_some_and(|process| {
            within_reach(process) && !only_draws(scene, process.id) && !is_work_of_pid_1(scene, process)
        })
}

/// In a container PID 1 may be what started it: it is in that one's session, which whatever comes in later is not.
fn is_work_of_pid_1(scene: &Scene<'_>, process: &Process) -> bool {
    let parent = process.ancestors.first().filter(|parent| parent.id.pid == 1);
    let initial = scene.snapshot.observer.initial_pid_namespace == Some(true);
    process.sid == 1 && parent.is_some_and(|parent| !is_only_heir(parent, initial))
}

/// Listed as a program that draws, as a desktop's are, and nowhere as one that computes.
fn only_draws(scene: &Scene<'_>, id: ProcId) -> bool {
    let mut lists = scene.listed_as(id).peekable();
    lists.peek().is_some() && lists.all(|list| list == ListKind::Graphics)
}

/// After a single look: who seems left over may do somebody's work all the same, so its end is for people to decide.
pub(super) fn of_left_over(holders: &[&Holder]) -> Advice {
    see_all(holders, "what started it is gone, but it may still do its work. If you know that it does not")
}

/// The step that shows what would be ended and what comes back.
pub(super) fn see(holder: &Holder, why: &str) -> Advice {
    see_all(&[holder], why)
}

fn see_all(holders: &[&Holder], why: &str) -> Advice {
    let pids: Vec<u32> = holders.iter().map(|holder| holder.pid).collect();
    let named: Vec<String> = pids.iter().map(ToString::to_string).collect();
    step(
        Some(format!("gpuresid reclaim --pid {}", named.join(" "))),
        format!(
            "{why}, this shows what ending PID {} gives back ({}). Nothing is ended unless you add --yes",
            text::ranges(&pids).join(", "),
            holders.iter().map(|holder| holder.held()).sum::<Bytes>()
        ),
        "nobody",
    )
}

/// The step's command names this process.
fn names(step: &Advice, pid: u32) -> bool {
    let words = step.command.iter().flat_map(|command| command.split([' ', ';']));
    words.filter_map(|word| word.parse::<u32>().ok()).any(|number| number == pid)
}

/// After a run that writes a report: `reclaim` takes all that it left, in the right order, and looks whether the memory
/// comes back. Where several processes are to be ended it stands in place of a signal to each of them.
pub(super) fn of_report(scene: &Scene<'_>, holders: &[&Holder], steps: &mut Vec<Advice>) {
    let Some(file) = scene.run.and_then(|run| run.launch.report_file.as_deref()) else { return };
    // Without an NVIDIA file it is not signalled by us.
    let has_files = |h: &Holder| scene.living(h).is_none_or(|p| p.can_hold_memory() != Some(false));
    let mine = |h: &&&Holder| h.lineage == Lineage::Own && h.uid == Some(scene.snapshot.observer.uid) && has_files(h);
    let ends = |step: &Advice, pid: u32| {
        let mut words = step.command.iter().flat_map(|command| command.split([' ', ';']));
        words.next() == Some("kill") && words.next() != Some("-CONT") && names(step, pid)
    };
    let pids: Vec<u32> =
        holders.iter().filter(mine).map(|h| h.pid).filter(|pid| steps.iter().any(|s| ends(s, *pid))).collect();
    let Some(last) = steps.iter().rposition(|s| pids.iter().any(|pid| ends(s, *pid))) else { return };
    let command = Some(format!("gpuresid reclaim --report {file}"));
    let plan = "in which order, and how much memory comes back. Nothing is ended unless you add --yes";
    if pids.len() == 1 {
        let why = format!("or see the plan for what this run left behind: who would be ended, {plan}");
        steps.insert(last + 1, step(command, why, "nobody"));
    } else {
        let named = text::ranges(&pids).join(", ");
        let why = format!("see the plan for what this run left behind (PID {named}): {plan}");
        steps.insert(last + 1, step(command, why, "nobody"));
        steps.retain(|s| !pids.iter().any(|pid| ends(s, *pid)));
    }
}
