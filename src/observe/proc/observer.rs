//! From where we look: our own identity in this `/proc`, its PID namespace, and what it hides from us.

use super::{
    ProcReader, capabilities,
    facts::{stat, status},
    handle::{self, PidDir},
};
use crate::model::{Observer, ProcId};
use procfs::process::MountInfo;
use rustix::fs::{CWD, fstat, major, minor, readlinkat};

/// The inode of the machine's initial PID namespace, fixed in the kernel (PROC_PID_INIT_INO).
pub(super) const INITIAL: u64 = 0xEFFF_FFFC;
const CAP_SYS_PTRACE: u64 = 1 << 19;

impl ProcReader {
    pub(super) fn look_around(&self) -> Observer {
        let ours = self.ourselves();
        let foreign = ours.is_none();
        let of_init = handle::namespace_inode(&self.inner.root, "1/ns/pid");
        // PID 1 of this /proc tells for sure, but only who may trace it can read that. Where this is the /proc of our
        // own namespace, we are as good a witness.
        let pid_namespace =
            if foreign { of_init } else { handle::namespace_inode(&self.inner.root, "self/ns/pid").or(of_init) };
        Observer {
            id: ours.unwrap_or_else(own_id),
            uid: rustix::process::geteuid().as_raw(),
            pid_namespace,
            initial_pid_namespace: pid_namespace.map(|inode| inode == INITIAL),
            hidepid: self.hides().is_some(),
            foreign_procfs: foreign,
            tool_processes: Vec::new(),
            nvml_client_files: None,
            cgroup: if foreign { None } else { self.own_cgroup() },
            capabilities: capabilities::read(&self.inner.root),
            slurm_job: std::env::var("SLURM_JOB_ID").ok(),
            ancestors: ours.and_then(|id| self.chain_above(id)).unwrap_or_default(),
        }
    }

    /// Who we are in this `/proc`, if it shows our own PID namespace: then `self` leads to our PID, and no further
    /// number lies between that namespace and ours. (Equal numbers alone prove nothing: both may be 7.)
    fn ourselves(&self) -> Option<ProcId> {
        let link = readlinkat(&self.inner.root, "self", Vec::new()).ok()?;
        let pid: u32 = link.to_str().ok()?.parse().ok()?;
        if pid != std::process::id() {
            return None;
        }
        let dir = PidDir::open(&self.inner.root, pid).ok()??;
        if status(&dir).nspid.len() > 1 {
            return None;
        }
        Some(ProcId { pid, start_ticks: stat(&dir).ok()??.start_ticks })
    }

    fn chain_above(&self, id: ProcId) -> Option<Vec<ProcId>> {
        let us = self.find(id).ok()??;
        Some(us.ancestors.iter().map(|ancestor| ancestor.id).collect())
    }

    fn own_cgroup(&self) -> Option<String> {
        handle::read(&self.inner.root, "self/cgroup", 64 << 10).ok().and_then(|text| super::cgroup::telling_path(&text))
    }

    /// How this `/proc` hides other users' processes from us; `None` if it does not.
    pub(super) fn hides(&self) -> Option<Hide> {
        let file = fstat(&self.inner.root).ok()?;
        let device = format!("{}:{}", major(file.st_dev), minor(file.st_dev));
        let mounts = handle::read(CWD, "/proc/self/mountinfo", 16 << 20).ok()?;
        let hide = mounts.split(|b| *b == b'\n').find_map(|line| hide(&String::from_utf8_lossy(line), &device))?;
        (!self.exempt(&hide)).then_some(hide)
    }

    fn exempt(&self, hide: &Hide) -> bool {
        let ours = PidDir::open(&self.inner.root, std::process::id()).ok().flatten();
        let may_trace = ours.is_some_and(|dir| {
            status(&dir).capabilities.is_some_and(|c| c & CAP_SYS_PTRACE != 0)
                // The capability of a user namespace reaches no further than that namespace.
                && handle::read(&dir, "uid_map", 4096).is_ok_and(|map| whole_id_space(&map))
                // Another guard (a security module) may say no all the same.
                && handle::namespace_inode(&self.inner.root, "1/ns/pid").is_some()
        });
        let in_group = !hide.only_traceable && {
            let groups = rustix::process::getgroups().unwrap_or_default();
            rustix::process::getegid().as_raw() == hide.group || groups.iter().any(|g| g.as_raw() == hide.group)
        };
        may_trace || in_group
    }
}

/// The way in which a `/proc` is mounted with hidepid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hide {
    /// `hidepid=4`: no group is exempt.
    only_traceable: bool,
    /// Members of this group see everything.
    group: u32,
}

/// What a line of mountinfo says about hiding, if it is the line of the file system `device`.
fn hide(line: &str, device: &str) -> Option<Hide> {
    if line.split(' ').nth(2)? != device {
        return None;
    }
    let mount = MountInfo::from_line(line).ok()?;
    let option = |name: &str| mount.super_options.get(name).cloned().flatten();
    let group = option("gid").and_then(|gid| gid.parse().ok()).unwrap_or(0);
    match option("hidepid")?.as_str() {
        "1" | "noaccess" | "2" | "invisible" => Some(Hide { only_traceable: false, group }),
        "4" | "ptraceable" => Some(Hide { only_traceable: true, group }),
        _ => None,
    }
}

fn whole_id_space(map: &[u8]) -> bool {
    String::from_utf8_lossy(map).split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Our identity by our own `/proc`, for a foreign one in which we do not stand.
fn own_id() -> ProcId {
    let pid = std::process::id();
    let start_ticks = handle::read(CWD, "/proc/self/stat", 4096)
        .ok()
        .and_then(|text| super::stat::Stat::parse(&text))
        .map_or(0, |stat| stat.start_ticks);
    ProcId { pid, start_ticks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_hide() {
        let line = |options: &str| format!("22 27 0:21 / /proc rw,nosuid shared:5 - proc proc {options}");
        let group = |only_traceable, group| Some(Hide { only_traceable, group });
        for (options, expected) in [
            ("rw", None),
            ("rw,hidepid=0", None),
            ("rw,hidepid=off", None),
            ("rw,hidepid=1", group(false, 0)),
            ("rw,gid=7,hidepid=invisible", group(false, 7)),
            ("rw,hidepid=2", group(false, 0)),
            ("rw,hidepid=ptraceable,subset=pid", group(true, 0)),
        ] {
            assert_eq!(hide(&line(options), "0:21"), expected, "{options}");
        }
        assert_eq!(hide(&line("rw,hidepid=2"), "0:22"), None, "another mount");
        assert_eq!(hide("", "0:21"), None);
    }

    #[test]
    fn capabilities_count_in_the_first_user_namespace_only() {
        assert!(whole_id_space(b"         0          0 4294967295\n"));
        assert!(!whole_id_space(b"         0       1000          1\n"));
    }
}
