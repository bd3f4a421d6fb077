//! Why a holder holds memory: one cause each, the first that its evidence fits. Never from a name alone.

use super::{
    adoption::{Parent, is_only_heir},
    keeps, kernel, mps,
    programs::Known,
    reclaim,
    run::Run,
    scene::Scene,
    sharing,
};
use crate::{
    model::{Ancestor, Bytes, Cause, Lineage, Process, ProcessState},
    text,
};

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
    /// It was there before (`None`: there was no look then).
    pub(crate) was_there: Option<bool>,
    /// Its own entries: bytes, and whether it stands in the list of compute processes.
    pub(crate) entries: Vec<(Option<Bytes>, bool)>,
    /// Which well-known program it is.
    pub(crate) known: Option<Known>,
}

/// Unaccounted memory below this explains itself: jitter and contexts of processes on their way.
pub(crate) const NOTICEABLE: Bytes = Bytes::mib(16);

/// About what a context takes in the list (518 MiB measured on an H200; less on smaller GPUs).
const CONTEXT: Bytes = Bytes::mib(520);

/// The cause, with the sentences it rests on.
pub(crate) fn cause(scene: &Scene<'_>, evidence: &Evidence<'_>) -> (Cause, Vec<String>) {
    let process = evidence.process;
    let because = |cause, why: String| (cause, vec![why]);
    if let Some(why) = kernel::stuck(process) {
        return (Cause::StuckInKernel, why);
    }
    if let Some(why) = kernel::leaving(process) {
        return (Cause::Draining, why);
    }
    match process.state {
        ProcessState::Stopped => {
            return because(
                Cause::Stopped,
                "it is stopped (state T, as after Ctrl-Z), so it cannot end by itself".into(),
            );
        }
        ProcessState::Traced => {
            let who = process.tracer.as_ref().map_or_else(
                || "a debugger".to_owned(),
                |tracer| format!("{} ({}), which traces it,", text::clean(&tracer.comm), tracer.id.pid),
            );
            return because(Cause::Stopped, format!("{who} holds it stopped (state t)"));
        }
        _ if kernel::is_frozen(process) => {
            return because(Cause::Stopped, "its cgroup is frozen, as by `docker pause` or `systemctl freeze`".into());
        }
        _ => {}
    }
    if process.leader_gone {
        let others = process.threads.saturating_sub(1);
        return because(
            Cause::HalfDead,
            match others {
                1 => "its main thread has ended while another thread lives on and keeps the GPU open".into(),
                others => {
                    format!("its main thread has ended while {others} other threads live on and keep the GPU open")
                }
            },
        );
    }
    if let Some(why) = mps_server(scene, evidence) {
        return (Cause::MpsServer, why);
    }
    if !evidence.listed && !evidence.keeps_ghosts.is_empty() {
        return because(Cause::ForkedCopy, forked_copy(process, &evidence.keeps_ghosts));
    }
    if !evidence.listed
        && let Some(why) = keeps::inherited(scene, process)
    {
        return because(Cause::ForkedCopy, why);
    }
    if !evidence.listed
        && let Some(why) = keeps::exported_handle(scene, process)
    {
        return because(Cause::ExportedHandle, why);
    }
    if evidence.listed
        && let Some(why) = sharing::peer_mapping(scene, process)
    {
        return (Cause::PeerMapping, why);
    }
    let (cause, mut why) = match scene.run {
        Some(run) => in_a_run(scene, run, evidence),
        None => after_the_fact(scene, evidence),
    };
    if !matches!(cause, Cause::InUse | Cause::NewNeighbour) {
        return (cause, why);
    }
    if let Some(more) = context_only(evidence) {
        why.push(more);
        return (if cause == Cause::InUse { Cause::ContextOnly } else { cause }, why);
    }
    if cause == Cause::InUse && evidence.listed && evidence.entries.iter().all(|(bytes, _)| bytes.is_none()) {
        why.push("the driver does not tell on this platform how much it holds".into());
        return (Cause::Platform, why);
    }
    (cause, why)
}

