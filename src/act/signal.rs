//! The one place of the program that sends a signal. A test reads the sources and finds no other.
//!
//! Nobody is signalled by his number alone. A process is held by a pidfd first, which stays with the process and never
//! passes to another that gets its number; then it is looked at anew, and only if it is still the one that was meant,
//! and still does what it is to be ended for, the signal goes through the pidfd. What it is to be ended for are its
//! [`Grounds`]; there is no signal without any.
//!
//! Our own child is the one exception: until we take its status its number belongs to it, so no look is needed.

use super::{guard::Guard, refusal::Refusal};
use crate::{
    model::{ProcId, Process, ProcessState},
    observe::proc::ProcReader,
    text::name::Name,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::Child,
};

/// What a process may be signalled for. It must be true at the moment of each signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grounds {
    /// It has an NVIDIA file open, in any thread, that can hold GPU memory.
    Holder,
    /// A process below it has such a file open, and belongs to the same user, and it has started nobody who is not meant.
    /// Only for a supervisor that a plan names.
    Supervisor,
    /// It descends from this process: from us, in `check --cleanup`. With or without an NVIDIA file, because nothing of
    /// a run is to outlive it, and descent from the subreaper is a proof that no number can forge.
    DescendantOf(ProcId),
}

/// Whom a signal is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Who.
    pub id: ProcId,
    /// Its real user; a process that changed it is not the one that was meant. Not compared for a descendant of ours.
    pub uid: u32,
    /// Why.
    pub grounds: Grounds,
}

/// A target that is held: whatever happens to its number, signals reach this process or nobody.
#[derive(Debug)]
pub struct Aim {
    /// Whom it is at.
    pub target: Target,
    pidfd: OwnedFd,
}

impl Aim {
    /// Takes hold of the target.
    ///
    /// # Errors
    /// If there is no such process, or the kernel has no pidfds (before 5.3).
    pub fn take(target: Target) -> Result<Self, Refusal> {
        let pid = raw(target.id.pid).ok_or(Refusal::Gone)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { target, pidfd }),
            Err(Errno::SRCH | Errno::NOENT) => Err(Refusal::Gone),
            // The number is that of a thread by now.
            Err(Errno::INVAL) => Err(Refusal::Gone),
            Err(error) => Err(Refusal::Failed(format!("it cannot be held by a pidfd: {error}"))),
        }
    }

    /// Whether the process, all its threads, has ended. A zombie has.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut polled, Some(&now)), Ok(n) if n > 0)
    }

    /// Looks at the process anew and, if it is still the one that is meant and its grounds still stand, signals it.
    /// What it was at that moment.
    ///
    /// # Errors
    /// If a signal would be wrong, or cannot be sent.
    pub fn send(&self, reader: &ProcReader, guard: &Guard, signal: Signal) -> Result<Process, Refusal> {
        let process = stands(reader, guard, &self.target)?;
        match deliver(To::Held(self.pidfd.as_fd()), signal) {
            Ok(()) => Ok(process),
            Err(Errno::SRCH) => Err(Refusal::Gone),
            Err(Errno::PERM | Errno::ACCESS) => Err(Refusal::NotAllowed),
            Err(error) => Err(Refusal::Failed(error.to_string())),
        }
    }
}

/// Whether the target may be signalled now.
///
/// # Errors
/// The reason why not.
pub fn stands(reader: &ProcReader, guard: &Guard, target: &Target) -> Result<Process, Refusal> {
    guard.may_signal_at_all().map_err(Refusal::Never)?;
    let process = match reader.examine(target.id.pid) {
        Ok(Some(process)) => process,
        Ok(None) => return Err(Refusal::Gone),
        Err(error) => return Err(Refusal::NotSeen(format!("{error:#}"))),
    };
    if process.id != target.id {
        return Err(Refusal::Reused(Name::from(&process).whole()));
    }
    if process.is_zombie() || process.state == ProcessState::Dead {
        return Err(Refusal::Gone);
    }
    guard.never_us(process.id).map_err(Refusal::Never)?;
    if let Grounds::DescendantOf(root) = target.grounds {
        if !process.ancestors.iter().any(|a| a.id == root) {
            return Err(Refusal::NoDescendant);
        }
        return guard.never_of_our_run(&process).map(|()| process).map_err(Refusal::Never);
    }
    guard.never(&process).map_err(Refusal::Never)?;
    if process.uid != Some(target.uid) {
        return Err(Refusal::OtherUser(process.uid));
    }
    match target.grounds {
        Grounds::Supervisor => {
            if has_holder_below(reader, &process) {
                Ok(process)
            } else {
                Err(Refusal::SupervisesNobody)
            }
        }
        _ => match process.can_hold_memory() {
            Some(true) => Ok(process),
            Some(false) => Err(Refusal::NoNvidiaFile),
            None => Err(Refusal::NotSeen("its open files may not be read by this user".into())),
        },
    }
}

/// Whether a process below this one, of the same user, has an NVIDIA file open.
fn has_holder_below(reader: &ProcReader, supervisor: &Process) -> bool {
    let below = reader.descendants(supervisor.id.pid);
    below.iter().filter(|p| p.uid == supervisor.uid).any(|p| {
        let whole = reader.examine(p.id.pid).ok().flatten();
        whole.is_some_and(|whole| whole.id == p.id && whole.can_hold_memory() == Some(true))
    })
}

/// Signals our own child; nothing happens once its status has been taken, or can be. False: it may not be signalled,
/// because it has changed its user (sudo).
pub fn to_child(child: &mut Child, signal: Signal) -> bool {
    let lives = matches!(child.try_wait(), Ok(None));
    raw(child.id()).filter(|_| lives).is_none_or(|pid| deliver(To::UnreapedChild(pid), signal) != Err(Errno::PERM))
}

/// Who gets a signal, in the two forms in which it cannot reach a stranger.
enum To<'a> {
    Held(BorrowedFd<'a>),
    /// Its number is not given to anybody else before we take its status.
    UnreapedChild(Pid),
}

/// The only lines that send a signal.
fn deliver(to: To<'_>, signal: Signal) -> Result<(), Errno> {
    match to {
        To::Held(pidfd) => pidfd_send_signal(pidfd, signal),
        To::UnreapedChild(pid) => kill_process(pid, signal),
    }
}

fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The signal's name without `SIG`, as `kill` takes it.
pub fn name(signal: Signal) -> String {
    signal_hook::low_level::signal_name(signal.as_raw())
        .map_or_else(|| signal.as_raw().to_string(), |name| name.trim_start_matches("SIG").to_owned())
}
