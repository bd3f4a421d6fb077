//! The facts about one process, put together from its small files.

use super::{
    ProcReader, cgroup,
    files::Files,
    handle::{self, PidDir, gone},
    memory::{self, Answer},
    stat::{Stat, Status},
    tree::Known,
};
use crate::{
    model::{Argv, Gap, OnSigterm, ProcId, Process, ProcessState},
    text,
};
use rustix::{
    fs::readlinkat,
    io::Errno,
    time::{ClockId, clock_gettime},
};

/// How much is read.
pub(super) enum Depth {
    /// Who it is: no age, files and mappings.
    Identity,
    /// Everything, with these files.
    Full(Files),
}

/// The `stat` of a process; `Ok(None)` if it is gone.
pub(super) fn stat(dir: &PidDir) -> Result<Option<Stat>, Errno> {
    stat_of(dir, "stat")
}

pub(super) fn stat_of(dir: &PidDir, name: &str) -> Result<Option<Stat>, Errno> {
    match handle::read(dir, name, 4096) {
        // The kernel writes this line, so one that cannot be read is another file system's.
        Ok(text) => Stat::parse(&text).map(Some).ok_or(Errno::PROTO),
        Err(error) if gone(error) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn status_of(dir: &PidDir, name: &str) -> Status {
    handle::read(dir, name, 64 << 10).map(|text| Status::parse(&text)).unwrap_or_default()
}

/// Real user and start of a process that we may not read further.
pub(super) fn status(dir: &PidDir) -> Status {
    status_of(dir, "status")
}

/// Whether every thread is on its way out, so that files which do not show any more may still be closing.
pub(super) fn closing(dir: &PidDir) -> bool {
    match stat(dir) {
        Ok(Some(stat)) if stat.dead() => !stat.plain_zombie() && live_thread(dir).is_none_or(|(_, t)| t.exiting()),
        Ok(Some(stat)) => stat.exiting(),
        _ => false,
    }
}

/// A thread that speaks for the process when the main one is gone, and with it all that `/proc/PID` itself would tell:
/// one that is not exiting if there is one, of those one in the kernel.
pub(super) fn live_thread(dir: &PidDir) -> Option<(u32, Stat)> {
    handle::numbers_in(dir, "task")
        .unwrap_or_default()
        .into_iter()
        .filter(|thread| *thread != dir.pid)
        .filter_map(|thread| Some((thread, stat_of(dir, &format!("task/{thread}/stat")).ok()??)))
        .filter(|(_, stat)| !stat.dead())
        .min_by_key(|(_, stat)| (stat.exiting(), stat.state != ProcessState::DiskSleep))
}

/// Where below its directory a process tells of itself: nowhere deeper, or in a thread that speaks for it.
pub(super) fn below(dir: &PidDir, main_is_dead: bool) -> String {
    below_speaker(if main_is_dead { live_thread(dir) } else { None }.as_ref())
}

fn below_speaker(speaker: Option<&(u32, Stat)>) -> String {
    speaker.map_or_else(String::new, |(thread, _)| format!("task/{thread}/"))
}

/// The name of the program's file. One that was replaced since is marked by the kernel.
fn program(dir: &PidDir, below: &str) -> Option<String> {
    let link = readlinkat(dir, format!("{below}exe"), Vec::new()).ok()?;
    let path = text::from_bytes(link.as_bytes());
    let name = text::file_name(path.strip_suffix(" (deleted)").unwrap_or(&path));
    (!name.is_empty()).then(|| name.to_owned())
}

/// What a SIGTERM does: the mask of what is blocked is each thread's own, and one that takes it is enough.
fn on_sigterm(dir: &PidDir, leader: &Status) -> Option<OnSigterm> {
    let does = leader.on_term()?;
    let takes_it = |thread: u32| !status_of(dir, &format!("task/{thread}/status")).blocks_term();
    let blocked =
        leader.blocks_term() && handle::numbers_in(dir, "task").is_ok_and(|threads| !threads.into_iter().any(takes_it));
    Some(if blocked { OnSigterm::Blocks } else { does })
}

impl ProcReader {
    /// What the small files tell about the process behind `dir`; the rest comes with [`Self::complete`]. `Ok(None)` if it
    /// is gone, or was a thread.
    pub(super) fn facts(&self, dir: &PidDir, depth: Depth) -> Result<Option<Process>, Errno> {
        let Some(first) = stat(dir)? else { return Ok(None) };
        let id = ProcId { pid: dir.pid, start_ticks: first.start_ticks };
        let status = status(dir);
        // The number of a thread opens a directory too, though nobody lists it. It is not a process with this PID.
        if status.tgid.is_some_and(|tgid| tgid != dir.pid) {
            return Ok(None);
        }
        let leader_gone = first.dead() && first.threads > 1;
        let speaker = if leader_gone { live_thread(dir) } else { None };
        let exiting = match &speaker {
            Some((_, thread)) => thread.exiting(),
            None => first.exiting() && !first.plain_zombie(),
        };
        let kill_pending = status.kill_pending()
            || speaker
                .as_ref()
                .is_some_and(|(thread, _)| status_of(dir, &format!("task/{thread}/status")).kill_pending());
        let (on_sigterm, sigterm_pending) = (on_sigterm(dir, &status), status.term_pending());
        let below = below_speaker(speaker.as_ref());
        let small = |name: &str, most| handle::read(dir, &format!("{below}{name}"), most).ok();

        let full = matches!(depth, Depth::Full(_));
        let files = match depth {
            Depth::Full(Files::Open(files)) => Some(files),
            Depth::Full(Files::NoTable) if !exiting => Some(Default::default()),
            _ => None,
        };
        Ok(Some(Process {
            id,
            ppid: first.ppid,
            ancestors: Vec::new(),
            pgid: first.pgid,
            sid: first.sid,
            uid: status.uid,
            user: status.uid.and_then(|uid| self.user(uid)),
            comm: first.comm,
            program: program(dir, &below),
            argv: Argv::default(),
            state: first.state,
            threads: first.threads,
            age_seconds: if full { self.age(first.start_ticks) } else { None },
            cpu_ticks: first.cpu_ticks,
            nspid: if status.nspid.is_empty() { vec![dir.pid] } else { status.nspid },
            pid_namespace: handle::namespace_inode(dir, &format!("{below}ns/pid")),
            files,
            leader_gone,
            dying: exiting || kill_pending || status.core_dumping,
            core_dumping: status.core_dumping,
            wait_channel: small("wchan", 256)
                .map(|text| String::from_utf8_lossy(&text).trim().to_owned())
                .filter(|function| !function.is_empty() && function != "0"),
            marker: None,
            marker_alive: None,
            memory_unread: false,
            cgroup: small("cgroup", 64 << 10).and_then(|text| cgroup::telling_path(&text)),
            shared_mappings: Vec::new(),
            blocked: None,
            kill_pending,
            on_sigterm,
            sigterm_pending,
            tracer: status.tracer.and_then(|pid| self.ancestor(pid)).map(|(_, tracer)| tracer),
            environment: Default::default(),
            sockets: None,
            slurm_step_alive: None,
            leads_unit: None,
        }))
    }

    /// Adds what has to be read from their memory, and the ancestors; leaves out who ended meanwhile. With `mappings` also
    /// the facts that cost more.
    pub(super) fn complete(&self, processes: Vec<Process>, mappings: bool) -> (Vec<Process>, Vec<Gap>) {
        let ids = processes.iter().map(|process| process.id).collect();
        let answers = memory::read(&self.inner.root, ids, mappings, &self.inner.stuck);
        let (mut complete, mut gaps, mut known) = (Vec::new(), Vec::new(), Known::new());
        for (mut process, answer) in processes.into_iter().zip(answers) {
            process.memory_unread = matches!(answer, Answer::Unread | Answer::Stuck);
            match answer {
                Answer::Gone => continue,
                Answer::Read(memory) => {
                    process.memory_unread = memory.environment_denied;
                    process.argv = Argv::new(memory.argv, self.options.hide_arguments);
                    process.marker = memory.marker;
                    process.shared_mappings = memory.shared_mappings;
                    process.environment = memory.environment;
                }
                Answer::Unread => gaps.push(Gap::new(
                    format!("process {}", process.id),
                    "its command line and environment could not be read: gpuresid has no open file or thread \
                     left for it, or the kernel does not give them",
                )),
                Answer::Stuck => gaps.push(Gap::new(
                    format!("process {}", process.id),
                    "its command line and environment could not be read in time: it keeps its memory locked, as a \
                     process does that is stuck in the kernel",
                )),
            }
            process.ancestors = self.ancestors(&process, &mut known);
            complete.push(process);
        }
        if mappings {
            self.watch_blocked(&mut complete);
            self.look_for_steps(&mut complete);
            self.look_into_sockets(&mut complete);
            self.look_for_main_processes(&mut complete);
        }
        (complete, gaps)
    }

    /// Seconds since a start time, on the clock that counts from boot through every suspend.
    fn age(&self, start_ticks: u64) -> Option<u64> {
        let now = u64::try_from(clock_gettime(ClockId::Boottime).tv_sec).ok()?;
        Some(now.saturating_sub(start_ticks.checked_div(self.inner.ticks_per_second)?))
    }
}
