//! The words for people: causes, ages, amounts, the names of devices. One place, so that all formats say the same.

pub use crate::text::count;
use crate::{
    model::{Bytes, Cause, Holder, Restarter, SettleEnd},
    text,
};

/// The cause in one or two words, for a column.
pub const fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::StuckInKernel => "stuck in kernel",
        Cause::Draining => "on its way out",
        Cause::Stopped => "stopped",
        Cause::HalfDead => "half dead",
        Cause::MpsServer => "MPS server",
        Cause::ForkedCopy => "forked copy",
        Cause::ExportedHandle => "exported handle",
        Cause::PeerMapping => "peer mapping",
        Cause::Orphan => "orphan",
        Cause::StillRunning => "still running",
        Cause::Detached => "detached",
        Cause::ContextOnly => "context only",
        Cause::GrownNeighbour => "grew meanwhile",
        Cause::NewNeighbour => "new meanwhile",
        Cause::OutOfSight => "out of sight",
        Cause::Platform => "not told",
        Cause::OpenOnly => "only open",
        Cause::InUse => "in use",
    }
}

/// What the cause means, one sentence without an end mark.
pub const fn meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::StuckInKernel => "a part of it waits inside the kernel, where no signal reaches it, not even SIGKILL",
        Cause::Draining => "it is ending, and its memory is on the way back",
        Cause::Stopped => "it is stopped (Ctrl-Z or SIGSTOP), and keeps its memory until it goes on or is killed",
        Cause::HalfDead => "its main thread has ended, but other threads live on and keep the memory",
        Cause::MpsServer => "it serves all programs that share the GPU through MPS, and keeps a context for them",
        Cause::ForkedCopy => {
            "it was forked from a process that had the GPU open; that process is gone, this copy keeps its memory"
        }
        Cause::ExportedHandle => "it keeps a handle to memory that another process allocated and shared",
        Cause::PeerMapping => "it maps GPU memory of a process that is gone, and so keeps it",
        Cause::Orphan => "the run that it belonged to has ended, but it goes on",
        Cause::StillRunning => "it belongs to the command and still runs, and so does what started it",
        Cause::Detached => {
            "what started it is gone or is PID 1; that is usual for services, nohup and containers, so nothing may be wrong"
        }
        Cause::ContextOnly => "it has a GPU context and hardly any memory besides",
        Cause::GrownNeighbour => "it is somebody else's and has taken more memory since",
        Cause::NewNeighbour => "it is somebody else's and has started since",
        Cause::OutOfSight => "the driver lists it, but it cannot be seen from here",
        Cause::Platform => "it uses the GPU, and on this platform the driver does not tell how much memory it has",
        Cause::OpenOnly => "it has a GPU open and is not known to hold memory",
        Cause::InUse => "it is running and nothing about it stands out",
    }
}

/// Whether a person who looks for lost memory should look at it.
pub const fn stands_out(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::StuckInKernel
            | Cause::Draining
            | Cause::Stopped
            | Cause::HalfDead
            | Cause::ForkedCopy
            | Cause::ExportedHandle
            | Cause::PeerMapping
            | Cause::Orphan
            | Cause::StillRunning
    )
}

/// Why settling ended, to follow `waited 12.0 s:`.
pub const fn settle_end(end: SettleEnd) -> &'static str {
    match end {
        SettleEnd::AllGone => "nothing of it runs any more",
        SettleEnd::Unchanged => "what is left no longer changes",
        SettleEnd::Cap => "the time for settling was up",
        SettleEnd::Interrupted => "interrupted",
        SettleEnd::Blind => "the driver stopped answering",
    }
}

