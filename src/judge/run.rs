//! The context of one judgement: the observation, with the questions that several parts ask of it.

use super::lineage::{self, Person};
use crate::model::{
    Ancestor, Beginning, Device, DeviceFiles, EntryOrigin, Launch, Limits, Lineage, Observation, ProcId, Process,
    Snapshot, Trace, Uuid,
};

/// Fewer looks than these may have missed a use, and its peak.
const FEW_LOOKS: usize = 3;
/// Where so few were taken of a command that ran longer, it was the looking that failed.
const LONG_MS: u64 = 1000;

/// An observation, and what was derived from it once.
pub(crate) struct Run<'a> {
    pub(crate) before: &'a Snapshot,
    pub(crate) after: &'a Snapshot,
    pub(crate) trace: &'a Trace,
    pub(crate) launch: &'a Launch,
    pub(crate) limits: &'a Limits,
    /// The processes of the after-look, or of the before-look where nothing was left to explain.
    pub(crate) processes: &'a [Process],
    /// NVML listed a process of the command during the run.
    pub(crate) own_was_listed: bool,
    /// The command, or a process of it, is a client of something that does the work elsewhere.
    pub(crate) client: bool,
}

impl<'a> Run<'a> {
    pub(crate) fn new(observation: &'a Observation) -> Self {
        let Observation { before, trace, after, launch, limits, .. } = observation;
        let tree = launch.tree();
        let own = |id: ProcId, ancestors: &[Ancestor]| tree.is_some_and(|tree| tree.has(id, ancestors));
        let own_was_listed = trace.seen.iter().any(|s| s.listed && own(s.id, &s.ancestors));
        let own_has_files =
            after.scanned().iter().any(|p| p.can_hold_memory() == Some(true) && own(p.id, &p.ancestors));
        // A command that never touched a GPU itself may have had the work done elsewhere: by a daemon that nobody knows
        // by name, or by a client that was too quick to be seen.
        let client = (launch.command.is_some() && !own_was_listed && !own_has_files)
            || launch.command.as_ref().is_some_and(|c| lineage::is_client(c.argv.words(), ""))
            || trace.seen.iter().any(|s| own(s.id, &s.ancestors) && lineage::is_client(s.argv.words(), &s.comm));
        Self {
            before,
            after,
            trace,
            launch,
            limits,
            processes: after.processes.as_deref().unwrap_or_else(|| before.scanned()),
            own_was_listed,
            client,
        }
    }

    /// Where an entry of the after-look came from: the trace says so, else the before-look.
    pub(crate) fn origin(&self, uuid: &Uuid, pid: u32, gi: Option<u32>, ci: Option<u32>) -> Option<EntryOrigin> {
        let same = |o: &&EntryOrigin| o.uuid == *uuid && o.pid == pid && o.gi == gi && o.ci == ci;
        if let Some(origin) = self.trace.origins.iter().find(same) {
            return Some(origin.clone());
        }
        let listed = self.before_device(uuid)?.look.entries.as_ref()?;
        listed.iter().find(|e| e.pid == pid && e.gi == gi && e.ci == ci)?;
        let seen_then = self.before.process(pid).filter(|p| p.can_hold_memory() != Some(false)).map(|p| p.id);
        // A before-look without processes does not say that nobody had the number.
        let id = match &self.before.processes {
            Some(_) => seen_then,
            None => self.processes.iter().find(|p| p.id.pid == pid).map(|p| p.id),
        };
        Some(EntryOrigin { uuid: uuid.clone(), pid, gi, ci, first_ms: 0, id })
    }

    pub(crate) fn before_device(&self, uuid: &Uuid) -> Option<&'a Device> {
        self.before.device(uuid)
    }

    /// What is known of the processes is from before the command: nothing was left to explain at the end, or they could
    /// not be read.
    pub(crate) fn looked_only_before(&self) -> bool {
        self.after.processes.is_none() && self.before.processes.is_some()
    }

    /// It held memory, or could, in the before-look.
    pub(crate) fn stood_before(&self, id: ProcId) -> bool {
        let listed =
            |pid: u32| self.before.devices.iter().any(|d| d.look.entries.iter().flatten().any(|e| e.pid == pid));
        match &self.before.processes {
            Some(then) => then.iter().any(|p| p.id == id && (p.can_hold_memory() == Some(true) || listed(id.pid))),
            None => listed(id.pid),
        }
    }

    /// How often the device was looked at while the command ran, where that was too seldom to know its peak. What lived
    /// shorter than the ordinary time between a few looks may be missed anyhow.
    pub(crate) fn too_few_looks(&self, uuid: &Uuid) -> Option<usize> {
        self.few_looks(uuid).filter(|(ran_ms, _)| *ran_ms > LONG_MS).map(|(_, taken)| taken)
    }

    /// The command was over before there were enough looks to see whether it used the device.
    pub(crate) fn is_too_short_to_see(&self, uuid: &Uuid) -> bool {
        self.few_looks(uuid).is_some_and(|(ran_ms, _)| ran_ms <= LONG_MS)
    }

    /// How long the command ran, and how often the device was looked at, where that was seldom.
    fn few_looks(&self, uuid: &Uuid) -> Option<(u64, usize)> {
        let command = self.launch.command.as_ref()?;
        let (began, end) = (command.started_ms, command.ended_ms?);
        let taken = self.trace.device(uuid)?.points.iter().filter(|p| began < p.at_ms && p.at_ms <= end).count();
        (taken < FEW_LOOKS).then_some((end.saturating_sub(began), taken))
    }

    /// It was there before: it stands in the before-look, or its start time proves that it only used no GPU yet.
    pub(crate) fn was_there(&self, id: ProcId) -> bool {
        let older = match &self.launch.command {
            Some(command) => id.start_ticks < command.id.start_ticks,
            None => self.before.is_younger_than(id),
        };
        older || self.stood_before(id)
    }

    /// The files that a process had open in the before-look.
    pub(crate) fn files_before(&self, id: ProcId) -> Option<&'a DeviceFiles> {
        self.before.scanned().iter().find(|p| p.id == id).and_then(|p| p.files.as_ref())
    }

    /// Two snapshots are compared: there is no command to speak of.
    pub(crate) fn compares(&self) -> bool {
        self.launch.command.is_none()
    }

    /// What the before-look came before.
    pub(crate) fn beginning(&self) -> Beginning {
        if self.compares() { Beginning::Snapshot } else { Beginning::Command }
    }

    pub(crate) fn lineage(&self, person: Person<'_>) -> Lineage {
        self.attribute(person).lineage
    }

    /// Why the driver's readings may not be its own, before or after.
    pub(crate) fn interposed(&self) -> Option<&'a str> {
        [self.after, self.before].into_iter().find_map(|s| s.driver.as_ref()?.interposed.as_deref())
    }

    /// Somebody may be out of our sight.
    pub(crate) fn out_of_sight(&self) -> bool {
        self.after.observer.out_of_sight()
    }
}
