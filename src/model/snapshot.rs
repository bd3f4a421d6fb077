//! One full look: the devices, everybody who could hold their memory, and what could not be seen.

use super::{
    BootId, Device, DeviceFiles, DeviceIdentity, DeviceLook, Gap, ProcId, Process, Trouble, Uninspected, Uuid,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the device readings come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverSource {
    /// NVIDIA's management library.
    Nvml,
    /// The simulated GPU of `gpuresid demo`.
    Simulated,
}

/// The driver that answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverInfo {
    /// Where the readings come from.
    pub source: DriverSource,
    /// Driver version such as `580.159.04`.
    pub driver_version: Option<String>,
    /// Version of the NVML library.
    pub nvml_version: Option<String>,
    /// The newest CUDA that the driver serves, such as `13.0`.
    pub cuda_version: Option<String>,
    /// The library file that answered, as it is mapped into the process that asks.
    pub library: Option<String>,
    /// Why that may not be NVIDIA's own word: another library stands in front of it, or in its place. Then nothing that
    /// it says decides anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interposed: Option<String>,
}

/// From where we looked: it decides what could be seen at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observer {
    /// The looking process.
    pub id: ProcId,
    /// Effective user id of the looking process.
    pub uid: u32,
    /// Inode of the PID namespace of the `/proc` that was read.
    pub pid_namespace: Option<u64>,
    /// Whether that is the machine's initial PID namespace. `None`: could not tell.
    pub initial_pid_namespace: Option<bool>,
    /// `/proc` is mounted with hidepid, so that other users' processes do not show.
    pub hidepid: bool,
    /// `/proc` was given by `--procfs`: PIDs are another view than ours.
    pub foreign_procfs: bool,
    /// Processes of the tool itself (NVML helper, nursery): never holders.
    pub tool_processes: Vec<ProcId>,
    /// What a plain NVML client keeps open on this driver: the files of our own helper. `None` where it was not read.
    pub nvml_client_files: Option<DeviceFiles>,
    /// The path of our own cgroup: who shares it is not to be ended together with us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The Slurm job that we run in, by our own environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job: Option<String>,
    /// The looking process's parent, grandparent … up to PID 1: what gpuresid itself runs below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<ProcId>,
    /// Which MIG instance each capability file stands for, by the name of the node as in [`DeviceFiles`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capabilities: BTreeMap<String, Capability>,
}

/// What a capability file gives access to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// `N` of the GPU's `/dev/nvidiaN`.
    pub minor: u32,
    /// GPU instance.
    pub gi: u32,
    /// Compute instance; `None`: the GPU instance as a whole.
    pub ci: Option<u32>,
}

impl Observer {
    /// Somebody may be out of our sight altogether: a PID namespace that is not the initial one, hidepid, or a foreign
    /// `/proc`.
    pub fn out_of_sight(&self) -> bool {
        self.blind_spot().is_some()
    }

    /// Why somebody may be out of our sight; `None`: everybody can be seen.
    pub fn blind_spot(&self) -> Option<&'static str> {
        if self.foreign_procfs {
            Some("/proc is that of another PID namespace")
        } else if self.hidepid {
            Some("/proc hides the processes of other users (hidepid)")
        } else {
            match self.initial_pid_namespace {
                Some(true) => None,
                Some(false) => Some("this is a container or another private PID namespace"),
                None => Some("the PID namespace could not be told"),
            }
        }
    }
}

/// One full look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`super::schema::SNAPSHOT`].
    pub schema: String,
    /// Version of gpuresid that took it.
    pub tool_version: String,
    /// When, RFC 3339.
    pub taken_at: String,
    /// Milliseconds since the observation began (0 for a snapshot of its own).
    pub at_ms: u64,
    /// The boot during which it was taken.
    pub boot_id: BootId,
    /// Host name.
    pub host: Option<String>,
    /// Who answered for the devices; `None` if nobody did.
    pub driver: Option<DriverInfo>,
    /// From where we looked.
    pub observer: Observer,
    /// The selected devices.
    pub devices: Vec<Device>,
    /// Those that were there too and not selected; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unselected: Option<Vec<DeviceIdentity>>,
    /// A marker was printed for what is started after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marked: bool,
    /// Processes with NVIDIA files open, listed ones, and (in a check) the command's tree. `None`: `/proc` was not
    /// scanned for this snapshot because nothing was left to explain.
    pub processes: Option<Vec<Process>>,
    /// Processes whose files we may not read.
    pub uninspected: Vec<Uninspected>,
    /// What could not be seen.
    pub gaps: Vec<Gap>,
}

impl DeviceLook {
    /// What is read of a device that was there before and is not among the `present` ones, with their gaps.
    pub fn gone<'a>(
        device: &DeviceIdentity,
        mut present: impl Iterator<Item = &'a DeviceIdentity>,
        gaps: &[Gap],
    ) -> Self {
        let label = device.label();
        // A GPU whose handle the driver refuses has lost its name, too.
        let nameless = present.any(|d| d.index == device.index && !d.has_uuid());
        let refused = gaps.iter().find(|gap| nameless && gap.about == label).cloned();
        let gap = refused.unwrap_or_else(|| match device.has_uuid() {
            true => Gap::new(label, "it was there before, and the driver does not have it any more")
                .because_of(Trouble::Gone),
            false => Gap::new(label, "which GPU this was could not be read in the first snapshot"),
        });
        Self::unread(device.uuid.clone(), vec![gap])
    }
}

impl Snapshot {
    /// The device with this UUID.
    pub fn device(&self, uuid: &Uuid) -> Option<&Device> {
        self.devices.iter().find(|d| d.identity.uuid == *uuid)
    }

    /// All devices that were there when it was taken, as far as that is known.
    pub fn present(&self) -> impl Iterator<Item = &DeviceIdentity> {
        self.devices.iter().map(|d| &d.identity).chain(self.unselected.iter().flatten())
    }

    /// Those of `now` that were not there then: where only some were looked at, an earlier version did not write down
    /// the others, and then nobody knows.
    pub fn newcomers<'a>(
        &self,
        now: impl Iterator<Item = &'a DeviceIdentity>,
    ) -> impl Iterator<Item = &'a DeviceIdentity> {
        let then = |d: &DeviceIdentity| self.present().any(|known| known.uuid == d.uuid);
        now.filter(move |d| self.unselected.is_some() && d.has_uuid() && !then(d))
    }

    /// The processes that were scanned (empty where none were).
    pub fn scanned(&self) -> &[Process] {
        self.processes.as_deref().unwrap_or_default()
    }

    /// The start times prove that the process was there before this was taken, whatever it had open then.
    pub fn is_younger_than(&self, id: ProcId) -> bool {
        id.start_ticks < self.observer.id.start_ticks
    }

    /// Leaves only these devices selected. The others are still known to have been there, where such are known at all.
    pub fn keep_only(&mut self, wanted: &[Uuid]) {
        let (kept, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.devices).into_iter().partition(|d| wanted.contains(&d.identity.uuid));
        self.devices = kept;
        self.unselected.iter_mut().for_each(|known| known.extend(others.iter().map(|d| d.identity.clone())));
    }

    /// The living process with this PID, if the scan has it.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.scanned().iter().find(|p| p.id.pid == pid)
    }
}
