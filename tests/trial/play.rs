//! Plays a plan with real processes on a fake machine, and collects what the judge of the trial needs.

use crate::{
    plan::{Being, Deed, Left, Leftover, Neighbour, Plan, Trouble},
    support::{Fault, Rig, Running, alive, wait_until},
};
use serde_json::Value;
use std::{fs, path::Path};

/// What came out.
pub(crate) struct Played {
    pub(crate) report: Value,
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
    /// The PID that should be named for each leftover.
    pub(crate) leftovers: Vec<Option<u32>>,
    /// Processes of the command that were told to end with it.
    pub(crate) enders: Vec<u32>,
    /// The living PIDs of each neighbour.
    pub(crate) neighbours: Vec<u32>,
}

/// A driver error that names no reason (`NVML_ERROR_UNKNOWN`).
const UNKNOWN: u32 = 999;

pub(crate) fn play(plan: &Plan) -> Played {
    let rig = Rig::with_gpus(plan.gpus as u32);
    trouble_from_the_start(&rig, plan);
    let mut running: Vec<Running> = Vec::new();
    for (n, neighbour) in plan.neighbours.iter().enumerate().filter(|(_, n)| !n.late) {
        running.push(rig.start(&neighbour_verbs(n, neighbour)));
        rig.wait_for(&format!("there-{n}"));
    }
    for (n, left) in plan.leftovers.iter().enumerate() {
        if let Some(verbs) = keeper_verbs(n, left) {
            running.push(rig.start(&verbs));
            rig.wait_for(&format!("keeper-{n}"));
        }
    }
    let options = format!(
        "--settle {}ms --sample {}ms --report {}",
        plan.settle_ms,
        plan.sample_ms,
        rig.path("report.json").display(),
    );
    let check = rig.spawn_check(&options, &command_verbs(plan));
    rig.wait_for("up");
    for n in 0..plan.leftovers.len() {
        rig.wait_for(&format!("up-{n}"));
    }
    for n in plan.leftovers.iter().enumerate().filter(|(_, left)| is_shared(left.kind)).map(|(n, _)| n) {
        rig.wait_for(&format!("kept-{n}"));
    }
    look(&rig, plan);
    hand_over(&rig, plan);
    match plan.trouble {
        Trouble::FailsMeanwhile(gpu) => fails(&rig, "nvmlDeviceGetMemoryInfo*", gpu),
        Trouble::ListsFailMeanwhile(gpu) => fails(&rig, "nvmlDeviceGetComputeRunningProcesses*", gpu),
        _ => {}
    }
    for (n, neighbour) in plan.neighbours.iter().enumerate().filter(|(_, n)| n.late) {
        running.push(rig.start(&neighbour_verbs(n, neighbour)));
        rig.wait_for(&format!("there-{n}"));
    }
    look(&rig, plan);
    rig.mark("deeds");
    for (n, neighbour) in plan.neighbours.iter().enumerate() {
        if neighbour.deed == Deed::Ends {
            let pid = rig.wait_for(&format!("there-{n}"));
            wait_until("a neighbour to end", || !alive(pid));
        } else if neighbour.deed != Deed::Nothing {
            rig.wait_for(&format!("done-{n}"));
        }
    }
    match plan.trouble {
        Trouble::FailsMeanwhile(_) | Trouble::ListsFailMeanwhile(_) => rig.clear_faults(),
        Trouble::Lost(gpu) => rig.lose_gpu(gpu),
        _ => {}
    }
    look(&rig, plan);
    rig.mark("go");
    let reusing = if plan.reuses { reuse_numbers(&rig, plan) } else { Vec::new() };
    let end = check.wait();
    let innocents = (0..plan.leftovers.len()).filter(|n| rig.path(format!("innocent-{n}")).exists());
    let innocents = innocents.map(|n| rig.wait_for(&format!("up-{n}")));
    let up = |(n, _): (usize, &Leftover)| rig.wait_for(&format!("up-{n}"));
    Played {
        report: rig.report("report.json"),
        code: end.code,
        stderr: end.stderr,
        leftovers: plan.leftovers.iter().enumerate().map(|(n, left)| culprit(&rig, n, left)).collect(),
        enders: plan.leftovers.iter().enumerate().filter(|(_, left)| ends(left.kind)).map(up).collect(),
        neighbours: (0..plan.neighbours.len())
            .flat_map(|n| bearers(&rig, n))
            .chain(running.iter().chain(&reusing).map(Running::pid).filter(|pid| alive(*pid)))
            .chain(innocents)
            .collect(),
    }
}

