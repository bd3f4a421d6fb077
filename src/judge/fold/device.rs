//! The looks of one device: its peaks and its curves, and what may have changed hands. Who is charged is told to it, so
//! that it knows no processes.

use super::handover::Looks;
use crate::{
    judge::accounting::excess,
    model::{
        Bytes, Device, DeviceTrace, Entry, EntryKey, EntryOrigin, Handover, Point, ProcId, ProcessCurve, Snapshot,
        SystemPages,
    },
};
use std::collections::BTreeMap;

/// Points of a curve before it is thinned to half.
const MAX_POINTS: usize = 1024;
/// Processes of a device whose curves are kept, and changes of one curve.
const MAX_CURVES: usize = 64;
const MAX_CHANGES: usize = 256;

/// One device, folded.
#[derive(Debug)]
pub(super) struct DeviceFold {
    pub(super) trace: DeviceTrace,
    pub(super) excess_before: Option<i128>,
    pub(super) excess_last: Option<i128>,
    /// Looks have failed since then.
    excess_missed: bool,
    /// What no list names may be the operating system's.
    pub(super) system_pages: bool,
    pub(super) origins: BTreeMap<EntryKey, EntryOrigin>,
    pub(super) last: BTreeMap<EntryKey, Option<Bytes>>,
    pub(super) handover: Looks,
    /// The most that was charged in a settling look.
    settled_most: Bytes,
    stride: u64,
}

impl DeviceFold {
    /// Starts at the before-look. `noise`: unaccounted growth beside others below this says nothing.
    pub(super) fn new(before: &Snapshot, device: &Device, noise: Bytes) -> Self {
        let (uuid, look) = (&device.identity.uuid, &device.look);
        let entries = look.entries.as_deref().unwrap_or_default();
        let origin = |e: &Entry| EntryOrigin {
            uuid: uuid.clone(),
            pid: e.pid,
            gi: e.gi,
            ci: e.ci,
            first_ms: 0,
            id: before.process(e.pid).filter(|p| p.can_hold_memory() != Some(false)).map(|p| p.id),
        };
        let excess = excess(look);
        Self {
            trace: DeviceTrace {
                uuid: uuid.clone(),
                looks: u64::from(look.memory.is_some()),
                failed_looks: u64::from(look.memory.is_none()),
                peak_used: look.used(),
                peak_charged_listed: Bytes::ZERO,
                peak_charged_with_excess: Bytes::ZERO,
                excess_rises: Bytes::ZERO,
                settled_excess_growth: None,
                settled_fall: Bytes::ZERO,
                process_peaks: Vec::new(),
                handover: Handover::default(),
                points: Vec::new(),
                process_curves: Vec::new(),
            },
            excess_before: excess,
            excess_last: excess,
            excess_missed: false,
            system_pages: device.identity.system_pages() != SystemPages::No,
            origins: entries.iter().map(|e| (e.into(), origin(e))).collect(),
            last: entries.iter().map(|e| (e.into(), e.bytes)).collect(),
            handover: Looks::new(entries, excess, noise),
            settled_most: Bytes::ZERO,
            stride: 1,
        }
    }

    /// A look that could not be read.
    pub(super) fn miss(&mut self) {
        self.trace.failed_looks += 1;
        self.excess_missed = true;
    }

