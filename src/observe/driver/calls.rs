//! Which NVML call a helper is in, told without the helper's help: before each call its thread takes a short name,
//! which everybody can read in `/proc/PID/task/TID/comm`. A thread that hangs in the kernel cannot answer, but its name
//! can still be read.

use super::numbers;
use std::{ffi::CString, fs, path::Path, time::Duration};

/// A call that could hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Init,
    Version,
    CudaVersion,
    Count,
    Handle,
    Identity,
    Mig,
    MemoryV1,
    MemoryV2,
    Compute,
    Graphics,
    Mps,
    Utilization,
    Bar1,
    Addressing,
    ConfCompute,
    Events,
    Settings,
    Ledger,
}

/// Every call with its mark and what messages call it.
const CALLS: [(Call, &str, &str); 19] = [
    (Call::Init, "init", "nvmlInit_v2"),
    (Call::Version, "version", "nvmlSystemGetDriverVersion"),
    (Call::CudaVersion, "cuda", "nvmlSystemGetCudaDriverVersion_v2"),
    (Call::Count, "count", "nvmlDeviceGetCount_v2"),
    (Call::Handle, "handle", "nvmlDeviceGetHandleByIndex_v2"),
    (Call::Identity, "ident", "nvmlDeviceGetUUID"),
    (Call::Mig, "mig", "nvmlDeviceGetMigDeviceHandleByIndex"),
    (Call::MemoryV1, "mem1", "nvmlDeviceGetMemoryInfo"),
    (Call::MemoryV2, "mem2", "nvmlDeviceGetMemoryInfo_v2"),
    (Call::Compute, "compute", "nvmlDeviceGetComputeRunningProcesses"),
    (Call::Graphics, "graph", "nvmlDeviceGetGraphicsRunningProcesses"),
    (Call::Mps, "mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    (Call::Utilization, "util", "nvmlDeviceGetUtilizationRates"),
    (Call::Bar1, "bar1", "nvmlDeviceGetBAR1MemoryInfo"),
    (Call::Addressing, "addr", "nvmlDeviceGetAddressingMode"),
    (Call::ConfCompute, "conf", "nvmlSystemGetConfComputeState"),
    (Call::Events, "register", "nvmlDeviceRegisterEvents"),
    (Call::Settings, "sets", "reading the settings"),
    (Call::Ledger, "ledger", "reading the simulated GPU"),
];

/// Names the thread after the call that it is about to make. The kernel keeps 15 bytes.
pub(super) fn about_to(call: Call, device: Option<u32>) {
    if let Some((_, mark, _)) = CALLS.iter().find(|(c, ..)| *c == call) {
        set_name(&match device {
            Some(index) => format!("nv:{mark}:{index}"),
            None => format!("nv:{mark}"),
        });
    }
}

/// Takes the mark off: the thread is in no call.
pub(super) fn done() {
    set_name("gpuresid-nvml");
}

/// Names this thread for people who look with `ps` or `top`.
pub(super) fn set_name(name: &str) {
    // A name is a courtesy: without it a message is only less exact.
    if let Ok(name) = CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// The call behind a thread name, for messages.
fn describe(comm: &str) -> Option<String> {
    let mut parts = comm.trim_end().strip_prefix("nv:")?.splitn(2, ':');
    let mark = parts.next()?;
    let (.., name) = CALLS.iter().find(|(_, m, _)| *m == mark)?;
    Some(match parts.next() {
        Some(index) => format!("{name} on GPU {index}"),
        None => (*name).into(),
    })
}

/// Where a process hangs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Whereabouts {
    /// The NVML call, if a thread carries a mark.
    pub(super) call: Option<String>,
    /// State of that thread (else of the main thread), as in `/proc/PID/stat`.
    pub(super) state: Option<char>,
    /// The kernel function it sleeps in, where readable and not `0`.
    pub(super) wait_channel: Option<String>,
}

/// Looks where a process is, thread by thread. A thread in D state wins over others: it is the one that hangs.
pub(super) fn whereabouts(pid: u32) -> Whereabouts {
    let Some(tasks) = numbers::directory(pid).and_then(|place| fs::read_dir(place.join("task")).ok()) else {
        return Whereabouts::default();
    };
    let mut best: Option<(u8, Whereabouts)> = None;
    for task in tasks.flatten() {
        let seen = thread(&task.path());
        let rank = u8::from(seen.call.is_some()) * 2 + u8::from(seen.state == Some('D'));
        if best.as_ref().is_none_or(|(r, _)| rank > *r) {
            best = Some((rank, seen));
        }
    }
    best.map(|(_, w)| w).unwrap_or_default()
}

/// What a call on this GPU says of itself that this process has waited for in vain so long.
pub(super) fn no_answer(index: u32, waited: Duration) -> String {
    let ours = format!(" on GPU {index}");
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stuck = tasks.map(|task| thread(&task.path())).find(|w| w.call.as_ref().is_some_and(|c| c.ends_with(&ours)));
    let call = stuck.as_ref().and_then(|w| w.call.clone()).unwrap_or_else(|| "an NVML call".into());
    let detail = stuck.map(|w| w.to_string()).filter(|t| !t.is_empty()).map_or_else(String::new, |t| format!(" ({t})"));
    format!("{call} did not come back within {}{detail}", humantime::format_duration(waited))
}

fn thread(task: &Path) -> Whereabouts {
    let read = |name: &str| fs::read_to_string(task.join(name)).ok();
    Whereabouts {
        call: read("comm").and_then(|c| describe(&c)),
        // The name in parentheses may hold anything; the state follows the last one.
        state: read("stat").and_then(|s| s.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())),
        wait_channel: read("wchan").map(|w| w.trim().to_owned()).filter(|w| !w.is_empty() && w != "0"),
    }
}

impl std::fmt::Display for Whereabouts {
    /// `state D, kernel wait channel rwsem_down_write_slowpath`; empty if nothing could be read.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(state) = self.state {
            write!(f, "state {state}")?;
        }
        if let Some(channel) = &self.wait_channel {
            write!(f, "{}kernel wait channel {channel}", if self.state.is_some() { ", " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_fits_the_kernels_15_bytes_and_is_read_back() {
        for (call, mark, name) in CALLS {
            let comm = format!("nv:{mark}:999");
            assert!(comm.len() <= 15, "{comm}");
            assert_eq!(describe(&format!("{comm}\n")), Some(format!("{name} on GPU 999")), "{call:?}");
            assert_eq!(describe(&format!("nv:{mark}")), Some(name.into()));
        }
        assert_eq!(describe("gpuresid-nvml"), None);
        assert_eq!(describe("nv:other:1"), None);
    }

    #[test]
    fn a_marked_thread_is_found_from_outside() {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (finish, may_finish) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            about_to(Call::MemoryV2, Some(3));
            ready.send(()).unwrap();
            let _ = may_finish.recv();
        });
        is_ready.recv().unwrap();
        let seen = whereabouts(std::process::id());
        assert_eq!(seen.call.as_deref(), Some("nvmlDeviceGetMemoryInfo_v2 on GPU 3"));
        assert!(seen.state.is_some());
        drop(finish);
        thread.join().unwrap();
    }
}
