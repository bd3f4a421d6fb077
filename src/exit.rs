//! The exit codes: the one table that `--help` and the README print, and the one place that ends the process.

use crate::{dispositions, text};
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

/// The table: the code, and what it means in general.
const ROWS: [(&str, &str); 9] = [
    ("0", "clean, or the condition is met"),
    ("1", "doctor: something fails"),
    ("N", "the command's own code; if a signal ended it, gpuresid dies of the same signal (128+n)"),
    ("121", "residue: memory did not come back"),
    ("122", "inconclusive: clean cannot be known, the report says why"),
    ("124", "timed out"),
    ("125", "gpuresid could not do it (in check: the command was not started)"),
    ("126", "the command cannot be run"),
    ("127", "the command was not found"),
];
const ORDER: &str = "If several apply: 124, then the failing command, then 121, 122, 0.";

/// A code of one command, and what it means there.
type Row = (&'static str, Option<&'static str>);

/// The codes that a command can end with, and what each means there. What is missing in a row is said in general.
const OF_COMMANDS: [(&str, &[Row]); 10] = [
    (
        "status",
        &[
            ("0", Some("shown; with --fail-on: nothing of it is so")),
            ("121", Some("with --fail-on: something of it is so, and the last lines say what")),
            (
                "125",
                Some("gpuresid could not look; if the driver does not answer, whoever has its files open is shown"),
            ),
        ],
    ),
    (
        "check",
        &[
            ("0", Some("the command ended with 0, and its memory came back")),
            ("N", None),
            ("121", None),
            ("122", Some("inconclusive: clean cannot be known, or --require-gpu and no GPU was used")),
            ("124", Some("the command reached its time limit (--timeout)")),
            ("125", Some("gpuresid could not do it, and the command was not started")),
            ("126", None),
            ("127", None),
        ],
    ),
    ("snapshot", &[("0", Some("the snapshot was written")), ("125", Some("gpuresid could not look, or not write it"))]),
    (
        "diff",
        &[
            ("0", Some("clean: no more is held than the limits allow")),
            ("121", Some("residue: more is held than before, above the limits")),
            ("122", None),
            ("125", Some("gpuresid could not compare")),
        ],
    ),
    (
        "doctor",
        &[
            ("0", Some("nothing fails; what could not be looked at does not count")),
            ("1", Some("something fails; with --strict: or there is a warning")),
            ("125", Some("gpuresid could not begin: such as no Python at --python")),
        ],
    ),
    (
        "demo",
        &[
            ("0", Some("every case went as it should")),
            ("125", Some("a case could not be played, or did not go as it should")),
        ],
    ),
    (
        "reclaim",
        &[
            ("0", Some("all memory came back, or it was only planned")),
            ("121", Some("memory remains; the next step is printed")),
            ("122", Some("what came back could not be seen well enough, or no process of the --job is here")),
            ("125", Some("gpuresid could not do it, or refused to")),
        ],
    ),
    (
        "wait",
        &[
            ("0", Some("the condition is met")),
            ("124", Some("--timeout came first; the holders are shown")),
            ("125", Some("gpuresid could not look")),
        ],
    ),
    ("help", &[("0", Some("printed")), ("125", Some("there is no such command or topic"))]),
    ("gen", &[("0", Some("printed, or written")), ("125", Some("gpuresid could not write it, or refused to"))]),
];

/// The general table as the README has it, one line a code.
pub fn table() -> String {
    let rows = ROWS.iter().map(|(code, meaning)| format!("  {code:>3}  {meaning}"));
    std::iter::once("Exit codes:".to_owned()).chain(rows).chain([ORDER.to_owned()]).collect::<Vec<_>>().join("\n")
}

/// The table for `--help`, in lines that fit a narrow terminal: of one command, or of all.
pub fn help(command: Option<&str>) -> String {
    let of = OF_COMMANDS.iter().find(|(name, _)| Some(*name) == command).map(|(_, of)| *of);
    let general = |code: &str| ROWS.iter().find(|(known, _)| *known == code).map_or("", |(_, meaning)| *meaning);
    let rows: Vec<(&str, &str)> = match of {
        Some(of) => of.iter().map(|(code, meaning)| (*code, meaning.unwrap_or_else(|| general(code)))).collect(),
        None => ROWS.to_vec(),
    };
    let mut lines = vec!["Exit codes:".to_owned()];
    for (code, meaning) in rows {
        for (number, part) in text::wrap(meaning, Some(HELP_COLUMNS - MEANING)).iter().enumerate() {
            lines.push(format!("  {:>3}  {part}", if number == 0 { code } else { "" }));
        }
    }
    if command.is_none_or(|command| command == "check") {
        lines.push(ORDER.into());
    }
    lines.join("\n")
}

/// Columns of help that nobody's terminal breaks.
const HELP_COLUMNS: usize = 79;
/// Where the meaning of a code stands.
const MEANING: usize = "  121  ".len();

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
    // Whether we handle it, the runtime does, or it was ignored.
    dispositions::default_again(signal);
    let _ = signal_hook::low_level::raise(signal);
}
