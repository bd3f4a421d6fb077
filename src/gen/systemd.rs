//! The service and the timer that run `reclaim --orphans` now and then: a time limit for leftovers without a daemon of
//! our own.

use super::{File, Wanted};
use crate::text;

const SERVICE: &str = include_str!("files/gpuresid-reclaim.service");
const TIMER: &str = include_str!("files/gpuresid-reclaim.timer");

const JOB: &str = "reclaim --orphans --older-than 10m --all-users --yes";

pub(super) fn use_it(wanted: &Wanted<'_>) -> String {
    let word = |text: &str| text::shell_word(text).unwrap_or_else(|| "gpuresid".into());
    let program = word(&wanted.binary.to_string_lossy());
    let gpus = option(wanted, word);
    // In a crontab a percent sign ends the command.
    let job = format!("{program}{gpus} {JOB}").replace('%', "\\%");
    format!(
        "\
sudo {program}{gpus} gen systemd-timer -o /etc/systemd/system
sudo systemctl daemon-reload
sudo systemctl enable --now gpuresid-reclaim.timer
journalctl -u gpuresid-reclaim            # what it decided
without systemd, a line of root's crontab does the same:
*/5 * * * * {job}"
    )
}

pub(super) fn files(wanted: &Wanted<'_>) -> Vec<File> {
    let program = quoted(&wanted.binary.to_string_lossy());
    let command = format!("{program}{} {JOB}", option(wanted, quoted));
    vec![
        File { name: "gpuresid-reclaim.service".into(), text: SERVICE.replace("@COMMAND@", &command) },
        File { name: "gpuresid-reclaim.timer".into(), text: TIMER.into() },
    ]
}

/// The GPUs as an option, quoted for its reader.
fn option(wanted: &Wanted<'_>, quoted: impl Fn(&str) -> String) -> String {
    if wanted.gpus.is_empty() { String::new() } else { format!(" -i {}", quoted(&wanted.gpus.join(","))) }
}

/// A word as systemd reads it in a command line.
fn quoted(word: &str) -> String {
    let text = word.replace('%', "%%").replace('$', "$$");
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+%$,:".contains(c)) {
        text
    } else {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_binary_is_named_as_systemd_reads_it() {
        let line_for = |path: &str, gpus: &[String]| {
            let service = files(&Wanted { binary: Path::new(path), gpus }).remove(0).text;
            service.lines().find(|l| l.starts_with("ExecStart=")).unwrap().to_owned()
        };
        let line = |path: &str| line_for(path, &[]);
        let gpus = ["0".to_owned(), "GPU-4f2c".to_owned()];
        assert!(line_for("/usr/bin/gpuresid", &gpus).starts_with("ExecStart=/usr/bin/gpuresid -i 0,GPU-4f2c reclaim "));
        let crontab = use_it(&Wanted { binary: Path::new("/opt/50%/gpuresid"), gpus: &gpus });
        assert!(crontab.ends_with(
            r"*/5 * * * * /opt/50\%/gpuresid -i 0,GPU-4f2c reclaim --orphans --older-than 10m --all-users --yes"
        ));
        let options = "reclaim --orphans --older-than 10m --all-users --yes";
        assert_eq!(line("/usr/bin/gpuresid"), format!("ExecStart=/usr/bin/gpuresid {options}"));
        assert_eq!(line("/opt/50%/a b"), format!("ExecStart=\"/opt/50%%/a b\" {options}"));
    }
}
