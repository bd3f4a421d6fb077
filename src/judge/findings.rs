//! What else a reader should know.

use super::{
    cause::NOTICEABLE, device::Judged, elsewhere, entries::Keeper, grown, run::Run, scene::Scene, unattributed,
};
use crate::{
    model::{
        Bytes, Cause, Device, DeviceIdentity, End, Finding, FindingKind, Holder, Lineage, ProcId, Process,
        ProcessState, Scope, SettleEnd, SystemPages, Uuid,
    },
    text,
};

fn finding(kind: FindingKind, device: Option<&Uuid>, bytes: Option<Bytes>, text: String) -> Finding {
    Finding::new(kind, device.cloned(), bytes, text)
}

/// The findings of a run.
pub(crate) fn of_run(run: &Run<'_>, scene: &Scene<'_>, judged: &[Judged], holders: &[Holder]) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(died(run));
    let not_looked_at = elsewhere::not_looked_at(run, scene);
    found.extend(still_running(run, holders, not_looked_at.is_some()));
    found.extend(not_looked_at);
    found.extend(output_kept(run));
    found.extend(full(run, scene, judged));
    for device in judged {
        let uuid = &device.report.uuid;
        let parts = &device.parts;
        let growth = parts.excess_growth.unwrap_or_default();
        let theirs = growth.saturating_sub(parts.unlisted.certain);
        if theirs > run.limits.max_unattributed && !mig_parent(scene, uuid) {
            let why = match scene.snapshot.device(uuid).filter(|d| d.identity.system_pages() != SystemPages::No) {
                Some(d) => format!("It may be nobody's: {}; so", unattributed::system_pages(&d.identity)),
                None => "Others use this GPU or could not be inspected, so".to_owned(),
            };
            let to = if run.compares() { "" } else { " to the command" };
            let text = format!(
                "{growth} more are in use than before and belong to no listed process. {why} this memory is not charged{to}."
            );
            let finding = finding(FindingKind::Unattributed, Some(uuid), Some(growth), text);
            found.push(explained(scene, uuid, finding));
        }
        let moved = parts.listed_elsewhere.certain + parts.listed_elsewhere.possible;
        if moved.0 > 0 {
            let how = if parts.listed_elsewhere.certain.0 > 0 {
                "that shares memory with a process of the command"
            } else {
                "that grew when a process of the command ended"
            };
            found.push(finding(
                FindingKind::Moved,
                Some(uuid),
                Some(moved),
                format!("{moved} are now listed with a process of others {how}."),
            ));
        }
    }
    found.extend(grown::grown(run, scene, holders));
    found.extend(mps(scene, holders));
    found.extend(draining(run, scene, judged, holders));
    found.extend(client(run, judged));
    found.extend(xids(run));
    found.extend(reused(scene));
    found.extend(out_of_sight(scene, true));
    found.extend(new_devices(run));
    found.extend(few_looks(run));
    found
}

/// A peak that nobody saw is not a small one.
fn few_looks(run: &Run<'_>) -> Option<Finding> {
    let taken = run.after.devices.iter().filter_map(|d| run.too_few_looks(&d.identity.uuid)).min()?;
    let text = match taken {
        0 => "No look was taken while the command ran, so how much GPU memory it used is not known".to_owned(),
        1 => "Only one look was taken while the command ran, so it may have used more than was seen".to_owned(),
        n => format!("Only {n} looks were taken while the command ran, so it may have used more than was seen"),
    };
    Some(finding(FindingKind::Note, None, None, format!("{text}: a shorter `--sample` would tell.")))
}

/// Devices that were not there before: there is nothing to compare them with.
fn new_devices(run: &Run<'_>) -> Option<Finding> {
    let new: Vec<_> = run.before.newcomers(run.after.present()).map(DeviceIdentity::label).collect();
    let (was, whose) = if new.len() == 1 { ("was", "its") } else { ("were", "their") };
    let text = || format!("{} {was} not there before, so nothing can be said about {whose} memory.", new.join(", "));
    (!new.is_empty()).then(|| finding(FindingKind::Note, None, None, text()))
}

