//! What a process is doing that the letter of its state does not tell, and why it does not end: it waits in the kernel,
//! writes its core, is frozen, or does nothing on a SIGTERM. Apart from the causes, because it is knowledge about the
//! kernel, of which only a part says anything about GPU memory.

use crate::model::{Blocked, BlockedThread, OnSigterm, Process, ProcessState};
use crate::text;

/// What a wait channel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Its cgroup is frozen.
    Frozen,
    /// For a child that has not yet called exec.
    Vfork,
    /// For a core dump to be written.
    CoreDump,
    /// For a disk, which is slow and not stuck.
    Disk,
    /// For something that can hang for ever; its name.
    On(&'static str),
    Unknown,
}

fn waits(channel: &str) -> Waits {
    let starts = |names: &[&str]| names.iter().any(|name| channel.starts_with(name));
    if channel.contains("refrigerator") || starts(&["do_freezer_trap"]) {
        Waits::Frozen
    } else if starts(&["kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"]) {
        Waits::Vfork
    } else if channel.contains("coredump") {
        Waits::CoreDump
    } else if starts(&["nfs", "rpc_", "nlm"]) {
        Waits::On("an NFS server")
    } else if starts(&["fuse", "request_wait_answer"]) {
        Waits::On("a FUSE file system")
    } else if starts(&["ceph", "ll_", "cl_", "osc_", "ldlm_", "ptlrpc", "cifs", "smb", "gpfs", "mmfs", "cxi"]) {
        Waits::On("a network file system")
    } else if starts(&["nv", "_nv", "uvm", "os_", "rm_", "drm_"]) {
        Waits::On("the NVIDIA driver")
    } else if starts(&["thaw_super", "percpu_rwsem_wait", "sb_start"]) {
        Waits::On("a frozen file system")
    } else if starts(&["handle_userfault"]) {
        Waits::On("the program that provides its memory page by page, userfaultfd")
    } else if starts(&["mem_cgroup_oom"]) {
        Waits::On("memory: its cgroup is at its limit and nothing is ended for it")
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
        Waits::Disk
    } else {
        Waits::Unknown
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
pub(crate) fn leaving(process: &Process) -> Option<Vec<String>> {
    if writes_its_core(process) {
        return Some(vec![
            "it has crashed, and the kernel is writing its memory to a core file (CoreDumping in /proc/PID/status): it keeps \
             its GPU memory until the core is written, and then ends by itself"
                .into(),
            "SIGTERM does nothing to it meanwhile; SIGKILL ends it at once and cuts the core short".into(),
        ]);
    }
    process.dying.then(|| vec!["it was killed or is exiting, and its memory is on the way back".into()])
}

/// A plain `kill` does not end it.
pub(crate) const fn resists_sigterm(process: &Process) -> bool {
    matches!(process.on_sigterm, Some(OnSigterm::Ignores | OnSigterm::Blocks))
}

/// What a plain `kill` did or will do, where that is not what one expects.
pub(crate) fn sigterm(process: &Process) -> Option<String> {
    if process.dying {
        return None;
    }
    let stands_still = matches!(process.state, ProcessState::Stopped | ProcessState::Traced) || is_frozen(process);
    let said = match (process.on_sigterm, process.sigterm_pending) {
        (Some(OnSigterm::Ignores), _) => "it ignores SIGTERM: a plain kill does nothing to it",
        (Some(OnSigterm::Blocks), true) => "SIGTERM was sent, and every thread of it blocks that signal",
        (Some(OnSigterm::Blocks), false) => "every thread of it blocks SIGTERM: a plain kill does nothing to it",
        (_, true) if stands_still => "SIGTERM was sent already: it takes effect as soon as it goes on",
        _ => return None,
    };
    Some(said.into())
}

/// Why it is stuck, if it is: sentences for `why`.
pub(crate) fn stuck(process: &Process) -> Option<Vec<String>> {
    let blocked = process.blocked.as_ref()?;
    let channels = || blocked.threads.iter().map(|t| t.wait_channel.as_deref().map_or(Waits::Unknown, waits));
    let works = blocked.states.iter().any(|(state, n)| *state == ProcessState::Running && *n > 0);
    if channels().any(|w| matches!(w, Waits::CoreDump | Waits::Frozen)) || (process.dying && works) {
        return None;
    }
    // Writing to a disk takes its time; only what can hang for ever is trouble.
    if process.core_dumping && !channels().any(|w| matches!(w, Waits::On(_))) {
        return None;
    }
    // What nobody has killed yet, and only waits for a disk or a child, is no trouble.
    if !process.dying && channels().all(|w| matches!(w, Waits::Disk | Waits::Vfork)) {
        return None;
    }
    let mut why = vec![match (process.kill_pending, process.dying) {
        (true, _) => "SIGKILL was sent and cannot take effect: a thread does not come out of the kernel".to_owned(),
        (false, true) => "it is exiting and gets no further: a thread does not come out of the kernel".to_owned(),
        (false, false) => {
            "a thread does not come out of the kernel (state D), so no ordinary signal reaches it".to_owned()
        }
    }];
    why.push(states(blocked));
    why.extend(blocked.threads.iter().take(4).filter_map(thread));
    Some(why)
}

/// All threads by state.
fn states(blocked: &Blocked) -> String {
    let counts: Vec<_> = blocked.states.iter().map(|(state, n)| format!("{n} {}", state.word())).collect();
    format!(
        "its threads: {}; {} of them did not run once in the {} ms that they were watched",
        counts.join(", "),
        blocked.threads.len(),
        blocked.watched_ms
    )
}

fn thread(thread: &BlockedThread) -> Option<String> {
    let channel = thread.wait_channel.as_deref();
    let what = match channel.map(waits) {
        Some(Waits::On(name)) => Some(name),
        Some(Waits::Disk) => Some("a disk"),
        Some(Waits::Vfork) => Some("a child that it started and that has not yet called exec"),
        _ => None,
    };
    let mut said = match (channel, what) {
        (Some(channel), Some(what)) => format!("in {} ({what})", text::clean(channel)),
        (Some(channel), None) => format!("in {}", text::clean(channel)),
        (None, _) => String::new(),
    };
    if let Some(file) = &thread.waits_for {
        let lead = if said.is_empty() { "for" } else { ", for" };
        said = format!("{said}{lead} {}", text::clean(file));
    }
    (!said.is_empty()).then(|| format!("thread {} waits {said}", thread.tid))
}

/// What the first telling thread waits for, to be cured.
pub(crate) fn waits_for(process: &Process) -> Option<String> {
    let threads = &process.blocked.as_ref()?.threads;
    let file = threads.iter().find_map(|t| t.waits_for.as_deref()).map(text::clean);
    file.or_else(|| {
        threads.iter().find_map(|t| match waits(t.wait_channel.as_deref()?) {
            Waits::On(name) => Some(name.to_owned()),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::tests::build::{files, id, process};

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
            let all = why.join("\n");
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
        assert_eq!(waits_for(&blocked("x", false, &states)).as_deref(), Some("/data/x (nfs4 from store:/export)"));
        assert!(is_frozen(&blocked("__refrigerator", false, &states)));
    }
}
