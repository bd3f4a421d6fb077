//! PyTorch's memory as its own processes saw it: what the probe of `check --torch` wrote down, and what the report says
//! about it. Beside NVML's readings it is the only source that tells live tensors from the allocator's cache.

use super::{Advice, Bytes, Gap, ProcId, Uuid};
use serde::{Deserialize, Serialize};

/// All that the probes of a run told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchView {
    /// One for each process in which PyTorch used CUDA.
    pub records: Vec<TorchRecord>,
    /// Every Python process that started with the probe.
    pub started: Vec<TorchStart>,
    /// What could not be read.
    pub gaps: Vec<Gap>,
}

/// A Python process that started, or was forked, with the probe in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchStart {
    /// Who. The PID is the process's own view: another one in a PID namespace.
    pub id: ProcId,
    /// It was forked from this PID after that one had initialised CUDA, so PyTorch refuses CUDA in it.
    pub forked_from: Option<u32>,
}

/// How the last record of a process came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TorchStage {
    /// In passing, about once a second.
    Sample,
    /// When the interpreter ended.
    Exit,
}

/// The last record of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchRecord {
    /// PID as the process sees itself.
    pub pid: u32,
    /// Its start time.
    pub start_ticks: u64,
    /// When, milliseconds since the observation began; `None`: its clock is another one.
    pub at_ms: Option<u64>,
    /// How it came about.
    pub stage: TorchStage,
    /// Version of Python.
    #[serde(default)]
    pub python: Option<String>,
    /// Version of PyTorch.
    #[serde(default)]
    pub torch: Option<String>,
    /// The devices on which its allocator has, or had, memory.
    #[serde(default)]
    pub devices: Vec<TorchCounts>,
    /// Thinned samples: milliseconds, CUDA's device index, allocated and reserved bytes.
    #[serde(default)]
    pub timeline: Vec<(u64, u32, Option<Bytes>, Option<Bytes>)>,
    /// Who refers to the tensors; `None`: nobody has looked yet.
    #[serde(default)]
    pub live: Option<TorchNames>,
    /// Threads that keep it alive after its main thread has ended.
    #[serde(default)]
    pub threads: Option<Vec<TorchThread>>,
    /// What went wrong in the probe.
    #[serde(default)]
    pub gaps: Vec<String>,
}

/// What PyTorch's allocator says about one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchCounts {
    /// CUDA's index in that process, which may count otherwise than NVML.
    pub index: u32,
    /// The device's UUID without its prefix, where this version of PyTorch tells it.
    #[serde(default)]
    pub uuid: Option<String>,
    /// PCI bus id, where it tells it.
    #[serde(default)]
    pub pci: Option<String>,
    /// In tensors.
    pub allocated_bytes: Option<Bytes>,
    /// Taken from the driver.
    pub reserved_bytes: Option<Bytes>,
    /// Largest amount in tensors.
    pub peak_allocated_bytes: Bytes,
    /// Largest amount taken from the driver.
    pub peak_reserved_bytes: Bytes,
    /// Times that an allocation failed.
    #[serde(default)]
    pub ooms: Option<u64>,
    /// Times that the cache was emptied to make an allocation possible.
    #[serde(default)]
    pub retries: Option<u64>,
    /// What `empty_cache()` would have given back; `None`: not looked at.
    #[serde(default)]
    pub releasable_bytes: Option<Bytes>,
}

/// The live tensors of a process, by device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchNames {
    /// The devices.
    pub devices: Vec<TorchLive>,
    /// Where the search was cut short.
    #[serde(default)]
    pub gaps: Vec<String>,
}