/// Errors that the driver reported, each kind once a device.
fn xids(run: &Run<'_>) -> Vec<Finding> {
    let mut counted: Vec<(Option<&Uuid>, u64, usize)> = Vec::new();
    for event in &run.trace.events {
        let uuid = event.uuid.as_ref();
        match counted.iter_mut().find(|(of, xid, _)| *of == uuid && *xid == event.xid) {
            Some((_, _, times)) => *times += 1,
            None => counted.push((uuid, event.xid, 1)),
        }
    }
    counted
        .into_iter()
        .map(|(uuid, xid, times)| {
            let place = if uuid.is_some() { "" } else { " on a GPU" };
            let often = if times == 1 { String::new() } else { format!(" {times} times") };
            let text = format!(
                "the driver reported error Xid {xid}{place}{often} during the run (see `dmesg | grep -i xid`)."
            );
            finding(FindingKind::Xid, uuid, None, text)
        })
        .collect()
}

/// The findings of a single look.
pub(crate) fn of_snapshot(scene: &Scene<'_>, holders: &[Holder]) -> Vec<Finding> {
    let mut found = Vec::new();
    for device in scene.snapshot.devices.iter().filter(|d| !d.identity.mig_parent) {
        let Some(excess) = super::accounting::excess(&device.look) else { continue };
        let excess = Bytes::at_least_zero(excess);
        if excess <= NOTICEABLE {
            continue;
        }
        let suspects: Vec<_> = holders
            .iter()
            .filter(|h| h.devices.iter().all(|d| d.held_bytes.is_none()) || h.cause == Cause::ExportedHandle)
            .map(|h| h.pid.to_string())
            .collect();
        let mut text = format!("{excess} are in use that no listed process explains.");
        if !suspects.is_empty() {
            text.push_str(&format!(" Unlisted processes that may keep it: PID {}.", suspects.join(", ")));
        }
        let uuid = &device.identity.uuid;
        found.push(explained(scene, uuid, finding(FindingKind::Unattributed, Some(uuid), Some(excess), text)));
    }
    found.extend(mps(scene, holders));
    found.extend(busy_without_memory(scene));
    found.extend(platform(scene));
    found.extend(reused(scene));
    found.extend(out_of_sight(scene, false));
    found
}

/// With what can be behind it and what cannot.
fn explained(scene: &Scene<'_>, uuid: &Uuid, finding: Finding) -> Finding {
    let Some(device) = scene.snapshot.device(uuid) else { return finding };
    let unattributed::Explanation { possible, excluded } = unattributed::explain(scene, device);
    Finding { possible, excluded, ..finding }
}

/// Servers of the multi-process service keep a context while no client is there.
fn mps(scene: &Scene<'_>, holders: &[Holder]) -> Vec<Finding> {
    let servers = holders.iter().filter(|h| h.cause == Cause::MpsServer);
    servers
        .map(|server| {
            // Without its daemon nobody can be told to quit.
            let end = format!("kill {}", server.pid);
            let quit = server.ends_with.as_deref().unwrap_or(&end);
            let user = server.user.as_deref().unwrap_or("its user");
            let text = format!(
                "The MPS server (PID {}) keeps {} for the programs that share the GPU through it. It is meant to stay; to be \
                 rid of it, {user} runs `{quit}`.",
                server.pid,
                server.held()
            );
            let device = server.devices.first().map(|d| &d.uuid).filter(|_| scene.snapshot.devices.len() > 1);
            finding(FindingKind::MpsServer, device, Some(server.held()), text)
        })
        .collect()
}

/// A GPU that is said to work while nobody has memory on it.
fn busy_without_memory(scene: &Scene<'_>) -> Vec<Finding> {
    /// Less is the driver's own housekeeping.
    const BUSY: u32 = 10;
    let idle_lists = |d: &&Device| {
        d.look.entries.as_ref().is_some_and(Vec::is_empty) && d.look.used().is_some_and(|used| used <= NOTICEABLE)
    };
    let busy = |d: &Device| d.look.utilization_percent.filter(|percent| *percent >= BUSY);
    let devices = scene.snapshot.devices.iter().filter(|d| !d.identity.mig_parent).filter(idle_lists);
    devices
        .filter_map(|d| {
            let percent = busy(d)?;
            let text = format!(
                "it is reported to be {percent}% busy while nobody holds memory on it. That is the figure for the last \
                 second, so a process may just have ended; if it stays so, the GPU hangs (see `dmesg | grep -i xid`)."
            );
            Some(finding(FindingKind::Utilization, Some(&d.identity.uuid), None, text))
        })
        .collect()
}

