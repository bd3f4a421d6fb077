//! Folds the looks of a run into a [`Trace`] as they come in, so that a run of weeks needs no more room than one of
//! seconds, and tells settling what is charged right now. It knows who is who; `device` folds the numbers.

mod device;
mod handover;

use super::accounting::excess;
use crate::{
    model::{
        Ancestor, Bytes, DeviceEvent, DeviceTrace, EntryKey, EntryOrigin, Gap, Look, ProcId, Process, RunTree, Scope,
        Seen, Snapshot, Trace, Uuid, marker_names,
    },
    text,
};
use device::DeviceFold;
use std::collections::{BTreeMap, BTreeSet};

/// Processes that are remembered without ever having been listed.
const MAX_UNLISTED: usize = 4096;
/// Gaps and events that are kept; a driver that fails every look would fill the report.
const MAX_NOTES: usize = 64;

/// What is charged to the run right now, by the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Listed memory of charged processes and charged ghosts, over all devices that could be read. `None`: none could,
    /// or an entry's bytes are not available.
    pub listed: Option<Bytes>,
    /// Every device could be read, memory and lists of one moment. One that could not adds nothing to the numbers here.
    pub complete: bool,
    /// Charged entries, over all devices that could be read.
    pub entries: usize,
    /// Growth of the excess since the before-look, over all devices on which only the run was ever listed, never below 0.
    /// Whether it is chargeable in the end needs a scan of `/proc` too.
    pub excess_growth: Bytes,
    /// The largest growth of the excess of any device, whoever is listed there.
    pub unlisted_growth: Bytes,
    /// More looks may tell whether memory that is on no list was the run's.
    pub undecided: bool,
    /// Entries that are not charged and did not stand in the before-look.
    pub new_entries: usize,
}

/// Folds looks as they come in.
#[derive(Debug)]
pub struct Fold {
    rule: Rule,
    devices: BTreeMap<Uuid, DeviceFold>,
    seen: BTreeMap<ProcId, Seen>,
    /// Who has a number that NVML newly lists, until the look that lists it is folded.
    fresh: BTreeMap<u32, ProcId>,
    unlisted: usize,
    events: Vec<DeviceEvent>,
    gaps: Vec<Gap>,
    /// What the last look could not read: what it said before that is old.
    unread: BTreeSet<Uuid>,
    /// A device's memory changed while its lists were read.
    torn: bool,
}

impl Fold {
    /// A fold that starts at the before-look. `root` is the subreaper below which all of the run stands,
    /// `noise` the growth of unaccounted memory below which nothing is made of it ([`crate::model::Limits`]).
    pub fn new(before: &Snapshot, scope: Scope, root: Option<ProcId>, noise: Bytes) -> Self {
        // A MIG parent is shown and never summed; where it tells nothing, nothing must wait for it.
        let devices = before
            .devices
            .iter()
            .filter(|d| !d.identity.mig_parent)
            .map(|d| (d.identity.uuid.clone(), DeviceFold::new(before, d, noise)))
            .collect();
        Self {
            rule: Rule { scope, tree: RunTree { root, command: None }, run_id: None },
            devices,
            seen: BTreeMap::new(),
            fresh: BTreeMap::new(),
            unlisted: 0,
            events: Vec::new(),
            gaps: Vec::new(),
            unread: BTreeSet::new(),
            torn: false,
        }
    }

    /// The command, once it is started: processes that are older, and theirs, are not charged wherever they stand;
    /// who carries the marker of its run is.
    #[must_use]
    pub fn of_command(mut self, command: ProcId, run_id: &str) -> Self {
        self.rule.tree.command = Some(command);
        self.rule.run_id = Some(run_id.into());
        self
    }

