//! Where a process belongs, read from its cgroup's path and a few variables, and the command that ends it there. Apart
//! from the causes, because it is a matter of how container runtimes, Slurm and systemd name things, which changes for
//! reasons of its own.
//!
//! Every name that becomes a part of a command is checked letter by letter: a cgroup is named by strangers.

use crate::model::{Container, Place, Process, SlurmJob, Unit};

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
    let unit = place.unit.as_ref()?;
    let scope = if unit.of_user { "--user " } else { "" };
    // Quoted where systemd's escapes need it.
    let name = if unit.name.contains('\\') { format!("'{}'", unit.name) } else { unit.name.clone() };
    made(
        format!("systemctl {scope}stop {name}"),
        "stop the service it belongs to: systemd may start a killed one again",
        format!("the service {}", unit.name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "11111111-2222-3333-4444-555555555555";

    fn found(path: &str) -> (Option<String>, Option<String>) {
        let place = of_cgroup(&path.replace("ID", ID));
        let container = place.container.map(|c| {
            assert!(c.id == ID || !c.id.starts_with('0'), "{path}: {}", c.id);
            c.runtime.unwrap_or_else(|| "?".into())
        });
        (container, place.pod_uid)
    }

    #[test]
    fn containers() {
        for (path, runtime) in [
            ("/docker/ID", "docker"),
            ("/system.slice/docker-ID.scope", "docker"),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope", "docker"),
            ("/docker/ID/docker/ID", "docker"),
            ("/../../docker/ID", "docker"),
            ("/docker/ID/system.slice/train.service", "docker"),
            ("/ecs/89abcdef0123456789abcdef01234567/ID", "docker"),
            ("/machine.slice/libpod-ID.scope", "podman"),
            ("/machine.slice/libpod-ID.scope/container", "podman"),
            ("/libpod_parent/ID", "podman"),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container", "podman"),
            ("/system.slice/nerdctl-ID.scope", "nerdctl"),
            ("/default/ID", "containerd"),
            ("/system.slice/crio-ID.scope", "crio"),
            ("/lxc.payload.gpubox/system.slice", "lxc"),
            ("/lxc/gpubox", "lxc"),
            ("/machine.slice/systemd-nspawn@lab.service/payload", "nspawn"),
            ("/machine.slice/machine-lab.scope", "nspawn"),
        ] {
            assert_eq!(found(path).0.as_deref(), Some(runtime), "{path}");
        }
        for path in [
            "/",
            "",
            "/user.slice/user-1000.slice/session-3.scope",
            "/machine.slice/libpod-conmon-ID.scope",
            "/system.slice/crio-conmon-ID.scope",
            "/memory/ID",
            "/docker",
            "/docker/0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef",
            "/docker/0123456789abcdef",
            "/lxc/$(reboot)",
        ] {
            assert_eq!(found(path).0, None, "{path}");
        }
    }

    #[test]
    fn pods() {
        for (path, runtime) in [
            (format!("/kubepods/burstable/pod{UID}/ID"), "?"),
            (format!("/kubepods/pod{UID}/ID"), "?"),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice/\
                 cri-containerd-ID.scope"
                    .into(),
                "containerd",
            ),
            (
                "/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/crio-ID.scope/container".into(),
                "crio",
            ),
            (
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod11111111_2222_3333_4444_555555555555.slice/\
                 docker-ID.scope"
                    .into(),
                "docker",
            ),
            (
                "/system.slice/containerd.service/kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice:\
                 cri-containerd:ID"
                    .into(),
                "containerd",
            ),
            (
                "/docker/ID/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
                 kubelet-kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-ID.scope"
                    .into(),
                "containerd",
            ),
            (format!("/kubelet/kubepods/burstable/pod{UID}/ID"), "?"),
        ] {
            assert_eq!(found(&path), (Some(runtime.into()), Some(UID.into())), "{path}");
        }
        // A static pod's UID is a hash.
        let hash = "aabbccddeeff00112233445566778899";
        assert_eq!(of_cgroup(&format!("/kubepods/pod{hash}/x")).pod_uid.as_deref(), Some(hash));
        for path in ["/podman/x", "/system.slice/pod11.service", &format!("/user.slice/pod{UID}"), "/kubepods/podbay"] {
            assert_eq!(of_cgroup(path).pod_uid, None, "{path}");
        }
    }

    #[test]
    fn jobs() {
        for (path, job, step) in [
            ("/slurm/uid_1000/job_123/step_0/task_0", "123", Some("0")),
            ("/slurm/uid_1000/job_123/step_batch", "123", Some("batch")),
            ("/slurm/uid_0/job_5/step_extern/task_0", "5", Some("extern")),
            ("/slurm_node07/uid_1000/job_77/step_2", "77", Some("2")),
            ("/slurm/uid_1000/job_9", "9", None),
            ("/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", "123", Some("0")),
            ("/system.slice/slurmstepd.scope/job_123/step_interactive/user/task_0", "123", Some("interactive")),
            ("/system.slice/node07_slurmstepd.scope/job_4/step_1/slurm", "4", Some("1")),
            ("/system.slice/slurmstepd.scope/s6AZ14HJSKB800/step_0/user/task_0", "s6AZ14HJSKB800", Some("0")),
            ("/system.slice/slurmstepd.scope/job_s6AZ14HJSKB800/step_0", "s6AZ14HJSKB800", Some("0")),
        ] {
            let slurm = of_cgroup(path).slurm.unwrap_or_else(|| panic!("{path}"));
            assert_eq!((slurm.job.as_str(), slurm.step.as_deref()), (job, step), "{path}");
            assert!(!slurm.by_environment);
        }
        for path in [
            "/system.slice/slurmd.service",
            "/system.slice/slurmstepd.scope/system",
            "/user.slice/job_7/step_0",
            "/slurm/uid_1000/job_;reboot/step_0",
            "/slurm/s6AZ14HJSKB80U/step_0",
        ] {
            assert_eq!(of_cgroup(path).slurm, None, "{path}");
        }
    }

    #[test]
    fn units() {
        for (path, name, of_user) in [
            ("/system.slice/tritonserver.service", "tritonserver.service", false),
            ("/system.slice/system-vllm.slice/vllm@7.service", "vllm@7.service", false),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/train.service", "train.service", true),
            ("/system.slice/run-r5c1d.service", "run-r5c1d.service", false),
            ("/system.slice/nvidia-persistenced.service", "nvidia-persistenced.service", false),
            ("/system.slice/my\\x2dtrain.service/sub", "my\\x2dtrain.service", false),
        ] {
            let unit = of_cgroup(path).unit.unwrap_or_else(|| panic!("{path}"));
            assert_eq!((unit.name.as_str(), unit.of_user), (name, of_user), "{path}");
        }
        for path in [
            "/user.slice/user-1000.slice/session-3.scope",
            "/user.slice/user-1000.slice/user@1000.service/init.scope",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-code-12.scope",
            "/system.slice/cron.service",
            "/system.slice/ssh.service",
            "/system.slice/slurmd.service",
            "/system.slice/containerd.service",
            "/system.slice/system-getty.slice/getty@tty1.service",
            "/system.slice/$(reboot).service",
            "/init.scope",
            "/",
        ] {
            assert_eq!(of_cgroup(path).unit, None, "{path}");
        }
    }

    fn command(path: &str, inner: Option<u32>) -> Option<String> {
        owner(&of_cgroup(&path.replace("ID", ID)), inner).map(|o| o.command)
    }

    #[test]
    fn the_command_of_the_owner() {
        for (path, expected) in [
            ("/docker/ID", "docker stop 0123456789ab"),
            ("/machine.slice/libpod-ID.scope/container", "podman stop 0123456789ab"),
            ("/system.slice/crio-ID.scope", "crictl stop 0123456789ab"),
            ("/lxc.payload.gpubox", "lxc-stop -n gpubox"),
            ("/machine.slice/machine-lab.scope", "machinectl terminate lab"),
            ("/slurm/uid_1000/job_123/step_0/task_0", "scancel 123.0"),
            ("/slurm/uid_1000/job_123/step_batch", "scancel 123"),
            ("/system.slice/tritonserver.service", "systemctl stop tritonserver.service"),
            ("/user.slice/user@1000.service/app.slice/train.service", "systemctl --user stop train.service"),
            ("/system.slice/my\\x2dtrain.service", "systemctl stop 'my\\x2dtrain.service'"),
        ] {
            assert_eq!(command(path, None).as_deref(), Some(expected), "{path}");
        }
        let pod = command(&format!("/kubepods/burstable/pod{UID}/ID"), Some(1)).expect("a pod has an owner");
        assert!(pod.contains(&format!("uid==\"{UID}\"")) && pod.ends_with("| xargs -r kubectl delete pod"), "{pod}");
        assert_eq!(command("/user.slice/session-1.scope", None), None);
    }
}
