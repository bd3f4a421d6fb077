//! Which processes are of a run, by descent: one answer for everybody who asks, while it runs and in the judgement.

use super::{Ancestor, ProcId};

/// The command and what descends from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTree {
    /// The subreaper, below which all of the run stands. `None` where there was none.
    pub root: Option<ProcId>,
    /// The command. `None`: nothing is known to be older than it.
    pub command: Option<ProcId>,
}

impl RunTree {
    /// The process is the command or below it. What hangs below the subreaper and is older than the command was there
    /// before (a child that the shell had when it became gpuresid by `exec`), and so is not of the run, nor are that
    /// one's children.
    pub fn has(&self, id: ProcId, ancestors: &[Ancestor]) -> bool {
        let was_there = |id: ProcId| self.command.is_some_and(|command| id.start_ticks < command.start_ticks);
        let between = ancestors.iter().take_while(|a| Some(a.id) != self.root);
        Some(id) == self.command
            || (self.reaches(ancestors) && !was_there(id) && !between.into_iter().any(|a| was_there(a.id)))
    }

    /// The parent chain leads to the subreaper.
    pub fn reaches(&self, ancestors: &[Ancestor]) -> bool {
        self.root.is_some_and(|root| ancestors.iter().any(|a| a.id == root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: u32, start_ticks: u64) -> ProcId {
        ProcId { pid, start_ticks }
    }

    fn chain(ids: &[ProcId]) -> Vec<Ancestor> {
        ids.iter().map(|id| Ancestor { id: *id, comm: "x".into(), uid: None, sid: None }).collect()
    }

    #[test]
    fn descent_without_bystanders() {
        let (init, root, command, bystander) = (id(1, 0), id(10, 50), id(20, 100), id(11, 60));
        let tree = RunTree { root: Some(root), command: Some(command) };
        let own = |who, above: &[ProcId]| tree.has(who, &chain(above));
        assert!(own(command, &[root, init]), "the command");
        assert!(own(id(21, 100), &[command, root, init]), "its child of the same tick");
        assert!(own(id(22, 110), &[root, init]), "one that was left to us");
        assert!(!own(bystander, &[root, init]), "older than the command");
        assert!(!own(id(23, 120), &[bystander, root, init]), "a child of such a one");
        assert!(!own(id(24, 130), &[id(23, 120), bystander, root, init]), "a grandchild");
        assert!(!own(id(25, 120), &[init]), "a stranger");
        assert!(!own(root, &[init]), "the tool itself");
        let nameless = RunTree { root: Some(root), command: None };
        assert!(nameless.has(bystander, &chain(&[root, init])) && !nameless.has(command, &chain(&[init])));
        assert!(!RunTree { root: None, command: Some(command) }.has(id(21, 110), &chain(&[root, init])));
    }
}