/// Where the platform keeps numbers to itself.
fn platform(scene: &Scene<'_>) -> Vec<Finding> {
    let devices = scene.snapshot.devices.iter().filter(|d| !d.identity.mig_parent);
    devices
        .filter_map(|d| {
            let entries = d.look.entries.as_ref()?;
            let silent = entries.iter().filter(|e| e.bytes.is_none()).count();
            let text = if d.look.memory.is_none() {
                format!(
                    "the driver lists {} and does not tell how much memory is in use, as on platforms where \
                     GPU and CPU share their memory.",
                    text::count(entries.len(), "process", "processes")
                )
            } else if silent > 0 {
                format!(
                    "the driver does not tell how much {silent} of its processes hold, as under WSL, on virtual GPUs and in \
                     some containers."
                )
            } else {
                return None;
            };
            Some(finding(FindingKind::Platform, Some(&d.identity.uuid), None, text))
        })
        .collect()
}

fn mig_parent(scene: &Scene<'_>, uuid: &Uuid) -> bool {
    scene.snapshot.device(uuid).is_some_and(|d| d.identity.mig_parent)
}

/// How the command died, if it did not simply exit.
fn died(run: &Run<'_>) -> Option<Finding> {
    let command = run.launch.command.as_ref()?;
    let oom = run.launch.oom_kills.filter(|n| *n > 0);
    let text = match (command.timed_out, command.end) {
        (true, None) => not_ended(run, command.id),
        // That the limit ended it is said first of all.
        (true, Some(_)) if oom.is_none() => return None,
        (true, Some(_)) => String::new(),
        (_, Some(End::Signaled { signal, core_dumped })) => {
            let core = if core_dumped { ", with a core dump" } else { "" };
            format!("The command was ended by signal {signal} ({}){core}.", signal_name(signal))
        }
        (_, None) => "The command was still running when this report was made.".to_owned(),
        _ if oom.is_some() => String::new(),
        _ => return None,
    };
    let text = match oom {
        Some(n) => format!(
            "{text} The kernel's out-of-memory killer ended {} of this group during the run: the machine (not \
             the GPU) ran out of memory.",
            text::count(usize::try_from(n).unwrap_or(usize::MAX), "process", "processes")
        ),
        None => text,
    };
    Some(finding(FindingKind::Died, None, None, text.trim().to_owned()))
}

/// Why the time limit did not end the command.
fn not_ended(run: &Run<'_>, command: ProcId) -> String {
    let living = run.processes.iter().find(|p| p.id == command);
    let ours = run.after.observer.uid;
    let why = match living {
        Some(p) if p.state == ProcessState::DiskSleep => {
            " It waits in the kernel, where no signal reaches it.".to_owned()
        }
        Some(Process { uid: Some(uid), user, .. }) if ours != 0 && *uid != ours => {
            let user = text::clean(&user.clone().unwrap_or_else(|| uid.to_string()));
            let who = if *uid == 0 { "root".to_owned() } else { format!("{user} or root") };
            format!(" It became a process of {user}, which only {who} may end.")
        }
        _ => String::new(),
    };
    format!("The command ran into its time limit and could not be ended: PID {} still runs.{why}", command.pid)
}

