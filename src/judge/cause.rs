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
    model::{Ancestor, Bytes, Cause, Evidence, Lineage, Named, Process, ProcessState, Starter},
    text,
};

/// What is known about one holder when its cause is asked for.
pub(crate) struct Findings<'a> {
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

/// The cause, with what it rests on.
pub(crate) fn cause(scene: &Scene<'_>, evidence: &Findings<'_>) -> (Cause, Vec<Evidence>) {
    let process = evidence.process;
    let because = |cause, why: Evidence| (cause, vec![why]);
    if let Some(why) = kernel::stuck(process) {
        return (Cause::StuckInKernel, why);
    }
    if let Some(why) = kernel::leaving(process) {
        return (Cause::Draining, why);
    }
    match process.state {
        ProcessState::Stopped => return because(Cause::Stopped, Evidence::Stopped),
        ProcessState::Traced => {
            return because(Cause::Stopped, Evidence::Traced { by: process.tracer.as_ref().map(Named::from) });
        }
        _ if kernel::is_frozen(process) => return because(Cause::Stopped, Evidence::Frozen),
        _ => {}
    }
    if process.leader_gone {
        return because(Cause::HalfDead, Evidence::HalfDead { threads: process.threads.saturating_sub(1) });
    }
    if let Some(why) = mps_server(scene, evidence) {
        return (Cause::MpsServer, why);
    }
    if !evidence.listed && !evidence.keeps_ghosts.is_empty() {
        let (_, files) = gpu_files(process);
        return because(Cause::ForkedCopy, Evidence::ForkedCopy { files, ghosts: evidence.keeps_ghosts.clone() });
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
        return because(Cause::PeerMapping, why);
    }
    let (cause, mut why) = match scene.run {
        Some(run) => in_a_run(scene, run, evidence),
        None => after_the_fact(scene, evidence),
    };
    if !matches!(cause, Cause::InUse | Cause::NewNeighbour) {
        return (cause, why);
    }
    if is_bare_context(evidence) {
        why.push(Evidence::BareContext);
        return (if cause == Cause::InUse { Cause::ContextOnly } else { cause }, why);
    }
    if cause == Cause::InUse && evidence.listed && evidence.entries.iter().all(|(bytes, _)| bytes.is_none()) {
        why.push(Evidence::BytesUnavailable);
        return (Cause::Platform, why);
    }
    (cause, why)
}

/// The server of the multi-process service: not by its name alone, but below its control daemon, or on a GPU whose
/// clients the driver lists as the service's.
fn mps_server(scene: &Scene<'_>, evidence: &Findings<'_>) -> Option<Vec<Evidence>> {
    let known = evidence.known.as_ref().filter(|k| k.program.name == "MPS server" && evidence.listed)?;
    let mut why = vec![Evidence::Signs { signs: known.signs.clone() }];
    let daemon = evidence.process.ancestors.first().filter(|a| a.comm.starts_with("nvidia-cuda-mps"));
    why.extend(daemon.map(|parent| Evidence::MpsDaemonAbove { pid: parent.id.pid }));
    let pids = mps::clients(scene.snapshot, evidence.process);
    let is_one = daemon.is_some() || !pids.is_empty();
    why.push(Evidence::MpsClients { pids });
    is_one.then_some(why)
}

