//! Whose process is it: the run's own, somebody else's, or could be either.

use super::run::Run;
use crate::model::{Ancestor, Evidence, Lineage, ProcId, Process, Scope, Seen, marker_names};

/// What is known of a process, alive or remembered.
#[derive(Clone, Copy)]
pub(crate) struct Person<'a> {
    pub(crate) id: ProcId,
    pub(crate) uid: Option<u32>,
    pub(crate) ancestors: &'a [Ancestor],
    pub(crate) marker: Option<&'a str>,
}

impl<'a> From<&'a Process> for Person<'a> {
    fn from(p: &'a Process) -> Self {
        Self { id: p.id, uid: p.uid, ancestors: &p.ancestors, marker: p.marker.as_deref() }
    }
}

impl<'a> From<&'a Seen> for Person<'a> {
    fn from(s: &'a Seen) -> Self {
        Self { id: s.id, uid: s.uid, ancestors: &s.ancestors, marker: s.marker.as_deref() }
    }
}

/// A lineage and what it rests on.
pub(crate) struct Attribution {
    pub(crate) lineage: Lineage,
    pub(crate) why: Evidence,
    /// Nothing ties it to the run but that it is new, which the scope takes for enough.
    pub(crate) by_scope: bool,
}

impl Attribution {
    pub(crate) fn new(lineage: Lineage, why: Evidence) -> Self {
        Self { lineage, why, by_scope: false }
    }
}

/// Programs that hand their work to a daemon, so that it is done outside the command's tree.
const CLIENTS: [&str; 11] =
    ["docker", "podman", "nerdctl", "srun", "sbatch", "salloc", "kubectl", "ray", "ssh", "systemd-run", "mpirun"];

/// Whether this command line is a client's. It may widen the interval, never charge.
pub(crate) fn is_client(argv: &[String], comm: &str) -> bool {
    let name = argv.first().map_or(comm, |a| a.rsplit('/').next().unwrap_or(a));
    CLIENTS.contains(&name) || CLIENTS.contains(&comm)
}

impl Run<'_> {
    /// Whose process this is, and why.
    pub(crate) fn attribute(&self, person: Person<'_>) -> Attribution {
        let launch = self.launch;
        let seen = self.trace.seen(person.id);
        if launch.command.as_ref().is_some_and(|c| c.id == person.id) {
            return Attribution::new(Lineage::Own, Evidence::IsCommand);
        }
        // Who has lost its parent hangs below us whoever that was: the chain of its first sight knows better.
        let descends = launch.tree().is_some_and(|tree| {
            let first = seen.map(|s| s.ancestors.as_slice()).filter(|chain| tree.reaches(chain));
            tree.has(person.id, first.unwrap_or(person.ancestors))
        });
        let below_the_command =
            || launch.command.as_ref().is_some_and(|c| self.trace.was_below(c.id, person.id, person.ancestors));
        if descends && (!launch.company || below_the_command()) {
            return Attribution::new(Lineage::Own, Evidence::DescendsFromCommand);
        }
        let marker = person.marker.or_else(|| seen.and_then(|s| s.marker.as_deref()));
        let of_this_run = marker.map(|m| marker_names(m, &launch.run_id));
        if of_this_run == Some(true) {
            return Attribution::new(Lineage::Own, Evidence::HasMarker);
        }
        if self.stood_before(person.id) {
            return Attribution::new(Lineage::Foreign, Evidence::WasThereBefore { beginning: self.beginning() });
        }
        match launch.scope {
            Scope::New | Scope::Device if self.was_there(person.id) => {
                return Attribution::new(Lineage::Foreign, Evidence::UsesGpuSince { beginning: self.beginning() });
            }
            Scope::New | Scope::Device => {
                let said = Attribution::new(Lineage::Own, Evidence::NewInScope);
                return Attribution { by_scope: true, ..said };
            }
            Scope::Run => {}
        }
        if of_this_run == Some(false) {
            return Attribution::new(Lineage::Foreign, Evidence::HasOtherMarker);
        }
        if self.client {
            return Attribution::new(Lineage::Unknown, Evidence::NewBesideClient);
        }
        if let Some(uid) = person.uid
            && !launch.own_uids.is_empty()
            && !launch.own_uids.contains(&uid)
        {
            return Attribution::new(Lineage::Foreign, Evidence::OfOtherUser);
        }
        if self.own_was_listed
            && let Some(command) = &launch.command
        {
            if person.id.start_ticks < command.id.start_ticks {
                return Attribution::new(Lineage::Foreign, Evidence::OlderThanCommand);
            }
            if let Some(older) = self
                .older_outsider(person.ancestors, command.id)
                // Who started it may have ended since it was first seen.
                .or_else(|| self.older_outsider(&seen?.ancestors, command.id))
            {
                return Attribution::new(Lineage::Foreign, Evidence::StartedByOlder { by: older.into() });
            }
        }
        let why = match self.compares() {
            true => Evidence::NewWithoutMarker,
            false => Evidence::NewAndNotBelow,
        };
        Attribution::new(Lineage::Unknown, why)
    }

    /// A process in the chain, below PID 1, that is older than the command and not of its tree.
    fn older_outsider<'b>(&self, ancestors: &'b [Ancestor], command: ProcId) -> Option<&'b Ancestor> {
        ancestors
            .iter()
            .find(|a| a.id.pid > 1 && a.id.start_ticks < command.start_ticks && Some(a.id) != self.launch.root)
    }
}
