//! The after-look. `/proc` is scanned only if something is left to explain; then the devices are read once more, so
//! that a process that ended between the two is not taken for a ghost.

use super::{
    sampler,
    session::Stop,
    watch::Watch,
    worker::{Job, ScanFor},
};
use crate::{
    model::{Gap, Process, Snapshot},
    observe::{SnapshotParts, assemble, proc::Scan, shm::Listing},
};
use std::time::{Duration, Instant};

/// How long the last scan may take.
const SCAN_PATIENCE: Duration = Duration::from_secs(30);
/// How long reading the tree, a few processes, or the devices once more may take.
const PATIENCE: Duration = Duration::from_secs(12);
/// How long each of them may take when the user wants the report now.
const PATIENCE_WHEN_TOLD: Duration = Duration::from_secs(1);

impl Watch<'_> {
    /// Takes the after-look.
    ///
    /// # Errors
    /// If we are told to leave meanwhile.
    pub(super) fn after(&mut self) -> Result<Snapshot, Stop> {
        let mut gaps = Vec::new();
        let mut scan = None;
        let explained = self.nothing_lives() && self.sampler.nothing_to_explain(&self.before.look);
        if !explained {
            scan = self.scan()?;
            match &mut scan {
                Some(scan) => self.look_again(scan)?,
                None => gaps.push(Gap::new("/proc", "the processes after the command were not read in time")),
            }
        }
        if self.sampler.last().is_none() {
            gaps.push(Gap::new("NVML", "the devices could not be read after the command"));
        }
        self.look_into_shared_memory()?;
        Ok(assemble(SnapshotParts {
            inventory: Some(&self.before.inventory),
            selected: &self.before.selected,
            look: self.sampler.last(),
            scan,
            observer: self.session.observer(),
            boot_id: self.before.boot_id.clone(),
            gaps,
        }))
    }

    /// Files that the run left there. Without a new one, nobody is asked about them.
    fn look_into_shared_memory(&mut self) -> Result<(), Stop> {
        let Some(before) = self.shm_before.take().filter(Listing::has_more) else { return Ok(()) };
        let mut uids = self.tree.uids().clone();
        uids.insert(rustix::process::getuid().as_raw());
        self.session.workers.ask(Job::Leftovers(before, uids));
        self.pump(PATIENCE, |watch| watch.session.inbox.leftovers.is_some())?;
        self.leftovers = self.session.inbox.leftovers.take().unwrap_or_default();
        Ok(())
    }

    /// Who lives, and who has NVIDIA files open.
    fn scan(&mut self) -> Result<Option<Scan>, Stop> {
        if !self.nothing_lives() {
            let start = Instant::now();
            self.tree.hurry();
            self.pump(PATIENCE, |watch| watch.tree.answered_since(start))?;
        }
        let mut wanted = self.sampler.last().map(sampler::listed).unwrap_or_default();
        wanted.extend(self.tree.living().iter().map(|p| p.id.pid));
        self.session.inbox.scanned_after = None;
        self.session.workers.ask(Job::Scan(ScanFor::After, wanted));
        self.pump(SCAN_PATIENCE, |watch| watch.session.inbox.scanned_after.is_some())?;
        Ok(self.session.inbox.scanned_after.take())
    }

    /// Reads the devices after the scan, and whoever they list that the scan does not have, or has without a GPU open:
    /// one that has opened it since is not taken for somebody who got a ghost's number.
    fn look_again(&mut self, scan: &mut Scan) -> Result<(), Stop> {
        for _ in 0..2 {
            if self.sampler.is_lost() {
                return Ok(());
            }
            let start = Instant::now();
            self.sampler.hurry();
            self.pump(PATIENCE, |watch| watch.sampler.last_asked().is_some_and(|at| at >= start))?;
            let mut missing = self.sampler.last().map(sampler::listed).unwrap_or_default();
            let has_it_open = |p: &Process| p.can_hold_memory() != Some(false);
            missing.retain(|pid| !scan.processes.iter().any(|p| p.id.pid == *pid && has_it_open(p)));
            if missing.is_empty() {
                return Ok(());
            }
            let found = self.examine(missing.clone())?;
            let all_there = found.len() == missing.len();
            scan.processes.retain(|p| !found.iter().any(|f| f.id.pid == p.id.pid));
            scan.processes.extend(found);
            if all_there {
                return Ok(());
            }
        }
        Ok(())
    }

    fn examine(&mut self, pids: Vec<u32>) -> Result<Vec<Process>, Stop> {
        self.session.inbox.examined = None;
        self.session.workers.ask(Job::Examine(pids));
        self.pump(PATIENCE, |watch| watch.session.inbox.examined.is_some())?;
        Ok(self.session.inbox.examined.take().unwrap_or_default())
    }

    /// Goes on taking readings until the condition holds or the time is over.
    fn pump(&mut self, patience: Duration, mut done: impl FnMut(&Self) -> bool) -> Result<(), Stop> {
        let start = Instant::now();
        loop {
            self.read_on();
            while let Some(caught) = self.session.inbox.signals.pop_front() {
                self.hear(caught, Instant::now())?;
            }
            let now = Instant::now();
            let until = start + if self.reports_now() { patience.min(PATIENCE_WHEN_TOLD) } else { patience };
            if done(self) || now >= until {
                return Ok(());
            }
            self.ask(now);
            let wake = [self.sampler.due(), self.tree.due()].into_iter().flatten().fold(until, Instant::min);
            self.session.inbox.wait(wake.max(now + Duration::from_millis(1)));
        }
    }
}
