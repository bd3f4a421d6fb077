//! What a process's parent is to it: did it start it, or was the process left to it when the one that did had ended? The
//! kernel does not say, and anybody may be the heir (PID 1, a user's systemd, Slurm's supervisor of a step, a container's
//! shim, any program that declares itself a subreaper). So this is asked here and nowhere else, by facts that hold for
//! whoever inherits, and by names only where nothing else tells.

use crate::model::{Ancestor, Observer, Process, run_began};

/// A process's parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parent<'a> {
    /// None that can be seen.
    Unseen,
    /// It started the process, as far as can be told.
    Started(&'a Ancestor),
    /// It adopts, and starts programs too.
    Either(&'a Ancestor),
    /// It has adopted the process: it cannot have started it.
    Adopted(&'a Ancestor),
}

/// First processes of a machine or a container, and of a user's services: they start programs, and adopt.
const INITS: [&str; 9] =
    ["systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "runit", "openrc-init"];

/// Supervisors of one step, container or run: they start the first of it, everything else below them was left to them.
const SUPERVISORS: [&str; 4] = ["slurmstepd", "containerd-shim", "conmon", "gpuresid"];

impl<'a> Parent<'a> {
    /// Of this process.
    pub(crate) fn of(process: &'a Process) -> Self {
        let Some(parent) = process.ancestors.first() else { return Self::Unseen };
        if is_of_another_session(process, parent) || is_older_than_its_run(process, parent) {
            Self::Adopted(parent)
        } else if adopts(parent) {
            Self::Either(parent)
        } else {
            Self::Started(parent)
        }
    }

    /// The process may have lost the one that started it.
    pub(crate) fn may_have_adopted(self) -> bool {
        !matches!(self, Self::Started(_))
    }
}

/// A child is born into its parent's session and can leave it for a new one only, which it leads.
fn is_of_another_session(process: &Process, parent: &Ancestor) -> bool {
    let leads = u32::try_from(process.sid) == Ok(process.id.pid);
    // 0 is a session whose leader this /proc does not show.
    process.sid > 0 && !leads && parent.sid.is_some_and(|sid| sid != process.sid)
}

/// Whoever is older than a run has started nothing of it.
fn is_older_than_its_run(process: &Process, parent: &Ancestor) -> bool {
    // Of a marker of another boot nothing is known, and its times are another clock's.
    let marker = process.marker.as_deref().filter(|_| process.marker_alive.is_some());
    let began = marker.and_then(run_began);
    began.is_some_and(|began| parent.id.start_ticks < began)
}

/// It inherits whom others have left: by its place, or by its name.
fn adopts(parent: &Ancestor) -> bool {
    parent.id.pid == 1 || INITS.contains(&parent.comm.as_str())
}

/// The parent is no program that starts workers of its own: of a worker that only lives below one that does, it is the
/// heir. In a container PID 1 may be that program itself.
pub(crate) fn is_only_heir(parent: &Ancestor, initial_pid_namespace: bool) -> bool {
    let name = parent.comm.as_str();
    (parent.id.pid == 1 && initial_pid_namespace)
        || INITS.contains(&name)
        || SUPERVISORS.iter().any(|supervisor| name.starts_with(supervisor))
}

/// What started the process is gone, for all that can be told.
pub(crate) fn has_lost_its_starter(process: &Process, observer: &Observer) -> bool {
    let initial = observer.initial_pid_namespace == Some(true);
    match Parent::of(process) {
        Parent::Adopted(_) => true,
        Parent::Started(parent) | Parent::Either(parent) => is_only_heir(parent, initial),
        Parent::Unseen => false,
    }
}

/// Who started the process and lives, where that was not somebody who takes in orphans.
pub(crate) fn starter(process: &Process) -> Option<&Ancestor> {
    match Parent::of(process) {
        Parent::Started(parent) if !is_only_heir(parent, true) => Some(parent),
        _ => None,
    }
}

/// The process may have been left to the parent that it has: by a proof, or because that one is known to inherit.
pub(crate) fn may_be_left_to_its_parent(process: &Process) -> bool {
    Parent::of(process).may_have_adopted() || process.ancestors.first().is_some_and(|parent| is_only_heir(parent, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::tests::build::{ancestor, id, process};

    /// A process of session 60 below this one.
    fn below(parent: Ancestor) -> Process {
        Process { sid: 60, ..process(id(70, 5_000), vec![parent], None) }
    }

    fn named(comm: &str) -> Ancestor {
        ancestor(id(50, 40), comm)
    }

    #[test]
    fn a_child_that_leads_no_session_is_of_its_parents() {
        let told = |sid: Option<i32>, change: fn(&mut Process)| {
            let mut process = below(Ancestor { sid, ..named("anything") });
            change(&mut process);
            matches!(Parent::of(&process), Parent::Adopted(_))
        };
        assert!(told(Some(7), |_| {}), "whoever the parent is");
        assert!(!told(Some(60), |_| {}), "the same session");
        assert!(!told(None, |_| {}), "an older look did not write it down");
        assert!(!told(Some(7), |p| p.sid = 70), "it has made a session of its own");
        assert!(!told(Some(7), |p| p.sid = 0), "its session is not to be seen from here");
    }

    #[test]
    fn who_is_older_than_a_run_has_started_nothing_of_it() {
        let told = |marker: &str| {
            let marked = (Some(marker.into()), Some(false));
            let process = Process { marker: marked.0, marker_alive: marked.1, ..below(named("any-subreaper")) };
            matches!(Parent::of(&process), Parent::Adopted(_))
        };
        assert!(told("0d5c1c2a-900-41-901"));
        assert!(!told("0d5c1c2a-900-40-901"), "of the same tick, it may be of the run");
        assert!(!told("0d5c1c2a-900-41-901:0d5c1c2a-900-39-901"), "the innermost run counts");
        assert!(!told("0d5c1c2a-900-41-snapshot"), "no run");
    }

    #[test]
    fn names_say_who_may_have_adopted() {
        let told = |comm: &str| Parent::of(&below(named(comm))).may_have_adopted();
        assert!(INITS.iter().all(|comm| told(comm)));
        assert!(!SUPERVISORS.iter().chain(["bash", "python3"].iter()).any(|comm| told(comm)), "they start what runs");
        assert!(Parent::of(&below(ancestor(id(1, 0), "anything"))).may_have_adopted());
        assert_eq!(Parent::of(&process(id(70, 5_000), vec![], None)), Parent::Unseen);
    }
}
