//! The owner's side of the driver: asks the helper, keeps the deadlines, and replaces a helper that hangs or died. All
//! of it runs on a thread of its own, so that nothing a driver does can block the owner.

use super::{
    Extras, Failure, FailureKind, Message, Options, Source,
    calls::whereabouts,
    keeper::OWN_BINARY,
    link::{Event, Link, Tools, Wanted},
    protocol::{self, Answer, Ask, Request, Say},
};
use crate::model::{DriverFacts, ProcId, Uuid};
use anyhow::Context;
use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};

/// The driver in its helper process. Never blocks its owner: answers arrive through `deliver`. Dropping it ends the
/// helper and waits for nothing.
#[derive(Debug)]
pub struct Client {
    events: Sender<Event>,
    tools: Tools,
}

impl Client {
    /// Starts the helper. `deliver` is called on a thread of the client's own. When this returns, a nursery is no child
    /// of this process: it may become a subreaper now.
    ///
    /// # Errors
    /// If no process could be started at all.
    pub fn start(options: &Options, deliver: impl Fn(Message) + Send + 'static) -> anyhow::Result<Self> {
        Self::start_with(Path::new(OWN_BINARY), options, deliver)
    }

    /// As [`Self::start`], with another binary as the helper: for tests, which are not gpuresid.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[doc(hidden)]
    pub fn start_with(
        binary: &Path,
        options: &Options,
        deliver: impl Fn(Message) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (events, incoming) = mpsc::channel();
        let tools = Tools::shown_in(&options.procfs);
        let mut options = options.clone();
        options.source = absolute(options.source).context("finding the current directory")?;
        let mut driver = Driver {
            link: Link::new(binary, options.placement, events.clone(), tools.clone())
                .context("starting the NVML helper process")?,
            options,
            deliver,
            phase: Phase::Down,
            queue: VecDeque::new(),
            head_until: None,
            opened: false,
            last_id: 0,
            number: 0,
            failures: 0,
            hangs: 0,
        };
        driver.open().context("starting the NVML helper process")?;
        std::thread::Builder::new()
            .name("driver".into())
            .spawn(move || driver.run(&incoming))
            .context("starting the driver's thread")?;
        Ok(Self { events, tools })
    }

    /// Asks for one look at these devices (empty: all). Exactly one [`Message::Look`] follows.
    pub fn request_look(&self, devices: &[Uuid], extras: Extras) {
        // The thread ends only with this client.
        let _ = self.events.send(Event::Request(Wanted::Look(devices.to_vec(), extras)));
    }

    /// Asks how the devices are set up. Exactly one answer comes through `answer`, under the deadline of a look.
    pub fn request_facts(&self, answer: Sender<Result<DriverFacts, Failure>>) {
        let _ = self.events.send(Event::Request(Wanted::Facts(answer)));
    }

    /// What comes now matters most: where no helper answers, the next request starts one at once, however often that
    /// was in vain.
    pub fn try_afresh(&self) {
        let _ = self.events.send(Event::Afresh);
    }

    /// Asks whether a signal that this process sent to us (0: one outside of our PID namespace) has reached our whole
    /// process group. [`Message::Heard`] follows, unless there is no nursery.
    pub fn ask_whether_the_group_heard(&self, signal: i32, sender: u32) {
        let _ = self.events.send(Event::AskWitness(Some((signal, sender))));
    }

    /// Nothing is asked any more: nothing of ours is in our process group from here on.
    pub fn leave_the_group(&self) {
        let _ = self.events.send(Event::AskWitness(None));
    }

    /// The helper and its nursery as the `/proc` shows them that is read, so that they are never taken for holders or for the command's processes. Complete
    /// once [`Message::Opened`] was delivered; replaced helpers stay in it.
    pub fn tool_processes(&self) -> Vec<ProcId> {
        self.tools.list()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
    }
}

/// The helper works in `/`.
fn absolute(source: Source) -> io::Result<Source> {
    Ok(match source {
        Source::Nvml { library } => Source::Nvml { library: library.map(std::path::absolute).transpose()? },
        Source::Simulated { ledger } => Source::Simulated { ledger: std::path::absolute(ledger)? },
    })
}

/// What the helper is doing.
enum Phase {
    /// There is none; the next request starts one.
    Down,
    /// There is none, and for some time none is started: every request gets this.
    Resting { failure: Failure, until: Instant },
    /// It opens the driver.
    Opening { id: u64, until: Instant },
    /// It waits for us.
    Ready,
    /// It answers the request that is first in the queue.
    Looking { id: u64 },
    /// No further try unless the owner wants one: every request gets this.
    Failed(Failure),
    /// No further try.
    Lost(Failure),
}

/// How a helper failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It ended, or is of no use. The next one is started at once, those after it with pauses that grow from the first
    /// to the longest: a library that crashes while the driver is in trouble works again when that is over.
    Death,
    /// It is stuck, and each such one may stay as a process that nothing ends.
    Hang,
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After the first hang the next helper is started at once, after a second one in a row not so soon.
const PAUSE_AFTER_HANGS: Duration = Duration::from_secs(30);
/// Hangs over the whole life of the client, however many looks succeeded between them.
const TOO_MANY_HANGS: u32 = 5;

