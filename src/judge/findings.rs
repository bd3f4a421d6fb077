//! What else a reader should know.

use super::{
    cause::NOTICEABLE, device::Judged, elsewhere, entries::Keeper, grown, run::Run, scene::Scene, unattributed,
};
use crate::model::{
    Bytes, Cause, Death, Device, DeviceIdentity, End, Finding, FindingData, Holder, Lineage, Obstacle, ProcId, Process,
    ProcessState, Scope, SettleEnd, SystemPages, Uuid,
};

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
            let pages = scene.snapshot.device(uuid).map_or(SystemPages::No, |d| d.identity.system_pages());
            let data = FindingData::NotCharged { growth, pages, compares: run.compares() };
            found.push(explained(scene, uuid, Finding::new(Some(uuid), Some(growth), data)));
        }
        let amount = parts.listed_elsewhere.certain + parts.listed_elsewhere.possible;
        if amount.0 > 0 {
            let shared = parts.listed_elsewhere.certain.0 > 0;
            found.push(Finding::new(Some(uuid), Some(amount), FindingData::MovedToOthers { amount, shared }));
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
    Some(Finding::new(None, None, FindingData::FewLooks { taken }))
}

/// Devices that were not there before: there is nothing to compare them with.
fn new_devices(run: &Run<'_>) -> Option<Finding> {
    let devices: Vec<_> = run.before.newcomers(run.after.present()).map(DeviceIdentity::label).collect();
    (!devices.is_empty()).then(|| Finding::new(None, None, FindingData::NewDevices { devices }))
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
            Finding::new(uuid, None, FindingData::DriverError { xid, times, placed: uuid.is_some() })
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
            .map(|h| h.pid)
            .collect();
        let uuid = &device.identity.uuid;
        let data = FindingData::Unexplained { excess, suspects };
        found.push(explained(scene, uuid, Finding::new(Some(uuid), Some(excess), data)));
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
    let (possible, excluded) = unattributed::explain(scene, device);
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
            let data = FindingData::MpsServer {
                pid: server.pid,
                held: server.held(),
                user: server.user.clone().map(Into::into),
                quit: quit.to_owned(),
            };
            let device = server.devices.first().map(|d| &d.uuid).filter(|_| scene.snapshot.devices.len() > 1);
            Finding::new(device, Some(server.held()), data)
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
            Some(Finding::new(Some(&d.identity.uuid), None, FindingData::BusyAndEmpty { percent: busy(d)? }))
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
            let data = match d.look.memory {
                None => FindingData::MemoryNotTold { processes: entries.len() },
                Some(_) if silent > 0 => FindingData::SharesNotTold { processes: silent },
                Some(_) => return None,
            };
            Some(Finding::new(Some(&d.identity.uuid), None, data))
        })
        .collect()
}

fn mig_parent(scene: &Scene<'_>, uuid: &Uuid) -> bool {
    scene.snapshot.device(uuid).is_some_and(|d| d.identity.mig_parent)
}

/// How the command died, if it did not simply exit.
fn died(run: &Run<'_>) -> Option<Finding> {
    let command = run.launch.command.as_ref()?;
    let oom_kills = run.launch.oom_kills.filter(|n| *n > 0);
    let death = match (command.timed_out, command.end) {
        (true, None) => Some(Death::CouldNotBeEnded { pid: command.id.pid, because: obstacle(run, command.id) }),
        // That the limit ended it is said first of all.
        (true, Some(_)) => None,
        (false, Some(End::Signaled { signal, core_dumped })) => Some(Death::Signal { number: signal, core_dumped }),
        (false, None) => Some(Death::StillRuns),
        (false, Some(End::Exited(_))) => None,
    };
    (death.is_some() || oom_kills.is_some()).then(|| Finding::new(None, None, FindingData::Died { death, oom_kills }))
}

