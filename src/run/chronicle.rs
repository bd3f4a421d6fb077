//! Who wants to know, while a run goes on, who of it lives. What is done with it is none of the run's business, as long as it
//! is quick.

use crate::model::{ProcId, Process};

/// Is told.
pub trait Chronicle {
    /// These of the run of `command` live. Told after each reading of the tree.
    fn lives(&mut self, command: ProcId, living: &[Process]);
}
