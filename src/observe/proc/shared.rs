//! Who maps certain files or has them open: a scan of its own, because it reads the map of every process, which takes
//! far longer than the links of its descriptors and is asked for only when a file has to be explained.

use super::{
    ProcReader, facts,
    handle::{self, PidDir, gone, list, numbers},
    memory,
};
use crate::{model::ProcId, observe::shm::Identity};
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::{
    collections::HashSet,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

const MOST_MAPS: usize = 32 << 20;

/// Who uses some files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Those that somebody maps or has open.
    pub used: HashSet<Identity>,
    /// Everybody could be asked. Otherwise the files that are not in `used` may be in use all the same.
    pub complete: bool,
}

impl ProcReader {
    /// Looks through all processes for users of these files.
    pub fn who_uses(&self, files: &HashSet<Identity>) -> Usage {
        let mut usage = Usage { used: HashSet::new(), complete: !self.observer().out_of_sight() };
        let Ok(pids) = self.pids() else { return Usage { complete: false, ..usage } };
        let mut to_map = Vec::new();
        for pid in pids {
            let Ok(Some(dir)) = PidDir::open(&self.inner.root, pid) else { continue };
            let Ok(Some(stat)) = facts::stat(&dir) else { continue };
            if stat.of_kernel() || stat.plain_zombie() {
                continue;
            }
            usage.complete &= opened(&dir, files, &mut usage.used);
            to_map.push(ProcId { pid, start_ticks: stat.start_ticks });
        }
        let Ok(root) = self.inner.root.as_fd().try_clone_to_owned() else { return Usage { complete: false, ..usage } };
        let answers = memory::guarded(to_map, &self.inner.stuck, move |id| Some(maps_of(&root, id)));
        for answer in answers {
            match answer.flatten() {
                memory::Answer::Read(maps) => usage.used.extend(mapped(&maps).filter(|f| files.contains(f))),
                memory::Answer::Gone => {}
                memory::Answer::Stuck | memory::Answer::Unread => usage.complete = false,
            }
        }
        usage
    }
}

/// Adds what this process has open; whether all of it could be read.
fn opened(dir: &PidDir, files: &HashSet<Identity>, used: &mut HashSet<Identity>) -> bool {
    let table = match list(dir, "fd") {
        Ok(table) => table,
        Err(error) => return gone(error),
    };
    let mut room = [MaybeUninit::uninit(); 8192];
    let read = numbers(table.as_fd(), &mut room, |_, name| {
        if let Ok(file) = statx(&table, name, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) {
            let identity = (file.stx_dev_major, file.stx_dev_minor, file.stx_ino);
            if files.contains(&identity) {
                used.insert(identity);
            }
        }
        Ok(())
    });
    read.is_ok_and(|()| true) || !dir_is_there(dir)
}

fn dir_is_there(dir: &PidDir) -> bool {
    matches!(facts::stat(dir), Ok(Some(_)))
}

/// The map of a process; empty if it is gone, `None` if we may not read it.
fn maps_of(root: &OwnedFd, id: ProcId) -> Option<Vec<u8>> {
    let dir = match PidDir::open(root, id.pid) {
        Ok(Some(dir)) => dir,
        Ok(None) => return Some(Vec::new()),
        Err(_) => return None,
    };
    match handle::read(&dir, "maps", MOST_MAPS) {
        Ok(maps) if maps.len() < MOST_MAPS => Some(maps),
        Ok(_) => None,
        Err(error) if gone(error) => Some(Vec::new()),
        Err(_) => None,
    }
}

/// The files of a map: `start-end perms offset major:minor inode path`.
pub(super) fn mapped(maps: &[u8]) -> impl Iterator<Item = Identity> + '_ {
    maps.split(|b| *b == b'\n').filter_map(|line| {
        let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty()).skip(3);
        let (device, inode) = (std::str::from_utf8(words.next()?).ok()?, std::str::from_utf8(words.next()?).ok()?);
        let (major, minor) = device.split_once(':')?;
        let hex = |text| u32::from_str_radix(text, 16).ok();
        let inode = inode.parse().ok().filter(|n| *n > 0)?;
        Some((hex(major)?, hex(minor)?, inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_names_its_files() {
        let maps = b"7f00-7f01 rw-s 00000000 00:1a 42 /dev/shm/torch_1_2\n7f02-7f03 rw-p 00000000 00:00 0 \n7f04-7f05 r--p 0 08:01 7 /a b\n";
        assert_eq!(mapped(maps).collect::<Vec<_>>(), [(0, 26, 42), (8, 1, 7)]);
    }
}
