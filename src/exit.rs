//! The exit codes: the one table that `--help` and the README print.

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

/// The table as text, one line a code.
pub const TABLE: &str = "\
Exit codes:
    0  clean, or the condition is met
    1  doctor: something fails
    N  the command's own code; if a signal ended it, gpuresid dies of the same signal (128+n)
  121  residue: memory did not come back
  122  inconclusive: clean cannot be known, the report says why
  124  timed out
  125  gpuresid could not do it (in check: the command was not started)
  126  the command cannot be run
  127  the command was not found
If several apply: 124, then the failing command, then 121, 122, 0.";
