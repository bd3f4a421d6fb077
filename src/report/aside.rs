//! The new text of a file until it is in place: without a name where the file system can do that, so that nothing stays
//! behind however we end, else under a temporary one beside the target. The text is never lost: if the last step fails,
//! it is kept where one can find it.

use super::walk::Spot;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat},
    io::Errno,
};
use std::{
    ffi::OsString,
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Read, Seek},
    os::fd::AsRawFd,
    path::PathBuf,
};

/// Permissions of a new file, less the umask.
const MODE: u32 = 0o644;

/// A text in the making.
#[derive(Debug)]
pub(super) struct Aside {
    pub(super) spot: Spot,
    pub(super) file: File,
    /// The name that it has beside the target.
    named: Option<OsString>,
}

impl Aside {
    /// A new text that can be put in place there.
    ///
    /// # Errors
    /// If no file can be made there.
    pub(super) fn create(spot: Spot) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match openat(&spot.directory, ".", flags, Mode::from_raw_mode(MODE)) {
            Ok(file) => Ok(Self { spot, file: file.into(), named: None }),
            // Many file systems cannot do it, each with an error of its own; what is wrong with the directory shows
            // again.
            Err(_) => Self::named(spot),
        }
    }

    fn named(spot: Spot) -> io::Result<Self> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let (name, file) = unique(|name| openat(&spot.directory, name, flags, Mode::from_raw_mode(MODE)))?;
        Ok(Self { spot, file: file.into(), named: Some(name) })
    }

    /// To be called when the text is whole. A file system without nameless files is most often one of another machine,
    /// which tells only now that it is full.
    ///
    /// # Errors
    /// If not all of it is there.
    pub(super) fn finish(&self) -> io::Result<()> {
        if self.named.is_some() { self.file.sync_all() } else { Ok(()) }
    }

    /// Gives the text its name where none is yet.
    ///
    /// # Errors
    /// If there is something by now.
    pub(super) fn put(&mut self) -> rustix::io::Result<()> {
        let (directory, target) = (&self.spot.directory, &self.spot.name);
        let Some(name) = &self.named else { return self.link_as(target) };
        match linkat(directory, name, directory, target, AtFlags::empty()) {
            // Its temporary name goes with the rest.
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(Errno::EXIST),
            Err(_) => {
                match renameat_with(directory, name, directory, target, RenameFlags::NOREPLACE) {
                    Err(Errno::INVAL | Errno::NOSYS) => renameat(directory, name, directory, target)?,
                    done => done?,
                }
                self.named = None;
                Ok(())
            }
        }
    }

    /// Puts the text in the place of an old one, if what comes out is still something that `may_go`.
    ///
    /// # Errors
    /// If that is impossible, or if it is something else by now, which then is where it was.
    pub(super) fn exchange(&mut self, may_go: impl Fn(&Spot) -> bool) -> io::Result<()> {
        if self.named.is_none() {
            self.named = Some(unique(|name| self.link_as(name))?.0);
        }
        let (directory, target) = (&self.spot.directory, &self.spot.name);
        let Some(name) = &self.named else { return Ok(()) };
        match renameat_with(directory, name, directory, target, RenameFlags::EXCHANGE) {
            Ok(()) => {
                let directory = directory.try_clone()?;
                let out = Spot { directory, name: name.clone(), shown: self.spot.shown.clone() };
                if may_go(&out) {
                    return Ok(());
                }
                renameat_with(&out.directory, name, &out.directory, target, RenameFlags::EXCHANGE)?;
                Err(io::Error::other("something else was put in its place"))
            }
            // Not every file system can exchange. What is there was looked at just now.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                renameat(directory, name, directory, target)?;
                self.named = None;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn link_as(&self, name: &OsString) -> rustix::io::Result<()> {
        let ours = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(CWD, ours.as_str(), &self.spot.directory, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Keeps a text that has no place: beside it, or where there are always temporary files. `None` if no place at all
    /// takes it.
    pub(super) fn keep(mut self) -> Option<PathBuf> {
        if self.named.is_none() {
            self.named = unique(|name| self.link_as(name)).ok().map(|(name, ())| name);
        }
        // Its directory may have been removed, and it with it.
        let path = self.named.take().map(|name| self.spot.shown.join(name)).filter(|path| path.exists());
        path.or_else(|| {
            self.file.rewind().ok()?;
            save(&mut &self.file)
        })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(name) = &self.named {
            let _ = unlinkat(&self.spot.directory, name, AtFlags::empty());
        }
    }
}

/// Copies a text that has no place to where there are always temporary files, for its owner alone.
pub(super) fn save(text: &mut dyn Read) -> Option<PathBuf> {
    let mut copy = tempfile::Builder::new().prefix("gpuresid-report-").tempfile().ok()?;
    io::copy(text, copy.as_file_mut()).ok()?;
    copy.keep().ok().map(|(_, path)| path)
}

/// Makes something under a name that nobody else has, nor can know beforehand.
fn unique<T>(make: impl Fn(&OsString) -> rustix::io::Result<T>) -> io::Result<(OsString, T)> {
    const ATTEMPTS: usize = 100;
    for _ in 0..ATTEMPTS {
        let name = format!(".gpuresid-{:016x}.tmp", RandomState::new().hash_one(())).into();
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return Ok(made.map(|made| (name, made))?),
        }
    }
    Err(Errno::EXIST.into())
}

#[cfg(test)]
mod tests {
    use super::{super::walk, *};
    use std::{fs, io::Write, path::Path};

    fn spot(path: &Path) -> Spot {
        match walk::walk(path).unwrap() {
            walk::End::Spot(spot) => spot,
            other => panic!("{other:?}"),
        }
    }

    fn both(path: &Path) -> [Aside; 2] {
        let written = [Aside::create(spot(path)).unwrap(), Aside::named(spot(path)).unwrap()];
        for aside in &written {
            (&aside.file).write_all(b"new").unwrap();
        }
        written
    }

    fn count(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn both_forms_are_put_and_exchanged_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("r.json");
        for mut aside in both(&target) {
            fs::write(&target, "old").unwrap();
            assert_eq!(aside.put(), Err(Errno::EXIST));
            aside.exchange(|_| true).unwrap();
            drop(aside);
            assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        }
        for mut aside in both(&target) {
            fs::remove_file(&target).unwrap();
            aside.put().unwrap();
            drop(aside);
            assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        }
        drop(both(&target));
        assert_eq!(count(dir.path()), 1);
    }

    #[test]
    fn what_may_not_go_is_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("r.json");
        for mut aside in both(&target) {
            fs::write(&target, "theirs").unwrap();
            let error = aside.exchange(|out| out.entry().unwrap().unwrap().size != 6).unwrap_err();
            assert_eq!(error.to_string(), "something else was put in its place");
            assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
            let kept = aside.keep().unwrap();
            assert_eq!((kept.parent(), &*fs::read(&kept).unwrap()), (Some(dir.path()), &b"new"[..]));
            fs::remove_file(kept).unwrap();
        }
        assert_eq!(count(dir.path()), 1);
    }

    #[test]
    fn what_has_lost_its_directory_is_kept_elsewhere() {
        for number in 0..2 {
            let dir = tempfile::tempdir().unwrap();
            let [first, second] = both(&dir.path().join("r.json"));
            drop(dir);
            let kept = if number == 0 { first } else { second }.keep().unwrap();
            assert_eq!(fs::read_to_string(&kept).unwrap(), "new");
            fs::remove_file(kept).unwrap();
        }
    }
}
