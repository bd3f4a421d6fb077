//! The machine around the driver: device files, what we can see of others, shared memory, the kernel's log, MPS.

use super::Lines;
use crate::{
    doctor::facts::{Access, Facts, Fill, Seen, Xid},
    judge::mps::{is_client, quit},
};
use std::{collections::BTreeMap, time::Duration};

/// Xid numbers that mean the card, the bus or the driver, not a program. The rest are mostly a program's own faults.
const HARDWARE: [(u32, &str); 10] = [
    (48, "a memory error that could not be corrected"),
    (63, "a row or page of memory was marked for repair"),
    (64, "marking memory for repair failed"),
    (74, "a fault of NVLink"),
    (79, "the GPU fell off the bus"),
    (92, "many corrected memory errors"),
    (94, "a contained memory error"),
    (95, "a memory error that was not contained"),
    (119, "the GPU's system processor did not answer"),
    (120, "the GPU's system processor reported an error"),
];
/// After these nothing works until a reset.
const BROKEN: [u32; 2] = [79, 95];
/// A log goes back to the boot; what is older than this is history.
const RECENT: Duration = Duration::from_secs(24 * 60 * 60);

/// Docker's default, which DataLoader workers fill at once.
const SMALL_SHM: u64 = 64 << 20;

pub(super) fn judge(facts: &Facts, lines: &mut Lines) {
    nodes(facts, lines);
    sight(facts, lines);
    match &facts.machine.shm {
        Seen::Hidden(why) => {
            lines.hidden("shm", why.clone());
        }
        Seen::As(fill) => shm(*fill, lines),
    }
    match &facts.machine.xids {
        Seen::Hidden(why) => {
            lines.hidden("xid", format!("Xid lines of the kernel's log: {why}")).fix =
                Some("sudo dmesg | grep -i xid".into());
        }
        Seen::As(xids) => xid(xids, lines),
    }
    mps(facts, lines);
}

fn nodes(facts: &Facts, lines: &mut Lines) {
    let no_driver = facts.driver.is_err() && facts.kernel.module.is_none();
    let nodes = &facts.machine.nodes;
    let mut all_well = true;
    for node in nodes {
        let path = node.path.display();
        match &node.access {
            Access::Granted => {}
            Access::Missing if no_driver => {
                all_well = false;
            }
            Access::Missing if node.path.ends_with("nvidia-uvm") => {
                all_well = false;
                lines.fail(
                    "permissions",
                    format!("{path} is missing, so no CUDA program can start"),
                    "sudo nvidia-modprobe -u -c=0",
                );
            }
            Access::Missing => {
                all_well = false;
                lines.fail("permissions", format!("{path} is missing"), "sudo nvidia-modprobe -c=0");
            }
            Access::Denied { mode, group } => {
                all_well = false;
                let fix = match group.as_deref() {
                    // Joining root's group would be more than asked for.
                    Some(group) if mode & 0o060 == 0o060 && group != "root" => {
                        format!("sudo usermod -aG {group} $USER")
                    }
                    _ => format!("ls -l {path}"),
                };
                lines.fail("permissions", format!("{path} may not be used by this user (mode {mode:03o})"), fix);
            }
        }
    }
    if all_well {
        lines.ok("permissions", format!("all {} device files may be used", nodes.len()));
    } else if no_driver {
        lines.hidden("permissions", "there are no device files to look at");
    }
}

fn sight(facts: &Facts, lines: &mut Lines) {
    let Some(observer) = &facts.observer else {
        lines.hidden("namespace.pid", "/proc could not be read");
        return;
    };
    match observer.initial_pid_namespace {
        Some(true) => {
            lines.ok("namespace.pid", "this is the machine's first PID namespace: every process can be seen");
        }
        Some(false) => {
            lines.warn(
                "namespace.pid",
                "this is a container or another private PID namespace: processes outside it cannot be seen, and may \
                 hold memory",
                "docker run --pid=host …",
            );
        }
        None => {
            lines.hidden("namespace.pid", "it could not be told whether this is the machine's first PID namespace");
        }
    }
    match facts.machine.initial_cgroup_namespace {
        Some(true) => {
            lines.ok(
                "namespace.cgroup",
                "this is the machine's first cgroup namespace: containers and units can be named",
            );
        }
        Some(false) => {
            lines.warn(
                "namespace.cgroup",
                "this is a private cgroup namespace: which container or unit a process belongs to can be seen only in \
                 part",
                "docker run --cgroupns=host …",
            );
        }
        None => {
            lines.hidden("namespace.cgroup", "the cgroup namespace could not be told");
        }
    }
    if observer.hidepid {
        lines.warn("hidepid", "/proc hides the processes of other users (hidepid)", "sudo gpuresid");
    } else {
        lines.ok("hidepid", "/proc hides no process from us");
    }
    if observer.uid != 0 {
        lines.hidden("privileges", "open files of other users' processes: only root may read them").fix =
            Some("sudo gpuresid".into());
    }
}

