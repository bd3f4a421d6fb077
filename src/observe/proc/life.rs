//! What speaks for it that somebody still needs a process: its terminal, and who talks to it. Read for plans only, and for
//! all of a plan at once, because whoever has the other end of a pipe is found among everybody's files.

use super::{
    ProcReader, facts,
    handle::{self, PidDir},
};
use crate::model::ProcId;
use rustix::fs::readlinkat;
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
    /// The other living processes that have a pipe of its open; `None`: not everybody's files may be read.
    pub pipes: Option<Vec<u32>>,
    /// The other ends of its TCP connections; `None`: they cannot be read.
    pub tcp: Option<Vec<SocketAddr>>,
}

/// The inodes of a process's pipes and sockets, and what was found out about the latter.
#[derive(Default)]
struct Inodes {
    pipes: BTreeSet<u64>,
    sockets: BTreeSet<u64>,
    tcp: Option<Vec<SocketAddr>>,
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
        let mut theirs: BTreeMap<ProcId, Option<Inodes>> = BTreeMap::new();
        for id in ids {
            let dir = PidDir::open(&self.inner.root, id.pid).ok().flatten();
            let read = dir.and_then(|dir| {
                let found = inodes(&dir)?;
                Some(Inodes { tcp: connections(&dir, &found.sockets), ..found })
            });
            theirs.insert(*id, read);
        }
        let all: BTreeSet<u64> = theirs.values().flatten().flat_map(|inodes| inodes.pipes.iter().copied()).collect();
        let mut complete = true;
        let mut users: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let passed_over: BTreeSet<u32> = ids.iter().chain(ours).map(|id| id.pid).chain([std::process::id()]).collect();
        let pids = if all.is_empty() { Ok(Vec::new()) } else { self.pids() };
        complete &= pids.is_ok();
        for pid in pids.unwrap_or_default().into_iter().filter(|pid| !passed_over.contains(pid)) {
            let Ok(Some(dir)) = PidDir::open(&self.inner.root, pid) else { continue };
            match inodes(&dir) {
                Some(inodes) => {
                    inodes.pipes.intersection(&all).for_each(|pipe| users.entry(*pipe).or_default().push(pid))
                }
                None => {
                    complete &= facts::stat(&dir).is_ok_and(|s| s.is_none_or(|s| s.of_kernel() || s.plain_zombie()))
                }
            }
        }
        let peers = |read: Option<Inodes>| {
            let Some(Inodes { pipes, tcp, .. }) = read else { return Peers { pipes: None, tcp: None } };
            let found: BTreeSet<u32> = pipes.iter().filter_map(|pipe| users.get(pipe)).flatten().copied().collect();
            // Whoever was found is there; that nobody is takes all to be asked.
            let pipes = (complete || !found.is_empty()).then(|| found.into_iter().collect());
            Peers { pipes, tcp }
        };
        theirs.into_iter().map(|(id, read)| (id, peers(read))).collect()
    }
}

fn inodes(dir: &PidDir) -> Option<Inodes> {
    let mut found = Inodes::default();
    for number in handle::numbers_in(dir, "fd").ok()? {
        let Ok(link) = readlinkat(dir, format!("fd/{number}"), Vec::new()) else { continue };
        let Ok(link) = link.to_str() else { continue };
        let inode = |kind: &str| link.strip_prefix(kind)?.strip_suffix(']')?.parse::<u64>().ok();
        found.pipes.extend(inode("pipe:["));
        found.sockets.extend(inode("socket:["));
    }
    Some(found)
}

fn connections(dir: &PidDir, sockets: &BTreeSet<u64>) -> Option<Vec<SocketAddr>> {
    if sockets.is_empty() {
        return Some(Vec::new());
    }
    let mut found = BTreeSet::new();
    // A kernel without the sixth version has no list of it.
    for (name, must) in [("net/tcp", true), ("net/tcp6", false)] {
        match handle::read(dir, name, MOST) {
            Ok(list) => {
                let list = String::from_utf8_lossy(&list);
                found.extend(list.lines().filter_map(|line| connection(line, sockets)));
            }
            Err(_) if must => return None,
            Err(_) => {}
        }
    }
    Some(found.into_iter().collect())
}

/// The other end of a connection that stands, if it is one of these sockets.
fn connection(line: &str, sockets: &BTreeSet<u64>) -> Option<SocketAddr> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let inode: u64 = fields.get(9)?.parse().ok()?;
    if *fields.get(3)? != ESTABLISHED || !sockets.contains(&inode) {
        return None;
    }
    let (address, port) = fields.get(2)?.split_once(':')?;
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
        let ours = BTreeSet::from([4711]);
        let line = |remote: &str, state: &str, inode: u32| {
            format!(
                "   0: 0100007F:1F90 {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0"
            )
        };
        let told = |line: &str| connection(line, &ours).map(|end| end.to_string());
        assert_eq!(told(&line("0100007F:01BB", "01", 4711)).as_deref(), Some("127.0.0.1:443"));
        assert_eq!(told(&line("0100007F:01BB", "0A", 4711)), None, "it listens");
        assert_eq!(told(&line("0100007F:01BB", "01", 4712)), None, "another's");
        let six = line("0000000000000000FFFF00000100007F:01BB", "01", 4711);
        assert_eq!(told(&six).as_deref(), Some("127.0.0.1:443"));
    }
}
