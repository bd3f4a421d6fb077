//! What lies in the memory of a process: its command line, the marker in its environment, its mappings. Apart, because
//! the kernel takes the process's memory lock for these, and a process that is stuck in the driver may hold that lock
//! for ever: whoever reads then hangs too. So a thread of its own reads, and is left behind when it gets no further.

use super::{
    facts,
    handle::{self, PidDir, denied, gone},
};
use crate::model::ProcId;
use rustix::io::Errno;
use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// The marker's name.
const MARKER: &[u8] = b"GPURESID_RUN_ID=";
/// Variables that tell where a process belongs and hold no secret. Others are never kept.
const TELLING: [&str; 23] = [
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURMD_NODENAME",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_HET_JOB_ID",
    "SLURM_HET_JOB_OFFSET",
    "SYSTEMD_EXEC_PID",
    "RUNNER_TRACKING_ID",
    "JENKINS_NODE_COOKIE",
    "CI_JOB_ID",
    "TORCHELASTIC_RUN_ID",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "CUDA_MPS_PIPE_DIRECTORY",
    "RAY_JOB_ID",
    "PBS_JOBID",
    "SUPERVISOR_PROCESS_NAME",
    "SUPERVISOR_GROUP_NAME",
];
/// A longer value of one of them is none.
const MOST_TELLING: usize = 256;
/// Longer values are not ours.
const MOST_MARKER: usize = 4096;
const MOST_ARGUMENTS: usize = 200;
const MOST_COMMAND_LINE: usize = 64 << 10;
const MOST_ENVIRONMENT: usize = 8 << 20;
const MOST_MAPS: usize = 32 << 20;
const MOST_SHARED: usize = 64;

/// So long one process may take, while the patience of the whole call lasts: eight stuck ranks must not cost eight
/// waits. Then each still gets the least.
const ONE: Duration = Duration::from_millis(300);
const ALL: Duration = Duration::from_millis(1000);
const LEAST: Duration = Duration::from_millis(20);

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) argv: Vec<String>,
    pub(super) marker: Option<String>,
    pub(super) shared_mappings: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// We are not allowed to read its environment, so what it does not say is not known.
    pub(super) environment_denied: bool,
}

/// What became of the reading of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer<T> {
    Read(T),
    /// The process ended, or its number is somebody else's by now.
    Gone,
    /// It did not answer in time.
    Stuck,
    /// We could not read: we have no descriptor or thread left, for example. It may live.
    Unread,
}

impl<T> Answer<Option<T>> {
    /// Where what answered could not read either.
    pub(super) fn flatten(self) -> Answer<T> {
        match self {
            Self::Read(Some(read)) => Answer::Read(read),
            Self::Read(None) | Self::Unread => Answer::Unread,
            Self::Gone => Answer::Gone,
            Self::Stuck => Answer::Stuck,
        }
    }
}

/// Processes whose reader was left behind and still waits: asking again would leave one more behind at each look.
#[derive(Debug, Default)]
pub(super) struct Stuck(Mutex<Vec<(ProcId, Weak<AtomicBool>)>>);

impl Stuck {
    fn has(&self, id: ProcId) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, reader)| reader.strong_count() > 0);
        all.iter().any(|(stuck, _)| *stuck == id)
    }

    fn add(&self, id: ProcId, reader: Weak<AtomicBool>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((id, reader));
    }
}

/// Reads the memory of each process, in their order; `mappings` too where they are wanted.
pub(super) fn read(root: impl AsFd, ids: Vec<ProcId>, mappings: bool, stuck: &Stuck) -> Vec<Answer<Memory>> {
    let Ok(root) = root.as_fd().try_clone_to_owned() else { return vec![Answer::Unread; ids.len()] };
    let answers = guarded(ids, stuck, move |id| memory_of(&root, id, mappings).transpose().map(Result::ok));
    answers.into_iter().map(Answer::flatten).collect()
}

