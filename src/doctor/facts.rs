//! What was seen, before anybody judges it. `Err` and [`Seen::Hidden`] carry why something could not be seen.

use crate::{
    model::{DriverFacts, Look, Observer, Snapshot},
    observe::driver::{Failure, Inventory},
};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Everything that `doctor` looks at.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The driver, or why it does not answer.
    pub driver: Result<DriverSeen, Failure>,
    /// The loaded kernel module, which is there even where the library is not.
    pub kernel: Kernel,
    /// Who has NVIDIA's files open; looked at only where the driver does not answer.
    pub files: Option<Snapshot>,
    /// From where we look.
    pub observer: Option<Observer>,
    /// This machine.
    pub machine: Machine,
    /// The variables that matter here, with their values.
    pub environment: BTreeMap<String, String>,
    /// The Python and its PyTorch.
    pub python: Python,
}

/// A driver that answers.
#[derive(Debug, Clone)]
pub struct DriverSeen {
    /// What there is.
    pub inventory: Inventory,
    /// One look.
    pub look: Result<Look, Failure>,
    /// How the devices are set up.
    pub facts: Result<DriverFacts, Failure>,
}

/// The kernel's side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Version of the loaded module.
    pub module: Option<String>,
    /// Whether it is the open one; `None`: could not tell.
    pub open: Option<bool>,
}

/// Something that may be hidden from us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<T> {
    /// It was seen.
    As(T),
    /// Why it was not.
    Hidden(String),
}

/// A device file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its path.
    pub path: PathBuf,
    /// How it stands with it.
    pub access: Access,
}

/// Whether a device file can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// For reading and writing.
    Granted,
    /// The file permissions say no; octal mode, and the group if its name is known.
    Denied {
        /// The permission bits.
        mode: u32,
        /// The owning group.
        group: Option<String>,
    },
    /// There is no such file.
    Missing,
}

/// Fill of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Bytes in all.
    pub total: u64,
    /// Bytes still to be had.
    pub free: u64,
}

/// An Xid line of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xid {
    /// Its number.
    pub number: u32,
    /// The PCI id that the line names.
    pub pci: Option<String>,
    /// How long ago; `None` where the log does not tell.
    pub ago: Option<Duration>,
    /// The whole message.
    pub text: String,
}

/// MPS as its processes and its directory show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mps {
    /// The pipe directory that a CUDA program started here would use.
    pub directory: PathBuf,
    /// The directory exists.
    pub directory_exists: bool,
    /// The PID that the control daemon left there, whether or not it lives.
    pub control_pid: Option<u32>,
    /// PIDs of living control daemons that we see.
    pub daemons: Vec<u32>,
    /// PIDs of living servers that we see.
    pub servers: Vec<u32>,
    /// Where a living daemon or server has its pipes, by its environment; `None`: it says nothing, or may not be read.
    pub pipes: Option<String>,
}

/// This machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The device files that CUDA needs and those of the GPUs.
    pub nodes: Vec<Node>,
    /// We are in the machine's first cgroup namespace; `None`: could not tell.
    pub initial_cgroup_namespace: Option<bool>,
    /// `/dev/shm`.
    pub shm: Seen<Fill>,
    /// Xid lines, oldest first.
    pub xids: Seen<Vec<Xid>>,
    /// MPS.
    pub mps: Mps,
    /// What `/etc/ld.so.preload` names.
    pub preload_file: Vec<String>,
    /// NVIDIA libraries that `LD_LIBRARY_PATH` puts before the system's.
    pub library_path_hits: Vec<PathBuf>,
}

/// A Python and what is known of its PyTorch, read from files alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Python {
    /// There is no Python to look at; why.
    None(String),
    /// It could not be understood from its files; the interpreter, and why.
    Unclear(PathBuf, String),
    /// This one.
    Found {
        /// The interpreter.
        interpreter: PathBuf,
        /// The directories that were searched, in Python's order.
        searched: Vec<PathBuf>,
        /// The installs of PyTorch that were found, the one that would be imported first.
        torch: Vec<Torch>,
    },
}

/// An installed PyTorch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Torch {
    /// The directory that holds `torch/`.
    pub site: PathBuf,
    /// `__version__` in its `version.py`.
    pub version: Option<String>,
    /// The version in the metadata of the package.
    pub metadata_version: Option<String>,
    /// The CUDA it was built for; `None`: none, or it does not tell.
    pub cuda: Option<String>,
    /// The ROCm it was built for.
    pub hip: Option<String>,
    /// Its `version.py` says for which CUDA it was built, or that for none.
    pub tells_cuda: bool,
}
