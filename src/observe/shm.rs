//! What a run leaves in shared memory: files in `/dev/shm` that outlive every process, because nobody removes them.
//! They take main memory, not the GPU's, and the next run of the same name may trip over them.
//!
//! A list of the names before the command and one after it are all that a clean run costs. Only when a file is new is
//! it asked whether anybody still maps it or has it open.

use super::proc::ProcReader;
use crate::{
    model::{Bytes, Leftover},
    text,
};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, openat, statx};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

/// More files than this are not looked at one by one.
const MOST: usize = 256;

/// The names in a directory of shared memory at one moment, each with its inode: a name that was removed and made again
/// is another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    directory: PathBuf,
    files: BTreeSet<(OsString, u64)>,
    /// When it was made, seconds since 1970.
    at: i64,
}

impl Listing {
    /// What is there now; `None` if there is no such directory.
    pub fn now(dev: &Path) -> Option<Self> {
        let directory = dev.join("shm");
        let at = jiff::Timestamp::now().as_second();
        let files = entries(&directory)?;
        Some(Self { directory, files, at })
    }

    /// Whether a file is there now that was not there then.
    pub fn has_more(&self) -> bool {
        entries(&self.directory).is_some_and(|now| !now.is_subset(&self.files))
    }
}

fn open(directory: &Path) -> Option<OwnedFd> {
    openat(CWD, directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn entries(directory: &Path) -> Option<BTreeSet<(OsString, u64)>> {
    let entries = Dir::new(open(directory)?).ok()?;
    let named = |e: rustix::fs::DirEntry| {
        let name = e.file_name().to_bytes();
        (name != b"." && name != b"..").then(|| (OsString::from_vec(name.to_vec()), e.ino()))
    };
    Some(entries.flatten().filter_map(named).collect())
}

/// A file by what every link and mapping of it shows.
pub type Identity = (u32, u32, u64);

/// The files that came since `before`, belong to one of `uids`, and are used by nobody that we can see. Never removes
/// anything.
pub fn leftovers(reader: &ProcReader, before: &Listing, uids: &BTreeSet<u32>) -> Vec<Leftover> {
    let new: BTreeMap<Identity, Leftover> = entries(&before.directory)
        .unwrap_or_default()
        .difference(&before.files)
        .take(MOST)
        .filter_map(|(name, _)| candidate(before, name, uids))
        .collect();
    if new.is_empty() {
        return Vec::new();
    }
    let usage = reader.who_uses(&new.keys().copied().collect());
    new.into_iter()
        .filter(|(file, _)| !usage.used.contains(file))
        .map(|(_, leftover)| Leftover { unused: usage.complete.then_some(true), ..leftover })
        .collect()
}

fn candidate(before: &Listing, name: &OsString, uids: &BTreeSet<u32>) -> Option<(Identity, Leftover)> {
    let path = before.directory.join(name);
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let file = statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(file.stx_mode.into()) == rustix::fs::FileType::RegularFile;
    let has_birth = StatxFlags::from_bits_retain(file.stx_mask).contains(StatxFlags::BTIME);
    // Without a time of birth the last change of the file itself has to do: it is never earlier.
    let born = if has_birth { file.stx_btime.tv_sec } else { file.stx_ctime.tv_sec };
    if !is_file || born < before.at || !uids.contains(&file.stx_uid) {
        return None;
    }
    let shown = text::clean(&text::from_bytes(path.as_os_str().as_bytes()));
    let remove = path.to_str().and_then(text::shell_word).map_or_else(
        || format!("find {} -maxdepth 1 -inum {} -delete", before.directory.display(), file.stx_ino),
        |word| format!("rm {word}"),
    );
    let leftover = Leftover {
        path: shown,
        // What it takes, and not what it could grow to.
        bytes: Bytes(file.stx_blocks.saturating_mul(512)),
        uid: file.stx_uid,
        unused: None,
        remove,
    };
    Some(((file.stx_dev_major, file.stx_dev_minor, file.stx_ino), leftover))
}
