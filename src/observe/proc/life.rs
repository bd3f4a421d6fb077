//! What speaks for it that somebody still needs a process: its terminal, and who talks to it. Read for plans only, and for
//! all of a plan at once, because whoever has the other end of a pipe is found among everybody's files. A pipe that two
//! merely inherited, as all of a CI job share its output, connects neither with the other: one reads what the other writes.

use super::{
    ProcReader, facts,
    handle::{self, PidDir},
};
use crate::model::ProcId;
use rustix::fs::{AtFlags, StatxFlags, readlinkat, statx};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The list of a machine's connections is no longer.
const MOST: usize = 64 << 20;
/// A connection that stands.
const ESTABLISHED: &str = "01";

/// Who talks to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers {
    /// The other living processes that read what it writes into a pipe, or write what it reads; `None`: its own files may
    /// not be read, or nobody was found among those whose files may be.
    pub pipes: Option<Vec<ProcId>>,
    /// Everybody's files could be read.
    pub all_seen: bool,
    /// The other ends of its TCP connections that are none of those asked for; `None`: they cannot be read.
    pub tcp: Option<Vec<SocketAddr>>,
}

/// The inodes of a process's pipes and sockets.
#[derive(Default)]
struct Inodes {
    pipes: BTreeMap<u64, Ways>,
    sockets: BTreeSet<u64>,
}

/// Which ends of a pipe a process has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ways {
    reads: bool,
    writes: bool,
}

impl Ways {
    const fn meets(self, other: Self) -> bool {
        self.reads && other.writes || self.writes && other.reads
    }
}

/// A connection that stands, seen from one of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connection {
    here: SocketAddr,
    there: SocketAddr,
    inode: u64,
}

impl ProcReader {
    /// The name of a process's terminal, such as `pts/3`; `Some("")`: it has none; `None`: that cannot be read.
    pub fn terminal(&self, id: ProcId) -> Option<String> {
        let dir = PidDir::open(&self.inner.root, id.pid).ok()??;
        let stat = facts::stat(&dir).ok()?.filter(|stat| stat.start_ticks == id.start_ticks)?;
        Some(name_of_terminal(stat.terminal))
    }

    /// Who talks to each of these, beside themselves and `ours`.
    pub fn peers(&self, ids: &[ProcId], ours: &[ProcId]) -> BTreeMap<ProcId, Peers> {
        let open = |id: &ProcId| PidDir::open(&self.inner.root, id.pid).ok().flatten();
        let theirs: Vec<Option<(PidDir, Inodes)>> =
            ids.iter().map(|id| open(id).and_then(|dir| inodes(&dir).map(|found| (dir, found)))).collect();
        let found = || theirs.iter().flatten().map(|(_, found)| found);
        let pipes: BTreeSet<u64> = found().flat_map(|found| found.pipes.keys().copied()).collect();
        let sockets: BTreeSet<u64> = found().flat_map(|found| found.sockets.iter().copied()).collect();
        let passed_over = ids.iter().chain(ours).map(|id| id.pid).chain([std::process::id()]).collect();
        let (others, all_seen) = self.who_has(&pipes, &passed_over);
        let peers = |(dir, found): &(PidDir, Inodes)| {
            let meet = |(pipe, ways): (&u64, &Ways)| found.pipes.get(pipe).is_some_and(|own| own.meets(*ways));
            let with = others.iter().filter(|(_, other)| other.pipes.iter().any(meet)).map(|(id, _)| *id);
            let with: Vec<ProcId> = with.collect();
            // Whoever was found is there; that nobody is takes all to be asked.
            let pipes = (all_seen || !with.is_empty()).then_some(with);
            Peers { pipes, all_seen, tcp: other_ends(dir, &found.sockets, &sockets) }
        };
        let unknown = || Peers { pipes: None, all_seen: false, tcp: None };
        ids.iter().zip(&theirs).map(|(id, read)| (*id, read.as_ref().map_or_else(unknown, peers))).collect()
    }

    /// Who else has one of these pipes open, and whether everybody could be asked.
    fn who_has(&self, pipes: &BTreeSet<u64>, passed_over: &BTreeSet<u32>) -> (Vec<(ProcId, Inodes)>, bool) {
        if pipes.is_empty() {
            return (Vec::new(), true);
        }
        let Ok(pids) = self.pids() else { return (Vec::new(), false) };
        let (mut found, mut all_seen) = (Vec::new(), !self.observer().out_of_sight());
        for pid in pids.into_iter().filter(|pid| !passed_over.contains(pid)) {
            let Ok(Some(dir)) = PidDir::open(&self.inner.root, pid) else { continue };
            let Ok(Some(stat)) = facts::stat(&dir) else { continue };
            if stat.of_kernel() || stat.plain_zombie() {
                continue;
            }
            match inodes(&dir) {
                Some(mut inodes) => {
                    inodes.pipes.retain(|pipe, _| pipes.contains(pipe));
                    let id = ProcId { pid, start_ticks: stat.start_ticks };
                    found.extend((!inodes.pipes.is_empty()).then_some((id, inodes)));
                }
                None => all_seen &= !matches!(facts::stat(&dir), Ok(Some(stat)) if !stat.plain_zombie()),
            }
        }
        (found, all_seen)
    }
}

