//! The service and the timer that run `reclaim --orphans` now and then: a time limit for leftovers without a daemon of
//! our own.

use super::File;
use std::path::Path;

const SERVICE: &str = include_str!("files/gpuresid-reclaim.service");
const TIMER: &str = include_str!("files/gpuresid-reclaim.timer");

pub(super) const USE_IT: &str = "\
sudo gpuresid gen systemd-timer -o /etc/systemd/system
sudo systemctl daemon-reload
sudo systemctl enable --now gpuresid-reclaim.timer
journalctl -u gpuresid-reclaim            # what it decided
without systemd, a line of root's crontab does the same:
*/5 * * * * gpuresid reclaim --orphans --older-than 10m --all-users --yes";

pub(super) fn files(binary: &Path) -> Vec<File> {
    vec![
        File { name: "gpuresid-reclaim.service".into(), text: SERVICE.replace("@BINARY@", &quoted(binary)) },
        File { name: "gpuresid-reclaim.timer".into(), text: TIMER.into() },
    ]
}

/// A path as systemd reads it in a command line.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy().replace('%', "%%").replace('$', "$$");
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+%$".contains(c)) {
        text
    } else {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_named_as_systemd_reads_it() {
        let line = |path: &str| {
            let service = files(Path::new(path)).remove(0).text;
            service.lines().find(|l| l.starts_with("ExecStart=")).unwrap().to_owned()
        };
        let options = "reclaim --orphans --older-than 10m --all-users --yes";
        assert_eq!(line("/usr/bin/gpuresid"), format!("ExecStart=/usr/bin/gpuresid {options}"));
        assert_eq!(line("/opt/50%/a b"), format!("ExecStart=\"/opt/50%%/a b\" {options}"));
    }
}
