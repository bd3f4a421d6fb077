//! Joins what the driver and `/proc` said into one [`Snapshot`].

use super::{driver::Inventory, proc::Scan};
use crate::{
    model::{BootId, Device, DeviceIdentity, DeviceLook, Gap, Look, Observer, Process, Snapshot, Uuid, schema},
    text,
};

/// The parts of a snapshot.
pub struct SnapshotParts<'a> {
    /// The devices that there are; `None` if the driver does not answer.
    pub inventory: Option<&'a Inventory>,
    /// Those of them that are wanted, in the order of the inventory.
    pub selected: &'a [Uuid],
    /// The reading; `None` if there was none (a gap says why).
    pub look: Option<&'a Look>,
    /// The scan of `/proc`; `None` if there was nothing left to explain.
    pub scan: Option<Scan>,
    /// From where we looked.
    pub observer: Observer,
    /// The boot.
    pub boot_id: BootId,
    /// More gaps.
    pub gaps: Vec<Gap>,
}

/// Puts the parts together. The tool's own processes are left out of the holders; the files that our NVML helper keeps
/// open become the measure of a plain NVML client.
pub fn assemble(parts: SnapshotParts<'_>) -> Snapshot {
    let SnapshotParts { inventory, selected, look, scan, mut observer, boot_id, mut gaps } = parts;
    let devices = inventory
        .iter()
        .flat_map(|inventory| &inventory.devices)
        .filter(|d| selected.contains(&d.uuid))
        .map(|identity| Device {
            identity: identity.clone(),
            look: look
                .and_then(|l| l.devices.iter().find(|d| d.uuid == identity.uuid))
                .cloned()
                .unwrap_or_else(|| DeviceLook::unread(identity.uuid.clone(), Vec::new())),
        })
        .collect();
    let not_selected = |d: &&DeviceIdentity| !selected.contains(&d.uuid);
    let unselected = inventory.map(|inventory| inventory.devices.iter().filter(not_selected).cloned().collect());
    gaps.extend(inventory.iter().flat_map(|inventory| inventory.gaps.iter().cloned()));
    let mut uninspected = Vec::new();
    let processes = scan.map(|scan| {
        let tool = |id| observer.tool_processes.contains(&id) || observer.id == id;
        gaps.extend(scan.gaps);
        uninspected = scan.uninspected.into_iter().filter(|u| !tool(u.id)).collect();
        for who in &mut uninspected {
            who.comm = text::clean(&who.comm);
        }
        let (ours, mut others): (Vec<_>, Vec<_>) = scan.processes.into_iter().partition(|p| tool(p.id));
        if observer.nvml_client_files.is_none() {
            observer.nvml_client_files =
                ours.into_iter().filter_map(|p| p.files).filter(|f| f.total() > 0).max_by_key(|f| f.total());
        }
        others.iter_mut().for_each(make_safe);
        others
    });
    Snapshot {
        schema: schema::SNAPSHOT.into(),
        tool_version: env!("CARGO_PKG_VERSION").into(),
        taken_at: jiff::Timestamp::now().to_string(),
        at_ms: look.map_or(0, |l| l.at_ms),
        boot_id,
        host: rustix::system::uname().nodename().to_str().ok().map(Into::into),
        driver: inventory.map(|inventory| inventory.driver.clone()),
        observer,
        devices,
        unselected,
        marked: false,
        processes,
        uninspected,
        gaps,
    }
}

/// A snapshot is a file that people hand on and print: the values of secrets end here, and so does everything that would
/// act on a terminal.
fn make_safe(process: &mut Process) {
    process.argv = text::display_argv(&process.argv);
    let one = [
        Some(&mut process.comm),
        process.marker.as_mut(),
        process.cgroup.as_mut(),
        process.user.as_mut(),
        process.program.as_mut(),
    ];
    let ancestors = process.ancestors.iter_mut().map(|a| &mut a.comm);
    for text in one.into_iter().flatten().chain(&mut process.shared_mappings).chain(ancestors) {
        *text = text::clean(text);
    }
}
