//! Who grew: the processes of others that hold clearly more than before. Nobody is charged with that, and whoever finds
//! the GPU fuller than it was wants to know who it is: a desktop that swells over the day, a server that fills its cache.

use super::{handover, run::Run, scene::Scene};
use crate::{
    model::{Bytes, Cause, Device, Finding, FindingKind, Holder, Lineage, Process, Scope},
    text,
};

/// How many are named on one device.
const MOST_NAMED: usize = 3;

/// One finding for each device on which somebody took more than `--max-unattributed`.
pub(super) fn grown(run: &Run<'_>, scene: &Scene<'_>, holders: &[Holder]) -> Vec<Finding> {
    let devices = scene.snapshot.devices.iter().filter(|d| !d.identity.mig_parent);
    devices.filter_map(|device| on(run, scene, holders, device)).collect()
}

/// Somebody who has more than before.
struct Taker<'a> {
    process: &'a Process,
    took: Bytes,
    was_there: bool,
}

fn on(run: &Run<'_>, scene: &Scene<'_>, holders: &[Holder], device: &Device) -> Option<Finding> {
    // What maps the memory of another has not grown by itself; where it is the run's that is charged.
    let others = holders.iter().filter(|h| h.lineage == Lineage::Foreign && h.cause != Cause::PeerMapping);
    let is_charged = |p: &Process| handover::shares_with_the_run(run, p);
    let mut takers: Vec<Taker<'_>> = others
        .filter_map(|holder| {
            let process = scene.living(holder).filter(|p| !is_charged(p))?;
            let was_there = run.was_there(process.id);
            let here = holder.devices.iter().filter(|d| d.uuid == device.identity.uuid);
            let took = here.filter_map(|d| if was_there { d.grown_bytes } else { d.held_bytes }).sum();
            (took > run.limits.max_unattributed).then_some(Taker { process, took, was_there })
        })
        .collect();
    takers.sort_by_key(|taker| std::cmp::Reverse(taker.took));
    let sum: Bytes = takers.iter().map(|taker| taker.took).sum();
    let who = match &takers[..] {
        [] => return None,
        [one] if one.was_there => format!("{}, which was there before, has {} more", name(one), one.took),
        [one] if run.compares() => format!("{}, which started later, has {}", name(one), one.took),
        [one] => format!("{}, which started during the run, has {}", name(one), one.took),
        many => several(many),
    };
    let charged = match (run.launch.scope, takers.len()) {
        (Scope::Device, _) => "With `--scope device` all growth is charged",
        (Scope::Run | Scope::New, 1) => "It is not charged",
        (Scope::Run | Scope::New, _) => "They are not charged",
    };
    let text = format!("{who}. {charged}.");
    Some(Finding::new(FindingKind::Grown, Some(device.identity.uuid.clone()), Some(sum), text))
}

fn several(takers: &[Taker<'_>]) -> String {
    let (named, rest) = takers.split_at(takers.len().min(MOST_NAMED));
    let one = |taker: &Taker<'_>| {
        let how = if taker.was_there { "more" } else { "(new)" };
        format!("{} {} {how}", name(taker), taker.took)
    };
    let mut parts: Vec<String> = named.iter().map(one).collect();
    if !rest.is_empty() {
        let processes = if rest.len() == 1 { "process" } else { "processes" };
        parts.push(format!("{} more {processes} {}", rest.len(), rest.iter().map(|taker| taker.took).sum::<Bytes>()));
    }
    format!("others hold more than before: {}", parts.join(", "))
}

fn name(taker: &Taker<'_>) -> String {
    format!("PID {} ({})", taker.process.id.pid, text::clean(&taker.process.comm))
}