    /// PIDs listed in this look whose identity is not known yet: identify them and [`Self::remember`] them before
    /// [`Self::look`].
    pub fn unknown_pids(&self, look: &Look) -> Vec<u32> {
        let pids: BTreeSet<u32> = look
            .devices
            .iter()
            .filter_map(|d| Some((self.devices.get(&d.uuid)?, d.entries.as_ref()?)))
            .flat_map(|(fold, entries)| {
                entries.iter().filter(|e| !fold.origins.contains_key(&EntryKey::from(*e))).map(|e| e.pid)
            })
            .collect();
        pids.into_iter().collect()
    }

    /// Remembers who a PID is, seen alive at `at_ms` (milliseconds since the observation began).
    pub fn remember(&mut self, process: &Process, at_ms: u64) {
        self.fresh.insert(process.id.pid, process.id);
        if let Some(seen) = self.seen.get_mut(&process.id) {
            seen.last_ms = at_ms;
            // A shell that becomes its program (`exec`) is known by the program; one that is ending has no arguments.
            let argv = text::display_argv(&process.argv);
            if !argv.is_empty() && seen.argv != argv {
                seen.argv = argv;
                seen.comm = text::clean(&process.comm);
            }
            if seen.marker.is_none() {
                seen.marker = process.marker.as_deref().map(text::clean);
            }
            return;
        }
        if self.unlisted >= MAX_UNLISTED {
            self.forget_oldest_unlisted();
        }
        self.unlisted += 1;
        self.seen.insert(
            process.id,
            Seen {
                id: process.id,
                // An observation is a file that people hand on.
                comm: text::clean(&process.comm),
                argv: text::display_argv(&process.argv),
                uid: process.uid,
                ancestors: process
                    .ancestors
                    .iter()
                    .map(|a| Ancestor { comm: text::clean(&a.comm), ..a.clone() })
                    .collect(),
                marker: process.marker.as_deref().map(text::clean),
                listed: false,
                first_ms: at_ms,
                last_ms: at_ms,
            },
        );
    }

    fn forget_oldest_unlisted(&mut self) {
        let mut oldest: Vec<(u64, ProcId)> =
            self.seen.values().filter(|s| !s.listed).map(|s| (s.last_ms, s.id)).collect();
        oldest.sort_unstable();
        for (_, id) in oldest.into_iter().take(MAX_UNLISTED / 2) {
            self.seen.remove(&id);
            self.unlisted = self.unlisted.saturating_sub(1);
        }
    }

    /// Takes the next look. `settling`: the command has ended.
    pub fn look(&mut self, look: &Look, settling: bool) {
        self.unread.clear();
        self.torn = look.devices.iter().any(|reading| !reading.agrees());
        for reading in &look.devices {
            let Some(fold) = self.devices.get_mut(&reading.uuid) else { continue };
            for gap in &reading.gaps {
                note(&mut self.gaps, gap.clone());
            }
            let (Some(memory), Some(entries)) = (reading.memory, reading.entries.as_ref()) else {
                fold.miss();
                fold.trace.peak_used = fold.trace.peak_used.max(reading.used());
                self.unread.insert(reading.uuid.clone());
                continue;
            };
            let fresh = &self.fresh;
            for entry in entries {
                fold.origins.entry(entry.into()).or_insert_with(|| EntryOrigin {
                    uuid: reading.uuid.clone(),
                    pid: entry.pid,
                    gi: entry.gi,
                    ci: entry.ci,
                    first_ms: look.at_ms.max(1),
                    id: fresh.get(&entry.pid).copied(),
                });
                if let Some(seen) =
                    fold.origins.get(&entry.into()).and_then(|o| o.id).and_then(|id| self.seen.get_mut(&id))
                {
                    seen.last_ms = look.at_ms;
                    if !seen.listed {
                        seen.listed = true;
                        self.unlisted = self.unlisted.saturating_sub(1);
                    }
                }
            }
            let (rule, seen) = (&self.rule, &self.seen);
            let charged = |origin: &EntryOrigin| rule.charges(seen, origin);
            fold.step(look.at_ms, memory.used, entries, excess(reading), settling, &charged);
        }
        self.fresh.clear();
    }

