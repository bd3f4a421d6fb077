//! A file that will be written later: opened at once, so that one finds out before a run of hours that it cannot be
//! written, and put in place in one step, so that nobody ever reads half a report and an old one survives a failure.

use crate::error::hinted;
use anyhow::Context;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Permissions of a new file, less the umask.
const MODE: u32 = 0o644;

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
    /// A temporary file beside the target, renamed at the end.
    Beside { temporary: NamedTempFile, target: PathBuf },
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
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".gpuresid-")
            .suffix(".tmp")
            .permissions(fs::Permissions::from_mode(MODE))
            .tempfile_in(directory)
            .map_err(|error| cannot_create(path, directory, &error))?;
        Ok(Place::Beside { temporary, target })
    }

    /// Writes the file and puts it in place.
    ///
    /// # Errors
    /// If writing or renaming fails; what was there before is then still there.
    pub fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        let named = self.named;
        let context = || format!("cannot write {}", named.display());
        match self.place {
            Place::Direct(file) => {
                let mut out = BufWriter::new(file);
                fill(&mut out).and_then(|()| out.flush()).with_context(context)
            }
            Place::Beside { mut temporary, target } => {
                let mut out = BufWriter::new(temporary.as_file_mut());
                fill(&mut out).and_then(|()| out.flush()).with_context(context)?;
                drop(out);
                temporary.persist(target).map_err(|e| e.error).with_context(context)?;
                Ok(())
            }
        }
    }

    /// The file that will be replaced, to find out whether two reports go to the same one.
    pub(super) fn target(&self) -> Option<PathBuf> {
        match &self.place {
            Place::Direct(_) => None,
            Place::Beside { target, .. } => {
                let directory = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                Some(fs::canonicalize(directory).ok()?.join(target.file_name()?))
            }
        }
    }
}

/// `/dev/fd/3` may lead to a regular file, which the shell opened for us: it is written, never replaced.
fn is_descriptor(path: &Path) -> bool {
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
    use std::{io::Read, os::unix::fs::symlink};

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
