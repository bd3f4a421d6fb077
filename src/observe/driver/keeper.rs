//! Starts a process on pipes, reads its lines on a thread, and reaps it: what the client does with a helper that is its
//! child. The nursery reaps as it does.

use super::{helper::INNER, protocol};
use std::{
    ffi::OsStr,
    io::{self, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

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
                while reap_within(&ours, Duration::ZERO).is_none() {
                    thread::sleep(Duration::from_secs(1));
                }
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
    loop {
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        match status {
            Ok(Some(status)) => return Some(status),
            // Somebody else reaped it: it has ended.
            Err(_) => return Some(ExitStatus::from_raw(0)),
            Ok(None) if Instant::now() >= until => return None,
            Ok(None) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

pub(super) fn how_it_ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".into(),
    }
}
