//! Who keeps the memory of an entry of NVML's list: its process, or, for a ghost, whoever keeps the files.
//!
//! NVML lists the PID that allocated. A process that forked after it used CUDA leaves its number behind while its copies
//! keep the memory, and the number can be reused by an innocent process, whose name NVML then shows.

use super::run::Run;
use crate::model::{Device, DeviceFiles, Entry, EntryOrigin, Lineage, Observer, ProcId, Process, ProcessState, Scope};

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
        return Keeper::Ghost { id: remembered, impostor: alive(process) };
    }
    // On its way out its table is gone before its memory is.
    let leaving = process.dying && process.state != ProcessState::Zombie;
    if process.can_hold_memory() == Some(false) && !leaving {
        // In a private PID namespace the number may be meant in another one: only somebody who was seen alive with it
        // can be its ghost.
        return if observer.out_of_sight() && remembered.is_none() {
            Keeper::OutOfSight
        } else {
            Keeper::Ghost { id: remembered, impostor: alive(process) }
        };
    }
    Keeper::Alive(process)
}

/// It has more open than a program that only watches: unified memory, and more than three files on a GPU (driver 580).
pub(crate) fn has_context(process: &Process) -> bool {
    process
        .files
        .as_ref()
        .is_some_and(|files| files.uvm() > 0 && files.nodes.iter().any(|(node, count)| is_gpu_node(node) && *count > 3))
}

/// A zombie nobody has waited for yet is no innocent bearer of a reused number.
fn alive(process: &Process) -> Option<&Process> {
    (!process.is_zombie()).then_some(process)
}

/// What is known about a ghost when its memory's keepers are looked for.
pub(crate) struct GhostIdentity {
    /// The number that NVML lists.
    pub(crate) pid: u32,
    /// Who it was, if it was seen alive.
    pub(crate) id: Option<ProcId>,
}

/// The living processes that can keep a ghost's memory on `device`: with that device's node and unified memory open,
/// not listed there themselves, and either a descendant of the ghost in any look or with more files on the node than a
/// plain NVML client has on this driver.
///
/// A copy has every file of its parent. So where somebody has clearly more files than a program that opened the GPU
/// and made no context (7 against a client's 3, driver 580; a context has 19 or more), the ones with fewer are left out.
pub(crate) fn candidates<'a>(
    processes: &'a [Process],
    device: &Device,
    ghost: &GhostIdentity,
    nvml_client: Option<&DeviceFiles>,
    run: Option<&Run<'_>>,
) -> Vec<&'a Process> {
    let on_node = |files: &DeviceFiles| match device.identity.minor {
        Some(minor) => files.on_minor(minor),
        None => files.nodes.iter().filter(|(n, _)| is_gpu_node(n)).map(|(_, c)| *c).max().unwrap_or(0),
    };
    // Three files a GPU is what a plain NVML client has (driver 580); our own helper is the better measure.
    let client = nvml_client.map_or(3, on_node).max(1);
    let listed = |p: &Process| device.look.entries.iter().flatten().any(|e: &Entry| e.pid == p.id.pid);
    let able: Vec<(&Process, u32, bool)> = processes
        .iter()
        .filter_map(|p| {
            let files = p.files.as_ref()?;
            let count = on_node(files);
            let descends = descends_from(p, ghost, run);
            let able = count > 0 && files.uvm() > 0 && !listed(p) && (count > client || descends);
            (able && !cannot_descend_from(p, ghost, run)).then_some((p, count, descends))
        })
        .collect();
    let clear = |(_, count, descends): &(&Process, u32, bool)| *descends || *count > 2 * client + 1;
    let some_clear = able.iter().any(clear);
    able.into_iter().filter(|c| !some_clear || clear(c)).map(|(p, ..)| p).collect()
}

fn is_of(ghost: &GhostIdentity, id: ProcId) -> bool {
    id.pid == ghost.pid && ghost.id.is_none_or(|g| g == id)
}

/// It descended from the ghost in some look.
fn descends_from(process: &Process, ghost: &GhostIdentity, run: Option<&Run<'_>>) -> bool {
    let first = run.and_then(|r| r.trace.seen(process.id)).map(|s| s.ancestors.as_slice());
    process.ancestors.iter().chain(first.unwrap_or_default()).any(|a| is_of(ghost, a.id))
}

/// It cannot be a copy of the ghost: one is of the run and the other is not, or it was seen below the command when its
/// whole chain up to the command still stood, and the ghost was not in it.
fn cannot_descend_from(process: &Process, ghost: &GhostIdentity, run: Option<&Run<'_>>) -> bool {
    let (Some(run), Some(seen)) = (run, ghost.id.and_then(|id| run?.trace.seen(id))) else { return false };
    if run.launch.scope != Scope::Run {
        return false;
    }
    let theirs = run.lineage(seen.into());
    let its = run.lineage(process.into());
    if theirs != its && theirs != Lineage::Unknown && its != Lineage::Unknown {
        return true;
    }
    let Some(command) = &run.launch.command else { return false };
    let whole_chain =
        run.trace.seen(process.id).map(|s| &s.ancestors).filter(|chain| chain.iter().any(|a| a.id == command.id));
    whole_chain.is_some_and(|chain| !chain.iter().any(|a| is_of(ghost, a.id)))
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
