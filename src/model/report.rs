//! What the tool says.

use super::{
    Bytes, DeviceEvent, Doubt, Evidence, Facts, Failure, Finding, Gap, Leftover, Limits, Place, ProcId, Scope,
    SettleEnd, Uuid,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The answer of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything came back.
    Clean,
    /// What could not be seen may hide residue.
    Inconclusive,
    /// Memory of the command did not come back.
    Residue,
}

/// Where a holder belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lineage {
    /// Of the checked command.
    Own,
    /// Somebody else's.
    Foreign,
    /// Could be either.
    Unknown,
}

/// Why a holder holds memory. One per holder: the first that its evidence fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A thread of it does not come out of the kernel: no signal reaches it.
    StuckInKernel,
    /// On its way out: killed, exiting or unpinning memory.
    Draining,
    /// Stopped by a signal (Ctrl-Z, SIGSTOP) or a debugger.
    Stopped,
    /// Its main thread is gone, other threads live.
    HalfDead,
    /// The server of NVIDIA's multi-process service: it keeps a context for the clients to come.
    MpsServer,
    /// It inherited the device files of a process that is gone, and keeps that one's memory.
    ForkedCopy,
    /// It keeps an allocation handle that another process exported.
    ExportedHandle,
    /// It maps memory of a process that is gone (CUDA IPC), and so keeps it.
    PeerMapping,
    /// Its run ended, it goes on.
    Orphan,
    /// Of the command, and what launched it still lives.
    StillRunning,
    /// Its parent is gone or PID 1, nothing more is known: a service, nohup, a container's main process.
    Detached,
    /// It has a GPU context and about nothing in it.
    ContextOnly,
    /// A process of others that grew meanwhile.
    GrownNeighbour,
    /// A process of others that was not there before.
    NewNeighbour,
    /// A process that NVML lists and we cannot see.
    OutOfSight,
    /// This platform does not tell how much it holds (WSL, vGPU, unified memory).
    Platform,
    /// It has a GPU open and holds no memory that is known: a monitor, or a rank that opened a GPU it does not use.
    OpenOnly,
    /// Another process in use: nothing is wrong with it.
    InUse,
}

/// Memory of one holder on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Which device.
    pub uuid: Uuid,
    /// Listed memory (or the ghost's that it keeps, if it is the only candidate); `None`: not known.
    pub held_bytes: Option<Bytes>,
    /// Open files on that device's node.
    pub open_files: Option<u32>,
    /// What is in use there on no list and may be its, all or nothing of it: not divided among several. Only where its
    /// own memory is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_hold_bytes: Option<Bytes>,
    /// What it has more than before, for a process that was there then; `None`: nothing, or there was no look before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_bytes: Option<Bytes>,
}

/// A living process that holds GPU memory, or may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// PID.
    pub pid: u32,
    /// Start time in clock ticks since boot; `None` for a listed PID that we cannot see.
    pub start_ticks: Option<u64>,
    /// Its PID inside its own PID namespace, where that differs.
    pub inner_pid: Option<u32>,
    /// User name, or the number where it has none.
    pub user: Option<String>,
    /// Real user id.
    pub uid: Option<u32>,
    /// The command line, and the program beside a title that hides it.
    pub command: String,
    /// The same without the program's directory: what it is called in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The word for its state.
    pub state: Option<String>,
    /// Seconds since it started.
    pub age_seconds: Option<u64>,
    /// Its parent.
    pub ppid: Option<u32>,
    /// What launched it, if that still lives: name and PID.
    pub launcher: Option<String>,
    /// PID of what started it, as far as that was seen, whether it lives or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<u32>,
    /// What launched it is gone.
    pub launcher_gone: Option<bool>,
    /// Its cgroup's path.
    pub cgroup: Option<String>,
    /// Where it belongs: container, pod, batch job, service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// The well-known program that it is, by its evidence: `torchrun rank`, `DataLoader worker`, `Jupyter kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// What is worth knowing about such a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The command that ends it at the level that owns it, where that is not a plain `kill`. Not an advice to do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_with: Option<String>,
    /// Why it holds memory.
    pub cause: Cause,
    /// Where it belongs.
    pub lineage: Lineage,
    /// The NVIDIA files it has open, counted by node: `nvidia0` → 23.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub open_files: BTreeMap<String, u32>,
    /// The facts behind cause and lineage.
    #[serde(flatten)]
    pub why: Facts<Evidence>,
    /// Its memory.
    pub devices: Vec<Held>,
}

