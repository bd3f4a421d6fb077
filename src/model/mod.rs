//! The words of the tool: what was read ([`Snapshot`], [`Trace`], [`Launch`], together an [`Observation`]) and what is
//! said about it ([`Report`], [`StatusReport`]). Plain values with serde, no IO and no judgement.
//!
//! Unknown is `None` or a [`Gap`], never 0 and never an empty list for a call that failed.

mod argv;
mod bytes;
mod device;
mod doctor;
mod doubt;
mod evidence;
mod fact;
mod failure;
mod finding;
mod foreign;
mod gap;
mod groups;
mod handover;
mod ids;
mod launch;
mod marker;
mod place;
mod process;
mod reclaim;
mod report;
mod run_record;
mod run_tree;
mod snapshot;
mod torch;
mod trace;

pub use argv::Argv;
pub use bytes::{Bytes, Limit, ParseSizeError};
pub use device::{
    AGREEING, Addressing, Bar1, Device, DeviceIdentity, DeviceLook, Entry, ListApi, ListKind, Look, Memory, MemoryApi,
    MigIdentity, NumaMemory, SystemPages,
};
pub use doctor::{
    ComputeMode, ConfCompute, ConfEnvironment, ConfMemory, DeviceFacts, DoctorLine, DoctorReport, DriverFacts, Level,
    NowAndNext, RemappedRows,
};
pub use doubt::Doubt;
pub use evidence::{Amount, Beginning, Cure, Evidence, Maker, SignSeen, Starter, WaitsOn};
pub use fact::{Fact, Facts};
pub use failure::{Failure, FailureKind};
pub use finding::{Death, Exclusion, Finding, FindingData, FindingKind, Obstacle, Possibility, Taker};
pub use foreign::{Foreign, Named};
pub use gap::{Gap, Trouble};
pub use groups::{gist, groups, said_of_all, step_groups};
pub use handover::{EntryKey, Grower, Handover};
pub use ids::{BootId, ProcId, Uuid};
pub use launch::{Command, End, Launch, Leftover, Limits, Scope, SettleEnd};
pub use marker::{MARKER, marker_names, run_began};
pub use place::{Container, Place, SlurmJob, Unit};
pub use process::{
    Ancestor, Blocked, BlockedThread, DeviceFiles, OnSigterm, Process, ProcessState, Sockets, Uninspected,
};
pub use reclaim::{
    CleanedDevice, Cleanup, Ended, LeftAlone, LifeSigns, ReclaimDevice, ReclaimReport, ReclaimStep, Restarter, Role,
    StepOutcome, Talker,
};
pub use report::{
    Advice, BrokenRule, Cause, CommandReport, DeviceReport, DeviceStatus, Ghost, Held, Holder, Lineage, Report,
    StatusReport, Verdict,
};
pub use run_record::{Fingerprint, RunMember, RunRecord, RunState, arguments_of};
pub use run_tree::RunTree;
pub use snapshot::{Capability, DriverInfo, DriverSource, Observer, Snapshot};
pub use torch::{
    TorchCounts, TorchDevice, TorchLive, TorchNames, TorchOwner, TorchPoint, TorchProcess, TorchRecord, TorchReference,
    TorchSplit, TorchStage, TorchStart, TorchStorage, TorchThread, TorchView,
};
pub use trace::{DeviceEvent, DeviceTrace, EntryOrigin, Observation, Point, ProcessCurve, Seen, Trace};

/// Schema names that the tool writes and reads. The number after the slash grows when a reader of the old form would
/// misread the new one.
pub mod schema {
    /// A [`super::Snapshot`].
    pub const SNAPSHOT: &str = "gpuresid.snapshot/1";
    /// An [`super::Observation`].
    pub const OBSERVATION: &str = "gpuresid.observation/1";
    /// A [`super::Report`] of `check` or `diff`.
    pub const REPORT: &str = "gpuresid.report/1";
    /// A [`super::StatusReport`].
    pub const STATUS: &str = "gpuresid.status/1";
    /// A [`super::DoctorReport`].
    pub const DOCTOR: &str = "gpuresid.doctor/1";
    /// Whom a look of `reclaim --idle` saw idle.
    pub const IDLE: &str = "gpuresid.idle/1";
    /// A [`super::RunRecord`].
    pub const RECORD: &str = "gpuresid.record/1";
    /// A [`super::ReclaimReport`].
    pub const RECLAIM: &str = "gpuresid.reclaim/1";
}
