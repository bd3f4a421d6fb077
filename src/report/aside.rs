//! The new text of a file until it is in place: without a name where the file system can do that, so that nothing stays
//! behind however we end, else under a temporary one beside the target. The text is never lost: if the last step fails,
//! it is kept where one can find it.

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use std::{
    fs::{self, File, Metadata},
    io::{self, Seek},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Permissions of a new file, less the umask.
const MODE: u32 = 0o644;
/// Of an old one's mode, what a new text may have too: none of the bits that make programs special.
const KEPT: u32 = 0o777;

/// A text in the making.
#[derive(Debug)]
pub(super) enum Aside {
    Nameless(File),
    Named(NamedTempFile),
}

/// A text that is whole and could not be put in place.
#[derive(Debug)]
pub(super) struct NotPlaced {
    pub(super) error: io::Error,
    /// Where it is; `None` if no place at all would take it.
    pub(super) kept: Option<PathBuf>,
}

impl Aside {
    /// A new text that can be put in place in `directory`.
    ///
    /// # Errors
    /// If no file can be made there.
    pub(super) fn create_in(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(directory, flags, Mode::from_raw_mode(MODE)) {
            Ok(file) => Ok(Self::Nameless(file.into())),
            // Many file systems cannot do it, each with an error of its own; what is wrong with the directory shows
            // again.
            Err(_) => Self::named_in(directory),
        }
    }

    fn named_in(directory: &Path) -> io::Result<Self> {
        names().permissions(fs::Permissions::from_mode(MODE)).tempfile_in(directory).map(Self::Named)
    }

    pub(super) fn file(&self) -> &File {
        match self {
            Self::Nameless(file) => file,
            Self::Named(named) => named.as_file(),
        }
    }

    /// Takes over who may read the file that will be replaced: its mode, and its owner as far as we may give files away.
    /// To be called before anything is written.
    ///
    /// # Errors
    /// If the mode cannot be set.
    pub(super) fn take_after(&self, old: &Metadata) -> io::Result<()> {
        let (file, new) = (self.file(), self.file().metadata()?);
        let mut mode = old.mode() & KEPT;
        if rustix::process::geteuid().is_root() && old.uid() != new.uid() {
            // Refused in a user namespace that does not know the owner: then it is ours, like a new one.
            let _ = rustix::fs::fchown(file, Some(Uid::from_raw(old.uid())), None);
        }
        if old.gid() != new.gid() && rustix::fs::fchown(file, None, Some(Gid::from_raw(old.gid()))).is_err() {
            // Another group gets no more than everybody.
            mode &= !0o070 | ((mode & 0o007) << 3);
        }
        file.set_permissions(fs::Permissions::from_mode(mode))
    }

    /// Puts the text in place in one step.
    ///
    /// # Errors
    /// If that is impossible, with the place where the text is now.
    pub(super) fn replace(self, target: &Path) -> Result<(), NotPlaced> {
        let named = match self {
            Self::Named(named) => named,
            Self::Nameless(file) => match give_name(&file, directory_of(target)) {
                Ok(named) => named,
                Err(error) => return Err(NotPlaced { error, kept: save(&file) }),
            },
        };
        named.persist(target).map(drop).map_err(|failed| {
            let (error, named) = (failed.error, failed.file);
            // Its directory may have been removed, and it with it.
            let kept = match named.path().exists() {
                true => named.keep().ok().map(|(_, path)| path),
                false => save(named.as_file()),
            };
            NotPlaced { error, kept }
        })
    }
}

/// The directory of a file.
pub(super) fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn names() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gpuresid-").suffix(".tmp");
    builder
}

fn give_name(file: &File, directory: &Path) -> io::Result<NamedTempFile> {
    let ours = format!("/proc/self/fd/{}", file.as_raw_fd());
    names().make_in(directory, |path| {
        rustix::fs::linkat(CWD, ours.as_str(), CWD, path, AtFlags::SYMLINK_FOLLOW)?;
        file.try_clone()
    })
}

/// Copies a text that has no place to where there are always temporary files, for its owner alone.
fn save(mut text: &File) -> Option<PathBuf> {
    text.rewind().ok()?;
    let mut copy = tempfile::Builder::new().prefix("gpuresid-report-").tempfile().ok()?;
    io::copy(&mut text, copy.as_file_mut()).ok()?;
    copy.keep().ok().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn both(directory: &Path) -> [Aside; 2] {
        let written = [Aside::create_in(directory).unwrap(), Aside::named_in(directory).unwrap()];
        for aside in &written {
            aside.file().write_all(b"new").unwrap();
        }
        written
    }

    #[test]
    fn what_cannot_be_put_in_place_is_kept_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("r.json");
        fs::create_dir(&target).unwrap();
        for aside in both(dir.path()) {
            let kept = aside.replace(&target).unwrap_err().kept.unwrap();
            assert_eq!(kept.parent(), Some(dir.path()));
            assert_eq!(fs::read_to_string(kept).unwrap(), "new");
        }
    }

    #[test]
    fn what_has_lost_its_directory_is_kept_elsewhere() {
        for number in 0..2 {
            let dir = tempfile::tempdir().unwrap();
            let [first, second] = both(dir.path());
            let target = dir.path().join("r.json");
            drop(dir);
            let kept = if number == 0 { first } else { second }.replace(&target).unwrap_err().kept.unwrap();
            assert_eq!(fs::read_to_string(&kept).unwrap(), "new");
            fs::remove_file(kept).unwrap();
        }
    }

    #[test]
    fn both_forms_replace_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("r.json");
        for aside in both(dir.path()) {
            fs::write(&target, "old").unwrap();
            aside.replace(&target).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        }
        drop(both(dir.path()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
