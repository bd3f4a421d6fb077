//! The ledger: a directory of allocations from which a GPU is simulated. It stands apart because two readers share it:
//! the simulated source of `gpuresid demo` and the fake NVML library of the tests, so it knows neither of them.
//!
//! `machine.json` is the machine (see [`Machine`]), `allocations/NAME.json` one allocation each (see [`Allocation`]).
//!
//! Real GPU memory is kept by open device files: copies survive `fork`, the allocator's death and PID namespaces, and
//! the kernel lets go exactly when the last copy is closed. A lock taken with `flock` behaves the same way, so an
//! allocation lives while somebody holds its lock file exclusively. The protocol has two rules:
//! - a keeper locks the file *before* it publishes the allocation ([`Keeper::hold`]); nobody locks it later;
//! - a reader tries a *shared* lock and drops it. Readers never hinder each other, so none mistakes another's probe
//!   for a keeper, and none can be in the way of a keeper.
//!
//! An allocation is altered by replacing its file; the lock file beside it stays what it is.

use rustix::fs::{FlockOperation, flock};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

// Paths are spelled out because the fake library includes this file from elsewhere.
#[path = "ledger/sight.rs"]
mod sight;
#[path = "ledger/words.rs"]
mod words;

pub use sight::Sight;
pub use words::{
    Allocation, CONTEXT_OVERHEAD, DEVICE_OVERHEAD, Gpu, Inherit, Instance, List, Listed, Machine, MemoryOf,
};

/// An allocation that exists at the moment of the reading.
#[derive(Debug, Clone)]
struct Live {
    name: String,
    allocation: Allocation,
    listed: bool,
}

/// All allocations that exist at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    overhead: bool,
    live: Vec<Live>,
}

/// A ledger directory.
#[derive(Debug, Clone)]
pub struct Ledger {
    directory: PathBuf,
}

impl Ledger {
    /// The ledger in this directory, which need not be complete yet.
    pub fn open(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// A new ledger for this machine; the directory is made if it is missing.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(directory: impl Into<PathBuf>, machine: &Machine) -> io::Result<Self> {
        let ledger = Self::open(directory);
        fs::create_dir_all(ledger.allocations())?;
        replace(&ledger.directory.join("machine.json"), machine)?;
        Ok(ledger)
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn allocations(&self) -> PathBuf {
        self.directory.join("allocations")
    }

    /// The machine as its file stands now.
    ///
    /// # Errors
    /// If the file cannot be read or is not understood.
    pub fn machine(&self) -> io::Result<Machine> {
        read(&self.directory.join("machine.json"))
    }

    /// Writes an allocation, or puts a new text in the place of an old one; its keepers stay.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, allocation: &Allocation) -> io::Result<()> {
        replace(&self.allocations().join(format!("{name}.json")), allocation)
    }

    /// The allocation with this name, living or not.
    ///
    /// # Errors
    /// If it is missing or not understood.
    pub fn allocation(&self, name: &str) -> io::Result<Allocation> {
        read(&self.allocations().join(format!("{name}.json")))
    }

