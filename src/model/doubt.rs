//! What decided the verdict on a device, or keeps it open, as values.

use super::{Bytes, Fact, SystemPages};
use serde::{Deserialize, Serialize};

/// One reason. `compares`: there is no command, two snapshots are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is explained by its sentence, in report/say/doubt.rs")]
pub enum Doubt {
    JudgedByInstances,
    NotBack { bytes: Bytes, limit: Bytes },
    OfTheSystem { bytes: Bytes, pages: SystemPages },
    OrOfTheSystem { pages: SystemPages },
    Interposed { how: String },
    Gone,
    MemoryUnread { compares: bool },
    NotComparable,
    TotalUnknown,
    OfNewProcesses { bytes: Bytes, compares: bool },
    HiddenByLiving { bytes: Bytes, compares: bool },
    CameToOthers { bytes: Bytes },
    UnlistedMayBeTheRuns { bytes: Bytes, compares: bool },
    BytesUnavailable,
    GrewOutOfSight,
    CommandStillRuns,
}

impl Fact for Doubt {
    const SENTENCES: &'static str = "because";
    const VALUES: &'static str = "reasons";
}
