//! Values flow one way: observe → model → judge → report. Each rule here is a word that may stand in some files only;
//! a new file that needs the word shows up in a failing test, and the rule is changed on purpose or not at all.
//!
//! Comments do not count, nor do the strings and modules of unit tests. The text is searched, not parsed: a word is
//! chosen so that it cannot mean anything else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where something may or must not stand. Paths are from the top of the package; one that ends in a slash is
/// everything below it.
enum Where {
    /// In none of these.
    Never(&'static [&'static str]),
    /// In these alone.
    Only(&'static [&'static str]),
}
use Where::{Never, Only};

/// What the rule protects, the words, and where.
const RULES: &[(&str, &[&str], Where)] = &[
    (
        "judging is arithmetic on values: it reads no world",
        &[
            "observe::",
            "crate::run",
            "commands::",
            "crate::report",
            "nvml_wrapper",
            "procfs::",
            "rustix::",
            "std::fs",
            "fs::",
            "std::env",
            "std::process",
            "std::io",
            "File::",
            "Instant",
            "SystemTime",
            "Timestamp::now",
            "thread::",
        ],
        Never(&["src/judge/", "src/model/"]),
    ),
    ("the words know none of their users", &["judge::", "crate::report", "crate::cli"], Never(&["src/model/"])),
    (
        "writing a report is a function of the report",
        &["observe::", "judge::", "crate::run", "commands::", "nvml_wrapper", "procfs::", "Instant", "SystemTime"],
        Never(&["src/report/"]),
    ),
    (
        "observing never judges, and knows no command",
        &["judge::", "crate::report", "commands::", "crate::run", "crate::cli"],
        Never(&["src/observe/"]),
    ),
    (
        "running knows neither commands nor reports",
        &["commands::", "crate::report", "crate::cli"],
        Never(&["src/run/"]),
    ),
    ("NVML is behind the driver seam", &["nvml_wrapper"], Only(&["src/observe/driver/"])),
    (
        "the raw calls are in one file, and the fake library is the other side of the same ABI; beside them there is what the \
         child does between fork and exec, and what becomes of signals",
        &["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe("],
        Only(&[
            "src/dispositions.rs",
            "src/observe/driver/raw.rs",
            "src/run/exec.rs",
            "tests/fake_nvml/src/abi.rs",
            "tests/fake_nvml/src/system.rs",
        ]),
    ),
    (
        "libraries are opened in one file",
        &["libloading"],
        Only(&["src/observe/driver/raw.rs", "tests/fake_nvml/src/abi.rs", "tests/fake_nvml/src/system.rs"]),
    ),
    (
        "/proc of other processes is read below observe/proc (--procfs leads there); by itself, and for its helper, a part \
         may look at the real one",
        &["procfs::", "\"/proc/"],
        Only(&[
            "src/observe/proc/",
            // The helper's own files, its wait channel, and its identity: processes of this tool.
            "src/observe/driver/",
            // Ourselves, our children, the sender of a signal, our cgroup: always the real /proc.
            "src/run/",
            // The driver's and our own, as they are on this machine.
            "src/doctor/observe/",
            // Our own descriptors.
            "src/report/aside.rs",
            "src/report/stream.rs",
            "src/report/walk.rs",
            // Its clients, as the driver does.
            "tests/fake_nvml/src/",
        ]),
    ),
    (
        "a signal is sent only where it is certain who gets it",
        &["kill_process", "pidfd_send_signal", "kill_process_group", "kill_current_process_group", "test_kill"],
        Only(&["src/run/signal_child.rs", "src/act/"]),
    ),
    (
        "a child is killed through its handle, which knows whether it still is our child",
        &[".kill()"],
        Only(&["src/run/signal_child.rs", "src/observe/driver/", "src/act/"]),
    ),
    ("the process ends in one place", &["process::exit"], Only(&["src/exit.rs", "src/main.rs"])),
    ("what runs between fork and exec is in one file", &["pre_exec"], Only(&["src/run/exec.rs"])),
    (
        "the simulated GPU is no option of real commands",
        &["Source::Simulated"],
        Only(&["src/observe/driver/", "src/commands/demo.rs"]),
    ),
];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files that end up in the binary or the fake library.
fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for root in ["src", "tests/fake_nvml/src"] {
        collect(&top().join(root), &mut files);
    }
    let named = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path.strip_prefix(top()).unwrap().to_str().unwrap().to_owned(), text)
    };
    files.into_iter().map(named).filter(|(path, _)| !is_test(path)).collect()
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") && !path.starts_with("tests/fake_nvml/src") || path.ends_with("/tests.rs")
}

/// The lines that count: no comments, and nothing from the unit tests at the end of a file on.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    code.enumerate().map(|(n, line)| (n + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn within(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| if place.ends_with('/') { path.starts_with(place) } else { path == *place })
}

/// Whether the word stands in the line, and not as the end of a longer name.
fn has(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| !word.starts_with(part) || !line[..at].ends_with(part))
}

fn broken(rule: &Where, words: &[&str], path: &str, text: &str) -> Vec<String> {
    let applies = match rule {
        Never(places) => within(path, places),
        Only(places) => !within(path, places),
    };
    if !applies {
        return Vec::new();
    }
    let lines = code(text).filter(|(_, line)| words.iter().any(|word| has(line, word)));
    lines.map(|(n, line)| format!("{path}:{n}: {}", line.trim())).collect()
}

#[test]
fn every_word_stands_where_it_may() {
    let sources = sources();
    assert!(sources.len() > 50, "the sources are not where this test looks");
    let mut wrong = String::new();
    for (why, words, rule) in RULES {
        for line in sources.iter().flat_map(|(path, text)| broken(rule, words, path, text)) {
            wrong += &format!("{why}\n    {line}\n");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn a_rule_can_fail() {
    let text =
        "use std::fs;\n// fs::read\nfn f() { fs::read(x); my_fs::read(y) }\n#[cfg(test)]\nmod tests { fs::read }\n";
    let found = broken(&Never(&["src/judge/"]), &["fs::"], "src/judge/a.rs", text);
    assert_eq!(found, ["src/judge/a.rs:3: fn f() { fs::read(x); my_fs::read(y) }"]);
    assert_eq!(broken(&Never(&["src/judge/"]), &["fs::"], "src/run/a.rs", text), [""; 0]);
    assert_eq!(broken(&Only(&["src/act/one.rs"]), &["fs::"], "src/act/two.rs", text).len(), 1);
    assert_eq!(broken(&Only(&["src/act/"]), &["fs::"], "src/act/two.rs", text), [""; 0]);
}

#[test]
fn every_file_says_what_it_is() {
    let without: Vec<_> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//! ")).map(|(path, _)| path).collect();
    assert_eq!(without, [""; 0], "a file opens with a paragraph on what it is and why it is separate");
}

#[test]
fn every_rule_names_files_that_exist() {
    for (why, words, rule) in RULES {
        let (Never(places) | Only(places)) = rule;
        assert!(!words.is_empty() && !places.is_empty(), "{why}");
        for place in *places {
            // `act` comes with reclaim.
            assert!(top().join(place).exists() || *place == "src/act/", "{why}: {place} is gone");
        }
    }
}
