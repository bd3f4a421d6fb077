//! What a process is doing that the letter of its state does not tell, and why it does not end: it waits in the kernel,
//! writes its core, is frozen, or does nothing on a SIGTERM. Apart from the causes, because it is knowledge about the
//! kernel, of which only a part says anything about GPU memory.

use crate::model::{BlockedThread, Cure, Evidence, Foreign, OnSigterm, Process, ProcessState, WaitsOn};

/// What a wait channel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Its cgroup is frozen.
    Frozen,
    /// For a core dump to be written.
    CoreDump,
    /// For this.
    On(WaitsOn),
    Unknown,
}

fn waits(channel: &str) -> Waits {
    let starts = |names: &[&str]| names.iter().any(|name| channel.starts_with(name));
    if channel.contains("refrigerator") || starts(&["do_freezer_trap"]) {
        Waits::Frozen
    } else if starts(&["kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"]) {
        Waits::On(WaitsOn::Vfork)
    } else if channel.contains("coredump") {
        Waits::CoreDump
    } else if starts(&["nfs", "rpc_", "nlm"]) {
        Waits::On(WaitsOn::Nfs)
    } else if starts(&["fuse", "request_wait_answer"]) {
        Waits::On(WaitsOn::Fuse)
    } else if starts(&["ceph", "ll_", "cl_", "osc_", "ldlm_", "ptlrpc", "cifs", "smb", "gpfs", "mmfs", "cxi"]) {
        Waits::On(WaitsOn::NetworkFileSystem)
    } else if starts(&["nv", "_nv", "uvm", "os_", "rm_", "drm_"]) {
        Waits::On(WaitsOn::NvidiaDriver)
    } else if starts(&["thaw_super", "percpu_rwsem_wait", "sb_start"]) {
        Waits::On(WaitsOn::FrozenFileSystem)
    } else if starts(&["handle_userfault"]) {
        Waits::On(WaitsOn::Userfaultfd)
    } else if starts(&["mem_cgroup_oom"]) {
        Waits::On(WaitsOn::MemoryLimit)
    } else if starts(&[
        "io_schedule",
        "folio_wait",
        "wait_on_page",
        "blk_",
        "jbd2",
        "ext4",
        "xfs",
        "btrfs",
        "bit_wait_io",
        "submit_bio",
        "rq_qos",
        "wbt_",
        "do_writepages",
        "balance_dirty",
    ]) {
        Waits::On(WaitsOn::Disk)
    } else {
        Waits::Unknown
    }
}

impl Waits {
    /// It can hang for ever: a disk is slow, and a child calls exec.
    const fn may_hang(self) -> bool {
        matches!(self, Self::On(on) if !matches!(on, WaitsOn::Disk | WaitsOn::Vfork))
    }
}

/// Its cgroup is frozen, as by `docker pause`: no signal but SIGKILL does anything.
pub(crate) fn is_frozen(process: &Process) -> bool {
    let blocked = process.blocked.iter().flat_map(|b| &b.threads).filter_map(|t| t.wait_channel.as_deref());
    process.wait_channel.as_deref().into_iter().chain(blocked).any(|channel| waits(channel) == Waits::Frozen)
}

/// It writes its core, and nobody has cut that short yet.
pub(crate) const fn writes_its_core(process: &Process) -> bool {
    process.core_dumping && !process.kill_pending
}

/// Why its memory is on the way back, if it is.
pub(crate) fn leaving(process: &Process) -> Option<Vec<Evidence>> {
    if writes_its_core(process) {
        return Some(vec![Evidence::WritesCore, Evidence::CoreKeepsSigterm]);
    }
    process.dying.then(|| vec![Evidence::Leaving])
}

/// A plain `kill` does not end it.
pub(crate) const fn resists_sigterm(process: &Process) -> bool {
    matches!(process.on_sigterm, Some(OnSigterm::Ignores | OnSigterm::Blocks))
}

/// What a plain `kill` did or will do, where that is not what one expects.
pub(crate) fn sigterm(process: &Process) -> Option<Evidence> {
    if process.dying {
        return None;
    }
    let stands_still = matches!(process.state, ProcessState::Stopped | ProcessState::Traced) || is_frozen(process);
    match (process.on_sigterm, process.sigterm_pending) {
        (Some(does @ (OnSigterm::Ignores | OnSigterm::Blocks)), pending) => Some(Evidence::Sigterm { does, pending }),
        (_, true) if stands_still => Some(Evidence::SigtermWaits),
        _ => None,
    }
}

