//! What people's work hangs on a process, by what it has open: terminals that it keeps for others, a console, the keyboard,
//! a display that windows are drawn on. Its name may be anything. Read when a process is about to be ended, and at no
//! other time.

use super::{
    ProcReader,
    handle::{self, PidDir, gone},
};
use rustix::{fs::readlinkat, io::Errno};
use std::collections::BTreeSet;

/// So much of the list of sockets is read; a machine with more has other troubles.
const LIST: usize = 16 << 20;
/// A socket that waits for clients, in the list of Unix sockets (`__SO_ACCEPTCON`).
const LISTENS: u64 = 0x1_0000;

/// What hangs on a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// Terminals: tmux, screen, sshd, and the servers of Jupyter and of editors open `/dev/ptmx` for each.
    Terminals,
    /// A text console.
    Console,
    /// Keyboards and mice.
    Input,
    /// The windows of a display.
    Display,
}

impl ProcReader {
    /// What people's work hangs on this process; `Ok(None)`: nothing that can be seen, or it has ended.
    ///
    /// # Errors
    /// If its open files cannot be read.
    pub fn attached(&self, pid: u32) -> Result<Option<Attached>, Errno> {
        match PidDir::open(&self.inner.root, pid).and_then(|dir| dir.map_or(Ok(None), |dir| attached(&dir))) {
            Err(error) if gone(error) => Ok(None),
            read => read,
        }
    }
}

fn attached(dir: &PidDir) -> Result<Option<Attached>, Errno> {
    let mut sockets = BTreeSet::new();
    for number in handle::numbers_in(dir, "fd")? {
        let link = match readlinkat(dir, format!("fd/{number}"), Vec::new()) {
            Ok(link) => link,
            // Closed meanwhile.
            Err(error) if gone(error) => continue,
            Err(error) => return Err(error),
        };
        let Ok(link) = link.to_str() else { continue };
        if let Some(found) = by_file(number, link) {
            return Ok(Some(found));
        }
        if let Some(inode) = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')?.parse::<u64>().ok())
        {
            sockets.insert(inode);
        }
    }
    if sockets.is_empty() {
        return Ok(None);
    }
    let list = handle::read(dir, "net/unix", LIST)?;
    let shows =
        String::from_utf8_lossy(&list).lines().any(|line| display_socket(line).is_some_and(|s| sockets.contains(&s)));
    Ok(shows.then_some(Attached::Display))
}

fn by_file(number: u32, link: &str) -> Option<Attached> {
    let file = link.strip_prefix("/dev/")?;
    let console = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    match file {
        "ptmx" | "pts/ptmx" => Some(Attached::Terminals),
        _ if file.starts_with("input/") => Some(Attached::Input),
        // Whatever is typed at a console has that as its standard streams.
        _ if number > 2 && file.strip_prefix("tty").is_some_and(console) => Some(Attached::Console),
        _ => None,
    }
}

/// The inode of a display's socket that waits for windows, in a line of `/proc/net/unix`.
fn display_socket(line: &str) -> Option<u64> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, _, _, flags, _, _, inode, path] = words[..] else { return None };
    let of_display = path.trim_start_matches('@').starts_with("/tmp/.X11-unix/")
        || path.rsplit('/').next().is_some_and(|name| name.starts_with("wayland-"));
    let listens = u64::from_str_radix(flags, 16).is_ok_and(|flags| flags & LISTENS != 0);
    (of_display && listens).then(|| inode.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_tells() {
        assert_eq!(by_file(9, "/dev/ptmx"), Some(Attached::Terminals));
        assert_eq!(by_file(9, "/dev/pts/ptmx"), Some(Attached::Terminals));
        assert_eq!(by_file(9, "/dev/tty2"), Some(Attached::Console));
        assert_eq!(by_file(9, "/dev/input/event3"), Some(Attached::Input));
        for (number, link) in
            [(0, "/dev/tty1"), (9, "/dev/tty"), (9, "/dev/pts/3"), (9, "/dev/nvidia0"), (9, "/home/ptmx")]
        {
            assert_eq!(by_file(number, link), None, "{link}");
        }
    }

    #[test]
    fn only_a_display_that_waits_for_windows_is_one() {
        let line = |flags: &str, path: &str| format!("ffff8b: 00000002 00000000 {flags} 0001 01 4711 {path}");
        assert_eq!(display_socket(&line("00010000", "@/tmp/.X11-unix/X0")), Some(4711));
        assert_eq!(display_socket(&line("00010000", "/run/user/1000/wayland-0")), Some(4711));
        assert_eq!(display_socket(&line("00000000", "/tmp/.X11-unix/X0")), None, "a client's end");
        assert_eq!(display_socket(&line("00010000", "/run/dbus/system_bus_socket")), None);
        assert_eq!(display_socket("ffff8b: 00000002 00000000 00010000 0001 01 4711"), None);
    }
}
