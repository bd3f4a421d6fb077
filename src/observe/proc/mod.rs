//! Processes as `/proc` shows them.

use crate::model::{BootId, Gap, Observer, ProcId, Process, Uninspected};
use std::path::PathBuf;

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcOptions {
    /// `/proc`, or `--procfs`.
    pub procfs: PathBuf,
    /// `/dev`, or `--dev`: where NVIDIA's nodes are.
    pub dev: PathBuf,
}

impl Default for ProcOptions {
    fn default() -> Self {
        Self { procfs: "/proc".into(), dev: "/dev".into() }
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

/// Reads one `/proc`.
#[derive(Debug, Clone)]
pub struct ProcReader {
    /// Where it looks.
    pub options: ProcOptions,
}

impl ProcReader {
    /// A reader.
    ///
    /// # Errors
    /// If this is no `/proc`.
    pub fn new(options: ProcOptions) -> anyhow::Result<Self> {
        Ok(Self { options })
    }

    /// From where we look. `tool_processes` and `nvml_client_files` are left empty for the caller.
    pub fn observer(&self) -> Observer {
        Observer {
            id: ProcId { pid: 0, start_ticks: 0 },
            uid: 0,
            pid_namespace: None,
            initial_pid_namespace: None,
            hidepid: false,
            foreign_procfs: false,
            tool_processes: Vec::new(),
            nvml_client_files: None,
        }
    }

    /// The running boot.
    ///
    /// # Errors
    /// If `/proc/sys/kernel/random/boot_id` cannot be read.
    pub fn boot_id(&self) -> anyhow::Result<BootId> {
        anyhow::bail!("not built yet")
    }

    /// One scan over all processes: everybody with an NVIDIA file open in any thread, and whoever of `wanted` is alive.
    pub fn scan(&self, _wanted: &[u32]) -> Scan {
        Scan::default()
    }

    /// Everything about one process; `Ok(None)` if it is gone (ENOENT and ESRCH alike).
    ///
    /// # Errors
    /// If `/proc/PID/stat` cannot be read for another reason.
    pub fn examine(&self, _pid: u32) -> anyhow::Result<Option<Process>> {
        Ok(None)
    }

    /// As [`Self::examine`], without open files, mappings and age: cheap enough for every new PID of a look.
    ///
    /// # Errors
    /// As [`Self::examine`].
    pub fn identify(&self, _pid: u32) -> anyhow::Result<Option<Process>> {
        Ok(None)
    }

    /// All living descendants of `root`, zombies left out, as [`Self::identify`] gives them.
    pub fn descendants(&self, _root: u32) -> Vec<Process> {
        Vec::new()
    }
}
