//! Threads that do not come out of the kernel. Apart, because it is the one fact about a process that takes time to see:
//! an uninterruptible sleep (state D) is ordinary for a moment, so a thread is called blocked only if it did not run
//! at all while we watched. Only processes that look the part are watched, so an ordinary look costs nothing.

use super::{
    ProcReader,
    facts::{stat_of, status_of},
    handle::{self, PidDir},
    memory::{Answer, guarded},
};
use crate::model::{Blocked, BlockedThread, ProcId, Process, ProcessState};
use procfs::process::MountInfo;
use rustix::fs::readlinkat;
use std::{collections::BTreeMap, thread, time::Duration};

/// The pauses between two looks at the threads; most sleepers wake in the first, so that a busy disk costs little.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(40), Duration::from_millis(80), Duration::from_millis(160)];
/// Threads that are described; a pool that hangs as one says the same a thousand times.
const MOST_DESCRIBED: usize = 16;

/// One process that is watched.
struct Watched {
    at: usize,
    dir: PidDir,
    /// Threads that sleep, and how often each has been switched so far.
    asleep: Vec<(u32, u64)>,
    states: BTreeMap<ProcessState, u32>,
}

impl ProcReader {
    /// Fills in `blocked`.
    pub(super) fn watch_blocked(&self, processes: &mut [Process]) {
        let mut watched: Vec<Watched> =
            processes.iter().enumerate().filter(|(_, p)| suspect(p)).filter_map(|(at, p)| self.begin(at, p)).collect();
        let mut watched_for = Duration::ZERO;
        for pause in PAUSES {
            if watched.is_empty() {
                return;
            }
            thread::sleep(pause);
            watched_for += pause;
            for process in &mut watched {
                process.asleep.retain(|(tid, switches)| switches_asleep(&process.dir, *tid) == Some(*switches));
            }
            watched.retain(|process| !process.asleep.is_empty());
        }
        for process in watched {
            let Some(found) = processes.get_mut(process.at) else { continue };
            let threads = self.describe(found.id, process.asleep.iter().map(|(tid, _)| *tid).collect());
            found.blocked = Some(Blocked {
                watched_ms: u64::try_from(watched_for.as_millis()).unwrap_or(u64::MAX),
                threads,
                states: process.states.into_iter().collect(),
            });
        }
    }

    fn begin(&self, at: usize, process: &Process) -> Option<Watched> {
        let dir = PidDir::open(&self.inner.root, process.id.pid).ok()??;
        let (mut asleep, mut states) = (Vec::new(), BTreeMap::new());
        for tid in handle::numbers_in(&dir, "task").ok()? {
            let Ok(Some(stat)) = stat_of(&dir, &format!("task/{tid}/stat")) else { continue };
            *states.entry(stat.state).or_default() += 1;
            if stat.state == ProcessState::DiskSleep
                && let Some(switches) = switches_asleep(&dir, tid)
            {
                asleep.push((tid, switches));
            }
        }
        (!asleep.is_empty()).then_some(Watched { at, dir, asleep, states })
    }

    /// What the threads wait for. The kernel may want a lock of the process for it, so that a reader could hang too.
    fn describe(&self, id: ProcId, mut tids: Vec<u32>) -> Vec<BlockedThread> {
        tids.truncate(MOST_DESCRIBED);
        let bare = |tid: &u32| BlockedThread { tid: *tid, wait_channel: None, waits_for: None };
        let undescribed: Vec<BlockedThread> = tids.iter().map(bare).collect();
        let Ok(Some(dir)) = PidDir::open(&self.inner.root, id.pid) else { return undescribed };
        let read = move |_| Some(tids.iter().map(|tid| describe(&dir, *tid)).collect());
        match guarded(vec![id], &self.inner.stuck_details, read).pop() {
            Some(Answer::Read(threads)) => threads,
            _ => undescribed,
        }
    }
}

/// A process worth watching: its main thread sleeps so, or it was killed and is still there.
fn suspect(process: &Process) -> bool {
    process.state == ProcessState::DiskSleep || process.dying || process.leader_gone
}

/// How often a thread that sleeps uninterruptibly was switched so far; `None` if it does not sleep so.
fn switches_asleep(dir: &PidDir, tid: u32) -> Option<u64> {
    let stat = stat_of(dir, &format!("task/{tid}/stat")).ok()??;
    if stat.state != ProcessState::DiskSleep {
        return None;
    }
    status_of(dir, &format!("task/{tid}/status")).switches
}

