//! Nothing in the sources sends a signal except the one guarded function: read, not believed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The one file with the calls.
const THE_PLACE: &str = "src/act/signal.rs";

/// Ways to send a signal, to somebody else or by another program.
const CALLS: [&str; 20] = [
    "kill_process(",
    "kill_process_group(",
    "kill_current_process_group(",
    "test_kill_process",
    "pidfd_send_signal",
    ".kill()",
    "::kill(",
    "libc::",
    " nix::",
    "killpg",
    "tgkill",
    "tkill",
    "sigqueue",
    "rt_sigqueueinfo",
    "process_mrelease",
    "Command::new(\"kill",
    "Command::new(\"pkill",
    "Command::new(\"killall",
    "fcntl_setsig",
    "asm!(",
];

/// A signal to ourselves: how gpuresid dies of the command's signal.
const TO_OURSELVES: [(&str, &str); 1] = [("raise(", "src/exit.rs")];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The code of a line: without comments, and imports left out, because a name alone does nothing.
fn code(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with("//") { "" } else { line.split(" // ").next().unwrap_or(line) }
}

fn senders(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for call in CALLS.iter().chain(TO_OURSELVES.iter().map(|(call, _)| call)) {
            if code(line).contains(call) {
                found.push((number + 1, *call));
            }
        }
    }
    found
}

#[test]
fn only_the_guarded_function_sends_signals() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    assert!(files.len() > 80, "the sources were not found");
    let mut wrong = Vec::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        for (line, call) in senders(&fs::read_to_string(&path).unwrap()) {
            let allowed = name == THE_PLACE || TO_OURSELVES.contains(&(call, name.as_str()));
            if !allowed {
                wrong.push(format!("{name}:{line}: {call}"));
            }
        }
    }
    assert!(wrong.is_empty(), "signals are sent outside of {THE_PLACE}:\n{}", wrong.join("\n"));
}

#[test]
fn the_place_has_one_function_with_the_calls() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(THE_PLACE)).unwrap();
    let begin = text.find("\nfn deliver(").unwrap();
    let end = begin + text[begin..].find("\n}\n").unwrap();
    let lines_before = text[..begin].matches('\n').count();
    let lines_in = text[begin..end].matches('\n').count();
    for (line, call) in senders(&text) {
        let inside = line > lines_before && line <= lines_before + lines_in + 1;
        let import = code(text.lines().nth(line - 1).unwrap()).starts_with("process::{") || call.is_empty();
        assert!(inside || import, "line {line} of {THE_PLACE} has {call} outside of `deliver`");
    }
    // Each use of it is behind a look at the process, or is our own unreaped child.
    assert_eq!(text.matches("deliver(").count(), 3, "the definition, the held process, the child");
}

#[test]
fn the_search_finds_what_it_looks_for() {
    for line in [
        "let _ = child.kill();",
        "rustix::process::kill_process(pid, s)?;",
        "    pidfd_send_signal(&fd, s)",
        "Command::new(\"kill\")",
    ] {
        assert!(!senders(line).is_empty(), "{line}");
    }
    assert!(senders("// child.kill() would be wrong").is_empty());
}
