//! Where `gpuresid reclaim` is offered, and the proof by the marker that it asks for. One place for both, so that what
//! is offered and what it would then plan do not differ.

use super::{
    adoption::{Parent, is_only_heir},
    advice::step,
    cause::NOTICEABLE,
    programs::{Remedy, recognise},
    scene::Scene,
};
use crate::{
    model::{Advice, Bytes, Cause, Holder, Lineage, ListKind, ProcId, Process, groups},
    text::{self, file_name},
};

/// Why the run of a holder with this cause has ended, by the marker that it carries; `above` finds an ancestor.
pub(crate) fn proof_by_marker(
    cause: Cause,
    process: &Process,
    above: impl Fn(ProcId) -> Option<Process>,
) -> Option<&'static str> {
    match cause {
        Cause::Detached | Cause::StuckInKernel | Cause::Draining => None,
        _ if !outlived_its_run(process, above) => None,
        // These say why it does not end by itself; whose it is stands in its environment.
        Cause::Orphan
        | Cause::Stopped
        | Cause::HalfDead
        | Cause::ForkedCopy
        | Cause::ExportedHandle
        | Cause::PeerMapping => Some("it carries the marker of a checked run that has ended"),
        // A worker whose launcher has outlived the run too.
        _ => Some("it and its launcher carry the marker of a checked run that has ended"),
    }
}

/// The same in a single look.
pub(super) fn proof_in_a_look(scene: &Scene<'_>, cause: Cause, process: &Process) -> Option<&'static str> {
    let above = |id| scene.processes.iter().find(|p| p.id == id).cloned();
    proof_by_marker(cause, process, above).filter(|_| scene.run.is_none())
}

/// The marker is inherited: below a shell that lives on, it says nothing about what that shell starts today. So it is a
/// proof only for a process that was adopted, or is the worker of a launcher of workers that was.
fn outlived_its_run(process: &Process, above: impl Fn(ProcId) -> Option<Process>) -> bool {
    if process.marker_alive != Some(false) {
        return false;
    }
    let of_the_run = |a: &Process| a.marker == process.marker && a.marker_alive == Some(false) && is_agent(a);
    let mut launcher: Option<Process> = None;
    while let Parent::Started(parent) = Parent::of(launcher.as_ref().unwrap_or(process)) {
        let Some(next) = above(parent.id).filter(of_the_run) else { return false };
        launcher = Some(next);
    }
    true
}

/// Launchers that start a worker again which has died. What counts is the program that a process runs: a terminal
/// multiplexer whose command line only names a launcher is none.
pub(crate) fn is_agent(process: &Process) -> bool {
    const PROGRAMS: [&str; 5] = ["torchrun", "accelerate", "deepspeed", "horovodrun", "supervisord"];
    const MODULES: [&str; 3] = ["torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"];
    match runs(process.argv.words()) {
        Some(Runs::Program(name)) => PROGRAMS.contains(&name),
        Some(Runs::Module(name)) => MODULES.contains(&name),
        None => false,
    }
}

/// What a process runs.
#[derive(Debug, PartialEq, Eq)]
enum Runs<'a> {
    /// The file name of its program, or of its script if that is Python's.
    Program(&'a str),
    /// A module of Python.
    Module(&'a str),
}

/// By its command line. `None`: Python runs something else than a file or a module.
fn runs(argv: &[String]) -> Option<Runs<'_>> {
    let mut arguments = argv.iter();
    let program = file_name(arguments.next()?);
    let version = program.strip_prefix("python").or_else(|| program.strip_prefix("pypy"));
    if version.is_none_or(|v| !v.bytes().all(|b| b.is_ascii_digit() || b == b'.')) {
        return Some(Runs::Program(program));
    }
    while let Some(argument) = arguments.next() {
        let Some(options) = argument.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            return Some(Runs::Program(file_name(argument)));
        };
        if options.starts_with('-') {
            if options == "-check-hash-based-pycs" {
                arguments.next();
            }
            continue;
        }
        // Short options can stand together; the value of one is what follows, here or in the next argument.
        let Some(at) = options.find(['m', 'c', 'W', 'X']) else { continue };
        let (option, value) = (options.get(at..=at)?, options.get(at + 1..)?);
        let value = if value.is_empty() { arguments.next()?.as_str() } else { value };
        match option {
            "m" => return Some(Runs::Module(value)),
            "c" => return None,
            _ => {}
        }
    }
    None
}

/// After a single look: where somebody's run is proven to have ended.
pub(super) fn of_orphans(scene: &Scene<'_>, holders: &[Holder]) -> Option<Advice> {
    let proven = |h: &Holder| {
        let process = scene.living(h).filter(|p| !scene.is_above_us(p.id));
        process.is_some_and(|p| h.cause == Cause::Orphan || proof_in_a_look(scene, h.cause, p).is_some())
    };
    (!scene.snapshot.observer.foreign_procfs && holders.iter().any(proven)).then(|| {
        step(
            Some("gpuresid reclaim --orphans".into()),
            "or see a plan for all processes whose run is proven to have ended: who would be ended, in which order, and \
             how much memory comes back. Nothing is ended unless you add --yes",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_runs_is_no_word_of_its_arguments() {
        let of = |line: &str| {
            let argv: Vec<String> = line.split(' ').map(Into::into).collect();
            runs(&argv).map(|runs| match runs {
                Runs::Program(name) => name.to_owned(),
                Runs::Module(name) => format!("-m {name}"),
            })
        };
        for (line, expected) in [
            ("/usr/bin/python3.11 /opt/bin/torchrun --nproc-per-node 2 train.py", "torchrun"),
            ("python -u -X dev -m torch.distributed.run train.py", "-m torch.distributed.run"),
            ("python3 -Wignore -um torch.distributed.run train.py", "-m torch.distributed.run"),
            ("python3 train.py -m torch.distributed.run", "train.py"),
            ("torchrun train.py", "torchrun"),
            ("tmux new-session -d python -m torch.distributed.run train.py", "tmux"),
            ("SCREEN torchrun train.py", "SCREEN"),
            ("pythonic torchrun", "pythonic"),
        ] {
            assert_eq!(of(line).as_deref(), Some(expected), "{line}");
        }
        assert_eq!(of("python3 -c pass torchrun"), None);
        assert_eq!(of("python3"), None);
    }
}
