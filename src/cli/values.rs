//! How single values are read: durations, percentages, causes.

use crate::{model::Cause, report::words};
use std::time::Duration;

/// A duration that may be 0: `30s`, `5m`, `1h 30m`, a bare number is seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "write a duration like 30s, 5m or 1h; a bare number is seconds".to_string();
    let text = text.trim();
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        let seconds: f64 = text.parse().map_err(|_| wrong())?;
        return Duration::try_from_secs_f64(seconds).ok().filter(|d| *d <= LONGEST).ok_or_else(too_long);
    }
    let duration = humantime::parse_duration(text).map_err(|_| wrong())?;
    if duration > LONGEST { Err(too_long()) } else { Ok(duration) }
}

/// Far beyond any run, and small enough that no clock overflows.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

fn too_long() -> String {
    "longer than ten years".into()
}

/// A duration of at least a millisecond.
pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        duration if duration < Duration::from_millis(1) => Err("it must be at least 1ms".into()),
        duration => Ok(duration),
    }
}

/// The same with a unit: so short a time is as often meant in milliseconds as in seconds.
pub(super) fn short_time(text: &str) -> Result<Duration, String> {
    let (duration, number) = (some_time(text)?, text.trim());
    match number.parse::<f64>() {
        Ok(_) => Err(format!("write the unit: {number}ms or {number}s")),
        Err(_) => Ok(duration),
    }
}

/// An option without a value, as a variable has it: on or off. An empty variable is off, as one that is not set.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" | "y" | "t" => Ok(true),
        "" | "0" | "false" | "no" | "off" | "n" | "f" => Ok(false),
        _ => Err("write 1, true, yes or on; or 0, false, no or off".into()),
    }
}

/// A percentage, with or without its sign.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    text.trim()
        .trim_end_matches('%')
        .trim_end()
        .parse::<f64>()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "write a percentage between 0 and 100, such as 5%".into())
}

/// A PID.
pub(super) fn pid(text: &str) -> Result<u32, String> {
    text.trim().parse().ok().filter(|pid| *pid > 0).ok_or_else(|| "not a PID".into())
}

/// A number of GPUs.
pub(super) fn gpus(text: &str) -> Result<u32, String> {
    text.trim().parse().ok().filter(|gpus| *gpus > 0).ok_or_else(|| "write a number of GPUs, such as 8".into())
}

/// `ancestors`, or a PID.
pub(super) fn except(text: &str) -> Result<super::Except, String> {
    match text.trim() {
        "ancestors" => Ok(super::Except::Ancestors),
        number => pid(number).map(super::Except::Pid).map_err(|_| "write `ancestors`, or a PID".into()),
    }
}

const CAUSES: [(&str, Cause); 17] = [
    ("stuck_in_kernel", Cause::StuckInKernel),
    ("draining", Cause::Draining),
    ("stopped", Cause::Stopped),
    ("half_dead", Cause::HalfDead),
    ("mps_server", Cause::MpsServer),
    ("forked_copy", Cause::ForkedCopy),
    ("exported_handle", Cause::ExportedHandle),
    ("peer_mapping", Cause::PeerMapping),
    ("orphan", Cause::Orphan),
    ("still_running", Cause::StillRunning),
    ("detached", Cause::Detached),
    ("context_only", Cause::ContextOnly),
    ("grown_neighbour", Cause::GrownNeighbour),
    ("new_neighbour", Cause::NewNeighbour),
    ("out_of_sight", Cause::OutOfSight),
    ("platform", Cause::Platform),
    ("in_use", Cause::InUse),
];

/// A rule of a gate: `lost`, `foreign`, or a cause.
pub(super) fn rule(text: &str) -> Result<super::FailOn, String> {
    match in_one(text).as_str() {
        "lost" => Ok(super::FailOn::Lost),
        "foreign" => Ok(super::FailOn::Foreign),
        _ => {
            cause(text).map(super::FailOn::Cause).map_err(|causes| format!("write lost, foreign, or a cause; {causes}"))
        }
    }
}

/// The name of a cause for scripts.
pub(crate) fn name_of(cause: Cause) -> &'static str {
    CAUSES.iter().find(|(_, known)| *known == cause).map_or("", |(name, _)| name)
}

/// A cause by its name in JSON or the words in the table, with spaces, dashes or underscores.
fn cause(text: &str) -> Result<Cause, String> {
    let name = in_one(text);
    let found = CAUSES.iter().find(|(known, cause)| *known == name || in_one(words::cause(*cause)) == name);
    found.map(|(_, cause)| *cause).ok_or_else(|| {
        let names = CAUSES.iter().map(|(name, cause)| match words::cause(*cause) {
            shown if in_one(shown) == *name => (*name).to_owned(),
            shown => format!("{name} ({shown})"),
        });
        format!("the causes are {}", names.collect::<Vec<_>>().join(", "))
    })
}

fn in_one(name: &str) -> String {
    let parts = name.split(|c: char| c.is_whitespace() || matches!(c, '-' | '_')).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("_").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in
            [("30", 30_000), ("1.5", 1500), ("100ms", 100), ("5m", 300_000), ("1h 30m", 5_400_000), ("0", 0)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "-1", "5 parsecs", "nan", "inf", "1e3", "1..2", "99999999999999999999", "9999y"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert!(some_time("0").is_err());
        assert_eq!(some_time("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(short_time("1ms"), Ok(Duration::from_millis(1)));
        for bare in ["100", "0.1"] {
            assert_eq!(short_time(bare), Err(format!("write the unit: {bare}ms or {bare}s")));
        }
    }

    #[test]
    fn pids() {
        assert_eq!(pid(" 4711"), Ok(4711));
        for text in ["", "abc", "0", "-1", "4711x", "4294967296"] {
            assert_eq!(pid(text), Err("not a PID".into()), "{text}");
        }
    }

    #[test]
    fn percentages() {
        for (text, value) in [("5", 5.0), ("5%", 5.0), ("0.5 %", 0.5), ("100", 100.0)] {
            assert_eq!(percent(text), Ok(value), "{text}");
        }
        for text in ["", "%", "-1", "101", "nan", "5MiB"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn causes_have_their_json_names() {
        for (name, value) in CAUSES {
            assert_eq!(serde_json::to_value(value).unwrap(), name);
            assert_eq!(cause(name), Ok(value));
            assert_eq!(cause(words::cause(value)), Ok(value), "as the table shows it");
        }
        for written in ["half-dead", "half dead", " Half  Dead ", "half_dead"] {
            assert_eq!(cause(written), Ok(Cause::HalfDead), "{written}");
        }
        for no_name in ["", " ", "halfdead", "half dead x"] {
            assert!(cause(no_name).is_err(), "{no_name}");
        }
        assert!(cause("zombie").unwrap_err().contains("forked_copy"));
    }
}
