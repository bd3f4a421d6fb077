//! The marker that a run leaves in the environment of its processes: who made it, and whether that gpuresid still
//! lives. A process that outlived the gpuresid of its run is proof of a left-over, which nothing else gives after the
//! fact.

use super::proc::ProcReader;
use crate::model::{BootId, ProcId, Process};

/// What a snapshot's marker ends with: the gpuresid that made it ended at once, so its end proves nothing.
const OF_A_SNAPSHOT: &str = "snapshot";

fn boot_part(boot_id: &BootId) -> String {
    boot_id.0.chars().take(8).collect()
}

/// The identity of a run: the first 8 of the boot id, PID and start time of the gpuresid that watches it.
pub fn run_id(boot_id: &BootId, gpuresid: ProcId) -> String {
    format!("{}-{}-{}", boot_part(boot_id), gpuresid.pid, gpuresid.start_ticks)
}

/// The identity of what is started after a snapshot.
pub fn snapshot_id(boot_id: &BootId, gpuresid: ProcId) -> String {
    format!("{}-{OF_A_SNAPSHOT}", run_id(boot_id, gpuresid))
}

/// The gpuresid whose run a marker names last, if it is one that watches.
fn watcher(marker: &str, boot_id: &BootId) -> Option<ProcId> {
    let last = marker.rsplit(':').next()?;
    let parts: Vec<&str> = last.split('-').collect();
    match parts.as_slice() {
        [boot, pid, start] if *boot == boot_part(boot_id) => {
            Some(ProcId { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? })
        }
        _ => None,
    }
}

/// Finds out for each marked process whether the gpuresid of its run still lives. It stays unknown where the marker's
/// number may be of another PID namespace than ours.
pub fn look_for_watchers(reader: &ProcReader, boot_id: &BootId, namespace: Option<u64>, processes: &mut [Process]) {
    for process in processes {
        if process.marker_alive.is_some() || namespace.is_none() || process.pid_namespace != namespace {
            continue;
        }
        let Some(watcher) = process.marker.as_deref().and_then(|marker| watcher(marker, boot_id)) else { continue };
        process.marker_alive = match reader.identify(watcher.pid) {
            Ok(found) => Some(found.is_some_and(|p| p.id == watcher && p.state != crate::model::ProcessState::Zombie)),
            Err(_) => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> BootId {
        BootId("0d5c1c2a-1111-2222-3333-444444444444".into())
    }

    #[test]
    fn a_marker_names_boot_pid_and_start() {
        let id = ProcId { pid: 4711, start_ticks: 99 };
        assert_eq!(run_id(&boot(), id), "0d5c1c2a-4711-99");
        assert_eq!(watcher("0d5c1c2a-4711-99", &boot()), Some(id));
        assert_eq!(watcher("0d5c1c2a-1-2:0d5c1c2a-4711-99", &boot()), Some(id));
    }

    #[test]
    fn what_watches_nothing_is_nobody() {
        let id = ProcId { pid: 4711, start_ticks: 99 };
        for marker in ["", "x", "ffffffff-4711-99", "0d5c1c2a-4711", "0d5c1c2a-x-99", &snapshot_id(&boot(), id)] {
            assert_eq!(watcher(marker, &boot()), None, "{marker}");
        }
    }
}
