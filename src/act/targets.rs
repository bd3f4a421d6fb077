//! Whom the user means, in each way of saying it, and what speaks for each of them. Nothing is decided by a name here, and
//! nothing is done; what each way may reach is in [`super::terms`].

use super::{ci::CiJob, guard::Guard, job::Job, report_file::ReportFile, unattended::Unattended};
use crate::{
    judge::{may_be_left_to_its_parent, sign_of_end},
    model::{
        BootId, Cause, Evidence, Holder, LeftAlone, Observer, ProcId, Process, Snapshot, StatusReport, marker_names,
    },
    observe::{marker, proc::ProcReader},
    text::{self, name::Name},
};
use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

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

    /// The same, if its number is still this process's.
    pub(super) fn find(&self, id: ProcId) -> anyhow::Result<Option<Process>> {
        Ok(self.examine(id.pid)?.filter(|process| process.id == id))
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
#[derive(Debug)]
pub enum Targets {
    /// Own leftovers of a check.
    Report(Box<ReportFile>),
    /// These.
    Pids(Vec<u32>),
    /// Everybody of the user who seems left over.
    Orphans {
        /// Only those that started at least so long ago.
        older_than: Option<Duration>,
    },
    /// Everybody of a Slurm job.
    Job(Job),
    /// Everybody of the CI job that we run in.
    Ci(CiJob),
    /// Everybody for whom leave was given.
    Unattended(Unattended),
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
    /// Whose end is meant too, but who holds nothing: nobody is spared for their sake.
    pub(super) belong: BTreeSet<ProcId>,
    /// Somebody may be meant who could not be read.
    pub(super) unsure: bool,
}

impl Found {
    pub(super) fn leave(&mut self, process: &Process, why: impl Into<String>) {
        self.left_alone.push(leave(process, why));
    }

    /// Nothing says that this process is meant, which is no answer where it could not be read. What we may not read is
    /// others', whom we may not end either.
    fn not_said_of(&mut self, process: &Process, asker: u32) {
        if process.memory_unread && (asker == 0 || process.uid == Some(asker)) {
            self.leave(process, "its environment could not be read, so it cannot be told whether it is meant");
            self.unsure = true;
        }
    }
}

pub(super) fn leave(process: &Process, why: impl Into<String>) -> LeftAlone {
    LeftAlone { pid: process.id.pid, command: Some(command(process)), why: why.into() }
}

pub(super) fn command(process: &Process) -> String {
    Name::from(process).whole()
}

impl Targets {
    /// That there is nobody to end, in one sentence.
    pub fn nobody(&self, left_alone: &[LeftAlone], observer: &Observer) -> String {
        let all_gone = left_alone.iter().all(|left| left.command.is_none());
        let why = match self {
            Self::Pids(pids) => {
                let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
                let has = if pids.len() == 1 { "has" } else { "have" };
                let elsewhere = if observer.out_of_sight() { ", or cannot be seen from here" } else { "" };
                format!("PID {} {has} ended already{elsewhere}", pids.join(", "))
            }
            _ if !all_gone => "the processes found are left alone, for the reasons below".into(),
            Self::Report(_) if left_alone.is_empty() => "the report names no process that outlived its run".into(),
            Self::Report(_) => "all processes that the report names have ended".into(),
            Self::Orphans { older_than: None } => "no process of yours seems left over".into(),
            Self::Orphans { older_than: Some(least) } => format!(
                "no process of yours that was started at least {} ago seems left over",
                humantime::format_duration(*least)
            ),
            Self::Job(job) => job.nobody(observer),
            Self::Ci(job) => job.nobody(),
            Self::Unattended(leave) => leave.nobody(),
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
            Self::Ci(job) => job.members(world),
            Self::Unattended(leave) => leave.members(world),
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
            Some(process) if !process.is_zombie() => {
                found.claims.push(Claim { process, why: vec!["you named it".into()] });
            }
            _ => {
                let blind = world.snapshot.observer.blind_spot();
                let elsewhere = blind.map_or_else(String::new, |why| format!(", or cannot be seen: {why}"));
                let why = format!("it has ended already{elsewhere}");
                found.left_alone.push(LeftAlone { pid, command: None, why });
            }
        }
    }
    Ok(found)
}

/// Whoever the report names and is still that process is held against what can be seen of it now.
fn of_report(world: &World<'_>, report: &ReportFile) -> Found {
    let mut found = Found::default();
    let own = report.own();
    found.belong.extend(&own);
    for id in &own {
        let process = match world.examine(id.pid) {
            Ok(Some(process)) if !process.is_zombie() || process.id != *id => process,
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
            found.leave(&process, "the process in the report has ended; its number belongs to another process now");
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
        Some(_) => {
            Ok("the report names it, it was started during that run, and what started it has gone or is of the run"
                .into())
        }
        None => Err("the report names it, but it cannot be told whether it was started while that run lasted".into()),
    }
}

/// Processes that seem left over, by a sign: the user decides, who sees it in the plan.
fn orphans(world: &World<'_>, older_than: Option<Duration>) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for holder in &world.status.holders {
        let Some(start_ticks) = holder.start_ticks else { continue };
        let Some(process) = world.examine(holder.pid)?.filter(|p| p.id.start_ticks == start_ticks) else { continue };
        let why = match left_over(holder, &process) {
            Ok(why) => why,
            Err(Some(why)) => {
                found.leave(&process, why);
                continue;
            }
            Err(None) => {
                found.not_said_of(&process, world.snapshot.observer.uid);
                continue;
            }
        };
        if let Some(least) = older_than
            && process.age_seconds.is_none_or(|age| Duration::from_secs(age) < least)
        {
            let shown = humantime::format_duration(least);
            found.leave(&process, format!("it seems left over, but it was started less than {shown} ago"));
            continue;
        }
        found.claims.push(Claim { process, why });
    }
    Ok(found)
}

/// The signs that the run of this holder has ended; else why it is left alone, if that is worth a word.
fn left_over(holder: &Holder, process: &Process) -> Result<Vec<String>, Option<String>> {
    let name_it = format!("if you know that it has: gpuresid reclaim --pid {}", holder.pid);
    match (holder.cause, sign_of_end(holder.cause, process)) {
        (Cause::Orphan, _) => Ok(holder.why.sentences()),
        (_, true) => Ok(vec![Evidence::RunEnded.to_string()]),
        (Cause::Stopped | Cause::HalfDead | Cause::ForkedCopy | Cause::ExportedHandle | Cause::PeerMapping, false) => {
            Err(Some(format!("nothing shows that its run has ended; {name_it}")))
        }
        (Cause::Detached, false) => Err(Some(format!(
            "detached: what started it is gone or is PID 1, as with nohup, services and containers; that does not show \
             that its run has ended; {name_it}"
        ))),
        (Cause::StuckInKernel, false) => Err(Some("it is stuck in the kernel, where no signal reaches it".into())),
        (Cause::Draining, false) => Err(Some("it is already ending, so nothing needs to be done".into())),
        _ => Err(None),
    }
}

/// Whether a process is of a job.
pub(super) enum Membership {
    /// It is, for this reason.
    Is(String),
    /// It is not; with the reason where it only looks so.
    Not(Option<String>),
}

/// Everybody with a GPU open who is a member, by what `why` finds out, and those above them who are members too. Where
/// somebody stands between who is none, and above ourselves, it ends.
pub(super) fn members(world: &World<'_>, why: impl Fn(&Process) -> Membership) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    for holder in world.snapshot.scanned() {
        let below = holder.ancestors.iter().map(|ancestor| ancestor.id);
        for id in std::iter::once(holder.id).chain(below) {
            if world.guard.never_us(id).is_err() || !seen.insert(id) {
                break;
            }
            let process = world.find(id)?.filter(|process| !process.is_zombie());
            let Some((member, process)) = process.map(|process| (why(&process), process)) else { break };
            match member {
                Membership::Is(why) => found.claims.push(Claim { process, why: vec![why] }),
                Membership::Not(Some(why)) => {
                    found.leave(&process, why);
                    break;
                }
                Membership::Not(None) => {
                    found.not_said_of(&process, world.snapshot.observer.uid);
                    break;
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getuid;

    #[test]
    fn that_nothing_could_be_read_is_not_that_nobody_is_meant() {
        let reader = ProcReader::new(Default::default()).unwrap();
        let mut one = reader.examine(std::process::id()).unwrap().unwrap();
        let me = getuid().as_raw();
        let unsure = |one: &Process, asker| {
            let mut found = Found::default();
            found.not_said_of(one, asker);
            assert_eq!(found.unsure, !found.left_alone.is_empty());
            found.unsure
        };
        assert!(!unsure(&one, me), "it was read, and says nothing");
        one.memory_unread = true;
        assert!(unsure(&one, me) && unsure(&one, 0));
        one.uid = Some(me + 1);
        assert!(!unsure(&one, me + 2), "another's may not be read, and not be ended");
    }
}
