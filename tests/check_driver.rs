//! `check` when the driver does not answer: the command is not harmed, and the tool always ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{ffi::OsString, process::Command, time::Duration};
use support::{Fault, Rig, wait_until};

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

fn report_option(rig: &Rig) -> String {
    format!("--report {}", rig.path("r.json").display())
}

/// A command that says `up`, waits for `go`, and exits with 6.
const PATIENT: &str = "alloc 0 1GiB ready up wait-file go exit 6";

#[test]
fn what_cannot_be_measured_is_125_before_the_command() {
    for (code, word) in [(9, "driver"), (18, "version"), (4, "permission")] {
        let rig = Rig::new();
        rig.init_answers(code);
        let started = rig.path("started");
        let end = rig.launch(rig.check_of(&report_option(&rig), &words(&["touch", started.to_str().unwrap()]))).wait();
        end.expect_code(125);
        assert!(!started.exists() && !rig.path("r.json").exists());
        assert!(end.stderr.starts_with("error:") && end.stderr.contains("hint:"), "{}", end.stderr);
        assert!(end.stderr.ends_with("\nnote: touch was not started\n"), "{}", end.stderr);
        assert!(end.stderr.to_lowercase().contains(word), "{}", end.stderr);
    }
    let rig = Rig::new();
    let end = rig.run("check -i 7 -- true");
    end.expect_code(125);
    assert!(end.stderr.contains("no GPU is called `7`"), "{}", end.stderr);
    rig.run("check").expect_code(125);
}

#[test]
fn a_driver_that_hangs_when_opened_is_125_with_the_call() {
    let rig = Rig::new();
    rig.hangs("nvmlInit*", "stuck");
    let started = rig.path("started");
    let end = rig.launch(rig.check_of("--nvml-timeout 4s", &words(&["touch", started.to_str().unwrap()]))).wait();
    end.expect_code(125);
    assert!(!started.exists());
    assert!(end.stderr.contains("waiting for the NVIDIA driver"), "{}", end.stderr);
    assert!(end.stderr.contains("nvmlInit"), "{}", end.stderr);
    assert!(end.took < Duration::from_secs(15), "{end:?}");
}

#[test]
fn a_look_that_hangs_for_ever_does_not_touch_the_command() {
    let rig = Rig::new();
    let run = rig.spawn_check(&format!("--nvml-timeout 1s {}", report_option(&rig)), PATIENT);
    rig.wait_for("up");
    rig.hangs("nvmlDeviceGetMemoryInfo*", "stuck");
    wait_until("a call to hang", || rig.calls().iter().any(|c| c.code.is_none()));
    rig.mark("go");
    let end = run.wait();
    end.expect_code(6);
    assert!(end.took < Duration::from_secs(30), "{end:?}");
    let report = rig.report("r.json");
    assert_eq!((&report["verdict"], &report["command"]["exit_code"]), (&"inconclusive".into(), &6.into()));
    assert!(report["gaps"].to_string().contains("nvmlDeviceGetMemoryInfo"), "{report}");
    rig.let_go("stuck");
}

