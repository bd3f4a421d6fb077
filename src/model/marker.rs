//! The marker that a run leaves in the environment of its processes, `GPURESID_RUN_ID`: the ids of the runs that they
//! are of, the outermost first, with `:` between them. Behind the id of a checked run stands the PID of its command.

/// The environment variable.
pub const MARKER: &str = "GPURESID_RUN_ID";

/// Whether this marker names the run.
///
/// ```
/// use gpuresid::model::marker_names;
/// assert!(marker_names("0d5c1c2a-1-2-3:0d5c1c2a-4-5-6", "0d5c1c2a-4-5"));
/// assert!(!marker_names("0d5c1c2a-4-55-6", "0d5c1c2a-4-5"));
/// ```
pub fn marker_names(marker: &str, run_id: &str) -> bool {
    let is_it = |id: &str| match id.strip_prefix(run_id) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').is_some_and(|pid| pid.parse::<u32>().is_ok()),
        None => false,
    };
    marker.split(':').any(is_it)
}

/// When the run began that a marker names last, as `/proc` counts: whoever is of it was started then or later. `None`:
/// that is no checked run.
pub fn run_began(marker: &str) -> Option<u64> {
    let last = marker.rsplit(':').next()?;
    match last.split('-').collect::<Vec<_>>().as_slice() {
        [_, _, start, command] if command.parse::<u32>().is_ok() => start.parse().ok(),
        _ => None,
    }
}