    /// A look that failed as a whole.
    pub fn failed_look(&mut self, gap: Gap) {
        self.unread.extend(self.devices.keys().cloned());
        note(&mut self.gaps, gap);
        for fold in self.devices.values_mut() {
            fold.miss();
        }
    }

    /// Events of the driver.
    pub fn events(&mut self, events: Vec<DeviceEvent>) {
        let room = MAX_NOTES.saturating_sub(self.events.len());
        self.events.extend(events.into_iter().take(room));
    }

    /// What is charged by the last look.
    pub fn charge(&self) -> Charge {
        let complete = self.unread.is_empty();
        let some_read = complete || self.unread.len() < self.devices.len();
        let listed = some_read.then_some(Bytes::ZERO);
        let mut charge = Charge { listed, complete: complete && !self.torn, ..Charge::default() };
        // One GPU that fell off the bus must not hide that the memory of another is still on its way back.
        for fold in self.devices.iter().filter(|(uuid, _)| !self.unread.contains(*uuid)).map(|(_, fold)| fold) {
            for (key, bytes) in &fold.last {
                let Some(origin) = fold.origins.get(key) else { continue };
                if self.rule.charges(&self.seen, origin) {
                    charge.entries += 1;
                    charge.listed = charge.listed.zip(*bytes).map(|(sum, b)| sum + b);
                } else {
                    charge.new_entries += usize::from(origin.first_ms > 0);
                }
            }
            let growth = fold.excess_before.zip(fold.excess_last).map_or(0, |(before, now)| now - before);
            charge.unlisted_growth = charge.unlisted_growth.max(Bytes::at_least_zero(growth));
            if !fold.handover.others_listed() && !fold.system_pages {
                charge.excess_growth = charge.excess_growth + Bytes::at_least_zero(growth);
            }
            // Where all growth is charged, nothing is asked of chance.
            let asked = self.rule.scope != Scope::Device && !fold.system_pages;
            charge.undecided |= asked && fold.handover.is_undecided();
        }
        charge
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        Trace {
            seen: self.seen.values().cloned().collect(),
            devices: self
                .devices
                .values()
                .map(|d| DeviceTrace { handover: d.handover.sums(), ..d.trace.clone() })
                .collect(),
            origins: self
                .devices
                .values()
                .flat_map(|d| d.origins.iter().filter(|(k, _)| d.last.contains_key(k)).map(|(_, o)| o.clone()))
                .collect(),
            events: self.events.clone(),
            gaps: self.gaps.clone(),
        }
    }

    /// The trace.
    pub fn finish(self) -> Trace {
        self.trace()
    }
}

/// Whom a look charges.
#[derive(Debug)]
struct Rule {
    scope: Scope,
    tree: RunTree,
    run_id: Option<String>,
}

impl Rule {
    /// Whether an entry is charged to the run, as far as a look can tell.
    fn charges(&self, seen: &BTreeMap<ProcId, Seen>, origin: &EntryOrigin) -> bool {
        let marked = |s: &Seen| {
            let marker = s.marker.as_deref().zip(self.run_id.as_deref());
            marker.is_some_and(|(marker, run_id)| marker_names(marker, run_id))
        };
        let own = |id| seen.get(&id).is_some_and(|s| self.tree.has(id, &s.ancestors) || marked(s));
        let older = |id: ProcId| self.tree.command.is_some_and(|c| id.start_ticks < c.start_ticks);
        origin.first_ms > 0
            && match self.scope {
                Scope::Run => origin.id.is_some_and(own),
                // What was there before is not new, though it had no memory yet.
                Scope::New => !origin.id.is_some_and(older),
                Scope::Device => true,
            }
    }
}

fn note(gaps: &mut Vec<Gap>, gap: Gap) {
    if gaps.len() < MAX_NOTES && !gaps.contains(&gap) {
        gaps.push(gap);
    }
}
