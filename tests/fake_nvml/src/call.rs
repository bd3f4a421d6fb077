//! What every call has in common: finding its device, suffering faults, reading the ledger, being logged.

use crate::{
    abi::{self, Code, Handle, Outcome},
    faults::{self, Effect, Facts, Oddities},
    ledger::{Gpu, Instance, Ledger, Listed, Machine, MemoryOf, Sight},
};
use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// How often the library was initialised and not yet shut down.
static OPENED: AtomicUsize = AtomicUsize::new(0);
/// The device files that an initialised library keeps open.
static FILES: Mutex<Vec<File>> = Mutex::new(Vec::new());

const FIRST_HANDLE: usize = 0x1000;
const HANDLES_PER_GPU: usize = 64;

/// A GPU, or an instance of one. A handle is a number: GPUs are 64 apart, instances follow their GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) gpu: usize,
    pub(crate) instance: Option<usize>,
}

impl Part {
    pub(crate) fn whole(gpu: usize) -> Self {
        Self { gpu, instance: None }
    }

    pub(crate) fn handle(self) -> Handle {
        let number = FIRST_HANDLE + self.gpu * HANDLES_PER_GPU + self.instance.map_or(0, |i| i + 1);
        std::ptr::without_provenance_mut(number)
    }

    fn of(handle: Handle) -> Option<Self> {
        let number = handle.addr().checked_sub(FIRST_HANDLE)?;
        Some(Self { gpu: number / HANDLES_PER_GPU, instance: (number % HANDLES_PER_GPU).checked_sub(1) })
    }
}

/// One call, and the world as it is for it.
pub(crate) struct Call {
    pub(crate) machine: Machine,
    pub(crate) odd: Oddities,
    pub(crate) effect: Effect,
    pub(crate) ledger: Ledger,
}

impl Call {
    pub(crate) fn gpu(&self, part: Part) -> Result<&Gpu, Code> {
        self.machine.devices.get(part.gpu).ok_or(abi::INVALID_ARGUMENT)
    }

    pub(crate) fn facts(&self, part: Part) -> Facts {
        self.odd.facts.get(part.gpu).cloned().unwrap_or_default()
    }

    pub(crate) fn instance(&self, part: Part) -> Result<Option<&Instance>, Code> {
        let gpu = self.gpu(part)?;
        part.instance.map(|i| gpu.mig.get(i).ok_or(abi::INVALID_ARGUMENT)).transpose()
    }

    pub(crate) fn memory(&self, part: Part) -> Result<MemoryOf, Code> {
        let moment = self.ledger.moment(&self.machine).map_err(|_| abi::UNKNOWN)?;
        let memory = match self.instance(part)? {
            Some(instance) => moment.instance_memory(part.gpu, instance),
            None => moment.memory(&self.machine, part.gpu).ok_or(abi::UNKNOWN)?,
        };
        let (total, used) = (self.effect.total.unwrap_or(memory.total), self.effect.used.unwrap_or(memory.used));
        Ok(MemoryOf { total, used, ..memory })
    }

    pub(crate) fn processes(&self, part: Part) -> Result<Vec<Listed>, Code> {
        let moment = self.ledger.moment(&self.machine).map_err(|_| abi::UNKNOWN)?;
        let mut sight = Sight::own();
        Ok(match self.instance(part)? {
            Some(instance) => moment.instance_processes(&self.ledger, part.gpu, instance, &mut sight),
            None => moment.processes(&self.ledger, part.gpu, &mut sight),
        })
    }
}

/// Answers a call that names no device.
pub(crate) fn answer(function: &str, body: impl FnOnce(&Call) -> Outcome) -> Code {
    logged(function, None, || body(&enter(function, None)?))
}

/// Answers a call about a device.
pub(crate) fn answer_for(function: &str, handle: Handle, body: impl FnOnce(&Call, Part) -> Outcome) -> Code {
    let part = Part::of(handle);
    logged(function, part, || {
        let call = enter(function, part)?;
        let part = part.ok_or(abi::INVALID_ARGUMENT)?;
        call.instance(part)?;
        body(&call, part)
    })
}

/// `nvmlInit_v2` and its kin.
pub(crate) fn open(function: &str) -> Code {
    logged(function, None, || {
        let call = enter_unopened(function, None)?;
        if OPENED.fetch_add(1, Ordering::SeqCst) == 0 {
            *FILES.lock().unwrap_or_else(PoisonError::into_inner) = device_files(&call.machine);
        }
        Ok(())
    })
}

/// `nvmlShutdown`.
pub(crate) fn close(function: &str) -> Code {
    answer(function, |_| {
        if OPENED.fetch_sub(1, Ordering::SeqCst) == 1 {
            FILES.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        Ok(())
    })
}

/// Where the ledger is.
pub(crate) fn directory() -> Option<PathBuf> {
    std::env::var_os("FAKE_NVML_LEDGER").map(PathBuf::from)
}

fn enter(function: &str, part: Option<Part>) -> Result<Call, Code> {
    if OPENED.load(Ordering::SeqCst) == 0 {
        return Err(abi::UNINITIALIZED);
    }
    enter_unopened(function, part)
}

fn enter_unopened(function: &str, part: Option<Part>) -> Result<Call, Code> {
    let directory = directory().ok_or(abi::DRIVER_NOT_LOADED)?;
    let text = fs::read(directory.join("machine.json")).map_err(|_| abi::DRIVER_NOT_LOADED)?;
    let machine: Machine = serde_json::from_slice(&text).map_err(|_| abi::UNKNOWN)?;
    let odd: Oddities = serde_json::from_slice(&text).map_err(|_| abi::UNKNOWN)?;
    let hanging = || log(&directory, function, part, "hang");
    let effect = faults::suffer(&odd.faults, &directory, function, part.map(|p| p.gpu), hanging);
    match effect.code {
        Some(code) => Err(code),
        None => Ok(Call { machine, odd, effect, ledger: Ledger::open(directory) }),
    }
}

fn logged(function: &str, part: Option<Part>, body: impl FnOnce() -> Outcome) -> Code {
    let code = match body() {
        Ok(()) => abi::SUCCESS,
        Err(code) => code,
    };
    if let Some(directory) = directory() {
        log(&directory, function, part, &code.to_string());
    }
    code
}

/// One line in one write, so that lines of several processes do not mix. A log that cannot be written is no failure of
/// the call.
fn log(directory: &Path, function: &str, part: Option<Part>, outcome: &str) {
    let device = match part {
        None => "-".into(),
        Some(Part { gpu, instance: None }) => gpu.to_string(),
        Some(Part { gpu, instance: Some(i) }) => format!("{gpu}.{i}"),
    };
    let line = format!("{} {function} {device} {outcome}\n", std::process::id());
    if let Ok(mut file) = File::options().create(true).append(true).open(directory.join("calls.log")) {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Opens what the real library keeps open.
fn device_files(machine: &Machine) -> Vec<File> {
    let Some(dev) = std::env::var_os("FAKE_DEV").map(PathBuf::from) else { return Vec::new() };
    let mut names = vec![("nvidiactl".to_owned(), 1), ("nvidia-uvm".to_owned(), 2)];
    names.extend(machine.devices.iter().map(|gpu| (format!("nvidia{}", gpu.minor), 3)));
    names
        .iter()
        .flat_map(|(name, times)| std::iter::repeat_n(dev.join(name), *times))
        .filter_map(|path| File::open(path).ok())
        .collect()
}
