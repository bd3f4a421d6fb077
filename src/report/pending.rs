//! A file that will be written later: opened at once, so that one finds out before a run of hours that it cannot be
//! written, and put in place in one step, so that nobody ever reads half a report and an old one survives a failure.

use super::aside::{Aside, NotPlaced, directory_of};
use crate::{error::hinted, text};
use anyhow::Context;
use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// As many symbolic links the kernel follows.
const MOST_LINKS: usize = 40;

/// A file that can be written.
#[derive(Debug)]
pub struct Pending {
    /// As the user named it.
    named: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A new text, put in the target's place at the end.
    Beside { new: Aside, target: PathBuf },
    /// A pipe, a device or an inherited descriptor: there is nothing to rename.
    Direct(File),
}

impl Pending {
    /// Makes sure that `path` can be written, and leaves what is there now as it is.
    ///
    /// # Errors
    /// If it cannot be written, with what to do about it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let place = Self::place(path)?;
        Ok(Self { named: path.into(), place })
    }

    fn place(path: &Path) -> anyhow::Result<Place> {
        let shown = path.display();
        let found = fs::metadata(path);
        if let Ok(found) = &found {
            if found.is_dir() {
                return Err(hinted(
                    format!("cannot write {shown}: it is a directory"),
                    format!("name a file in it: {shown}/report.json"),
                ));
            }
            if is_descriptor(path) || !found.is_file() {
                return open_directly(path, found.file_type().is_fifo()).map(Place::Direct);
            }
        }
        if let Some(name) = descriptor(path) {
            return Err(hinted(
                format!("cannot write {shown}: descriptor {name} is not open here"),
                format!("open it where you start gpuresid: {name}>FILE, or name a file"),
            ));
        }
        let target = follow_links(path).with_context(|| format!("cannot write {shown}"))?;
        let directory = directory_of(&target);
        if let Some(owner) = guarded_by(&target, directory) {
            return Err(hinted(
                format!(
                    "cannot write {shown}: it belongs to user id {owner}, and in {} only its owner may replace it",
                    directory.display()
                ),
                "name a file that does not exist yet, or one of your own",
            ));
        }
        let new = Aside::create_in(directory).map_err(|error| cannot_create(path, directory, &error))?;
        Ok(Place::Beside { new, target })
    }

    /// Writes the file and puts it in place.
    ///
    /// # Errors
    /// If writing or renaming fails; what was there before is then still there, and a text that is whole is kept beside
    /// it, with the command that moves it.
    pub fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        let named = self.named;
        let context = || format!("cannot write {}", named.display());
        match self.place {
            Place::Direct(file) => {
                let mut out = BufWriter::new(file);
                fill(&mut out).and_then(|()| out.flush()).with_context(context)
            }
            Place::Beside { new, target } => {
                // Before the first byte: an old report may have been for its owner alone.
                if let Some(old) = fs::symlink_metadata(&target).ok().filter(Metadata::is_file) {
                    new.take_after(&old).with_context(context)?;
                }
                let mut out = BufWriter::new(new.file());
                fill(&mut out).and_then(|()| out.flush()).with_context(context)?;
                drop(out);
                new.replace(&target).map_err(|not_placed| kept_aside(&named, &target, &not_placed))
            }
        }
    }

    /// The file that will be replaced, to find out whether two reports go to the same one.
    pub(super) fn target(&self) -> Option<PathBuf> {
        match &self.place {
            Place::Direct(_) => None,
            Place::Beside { target, .. } => {
                Some(fs::canonicalize(directory_of(target)).ok()?.join(target.file_name()?))
            }
        }
    }
}

/// `/dev/fd/3` may lead to a regular file, which the shell opened for us: it is written, never replaced.
pub(super) fn is_descriptor(path: &Path) -> bool {
    descriptor(path).is_some() || ["/dev/stdout", "/dev/stderr"].iter().any(|name| path == Path::new(name))
}

