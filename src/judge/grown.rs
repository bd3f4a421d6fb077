//! Who grew: the processes of others that hold clearly more than before. Nobody is charged with that, and whoever finds
//! the GPU fuller than it was wants to know who it is: a desktop that swells over the day, a server that fills its cache.

use super::{handover, run::Run, scene::Scene};
use crate::model::{Bytes, Cause, Device, Finding, FindingData, Holder, Lineage, Named, Process, Taker};

/// One finding for each device on which somebody took more than `--max-unattributed`.
pub(super) fn grown(run: &Run<'_>, scene: &Scene<'_>, holders: &[Holder]) -> Vec<Finding> {
    let devices = scene.snapshot.devices.iter().filter(|d| !d.identity.mig_parent);
    devices.filter_map(|device| on(run, scene, holders, device)).collect()
}

fn on(run: &Run<'_>, scene: &Scene<'_>, holders: &[Holder], device: &Device) -> Option<Finding> {
    // What maps the memory of another has not grown by itself; where it is the run's that is charged.
    let others = holders.iter().filter(|h| h.lineage == Lineage::Foreign && h.cause != Cause::PeerMapping);
    let is_charged = |p: &Process| handover::shares_with_the_run(run, p);
    let mut takers: Vec<Taker> = others
        .filter_map(|holder| {
            let process = scene.living(holder).filter(|p| !is_charged(p))?;
            let was_there = run.was_there(process.id);
            let here = holder.devices.iter().filter(|d| d.uuid == device.identity.uuid);
            let took = here.filter_map(|d| if was_there { d.grown_bytes } else { d.held_bytes }).sum();
            let who = Named { pid: process.id.pid, name: process.comm.as_str().into() };
            (took > run.limits.max_unattributed).then_some(Taker { who, took, was_there })
        })
        .collect();
    takers.sort_by_key(|taker| std::cmp::Reverse(taker.took));
    let sum: Bytes = takers.iter().map(|taker| taker.took).sum();
    let (scope, compares) = (run.launch.scope, run.compares());
    let data = FindingData::OthersGrew { takers, scope, compares };
    (sum > Bytes::ZERO).then(|| Finding::new(Some(&device.identity.uuid), Some(sum), data))
}