    /// Takes an allocation out of the ledger, whoever keeps it.
    ///
    /// # Errors
    /// If it is not there.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.allocations().join(format!("{name}.json")))
    }

    /// Everything that is allocated at this moment. Files that vanish meanwhile are none.
    ///
    /// # Errors
    /// If the directory cannot be read or an allocation is not understood.
    pub fn moment(&self, machine: &Machine) -> io::Result<Moment> {
        let mut all: BTreeMap<String, Allocation> = BTreeMap::new();
        for entry in fs::read_dir(self.allocations())? {
            let path = entry?.path();
            let (Some(name), Some("json")) =
                (path.file_stem().and_then(|s| s.to_str()), path.extension().and_then(|s| s.to_str()))
            else {
                continue;
            };
            match read(&path) {
                Ok(allocation) => all.insert(name.to_owned(), allocation),
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
        }
        // Each lock is probed once, so that all allocations on it live or die together in this reading.
        let mut kept: BTreeMap<PathBuf, bool> = BTreeMap::new();
        for (name, allocation) in &all {
            let lock = self.lock_path(name, allocation);
            if !allocation.permanent && !kept.contains_key(&lock) {
                let is_kept = is_kept(&lock)?;
                kept.insert(lock, is_kept);
            }
        }
        let alive = |name: &str, allocation: &Allocation| {
            allocation.permanent || kept.get(&self.lock_path(name, allocation)).copied().unwrap_or(false)
        };
        let mut live = Vec::new();
        for (name, allocation) in &all {
            let (mut allocation, name) = (allocation.clone(), name.clone());
            let listed = if alive(&name, &allocation) {
                for inherit in &allocation.inherits {
                    if !all.get(&inherit.from).is_some_and(|other| alive(&inherit.from, other)) {
                        allocation.bytes += inherit.bytes;
                    }
                }
                true
            } else {
                match self.left_over(&name, &allocation)? {
                    Some(left) => (allocation.bytes, allocation.unlisted_bytes) = (left, 0),
                    None => continue,
                }
                allocation.release_listed
            };
            live.push(Live { name, allocation, listed });
        }
        Ok(Moment { overhead: machine.overhead, live })
    }

    /// The lock file of an allocation.
    pub fn lock_path(&self, name: &str, allocation: &Allocation) -> PathBuf {
        self.allocations().join(allocation.lock.clone().unwrap_or_else(|| format!("{name}.lock")))
    }

    /// What is left of an allocation whose keepers are gone. The first reader that finds them gone writes down when.
    fn left_over(&self, name: &str, allocation: &Allocation) -> io::Result<Option<u64>> {
        let Some((last, _)) = allocation.release_steps_ms.last() else { return Ok(None) };
        let now = now_ms();
        let path = self.allocations().join(format!("{name}.released"));
        // Written aside and linked into place: a reader never finds the file half written, and the first one wins.
        let mine = self.allocations().join(format!("{name}.released.{}", unique()));
        fs::write(&mine, now.to_string())?;
        let linked = fs::hard_link(&mine, &path);
        fs::remove_file(&mine)?;
        if linked.is_err_and(|e| e.kind() != io::ErrorKind::AlreadyExists) {
            return Ok(None);
        }
        let since = fs::read_to_string(&path)?.trim().parse().unwrap_or(now);
        let passed = now.saturating_sub(since);
        if passed >= *last {
            return Ok(None);
        }
        let step = allocation.release_steps_ms.iter().rev().find(|(ms, _)| *ms <= passed);
        Ok(Some(step.map_or(allocation.bytes + allocation.unlisted_bytes, |(_, left)| *left)))
    }
}

impl Moment {
    /// Memory of a whole GPU.
    pub fn memory(&self, machine: &Machine, device: usize) -> Option<MemoryOf> {
        let gpu = machine.devices.get(device)?;
        Some(self.memory_where(gpu.total, gpu.reserved, |a| a.device == device))
    }

    /// Memory of a MIG instance.
    pub fn instance_memory(&self, device: usize, instance: &Instance) -> MemoryOf {
        let inside = |a: &Allocation| a.device == device && a.gi == Some(instance.gi);
        self.memory_where(instance.total, instance.reserved, inside)
    }

    fn memory_where(&self, total: u64, reserved: u64, belongs: impl Fn(&Allocation) -> bool) -> MemoryOf {
        let here: Vec<&Live> = self.live.iter().filter(|l| belongs(&l.allocation)).collect();
        let mut used: u64 = here.iter().map(|l| l.allocation.bytes + l.allocation.unlisted_bytes).sum();
        if self.overhead && !here.is_empty() {
            let contexts: BTreeSet<_> =
                here.iter().filter(|l| l.listed).filter_map(|l| context(&l.allocation)).collect();
            used += DEVICE_OVERHEAD + CONTEXT_OVERHEAD * contexts.len() as u64;
        }
        let used = used.min(total.saturating_sub(reserved));
        MemoryOf { total, reserved, used, free: total.saturating_sub(reserved).saturating_sub(used) }
    }

