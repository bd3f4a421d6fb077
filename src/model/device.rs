//! What NVML says about devices.

use super::{Bytes, Gap, Trouble, Uuid};
use serde::{Deserialize, Serialize};

/// Which of NVML's memory calls answered. Readings of different calls are never compared: version 1 counts the
/// driver's reserved memory as used (615 MiB on an idle H200).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryApi {
    /// `nvmlDeviceGetMemoryInfo`: reserved memory is part of `used`.
    V1,
    /// `nvmlDeviceGetMemoryInfo_v2`: reserved apart.
    V2,
}

/// One memory reading of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of the device's memory.
    pub total: Bytes,
    /// Memory that the driver keeps for itself; `None` where the call does not tell it apart.
    pub reserved: Option<Bytes>,
    /// Memory in use.
    pub used: Bytes,
    /// Memory that can be had.
    pub free: Bytes,
    /// The call that answered.
    pub api: MemoryApi,
}

/// No device has more: a larger number is no reading.
const MOST: Bytes = Bytes(1 << 50);

impl Memory {
    /// Whether these can be the numbers of a device. A GPU in trouble was seen to answer 2^64 - 1.
    pub fn is_possible(&self) -> bool {
        let parts = [Some(self.used), Some(self.free), self.reserved];
        self.total > Bytes::ZERO && self.total <= MOST && parts.into_iter().flatten().all(|part| part <= self.total)
    }
}

/// Which version of NVML's process list calls answered. Version 1 knows no MIG instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListApi {
    /// Without a suffix: PID and memory.
    V1,
    /// `_v2`: instance ids added.
    V2,
    /// `_v3`.
    V3,
}

/// The process lists of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListKind {
    /// `nvmlDeviceGetComputeRunningProcesses`.
    Compute,
    /// `nvmlDeviceGetGraphicsRunningProcesses`.
    Graphics,
    /// `nvmlDeviceGetMPSComputeRunningProcesses`.
    Mps,
}

/// One entry of NVML's process lists: each (pid, gi, ci) once, with its largest value over the lists, because an MPS
/// client stands in two of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The PID that NVML lists. It may be gone, belong to somebody else by now, or to another PID namespace.
    pub pid: u32,
    /// Memory of the entry; `None` where NVML says "not available" (WSL, vGPU), which is not 0.
    pub bytes: Option<Bytes>,
    /// GPU instance, on a MIG device.
    pub gi: Option<u32>,
    /// Compute instance, on a MIG device.
    pub ci: Option<u32>,
    /// The lists that named it.
    pub lists: Vec<ListKind>,
}

/// BAR1 memory: the window through which the CPU and other devices reach the GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar1 {
    /// The whole window.
    pub total: Bytes,
    /// What of it is mapped.
    pub used: Bytes,
}

/// How the device reaches memory that a program has from the system (`malloc`, `mmap`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Addressing {
    /// Not at all.
    None,
    /// The driver mirrors the CPU's page tables (HMM).
    Hmm,
    /// CPU and GPU go by one set of page tables (ATS), as on GH200 and GB200.
    Ats,
    /// A mode that this version does not know.
    Other,
}

/// Whether the device's memory is ordinary memory of the machine as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumaMemory {
    /// It is not.
    No,
    /// It is this NUMA node: the operating system manages it, and puts there what it likes.
    Node(u32),
}

/// Whether the operating system may keep pages of its own in a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemPages {
    /// No, as far as the driver tells.
    No,
    /// The addressing mode allows it, and the driver does not tell whether the memory is a NUMA node.
    Perhaps,
    /// Yes, as this NUMA node.
    Node(u32),
}

/// Where a MIG instance belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigIdentity {
    /// The GPU it is a part of.
    pub parent: Uuid,
    /// GPU instance id.
    pub gi: Option<u32>,
    /// Compute instance id.
    pub ci: Option<u32>,
}

/// What does not change about a device while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceIdentity {
    /// NVML's index. CUDA may count differently unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub index: u32,
    /// The device's UUID; where NVML refuses to tell it, `index-N`.
    pub uuid: Uuid,
    /// Product name.
    pub name: Option<String>,
    /// PCI bus id such as `00000000:0A:00.0`.
    pub pci: Option<String>,
    /// `N` of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Present for a MIG instance.
    pub mig: Option<MigIdentity>,
    /// The device is split into MIG instances: shown, never summed.
    #[serde(default)]
    pub mig_parent: bool,
    /// How it reaches system memory; `None`: the driver does not tell (the call came with R580).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addressing: Option<Addressing>,
    /// Whether its memory is a NUMA node; `None`: the driver does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<NumaMemory>,
}

impl DeviceIdentity {
    /// Whether page cache and host pages of any process may lie in its memory and count as used.
    pub const fn system_pages(&self) -> SystemPages {
        match (self.numa, self.addressing) {
            (Some(NumaMemory::Node(node)), _) => SystemPages::Node(node),
            (None, Some(Addressing::Ats)) => SystemPages::Perhaps,
            _ => SystemPages::No,
        }
    }

    /// NVML tells its UUID, so that it can be known again.
    pub fn has_uuid(&self) -> bool {
        !self.uuid.0.starts_with("index-")
    }

