//! The demo works for anybody on any machine, says that it is simulated, and leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]
#![allow(clippy::print_stderr, reason = "a test that could not run says so")]

mod support;

use rustix::process::Signal;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use support::{Finished, Rig, Running, wait_until};
use tempfile::TempDir;

const CASES: [&str; 4] = ["clean", "orphan", "forked-copy", "neighbour"];

/// A directory for the demo's own, and the demo in it.
struct Theatre {
    rig: Rig,
    directory: TempDir,
}

impl Theatre {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("theatre").tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        Self { rig: Rig::new(), directory }
    }

    fn command(&self, program: &[&str], arguments: &[&str]) -> Command {
        let (first, rest) = program.split_first().unwrap();
        let mut command = Command::new(first);
        command.args(rest).arg("demo").args(arguments).env("TMPDIR", self.directory.path()).env_remove("NO_COLOR");
        command
    }

    fn start(&self, arguments: &[&str]) -> Running {
        self.rig.launch(self.command(&[env!("CARGO_BIN_EXE_gpuresid")], arguments))
    }

    fn play(&self, arguments: &[&str]) -> Finished {
        self.start(arguments).wait()
    }

    /// The directory of the case that is being played, once it is there.
    fn place(&self) -> PathBuf {
        let mut found = None;
        wait_until("the demo's directory", || {
            found = fs::read_dir(self.directory.path()).unwrap().flatten().map(|e| e.path()).next();
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until nobody is left, and asserts that no file is.
    fn expect_empty(&self) {
        self.wait_for_the_end();
        let files: Vec<_> = fs::read_dir(self.directory.path()).unwrap().flatten().map(|e| e.path()).collect();
        assert!(files.is_empty(), "{files:?}");
    }

    fn wait_for_the_end(&self) {
        wait_until("the end of the demo's processes", || living(self.directory.path()).is_empty());
    }
}

/// The processes whose environment names this directory. Those that have ended have none.
fn living(directory: &Path) -> Vec<String> {
    let variable = format!("TMPDIR={}", directory.display());
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry == variable.as_bytes())
    })
    .collect()
}

#[test]
fn all_cases_are_played_one_after_the_other() {
    let theatre = Theatre::new();
    let end = theatre.play(&[]);
    end.expect_code(0);
    assert_eq!(end.stderr, "", "all of it is on standard output");
    let mut rest = end.stdout.as_str();
    for (number, case) in CASES.iter().enumerate() {
        let heading = format!("\nCase {} of 4: {case}\n", number + 1);
        let at = rest.find(&heading).unwrap_or_else(|| panic!("no {heading:?} in {rest}"));
        rest = &rest[at + heading.len()..];
    }
    // The verdict is the first line and, where something is left, the last.
    assert_eq!(end.stdout.matches("\ngpuresid (simulated GPU): ").count(), 7, "{}", end.stdout);
    assert_eq!(end.stdout.matches("exit code 121 (residue)").count(), 3, "{}", end.stdout);
    theatre.expect_empty();
}

#[test]
fn a_case_alone_shows_the_real_report() {
    let theatre = Theatre::new();
    for (case, parts) in [
        ("clean", &["simulated GPU): clean: ", "exit code 0"][..]),
        ("orphan", &["simulated GPU): residue: 2566 MiB", "demo-rank", ": orphan", "what started it has ended"]),
        (
            "forked-copy",
            &["simulated GPU): residue: 2566 MiB", "demo-worker", ": forked copy", "that the driver still"],
        ),
        ("neighbour", &["simulated GPU): residue: 2566 MiB", "demo-rank", ": orphan", "not charged", "demo-neighbour"]),
    ] {
        let end = theatre.play(&[case]);
        end.expect_code(0);
        for part in parts {
            assert!(end.stdout.contains(part), "{case}: no {part:?} in {}", end.stdout);
        }
        theatre.expect_empty();
    }
}

