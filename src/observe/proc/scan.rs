//! One scan over all processes.

use super::{
    ProcReader, Scan,
    facts::{self, Depth},
    files::{FileScan, Files},
    handle::{PidDir, denied, numbers_in},
    nodes::Nodes,
};
use crate::model::{Gap, ProcId, Process, Uninspected};
use rustix::io::Errno;
use std::{
    collections::HashSet,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// As many processes are read while a thread starts and ends; fewer for each thread are not worth it.
const WORTH_A_THREAD: usize = 100;
/// More threads only fight for the same locks of the kernel (1,000 processes with 40 files each on 32 cores: 83 ms with
/// one thread, 54 with two, 32 with four, 18 with eight, 18 with sixteen).
const MOST_THREADS: usize = 8;

/// What one worker found.
#[derive(Default)]
struct Found {
    processes: Vec<Process>,
    uninspected: Vec<Uninspected>,
    /// Their files do not show because they are closing, or because there are none any more.
    closing: Vec<u32>,
    /// Not even `stat` could be read: hidepid.
    hidden: usize,
    failed: Option<(u32, Errno)>,
}

impl ProcReader {
    pub(super) fn pids(&self) -> Result<Vec<u32>, Errno> {
        numbers_in(&self.inner.root, ".")
    }

    pub(super) fn nodes(&self) -> Nodes {
        Nodes::read(&self.inner.root, &self.options.dev, &self.options.sys)
    }

    pub(super) fn scan_all(&self, wanted: &[u32]) -> Scan {
        let pids = match self.pids() {
            Ok(pids) => pids,
            Err(error) => return self.unlisted(error),
        };
        let wanted: HashSet<u32> = wanted.iter().copied().collect();
        let (nodes, next) = (self.nodes(), AtomicUsize::new(0));
        let work = || {
            let (mut files, mut found) = (FileScan::new(&nodes), Found::default());
            while let Some(pid) = pids.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.one(*pid, wanted.contains(pid), &mut files, &mut found) {
                    found.failed.get_or_insert((*pid, error));
                }
            }
            found
        };
        let more = thread::available_parallelism()
            .map_or(1, NonZero::get)
            .min(MOST_THREADS)
            .min(1 + pids.len() / WORTH_A_THREAD)
            - 1;
        let parts: Vec<Found> = thread::scope(|scope| {
            let others: Vec<_> =
                (0..more).filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
            let mine = work();
            others.into_iter().filter_map(|other| other.join().ok()).chain([mine]).collect()
        });
        self.join(parts)
    }

    fn one(&self, pid: u32, wanted: bool, scan: &mut FileScan<'_>, found: &mut Found) -> Result<(), Errno> {
        let dir = match PidDir::open(&self.inner.root, pid) {
            Ok(Some(dir)) => dir,
            Ok(None) => return Ok(()),
            Err(error) => return Err(error),
        };
        let files = scan.process(&dir, wanted);
        let full = match &files {
            Files::Gone => return Ok(()),
            Files::Failed(error) if !wanted => return Err(*error),
            Files::Failed(error) => {
                found.failed.get_or_insert((pid, *error));
                true
            }
            Files::Open(open) => wanted || !open.nodes.is_empty(),
            Files::NoTable => {
                if facts::closing(&dir) {
                    found.closing.push(pid);
                }
                wanted
            }
            Files::Denied => {
                match uninspected(&dir) {
                    Ok(Some(who)) => found.uninspected.push(who),
                    Ok(None) => return Ok(()),
                    Err(error) if denied(error) => {
                        found.hidden += 1;
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
                wanted
            }
        };
        if full && let Some(process) = self.facts(&dir, Depth::Full(files))? {
            // A plain zombie holds nothing and is not alive.
            if !process.is_zombie() {
                found.processes.push(process);
            }
        }
        Ok(())
    }

    fn join(&self, parts: Vec<Found>) -> Scan {
        let mut all = Found::default();
        for part in parts {
            all.processes.extend(part.processes);
            all.uninspected.extend(part.uninspected);
            all.closing.extend(part.closing);
            all.hidden += part.hidden;
            all.failed = all.failed.or(part.failed);
        }
        // Most that were closing a moment ago have ended by now. One that has not may hold anything.
        for pid in all.closing {
            if let Ok(Some(dir)) = PidDir::open(&self.inner.root, pid)
                && facts::closing(&dir)
                && let Ok(Some(who)) = uninspected(&dir)
            {
                all.uninspected.push(who);
            }
        }
        all.processes.sort_by_key(|process| process.id);
        all.uninspected.sort_by_key(|who| who.id);
        let (processes, mut gaps) = self.complete(all.processes, true);
        let proc = self.options.procfs.display();
        if all.hidden > 0 {
            gaps.push(Gap::new(
                proc.to_string(),
                format!("{} processes of others are hidden from us (hidepid); run as root to see them", all.hidden),
            ));
        }
        if let Some((pid, error)) = all.failed {
            gaps.push(Gap::new(
                proc.to_string(),
                format!("some processes could not be read, process {pid} first: {error}"),
            ));
        }
        Scan { processes, uninspected: all.uninspected, gaps }
    }

    fn unlisted(&self, error: Errno) -> Scan {
        let reason = format!("the processes could not be listed, so nobody's open files are known: {error}");
        Scan { gaps: vec![Gap::new(self.options.procfs.display().to_string(), reason)], ..Scan::default() }
    }
}

/// Who it is whose files we may not read; `Ok(None)` if it is gone.
fn uninspected(dir: &PidDir) -> Result<Option<Uninspected>, Errno> {
    let Some(stat) = facts::stat(dir)? else { return Ok(None) };
    let id = ProcId { pid: dir.pid, start_ticks: stat.start_ticks };
    Ok(Some(Uninspected { id, uid: facts::status(dir).uid, comm: stat.comm }))
}
