//! Where a path leads, walked one name at a time with the directory in hand, so that nobody can change the way under
//! our feet. A link is followed only if nobody else can have put it there: it is ours or root's, and so is its
//! directory, which others may not write to, or only in the sticky way in which they cannot touch what is not theirs.
//! This does not depend on how `fs.protected_symlinks` is set.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, openat, readlinkat, statx};
use rustix::io::Errno;
use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
};

/// As many symbolic links the kernel follows.
const MOST_LINKS: usize = 40;
const STICKY: u32 = 0o1000;
/// Whoever is not the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// What is known of a file or a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) kind: FileType,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) size: u64,
    /// The device and the number on it.
    pub(super) id: (u32, u32, u64),
    names: u32,
    /// `None` before Linux 5.8.
    mount: Option<u64>,
}

impl Entry {
    pub(super) fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID).map(|s| Self::from(&s))
    }

    pub(super) fn is_mine(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }

    fn is_mine_or_roots(&self) -> bool {
        self.is_mine() || self.uid == 0
    }

    /// A directory in which nobody but its owner makes, renames or removes anything.
    pub(super) fn is_closed(&self) -> bool {
        self.is_mine_or_roots() && self.mode & OTHERS_WRITE == 0
    }

    /// Whether what is found in this directory was put there by us or by root. In a sticky one others can make a
    /// second name of a file or a link of ours, but cannot touch what is there.
    pub(super) fn vouches_for(&self, found: &Self) -> bool {
        let sticky = self.is_mine_or_roots() && self.mode & STICKY != 0 && found.names == 1;
        found.is_mine_or_roots() && (self.is_closed() || sticky)
    }

    /// Whether something is mounted on this entry of the directory.
    pub(super) fn is_mounted_in(&self, directory: &Self) -> bool {
        self.mount.zip(directory.mount).is_some_and(|(here, above)| here != above)
    }
}

impl From<&Statx> for Entry {
    fn from(found: &Statx) -> Self {
        let mode = u32::from(found.stx_mode);
        Self {
            kind: FileType::from_raw_mode(mode),
            uid: found.stx_uid,
            gid: found.stx_gid,
            mode: mode & 0o7777,
            size: found.stx_size,
            id: (found.stx_dev_major, found.stx_dev_minor, found.stx_ino),
            names: found.stx_nlink,
            mount: (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id),
        }
    }
}

/// The place of a file: its directory, held open, and its name there.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) directory: OwnedFd,
    pub(super) name: OsString,
    /// The directory as a path without links, to be shown.
    pub(super) shown: PathBuf,
}

