//! Asks for looks and folds the answers: at most one is on its way, and naming its processes is a step of its own,
//! because a look that names strangers is folded only when it is known who they are.

use super::{
    event::Looker,
    settle::LookFacts,
    worker::{Job, Workers},
};
use crate::{
    judge::fold::Fold,
    model::{Bytes, DeviceEvent, DeviceLook, Entry, Gap, Look, Process, Trace, Uuid},
    observe::driver::{Extras, Failure},
};
use std::time::{Duration, Instant};

/// How long naming the processes of a look may take before the look is folded without.
const IDENTIFY_PATIENCE: Duration = Duration::from_secs(5);
/// So long looks may fail at once before the driver counts as lost: a helper that died is started anew.
const FAILING_PATIENCE: Duration = Duration::from_secs(2);
/// Looks that are kept while the before-look is not complete.
const EARLY_LOOKS: usize = 1200;
/// The steps from the first looks of settling, which should be over in milliseconds, to the ordinary interval.
const QUICK_STEPS_MS: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];

/// After so many looks that showed nothing new, the interval is doubled until one does: training holds its memory for
/// hours, and a plateau of 300 ms is still met.
const STILL_LOOKS: u32 = 20;

/// When a look was asked for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    at: Instant,
    settling: bool,
    all_gone: bool,
}

/// Where the present look is.
#[derive(Debug)]
enum Stage {
    Idle,
    Looking(Asked),
    Identifying(Asked, Look),
}

/// The looks of a run.
#[derive(Debug)]
pub(super) struct Sampler {
    devices: Vec<Uuid>,
    zero: Instant,
    interval: Duration,
    look_timeout: Duration,
    stage: Stage,
    next: Instant,
    quick: usize,
    /// Looks in a row that showed the same as the one before.
    still: u32,
    fold: Option<Fold>,
    early: Vec<(Look, bool)>,
    early_processes: Vec<(Process, u64)>,
    early_gaps: Vec<Gap>,
    early_events: Vec<DeviceEvent>,
    failing_since: Option<Instant>,
    lost: bool,
    can_identify: bool,
    last: Option<Taken>,
}

/// The last look that was answered and folded.
#[derive(Debug)]
struct Taken {
    asked_at: Instant,
    look: Look,
    facts: Option<LookFacts>,
    new_entries: usize,
    unlisted_growth: Bytes,
}

impl Sampler {
    /// Looks at these devices. `zero`: when the observation began.
    pub(super) fn new(devices: Vec<Uuid>, zero: Instant, interval: Duration, look_timeout: Duration) -> Self {
        Self {
            devices,
            zero,
            interval,
            look_timeout,
            stage: Stage::Idle,
            next: zero,
            quick: QUICK_STEPS_MS.len(),
            still: 0,
            fold: None,
            early: Vec::new(),
            early_processes: Vec::new(),
            early_gaps: Vec::new(),
            early_events: Vec::new(),
            failing_since: None,
            lost: false,
            can_identify: true,
            last: None,
        }
    }

    /// The before-look is complete: all that came in meanwhile is folded now.
    pub(super) fn begin(&mut self, mut fold: Fold) {
        // In the order in which it came: a fold knows who a new entry is only if it was told before that look.
        self.early_processes.sort_by_key(|(_, at)| *at);
        let mut processes = std::mem::take(&mut self.early_processes).into_iter().peekable();
        for (look, settling) in self.early.drain(..) {
            while let Some((process, at)) = processes.next_if(|(_, at)| *at <= look.at_ms) {
                fold.remember(&process, at);
            }
            fold.look(&look, settling);
        }
        for (process, at) in processes {
            fold.remember(&process, at);
        }
        for gap in self.early_gaps.drain(..) {
            fold.failed_look(gap);
        }
        fold.events(std::mem::take(&mut self.early_events));
        self.fold = Some(fold);
    }

    /// When to call [`Self::ask`] next; `None` while a look is on its way.
    pub(super) fn due(&self) -> Option<Instant> {
        matches!(self.stage, Stage::Idle).then_some(self.next)
    }