impl Holder {
    /// What it is called in tables and sentences.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.command)
    }

    /// Known memory over all devices.
    pub fn held(&self) -> Bytes {
        self.devices.iter().filter_map(|d| d.held_bytes).sum()
    }

    /// What it has more than before over all devices, if it was there then.
    pub fn grown(&self) -> Bytes {
        self.devices.iter().filter_map(|d| d.grown_bytes).sum()
    }
}

/// An entry of NVML's list whose process is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ghost {
    /// The PID that NVML lists.
    pub pid: u32,
    /// On which device.
    pub device_uuid: Uuid,
    /// Its memory; `None`: not available.
    pub bytes: Option<Bytes>,
    /// Where it belongs.
    pub lineage: Lineage,
    /// What it was, if it was seen alive.
    pub command: Option<String>,
    /// The number belongs to an innocent process by now: its PID's present name.
    pub impostor: Option<String>,
    /// Living processes that can keep its memory. Bytes are not divided among several.
    pub candidates: Vec<u32>,
}

/// One step that the user can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// To paste; `None` where there is nothing to run.
    pub command: Option<String>,
    /// What it does and why it helps.
    pub why: String,
    /// Whom it disturbs: `nobody`, `the server (PID 4711)`.
    pub disturbs: String,
}

/// One device of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// NVML's index.
    pub index: u32,
    /// UUID.
    pub uuid: Uuid,
    /// Present for a MIG instance: which part of which GPU it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<super::MigIdentity>,
    /// Product name.
    pub name: Option<String>,
    /// The verdict on this device.
    pub verdict: Verdict,
    /// All memory.
    pub total_bytes: Option<Bytes>,
    /// The driver's own.
    pub reserved_bytes: Option<Bytes>,
    /// Used before.
    pub used_before_bytes: Option<Bytes>,
    /// Used after.
    pub used_after_bytes: Option<Bytes>,
    /// Free after.
    pub free_bytes: Option<Bytes>,
    /// Largest used memory seen.
    pub peak_bytes: Option<Bytes>,
    /// Largest memory of the command seen.
    pub command_peak_bytes: Option<Bytes>,
    /// What is charged to the command for certain.
    pub charged_residue_bytes: Bytes,
    /// What it could be at most; `None`: unknown.
    pub charged_residue_max_bytes: Option<Bytes>,
    /// `charged_residue_bytes` ÷ `command_peak_bytes`, 0–1; `None` without a peak.
    pub residue_rate: Option<f64>,
    /// Used − Σ listed after, signed; `None`: unknown.
    pub unaccounted_bytes: Option<i64>,
    /// What keeps the interval open or decided the verdict.
    #[serde(flatten)]
    pub because: Facts<Doubt>,
}

impl DeviceReport {
    /// Its name in tables and sentences.
    pub fn label(&self) -> String {
        super::device::label(self.index, &self.uuid, self.mig.as_ref())
    }
}

/// The command in a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandReport {
    /// Program and arguments.
    pub argv: super::Argv,
    /// Its exit code, if it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// `--timeout` ended it, or tried to: without a code and a signal it could not be ended.
    pub timed_out: bool,
    /// The time limit, where that was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Whether it used a GPU that was looked at; `None`: that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_gpu: Option<bool>,
    /// It was not seen to use a GPU, and was over before there were enough looks to tell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub too_short_to_see: bool,
    /// How long it ran.
    pub seconds: Option<f64>,
}

