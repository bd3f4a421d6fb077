//! Whom the user means, in the four ways of saying it, and by which proof each of them may be meant. Nothing is decided
//! by a name here, and nothing is done.

use super::{guard::Guard, job::Job, report_file::ReportFile};
use crate::{
    judge::{is_agent, may_be_left_to_its_parent, proof_by_marker},
    model::{BootId, Cause, Holder, LeftAlone, Observer, ProcId, Process, Snapshot, StatusReport, marker_names},
    observe::{marker, proc::ProcReader},
    text::{self, name::Name},
};
use std::time::{Duration, SystemTime};

/// What there is to choose from, and the means to look closer.
pub struct World<'a> {
    /// The look.
    pub snapshot: &'a Snapshot,
    /// What is said of it.
    pub status: &'a StatusReport,
    /// To look at single processes.
    pub reader: &'a ProcReader,
    /// Who is never touched.
    pub guard: &'a Guard,
}

impl World<'_> {
    /// Everything about the process with this number, and whether the run of its marker lives.
    pub(super) fn examine(&self, pid: u32) -> anyhow::Result<Option<Process>> {
        let found = self.reader.examine(pid)?;
        Ok(found.map(|process| self.with_run(process)))
    }

    /// As [`Self::examine`], without files: for ancestors.
    pub(super) fn identify(&self, id: ProcId) -> Option<Process> {
        let process = self.reader.identify(id.pid).ok().flatten().filter(|p| p.id == id)?;
        Some(self.with_run(process))
    }

    fn with_run(&self, mut process: Process) -> Process {
        let namespace = self.snapshot.observer.pid_namespace;
        marker::look_for_runs(self.reader, self.boot_id(), namespace, std::slice::from_mut(&mut process));
        process
    }

    fn boot_id(&self) -> &BootId {
        &self.snapshot.boot_id
    }

    /// The holder that the look named, if it is this process.
    pub(super) fn holder(&self, id: ProcId) -> Option<&Holder> {
        self.status.holders.iter().find(|h| h.pid == id.pid && h.start_ticks == Some(id.start_ticks))
    }
}

/// Who is meant.
#[derive(Debug, Clone)]
pub enum Targets {
    /// Own leftovers of a check.
    Report(Box<ReportFile>),
    /// These.
    Pids(Vec<u32>),
    /// Everybody whose run is proven to have ended.
    Orphans {
        /// Only those that started at least so long ago.
        older_than: Option<Duration>,
    },
    /// Everybody of a Slurm job.
    Job(Job),
}

/// A process that may be ended, for this reason.
pub(super) struct Claim {
    pub(super) process: Process,
    pub(super) why: Vec<String>,
}

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) claims: Vec<Claim>,
    pub(super) left_alone: Vec<LeftAlone>,
}

impl Found {
    fn leave(&mut self, process: &Process, why: impl Into<String>) {
        self.left_alone.push(leave(process, why));
    }
}

pub(super) fn leave(process: &Process, why: impl Into<String>) -> LeftAlone {
    LeftAlone { pid: process.id.pid, command: Some(command(process)), why: why.into() }
}

pub(super) fn command(process: &Process) -> String {
    Name::from(process).whole()
}

impl Targets {
    /// Named one by one: then what cannot be done is an error, not something to pass over.
    pub(super) fn by_number(&self) -> bool {
        matches!(self, Self::Pids(_))
    }

    /// That there is nobody to end, in one sentence.
    pub fn nobody(&self, left_alone: &[LeftAlone], observer: &Observer) -> String {
        let all_gone = left_alone.iter().all(|left| left.command.is_none());
        let why = match self {
            Self::Pids(pids) => {
                let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
                let has = if pids.len() == 1 { "has" } else { "have" };
                let elsewhere = if observer.out_of_sight() { ", or is not to be seen from here" } else { "" };
                format!("PID {} {has} ended already{elsewhere}", pids.join(", "))
            }
            _ if !all_gone => "the processes found are left alone, for the reasons below".into(),
            Self::Report(_) if left_alone.is_empty() => "the report names no process that outlived its run".into(),
            Self::Report(_) => "all processes that the report names have ended".into(),
            Self::Orphans { older_than: None } => "no process is proven to have outlived its run".into(),
            Self::Orphans { older_than: Some(least) } => format!(
                "no process that was started at least {} ago is proven to have outlived its run",
                humantime::format_duration(*least)
            ),
            Self::Job(job) => job.nobody(observer),
        };
        format!("nobody to end: {why}")
    }

    /// That nobody was found is no success: what was named is not here.
    pub fn is_missed(&self, observer: &Observer) -> bool {
        matches!(self, Self::Job(job) if !job.is_ours(observer))
    }

    pub(super) fn find(&self, world: &World<'_>) -> anyhow::Result<Found> {
        match self {
            Self::Pids(pids) => named(world, pids),
            Self::Report(report) => Ok(of_report(world, report)),
            Self::Orphans { older_than } => orphans(world, *older_than),
            Self::Job(job) => job.members(world),
        }
    }

    /// Why this ancestor of a claim would start it again; `None`: nothing says so.
    pub(super) fn supervises(&self, ancestor: &Process, holder: &Process) -> Option<String> {
        match self {
            Self::Pids(pids) if pids.contains(&ancestor.id.pid) => Some("you named it".into()),
            Self::Pids(_) => is_agent(ancestor)
                .then(|| "its command line is that of a launcher that starts its workers again".into()),
            Self::Report(report) => report
                .own()
                .contains(&ancestor.id)
                .then(|| format!("it is of the same run, and PID {} runs below it", holder.id.pid)),
            Self::Orphans { .. } => {
                (ancestor.marker_alive == Some(false) && ancestor.marker == holder.marker).then(|| {
                    format!("it carries the marker of the same ended run, and PID {} runs below it", holder.id.pid)
                })
            }
            Self::Job(job) => (job.has(ancestor) && ancestor.comm != "slurmstepd")
                .then(|| format!("it is of the same job, and PID {} runs below it", holder.id.pid)),
        }
    }
}

