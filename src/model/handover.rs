//! What the looks of a run showed of growth on one device that no process of the run is listed with: how much of it came
//! in the moments in which a process of the run ended, and how much at other times. Sums only: whether that is chance is
//! judged.

use super::{Bytes, Entry};
use serde::{Deserialize, Serialize};

/// What tells the entries of a device apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryKey {
    /// The listed PID.
    pub pid: u32,
    /// GPU instance, on a MIG device.
    pub gi: Option<u32>,
    /// Compute instance, on a MIG device.
    pub ci: Option<u32>,
}

impl From<&Entry> for EntryKey {
    fn from(entry: &Entry) -> Self {
        Self { pid: entry.pid, gi: entry.gi, ci: entry.ci }
    }
}

/// Growth in the looks of one device. An **ending look** is one in which a listed process of the run is gone that was
/// there in the look before: only then can its memory go over to somebody else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Milliseconds between the before-look and the last good look.
    pub watched_ms: u64,
    /// Of those, the ones that the ending looks span.
    pub ending_ms: u64,
    /// Memory on no list that came in ending looks, less what went again.
    pub unlisted_then: Bytes,
    /// Memory on no list that came at other times.
    pub unlisted_else: Bytes,
    /// Listed entries of others that grew and are still there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub growers: Vec<Grower>,
    /// Somebody else was listed, in the before-look or in any later one.
    pub others_listed: bool,
}

/// A listed entry of others that grew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grower {
    /// Which.
    pub entry: EntryKey,
    /// Milliseconds since it was first seen.
    pub watched_ms: u64,
    /// Of those, the ones that ending looks span.
    pub ending_ms: u64,
    /// All that it grew by, look for look.
    pub grown: Bytes,
    /// What of that came in ending looks, at most what had gone then, less what it gave back since.
    pub grown_then: Bytes,
}
