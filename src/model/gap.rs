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
}

impl Gap {
    /// A gap about `about` because of `reason`.
    pub fn new(about: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { about: about.into(), reason: reason.into() }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.reason)
    }
}
