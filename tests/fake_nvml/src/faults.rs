//! What goes wrong: the `faults` of `machine.json`.

use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fs::OpenOptions,
    io::Write as _,
    path::Path,
    sync::{LazyLock, Mutex, PoisonError},
    thread::sleep,
    time::Duration,
};

/// One fault. It applies to a call if all that it names fits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// The function; a trailing `*` stands for any ending.
    pub function: String,
    /// Only for this GPU (its MIG instances included).
    pub device: Option<usize>,
    /// Only from this call on; each process counts its calls of each function on each GPU from 0.
    pub from: u64,
    /// Only up to and including this call.
    pub to: Option<u64>,
    /// Only while this file (relative to the ledger) exists.
    pub while_file: Option<String>,
    /// Answer this code.
    pub code: Option<u32>,
    /// Wait before anything else.
    pub delay_ms: u64,
    /// Hang for ever.
    pub hang: bool,
    /// Hang while this file (relative to the ledger) exists.
    pub hang_while: Option<String>,
    /// Write a byte to the end of this file, which hangs in the kernel while its file system is frozen.
    pub write_to: Option<String>,
    /// The process lists say "not available" for all memory.
    pub bytes_unavailable: bool,
    /// Say this on standard output and standard error.
    pub prints: Option<String>,
    /// The process ends at once, as in a crash.
    pub crash: bool,
    /// The same, and `while_file` is removed: it does so once.
    pub crash_once: bool,
    /// The memory calls answer these numbers of bytes, whatever is true.
    pub total: Option<u64>,
    /// As above.
    pub used: Option<u64>,
    /// As above, for BAR1 memory.
    pub bar1_used: Option<u64>,
    /// The process lists say so many bytes for everybody.
    pub entry_bytes: Option<u64>,
}

/// The fields of `machine.json` that are for this library alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Oddities {
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// `_v3` of the process lists writes 32-byte records, as drivers 535.43 to 535.86 did.
    pub wide_records: bool,
    /// Confidential computing: environment, feature, developers' tools.
    pub conf_compute: [u32; 3],
    /// How the GPUs are set up, in their order; a GPU without one is set up as an H200 comes.
    pub facts: Vec<Facts>,
}

/// How one GPU is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Facts {
    /// Persistence mode.
    pub persistence: u32,
    /// Compute mode: 0 default, 2 prohibited, 3 exclusive process.
    pub compute_mode: u32,
    /// MIG after a reset; `None`: as it is.
    pub mig_next: Option<u32>,
    /// ECC now and after a reset.
    pub ecc: (u32, u32),
    /// Pages wait to be retired; `None`: not supported, as on all cards since Ampere.
    pub pages_pending: Option<u32>,
    /// Remapped rows: correctable, uncorrectable, pending, failed; `None`: not supported.
    pub remapped_rows: Option<(u32, u32, u32, u32)>,
    /// BAR1 memory, total and used bytes; `None`: not supported.
    pub bar1: Option<(u64, u64)>,
    /// Addressing mode: 0 none, 1 HMM, 2 ATS.
    pub addressing: u32,
    /// The NUMA node that its memory is; `None`: it is none.
    pub numa_node: Option<u32>,
    /// KiB that confidential computing protects, and of them used bytes.
    pub protected: (u64, u64),
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            persistence: 1,
            compute_mode: 0,
            mig_next: None,
            ecc: (1, 1),
            pages_pending: None,
            remapped_rows: Some((0, 0, 0, 0)),
            bar1: Some((256 << 30, 1_703_936)),
            addressing: 0,
            numa_node: None,
            protected: (0, 0),
        }
    }
}

/// What the faults make of one call.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    pub(crate) code: Option<u32>,
    pub(crate) bytes_unavailable: bool,
    pub(crate) total: Option<u64>,
    pub(crate) used: Option<u64>,
    pub(crate) bar1_used: Option<u64>,
    pub(crate) entry_bytes: Option<u64>,
}

/// Counts this call, suffers what is set for it, and says what is left to do. `hanging` is called before it hangs.
pub(crate) fn suffer(
    faults: &[Fault],
    ledger: &Path,
    function: &str,
    device: Option<usize>,
    hanging: impl Fn(),
) -> Effect {
    type Counts = HashMap<(String, Option<usize>), u64>;
    static CALLS: LazyLock<Mutex<Counts>> = LazyLock::new(Mutex::default);
    let number = {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let next = calls.entry((function.to_owned(), device)).or_default();
        *next += 1;
        *next - 1
    };
    let mut effect = Effect::default();
    for fault in faults.iter().filter(|f| f.fits(ledger, function, device, number)) {
        sleep(Duration::from_millis(fault.delay_ms));
        if let Some(path) = &fault.write_to {
            hanging();
            // Opening for writing hangs on a frozen file system as the write itself would.
            let _ = OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(b"x"));
        }
        let hangs = || fault.hang || fault.hang_while.as_ref().is_some_and(|file| ledger.join(file).exists());
        if hangs() {
            hanging();
        }
        while hangs() {
            sleep(Duration::from_millis(5));
        }
        if let Some(text) = &fault.prints {
            // As C code does: unbuffered, and nobody asks whether it arrives.
            let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        if fault.crash_once
            && let Some(file) = &fault.while_file
        {
            let _ = std::fs::remove_file(ledger.join(file));
        }
        if fault.crash || fault.crash_once {
            std::process::abort();
        }
        effect.total = effect.total.or(fault.total);
        effect.used = effect.used.or(fault.used);
        effect.bar1_used = effect.bar1_used.or(fault.bar1_used);
        effect.entry_bytes = effect.entry_bytes.or(fault.entry_bytes);
        effect.code = effect.code.or(fault.code);
        effect.bytes_unavailable |= fault.bytes_unavailable;
    }
    effect
}

impl Fault {
    fn fits(&self, ledger: &Path, function: &str, device: Option<usize>, number: u64) -> bool {
        let named = match self.function.strip_suffix('*') {
            Some(start) => function.starts_with(start),
            None => function == self.function,
        };
        named
            && (self.device.is_none() || self.device == device)
            && number >= self.from
            && self.to.is_none_or(|to| number <= to)
            && self.while_file.as_ref().is_none_or(|file| ledger.join(file).exists())
    }
}