/// GPUs that were full at some time of a run that failed: what it tried to get more of cannot be seen, so it is said as
/// what it is, a likely reason.
fn full(run: &Run<'_>, scene: &Scene<'_>, judged: &[Judged]) -> Vec<Finding> {
    let failed = matches!(
        run.launch.command.as_ref().map(|c| c.end),
        Some(Some(End::Exited(code))) if code != 0
    ) || matches!(run.launch.command.as_ref().map(|c| c.end), Some(Some(End::Signaled { .. })));
    if !failed {
        return Vec::new();
    }
    let nearly_full = |device: &Judged| {
        let report = &device.report;
        let own = report.command_peak_bytes.filter(|own| own.0 > 0)?;
        let (total, peak) = (report.total_bytes?, report.peak_bytes?);
        let usable = total.saturating_sub(report.reserved_bytes.unwrap_or_default());
        (usable.saturating_sub(peak).0 < total.0 / 50).then(|| {
            finding(
                FindingKind::OutOfMemory,
                Some(&report.uuid),
                Some(peak),
                format!(
                    "{peak} of {usable} were in use at the peak, {own} of them by the command, which failed: it may have \
                     run out of GPU memory."
                ),
            )
        })
    };
    judged.iter().filter(|j| !mig_parent(scene, &j.report.uuid)).filter_map(nearly_full).collect()
}

/// The names of the signals that end programs.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => "SIGHUP: its terminal closed",
        2 => "SIGINT: Ctrl-C",
        3 => "SIGQUIT",
        4 => "SIGILL: illegal instruction",
        6 => "SIGABRT: it aborted, as after a failed assertion",
        7 => "SIGBUS: bad memory access, often a full /dev/shm",
        8 => "SIGFPE",
        9 => "SIGKILL: killed from outside, or by the kernel when memory ran out",
        11 => "SIGSEGV: bad memory access",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM: asked to end",
        24 => "SIGXCPU: CPU time limit",
        _ => "a signal",
    }
}

/// Own processes that live on, with or without GPU memory. `elsewhere`: one of them may hold some where nobody looked.
fn still_running(run: &Run<'_>, holders: &[Holder], elsewhere: bool) -> Option<Finding> {
    let n = run.launch.survivors.len();
    if n == 0 {
        return None;
    }
    let holding = holders.iter().filter(|h| h.lineage == Lineage::Own && h.held().0 > 0).count();
    let open = holders.iter().filter(|h| h.lineage == Lineage::Own).count();
    let pids: Vec<_> = run.launch.survivors.iter().take(8).map(|id| id.pid.to_string()).collect();
    let more = if n > pids.len() { ", …" } else { "" };
    let (are, what) = if n == 1 { ("process", "runs") } else { ("processes", "run") };
    let hold = match (n, holding, open) {
        (_, 0, _) if elsewhere => String::new(),
        (1, 0, 0) => " and has no GPU open".to_owned(),
        (1, 0, _) => " and has a GPU open, but is not known to hold memory".to_owned(),
        (1, ..) => " and holds GPU memory".to_owned(),
        (_, 0, 0) => "; none of them has a GPU open".to_owned(),
        (_, 0, m) => format!("; {m} of them with a GPU open, none known to hold memory"),
        (_, 1, _) => "; 1 of them holds GPU memory".to_owned(),
        (n, m, _) if n == m => " and hold GPU memory".to_owned(),
        (_, m, _) => format!("; {m} of them hold GPU memory"),
    };
    let who = format!("PID {}{more}", pids.join(", "));
    Some(finding(
        FindingKind::StillRunning,
        None,
        None,
        format!("{n} {are} of the command still {what} ({who}){hold}."),
    ))
}

/// Why a pipeline does not end with the report.
fn output_kept(run: &Run<'_>) -> Option<Finding> {
    let pids: Vec<_> = run.launch.output_kept_by.iter().map(|id| id.pid.to_string()).collect();
    let (who, they, end) = match pids.as_slice() {
        [] => return None,
        [one] => (format!("PID {one} keeps"), "that process", "ends"),
        _ => (format!("PIDs {} keep", pids.join(", ")), "these processes", "end"),
    };
    Some(finding(
        FindingKind::OutputKept,
        None,
        None,
        format!(
            "{who} this output open: what reads it (`| tee log`, a CI job) waits until {they} {end}. With `> log 2>&1` \
             nothing waits; `--cleanup` ends what the command left."
        ),
    ))
}