/// Why it is stuck, if it is.
pub(crate) fn stuck(process: &Process) -> Option<Vec<Evidence>> {
    let blocked = process.blocked.as_ref()?;
    let channels = || blocked.threads.iter().map(|t| t.wait_channel.as_deref().map_or(Waits::Unknown, waits));
    let works = blocked.states.iter().any(|(state, n)| *state == ProcessState::Running && *n > 0);
    if channels().any(|w| matches!(w, Waits::CoreDump | Waits::Frozen)) || (process.dying && works) {
        return None;
    }
    // Writing to a disk takes its time; only what can hang for ever is trouble.
    if process.core_dumping && !channels().any(Waits::may_hang) {
        return None;
    }
    // What nobody has killed yet, and only waits for a disk or a child, is no trouble.
    if !process.dying && channels().all(|w| matches!(w, Waits::On(_)) && !w.may_hang()) {
        return None;
    }
    let stuck = Evidence::StuckInKernel { kill_pending: process.kill_pending, dying: process.dying };
    let states = Evidence::ThreadStates {
        states: blocked.states.clone(),
        blocked: blocked.threads.len(),
        watched_ms: blocked.watched_ms,
    };
    Some([stuck, states].into_iter().chain(blocked.threads.iter().take(4).filter_map(thread)).collect())
}

fn thread(thread: &BlockedThread) -> Option<Evidence> {
    let on = thread.wait_channel.as_deref().map(waits).and_then(|waits| match waits {
        Waits::On(on) => Some(on),
        _ => None,
    });
    let (channel, file) = (thread.wait_channel.clone().map(Foreign), thread.waits_for.clone().map(Foreign));
    (channel.is_some() || file.is_some()).then_some(Evidence::ThreadWaits { tid: thread.tid, channel, on, file })
}

/// What the first telling thread waits for, to be cured.
pub(crate) fn waits_for(process: &Process) -> Option<Cure> {
    let threads = &process.blocked.as_ref()?.threads;
    let file = threads.iter().find_map(|t| t.waits_for.clone()).map(|file| Cure::File(file.into()));
    file.or_else(|| {
        let on = threads.iter().filter_map(|t| Some(waits(t.wait_channel.as_deref()?))).filter(|w| w.may_hang());
        on.filter_map(|waits| if let Waits::On(on) = waits { Some(Cure::On(on)) } else { None }).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        judge::tests::build::{files, id, process},
        model::{Blocked, Facts},
    };

    fn blocked(channel: &str, dying: bool, states: &[(ProcessState, u32)]) -> Process {
        let mut made = process(id(5, 5), Vec::new(), Some(files(23, 2, 4)));
        made.state = ProcessState::DiskSleep;
        (made.dying, made.kill_pending) = (dying, dying);
        made.blocked = Some(Blocked {
            watched_ms: 300,
            threads: vec![BlockedThread {
                tid: 5,
                wait_channel: Some(channel.into()),
                waits_for: Some("/data/x (nfs4 from store:/export)".into()),
            }],
            states: states.to_vec(),
        });
        made
    }

    #[test]
    fn what_was_killed_and_stays_is_stuck_wherever_it_waits() {
        let states = [(ProcessState::Sleeping, 17), (ProcessState::DiskSleep, 1)];
        for channel in ["nfs_wait_bit_killable", "uvm_va_space_destroy", "some_function", "io_schedule", "kernel_clone"]
        {
            let why = stuck(&blocked(channel, true, &states)).unwrap_or_else(|| panic!("{channel}"));
            let all = Facts(why).sentences().join("\n");
            for part in ["SIGKILL was sent", "17 sleeping, 1 in the kernel (D)", "300 ms", channel, "/data/x (nfs4"] {
                assert!(all.contains(part), "{part}: {all}");
            }
        }
        // It still works on its end, or writes a core dump.
        assert_eq!(
            stuck(&blocked("nfs_wait", true, &[(ProcessState::Running, 1), (ProcessState::DiskSleep, 1)])),
            None
        );
        assert_eq!(stuck(&blocked("coredump_task_exit", true, &states)), None);
    }

    #[test]
    fn a_slow_disk_is_no_trouble_while_nobody_killed_it() {
        let states = [(ProcessState::DiskSleep, 1)];
        for channel in ["io_schedule", "folio_wait_bit_common", "kernel_clone", "__refrigerator"] {
            assert_eq!(stuck(&blocked(channel, false, &states)), None, "{channel}");
        }
        for channel in ["rpc_wait_bit_killable", "request_wait_answer", "os_acquire_rwlock", "nobody_knows"] {
            assert!(stuck(&blocked(channel, false, &states)).is_some(), "{channel}");
        }
        let cure = waits_for(&blocked("x", false, &states));
        assert_eq!(cure, Some(Cure::File("/data/x (nfs4 from store:/export)".into())));
        assert!(is_frozen(&blocked("__refrigerator", false, &states)));
    }
}
