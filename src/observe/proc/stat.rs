//! `/proc/PID/stat` and `/proc/PID/status`, only the fields that are needed. Own parsers, because names are foreign
//! bytes (`a) R 1 (`, no UTF-8) and because every process of the machine passes through here.

use crate::model::{OnSigterm, ProcessState};

/// SIGTERM in a mask of signals.
const TERM: u64 = 1 << 14;

/// What `/proc/PID/stat` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) comm: String,
    pub(super) state: ProcessState,
    pub(super) ppid: u32,
    pub(super) pgid: i32,
    pub(super) sid: i32,
    /// Its terminal as the kernel numbers it; 0: none.
    pub(super) terminal: i32,
    flags: u64,
    pub(super) cpu_ticks: u64,
    pub(super) threads: u32,
    pub(super) start_ticks: u64,
}

impl Stat {
    /// The name ends at the last parenthesis: it may hold some of its own, the numbers behind it cannot.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')').filter(|close| *close > open)?;
        let fields = std::str::from_utf8(&text[close + 1..]).ok()?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().take(20).collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            comm: String::from_utf8_lossy(&text[open + 1..close]).into_owned(),
            state: state(fields.first()?),
            ppid: fields.get(1)?.parse().ok()?,
            pgid: fields.get(2)?.parse().ok()?,
            sid: fields.get(3)?.parse().ok()?,
            terminal: fields.get(4)?.parse().ok()?,
            flags: number(6)?,
            cpu_ticks: number(11)?.saturating_add(number(12)?),
            threads: fields.get(17)?.parse().ok()?,
            start_ticks: number(19)?,
        })
    }

    /// A thread of the kernel: it has no files.
    pub(super) const fn of_kernel(&self) -> bool {
        self.flags & 0x0020_0000 != 0
    }

    /// The thread is on its way out (PF_EXITING): its files may be closing, and do not show any more.
    pub(super) const fn exiting(&self) -> bool {
        self.flags & 0x4 != 0
    }

    /// The main thread ended.
    pub(super) fn dead(&self) -> bool {
        matches!(self.state, ProcessState::Zombie | ProcessState::Dead)
    }

    /// Ended as a whole, only its exit code waits to be read. It holds nothing.
    pub(super) fn plain_zombie(&self) -> bool {
        self.dead() && self.threads <= 1
    }
}

fn state(letter: &str) -> ProcessState {
    match letter {
        "R" => ProcessState::Running,
        "S" | "I" => ProcessState::Sleeping,
        "D" => ProcessState::DiskSleep,
        "T" => ProcessState::Stopped,
        "t" => ProcessState::Traced,
        "Z" => ProcessState::Zombie,
        "X" | "x" => ProcessState::Dead,
        _ => ProcessState::Other,
    }
}

/// What `/proc/PID/status` adds. Everything may be missing: sandboxed kernels leave lines out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// The process that a thread belongs to.
    pub(super) tgid: Option<u32>,
    /// Real user id.
    pub(super) uid: Option<u32>,
    /// PIDs from the outermost visible namespace to its own.
    pub(super) nspid: Vec<u32>,
    /// Effective capabilities.
    pub(super) capabilities: Option<u64>,
    /// Who traces it.
    pub(super) tracer: Option<u32>,
    /// How often it was switched, of its own will or not.
    pub(super) switches: Option<u64>,
    /// The kernel writes its core.
    pub(super) core_dumping: bool,
    pending: u64,
    ignored: Option<u64>,
    caught: Option<u64>,
    blocked: Option<u64>,
}

