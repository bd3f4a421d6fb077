//! What was seen between two snapshots, folded as it came in, so that a run of weeks needs no more room than one of
//! seconds.

use super::{Ancestor, Bytes, Gap, Handover, Launch, ProcId, Snapshot, Uuid};
use serde::{Deserialize, Serialize};

/// A process that NVML listed during the run, or a descendant of the command: remembered, because a ghost's PID can
/// be resolved only by who it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Who.
    pub id: ProcId,
    /// Its name.
    pub comm: String,
    /// Its command line.
    pub argv: super::Argv,
    /// Its real user.
    pub uid: Option<u32>,
    /// Its parent chain when it was first seen.
    pub ancestors: Vec<Ancestor>,
    /// Its marker, where readable.
    pub marker: Option<String>,
    /// NVML listed it.
    pub listed: bool,
    /// First seen, milliseconds since the observation began.
    pub first_ms: u64,
    /// Last seen alive.
    pub last_ms: u64,
}

/// Where an entry of the last look came from. An entry that was there without interruption belongs to whoever had its
/// number when it was first seen, whoever has that number now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryOrigin {
    /// On which device.
    pub uuid: Uuid,
    /// The listed PID.
    pub pid: u32,
    /// GPU instance, on a MIG device.
    pub gi: Option<u32>,
    /// Compute instance, on a MIG device.
    pub ci: Option<u32>,
    /// When the entry was first seen, milliseconds since the observation began; 0: it stood in the before-look.
    pub first_ms: u64,
    /// Who had the number then; `None`: nobody that we could see.
    pub id: Option<ProcId>,
}

/// One point of a device's curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Milliseconds since the observation began.
    pub at_ms: u64,
    /// Used memory.
    pub used: Bytes,
    /// Listed memory of charged processes.
    pub charged: Bytes,
}

/// What happened on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTrace {
    /// Which.
    pub uuid: Uuid,
    /// Readings that succeeded.
    pub looks: u64,
    /// Readings that failed.
    pub failed_looks: u64,
    /// Largest used memory.
    pub peak_used: Option<Bytes>,
    /// Largest sum of listed memory of charged processes and ghosts over one look.
    pub peak_charged_listed: Bytes,
    /// As above, plus the growth of the excess in that look.
    pub peak_charged_with_excess: Bytes,
    /// Sum of the rises of the excess (unaccounted memory beyond the context cost) from look to look since the
    /// before-look. Across looks that failed all of it may have risen anew.
    pub excess_rises: Bytes,
    /// Smallest growth of the excess since the before-look over the settling looks, in bytes, signed; `None` if no
    /// settling look could be read.
    pub settled_excess_growth: Option<i64>,
    /// By how much charged memory, with the growth of the excess, had fallen in the last settling look from the most that
    /// it was in one.
    #[serde(default)]
    pub settled_fall: Bytes,
    /// Largest listed memory of each process.
    pub process_peaks: Vec<(ProcId, Bytes)>,
    /// Growth of what is not the run's, and how much of it came when processes of the run ended.
    #[serde(default)]
    pub handover: Handover,
    /// The curve, thinned.
    pub points: Vec<Point>,
    /// Listed memory of each charged process over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub process_curves: Vec<ProcessCurve>,
}

/// Listed memory of one process over time: a point for each change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCurve {
    /// Who.
    pub id: ProcId,
    /// Milliseconds since the observation began, and the bytes from then on.
    pub points: Vec<(u64, Bytes)>,
}

/// An event of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEvent {
    /// When, milliseconds since the observation began.
    pub at_ms: u64,
    /// Which device; `None` if the driver did not say.
    pub uuid: Option<Uuid>,
    /// Xid number.
    pub xid: u64,
}

/// Everything between the two snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Everybody that was remembered.
    pub seen: Vec<Seen>,
    /// One for each device.
    pub devices: Vec<DeviceTrace>,
    /// The entries of the last look and where they came from.
    pub origins: Vec<EntryOrigin>,
    /// Xid events.
    pub events: Vec<DeviceEvent>,
    /// What could not be seen on the way.
    pub gaps: Vec<Gap>,
}

impl Trace {
    /// The trace of this device.
    pub fn device(&self, uuid: &Uuid) -> Option<&DeviceTrace> {
        self.devices.iter().find(|d| d.uuid == *uuid)
    }

    /// The remembered process.
    pub fn seen(&self, id: ProcId) -> Option<&Seen> {
        self.seen.iter().find(|s| s.id == id)
    }

    /// The process, or one of its present ancestors, was seen below the command while the chain to it was whole.
    pub fn was_below(&self, command: ProcId, id: ProcId, ancestors: &[Ancestor]) -> bool {
        let through = |chain: &[Ancestor]| chain.iter().any(|a| a.id == command);
        let was = |id| self.seen(id).is_some_and(|seen| through(&seen.ancestors));
        through(ancestors) || was(id) || ancestors.iter().any(|a| was(a.id))
    }
}

/// All that a verdict is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// [`super::schema::OBSERVATION`].
    pub schema: String,
    /// Before the command.
    pub before: Snapshot,
    /// Meanwhile.
    pub trace: Trace,
    /// After it, and after settling.
    pub after: Snapshot,
    /// The run.
    pub launch: Launch,
    /// The limits that were asked for.
    pub limits: super::Limits,
    /// What PyTorch told (`check --torch`); `None`: not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch: Option<super::TorchView>,
}
