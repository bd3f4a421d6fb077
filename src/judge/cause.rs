//! Why a holder holds memory: one cause each, the first that its evidence fits. Never from a name alone.

use super::{run::Run, scene::Scene};
use crate::model::{Ancestor, Bytes, Cause, Lineage, ProcId, Process, ProcessState};

/// What is known about one holder when its cause is asked for.
pub(crate) struct Evidence<'a> {
    pub(crate) process: &'a Process,
    pub(crate) lineage: Lineage,
    /// NVML lists it itself, on some device.
    pub(crate) listed: bool,
    /// Ghosts whose memory it can keep.
    pub(crate) keeps_ghosts: Vec<u32>,
    /// What it has more than in the before-look (0 without one).
    pub(crate) growth: Bytes,
    /// It stood in the before-look (`None`: there was none).
    pub(crate) stood_before: Option<bool>,
}

/// Unaccounted memory below this explains itself: jitter and contexts of processes on their way.
pub(crate) const NOTICEABLE: Bytes = Bytes::mib(16);

/// The cause, with the sentences it rests on.
pub(crate) fn cause(scene: &Scene<'_>, evidence: &Evidence<'_>) -> (Cause, Vec<String>) {
    let process = evidence.process;
    let because = |cause, why: String| (cause, vec![why]);
    if process.dying {
        return because(Cause::Draining, "it was killed or is exiting, and its memory is on the way back".into());
    }
    match process.state {
        ProcessState::Stopped => {
            return because(
                Cause::Stopped,
                "it is stopped (state T, as after Ctrl-Z), so it cannot end by itself".into(),
            );
        }
        ProcessState::Traced => {
            return because(Cause::Stopped, "a debugger holds it stopped (state t)".into());
        }
        _ => {}
    }
    if process.leader_gone {
        let others = process.threads.saturating_sub(1);
        return because(
            Cause::HalfDead,
            format!("its main thread has ended while {others} other thread(s) live and keep the GPU open"),
        );
    }
    if !evidence.listed && !evidence.keeps_ghosts.is_empty() {
        return because(Cause::ForkedCopy, forked_copy(process, &evidence.keeps_ghosts));
    }
    if !evidence.listed
        && let Some(why) = exported_handle(scene, process)
    {
        return because(Cause::ExportedHandle, why);
    }
    if let Some(run) = scene.run {
        return in_a_run(run, evidence);
    }
    after_the_fact(process)
}

fn forked_copy(process: &Process, ghosts: &[u32]) -> String {
    let names: Vec<_> = ghosts.iter().map(ToString::to_string).collect();
    let (_, files) = gpu_files(process);
    format!(
        "it is not listed itself, has {files} open files on the GPU, and NVML still lists PID {}, which is gone: it keeps \
         that process's memory",
        names.join(", ")
    )
}

/// The GPU nodes a process has open, and the largest number of files on one of them.
fn gpu_files(process: &Process) -> (Vec<String>, u32) {
    let on_gpu: Vec<_> = process
        .files
        .iter()
        .flat_map(|f| &f.nodes)
        .filter(|(n, c)| super::entries::is_gpu_node(n) && **c > 0)
        .collect();
    (on_gpu.iter().map(|(n, _)| (*n).clone()).collect(), on_gpu.iter().map(|(_, c)| **c).max().unwrap_or(0))
}

/// A control node alone can hold memory of any GPU: an allocation handle that another process exported.
fn exported_handle(scene: &Scene<'_>, process: &Process) -> Option<String> {
    let files = process.files.as_ref()?;
    let (device, excess) = scene.largest_excess()?;
    if files.control() == 0 || files.uvm() > 0 || excess <= NOTICEABLE {
        return None;
    }
    Some(format!(
        "it has the NVIDIA control file open and no GPU context, while {excess} on {} belong to no listed process: it may \
         keep an exported allocation handle",
        device.identity.label()
    ))
}