/// The result of `check` and `diff`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`super::schema::REPORT`].
    pub schema: String,
    /// Version of gpuresid.
    pub tool_version: String,
    /// When the after-look was taken, RFC 3339.
    pub taken_at: String,
    /// The run's marker.
    pub run_id: String,
    /// The boot.
    pub boot_id: super::BootId,
    /// Host name.
    pub host: Option<String>,
    /// Real user id of who ran the tool.
    pub uid: u32,
    /// The devices are simulated (`gpuresid demo`).
    pub simulated: bool,
    /// Driver version.
    pub driver_version: Option<String>,
    /// The run's verdict: the worst of its devices.
    pub verdict: Verdict,
    /// The exit code of gpuresid (128+n where it dies of the command's signal).
    pub exit_code: i32,
    /// The command; `None` in a `diff`.
    pub command: Option<CommandReport>,
    /// Whom was charged.
    pub scope: Scope,
    /// The limits.
    pub limits: Limits,
    /// Seconds from the end of the command to the verdict.
    pub settled_seconds: Option<f64>,
    /// Why settling ended.
    pub settle_end: Option<SettleEnd>,
    /// Descendants alive at the end, with or without GPU memory.
    pub survivors: Vec<ProcId>,
    /// The devices.
    pub devices: Vec<DeviceReport>,
    /// The devices that there are and that were not looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Uuid>,
    /// Who holds memory.
    pub holders: Vec<Holder>,
    /// Entries without a process.
    pub ghosts: Vec<Ghost>,
    /// What it left in shared memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// What `--cleanup` ended after the verdict; `None` where it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<super::Cleanup>,
    /// What else was found.
    pub findings: Vec<Finding>,
    /// What to do, what disturbs nobody first.
    pub advice: Vec<Advice>,
    /// What could not be seen.
    pub gaps: Vec<Gap>,
    /// Events of the driver.
    pub events: Vec<DeviceEvent>,
    /// PyTorch's view of its processes (`check --torch`); `None`: not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch: Option<Vec<super::TorchProcess>>,
}

/// One device of `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// NVML's index.
    pub index: u32,
    /// UUID.
    pub uuid: Uuid,
    /// Present for a MIG instance: which part of which GPU it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<super::MigIdentity>,
    /// Product name.
    pub name: Option<String>,
    /// PCI bus id.
    pub pci: Option<String>,
    /// All memory.
    pub total_bytes: Option<Bytes>,
    /// The driver's own.
    pub reserved_bytes: Option<Bytes>,
    /// In use.
    pub used_bytes: Option<Bytes>,
    /// To be had.
    pub free_bytes: Option<Bytes>,
    /// Σ of the process list.
    pub listed_bytes: Option<Bytes>,
    /// Used − Σ listed, signed.
    pub unaccounted_bytes: Option<i64>,
    /// Of the unaccounted, what the listed contexts cost beside their own memory.
    pub context_cost_bytes: Bytes,
    /// How busy it was over the driver's last sampling period, in percent; only where it was asked for and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<u32>,
    /// BAR1 memory in all; only where it was asked for and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar1_total_bytes: Option<Bytes>,
    /// BAR1 memory in use; as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar1_used_bytes: Option<Bytes>,
}

impl DeviceStatus {
    /// Its name in tables and sentences.
    pub fn label(&self) -> String {
        super::device::label(self.index, &self.uuid, self.mig.as_ref())
    }

    /// It is a part of a GPU and not a whole one.
    pub fn is_instance(&self) -> bool {
        self.mig.is_some() || self.uuid.0.starts_with("MIG-")
    }
}

/// A rule of `status --fail-on` that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenRule {
    /// As it was asked for: a cause, `lost` or `foreign`.
    pub rule: String,
    /// By which processes.
    pub pids: Vec<u32>,
    /// By which devices.
    pub device_uuids: Vec<Uuid>,
    /// In words.
    pub text: String,
}

/// The result of `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// [`super::schema::STATUS`].
    pub schema: String,
    /// Version of gpuresid.
    pub tool_version: String,
    /// When, RFC 3339.
    pub taken_at: String,
    /// The boot.
    pub boot_id: super::BootId,
    /// Host name.
    pub host: Option<String>,
    /// The devices are simulated.
    pub simulated: bool,
    /// Driver version.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver serves.
    pub cuda_version: Option<String>,
    /// The rules of `--fail-on` that do not hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_rules: Vec<BrokenRule>,
    /// Why the driver does not answer; only where it does not. Then nothing is known of the devices or of memory, and the
    /// holders are those who have NVIDIA's files open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The devices.
    pub devices: Vec<DeviceStatus>,
    /// Who holds memory, or may.
    pub holders: Vec<Holder>,
    /// Who has a GPU open and is not known to hold memory; filled on request only, and nobody here is to blame.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_only: Vec<Holder>,
    /// Entries without a process.
    pub ghosts: Vec<Ghost>,
    /// What else was found.
    pub findings: Vec<Finding>,
    /// What to do.
    pub advice: Vec<Advice>,
    /// What could not be seen.
    pub gaps: Vec<Gap>,
}