    /// The command starts: the first look is due one interval later.
    pub(super) fn start(&mut self, now: Instant) {
        self.next = now + self.interval;
    }

    /// Looks are quick from now on, and slow down to the interval.
    pub(super) fn hurry(&mut self) {
        self.quick = 0;
        self.next = self.next.min(Instant::now());
    }

    /// What failed so far is not counted any more.
    pub(super) fn hope(&mut self) {
        (self.failing_since, self.lost) = (None, false);
    }

    /// Asks for a look if it is time.
    pub(super) fn ask(&mut self, looker: &dyn Looker, now: Instant, settling: bool, all_gone: bool) {
        if !matches!(self.stage, Stage::Idle) || now < self.next {
            return;
        }
        let pause = QUICK_STEPS_MS.get(self.quick).map_or(self.interval, |ms| Duration::from_millis(*ms));
        self.quick += 1;
        let stretched = if self.still >= STILL_LOOKS && !settling { self.interval * 2 } else { self.interval };
        self.next = now + if self.quick > QUICK_STEPS_MS.len() { stretched } else { pause.min(self.interval) };
        self.stage = Stage::Looking(Asked { at: now, settling, all_gone });
        looker.request_look(&self.devices, Extras::default());
    }

    /// The driver answered.
    pub(super) fn answered(&mut self, answer: Result<Look, Failure>, workers: &Workers) {
        let Stage::Looking(asked) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        match answer {
            Ok(mut look) => {
                self.failing_since = None;
                look.at_ms = self.at_ms(Instant::now());
                let unknown = self.fold.as_ref().map_or_else(|| listed(&look), |fold| fold.unknown_pids(&look));
                if unknown.is_empty() || !self.can_identify {
                    self.take(asked, look, Vec::new());
                } else {
                    workers.ask(Job::Identify(look.clone(), unknown));
                    self.stage = Stage::Identifying(asked, look);
                }
            }
            Err(failure) => {
                let now = Instant::now();
                let since = *self.failing_since.get_or_insert(now);
                self.lost = now.duration_since(since) >= FAILING_PATIENCE;
                self.last = None;
                let gap = Gap::new("NVML", failure.message);
                match &mut self.fold {
                    Some(fold) => fold.failed_look(gap),
                    None if self.early_gaps.len() < EARLY_LOOKS => self.early_gaps.push(gap),
                    None => {}
                }
            }
        }
    }

