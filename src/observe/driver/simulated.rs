//! The simulated GPU of `gpuresid demo`: the words of the driver seam over a ledger of allocations, so that the rest of
//! the tool cannot tell it from NVML.

use super::{
    Failure, FailureKind, Inventory,
    ledger::{Instance, Ledger, List, Listed, Machine, MemoryOf, Moment, Sight},
};
use crate::model::{
    Bytes, DeviceIdentity, DeviceLook, DriverInfo, DriverSource, Entry, ListKind, Look, Memory, MemoryApi, MigIdentity,
    Uuid,
};
use std::path::PathBuf;

/// Reads a ledger.
#[derive(Debug)]
pub struct Simulated {
    ledger: Ledger,
}

/// A device of the machine: a GPU by its place, or an instance of one.
struct Part<'a> {
    device: usize,
    instance: Option<&'a Instance>,
    uuid: &'a str,
}

impl Simulated {
    /// The machine that the ledger in this directory describes.
    pub fn new(ledger: PathBuf) -> Self {
        Self { ledger: Ledger::open(ledger) }
    }

    /// The devices that there are.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn inventory(&mut self) -> Result<Inventory, Failure> {
        let machine = self.machine()?;
        let driver = DriverInfo {
            source: DriverSource::Simulated,
            driver_version: Some(machine.driver_version.clone()),
            nvml_version: Some(machine.nvml_version.clone()),
            cuda_version: Some(format!("{}.{}", machine.cuda_version / 1000, machine.cuda_version % 1000 / 10)),
            library: None,
            interposed: None,
        };
        let devices = parts(&machine).filter_map(|part| identity(&machine, &part)).collect();
        Ok(Inventory { driver, devices, gaps: Vec::new() })
    }

    /// One look at these devices (empty: all), in the order of the inventory.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn look(&mut self, devices: &[Uuid]) -> Result<Look, Failure> {
        let machine = self.machine()?;
        let moment = self.ledger.moment(&machine).map_err(|e| self.failure(&e))?;
        let mut sight = Sight::own();
        let devices = parts(&machine)
            .filter(|part| devices.is_empty() || devices.iter().any(|uuid| uuid.0 == part.uuid))
            .map(|part| self.look_at(&machine, &moment, &part, &mut sight))
            .collect();
        Ok(Look { at_ms: 0, devices })
    }

    fn look_at(&self, machine: &Machine, moment: &Moment, part: &Part<'_>, sight: &mut Sight) -> DeviceLook {
        let gpu = machine.devices.get(part.device);
        let (memory, listed) = match part.instance {
            Some(instance) => (
                Some(moment.instance_memory(part.device, instance)),
                moment.instance_processes(&self.ledger, part.device, instance, sight),
            ),
            None => (moment.memory(machine, part.device), moment.processes(&self.ledger, part.device, sight)),
        };
        let refused = part.instance.is_none() && gpu.is_some_and(|g| !g.mig.is_empty() && !g.mig_parent_lists);
        DeviceLook {
            uuid: Uuid(part.uuid.into()),
            memory: memory.map(in_our_words),
            entries: (!refused).then(|| listed.into_iter().map(entry).collect()),
            list_api: None,
            torn: Bytes::ZERO,
            utilization_percent: gpu.map(|g| g.utilization),
            bar1: None,
            gaps: Vec::new(),
        }
    }

    fn machine(&self) -> Result<Machine, Failure> {
        self.ledger.machine().map_err(|e| self.failure(&e))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        Failure {
            kind: FailureKind::Other,
            message: format!("reading the simulated GPU in {}: {error}", self.ledger.directory().display()),
            hint: Some("gpuresid demo".into()),
        }
    }
}

/// All devices, instances after their parent.
fn parts(machine: &Machine) -> impl Iterator<Item = Part<'_>> {
    machine.devices.iter().enumerate().flat_map(|(device, gpu)| {
        let instances =
            gpu.mig.iter().map(move |instance| Part { device, instance: Some(instance), uuid: &instance.uuid });
        std::iter::once(Part { device, instance: None, uuid: &gpu.uuid }).chain(instances)
    })
}

fn identity(machine: &Machine, part: &Part<'_>) -> Option<DeviceIdentity> {
    let gpu = machine.devices.get(part.device)?;
    let mig = part.instance.map(|instance| MigIdentity {
        parent: Uuid(gpu.uuid.clone()),
        gi: Some(instance.gi),
        ci: Some(instance.ci),
    });
    Some(DeviceIdentity {
        index: u32::try_from(part.device).ok()?,
        uuid: Uuid(part.uuid.into()),
        name: Some(gpu.name.clone()),
        pci: Some(gpu.pci.clone()),
        minor: Some(gpu.minor),
        mig_parent: mig.is_none() && !gpu.mig.is_empty(),
        addressing: None,
        numa: None,
        mig,
    })
}

fn in_our_words(m: MemoryOf) -> Memory {
    Memory {
        total: Bytes(m.total),
        reserved: Some(Bytes(m.reserved)),
        used: Bytes(m.used),
        free: Bytes(m.free),
        api: MemoryApi::V2,
    }
}

fn entry(listed: Listed) -> Entry {
    let kind = |list| match list {
        List::Compute => ListKind::Compute,
        List::Graphics => ListKind::Graphics,
        List::Mps => ListKind::Mps,
    };
    Entry {
        pid: listed.pid,
        bytes: listed.bytes.map(Bytes),
        gi: listed.gi,
        ci: listed.ci,
        lists: listed.lists.into_iter().map(kind).collect(),
    }
}
