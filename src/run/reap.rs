//! Whether anything of the run is alive, and the burial of what has been left to us.
//!
//! We are the subreaper: every process of the run is below us, whatever it did to its session, its parents or its
//! name. `waitid` over all children therefore says ECHILD exactly when nothing of the run lives. It only peeks
//! (WNOWAIT); each status is then taken by PID, the command's by [`Running`], so that no status gets lost.

use super::{
    family::{Kin, Myself},
    signal_child::Running,
};
use crate::model::ProcId;
use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid},
};
use std::collections::BTreeSet;

/// Takes care of our children.
#[derive(Debug)]
pub(super) struct Reaper {
    myself: Myself,
    /// Children that are not of the run: those of the process that became us by exec (`bash -c 'a & exec gpuresid …'`).
    bystanders: BTreeSet<u32>,
    /// There were such at the start, or we are the first process of a PID namespace.
    company: bool,
}

impl Reaper {
    /// Becomes the subreaper. Children that exist now are not of the run.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn start(myself: Myself) -> rustix::io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let bystanders: BTreeSet<u32> = myself.children().iter().map(|kin| kin.pid).collect();
        let company = !bystanders.is_empty() || myself.init;
        Ok(Self { myself, bystanders, company })
    }

    /// Processes below us need not be of the run: others may have been left to us.
    pub(super) fn has_company(&self) -> bool {
        self.company
    }

    /// Takes the status of every child that has ended; the command keeps its own.
    pub(super) fn reap(&mut self, command: &mut Running) {
        while waiting() {
            let ran = command.runs();
            let _ = command.poll();
            let mut progress = ran && !command.runs();
            for kin in self.myself.children() {
                if kin.pid != command.pid() || !command.runs() {
                    progress |= self.take(kin.pid);
                }
            }
            if !progress {
                return;
            }
        }
    }

    /// Takes the status of the child with this PID, if it has ended.
    fn take(&mut self, pid: u32) -> bool {
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        let taken = matches!(waitpid(Some(raw), WaitOptions::NOHANG), Ok(Some(_)));
        if taken {
            self.bystanders.remove(&pid);
        }
        taken
    }

    /// The proof that nothing of the run is alive. `tool`: our own helpers, which come to us where we are PID 1.
    pub(super) fn all_gone(&self, tool: &[ProcId]) -> bool {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT) {
            Err(Errno::CHILD) => true,
            Ok(None) if !self.bystanders.is_empty() || self.myself.init => {
                let known = |kin: &Kin| self.myself.identity_of(kin).is_some_and(|id| tool.contains(&id));
                self.myself.children().iter().all(|kin| self.bystanders.contains(&kin.pid) || known(kin))
            }
            _ => false,
        }
    }
}

/// Whether a child has ended whose status nobody has taken.
fn waiting() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Ok(Some(_)))
}
