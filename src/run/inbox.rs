//! Sorts what arrives, so that each phase of a run takes what it cares for and nothing is lost between phases.

use super::{
    event::Event,
    signals::Caught,
    worker::{Answer, ScanFor},
};
use crate::{
    model::{DeviceEvent, Leftover, Look, Process},
    observe::{
        driver::{Failure, Heard, Inventory, Message},
        proc::Scan,
    },
};
use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

/// What has arrived and was not taken yet.
#[derive(Debug)]
pub struct Inbox {
    events: Receiver<Event>,
    /// The driver's answer to being opened.
    pub opened: Option<Result<Inventory, Failure>>,
    /// The answer to the last request for a look.
    pub look: Option<Result<Look, Failure>>,
    /// Xid events.
    pub device_events: Vec<DeviceEvent>,
    /// Signals, in order.
    pub signals: VecDeque<Caught>,
    /// Which of them have reached our whole process group.
    pub heard: Vec<Heard>,
    /// A child changed its state.
    pub children: bool,
    /// A look and who its unknown PIDs are.
    pub identified: Option<(Look, Vec<Process>)>,
    /// Processes that were asked for.
    pub examined: Option<Vec<Process>>,
    /// The tree, and what reading it cost.
    pub tree: Option<(Vec<Process>, Duration)>,
    /// What the run left in shared memory.
    pub leftovers: Option<Vec<Leftover>>,
    /// The scan for the before-look.
    pub scanned_before: Option<Scan>,
    /// The scan for the after-look.
    pub scanned_after: Option<Scan>,
}

impl Inbox {
    /// Over the receiving end of a run's channel.
    pub fn new(events: Receiver<Event>) -> Self {
        Self {
            events,
            opened: None,
            look: None,
            device_events: Vec::new(),
            signals: VecDeque::new(),
            heard: Vec::new(),
            children: false,
            identified: None,
            examined: None,
            tree: None,
            leftovers: None,
            scanned_before: None,
            scanned_after: None,
        }
    }

    /// Waits for something to arrive, at the longest until then, and takes in all that is there.
    pub fn wait(&mut self, until: Instant) {
        match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(event) => self.sort(event),
            Err(RecvTimeoutError::Timeout) => return,
            // All senders are gone: nothing will come, but time still passes.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return;
            }
        }
        while let Ok(event) = self.events.try_recv() {
            self.sort(event);
        }
    }

    fn sort(&mut self, event: Event) {
        match event {
            Event::Signal(caught) => self.signals.push_back(caught),
            Event::Children => self.children = true,
            Event::Driver(Message::Opened(opened)) => self.opened = Some(opened),
            Event::Driver(Message::Look(look)) => self.look = Some(look),
            Event::Driver(Message::Events(events)) => self.device_events.extend(events),
            Event::Driver(Message::Heard(heard)) => self.heard.push(heard),
            Event::Answer(Answer::Identified(look, processes)) => self.identified = Some((look, processes)),
            Event::Answer(Answer::Examined(processes)) => self.examined = Some(processes),
            Event::Answer(Answer::Leftovers(leftovers)) => self.leftovers = Some(leftovers),
            Event::Answer(Answer::Tree(tree, cost)) => self.tree = Some((tree, cost)),
            Event::Answer(Answer::Scanned(ScanFor::Before, scan)) => self.scanned_before = Some(scan),
            Event::Answer(Answer::Scanned(ScanFor::After, scan)) => self.scanned_after = Some(scan),
        }
    }
}
