//! Identities that survive the reuse of numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A process: its PID and its start time. A PID alone is reused; together with the boot id of the snapshot this pair is
/// unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcId {
    /// The PID in the PID namespace of the `/proc` that was read.
    pub pid: u32,
    /// Start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl fmt::Display for ProcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}

/// `/proc/sys/kernel/random/boot_id`: one boot of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

impl BootId {
    /// Its first 8 characters, which tell one boot from another in names that people see.
    pub fn short(&self) -> String {
        self.0.chars().take(8).collect()
    }
}

/// The UUID of a GPU (`GPU-…`) or a MIG instance (`MIG-…`), as NVML gives it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uuid(pub String);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
