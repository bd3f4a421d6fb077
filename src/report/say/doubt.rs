//! Reasons of a verdict: what follows "GPU 0: …", one sentence without a full stop.

use crate::model::{Doubt, SystemPages};
use std::fmt;

/// Where the kernel's own account of a node is.
pub(super) fn account_of(node: u32) -> String {
    format!("see `grep -e FilePages -e AnonPages /sys/devices/system/node/node{node}/meminfo`")
}

/// Why memory on a device may be in use without a program that uses the GPU.
impl fmt::Display for SystemPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(
                f,
                "the GPU's memory is NUMA node {node} of this machine, where the system keeps page cache and host pages of any \
                 process too, and keeps them after a process has ended ({})",
                account_of(*node)
            ),
            Self::Perhaps | Self::No => f.write_str(
                "the GPU's memory may be a NUMA node of this machine (addressing mode ATS; the driver does not tell), where \
                 the system keeps page cache and host pages of any process too",
            ),
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JudgedByInstances => f.write_str("it is split into MIG instances, which are judged one by one"),
            Self::NotBack { bytes, limit } => write!(f, "{bytes} of the command did not come back (limit {limit})"),
            Self::OfTheSystem { bytes, pages } => {
                write!(f, "up to {bytes} that no process list names may be the operating system's: {pages}")
            }
            Self::OrOfTheSystem { pages } => write!(f, "or by nobody's process: {pages}"),
            Self::Interposed { how } => write!(f, "the readings may not be the driver's own: {how}"),
            Self::Gone => f.write_str("it is not there any more"),
            Self::MemoryUnread { compares: true } => f.write_str("its memory could not be read"),
            Self::MemoryUnread { compares: false } => f.write_str("its memory could not be read after the command"),
            Self::NotComparable => f.write_str("its memory before and after cannot be compared"),
            Self::TotalUnknown => f.write_str("the limit is a percentage and the GPU's total memory is unknown"),
            Self::OfNewProcesses { bytes, compares: true } => {
                write!(f, "{bytes} belong to new processes that do not show the snapshot's marker")
            }
            Self::OfNewProcesses { bytes, compares: false } => {
                write!(f, "{bytes} belong to new processes and may be the command's or somebody else's")
            }
            Self::HiddenByLiving { bytes, compares } => {
                let whom = match compares {
                    true => "a new process that has",
                    false => "a process of the command that still has",
                };
                write!(f, "up to {bytes} that no process list names may be held by {whom} the GPU open")
            }
            Self::CameToOthers { bytes } => write!(
                f,
                "{bytes} came to a process of others when a process of the command ended, and hardly anything at other times: \
                 it may keep the command's memory"
            ),
            Self::UnlistedMayBeTheRuns { bytes, compares: true } => {
                write!(f, "{bytes} that no process list names may be new")
            }
            Self::UnlistedMayBeTheRuns { bytes, compares: false } => {
                write!(f, "{bytes} that no process list names may be the command's, kept by another process")
            }
            Self::BytesUnavailable => f.write_str("the driver does not tell how much each process holds"),
            Self::GrewOutOfSight => f.write_str("memory grew, and processes may be out of sight from here"),
            Self::CommandStillRuns => f.write_str("processes of the command still run"),
        }
    }
}
