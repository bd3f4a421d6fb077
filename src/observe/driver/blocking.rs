//! The driver for commands that take one look and wait for it: the same messages, one after the other.

use super::{Client, Extras, Failure, FailureKind, Inventory, Message, Options};
use crate::model::{DeviceEvent, DriverFacts, Look, ProcId, Uuid};
use std::{
    path::Path,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::Duration,
};

/// A [`Client`] that waits for its answers. It waits no longer than the client's deadlines.
#[derive(Debug)]
pub struct Blocking {
    client: Client,
    messages: Receiver<Message>,
    events: Vec<DeviceEvent>,
}

impl Blocking {
    /// Starts the helper, which opens the driver meanwhile; [`Self::inventory`] waits for that.
    ///
    /// # Errors
    /// If no process could be started at all.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        Self::over(|deliver| Client::start(options, deliver))
    }

    /// As [`Self::start`], with another binary as the helper: for tests, which are not gpuresid.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[doc(hidden)]
    pub fn start_with(binary: &Path, options: &Options) -> anyhow::Result<Self> {
        Self::over(|deliver| Client::start_with(binary, options, deliver))
    }

    fn over(start: impl FnOnce(Box<dyn Fn(Message) + Send>) -> anyhow::Result<Client>) -> anyhow::Result<Self> {
        let (tell, messages) = mpsc::channel();
        let client = start(Box::new(move |message| {
            // Whoever dropped the receiver wants no more answers.
            let _ = tell.send(message);
        }))?;
        Ok(Self { client, messages, events: Vec::new() })
    }

    /// Waits until the driver is open. To be called once, before [`Self::look`]. If that takes longer than `slow`,
    /// `on_slow` is called, so that the user can be told.
    ///
    /// # Errors
    /// Why the driver does not answer.
    pub fn inventory(&mut self, slow: Duration, on_slow: impl FnOnce()) -> Result<Inventory, Failure> {
        let first = match self.messages.recv_timeout(slow) {
            Err(RecvTimeoutError::Timeout) => {
                on_slow();
                self.messages.recv().ok()
            }
            other => other.ok(),
        };
        match first {
            Some(Message::Opened(result)) => result,
            _ => Err(broken()),
        }
    }

    /// One look at these devices (empty: all).
    ///
    /// # Errors
    /// Why there is none.
    pub fn look(&mut self, devices: &[Uuid]) -> Result<Look, Failure> {
        self.client.request_look(devices, Extras { utilization: true, ..Extras::default() });
        loop {
            match self.messages.recv() {
                Ok(Message::Look(result)) => return result,
                Ok(Message::Events(events)) => self.events.extend(events),
                Ok(Message::Opened(_) | Message::Heard(_)) => {}
                Err(_) => return Err(broken()),
            }
        }
    }

    /// How the devices are set up: read by getters only.
    ///
    /// # Errors
    /// Why that cannot be read.
    pub fn facts(&mut self) -> Result<DriverFacts, Failure> {
        let (answer, facts) = mpsc::channel();
        self.client.request_facts(answer);
        facts.recv().unwrap_or_else(|_| Err(broken()))
    }

    /// Events that came with the looks so far.
    pub fn take_events(&mut self) -> Vec<DeviceEvent> {
        std::mem::take(&mut self.events)
    }

    /// As [`Client::tool_processes`].
    pub fn tool_processes(&self) -> Vec<ProcId> {
        self.client.tool_processes()
    }
}

/// The client's thread is gone, which only a defect of ours can do.
fn broken() -> Failure {
    Failure::new(FailureKind::HelperDied, "reading the GPUs: the driver's thread ended unexpectedly")
}
