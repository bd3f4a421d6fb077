//! Every signal that can be caught is the command's, and what it finds set up for signals is what we found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use std::{ffi::OsString, fs, process::Command};
use support::{Finished, Rig, Running, wait_until};

/// All but the two that nobody catches, those in which the processor tells of a mistake (4, 5, 7, 8, 11, 31), SIGCHLD,
/// those that stop (20 to 22), and what the C library keeps.
fn signals() -> impl Iterator<Item = i32> {
    (1..=64).filter(|number| ![9, 19, 4, 5, 7, 8, 11, 31, 17, 20, 21, 22, 32, 33].contains(number))
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

fn listener(rig: &Rig) -> Vec<OsString> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/listener.py");
    words(&["python3", program, rig.path("").to_str().unwrap()])
}

fn got(rig: &Rig) -> Vec<String> {
    fs::read_to_string(rig.path("got")).unwrap_or_default().lines().map(Into::into).collect()
}

fn send(run: &Running, number: i32) {
    let line = format!("kill -{number} {}", run.pid());
    assert!(Command::new("bash").args(["-c", &line]).status().unwrap().success());
}

/// Starts a program after this Python has prepared the ground for it.
fn prepared(python: &str, argv: &[OsString]) -> Vec<OsString> {
    let script = format!("import os, signal, resource, sys\n{python}\nos.execvp(sys.argv[1], sys.argv[1:])");
    let mut line = words(&["python3", "-c", &script]);
    line.extend_from_slice(argv);
    line
}

fn check_line(rig: &Rig, options: &str, argv: &[OsString]) -> Vec<OsString> {
    let command = rig.check_of(options, argv);
    std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect()
}

#[test]
fn every_signal_reaches_the_command_once_and_we_stay() {
    let rig = Rig::new();
    let options = format!("--report {}", rig.path("r.json").display());
    let run = rig.launch(rig.check_of(&options, &listener(&rig)));
    rig.wait_for("up");
    for (before, number) in signals().enumerate() {
        send(&run, number);
        wait_until(&format!("the command to get signal {number}"), || got(&rig).len() > before);
    }
    rig.mark("go");
    run.wait().expect_code(0);
    assert_eq!(got(&rig).len(), signals().count(), "{:?}", got(&rig));
    assert_eq!(rig.report("r.json")["verdict"], "clean");
}

#[test]
fn a_command_that_dies_of_any_of_them_is_reported_and_we_die_of_it_too() {
    // One with a name, two that few know, and a real-time one.
    for number in [14, 16, 30, 40] {
        let rig = Rig::new();
        let options = format!("--report {}", rig.path("r.json").display());
        let run = rig.launch(rig.check_of(&options, &rig.program("alloc 0 1GiB ready up hold")));
        rig.wait_for("up");
        send(&run, number);
        let end = run.wait();
        assert_eq!(end.signal, Some(number), "{end:?}");
        let report = rig.report("r.json");
        assert_eq!((&report["verdict"], &report["command"]["signal"]), (&"clean".into(), &number.into()));
    }
}

#[test]
fn what_signals_all_processes_of_a_job_does_not_cost_the_readings() {
    // As a scheduler does: the helper and what started it get it too.
    let rig = Rig::new();
    let options = format!("--report {}", rig.path("r.json").display());
    let run = rig.launch(rig.check_of(&options, &listener(&rig)));
    rig.wait_for("up");
    let ours: Vec<u32> = rig.calls().iter().map(|call| call.pid).collect();
    let helper = *ours.last().unwrap();
    let stat = fs::read_to_string(format!("/proc/{helper}/stat")).unwrap();
    let nursery = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().to_owned();
    for number in ["USR1", "XCPU", "ALRM", "40"] {
        let line = format!("kill -{number} {helper} {nursery}");
        assert!(Command::new("bash").args(["-c", &line]).status().unwrap().success());
    }
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(0);
    assert!(rig.calls().iter().all(|call| call.pid == helper), "another helper had to be started");
    let report = rig.report("r.json");
    assert!(report["gaps"].as_array().unwrap().iter().all(|gap| gap["about"] == "/proc"), "{report}");
}

