//! Files on their way: a descriptor that was sent through a Unix socket and not received belongs to no process, and can
//! keep GPU memory all the same. The kernel tells with each socket how many stand in it.

use super::{
    ProcReader,
    handle::{self, PidDir},
};
use crate::model::{Process, Sockets};
use rustix::fs::readlinkat;

/// So many sockets of one process are read.
const MOST: u32 = 4096;

impl ProcReader {
    /// Fills in `sockets` of those that have no NVIDIA file open themselves.
    pub(super) fn look_into_sockets(&self, processes: &mut [Process]) {
        for process in processes.iter_mut().filter(|p| p.can_hold_memory() == Some(false)) {
            let dir = PidDir::open(&self.inner.root, process.id.pid).ok().flatten();
            process.sockets = dir.and_then(|dir| sockets(&dir));
        }
    }
}

fn sockets(dir: &PidDir) -> Option<Sockets> {
    let (mut open, mut of_unix, mut in_flight) = (0, 0, None);
    for number in handle::numbers_in(dir, "fd").ok()? {
        let Ok(link) = readlinkat(dir, format!("fd/{number}"), Vec::new()) else { continue };
        if !link.as_bytes().starts_with(b"socket:") {
            continue;
        }
        if open == MOST {
            return None;
        }
        open += 1;
        let text = handle::read(dir, &format!("fdinfo/{number}"), 4096).unwrap_or_default();
        if let Some(files) = in_flight_of(&text) {
            of_unix += 1;
            in_flight = Some(in_flight.unwrap_or(0) + files);
        }
    }
    // Only Unix sockets have the line, so where no socket has it, there is none or the kernel is too old to tell.
    let open = if in_flight.is_some() { of_unix } else { open };
    Some(Sockets { open, files_in_flight: in_flight })
}

fn in_flight_of(fdinfo: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(fdinfo);
    text.lines().find_map(|line| line.strip_prefix("scm_fds:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_socket_tells() {
        assert_eq!(in_flight_of(b"pos:\t0\nflags:\t02\nino:\t7\nscm_fds: 3\n"), Some(3));
        assert_eq!(in_flight_of(b"pos:\t0\nflags:\t02\n"), None);
    }
}
