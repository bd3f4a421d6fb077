//! The devices with every entry resolved and attributed: what holders, findings and the interval are read from.
//! A single look (`status`) and a run share it; a single look has no [`Run`] and no lineage.

use super::{
    accounting::excess,
    entries::{self, GhostIdentity, Keeper},
    lineage::Attribution,
    run::Run,
};
use crate::model::{
    Bytes, Device, DeviceFiles, Entry, EntryOrigin, Evidence, Lineage, ListKind, Observer, ProcId, Process, Scope,
    Snapshot, SystemPages, Uuid,
};
use std::collections::BTreeMap;

/// A MIG parent whose instances are there: what it lists they list too.
fn told_by_parts(snapshot: &Snapshot, device: &Device) -> bool {
    let part = |d: &Device| d.identity.mig.as_ref().is_some_and(|m| m.parent == device.identity.uuid);
    device.identity.mig_parent && snapshot.devices.iter().any(part)
}

/// One entry of one device, with its keeper.
pub(crate) struct Attributed<'a> {
    pub(crate) device: &'a Device,
    pub(crate) entry: &'a Entry,
    pub(crate) keeper: Keeper<'a>,
    pub(crate) lineage: Lineage,
    /// Of a run: why it is whose it is.
    pub(crate) why: Option<Evidence>,
    /// What the same entry had in the before-look.
    pub(crate) bytes_before: Bytes,
    /// For a ghost: who can keep its memory.
    pub(crate) candidates: Vec<&'a Process>,
}

impl Attributed<'_> {
    /// What it has more than before.
    pub(crate) fn growth(&self) -> Bytes {
        self.entry.bytes.unwrap_or_default().saturating_sub(self.bytes_before)
    }

    /// No process was ever seen alive behind it.
    pub(crate) fn is_nobodys(&self) -> bool {
        matches!(self.keeper, Keeper::Ghost { id: None, .. } | Keeper::OutOfSight)
    }
}

/// All entries of all devices.
pub(crate) struct Scene<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) processes: &'a [Process],
    pub(crate) run: Option<&'a Run<'a>>,
    pub(crate) entries: Vec<Attributed<'a>>,
    /// What a run is charged with beside the lists, where one process alone can keep it.
    pub(crate) unlisted: BTreeMap<ProcId, Bytes>,
}

impl<'a> Scene<'a> {
    /// The scene of a run's after-look.
    pub(crate) fn of_run(run: &'a Run<'a>) -> Self {
        Self::build(run.after, run.processes, Some(run))
    }

    /// The scene of a single look.
    pub(crate) fn of_snapshot(snapshot: &'a Snapshot) -> Self {
        Self::build(snapshot, snapshot.scanned(), None)
    }

    fn build(snapshot: &'a Snapshot, processes: &'a [Process], run: Option<&'a Run<'a>>) -> Self {
        let mut entries = Vec::new();
        for device in snapshot.devices.iter().filter(|d| !told_by_parts(snapshot, d)) {
            for entry in device.look.entries.iter().flatten() {
                let origin = run.and_then(|r| r.origin(&device.identity.uuid, entry.pid, entry.gi, entry.ci));
                let process = processes.iter().find(|p| p.id.pid == entry.pid);
                let mut keeper = entries::resolve(&snapshot.observer, process, origin.as_ref());
                let mut candidates = Vec::new();
                if let Keeper::Ghost { id, impostor } = keeper {
                    let ghost = GhostIdentity { pid: entry.pid, id };
                    let client = client_files(&snapshot.observer, run);
                    candidates = entries::candidates(processes, device, &ghost, client, run);
                    // A number that was reused between two looks: nobody keeps the old memory, and who has the number now
                    // has a context of its own.
                    if let Some(bearer) = impostor.filter(|p| candidates.is_empty() && entries::has_context(p)) {
                        keeper = Keeper::Alive(bearer);
                    }
                }
                let (lineage, why) = run.map_or((Lineage::Unknown, None), |run| {
                    let (lineage, why) = attribute(run, keeper, origin.as_ref(), &candidates);
                    (lineage, Some(why))
                });
                let same = match (keeper, origin.as_ref().and_then(|o| o.id)) {
                    (Keeper::Alive(process), Some(id)) => process.id == id,
                    _ => true,
                };
                let bytes_before =
                    run.filter(|_| same).map_or(Bytes::ZERO, |r| bytes_before(r, device, entry, origin.as_ref()));
                entries.push(Attributed { device, entry, keeper, lineage, why, bytes_before, candidates });
            }
        }
        Self { snapshot, processes, run, entries, unlisted: BTreeMap::new() }
    }

