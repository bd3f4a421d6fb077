//! NVML as a source of devices: opening, identity, one look. The wrapper loads the library and gives handles and
//! identity; memory and process lists go through [`super::raw`]. One device's failure is that device's gap.
//!
//! NVML is never shut down: that costs milliseconds, and the process ends anyway.

use super::{
    DeviceSource, Failure, Inventory,
    calls::{Call, about_to, done},
    codes::{self, Code},
    events::Events,
    library,
    raw::{ListError, Symbols},
    records::{Records, merge},
    settings,
};
use crate::model::{
    DeviceEvent, DeviceIdentity, DeviceLook, DriverFacts, DriverInfo, DriverSource, Entry, Gap, ListKind, Look, Memory,
    MemoryApi, MigIdentity, Uuid,
};
use nvml_wrapper::{Device, Nvml as Library, error::NvmlError};
use std::{ffi::OsString, path::Path, thread};

/// NVML, opened.
pub(super) struct Nvml {
    symbols: Symbols,
    slots: Vec<Slot>,
    inventory: Inventory,
    events: Option<Events>,
    /// The first look touches every GPU for the first time; later ones take microseconds.
    looked: bool,
}

/// How often a look is tried until the memory before and after the lists is the same.
const ATTEMPTS: u32 = 5;

/// A device with what is needed to read it.
struct Slot {
    identity: DeviceIdentity,
    /// Why there is no handle, or the handle.
    device: Result<Device<'static>, Gap>,
    /// Why its UUID is unknown.
    nameless: Option<Gap>,
    memory_api: MemoryApi,
    buffer: Records,
}

impl Nvml {
    /// Loads and starts NVML and opens all devices, each on its own thread: a handle costs milliseconds.
    ///
    /// # Errors
    /// If there is no driver, no library or no GPU, or NVML does not start.
    pub(super) fn open(explicit: Option<&Path>, events: bool) -> Result<Self, Failure> {
        let (library, file) = load(explicit)?;
        let symbols = Symbols::load(library);
        about_to(Call::Count, None);
        let count =
            library.device_count().map_err(|e| codes::failure("counting the GPUs", Code::from(&e), file.as_deref()))?;
        if count == 0 {
            return Err(library::no_gpu());
        }
        let (slots, cuda_version) = thread::scope(|scope| {
            let workers: Vec<_> = (1..count)
                .map(|index| {
                    (index, thread::Builder::new().spawn_scoped(scope, move || open_gpu(library, &symbols, index)))
                })
                .collect();
            let cuda = thread::Builder::new().spawn_scoped(scope, || {
                about_to(Call::CudaVersion, None);
                cuda_version(library)
            });
            let mut all = open_gpu(library, &symbols, 0);
            done();
            for (index, worker) in workers {
                match worker.map(thread::ScopedJoinHandle::join) {
                    Ok(Ok(slots)) => all.extend(slots),
                    // No thread could be had: this one does it.
                    _ => all.extend(open_gpu(library, &symbols, index)),
                }
            }
            (all, cuda.ok().and_then(|c| c.join().ok()).flatten())
        });
        about_to(Call::Version, None);
        let driver = DriverInfo {
            source: DriverSource::Nvml,
            driver_version: library.sys_driver_version().ok(),
            nvml_version: library.sys_nvml_version().ok(),
            cuda_version,
            library: file,
        };
        let devices = slots.iter().map(|s| s.identity.clone()).collect();
        let mut gaps: Vec<Gap> =
            slots.iter().filter_map(|s| s.device.as_ref().err().or(s.nameless.as_ref())).cloned().collect();
        let events = events.then(|| {
            let whole = slots.iter().filter(|s| s.identity.mig.is_none());
            let devices = whole.filter_map(|s| Some((s.device.as_ref().ok()?, &s.identity))).collect();
            Events::watch(library, devices, &mut gaps)
        });
        done();
        let inventory = Inventory { driver, devices, gaps };
        Ok(Self { symbols, slots, inventory, events: events.flatten(), looked: false })
    }
}

/// Loads the library and starts NVML; also the file that was taken.
fn load(explicit: Option<&Path>) -> Result<(&'static Library, Option<String>), Failure> {
    let mut tried: Vec<(OsString, String)> = Vec::new();
    for candidate in library::candidates(explicit)? {
        about_to(Call::Init, None);
        match Library::builder().lib_path(&candidate).init() {
            Ok(library) => {
                let file = explicit.map(|p| p.display().to_string()).or_else(library::loaded_file);
                return Ok((Box::leak(Box::new(library)), file));
            }
            Err(NvmlError::LibloadingError(e)) => tried.push((candidate, reason(&e))),
            Err(e) => {
                let name = candidate.to_string_lossy();
                let file = if name.contains('/') { Some(name.into_owned()) } else { library::probable_file() };
                return Err(codes::failure("starting NVML", Code::from(&e), file.as_deref()));
            }
        }
    }
    Err(library::no_library(&tried))
}

