//! Keeps track of the command's descendants without costing the machine: read when a child changed its state and now
//! and then, never so often that reading takes more than its share of one core.

use super::{
    settle::{Member, TreeFacts},
    worker::Job,
};
use crate::model::{ProcId, Process, RunTree};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Time between two readings when nothing happens.
const PERIOD: Duration = Duration::from_secs(2);
/// Shortest time between two readings.
const SHORTEST: Duration = Duration::from_millis(200);
/// Longest time between two readings while no process was started anywhere.
const IDLE_PERIOD: Duration = Duration::from_secs(30);
/// While the command runs, reading takes at most one part in so many of one core: 0.2 %.
const SHARE_RUNNING: u32 = 500;
/// While somebody waits for the verdict: 5 %.
const SHARE_SETTLING: u32 = 20;

/// The living of the run.
#[derive(Debug)]
pub(super) struct Tree {
    run: RunTree,
    root: u32,
    asked: Option<(Instant, bool)>,
    earliest: Instant,
    next: Instant,
    period: Duration,
    /// The kernel's newest PID when the last reading was asked for.
    newest_pid: Option<String>,
    nudged: bool,
    last: Vec<Process>,
    /// Who else stands below us.
    others: Vec<Process>,
    last_asked: Option<Instant>,
    facts: Option<TreeFacts>,
    uids: BTreeSet<u32>,
}

impl Tree {
    /// The run of `command` below `root`. The first reading is due at once.
    pub(super) fn new(root: ProcId, command: ProcId, now: Instant, quiet: Duration) -> Self {
        Self {
            run: RunTree { root: Some(root), command: Some(command) },
            root: root.pid,
            asked: None,
            earliest: now,
            next: now,
            period: PERIOD.min(quiet / 4),
            newest_pid: None,
            nudged: true,
            last: Vec::new(),
            others: Vec::new(),
            last_asked: None,
            facts: None,
            uids: BTreeSet::from([rustix::process::getuid().as_raw()]),
        }
    }

    /// Something happened: read soon.
    pub(super) fn nudge(&mut self) {
        self.nudged = true;
        self.next = self.earliest;
    }

    /// The next reading is due at once, whatever it costs.
    pub(super) fn hurry(&mut self) {
        self.earliest = Instant::now();
        self.next = self.earliest;
    }

    /// Whether a reading that was asked for after `start` is there.
    pub(super) fn answered_since(&self, start: Instant) -> bool {
        self.last_asked.is_some_and(|at| at >= start)
    }

    /// When to call [`Self::job`] next; `None` while a reading is on its way.
    pub(super) fn due(&self) -> Option<Instant> {
        self.asked.is_none().then_some(self.next)
    }

    /// The next reading, if it is time. In settling the open files count too.
    pub(super) fn job(&mut self, now: Instant, settling: bool) -> Option<Job> {
        if self.asked.is_some() || now < self.next {
            return None;
        }
        let newest_pid = newest_pid();
        let idle_since = self.last_asked.filter(|_| !settling && !self.nudged && newest_pid == self.newest_pid);
        if newest_pid.is_some() && idle_since.is_some_and(|at| now < at + IDLE_PERIOD) {
            self.next = now + self.period;
            return None;
        }
        self.newest_pid = newest_pid;
        self.nudged = false;
        self.asked = Some((now, settling));
        Some(Job::Tree { root: self.root, files: settling })
    }

    /// A reading is there: who stands below us. Whoever is not of the run is told too, because it may lose the parent by
    /// which that is known. `ended`: when the command ended.
    pub(super) fn answered(
        &mut self,
        tree: Vec<Process>,
        cost: Duration,
        tool: &[ProcId],
        ended: Option<(Instant, Duration)>,
    ) -> impl Iterator<Item = &Process> {
        let (asked_at, settling) = self.asked.take().unwrap_or_else(|| (Instant::now(), false));
        self.last_asked = Some(asked_at);
        let share = if settling { SHARE_SETTLING } else { SHARE_RUNNING };
        let now = Instant::now();
        self.earliest = now + (cost * share).max(SHORTEST.min(self.period));
        self.next = self.earliest.max(now + self.period);
        let not_tool = |p: &Process| !tool.contains(&p.id) && !p.ancestors.iter().any(|a| tool.contains(&a.id));
        let below = tree.into_iter().filter(not_tool);
        (self.last, self.others) = below.partition(|p| self.run.has(p.id, &p.ancestors));
        self.uids.extend(self.last.iter().filter_map(|p| p.uid));
        if let Some((_, at)) = ended.filter(|(end, _)| settling && asked_at >= *end) {
            let member =
                |p: &Process| (p.id, Member { files: p.files.clone(), cpu_ticks: p.cpu_ticks, dying: p.dying });
            self.facts = Some(TreeFacts { at, members: self.last.iter().map(member).collect() });
        }
        self.last.iter().chain(&self.others)
    }

    /// The last reading.
    pub(super) fn living(&self) -> &[Process] {
        &self.last
    }

    /// The last reading after the command ended, for settling.
    pub(super) fn facts(&self) -> Option<&TreeFacts> {
        self.facts.as_ref()
    }

    /// Real user ids that processes of the run had.
    pub(super) fn uids(&self) -> &BTreeSet<u32> {
        &self.uids
    }
}

/// The last field of `/proc/loadavg`: as long as it stays the same, no process and no thread was started in our PID
/// namespace or below it.
fn newest_pid() -> Option<String> {
    let line = std::fs::read_to_string("/proc/loadavg").ok()?;
    line.split_whitespace().last().map(Into::into)
}
