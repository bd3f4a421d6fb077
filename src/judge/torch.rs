//! Splits the memory of each process of the run into live tensors, cache, and context and libraries: PyTorch's own
//! numbers beside NVML's of the same process. The two are not read at the same moment, so they are subtracted only
//! where neither changed around it.

mod advice;
mod blind;
#[cfg(test)]
mod tests;

use super::run::Run;
use crate::{
    model::{
        Bytes, Gap, ProcId, ProcessCurve, Seen, TorchCounts, TorchDevice, TorchPoint, TorchProcess, TorchRecord,
        TorchSplit, TorchStage, TorchView, Uuid,
    },
    text,
};

/// NVML's reading counts for a sample if it did not change for so long before and after.
const AROUND_MS: u64 = 300;
/// The last two looks may be so far from the exit, and a program that emptied its cache there would seem to have a
/// larger context. Contexts grow by less than this.
const SLACK: Bytes = Bytes::mib(64);

/// PyTorch's processes, the largest first, and what could not be seen of others.
pub(crate) fn processes(run: &Run<'_>, view: &TorchView) -> (Vec<TorchProcess>, Vec<Gap>) {
    let mut processes: Vec<TorchProcess> = view.records.iter().map(|record| process(run, record)).collect();
    processes.sort_by_key(|p| std::cmp::Reverse(p.devices.iter().map(|d| d.peak.live_bytes).max()));
    let mut gaps = view.gaps.clone();
    gaps.extend(blind::gaps(run, view));
    (processes, gaps)
}

/// Who a record is of. In a PID namespace a process sees itself under another number; its start time is the same.
fn identify<'a>(run: &Run<'a>, id: ProcId) -> Option<&'a Seen> {
    run.trace.seen(id).or_else(|| {
        let mut same = run.trace.seen.iter().filter(|s| s.id.start_ticks == id.start_ticks && s.listed);
        same.next().filter(|_| same.next().is_none())
    })
}

fn process(run: &Run<'_>, record: &TorchRecord) -> TorchProcess {
    let told = ProcId { pid: record.pid, start_ticks: record.start_ticks };
    let seen = identify(run, told);
    let id = seen.map_or(told, |s| s.id);
    let alive = run.launch.survivors.contains(&id);
    let devices: Vec<TorchDevice> = record.devices.iter().map(|counts| device(run, record, counts, id)).collect();
    let mut gaps = record.gaps.clone();
    gaps.extend(record.live.iter().flat_map(|l| l.gaps.iter().cloned()));
    if record.stage == TorchStage::Sample {
        gaps.push(if alive {
            "it still runs, so this is its last sample".into()
        } else {
            "it ended without Python's exit (a signal, os._exit), so this is its last sample, up to a second or two old"
                .into()
        });
        if record.live.is_none() {
            gaps.push(
                "who refers to its tensors is looked up at the exit, or when the process is at rest: neither was seen"
                    .into(),
            );
        }
    }
    if devices.iter().any(|d| d.peak.context_bytes.is_none() && d.end.context_bytes.is_none()) {
        gaps.push("the driver did not list it at the same time, so its context is not known".into());
    }
    let mut process = TorchProcess {
        pid: id.pid,
        start_ticks: id.start_ticks,
        command: seen.map(|s| text::display_command(&s.argv, &s.comm)),
        python_version: record.python.clone(),
        torch_version: record.torch.clone(),
        stage: record.stage,
        at_ms: record.at_ms,
        alive,
        devices,
        threads: record.threads.clone().unwrap_or_default(),
        advice: Vec::new(),
        gaps,
    };
    process.advice = advice::of(&process);
    process
}

