//! The before-look. Its memory must be read before the command starts; its scan of `/proc` may end a little later,
//! because a machine with thousands of processes must not delay the command. What has started since is dropped.

use super::{
    inbox::Inbox,
    sampler,
    worker::{Job, Workers},
};
use crate::{
    model::{BootId, Gap, Look, Observer, ProcId, Process, Snapshot, Uuid},
    observe::{SnapshotParts, assemble, driver::Inventory, proc::Scan},
};

/// The parts of the before-look as they come in.
#[derive(Debug)]
pub struct Before {
    /// The devices that there are.
    pub inventory: Inventory,
    /// Those that are wanted.
    pub selected: Vec<Uuid>,
    /// The reading.
    pub look: Look,
    /// From where we look.
    pub observer: Observer,
    /// The boot.
    pub boot_id: BootId,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Scanning,
    Examining(Scan),
    Done(Option<Scan>),
}

impl Before {
    /// The reading is there, the scan has been asked for.
    pub fn new(inventory: Inventory, selected: Vec<Uuid>, look: Look, observer: Observer, boot_id: BootId) -> Self {
        Self { inventory, selected, look, observer, boot_id, stage: Stage::Scanning }
    }

    /// Takes what has arrived. True if the scan is complete.
    pub fn advance(&mut self, inbox: &mut Inbox, workers: &Workers) -> bool {
        if let (Stage::Scanning, Some(scan)) = (&self.stage, inbox.scanned_before.take()) {
            // NVML may list processes that the scan did not look for, because they show no open file.
            let mut missing = sampler::listed(&self.look);
            missing.retain(|pid| !scan.processes.iter().any(|p| p.id.pid == *pid));
            if missing.is_empty() {
                self.stage = Stage::Done(Some(scan));
            } else {
                workers.ask(Job::Examine(missing));
                self.stage = Stage::Examining(scan);
            }
        }
        if let (Stage::Examining(scan), true) = (&mut self.stage, inbox.examined.is_some()) {
            let mut scan = std::mem::take(scan);
            scan.processes.extend(inbox.examined.take().unwrap_or_default());
            self.stage = Stage::Done(Some(scan));
        }
        matches!(self.stage, Stage::Done(_))
    }

    /// Goes on without the scan.
    pub fn give_up(&mut self) {
        if !matches!(self.stage, Stage::Done(_)) {
            self.stage = Stage::Done(None);
        }
    }

    /// The before-look without what belongs to the run: `root` and its descendants, and what is younger than
    /// `command`.
    pub fn snapshot(&self, root: ProcId, command: Option<ProcId>) -> Snapshot {
        let (scan, gaps) = match &self.stage {
            Stage::Done(Some(scan)) => {
                (Some(without_the_run(scan.clone(), root, command, &self.observer.tool_processes)), Vec::new())
            }
            _ => (None, vec![Gap::new("/proc", "the processes before the command were not read in time")]),
        };
        assemble(SnapshotParts {
            inventory: Some(&self.inventory),
            selected: &self.selected,
            look: Some(&self.look),
            scan,
            observer: self.observer.clone(),
            boot_id: self.boot_id.clone(),
            gaps,
        })
    }
}

fn without_the_run(mut scan: Scan, root: ProcId, command: Option<ProcId>, tool: &[ProcId]) -> Scan {
    let Some(command) = command else { return scan };
    // Start times are rough: what started in the same tick is the run's only if it stands below us.
    let below = |p: &Process| p.ancestors.iter().any(|a| a.id == root);
    let younger =
        |p: &Process| p.id.start_ticks > command.start_ticks || (p.id.start_ticks == command.start_ticks && below(p));
    // Our helper stays: its open files are the measure of a plain NVML client.
    scan.processes.retain(|p| tool.contains(&p.id) || !younger(p));
    scan.uninspected.retain(|u| u.id.start_ticks <= command.start_ticks && u.id != command);
    scan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Ancestor, DeviceFiles, ProcessState},
        observe::proc::{ProcOptions, ProcReader},
    };

    fn process(pid: u32, start_ticks: u64, parent: ProcId) -> Process {
        let ourselves = ProcReader::new(ProcOptions::default()).unwrap().identify(std::process::id()).unwrap().unwrap();
        Process {
            id: ProcId { pid, start_ticks },
            ancestors: vec![Ancestor { id: parent, comm: "x".into(), uid: None, sid: None }],
            files: Some(DeviceFiles::default()),
            state: ProcessState::Sleeping,
            ..ourselves
        }
    }

    #[test]
    fn a_scan_that_ends_late_does_not_know_the_run() {
        let id = |pid, start_ticks| ProcId { pid, start_ticks };
        let (init, root, command, helper) = (id(1, 0), id(10, 50), id(11, 70), id(9, 70));
        let scan = Scan {
            processes: vec![
                process(5, 20, init),  // a neighbour
                process(6, 70, init),  // a neighbour that started in the same tick
                process(7, 71, init),  // one that started after the command: it was not there before
                process(11, 70, root), // the command
                process(12, 75, root), // a child of it
                process(9, 70, init),  // our helper
            ],
            ..Scan::default()
        };
        let left = |scan: Scan| scan.processes.iter().map(|p| p.id.pid).collect::<Vec<_>>();
        assert_eq!(left(without_the_run(scan.clone(), root, Some(command), &[helper])), [5, 6, 9]);
        assert_eq!(left(without_the_run(scan, root, None, &[])).len(), 6);
    }
}
