//! Our own place in the family of processes: who we are, and who our children are.
//!
//! Where `/proc` belongs to an outer PID namespace (`unshare -pf` without a new `/proc`), it counts differently from
//! the calls that wait and signal. Both numbers are kept apart here.

use crate::model::ProcId;
use procfs::{ProcResult, process::Process};
use std::fs;

/// What stays the same about us.
#[derive(Debug, Clone, Copy)]
pub(super) struct Myself {
    /// As `/proc` shows us.
    pub id: ProcId,
    /// Our process group; 0 if its leader is outside our PID namespace.
    pub group: i32,
    /// A hangup of the terminal is sent to us alone.
    pub session_leader: bool,
    /// We are the first process of a PID namespace, to whom all orphans come anyway.
    pub init: bool,
    /// The place of our own PID namespace in the `NSpid` line; 0 where `/proc` counts as we do.
    level: usize,
}

/// A child of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kin {
    /// Its PID as `/proc` shows it.
    pub shown: u32,
    /// Its PID for calls that wait and signal.
    pub pid: u32,
}

impl Myself {
    /// Looks at ourselves.
    ///
    /// # Errors
    /// If `/proc/self` cannot be read.
    pub(super) fn look() -> ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let level = process.status()?.nspid.map_or(0, |pids| pids.len().saturating_sub(1));
        Ok(Self {
            id: ProcId { pid: stat.pid.cast_unsigned(), start_ticks: stat.starttime },
            // In the numbers of our own namespace, because a signal's sender comes in those.
            group: group_in_our_numbers(stat.pgrp, level),
            session_leader: stat.session == stat.pid,
            init: rustix::process::getpid().is_init(),
            level,
        })
    }

    /// Our children, the ended ones that nobody has waited for included. Reliable when it is asked again until nothing
    /// changes: a child that comes or goes while the list is read may be missed.
    pub(super) fn children(&self) -> Vec<Kin> {
        let shown = listed_children().unwrap_or_else(|| {
            let all = procfs::process::all_processes().into_iter().flatten().flatten();
            all.filter_map(|p| p.stat().ok())
                .filter(|s| s.ppid.cast_unsigned() == self.id.pid)
                .map(|s| s.pid.cast_unsigned())
                .collect()
        });
        shown.into_iter().filter_map(|shown| Some(Kin { shown, pid: self.in_our_numbers(shown)? })).collect()
    }

    /// The identity that `/proc` shows for our child with this PID.
    pub(super) fn child(&self, pid: u32) -> Option<ProcId> {
        let shown = if self.level == 0 { pid } else { self.children().into_iter().find(|k| k.pid == pid)?.shown };
        let stat = Process::new(shown.cast_signed()).and_then(|p| p.stat()).ok()?;
        Some(ProcId { pid: shown, start_ticks: stat.starttime })
    }

    fn in_our_numbers(&self, shown: u32) -> Option<u32> {
        if self.level == 0 {
            return Some(shown);
        }
        let status = Process::new(shown.cast_signed()).and_then(|p| p.status()).ok()?;
        status.nspid?.get(self.level).map(|pid| pid.cast_unsigned())
    }
}

fn group_in_our_numbers(shown: i32, level: usize) -> i32 {
    if level == 0 {
        return shown;
    }
    let leader = Process::new(shown).and_then(|p| p.status()).ok();
    leader.and_then(|s| s.nspid?.get(level).copied()).unwrap_or(0)
}

/// The kernel's own lists, one a thread; `None` where it was built without them.
fn listed_children() -> Option<Vec<u32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok())),
            Err(_) if thread.path().exists() => return None,
            Err(_) => {}
        }
    }
    Some(children)
}
