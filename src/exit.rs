//! The exit codes: the one table that `--help` and the README print, and the one place that ends the process.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getpid, setrlimit};

/// What the tool was asked for is so: clean, or the condition is met.
pub const CLEAN: i32 = 0;
/// `doctor` found something that fails.
pub const DOCTOR_FAIL: i32 = 1;
/// Memory of the run did not come back, or a watched cause was found.
pub const RESIDUE: i32 = 121;
/// Clean cannot be known: the report names what could not be seen.
pub const INCONCLUSIVE: i32 = 122;
/// The time limit ended the command or the waiting.
pub const TIMED_OUT: i32 = 124;
/// gpuresid itself could not do it. In `check` only before the command was started.
pub const CANNOT: i32 = 125;
/// The command was found and could not be run.
pub const NOT_RUNNABLE: i32 = 126;
/// The command was not found.
pub const NOT_FOUND: i32 = 127;
/// A command that died of signal n: gpuresid dies of the same signal, which shells show as 128+n.
pub const SIGNAL_BASE: i32 = 128;

/// The table: the code, what it means, and the commands that can end with it; none: all of them.
const ROWS: [(&str, &str, &[&str]); 9] = [
    ("0", "clean, or the condition is met", &[]),
    ("1", "doctor: something fails", &["doctor"]),
    ("N", "the command's own code; if a signal ended it, gpuresid dies of the same signal (128+n)", &["check"]),
    ("121", "residue: memory did not come back", &["status", "check", "diff", "reclaim"]),
    ("122", "inconclusive: clean cannot be known, the report says why", &["check", "diff", "reclaim"]),
    ("124", "timed out", &["check", "wait"]),
    ("125", "gpuresid could not do it (in check: the command was not started)", &[]),
    ("126", "the command cannot be run", &["check"]),
    ("127", "the command was not found", &["check"]),
];
const ORDER: &str = "If several apply: 124, then the failing command, then 121, 122, 0.";

/// The table as text, one line a code: of one command, or of all.
pub fn table(command: Option<&str>) -> String {
    let can_end = |of: &[&str]| of.is_empty() || command.is_none_or(|command| of.contains(&command));
    let rows = ROWS.iter().filter(|(_, _, of)| can_end(of)).map(|(code, meaning, _)| format!("  {code:>3}  {meaning}"));
    let order = command.is_none_or(|command| command == "check").then(|| ORDER.to_owned());
    std::iter::once("Exit codes:".to_owned()).chain(rows).chain(order).collect::<Vec<_>>().join("\n")
}

/// How gpuresid ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exits with this code.
    Code(i32),
    /// It dies of this signal, because the command did (or because we were told to before there was a command): a
    /// shell loop stops after Ctrl-C only if what it ran died of SIGINT.
    Signal(i32),
}

impl Ending {
    /// The exit code that a shell shows for it.
    pub const fn shown(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => SIGNAL_BASE + signal,
        }
    }

    /// Ends the process. Nothing is cleaned up after this.
    pub fn end(self) -> ! {
        if let Self::Signal(signal) = self {
            die_of(signal);
        }
        std::process::exit(self.shown())
    }
}

/// Dies of the signal without a core dump: the command has left its own, ours would only hide it. Returns where that
/// is impossible.
fn die_of(signal: i32) {
    // The kernel drops a fatal default signal that the first process of a PID namespace sends itself.
    if getpid().is_init() {
        return;
    }
    // A limit of 0 does not hold where cores are piped to a program; a process that is not dumpable leaves none there.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // Our handler is taken away only for signals that we handle; the others have the disposition we were started with.
    if HANDLED_OR_IGNORED.contains(&signal) {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    let _ = signal_hook::low_level::raise(signal);
}

/// Signals whose disposition this process changes: the ones of [`crate::run`], and those of Rust's runtime, which
/// ignores SIGPIPE and watches for stack overflows.
const HANDLED_OR_IGNORED: [i32; 9] = {
    use signal_hook::consts::{SIGBUS, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGSEGV, SIGTERM, SIGUSR1, SIGUSR2};
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGSEGV, SIGBUS]
};
