//! The command's process while we are its parent.
//!
//! A PID belongs to our child until we have taken its status, because nobody else can: the number is not reused
//! before. So a signal by number is safe as long as the status has not been taken, and this type is the only one that
//! takes it.

use crate::{act::signal, model::End};
use rustix::process::{Pid, Signal, getpgid, getpgrp};
use std::{io, os::unix::process::ExitStatusExt, process::Child};

/// The command after it was started.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    end: Option<End>,
}

impl Running {
    pub(super) fn new(child: Child) -> Self {
        Self { child, end: None }
    }

    /// Its PID, as our own PID namespace counts.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its status has not been taken yet.
    pub(super) fn runs(&self) -> bool {
        self.end.is_none()
    }

    /// Whether what is sent to our process group reaches it.
    pub(super) fn in_our_group(&self) -> bool {
        let group = |pid: Option<Pid>| pid.and_then(|pid| getpgid(Some(pid)).ok());
        // Once it has ended, the question is idle.
        group(i32::try_from(self.pid()).ok().and_then(Pid::from_raw)).is_none_or(|theirs| theirs == getpgrp())
    }

    /// How it ended, if it has. Takes its status when it is there.
    ///
    /// # Errors
    /// If the system refuses to tell (somebody else took the status).
    pub(super) fn poll(&mut self) -> io::Result<Option<End>> {
        if self.end.is_none() {
            self.end = self.child.try_wait()?.map(|status| match (status.code(), status.signal()) {
                (_, Some(signal)) => End::Signaled { signal, core_dumped: status.core_dumped() },
                (code, None) => End::Exited(code.unwrap_or_default()),
            });
        }
        Ok(self.end)
    }

    /// Sends a signal to the command and to nobody else. Nothing happens once it has ended. False: we may not signal it.
    pub(super) fn signal(&mut self, signal: Signal) -> bool {
        !matches!(self.poll(), Ok(None)) || signal::to_child(&mut self.child, signal)
    }
}
