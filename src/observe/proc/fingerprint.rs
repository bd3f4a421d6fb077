//! What an exec, another user or another place changes about a process that keeps its number and its start. Apart, because
//! it is read for records of runs only.

use super::{
    ProcReader,
    facts::{below, stat},
    handle::PidDir,
};
use crate::model::{Fingerprint, Process, arguments_of};
use rustix::{
    fs::{AtFlags, StatxFlags, fstat, fstatfs, makedev, statx},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The file system of pidfds that have an inode each (PIDFS_MAGIC, from Linux 6.9 on).
const PIDFS: u64 = 0x5049_4446;

impl ProcReader {
    /// Of a process that was read just now; `None` if it is gone.
    pub fn fingerprint(&self, process: &Process) -> Option<Fingerprint> {
        let dir = PidDir::open(&self.inner.root, process.id.pid).ok()??;
        let pidfd = inode_of_pidfd(process.id.pid);
        // A main thread that is gone names no program any more; the threads that live do.
        let program = format!("{}exe", below(&dir, process.leader_gone));
        // Never by asking another machine, which may not answer.
        let program = statx(&dir, program, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok();
        // As long as this directory answers, the number has not passed to another.
        let stat = stat(&dir).ok()?.filter(|stat| stat.start_ticks == process.id.start_ticks)?;
        Some(Fingerprint {
            uid: process.uid,
            program: program.map(|file| (makedev(file.stx_dev_major, file.stx_dev_minor), file.stx_ino)),
            arguments: arguments_of(&process.argv),
            terminal: stat.terminal,
            cgroup: process.cgroup.clone(),
            pidfd,
        })
    }
}

fn inode_of_pidfd(pid: u32) -> Option<u64> {
    let pidfd = pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
    let kind = fstatfs(&pidfd).ok()?.f_type;
    (u64::try_from(kind).ok()? == PIDFS).then(|| fstat(&pidfd).map(|file| file.st_ino).ok())?
}
