//! What `doctor` reads of the driver beyond the looks, and what it says.

use super::{Bytes, Gap, Holder, Uuid};
use serde::{Deserialize, Serialize};

/// Who may use a device at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Everybody.
    Default,
    /// One process at a time.
    ExclusiveProcess,
    /// Nobody.
    Prohibited,
}

/// A setting of which a change waits for a reset of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NowAndNext {
    /// As it is.
    pub now: bool,
    /// As it will be after a reset.
    pub next: bool,
}

/// Rows of memory that were replaced by spare ones (Ampere and newer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Because of errors that could be corrected.
    pub correctable: u32,
    /// Because of errors that could not.
    pub uncorrectable: u32,
    /// A replacement waits for a reset.
    pub pending: bool,
    /// A replacement did not work: no spare row is left.
    pub failed: bool,
}

/// Where confidential computing runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfEnvironment {
    /// Nowhere.
    Unavailable,
    /// Simulated.
    Simulation,
    /// For real.
    Production,
    /// A value that this version does not know.
    Other,
}

/// The machine's state of confidential computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfCompute {
    /// It is on.
    pub on: bool,
    /// Where it runs.
    pub environment: ConfEnvironment,
    /// Developers' tools are allowed in it.
    pub developer_tools: bool,
}

/// How confidential computing divides a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfMemory {
    /// The protected part.
    pub protected: Bytes,
    /// The rest.
    pub unprotected: Bytes,
    /// What is used of the protected part; `None`: not told.
    pub protected_used: Option<Bytes>,
}

/// How one GPU is set up. `None` without a gap: the device or the driver does not know such a thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Which.
    pub uuid: Uuid,
    /// NVML's index.
    pub index: u32,
    /// The driver stays loaded without a client.
    pub persistence: Option<bool>,
    /// Who may use it.
    pub compute_mode: Option<ComputeMode>,
    /// Split into MIG instances.
    pub mig: Option<NowAndNext>,
    /// Error correction.
    pub ecc: Option<NowAndNext>,
    /// Pages of memory wait for a reset to be retired (before Ampere).
    pub pages_pending: Option<bool>,
    /// Replaced rows of memory.
    pub remapped_rows: Option<RemappedRows>,
    /// How confidential computing divides its memory; asked only where that is on.
    pub conf_memory: Option<ConfMemory>,
    /// What could not be read.
    pub gaps: Vec<Gap>,
}

impl DeviceFacts {
    /// A GPU of which nothing is known.
    pub const fn unknown(uuid: Uuid, index: u32) -> Self {
        Self {
            uuid,
            index,
            persistence: None,
            compute_mode: None,
            mig: None,
            ecc: None,
            pages_pending: None,
            remapped_rows: None,
            conf_memory: None,
            gaps: Vec::new(),
        }
    }
}

/// What the driver's helper process knows beyond the looks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFacts {
    /// Every file that is mapped into the helper: which library answers, and what was put before it.
    pub mapped: Option<Vec<String>>,
    /// The machine's state of confidential computing; `None`: the driver does not know such a thing.
    pub conf_compute: Option<ConfCompute>,
    /// The GPUs, without MIG instances.
    pub devices: Vec<DeviceFacts>,
}

/// How a check of `doctor` went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It could not be seen.
    CouldNotLook,
    /// It works and is worth a look.
    Warn,
    /// It does not work.
    Fail,
}

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorLine {
    /// A stable name such as `driver.version`.
    pub check: String,
    /// How it went.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// A command that mends or shows it.
    pub fix: Option<String>,
    /// Where a fact that is not ours was published.
    pub source: Option<String>,
}

/// The result of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// [`super::schema::DOCTOR`].
    pub schema: String,
    /// Version of gpuresid.
    pub tool_version: String,
    /// When, RFC 3339.
    pub taken_at: String,
    /// Host name.
    pub host: Option<String>,
    /// Driver version.
    pub driver_version: Option<String>,
    /// Version of the PyTorch that was found.
    pub torch_version: Option<String>,
    /// The exit code of gpuresid.
    pub exit_code: i32,
    /// The worst of the lines.
    pub verdict: Level,
    /// One for each check.
    pub lines: Vec<DoctorLine>,
    /// Who has NVIDIA's device files open; only where the driver does not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
}

impl DoctorReport {
    /// How many lines are of this level.
    pub fn count(&self, level: Level) -> usize {
        self.lines.iter().filter(|line| line.level == level).count()
    }
}
