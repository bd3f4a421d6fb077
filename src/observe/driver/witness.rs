//! The witness: a member of the check's process group that is no part of what the check runs. A signal that a process
//! sends carries its sender, but not whether it was meant for us alone or for the whole group. One that the witness has
//! too has reached the group, and so the command.

use crate::dispositions;
use rustix::process::{Pid, getpgrp};
use signal_hook::iterator::{SignalsInfo, exfiltrator::WithOrigin};
use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The kernel reaches the members of a group one after the other, and a busy machine lets the witness wait.
const PATIENCE: Duration = Duration::from_millis(20);
/// The leader of the group may signal one of them before it signals all, as `timeout` does.
const PATIENCE_WITH_LEADER: Duration = Duration::from_millis(300);
/// What came earlier was another signal.
const SAME: Duration = Duration::from_millis(400);

/// Keeps what it got.
pub(super) struct Witness {
    got: Arc<(Mutex<VecDeque<Got>>, Condvar)>,
}

struct Got {
    signal: i32,
    sender: u32,
    at: Instant,
}

impl Witness {
    /// Hears everything from now on.
    pub(super) fn start() -> io::Result<Self> {
        let mut signals = SignalsInfo::<WithOrigin>::new(std::iter::empty::<i32>())?;
        for number in dispositions::passed_on() {
            // The C library keeps some of these for itself. What is not heard is taken for a signal to the check alone.
            let _ = signals.handle().add_signal(number);
        }
        let got = Arc::new((Mutex::new(VecDeque::new()), Condvar::new()));
        let theirs = Arc::clone(&got);
        thread::Builder::new().name("witness".into()).spawn(move || {
            dispositions::hear_all();
            let (list, news) = &*theirs;
            for origin in &mut signals {
                let sender = origin.process.and_then(|process| u32::try_from(process.pid).ok());
                let Some(sender) = sender else { continue };
                let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
                list.retain(|got: &Got| got.at.elapsed() < SAME);
                list.push_back(Got { signal: origin.signal, sender, at: Instant::now() });
                news.notify_all();
            }
        })?;
        Ok(Self { got })
    }

    /// Whether this signal of this sender has come, or comes now.
    pub(super) fn heard(&self, signal: i32, sender: u32) -> bool {
        let (list, news) = &*self.got;
        let is_it = |got: &Got| (got.signal, got.sender) == (signal, sender) && got.at.elapsed() < SAME;
        let list = list.lock().unwrap_or_else(PoisonError::into_inner);
        let leads = Pid::from_raw(sender.cast_signed()) == Some(getpgrp());
        let patience = if leads { PATIENCE_WITH_LEADER } else { PATIENCE };
        let waited = news.wait_timeout_while(list, patience, |list| !list.iter().any(is_it));
        let (list, _) = waited.unwrap_or_else(PoisonError::into_inner);
        list.iter().any(is_it)
    }
}
