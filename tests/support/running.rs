//! Processes that a test started, with a deadline for everything.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long anything may take before the test fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for a condition; fails the test at the deadline.
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_until_for(what, DEADLINE, condition);
}

/// The same with a deadline of its own.
pub fn wait_until_for(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + deadline;
    while !condition() {
        assert!(Instant::now() < end, "waited {deadline:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// A process in the background. Dropping it ends it.
pub struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    since: Instant,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it wrote.
    pub stdout: String,
    /// What it wrote there.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Running {
    pub(super) fn start(mut command: Command, output: &Path) -> Self {
        let (stdout, stderr) = (output.with_extension("stdout"), output.with_extension("stderr"));
        command.stdin(Stdio::null()).stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let since = Instant::now();
        let child = command.spawn().unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
        Self { child, stdout, stderr, since }
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap_or_else(|e| panic!("signalling {pid:?}: {e}"));
    }

    /// Ends it now and waits for it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it wrote to stdout so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// What it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Waits for its end.
    pub fn wait(self) -> Finished {
        self.wait_for(DEADLINE)
    }

    /// Waits for its end, not longer than this.
    pub fn wait_for(mut self, deadline: Duration) -> Finished {
        let end = Instant::now() + deadline;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > end {
                let (stdout, stderr) = (self.stdout(), self.stderr());
                panic!("it did not end within {deadline:?}\nstdout:\n{stdout}\nstderr:\n{stderr}");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        Finished {
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout(),
            stderr: self.stderr(),
            took: self.since.elapsed(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Fails the test, with everything that was written, unless it exited with this code.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert!(
            self.code == Some(code),
            "expected exit code {code}, got {:?} (signal {:?})\nstdout:\n{}\nstderr:\n{}",
            self.code,
            self.signal,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Fails the test unless this signal ended it.
    #[track_caller]
    pub fn expect_signal(&self, signal: Signal) -> &Self {
        let (got, all) = (self.signal, (&self.code, &self.stdout, &self.stderr));
        assert!(got == Some(signal.as_raw()), "expected {signal:?}, got {got:?}: {all:?}");
        self
    }

    /// Its stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("no JSON ({e})\nstdout:\n{}\nstderr:\n{}", self.stdout, self.stderr))
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}
