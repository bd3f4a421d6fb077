//! The verdict on one device: collects the parts of the interval, compares with the limits, says what decided.

use super::{
    accounting::{Interval, Parts, context_cost, excess},
    handover,
    run::Run,
    scene::Scene,
};
use crate::model::{
    Bytes, Device, DeviceReport, Doubt, Facts, Gap, Lineage, Process, Scope, SystemPages, Trouble, Verdict,
};

/// One device, judged.
pub(crate) struct Judged {
    pub(crate) report: DeviceReport,
    pub(crate) parts: Parts,
    pub(crate) gaps: Vec<Gap>,
}

pub(crate) fn judge(run: &Run<'_>, scene: &Scene<'_>, device: &Device) -> Judged {
    let uuid = &device.identity.uuid;
    let before = run.before_device(uuid);
    let trace = run.trace.device(uuid);
    let mut gaps = device.look.gaps.clone();
    let label = device.identity.label();
    let comparable = match (before.and_then(|b| b.look.memory), device.look.memory) {
        (Some(b), Some(a)) if b.api != a.api => {
            gaps.push(Gap::new(
                &label,
                "memory was read by different NVML calls before and after; they do not compare",
            ));
            false
        }
        _ => true,
    };
    let parts = parts(run, scene, device, comparable, &mut gaps);
    let scope_device = run.launch.scope == Scope::Device;
    let interval = if scope_device {
        let grown = before
            .and_then(|b| b.look.used())
            .zip(device.look.used())
            .filter(|_| comparable)
            .map(|(b, a)| a.saturating_sub(b));
        // What the operating system may have put there is nobody's for certain.
        let perhaps = match device.identity.system_pages() {
            SystemPages::No => Bytes::ZERO,
            _ => parts.excess_growth.unwrap_or(grown.unwrap_or_default()),
        };
        Interval { low: grown.unwrap_or_default().saturating_sub(perhaps), high: grown }
    } else {
        parts.interval()
    };
    let peak = if scope_device {
        let base = before.and_then(|b| b.look.used()).unwrap_or_default();
        trace.and_then(|t| t.peak_used).map(|p| p.saturating_sub(base))
    } else {
        trace.map(|t| if parts.unlisted.certain.0 > 0 { t.peak_charged_with_excess } else { t.peak_charged_listed })
    };
    let peak_is_known = run.too_few_looks(uuid) != Some(0);
    let peak = peak.max(Some(interval.low)).filter(|p| p.0 > 0 && peak_is_known);
    let total = device.look.memory.or(before.and_then(|b| b.look.memory)).map(|m| m.total);
    let limit = limit(run, total, peak);
    let verdict = match (device.identity.mig_parent, limit, interval.high) {
        (true, _, _) => Verdict::Clean,
        _ if run.interposed().is_some() => Verdict::Inconclusive,
        (_, Some(limit), _) if interval.low > limit => Verdict::Residue,
        (_, Some(limit), Some(high)) if high <= limit => Verdict::Clean,
        _ => Verdict::Inconclusive,
    };
    let because = because(run, &parts, device, interval, limit, verdict);
    gaps.extend(overlisted(device));
    let memory = device.look.memory;
    Judged {
        report: DeviceReport {
            index: device.identity.index,
            uuid: uuid.clone(),
            mig: device.identity.mig.clone(),
            name: device.identity.name.clone(),
            verdict,
            total_bytes: total,
            reserved_bytes: memory.and_then(|m| m.reserved),
            used_before_bytes: before.and_then(|b| b.look.used()),
            used_after_bytes: memory.map(|m| m.used),
            free_bytes: memory.map(|m| m.free),
            peak_bytes: trace.and_then(|t| t.peak_used).max(memory.map(|m| m.used)).filter(|_| peak_is_known),
            command_peak_bytes: peak,
            charged_residue_bytes: interval.low,
            charged_residue_max_bytes: interval.high,
            residue_rate: peak.map(|p| ratio(interval.low, p)),
            unaccounted_bytes: device.unaccounted().and_then(|u| i64::try_from(u).ok()),
            because,
        },
        parts,
        gaps,
    }
}

