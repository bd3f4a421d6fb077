//! What a process that is on no list may keep: the memory of a process that is gone, whose files it inherited, or an
//! allocation handle that another process exported. How much cannot be seen, only how much there is on no list.

use super::{accounting::excess, cause::NOTICEABLE, entries::is_gpu_node, scene::Scene};
use crate::{
    model::{Amount, Bytes, Device, Evidence, Lineage, Named, ProcId, Process, Sockets, SystemPages},
    text::{name::Name, shorten},
};

/// What is in use on a device and on no list, in a run as far as it came since, whatever others gave back meanwhile;
/// nothing where that is no sign of a holder.
fn on_no_list(scene: &Scene<'_>, device: &Device) -> Bytes {
    if device.identity.mig_parent || device.identity.system_pages() != SystemPages::No {
        return Bytes::ZERO;
    }
    let there = Bytes::at_least_zero(excess(&device.look).unwrap_or(0));
    let Some(run) = scene.run else { return there };
    let uuid = &device.identity.uuid;
    match run.trace.device(uuid) {
        Some(trace) => there.min(trace.excess_rises),
        None => {
            let before =
                run.before_device(uuid).and_then(|d| excess(&d.look)).map_or(Bytes::ZERO, Bytes::at_least_zero);
            there.saturating_sub(before)
        }
    }
}

/// The devices with memory on no list that this process may keep, each with all of it.
pub(super) fn may_keep<'a>(scene: &Scene<'a>, process: &Process) -> Vec<(&'a Device, Bytes)> {
    if scene.is_listed(process.id) || scene.looks_like_nvml_client(process) {
        return Vec::new();
    }
    let anywhere = scene.may_keep_a_handle(process) || carries_files(scene, process).is_some();
    let open_there = |device: &Device| {
        let files = process.files.as_ref();
        files.zip(device.identity.minor).is_some_and(|(files, minor)| files.on_minor(minor) > 0)
    };
    let devices = scene.snapshot.devices.iter().filter(|d| anywhere || open_there(d));
    devices.map(|d| (d, on_no_list(scene, d))).filter(|(_, bytes)| *bytes > NOTICEABLE).collect()
}

fn amounts(kept: &[(&Device, Bytes)]) -> Vec<Amount> {
    kept.iter().map(|(d, bytes)| Amount { bytes: *bytes, device: d.identity.label() }).collect()
}

/// A process of the run in whose sockets files stand that nobody has received, or may stand, where the kernel does not
/// tell: such a file belongs to no process and can be an allocation handle.
pub(super) fn carries_files<'p>(scene: &Scene<'_>, process: &'p Process) -> Option<&'p Sockets> {
    let run = scene.run?;
    let may = |sockets: &&Sockets| sockets.open > 0 && sockets.files_in_flight != Some(0);
    process.sockets.as_ref().filter(may).filter(|_| run.lineage(process.into()) == Lineage::Own)
}

/// A control node alone can hold memory of any GPU: an allocation handle that another process exported. So can a file
/// that was sent and stands in a socket.
pub(super) fn exported_handle(scene: &Scene<'_>, process: &Process) -> Option<Evidence> {
    let kept = amounts(&may_keep(scene, process));
    if kept.is_empty() {
        return None;
    }
    if scene.may_keep_a_handle(process) {
        return Some(Evidence::ControlFileOnly { kept });
    }
    if process.can_hold_memory() != Some(false) {
        return None;
    }
    let files = carries_files(scene, process)?.files_in_flight;
    Some(Evidence::FilesInSockets { files, kept })
}

/// It was started by a process that had the GPU open and is gone, was never listed itself, and there is memory on no list
/// on a GPU that it has open: files that exec does not close came to it, as an `orted` has them from a rank.
pub(super) fn inherited(scene: &Scene<'_>, process: &Process) -> Option<Evidence> {
    let run = scene.run?;
    let seen = run.trace.seen(process.id);
    let kept = may_keep(scene, process);
    let on_gpu = process.files.iter().flat_map(|files| &files.nodes).any(|(node, n)| *n > 0 && is_gpu_node(node));
    if kept.is_empty() || !on_gpu || seen.is_some_and(|seen| seen.listed) {
        return None;
    }
    let lives = |id: ProcId| scene.processes.iter().any(|p| p.id == id);
    let first = seen.map(|seen| seen.ancestors.as_slice()).unwrap_or_default();
    let known = process.ancestors.iter().chain(first).filter(|a| !lives(a.id)).find_map(|a| {
        let seen = run.trace.seen(a.id).filter(|seen| seen.listed)?;
        let name = Name { argv: &seen.argv, comm: &seen.comm, program: None }.short();
        Some(Named { pid: a.id.pid, name: shorten(&name, 60).into() })
    });
    // Who was first seen when it had been adopted by us already: by somebody of the run.
    let adopted = process.ancestors.first().is_some_and(|parent| Some(parent.id) == run.launch.root);
    (known.is_some() || adopted && run.own_was_listed)
        .then(|| Evidence::InheritedFiles { from: known, kept: amounts(&kept) })
}
