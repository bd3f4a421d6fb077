//! What is written and never replaced: a pipe, a terminal or another device, a descriptor that was open when we were
//! started, and a file that is mounted by itself, as containers do. Who does not read shall not keep us for ever.

use super::walk::{Entry, Spot};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FallocateFlags, Mode, OFlags, fallocate, fcntl_getfl, openat},
    io::Errno,
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{fd::AsFd, unix::fs::FileExt},
    path::Path,
    time::Duration,
};

/// Longest time in which a pipe or a device takes nothing at all.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the bytes go.
#[derive(Debug)]
pub(super) enum Stream {
    /// A pipe or a device that was opened here.
    Opened(File),
    /// Somebody else's choice: it may take as long as it likes.
    Inherited(File),
    /// A regular file that cannot be replaced, because something is mounted on its name.
    InPlace(File),
}

impl Stream {
    /// Opens what was found there.
    ///
    /// # Errors
    /// If it cannot be opened, or is not what was found any more.
    pub(super) fn open(spot: &Spot, found: &Entry, in_place: bool) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&spot.directory, &spot.name, flags, Mode::empty())?;
        if Entry::of(&file)?.id != found.id {
            return Err(io::Error::other("it was replaced while it was looked at"));
        }
        Ok(if in_place { Self::InPlace(file.into()) } else { Self::Opened(file.into()) })
    }

    /// The descriptor of that number as it is, so that what is shared with it, the place in a file above all, stays so.
    /// `None` if it is not open, or not for writing, or none that was handed to us.
    pub(super) fn inherited(number: &OsStr) -> Option<Self> {
        let number = number.to_str()?.parse().ok().filter(|number| *number >= 0 && is_handed_over(*number))?;
        let file = copy_of(number).ok()?;
        let mode = fcntl_getfl(&file).ok()? & OFlags::RWMODE;
        (mode == OFlags::WRONLY || mode == OFlags::RDWR).then_some(Self::Inherited(file))
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// If not all was taken.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Opened(file) => pour(file, bytes, Some(PATIENCE)),
            Self::Inherited(file) => pour(file, bytes, None),
            Self::InPlace(file) => overwrite(file, bytes),
        }
    }
}

/// What was open before we were started does not close at an exec; all that is opened here does.
fn is_handed_over(number: i32) -> bool {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    let flags = told.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
}

fn copy_of(number: i32) -> io::Result<File> {
    match number {
        1 => return Ok(io::stdout().as_fd().try_clone_to_owned()?.into()),
        2 => return Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
        _ => {}
    }
    let copied = pidfd_open(getpid(), PidfdFlags::empty());
    match copied.and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty())) {
        Ok(copy) => Ok(copy.into()),
        // Docker's filter refuses the call: there the same file or pipe is opened once more, at its end.
        Err(Errno::PERM | Errno::NOSYS) => {
            OpenOptions::new().append(true).open(Path::new("/proc/self/fd").join(number.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes as fast as it is taken. With a limit, a time without any progress ends it.
fn pour(mut file: &File, mut bytes: &[u8], patience: Option<Duration>) -> io::Result<()> {
    let limit = patience.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => bytes = bytes.get(taken..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(file, PollFlags::OUT)], limit.as_ref()) {
                    Ok(0) => {
                        let seconds = patience.unwrap_or_default().as_secs();
                        return Err(io::Error::other(format!("nobody has read from it for {seconds} s")));
                    }
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes sure of the room before the first byte of the old text is gone.
fn overwrite(file: &File, bytes: &[u8]) -> io::Result<()> {
    let length = bytes.len() as u64;
    let room = fallocate(file, FallocateFlags::KEEP_SIZE, 0, length);
    // Not every file system can tell beforehand.
    if let Err(error @ (Errno::NOSPC | Errno::FBIG | Errno::DQUOT)) = room {
        return Err(error.into());
    }
    file.write_all_at(bytes, 0)?;
    file.set_len(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_stops_reading_does_not_keep_us() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let text = vec![b'x'; 1 << 20];
        let error = pour(&writer.into(), &text, Some(Duration::from_millis(20))).unwrap_err();
        assert_eq!(error.to_string(), "nobody has read from it for 0 s");
        drop(reader);
    }

    #[test]
    fn a_shorter_text_leaves_nothing_of_a_longer_one() {
        let file = tempfile::tempfile().unwrap();
        for text in ["a long text", "short", "a longer text than the first"] {
            overwrite(&file, text.as_bytes()).unwrap();
            let mut read = String::new();
            let mut again = &file;
            io::Seek::rewind(&mut again).unwrap();
            io::Read::read_to_string(&mut again, &mut read).unwrap();
            assert_eq!(read, text);
        }
    }
}