/// The lists name more than is in use: a negative remainder is no number to go on.
pub(crate) fn overlisted(device: &Device) -> Option<Gap> {
    let negative = device.unaccounted().filter(|u| *u < 0 && !device.identity.mig_parent)?;
    Some(Gap::new(
        device.identity.label(),
        format!(
            "the process list names {} more than the GPU says is in use; the list cannot be trusted to the byte",
            Bytes::at_least_zero(-negative)
        ),
    ))
}

fn ratio(part: Bytes, whole: Bytes) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people; 53 bits of bytes are 8 PiB")]
    let ratio = part.0 as f64 / whole.0 as f64;
    ratio.min(1.0)
}

/// The smaller of the absolute limit and the rate limit.
fn limit(run: &Run<'_>, total: Option<Bytes>, peak: Option<Bytes>) -> Option<Bytes> {
    let absolute = run.limits.max_residue.on(total)?;
    let rate = run.limits.max_residue_rate_percent.zip(peak).map(|(percent, peak)| {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a percentage between 0 and 100 of a device's memory"
        )]
        let bytes = (peak.0 as f64 * percent / 100.0) as u64;
        Bytes(bytes)
    });
    Some(rate.map_or(absolute, |rate| rate.min(absolute)))
}

fn parts(run: &Run<'_>, scene: &Scene<'_>, device: &Device, comparable: bool, gaps: &mut Vec<Gap>) -> Parts {
    let uuid = &device.identity.uuid;
    let before = run.before_device(uuid);
    let trace = run.trace.device(uuid);
    let label = device.identity.label();

    let mut own_listed = Bytes::ZERO;
    let mut unknown_listed = Bytes::ZERO;
    let mut own_bytes_unavailable = device.look.entries.is_none();
    for e in scene.on(uuid) {
        match (e.lineage, e.entry.bytes) {
            (Lineage::Own | Lineage::Unknown, None) => {
                own_bytes_unavailable = true;
                gaps.push(Gap::new(
                    &label,
                    format!("the driver does not tell how much memory PID {} holds", e.entry.pid),
                ));
            }
            (Lineage::Own, Some(bytes)) => own_listed = own_listed + bytes,
            (Lineage::Unknown, Some(_)) => unknown_listed = unknown_listed + e.growth(),
            // An entry that is foreign only because it stood in the before-look, without anybody seen alive behind it,
            // is so up to what it had then.
            (Lineage::Foreign, Some(_)) if e.bytes_before.0 > 0 && e.is_nobodys() => {
                unknown_listed = unknown_listed + e.growth();
            }
            (Lineage::Foreign, _) => {}
        }
    }

    let excess_before = before.and_then(|b| excess(&b.look));
    let excess_now = excess(&device.look);
    let growth = excess_before.zip(excess_now).map(|(b, a)| a - b);
    let settled = trace.and_then(|t| t.settled_excess_growth).map(i128::from);
    let excess_growth = growth.map(|g| Bytes::at_least_zero(settled.map_or(g, |s| s.min(g)))).filter(|_| comparable);
    let used_growth =
        before.and_then(|b| b.look.memory.zip(Some(b))).zip(device.look.memory).filter(|_| comparable).map(
            |((b, look), a)| {
                let cost = |d: &Device| context_cost(d.look.entries.as_ref().map_or(0, Vec::len));
                a.used.minus(b.used) - (cost(device) - cost(look)).max(0)
            },
        );
    let listed = handover::to_a_list(run, scene, device);
    let named = own_listed + unknown_listed;
    let at_most = Bytes::at_least_zero(used_growth.unwrap_or(0) - i128::from(named.0));
    let unlisted = handover::to_no_list(run, scene, device, excess_growth, at_most);
    Parts {
        own_listed,
        unknown_listed,
        excess_growth,
        unlisted,
        excess_now,
        excess_rises: trace.map_or_else(|| Bytes::at_least_zero(growth.unwrap_or(0)), |t| t.excess_rises),
        hider: hiders(run, scene).next().is_some()
            || run.after.uninspected.iter().any(|u| run.launch.survivors.contains(&u.id)),
        keeper_of_a_handle: hiders(run, scene).any(|p| scene.may_keep_a_handle(p)),
        listed_elsewhere: listed,
        out_of_sight: run.out_of_sight(),
        own_bytes_unavailable,
        others_listed: scene.on(uuid).any(|e| e.lineage == Lineage::Foreign)
            || before.is_none_or(|b| b.look.entries.as_ref().is_none_or(|entries| !entries.is_empty())),
        used_growth,
    }
}

