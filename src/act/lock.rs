//! One reclaim at a time for each user: a second one would plan with what the first is ending.
//!
//! The lock is a `flock` on a directory of mode 0700 that belongs to the user, in a place that is the same whatever the
//! environment says: `/run/gpuresid` for root, `/tmp` for everybody else. There nobody else can touch it: they cannot
//! open it, so they cannot hold its lock; `/tmp` is sticky, so they cannot remove or rename it; a directory can have no
//! second name; and only the user himself makes what he owns. What others can do is to take a name first. So no name is
//! fixed: each that begins in the right way and belongs to the user is one of his locks, and who finds none makes one
//! under a name that cannot be known beforehand.
//!
//! Two that start at once may both make one. So whoever enters holds **all** that he finds, and looks again when he holds
//! them; where more are there by then, he lets go and begins anew. A lock that is held is never removed (who cleans
//! `/tmp` leaves locked directories alone), so of two who entered the later one saw all that the earlier one held, and
//! one of them at least: they cannot both have entered.

use crate::error::hinted;
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, mkdir, mkdirat, openat, statat},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Longer than one takes with the usual options.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;

/// Held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _held: Vec<OwnedFd>,
}

impl Lock {
    /// Waits for the lock and takes it.
    ///
    /// # Errors
    /// If another run keeps it for two minutes, or there is no place for it.
    pub fn take() -> anyhow::Result<Self> {
        let place = if rustix::process::geteuid().is_root() { "/run/gpuresid" } else { "/tmp" };
        Self::take_in(Path::new(place), PATIENCE)
    }

    fn take_in(place: &Path, patience: Duration) -> anyhow::Result<Self> {
        let locks = Locks::open(place)?;
        let start = Instant::now();
        let mut said = false;
        loop {
            let busy = match locks.try_all().map_err(|error| cannot(place, error))? {
                Try::Held(held) => return Ok(Self { _held: held }),
                Try::Busy(name) => Some(name),
                // Somebody begins at this moment.
                Try::Moved => None,
            };
            if busy.is_some() && !said {
                said = true;
                let _ = writeln!(io::stderr(), "gpuresid: reclaim: another reclaim is running; waiting for it");
            }
            if start.elapsed() > patience
                && let Some(name) = busy
            {
                let name = place.join(OsStr::from_bytes(name.as_bytes()));
                return Err(hinted(
                    format!("another gpuresid reclaim has been running for {} s", patience.as_secs()),
                    format!("see which: fuser -v {}", name.display()),
                ));
            }
            thread::sleep(PAUSE);
        }
    }
}

fn cannot(place: &Path, error: Errno) -> anyhow::Error {
    let place = place.display();
    let message =
        format!("cannot make the lock in {place} that keeps two runs of reclaim apart: {}", io::Error::from(error));
    match error {
        Errno::ROFS => {
            hinted(message, format!("in a container, mount something there that can be written: --tmpfs {place}"))
        }
        Errno::ACCESS | Errno::PERM => hinted(message, format!("see who may write there: ls -ld {place}")),
        Errno::NOSPC | Errno::DQUOT => hinted(message, format!("make room: df -i {place}")),
        _ => hinted(message, format!("see what is there: ls -ld {place}")),
    }
}

/// How an attempt ended.
enum Try {
    Held(Vec<OwnedFd>),
    Moved,
    Busy(CString),
}

/// The directory of the locks, and whose they are.
struct Locks {
    place: OwnedFd,
    uid: u32,
}

impl Locks {
    fn open(place: &Path) -> anyhow::Result<Self> {
        if place.starts_with("/run") {
            match mkdir(place, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(cannot(place, error)),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, place, flags, Mode::empty()).and_then(|opened| Ok((fstat(&opened)?, opened)));
        let (found, opened) = opened.map_err(|error| cannot(place, error))?;
        if found.st_mode & OTHERS_WRITE != 0 && found.st_mode & STICKY == 0 {
            let place = place.display();
            return Err(hinted(
                format!("cannot keep two runs of reclaim apart: in {place} anybody can remove what is not theirs"),
                format!("ask the administrator of this machine for: chmod 1777 {place}"),
            ));
        }
        Ok(Self { place: opened, uid: rustix::process::geteuid().as_raw() })
    }

    /// One attempt to hold all of them.
    fn try_all(&self) -> rustix::io::Result<Try> {
        let mut found = self.list()?;
        if found.is_empty() {
            self.make()?;
            found = self.list()?;
        }
        let mut held = Vec::with_capacity(found.len());
        for (id, name) in &found {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = match openat(&self.place, name, flags, Mode::empty()) {
                Ok(lock) => lock,
                Err(Errno::NOENT) => return Ok(Try::Moved),
                Err(error) => return Err(error),
            };
            if identity(&lock)? != *id {
                return Ok(Try::Moved);
            }
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => held.push(lock),
                Err(Errno::WOULDBLOCK) => return Ok(Try::Busy(name.clone())),
                Err(Errno::INTR) => return Ok(Try::Moved),
                Err(error) => return Err(error),
            }
        }
        let same = !held.is_empty() && self.list()?.keys().eq(found.keys());
        Ok(if same { Try::Held(held) } else { Try::Moved })
    }

