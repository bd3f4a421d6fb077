//! The driver seam. Two sources answer for the devices: NVML and the simulated GPU of `gpuresid demo`. Both live in a
//! helper process (this same binary, one look a message over pipes, ends at EOF), so that no NVML call can hang the
//! tool: at the deadline the look becomes an error that names the call, and the helper is left behind.

pub mod ledger;
pub mod simulated;

use crate::model::{DeviceEvent, DeviceIdentity, DriverInfo, Gap, Look, ProcId, Uuid};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// Where device readings come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// NVIDIA's library; `library` is `--nvml-lib`, `None` searches the usual places.
    Nvml {
        /// An explicit library file.
        library: Option<PathBuf>,
    },
    /// The simulated GPU over this ledger directory.
    Simulated {
        /// The ledger directory.
        ledger: PathBuf,
    },
}

/// Whose child the helper is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Ours, and reaped.
    Child,
    /// A nursery's that is no child of ours, so that `waitid(P_ALL)` of a subreaper does not see it.
    Nursery,
}

/// How to start the driver.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where readings come from.
    pub source: Source,
    /// Whose child the helper is.
    pub placement: Placement,
    /// Longest time for opening the library (default 60 s).
    pub open_timeout: Duration,
    /// Longest time for one later look (default 10 s).
    pub look_timeout: Duration,
    /// Watch for Xid events.
    pub events: bool,
}

/// The devices that there are, and who says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The driver.
    pub driver: DriverInfo,
    /// All devices, MIG instances after their parent.
    pub devices: Vec<DeviceIdentity>,
    /// What could not be read of them.
    pub gaps: Vec<Gap>,
}

/// Why the driver does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No NVIDIA kernel driver is loaded.
    NoDriver,
    /// The library was not found or could not be loaded.
    NoLibrary,
    /// Library and kernel module are of different versions.
    VersionMismatch,
    /// We may not use the device files.
    NoPermission,
    /// The driver says that there is no GPU.
    NoGpu,
    /// A call did not come back in time.
    Timeout,
    /// The helper process died.
    HelperDied,
    /// Anything else.
    Other,
}

/// A failure of the driver as a whole: what we were doing, what went wrong, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// One sentence: what we were doing and what went wrong.
    pub message: String,
    /// What to do next, with a command where there is one.
    pub hint: Option<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What the driver sends to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Exactly one, after [`Client::start`].
    Opened(Result<Inventory, Failure>),
    /// Exactly one for each [`Client::request_look`], in order. `Look::at_ms` is 0: the owner stamps it.
    Look(Result<Look, Failure>),
    /// Xid events, `at_ms` 0.
    Events(Vec<DeviceEvent>),
}

/// The driver in its helper process. Never blocks its owner: answers arrive through `deliver`.
pub struct Client {
    _private: (),
}

impl Client {
    /// Starts the helper. `deliver` is called on a thread of the client's own.
    ///
    /// # Errors
    /// If no process could be started at all.
    pub fn start(_options: &Options, _deliver: impl Fn(Message) + Send + 'static) -> anyhow::Result<Self> {
        anyhow::bail!("not built yet")
    }

    /// Asks for one look at these devices (empty: all). Exactly one [`Message::Look`] follows.
    pub fn request_look(&self, _devices: &[Uuid]) {}

    /// The helper and its nursery, so that they are never taken for holders or for the command's processes.
    pub fn tool_processes(&self) -> Vec<ProcId> {
        Vec::new()
    }
}