    /// The process lists of a whole GPU as the caller's PID namespace sees them. What is out of sight still counts as
    /// used.
    pub fn processes(&self, ledger: &Ledger, device: usize, sight: &mut Sight) -> Vec<Listed> {
        self.processes_where(ledger, sight, |a| a.device == device)
    }

    /// The process lists of a MIG instance.
    pub fn instance_processes(
        &self,
        ledger: &Ledger,
        device: usize,
        instance: &Instance,
        sight: &mut Sight,
    ) -> Vec<Listed> {
        self.processes_where(ledger, sight, |a| {
            a.device == device && a.gi == Some(instance.gi) && a.ci.is_none_or(|ci| ci == instance.ci)
        })
    }

    fn processes_where(
        &self,
        ledger: &Ledger,
        sight: &mut Sight,
        belongs: impl Fn(&Allocation) -> bool,
    ) -> Vec<Listed> {
        let mut listed: BTreeMap<_, Listed> = BTreeMap::new();
        for Live { name, allocation, .. } in self.live.iter().filter(|l| l.listed && belongs(&l.allocation)) {
            let Some(key) = context(allocation) else { continue };
            let Some(pid) = sight.translate(&ledger.allocations().join(name), key.0, allocation.pid_ns) else {
                continue;
            };
            let line = listed.entry(key).or_insert_with(|| Listed {
                pid,
                bytes: Some(0),
                gi: allocation.gi,
                ci: allocation.ci,
                lists: BTreeSet::new(),
            });
            line.lists.extend(&allocation.lists);
            line.bytes = line.bytes.filter(|_| !allocation.unavailable).map(|b| b + allocation.bytes);
        }
        listed.into_values().collect()
    }
}

impl Allocation {
    /// Listed memory of the calling process.
    pub fn of_this_process(device: usize, bytes: u64) -> Self {
        Self { device, pid: Some(std::process::id()), pid_ns: Sight::own().namespace, bytes, ..Self::default() }
    }
}

/// What makes one entry of the lists.
type Context = (u32, Option<u64>, Option<u32>, Option<u32>);

fn context(a: &Allocation) -> Option<Context> {
    Some((a.pid?, a.pid_ns, a.gi, a.ci))
}

/// Keeps an allocation alive until it is dropped, and until every copy that a child inherited is closed.
#[derive(Debug)]
pub struct Keeper {
    file: File,
}

impl Keeper {
    /// Locks, then publishes the allocation.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn hold(ledger: &Ledger, name: &str, allocation: &Allocation) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(ledger.lock_path(name, allocation))?;
        flock(&file, FlockOperation::LockExclusive)?;
        // A former allocation of this name may have come back late.
        let _ = fs::remove_file(ledger.allocations().join(format!("{name}.released")));
        ledger.write(name, allocation)?;
        Ok(Self { file })
    }

    /// A copy of the same lock: handed to a child (as its stdin, say) it keeps the allocation as a forked device file
    /// would.
    ///
    /// # Errors
    /// If no descriptor can be had.
    pub fn copy(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// Whether somebody holds this lock file.
fn is_kept(lock: &Path) -> io::Result<bool> {
    let file = match File::open(lock) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Reads a file of the ledger; the error names it.
fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    serde_json::from_slice(&fs::read(path).map_err(named)?).map_err(|e| named(e.into()))
}

/// Writes beside the target and renames, so that a reader has the old text or the new one.
fn replace(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let aside = path.with_extension(format!("new.{}", unique()));
    File::create(&aside)?.write_all(&serde_json::to_vec_pretty(value)?)?;
    fs::rename(&aside, path)
}

/// A name that no other writer uses at the same time.
fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}.{}.{}", std::process::id(), now_ms(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Milliseconds since boot: the same for all processes of the machine.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

/// Reads a whole small file, `None` if that is not possible.
fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}
