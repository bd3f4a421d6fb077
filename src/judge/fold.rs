//! Folds the looks of a run into a [`Trace`].

use crate::model::{Bytes, DeviceEvent, Gap, Look, ProcId, Process, Scope, Snapshot, Trace};

/// What is charged to the run right now, by the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Listed memory of charged processes and charged ghosts, over all devices. `None`: some device could not be read.
    pub listed: Option<Bytes>,
    /// Of that, entries whose process is known to be gone.
    pub entries: usize,
    /// Growth of unaccounted memory beyond the context cost over all devices, never below 0.
    pub unaccounted_growth: Bytes,
}

/// Folds looks as they come in.
#[derive(Debug)]
pub struct Fold {
    _private: (),
}

impl Fold {
    /// A fold that starts at the before-look. `root` is the subreaper below which all of the run stands.
    pub fn new(_before: &Snapshot, _scope: Scope, _root: Option<ProcId>) -> Self {
        Self { _private: () }
    }

    /// PIDs listed in this look whose identity is not known yet: identify them and [`Self::remember`] them before
    /// [`Self::look`].
    pub fn unknown_pids(&self, _look: &Look) -> Vec<u32> {
        Vec::new()
    }

    /// Remembers who a PID is, seen alive at `at_ms`.
    pub fn remember(&mut self, _process: &Process, _at_ms: u64) {}

    /// Takes the next look. `settling`: the command has ended.
    pub fn look(&mut self, _look: &Look, _settling: bool) {}

    /// A look that failed as a whole.
    pub fn failed_look(&mut self, _gap: Gap) {}

    /// Events of the driver.
    pub fn events(&mut self, _events: Vec<DeviceEvent>) {}

    /// What is charged by the last look.
    pub fn charge(&self) -> Charge {
        Charge::default()
    }

    /// The trace.
    pub fn finish(self) -> Trace {
        Trace::default()
    }
}