#[test]
fn colour_reaches_the_report() {
    let theatre = Theatre::new();
    let coloured = |choice: &str| theatre.play(&["clean", "--color", choice]).stdout.contains("\u{1b}[32m");
    let bold = |choice: &str| theatre.play(&["clean", "--color", choice]).stdout.contains('\u{1b}');
    assert!(!bold("never"));
    assert!(coloured("always") || bold("always"));
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind_and_dies_of_the_signal() {
    for (signal, case, mark) in
        [(Signal::TERM, "forked-copy", "worker"), (Signal::INT, "neighbour", "shrunk"), (Signal::HUP, "clean", "dev")]
    {
        let theatre = Theatre::new();
        let demo = theatre.start(&[case]);
        let mark = theatre.place().join(mark);
        wait_until("the case's mark", || mark.exists());
        demo.signal(signal);
        demo.wait().expect_signal(signal);
        theatre.expect_empty();
    }
}

#[test]
fn the_programs_of_a_killed_demo_end_by_themselves() {
    let theatre = Theatre::new();
    let demo = theatre.start(&["neighbour"]);
    let mark = theatre.place().join("shrunk");
    wait_until("the neighbour's mark", || mark.exists());
    assert!(living(theatre.directory.path()).len() > 2);
    demo.signal(Signal::KILL);
    demo.wait().expect_signal(Signal::KILL);
    theatre.wait_for_the_end();
}

#[test]
fn it_works_without_rights() {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];
    let can = rustix::process::getuid().is_root()
        && Command::new(nobody[0]).args(&nobody[1..]).arg("true").status().is_ok_and(|s| s.success());
    if !can {
        eprintln!("not run: becoming another user needs root and setpriv");
        return;
    }
    let theatre = Theatre::new();
    // Where it was built, others may not be able to read.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = elsewhere.path().join("gpuresid");
    fs::copy(env!("CARGO_BIN_EXE_gpuresid"), &binary).unwrap();
    let mut command = theatre.command(&[&nobody[..], &[binary.to_str().unwrap()]].concat(), &[]);
    command.current_dir("/");
    theatre.rig.launch(command).wait().expect_code(0);
    theatre.expect_empty();
}

#[test]
fn without_a_directory_to_write_it_says_what_to_do() {
    let theatre = Theatre::new();
    let mut command = theatre.command(&[env!("CARGO_BIN_EXE_gpuresid")], &["clean"]);
    command.env("TMPDIR", "/no/such/directory");
    let end = theatre.rig.launch(command).wait();
    end.expect_code(125);
    assert!(end.stderr.contains("/no/such/directory") && end.stderr.contains("hint: set TMPDIR"), "{}", end.stderr);
}

#[test]
fn a_reader_that_leaves_does_no_harm() {
    let theatre = Theatre::new();
    let mut command = theatre.command(&[env!("CARGO_BIN_EXE_gpuresid")], &["orphan"]);
    let mut demo = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(demo.stdout.take());
    assert!(demo.wait().unwrap().success());
    theatre.expect_empty();
}

#[test]
fn an_unknown_case_is_a_usage_error() {
    let end = Theatre::new().play(&["sunshine"]);
    end.expect_code(125);
    for case in CASES {
        assert!(end.stderr.contains(case), "{}", end.stderr);
    }
}

#[test]
fn there_is_no_gpu_to_choose() {
    let theatre = Theatre::new();
    for choice in [["-i", "3", "clean"].as_slice(), &["--visible", "clean"]] {
        let end = theatre.play(choice);
        end.expect_code(125);
        assert!(end.stderr.contains("the demo has a simulated GPU of its own"), "{}", end.stderr);
        assert_eq!(end.stdout, "");
    }
    // What is set for all commands is no choice.
    let mut command = theatre.command(&[env!("CARGO_BIN_EXE_gpuresid")], &["clean"]);
    command.env("GPURESID_GPU", "3");
    theatre.rig.launch(command).wait().expect_code(0);
}
