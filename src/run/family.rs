//! Our own place in the family of processes: who we are, and who our children are.
//!
//! Where the `/proc` that we read belongs to an outer PID namespace (`unshare -pf` without a new `/proc`, a host's
//! `/proc` in a container), it counts differently from the calls that wait and signal. Both numbers are kept apart
//! here.

use crate::model::ProcId;
use procfs::process::{Process, Stat, Status};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process,
};

/// What stays the same about us.
#[derive(Debug, Clone)]
pub(super) struct Myself {
    /// As the `/proc` that we read shows us.
    pub(super) id: ProcId,
    /// A hangup of the terminal is sent to us alone.
    pub(super) session_leader: bool,
    /// We are the first process of a PID namespace, to whom all orphans come anyway.
    pub(super) init: bool,
    /// `/proc` counts as the calls do.
    pub(super) plain: bool,
    procfs: PathBuf,
    /// The place of our own PID namespace in the `NSpid` lines of the `/proc` that we read; 0 where it counts as we do.
    level: usize,
}

/// A child of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kin {
    /// Its PID as the `/proc` that we read shows it.
    pub(super) shown: u32,
    /// Its PID for calls that wait and signal.
    pub(super) pid: u32,
}

impl Myself {
    /// Looks at ourselves, and for ourselves in this `/proc`.
    ///
    /// # Errors
    /// If `/proc/self` cannot be read.
    pub(super) fn look(procfs: &Path) -> procfs::ProcResult<Self> {
        let myself = Process::myself()?;
        let (stat, status) = (myself.stat()?, myself.status()?);
        let depth = levels(&status);
        let (id, level, procfs) = match find(procfs, &stat) {
            Some((id, level)) => (id, level, procfs.to_path_buf()),
            // We do not stand in that one: our own tells about ourselves.
            None => (identity(&stat), depth, "/proc".into()),
        };
        Ok(Self {
            id,
            session_leader: stat.session == stat.pid,
            init: rustix::process::getpid().is_init(),
            plain: depth == 0,
            procfs,
            level,
        })
    }

    /// Our children, the ended ones that nobody has waited for included. Reliable when it is asked again until nothing
    /// changes: a child that comes or goes while the list is read may be missed.
    pub(super) fn children(&self) -> Vec<Kin> {
        let shown = self.listed_children().unwrap_or_else(|| {
            let all = procfs::process::all_processes_with_root(&self.procfs).into_iter().flatten().flatten();
            let parents = all.filter_map(|p| p.stat().ok());
            parents.filter(|s| s.ppid.cast_unsigned() == self.id.pid).map(|s| s.pid.cast_unsigned()).collect()
        });
        shown.into_iter().filter_map(|shown| Some(Kin { shown, pid: self.in_our_numbers(shown)? })).collect()
    }

    /// The identity that the `/proc` shows for our child with this PID.
    pub(super) fn child(&self, pid: u32) -> Option<ProcId> {
        let shown = if self.level == 0 { pid } else { self.children().into_iter().find(|k| k.pid == pid)?.shown };
        at(&self.procfs, shown.cast_signed()).and_then(|p| p.stat().ok()).as_ref().map(identity)
    }

    /// Who a child is as the `/proc` shows it.
    pub(super) fn identity_of(&self, kin: &Kin) -> Option<ProcId> {
        at(&self.procfs, kin.shown.cast_signed()).and_then(|p| p.stat().ok()).as_ref().map(identity)
    }

    fn in_our_numbers(&self, shown: u32) -> Option<u32> {
        if self.level == 0 {
            return Some(shown);
        }
        inner(&self.procfs, shown.cast_signed(), self.level).map(i32::cast_unsigned)
    }

    /// The kernel's own lists, one a thread; `None` where it was built without them.
    fn listed_children(&self) -> Option<Vec<u32>> {
        let mut children = Vec::new();
        for thread in fs::read_dir(self.procfs.join(self.id.pid.to_string()).join("task")).ok()?.flatten() {
            match fs::read_to_string(thread.path().join("children")) {
                Ok(list) => children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok())),
                Err(_) if thread.path().exists() => return None,
                Err(_) => {}
            }
        }
        Some(children)
    }
}

fn identity(stat: &Stat) -> ProcId {
    ProcId { pid: stat.pid.cast_unsigned(), start_ticks: stat.starttime }
}

fn at(procfs: &Path, pid: i32) -> Option<Process> {
    Process::new_with_root(procfs.join(pid.to_string())).ok()
}

/// How many PID namespaces lie between the `/proc` of this status and the process.
fn levels(status: &Status) -> usize {
    status.nspid.as_ref().map_or(0, |pids| pids.len().saturating_sub(1))
}

/// The number of a process in the PID namespace at this level.
fn inner(procfs: &Path, shown: i32, level: usize) -> Option<i32> {
    at(procfs, shown)?.status().ok()?.nspid?.get(level).copied()
}

/// Finds us in a `/proc` that may be another namespace's: our start time and our own number, and no further number
/// below it.
fn find(procfs: &Path, ours: &Stat) -> Option<(ProcId, usize)> {
    let namespace = |place: &Path| fs::metadata(place.join("ns/pid")).ok().map(|m| m.ino());
    let here = namespace(Path::new("/proc/self"))?;
    let is_us = |process: &Process| {
        let stat = process.stat().ok().filter(|s| s.starttime == ours.starttime)?;
        let status = process.status().ok()?;
        let number = status.nspid.as_ref().map_or(Some(stat.pid), |pids| pids.last().copied());
        let same =
            number == Some(process::id().cast_signed()) && namespace(&procfs.join(stat.pid.to_string())) == Some(here);
        same.then(|| (identity(&stat), levels(&status)))
    };
    // Nearly always we are where `self` leads.
    let own = Process::new_with_root(procfs.join("self")).ok();
    own.as_ref().and_then(is_us).or_else(|| {
        procfs::process::all_processes_with_root(procfs).ok()?.flatten().find_map(|process| is_us(&process))
    })
}
