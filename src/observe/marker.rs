//! The marker that a run leaves in the environment of its processes: who made it, and whether that run goes on. A
//! process that outlived its run seems left over, of which little else tells after the fact. That its gpuresid is gone is
//! not enough: one that was killed leaves a command behind that may be worth days of work.

use super::proc::ProcReader;
use crate::model::{BootId, ProcId, Process};

/// What a snapshot's marker ends with: the gpuresid that made it ended at once, so its end proves nothing.
const OF_A_SNAPSHOT: &str = "snapshot";

/// The identity of a run: the first 8 of the boot id, PID and start time of the gpuresid that watches it.
pub fn run_id(boot_id: &BootId, gpuresid: ProcId) -> String {
    format!("{}-{}-{}", boot_id.short(), gpuresid.pid, gpuresid.start_ticks)
}

/// The identity of what is started after a snapshot.
pub fn snapshot_id(boot_id: &BootId, gpuresid: ProcId) -> String {
    format!("{}-{OF_A_SNAPSHOT}", run_id(boot_id, gpuresid))
}

/// A checked run, as its marker names it.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    /// Who watches.
    gpuresid: ProcId,
    /// The PID of the command.
    command: u32,
}

/// The run that a marker names last, if it is a checked one of this boot.
fn last_run(marker: &str, boot_id: &BootId) -> Option<Run> {
    let last = marker.rsplit(':').next()?;
    let parts: Vec<&str> = last.split('-').collect();
    match parts.as_slice() {
        [boot, pid, start, command] if *boot == boot_id.short() => Some(Run {
            gpuresid: ProcId { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? },
            command: command.parse().ok()?,
        }),
        _ => None,
    }
}

/// Finds out for each marked process whether its run goes on. It stays unknown where the marker's numbers may be of
/// another PID namespace than ours.
pub fn look_for_runs(reader: &ProcReader, boot_id: &BootId, namespace: Option<u64>, processes: &mut [Process]) {
    for process in processes {
        if process.marker_alive.is_some() || namespace.is_none() || process.pid_namespace != namespace {
            continue;
        }
        let Some(marker) = process.marker.as_deref() else { continue };
        let Some(run) = last_run(marker, boot_id) else { continue };
        process.marker_alive = goes_on(reader, &run, process.id, marker);
    }
}

/// It does while its gpuresid watches, and also without, if that was killed, while its command runs.
fn goes_on(reader: &ProcReader, run: &Run, process: ProcId, marker: &str) -> Option<bool> {
    let living = |pid| match reader.identify(pid) {
        Ok(found) => Some(found.filter(|p| !p.is_zombie())),
        Err(_) => None,
    };
    if living(run.gpuresid.pid)?.is_some_and(|p| p.id == run.gpuresid) {
        return Some(true);
    }
    let Some(command) = living(run.command)? else { return Some(false) };
    // It may have marked itself anew since and gone on as another program.
    if command.marker.is_some_and(|its| its == marker || its.starts_with(&format!("{marker}:"))) {
        return Some(true);
    }
    // Whoever carries the marker was started by the command or later, so a younger one has got the command's number. One
    // that is old enough is the command, with another environment, or somebody else.
    match command.id.start_ticks > process.start_ticks || command.id.start_ticks < run.gpuresid.start_ticks {
        true => Some(false),
        false => None,
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
        let run = Some(Run { gpuresid: id, command: 4712 });
        assert_eq!(last_run("0d5c1c2a-4711-99-4712", &boot()), run);
        assert_eq!(last_run("0d5c1c2a-1-2-3:0d5c1c2a-4711-99-4712", &boot()), run);
    }

    #[test]
    fn what_is_no_checked_run_of_this_boot_is_none() {
        let snapshot = snapshot_id(&boot(), ProcId { pid: 4711, start_ticks: 99 });
        for marker in
            ["", "x", "ffffffff-4711-99-4712", "0d5c1c2a-4711-99", "0d5c1c2a-4711-99-", "0d5c1c2a-x-99-1", &snapshot]
        {
            assert_eq!(last_run(marker, &boot()), None, "{marker}");
        }
    }
}