fn device(run: &Run<'_>, record: &TorchRecord, counts: &TorchCounts, id: ProcId) -> TorchDevice {
    let uuid = which(run, record, counts, id);
    let trace = uuid.as_ref().and_then(|uuid| run.trace.device(uuid));
    let curve = trace.and_then(|t| t.process_curves.iter().find(|c| c.id == id));
    let listed_peak = trace.and_then(|t| t.process_peaks.iter().find(|(who, _)| *who == id)).map(|(_, bytes)| *bytes);
    let listed_end = curve.and_then(|c| c.points.last()).map(|(_, bytes)| *bytes);
    let timeline: Vec<TorchPoint> = record
        .timeline
        .iter()
        .filter(|(_, index, ..)| *index == counts.index)
        .filter_map(|(at_ms, _, allocated, reserved)| {
            Some(TorchPoint { at_ms: *at_ms, allocated_bytes: (*allocated)?, reserved_bytes: (*reserved)? })
        })
        .collect();
    let at_peak = less(listed_peak, Some(counts.peak_reserved_bytes));
    // Until when looks could have shown a change: a process that has ended was not listed any more.
    let until = if run.launch.survivors.contains(&id) { Some(u64::MAX) } else { record.at_ms };
    let matched = curve.zip(until).and_then(|(curve, until)| matched(curve, &timeline, until));
    let at_end = less(listed_end, counts.reserved_bytes);
    let end_context = match (matched, at_end, at_peak) {
        // A difference far above what was seen side by side is memory that was given back after the last look.
        (Some(matched), Some(end), _) if end > matched + SLACK => Some(matched),
        (None, Some(end), Some(peak)) if end > peak + SLACK => Some(peak),
        (matched, end, _) => end.or(matched),
    };
    let end = TorchSplit {
        listed_bytes: end_context.zip(counts.reserved_bytes).map(|(context, reserved)| context + reserved),
        live_bytes: counts.allocated_bytes,
        cached_bytes: less(counts.reserved_bytes, counts.allocated_bytes),
        context_bytes: end_context,
    };
    let peak = TorchSplit {
        listed_bytes: listed_peak,
        live_bytes: Some(counts.peak_allocated_bytes),
        cached_bytes: less(Some(counts.peak_reserved_bytes), Some(counts.peak_allocated_bytes)),
        context_bytes: at_peak.or(matched),
    };
    TorchDevice {
        cuda_index: counts.index,
        uuid,
        end,
        peak,
        releasable_bytes: counts.releasable_bytes,
        ooms: counts.ooms,
        retries: counts.retries,
        live: record.live.as_ref().and_then(|l| l.devices.iter().find(|d| d.index == counts.index)).cloned(),
        timeline,
    }
}

/// `whole` − `part`, unknown where that is negative: then the two are not of the same moment.
fn less(whole: Option<Bytes>, part: Option<Bytes>) -> Option<Bytes> {
    let (whole, part) = whole.zip(part)?;
    (whole >= part).then(|| whole.saturating_sub(part))
}

/// Listed − reserved at the last sample around which the driver's reading did not change, as far as it was read until
/// `until`.
fn matched(curve: &ProcessCurve, timeline: &[TorchPoint], until: u64) -> Option<Bytes> {
    let watched = |sample: &&TorchPoint| sample.at_ms.saturating_add(AROUND_MS) <= until;
    timeline.iter().rev().filter(watched).find_map(|sample| {
        let (since, listed) = curve.points.iter().rev().find(|(at, _)| *at <= sample.at_ms)?;
        let next = curve.points.iter().find(|(at, _)| *at > sample.at_ms).map(|(at, _)| *at);
        let steady = sample.at_ms - since >= AROUND_MS && next.is_none_or(|next| next - sample.at_ms >= AROUND_MS);
        steady.then(|| less(Some(*listed), Some(sample.reserved_bytes))).flatten()
    })
}

/// The device that CUDA counts so in that process: by its UUID or PCI id, else the only one that fits.
fn which(run: &Run<'_>, record: &TorchRecord, counts: &TorchCounts, id: ProcId) -> Option<Uuid> {
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let all = &run.after.devices;
    if let Some(told) = counts.uuid.as_deref() {
        let bare = |uuid: &str| uuid.trim_start_matches("GPU-").trim_start_matches("MIG-").to_owned();
        if let Some(found) = all.iter().find(|d| same(&bare(&d.identity.uuid.0), &bare(told))) {
            return Some(found.identity.uuid.clone());
        }
    }
    if let Some(told) = counts.pci.as_deref()
        && let Some(found) = all.iter().find(|d| d.identity.pci.as_deref().is_some_and(|pci| same(pci, told)))
    {
        return Some(found.identity.uuid.clone());
    }
    if record.devices.len() > 1 {
        return None;
    }
    let mut listed = run.trace.devices.iter().filter(|t| t.process_peaks.iter().any(|(who, _)| *who == id));
    match (listed.next(), listed.next()) {
        (Some(only), None) => Some(only.uuid.clone()),
        _ => None,
    }
}