/// The memory of a process; `None`: it ended, or its number is somebody else's by now.
fn memory_of(root: impl AsFd, id: ProcId, mappings: bool) -> Result<Option<Memory>, Errno> {
    let Some(dir) = PidDir::open(root, id.pid)? else { return Ok(None) };
    let alive = || Ok(facts::stat(&dir)?.filter(|stat| stat.start_ticks == id.start_ticks));
    let Some(before) = alive()? else { return Ok(None) };
    let below = facts::below(&dir, before.dead());
    let text = |name: &str, most| match handle::read(&dir, &format!("{below}{name}"), most) {
        // It is on its way out, or has no memory; which of them, is asked below.
        Err(error) if gone(error) => Ok(Vec::new()),
        text => text,
    };
    // Others' environment and map are not for us to read; their command line is.
    let allowed = |text| match text {
        Err(error) if denied(error) => Ok(None),
        text => text.map(Some),
    };
    let environment = allowed(text("environ", MOST_ENVIRONMENT))?;
    let maps = if mappings { allowed(text("maps", MOST_MAPS))? } else { None };
    let environment_denied = environment.is_none();
    let (environment, maps) = (environment.unwrap_or_default(), maps.unwrap_or_default());
    let memory = Memory {
        argv: arguments(&text("cmdline", MOST_COMMAND_LINE)?),
        marker: marker(&environment),
        environment: if mappings { telling(&environment) } else { BTreeMap::new() },
        shared_mappings: shared(&maps),
        environment_denied,
    };
    // What was read while it ended is half true: gone is the whole truth.
    Ok(alive()?.filter(|after| before.plain_zombie() || !after.plain_zombie()).map(|_| memory))
}

/// Lets another thread `read` one after the other (`None`: gone), and where it hangs leaves it and starts a new one
/// behind that process. Who is known to be stuck is passed over.
pub(super) fn guarded<T, F>(ids: Vec<ProcId>, stuck: &Stuck, read: F) -> Vec<Answer<T>>
where
    T: Send + 'static,
    F: Fn(ProcId) -> Option<T> + Send + Sync + 'static,
{
    let first = |id: &ProcId| if stuck.has(*id) { Answer::Stuck } else { Answer::Unread };
    let mut answers: Vec<Answer<T>> = ids.iter().map(first).collect();
    let todo = ids.into_iter().enumerate().zip(&answers).filter(|(_, answer)| matches!(answer, Answer::Unread));
    let todo: Vec<(usize, ProcId)> = todo.map(|(one, _)| one).collect();
    let (todo, read) = (Arc::new(todo), Arc::new(read));
    let (mut done, mut patience) = (0, ALL);
    while done < todo.len() {
        let left_behind = Arc::new(AtomicBool::new(false));
        let reader = Arc::downgrade(&left_behind);
        let (answer, answered) = mpsc::channel();
        let work = {
            let (todo, read) = (todo.clone(), read.clone());
            move || {
                for (_, id) in todo.iter().skip(done) {
                    let value = read(*id);
                    if left_behind.load(Ordering::Relaxed) || answer.send(value).is_err() {
                        break;
                    }
                }
            }
        };
        if thread::Builder::new().name("memory".into()).spawn(work).is_err() {
            break;
        }
        while let Some((at, id)) = todo.get(done) {
            done += 1;
            let start = Instant::now();
            if let Ok(value) = answered.recv_timeout(patience.clamp(LEAST, ONE)) {
                answers[*at] = value.map_or(Answer::Gone, Answer::Read);
                continue;
            }
            patience = patience.saturating_sub(start.elapsed());
            if let Some(flag) = reader.upgrade() {
                flag.store(true, Ordering::Relaxed);
            }
            stuck.add(*id, reader);
            answers[*at] = Answer::Stuck;
            break;
        }
    }
    answers
}

/// The arguments, as far as a reader would follow. Foreign bytes: made text, but not made safe for a terminal.
pub(super) fn arguments(text: &[u8]) -> Vec<String> {
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

pub(super) fn marker(environment: &[u8]) -> Option<String> {
    let value = environment.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(MARKER))?;
    let value = std::str::from_utf8(value).ok()?;
    (!value.is_empty() && value.len() <= MOST_MARKER).then(|| value.to_owned())
}

