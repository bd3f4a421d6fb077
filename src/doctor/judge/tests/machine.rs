//! Device files, sight, shared memory, the kernel's log, MPS.

use super::*;
use crate::model::{Entry, ListKind};

#[test]
fn device_files() {
    says("permissions", Level::Ok, "all 4 device files", |_| {});
    says("permissions", Level::Fail, "nvidia-modprobe -u", |f| f.machine.nodes[1].access = Access::Missing);
    says("permissions", Level::Fail, "/dev/nvidia0 is missing", |f| f.machine.nodes[2].access = Access::Missing);
    says("permissions", Level::Fail, "usermod -aG video", |f| {
        f.machine.nodes[2].access = Access::Denied { mode: 0o660, group: Some("video".into()) };
    });
    says("permissions", Level::Fail, "ls -l /dev/nvidia0", |f| {
        f.machine.nodes[2].access = Access::Denied { mode: 0o600, group: Some("root".into()) };
    });
    says("permissions", Level::CouldNotLook, "no device files", |f| {
        f.driver = Err(Failure { kind: FailureKind::NoDriver, message: "no".into(), hint: None });
        f.kernel.module = None;
        for node in &mut f.machine.nodes {
            node.access = Access::Missing;
        }
    });
}

#[test]
fn what_we_can_see_of_others() {
    fn observer(f: &mut Facts) -> &mut Observer {
        f.observer.as_mut().unwrap()
    }
    says("namespace.pid", Level::Warn, "--pid=host", |f| observer(f).initial_pid_namespace = Some(false));
    says("namespace.pid", Level::CouldNotLook, "could not be told", |f| observer(f).initial_pid_namespace = None);
    says("namespace.pid", Level::CouldNotLook, "/proc could not be read", |f| f.observer = None);
    says("namespace.cgroup", Level::Warn, "--cgroupns=host", |f| f.machine.initial_cgroup_namespace = Some(false));
    says("namespace.cgroup", Level::CouldNotLook, "could not", |f| f.machine.initial_cgroup_namespace = None);
    says("hidepid", Level::Warn, "sudo gpuresid", |f| observer(f).hidepid = true);
    says("privileges", Level::CouldNotLook, "only root", |f| observer(f).uid = 1000);
}

#[test]
fn shared_memory() {
    let fill = |total: u64, free: u64| move |f: &mut Facts| f.machine.shm = Seen::As(Fill { total, free });
    says("shm", Level::Ok, "12% of 8192 MiB", fill(8 << 30, 7 << 30));
    says("shm", Level::Warn, "85% of", fill(100 << 30, 15 << 30));
    says("shm", Level::Fail, "96% of", fill(100 << 30, 4 << 30));
    says("shm", Level::Warn, "--shm-size", fill(64 << 20, 64 << 20));
    says("shm", Level::CouldNotLook, "no such", |f| f.machine.shm = Seen::Hidden("no such".into()));
}

#[test]
fn xid_lines() {
    let xids = |list: &[(u32, Option<u64>)]| {
        let list = list
            .iter()
            .map(|(number, ago)| Xid {
                number: *number,
                pci: Some("0000:0a:00".into()),
                ago: ago.map(Duration::from_secs),
                text: String::new(),
            })
            .collect();
        move |f: &mut Facts| f.machine.xids = Seen::As(list)
    };
    says("xid", Level::Ok, "has no Xid line |", |_| {});
    says("xid", Level::Ok, "older ones", xids(&[(79, Some(90_000))]));
    says("xid", Level::Fail, "Xid 79 on 0000:0a:00, once, last 5 min ago: the GPU fell off", xids(&[(79, Some(300))]));
    says(
        "xid",
        Level::Warn,
        "Xid 43 on 0000:0a:00, 2 times, last 3 h ago: mostly a program",
        xids(&[(43, Some(20_000)), (43, Some(10_800))]),
    );
    says("xid", Level::Warn, "once: a memory error", xids(&[(48, None)]));
    says("xid", Level::CouldNotLook, "root only", |f| f.machine.xids = Seen::Hidden("root only".into()));
}

#[test]
fn mps() {
    says("mps", Level::Ok, "does not run", |_| {});
    says("mps", Level::Ok, "is left from one", |f| f.machine.mps.directory_exists = true);
    says("mps", Level::Warn, "which is not there", set("CUDA_MPS_PIPE_DIRECTORY", "/x"));
    says("mps", Level::Warn, "no MPS daemon can be seen there", |f| {
        f.machine.mps.directory_exists = true;
        f.environment.insert("CUDA_MPS_PIPE_DIRECTORY".into(), "/x".into());
    });
    says("mps", Level::Ok, "daemon PID 7, server PID 8", |f| {
        (f.machine.mps.daemons, f.machine.mps.servers) = (vec![7], vec![8]);
    });
    says("mps", Level::Warn, "kill 8", |f| f.machine.mps.servers = vec![8]);
}

#[test]
fn the_line_that_quits_mps_is_the_one_that_reaches_it_and_names_who_loses_the_gpu() {
    let runs = |f: &mut Facts| (f.machine.mps.daemons, f.machine.mps.servers) = (vec![7], vec![8]);
    says("mps", Level::Ok, "the server | echo quit | nvidia-cuda-mps-control", runs);
    says("mps", Level::Ok, "echo quit | CUDA_MPS_PIPE_DIRECTORY=/run/mps nvidia-cuda-mps-control", |f| {
        runs(f);
        f.machine.mps.pipes = Some("/run/mps".into());
    });
    let with_clients = |f: &mut Facts| {
        let entry = |pid, lists| Entry { pid, bytes: None, gi: None, ci: None, lists };
        let look = f.driver.as_mut().unwrap().look.as_mut().unwrap();
        look.devices[0].entries = Some(vec![
            entry(8, vec![ListKind::Compute]),
            entry(81, vec![ListKind::Compute, ListKind::Mps]),
            entry(82, vec![ListKind::Compute]),
        ]);
    };
    says("mps", Level::Ok, "; through it PID 81 uses the GPU, and loses it when the service ends", |f| {
        runs(f);
        with_clients(f);
    });
    says("mps", Level::Warn, "without its control daemon; through it PID 81 uses", |f| {
        f.machine.mps.servers = vec![8];
        with_clients(f);
    });
}
