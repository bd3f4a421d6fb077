//! Reading the world for `doctor`. The driver is asked through its helper process as everywhere; the rest is files.
//! Nothing here judges, writes, or runs a program.

mod kmsg;
mod machine;
mod mps;
pub mod python;

use super::facts::{DriverSeen, Facts, Kernel, Python};
use crate::{
    model::DeviceIdentity,
    observe::{
        driver::{Blocking, Failure, Options},
        proc::ProcReader,
        session::{self, SessionOptions},
    },
};
use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

/// After this time the user is told what is waited for.
const A_WORD_AFTER: Duration = Duration::from_secs(3);

/// Variables that change what a CUDA or PyTorch program does with memory, or what is seen of it.
const VARIABLES: [&str; 14] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVML_MPS_DEVICE_ENUMERATION",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "NVIDIA_VISIBLE_DEVICES",
];

/// Looks at everything. `slow` is called once if the driver takes more than three seconds.
///
/// # Errors
/// If no helper process could be started, or `--gpu` names a device that is not there.
pub fn look(options: &SessionOptions, python: Option<PathBuf>, slow: impl FnOnce()) -> anyhow::Result<Facts> {
    let mut start = Options::new(options.source.clone());
    (start.open_timeout, start.look_timeout) = (options.open_timeout, options.look_timeout);
    let mut blocking = Blocking::start(&start)?;
    // Everything below is read while the driver opens.
    let environment: BTreeMap<String, String> = VARIABLES
        .iter()
        .filter_map(|name| Some(((*name).into(), std::env::var_os(name)?.to_string_lossy().into_owned())))
        .collect();
    let observer = ProcReader::new(options.proc.clone()).ok().map(|reader| reader.observer());
    let python = python::look(python, &environment);
    let (machine, driver) = {
        let xids = kmsg::look(&options.proc.dev.join("kmsg"));
        let driver = open(&mut blocking, options, slow)?;
        let minors = match &driver {
            Ok(seen) => seen.inventory.devices.iter().filter_map(|d| d.minor).collect::<Vec<u32>>(),
            Err(_) => Vec::new(),
        };
        (machine::look(&options.proc, &minors, &environment, xids), driver)
    };
    let files = match &driver {
        Ok(_) => None,
        Err(_) => session::look_at_files(&options.proc, blocking.tool_processes()).ok(),
    };
    Ok(Facts { driver, kernel: kernel(), files, observer, machine, environment, python })
}

fn open(
    blocking: &mut Blocking,
    options: &SessionOptions,
    slow: impl FnOnce(),
) -> anyhow::Result<Result<DriverSeen, Failure>> {
    let mut inventory = match blocking.inventory(A_WORD_AFTER, slow) {
        Ok(inventory) => inventory,
        Err(failure) => return Ok(Err(failure)),
    };
    let mut look = blocking.look(&[]);
    let mut facts = blocking.facts();
    // Whole GPUs count for CUDA_VISIBLE_DEVICES, so the selection narrows only what is said about each.
    let selected = options.selection.resolve(&inventory)?;
    if let Ok(facts) = &mut facts {
        facts.devices.retain(|device| selected.contains(&device.uuid));
    }
    if let Ok(look) = &mut look {
        look.devices.retain(|device| selected.contains(&device.uuid));
    }
    let others = inventory.devices.iter().filter(|device| !selected.contains(&device.uuid));
    let others: Vec<_> = others.map(DeviceIdentity::label).collect();
    inventory.gaps.retain(|gap| !others.contains(&gap.about));
    Ok(Ok(DriverSeen { inventory, look, facts }))
}

fn kernel() -> Kernel {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let line = text.as_deref().and_then(|text| text.lines().find(|line| line.starts_with("NVRM")));
    let module = fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned());
    Kernel {
        module: module.filter(|version| !version.is_empty()).or_else(|| {
            let is_version = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            line?.split_whitespace().find(is_version).map(Into::into)
        }),
        open: line.map(|line| line.contains("Open Kernel Module")),
    }
}

impl Python {
    /// The PyTorch that would be imported.
    pub fn torch(&self) -> Option<&super::facts::Torch> {
        match self {
            Self::Found { torch, .. } => torch.first(),
            _ => None,
        }
    }
}
