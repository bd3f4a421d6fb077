//! The driver seam. Two sources answer for the devices: NVML and the simulated GPU of `gpuresid demo`. Both live in a
//! helper process (this same binary, one look a message over pipes, ends at EOF), so that no NVML call can hang the
//! tool: at the deadline the look becomes an error that names the call, and the helper is left behind.

mod blocking;
mod calls;
mod client;
mod codes;
mod events;
mod helper;
mod interposed;
mod keeper;
pub mod ledger;
mod library;
mod link;
mod numbers;
mod nursery;
mod nvml;
mod protocol;
mod raw;
mod readers;
mod records;
mod settings;
pub mod simulated;
mod slot;
mod socket;
mod witness;

pub use crate::model::{Failure, FailureKind};
pub use blocking::Blocking;
pub use client::Client;
pub use helper::inner_command;

use crate::model::{DeviceEvent, DeviceIdentity, DriverFacts, DriverInfo, Gap, Look, Uuid};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// What a look reads beside memory and lists, because it takes many times as long as these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Extras {
    /// BAR1 memory (160 µs on an H200, where the memory takes 8).
    pub bar1: bool,
    /// The utilisation. Its first call takes 3 ms a GPU on an H200, every further one 2 µs: once it was asked for, every
    /// look has it.
    pub utilization: bool,
}

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
    /// The `/proc` in which others are read, by whose numbers our own processes are to be known.
    pub procfs: PathBuf,
}

impl Options {
    /// The usual: a child, 60 s to open (loading the driver of 8 idle GPUs takes long), 10 s for a look, no events.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            placement: Placement::Child,
            open_timeout: Duration::from_secs(60),
            look_timeout: Duration::from_secs(10),
            events: false,
            procfs: "/proc".into(),
        }
    }
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

/// What the driver sends to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Exactly one, after [`Client::start`].
    Opened(Result<Inventory, Failure>),
    /// Exactly one for each [`Client::request_look`], in order. `Look::at_ms` is 0: the owner stamps it.
    Look(Result<Look, Failure>),
    /// Xid events, `at_ms` 0.
    Events(Vec<DeviceEvent>),
    /// At most one for each [`Client::ask_whether_the_group_heard`].
    Heard(Heard),
}

/// Whether a signal that we got has reached all of our process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Its number.
    pub signal: i32,
    /// The PID that sent it; 0: a process outside of our PID namespace.
    pub sender: u32,
    /// It has.
    pub by_all: bool,
}

/// Somebody who answers for devices. Lives in the helper process and may block there.
trait DeviceSource {
    /// The devices that there are.
    fn inventory(&mut self) -> Result<Inventory, Failure>;

    /// One look at these devices (empty: all), in the order of the inventory, `at_ms` 0. A device that has not answered after `patience` is a gap, if another has.
    fn look(&mut self, devices: &[Uuid], extras: Extras, patience: Duration) -> Result<Look, Failure>;

    /// How the devices are set up.
    fn facts(&mut self) -> Result<DriverFacts, Failure>;

    /// Events since the last call, `at_ms` 0. Never waits.
    fn poll_events(&mut self) -> Vec<DeviceEvent>;
}

impl DeviceSource for simulated::Simulated {
    fn inventory(&mut self) -> Result<Inventory, Failure> {
        Self::inventory(self)
    }

    fn look(&mut self, devices: &[Uuid], _: Extras, _: Duration) -> Result<Look, Failure> {
        Self::look(self, devices)
    }

    fn facts(&mut self) -> Result<DriverFacts, Failure> {
        Ok(DriverFacts::default())
    }

    fn poll_events(&mut self) -> Vec<DeviceEvent> {
        Vec::new()
    }
}
