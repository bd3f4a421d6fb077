//! Paths of cgroups as runtimes, Kubernetes, Slurm and systemd make them, and some that only look so.

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
