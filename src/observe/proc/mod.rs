//! Processes as `/proc` shows them: who they are, and which NVIDIA files they have open.
//!
//! [`ProcReader`] is the door. Behind it: `handle` (open directories, and which errors mean what), `stat` (the two
//! files about a process that every reader needs), `nodes` and `files` (the scan of open files), `memory` (what can
//! make a reader hang), `facts` (one process), `tree` (parents and children), `scan` (all processes), `observer` (from
//! where we look), `fingerprint` (for records of runs), `cgroup`, `capabilities`, `blocked` (threads that do not come out of the kernel), `slurm`, `sessions`, `sockets`, `life` (for plans), `unit` and `systemd` (who is the main process of a service).

mod blocked;
mod capabilities;
mod cgroup;
mod facts;
mod files;
mod fingerprint;
mod handle;
mod life;
mod memory;
mod nodes;
mod observer;
mod scan;
mod sessions;
mod shared;
mod slurm;
mod sockets;
mod stat;
#[cfg(test)]
mod strangers;
mod systemd;
mod tree;
mod unit;

pub use life::Peers;
pub use sessions::SessionFile;
pub use shared::Usage;
pub use systemd::service_of;

use crate::model::{BootId, Gap, Observer, ProcId, Process, Uninspected};
use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statx};
use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcOptions {
    /// `/proc`, or `--procfs`.
    pub procfs: PathBuf,
    /// `/dev`, or `--dev`: where NVIDIA's nodes are.
    pub dev: PathBuf,
    /// `/sys`: whose the graphics nodes are. Another one is for tests.
    pub sys: PathBuf,
    /// `/run`: where the sockets of systemd's buses are. Another one is for tests.
    pub run: PathBuf,
    /// `--redact`: the arguments of processes decide, and are not shown.
    pub hide_arguments: bool,
}

impl Default for ProcOptions {
    fn default() -> Self {
        Self {
            procfs: "/proc".into(),
            dev: "/dev".into(),
            sys: "/sys".into(),
            run: "/run".into(),
            hide_arguments: false,
        }
    }
}

/// The result of one scan over all processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// Processes with an NVIDIA file open in any thread, and the ones that were asked for by PID.
    pub processes: Vec<Process>,
    /// Processes whose files we may not read.
    pub uninspected: Vec<Uninspected>,
    /// What could not be seen.
    pub gaps: Vec<Gap>,
}

/// Reads one `/proc`. Never writes to it and never signals anybody.
#[derive(Debug, Clone)]
pub struct ProcReader {
    /// Where it looks.
    pub options: ProcOptions,
    inner: Arc<Inner>,
}

/// What clones of a reader share.
#[derive(Debug)]
struct Inner {
    root: OwnedFd,
    ticks_per_second: u64,
    users: Mutex<HashMap<u32, Option<String>>>,
    stuck: memory::Stuck,
    stuck_details: memory::Stuck,
    main_pids: Mutex<HashMap<String, unit::Told>>,
}

impl ProcReader {
    /// A reader.
    ///
    /// # Errors
    /// If this is no `/proc`.
    pub fn new(options: ProcOptions) -> anyhow::Result<Self> {
        let path = options.procfs.display();
        let root = openat(CWD, &options.procfs, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("cannot open {path} to read processes; is it mounted?"))?;
        let has = |name| statx(&root, name, AtFlags::SYMLINK_NOFOLLOW, rustix::fs::StatxFlags::TYPE).is_ok();
        if !has("self") && !has("1") {
            bail!("{path} has no processes, so it is no /proc; give the place where proc is mounted");
        }
        let inner = Inner {
            root,
            ticks_per_second: procfs::ticks_per_second(),
            users: Mutex::default(),
            stuck: memory::Stuck::default(),
            stuck_details: memory::Stuck::default(),
            main_pids: Mutex::default(),
        };
        Ok(Self { options, inner: Arc::new(inner) })
    }

    /// From where we look. `tool_processes` and `nvml_client_files` are left empty for the caller.
    ///
    /// `foreign_procfs` is set whenever this `/proc` does not show our own PID namespace, however it was given;
    /// `hidepid` only if it hides anybody from us.
    pub fn observer(&self) -> Observer {
        self.look_around()
    }