/// Of a main thread that is gone the files do not show any more; the threads that live have them.
fn inodes(dir: &PidDir) -> Option<Inodes> {
    let table = format!("{}fd", facts::below(dir, facts::stat(dir).ok()??.dead()));
    let mut found = Inodes::default();
    for number in handle::numbers_in(dir, &table).ok()? {
        let name = format!("{table}/{number}");
        let Ok(link) = readlinkat(dir, &name, Vec::new()) else { continue };
        let Ok(link) = link.to_str() else { continue };
        found.sockets.extend(handle::inode_in(link, "socket"));
        if let Some(pipe) = handle::inode_in(link, "pipe") {
            // The link can be read or written as its file was opened. Where that is not told it may be either.
            let mode =
                statx(dir, &name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MODE).map_or(0o600, |link| link.stx_mode);
            let ways = found.pipes.entry(pipe).or_default();
            ways.reads |= mode & 0o400 != 0;
            ways.writes |= mode & 0o200 != 0;
        }
    }
    Some(found)
}

/// The other ends of the connections through its `sockets`, but those that are one of `meant`.
fn other_ends(dir: &PidDir, sockets: &BTreeSet<u64>, meant: &BTreeSet<u64>) -> Option<Vec<SocketAddr>> {
    if sockets.is_empty() {
        return Some(Vec::new());
    }
    let mut all = Vec::new();
    // A kernel without the sixth version has no list of it.
    for (name, must) in [("net/tcp", true), ("net/tcp6", false)] {
        match handle::read(dir, name, MOST) {
            Ok(list) => all.extend(String::from_utf8_lossy(&list).lines().filter_map(connection)),
            Err(_) if must => return None,
            Err(_) => {}
        }
    }
    let is_meant = |own: &Connection| {
        all.iter().any(|it| it.here == own.there && it.there == own.here && meant.contains(&it.inode))
    };
    let own = all.iter().filter(|one| sockets.contains(&one.inode) && !is_meant(one));
    Some(own.map(|one| one.there).collect::<BTreeSet<_>>().into_iter().collect())
}

/// A connection that stands.
fn connection(line: &str) -> Option<Connection> {
    let fields: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
    let [_, here, there, ESTABLISHED, .., inode] = fields[..] else { return None };
    Some(Connection { here: address(here)?, there: address(there)?, inode: inode.parse().ok()? })
}

/// The kernel writes addresses as words of its own byte order. One of the fourth version is one in a socket of both, too.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

fn name_of_terminal(number: i32) -> String {
    let number = number.cast_unsigned();
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    match (number, major) {
        (0, _) => String::new(),
        (_, 136..=143) => format!("pts/{}", (major - 136) * 256 + minor),
        (_, 4) if minor < 64 => format!("tty{minor}"),
        _ => format!("device {major}:{minor}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_a_name() {
        assert_eq!(name_of_terminal(0), "");
        assert_eq!(name_of_terminal(0x8803), "pts/3");
        assert_eq!(name_of_terminal(0x0402), "tty2");
        assert_eq!(name_of_terminal(0x0440), "device 4:64");
    }

    #[test]
    fn a_connection_that_stands_has_another_end() {
        let line = |remote: &str, state: &str| {
            format!(
                "   0: 0100007F:1F90 {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 4711 1 0"
            )
        };
        let told = |line: &str| connection(line).map(|it| (it.here.to_string(), it.there.to_string(), it.inode));
        let stands = Some(("127.0.0.1:8080".to_owned(), "127.0.0.1:443".to_owned(), 4711));
        assert_eq!(told(&line("0100007F:01BB", "01")), stands);
        assert_eq!(told(&line("0000000000000000FFFF00000100007F:01BB", "01")), stands);
        assert_eq!(told(&line("0100007F:01BB", "0A")), None, "it listens");
        assert_eq!(told(&line("0100007F:01BB", "08")), None, "the other end has closed it");
        assert_eq!(told("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"), None);
    }

    #[test]
    fn who_writes_beside_another_does_not_talk_to_it() {
        let (reads, writes) = (Ways { reads: true, writes: false }, Ways { reads: false, writes: true });
        assert!(reads.meets(writes) && writes.meets(reads) && !reads.meets(reads) && !writes.meets(writes));
    }
}
