//! What is ignored where the tests were started stays ignored in every program that they start: SIGHUP under `nohup`,
//! SIGINT and SIGQUIT in the background of a script. A person who types a command has none of that, and the tests speak of
//! persons.

use std::{
    fs,
    sync::{Arc, Once, atomic::AtomicBool},
};

static ONCE: Once = Once::new();

/// Programs that are started from now on have the default again. We go on as before: a signal that is caught by a handler
/// that does nothing is as good as ignored, and what is caught becomes the default where another program begins.
pub(super) fn are_heard_again() {
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for signal in (1..32).filter(|signal| ignored & (1 << (signal - 1)) != 0) {
            // Rust ignores SIGPIPE, and takes that back for its children.
            if signal != signal_hook::consts::SIGPIPE && !signal_hook::consts::FORBIDDEN.contains(&signal) {
                signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).unwrap();
            }
        }
    });
}
