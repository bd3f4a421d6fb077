//! Where a process belongs, read from its cgroup's path and a few variables, and the command that ends it there. Apart
//! from the causes, because it is a matter of how container runtimes, Slurm and systemd name things, which changes for
//! reasons of its own.
//!
//! Every name that becomes a part of a command is checked letter by letter: a cgroup is named by strangers.

use crate::{
    model::{Container, Place, Process, SlurmJob, Unit},
    text,
};

/// Where a process belongs; `None`: nothing tells.
pub(crate) fn place(process: &Process) -> Option<Place> {
    let mut place = process.cgroup.as_deref().map(of_cgroup).unwrap_or_default();
    if place.slurm.is_none()
        && let Some(job) = process.environment.get("SLURM_JOB_ID").filter(|job| is_number(job))
    {
        let step = process.environment.get("SLURM_STEP_ID").filter(|step| is_number(step)).cloned();
        // The batch script's step has a number of its own that no command takes.
        let step = step.filter(|step| step.len() < 9);
        place.slurm = Some(SlurmJob { job: job.clone(), step, by_environment: true });
    }
    (!place.is_empty()).then_some(place)
}

/// The number of the Slurm job that it belongs to, as Slurm's own commands take it.
pub(crate) fn job(process: &Process) -> Option<String> {
    let job = place(process)?.slurm?.job;
    let number = process.environment.get("SLURM_JOB_ID").filter(|number| is_sluid(&job) && is_number(number));
    Some(number.cloned().unwrap_or(job))
}

/// Where a cgroup's path says that its processes belong.
pub(crate) fn of_cgroup(path: &str) -> Place {
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty() && *s != "..").collect();
    Place { container: container(&segments), pod_uid: pod(&segments), slurm: slurm(&segments), unit: unit(&segments) }
}

/// The innermost container. Names of the runtimes' scopes, and bare ids below a directory that names the runtime.
fn container(segments: &[&str]) -> Option<Container> {
    let made = |id: &str, runtime: Option<&str>| {
        Some(Container { id: id.to_owned(), runtime: runtime.map(ToOwned::to_owned) })
    };
    segments.iter().enumerate().rev().find_map(|(at, segment)| {
        // `kubepods-….slice:cri-containerd:ID`: a runtime told to use systemd's names without using systemd.
        if let Some((left, id)) = segment.rsplit_once(':')
            && is_id(id)
        {
            return made(id, left.rsplit(':').next().and_then(runtime_of_prefix));
        }
        let name = segment.strip_suffix(".scope").unwrap_or(segment);
        if let Some((prefix, id)) = name.rsplit_once('-')
            && is_id(id)
        {
            // The monitor beside the container, not the container.
            if prefix.ends_with("conmon") {
                return None;
            }
            return made(id, runtime_of_prefix(prefix));
        }
        if is_id(name) {
            let above = segments.get(..at).unwrap_or_default();
            let in_pod = above.iter().any(|s| is_pod(s));
            let runtime = above.last().and_then(|s| match *s {
                "docker" | "ecs" | "buildkit" => Some("docker"),
                "libpod_parent" | "libpod" => Some("podman"),
                "default" | "moby" | "k8s.io" => Some("containerd"),
                _ if above.contains(&"ecs") => Some("docker"),
                _ => None,
            });
            // A bare id elsewhere may be anything; a directory of kubepods holds containers only.
            return (in_pod || runtime.is_some()).then(|| made(name, runtime)).flatten();
        }
        if let Some(name) = segment.strip_prefix("lxc.payload.").filter(|n| is_name(n)) {
            return made(name, Some("lxc"));
        }
        if at > 0 && segments.get(at - 1) == Some(&"lxc") && is_name(segment) {
            return made(segment, Some("lxc"));
        }
        let nspawn = segment
            .strip_prefix("systemd-nspawn@")
            .and_then(|s| s.strip_suffix(".service"))
            .or_else(|| segment.strip_prefix("machine-").and_then(|s| s.strip_suffix(".scope")));
        nspawn.filter(|n| is_name(n) && !n.contains('\\')).and_then(|name| made(name, Some("nspawn")))
    })
}

