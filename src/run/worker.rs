//! Reads `/proc` on threads of their own: a process that is stuck in the kernel can make a reader of its files wait,
//! and the wait loop must not. Two threads, so that naming the processes of a look never waits for a scan.

use super::event::Event;
use crate::{
    model::{Leftover, Look, Process},
    observe::{
        proc::{ProcReader, Scan},
        shm::{self, Listing},
    },
};
use anyhow::Context;
use rustix::{
    thread::ClockId,
    time::{Timespec, clock_gettime},
};
use std::{
    collections::BTreeSet,
    sync::mpsc::{self, Sender},
    thread,
    time::Duration,
};

/// What a scan is for: an answer that comes too late must not be taken for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanFor {
    /// The before-look.
    Before,
    /// The after-look.
    After,
}

/// What to read.
#[derive(Debug)]
pub enum Job {
    /// Who these PIDs of the look are.
    Identify(Look, Vec<u32>),
    /// Everything about these PIDs.
    Examine(Vec<u32>),
    /// All descendants of this PID; with their open files where `files` says so.
    Tree {
        /// Whose.
        root: u32,
        /// Read open files too, and miss nobody: in settling the verdict depends on it.
        files: bool,
    },
    /// What came into shared memory since then, of these users, and is used by nobody.
    Leftovers(Listing, BTreeSet<u32>),
    /// Everybody with an NVIDIA file open, and these PIDs.
    Scan(ScanFor, Vec<u32>),
}

/// What was read.
#[derive(Debug)]
pub enum Answer {
    /// The look, and those of its unknown PIDs that are alive.
    Identified(Look, Vec<Process>),
    /// The living of the PIDs.
    Examined(Vec<Process>),
    /// The tree, and the CPU time that reading it cost.
    Tree(Vec<Process>, Duration),
    /// Files in shared memory.
    Leftovers(Vec<Leftover>),
    /// The scan.
    Scanned(ScanFor, Scan),
}

/// The two readers.
#[derive(Debug)]
pub struct Workers {
    quick: Sender<Job>,
    slow: Sender<Job>,
}

impl Workers {
    /// Starts them; they end when this value goes.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(reader: &ProcReader, events: &Sender<Event>) -> anyhow::Result<Self> {
        let worker = |name: &str| {
            let (jobs, todo) = mpsc::channel();
            let (reader, events) = (reader.clone(), events.clone());
            thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    for job in todo {
                        if events.send(Event::Answer(answer(&reader, job))).is_err() {
                            return;
                        }
                    }
                })
                .context("could not start a thread to read /proc")?;
            anyhow::Ok(jobs)
        };
        Ok(Self { quick: worker("identify")?, slow: worker("scan")? })
    }

    /// Asks for a reading; the answer arrives as an [`Event::Answer`].
    pub fn ask(&self, job: Job) {
        let to = match job {
            Job::Identify(..) | Job::Examine(_) => &self.quick,
            Job::Tree { .. } | Job::Scan(..) | Job::Leftovers(..) => &self.slow,
        };
        let _ = to.send(job);
    }
}

fn answer(reader: &ProcReader, job: Job) -> Answer {
    match job {
        Job::Identify(look, pids) => {
            let alive = pids.into_iter().filter_map(|pid| reader.identify(pid).ok().flatten()).collect();
            Answer::Identified(look, alive)
        }
        Job::Examine(pids) => {
            Answer::Examined(pids.into_iter().filter_map(|pid| reader.examine(pid).ok().flatten()).collect())
        }
        Job::Tree { root, files } => {
            let started = cpu_time();
            let mut tree = if files { reader.descendants(root) } else { reader.track_descendants(root) };
            if files {
                for process in &mut tree {
                    if let Ok(Some(whole)) = reader.examine(process.id.pid)
                        && whole.id == process.id
                    {
                        *process = whole;
                    }
                }
            }
            Answer::Tree(tree, cpu_time().saturating_sub(started))
        }
        Job::Leftovers(before, uids) => Answer::Leftovers(shm::leftovers(reader, &before, &uids)),
        Job::Scan(what_for, wanted) => Answer::Scanned(what_for, reader.scan(&wanted)),
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
}