/// The server of the multi-process service: not by its name alone, but below its control daemon, or on a GPU whose
/// clients the driver lists as the service's.
fn mps_server(scene: &Scene<'_>, evidence: &Evidence<'_>) -> Option<Vec<String>> {
    let known = evidence.known.as_ref().filter(|k| k.program.name == "MPS server" && evidence.listed)?;
    let mut why = vec![known.evidence.clone()];
    if let Some(parent) = evidence.process.ancestors.first().filter(|a| a.comm.starts_with("nvidia-cuda-mps")) {
        why.push(format!("its parent is the control daemon ({})", parent.id.pid));
    }
    let clients: Vec<_> = mps::clients(scene.snapshot, evidence.process).iter().map(ToString::to_string).collect();
    if clients.is_empty() {
        why.push("no client is listed now: it keeps its context for the next one".into());
    } else {
        why.push(format!("the driver lists clients of the service beside it: PID {}", clients.join(", ")));
    }
    (why.len() > 2 || !clients.is_empty()).then_some(why)
}

/// Listed with no more than a context takes, on every GPU that it is listed on.
fn context_only(evidence: &Evidence<'_>) -> Option<String> {
    let entries = &evidence.entries;
    let bare = |(bytes, compute): &(Option<Bytes>, bool)| *compute && bytes.is_some_and(|b| b <= CONTEXT);
    (!entries.is_empty() && entries.iter().all(bare)).then(|| {
        "it is listed with about what a bare CUDA context takes, so it has little or no memory beside that".to_owned()
    })
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

fn in_a_run(scene: &Scene<'_>, run: &Run<'_>, evidence: &Evidence<'_>) -> (Cause, Vec<String>) {
    let process = evidence.process;
    if evidence.lineage == Lineage::Own {
        return match launcher(run, process) {
            Launcher::Alive(a) => {
                (Cause::StillRunning, vec![format!("what started it still runs: {} ({})", a.comm, a.id.pid)])
            }
            Launcher::ItIsTheCommand => (Cause::StillRunning, vec!["it is the command itself, still running".into()]),
            Launcher::Gone(name) => {
                let name = name.map(|name| format!(": {name}")).unwrap_or_default();
                let mut why = vec![format!("what started it has ended{name}")];
                why.extend(adopted_by_us(run, process));
                (Cause::Orphan, why)
            }
            Launcher::Unknown => after_the_fact(scene, evidence),
        };
    }
    if evidence.lineage == Lineage::Unknown {
        return after_the_fact(scene, evidence);
    }
    match evidence.was_there {
        Some(true) if evidence.growth > NOTICEABLE => (
            Cause::GrownNeighbour,
            vec![format!("it was there before {} and has {} more now", run.beginning(), evidence.growth)],
        ),
        Some(false) => (Cause::NewNeighbour, vec![format!("it was not there before {}", run.beginning())]),
        _ => after_the_fact(scene, evidence),
    }
}

enum Launcher<'a> {
    Alive(&'a Ancestor),
    Gone(Option<String>),
    ItIsTheCommand,
    Unknown,
}

/// Who launched an own process: its parent, unless that has adopted it.
fn launcher<'a>(run: &'a Run<'_>, process: &'a Process) -> Launcher<'a> {
    if run.launch.command.as_ref().is_some_and(|c| c.id == process.id) {
        return Launcher::ItIsTheCommand;
    }
    let Some(parent) = process.ancestors.first() else { return Launcher::Unknown };
    // Whoever is not below us has a run that we did not watch: that its starter is gone is no end of that.
    let root = run.launch.root.filter(|root| process.ancestors.iter().any(|a| a.id == *root));
    if root.is_none() {
        return match Parent::of(process) {
            Parent::Started(parent) => Launcher::Alive(parent),
            _ => Launcher::Unknown,
        };
    }
    // It was seen below another one: that one is gone.
    let first = run.trace.seen(process.id).and_then(|s| s.ancestors.first()).filter(|first| first.id != parent.id);
    if root == Some(parent.id) || first.is_some() {
        let first = first.map(|a| format!("{} ({})", text::clean(&a.comm), a.id.pid));
        return Launcher::Gone(first.or_else(|| command_name(run)));
    }
    match Parent::of(process) {
        Parent::Started(parent) => Launcher::Alive(parent),
        Parent::Adopted(_) => Launcher::Gone(None),
        Parent::Either(_) | Parent::Unseen => Launcher::Unknown,
    }
}

