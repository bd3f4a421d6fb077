//! Where `gpuresid reclaim` is offered, and the proof by the marker that it asks for. One place for both, so that what
//! is offered and what it would then plan do not differ.

use super::{advice::step, cause::adopts, scene::Scene};
use crate::model::{Advice, Cause, Holder, Lineage, ProcId, Process};

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
    for ancestor in &process.ancestors {
        if adopts(ancestor) {
            return true;
        }
        let of_the_run = |a: &Process| a.marker == process.marker && a.marker_alive == Some(false) && is_agent(a);
        if !above(ancestor.id).as_ref().is_some_and(of_the_run) {
            return false;
        }
    }
    true
}

/// Launchers that start a worker again which has died, by what they are called with.
pub(crate) fn is_agent(process: &Process) -> bool {
    const PROGRAMS: [&str; 5] = ["torchrun", "accelerate", "deepspeed", "horovodrun", "supervisord"];
    const MODULES: [&str; 3] = ["torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"];
    let base = |arg: &String| arg.rsplit('/').next().unwrap_or(arg).to_owned();
    let program = process.argv.iter().take(2).map(base).any(|name| PROGRAMS.contains(&name.as_str()));
    program || process.argv.iter().take(8).any(|arg| MODULES.contains(&arg.as_str()))
}

/// After a single look: where somebody's run is proven to have ended.
pub(super) fn of_orphans(scene: &Scene<'_>, holders: &[Holder]) -> Option<Advice> {
    let proven = |h: &Holder| {
        h.cause == Cause::Orphan || scene.living(h).is_some_and(|p| proof_in_a_look(scene, h.cause, p).is_some())
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

/// After a run that writes a report: `reclaim` takes all that it left, in the right order, and looks whether the memory
/// comes back. Where several processes are to be ended it stands in place of a signal to each of them.
pub(super) fn of_report(scene: &Scene<'_>, holders: &[&Holder], steps: &mut Vec<Advice>) {
    let Some(file) = scene.run.and_then(|run| run.launch.report_file.as_deref()) else { return };
    let mine = |h: &&&Holder| h.lineage == Lineage::Own && h.uid == Some(scene.snapshot.observer.uid);
    let ends = |step: &Advice, pid: u32| {
        let plain = [format!("kill {pid}"), format!("kill -KILL {pid}"), format!("kill {pid}; kill -CONT {pid}")];
        step.command.as_ref().is_some_and(|command| plain.contains(command))
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
        let named: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let why = format!("see the plan for what this run left behind (PID {}): {plan}", named.join(", "));
        steps.insert(last + 1, step(command, why, "nobody"));
        steps.retain(|s| !pids.iter().any(|pid| ends(s, *pid)));
    }
}