fn shm(fill: Fill, lines: &mut Lines) {
    let mib = |bytes: u64| bytes >> 20;
    let used = fill.total.saturating_sub(fill.free);
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    let percent = if fill.total == 0 { 0.0 } else { 100.0 * used as f64 / fill.total as f64 };
    let text = format!("/dev/shm: {percent:.0}% of {} MiB in use", mib(fill.total));
    if fill.total > 0 && percent >= 95.0 {
        lines.fail(
            "shm",
            format!("{text}: DataLoader workers and NCCL stop with a bus error"),
            "ls -lS /dev/shm | head",
        );
    } else if percent >= 80.0 {
        lines.warn("shm", text, "ls -lS /dev/shm | head");
    } else if fill.total <= SMALL_SHM {
        lines.warn("shm", format!("{text}: too small for DataLoader workers"), "docker run --shm-size=8g …");
    } else {
        lines.ok("shm", text);
    }
}

fn xid(xids: &[Xid], lines: &mut Lines) {
    let recent: Vec<&Xid> = xids.iter().filter(|xid| xid.ago.is_none_or(|ago| ago <= RECENT)).collect();
    if recent.is_empty() {
        let older = if xids.is_empty() { "" } else { " in the last day, but older ones" };
        lines.ok("xid", format!("the kernel's log has no Xid line{older}"));
        return;
    }
    let mut by_number: BTreeMap<u32, Vec<&Xid>> = BTreeMap::new();
    for xid in recent {
        by_number.entry(xid.number).or_default().push(xid);
    }
    for (number, all) in by_number {
        let meaning = HARDWARE.iter().find(|(n, _)| *n == number).map(|(_, meaning)| *meaning);
        let last = all.last().and_then(|xid| xid.ago);
        let last = last.map_or_else(String::new, |ago| format!(", last {} ago", words(ago)));
        let pci = all.last().and_then(|xid| xid.pci.as_deref()).map_or_else(String::new, |pci| format!(" on {pci}"));
        let times = if all.len() == 1 { "once".into() } else { format!("{} times", all.len()) };
        let text = format!("Xid {number}{pci}, {times}{last}: {}", meaning.unwrap_or("mostly a program's own fault"));
        let show = "sudo dmesg | grep -i xid";
        if BROKEN.contains(&number) {
            lines.fail("xid", text, show);
        } else {
            lines.warn("xid", text, show);
        }
    }
}

fn words(ago: Duration) -> String {
    match ago.as_secs() {
        s @ 0..=119 => format!("{s} s"),
        s @ 120..=7199 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

fn mps(facts: &Facts, lines: &mut Lines) {
    let mps = &facts.machine.mps;
    let told = facts.environment.contains_key("CUDA_MPS_PIPE_DIRECTORY");
    let directory = mps.directory.display();
    if mps.daemons.is_empty() && mps.servers.is_empty() {
        if told && mps.directory_exists {
            lines.warn(
                "mps",
                format!("CUDA_MPS_PIPE_DIRECTORY names {directory}, and no MPS daemon can be seen there"),
                "unset CUDA_MPS_PIPE_DIRECTORY",
            );
        } else if told {
            lines.warn(
                "mps",
                format!("CUDA_MPS_PIPE_DIRECTORY names {directory}, which is not there"),
                "unset CUDA_MPS_PIPE_DIRECTORY",
            );
        } else if mps.directory_exists {
            lines.ok("mps", format!("no MPS daemon is visible ({directory} is left from one)"));
        } else {
            lines.ok("mps", "MPS does not run");
        }
        return;
    }
    let clients = clients(facts);
    let used = match clients.as_slice() {
        [] => String::new(),
        clients => format!("; through it PID {} uses the GPU, and loses it when the service ends", list(clients)),
    };
    if mps.daemons.is_empty() {
        lines.warn(
            "mps",
            format!("an MPS server (PID {}) runs without its control daemon{used}", list(&mps.servers)),
            format!("kill {}", list(&mps.servers)),
        );
        return;
    }
    let mut text = format!("MPS runs (daemon PID {}", list(&mps.daemons));
    if !mps.servers.is_empty() {
        text += &format!(", server PID {}", list(&mps.servers));
    }
    text += &format!("): a little memory of an ended client stays with the server{used}");
    let pipes = mps.pipes.clone().or_else(|| told.then(|| directory.to_string()));
    lines.ok("mps", text).fix = Some(quit(pipes.as_deref()));
}

/// Whom the driver lists as a client of the service.
fn clients(facts: &Facts) -> Vec<u32> {
    let look = facts.driver.as_ref().ok().and_then(|driver| driver.look.as_ref().ok());
    let entries = look.iter().flat_map(|look| &look.devices).flat_map(|device| device.entries.iter().flatten());
    let mut clients: Vec<u32> = entries.filter(|e| is_client(e, &facts.machine.mps.servers)).map(|e| e.pid).collect();
    clients.sort_unstable();
    clients.dedup();
    clients
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
