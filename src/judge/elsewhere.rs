//! What the run still has open on GPUs that were not looked at (`-i 0`): nothing is known of their memory, so a verdict
//! says nothing about it, and a reader has to know that.

use super::{run::Run, scene::Scene};
use crate::model::{Finding, FindingData, Process};
use std::collections::BTreeSet;

/// One finding for all processes of the run that have something open there.
pub(super) fn not_looked_at(run: &Run<'_>, scene: &Scene<'_>) -> Option<Finding> {
    let minors: Option<BTreeSet<u32>> = scene.snapshot.devices.iter().map(|d| d.identity.minor).collect();
    // Where it is not known which file is whose, none is known to be another's.
    let looked_at = minors?;
    // A program that only watches has so many on every GPU.
    let client = scene.client_files().and_then(|f| f.on_gpus().map(|(_, n)| n).max()).unwrap_or(3);
    let open = |process: &Process| -> Vec<u32> {
        let files = || process.files.iter().flat_map(|f| f.on_gpus());
        let is_here = files().any(|(minor, _)| looked_at.contains(&minor));
        let there = files().filter(|(minor, count)| !looked_at.contains(minor) && (!is_here || *count > client));
        there.map(|(minor, _)| minor).collect()
    };
    let found: Vec<(&Process, Vec<u32>)> = scene
        .processes
        .iter()
        .filter(|p| scene.is_of_the_run(run, p))
        .map(|p| (p, open(p)))
        .filter(|(_, minors)| !minors.is_empty())
        .collect();
    let pids: Vec<u32> = found.iter().map(|(p, _)| p.id.pid).collect();
    let minors: BTreeSet<u32> = found.iter().flat_map(|(_, minors)| minors.iter().copied()).collect();
    let data = FindingData::NotLookedAt { pids, minors: minors.into_iter().collect() };
    (!found.is_empty()).then(|| Finding::new(None, None, data))
}
