//! Starts a process on pipes, reads its lines on a thread, and reaps it: what the client does with a helper that is its
//! child. The nursery reaps as it does.

use super::{helper::INNER, protocol};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    ffi::OsStr,
    io::{self, BufReader, Read, Write},
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Between two looks whether a child has ended, where nothing tells it.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A time for those who wait for as long as it takes.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// This binary, even if its file was replaced meanwhile.
pub(super) const OWN_BINARY: &str = "/proc/self/exe";

/// The inner command of a binary on pipes. Standard error goes nowhere: a helper that hangs must not hold the user's.
pub(super) fn inner(binary: &Path, role: Option<&str>) -> Command {
    let mut command = Command::new(binary);
    command.arg0("gpuresid").arg(INNER).args(role.map(OsStr::new));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A running child.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) pid: u32,
    stdin: ChildStdin,
    child: Arc<Mutex<Child>>,
}

impl Kept {
    /// Starts `command`, which has pipes. `on_line` gets each line and says whether to go on; `on_gone` is called once,
    /// with words on how it ended, when the child has closed its output or `on_line` had enough. The child is killed
    /// then if it lives, and reaped whenever that is possible.
    pub(super) fn start(
        command: &mut Command,
        on_line: impl FnMut(&str) -> bool + Send + 'static,
        on_gone: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let mut child = command.spawn()?;
        let pid = child.id();
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the helper was started without pipes"));
        };
        let child = Arc::new(Mutex::new(child));
        let ours = Arc::clone(&child);
        pump(stdout, on_line, move || {
            let status = reap_within(&ours, Duration::from_millis(200)).or_else(|| {
                kill(&ours);
                reap_within(&ours, Duration::from_millis(200))
            });
            on_gone(status.map_or_else(|| "closed its pipe and does not end".into(), how_it_ended));
            if status.is_none() {
                // It is stuck in the kernel. This thread costs nothing while it waits.
                while reap_within(&ours, AN_HOUR).is_none() {}
            }
        })?;
        Ok(Self { pid, stdin, child })
    }

    /// Writes to the child. Lines are far smaller than a pipe, and one at a time is under way: this does not block.
    pub(super) fn send(&mut self, line: &str) -> io::Result<()> {
        self.stdin.write_all(line.as_bytes())
    }

    /// SIGKILL, which a call that hangs in the kernel may never notice. Safe against a reused PID: a reaped child gets
    /// nothing.
    pub(super) fn end_now(&self) {
        kill(&self.child);
    }
}

/// Reads lines on a thread of its own until the stream ends or `on_line` has enough, then calls `at_end`.
pub(super) fn pump(
    from: impl Read + Send + 'static,
    mut on_line: impl FnMut(&str) -> bool + Send + 'static,
    at_end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new().name("driver-lines".into()).spawn(move || {
        let mut from = BufReader::new(from);
        let mut text = String::new();
        while matches!(protocol::next_line(&mut from, &mut text), Ok(Some(()))) && on_line(&text) {}
        drop(from);
        at_end();
    })?;
    Ok(())
}

/// SIGKILL, unless it was reaped.
pub(super) fn kill(child: &Mutex<Child>) {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    crate::act::signal::to_child(&mut child, rustix::process::Signal::KILL);
}

/// The child's status if it ends in time. The lock is never held while waiting.
pub(super) fn reap_within(child: &Mutex<Child>, time: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + time;
    let mut end = None;
    loop {
        {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            match child.try_wait() {
                Ok(Some(status)) => return Some(status),
                // Somebody else reaped it: it has ended.
                Err(_) => return Some(ExitStatus::from_raw(0)),
                // Its number is its own as long as nobody can reap it: under the lock.
                Ok(None) => end.get_or_insert_with(|| EndOf::hold(&child)),
            }
        }
        .wait(until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?);
    }
}

/// What tells that a child has ended, without taking its status.
struct EndOf {
    pidfd: Option<OwnedFd>,
    pause: Duration,
}

impl EndOf {
    /// Of a child that was not reaped.
    fn hold(child: &Child) -> Self {
        let pid = Pid::from_raw(child.id().cast_signed());
        // Kernels before 5.3 have no pidfds, and a sandbox may refuse them.
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { pidfd, pause: Duration::from_millis(1) }
    }

    /// Waits for the end, at the longest for this time; without a pidfd for a pause that grows.
    fn wait(&mut self, at_most: Duration) {
        if let Some(pidfd) = &self.pidfd {
            let time = Timespec::try_from(at_most).ok();
            match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], time.as_ref()) {
                Ok(0) | Err(Errno::INTR) => return,
                // It has ended, and the next look finds its status; where that is kept from us (by its debugger) for a
                // while, asking again at once would only heat the machine.
                _ => self.pidfd = None,
            }
            return;
        }
        thread::sleep(self.pause.min(at_most));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

pub(super) fn how_it_ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that ends when its standard input does.
    fn reader() -> (ChildStdin, Mutex<Child>) {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        (child.stdin.take().unwrap(), Mutex::new(child))
    }

    #[test]
    fn a_child_is_waited_for_with_and_without_a_pidfd() {
        for blind in [false, true] {
            let (stdin, child) = reader();
            let mut end = EndOf::hold(&child.lock().unwrap());
            if blind {
                end.pidfd = None;
            }
            end.wait(Duration::from_millis(5));
            assert_eq!(reap_within(&child, Duration::from_millis(5)), None, "it lives");
            drop(stdin);
            end.wait(Duration::from_secs(60));
            assert_eq!(reap_within(&child, Duration::from_secs(60)).and_then(|s| s.code()), Some(0));
            // Its number may be somebody else's by now: nothing is sent, and it has still ended.
            kill(&child);
            assert!(reap_within(&child, Duration::ZERO).is_some());
        }
    }

    #[test]
    fn the_end_of_a_child_wakes_who_waits_for_it() {
        let (stdin, child) = reader();
        let child = Arc::new(child);
        let theirs = Arc::clone(&child);
        let waiting = thread::spawn(move || reap_within(&theirs, AN_HOUR));
        // The lock is free meanwhile.
        kill(&child);
        assert_eq!(waiting.join().unwrap().and_then(|s| s.signal()), Some(9));
        drop(stdin);
    }
}
