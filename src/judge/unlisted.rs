//! What the end of a process should give back beside what the lists say it has: charged memory that is on no list (managed
//! memory, an exported handle), where nobody else of the run can keep it. Apart, because it is known only when the devices
//! are judged, and the advice wants it.

use super::{cause::NOTICEABLE, device::Judged, scene::Scene};
use crate::model::{Bytes, DeviceFiles, Lineage, ProcId, Process};
use std::collections::BTreeMap;

/// Bytes for each process that alone can keep them.
pub(crate) fn shares(scene: &Scene<'_>, judged: &[Judged]) -> BTreeMap<ProcId, Bytes> {
    let mut shares: BTreeMap<ProcId, Bytes> = BTreeMap::new();
    let Some(run) = scene.run else { return shares };
    for device in judged {
        let named = device.parts.own_listed + device.parts.listed_elsewhere.certain;
        let unlisted = device.report.charged_residue_bytes.saturating_sub(named);
        let minor = scene.snapshot.device(&device.report.uuid).and_then(|d| d.identity.minor);
        let can_keep = |process: &&Process| {
            let here = |f: &DeviceFiles| f.uvm() > 0 && minor.is_none_or(|m| f.on_minor(m) > 0);
            scene.attribute(run, process).lineage == Lineage::Own
                && (process.files.as_ref().is_some_and(here) || scene.may_keep_a_handle(process))
        };
        let mut keepers = scene.near().filter(can_keep);
        if unlisted > NOTICEABLE
            && let (Some(only), None) = (keepers.next(), keepers.next())
        {
            let share = shares.entry(only.id).or_default();
            *share = *share + unlisted;
        }
    }
    shares
}
