//! The signals of this process: which of them are caught and passed on, and the calls that hold them back, put their
//! usual effect back, and name them. Raw, because no library that we use has them, or has them for all numbers.
#![allow(unsafe_code, reason = "the C library's calls on signals")]

use rustix::process::Signal;
use signal_hook::consts::{
    SIGBUS, SIGCHLD, SIGCONT, SIGFPE, SIGILL, SIGKILL, SIGPIPE, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGTSTP, SIGTTIN,
    SIGTTOU, SIGURG, SIGWINCH,
};
use std::{
    ffi::{c_int, c_ulong},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, set: *const SignalSet, before: *mut SignalSet) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
}

/// `sigset_t` of Linux' C libraries: 1024 bits, the first signal's first.
pub(crate) type SignalSet = [c_ulong; WORDS];
const WORDS: usize = 1024 / c_ulong::BITS as usize;

const SIG_BLOCK: c_int = 0;
const SIG_UNBLOCK: c_int = 1;
const SIG_SETMASK: c_int = 2;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;

/// Linux has this many.
const LAST: c_int = 64;
/// From here on they have no names but `SIGRTMIN+n`.
const REAL_TIME: c_int = 32;

/// What is not passed on: what nobody can catch, what tells a process of its own mistakes and of its own children, what
/// stops (the terminal stops the whole group, and so do we with it), and what the C library keeps for its threads.
const KEPT: [c_int; 14] =
    [SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGCHLD, SIGTSTP, SIGTTIN, SIGTTOU, 32, 33];

/// The signals that a wrapper passes on to what it runs. The C library may refuse to have real-time ones caught.
pub(crate) fn passed_on() -> impl Iterator<Item = c_int> {
    (1..=LAST).filter(|number| !KEPT.contains(number))
}

/// All that a wrapper has handlers for.
fn handled() -> impl Iterator<Item = c_int> {
    passed_on().chain([SIGCHLD])
}

/// Whether it is one of those that have a meaning only between the programs that use them.
pub(crate) const fn is_real_time(number: c_int) -> bool {
    number >= REAL_TIME
}

/// Whether it ends a process that has made no provisions.
pub(crate) fn ends_by_default(number: c_int) -> bool {
    ![SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU].contains(&number)
}

/// The signal with this number, of those that are passed on.
pub(crate) fn numbered(number: c_int) -> Option<Signal> {
    if is_real_time(number) {
        // SAFETY: none that the C library uses itself.
        passed_on().any(|known| known == number).then(|| unsafe { Signal::from_raw_unchecked(number) })
    } else {
        Signal::from_named_raw(number)
    }
}

fn set_of(numbers: impl Iterator<Item = c_int>) -> SignalSet {
    let mut set: SignalSet = [0; WORDS];
    for number in numbers.map(c_int::cast_unsigned) {
        if let Some(word) = set.get_mut(((number - 1) / c_ulong::BITS) as usize) {
            *word |= 1 << ((number - 1) % c_ulong::BITS);
        }
    }
    set
}

/// The signals that we handle wait, in this thread, until this is dropped.
pub(crate) struct Held {
    pub(crate) before: SignalSet,
}

impl Held {
    pub(crate) fn back() -> Self {
        let (set, mut before) = (set_of(handled()), [0; WORDS]);
        // SAFETY: both are sets of that size, and it reads the one and writes the other.
        unsafe { pthread_sigmask(SIG_BLOCK, &raw const set, &raw mut before) };
        Self { before }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let_in(&self.before);
    }
}

/// Only these are held back in this thread from now on. May be called between fork and exec.
pub(crate) fn let_in(before: &SignalSet) {
    // SAFETY: a set of that size, which it reads.
    unsafe { pthread_sigmask(SIG_SETMASK, before, ptr::null_mut()) };
}

/// What we handle reaches this thread, also if whoever started us held it back.
pub(crate) fn hear_all() {
    hear(handled());
}

fn hear(numbers: impl Iterator<Item = c_int>) {
    let set = set_of(numbers);
    // SAFETY: a set of that size, which it reads.
    unsafe { pthread_sigmask(SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
}

/// As an exec does: what is ignored stays ignored. May be called between fork and exec.
pub(crate) fn without_our_handlers() {
    for number in handled() {
        // SAFETY: neither names a function.
        unsafe {
            if signal(number, SIG_DFL) == SIG_IGN || number == SIGPIPE && pipe_was_ignored() {
                signal(number, SIG_IGN);
            }
        }
    }
}

/// Whether SIGPIPE was ignored when we were started, as in services of systemd. Rust's runtime ignores it for us before
/// `main` and puts its usual effect back in every child, so afterwards nobody can tell.
pub(crate) fn pipe_was_ignored() -> bool {
    PIPE_WAS_IGNORED.load(Ordering::Relaxed)
}

static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls what stands there before `main`, one after the other; that needs nothing but itself.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_pipe;

extern "C" fn note_pipe() {
    // SAFETY: neither names a function of ours: it puts back what was there.
    unsafe {
        let before = signal(SIGPIPE, SIG_DFL);
        signal(SIGPIPE, before);
        PIPE_WAS_IGNORED.store(before == SIG_IGN, Ordering::Relaxed);
    }
}

/// None of these signals ends this process; its children get the usual effects back.
pub(crate) fn outlive() {
    for number in passed_on() {
        // SAFETY: what is called does nothing.
        unsafe { signal(number, do_nothing as *const () as usize) };
    }
}

extern "C" fn do_nothing(_: c_int) {}

/// This signal has its usual effect again, and is not held back in this thread.
pub(crate) fn default_again(number: c_int) {
    // SAFETY: it names no function.
    unsafe { signal(number, SIG_DFL) };
    hear([number].into_iter());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_can_be_caught_is_passed_on_but_the_processors_own() {
        let names = [
            "HUP", "INT", "QUIT", "ABRT", "USR1", "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CONT", "URG", "XCPU",
            "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR",
        ];
        let numbers = passed_on().filter(|number| !is_real_time(*number));
        assert_eq!(numbers.count(), names.len());
        assert_eq!(
            passed_on().filter(|number| is_real_time(*number)).collect::<Vec<_>>(),
            (34..=64).collect::<Vec<_>>()
        );
        assert!(passed_on().all(|number| numbered(number).is_some_and(|signal| signal.as_raw() == number)));
        assert!([0, 32, 33, 65, -1].into_iter().all(|number| numbered(number).is_none()));
    }
}
