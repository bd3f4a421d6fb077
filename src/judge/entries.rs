//! Who keeps the memory of an entry of NVML's list: its process, or, for a ghost, whoever keeps the files.
//!
//! NVML lists the PID that allocated. A process that forked after it used CUDA leaves its number behind while its copies
//! keep the memory, and the number can be reused by an innocent process, whose name NVML then shows.

use crate::model::{Device, DeviceFiles, Entry, EntryOrigin, Observer, ProcId, Process, ProcessState, Trace};

/// Whose memory an entry is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Keeper<'a> {
    /// The listed process lives.
    Alive(&'a Process),
    /// The listed process is gone.
    Ghost {
        /// Who it was, if it was seen alive.
        id: Option<ProcId>,
        /// An innocent process that has the number by now.
        impostor: Option<&'a Process>,
    },
    /// The number cannot be resolved from where we look.
    OutOfSight,
}

/// Resolves one entry. `process` is the living process of that number, `origin` where the entry came from (`None` if
/// that is not known: a single look).
pub(crate) fn resolve<'a>(
    observer: &Observer,
    process: Option<&'a Process>,
    origin: Option<&EntryOrigin>,
) -> Keeper<'a> {
    let remembered = origin.and_then(|o| o.id);
    let Some(process) = process else {
        return if remembered.is_some() || !observer.out_of_sight() {
            Keeper::Ghost { id: remembered, impostor: None }
        } else {
            Keeper::OutOfSight
        };
    };
    if origin.is_some() && remembered.is_none() && process.can_hold_memory() != Some(true) && observer.out_of_sight() {
        return Keeper::OutOfSight;
    }
    let other = origin.is_some() && remembered != Some(process.id);
    if other {
        return Keeper::Ghost { id: remembered, impostor: Some(process) };
    }
    // On its way out its table is gone before its memory is.
    let leaving = process.dying && process.state != ProcessState::Zombie;
    if process.can_hold_memory() == Some(false) && !leaving {
        // In a private PID namespace the number may be meant in another one: only somebody who was seen alive with it
        // can be its ghost.
        return if observer.out_of_sight() && remembered.is_none() {
            Keeper::OutOfSight
        } else {
            Keeper::Ghost { id: remembered, impostor: (process.state != ProcessState::Zombie).then_some(process) }
        };
    }
    Keeper::Alive(process)
}

/// The living processes that can keep a ghost's memory on `device`: with that device's node and unified memory open,
/// not listed there themselves, and either a descendant of the ghost in any look or with more files on the node than a
/// plain NVML client has on this driver.
pub(crate) fn candidates<'a>(
    processes: &'a [Process],
    device: &Device,
    ghost: (u32, Option<ProcId>),
    nvml_client: Option<&DeviceFiles>,
    trace: Option<&Trace>,
) -> Vec<&'a Process> {
    let on_node = |files: &DeviceFiles| match device.identity.minor {
        Some(minor) => files.on_minor(minor),
        None => files.nodes.iter().filter(|(n, _)| is_gpu_node(n)).map(|(_, c)| *c).max().unwrap_or(0),
    };
    // Three files a GPU is what a plain NVML client has (driver 580); our own helper is the better measure.
    let client = nvml_client.map_or(3, on_node).max(1);
    let listed = |p: &Process| device.look.entries.iter().flatten().any(|e: &Entry| e.pid == p.id.pid);
    let descends = |p: &Process| {
        let of_ghost = |pid: u32, id: ProcId| pid == ghost.0 && ghost.1.is_none_or(|g| g == id);
        p.ancestors.iter().any(|a| of_ghost(a.id.pid, a.id))
            || trace.and_then(|t| t.seen(p.id)).is_some_and(|s| s.ancestors.iter().any(|a| of_ghost(a.id.pid, a.id)))
    };
    processes
        .iter()
        .filter(|p| {
            p.files.as_ref().is_some_and(|files| {
                let count = on_node(files);
                count > 0 && files.uvm() > 0 && !listed(p) && (count > client || descends(p))
            })
        })
        .collect()
}

/// `nvidia0`, `nvidia17`: the node of a GPU.
pub(crate) fn is_gpu_node(node: &str) -> bool {
    node.strip_prefix("nvidia").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gpu_nodes_are_gpu_nodes() {
        assert!(is_gpu_node("nvidia0") && is_gpu_node("nvidia17"));
        for node in ["nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "dxg"] {
            assert!(!is_gpu_node(node), "{node}");
        }
    }
}
