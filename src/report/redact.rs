//! `--redact`: what is handed on names no arguments, users or hosts. It works on the finished values, so that every
//! format is covered by one pass, and so that a verdict is the same with it and without.
//!
//! Arguments are hidden where they are read ([`crate::model::Argv`]), so that no sentence can quote a command line.
//! Fields that are a command line, a user or a host are replaced as such; then every other text is searched for the same
//! words, because sentences also name files and users. Program names stay: without them nobody could tell who is meant.

mod quotes;

use crate::model::{
    Argv, DoctorReport, Ghost, Holder, Launch, Observation, Process, ReclaimReport, Report, Snapshot, StatusReport,
    Trace,
};
use quotes::{hide_homes, hide_quoted, hide_word, program};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::collections::BTreeSet;

const HIDDEN: &str = "***";

/// Fields whose values come from us or from the driver, and are no sentences: a user who is called `clean` must not
/// change a verdict.
const OURS: &[&str] = &[
    "schema",
    "tool_version",
    "taken_at",
    "run_id",
    "boot_id",
    "uuid",
    "device_uuid",
    "parent",
    "verdict",
    "cause",
    "lineage",
    "kind",
    "scope",
    "settle_end",
    "state",
    "source",
    "api",
    "list_api",
    "lists",
    "driver_version",
    "nvml_version",
    "cuda_version",
    "pci",
    "marker",
    "end",
    "addressing",
    "numa",
    "states",
    "stage",
    "role",
    "outcome",
    "signals",
    "sent",
    "level",
    "check",
    "trouble",
    "code",
    "sign",
    "beginning",
    "does",
    "on",
    "pages",
];

/// Hides them in a run's observation and report.
pub fn run(observation: &mut Observation, report: &mut Report) {
    let mut words =
        Words::of([&observation.before, &observation.after], Some((&observation.trace, &observation.launch)));
    words.users(&report.holders);
    for snapshot in [&mut observation.before, &mut observation.after] {
        hide_in_snapshot(snapshot);
    }
    for seen in &mut observation.trace.seen {
        seen.argv.hide();
    }
    if let Some(command) = &mut observation.launch.command {
        command.argv.hide();
    }
    report.host = None;
    if let Some(command) = &mut report.command {
        command.argv.hide();
    }
    for holder in &mut report.holders {
        hide_in_holder(holder);
    }
    hide_in_ghosts(&mut report.ghosts);
    words.hide_in_texts(observation);
    words.hide_in_texts(report);
}

/// Hides them in the report of a single look at `snapshot`.
pub fn status(snapshot: &Snapshot, report: &mut StatusReport) {
    let mut words = Words::of([snapshot], None);
    words.users(&report.holders);
    words.users(&report.open_only);
    report.host = None;
    for holder in report.holders.iter_mut().chain(&mut report.open_only) {
        hide_in_holder(holder);
    }
    hide_in_ghosts(&mut report.ghosts);
    words.hide_in_texts(report);
}

/// Hides them in what `doctor` says.
/// Of whoever had files open it looked at `snapshot`.
pub fn doctor(snapshot: Option<&Snapshot>, report: &mut DoctorReport) {
    let mut words = Words::of(snapshot, None);
    words.name(report.host.take().as_deref());
    words.users(&report.holders);
    report.holders.iter_mut().for_each(hide_in_holder);
    words.hide_in_texts(report);
}

/// Hides them in what `reclaim` says after the look `snapshot`.
pub fn reclaim(snapshot: &Snapshot, report: &mut ReclaimReport) {
    let mut words = Words::of([snapshot], None);
    report.steps.iter().for_each(|s| words.name(s.user.as_deref()));
    report.host = None;
    for life in report.steps.iter_mut().filter_map(|step| step.life.as_mut()) {
        life.tcp_peers.iter_mut().flatten().for_each(|peer| *peer = HIDDEN.into());
    }
    words.hide_in_texts(report);
}

/// Hides them in a line or an error about processes of `snapshot`.
pub fn lines(snapshot: &Snapshot) -> impl Fn(&str) -> String {
    let words = Words::of([snapshot], None);
    move |line| words.hide(line)
}

/// Hides the arguments in a snapshot that was read from a file, before anything is said about it.
pub fn arguments(snapshot: &mut Snapshot) {
    snapshot.processes.iter_mut().flatten().for_each(|process| process.argv.hide());
}