/// The `3` of `/dev/fd/3`.
fn descriptor(path: &Path) -> Option<&str> {
    let directory = path.parent()?;
    let is = ["/dev/fd", "/proc/self/fd"].iter().any(|of_descriptors| directory == Path::new(of_descriptors));
    path.file_name()?.to_str().filter(|_| is)
}

fn open_directly(path: &Path, is_fifo: bool) -> anyhow::Result<File> {
    let shown = path.display();
    // Opening a pipe that nobody reads would wait for ever; the flag makes it an error instead.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().append(true).custom_flags(if is_fifo { nonblocking } else { 0 }).open(path).map_err(
        |error| match error.raw_os_error() {
            Some(code) if is_fifo && code == rustix::io::Errno::NXIO.raw_os_error() => hinted(
                format!("cannot write {shown}: nobody reads from this pipe"),
                "start the reader first, or name a file",
            ),
            _ => anyhow::Error::new(error).context(format!("cannot write {shown}")),
        },
    )?;
    if is_fifo {
        let flags = rustix::fs::fcntl_getfl(&file)? - rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&file, flags)?;
    }
    Ok(file)
}

/// Where a chain of symbolic links ends, whether or not a file is there yet: the link stays, its target is replaced.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// The owner of a file that we may not replace although we may make files beside it, as in `/tmp`.
fn guarded_by(target: &Path, directory: &Path) -> Option<u32> {
    const STICKY: u32 = 0o1000;
    let me = rustix::process::geteuid();
    let (file, directory) = (fs::symlink_metadata(target).ok()?, fs::metadata(directory).ok()?);
    let mine = me.is_root() || [file.uid(), directory.uid()].contains(&me.as_raw());
    (directory.mode() & STICKY != 0 && !mine).then_some(file.uid())
}

/// A text that is whole and could not be put in place: where it is, and how to get it to a place.
fn kept_aside(named: &Path, target: &Path, not_placed: &NotPlaced) -> anyhow::Error {
    let message = format!("cannot write {}: {}", named.display(), not_placed.error);
    let Some(kept) = &not_placed.kept else { return anyhow::Error::msg(message) };
    let message = format!("{message}; the text is in {}", kept.display());
    let word = |path: &Path| text::shell_word(path.to_str()?);
    let step = || {
        let directory = directory_of(target);
        if !directory.exists() {
            return Some(format!("mkdir -p {} && mv {} {}", word(directory)?, word(kept)?, word(target)?));
        }
        // What is in the way stays.
        let free = if target.is_dir() {
            target.join("report.json")
        } else {
            let mut name = target.as_os_str().to_owned();
            name.push(".new");
            name.into()
        };
        Some(format!("mv {} {}", word(kept)?, word(&free)?))
    };
    match step() {
        Some(step) => hinted(message, format!("move it to a place: {step}")),
        None => anyhow::Error::msg(message),
    }
}