/// Living processes of the run, or that could be, which may hold memory that no list names. One that could be, and has no
/// more open than a program that only watches, or has just begun to open the GPU, is none.
fn hiders<'a>(run: &'a Run<'_>, scene: &'a Scene<'_>) -> impl Iterator<Item = &'a Process> {
    let may_hold = |lineage| matches!(lineage, Lineage::Own | Lineage::Unknown);
    let begins = |p: &Process| p.age_seconds == Some(0) && p.files.as_ref().is_some_and(|f| f.uvm() == 0);
    let open = scene.near().filter(|p| p.can_hold_memory() != Some(false));
    open.filter(move |p| {
        let lineage = scene.attribute(run, p).lineage;
        may_hold(lineage) && (lineage == Lineage::Own || !(scene.looks_like_nvml_client(p) || begins(p)))
    })
}

/// What decided, or what keeps the interval open.
fn because(
    run: &Run<'_>,
    parts: &Parts,
    device: &Device,
    interval: Interval,
    limit: Option<Bytes>,
    verdict: Verdict,
) -> Facts<Doubt> {
    let mut said = Facts::default();
    let compares = run.compares();
    let pages = device.identity.system_pages();
    if device.identity.mig_parent {
        return vec![Doubt::JudgedByInstances].into();
    }
    match verdict {
        Verdict::Clean => return said,
        Verdict::Residue => {
            return limit.map(|limit| Doubt::NotBack { bytes: interval.low, limit }).into_iter().collect();
        }
        Verdict::Inconclusive => {}
    }
    if run.launch.scope == Scope::Device && pages != SystemPages::No {
        let bytes = interval.high.unwrap_or_default().saturating_sub(interval.low);
        said.push(Doubt::OfTheSystem { bytes, pages });
    }
    said.extend(run.interposed().map(|how| Doubt::Interposed { how: how.to_owned() }));
    if device.look.memory.is_none() {
        said.push(match device.look.trouble() {
            Some((_, Trouble::Gone)) => Doubt::Gone,
            _ => Doubt::MemoryUnread { compares },
        });
    } else if interval.high.is_none() {
        said.push(Doubt::NotComparable);
    }
    if limit.is_none() {
        said.push(Doubt::TotalUnknown);
    }
    if parts.unknown_listed.0 > 0 {
        said.push(Doubt::OfNewProcesses { bytes: parts.unknown_listed, compares });
    }
    let hidden = parts.hidden_now();
    if hidden.0 > 0 {
        said.push(Doubt::HiddenByLiving { bytes: hidden, compares });
        if pages != SystemPages::No {
            said.push(Doubt::OrOfTheSystem { pages });
        }
    }
    if parts.listed_elsewhere.possible.0 > 0 {
        said.push(Doubt::CameToOthers { bytes: parts.listed_elsewhere.possible });
    }
    if parts.unlisted.possible > hidden {
        said.push(Doubt::UnlistedMayBeTheRuns { bytes: parts.unlisted.possible, compares });
    }
    if parts.own_bytes_unavailable && device.look.entries.is_some() {
        said.push(Doubt::BytesUnavailable);
    }
    if parts.out_of_sight && parts.used_growth.is_some_and(|g| g > 0) {
        said.push(Doubt::GrewOutOfSight);
    }
    if said.is_empty() && run.launch.all_gone == Some(false) {
        said.push(Doubt::CommandStillRuns);
    }
    said
}