fn in_a_run(run: &Run<'_>, evidence: &Evidence<'_>) -> (Cause, Vec<String>) {
    let process = evidence.process;
    if evidence.lineage == Lineage::Own {
        return match launcher(run, process) {
            Launcher::Alive(a) => {
                (Cause::StillRunning, vec![format!("what started it still runs: {} ({})", a.comm, a.id.pid)])
            }
            Launcher::ItIsTheCommand => (Cause::StillRunning, vec!["it is the command itself, still running".into()]),
            Launcher::Gone(Some(name)) => (Cause::Orphan, vec![format!("what started it has ended: {name}")]),
            Launcher::Gone(None) => (Cause::Orphan, vec!["what started it has ended".into()]),
            Launcher::Unknown => (Cause::Detached, vec!["who started it is not known from here".into()]),
        };
    }
    if evidence.lineage == Lineage::Unknown {
        return after_the_fact(process);
    }
    match evidence.stood_before {
        Some(true) if evidence.growth > NOTICEABLE => (
            Cause::GrownNeighbour,
            vec![format!("it was there before the command started and has {} more now", evidence.growth)],
        ),
        Some(false) => (Cause::NewNeighbour, vec!["it was not there before the command started".into()]),
        _ => after_the_fact(process),
    }
}

enum Launcher<'a> {
    Alive(&'a Ancestor),
    Gone(Option<String>),
    ItIsTheCommand,
    Unknown,
}

/// Who launched an own process: its parent, unless that is the subreaper that adopted it.
fn launcher<'a>(run: &'a Run<'_>, process: &'a Process) -> Launcher<'a> {
    if run.launch.command.as_ref().is_some_and(|c| c.id == process.id) {
        return Launcher::ItIsTheCommand;
    }
    let Some(root) = run.launch.root else {
        return match process.ancestors.first() {
            Some(parent) if parent.id.pid > 1 => Launcher::Alive(parent),
            _ if process.marker_alive == Some(false) => Launcher::Gone(None),
            _ => Launcher::Unknown,
        };
    };
    match process.ancestors.first() {
        // Adopted by us: the one that started it is gone. Who that was is known if it was seen in time.
        Some(parent) if parent.id == root => {
            let first = run.trace.seen(process.id).and_then(|s| s.ancestors.first()).filter(|a| a.id != root);
            Launcher::Gone(first.map(|a| format!("{} ({})", a.comm, a.id.pid)).or_else(|| command_name(run)))
        }
        // Adopted by the init of its own PID namespace, or by another subreaper below us.
        Some(parent) => Launcher::Alive(parent),
        None => Launcher::Unknown,
    }
}

/// The command, when it has ended: what starts an adopted process is most often the command itself.
fn command_name(run: &Run<'_>) -> Option<String> {
    let command = run.launch.command.as_ref()?;
    command.end?;
    let name = command.argv.first().map(|a| a.rsplit('/').next().unwrap_or(a).to_owned())?;
    Some(format!("the command ({name}, {}) or a process of it", command.id.pid))
}

fn after_the_fact(process: &Process) -> (Cause, Vec<String>) {
    if process.marker_alive == Some(false) {
        return (Cause::Orphan, vec!["it carries the marker of a checked run that has ended".into()]);
    }
    match process.ancestors.first() {
        Some(parent) if !adopts(parent) => {
            (Cause::InUse, vec![format!("it is in use; its parent is {} ({})", parent.comm, parent.id.pid)])
        }
        Some(parent) => (
            Cause::Detached,
            vec![format!(
                "its parent is {} ({}): what started it has gone or let it go on purpose (nohup, a service, a container's \
                 main process)",
                parent.comm, parent.id.pid
            )],
        ),
        None => (Cause::Detached, vec!["it has no parent that is visible from here".into()]),
    }
}

/// PID 1 and the service managers adopt processes whose parent is gone.
fn adopts(parent: &Ancestor) -> bool {
    let ProcId { pid, .. } = parent.id;
    pid == 1 || parent.comm == "systemd"
}
