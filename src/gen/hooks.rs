//! Hooks of CI runners that give back what a job has left: each ends the members of its own job, known by the runner's
//! own cookie, and nobody else. They never change the result of a job.

use super::{File, Wanted, option, word};

const GITHUB: &str = include_str!("files/gpuresid-job-completed.sh");
const GITLAB: &str = include_str!("files/gpuresid-after-script.yml");

/// What a hook runs, as a shell reads it.
fn command(wanted: &Wanted<'_>) -> String {
    format!("{}{} reclaim --ci --force --yes", word(&wanted.binary.to_string_lossy()), option(wanted, word))
}

/// A scalar as YAML reads it, for a command that a shell reads then.
fn scalar(command: &str) -> String {
    format!("'{}'", command.replace('\'', "''"))
}

pub(super) fn use_github(wanted: &Wanted<'_>) -> String {
    format!(
        "\
as the runner's user, in a directory of its own, which no job may write to and which is not the runner's:
{} gen github-hook -o /opt/gpuresid-hook
then, in the runner's directory, tell it and start it again:
echo ACTIONS_RUNNER_HOOK_JOB_COMPLETED=/opt/gpuresid-hook/gpuresid-job-completed.sh >> .env
sudo ./svc.sh stop && sudo ./svc.sh start",
        word(&wanted.binary.to_string_lossy())
    )
}

pub(super) fn github(wanted: &Wanted<'_>) -> Vec<File> {
    vec![File { name: "gpuresid-job-completed.sh".into(), text: GITHUB.replace("@COMMAND@", &command(wanted)) }]
}

pub(super) fn use_gitlab(wanted: &Wanted<'_>) -> String {
    format!(
        "\
{} gen gitlab-hook -o .gitlab
then in .gitlab-ci.yml:
include:
  - local: .gitlab/gpuresid-after-script.yml",
        word(&wanted.binary.to_string_lossy())
    )
}

pub(super) fn gitlab(wanted: &Wanted<'_>) -> Vec<File> {
    let marked = "@COMMAND@";
    let line = GITLAB.lines().find_map(|line| line.trim_start().strip_prefix("- ").filter(|l| l.contains(marked)));
    let line = line.unwrap_or_default();
    let text = GITLAB.replace(line, &scalar(&line.replace(marked, &command(wanted))));
    vec![File { name: "gpuresid-after-script.yml".into(), text }]
}