    /// The processes of a look were identified.
    pub(super) fn identified(&mut self, of: &Look, processes: Vec<Process>) {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Identifying(asked, look) if look.at_ms == of.at_ms => self.take(asked, look, processes),
            other => self.stage = other,
        }
    }

    /// Gives up on what has taken too long.
    pub(super) fn overdue(&mut self, now: Instant) {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Identifying(asked, look) if now > asked.at + self.look_timeout + IDENTIFY_PATIENCE => {
                self.can_identify = false;
                self.take(asked, look, Vec::new());
            }
            Stage::Looking(asked) if now > asked.at + self.look_timeout + IDENTIFY_PATIENCE => {
                self.lost = true;
                self.last = None;
                self.stage = Stage::Looking(asked);
            }
            other => self.stage = other,
        }
    }

    fn take(&mut self, asked: Asked, look: Look, processes: Vec<Process>) {
        self.lost = false;
        for process in processes {
            self.remember(&process, look.at_ms);
        }
        let (mut new_entries, mut unlisted_growth) = (0, Bytes::ZERO);
        let facts = if let Some(fold) = &mut self.fold {
            fold.look(&look, asked.settling);
            let charge = fold.charge();
            (new_entries, unlisted_growth) = (charge.new_entries, charge.unlisted_growth);
            asked.settling.then_some(LookFacts {
                listed: charge.listed,
                complete: charge.complete,
                entries: charge.entries,
                growth: charge.excess_growth,
                undecided: charge.undecided,
                after_all_gone: asked.all_gone,
            })
        } else {
            if self.early.len() < EARLY_LOOKS {
                self.early.push((look.clone(), asked.settling));
            }
            None
        };
        let same = self.last.as_ref().is_some_and(|last| shows_the_same(&last.look, &look));
        self.still = if same { self.still.saturating_add(1) } else { 0 };
        self.last = Some(Taken { asked_at: asked.at, look, facts, new_entries, unlisted_growth });
    }

    /// Remembers a process that was seen alive.
    pub(super) fn remember(&mut self, process: &Process, at_ms: u64) {
        match &mut self.fold {
            Some(fold) => fold.remember(process, at_ms),
            None => self.early_processes.push((process.clone(), at_ms)),
        }
    }

    /// Events of the driver.
    pub(super) fn events(&mut self, mut events: Vec<DeviceEvent>) {
        let at_ms = self.at_ms(Instant::now());
        for event in &mut events {
            event.at_ms = at_ms;
        }
        match &mut self.fold {
            Some(fold) => fold.events(events),
            None => self.early_events.append(&mut events),
        }
    }

    /// The last look, if the driver answered the last request.
    pub(super) fn last(&self) -> Option<&Look> {
        self.last.as_ref().map(|taken| &taken.look)
    }

    /// When the last look was asked for.
    pub(super) fn last_asked(&self) -> Option<Instant> {
        self.last.as_ref().map(|taken| taken.asked_at)
    }

    /// What the last look said for settling.
    pub(super) fn facts(&self) -> Option<LookFacts> {
        self.last.as_ref().and_then(|taken| taken.facts)
    }

    /// Nothing charged, nothing unaccounted and nobody new in the last look, and no more used than in `before`, neither
    /// over a device nor by anybody on it: memory of the run that lives on in one neighbour may be outweighed by what
    /// another gave back.
    pub(super) fn nothing_to_explain(&self, before: &Look) -> bool {
        let Some(Taken { look, facts: Some(facts), new_entries: 0, unlisted_growth, .. }) = &self.last else {
            return false;
        };
        let no_more = |device: &DeviceLook| {
            let before = before.devices.iter().find(|d| d.uuid == device.uuid);
            let used = before.and_then(DeviceLook::used);
            device.gaps.is_empty()
                && matches!((used, device.used()), (Some(before), Some(now)) if now <= before)
                && !before.is_some_and(|before| somebody_grew(before, device))
        };
        facts.listed == Some(Bytes::ZERO)
            && facts.entries == 0
            && facts.growth == Bytes::ZERO
            // What moves between looks by itself (a context that starts, one that ends) is less.
            && *unlisted_growth <= Bytes::mib(32)
            && look.devices.iter().all(no_more)
    }

    /// The driver does not answer any more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Milliseconds since the observation began.
    pub(super) fn at_ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.zero).as_millis()).unwrap_or(u64::MAX)
    }

    /// The trace of all looks.
    pub(super) fn finish(self) -> Trace {
        self.fold.map(Fold::finish).unwrap_or_default()
    }
}

/// Somebody is listed with more than before.
fn somebody_grew(before: &DeviceLook, now: &DeviceLook) -> bool {
    let same = |a: &Entry, b: &Entry| (a.pid, a.gi, a.ci) == (b.pid, b.gi, b.ci);
    now.entries.iter().flatten().any(|entry| {
        let earlier = before.entries.iter().flatten().find(|e| same(e, entry)).and_then(|e| e.bytes);
        entry.bytes.is_some_and(|bytes| bytes > earlier.unwrap_or_default())
    })
}

/// Memory and lists are as they were; utilisation may differ.
fn shows_the_same(before: &Look, now: &Look) -> bool {
    before.devices.len() == now.devices.len()
        && before.devices.iter().zip(&now.devices).all(|(b, n)| b.memory == n.memory && b.entries == n.entries)
}

/// All PIDs that a look lists.
pub(super) fn listed(look: &Look) -> Vec<u32> {
    let mut pids: Vec<_> = look.devices.iter().filter_map(|d| d.entries.as_ref()).flatten().map(|e| e.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}
