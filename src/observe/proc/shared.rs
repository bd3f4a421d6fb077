//! Who maps certain files or has them open: a scan of its own, because it reads the map of every process, which takes
//! far longer than the links of its descriptors and is asked for only when a file has to be explained.

use super::{
    ProcReader, facts,
    handle::{self, PidDir, gone, list, numbers},
    memory,
};
use crate::{model::ProcId, observe::shm::Identity};
use rustix::{
    fs::{AtFlags, StatxFlags, statx},
    io::Errno,
};
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
        let mut used = HashSet::new();
        let everybody_told = self.ask_everybody(files, &mut used);
        Usage { used, complete: everybody_told && !self.observer().out_of_sight() }
    }

    /// Adds which of the files those use who are shown here; whether all of them told. Who is gone uses nothing; who
    /// could not be asked may use them all.
    fn ask_everybody(&self, files: &HashSet<Identity>, used: &mut HashSet<Identity>) -> bool {
        let Ok(pids) = self.pids() else { return false };
        let (mut all_told, mut to_map) = (true, Vec::new());
        for pid in pids {
            match opened(&self.inner.root, pid, files, used) {
                Ok(Some(id)) => to_map.push(id),
                Ok(None) => {}
                Err((id, _)) => {
                    all_told = false;
                    to_map.extend(id);
                }
            }
        }
        let Ok(root) = self.inner.root.as_fd().try_clone_to_owned() else { return false };
        for answer in memory::guarded(to_map, &self.inner.stuck, move |id| Some(maps_of(&root, id))) {
            match answer.flatten() {
                memory::Answer::Read(maps) => used.extend(mapped(&maps).filter(|f| files.contains(f))),
                memory::Answer::Gone => {}
                memory::Answer::Stuck | memory::Answer::Unread => all_told = false,
            }
        }
        all_told
    }
}

/// Adds what this process has open, and says whose maps are to be read: nobody's if it is gone, or has no memory. Where
/// only the files could not be read, the error names the process too.
fn opened(
    root: impl AsFd,
    pid: u32,
    files: &HashSet<Identity>,
    used: &mut HashSet<Identity>,
) -> Result<Option<ProcId>, (Option<ProcId>, Errno)> {
    let nobody = |error| (None, error);
    let Some(dir) = PidDir::open(root, pid).map_err(nobody)? else { return Ok(None) };
    let Some(stat) = facts::stat(&dir).map_err(nobody)? else { return Ok(None) };
    if stat.of_kernel() || stat.plain_zombie() {
        return Ok(None);
    }
    let id = ProcId { pid, start_ticks: stat.start_ticks };
    match open_files(&dir, files, used) {
        Err(error) if !gone(error) => Err((Some(id), error)),
        // A main thread that is gone has closed its files, and others may have them open.
        _ => Ok(Some(id)),
    }
}

fn open_files(dir: &PidDir, files: &HashSet<Identity>, used: &mut HashSet<Identity>) -> Result<(), Errno> {
    let table = list(dir, "fd")?;
    let mut room = [MaybeUninit::uninit(); 8192];
    numbers(table.as_fd(), &mut room, |_, name| match statx(&table, name, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) {
        Ok(file) => {
            let identity = (file.stx_dev_major, file.stx_dev_minor, file.stx_ino);
            if files.contains(&identity) {
                used.insert(identity);
            }
            Ok(())
        }
        Err(error) if gone(error) => Ok(()),
        Err(error) => Err(error),
    })
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
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::observe::proc::ProcOptions;
    use rustix::fs::CWD;
    use std::{fs, os::unix::fs::symlink, path::Path};

    /// A place with these processes, all of the same map, that one may spoil.
    fn asked(spoil: impl FnOnce(&Path)) -> (bool, HashSet<Identity>) {
        let place = tempfile::tempdir().expect("a place");
        let file = place.path().join("file");
        fs::write(&file, "").expect("a file");
        let found = statx(CWD, &file, AtFlags::empty(), StatxFlags::INO).expect("its number");
        let file_id = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        for pid in [1, 5, 9] {
            let process = place.path().join(pid.to_string());
            fs::create_dir_all(process.join("fd")).expect("a process");
            let stat = format!("{pid} (x) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5");
            fs::write(process.join("stat"), stat).expect("its facts");
            fs::write(process.join("maps"), "7f-80 r--p 0 00:77 7 /other\n").expect("its map");
        }
        symlink(&file, place.path().join("9/fd/3")).expect("an open file");
        spoil(place.path());
        let options = ProcOptions { procfs: place.path().into(), ..ProcOptions::default() };
        let mut used = HashSet::new();
        let all_told = ProcReader::new(options)
            .expect("a place of processes")
            .ask_everybody(&HashSet::from([file_id, (0, 0x77, 7)]), &mut used);
        used.remove(&(0, 0x77, 7));
        (all_told, used.into_iter().map(|id| if id == file_id { (0, 0, 1) } else { id }).collect())
    }

    #[test]
    fn who_could_not_be_asked_may_use_everything() {
        let user = HashSet::from([(0, 0, 1)]);
        assert_eq!(asked(|_| {}), (true, user.clone()));
        assert_eq!(asked(|place| fs::remove_dir_all(place.join("5")).unwrap()), (true, user.clone()), "one has gone");
        // A directory that is none is not opened, as when no descriptor is left; a file that is a directory is not read,
        // as when the kernel fails.
        type Spoil = fn(&Path);
        let spoils: [(&str, Spoil); 5] = [
            ("no process", |place| {
                fs::remove_dir_all(place.join("5")).unwrap();
                fs::write(place.join("5"), "").unwrap();
            }),
            ("no facts", |place| {
                fs::remove_file(place.join("5/stat")).unwrap();
                fs::create_dir(place.join("5/stat")).unwrap();
            }),
            ("no files", |place| {
                fs::remove_dir(place.join("5/fd")).unwrap();
                fs::write(place.join("5/fd"), "").unwrap();
            }),
            ("one file", |place| symlink("7", place.join("5/fd/7")).unwrap()),
            ("no map", |place| {
                fs::remove_file(place.join("5/maps")).unwrap();
                fs::create_dir(place.join("5/maps")).unwrap();
            }),
        ];
        for (what, spoil) in spoils {
            assert_eq!(asked(spoil), (false, user.clone()), "{what}");
        }
    }

    #[test]
    fn a_map_names_its_files() {
        let maps = b"7f00-7f01 rw-s 00000000 00:1a 42 /dev/shm/torch_1_2\n7f02-7f03 rw-p 00000000 00:00 0 \n7f04-7f05 r--p 0 08:01 7 /a b\n";
        assert_eq!(mapped(maps).collect::<Vec<_>>(), [(0, 26, 42), (8, 1, 7)]);
    }
}