    /// gpuresid runs in it or below it: it is not to be ended to make room, nor told to be.
    pub(crate) fn is_above_us(&self, id: ProcId) -> bool {
        let observer = &self.snapshot.observer;
        observer.ancestors.contains(&id)
    }

    /// The process that a holder was made of.
    pub(crate) fn living(&self, holder: &crate::model::Holder) -> Option<&'a Process> {
        self.processes.iter().find(|p| p.id.pid == holder.pid && Some(p.id.start_ticks) == holder.start_ticks)
    }

    /// Who can have to do with the devices that are looked at. Who has files of other GPUs alone is nobody's suspect:
    /// nothing was asked about those, and what it holds is there.
    pub(crate) fn near(&self) -> impl Iterator<Item = &'a Process> {
        let devices = &self.snapshot.devices;
        let looked_at = |files: &DeviceFiles| {
            let elsewhere = files.on_gpus().next().is_some();
            !elsewhere || devices.iter().any(|d| d.identity.minor.is_none_or(|minor| files.on_minor(minor) > 0))
        };
        let listed = |pid| devices.iter().any(|d| d.look.entries.iter().flatten().any(|e| e.pid == pid));
        // Where the driver does not answer all of them are asked about. Whose files may not be read can have any.
        let all = devices.is_empty();
        self.processes.iter().filter(move |p| all || p.files.as_ref().is_none_or(looked_at) || listed(p.id.pid))
    }

    /// The entries of one device.
    pub(crate) fn on<'s>(&'s self, uuid: &'s Uuid) -> impl Iterator<Item = &'s Attributed<'a>> {
        self.entries.iter().filter(move |e| e.device.identity.uuid == *uuid)
    }

    /// The living process is listed somewhere.
    pub(crate) fn is_listed(&self, id: ProcId) -> bool {
        self.entries.iter().any(|e| matches!(e.keeper, Keeper::Alive(p) if p.id == id))
    }

    /// The lists that name the living process.
    pub(crate) fn listed_as(&self, id: ProcId) -> impl Iterator<Item = ListKind> {
        let its = self.entries.iter().filter(move |e| matches!(e.keeper, Keeper::Alive(p) if p.id == id));
        its.flat_map(|e| e.entry.lists.iter().copied())
    }

    /// Whose a process of the run is. A copy whose parent is gone stands below PID 1 and could be anybody's; but the only
    /// one that can keep the memory of somebody else's ghost is a copy of that ghost.
    ///
    /// To be new is enough for the wider scopes, where there is something that it could hold: a program that only
    /// watches has nothing.
    pub(crate) fn attribute(&self, run: &Run<'_>, process: &Process) -> Attribution {
        let said = run.attribute(process.into());
        if said.by_scope && !self.is_listed(process.id) && self.looks_like_nvml_client(process) {
            return Attribution::new(Lineage::Foreign, Evidence::OpensNoMoreThanMonitor);
        }
        if said.lineage != Lineage::Unknown || run.launch.scope != Scope::Run {
            return said;
        }
        let keeps = |e: &&Attributed<'_>| matches!(&e.candidates[..], [only] if only.id == process.id);
        match self.entries.iter().filter(keeps).find(|e| e.lineage == Lineage::Foreign) {
            Some(ghost) => Attribution::new(Lineage::Foreign, Evidence::CopyOfOthers { pid: ghost.entry.pid }),
            None => said,
        }
    }

    /// A process of the run by more than that it is new.
    pub(crate) fn is_of_the_run(&self, run: &Run<'_>, process: &Process) -> bool {
        let said = self.attribute(run, process);
        said.lineage == Lineage::Own && !said.by_scope
    }

    /// Memory beyond lists and context cost on the device with the most of it. Where the operating system may keep
    /// pages of its own it is no sign of a holder.
    pub(crate) fn largest_excess(&self) -> Option<(&'a Device, Bytes)> {
        self.snapshot
            .devices
            .iter()
            .filter(|d| !d.identity.mig_parent && d.identity.system_pages() == SystemPages::No)
            .filter_map(|d| Some((d, Bytes::at_least_zero(excess(&d.look)?))))
            .max_by_key(|(_, bytes)| *bytes)
    }

    /// It has the control file open without what a context needs, and more than a program that only watches.
    pub(crate) fn may_keep_a_handle(&self, process: &Process) -> bool {
        process.files.as_ref().is_some_and(|f| f.control() > 0 && f.uvm() == 0) && !self.looks_like_nvml_client(process)
    }

    /// The files of a plain NVML client, where they are known.
    pub(crate) fn client_files(&self) -> Option<&'a DeviceFiles> {
        client_files(&self.snapshot.observer, self.run)
    }

    /// A process with no more files than a plain NVML client of this driver: it may only watch.
    pub(crate) fn looks_like_nvml_client(&self, process: &Process) -> bool {
        process.files.as_ref().is_some_and(|files| files.may_only_watch(self.client_files()))
    }
}

