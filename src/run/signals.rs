//! Which signals are caught, who sent them, and which are passed on to the command.
//!
//! All that can be caught are, but those that stop and those in which the processor tells a process of its own mistakes
//! ([`crate::dispositions`]): one that we did not catch would end us and leave the command running, unwatched.
//!
//! The command shares our process group, so it has already had what the terminal's driver sends (the kernel sends
//! Ctrl-C to the whole group): passing that on would deliver it twice. One that has gone into another group has not. What
//! a process sends may be for us or for the group (`kill -- -PGID`, `timeout`): the witness in our group knows, and is
//! asked. What the kernel sends to us alone, such as a timer of the program that became us, is passed on. What our own
//! writing brings about (a reader that is gone, a file that is too large) and our own CPU time are no news for anybody.
//! The command itself and its children (`kill $PPID`, `kill 0`) know what they do: they are not told their own news.
//!
//! A signal that was ignored when we were started stays ignored, for us and the command: this is how `nohup` works.
//! Ctrl-Z is not caught: it stops the whole group, and `fg` continues it.

use super::{event::Event, family::Myself};
use crate::dispositions;
use anyhow::Context;
use procfs::process::Process;
use signal_hook::{
    consts::{SIGABRT, SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGWINCH, SIGXCPU},
    iterator::{
        SignalsInfo,
        exfiltrator::{WithOrigin, origin::Origin},
    },
    low_level::siginfo::Cause,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread,
};

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    /// Its number.
    pub signal: i32,
    /// Who sent it.
    pub sender: SentBy,
}

/// Who sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentBy {
    /// The terminal's driver, to the whole group; a hangup to the leader of the session alone.
    Terminal,
    /// The kernel for another reason, to us alone.
    Kernel,
    /// A process; `None` if it lives outside our PID namespace.
    Process(Option<u32>),
}

/// What to do with a signal while the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The command has had it, or it is its own.
    Leave,
    /// The command gets it now.
    Forward,
    /// The command gets it unless the whole group, and so the command, has had it from this process.
    AskFirst(u32),
}

/// Where we and the command stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// A hangup is sent to the leader of the session alone.
    pub(super) session_leader: bool,
    /// The command is in our process group.
    pub(super) together: bool,
}

/// The rule of the module's first paragraphs. `is_own`: the sender is the command or below it.
pub(super) fn delivery(caught: Caught, places: Places, is_own: bool) -> Delivery {
    match caught.sender {
        SentBy::Terminal if !places.together || caught.signal == SIGHUP && places.session_leader => Delivery::Forward,
        SentBy::Terminal => Delivery::Leave,
        SentBy::Kernel => Delivery::Forward,
        SentBy::Process(_) if is_own => Delivery::Leave,
        SentBy::Process(_) if !places.together => Delivery::Forward,
        SentBy::Process(pid) => Delivery::AskFirst(pid.unwrap_or(0)),
    }
}

/// The caught signals. They arrive as events for the life of the process.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    leave_at_once: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers: SIGCHLD always (an inherited "ignored" would make waiting impossible), the others unless
    /// they were ignored when we were started.
    ///
    /// # Errors
    /// If a handler or the thread cannot be set up.
    pub(super) fn install(events: Sender<Event>) -> anyhow::Result<Self> {
        let mut signals =
            SignalsInfo::<WithOrigin>::new([SIGCHLD]).context("could not install the handlers for signals")?;
        let ignored = ignored_at_start();
        for number in dispositions::passed_on().filter(|number| !has(ignored, *number)) {
            match signals.handle().add_signal(number) {
                // The C library keeps some of these for itself.
                Err(_) if dispositions::is_real_time(number) => {}
                done => done.context("could not install the handlers for signals")?,
            }
        }
        let leave_at_once = Arc::new(AtomicBool::new(false));
        let leave = Arc::clone(&leave_at_once);
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                dispositions::hear_all();
                loop {
                    // The end of the command goes last: the Ctrl-C that ended it came before its end.
                    let (children, others): (Vec<Origin>, Vec<_>) = signals.wait().partition(|o| o.signal == SIGCHLD);
                    for origin in others {
                        if leave.load(Ordering::SeqCst) && ends_us(origin.signal) {
                            crate::exit::Ending::Signal(origin.signal).end();
                        }
                        if !is_our_own(&origin) {
                            let _ = events.send(Event::Signal(caught(&origin)));
                        }
                    }
                    if !children.is_empty() {
                        let _ = events.send(Event::Children);
                    }
                }
            })
            .context("could not start the thread that waits for signals")?;
        Ok(Self { leave_at_once })
    }

    /// From now on nobody reads the events any more: a signal that asks us to end does so at once.
    pub(super) fn leave_at_once(&self) {
        self.leave_at_once.store(true, Ordering::SeqCst);
    }
}