/// The loader's own words; the error's text names only the function that failed.
fn reason(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The newest CUDA that the driver serves, such as `13.0`.
fn cuda_version(library: &Library) -> Option<String> {
    let n = library.sys_cuda_driver_version().ok()?;
    Some(format!("{}.{}", n / 1000, n % 1000 / 10))
}

/// A GPU and its MIG instances.
fn open_gpu(library: &'static Library, symbols: &Symbols, index: u32) -> Vec<Slot> {
    about_to(Call::Handle, Some(index));
    let device = match library.device_by_index(index) {
        Ok(device) => device,
        Err(e) => {
            let identity = unnamed(index);
            let gap = Gap::new(identity.label(), format!("opening the device: {}", Code::from(&e)));
            return vec![Slot::new(identity, Err(gap))];
        }
    };
    about_to(Call::Identity, Some(index));
    let mut identity = DeviceIdentity {
        name: device.name().ok(),
        pci: device.pci_info().ok().map(|p| p.bus_id),
        minor: device.minor_number().ok(),
        ..unnamed(index)
    };
    let mut nameless = None;
    match device.uuid() {
        Ok(uuid) => identity.uuid = Uuid(uuid),
        Err(e) => nameless = Some(Gap::new(identity.label(), format!("reading its UUID: {}", Code::from(&e)))),
    }
    about_to(Call::Mig, Some(index));
    identity.mig_parent = device.mig_mode().is_ok_and(|mode| mode.current == 1);
    let parts = if identity.mig_parent { instances(&device, symbols, &identity) } else { Vec::new() };
    done();
    let mut all = vec![Slot { nameless, ..Slot::new(identity, Ok(device)) }];
    all.extend(parts);
    all
}

/// A device of which only the number is known.
fn unnamed(index: u32) -> DeviceIdentity {
    DeviceIdentity {
        index,
        uuid: Uuid(format!("index-{index}")),
        name: None,
        pci: None,
        minor: None,
        mig: None,
        mig_parent: false,
    }
}

/// The MIG instances of a GPU. A number without an instance is no failure: NVML tells only the largest number.
fn instances(device: &Device<'static>, symbols: &Symbols, parent: &DeviceIdentity) -> Vec<Slot> {
    (0..device.mig_device_count().unwrap_or(0))
        .filter_map(|n| {
            let instance = device.mig_device_by_index(n).ok()?;
            let (gi, ci) = symbols.instance(&instance);
            let uuid = instance.uuid().map_or_else(|_| Uuid(format!("{}-mig-{n}", parent.uuid)), Uuid);
            let identity = DeviceIdentity {
                uuid,
                name: instance.name().ok(),
                mig: Some(MigIdentity { parent: parent.uuid.clone(), gi, ci }),
                mig_parent: false,
                ..parent.clone()
            };
            Some(Slot::new(identity, Ok(instance)))
        })
        .collect()
}

impl Slot {
    fn new(identity: DeviceIdentity, device: Result<Device<'static>, Gap>) -> Self {
        Self { identity, device, nameless: None, memory_api: MemoryApi::V2, buffer: Records::default() }
    }

    /// Memory, lists, memory; if the two memories differ, again, at most five times.
    fn look(&mut self, symbols: &Symbols) -> DeviceLook {
        let mut gaps = Vec::new();
        let device = match &self.device {
            Ok(device) => device,
            Err(gap) => return self.result(None, None, vec![gap.clone()]),
        };
        let index = self.identity.index;
        let mut reading = memory(symbols, device, index, &mut self.memory_api);
        let mut entries = None;
        for attempt in 1..=ATTEMPTS {
            gaps.clear();
            entries = lists(symbols, device, &self.identity, &mut self.buffer, &mut gaps);
            if reading.is_err() {
                break;
            }
            let again = memory(symbols, device, index, &mut self.memory_api);
            if std::mem::replace(&mut reading, again) == again || again.is_err() {
                break;
            }
            if attempt == ATTEMPTS {
                gaps.push(Gap::new(
                    self.identity.label(),
                    format!("memory changed during each of {ATTEMPTS} readings: used and listed may not agree"),
                ));
            }
        }
        if let Err(code) = reading {
            gaps.push(Gap::new(self.identity.label(), format!("reading the memory: {code}")));
        }
        about_to(Call::Utilization, Some(index));
        // A hint on who is idle, no more: where it is not known nothing is missing.
        let utilization_percent = device.utilization_rates().ok().map(|rates| rates.gpu);
        DeviceLook { utilization_percent, ..self.result(reading.ok(), entries, gaps) }
    }

    fn result(&self, memory: Option<Memory>, entries: Option<Vec<Entry>>, gaps: Vec<Gap>) -> DeviceLook {
        DeviceLook { uuid: self.identity.uuid.clone(), memory, entries, utilization_percent: None, gaps }
    }
}

/// One memory reading: version 2, or for good version 1 where the driver lacks that.
fn memory(symbols: &Symbols, device: &Device<'static>, index: u32, api: &mut MemoryApi) -> Result<Memory, Code> {
    if *api == MemoryApi::V2 {
        about_to(Call::MemoryV2, Some(index));
        match symbols.memory(device, MemoryApi::V2) {
            Err(code) if code.is_missing_call() => *api = MemoryApi::V1,
            other => return other,
        }
    }
    about_to(Call::MemoryV1, Some(index));
    symbols.memory(device, MemoryApi::V1)
}

/// The three lists as one. `None` if none could be read, or the compute list, the one that matters, failed: half a list
/// would look like "nobody".
fn lists(
    symbols: &Symbols,
    device: &Device<'static>,
    identity: &DeviceIdentity,
    buffer: &mut Records,
    gaps: &mut Vec<Gap>,
) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut supported = false;
    let mut compute_failed = false;
    for (kind, call, name) in [
        (ListKind::Compute, Call::Compute, "compute"),
        (ListKind::Graphics, Call::Graphics, "graphics"),
        (ListKind::Mps, Call::Mps, "MPS"),
    ] {
        about_to(call, Some(identity.index));
        match symbols.list(device, kind, buffer) {
            Ok(records) => {
                supported = true;
                merge(&mut entries, kind, &records);
            }
            Err(ListError::Code(code)) if code == Code::NOT_SUPPORTED || code.is_missing_call() => {}
            Err(e) => {
                compute_failed |= kind == ListKind::Compute;
                gaps.push(Gap::new(identity.label(), format!("reading the {name} process list: {e}")));
            }
        }
    }
    if !supported && gaps.is_empty() {
        gaps.push(Gap::new(identity.label(), "the driver has no process lists for this device"));
    }
    (supported && !compute_failed).then_some(entries)
}

