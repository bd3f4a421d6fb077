//! How far each way of asking `reclaim` reaches, by who decides in it. A table, so that nobody is ended by a rule that
//! stands somewhere else. There are three sorts: a person, who has seen the plan; a system's own hook, which knows that it
//! has ended a job and who is of it; and a timer, which has nobody to ask, and so needs the leave that was given
//! beforehand. That a launcher is gone is none of them.

use super::targets::Targets;

/// The terms of one way of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Everybody is named by number: then what cannot be done is an error, and not something to pass over.
    pub by_number: bool,
    /// With `--all-users` it reaches other users' processes.
    pub others: bool,
    /// Who names us, or PID 1, has made that up.
    pub forgeable: bool,
    /// Whom a member starts while it is being ended is a member too, and ended in its turn.
    pub heirs: bool,
}

impl Targets {
    /// The table.
    pub const fn terms(&self) -> Terms {
        match self {
            // A person, who has chosen.
            Self::Pids(_) => terms(true, true, false, false),
            Self::Report(_) => terms(false, true, true, false),
            // A person, who is shown signs: over what belongs to others nobody decides by these.
            Self::Orphans { .. } => terms(false, false, false, false),
            // A hook of the system that has ended the job.
            Self::Job(_) => terms(false, true, false, true),
            Self::Ci(_) => terms(false, false, false, true),
            // Whoever gave leave beforehand.
            Self::Unattended(_) => terms(false, true, false, false),
        }
    }
}

const fn terms(by_number: bool, others: bool, forgeable: bool, heirs: bool) -> Terms {
    Terms { by_number, others, forgeable, heirs }
}