/// Whether the signal asks for an end.
pub(super) const fn ends_us(signal: i32) -> bool {
    matches!(signal, SIGTERM | SIGINT | SIGHUP | SIGQUIT | SIGABRT | SIGALRM | SIGXCPU)
}

/// Brought about by what we do ourselves; the write that it is about fails as well, and the limit of CPU time is ours.
fn is_our_own(origin: &Origin) -> bool {
    let by_us = origin.process.is_some_and(|p| u32::try_from(p.pid).is_ok_and(|pid| pid == std::process::id()));
    by_us || origin.signal == SIGXCPU && origin.process.is_none()
}

fn caught(origin: &Origin) -> Caught {
    let sender = match (origin.cause, origin.process) {
        (Cause::Sent(_), Some(process)) => SentBy::Process(u32::try_from(process.pid).ok().filter(|pid| *pid != 0)),
        _ if matches!(origin.signal, SIGHUP | SIGINT | SIGQUIT | SIGCONT | SIGWINCH) => SentBy::Terminal,
        _ => SentBy::Kernel,
    };
    Caught { signal: origin.signal, sender }
}

const fn has(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 != 0
}

/// The signals that are ignored, as the mask of `/proc/self/status`. Nothing is taken as ignored where that cannot be
/// read.
fn ignored_at_start() -> u64 {
    let mask = Process::myself().and_then(|p| p.status()).map_or(0, |status| status.sigign);
    let pipe = 1 << (SIGPIPE - 1);
    if dispositions::pipe_was_ignored() { mask | pipe } else { mask & !pipe }
}

/// Whether this signal was ignored when we were started (`nohup`). To be asked before a handler is installed.
pub fn was_ignored(signal: i32) -> bool {
    has(ignored_at_start(), signal)
}

/// Whether the sender of a signal is the command or a process below it, as far as it can still be seen. Both numbers as
/// signals come.
pub(super) fn is_own(sender: u32, command: u32, myself: &Myself) -> bool {
    if sender == command {
        return true;
    }
    let mut above = if myself.plain { Process::new(sender.cast_signed()).ok() } else { None };
    // A chain of parents is finite, except while it is being rearranged.
    for _ in 0..1024 {
        match above.and_then(|p| p.stat().ok()).map(|s| s.ppid) {
            Some(parent) if parent.cast_unsigned() == std::process::id() => return true,
            Some(parent) if parent > 1 => above = Process::new(parent).ok(),
            _ => break,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const BESIDE_IT: Places = Places { session_leader: false, together: true };

    fn sent_by(sender: SentBy, signal: i32, is_own: bool) -> Delivery {
        delivery(Caught { signal, sender }, BESIDE_IT, is_own)
    }

    #[test]
    fn the_terminal_has_reached_the_group_already() {
        for signal in [SIGINT, SIGQUIT, SIGHUP, SIGWINCH] {
            assert_eq!(sent_by(SentBy::Terminal, signal, false), Delivery::Leave);
            let elsewhere = Places { together: false, ..BESIDE_IT };
            let key = Caught { signal, sender: SentBy::Terminal };
            assert_eq!(delivery(key, elsewhere, false), Delivery::Forward);
        }
        let hangup = Caught { signal: SIGHUP, sender: SentBy::Terminal };
        let leader = Places { session_leader: true, ..BESIDE_IT };
        assert_eq!(delivery(hangup, leader, false), Delivery::Forward);
    }

    #[test]
    fn what_a_process_sends_is_passed_on_unless_the_command_has_had_it() {
        let by = |pid| SentBy::Process(pid);
        assert_eq!(sent_by(by(Some(7)), SIGTERM, false), Delivery::AskFirst(7));
        assert_eq!(sent_by(by(None), SIGTERM, false), Delivery::AskFirst(0));
        assert_eq!(sent_by(by(Some(7)), SIGTERM, true), Delivery::Leave);
        let elsewhere = Places { together: false, ..BESIDE_IT };
        assert_eq!(delivery(Caught { signal: SIGTERM, sender: by(Some(7)) }, elsewhere, false), Delivery::Forward);
        assert_eq!(sent_by(SentBy::Kernel, SIGALRM, false), Delivery::Forward);
    }
}
