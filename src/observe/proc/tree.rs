//! Parents and children.

use super::{
    ProcReader,
    facts::{Depth, stat, status},
    handle::PidDir,
    stat::Stat,
};
use crate::model::{Ancestor, ProcId, Process};
use std::collections::{HashMap, HashSet};

/// A longer chain is no chain.
const MOST_ANCESTORS: usize = 64;

/// Ancestors that were read already: processes of one run share most of them.
pub(super) type Known = HashMap<u32, Option<(u32, Ancestor)>>;

impl ProcReader {
    /// The parents of `process` up to and including PID 1, as far as they can be read.
    pub(super) fn ancestors(&self, process: &Process, known: &mut Known) -> Vec<Ancestor> {
        let mut chain: Vec<Ancestor> = Vec::new();
        let (mut parent, mut youngest) = (process.ppid, process.id.start_ticks);
        while parent != 0 && chain.len() < MOST_ANCESTORS {
            let Some((next, ancestor)) = known.entry(parent).or_insert_with(|| self.ancestor(parent)).clone() else {
                break;
            };
            // A parent is never younger than its child: this number went to somebody else since we read it.
            if ancestor.id.start_ticks > youngest || chain.iter().any(|a| a.id == ancestor.id) {
                break;
            }
            youngest = ancestor.id.start_ticks;
            chain.push(ancestor);
            parent = next;
        }
        chain
    }

    pub(super) fn ancestor(&self, pid: u32) -> Option<(u32, Ancestor)> {
        let dir = PidDir::open(&self.inner.root, pid).ok()??;
        let stat = stat(&dir).ok()??;
        let id = ProcId { pid, start_ticks: stat.start_ticks };
        Some((stat.ppid, Ancestor { id, comm: stat.comm, uid: status(&dir).uid, sid: Some(stat.sid) }))
    }

    /// The living descendants of `root` with everything that tells who they are.
    pub(super) fn tree(&self, root: u32) -> Vec<Process> {
        self.living(below(root, &self.every_stat()))
    }

    /// The same by the kernel's own lists of children: the cost grows with the tree and not with the machine, and a
    /// child that comes or goes meanwhile may be missed. `None` where the kernel keeps no such lists.
    pub(super) fn listed_tree(&self, root: u32) -> Option<Vec<Process>> {
        let mut found = self.listed_children(root)?;
        let mut seen: HashSet<u32> = found.iter().copied().chain([root]).collect();
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            at += 1;
            // One that is gone by now has none.
            let next = self.listed_children(parent).unwrap_or_default();
            found.extend(next.into_iter().filter(|pid| seen.insert(*pid)));
        }
        Some(self.living(found))
    }

    /// The children alone, in the same way.
    pub(super) fn listed_children_of(&self, pid: u32) -> Option<Vec<Process>> {
        self.listed_children(pid).map(|children| self.living(children))
    }

    fn listed_children(&self, pid: u32) -> Option<Vec<u32>> {
        let tasks = self.options.procfs.join(pid.to_string()).join("task");
        let mut children = Vec::new();
        for task in std::fs::read_dir(tasks).ok()?.flatten() {
            match std::fs::read_to_string(task.path().join("children")) {
                Ok(list) => children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok())),
                Err(_) if task.path().exists() => return None,
                Err(_) => {}
            }
        }
        Some(children)
    }

    fn living(&self, pids: Vec<u32>) -> Vec<Process> {
        let processes = pids
            .into_iter()
            .filter_map(|pid| self.facts(&PidDir::open(&self.inner.root, pid).ok()??, Depth::Identity).ok()?)
            .filter(|process| !process.is_zombie())
            .collect();
        self.complete(processes, false).0
    }

    /// Every process with its parent. The pass is not atomic: a parent that ended after its child was read is not in
    /// it, and the child has another one by now. Such children are read again.
    fn every_stat(&self) -> HashMap<u32, Stat> {
        let read = |pid| stat(&PidDir::open(&self.inner.root, pid).ok()??).ok()?;
        let mut all: HashMap<u32, Stat> =
            self.pids().unwrap_or_default().into_iter().filter_map(|pid| Some((pid, read(pid)?))).collect();
        for _ in 0..8 {
            let lost: Vec<u32> = all
                .iter()
                .filter(|(_, stat)| stat.ppid != 0 && !all.contains_key(&stat.ppid))
                .map(|(pid, _)| *pid)
                .collect();
            if lost.is_empty() {
                break;
            }
            for pid in lost {
                match read(pid) {
                    Some(stat) => all.insert(pid, stat),
                    None => all.remove(&pid),
                };
            }
        }
        all
    }
}

/// The living processes below `root`, parents before children. A main thread that is gone while others live counts
/// as living.
fn below(root: u32, all: &HashMap<u32, Stat>) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, stat) in all {
        children.entry(stat.ppid).or_default().push(*pid);
    }
    let mut seen = HashSet::from([root]);
    let mut found = vec![root];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        at += 1;
        let mut next = children.remove(&parent).unwrap_or_default();
        next.sort_unstable();
        found.extend(next.into_iter().filter(|pid| seen.insert(*pid)));
    }
    found.retain(|pid| *pid != root && all.get(pid).is_some_and(|stat| !stat.plain_zombie()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rows: &[(u32, u32, &str, u32)]) -> HashMap<u32, Stat> {
        rows.iter()
            .map(|(pid, ppid, state, threads)| {
                let text = format!("{pid} (x) {state} {ppid} 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 5");
                (*pid, Stat::parse(text.as_bytes()).expect("a stat line"))
            })
            .collect()
    }

    #[test]
    fn descendants_without_zombies() {
        let all = all(&[
            (1, 0, "S", 1),
            (10, 1, "S", 1),
            (11, 10, "S", 1),
            (12, 11, "Z", 1),
            (13, 11, "Z", 4),
            (14, 13, "T", 1),
            (20, 1, "S", 1),
        ]);
        assert_eq!(below(10, &all), [11, 13, 14]);
        assert_eq!(below(99, &all), [0; 0]);
    }

    #[test]
    fn a_loop_ends() {
        assert_eq!(below(1, &all(&[(1, 2, "S", 1), (2, 1, "S", 1), (3, 3, "S", 1)])), [2]);
    }
}