/// `45 s`, `12 min`, `3 h 20 min`, `5 d 2 h`.
pub fn age(seconds: u64) -> String {
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| {
        if small == 0 { format!("{large} {large_unit}") } else { format!("{large} {large_unit} {small} {small_unit}") }
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// `0.5 s`, `1 s`, `1 min 30 s`, `2 h`: a time that somebody asked for, to the second.
pub fn seconds(seconds: f64) -> String {
    if seconds.fract() != 0.0 {
        return format!("{seconds} s");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number of seconds")]
    let whole = seconds as u64;
    let parts = [(whole / 3600, "h"), (whole % 3600 / 60, "min"), (whole % 60, "s")];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n} {unit}"));
    parts.collect::<Vec<_>>().join(" ")
}

/// An amount, or `?` where it is not known.
pub fn amount(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| "?".into(), |b| b.to_string())
}

/// What a group has together.
pub fn held(group: &[&Holder]) -> String {
    let known = |holder: &&&Holder| holder.devices.iter().any(|held| held.held_bytes.is_some());
    let sum: Bytes = group.iter().map(|holder| holder.held()).sum();
    match group.iter().filter(known).count() {
        0 => "?".into(),
        all if all == group.len() => sum.to_string(),
        _ => format!("{sum} or more"),
    }
}

/// What all of a group are called: the whole line where it is the same.
pub fn all_called(group: &[&Holder]) -> String {
    let Some((first, others)) = group.split_first() else { return String::new() };
    if others.iter().all(|other| other.name() == first.name()) { first.name().to_owned() } else { first.gist() }
}

/// A signed amount, or `?`.
pub fn signed(bytes: Option<i64>) -> String {
    match bytes {
        None => "?".into(),
        Some(n) if n < 0 => format!("-{}", Bytes(n.unsigned_abs())),
        Some(n) => Bytes(n.unsigned_abs()).to_string(),
    }
}

/// `518 MiB`, `0 B to 518 MiB`, `518 MiB or more`.
pub fn interval(low: Bytes, high: Option<Bytes>) -> String {
    match high {
        Some(high) if high.to_string() == low.to_string() => low.to_string(),
        Some(high) => format!("{low} to {high}"),
        None => format!("{low} or more"),
    }
}

/// Who may start a process again that a plan ends.
pub fn restarter(restarter: &Restarter) -> String {
    let shown = text::shorten(&restarter.command, 80);
    format!("PID {} ({shown}) started it, is still alive, and may start it again", restarter.pid)
}

/// What to do about that, before the command if there is one.
pub fn how_to_stop(restarter: &Restarter) -> String {
    match (&restarter.stop, &restarter.unit) {
        (Some(_), None) => "To stop it for good:".into(),
        (None, Some(unit)) => {
            format!("It is the main process of {}, which only its service manager stops", text::clean(unit))
        }
        (None, None) if restarter.keeps_others => {
            format!("PID {} keeps other programs too: tell it to stop this one, in its own way", restarter.pid)
        }
        (None, None) if !restarter.alike.is_empty() => {
            format!("To end that first, with its {}:", count(restarter.alike.len() + 1, "process", "processes"))
        }
        _ => "To end that first:".into(),
    }
}

/// `a`, `a and b`, `a, b and c`.
pub fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

/// `SIGKILL (9)`.
pub fn signal(number: i32) -> String {
    signal_hook::low_level::signal_name(number)
        .map_or_else(|| format!("signal {number}"), |name| format!("{name} ({number})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_at_most_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3599, "59 min"),
            (3600, "1 h"),
            (12_000, "3 h 20 min"),
            (86_400, "1 d"),
            (439_200, "5 d 2 h"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn a_time_limit_is_said_as_it_was_typed() {
        for (time, text) in
            [(0.5, "0.5 s"), (1.0, "1 s"), (90.0, "1 min 30 s"), (7200.0, "2 h"), (3661.0, "1 h 1 min 1 s")]
        {
            assert_eq!(seconds(time), text);
        }
    }

    #[test]
    fn unknown_is_never_a_number() {
        assert_eq!(amount(None), "?");
        assert_eq!(signed(None), "?");
        assert_eq!(signed(Some(-(3 << 20))), "-3.0 MiB");
        assert_eq!(signed(Some(0)), "0 B");
    }

    #[test]
    fn intervals_and_lists() {
        let mib = Bytes::mib;
        assert_eq!(interval(mib(518), Some(mib(518))), "518 MiB");
        assert_eq!(interval(mib(0), Some(mib(518))), "0 B to 518 MiB");
        assert_eq!(interval(mib(518), None), "518 MiB or more");
        assert_eq!(list(&["a".into()]), "a");
        assert_eq!(list(&["a".into(), "b".into(), "c".into()]), "a, b and c");
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal(9), "SIGKILL (9)");
        assert_eq!(signal(250), "signal 250");
    }
}
