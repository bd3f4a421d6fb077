//! Where `check` and `status` offer `gpuresid reclaim`: only where it would then plan something.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use support::{Rig, Running, marker_of_an_ended_run, wait_until};

/// The commands that are advised, our own among them.
fn commands(report: &Value) -> Vec<&str> {
    report["advice"].as_array().unwrap().iter().filter_map(|a| a["command"].as_str()).collect()
}

/// Runs a check that leaves something behind; its report, and the rest of the command line of the offer.
fn checked(rig: &Rig, name: &str, verbs: &str) -> (Value, String) {
    let path = rig.path(name);
    let command = rig.gpuresid(
        ["check", "--settle", "1s", "--report"]
            .map(std::ffi::OsString::from)
            .into_iter()
            .chain([path.clone().into(), "--".into()]),
    );
    let mut command = command;
    command.args(rig.program(verbs));
    rig.launch(command).wait().expect_code(121);
    let quoted = if name.contains(' ') { format!("'{}'", path.display()) } else { path.display().to_string() };
    (rig.report(name), format!("reclaim --report {quoted}"))
}

#[test]
fn one_leftover_is_ended_by_a_signal_or_by_the_report() {
    let rig = Rig::new();
    let (report, offer) = checked(&rig, "a b.json", "spawn-session { alloc 0 1GiB ready left hold } wait-file left");
    let left = rig.wait_for("left");
    assert_eq!(commands(&report), [format!("kill {left}"), format!("gpuresid {offer}")]);
    // Pasted, with --yes, it does it.
    let end = rig.launch(rig.gpuresid(
        ["reclaim", "--yes", "--report"].map(std::ffi::OsString::from).into_iter().chain([rig.path("a b.json").into()]),
    ));
    end.wait().expect_code(0);
    assert_eq!(rig.used(0), 0);
}

#[test]
fn several_leftovers_are_one_command() {
    let rig = Rig::new();
    let verbs = "spawn-session { alloc 0 1GiB ready one hold } spawn-session { alloc 0 1GiB ready two hold } \
                 wait-file one wait-file two";
    let (report, offer) = checked(&rig, "r.json", verbs);
    let (one, two) = (rig.wait_for("one"), rig.wait_for("two"));
    assert_eq!(commands(&report), [format!("gpuresid {offer}")]);
    let why = report["advice"][0]["why"].as_str().unwrap();
    assert!(why.contains(&one.to_string()) && why.contains(&two.to_string()), "{why}");
    let plan = rig.run(&format!("{offer} --json")).json();
    assert_eq!(plan["steps"].as_array().unwrap().len(), 2);
}

#[test]
fn without_a_report_that_stays_nothing_of_it_is_offered() {
    let rig = Rig::new();
    let verbs = "spawn-session { alloc 0 1GiB ready left hold } wait-file left";
    for options in ["--settle 1s".to_owned(), format!("--settle 1s --report observation:{}", rig.path("o").display())] {
        let end = rig.check(&options, verbs);
        let text = &end.expect_code(121).stderr;
        assert!(text.contains(" kill ") && !text.contains("gpuresid reclaim"), "{text}");
    }
}

/// Something that carries the marker of a run that has ended.
fn left_over(rig: &Rig, verbs: &str) -> Running {
    rig.start_marked(&rig.program(verbs), &marker_of_an_ended_run())
}

#[test]
fn whatever_the_marker_tells_of_is_offered_and_planned() {
    for (verbs, cause) in [
        ("daemonize-twice { alloc 0 1GiB fork-and-exit ready left hold }", "forked_copy"),
        ("daemonize-twice { alloc 0 1GiB ready left stop-self hold }", "stopped"),
    ] {
        let rig = Rig::new();
        left_over(&rig, verbs).wait().expect_code(0);
        let left = rig.wait_for("left");
        let look = || rig.run("status --json").json();
        let holder = |status: &Value| status["holders"].as_array().unwrap().iter().find(|h| h["pid"] == left).cloned();
        wait_until(cause, || holder(&look()).is_some_and(|h| h["cause"] == cause));
        let status = look();
        let why = holder(&status).unwrap()["why"].to_string();
        assert!(why.contains("it carries the marker of a checked run that has ended"), "{why}");
        assert_eq!(commands(&status).last(), Some(&"gpuresid reclaim --orphans"), "{status:#}");
        let plan = rig.run("reclaim --orphans --json").json();
        assert_eq!(plan["steps"][0]["pid"], left, "{plan:#}");
    }
}

#[test]
fn what_reclaim_would_leave_alone_is_not_offered() {
    // The same without a marker.
    let rig = Rig::new();
    let parent = rig.start("alloc 0 2GiB fork-and-exit ready up hold");
    let copy = rig.wait_for("up");
    parent.wait().expect_code(0);
    let status = rig.run("status --json").json();
    assert_eq!(commands(&status), [format!("kill {copy}")]);
    assert_eq!(rig.run("reclaim --orphans --json").json()["steps"], serde_json::json!([]));
}