    fn prefix(&self) -> String {
        format!("gpuresid-reclaim-{}-", self.uid)
    }

    fn make(&self) -> rustix::io::Result<()> {
        let name = format!("{}{:016x}", self.prefix(), RandomState::new().hash_one(()));
        match mkdirat(&self.place, name, Mode::RWXU) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }
    }

    /// The user's own, by what they are and not by their names.
    fn list(&self) -> rustix::io::Result<BTreeMap<(u64, u64), CString>> {
        let prefix = self.prefix();
        let mut found = BTreeMap::new();
        for entry in Dir::read_from(&self.place)? {
            let entry = entry?;
            if !entry.file_name().to_bytes().starts_with(prefix.as_bytes()) {
                continue;
            }
            let Ok(seen) = statat(&self.place, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let closed = seen.st_mode & 0o077 == 0;
            if FileType::from_raw_mode(seen.st_mode) == FileType::Directory && seen.st_uid == self.uid && closed {
                found.insert((seen.st_dev, seen.st_ino), entry.file_name().to_owned());
            }
        }
        Ok(found)
    }
}

fn identity(file: impl AsFd) -> rustix::io::Result<(u64, u64)> {
    fstat(file).map(|seen| (seen.st_dev, seen.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
        sync::atomic::{AtomicU32, Ordering},
    };

    /// A directory like `/tmp`.
    fn shared() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        dir
    }

    fn names(place: &Path) -> Vec<String> {
        fs::read_dir(place).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn one_is_in_at_a_time_however_many_begin_at_once() {
        let dir = shared();
        for _ in 0..10 {
            let inside = AtomicU32::new(0);
            thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        let _lock = Lock::take_in(dir.path(), PATIENCE).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
            for name in names(dir.path()) {
                fs::remove_dir(dir.path().join(name)).unwrap();
            }
        }
    }

    #[test]
    fn who_waits_too_long_is_told_where_to_look() {
        let dir = shared();
        let _first = Lock::take_in(dir.path(), PATIENCE).unwrap();
        let error = Lock::take_in(dir.path(), Duration::ZERO).unwrap_err();
        let lock = dir.path().join(&names(dir.path())[0]);
        assert_eq!(
            crate::error::display(&error),
            format!(
                "error: another gpuresid reclaim has been running for 0 s\n\nhint: see which: fuser -v {}\n",
                lock.display()
            )
        );
    }

    #[test]
    fn names_that_others_took_are_passed_by() {
        let dir = shared();
        let uid = rustix::process::geteuid().as_raw();
        let named = |end: &str| dir.path().join(format!("gpuresid-reclaim-{uid}-{end}"));
        fs::write(named("file"), "").unwrap();
        symlink("/tmp", named("link")).unwrap();
        fs::create_dir(named("open")).unwrap();
        if uid == 0 {
            // Held by its owner for ever.
            fs::create_dir(named("theirs")).unwrap();
            fs::set_permissions(named("theirs"), fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(named("theirs"), Some(65_534), None).unwrap();
        }
        fs::set_permissions(named("open"), fs::Permissions::from_mode(0o755)).unwrap();
        let decoys: Vec<_> = names(dir.path()).iter().map(|n| fs::File::open(dir.path().join(n)).unwrap()).collect();
        decoys.iter().for_each(|decoy| flock(decoy, FlockOperation::NonBlockingLockExclusive).unwrap());
        let lock = Lock::take_in(dir.path(), Duration::ZERO).unwrap();
        assert!(Lock::take_in(dir.path(), Duration::ZERO).is_err());
        drop(lock);
        let _again = Lock::take_in(dir.path(), Duration::ZERO).unwrap();
        assert_eq!(names(dir.path()).len(), decoys.len() + 1, "the lock is made once");
    }

    #[test]
    fn a_place_where_everybody_removes_everything_is_none() {
        let dir = shared();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = Lock::take_in(dir.path(), Duration::ZERO).unwrap_err();
        let hint = format!("ask the administrator of this machine for: chmod 1777 {}", dir.path().display());
        assert_eq!(crate::error::hint(&error), Some(hint));
    }
}