fn cannot_create(path: &Path, directory: &Path, error: &io::Error) -> anyhow::Error {
    let shown = path.display();
    let directory = directory.display();
    match error.kind() {
        io::ErrorKind::NotFound => hinted(
            format!("cannot write {shown}: there is no directory {directory}"),
            format!("make it first: mkdir -p {directory}"),
        ),
        io::ErrorKind::PermissionDenied => hinted(
            format!("cannot write {shown}: you may not create files in {directory}"),
            "name a file in a directory of your own, such as /tmp",
        ),
        io::ErrorKind::ReadOnlyFilesystem => hinted(
            format!("cannot write {shown}: {directory} is on a read-only file system"),
            "name a file in a directory that can be written, such as /tmp",
        ),
        io::ErrorKind::NotADirectory => {
            hinted(format!("cannot write {shown}: {directory} is no directory"), "name a file in a directory")
        }
        // tempfile's own message names its random file, which helps nobody.
        kind => match error.raw_os_error() {
            Some(code) => anyhow::anyhow!("cannot write {shown}: {}", io::Error::from_raw_os_error(code)),
            None => anyhow::anyhow!("cannot write {shown}: {kind}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Read,
        os::unix::fs::{PermissionsExt, chown, symlink},
    };

    fn write(path: &Path, text: &str) -> anyhow::Result<()> {
        Pending::open(path)?.write(|out| out.write_all(text.as_bytes()))
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_old_report_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        fs::write(&path, "old").unwrap();
        let pending = Pending::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let failed = pending.write(|out| out.write_all(b"half").and(Err(io::Error::other("disk full"))));
        assert_eq!(format!("{:#}", failed.unwrap_err()), format!("cannot write {}: disk full", path.display()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(dir.path()), ["r.json"]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o133, 0);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o600, 0o600);
    }

    #[test]
    fn nothing_appears_when_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        drop(Pending::open(&dir.path().join("r.json")).unwrap());
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn who_may_read_it_stays_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        for mode in [0o600, 0o640, 0o666] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let other = rustix::process::geteuid().is_root();
            if other {
                chown(&path, Some(65_534), Some(65_533)).unwrap();
            }
            write(&path, "new").unwrap();
            let now = fs::metadata(&path).unwrap();
            assert_eq!(now.permissions().mode() & 0o7777, mode);
            assert!(!other || (now.uid(), now.gid()) == (65_534, 65_533));
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        }
    }

    #[test]
    fn a_text_that_finds_its_place_taken_is_kept_with_the_command_that_moves_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it's r.json");
        let pending = Pending::open(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = pending.write(|out| out.write_all(b"report")).unwrap_err();
        assert!(error.to_string().contains("directory") && error.to_string().contains("; the text is in /"), "{error}");
        let hint = crate::error::hint(&error).unwrap();
        let command = hint.strip_prefix("move it to a place: ").unwrap();
        let moved = std::process::Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(moved.success(), "{command}");
        assert_eq!(fs::read_to_string(path.join("report.json")).unwrap(), "report");
        assert_eq!(names(dir.path()), ["it's r.json"]);
    }

    #[test]
    fn a_link_stays_and_its_target_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("sub/real.json", dir.path().join("link.json")).unwrap();
        for text in ["first", "second"] {
            write(&dir.path().join("link.json"), text).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("sub/real.json")).unwrap(), text);
        }
        assert!(fs::symlink_metadata(dir.path().join("link.json")).unwrap().is_symlink());
    }

    #[test]
    fn directories_and_missing_directories_are_refused_with_a_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let shown = dir.path().display();
        let error = Pending::open(dir.path()).unwrap_err();
        assert_eq!(
            crate::error::display(&error),
            format!("error: cannot write {shown}: it is a directory\n\nhint: name a file in it: {shown}/report.json\n")
        );
        let error = Pending::open(&dir.path().join("no/r.json")).unwrap_err();
        assert_eq!(
            crate::error::display(&error),
            format!(
                "error: cannot write {shown}/no/r.json: there is no directory {shown}/no\n\n\
                 hint: make it first: mkdir -p {shown}/no\n"
            )
        );
    }

    #[test]
    fn devices_and_pipes_are_written_directly() {
        write(Path::new("/dev/null"), "x").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let error = Pending::open(&fifo).unwrap_err();
        assert_eq!(format!("{error:#}"), format!("cannot write {}: nobody reads from this pipe", fifo.display()));
        // Linux lets one open a pipe for reading and writing without waiting for the other end.
        let mut reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        write(&fifo, "report").unwrap();
        let mut text = [0; 6];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"report");
    }

    #[test]
    fn an_inherited_descriptor_is_written_and_never_replaced() {
        use std::os::fd::AsRawFd;
        let mut file = tempfile::tempfile().unwrap();
        write(Path::new(&format!("/dev/fd/{}", file.as_raw_fd())), "report").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "report");
    }
}
