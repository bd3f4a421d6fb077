//! Why the driver as a whole does not answer. Apart from [`super::Gap`], because then nothing at all is known of the
//! devices.

use serde::{Deserialize, Serialize};

/// Why the driver does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No NVIDIA kernel driver is loaded.
    NoDriver,
    /// The library was not found or could not be loaded.
    NoLibrary,
    /// Library and kernel module are of different versions.
    VersionMismatch,
    /// We may not use the device files.
    NoPermission,
    /// The driver says that there is no GPU.
    NoGpu,
    /// A call did not come back in time.
    Timeout,
    /// The helper process died.
    HelperDied,
    /// Anything else.
    Other,
}

/// A failure of the driver as a whole: what we were doing, what went wrong, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// One sentence: what we were doing and what went wrong.
    pub message: String,
    /// What to do next, with a command where there is one.
    pub hint: Option<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A failure without advice.
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// The same with the next step.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
