//! Memory on no list whose keeper is of the run, with real processes on the fake machine: files of the GPU that came
//! down by fork and exec, and a handle that stands in a socket. Each with the look after the advised step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use support::{Rig, wait_until};

/// What a keeper may have: what was left, and what the device costs while anything is in use.
#[track_caller]
fn may_hold(holder: &Value) -> u64 {
    let bytes = holder["devices"][0]["may_hold_bytes"].as_u64().unwrap_or_else(|| panic!("{holder:#}"));
    assert!((291 << 20..295 << 20).contains(&bytes), "{holder:#}");
    bytes >> 20
}

/// A run that leaves this behind; its report and what was printed.
fn run(rig: &Rig, verbs: &str) -> (Value, String) {
    let report = rig.path("r.json");
    let end = rig.check(&format!("--settle 1s --report {}", report.display()), verbs);
    end.expect_code(121);
    (rig.report("r.json"), end.stderr)
}

/// The only process of the run that is named.
#[track_caller]
fn only(report: &Value) -> &Value {
    let all: Vec<_> = report["holders"].as_array().unwrap().iter().filter(|h| h["lineage"] == "own").collect();
    assert_eq!(all.len(), 1, "{report:#}");
    all[0]
}

#[track_caller]
fn gives_back(rig: &Rig, holder: &Value, report: &Value) {
    let pid = holder["pid"].as_u64().unwrap();
    let kill = format!("kill {pid}");
    assert!(report["advice"].as_array().unwrap().iter().any(|step| step["command"] == kill), "{report:#}");
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    wait_until("the memory to come back", || rig.used(0) == 0);
}

#[test]
fn who_has_a_dead_ranks_files_is_said_to_keep_perhaps_what_is_on_no_list() {
    let rig = Rig::new();
    // What was started without the files of the GPU is not named for them.
    let (report, text) = run(&rig, "leave-files 0 291MiB exec-child sleep 0.5 exit 0");
    let holder = only(&report);
    assert_eq!(holder["cause"], "forked_copy", "{holder:#}");
    assert_eq!(holder["devices"][0]["held_bytes"], Value::Null);
    let left = may_hold(holder);
    let why = holder["why"][0].as_str().unwrap();
    assert!(why.starts_with("it was started below ") && why.contains("which used the GPU and has ended"), "{why}");
    assert!(why.ends_with(&format!("it may keep up to {left} MiB on GPU 0 that are on no list")), "{why}");
    assert!(text.contains(&format!("  up to {left} MiB  forked copy  sleep ")), "{text}");
    assert!(!text.contains("spawn"), "how workers are started is not the reason: {text}");
    // After the fact nobody knows from whom it has them.
    let status = rig.run("status --json").json();
    assert_eq!(status["holders"][0]["pid"], holder["pid"]);
    assert_eq!(may_hold(&status["holders"][0]), left);
    gives_back(&rig, holder, &report);
}

#[test]
fn a_handle_that_nobody_received_is_sought_with_whom_it_was_sent_to() {
    let rig = Rig::new();
    let (report, text) = run(
        &rig,
        "spawn { hold } spawn { listen box ready up hold } wait-file up send-handle 0 291MiB box sleep 0.5 exit 0",
    );
    // The other process of the run has no socket with a file in it.
    let holder = only(&report);
    assert_eq!(holder["cause"], "exported_handle", "{holder:#}");
    let why = holder["why"][0].as_str().unwrap();
    let left = may_hold(holder);
    let tells = kernel_tells();
    let sockets = if tells {
        "in its sockets stand 2 files that were sent and not received"
    } else {
        "in its sockets files may stand"
    };
    assert!(why.starts_with(sockets), "{why}");
    assert!(why.contains(&format!("{left} MiB on GPU 0 belong to no listed process")), "{why}");
    assert!(text.contains(&format!("up to {left} MiB  exported handle")), "{text}");
    assert!(!text.contains("no living process explains"), "{text}");
    gives_back(&rig, holder, &report);
}

/// Whether this kernel tells how many files stand in a socket (5.12 and later).
fn kernel_tells() -> bool {
    use std::os::fd::AsRawFd;
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", one.as_raw_fd())).unwrap().contains("scm_fds")
}