/// Hides them in a snapshot.
pub fn snapshot(snapshot: &mut Snapshot) {
    let words = Words::of([&*snapshot], None);
    hide_in_snapshot(snapshot);
    words.hide_in_texts(snapshot);
}

fn hide_in_snapshot(snapshot: &mut Snapshot) {
    snapshot.host = None;
    for process in snapshot.processes.iter_mut().flatten() {
        process.user = None;
        process.argv.hide();
        // Numbers of jobs and ranks stay; the rest is named by people, or names a machine or a path.
        for value in process.environment.values_mut().filter(|value| !is_number(value)) {
            *value = HIDDEN.into();
        }
    }
}

fn hide_in_holder(holder: &mut Holder) {
    holder.user = holder.user.take().map(|_| HIDDEN.into());
    holder.uid = None;
    hide_line(&mut holder.command);
    holder.name = None;
}

fn hide_in_ghosts(ghosts: &mut [Ghost]) {
    for line in ghosts.iter_mut().flat_map(|g| [&mut g.command, &mut g.impostor]).flatten() {
        hide_line(line);
    }
}

/// Whatever has a PID is somebody, in every kind of report.
fn hide_person(fields: &mut serde_json::Map<String, Value>) {
    if !fields.contains_key("pid") {
        return;
    }
    for name in ["command", "impostor"] {
        if let Some(Value::String(line)) = fields.get_mut(name) {
            hide_line(line);
        }
    }
    if let Some(Value::String(user)) = fields.get_mut("user") {
        *user = HIDDEN.into();
    }
}

/// A name in brackets, or in parentheses where nothing is visible, is no command line.
fn hide_line(line: &mut String) {
    if line.starts_with(['[', '(']) {
        return;
    }
    let more = line.split_whitespace().nth(1).is_some();
    *line = if more { format!("{} {HIDDEN}", program(line)) } else { program(line).to_owned() };
}

/// What must not be quoted.
#[derive(Debug, Default)]
struct Words {
    /// Users and hosts: only as whole words.
    names: BTreeSet<String>,
    /// Single arguments, and the files in them.
    arguments: BTreeSet<String>,
    /// Names of programs, which stay: `sh -c "python3 …"` makes one an argument.
    programs: BTreeSet<String>,
    /// Command lines as sentences quote them, most often cut short.
    lines: BTreeSet<String>,
}

