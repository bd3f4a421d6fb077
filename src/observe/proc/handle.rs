//! Open directories of `/proc`: the root, and one process. Apart from the readers because it alone knows which errors
//! mean "gone" and which mean "not allowed".
//!
//! A process is read through the open directory of its PID. The kernel binds that directory to the process and not to
//! the number, so a PID that is reused while we read answers ESRCH instead of somebody else's facts.

use rustix::{
    fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags, openat, readlinkat, statx},
    io::Errno,
};
use std::{
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// The process, thread or file is not there any more. Normal while others live their lives.
pub(super) fn gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::SRCH)
}

/// We may not look.
pub(super) fn denied(error: Errno) -> bool {
    matches!(error, Errno::ACCESS | Errno::PERM)
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a directory below `dir` for listing.
pub(super) fn list(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    openat(dir, name, DIRECTORY, Mode::empty())
}

/// Calls `each` with every entry of an open directory whose name is a number: a PID, a thread or a descriptor.
pub(super) fn numbers(
    dir: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    mut each: impl FnMut(u32, &CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut entries = RawDir::new(dir, room);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(number) = number(name.to_bytes()) {
            each(number, name)?;
        }
    }
    Ok(())
}

fn number(name: &[u8]) -> Option<u32> {
    if name.is_empty() || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Reads a file below `dir`, at most `limit` bytes of it.
pub(super) fn read(dir: impl AsFd, name: &str, limit: usize) -> Result<Vec<u8>, Errno> {
    let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::with_capacity(limit.min(4096));
    let mut part = [0u8; 4096];
    while text.len() < limit {
        match rustix::io::read(&file, &mut part) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(&part[..n.min(limit - text.len())]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(text)
}

/// All numbers in the directory `name` below `dir`, in the kernel's order.
pub(super) fn numbers_in(dir: impl AsFd, name: &str) -> Result<Vec<u32>, Errno> {
    let dir = list(dir, name)?;
    let mut found = Vec::new();
    let mut room = [MaybeUninit::uninit(); 8192];
    numbers(dir.as_fd(), &mut room, |number, _| {
        found.push(number);
        Ok(())
    })?;
    Ok(found)
}

/// The inode in a link of this kind, such as `pipe:[4711]`.
pub(super) fn inode_in(link: &str, kind: &str) -> Option<u64> {
    link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

/// The inode in a link such as `pid:[4026531836]`.
pub(super) fn namespace_inode(dir: impl AsFd, name: &str) -> Option<u64> {
    let link = readlinkat(dir, name, Vec::new()).ok()?;
    link.to_str().ok()?.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

/// The open directory of one process.
#[derive(Debug)]
pub(super) struct PidDir {
    /// Its number in this `/proc`.
    pub(super) pid: u32,
    dir: OwnedFd,
}

impl PidDir {
    /// Opens `/proc/PID`; `Ok(None)` if there is no such process.
    pub(super) fn open(root: impl AsFd, pid: u32) -> Result<Option<Self>, Errno> {
        match openat(root, pid.to_string(), PLACE, Mode::empty()) {
            Ok(dir) => Ok(Some(Self { pid, dir })),
            Err(error) if gone(error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Number of threads, the main thread included, from the link count of `task`: far cheaper than `stat`, for which
    /// the kernel sums up the times of all threads. `None` where it could not be had.
    pub(super) fn threads(&self) -> Option<u32> {
        let task = statx(&self.dir, "task", AtFlags::empty(), StatxFlags::NLINK).ok()?;
        task.stx_nlink.checked_sub(2).filter(|n| *n > 0)
    }

    /// Number of open files in the descriptor directory `name`. `None` on kernels before 6.2, which do not tell it.
    pub(super) fn open_files(&self, name: &str) -> Option<u64> {
        let table = statx(&self.dir, name, AtFlags::empty(), StatxFlags::SIZE).ok()?;
        Some(table.stx_size).filter(|n| *n > 0)
    }
}

impl AsFd for PidDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}