impl Spot {
    /// What is there at this moment; a link is not followed.
    ///
    /// # Errors
    /// If it cannot be seen.
    pub(super) fn entry(&self) -> rustix::io::Result<Option<Entry>> {
        match openat(&self.directory, &self.name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Entry::of(file).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The directory as it is at this moment.
    ///
    /// # Errors
    /// If it cannot be seen.
    pub(super) fn above(&self) -> rustix::io::Result<Entry> {
        Entry::of(&self.directory)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.shown.join(&self.name)
    }
}

/// The end of the way.
#[derive(Debug)]
pub(super) enum End {
    /// A file, or a place where none is yet.
    Spot(Spot),
    /// One of our own descriptors, by its number.
    Descriptor(OsString),
    Directory,
}

/// Why the way does not go on.
#[derive(Debug)]
pub(super) enum Blocked {
    /// A link that is not followed.
    Link {
        path: PathBuf,
        /// Its owner, if that is neither we nor root.
        stranger: Option<u32>,
    },
    /// This directory cannot be entered.
    At(PathBuf, Errno),
}

/// Walks to `path`.
///
/// # Errors
/// If a directory on the way is missing or cannot be entered, or a link is not followed.
pub(super) fn walk(path: &Path) -> Result<End, Blocked> {
    // Where users are mapped, the link /dev/fd is not seen as root's; its name can only mean one thing.
    if let Some(number) = descriptor_by_name(path) {
        return Ok(End::Descriptor(number));
    }
    let mut way =
        Way { here: open_directory(CWD, ".").map_err(|e| Blocked::At(".".into(), e))?, shown: PathBuf::new() };
    let mut ahead = steps(path);
    let mut links = 0;
    while let Some(step) = ahead.pop() {
        let Step::Into(name) = step else {
            way.jump(&step)?;
            continue;
        };
        let failed = |error| Blocked::At(way.shown.join(&name), error);
        match open_directory(&way.here, &name) {
            Ok(next) => {
                way.here = next;
                way.shown.push(name);
                continue;
            }
            // A link, too.
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(Errno::NOENT) if ahead.is_empty() => return Ok(way.end(name)),
            Err(error) => return Err(failed(error)),
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(&way.here, &name, flags, Mode::empty()).map_err(failed)?;
        let entry = Entry::of(&found).map_err(failed)?;
        if entry.kind != FileType::Symlink {
            return if ahead.is_empty() { Ok(way.end(name)) } else { Err(failed(Errno::NOTDIR)) };
        }
        if way.is_of_descriptors() {
            return Ok(End::Descriptor(name));
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(failed(Errno::LOOP));
        }
        if !Entry::of(&way.here).map_err(failed)?.vouches_for(&entry) {
            let stranger = (!entry.is_mine_or_roots()).then_some(entry.uid);
            return Err(Blocked::Link { path: way.shown.join(&name), stranger });
        }
        let target = readlinkat(&found, "", Vec::new()).map_err(failed)?;
        ahead.extend(steps(Path::new(&OsString::from_vec(target.into_bytes()))));
    }
    Ok(End::Directory)
}

/// How far one has come.
struct Way {
    here: OwnedFd,
    shown: PathBuf,
}

impl Way {
    fn jump(&mut self, step: &Step) -> Result<(), Blocked> {
        let (to, shown) = match step {
            Step::Root => ("/", "/".into()),
            _ => match self.shown.file_name() {
                Some(_) => ("..", self.shown.parent().unwrap_or(Path::new("")).into()),
                None if self.shown.has_root() => ("..", self.shown.clone()),
                None => ("..", self.shown.join("..")),
            },
        };
        self.here = open_directory(&self.here, to).map_err(|error| Blocked::At(shown.clone(), error))?;
        self.shown = shown;
        Ok(())
    }

    fn end(self, name: OsString) -> End {
        if self.is_of_descriptors() {
            return End::Descriptor(name);
        }
        let shown = if self.shown.as_os_str().is_empty() { ".".into() } else { self.shown };
        End::Spot(Spot { directory: self.here, name, shown })
    }

    /// Whether this is the directory of our own descriptors, by whatever name.
    fn is_of_descriptors(&self) -> bool {
        let id = |entry: rustix::io::Result<Entry>| entry.ok().map(|e| e.id);
        let here = id(Entry::of(&self.here));
        ["/proc/self/fd", "/proc/thread-self/fd"].iter().any(|path| {
            let of_descriptors = openat(CWD, *path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            here.is_some() && id(of_descriptors.and_then(Entry::of)) == here
        })
    }
}

enum Step {
    Root,
    Up,
    Into(OsString),
}

/// The last one first.
fn steps(path: &Path) -> Vec<Step> {
    let step = |component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Into(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(step).collect()
}

/// With this flag an automounter mounts what is wanted.
fn open_directory(above: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(above, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn descriptor_by_name(path: &Path) -> Option<OsString> {
    match path.as_os_str().as_bytes() {
        b"/dev/stdout" => return Some("1".into()),
        b"/dev/stderr" => return Some("2".into()),
        _ => {}
    }
    let above = path.parent()?.as_os_str();
    let is = [OsStr::new("/dev/fd"), OsStr::new("/proc/self/fd")].contains(&above);
    path.file_name().filter(|_| is).map(ToOwned::to_owned)
}