/// The exporters of handles end before the command does, so that what they leave is there all the time.
fn hand_over(rig: &Rig, plan: &Plan) {
    rig.mark("hand-over");
    for (n, _) in plan.leftovers.iter().enumerate().filter(|(_, left)| left.kind == Left::ExportedHandle) {
        let exporter = rig.wait_for(&format!("up-{n}"));
        wait_until("an exporter to end", || !alive(exporter));
    }
}

/// It ends when the command does.
fn ends(kind: Left) -> bool {
    use Left::{DrainsInTime, DrainsLate, ForkedCopy, InSocket, Worker};
    matches!(kind, ForkedCopy | DrainsInTime | DrainsLate | Worker | InSocket) || is_shared(kind)
}

fn is_shared(kind: Left) -> bool {
    matches!(kind, Left::Shared | Left::SharedRaw)
}

/// Who keeps what the command hands over.
fn keeper_verbs(n: usize, left: &Leftover) -> Option<String> {
    match left.kind {
        Left::Shared | Left::SharedRaw => {
            Some(format!("context {} ready keeper-{n} ipc-consume share-{n} ready kept-{n} hold", left.gpu))
        }
        Left::InSocket => Some(format!("listen socket-{n} ready keeper-{n} hold")),
        _ => None,
    }
}

/// Once a parent of a copy is gone and waited for, its number is given to a `sleep` that has nothing to do with it, where
/// the system lets us choose.
fn reuse_numbers(rig: &Rig, plan: &Plan) -> Vec<Running> {
    let copies = plan.leftovers.iter().enumerate().filter(|(_, left)| left.kind == Left::ForkedCopy);
    let reuse = |n| rig.start(&format!("sleep-as {} ready innocent-{n} hold", rig.wait_for(&format!("up-{n}"))));
    copies.map(|(n, _)| reuse(n)).collect()
}

fn trouble_from_the_start(rig: &Rig, plan: &Plan) {
    let (function, delay_ms) = match plan.trouble {
        Trouble::SlowMemory(ms) => ("nvmlDeviceGetMemoryInfo*", ms),
        Trouble::SlowLists(ms) => ("nvmlDeviceGetComputeRunningProcesses*", ms),
        _ => return,
    };
    rig.fault(Fault { function: function.into(), delay_ms, ..Fault::default() });
}

fn fails(rig: &Rig, function: &str, gpu: usize) {
    rig.fault(Fault { function: function.into(), device: Some(gpu), code: Some(UNKNOWN), ..Fault::default() });
}

/// Gives the tool the time to see what is there, unless the run is a hasty one.
fn look(rig: &Rig, plan: &Plan) {
    if !plan.hasty {
        rig.wait_for_looks();
    }
}