struct Driver<D> {
    options: Options,
    deliver: D,
    link: Link,
    phase: Phase,
    /// What was asked for and not answered.
    queue: VecDeque<Wanted>,
    /// When the first of them must be answered.
    head_until: Option<Instant>,
    /// [`Message::Opened`] was delivered.
    opened: bool,
    last_id: u64,
    /// Of the helper, counted from 1.
    number: u64,
    /// Helpers that failed in a row.
    failures: u32,
    /// Over the whole life.
    hangs: u32,
}

impl<D: Fn(Message)> Driver<D> {
    fn run(mut self, incoming: &Receiver<Event>) {
        loop {
            self.proceed();
            let event = match self.next_deadline() {
                Some(until) => incoming.recv_timeout(until.saturating_duration_since(Instant::now())),
                None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => self.expire(),
            }
        }
        // A helper that waits for us ends with its pipe; one that is in a call might never look at it again.
        if matches!(self.phase, Phase::Opening { .. } | Phase::Looking { .. }) {
            self.link.abandon();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let opening = if let Phase::Opening { until, .. } = self.phase { Some(until) } else { None };
        opening.into_iter().chain(self.head_until).min()
    }

    /// Starts what can be started.
    fn proceed(&mut self) {
        while !self.queue.is_empty() && self.opened {
            self.head_until.get_or_insert_with(|| Instant::now() + self.options.look_timeout);
            match &self.phase {
                Phase::Resting { until, .. } if *until <= Instant::now() => self.phase = Phase::Down,
                Phase::Resting { failure, .. } | Phase::Failed(failure) | Phase::Lost(failure) => {
                    let failure = failure.clone();
                    self.refuse(failure);
                }
                Phase::Down => {
                    if let Err(e) = self.open() {
                        self.broke(format!("could not be started: {e}"));
                    }
                    return;
                }
                Phase::Ready => {
                    let patience_ms = patience_ms(self.options.look_timeout);
                    let ask = match self.queue.front() {
                        Some(Wanted::Facts(_)) => Ask::Facts,
                        Some(Wanted::Look(devices, extras)) => {
                            Ask::Look { devices: devices.clone(), extras: *extras, patience_ms }
                        }
                        None => return,
                    };
                    match self.send(ask) {
                        Ok(id) => self.phase = Phase::Looking { id },
                        // Its death is, or will be, reported by the thread that reads from it; until then it is asked.
                        Err(_) => self.phase = Phase::Looking { id: 0 },
                    }
                    return;
                }
                Phase::Opening { .. } | Phase::Looking { .. } => return,
            }
        }
    }

    /// Starts a helper and lets it open the driver.
    fn open(&mut self) -> io::Result<()> {
        self.number += 1;
        self.link.start(self.number)?;
        let patience_ms = patience_ms(self.options.open_timeout);
        let ask = Ask::Open { source: self.options.source.clone(), events: self.options.events, patience_ms };
        // As above: a helper that died at once is reported.
        let id = self.send(ask).unwrap_or(0);
        self.phase = Phase::Opening { id, until: Instant::now() + self.options.open_timeout };
        Ok(())
    }

    fn send(&mut self, ask: Ask) -> io::Result<u64> {
        self.last_id += 1;
        let id = self.last_id;
        self.link.send(id, &protocol::line(&Request { id, ask })?)?;
        Ok(id)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Request(wanted) => self.queue.push_back(wanted),
            Event::Afresh => {
                self.failures = 0;
                if matches!(self.phase, Phase::Resting { .. } | Phase::Failed(_)) {
                    self.phase = Phase::Down;
                }
            }
            Event::AskWitness(what) => self.link.ask_witness(what),
            Event::Heard(heard) => (self.deliver)(Message::Heard(heard)),
            Event::Said(Answer { say: Say::Events(events), .. }) => (self.deliver)(Message::Events(events)),
            Event::Said(Answer { id, say }) => self.hear(id, say),
            Event::Born(number, pid) if number == self.number => self.link.pid = Some(pid),
            Event::Gone(number, how) if number == self.number => self.broke(how),
            Event::NurseryGone => {
                let failure = died("was lost with its nursery");
                self.fail(failure.clone(), Fault::Death);
                self.phase = Phase::Lost(failure);
            }
            Event::Born(..) | Event::Gone(..) | Event::Stop => {}
        }
    }

    fn hear(&mut self, id: u64, say: Say) {
        match (&self.phase, say) {
            (Phase::Opening { id: asked, .. }, Say::Opened(result)) if *asked == id => match result {
                Ok(inventory) => {
                    self.phase = Phase::Ready;
                    if !self.opened {
                        self.opened = true;
                        (self.deliver)(Message::Opened(Ok(inventory)));
                    }
                }
                Err(failure) => self.fail(failure, Fault::Death),
            },
            (Phase::Looking { id: asked }, say @ (Say::Look(_) | Say::Facts(_))) if *asked == id => {
                self.phase = Phase::Ready;
                if matches!(say, Say::Look(Ok(_)) | Say::Facts(Ok(_))) {
                    self.failures = 0;
                }
                self.answer(say);
            }
            // Right number, wrong kind: not a helper of ours.
            _ => self.fail(died("gave an answer that does not fit the question"), Fault::Death),
        }
    }