impl DeviceSource for Nvml {
    fn inventory(&mut self) -> Result<Inventory, Failure> {
        Ok(self.inventory.clone())
    }

    fn look(&mut self, devices: &[Uuid]) -> Result<Look, Failure> {
        let symbols = &self.symbols;
        let wanted = self
            .slots
            .iter_mut()
            .filter(|s| devices.is_empty() || devices.contains(&s.identity.uuid))
            .collect::<Vec<_>>();
        let looks = if self.looked || wanted.len() < 2 {
            wanted.into_iter().map(|slot| slot.look(symbols)).collect()
        } else {
            in_parallel(wanted, symbols)
        };
        done();
        self.looked = true;
        Ok(Look { at_ms: 0, devices: looks })
    }

    fn facts(&mut self) -> Result<DriverFacts, Failure> {
        let symbols = &self.symbols;
        let whole = self.slots.iter().filter(|slot| slot.identity.mig.is_none());
        let devices = whole.map(|slot| settings::of(slot.device.as_ref(), &slot.identity, symbols)).collect();
        done();
        Ok(DriverFacts { mapped: library::mapped_files(), devices })
    }

    fn poll_events(&mut self) -> Vec<DeviceEvent> {
        self.events.as_ref().map(Events::take).unwrap_or_default()
    }
}

/// A look at each slot on a thread of its own.
fn in_parallel(slots: Vec<&mut Slot>, symbols: &Symbols) -> Vec<DeviceLook> {
    thread::scope(|scope| {
        let readers: Vec<_> = slots
            .into_iter()
            .map(|slot| {
                let unread = slot.result(None, None, vec![Gap::new(slot.identity.label(), "its reading thread broke")]);
                (unread, thread::Builder::new().spawn_scoped(scope, move || slot.look(symbols)))
            })
            .collect();
        done();
        readers.into_iter().map(|(unread, reader)| reader.ok().and_then(|r| r.join().ok()).unwrap_or(unread)).collect()
    })
}
