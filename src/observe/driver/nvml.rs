//! NVML as a source of devices: opening and identity. The wrapper loads the library and gives handles and identity;
//! memory and process lists go through [`super::slot`] and [`super::raw`]. One device's failure is that device's gap.
//!
//! NVML is never shut down: that costs milliseconds, and the process ends anyway.

use super::{
    DeviceSource, Extras, Failure, Inventory,
    calls::{self, Call, about_to, done},
    codes::{self, Code},
    events::Events,
    interposed, library,
    raw::Symbols,
    readers::Readers,
    slot::Slot,
};
use crate::model::{
    ConfCompute, DeviceEvent, DeviceIdentity, DriverFacts, DriverInfo, DriverSource, Gap, Look, MigIdentity, Trouble,
    Uuid,
};
use nvml_wrapper::{Device, Nvml as Library, error::NvmlError};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::Path,
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

/// NVML, opened.
pub(super) struct Nvml {
    readers: Readers,
    inventory: Inventory,
    events: Option<Events>,
    conf_compute: Option<ConfCompute>,
}

impl Nvml {
    /// Loads and starts NVML and opens all devices, each on its own thread: a handle costs milliseconds, and one that
    /// hangs must not keep the others from being opened. After `patience` it is left behind if another has answered.
    ///
    /// # Errors
    /// If there is no driver, no library or no GPU, or NVML does not start.
    pub(super) fn open(explicit: Option<&Path>, events: bool, patience: Duration) -> Result<Self, Failure> {
        let (library, file) = load(explicit)?;
        let symbols = Symbols::load(library);
        about_to(Call::Count, None);
        let count =
            library.device_count().map_err(|e| codes::failure("counting the GPUs", Code::from(&e), file.as_deref()))?;
        if count == 0 {
            return Err(library::no_gpu());
        }
        let until = Instant::now() + patience;
        let about = About::ask(library, symbols, explicit);
        let mut slots = open_all(library, symbols, count, patience, until);
        let (driver, conf_compute) = about.until(until, file);
        for slot in &mut slots {
            slot.confidential = conf_compute.is_some_and(|state| state.on);
        }
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
        Ok(Self { readers: Readers::new(slots), inventory, events: events.flatten(), conf_compute })
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

/// What is asked about the driver as a whole, on a thread beside those that open the GPUs: it loads a library and reads
/// files, which would be on top of the time that the GPUs take.
struct About {
    answering: Receiver<(Option<String>, Option<String>)>,
    versions: Receiver<(Option<String>, Option<String>)>,
    conf_compute: Receiver<Option<ConfCompute>>,
    cuda: Receiver<Option<String>>,
}

impl About {
    fn ask(library: &'static Library, symbols: Symbols, explicit: Option<&Path>) -> Self {
        let explicit = explicit.map(Path::to_path_buf);
        let (tell_answering, answering) = mpsc::channel();
        let (tell_versions, versions) = mpsc::channel();
        let (tell_conf_compute, conf_compute) = mpsc::channel();
        let (tell_cuda, cuda) = mpsc::channel();
        // Nobody listens any more to what takes too long. Where no thread can be had nothing is known.
        let _ = thread::Builder::new().spawn(move || {
            let _ = tell_answering.send(interposed::look(&symbols.addresses(), explicit.as_deref()));
            about_to(Call::Version, None);
            let _ = tell_versions.send((library.sys_driver_version().ok(), library.sys_nvml_version().ok()));
            about_to(Call::ConfCompute, None);
            let _ = tell_conf_compute.send(symbols.conf_compute().ok());
            about_to(Call::CudaVersion, None);
            let _ = tell_cuda.send(cuda_version(library));
        });
        Self { answering, versions, conf_compute, cuda }
    }

    /// What is known at that time at the latest; `file` is the library that was asked for.
    fn until(&self, until: Instant, file: Option<String>) -> (DriverInfo, Option<ConfCompute>) {
        let (answers, interposed) = within(&self.answering, until)
            .unwrap_or_else(|| (None, Some("which library answers could not be read".to_owned())));
        let (driver_version, nvml_version) = within(&self.versions, until).unwrap_or_default();
        let conf_compute = within(&self.conf_compute, until).flatten();
        let driver = DriverInfo {
            source: DriverSource::Nvml,
            driver_version,
            nvml_version,
            cuda_version: within(&self.cuda, until).flatten(),
            library: answers.or(file),
            interposed,
        };
        (driver, conf_compute)
    }
}

fn within<T>(from: &Receiver<T>, until: Instant) -> Option<T> {
    from.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}

/// The newest CUDA that the driver serves, such as `13.0`.
fn cuda_version(library: &Library) -> Option<String> {
    let n = library.sys_cuda_driver_version().ok()?;
    Some(format!("{}.{}", n / 1000, n % 1000 / 10))
}

/// All GPUs in their order.
fn open_all(library: &'static Library, symbols: Symbols, count: u32, patience: Duration, until: Instant) -> Vec<Slot> {
    let (tell, told) = mpsc::channel();
    let mut opened: BTreeMap<u32, Vec<Slot>> = BTreeMap::new();
    let mut alone = Vec::new();
    for index in 0..count {
        let tell = tell.clone();
        // With nobody else to wait for, a thread of its own would be of no use.
        let work = move || drop(tell.send((index, open_gpu(library, symbols, index))));
        if count == 1 || thread::Builder::new().spawn(work).is_err() {
            alone.push(index);
        }
    }
    drop(tell);
    for index in alone {
        opened.insert(index, open_gpu(library, symbols, index));
    }
    done();
    while opened.len() < count as usize {
        // While no GPU at all answers, there is nothing to go on with: the deadline of our starter decides.
        let next = if opened.is_empty() { told.recv().ok() } else { within(&told, until) };
        let Some((index, slots)) = next else { break };
        opened.insert(index, slots);
    }
    let mut slots = Vec::new();
    for index in 0..count {
        slots.extend(opened.remove(&index).unwrap_or_else(|| vec![hanging(symbols, index, patience)]));
    }
    slots
}

/// A GPU that could not be opened in time.
fn hanging(symbols: Symbols, index: u32, patience: Duration) -> Slot {
    let identity = unnamed(index);
    let reason = format!("opening the device: {}", calls::no_answer(index, patience));
    let gap = Gap::new(identity.label(), reason).because_of(Trouble::Hanging);
    Slot::new(symbols, identity, Err(gap))
}

/// A GPU and its MIG instances.
fn open_gpu(library: &'static Library, symbols: Symbols, index: u32) -> Vec<Slot> {
    about_to(Call::Handle, Some(index));
    let device = match library.device_by_index(index) {
        Ok(device) => device,
        Err(e) => {
            let identity = unnamed(index);
            let code = Code::from(&e);
            let gap = Gap::new(identity.label(), format!("opening the device: {code}")).because_of(code.trouble());
            return vec![Slot::new(symbols, identity, Err(gap))];
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
        Err(e) => {
            let code = Code::from(&e);
            let gap = Gap::new(identity.label(), format!("reading its UUID: {code}"));
            nameless = Some(gap.because_of(code.trouble()));
        }
    }
    about_to(Call::Addressing, Some(index));
    // Both calls are younger than most drivers; where they are missing nothing is known, and nothing is missing.
    identity.addressing = symbols.addressing(&device).ok();
    identity.numa = symbols.numa(&device).ok();
    about_to(Call::Mig, Some(index));
    identity.mig_parent = device.mig_mode().is_ok_and(|mode| mode.current == 1);
    let parts = if identity.mig_parent { instances(&device, symbols, &identity) } else { Vec::new() };
    done();
    let mut whole = Slot::new(symbols, identity, Ok(device));
    whole.nameless = nameless;
    let mut all = vec![whole];
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
        addressing: None,
        numa: None,
    }
}

/// The MIG instances of a GPU. A number without an instance is no failure: NVML tells only the largest number.
fn instances(device: &Device<'static>, symbols: Symbols, parent: &DeviceIdentity) -> Vec<Slot> {
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
            Some(Slot::new(symbols, identity, Ok(instance)))
        })
        .collect()
}

impl DeviceSource for Nvml {
    fn inventory(&mut self) -> Result<Inventory, Failure> {
        Ok(self.inventory.clone())
    }

    fn look(&mut self, devices: &[Uuid], extras: Extras, patience: Duration) -> Result<Look, Failure> {
        let devices = self.readers.look(devices, extras, patience);
        done();
        Ok(Look { at_ms: 0, devices })
    }

    fn facts(&mut self) -> Result<DriverFacts, Failure> {
        let devices = self.readers.at_hand().filter(|slot| slot.identity.mig.is_none()).map(Slot::facts).collect();
        done();
        Ok(DriverFacts { mapped: library::mapped_files(), conf_compute: self.conf_compute, devices })
    }

    fn poll_events(&mut self) -> Vec<DeviceEvent> {
        self.events.as_ref().map(Events::take).unwrap_or_default()
    }
}
