//! What could not be seen.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Something that could not be read, in words for the user. A gap never stands for a value: the value beside it is
/// `None`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gap {
    /// What the gap is about: `GPU 0`, `process 4711`, `NVML`, `/proc`.
    pub about: String,
    /// Why it could not be seen, and where there is one the step that would show it.
    pub reason: String,
    /// A device that cannot be read because something is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
}

/// What is wrong with a device that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// The driver has lost it: it fell off the bus or does not answer.
    Lost,
    /// It must be reset before it can be used again.
    ResetRequired,
    /// The driver fails with it and does not say why.
    Failing,
    /// A call about it does not come back.
    Hanging,
    /// The driver does not have it any more.
    Gone,
}

impl Gap {
    /// A gap about `about` because of `reason`.
    pub fn new(about: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { about: about.into(), reason: reason.into(), trouble: None }
    }

    /// The same, with what is wrong with the device.
    #[must_use]
    pub fn because_of(mut self, trouble: impl Into<Option<Trouble>>) -> Self {
        self.trouble = trouble.into();
        self
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.reason)
    }
}
