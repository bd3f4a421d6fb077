//! A process of our own as a `/proc` shows it. Where that is the `/proc` of an outer PID namespace (`unshare -pf` without
//! a new one, a host's in a container), it counts differently from the calls that start and end processes: there our
//! number may be anybody's.

use crate::model::ProcId;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

/// The `/proc` of the calls, and so of most machines.
const PROC: &str = "/proc";

/// Who this process is in each of the `/proc`s that are read: the one that was asked for, and the usual one.
pub(super) fn identities(pid: u32, procfs: &Path) -> Vec<ProcId> {
    let mut found: Vec<ProcId> = Vec::new();
    for place in [procfs, Path::new(PROC)] {
        let shown = shown(pid, place);
        let id = shown.and_then(|pid| Some(ProcId { pid, start_ticks: start_ticks(&place.join(pid.to_string()))? }));
        found.extend(id.filter(|id| !found.contains(id)));
    }
    found
}

/// Where the usual `/proc` has it.
pub(super) fn directory(pid: u32) -> Option<PathBuf> {
    let place = Path::new(PROC);
    Some(place.join(shown(pid, place)?.to_string()))
}

/// The number that this `/proc` shows for a process of ours. The kernel translates: what a pidfd says of its process is
/// in the numbers of the `/proc` in which it is read.
fn shown(pid: u32, procfs: &Path) -> Option<u32> {
    let told = || {
        let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let text = fs::read_to_string(procfs.join(format!("self/fdinfo/{}", pidfd.as_raw_fd()))).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse::<i64>().ok()
    };
    match told() {
        Some(number) => u32::try_from(number).ok().filter(|number| *number > 0),
        // Kernels before 5.4 do not tell, and sandboxes may refuse. Then a /proc that shows us by our own number counts
        // as we do.
        None => {
            (fs::read_link(procfs.join("self")).ok()?.to_str() == Some(&std::process::id().to_string())).then_some(pid)
        }
    }
}

/// Field 22 of a process's `stat`.
fn start_ticks(directory: &Path) -> Option<u64> {
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    // The name in parentheses may hold anything; field 3 follows the last one.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_know_ourselves() {
        let us = std::process::id();
        let ids = identities(us, Path::new(PROC));
        let ticks = start_ticks(Path::new("/proc/self")).unwrap();
        assert_eq!(ids.iter().map(|id| id.start_ticks).collect::<Vec<_>>(), [ticks]);
        assert_eq!(identities(us, Path::new("/no/such/proc")), ids, "the usual one is read all the same");
        assert!(directory(us).unwrap().join("stat").exists());
        assert_eq!(identities(u32::MAX >> 1, Path::new(PROC)), []);
    }
}
