//! The service and the timer that run `reclaim --unattended` now and then, and the place for the records that it goes by: an
//! end for leftovers without a daemon of our own.

use super::{File, Wanted, option, word};

const SERVICE: &str = include_str!("files/gpuresid-reclaim.service");
const TIMER: &str = include_str!("files/gpuresid-reclaim.timer");

/// What the timer runs.
fn job(wanted: &Wanted<'_>) -> String {
    let act = if wanted.act { " --yes" } else { "" };
    format!("reclaim --unattended --all-users{}{act}", idle(wanted))
}

fn idle(wanted: &Wanted<'_>) -> String {
    wanted.idle.map(|idle| format!(" --idle {}s", idle.as_secs())).unwrap_or_default()
}

pub(super) fn use_it(wanted: &Wanted<'_>) -> String {
    let program = word(&wanted.binary.to_string_lossy());
    let gpus = option(wanted, word);
    // In a crontab a percent sign ends the command.
    let job = format!("{program}{gpus} {}", job(wanted)).replace('%', "\\%");
    let act = if wanted.act { " --act" } else { "" };
    let options = format!("{act}{}", idle(wanted));
    let decided = if wanted.act { "decided" } else { "would end; with --act it does" };
    format!(
        "\
echo 'd /run/gpuresid/records 1733 root root -' | sudo tee /etc/tmpfiles.d/gpuresid.conf
sudo systemd-tmpfiles --create gpuresid.conf      # where checks record what they leave
sudo {program}{gpus} gen systemd-timer{options} -o /etc/systemd/system
sudo systemctl daemon-reload
sudo systemctl enable --now gpuresid-reclaim.timer
journalctl -u gpuresid-reclaim                    # what it {decided}
without systemd, a line of root's crontab does the same:
*/5 * * * * {job}"
    )
}

pub(super) fn files(wanted: &Wanted<'_>) -> Vec<File> {
    let program = quoted(&wanted.binary.to_string_lossy());
    let command = format!("{program}{} {}", option(wanted, quoted), job(wanted));
    vec![
        File { name: "gpuresid-reclaim.service".into(), text: SERVICE.replace("@COMMAND@", &command) },
        File { name: "gpuresid-reclaim.timer".into(), text: TIMER.into() },
    ]
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

    fn line(path: &str, change: fn(&mut Wanted<'_>)) -> String {
        let mut wanted = Wanted { binary: Path::new(path), gpus: &[], act: false, idle: None };
        change(&mut wanted);
        let service = files(&wanted).remove(0).text;
        service.lines().find_map(|l| l.strip_prefix("ExecStart=")).unwrap().to_owned()
    }

    #[test]
    fn the_binary_is_named_as_systemd_reads_it() {
        let options = "reclaim --unattended --all-users";
        assert_eq!(line("/usr/bin/gpuresid", |_| {}), format!("/usr/bin/gpuresid {options}"));
        assert_eq!(line("/opt/50%/a b", |_| {}), format!("\"/opt/50%%/a b\" {options}"));
        let gpus = ["0".to_owned(), "GPU-4f2c".to_owned()];
        let wanted = Wanted { binary: Path::new("/opt/50%/gpuresid"), gpus: &gpus, act: true, idle: None };
        assert!(files(&wanted)[0].text.contains("ExecStart=/opt/50%%/gpuresid -i 0,GPU-4f2c reclaim "));
        let crontab = use_it(&wanted);
        assert!(
            crontab.ends_with(r"*/5 * * * * /opt/50\%/gpuresid -i 0,GPU-4f2c reclaim --unattended --all-users --yes")
        );
        assert!(crontab.contains("/opt/50%/gpuresid -i 0,GPU-4f2c gen systemd-timer --act -o"), "{crontab}");
    }

    #[test]
    fn nothing_is_ended_unless_that_was_asked_for() {
        assert!(!line("/g", |_| {}).contains("--yes"));
        assert!(line("/g", |wanted| wanted.act = true).ends_with("--all-users --yes"));
        let idle = line("/g", |wanted| wanted.idle = Some(std::time::Duration::from_secs(1800)));
        assert!(idle.ends_with("reclaim --unattended --all-users --idle 1800s"), "{idle}");
    }
}
