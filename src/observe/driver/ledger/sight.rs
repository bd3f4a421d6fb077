//! Which number a process of one PID namespace has in another. Apart from the ledger because it reads `/proc`.
//!
//! The real driver lists processes of the caller's own namespace by their inner numbers, leaves those outside of it
//! out, and shows the initial namespace everybody by outer numbers, the dead ones included. So a translation is looked
//! up while the process lives and remembered in a file beside the allocation for the time after.

use super::text;
use std::{fs, path::Path};

/// Inode of the initial PID namespace: a constant of the kernel (PROC_PID_INIT_INO).
const INITIAL: u64 = 0xEFFF_FFFC;

/// One caller's sight.
#[derive(Debug, Clone)]
pub struct Sight {
    /// Inode of the caller's PID namespace.
    pub namespace: Option<u64>,
    /// `(last number of NSpid, namespace if readable, number here)` of all processes, read when first needed.
    processes: Option<Vec<(u32, Option<u64>, u32)>>,
}

impl Sight {
    /// The sight of the calling process.
    pub fn own() -> Self {
        Self { namespace: namespace_of("self"), processes: None }
    }

    /// The number that the caller sees for `pid` of `namespace`; `None`: out of sight. `beside` is the path of the
    /// allocation without its ending.
    pub fn translate(&mut self, beside: &Path, pid: u32, namespace: Option<u64>) -> Option<u32> {
        let Some(namespace) = namespace else { return Some(pid) };
        let own = self.namespace?;
        if namespace == own {
            return Some(pid);
        }
        let mut memory = beside.as_os_str().to_owned();
        memory.push(format!(".seen-by-{own}"));
        if let Some(seen) = self.look_up(pid, namespace) {
            // Best effort: without the file only the time after the process's death is affected.
            let _ = fs::write(&memory, seen.to_string());
            return Some(seen);
        }
        text(&memory).and_then(|t| t.trim().parse().ok()).or_else(|| (own == INITIAL).then_some(pid))
    }

    fn look_up(&mut self, pid: u32, namespace: u64) -> Option<u32> {
        let processes = self.processes.get_or_insert_with(all_processes);
        let mut same = processes.iter().filter(|(inner, ns, _)| *inner == pid && ns.is_none_or(|ns| ns == namespace));
        let first = same.next()?;
        // A namespace that may not be read is a match only if nobody else fits.
        (first.1.is_some() || same.next().is_none()).then_some(first.2)
    }
}

/// Everybody who lives in a namespace below ours.
fn all_processes() -> Vec<(u32, Option<u64>, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for name in entries.flatten().filter_map(|e| e.file_name().into_string().ok()) {
        let Ok(outer) = name.parse::<u32>() else { continue };
        let Some(status) = text(format!("/proc/{outer}/status")) else { continue };
        let Some(numbers) = status.lines().find_map(|l| l.strip_prefix("NSpid:")) else { continue };
        let numbers: Vec<u32> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        if let (Some(inner), true) = (numbers.last(), numbers.len() > 1) {
            found.push((*inner, namespace_of(&name), outer));
        }
    }
    found
}

fn namespace_of(process: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{process}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}