fn runtime_of_prefix(prefix: &str) -> Option<&'static str> {
    match prefix {
        "docker" => Some("docker"),
        "libpod" => Some("podman"),
        "cri-containerd" | "containerd" => Some("containerd"),
        "crio" => Some("crio"),
        "nerdctl" => Some("nerdctl"),
        _ => None,
    }
}

/// 64 hexadecimal digits, as all runtimes name containers (ECS: 32 and a number).
fn is_id(name: &str) -> bool {
    let hex = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    match name.split_once('-') {
        Some((task, number)) => task.len() == 32 && hex(task) && is_number(number),
        None => name.len() == 64 && hex(name),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit())
}

/// What stands in a command without quotes.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'@' | b':'))
}

fn is_pod(segment: &str) -> bool {
    pod_uid(segment).is_some()
}

/// `pod1b2c…`, `kubepods-burstable-pod1b2c_….slice`, and the same with a container behind a colon.
fn pod_uid(segment: &str) -> Option<String> {
    let name = segment.split(':').next().unwrap_or(segment);
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let uid = match name.rsplit_once("-pod") {
        Some((kubepods, uid)) if kubepods.contains("kubepods") => uid,
        _ => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let hex = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let plain = uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    (plain && hex == 32).then_some(uid)
}

fn pod(segments: &[&str]) -> Option<String> {
    let kubernetes = segments.iter().any(|s| s.contains("kubepods"));
    segments.iter().rev().filter(|_| kubernetes).find_map(|s| pod_uid(s))
}

/// `/slurm/uid_1000/job_123/step_0/task_0`, `/system.slice/slurmstepd.scope/job_123/step_0/user/task_0`; from 26.05 on
/// the job's directory may carry its SLUID.
fn slurm(segments: &[&str]) -> Option<SlurmJob> {
    let root = segments.iter().position(|s| {
        *s == "slurm" || s.starts_with("slurm_") || *s == "slurmstepd.scope" || s.ends_with("_slurmstepd.scope")
    })?;
    let below = segments.get(root + 1..)?;
    let (at, job) = below.iter().enumerate().find_map(|(at, s)| {
        let name = s.strip_prefix("job_").unwrap_or(s);
        let job = (s.starts_with("job_") && is_number(name)) || is_sluid(name);
        job.then(|| (at, name.to_owned()))
    })?;
    let step = below.get(at + 1).and_then(|s| s.strip_prefix("step_")).filter(|s| is_name(s));
    Some(SlurmJob { job, step: step.map(ToOwned::to_owned), by_environment: false })
}

/// `s` and 13 digits of Crockford's base 32.
fn is_sluid(name: &str) -> bool {
    let digit = |b: u8| b.is_ascii_digit() || (b.is_ascii_uppercase() && !matches!(b, b'I' | b'L' | b'O' | b'U'));
    name.len() == 14 && name.starts_with('s') && name.bytes().skip(1).all(digit)
}

/// Units whose processes are other people's work: to stop one would end more than was meant.
const HOSTS: [&str; 24] = [
    "atd",
    "containerd",
    "cri-o",
    "cri-docker",
    "cron",
    "crond",
    "dbus",
    "dbus-broker",
    "display-manager",
    "docker",
    "gdm",
    "gdm3",
    "getty",
    "jupyterhub",
    "k3s",
    "kubelet",
    "lightdm",
    "podman",
    "sddm",
    "slurmd",
    "snapd",
    "ssh",
    "sshd",
    "supervisor",
];

/// The service that a process is of. Sessions, slices, and units that only host what others start are none.
fn unit(segments: &[&str]) -> Option<Unit> {
    let manager = segments.iter().position(|s| s.starts_with("user@") && s.ends_with(".service"));
    let inside = segments.get(manager.map_or(0, |at| at + 1)..)?;
    let name = inside.iter().find(|s| s.ends_with(".service"))?;
    let stem = name.strip_suffix(".service").unwrap_or(name);
    let family = stem.split('@').next().unwrap_or(stem);
    let hosts = HOSTS.contains(&family) || family.starts_with("user") || family.starts_with("systemd-nspawn");
    // systemd escapes odd letters with a backslash, which wants quotes.
    let plain = name.split('\\').all(|part| part.is_empty() || is_name(part.trim_start_matches('-')));
    (!hosts && plain).then(|| Unit { name: (*name).to_owned(), of_user: manager.is_some() })
}

/// Services that run one job after the other: to stop one is never how a leftover of a job is ended.
const RUNNERS: [&str; 10] = [
    "act_runner",
    "actions.runner.",
    "buildkite-agent",
    "forgejo-runner",
    "gitea-runner",
    "gitlab-runner",
    "jenkins",
    "teamcity-agent",
    "vsts.agent.",
    "woodpecker-agent",
];

fn runs_jobs(unit: &str) -> bool {
    RUNNERS.iter().any(|runner| unit.starts_with(runner))
}

/// The command that ends a process where it belongs, and what else ends with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// To paste.
    pub(crate) command: String,
    /// Why a plain `kill` will not do.
    pub(crate) why: String,
    /// What is ended with it.
    pub(crate) disturbs: String,
}