/// Why the time limit did not end the command.
fn obstacle(run: &Run<'_>, command: ProcId) -> Option<Obstacle> {
    let living = run.processes.iter().find(|p| p.id == command);
    let ours = run.after.observer.uid;
    match living? {
        Process { state: ProcessState::DiskSleep, .. } => Some(Obstacle::InKernel),
        Process { uid: Some(0), .. } if ours != 0 => Some(Obstacle::OfRoot),
        Process { uid: Some(uid), user, .. } if ours != 0 && *uid != ours => {
            Some(Obstacle::OfUser(user.clone().unwrap_or_else(|| uid.to_string()).into()))
        }
        _ => None,
    }
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
            let data = FindingData::NearlyFull { peak, usable, own };
            Finding::new(Some(&report.uuid), Some(peak), data)
        })
    };
    judged.iter().filter(|j| !mig_parent(scene, &j.report.uuid)).filter_map(nearly_full).collect()
}

/// Own processes that live on, with or without GPU memory. `elsewhere`: one of them may hold some where nobody looked.
fn still_running(run: &Run<'_>, holders: &[Holder], elsewhere: bool) -> Option<Finding> {
    let pids: Vec<u32> = run.launch.survivors.iter().map(|id| id.pid).collect();
    let own = || holders.iter().filter(|h| h.lineage == Lineage::Own);
    let holding = own().filter(|h| h.held().0 > 0).count();
    let data = FindingData::StillRunning { pids, holding, open: own().count(), elsewhere };
    (!run.launch.survivors.is_empty()).then(|| Finding::new(None, None, data))
}

/// Why a pipeline does not end with the report.
fn output_kept(run: &Run<'_>) -> Option<Finding> {
    let pids: Vec<u32> = run.launch.output_kept_by.iter().map(|id| id.pid).collect();
    (!pids.is_empty()).then(|| Finding::new(None, None, FindingData::OutputKept { pids }))
}

/// What of the run's memory was there when the time was up though nobody of the run lives any more: on its way back, if
/// some of it was seen to come back, or unchanged.
fn draining(run: &Run<'_>, scene: &Scene<'_>, judged: &[Judged], holders: &[Holder]) -> Option<Finding> {
    let leaving: Vec<_> =
        holders.iter().filter(|h| h.cause == Cause::Draining && h.lineage != Lineage::Foreign).collect();
    if !leaving.is_empty() {
        let amount: Bytes = leaving.iter().map(|h| h.held()).sum();
        return Some(Finding::new(None, Some(amount), FindingData::StillLeaving { amount, processes: leaving.len() }));
    }
    let amount: Bytes = judged.iter().map(|j| j.report.charged_residue_bytes).sum();
    if run.launch.all_gone != Some(true) || amount <= NOTICEABLE {
        return None;
    }
    let fell: Bytes = run.trace.devices.iter().map(|d| d.settled_fall).sum();
    let found = |data| Some(Finding::new(None, Some(amount), data));
    if run.launch.settle_end == Some(SettleEnd::Cap) {
        return found(match fell > NOTICEABLE {
            true => FindingData::StillComingBack { amount, fell },
            false => FindingData::StillInUse { amount },
        });
    }
    let keepers = scene.near().filter(|p| p.can_hold_memory() != Some(false));
    let unknown = run.after.processes.is_none() || run.out_of_sight();
    if keepers.count() == 0 && !unknown { found(FindingData::Unchanged { amount }) } else { None }
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
    Some(Finding::new(None, Some(unknown), FindingData::WorkedThroughOthers))
}

/// Numbers of NVML's list that belong to innocent processes by now.
fn reused(scene: &Scene<'_>) -> Vec<Finding> {
    scene
        .entries
        .iter()
        .filter_map(|e| match e.keeper {
            Keeper::Ghost { impostor: Some(p), .. } => {
                let data = FindingData::ReusedPid { pid: e.entry.pid, name: p.comm.as_str().into() };
                Some(Finding::new(Some(&e.device.identity.uuid), e.entry.bytes, data))
            }
            _ => None,
        })
        .collect()
}

/// From here not everybody can be seen.
fn out_of_sight(scene: &Scene<'_>, run: bool) -> Option<Finding> {
    let in_use = scene.snapshot.devices.iter().any(|d| d.look.used().is_some_and(|u| u > NOTICEABLE));
    let why = scene.snapshot.observer.blind_spot()?;
    (in_use || run).then(|| Finding::new(None, None, FindingData::OutOfSight { why: why.to_string() }))
}
