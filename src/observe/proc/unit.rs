//! Whether a process is the main one of its service. Its parent does not tell: a leftover of a service has the service
//! manager for its parent too. Apart, because the other members of the control group are looked at for it, and so it is
//! done only for children of a service manager.

use super::{
    ProcReader,
    facts::stat,
    handle::PidDir,
    memory::{self, Answer},
};
use crate::model::{ProcId, Process};

/// What systemd (from 248 on) tells each process that it starts: that one's own number, which children inherit.
const STARTED_AS: &str = "SYSTEMD_EXEC_PID";

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
        path.rsplit('/').next().filter(|leaf| leaf.ends_with(".service"))?;
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
        Some(leads(&own, &children))
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
            Answer::Gone | Answer::Stuck => None,
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
/// main one; else the oldest.
fn leads(own: &Child, others: &[Child]) -> bool {
    let says_so = |child: &Child| child.started_as == Some(child.id.pid);
    let is_above_us = |child: &Child| own.started_as == Some(child.id.pid);
    if others.iter().any(|other| says_so(other) || is_above_us(other)) {
        return false;
    }
    others.iter().any(|other| other.started_as == Some(own.id.pid))
        || others.iter().all(|other| other.id.start_ticks >= own.id.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(pid: u32, start_ticks: u64, started_as: Option<u32>) -> Child {
        Child { id: ProcId { pid, start_ticks }, started_as }
    }

    #[test]
    fn what_systemd_told_decides_before_age() {
        let main = child(70, 20, Some(70));
        // The service was started again: what its first run left is older.
        assert!(!leads(&child(60, 10, Some(50)), &[main]), "what was left is not the main process");
        let main = child(70, 10, None);
        assert!(!leads(&child(80, 20, Some(70)), &[main]), "started below the one that erased its environment");
        assert!(leads(&child(70, 10, None), &[child(80, 20, Some(70))]));
        assert!(leads(&child(70, 20, None), &[child(60, 10, Some(70))]), "whatever their numbers of the clock");
    }

    #[test]
    fn without_a_word_the_oldest_leads() {
        let old = || child(60, 10, None);
        let young = || child(70, 20, None);
        assert!(leads(&old(), &[young()]) && !leads(&young(), &[old()]) && leads(&old(), &[]));
        // A daemon that forked itself away from what systemd started.
        assert!(leads(&child(61, 11, Some(60)), &[]));
    }
}
