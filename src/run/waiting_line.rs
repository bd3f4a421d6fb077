//! The one line that says what settling waits for, and not before somebody could wonder: kept up to date on a terminal,
//! in the foreground; elsewhere (a CI job's log) written once.

use super::settle::Waiting;
use rustix::termios;
use std::{
    io::{self, Write},
    time::Duration,
};

/// No line before this time has passed: on a terminal, where it goes away again, and elsewhere.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_OF_LOGS: Duration = Duration::from_secs(2);

/// The line on standard error.
#[derive(Debug)]
pub(super) struct WaitingLine {
    place: Place,
    shown: String,
}

/// Where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Terminal,
    Log,
}

impl WaitingLine {
    /// Nothing is shown yet, and never if `silent`.
    pub(super) fn new(silent: bool) -> Self {
        let place = match (silent, termios::isatty(io::stderr())) {
            (true, _) => Place::Nowhere,
            (false, true) => Place::Terminal,
            (false, false) => Place::Log,
        };
        Self { place, shown: String::new() }
    }

    /// Shows what is waited for.
    pub(super) fn show(&mut self, waiting: Waiting, since: Duration, cap: Duration) {
        let patience = if self.place == Place::Log { PATIENCE_OF_LOGS } else { PATIENCE };
        if self.place == Place::Nowhere || since < patience {
            return;
        }
        let what = words(waiting);
        let cap = longest(waiting, cap);
        if self.place == Place::Log {
            let _ = writeln!(io::stderr(), "gpuresid: waiting {what}, at most {cap} s");
            self.place = Place::Nowhere;
            return;
        }
        let text = format!("gpuresid: waiting {what}, {}/{cap} s; Ctrl-C reports now", since.as_secs());
        if text != self.shown && in_foreground() {
            // A terminal that does not know its size says 0.
            let size = termios::tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col));
            let width = size.filter(|columns| *columns > 0).unwrap_or(80);
            let line: String = text.chars().take(width.saturating_sub(1)).collect();
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
            self.shown = text;
        }
    }

    /// Takes the line away.
    pub(super) fn clear(&mut self) {
        if !self.shown.is_empty() {
            self.shown.clear();
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for WaitingLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What is waited for, to follow `waiting`.
fn words(waiting: Waiting) -> String {
    match waiting {
        Waiting::Look => "for the driver's answer".to_owned(),
        Waiting::Draining(Some(bytes)) => format!("for {bytes} to come back"),
        Waiting::Draining(None) => "for memory to come back".to_owned(),
        Waiting::Living(1) => "for 1 process that still runs".to_owned(),
        Waiting::Living(n) => format!("for {n} processes that still run"),
        Waiting::Telling(_) => "to see whether memory that others now hold is the command's".to_owned(),
    }
}

/// The longest that this can take since the end of the command, in seconds.
fn longest(waiting: Waiting, cap: Duration) -> u64 {
    let longest = match waiting {
        Waiting::Telling(until) => until.min(cap),
        Waiting::Look | Waiting::Draining(_) | Waiting::Living(_) => cap,
    };
    longest.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}

/// Writing to a terminal from the background may stop us.
fn in_foreground() -> bool {
    let group = procfs::process::Process::myself().and_then(|p| p.stat()).map(|s| s.pgrp);
    matches!((termios::tcgetpgrp(io::stderr()), group), (Ok(front), Ok(ours)) if front.as_raw_nonzero().get() == ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_that_of_the_state() {
        let cap = Duration::from_secs(120);
        let telling = |ms| Waiting::Telling(Duration::from_millis(ms));
        assert_eq!(longest(Waiting::Living(2), cap), 120);
        assert_eq!(longest(telling(12_300), cap), 13);
        assert_eq!(longest(telling(12_300), Duration::from_secs(5)), 5);
        assert_eq!(words(telling(0)), "to see whether memory that others now hold is the command's");
        assert_eq!(words(Waiting::Living(1)), "for 1 process that still runs");
    }
}
