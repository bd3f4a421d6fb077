//! The one loop of a run: from the start of the command to the moment of judgement.

use super::{
    before::Before,
    child::{self, NotStarted},
    chronicle::Chronicle,
    clock::Watched,
    oom,
    outcome::{Options, Outcome},
    reap::Reaper,
    sampler::Sampler,
    session::{Session, Stop},
    settle::{Facts, Rules, Settle, Step},
    signal_child::Running,
    signals::{self, Caught, Delivery, Places, SentBy, ends_us},
    tree::Tree,
    waiting_line::WaitingLine,
};
use crate::{
    dispositions,
    exit::Ending,
    judge::fold::Fold,
    model::{End, Leftover, ProcId, SettleEnd, Snapshot},
    observe::shm::Listing,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// The loop wakes up at least so often: statuses are taken and lines are shown even if no event came.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long the witness may take to say whether the command has had a signal already.
const WITNESS: Duration = Duration::from_secs(1);
/// The Ctrl-C that ended the command may be seen after its end.
const SAME_KEY: Duration = Duration::from_millis(50);
/// A second signal of a process within this time belongs to the first.
const AGAIN: Duration = Duration::from_secs(1);
/// Who told us to end will not wait for long: so much time is left for memory to come back.
const TOLD_CAP: Duration = Duration::from_secs(5);
/// A command that SIGKILL does not end is stuck in the kernel: reported as it is.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long a scan of the before-look may take while the command runs, and after it has ended.
const SCAN_CAP: Duration = Duration::from_secs(60);
const SCAN_CAP_AFTER: Duration = Duration::from_secs(5);

/// The command has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    at: Instant,
    watched: Duration,
    pub(super) at_ms: u64,
    pub(super) end: Option<End>,
}

impl Ended {
    /// The key that ended the command may be heard after its end.
    fn came_of(&self, caught: Caught, now: Instant) -> bool {
        let of_this = match self.end {
            Some(End::Signaled { signal, .. }) => signal == caught.signal,
            Some(End::Exited(code)) => code == crate::exit::SIGNAL_BASE + caught.signal,
            None => false,
        };
        of_this && now.duration_since(self.at) < SAME_KEY
    }
}

/// What `--timeout` does next, and when.
#[derive(Debug, Clone, Copy)]
enum Timer {
    Off,
    Terminate(Instant),
    Kill(Instant),
    GiveUp(Instant),
}

/// A signal of which the witness was asked whether the command has had it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    signal: Signal,
    sender: u32,
    until: Instant,
}

/// A run from the start of its command on.
pub(super) struct Watch<'a> {
    pub(super) session: &'a mut Session,
    pub(super) before: &'a mut Before,
    pub(super) options: &'a Options,
    pub(super) running: Running,
    pub(super) reaper: Reaper,
    pub(super) sampler: Sampler,
    pub(super) tree: Tree,
    clock: Watched,
    settle: Settle,
    line: WaitingLine,
    started: Instant,
    pub(super) started_ms: u64,
    pub(super) command: ProcId,
    pub(super) before_snapshot: Option<Snapshot>,
    pub(super) ended: Option<Ended>,
    pub(super) all_gone: bool,
    asked: Vec<Asked>,
    timer: Timer,
    pub(super) timed_out: bool,
    told: bool,
    report_now: Option<Instant>,
    pub(super) oom_before: Option<u64>,
    /// What was in shared memory before; `None` where there is none.
    pub(super) shm_before: Option<Listing>,
    pub(super) leftovers: Vec<Leftover>,
    chronicle: Option<&'a mut (dyn Chronicle + 'a)>,
}

impl Session {
    /// Starts the command and watches it until it is time to judge, then takes the after-look.
    ///
    /// # Errors
    /// [`NotStarted`] if the command was not started. A [`Stop`] if we cannot become subreaper, or were told twice to
    /// leave.
    pub fn watch<'a>(
        &'a mut self,
        before: &'a mut Before,
        options: &'a Options,
        chronicle: Option<&'a mut (dyn Chronicle + 'a)>,
    ) -> Result<Result<Outcome, NotStarted>, Stop> {
        let reaper = Reaper::start(self.myself.clone())
            .map_err(|e| anyhow::Error::new(e).context("could not become the subreaper of the command's processes"))?;
        let oom_before = oom::kills();
        let shm_before = Listing::now(&self.reader.options.dev);
        // Whoever told us to end meanwhile did not mean a command that does not exist yet.
        self.told_to_end()?;
        let started = Instant::now();
        let running = match child::start(&options.argv, &options.run_id, &options.environment) {
            Ok(running) => running,
            Err(error) => return Ok(Err(error)),
        };
        let command = self.myself.child(running.pid()).unwrap_or(ProcId { pid: running.pid(), start_ticks: 0 });
        let mut sampler = Sampler::new(before.selected.clone(), self.zero, options.sample, self.look_timeout);
        sampler.start(started);
        let started_ms = sampler.at_ms(started);
        let tree = Tree::new(self.myself.id, command, started, options.quiet);
        let rules = Rules { cap: options.settle, quiet: options.quiet, tolerated: options.tolerated };
        let watch = Watch {
            session: self,
            before,
            options,
            running,
            reaper,
            sampler,
            tree,
            clock: Watched::new(started),
            settle: Settle::new(rules),
            line: WaitingLine::new(options.silent),
            started,
            started_ms,
            command,
            before_snapshot: None,
            ended: None,
            all_gone: false,
            asked: Vec::new(),
            timer: options.timeout.map_or(Timer::Off, |after| Timer::Terminate(started + after)),
            timed_out: false,
            told: false,
            report_now: None,
            oom_before,
            shm_before,
            leftovers: Vec::new(),
            chronicle,
        };
        watch.run().map(Ok)
    }
}