/// Who owns the process, as far as a command can reach it. `inner_pid` is its number inside its PID namespace.
pub(crate) fn owner(place: &Place, inner_pid: Option<u32>) -> Option<Owner> {
    let made = |command: String, why: &str, disturbs: String| Some(Owner { command, why: why.into(), disturbs });
    if let Some(uid) = &place.pod_uid {
        return made(
            format!(
                "kubectl get pods -A -o jsonpath='{{range .items[?(@.metadata.uid==\"{uid}\")]}}-n {{.metadata.namespace}} \
                 {{.metadata.name}}{{end}}' | xargs -r kubectl delete pod"
            ),
            "delete the pod by its UID: what is killed inside it is started again",
            format!("everything in pod {uid}"),
        );
    }
    if let Some(container) = &place.container {
        let short = container.short();
        let command = match container.runtime.as_deref() {
            Some("docker") => format!("docker stop {short}"),
            Some("podman") => format!("podman stop {short}"),
            Some("nerdctl") => format!("nerdctl stop {short}"),
            Some("crio") => format!("crictl stop {short}"),
            Some("containerd") => format!("crictl stop {short} || nerdctl stop {short}"),
            Some("lxc") => format!("lxc-stop -n {}", container.id),
            Some("nspawn") => format!("machinectl terminate {}", container.id),
            _ => return None,
        };
        let why = match inner_pid {
            Some(1) => "stop the container whose main process it is: a restart policy starts a killed one again",
            _ => "stop its container, which may start it again when it alone is killed",
        };
        return made(command, why, format!("everything in container {short}"));
    }
    if let Some(slurm) = &place.slurm {
        let job = &slurm.job;
        let (target, what) = match slurm.step.as_deref().filter(|step| is_number(step)) {
            Some(step) => (format!("{job}.{step}"), format!("step {step} of Slurm job {job}, on all of its machines")),
            None => (job.clone(), format!("Slurm job {job}, on all of its machines")),
        };
        return made(format!("scancel {target}"), "cancel it through Slurm, which knows all of its processes", what);
    }
    let unit = place.unit.as_ref().filter(|unit| !runs_jobs(&unit.name))?;
    made(
        systemctl("stop", unit)?,
        "stop the service it belongs to: systemd may start a killed one again",
        format!("the service {}", unit.name),
    )
}

/// The command that does this with a service; `None`: its name cannot be pasted.
pub(crate) fn systemctl(verb: &str, unit: &Unit) -> Option<String> {
    let scope = if unit.of_user { "--user " } else { "" };
    text::shell_word(&unit.name).map(|name| format!("systemctl {scope}{verb} {name}"))
}

#[cfg(test)]
mod tests;