/// Without us it would have been left to PID 1, and some programs end themselves then.
fn adopted_by_us(run: &Run<'_>, process: &Process) -> Option<String> {
    let root = run.launch.root.filter(|root| root.pid != 1)?;
    (process.ancestors.first()?.id == root).then(|| {
        "under check its parent is gpuresid, not PID 1: a program that watches for PID 1 does not notice".into()
    })
}

/// The command, when it has ended: what starts an adopted process is most often the command itself.
fn command_name(run: &Run<'_>) -> Option<String> {
    let command = run.launch.command.as_ref()?;
    command.end?;
    let name = command.argv.first().map(|a| a.rsplit('/').next().unwrap_or(a).to_owned())?;
    Some(format!("the command ({name}, {}) or a process of it", command.id.pid))
}

fn after_the_fact(scene: &Scene<'_>, evidence: &Evidence<'_>) -> (Cause, Vec<String>) {
    let process = evidence.process;
    if let Some(why) = sign_of_its_kind(scene, evidence) {
        return (Cause::Orphan, why);
    }
    if let Some(why) = reclaim::sign_of_end(Cause::Orphan, process) {
        return (Cause::Orphan, vec![why.into()]);
    }
    match Parent::of(process) {
        Parent::Started(parent) => {
            (Cause::InUse, vec![format!("it is in use; its parent is {} ({})", parent.comm, parent.id.pid)])
        }
        Parent::Adopted(parent) => (
            Cause::Detached,
            vec![format!(
                "what started it is gone: its parent is {} ({}), which did not start it and has adopted it",
                text::clean(&parent.comm),
                parent.id.pid
            )],
        ),
        Parent::Either(parent) => (
            Cause::Detached,
            vec![format!(
                "its parent is {} ({}): what started it is gone, or let it go on purpose (nohup, a service, a \
                 container's \
                 main process)",
                parent.comm, parent.id.pid
            )],
        ),
        Parent::Unseen => (Cause::Detached, vec!["no parent of it is visible from here".into()]),
    }
}

/// What speaks for the end of an adopted process's run: the Slurm job that started it has ended, or it is a worker of a
/// kind that a launcher starts, which is gone. A worker may go on with its work all the same.
fn sign_of_its_kind(scene: &Scene<'_>, evidence: &Evidence<'_>) -> Option<Vec<String>> {
    let process = evidence.process;
    let initial = scene.snapshot.observer.initial_pid_namespace == Some(true);
    let parent = process.ancestors.first().filter(|parent| is_only_heir(parent, initial))?;
    let adopted = format!("its parent is {} ({})", text::clean(&parent.comm), parent.id.pid);
    if process.slurm_step_alive == Some(false)
        && let Some(job) = process.environment.get("SLURM_JOB_ID")
    {
        let job = text::clean(job);
        return Some(vec![
            format!("a step of Slurm job {job} started it, and none of that job runs here any more"),
            adopted,
        ]);
    }
    let known = evidence.known.as_ref()?;
    let above = known.program.lives_below?;
    if a_sibling_has_its_agent(scene, process) {
        return None;
    }
    Some(vec![format!("it is a {} ({}), and its {above} is gone", known.program.name, known.evidence), adopted])
}

/// A rank of the same torchrun whose agent lives, so that the run goes on: this one may have left it on purpose.
fn a_sibling_has_its_agent(scene: &Scene<'_>, process: &Process) -> bool {
    let run = |p: &Process| {
        let name = p.environment.get("TORCHELASTIC_RUN_ID")?.clone();
        Some((name, p.environment.get("MASTER_PORT").cloned()))
    };
    let Some(mine) = run(process) else { return false };
    scene.processes.iter().any(|p| {
        p.id != process.id
            && run(p).as_ref() == Some(&mine)
            && !Parent::of(p).may_have_adopted()
            // A child of the process itself, or of a sibling, has a parent that is no agent.
            && !scene.processes.iter().any(|q| q.id.pid == p.ppid && run(q).as_ref() == Some(&mine))
    })
}