impl Watch<'_> {
    fn run(mut self) -> Result<Outcome, Stop> {
        let end = loop {
            let now = Instant::now();
            let watched = self.clock.tick(now);
            self.take_signals(now)?;
            self.take_statuses(now, watched);
            self.take_readings(now, watched);
            self.keep_time(now);
            if let Some(end) = self.is_over(now, watched) {
                break end;
            }
            self.ask(now);
            self.session.inbox.wait(self.next_wake(now));
        };
        self.line.clear();
        let settled_ms = self.ended.map(|e| self.sampler.at_ms(Instant::now()).saturating_sub(e.at_ms));
        let after = self.after()?;
        Ok(self.outcome(end, settled_ms, after))
    }

    fn take_signals(&mut self, now: Instant) -> Result<(), Stop> {
        while let Some(caught) = self.session.inbox.signals.pop_front() {
            match self.ended {
                None => self.pass_on(caught, now),
                Some(ended) if ended.came_of(caught, now) => {}
                Some(_) => self.hear(caught, now)?,
            }
        }
        self.hear_witness(now);
        Ok(())
    }

    fn pass_on(&mut self, caught: Caught, now: Instant) {
        let myself = &self.session.myself;
        let command = self.running.pid();
        let own = matches!(caught.sender, SentBy::Process(Some(pid)) if signals::is_own(pid, command, myself));
        let places = Places { session_leader: myself.session_leader, together: self.running.in_our_group() };
        let delivery = signals::delivery(caught, places, own);
        let by_hand = caught.sender == SentBy::Terminal && caught.signal != Signal::HUP.as_raw();
        self.told |= ends_us(caught.signal) && !own && !by_hand;
        let Some(signal) = dispositions::numbered(caught.signal) else { return };
        match delivery {
            Delivery::Leave => {}
            Delivery::Forward => {
                self.running.signal(signal);
            }
            Delivery::AskFirst(sender) => {
                self.session.looker().ask_whether_the_group_heard(caught.signal, sender);
                self.asked.push(Asked { signal, sender, until: now + WITNESS });
            }
        }
    }

    /// Passes on what the witness says was for us alone, and what it says nothing of in time.
    fn hear_witness(&mut self, now: Instant) {
        for heard in std::mem::take(&mut self.session.inbox.heard) {
            let of_it = |asked: &Asked| (asked.signal.as_raw(), asked.sender) == (heard.signal, heard.sender);
            if let Some(asked) = self.asked.iter().position(of_it).map(|place| self.asked.remove(place))
                && !heard.by_all
            {
                self.running.signal(asked.signal);
            }
        }
        let (late, asked) = std::mem::take(&mut self.asked).into_iter().partition(|asked: &Asked| asked.until <= now);
        self.asked = asked;
        late.into_iter().for_each(|asked: Asked| {
            self.running.signal(asked.signal);
        });
    }

    /// A signal when there is no command any more: the first wants the report now.
    ///
    /// # Errors
    /// The second wants us to leave. One sender may well send two at once (`timeout` does), a key is pressed on purpose.
    pub(super) fn hear(&mut self, caught: Caught, now: Instant) -> Result<(), Stop> {
        if !ends_us(caught.signal) {
            return Ok(());
        }
        match self.report_now {
            None => self.report_now = Some(now),
            Some(first) if caught.sender == SentBy::Terminal || now.duration_since(first) >= AGAIN => {
                return Err(Stop::Told(Ending::Signal(caught.signal)));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn take_statuses(&mut self, now: Instant, watched: Duration) {
        let children = std::mem::take(&mut self.session.inbox.children);
        self.reaper.reap(&mut self.running);
        let end = match self.running.poll() {
            Ok(None) => None,
            Ok(Some(end)) => Some(Some(end)),
            // Somebody else took the status: it has ended, and nobody knows how.
            Err(_) => Some(None),
        };
        if let (Some(end), None) = (end, self.ended) {
            self.ended = Some(Ended { at: now, watched, at_ms: self.sampler.at_ms(now), end });
            self.timer = Timer::Off;
            self.asked.clear();
            self.session.looker().leave_the_group();
            // However long the driver did not answer: what decides is read from here on.
            self.session.looker().try_afresh();
            self.sampler.hope();
            self.sampler.hurry();
        }
        if children {
            self.tree.nudge();
        }
        if self.ended.is_some() {
            let gone = self.reaper.all_gone(&self.session.looker().tool_processes());
            if gone && !self.all_gone {
                self.sampler.hurry();
            }
            self.all_gone = gone;
        }
    }

    /// Takes what the driver and `/proc` have answered.
    pub(super) fn take_readings(&mut self, now: Instant, watched: Duration) {
        let inbox = &mut self.session.inbox;
        if !inbox.device_events.is_empty() {
            self.sampler.events(std::mem::take(&mut inbox.device_events));
        }
        if let Some(look) = inbox.look.take() {
            self.sampler.answered(look, &self.session.workers);
        }
        if let Some((look, processes)) = inbox.identified.take() {
            self.sampler.identified(&look, processes);
        }
        if let Some((tree, cost)) = inbox.tree.take() {
            let ended = self.ended.map(|e| (e.at, watched.saturating_sub(e.watched)));
            let at_ms = self.sampler.at_ms(now);
            for process in self.tree.answered(tree, cost, &self.session.looker().tool_processes(), ended) {
                self.sampler.remember(process, at_ms);
            }
            if let Some(chronicle) = &mut self.chronicle {
                chronicle.lives(self.command, self.tree.living());
            }
        }
        self.sampler.overdue(now);
        if self.before_snapshot.is_none() {
            self.complete_before(now);
        }
    }

    fn complete_before(&mut self, now: Instant) {
        let patience = self.ended.map_or(self.started + SCAN_CAP, |ended| ended.at + SCAN_CAP_AFTER);
        if !self.before.advance(&mut self.session.inbox, &self.session.workers) {
            if now < patience {
                return;
            }
            self.before.give_up();
        }
        let root = self.session.myself.id;
        let snapshot = self.before.snapshot(root, Some(self.command));
        let fold = Fold::new(&snapshot, self.options.scope, Some(root), self.options.noise)
            .of_command(self.command, &self.options.run_id);
        self.sampler.begin(fold);
        self.before_snapshot = Some(snapshot);
        if self.ended.is_some() {
            self.sampler.hurry();
        }
    }

    fn keep_time(&mut self, now: Instant) {
        match self.timer {
            Timer::Terminate(at) if now >= at => {
                self.timed_out = true;
                self.running.signal(Signal::TERM);
                // A stopped command could not hear it.
                self.running.signal(Signal::CONT);
                self.timer = Timer::Kill(now + self.options.grace);
            }
            Timer::Kill(at) if now >= at => {
                // Who may not be killed does not end by waiting.
                let patience = if self.running.signal(Signal::KILL) { KILL_PATIENCE } else { Duration::ZERO };
                self.timer = Timer::GiveUp(now + patience);
            }
            _ => {}
        }
    }

    /// Why it is time to judge; `Some(None)`: the command cannot be ended.
    fn is_over(&mut self, now: Instant, watched: Duration) -> Option<Option<SettleEnd>> {
        let Some(ended) = self.ended else {
            return matches!(self.timer, Timer::GiveUp(at) if now >= at).then_some(None);
        };
        self.before_snapshot.as_ref()?;
        let since = watched.saturating_sub(ended.watched);
        let facts = Facts {
            now: since,
            all_gone: self.all_gone,
            look: self.sampler.facts(),
            tree: self.tree.facts(),
            blind: self.sampler.is_lost(),
            told: self.reports_now() || (self.told && since >= TOLD_CAP),
        };
        match self.settle.step(facts) {
            Step::Done(end) => Some(Some(end)),
            Step::Wait(waiting) => {
                self.line.show(waiting, since, self.options.settle);
                None
            }
        }
    }

    /// Asks for what is due.
    pub(super) fn ask(&mut self, now: Instant) {
        let settling = self.ended.is_some();
        self.sampler.ask(self.session.looker(), now, settling, self.all_gone);
        if !self.all_gone
            && let Some(job) = self.tree.job(now, settling)
        {
            self.session.workers.ask(job);
        }
    }

    fn next_wake(&self, now: Instant) -> Instant {
        let timer = match self.timer {
            Timer::Off => None,
            Timer::Terminate(at) | Timer::Kill(at) | Timer::GiveUp(at) => Some(at),
        };
        let asked = self.asked.iter().map(|asked| asked.until).min();
        let tree = self.tree.due().filter(|_| !self.all_gone);
        [self.sampler.due(), tree, timer, asked].into_iter().flatten().fold(now + HEARTBEAT, Instant::min)
    }

    /// Takes readings outside the loop.
    pub(super) fn read_on(&mut self) {
        let now = Instant::now();
        let watched = self.clock.tick(now);
        self.take_readings(now, watched);
    }

    /// The user wants the report now.
    pub(super) fn reports_now(&self) -> bool {
        self.report_now.is_some()
    }

    /// The proof that nothing of the run is alive.
    pub(super) fn nothing_lives(&self) -> bool {
        self.all_gone
    }
}