#[test]
fn a_look_that_hangs_for_ever_makes_a_good_command_122() {
    let rig = Rig::new();
    let run = rig.spawn_check("--nvml-timeout 1s", "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    rig.hangs("nvmlDevice*", "stuck");
    wait_until("a call to hang", || rig.calls().iter().any(|c| c.code.is_none()));
    rig.mark("go");
    run.wait().expect_code(122);
    rig.let_go("stuck");
}

#[test]
fn a_signal_is_passed_on_while_a_look_hangs() {
    let rig = Rig::new();
    let run = rig.spawn_check("--nvml-timeout 1s", "alloc 0 1GiB ready up hold");
    rig.wait_for("up");
    rig.hangs("nvmlDevice*", "stuck");
    wait_until("a call to hang", || rig.calls().iter().any(|c| c.code.is_none()));
    run.signal(Signal::TERM);
    run.wait().expect_signal(Signal::TERM);
    rig.let_go("stuck");
}

#[test]
fn a_helper_that_dies_is_replaced() {
    let rig = Rig::new();
    let run = rig.spawn_check(&report_option(&rig), "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    let helper = rig.calls()[0].pid;
    kill_process(Pid::from_raw(helper as i32).unwrap(), Signal::KILL).unwrap();
    wait_until("another helper to look", || {
        rig.calls().iter().any(|c| c.pid != helper && c.function.starts_with("nvmlDeviceGetMemoryInfo"))
    });
    rig.mark("go");
    run.wait().expect_code(0);
    assert_eq!(rig.report("r.json")["verdict"], "clean");
}

#[test]
fn a_library_that_crashes_for_a_while_is_asked_again_afterwards() {
    let rig = Rig::new();
    let run = rig.spawn_check(&report_option(&rig), "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    let crashing = rig.ledger.directory().join("crashing");
    std::fs::write(&crashing, "").unwrap();
    let while_file = Some("crashing".to_owned());
    rig.fault(Fault { function: "nvmlDeviceGet*".into(), while_file, crash: true, ..Fault::default() });
    let helpers = || rig.calls().iter().map(|c| c.pid).collect::<std::collections::BTreeSet<_>>().len();
    wait_until("several helpers to crash", || helpers() >= 6);
    // By now they come seldom. The end of the command is reason for one at once.
    std::fs::remove_file(&crashing).unwrap();
    rig.mark("go");
    run.wait().expect_code(0);
    let report = rig.report("r.json");
    assert_eq!(report["verdict"], "clean", "{report}");
    assert!(report["gaps"].to_string().contains("the NVML helper process was ended by signal 6"), "{report}");
}

#[test]
fn a_crash_of_the_library_costs_a_single_look_nothing() {
    let rig = Rig::new();
    let file = rig.path("s.json").display().to_string();
    rig.run(&format!("snapshot -o {file}")).expect_code(0);
    for arguments in ["status", "snapshot", "wait --below 1GiB --timeout 20s", &format!("diff {file}")] {
        let crashing = rig.ledger.directory().join("crashing");
        std::fs::write(&crashing, "").unwrap();
        let function = "nvmlDeviceGetMemoryInfo*".to_owned();
        rig.fault(Fault { function, while_file: Some("crashing".into()), crash_once: true, ..Fault::default() });
        rig.run(arguments).expect_code(0);
        assert!(!crashing.exists(), "{arguments}: it crashed");
        rig.clear_faults();
    }
}

#[test]
fn a_number_that_cannot_be_is_inconclusive_and_never_residue() {
    let rig = Rig::with_gpus(2);
    let run = rig.spawn_check(&report_option(&rig), "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    rig.fault(Fault { function: "nvmlDeviceGetMemoryInfo*".into(), used: Some(u64::MAX), ..Fault::default() });
    rig.mark("go");
    run.wait().expect_code(122);
    let report = rig.report("r.json");
    assert_eq!(report["verdict"], "inconclusive", "{report:#}");
    let device = &report["devices"][0];
    assert_eq!((&device["used_after_bytes"], &device["charged_residue_bytes"]), (&serde_json::Value::Null, &0.into()));
    assert!(device["peak_bytes"].as_u64().unwrap() < 139 << 30, "{device:#}");
    assert!(report["gaps"].to_string().contains("that is no reading"), "{report:#}");
    let status = rig.run("status --json").json();
    assert_eq!(status["devices"][0]["used_bytes"], serde_json::Value::Null, "{status:#}");
    let wait = rig.run("wait --below 500MiB --timeout 300ms");
    assert!(wait.expect_code(124).stderr.contains("GPU 0 cannot be read: the driver says"), "{}", wait.stderr);
}

#[test]
fn a_peak_that_nobody_looked_at_is_not_known() {
    let rig = Rig::new();
    let sample = |sample: &str| {
        let end = rig.check(&format!("--sample {sample} {}", report_option(&rig)), "alloc 0 12GiB sleep 1.2");
        end.expect_code(0);
        (end, rig.report("r.json"))
    };
    let note = "note: No look was taken while the command ran, so how much GPU memory it used is not known";
    let (end, report) = sample("100s");
    assert!(end.stderr.contains(note), "{}", end.stderr);
    let device = &report["devices"][0];
    assert_eq!((&device["command_peak_bytes"], &device["peak_bytes"]), (&Value::Null, &Value::Null), "{device:#}");
    let (end, report) = sample("20ms");
    assert!(!end.stderr.contains("look was taken"), "{}", end.stderr);
    assert!(report["devices"][0]["command_peak_bytes"].as_u64().unwrap() > 12 << 30, "{report:#}");
    // A bare number would be taken for milliseconds by some.
    let end = rig.run("check --sample 100 -- true");
    assert!(end.expect_code(125).stderr.contains("write the unit: 100ms or 100s"), "{}", end.stderr);
}

#[test]
fn a_gpu_that_is_lost_in_the_run_is_inconclusive_and_the_other_is_judged() {
    let rig = Rig::with_gpus(2);
    let run = rig.spawn_check(&report_option(&rig), "alloc 1 1GiB ready up wait-file go");
    rig.wait_for("up");
    rig.lose_gpu(0);
    rig.mark("go");
    run.wait().expect_code(122);
    let report = rig.report("r.json");
    assert_eq!(report["devices"][0]["verdict"], "inconclusive", "{report}");
    assert_eq!(report["devices"][1]["verdict"], "clean", "{report}");
}

#[test]
fn what_to_do_about_a_lost_gpu_is_about_that_gpu() {
    let rig = Rig::with_gpus(2);
    let _other = rig.start("alloc 1 1GiB ready other hold");
    rig.wait_for("other");
    for code in [15, 16, 999] {
        rig.clear_faults();
        let run = rig.spawn_check(&report_option(&rig), "alloc 1 1GiB ready up wait-file go");
        rig.wait_for("up");
        rig.fault(Fault { function: "nvmlDevice*".into(), device: Some(0), code: Some(code), ..Fault::default() });
        rig.mark("go");
        run.wait().expect_code(122);
        let advice = rig.report("r.json")["advice"].as_array().unwrap().clone();
        let commands: Vec<_> = advice.iter().map(|a| a["command"].as_str().unwrap_or_default()).collect();
        assert_eq!(commands.len(), 2, "{advice:#?}");
        assert!(advice[0]["why"].as_str().unwrap().contains("GPU 0"), "{advice:#?}");
        assert!(advice[0].to_string().contains("--gpu-reset -i 0"), "{advice:#?}");
        assert_eq!(commands[1], "gpuresid -i 1");
        // A look says the same.
        let status = rig.run("status");
        assert!(status.expect_code(0).stdout.contains("--gpu-reset -i 0"), "{}", status.stdout);
        for marker in ["up", "go"] {
            std::fs::remove_file(rig.path(marker)).unwrap();
        }
    }
}

#[test]
fn an_xid_of_the_run_is_in_the_report() {
    let rig = Rig::new();
    let run = rig.spawn_check(&report_option(&rig), "alloc 0 1GiB ready up wait-file go exit 1");
    rig.wait_for("up");
    rig.xid(0, 43);
    wait_until("the event to be told", || {
        rig.calls().iter().any(|c| c.function.starts_with("nvmlEventSetWait") && c.code == Some(0))
    });
    rig.mark("go");
    run.wait().expect_code(1);
    let report = rig.report("r.json");
    assert_eq!(report["events"][0]["xid"], 43, "{report}");
}

#[test]
fn why_the_look_before_failed_is_told_and_nothing_is_said_to_be_left() {
    let rig = Rig::new();
    rig.fault(Fault { function: "nvmlDeviceGetMemoryInfo*".into(), to: Some(0), code: Some(999), ..Fault::default() });
    rig.check(&format!("--report {}", rig.path("r.json").display()), "exit 0");
    let report = rig.report("r.json");
    assert_eq!(report["verdict"], "inconclusive", "{report:#}");
    let reasons: Vec<_> = report["gaps"].as_array().unwrap().iter().map(|g| g["reason"].to_string()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("NVML code 999")), "{report:#}");
    let advice = report["advice"].as_array().unwrap().iter().map(|a| a["why"].to_string()).collect::<String>();
    assert!(!advice.contains("what is left"), "{report:#}");
}

/// Whether this user can make PID namespaces with a /proc of their own.
fn namespaces() -> bool {
    let made = Command::new("unshare").args(["-pf", "--mount-proc", "true"]).output();
    let can = made.is_ok_and(|out| out.status.success());
    if !can {
        support::skipped("no PID namespace can be made here (it takes root)");
    }
    can
}

/// A line for a shell.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
}

/// How a check is started (CHECK), with the host's /proc (HOST) where that is another one, and its options.
const PLACES: [(&str, &str); 7] = [
    ("exec CHECK", ""),
    // The first process of a PID namespace, which /proc shows in the numbers outside.
    ("exec unshare -pf CHECK", ""),
    ("exec unshare -pf --mount-proc CHECK", ""),
    // Below a shell in one.
    ("exec unshare -pf sh -c \"CHECK; exit \\$?\"", ""),
    // The host's /proc beside that of a container.
    ("mount --bind /proc HOST; exec unshare -pf --mount-proc CHECK", "--procfs HOST"),
    ("mount --bind /proc HOST; exec unshare -pf CHECK", "--procfs HOST"),
    ("mount --bind /proc HOST; exec CHECK", "--procfs HOST"),
];

/// Checks these verbs, started by this wrapper, at this place; the exit code and the report.
fn check_at(
    rig: &Rig,
    (place, options): (&str, &str),
    scope: &str,
    wrapper: &[&str],
    verbs: &str,
) -> (Option<i32>, Value) {
    let host = rig.path("host");
    std::fs::create_dir(&host).unwrap();
    let at_host = |text: &str| text.replace("HOST", host.to_str().unwrap());
    let mut argv = words(wrapper);
    argv.extend(rig.program(verbs));
    let options = format!("{options} --scope {scope} --settle 2s --sample 20ms {}", report_option(rig));
    let check = line(&rig.check_of(&at_host(&options), &argv));
    let script = at_host(&place.replace("CHECK", &check));
    let end = rig.start_of(&words(&["unshare", "-m", "sh", "-c", &script])).wait();
    (end.code, rig.report("r.json"))
}

#[test]
fn our_own_helpers_are_not_the_commands_in_whatever_numbers_they_are_shown() {
    if !namespaces() {
        return;
    }
    let wrappers: [&[&str]; 4] = [&[], &["unshare", "-pf", "--mount-proc"], &["unshare", "-m"], &["unshare", "-Ur"]];
    for place in PLACES {
        for wrapper in wrappers {
            let (code, report) = check_at(&Rig::new(), place, "run", wrapper, "alloc 0 1GiB sleep 0.2");
            let about = format!("{place:?}, {wrapper:?}: {report:#}");
            assert_eq!((&report["survivors"], &report["holders"]), (&json!([]), &json!([])), "{about}");
            assert_eq!((code, &report["settle_end"]), (Some(0), &json!("all_gone")), "{about}");
        }
    }
}

#[test]
fn whoever_stays_is_named_and_our_own_helpers_are_not() {
    if !namespaces() {
        return;
    }
    let verbs = "spawn-session { alloc 0 1GiB ready left hold } wait-file left";
    for (place, scope) in PLACES.into_iter().flat_map(|place| [(place, "run"), (place, "new")]) {
        let (code, report) = check_at(&Rig::new(), place, scope, &[], verbs);
        let about = format!("{place:?}, {scope}: {report:#}");
        // Where the driver and /proc count differently, whose the listed memory is stays open.
        assert!(matches!(code, Some(121 | 122)), "{about}");
        let seen = |list: &str| {
            let all = report[list].as_array().unwrap().iter().filter(|p| p["start_ticks"].is_u64());
            all.map(|p| p["pid"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((seen("survivors").len(), seen("survivors")), (1, seen("holders")), "{about}");
    }
}
