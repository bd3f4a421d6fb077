//! What the wait loop of a run waits for: everything arrives on one channel, so that nothing that hangs (a look, a
//! file of `/proc`) can delay a signal or the end of the command.

use super::{signals::Caught, worker::Answer};
use crate::observe::driver::{self, Message};
use std::sync::mpsc;

/// Something happened.
#[derive(Debug)]
pub enum Event {
    /// A signal came.
    Signal(Caught),
    /// A child changed its state.
    Children,
    /// The driver spoke.
    Driver(Message),
    /// A reading of `/proc` is done.
    Answer(Answer),
}

/// The channel of a run.
pub fn channel() -> (mpsc::Sender<Event>, mpsc::Receiver<Event>) {
    mpsc::channel()
}

/// Who answers for the devices: the driver's client, and in the tests of the loop a scripted one.
pub trait Looker {
    /// As [`driver::Client::request_look`]: exactly one [`Message::Look`] follows as an [`Event::Driver`].
    fn request_look(&self, devices: &[crate::model::Uuid], extras: driver::Extras);
    /// As [`driver::Client::try_afresh`].
    fn try_afresh(&self) {}
    /// As [`driver::Client::ask_whether_the_group_heard`].
    fn ask_whether_the_group_heard(&self, _signal: i32, _sender: u32) {}
    /// As [`driver::Client::leave_the_group`].
    fn leave_the_group(&self) {}
    /// As [`driver::Client::tool_processes`].
    fn tool_processes(&self) -> Vec<crate::model::ProcId>;
}

impl Looker for driver::Client {
    fn request_look(&self, devices: &[crate::model::Uuid], extras: driver::Extras) {
        Self::request_look(self, devices, extras);
    }

    fn try_afresh(&self) {
        Self::try_afresh(self);
    }

    fn ask_whether_the_group_heard(&self, signal: i32, sender: u32) {
        Self::ask_whether_the_group_heard(self, signal, sender);
    }

    fn leave_the_group(&self) {
        Self::leave_the_group(self);
    }

    fn tool_processes(&self) -> Vec<crate::model::ProcId> {
        Self::tool_processes(self)
    }
}
