//! `check --cleanup`: nothing of a run outlives it; and `check --timeout`, which ends the command before.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{ffi::OsString, fs, time::Duration};
use support::{Rig, alive, wait_until};

/// Everybody whom the rig's programs noted, and who still lives.
fn living(rig: &Rig) -> Vec<u32> {
    let log = fs::read_to_string(rig.ledger.directory().join("started.log")).unwrap();
    let pids = log.lines().filter_map(|l| l.split(' ').next().unwrap().parse::<u32>().ok());
    pids.filter(|pid| alive(*pid)).collect()
}

fn options(rig: &Rig, more: &str) -> String {
    format!("--settle 500ms --cleanup --report {} {more}", rig.path("r.json").display())
}

#[test]
fn whatever_is_left_is_ended_and_the_exit_code_still_tells() {
    for (kind, verbs) in [
        ("orphan", "spawn-session { alloc 0 1GiB ready up hold } wait-file up"),
        ("daemon", "daemonize-twice { alloc 0 1GiB ready up hold } wait-file up"),
        ("env -i", "spawn-clean { alloc 0 1GiB ready up hold } wait-file up"),
        ("copy", "alloc 0 1GiB sleep 0.3 fork { ready up hold } wait-file up"),
        ("stopped", "spawn-session { alloc 0 1GiB ready up stop-self hold } wait-file up sleep 0.2"),
        ("half dead", "spawn-session { alloc 0 1GiB exit-main-thread ready up hold } wait-file up"),
        ("handle", "export-handle 0 1GiB"),
        ("supervised", "spawn-session { supervise 2 { alloc 0 1GiB ready up hold } } wait-file up sleep 0.5"),
    ] {
        let rig = Rig::new();
        let neighbour = rig.start("alloc 0 3GiB ready neighbour hold");
        rig.wait_for("neighbour");
        let before = rig.used(0);
        let end = rig.check(&options(&rig, ""), verbs);
        let report = rig.report("r.json");
        // The handle cannot be charged beside a neighbour.
        let code = if kind == "handle" { [121, 122] } else { [121, 121] };
        assert!(end.code.is_some_and(|c| code.contains(&c)), "{kind}: {:?} {}", end.code, end.stderr);
        assert_eq!(rig.used(0), before, "{kind}: {}", end.stderr);
        let cleanup = &report["cleanup"];
        assert_eq!(cleanup["nothing_lives"], true, "{kind}: {cleanup:#}");
        assert!(!cleanup["ended"].as_array().unwrap().is_empty(), "{kind}");
        let device = &cleanup["devices"][0];
        let back = device["used_before_bytes"].as_u64().unwrap() - device["used_after_bytes"].as_u64().unwrap();
        assert!(back >= 1 << 30, "{kind}: {cleanup:#}");
        assert!(
            end.stderr.contains("\n\ncleanup: ") && end.stderr.contains("nothing of the command is left"),
            "{}",
            end.stderr
        );
        if kind != "handle" {
            let head = end.stderr.lines().next().unwrap();
            assert!(head.starts_with("gpuresid: residue: ") && head.ends_with("; --cleanup got it back"), "{head}");
        }
        assert_eq!(living(&rig), [neighbour.pid()], "{kind}");
        // Nothing is left to advise.
        assert!(report["advice"].as_array().unwrap().iter().all(|a| a["command"].is_null()), "{report:#}");
        neighbour.kill();
    }
}

#[test]
fn processes_without_gpu_end_too_and_a_clean_run_stays_clean() {
    let rig = Rig::new();
    let end = rig.check(&options(&rig, ""), "daemonize-twice { ready up hold } wait-file up");
    end.expect_code(0);
    assert!(!alive(rig.wait_for("up")));
    let rig = Rig::new();
    let end = rig.check(&options(&rig, ""), "alloc 0 1GiB");
    end.expect_code(0);
    assert!(!end.stderr.contains("cleanup"), "{}", end.stderr);
    assert_eq!(rig.report("r.json")["cleanup"]["ended"], Value::Array(vec![]));
}