impl Words {
    fn of<'a>(snapshots: impl IntoIterator<Item = &'a Snapshot>, run: Option<(&Trace, &Launch)>) -> Self {
        let mut words = Self::default();
        for snapshot in snapshots {
            words.name(snapshot.host.as_deref());
            for process in snapshot.scanned() {
                words.process(process);
            }
        }
        if let Some((trace, launch)) = run {
            for seen in &trace.seen {
                words.argv(&seen.argv, &seen.comm);
            }
            if let Some(command) = &launch.command {
                words.argv(&command.argv, "");
            }
        }
        words
    }

    /// Also those of processes that no snapshot shows.
    fn users(&mut self, holders: &[Holder]) {
        holders.iter().for_each(|h| self.name(h.user.as_deref()));
    }

    fn process(&mut self, process: &Process) {
        self.name(process.user.as_deref());
        self.argv(&process.argv, &process.comm);
        self.name(process.environment.get("SLURMD_NODENAME").map(String::as_str));
        let values = process.environment.values().filter(|value| !is_number(value)).map(String::as_str);
        let files = process.blocked.iter().flat_map(|b| &b.threads).filter_map(|t| t.waits_for.as_deref());
        // `/data/x (nfs4 from store:/export)`: the file, and the server with its path.
        let files = files.flat_map(str::split_whitespace).map(|word| word.trim_matches(['(', ')']));
        let telling = values.chain(files.filter(|word| word.contains('/'))).filter(|word| telling(word));
        self.arguments.extend(telling.map(str::to_owned));
    }

    /// `root` is nobody in particular. A host is known by its short name too.
    fn name(&mut self, name: Option<&str>) {
        if let Some((short, _)) = name.and_then(|n| n.split_once('.')) {
            self.name(Some(short));
        }
        if let Some(name) = name.filter(|n| *n != "root" && n.chars().any(char::is_alphabetic)) {
            self.names.insert(name.to_owned());
        }
    }

    fn argv(&mut self, argv: &Argv, comm: &str) {
        let argv = argv.words();
        let line = crate::text::display_command(&argv.to_vec().into(), comm);
        self.programs.extend(argv.first().map(|first| program(first).to_owned()));
        self.programs.insert(comm.to_owned());
        if line.split_whitespace().nth(1).is_some() && !line.starts_with('[') {
            self.lines.insert(line.clone());
        }
        // A program's own path is an argument too where it names more than the program.
        let directory = argv.first().filter(|first| first.contains('/')).map(String::as_str);
        for word in directory.into_iter().chain(argv.iter().skip(1).flat_map(|a| a.split_whitespace())) {
            let value = word.rsplit_once('=').map_or(word, |(_, value)| value);
            let file = value.rsplit('/').next().filter(|_| Some(word) != directory);
            for part in [Some(word), Some(value), file].into_iter().flatten() {
                if telling(part) {
                    self.arguments.insert(part.to_owned());
                }
            }
        }
    }

    fn hide_in_texts<T: Serialize + DeserializeOwned>(&self, value: &mut T) {
        let Ok(mut tree) = serde_json::to_value(&*value) else { return };
        self.walk(&mut tree);
        // Only sentences were changed, so it still is what it was.
        if let Ok(hidden) = serde_json::from_value(tree) {
            *value = hidden;
        }
    }

    fn walk(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.hide(text),
            Value::Array(all) => all.iter_mut().for_each(|v| self.walk(v)),
            Value::Object(fields) => {
                hide_person(fields);
                fields.iter_mut().filter(|(name, _)| !OURS.contains(&name.as_str())).for_each(|(_, v)| self.walk(v));
            }
            _ => {}
        }
    }

    fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for line in &self.lines {
            text = hide_quoted(&text, line);
        }
        // The longest first: a path before the name of its file.
        let arguments = self.arguments.iter().filter(|word| !self.programs.contains(*word));
        let mut words: Vec<&String> = arguments.chain(&self.names).collect();
        words.sort_by_key(|w| std::cmp::Reverse(w.len()));
        for word in words {
            text = hide_word(&text, word);
        }
        hide_homes(&text)
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether an argument could tell somebody something and is no ordinary word of our sentences.
fn telling(word: &str) -> bool {
    word.chars().count() >= 4
        && (!word.starts_with('-') || word.contains('='))
        && word.chars().any(char::is_alphabetic)
        && !word.chars().all(char::is_alphabetic)
        && !word.starts_with("/dev/")
        && word != HIDDEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_keeps_its_program() {
        for (line, hidden) in [
            ("python train.py --data /secret", "python ***"),
            ("/home/ann/venv/bin/python x.py", "python ***"),
            ("/usr/bin/sleep", "sleep"),
            ("[kworker/0:1]", "[kworker/0:1]"),
            ("(not visible from here)", "(not visible from here)"),
        ] {
            let mut text = line.to_owned();
            hide_line(&mut text);
            assert_eq!(text, hidden);
        }
    }

    #[test]
    fn sentences_lose_what_they_quote() {
        let mut words = Words::default();
        words.name(Some("ann"));
        words.name(Some("root"));
        let argv = ["python", "train_7.py", "--out=/home/ann/x.bin", "hold"].map(Into::into).to_vec();
        words.argv(&argv.into(), "python");
        for (text, hidden) in [
            ("end PID 4 (python train_7.py --out=/ho)", "end PID 4 (python ***)"),
            ("its script is train_7.py, not another", "its script is ***, not another"),
            (
                "PID 4 belongs to ann; annual reports and root stay",
                "PID 4 belongs to ***; annual reports and root stay",
            ),
            ("/home/ann/x.bin", HIDDEN),
            ("python may hold memory", "python may hold memory"),
            ("its file '/home/bo b/x y' and \"/root/z\":7", "its file '***' and \"***\":7"),
            ("rm /mnt/home/cy/a.bin; ls", "rm /mnt***; ls"),
            ("/homeless stays", "/homeless stays"),
            ("", ""),
        ] {
            assert_eq!(words.hide(text), hidden);
        }
    }
}
