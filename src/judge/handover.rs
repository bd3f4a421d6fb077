//! Memory that changes hands: growth that the driver lists with nobody of the run, in the very look in which a process
//! of the run ended.
//!
//! On a shared GPU such coincidences are daily noise: neighbours grow all the time. So what speaks for chance is how much
//! the same keeper grows at other times, in bytes and seconds. If a keeper's growth fell at random, on average a share of
//! it as large as the ending looks' share of the time would coincide; a hundred times that much is less than one per cent
//! likely (Markov's inequality). The sums are kept by [`super::fold`] as the looks come in.

use super::{
    accounting::{Share, excess},
    cause::NOTICEABLE,
    entries::Keeper,
    run::Run,
    scene::Scene,
    sharing::shares_memory_of,
};
use crate::model::{Bytes, Device, EntryKey, Handover, Lineage, ProcId, Process, SystemPages};

/// What would be expected by chance, as a part of what was seen, below which chance is no explanation.
const UNLIKELY: f64 = 0.015;
/// The time outside the ending looks is long enough to tell chance when it is so many times theirs.
pub(super) const QUIET_TIMES: u64 = 100;

impl Handover {
    /// Memory on no list that came when processes of the run ended, where chance does not explain it: at least `least`,
    /// else none.
    pub(super) fn unlisted_doubt(&self, least: Bytes) -> Bytes {
        let quiet_ms = self.watched_ms.saturating_sub(self.ending_ms);
        let expected = share(self.ending_ms, quiet_ms, self.unlisted_else);
        beyond_chance(self.unlisted_then, expected, least)
    }

    /// The same for what is listed with this entry of others. It grows beside all the others that grow, each of which
    /// might have coincided.
    pub(super) fn listed_doubt(&self, entry: EntryKey, least: Bytes) -> Bytes {
        let restless = self.growers.iter().filter(|g| g.grown >= least).count();
        self.growers.iter().find(|g| g.entry == entry).map_or(Bytes::ZERO, |grower| {
            #[expect(clippy::cast_precision_loss, reason = "a number of processes")]
            let expected = restless as f64 * share(grower.ending_ms, grower.watched_ms, grower.grown);
            beyond_chance(grower.grown_then, expected, least)
        })
    }

    /// What is listed with this entry of others and came when processes of the run ended, whatever explains it.
    pub(super) fn listed_then(&self, entry: EntryKey) -> Bytes {
        self.growers.iter().find(|g| g.entry == entry).map_or(Bytes::ZERO, |g| g.grown_then)
    }
}

/// Somebody else was listed on the device, before, meanwhile or after.
pub(super) fn others_listed(run: &Run<'_>, scene: &Scene<'_>, device: &Device) -> bool {
    let uuid = &device.identity.uuid;
    run.trace.device(uuid).is_some_and(|t| t.handover.others_listed)
        || run.before_device(uuid).and_then(|b| b.look.entries.as_ref()).is_none_or(|entries| !entries.is_empty())
        || scene.on(uuid).any(|e| e.lineage != Lineage::Own)
}

/// What of the memory that no list names is the run's. `growth`: how much more of it there is than before; `None`: not
/// known, because a reading was not of one moment. Then it is `at_most` so much.
pub(super) fn to_no_list(
    run: &Run<'_>,
    scene: &Scene<'_>,
    device: &Device,
    growth: Option<Bytes>,
    at_most: Bytes,
) -> Share {
    // What the operating system may have put there is nobody's for certain.
    if device.identity.system_pages() != SystemPages::No {
        return Share::default();
    }
    let keepers: Vec<_> = possible_keepers(run, scene).collect();
    let more = growth.unwrap_or(at_most);
    let noticed = |least: Bytes| if more > least { more } else { Bytes::ZERO };
    if !others_listed(run, scene, device) {
        let blind = run.after.processes.is_none() || run.before.observer.out_of_sight() || run.out_of_sight();
        return if blind || growth.is_none() || !keepers.is_empty() {
            Share { certain: Bytes::ZERO, possible: noticed(NOTICEABLE) }
        } else {
            Share { certain: more, possible: Bytes::ZERO }
        };
    }
    let there = excess(&device.look).map_or(Bytes(u64::MAX), Bytes::at_least_zero);
    let doubt = |h: &Handover| h.unlisted_doubt(run.limits.max_unattributed).min(there);
    let doubt = run.trace.device(&device.identity.uuid).map_or(Bytes::ZERO, |t| doubt(&t.handover));
    // What others gave back meanwhile hides growth, but no coincidence. Who is listed (a program that draws has no unified
    // memory open either) has nothing bare.
    let bare = |p: &&Process| !scene.is_listed(p.id) && scene.may_keep_a_handle(p);
    let handle = keepers.iter().any(bare);
    // Contexts of others that start are on no list for a moment.
    let handed = if handle { noticed(run.limits.max_unattributed) } else { Bytes::ZERO };
    Share { certain: Bytes::ZERO, possible: handed.max(doubt) }
}