#[test]
fn without_the_option_nobody_is_ended() {
    let rig = Rig::new();
    let option = format!("--settle 500ms --report {}", rig.path("r.json").display());
    rig.check(&option, "spawn-session { alloc 0 1GiB ready up hold } wait-file up").expect_code(121);
    assert!(alive(rig.wait_for("up")));
    assert_eq!(rig.report("r.json")["cleanup"], Value::Null);
}

#[test]
fn who_ignores_term_is_killed_after_the_grace() {
    let rig = Rig::new();
    let verbs = "spawn-session { ignore TERM alloc 0 1GiB ready up hold } wait-file up";
    rig.check(&options(&rig, "--grace 200ms"), verbs).expect_code(121);
    let report = rig.report("r.json");
    assert_eq!(report["cleanup"]["ended"][0]["sent"], serde_json::json!(["TERM", "KILL"]));
    assert!(!alive(rig.wait_for("up")));
}

#[test]
fn those_born_meanwhile_are_caught() {
    let rig = Rig::new();
    // Ignores TERM and starts a new one ten times a second, each in a session of its own.
    let script = "trap '' TERM; while :; do setsid sleep 300 & sleep 0.1; done";
    let argv: Vec<OsString> = ["sh", "-c", &format!("setsid sh -c \"{script}\" & sleep 0.5")].map(Into::into).to_vec();
    let end = rig.launch(rig.check_of(&options(&rig, "--grace 600ms"), &argv)).wait();
    end.expect_code(0);
    let cleanup = &rig.report("r.json")["cleanup"];
    assert_eq!(cleanup["nothing_lives"], true, "{cleanup:#}");
    assert!(cleanup["ended"].as_array().unwrap().len() > 6, "{cleanup:#}");
    for ended in cleanup["ended"].as_array().unwrap() {
        assert!(!alive(u32::try_from(ended["pid"].as_u64().unwrap()).unwrap()), "{ended}");
    }
}