    /// How everything names the device: `GPU 0`, `MIG 0/7/0`.
    pub fn label(&self) -> String {
        label(self.index, &self.uuid, self.mig.as_ref())
    }
}

/// The one name of a device in tables and sentences, which `-i` takes too: `GPU 0`, and for a MIG instance `MIG 0/7/0`
/// (GPU, GPU instance, compute instance). Without these numbers, as in a report of an older version, an instance goes by
/// its whole UUID: of two on one GPU the beginning may be the same (`MIG-GPU-…/7/0`).
pub(super) fn label(index: u32, uuid: &Uuid, mig: Option<&MigIdentity>) -> String {
    match mig {
        Some(MigIdentity { gi: Some(gi), ci, .. }) => {
            format!("MIG {index}/{gi}/{}", ci.map_or_else(|| "?".into(), |ci| ci.to_string()))
        }
        _ if mig.is_some() || uuid.0.starts_with("MIG-") => uuid.0.clone(),
        _ => format!("GPU {index}"),
    }
}

/// One reading of one device: memory, lists, memory again, so that the parts agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLook {
    /// The device.
    pub uuid: Uuid,
    /// `None` if it could not be read.
    pub memory: Option<Memory>,
    /// `None` if no list could be read; a list that NVML does not support on this device is no failure.
    pub entries: Option<Vec<Entry>>,
    /// The call that answered for them; `None` where none did, or where no library was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_api: Option<ListApi>,
    /// The SM utilisation in percent over NVML's last sampling period, where it was asked for and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<u32>,
    /// BAR1 memory, where it was asked for and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar1: Option<Bar1>,
    /// How far apart the memory was before and after the lists were read, in the calmest of the readings.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub torn: Bytes,
    /// What could not be read on this device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_nothing(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

/// Memory and lists that were read while memory moved by no more still agree: so much moves while a context starts.
pub const AGREEING: Bytes = Bytes::mib(16);

/// One reading of all selected devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Milliseconds since the observation began.
    pub at_ms: u64,
    /// In the order of the inventory.
    pub devices: Vec<DeviceLook>,
}

/// A device as a snapshot keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Who it is.
    pub identity: DeviceIdentity,
    /// What it said.
    pub look: DeviceLook,
}

impl Device {
    /// Sum over the listed entries; `None` if the lists are unknown or an entry's bytes are not available.
    pub fn listed(&self) -> Option<Bytes> {
        self.look.listed()
    }

    /// Used − Σ listed, signed; `None` if either is unknown.
    pub fn unaccounted(&self) -> Option<i128> {
        self.look.unaccounted()
    }
}

impl DeviceLook {
    /// A device of which nothing could be read; why.
    pub fn unread(uuid: Uuid, gaps: Vec<Gap>) -> Self {
        Self {
            uuid,
            memory: None,
            entries: None,
            list_api: None,
            utilization_percent: None,
            bar1: None,
            torn: Bytes::ZERO,
            gaps,
        }
    }

    /// Puts a gap in the place of every number that cannot be.
    pub fn without_the_impossible(&mut self, label: &str) {
        let gap = |what: String| Gap::new(label, format!("{what}, which cannot be: that is no reading"));
        if let Some(memory) = self.memory.take_if(|memory| !memory.is_possible()) {
            let Memory { total, used, free, .. } = memory;
            self.gaps.push(gap(format!("the driver says {used} in use and {free} free of {total}")));
        }
        let most = self.memory.map_or(MOST, |memory| memory.total);
        for entry in self.entries.iter_mut().flatten() {
            if let Some(bytes) = entry.bytes.take_if(|bytes| *bytes > most) {
                self.gaps.push(gap(format!("the driver says that PID {} holds {bytes}", entry.pid)));
            }
        }
        if let Some(bar1) = self.bar1.take_if(|bar1| bar1.used > bar1.total || bar1.total > MOST) {
            self.gaps.push(gap(format!("the driver says {} of {} of BAR1 memory in use", bar1.used, bar1.total)));
        }
        self.utilization_percent = self.utilization_percent.filter(|percent| *percent <= 100);
    }

    /// What is wrong with the device, if it could not be read for that.
    pub fn trouble(&self) -> Option<(&Gap, Trouble)> {
        let unread = self.memory.is_none() || self.entries.is_none();
        self.gaps.iter().filter(|_| unread).find_map(|gap| Some((gap, gap.trouble?)))
    }

    /// Used memory, if it could be read.
    pub fn used(&self) -> Option<Bytes> {
        self.memory.map(|m| m.used)
    }

    /// Sum over the listed entries; `None` if the lists are unknown or an entry's bytes are not available.
    pub fn listed(&self) -> Option<Bytes> {
        self.entries.as_ref()?.iter().map(|e| e.bytes).sum()
    }

    /// Memory and lists are of one moment, as far as that can be had.
    pub fn agrees(&self) -> bool {
        self.torn <= AGREEING
    }

    /// Used − Σ listed, signed; `None` if either is unknown.
    pub fn unaccounted(&self) -> Option<i128> {
        Some(self.used()?.minus(self.listed()?))
    }
}
