//! What lies in the memory of a process: its command line, the marker in its environment, its mappings. Apart, because
//! the kernel takes the process's memory lock for these, and a process that is stuck in the driver may hold that lock
//! for ever: whoever reads then hangs too. So a thread of its own reads, and is left behind when it takes too long.

use super::handle::{self, PidDir};
use crate::model::ProcId;
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// The marker's name.
const MARKER: &[u8] = b"GPURESID_RUN_ID=";
/// Longer values are not ours.
const MOST_MARKER: usize = 4096;
const MOST_ARGUMENTS: usize = 200;
const MOST_COMMAND_LINE: usize = 64 << 10;
const MOST_ENVIRONMENT: usize = 8 << 20;
const MOST_MAPS: usize = 32 << 20;
const MOST_SHARED: usize = 64;

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) argv: Vec<String>,
    pub(super) marker: Option<String>,
    pub(super) shared_mappings: Vec<String>,
}

/// Processes whose memory could not be read in time, as long as the thread that was left behind still waits: asking
/// again would leave one more behind at each look.
#[derive(Debug, Clone, Default)]
pub(super) struct Stuck(Arc<Mutex<HashSet<ProcId>>>);

impl Stuck {
    fn with<T>(&self, act: impl FnOnce(&mut HashSet<ProcId>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How long one call of the reader may wait for stuck processes in all, so that eight stuck ranks do not cost eight
/// waits.
#[derive(Debug)]
pub(super) struct Patience(AtomicU64);

impl Patience {
    const ONE: Duration = Duration::from_millis(300);
    const LEAST: Duration = Duration::from_millis(20);

    pub(super) fn new() -> Self {
        Self(AtomicU64::new(1000))
    }

    fn next(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed)).clamp(Self::LEAST, Self::ONE)
    }

    fn spend(&self, spent: Duration) {
        let spent = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(spent)));
    }
}

/// Reads the memory of a process. `None`: it did not answer in time.
pub(super) fn read(dir: &PidDir, id: ProcId, mappings: bool, stuck: &Stuck, patience: &Patience) -> Option<Memory> {
    let dir = dir.again().ok()?;
    guarded(id, stuck, patience, move || {
        let text = |name, most| handle::read(&dir, name, most).unwrap_or_default();
        Memory {
            argv: arguments(&text("cmdline", MOST_COMMAND_LINE)),
            marker: marker(&text("environ", MOST_ENVIRONMENT)),
            shared_mappings: if mappings { shared(&text("maps", MOST_MAPS)) } else { Vec::new() },
        }
    })
}

fn guarded<T: Send + 'static>(
    id: ProcId,
    stuck: &Stuck,
    patience: &Patience,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if stuck.with(|ids| !ids.insert(id)) {
        return None;
    }
    let (answer, answered) = mpsc::sync_channel(1);
    let mine = stuck.clone();
    let reader = thread::Builder::new().name("memory".into()).stack_size(256 << 10).spawn(move || {
        let value = act();
        mine.with(|ids| ids.remove(&id));
        let _ = answer.send(value);
    });
    if reader.is_err() {
        stuck.with(|ids| ids.remove(&id));
        return None;
    }
    let start = Instant::now();
    let value = answered.recv_timeout(patience.next());
    if value.is_err() {
        patience.spend(start.elapsed());
    }
    value.ok()
}

/// The arguments, as far as a reader would follow. Foreign bytes: made text, but not made safe for a terminal.
fn arguments(text: &[u8]) -> Vec<String> {
    let end = text.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    if end == 0 {
        return Vec::new();
    }
    text[..end]
        .split(|b| *b == 0)
        .take(MOST_ARGUMENTS)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

fn marker(environment: &[u8]) -> Option<String> {
    let value = environment.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(MARKER))?;
    let value = std::str::from_utf8(value).ok()?;
    (!value.is_empty() && value.len() <= MOST_MARKER).then(|| value.to_owned())
}

/// Paths of mappings through which processes share GPU memory, each once.
fn shared(maps: &[u8]) -> Vec<String> {
    let mut paths = Vec::new();
    for line in maps.split(|b| *b == b'\n') {
        let Some(start) = line.iter().position(|b| *b == b'/') else { continue };
        let path = &line[start..];
        if !(path.starts_with(b"/dev/shm/cuda.shm") || path.starts_with(b"/dev/shm/torch_")) {
            continue;
        }
        let path = String::from_utf8_lossy(path.strip_suffix(b" (deleted)").unwrap_or(path)).into_owned();
        if !paths.contains(&path) {
            paths.push(path);
        }
        if paths.len() == MOST_SHARED {
            break;
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_cut_and_made_text() {
        assert_eq!(arguments(b""), [""; 0]);
        assert_eq!(arguments(b"\0\0"), [""; 0]);
        assert_eq!(arguments(b"a\0\0b\nc\0"), ["a", "", "b\nc"]);
        assert_eq!(arguments(b"a title that was set\0\0\0\0"), ["a title that was set"]);
        assert_eq!(arguments(b"\xff\0"), ["\u{fffd}"]);
        assert_eq!(arguments(&b"x\0".repeat(1000)).len(), MOST_ARGUMENTS);
    }

    #[test]
    fn the_marker_is_one_of_many() {
        assert_eq!(marker(b"PATH=/bin\0GPURESID_RUN_ID=a:b\0X=1\0").as_deref(), Some("a:b"));
        assert_eq!(marker(b"XGPURESID_RUN_ID=a\0GPURESID_RUN_ID=\0"), None);
        assert_eq!(marker(b""), None);
        assert_eq!(marker(&[MARKER, &[b'x'; MOST_MARKER + 1]].concat()), None);
    }

    #[test]
    fn shared_mappings_once_each() {
        let maps = b"7f00-7f01 rw-s 00000000 00:1a 12 /dev/shm/cuda.shm.0.5.1 (deleted)\n\
            7f01-7f02 rw-s 00000000 00:1a 12 /dev/shm/cuda.shm.0.5.1\n\
            7f02-7f03 rw-s 00000000 00:1a 13 /dev/shm/torch_12_3_0\n\
            7f03-7f04 rw-s 00000000 00:1a 14 /dev/shm/sem.mp-x\n\
            7f04-7f05 rw-p 00000000 00:00 0\n";
        assert_eq!(shared(maps), ["/dev/shm/cuda.shm.0.5.1", "/dev/shm/torch_12_3_0"]);
    }

    #[test]
    fn a_reader_that_hangs_is_left_behind_once() {
        let (stuck, patience) = (Stuck::default(), Patience::new());
        let id = ProcId { pid: 1, start_ticks: 2 };
        let (release, released) = mpsc::channel::<()>();
        let hang = move || released.recv().is_ok();
        assert_eq!(guarded(id, &stuck, &patience, hang), None);
        let asked_again = Instant::now();
        assert_eq!(guarded(id, &stuck, &patience, || true), None, "its reader is still out");
        assert!(asked_again.elapsed() < Patience::ONE);
        assert_eq!(guarded(ProcId { pid: 2, start_ticks: 2 }, &stuck, &patience, || 7), Some(7), "others answer");
        release.send(()).expect("the reader waits");
        let deadline = Instant::now() + Duration::from_secs(20);
        while guarded(id, &stuck, &patience, || true).is_none() {
            assert!(Instant::now() < deadline, "it answers again once the lock is free");
        }
    }
}