    /// The helper is gone.
    fn broke(&mut self, how: String) {
        if matches!(self.phase, Phase::Opening { .. } | Phase::Ready | Phase::Looking { .. }) {
            self.fail(died(&how), Fault::Death);
        }
    }

    /// A deadline has passed.
    fn expire(&mut self) {
        let now = Instant::now();
        match self.phase {
            Phase::Opening { until, .. } if until <= now => {
                let failure = self.hang("opening the driver", self.options.open_timeout);
                self.fail(failure, Fault::Hang);
            }
            Phase::Looking { .. } if self.head_until.is_some_and(|until| until <= now) => {
                let failure = self.hang("reading the GPUs", self.options.look_timeout);
                self.fail(failure, Fault::Hang);
            }
            // A replacement is still opening: it may have its time, this look has had its own.
            _ if self.head_until.is_some_and(|until| until <= now) => {
                let failure = self.hang("opening the driver again", self.options.look_timeout);
                self.refuse(failure);
            }
            _ => {}
        }
    }

    /// Ends this helper's service: whoever waits for it gets the failure.
    fn fail(&mut self, failure: Failure, fault: Fault) {
        let waited_for = matches!(self.phase, Phase::Opening { .. } | Phase::Looking { .. });
        self.link.abandon();
        let before = self.failures;
        self.failures = self.failures.saturating_add(1);
        let pause = match fault {
            _ if before == 0 => None,
            Fault::Death => Some(pause_after(before)),
            Fault::Hang => Some(PAUSE_AFTER_HANGS),
        };
        self.hangs = self.hangs.saturating_add(u32::from(fault == Fault::Hang));
        self.phase = match pause {
            _ if !self.opened => Phase::Lost(failure.clone()),
            _ if fault == Fault::Hang && self.hangs >= TOO_MANY_HANGS => Phase::Failed(failure.clone()),
            Some(pause) => Phase::Resting { failure: failure.clone(), until: Instant::now() + pause },
            None => Phase::Down,
        };
        if !self.opened {
            self.opened = true;
            (self.deliver)(Message::Opened(Err(failure)));
        } else if waited_for && !self.queue.is_empty() {
            self.refuse(failure);
        }
    }

    /// Answers the first request in the queue.
    fn answer(&mut self, say: Say) {
        self.head_until = None;
        match (self.queue.pop_front(), say) {
            (Some(Wanted::Look(..)), Say::Look(result)) => (self.deliver)(Message::Look(result)),
            (Some(Wanted::Facts(to)), Say::Facts(result)) => {
                // Whoever asked may be gone.
                let _ = to.send(result);
            }
            (Some(wanted), _) => {
                self.queue.push_front(wanted);
                self.phase = Phase::Looking { id: 0 };
                self.fail(died("gave an answer that does not fit the question"), Fault::Death);
            }
            (None, _) => {}
        }
    }

    /// Tells the first in the queue why there is no answer.
    fn refuse(&mut self, failure: Failure) {
        let say = match self.queue.front() {
            Some(Wanted::Facts(_)) => Say::Facts(Err(failure)),
            _ => Say::Look(Err(failure)),
        };
        self.answer(say);
    }

    /// Names the call that hangs, as the helper's thread names tell it.
    fn hang(&self, doing: &str, limit: Duration) -> Failure {
        let place = self.link.pid.map(|pid| (pid, whereabouts(pid)));
        let call = place.as_ref().and_then(|(_, w)| w.call.clone()).unwrap_or_else(|| "the NVML helper".into());
        let detail = place.map(|(pid, w)| (pid, w.to_string())).filter(|(_, text)| !text.is_empty());
        let detail = detail.map_or_else(String::new, |(pid, text)| format!(" (helper process {pid}: {text})"));
        let limit = humantime::format_duration(limit);
        Failure::new(FailureKind::Timeout, format!("{doing}: {call} did not come back within {limit}{detail}"))
            .hint("see what the kernel says: sudo dmesg | grep -i -e nvrm -e xid")
    }
}

/// How long to wait with the next helper after so many have failed in a row.
fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST_PAUSE)
}

/// How long the helper waits for a single device: it must answer before we give up on all of them.
fn patience_ms(limit: Duration) -> u64 {
    u64::try_from((limit / 4 * 3).as_millis()).unwrap_or(u64::MAX)
}

fn died(how: &str) -> Failure {
    Failure::new(FailureKind::HelperDied, format!("reading the GPUs: the NVML helper process {how}"))
        .hint("see whether the kernel ended it for want of memory: sudo dmesg | grep -i -e oom -e segfault")
}

#[cfg(test)]
mod tests;
