//! Whether a process is the main one of its service. Its parent does not tell: a leftover of a service has the service
//! manager for its parent too. systemd knows, and is asked; where it cannot be, what it told the processes that it
//! started decides, and where they have lost that, everybody who could be it may be it.

use super::{
    ProcReader, cgroup,
    facts::stat,
    handle::{self, PidDir},
    memory::{self, Answer},
    systemd,
};
use crate::model::{ProcId, Process};
use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

/// What systemd (from 248 on) tells each process that it starts: that one's own number, which children inherit.
const STARTED_AS: &str = "SYSTEMD_EXEC_PID";
/// So long what systemd said is taken for true: many processes of one service are looked at one after the other.
const FRESH: Duration = Duration::from_secs(1);

/// What systemd said of a service, and when.
pub(super) type Told = (Instant, Option<u32>);

/// A child of the service manager in the control group.
struct Child {
    id: ProcId,
    /// The number in its environment.
    started_as: Option<u32>,
}

impl ProcReader {
    /// Fills in `leads_unit`.
    pub(super) fn look_for_main_processes(&self, processes: &mut [Process]) {
        for process in processes {
            process.leads_unit = self.is_main(process);
        }
    }

    fn is_main(&self, process: &Process) -> Option<bool> {
        let path = process.cgroup.as_deref()?;
        let service = systemd::unit_of(path)?;
        if let Some(main) = self.main_pid(service) {
            return Some(main == process.id.pid);
        }
        let parent = process.ancestors.first()?;
        if parent.id.pid != 1 && parent.comm != "systemd" {
            return Some(false);
        }
        let own = Child { id: process.id, started_as: number(process.environment.get(STARTED_AS)) };
        if own.started_as == Some(own.id.pid) {
            return Some(true);
        }
        let mut children = self.children_in(path, parent.id.pid)?;
        children.retain(|child| child.id != own.id);
        leads(&own, &children)
    }

    /// What systemd says, of a process that is in the service's control group as we see it: another one's numbers are
    /// another namespace's.
    fn main_pid(&self, service: systemd::Service<'_>) -> Option<u32> {
        let told = |all: &std::collections::HashMap<String, Told>| {
            all.get(service.group).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, main)| *main)
        };
        let known = told(&self.inner.main_pids.lock().unwrap_or_else(PoisonError::into_inner));
        known.unwrap_or_else(|| {
            let main = systemd::main_pid(&self.options.run, service.manager, service.name);
            let main = main.filter(|main| self.is_in(*main, service.group));
            let mut all = self.inner.main_pids.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(service.group.to_owned(), (Instant::now(), main));
            main
        })
    }

    /// Whether a process is in this control group, or in one below it.
    fn is_in(&self, pid: u32, group: &str) -> bool {
        let Ok(Some(dir)) = PidDir::open(&self.inner.root, pid) else { return false };
        let path = handle::read(&dir, "cgroup", 64 << 10).ok().and_then(|text| cgroup::telling_path(&text));
        path.as_deref()
            .and_then(|path| path.strip_prefix(group))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The children of the service manager in a control group; `None` if its members cannot be read.
    fn children_in(&self, path: &str, manager: u32) -> Option<Vec<Child>> {
        let members = self.members(path)?;
        let child = |pid: u32| {
            let stat = stat(&PidDir::open(&self.inner.root, pid).ok()??).ok()??;
            (stat.ppid == manager && !stat.plain_zombie()).then_some(ProcId { pid, start_ticks: stat.start_ticks })
        };
        let ids: Vec<ProcId> = members.into_iter().filter_map(child).collect();
        let environments = memory::read(&self.inner.root, ids.clone(), true, &self.inner.stuck);
        let started_as = |answer: Answer<memory::Memory>| match answer {
            Answer::Read(memory) => number(memory.environment.get(STARTED_AS)),
            Answer::Gone | Answer::Stuck | Answer::Unread => None,
        };
        Some(ids.into_iter().zip(environments).map(|(id, a)| Child { id, started_as: started_as(a) }).collect())
    }

    /// The processes of a control group, in the places where its hierarchy is mounted.
    fn members(&self, path: &str) -> Option<Vec<u32>> {
        ["", "unified", "systemd"].iter().find_map(|hierarchy| {
            let mounted = self.options.sys.join("fs/cgroup").join(hierarchy);
            let list = std::fs::read_to_string(mounted.join(path.trim_start_matches('/')).join("cgroup.procs")).ok()?;
            Some(list.lines().filter_map(|line| line.trim().parse().ok()).collect())
        })
    }
}

fn number(value: Option<&String>) -> Option<u32> {
    value?.parse().ok()
}

/// Of the children of the service manager in a unit the one that says so itself, or that another was started by, is the
/// main one. Where nobody says so, the only one is it; of several it may be each.
fn leads(own: &Child, others: &[Child]) -> Option<bool> {
    let says_so = |child: &Child| child.started_as == Some(child.id.pid);
    let is_above_us = |child: &Child| own.started_as == Some(child.id.pid);
    if others.iter().any(|other| says_so(other) || is_above_us(other)) {
        return Some(false);
    }
    let started_others = others.iter().any(|other| other.started_as == Some(own.id.pid));
    (started_others || others.is_empty()).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(pid: u32, start_ticks: u64, started_as: Option<u32>) -> Child {
        Child { id: ProcId { pid, start_ticks }, started_as }
    }

    #[test]
    fn what_systemd_told_those_it_started_decides() {
        let main = child(70, 20, Some(70));
        // The service was started again: what its first run left is older.
        assert_eq!(leads(&child(60, 10, Some(50)), &[main]), Some(false), "what was left is not the main process");
        let main = child(70, 10, None);
        let born_below = leads(&child(80, 20, Some(70)), &[main]);
        assert_eq!(born_below, Some(false), "started below the one that erased its environment");
        assert_eq!(leads(&child(70, 10, None), &[child(80, 20, Some(70))]), Some(true));
        assert_eq!(leads(&child(70, 20, None), &[child(60, 10, Some(70))]), Some(true), "whatever their ages");
    }

    #[test]
    fn without_a_word_each_may_be_it() {
        let (old, young) = (|| child(60, 10, None), || child(70, 20, None));
        assert_eq!((leads(&old(), &[young()]), leads(&young(), &[old()])), (None, None), "age tells nothing");
        assert_eq!(leads(&old(), &[]), Some(true));
        // A daemon that forked itself away from what systemd started.
        assert_eq!(leads(&child(61, 11, Some(60)), &[]), Some(true));
    }
}