/// The variables that tell where it belongs.
pub(super) fn telling(environment: &[u8]) -> BTreeMap<String, String> {
    environment
        .split(|b| *b == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='))
        .filter(|(name, value)| TELLING.contains(name) && !value.is_empty() && value.len() <= MOST_TELLING)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Paths of mappings through which processes share GPU memory, each once.
pub(super) fn shared(maps: &[u8]) -> Vec<String> {
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
    use crate::observe::proc::stat::Stat;
    use std::fs;

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
    fn only_telling_variables_are_kept() {
        let found = telling(b"PASSWORD=x\0SLURM_JOB_ID=7\0RANK=\0LOCAL_RANK=1\0XRANK=3\0WORLD_SIZE=\xff\0");
        let expected = [("LOCAL_RANK", "1"), ("SLURM_JOB_ID", "7")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(found, BTreeMap::from(expected));
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
    fn what_could_not_be_read_is_not_empty() {
        let place = tempfile::tempdir().expect("a place");
        let process = place.path().join("5");
        fs::create_dir(&process).expect("a process");
        let stat = "5 (x) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5";
        let files = [("stat", stat), ("environ", "RANK=1\0"), ("cmdline", "x\0y\0"), ("maps", "")];
        for (name, text) in files {
            fs::write(process.join(name), text).expect("a file of it");
        }
        let root = fs::File::open(place.path()).expect("the place");
        let read = || super::read(&root, ids(&[5]), true, &Stuck::default()).remove(0);
        let Answer::Read(whole) = read() else { panic!("nothing is wrong") };
        assert_eq!((whole.argv.len(), whole.environment.len(), whole.environment_denied), (2, 1, false));
        for name in ["environ", "cmdline", "maps"] {
            // It cannot be read, as when the kernel fails.
            let (file, aside) = (process.join(name), place.path().join("aside"));
            fs::rename(&file, &aside).expect("a file");
            assert!(matches!(read(), Answer::Read(_)), "without {name} it has no memory");
            fs::create_dir(&file).expect("a directory");
            assert_eq!(read(), Answer::Unread, "{name}");
            fs::remove_dir(&file).expect("the directory");
            fs::rename(&aside, &file).expect("the file");
        }
    }

    #[test]
    fn an_environment_that_is_not_for_us_says_nothing() {
        // Of its own kind: nobody is told what root's processes have in their environment, and everybody how they are called.
        if rustix::process::geteuid().is_root() {
            return;
        }
        let root = fs::File::open("/proc").expect("/proc");
        let stat = fs::read_to_string("/proc/1/stat").expect("PID 1");
        let start = Stat::parse(stat.as_bytes()).expect("its line").start_ticks;
        let ids = vec![ProcId { pid: 1, start_ticks: start }];
        let Answer::Read(memory) = super::read(&root, ids, true, &Stuck::default()).remove(0) else { return };
        assert!(memory.environment_denied && memory.marker.is_none() && !memory.argv.is_empty(), "{memory:?}");
    }

    fn ids(pids: &[u32]) -> Vec<ProcId> {
        pids.iter().map(|pid| ProcId { pid: *pid, start_ticks: 5 }).collect()
    }

    #[test]
    fn one_that_hangs_is_left_behind_once() {
        let stuck = Stuck::default();
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let hang = move |id: ProcId| match id.pid {
            2 => released.lock().ok()?.recv().ok().map(|()| 0),
            3 => None,
            pid => Some(pid),
        };
        let answers = guarded(ids(&[1, 2, 3, 4]), &stuck, hang);
        assert_eq!(answers, [Answer::Read(1), Answer::Stuck, Answer::Gone, Answer::Read(4)]);

        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let answers = guarded(ids(&[1, 2, 4]), &stuck, move |id| {
            log.lock().ok()?.push(id.pid);
            Some(id.pid)
        });
        assert_eq!(answers, [Answer::Read(1), Answer::Stuck, Answer::Read(4)]);
        assert_eq!(*asked.lock().expect("no reader panicked"), [1, 4], "the reader of 2 is still out");

        release.send(()).expect("the reader waits");
        let deadline = Instant::now() + Duration::from_secs(20);
        while guarded(ids(&[2]), &stuck, |id| Some(id.pid)) != [Answer::Read(2)] {
            assert!(Instant::now() < deadline, "it answers again once the lock is free");
            thread::yield_now();
        }
    }

    #[test]
    fn many_stuck_ones_share_the_patience() {
        let (_keep, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let start = Instant::now();
        let answers =
            guarded(ids(&[1, 2, 3, 4, 5, 6, 7, 8]), &Stuck::default(), move |_| released.lock().ok()?.recv().ok());
        assert_eq!(answers, vec![Answer::Stuck; 8]);
        assert!(start.elapsed() < ONE * 8);
    }
}
