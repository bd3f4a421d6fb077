//! How a process is ended for good: by whoever owns it, where a plain signal would be refused, or answered by a new
//! process. The well-known program's own way first, then container, pod, batch job and service.

use super::{
    adoption::Parent,
    holders::inner_pid,
    mps,
    place::{self, place},
    programs::{self, Known, Remedy},
    scene::Scene,
};
use crate::{
    model::{Ancestor, Place, Process},
    text,
};

/// A way to end a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// To paste.
    pub(crate) command: String,
    /// What it does.
    pub(crate) why: String,
    /// What ends with it.
    pub(crate) disturbs: String,
    /// A plain signal to the process alone works too, and disturbs less: tried first.
    pub(crate) signal_first: bool,
}

/// The way of the level that owns the process; `None`: a plain signal is the way, or none is known.
pub(crate) fn of(scene: &Scene<'_>, process: &Process, known: Option<&Known>) -> Option<End> {
    // What we run in ends us, and whoever asked.
    if scene.is_above_us(process.id) {
        return None;
    }
    known
        .and_then(|known| of_program(scene, process, known))
        .or_else(|| of_supervisor(process))
        .or_else(|| of_place(scene, process))
}

fn of_program(scene: &Scene<'_>, process: &Process, known: &Known) -> Option<End> {
    let name = known.program.name;
    if known.lost_owner(scene, process).is_some() {
        return None;
    }
    let made =
        |command: String, why: String, disturbs: String| Some(End { command, why, disturbs, signal_first: false });
    match known.program.remedy {
        Remedy::Signal | Remedy::LeaveAlone(_) => None,
        Remedy::Owner(_, command, why, disturbs) => made(command.into(), why.into(), disturbs.into()),
        Remedy::MpsServer | Remedy::MpsDaemon => made(
            mps::quit_of(process),
            "quit the multi-process service, as the user who started it; its servers end with it".into(),
            match mps::clients(scene.snapshot, process).as_slice() {
                [] => "every program that uses the GPU through MPS".into(),
                clients => format!("every program that uses the GPU through MPS: now PID {}", words(clients)),
            },
        ),
        Remedy::ConnectionFile => {
            let file = programs::connection_file(process)?;
            made(
                format!(
                    "python3 -c \"from jupyter_client import BlockingKernelClient as K; k = K(connection_file='{file}'); \
                     k.load_connection_file(); k.start_channels(); k.shutdown()\""
                ),
                "shut the notebook's kernel down as Jupyter does (or in the notebook: Kernel, Shut Down): Jupyter starts a \
                 killed one again"
                    .into(),
                format!("the notebook whose kernel is PID {}, and its variables", process.id.pid),
            )
        }
        Remedy::ParentFirst => {
            let parent = process.ancestors.first().filter(|_| !Parent::of(process).may_have_adopted())?;
            let root = scene.run.and_then(|r| r.launch.root);
            // Below anybody else (a shell, a terminal, a server of sessions) it is the first of its kind itself.
            if root == Some(parent.id)
                || scene.is_above_us(parent.id)
                || is_helper(scene, process)
                || !launches(scene, parent, process, known)
            {
                return None;
            }
            let what = known.program.lives_below.unwrap_or("parent");
            made(
                format!("kill {}", parent.id.pid),
                format!(
                    "end the {what} of this {name} first ({}), which ends what it started: a {name} that is killed alone may be \
                     started again",
                    text::clean(&parent.comm)
                ),
                format!("PID {} ({}) and all that it started", parent.id.pid, text::clean(&parent.comm)),
            )
        }
    }
}

/// Whether this parent is known to be what starts and ends such a program: by its command line where it was looked at,
/// else by its name. An unknown parent is never to be ended for its child.
fn launches(scene: &Scene<'_>, parent: &Ancestor, process: &Process, known: &Known) -> bool {
    if let Some(parent) = scene.processes.iter().find(|p| p.id == parent.id) {
        return programs::recognise(parent).is_some_and(|its| {
            its.program.name == known.program.name || Some(its.program.name) == known.program.lives_below
        });
    }
    let titled = process.argv.first().is_some_and(|title| title.contains("::"));
    let names: &[&str] = match known.program.name {
        "torchrun rank" => &["pt_elastic", "torchrun", "accelerate", "deepspeed", "python"],
        "MPI rank" => &["mpirun", "mpiexec", "orterun", "orted", "prte", "hydra_pmi_proxy"],
        // A process that names itself so was started by the server, which is Python too.
        "vLLM engine" if titled => &["vllm", "VLLM::", "python"],
        "SGLang engine" if titled => &["sglang::", "python"],
        "vLLM engine" => &["vllm", "VLLM::"],
        "SGLang engine" => &["sglang::"],
        _ => &[],
    };
    names.iter().any(|name| parent.comm.starts_with(name))
}