#[test]
fn more_than_there_are_descriptors_end_too() {
    let rig = Rig::new();
    // Half of them ignore TERM, so that each is signalled twice.
    let script = "import os, signal, sys, time\n\
                  for n in range(150):\n    if os.fork() == 0:\n        \
                  if n % 2: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        time.sleep(300)\n        os._exit(0)\n";
    let argv: Vec<OsString> = ["python3", "-c", script].map(Into::into).to_vec();
    let check = rig.check_of(&options(&rig, "--grace 1s"), &argv);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(check.get_program()).args(check.get_args());
    command.envs(check.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let end = rig.launch(command).wait();
    let cleanup = &rig.report("r.json")["cleanup"];
    assert_eq!(cleanup["nothing_lives"], true, "{cleanup:#} {}", end.stderr);
    assert_eq!(cleanup["left_alone"], Value::Array(vec![]), "{cleanup:#}");
    assert_eq!(cleanup["ended"].as_array().unwrap().len(), 150);
    // The terminal is not flooded.
    assert!(end.stderr.contains("\n- and 140 more\n") && end.stderr.lines().count() < 40, "{}", end.stderr);
}

#[test]
fn twenty_of_twenty_runs_leave_nothing() {
    let rig = Rig::new();
    for round in 0..20 {
        let verbs = format!("spawn-session {{ alloc 0 1GiB ready up{round} hold }} wait-file up{round}");
        let option = format!("--settle 100ms --cleanup --report {}", rig.path("r.json").display());
        rig.check(&option, &verbs).expect_code(121);
        assert_eq!((rig.used(0), living(&rig)), (0, vec![]), "round {round}");
    }
}

#[test]
fn children_from_before_us_are_not_ended() {
    // A shell starts something and then becomes us; what it started is below us, and none of the run's.
    let rig = Rig::new();
    let command =
        rig.check_of(&options(&rig, ""), &rig.program("spawn-session { alloc 0 1GiB ready up hold } wait-file up"));
    let line: Vec<OsString> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect();
    let script = "(while :; do sleep 0.05; done) & echo $! > \"$0\"; exec \"$@\"";
    let mut argv: Vec<OsString> = ["sh", "-c", script].map(Into::into).to_vec();
    argv.push(rig.path("bystander").into_os_string());
    argv.extend(line);
    let end = rig.start_of(&argv).wait();
    end.expect_code(121);
    let bystander: u32 = fs::read_to_string(rig.path("bystander")).unwrap().trim().parse().unwrap();
    let (left, lives) = (rig.wait_for("up"), alive(bystander));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(bystander.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert!(lives, "the bystander was ended: {}", end.stderr);
    assert!(!alive(left));
    assert!(rig.report("r.json")["cleanup"]["left_alone"].as_array().unwrap().iter().any(|l| l["pid"] == bystander));
}

#[test]
fn a_private_namespace_is_emptied_too() {
    if !rustix::process::geteuid().is_root() {
        support::skipped("this needs root");
        return;
    }
    let rig = Rig::new();
    let verbs = "namespace { alloc 0 1GiB ready up hold } wait-file up";
    rig.check(&options(&rig, ""), verbs).expect_code(121);
    assert_eq!(rig.used(0), 0);
    assert_eq!(rig.report("r.json")["cleanup"]["nothing_lives"], true);
}

#[test]
fn a_key_shortens_the_grace() {
    let rig = Rig::new();
    // It says that TERM has come, and goes on.
    let left = "import os,signal,sys,time\n\
                signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[2], 'w').close())\n\
                open(sys.argv[1], 'w').write(str(os.getpid()))\n\
                while True: time.sleep(1)\n";
    let script = "setsid python3 -c \"$1\" \"$2\" \"$3\" & while [ ! -s \"$2\" ]; do sleep 0.01; done";
    let mut argv: Vec<OsString> = ["sh", "-c", script, "sh", left].map(Into::into).to_vec();
    argv.extend([rig.path("up").into_os_string(), rig.path("term").into_os_string()]);
    let run = rig.launch(rig.check_of(&options(&rig, "--grace 50s"), &argv));
    wait_until("TERM of the clean-up", || rig.path("term").exists());
    let up = rig.wait_for("up");
    assert!(alive(up));
    run.signal(rustix::process::Signal::INT);
    let end = run.wait_for(Duration::from_secs(20));
    end.expect_code(0);
    assert!(!alive(up));
    assert_eq!(rig.report("r.json")["cleanup"]["ended"][0]["sent"], serde_json::json!(["TERM", "KILL"]));
}

// ---- the time limit -------------------------------------------------------------------------------------------------

#[test]
fn the_time_limit_ends_the_command_and_judges_its_tree() {
    let rig = Rig::new();
    let option = format!("--settle 500ms --timeout 3s --report {}", rig.path("r.json").display());
    let end =
        rig.check(&option, "spawn-session { alloc 0 1GiB ready up hold } wait-file up alloc 0 1GiB ready main hold");
    end.expect_code(124);
    let report = rig.report("r.json");
    assert_eq!((&report["command"]["timed_out"], &report["command"]["signal"]), (&true.into(), &15.into()));
    assert_eq!(report["verdict"], "residue");
    let up = rig.wait_for("up");
    assert!(report["holders"].as_array().unwrap().iter().any(|h| h["pid"] == up), "{report:#}");
    assert!(!alive(rig.wait_for("main")) && alive(up));
}

#[test]
fn a_command_that_ignores_the_time_limit_is_killed_after_the_grace() {
    let rig = Rig::new();
    let option =
        format!("--settle 500ms --timeout 3s --grace 300ms --cleanup --report {}", rig.path("r.json").display());
    let verbs = "ignore TERM spawn-session { ignore TERM alloc 0 1GiB ready up hold } wait-file up alloc 0 1GiB ready main hold";
    rig.check(&option, verbs).expect_code(124);
    let report = rig.report("r.json");
    assert_eq!(report["command"]["signal"], 9, "{report:#}");
    assert_eq!((rig.used(0), living(&rig)), (0, vec![]));
}

#[test]
fn a_stopped_command_hears_the_time_limit() {
    let rig = Rig::new();
    let option = format!("--settle 500ms --timeout 3s --grace 30s --report {}", rig.path("r.json").display());
    let end = rig.check(&option, "alloc 0 1GiB stop-self hold");
    end.expect_code(124);
    assert!(end.took < Duration::from_secs(20), "{:?}", end.took);
    assert_eq!(rig.report("r.json")["command"]["signal"], 15);
}