impl Status {
    /// The kernel escapes a newline in the name, so that a line is a line.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut status = Self::default();
        let mask = |value: &str| u64::from_str_radix(value, 16);
        for line in text.split(|b| *b == b'\n') {
            let Some((name, value)) = std::str::from_utf8(line).ok().and_then(|line| line.split_once(':')) else {
                continue;
            };
            let value = value.trim();
            match name {
                "Tgid" => status.tgid = value.parse().ok(),
                "Uid" => status.uid = value.split_ascii_whitespace().next().and_then(|uid| uid.parse().ok()),
                "NSpid" => status.nspid = value.split_ascii_whitespace().flat_map(str::parse).collect(),
                "SigPnd" | "ShdPnd" => status.pending |= mask(value).unwrap_or(0),
                "SigIgn" => status.ignored = mask(value).ok(),
                "SigCgt" => status.caught = mask(value).ok(),
                "SigBlk" => status.blocked = mask(value).ok(),
                "CoreDumping" => status.core_dumping = value == "1",
                "TracerPid" => status.tracer = value.parse().ok().filter(|pid| *pid != 0),
                "voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches" => {
                    let more: Option<u64> = value.parse().ok();
                    status.switches = more.map(|more| status.switches.unwrap_or(0).saturating_add(more));
                }
                "CapEff" => status.capabilities = mask(value).ok(),
                _ => {}
            }
        }
        status
    }

    /// SIGKILL was sent and not yet acted upon.
    pub(super) const fn kill_pending(&self) -> bool {
        self.pending & (1 << 8) != 0
    }

    /// SIGTERM was sent and not yet taken.
    pub(super) const fn term_pending(&self) -> bool {
        self.pending & TERM != 0
    }

    /// This thread takes no SIGTERM.
    pub(super) fn blocks_term(&self) -> bool {
        self.blocked.is_some_and(|mask| mask & TERM != 0)
    }

    /// What the whole process does with a SIGTERM that a thread takes.
    pub(super) fn on_term(&self) -> Option<OnSigterm> {
        let (ignored, caught) = (self.ignored? & TERM != 0, self.caught? & TERM != 0);
        Some(match (ignored, caught) {
            (true, _) => OnSigterm::Ignores,
            (_, true) => OnSigterm::Handles,
            _ => OnSigterm::Ends,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = " 7 8 9 0 -1 4194304 1 2 3 4 50 60 7 8 20 0 3 0 123456 1 2 18446744073709551615\n";

    #[test]
    fn names_are_foreign_bytes() {
        for (name, comm) in [
            (&b"bash"[..], "bash"),
            (b"a) R 1 (", "a) R 1 ("),
            (b"x) Z 1 1 1", "x) Z 1 1 1"),
            (b"", ""),
            (b")", ")"),
            (b"new\nline", "new\nline"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
        ] {
            let text = [b"42 (", name, b") S", TAIL.as_bytes()].concat();
            let stat = Stat::parse(&text).expect("a stat line");
            assert_eq!(stat.comm, comm);
            assert_eq!((stat.state, stat.ppid, stat.pgid, stat.sid), (ProcessState::Sleeping, 7, 8, 9));
            assert_eq!((stat.cpu_ticks, stat.threads, stat.start_ticks), (110, 3, 123_456));
            assert!(!stat.of_kernel() && !stat.exiting());
        }
    }

    #[test]
    fn broken_lines_are_nothing() {
        for text in ["", "(", ")(", "1 (x)", "1 (x) S", "1 (x) S 1 2 3 4 5 6 7", "1 (x) S a b c d e f g h i j"] {
            assert_eq!(Stat::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn flags_and_states() {
        let stat = |state: &str, flags: u64, threads: u32| {
            let text = format!("1 (x) {state} 0 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 5");
            Stat::parse(text.as_bytes()).expect("a stat line")
        };
        assert!(stat("S", 0x0020_8040, 1).of_kernel());
        assert!(stat("Z", 0x40_050c, 1).exiting());
        assert!(stat("Z", 0x40_050c, 1).plain_zombie());
        assert!(!stat("Z", 0x40_050c, 2).plain_zombie());
        assert_eq!(stat("I", 0, 1).state, ProcessState::Sleeping);
        assert_eq!(stat("?", 0, 1).state, ProcessState::Other);
    }

    #[test]
    fn status_fields() {
        let text = b"Name:\ta\\nUid: 7\nTgid:\t42\nUid:\t1000\t0\t0\t0\nNSpid:\t42\t3\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\nCapEff:\t000001ffffffffff\nOdd\nTracerPid:\t7\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        let status = Status::parse(text);
        assert_eq!((status.tgid, status.uid), (Some(42), Some(1000)));
        assert_eq!(status.nspid, [42, 3]);
        assert_eq!(status.capabilities, Some(0x1ff_ffff_ffff));
        assert!(status.kill_pending());
        assert_eq!((status.tracer, status.switches), (Some(7), Some(7)));
        assert_eq!(Status::parse(b"TracerPid:\t0\n").tracer, None);
        assert!(!status.core_dumping && Status::parse(b"CoreDumping:\t1\n").core_dumping);
        assert_eq!(Status::parse(b"Name:\t\xff\n"), Status::default());
    }

    #[test]
    fn what_a_sigterm_does() {
        let (term, other) = (0x4000, 0x1000);
        for (blocked, ignored, caught, does, blocks) in [
            (0, 0, 0, Some(OnSigterm::Ends), false),
            (0, other, term | other, Some(OnSigterm::Handles), false),
            (other, term, 0, Some(OnSigterm::Ignores), false),
            (term, 0, 0, Some(OnSigterm::Ends), true),
        ] {
            let text = format!("SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n");
            let status = Status::parse(text.as_bytes());
            assert_eq!((status.on_term(), status.blocks_term()), (does, blocks), "{text}");
        }
        assert_eq!(Status::parse(b"").on_term(), None, "a kernel that does not tell");
        assert!(Status::parse(b"ShdPnd:\t0000000000004000\n").term_pending());
    }
}