fn describe(dir: &PidDir, tid: u32) -> BlockedThread {
    let text = |name: &str| {
        let text = handle::read(dir, &format!("task/{tid}/{name}"), 16 << 10).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    };
    let file = text("syscall").as_deref().and_then(descriptor).and_then(|fd| {
        let link = readlinkat(dir, format!("task/{tid}/fd/{fd}"), Vec::new()).ok()?;
        let link = String::from_utf8_lossy(link.as_bytes()).into_owned();
        let mounts = handle::read(dir, "mountinfo", 4 << 20).unwrap_or_default();
        Some(with_file_system(link, &String::from_utf8_lossy(&mounts)))
    });
    BlockedThread {
        tid,
        wait_channel: text("wchan").filter(|function| !function.is_empty() && function != "0"),
        waits_for: file.or_else(|| text("stack").as_deref().and_then(module)),
    }
}

/// Calls whose first argument is a descriptor: (x86-64, arm64).
const CALLS_ON_FILES: [(u64, u64); 14] = [
    (0, 63),   // read
    (1, 64),   // write
    (5, 80),   // fstat
    (8, 62),   // lseek
    (16, 29),  // ioctl
    (17, 67),  // pread64
    (18, 68),  // pwrite64
    (19, 65),  // readv
    (20, 66),  // writev
    (74, 82),  // fsync
    (75, 83),  // fdatasync
    (77, 46),  // ftruncate
    (217, 61), // getdents64
    (285, 47), // fallocate
];

/// The descriptor that a line of `/proc/PID/syscall` is about.
pub(super) fn descriptor(line: &str) -> Option<u32> {
    let mut words = line.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let first = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    let on_arm = cfg!(target_arch = "aarch64");
    let known = CALLS_ON_FILES.iter().any(|(intel, arm)| number == if on_arm { *arm } else { *intel });
    u32::try_from(first).ok().filter(|_| known)
}

/// A path with its file system: `/data/x (nfs4 from server:/export)`. Devices, pipes and sockets say enough themselves.
pub(super) fn with_file_system(path: String, mounts: &str) -> String {
    if !path.starts_with('/') || path.starts_with("/dev/") {
        return path;
    }
    let mount = mounts
        .lines()
        .filter_map(|line| MountInfo::from_line(line).ok())
        .filter(|m| std::path::Path::new(&path).starts_with(&m.mount_point))
        // Of two on the same place the later one is on top.
        .enumerate()
        .max_by_key(|(number, m)| (m.mount_point.as_os_str().len(), *number));
    match mount {
        Some((_, m)) => match m.mount_source {
            Some(source) if source != m.fs_type && source != "none" => {
                format!("{path} ({} from {source})", m.fs_type)
            }
            _ => format!("{path} ({} on {})", m.fs_type, m.mount_point.display()),
        },
        None => path,
    }
}

/// The first kernel module in a stack: `[<0>] nfs_wait_bit_killable+0x1b/0x90 [nfs]`.
pub(super) fn module(stack: &str) -> Option<String> {
    let name = stack.lines().find_map(|line| line.trim_end().strip_suffix(']')?.rsplit_once(" [").map(|(_, m)| m))?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (!name.is_empty() && name.bytes().all(plain)).then(|| format!("the kernel module {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_of_a_call() {
        let (read, ioctl) = if cfg!(target_arch = "aarch64") { (63, 29) } else { (0, 16) };
        assert_eq!(descriptor(&format!("{read} 0x5 0x7ffd 0x1000 0x0 0x0 0x0 0x7ffd 0x7f00")), Some(5));
        assert_eq!(descriptor(&format!("{ioctl} 0x1f 0xc020462a 0x0")), Some(31));
        for line in ["running", "-1 0x7ffd 0x7f00", "202 0x7f00 0x80", "", "0"] {
            assert_eq!(descriptor(line), None, "{line}");
        }
    }

    #[test]
    fn the_file_system_of_a_path() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 22 0:50 / /data rw,relatime shared:2 - nfs4 store:/export rw,vers=4.2\n\
            41 22 0:51 / /tmp rw shared:3 - tmpfs tmpfs rw\n";
        let told = |path: &str| with_file_system(path.into(), mounts);
        assert_eq!(told("/data/train/x.bin"), "/data/train/x.bin (nfs4 from store:/export)");
        assert_eq!(told("/database"), "/database (ext4 from /dev/sda1)");
        assert_eq!(told("/tmp/x"), "/tmp/x (tmpfs on /tmp)");
        assert_eq!(told("/dev/nvidia-uvm"), "/dev/nvidia-uvm");
        assert_eq!(told("pipe:[5]"), "pipe:[5]");
    }

    #[test]
    fn the_module_of_a_stack() {
        let stack = "[<0>] rpc_wait_bit_killable+0x1e/0xb0\n[<0>] nfs_wait_bit_killable+0x1b/0x90 [nfs]\n";
        assert_eq!(module(stack).as_deref(), Some("the kernel module nfs"));
        assert_eq!(module("[<0>] kernel_clone+0x3a8/0x4b0\n"), None);
        assert_eq!(module(""), None);
    }
}
