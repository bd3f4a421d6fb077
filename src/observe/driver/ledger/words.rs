//! What stands in a ledger: the machine, its allocations, and what is read from them. Plain values with serde.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Charged to nobody on a device that is in use: 3.25 MiB on an H200.
pub const DEVICE_OVERHEAD: u64 = 13 << 18;
/// Charged to nobody for each listed context: 5.5625 MiB on an H200.
pub const CONTEXT_OVERHEAD: u64 = 89 << 16;

/// A MIG instance of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// `MIG-…`.
    pub uuid: String,
    /// GPU instance id.
    pub gi: u32,
    /// Compute instance id.
    pub ci: u32,
    /// Bytes of memory.
    pub total: u64,
    /// Bytes that the driver keeps for itself.
    #[serde(default)]
    pub reserved: u64,
}

/// A GPU of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Bytes of memory.
    pub total: u64,
    /// Bytes that the driver keeps for itself.
    #[serde(default)]
    pub reserved: u64,
    /// `N` of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI bus id, `00000000:0A:00.0`.
    pub pci: String,
    /// Utilisation in percent.
    #[serde(default)]
    pub utilization: u32,
    /// Its MIG instances; empty where it is not split.
    #[serde(default)]
    pub mig: Vec<Instance>,
    /// Whether a split GPU lists the processes of its instances. NVML refuses that without permission.
    #[serde(default)]
    pub mig_parent_lists: bool,
}

/// The machine. Further fields of the file are for the fake library alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Driver version.
    pub driver_version: String,
    /// Version of the NVML library.
    pub nvml_version: String,
    /// CUDA version as NVML gives it: 13000 is 13.0.
    pub cuda_version: i32,
    /// Whether contexts cost memory that is charged to nobody, as on a real device.
    #[serde(default = "yes")]
    pub overhead: bool,
    /// The GPUs, in NVML's order.
    pub devices: Vec<Gpu>,
}

fn yes() -> bool {
    true
}

impl Machine {
    /// A machine with `gpus` GPUs like the H200 that was measured.
    pub fn h200(gpus: u32) -> Self {
        let gpu = |n: u32| Gpu {
            uuid: format!("GPU-{n:08x}-5a1e-4c0d-9e57-00000000{n:04x}"),
            name: "NVIDIA H200".into(),
            total: 143_771 << 20,
            reserved: 615 << 20,
            minor: n,
            pci: format!("00000000:{:02X}:00.0", 0x0a + n),
            utilization: 0,
            mig: Vec::new(),
            mig_parent_lists: false,
        };
        Self {
            driver_version: "580.159.04".into(),
            nvml_version: "13.580.159.04".into(),
            cuda_version: 13_000,
            overhead: true,
            devices: (0..gpus).map(gpu).collect(),
        }
    }
}

/// One of the process lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// Compute.
    Compute,
    /// Graphics.
    Graphics,
    /// Clients of MPS; they stand in the compute list too.
    Mps,
}

/// Memory that comes over from another allocation when that one's keepers are gone, as shared memory stays with the
/// consumer and an exported handle with whoever inherited it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherit {
    /// Name of the other allocation.
    pub from: String,
    /// How many bytes come over.
    pub bytes: u64,
}

/// One allocation: what one process (or nobody) holds on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocation {
    /// Index of the GPU.
    pub device: usize,
    /// The number that NVML lists; `None`: not listed.
    pub pid: Option<u32>,
    /// Inode of the PID namespace in which `pid` is meant; `None`: in every one.
    pub pid_ns: Option<u64>,
    /// Bytes that count as used and are listed.
    pub bytes: u64,
    /// Bytes that count as used and are not listed (a managed pool).
    pub unlisted_bytes: u64,
    /// NVML lists the process with its memory "not available".
    pub unavailable: bool,
    /// The lists that name it.
    pub lists: Vec<List>,
    /// GPU instance.
    pub gi: Option<u32>,
    /// Compute instance.
    pub ci: Option<u32>,
    /// Lives without a keeper.
    pub permanent: bool,
    /// The lock file, if another than `NAME.lock`: several allocations may hang on one.
    pub lock: Option<String>,
    /// What comes over when others are gone.
    pub inherits: Vec<Inherit>,
    /// `[[milliseconds, bytes left], …]` once the keepers are gone: memory that comes back late. All of it is back
    /// after the last step whatever that says; until the first step everything stays. The clock starts at the first
    /// reading that finds the keepers gone.
    pub release_steps_ms: Vec<(u64, u64)>,
    /// Whether the process is still listed while memory comes back.
    pub release_listed: bool,
}

impl Default for Allocation {
    fn default() -> Self {
        Self {
            device: 0,
            pid: None,
            pid_ns: None,
            bytes: 0,
            unlisted_bytes: 0,
            unavailable: false,
            lists: vec![List::Compute],
            gi: None,
            ci: None,
            permanent: false,
            lock: None,
            inherits: Vec::new(),
            release_steps_ms: Vec::new(),
            release_listed: false,
        }
    }
}

/// A memory reading in bytes: `used + reserved + free = total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryOf {
    /// All of it.
    pub total: u64,
    /// The driver's own.
    pub reserved: u64,
    /// In use.
    pub used: u64,
    /// To be had.
    pub free: u64,
}

/// One line of a process list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The number as the caller's PID namespace sees it.
    pub pid: u32,
    /// Bytes; `None`: not available.
    pub bytes: Option<u64>,
    /// GPU instance.
    pub gi: Option<u32>,
    /// Compute instance.
    pub ci: Option<u32>,
    /// The lists that name it.
    pub lists: BTreeSet<List>,
}