/// The files of a plain NVML client, from whichever look has them.
fn client_files<'a>(observer: &'a Observer, run: Option<&Run<'a>>) -> Option<&'a DeviceFiles> {
    observer.nvml_client_files.as_ref().or_else(|| run.and_then(|r| r.before.observer.nvml_client_files.as_ref()))
}

/// Whose an entry is.
fn attribute(
    run: &Run<'_>,
    keeper: Keeper<'_>,
    origin: Option<&EntryOrigin>,
    candidates: &[&Process],
) -> (Lineage, Evidence) {
    let stood_before = origin.is_some_and(|o| o.first_ms == 0);
    match keeper {
        Keeper::Alive(process) => {
            let said = run.attribute(process.into());
            (said.lineage, said.why)
        }
        _ if stood_before => (Lineage::Foreign, Evidence::EntryWasThereBefore { beginning: run.beginning() }),
        // What is new counts, but not what a process took that was there before: neither while it lives nor after.
        Keeper::Ghost { id: Some(id), .. } if run.launch.scope != Scope::Run && run.was_there(id) => {
            (Lineage::Foreign, Evidence::OwnerWasThereBefore { pid: id.pid, beginning: run.beginning() })
        }
        _ if run.launch.scope != Scope::Run => (Lineage::Own, Evidence::EntryIsNew),
        Keeper::OutOfSight => (Lineage::Unknown, Evidence::OutOfSight),
        Keeper::Ghost { id, .. } => {
            if let Some(seen) = id.and_then(|id| run.trace.seen(id)) {
                let said = run.attribute(seen.into());
                if said.lineage != Lineage::Unknown {
                    return (said.lineage, Evidence::SeenAlive { pid: seen.id.pid, why: Box::new(said.why) });
                }
            }
            let all = |wanted| !candidates.is_empty() && candidates.iter().all(|c| run.lineage((*c).into()) == wanted);
            if all(Lineage::Own) {
                (Lineage::Own, Evidence::KeptByCommand)
            } else if all(Lineage::Foreign) {
                (Lineage::Foreign, Evidence::KeptByOthers)
            } else {
                (Lineage::Unknown, Evidence::GoneUnidentified)
            }
        }
    }
}

/// What the entry had in the before-look, if it is the same entry.
fn bytes_before(run: &Run<'_>, device: &Device, entry: &Entry, origin: Option<&EntryOrigin>) -> Bytes {
    let same = |e: &&Entry| e.pid == entry.pid && e.gi == entry.gi && e.ci == entry.ci;
    let stood = origin.is_none_or(|o| o.first_ms == 0);
    run.before_device(&device.identity.uuid)
        .filter(|_| stood)
        .and_then(|d| d.look.entries.as_ref()?.iter().find(same)?.bytes)
        .unwrap_or_default()
}