fn named(world: &World<'_>, pids: &[u32]) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut pids = pids.to_vec();
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        match world.examine(pid)? {
            Some(process) if !is_zombie(&process) => {
                found.claims.push(Claim { process, why: vec!["you named it".into()] });
            }
            _ => {
                let blind = world.snapshot.observer.blind_spot();
                let elsewhere = blind.map_or_else(String::new, |why| format!(", or is not to be seen: {why}"));
                let why = format!("it has ended already{elsewhere}");
                found.left_alone.push(LeftAlone { pid, command: None, why });
            }
        }
    }
    Ok(found)
}

fn is_zombie(process: &Process) -> bool {
    process.state == crate::model::ProcessState::Zombie && !process.leader_gone
}

/// Whoever the report names and is still that process is held against what can be seen of it now.
fn of_report(world: &World<'_>, report: &ReportFile) -> Found {
    let mut found = Found::default();
    let own = report.own();
    for id in &own {
        let process = match world.examine(id.pid) {
            Ok(Some(process)) if !is_zombie(&process) || process.id != *id => process,
            Ok(_) => {
                found.left_alone.push(LeftAlone { pid: id.pid, command: None, why: "it has ended already".into() });
                continue;
            }
            Err(error) => {
                found.left_alone.push(LeftAlone { pid: id.pid, command: None, why: format!("{error:#}") });
                continue;
            }
        };
        if process.id != *id {
            found.leave(&process, "the one of the report has ended; its number belongs to another process by now");
            continue;
        }
        if world.guard.never_us(*id).is_err() {
            // The plan refuses all of a report that names one of these.
            found.claims.push(Claim { process, why: Vec::new() });
            continue;
        }
        match fits(report, &own, &process) {
            Ok(why) => found.claims.push(Claim { process, why: vec![why] }),
            Err(why) => found.leave(&process, format!("{why}; if it is to end: gpuresid reclaim --pid {}", id.pid)),
        }
    }
    found
}

/// Why this process, which the report names, is of its run.
fn fits(report: &ReportFile, own: &[ProcId], process: &Process) -> Result<String, String> {
    if let Some(marker) = &process.marker {
        return if marker_names(marker, &report.run_id) {
            Ok("the report names it, and its environment carries that run's marker".into())
        } else {
            Err("the report names it, but its environment carries another run's marker".into())
        };
    }
    let parent = process.ancestors.first();
    if let Some(parent) = parent
        && !own.contains(&parent.id)
        && !may_be_left_to_its_parent(process)
    {
        let (comm, pid) = (text::clean(&parent.comm), parent.id.pid);
        return Err(format!("the report names it, but its parent is {comm} ({pid}), which is not of that run"));
    }
    let started = process.age_seconds.and_then(|age| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(now.saturating_sub(Duration::from_secs(age)).as_secs_f64())
    });
    match report.started_between().zip(started) {
        Some(((from, to), at)) if at < from || at > to + 1.0 => {
            Err("the report names it, but it was not started while that run lasted".into())
        }
        _ => {
            Ok("the report names it, it was started during that run, and what started it has gone or is of the run"
                .into())
        }
    }
}

fn orphans(world: &World<'_>, older_than: Option<Duration>) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for holder in &world.status.holders {
        let Some(start_ticks) = holder.start_ticks else { continue };
        let Some(process) = world.examine(holder.pid)?.filter(|p| p.id.start_ticks == start_ticks) else { continue };
        let why = match run_ended(world, holder, &process) {
            Ok(why) => why,
            Err(Some(why)) => {
                found.leave(&process, why);
                continue;
            }
            Err(None) => continue,
        };
        if let Some(least) = older_than
            && process.age_seconds.is_none_or(|age| Duration::from_secs(age) < least)
        {
            let shown = humantime::format_duration(least);
            found.leave(&process, format!("its run has ended, but it was started less than {shown} ago"));
            continue;
        }
        found.claims.push(Claim { process, why });
    }
    Ok(found)
}

/// The proof that the run of this holder has ended; else why it is left alone, if that is worth a word.
fn run_ended(world: &World<'_>, holder: &Holder, process: &Process) -> Result<Vec<String>, Option<String>> {
    let name_it = format!("if you know that it has: gpuresid reclaim --pid {}", holder.pid);
    let proof = proof_by_marker(holder.cause, process, |id| world.identify(id));
    match holder.cause {
        Cause::Orphan => Ok(holder.why.first().cloned().into_iter().collect()),
        _ if proof.is_some() => Ok(proof.into_iter().map(Into::into).collect()),
        Cause::Stopped | Cause::HalfDead | Cause::ForkedCopy | Cause::ExportedHandle | Cause::PeerMapping => {
            Err(Some(format!("that its run has ended is not proven; {name_it}")))
        }
        Cause::Detached => Err(Some(format!(
            "detached: what started it is gone or is PID 1, as with nohup, services and containers; that is no proof that \
             its run has ended; {name_it}"
        ))),
        Cause::StuckInKernel => Err(Some("it is stuck in the kernel, where no signal reaches it".into())),
        Cause::Draining => Err(Some("it is on its way out, nothing needs to be ended".into())),
        _ => Err(None),
    }
}