#[test]
fn an_alarm_that_was_set_before_us_reaches_the_command() {
    // `perl -e 'alarm 3; exec @ARGV'` is what people use where there is no `timeout`.
    let rig = Rig::new();
    let line = prepared("signal.setitimer(signal.ITIMER_REAL, 1.5)", &check_line(&rig, "", &words(&["sleep", "60"])));
    assert_eq!(rig.start_of(&line).wait().signal, Some(14));
}

/// What `SigBlk`, `SigIgn` and `SigCgt` say, without what the C library keeps.
fn masks(end: &Finished) -> Vec<u64> {
    let mask = |line: &str| u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap() & !(3 << 31);
    end.stdout.lines().map(mask).collect()
}

#[test]
fn the_command_finds_signals_as_we_found_them() {
    let show = words(&["grep", "^Sig[BIC]", "/proc/self/status"]);
    for ground in [
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL); signal.signal(signal.SIGXFSZ, signal.SIG_DFL)",
        "signal.signal(signal.SIGPIPE, signal.SIG_IGN)",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); signal.signal(40, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, 50})",
    ] {
        let rig = Rig::new();
        let alone = rig.start_of(&prepared(ground, &show)).wait();
        let below_us = rig.start_of(&prepared(ground, &check_line(&rig, "", &show))).wait();
        assert_eq!(masks(&below_us), masks(&alone), "{ground}");
    }
}

#[test]
fn a_signal_that_our_starter_held_back_is_passed_on() {
    let rig = Rig::new();
    let let_in = "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})";
    let command = prepared(let_in, &listener(&rig));
    let hold = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})";
    let run = rig.start_of(&prepared(hold, &check_line(&rig, "", &command)));
    rig.wait_for("up");
    send(&run, 10);
    wait_until("the command to get it", || got(&rig) == ["SIGUSR1"]);
    rig.mark("go");
    run.wait().expect_code(0);
}

#[test]
fn a_report_that_is_too_large_for_the_limit_is_a_write_error_and_there_is_a_verdict() {
    let rig = Rig::new();
    let options = format!("--report {}", rig.path("r.json").display());
    let show = words(&["grep", "^SigIgn", "/proc/self/status"]);
    // As much as a small command may write, less than a report.
    let limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL); signal.signal(signal.SIGPIPE, signal.SIG_DFL)";
    let end = rig.start_of(&prepared(limit, &check_line(&rig, &options, &show))).wait();
    end.expect_code(122);
    assert!(end.stderr.contains("clean") && end.stderr.contains("File too large"), "{end:?}");
    assert!(!rig.path("r.json").exists());
    assert_eq!(masks(&end)[0] >> 24 & 1, 0, "the command has SIGXFSZ as it was: {end:?}");
}

#[test]
fn a_command_in_a_group_of_its_own_gets_what_the_terminal_sends_to_ours() {
    let rig = Rig::new();
    let up = rig.path("up");
    let command = prepared("os.setpgid(0, 0)", &listener(&rig));
    let mut line = words(&["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/terminal.py")]);
    let watcher = format!(
        "while [ ! -s {} ]; do sleep 0.01; done; touch {}",
        rig.path("got").display(),
        rig.path("go").display()
    );
    let script = "trap '' INT; (eval \"$0\") </dev/null >/dev/null 2>&1 & trap - INT; exec \"$@\"";
    line.extend(words(&["file", up.to_str().unwrap(), "key", "c", "--", "bash", "-c", script, &watcher]));
    line.extend(check_line(&rig, "", &command));
    let end = rig.start_of(&line).wait();
    assert!(end.stdout.ends_with("exit 0\n"), "{end:?}");
    assert_eq!(got(&rig), ["SIGINT"]);
}