    /// The running boot.
    ///
    /// # Errors
    /// If `/proc/sys/kernel/random/boot_id` cannot be read.
    pub fn boot_id(&self) -> anyhow::Result<BootId> {
        const NAME: &str = "sys/kernel/random/boot_id";
        // A /proc mounted with subset=pid has no sys, but the boot is the machine's, whoever tells it.
        let text = handle::read(&self.inner.root, NAME, 256)
            .or_else(|_| handle::read(CWD, &format!("/proc/{NAME}"), 256))
            .with_context(|| {
                format!("cannot read {}/{NAME}, which names the running boot", self.options.procfs.display())
            })?;
        let id = String::from_utf8_lossy(&text).trim().to_owned();
        if id.is_empty() {
            bail!("{}/{NAME}, which names the running boot, is empty", self.options.procfs.display());
        }
        Ok(BootId(id))
    }

    /// One scan over all processes: everybody with an NVIDIA file open in any thread, and whoever of `wanted` is alive.
    ///
    /// Which threads are read is told in `files`: in short, those whose table may differ from the main thread's, and
    /// all threads of a `wanted` process before it is said to have no NVIDIA file. A thread with a table of its own
    /// that has as many files as the main thread's is found only then, and on kernels before 6.2 every such thread.
    pub fn scan(&self, wanted: &[u32]) -> Scan {
        self.scan_all(wanted)
    }

    /// Everything about one process; `Ok(None)` if it is gone (ENOENT and ESRCH alike). A zombie is not gone.
    ///
    /// # Errors
    /// If `/proc/PID/stat` cannot be read for another reason.
    pub fn examine(&self, pid: u32) -> anyhow::Result<Option<Process>> {
        self.one_process(pid, true)
    }

    /// As [`Self::examine`], without open files, mappings and age: cheap enough for every new PID of a look.
    ///
    /// # Errors
    /// As [`Self::examine`].
    pub fn identify(&self, pid: u32) -> anyhow::Result<Option<Process>> {
        self.one_process(pid, false)
    }

    /// The same, if its number is still this process's.
    ///
    /// # Errors
    /// As [`Self::examine`].
    pub fn find(&self, id: ProcId) -> anyhow::Result<Option<Process>> {
        Ok(self.identify(id.pid)?.filter(|process| process.id == id))
    }

    /// All living descendants of `root`, zombies left out, as [`Self::identify`] gives them.
    pub fn descendants(&self, root: u32) -> Vec<Process> {
        self.tree(root)
    }

    /// As [`Self::descendants`], for keeping track of a tree while it lives: much cheaper on a machine with many
    /// processes, and one that comes or goes while it is read may be missed.
    pub fn track_descendants(&self, root: u32) -> Vec<Process> {
        self.listed_tree(root).unwrap_or_else(|| self.tree(root))
    }

    /// The living children of a process, zombies left out.
    pub fn children(&self, pid: u32) -> Vec<Process> {
        self.listed_children_of(pid).unwrap_or_else(|| {
            let mut below = self.tree(pid);
            below.retain(|process| process.ppid == pid);
            below
        })
    }

    fn one_process(&self, pid: u32, full: bool) -> anyhow::Result<Option<Process>> {
        let reading = || format!("cannot read {}/{pid}/stat", self.options.procfs.display());
        let Some(dir) = handle::PidDir::open(&self.inner.root, pid).with_context(reading)? else { return Ok(None) };
        let depth = if full {
            match files::FileScan::new(&self.nodes()).process(&dir, true) {
                files::Files::Gone => return Ok(None),
                files => facts::Depth::Full(files),
            }
        } else {
            facts::Depth::Identity
        };
        let process = self.facts(&dir, depth).with_context(reading)?;
        Ok(self.complete(process.into_iter().collect(), full).0.pop())
    }

    /// The name of a user, asked once: behind it may be a directory server.
    fn user(&self, uid: u32) -> Option<String> {
        let mut users = self.inner.users.lock().unwrap_or_else(PoisonError::into_inner);
        users
            .entry(uid)
            .or_insert_with(|| uzers::get_user_by_uid(uid).map(|user| user.name().to_string_lossy().into_owned()))
            .clone()
    }
}

/// How `/proc` counts time.
pub fn ticks_per_second() -> u64 {
    procfs::ticks_per_second().max(1)
}

/// Now, as `/proc` counts the start of processes: clock ticks since the machine was started. `None`: the clock cannot be
/// read, and nobody is said to have been started since.
pub fn ticks_now() -> Option<u64> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = procfs::ticks_per_second();
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec).ok()?, u64::try_from(now.tv_nsec).ok()?);
    seconds.checked_mul(per_second)?.checked_add(nanoseconds.checked_mul(per_second)? / 1_000_000_000)
}
