//! The files that reports go to: found out before the command starts, and nothing stray beside them however it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt, time::Duration};
use support::{Rig, skipped, wait_until};

/// The names in a directory that was made for reports.
fn names(rig: &Rig) -> Vec<String> {
    let entries = fs::read_dir(rig.path("out")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn reporting(rig: &Rig) -> String {
    fs::create_dir_all(rig.path("out")).unwrap();
    format!("--report {0}/r.json --report observation:{0}/o.json", rig.path("out").display())
}

#[test]
fn a_signal_in_the_first_moments_leaves_no_file() {
    let rig = Rig::new();
    let options = reporting(&rig);
    // Never answered, so that the command does not start however slow the signal is.
    rig.hangs("nvmlInit*", "stuck");
    for (number, signal) in
        (0..).zip([Signal::TERM, Signal::INT, Signal::TERM, Signal::INT, Signal::TERM, Signal::TERM])
    {
        let run = rig.spawn_check(&options, "alloc 0 1GiB");
        std::thread::sleep(Duration::from_millis(number * 4));
        run.signal(signal);
        run.wait().expect_signal(signal);
        assert_eq!(names(&rig), [""; 0], "after {number} × 4 ms");
    }
    rig.let_go("stuck");
}

#[test]
fn being_killed_leaves_no_file() {
    let rig = Rig::new();
    let run = rig.spawn_check(&reporting(&rig), "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    run.kill();
    rig.mark("go");
    let left = names(&rig);
    if left.iter().all(|name| name.ends_with(".tmp")) && !left.is_empty() {
        return skipped("the file system of temporary files has none without a name");
    }
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_place_that_is_taken_meanwhile_costs_no_report() {
    let rig = Rig::new();
    let run = rig.spawn_check(&reporting(&rig), "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    fs::create_dir(rig.path("out/r.json")).unwrap();
    rig.mark("go");
    let end = run.wait();
    // The command was fine and the report is not where it was wanted.
    end.expect_code(122);
    let line = end.stderr.lines().find_map(|line| line.strip_prefix("hint: move it to a place: ")).unwrap();
    assert!(std::process::Command::new("sh").args(["-c", line]).status().unwrap().success(), "{line}");
    assert_eq!(rig.report("out/r.json/report.json")["verdict"], "clean");
    assert_eq!(rig.report("out/o.json")["schema"], "gpuresid.observation/1");
    assert_eq!(names(&rig).len(), 2);
}

#[test]
fn an_old_report_of_somebody_else_in_a_shared_directory_is_found_out_first() {
    if !rustix::process::geteuid().is_root() {
        return skipped("this needs root");
    }
    let rig = Rig::new();
    let options = reporting(&rig);
    fs::set_permissions(rig.path("out"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(rig.path("out/r.json"), "old").unwrap();
    let ran = rig.path("ran");
    let command = rig.check_of(&options, &["touch".into(), ran.clone().into_os_string()]);
    let mut line: Vec<OsString> =
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"].map(Into::into).to_vec();
    line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    let end = rig.start_of(&line).wait();
    if end.stderr.contains("setpriv") {
        return skipped("the binary cannot be reached by another user here");
    }
    end.expect_code(125);
    assert!(end.stderr.contains("only its owner may replace it"), "{}", end.stderr);
    assert!(!ran.exists() && fs::read_to_string(rig.path("out/r.json")).unwrap() == "old");
    wait_until("nothing stray", || names(&rig) == ["r.json"]);
}