/// Processes of others that came to have more NVIDIA files than before, and more than a program has that only watches:
/// who was handed something of the run's. One that may not be inspected shows nothing that speaks for it.
fn possible_keepers<'a>(run: &'a Run<'_>, scene: &'a Scene<'_>) -> impl Iterator<Item = &'a Process> {
    let others = scene.near().filter(|p| run.lineage((*p).into()) != Lineage::Own);
    others.filter(|p| {
        let now = p.files.as_ref().map(|f| f.total());
        let before = run.files_before(p.id).map_or(0, |f| f.total());
        now.is_some_and(|now| now > before) && !scene.looks_like_nvml_client(p)
    })
}

/// What of the memory that is listed with living processes of others is the run's: it is theirs, also where it grew while
/// the run's went, unless it maps a file that is named after a process of the run, or chance does not explain it.
pub(super) fn to_a_list(run: &Run<'_>, scene: &Scene<'_>, device: &Device) -> Share {
    let Some(trace) = run.trace.device(&device.identity.uuid) else { return Share::default() };
    let mut share = Share::default();
    for e in scene.on(&device.identity.uuid) {
        let (Keeper::Alive(process), Lineage::Foreign) = (e.keeper, e.lineage) else { continue };
        let entry = EntryKey::from(e.entry);
        if !shares_with_the_run(run, process) {
            let doubt = trace.handover.listed_doubt(entry, run.limits.max_unattributed);
            // Not less because it gave back memory of its own before.
            share.possible = share.possible + doubt;
            continue;
        }
        let handed_over = trace.handover.listed_then(entry);
        share.certain = share.certain + handed_over;
        // A producer that lived between two looks was never listed; the file that it shared still bears its number.
        let unseen = e.growth().saturating_sub(handed_over);
        if unseen > NOTICEABLE {
            share.possible = share.possible + unseen;
        }
    }
    share
}

/// The process maps a file that is named after a process of the run, since the run.
pub(super) fn shares_with_the_run(run: &Run<'_>, process: &Process) -> bool {
    // Whose file it maps is asked before whose process that is: few map any.
    let maps = |id: ProcId| shares_memory_of(run, process, id.pid);
    run.launch.command.as_ref().is_some_and(|command| maps(command.id))
        || run.trace.seen.iter().any(|s| maps(s.id) && run.lineage(s.into()) == Lineage::Own)
}

fn beyond_chance(seen: Bytes, expected: f64, least: Bytes) -> Bytes {
    if seen.0 > 0 && seen >= least && expected < UNLIKELY * float(seen) { seen } else { Bytes::ZERO }
}

/// What of these bytes falls into a part of the time by chance.
fn share(part_ms: u64, whole_ms: u64, of: Bytes) -> f64 {
    if of == Bytes::ZERO {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run; 53 bits are 285,000 years")]
    let (part, whole) = (part_ms as f64, whole_ms as f64);
    float(of) * part / whole
}

fn float(bytes: Bytes) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio; 53 bits of bytes are 8 PiB")]
    let bytes = bytes.0 as f64;
    bytes
}
