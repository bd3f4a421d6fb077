//! What people's sessions hang on: the terminals that a process gives to others, a console, a keyboard, a display. Read at
//! the moment when somebody is to be signalled, by what he has open and not by what he is called.

use super::{
    ProcReader, facts,
    handle::{self, PidDir, denied, gone},
};
use crate::model::ProcId;
use rustix::{
    fs::{AtFlags, FileType, StatxFlags, readlinkat, statx},
    io::Errno,
};
use std::collections::BTreeSet;

/// Tables of other threads that are read where they differ from the main one's.
const MOST_TABLES: usize = 64;
/// The list of a machine's Unix sockets is no longer.
const MOST_SOCKETS: usize = 64 << 20;
/// A socket that others connect to (`__SO_ACCEPTCON`).
const LISTENS: u64 = 0x1_0000;

/// Somebody's session hangs on this open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionFile {
    /// The other side of a terminal: whoever works in that loses it.
    Terminal,
    /// A console of the machine, beyond those that every program there has.
    Console(String),
    /// A keyboard, a mouse.
    Input,
    /// The socket that windows come through.
    Display(String),
}

impl ProcReader {
    /// The first such file of a process; `Ok(None)` if it has none, or is gone.
    ///
    /// # Errors
    /// If its files may not be read.
    pub fn session_file(&self, id: ProcId) -> Result<Option<SessionFile>, Errno> {
        let Some(dir) = PidDir::open(&self.inner.root, id.pid)? else { return Ok(None) };
        let Some(stat) = facts::stat(&dir)?.filter(|stat| stat.start_ticks == id.start_ticks) else { return Ok(None) };
        if stat.of_kernel() || stat.plain_zombie() {
            return Ok(None);
        }
        let below = facts::below(&dir, stat.dead());
        let main = format!("{below}fd");
        let files = dir.open_files(&main);
        let others = match handle::numbers_in(&dir, "task") {
            Err(error) if gone(error) => Vec::new(),
            threads => threads?,
        };
        let others = others.into_iter();
        let others = others.map(|thread| format!("task/{thread}/fd")).filter(|table| dir.open_files(table) != files);
        let mut sockets = BTreeSet::new();
        for table in std::iter::once(main).chain(others.take(MOST_TABLES)) {
            match look_through(&dir, &table, &mut sockets) {
                Ok(None) => {}
                Err(error) if gone(error) => {}
                // Of one that is on its way out the memory is gone, and with it the right to look.
                Err(error) if denied(error) && facts::stat(&dir)?.is_none_or(|stat| stat.exiting()) => {}
                found => return found,
            }
        }
        if sockets.is_empty() {
            return Ok(None);
        }
        let list = match handle::read(&dir, &format!("{below}net/unix"), MOST_SOCKETS) {
            // A kernel without Unix sockets.
            Err(error) if gone(error) => Vec::new(),
            list => list?,
        };
        Ok(String::from_utf8_lossy(&list).lines().find_map(|line| display(line, &sockets)))
    }

    /// A thread of the kernel's.
    pub fn is_of_kernel(&self, id: ProcId) -> bool {
        let dir = PidDir::open(&self.inner.root, id.pid).ok().flatten();
        dir.and_then(|dir| facts::stat(&dir).ok()?).is_some_and(|stat| stat.of_kernel())
    }
}

fn look_through(dir: &PidDir, table: &str, sockets: &mut BTreeSet<u64>) -> Result<Option<SessionFile>, Errno> {
    for number in handle::numbers_in(dir, table)? {
        let name = format!("{table}/{number}");
        let link = match readlinkat(dir, &name, Vec::new()) {
            Ok(link) => link,
            // A path too long for the kernel's page is none of a device.
            Err(error) if gone(error) || error == Errno::NAMETOOLONG => continue,
            Err(error) => return Err(error),
        };
        let link = link.to_string_lossy();
        if let Some(inode) = handle::inode_in(&link, "socket") {
            sockets.insert(inode);
            continue;
        }
        let device = || {
            let file = statx(dir, &name, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
            let kind = FileType::from_raw_mode(file.stx_mode.into());
            (kind == FileType::CharacterDevice).then_some((file.stx_rdev_major, file.stx_rdev_minor))
        };
        if let Some(found) = device_of_a_session(&link, number, device) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// By a telling name, and then by its number.
fn device_of_a_session(
    link: &str,
    descriptor: u32,
    device: impl FnOnce() -> Option<(u32, u32)>,
) -> Option<SessionFile> {
    let link = link.strip_suffix(" (deleted)").unwrap_or(link);
    let name = link.rsplit('/').next().filter(|_| link.starts_with('/'))?;
    if name != "ptmx" && !name.starts_with("tty") && !link.contains("/input/") {
        return None;
    }
    match device()? {
        (5, 2) => Some(SessionFile::Terminal),
        // Standard input and output of whatever runs there.
        (4, 0..64) if descriptor > 2 => Some(SessionFile::Console(name.to_owned())),
        (13, _) => Some(SessionFile::Input),
        _ => None,
    }
}

/// The display whose listening socket this line of the kernel's list is, if it is one of these.
fn display(line: &str, sockets: &BTreeSet<u64>) -> Option<SessionFile> {
    let mut fields = line.split_ascii_whitespace();
    let flags = u64::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode: u64 = fields.nth(2)?.parse().ok()?;
    let path = fields.next()?;
    let name = path.rsplit('/').next().unwrap_or(path);
    let shows = path.trim_start_matches('@').starts_with("/tmp/.X11-unix/") || name.starts_with("wayland-");
    (flags & LISTENS != 0 && shows && sockets.contains(&inode)).then(|| SessionFile::Display(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_number() {
        let told = |link: &str, descriptor, number| device_of_a_session(link, descriptor, || number);
        assert_eq!(told("/dev/ptmx", 0, Some((5, 2))), Some(SessionFile::Terminal));
        assert_eq!(told("/dev/pts/ptmx", 7, Some((5, 2))), Some(SessionFile::Terminal));
        assert_eq!(told("/dev/pts/3", 0, Some((136, 3))), None, "who works in a terminal keeps none");
        assert_eq!(told("/home/x/ptmx", 7, None), None, "a plain file");
        assert_eq!(told("/dev/tty2", 9, Some((4, 2))), Some(SessionFile::Console("tty2".into())));
        assert_eq!(told("/dev/tty2", 0, Some((4, 2))), None, "a program that was started there");
        assert_eq!(told("/dev/ttyS0", 9, Some((4, 64))), None, "a serial line");
        assert_eq!(told("/dev/tty", 9, Some((5, 0))), None, "its own terminal");
        assert_eq!(told("/dev/input/event3 (deleted)", 9, Some((13, 67))), Some(SessionFile::Input));
    }

    #[test]
    fn a_display_is_a_socket_that_listens() {
        let ours = BTreeSet::from([701, 702]);
        let told = |line: &str| display(line, &ours);
        let x = "0000000000000000: 00000002 00000000 00010000 0001 01 701 @/tmp/.X11-unix/X0";
        assert_eq!(told(x), Some(SessionFile::Display("X0".into())));
        assert_eq!(told(&x.replace("00010000", "00000000")), None, "a connection to it");
        assert_eq!(told(&x.replace("701", "799")), None, "another's");
        let wayland = "0000000000000000: 00000002 00000000 00010000 0001 01 702 /run/user/1000/wayland-0";
        assert_eq!(told(wayland), Some(SessionFile::Display("wayland-0".into())));
        assert_eq!(told("Num RefCount Protocol Flags Type St Inode Path"), None);
    }
}