/// The verbs of the command and of everything that it leaves.
fn command_verbs(plan: &Plan) -> String {
    let mut verbs = plan.command.map_or_else(String::new, |(gpu, mib)| format!("alloc {gpu} {mib}MiB "));
    for (n, Leftover { kind, gpu, mib }) in plan.leftovers.iter().enumerate() {
        let (up, alloc, go) = (format!("ready up-{n}"), format!("alloc {gpu} {mib}MiB"), "wait-file go");
        let (soon, late) = (plan.settle_ms / 3, plan.settle_ms * 20);
        verbs += &match kind {
            Left::Orphan => format!("spawn-session {{ {alloc} {up} hold }} "),
            Left::CleanEnvironment => format!("spawn-clean {{ {alloc} {up} hold }} "),
            Left::Daemon => format!("daemonize-twice {{ rename innocent {alloc} {up} hold }} "),
            Left::Titled => format!("spawn-session {{ settitle ray::worker {alloc} {up} hold }} "),
            // As long as a session is named after it, nobody else gets its number.
            Left::ForkedCopy => {
                let spawn = if plan.reuses { "spawn" } else { "spawn-session" };
                format!("{spawn} {{ {alloc} {up} {go} fork-and-exit ready copy-{n} hold }} ")
            }
            Left::ForkOfCommand => format!("fork {{ {up} hold }} "),
            Left::HalfDead => format!("spawn-session {{ {alloc} exit-main-thread {up} hold }} "),
            Left::Stopped => format!("spawn-session {{ {alloc} {up} stop-self hold }} "),
            Left::ExportedHandle => {
                format!("spawn-session {{ export-handle {gpu} {mib}MiB {up} wait-file hand-over }} ")
            }
            Left::Managed => format!("spawn-session {{ managed {gpu} {mib}MiB {up} hold }} "),
            Left::DrainsInTime => format!("spawn {{ {alloc} late {gpu} 0:{mib}MiB,{soon}:0B {up} {go} }} "),
            Left::DrainsLate => format!("spawn {{ {alloc} late {gpu} 0:{mib}MiB,{late}:0B {up} {go} }} "),
            Left::Server => format!("spawn-session {{ {up} hold }} "),
            Left::Opener => format!("spawn-session {{ init {up} hold }} "),
            Left::Worker => format!("spawn {{ {alloc} {up} {go} }} "),
            Left::Shared => format!("spawn {{ ipc-produce {gpu} {mib}MiB share-{n} {up} {go} }} "),
            Left::SharedRaw => format!("spawn {{ ipc-produce-raw {gpu} {mib}MiB share-{n} {up} {go} }} "),
            Left::InSocket => format!("spawn {{ send-handle {gpu} {mib}MiB socket-{n} {up} {go} }} "),
        };
    }
    verbs + &format!("ready up wait-file go exit {}", plan.exit_code)
}

fn neighbour_verbs(n: usize, neighbour: &Neighbour) -> String {
    let Neighbour { gpu, mib, more_mib, .. } = neighbour;
    let deed = match neighbour.deed {
        Deed::Nothing => "hold".into(),
        Deed::Grows => format!("alloc {gpu} {more_mib}MiB ready done-{n} hold"),
        Deed::Shrinks => format!("free {gpu} {mib}MiB ready done-{n} hold"),
        Deed::TouchesManaged => format!("managed {gpu} {more_mib}MiB ready done-{n} hold"),
        Deed::FreesManaged => format!("managed {gpu} -{mib}MiB ready done-{n} hold"),
        Deed::GrowsAtTheEnd => format!("ready done-{n} wait-file go alloc {gpu} {more_mib}MiB hold"),
        Deed::TouchesAtTheEnd => format!("ready done-{n} wait-file go managed {gpu} {more_mib}MiB hold"),
        Deed::Ends => "exit 0".into(),
        Deed::LeavesCopy => format!("fork-and-exit ready done-{n} hold"),
    };
    let being = match neighbour.being {
        Being::Plain => format!("alloc {gpu} {mib}MiB"),
        Being::Managed => format!("managed {gpu} {mib}MiB"),
        Being::Ghost => format!("alloc {gpu} {mib}MiB fork-and-exit"),
        Being::Monitor => "nvml".into(),
    };
    format!("{being} ready there-{n} wait-file deeds {deed}")
}

/// Who should be named for a leftover, if anybody.
fn culprit(rig: &Rig, n: usize, left: &Leftover) -> Option<u32> {
    let up = rig.wait_for(&format!("up-{n}"));
    match left.kind {
        Left::ForkedCopy => Some(rig.wait_for(&format!("copy-{n}"))),
        Left::ExportedHandle => heir(rig, up),
        kind if ends(kind) => None,
        _ => Some(up),
    }
}

/// The `sleep` that inherited a handle from this process: the one that keeps the heir's lock file open.
fn heir(rig: &Rig, exporter: u32) -> Option<u32> {
    let directory = rig.ledger.directory().join("allocations");
    let of_exporter = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.contains(&format!("-{exporter}-")) && name.contains("-heir-") && name.ends_with(".lock")
    };
    let started = fs::read_to_string(rig.ledger.directory().join("started.log")).unwrap();
    started.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).find(|pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        *pid != exporter && targets.any(|target| target.starts_with(&directory) && of_exporter(&target))
    })
}

/// The living processes of a neighbour.
fn bearers(rig: &Rig, n: usize) -> Vec<u32> {
    let markers = [format!("there-{n}"), format!("done-{n}")];
    let there = markers.iter().filter(|marker| rig.path(marker).exists());
    let mut pids: Vec<u32> = there.map(|marker| rig.wait_for(marker)).filter(|pid| alive(*pid)).collect();
    pids.dedup();
    pids
}
