//! Texts that somebody else chose: names of programs, users, files, control groups. As a type, so that none of them
//! reaches a terminal as it is: what it prints is harmless, whatever it holds.

use super::Ancestor;
use serde::{Deserialize, Serialize};

/// Such a text, as it was read. What prints it makes it harmless.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Foreign(pub String);

impl<T: Into<String>> From<T> for Foreign {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

/// A process by its number and what it is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Named {
    /// PID.
    pub pid: u32,
    /// Its kernel's name, or its command line.
    pub name: Foreign,
}

impl From<&Ancestor> for Named {
    fn from(ancestor: &Ancestor) -> Self {
        Self { pid: ancestor.id.pid, name: ancestor.comm.as_str().into() }
    }
}