/// What of the run's memory was there when the time was up though nobody of the run lives any more: on its way back, if
/// some of it was seen to come back, or unchanged.
fn draining(run: &Run<'_>, scene: &Scene<'_>, judged: &[Judged], holders: &[Holder]) -> Option<Finding> {
    let leaving: Vec<_> =
        holders.iter().filter(|h| h.cause == Cause::Draining && h.lineage != Lineage::Foreign).collect();
    if !leaving.is_empty() {
        let bytes: Bytes = leaving.iter().map(|h| h.held()).sum();
        let text = format!(
            "{bytes} are still on their way back: {} of the command {} exiting. A longer `--settle` would show the end \
             of it.",
            text::count(leaving.len(), "process", "processes"),
            if leaving.len() == 1 { "is" } else { "are" }
        );
        return Some(finding(FindingKind::Draining, None, Some(bytes), text));
    }
    let bytes: Bytes = judged.iter().map(|j| j.report.charged_residue_bytes).sum();
    if run.launch.all_gone != Some(true) || bytes <= NOTICEABLE {
        return None;
    }
    let fell: Bytes = run.trace.devices.iter().map(|d| d.settled_fall).sum();
    if run.launch.settle_end == Some(SettleEnd::Cap) && fell > NOTICEABLE {
        let text = format!(
            "Every process of the command is gone; {fell} have come back since, and {bytes} were still there when the \
             time to \
             settle was up. A longer `--settle` would show the end of it."
        );
        return Some(finding(FindingKind::Draining, None, Some(bytes), text));
    }
    if run.launch.settle_end == Some(SettleEnd::Cap) {
        let text = format!(
            "Every process of the command is gone, and {bytes} were still in use when the time to settle was up. A longer \
             `--settle` would tell whether they come back."
        );
        return Some(finding(FindingKind::Unattributed, None, Some(bytes), text));
    }
    let keepers = scene.near().filter(|p| p.can_hold_memory() != Some(false));
    let unknown = run.after.processes.is_none() || run.out_of_sight();
    (keepers.count() == 0 && !unknown).then(|| {
        let text = format!(
            "{bytes} have not changed since every process of the command ended, and no process has a GPU open: perhaps the \
             driver keeps them for itself."
        );
        finding(FindingKind::Unattributed, None, Some(bytes), text)
    })
}

/// The command worked through somebody else.
fn client(run: &Run<'_>, judged: &[Judged]) -> Option<Finding> {
    let unknown: Bytes = judged.iter().map(|j| j.parts.unknown_listed).sum();
    if run.launch.command.is_none()
        || run.launch.scope != Scope::Run
        || unknown.0 == 0
        || (run.own_was_listed && !run.client)
    {
        return None;
    }
    Some(finding(
        FindingKind::Client,
        None,
        Some(unknown),
        "The command itself never used a GPU, while new processes did: if it worked through a daemon (docker, srun, \
         kubectl, ray), use `--scope new` to charge every new process."
            .into(),
    ))
}

/// Numbers of NVML's list that belong to innocent processes by now.
fn reused(scene: &Scene<'_>) -> Vec<Finding> {
    scene
        .entries
        .iter()
        .filter_map(|e| match e.keeper {
            Keeper::Ghost { impostor: Some(p), .. } => Some(finding(
                FindingKind::ReusedPid,
                Some(&e.device.identity.uuid),
                e.entry.bytes,
                format!(
                    "NVML (and nvidia-smi) shows PID {} as \"{}\", but that process has nothing to do with the memory: the \
                     number was reused. Do not end it.",
                    e.entry.pid,
                    text::clean(&p.comm)
                ),
            )),
            _ => None,
        })
        .collect()
}

/// From here not everybody can be seen.
fn out_of_sight(scene: &Scene<'_>, run: bool) -> Option<Finding> {
    let in_use = scene.snapshot.devices.iter().any(|d| d.look.used().is_some_and(|u| u > NOTICEABLE));
    let why = scene.snapshot.observer.blind_spot()?;
    (in_use || run).then(|| {
        finding(
            FindingKind::OutOfSight,
            None,
            None,
            format!("Processes outside may hold memory and cannot be seen from here: {why}."),
        )
    })
}
