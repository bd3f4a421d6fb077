//! The marker of `snapshot --env`: a value in the environment of what is started after the snapshot, by which `diff`
//! knows whose a process is.

use crate::model::{MARKER, Process, Snapshot, marker_names};
use std::env;

/// The line for the shell. Inside an outer run its marker stays in front.
pub(super) fn export_line(run_id: &str) -> String {
    let outer = env::var(MARKER).ok().filter(|outer| !outer.is_empty() && outer.chars().all(is_plain));
    match outer {
        Some(outer) => format!("export {MARKER}={outer}:{run_id}"),
        None => format!("export {MARKER}={run_id}"),
    }
}

/// A character of a run id or between two: nothing that a shell would act on.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '_' | '.')
}

/// Whether what was started after `before` was marked: this shell has the marker, or somebody in `after` carries it.
pub(super) fn is_known(run_id: &str, after: &Snapshot) -> bool {
    let carries = |marker: &str| marker_names(marker, run_id);
    env::var(MARKER).is_ok_and(|marker| carries(&marker)) || after.scanned().iter().filter_map(marker_of).any(carries)
}

fn marker_of(process: &Process) -> Option<&str> {
    process.marker.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_shell_would_act_on_is_plain() {
        assert!("0d5c1c2a-1-2:0d5c1c2a-3-4".chars().all(is_plain));
        for c in [' ', ';', '$', '`', '\n', '\'', '"', '(', '&'] {
            assert!(!is_plain(c), "{c:?}");
        }
    }
}