/// The live tensors of one device, grouped by the storage below them: views of one storage count once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchLive {
    /// CUDA's index in that process.
    pub index: u32,
    /// Storages that Python objects refer to.
    pub storages: u64,
    /// Their size.
    pub bytes: Bytes,
    /// Allocated beyond that: held by C++ alone (autograd, DDP buckets, CUDA graphs, cuBLAS workspaces).
    pub hidden_bytes: Option<Bytes>,
    /// Of `bytes`, what no name was found for.
    pub unnamed_bytes: Bytes,
    /// The largest storages.
    pub largest: Vec<TorchStorage>,
    /// The variables through which most is held, each with everything below it.
    pub owners: Vec<TorchOwner>,
    /// Names of tensors that keep an autograd graph, and with it what that needs.
    #[serde(default)]
    pub graphs: Vec<String>,
    /// How many tensors keep one.
    #[serde(default)]
    pub graph_storages: u64,
}

/// A storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchStorage {
    /// Its size.
    pub bytes: Bytes,
    /// Shape of one tensor on it.
    pub shape: Vec<u64>,
    /// Element type of that tensor.
    pub dtype: String,
    /// Python tensors on it.
    pub tensors: u64,
    /// Who refers to it, at most three.
    pub references: Vec<TorchReference>,
}

/// Who refers to a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchReference {
    /// `global`, `attribute`, `element`, `closure`, `default_argument`, `frame`, `generator`, `thread_local`,
    /// `traceback`, `ipython_out`, `cpp` or `unknown`.
    pub kind: String,
    /// Such as `train.model.fc.weight`.
    pub name: String,
    /// Where that name belongs, if it is no global one: `closure variable of train.step`.
    pub scope: Option<String>,
}

/// A variable with everything that is held through it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchOwner {
    /// As in [`TorchReference`].
    pub kind: String,
    /// Such as `train.model`.
    pub name: String,
    /// Where that name belongs.
    pub scope: Option<String>,
    /// What is held.
    pub bytes: Bytes,
    /// In so many storages.
    pub storages: u64,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchThread {
    /// Its name.
    pub name: String,
    /// The function that it was started with.
    pub function: Option<String>,
}

/// One process in the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchProcess {
    /// PID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Its command line, if it was seen.
    pub command: Option<String>,
    /// Version of Python.
    pub python_version: Option<String>,
    /// Version of PyTorch.
    pub torch_version: Option<String>,
    /// How its last record came about: at its exit, or in passing.
    pub stage: TorchStage,
    /// When that was, milliseconds since the observation began.
    pub at_ms: Option<u64>,
    /// It still lives.
    pub alive: bool,
    /// Its devices.
    pub devices: Vec<TorchDevice>,
    /// Threads that keep it alive after its main thread has ended.
    pub threads: Vec<TorchThread>,
    /// What to do, what disturbs nobody first.
    pub advice: Vec<Advice>,
    /// What could not be seen.
    pub gaps: Vec<String>,
}

/// One device of such a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchDevice {
    /// CUDA's index in that process.
    pub cuda_index: u32,
    /// The device; `None`: this version of PyTorch does not tell, and more than one fits.
    pub uuid: Option<Uuid>,
    /// At the last record.
    pub end: TorchSplit,
    /// The largest amounts.
    pub peak: TorchSplit,
    /// What `empty_cache()` would have given back at the last record; `None`: not looked at.
    pub releasable_bytes: Option<Bytes>,
    /// Times that an allocation failed.
    pub ooms: Option<u64>,
    /// Times that the cache was emptied to make an allocation possible.
    pub retries: Option<u64>,
    /// The tensors; `None`: nobody has looked.
    pub live: Option<TorchLive>,
    /// Thinned samples.
    pub timeline: Vec<TorchPoint>,
}

/// A process's memory on a device in three parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchSplit {
    /// What the driver listed for the process; `None`: not seen, or not told.
    pub listed_bytes: Option<Bytes>,
    /// In tensors.
    pub live_bytes: Option<Bytes>,
    /// Reserved by the allocator and not in tensors.
    pub cached_bytes: Option<Bytes>,
    /// Context, kernels and libraries: listed − reserved. `None`: the two could not be seen at the same time.
    pub context_bytes: Option<Bytes>,
}

/// A sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchPoint {
    /// Milliseconds since the observation began.
    pub at_ms: u64,
    /// In tensors.
    pub allocated_bytes: Bytes,
    /// Taken from the driver.
    pub reserved_bytes: Bytes,
}