    /// Takes the next look. `settling`: the command has ended.
    pub(super) fn step(
        &mut self,
        at_ms: u64,
        used: Bytes,
        entries: &[Entry],
        excess: Option<i128>,
        settling: bool,
        charged: &dyn Fn(&EntryOrigin) -> bool,
    ) {
        let now: BTreeMap<EntryKey, Option<Bytes>> = entries.iter().map(|e| (e.into(), e.bytes)).collect();
        let is_charged = |k: &EntryKey| self.origins.get(k).is_some_and(charged);
        let sum = now.iter().filter(|(k, _)| is_charged(k)).filter_map(|(_, b)| *b).sum::<Bytes>();
        let growth = self.excess_before.zip(excess).map(|(before, now)| now - before);
        self.record_handover(at_ms, &now, excess, charged);
        for (k, bytes) in &now {
            if let (Some(id), Some(bytes)) = (self.origins.get(k).and_then(|o| o.id), *bytes) {
                match self.trace.process_peaks.iter_mut().find(|(who, _)| *who == id) {
                    Some((_, peak)) => *peak = (*peak).max(bytes),
                    None => self.trace.process_peaks.push((id, bytes)),
                }
            }
        }
        for (k, origin) in self.origins.iter().filter(|(_, o)| charged(o)) {
            if let (Some(id), Some(Some(bytes))) = (origin.id, now.get(k)) {
                record_change(&mut self.trace.process_curves, id, at_ms, *bytes);
            }
        }
        let trace = &mut self.trace;
        trace.looks += 1;
        trace.peak_used = trace.peak_used.max(Some(used));
        trace.peak_charged_listed = trace.peak_charged_listed.max(sum);
        trace.peak_charged_with_excess =
            trace.peak_charged_with_excess.max(sum + Bytes::at_least_zero(growth.unwrap_or(0)));
        if let (Some(last), Some(now)) = (self.excess_last, excess) {
            // Behind looks that failed, others may have given back all that was there, and the run taken as much.
            let since = if self.excess_missed { last.min(0) } else { last };
            trace.excess_rises = trace.excess_rises + Bytes::at_least_zero(now - since);
        }
        self.excess_missed = excess.is_none();
        if settling {
            let charged = sum + Bytes::at_least_zero(growth.unwrap_or(0));
            self.settled_most = self.settled_most.max(charged);
            trace.settled_fall = self.settled_most.saturating_sub(charged);
        }
        if settling && let Some(growth) = growth.and_then(|g| i64::try_from(g).ok()) {
            // Memory that is listed no more but stays (an exported handle whose maker ends) begins a new count.
            let same_entries = self.last.keys().eq(now.keys());
            let smallest = trace.settled_excess_growth.filter(|_| same_entries);
            trace.settled_excess_growth = Some(smallest.map_or(growth, |g| g.min(growth)));
        }
        self.excess_last = excess.or(self.excess_last);
        self.origins.retain(|k, _| now.contains_key(k));
        self.last = now;
        self.record_point(Point { at_ms, used, charged: sum });
    }

    /// Tells what may have changed hands who of the run is gone and who else is there.
    fn record_handover(
        &mut self,
        at_ms: u64,
        now: &BTreeMap<EntryKey, Option<Bytes>>,
        unlisted: Option<i128>,
        charged: &dyn Fn(&EntryOrigin) -> bool,
    ) {
        let is_charged = |k: &EntryKey| self.origins.get(k).is_some_and(charged);
        // What an entry had that the driver tells nothing of may be any amount.
        let gone = |(k, bytes): (&EntryKey, &Option<Bytes>)| {
            (!now.contains_key(k) && is_charged(k)).then(|| bytes.unwrap_or(Bytes(u64::MAX)))
        };
        let gone = self.last.iter().filter_map(gone).reduce(|sum, bytes| sum + bytes);
        // Who was gone before it could be named may have been the run's.
        let is_others =
            |k: &EntryKey| self.origins.get(k).is_some_and(|o| (o.first_ms == 0 || o.id.is_some()) && !charged(o));
        let others = now.iter().filter(|(k, _)| is_others(k)).map(|(k, bytes)| (*k, *bytes));
        self.handover.look(at_ms, gone, others, unlisted);
    }

    /// Keeps every `stride`-th point; when there are too many, every second one goes.
    fn record_point(&mut self, point: Point) {
        if !self.trace.looks.is_multiple_of(self.stride) {
            return;
        }
        self.trace.points.push(point);
        if self.trace.points.len() > MAX_POINTS {
            let mut keep = false;
            self.trace.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
    }
}

/// Keeps what changed; when a curve gets long, every second point of its older half goes.
fn record_change(curves: &mut Vec<ProcessCurve>, id: ProcId, at_ms: u64, bytes: Bytes) {
    let curve = match curves.iter_mut().position(|c| c.id == id) {
        Some(place) => &mut curves[place],
        None if curves.len() < MAX_CURVES => {
            curves.push(ProcessCurve { id, points: Vec::new() });
            match curves.last_mut() {
                Some(last) => last,
                None => return,
            }
        }
        None => return,
    };
    if curve.points.last().is_some_and(|(_, last)| *last == bytes) {
        return;
    }
    curve.points.push((at_ms, bytes));
    if curve.points.len() > MAX_CHANGES {
        let mut place = 0;
        curve.points.retain(|_| {
            place += 1;
            place > MAX_CHANGES / 2 || place % 2 == 1
        });
    }
}