/// Listed with no more than a context takes, on every GPU that it is listed on.
fn is_bare_context(evidence: &Findings<'_>) -> bool {
    let entries = &evidence.entries;
    let bare = |(bytes, compute): &(Option<Bytes>, bool)| *compute && bytes.is_some_and(|b| b <= CONTEXT);
    !entries.is_empty() && entries.iter().all(bare)
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

fn in_a_run(scene: &Scene<'_>, run: &Run<'_>, evidence: &Findings<'_>) -> (Cause, Vec<Evidence>) {
    let process = evidence.process;
    if evidence.lineage == Lineage::Own {
        return match launcher(run, process) {
            Launcher::Alive(a) => (Cause::StillRunning, vec![Evidence::StarterRuns { by: a.into() }]),
            Launcher::ItIsTheCommand => (Cause::StillRunning, vec![Evidence::CommandStillRuns]),
            Launcher::Gone(by) => {
                let adopted = is_adopted_by_us(run, process).then_some(Evidence::AdoptedByGpuresid);
                (Cause::Orphan, [Evidence::StarterEnded { by }].into_iter().chain(adopted).collect())
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
            vec![Evidence::WasThereAndGrew { beginning: run.beginning(), more: evidence.growth }],
        ),
        Some(false) => (Cause::NewNeighbour, vec![Evidence::WasNotThereBefore { beginning: run.beginning() }]),
        _ => after_the_fact(scene, evidence),
    }
}

enum Launcher<'a> {
    Alive(&'a Ancestor),
    Gone(Option<Starter>),
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
        let first = first.map(|ancestor| Starter::Process(ancestor.into()));
        return Launcher::Gone(first.or_else(|| the_command(run)));
    }
    match Parent::of(process) {
        Parent::Started(parent) => Launcher::Alive(parent),
        Parent::Adopted(_) => Launcher::Gone(None),
        Parent::Either(_) | Parent::Unseen => Launcher::Unknown,
    }
}

/// Without us it would have been left to PID 1, and some programs end themselves then.
fn is_adopted_by_us(run: &Run<'_>, process: &Process) -> bool {
    let root = run.launch.root.filter(|root| root.pid != 1);
    root.is_some() && process.ancestors.first().map(|parent| parent.id) == root
}

/// The command, when it has ended: what starts an adopted process is most often the command itself.
fn the_command(run: &Run<'_>) -> Option<Starter> {
    let command = run.launch.command.as_ref()?;
    command.end?;
    let name = text::file_name(command.argv.first()?);
    Some(Starter::Command(Named { pid: command.id.pid, name: name.into() }))
}

fn after_the_fact(scene: &Scene<'_>, evidence: &Findings<'_>) -> (Cause, Vec<Evidence>) {
    let process = evidence.process;
    if let Some(why) = sign_of_its_kind(scene, evidence) {
        return (Cause::Orphan, why);
    }
    if reclaim::sign_of_end(Cause::Orphan, process) {
        return (Cause::Orphan, vec![Evidence::RunEnded]);
    }
    let (cause, why) = match Parent::of(process) {
        Parent::Started(parent) => (Cause::InUse, Evidence::InUseBelow { parent: parent.into() }),
        Parent::Adopted(parent) => (Cause::Detached, Evidence::AdoptedBy { parent: parent.into() }),
        Parent::Either(parent) => (Cause::Detached, Evidence::ParentMayHaveAdopted { parent: parent.into() }),
        Parent::Unseen => (Cause::Detached, Evidence::NoParentVisible),
    };
    (cause, vec![why])
}

/// What speaks for the end of an adopted process's run: the Slurm job that started it has ended, or it is a worker of a
/// kind that a launcher starts, which is gone. A worker may go on with its work all the same.
fn sign_of_its_kind(scene: &Scene<'_>, evidence: &Findings<'_>) -> Option<Vec<Evidence>> {
    let process = evidence.process;
    let initial = scene.snapshot.observer.initial_pid_namespace == Some(true);
    let parent = process.ancestors.first().filter(|parent| is_only_heir(parent, initial))?;
    let adopted = Evidence::ParentIs { parent: parent.into() };
    if process.slurm_step_alive == Some(false)
        && let Some(job) = process.environment.get("SLURM_JOB_ID")
    {
        return Some(vec![Evidence::SlurmStepEnded { job: job.as_str().into() }, adopted]);
    }
    let known = evidence.known.as_ref()?;
    let owner = known.program.lives_below?.to_owned();
    if a_sibling_has_its_agent(scene, process) {
        return None;
    }
    let program = known.program.name.to_owned();
    Some(vec![Evidence::OwnerGone { program, owner, signs: known.signs.clone() }, adopted])
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