/// A process that a rank started, and that has the rank's environment from it.
fn is_helper(scene: &Scene<'_>, process: &Process) -> bool {
    let rank = |p: &Process| p.environment.get("LOCAL_RANK").cloned();
    let mine = rank(process);
    mine.is_some() && scene.processes.iter().any(|p| p.id.pid == process.ppid && rank(p) == mine)
}

/// How supervisord is told to stop a program of its: by the names that it gave this one, and while it lives.
pub(crate) fn supervisorctl(process: &Process, parent: &Process) -> Option<String> {
    let is_it = is_supervisord(&parent.comm)
        || parent.argv.words().iter().take(2).any(|word| text::file_name(word) == "supervisord");
    told_to_stop(process).filter(|_| is_it)
}

fn is_supervisord(comm: &str) -> bool {
    comm.starts_with("supervisord")
}

fn told_to_stop(process: &Process) -> Option<String> {
    let name = process.environment.get("SUPERVISOR_PROCESS_NAME")?;
    let group = process.environment.get("SUPERVISOR_GROUP_NAME").filter(|group| *group != name);
    let whole = group.map_or_else(|| name.clone(), |group| format!("{group}:{name}"));
    text::shell_word(&whole).map(|name| format!("supervisorctl stop {name}"))
}

fn of_supervisor(process: &Process) -> Option<End> {
    process.ancestors.first().filter(|parent| is_supervisord(&parent.comm))?;
    Some(End {
        command: told_to_stop(process)?,
        why: "tell supervisord to stop it: one that is killed may be started again".into(),
        disturbs: "whoever uses this program of supervisord's".into(),
        signal_first: false,
    })
}

/// Container, pod, job or service, unless we are in the same one: that would end us, and more than was meant.
fn of_place(scene: &Scene<'_>, process: &Process) -> Option<End> {
    let its = place(process)?;
    let place = Place { ..its.clone() };
    let observer = &scene.snapshot.observer;
    let ours = observer.cgroup.as_deref().map(place::of_cgroup).unwrap_or_default();
    let same = |a: &Option<_>, b: &Option<_>| a.is_some() && a == b;
    let same_job = place.slurm.as_ref().is_some_and(|s| {
        ours.slurm.as_ref().is_some_and(|o| o.job == s.job) || observer.slurm_job.as_ref() == Some(&s.job)
    });
    // What ended cannot be cancelled any more.
    let ended = process.slurm_step_alive == Some(false);
    let place = Place {
        pod_uid: place.pod_uid.filter(|_| !same(&its.pod_uid, &ours.pod_uid)),
        container: place.container.filter(|_| its.container != ours.container && its.pod_uid.is_none()),
        slurm: place.slurm.filter(|_| !same_job && !ended),
        // Whoever is not what the unit was started for is ended alone: the unit does somebody's work.
        unit: place.unit.filter(|_| its.unit != ours.unit && process.leads_unit != Some(false)),
    };
    let owner = place::owner(&place, process.nspid.last().copied().filter(|_| process.nspid.len() > 1))?;
    let inside = place.pod_uid.is_some() || place.container.is_some();
    let first = if inside {
        inner_pid(process) == Some(1)
    } else {
        place.slurm.is_some() || Parent::of(process).may_have_adopted()
    };
    Some(End { command: owner.command, why: owner.why, disturbs: owner.disturbs, signal_first: !first })
}

fn words(pids: &[u32]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::tests::build::{ancestor, id, process};

    #[test]
    fn supervisord_is_told_by_the_name_that_it_gave() {
        let told = |comm: &str, variables: &[(&str, &str)]| {
            let mut worker = process(id(70, 5_000), vec![ancestor(id(50, 40), comm)], None);
            worker.environment = variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            of_supervisor(&worker).map(|end| end.command)
        };
        let named = |group| [("SUPERVISOR_PROCESS_NAME", "train_00"), ("SUPERVISOR_GROUP_NAME", group)];
        assert_eq!(told("supervisord", &named("train")).as_deref(), Some("supervisorctl stop train:train_00"));
        assert_eq!(told("supervisord", &named("train_00")).as_deref(), Some("supervisorctl stop train_00"));
        assert_eq!(told("bash", &named("train")), None, "a program of its has started this one");
        assert_eq!(told("supervisord", &[]), None);
        assert_eq!(told("supervisord", &named("a b;c")).as_deref(), Some("supervisorctl stop 'a b;c:train_00'"));
    }
}
