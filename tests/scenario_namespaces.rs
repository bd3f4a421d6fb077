//! PID namespaces: tool, command and everybody in one of their own (a container), a holder in one below the tool, and a
//! number that an innocent process took over. Where none can be made the tests say so and look at nothing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use serde_json::json;
use std::{ffi::OsString, fs, process::Command};
use support::{CONTEXT, Finished, Judged, Rig, alive, line_of, shell_line, skipped, wait_until};

const GIB: u64 = 1 << 30;
const SOON: &str = "--settle 800ms --sample 20ms";

/// Whether this user can make a PID namespace with its own /proc.
fn namespaces() -> bool {
    let made = Command::new("unshare").args(["-pf", "--mount-proc", "true"]).output();
    let can = made.as_ref().is_ok_and(|out| out.status.success());
    if !can {
        skipped("no PID namespace can be made here (it takes root)");
    }
    can
}

fn check_line(rig: &Rig, options: &str, verbs: &str) -> String {
    line_of(&rig.check_of(&rig.reporting(options), &rig.program(verbs)))
}

fn program_line(rig: &Rig, verbs: &str) -> String {
    shell_line(rig.program(verbs).iter().map(OsString::as_os_str))
}

fn status_line(rig: &Rig, file: &str) -> String {
    format!("{} > '{}'", line_of(&rig.gpuresid(["status", "--json"])), rig.path(file).display())
}

/// Runs a script whose shell is PID 1 of a namespace, to its end.
fn inside(rig: &Rig, script: &str) -> Finished {
    let argv = ["unshare", "-pf", "--mount-proc", "sh", "-c", script].map(OsString::from);
    rig.start_of(&argv).wait()
}

/// A shell line that pastes the first advised command of the report.
fn follow_advice(rig: &Rig) -> String {
    let script = "import json,sys,subprocess; a=json.load(open(sys.argv[1]))['advice']; \
                  sys.exit(subprocess.run(a[0]['command'],shell=True).returncode)";
    format!("python3 -c \"{script}\" '{}'", rig.path("report.json").display())
}

/// A shell line that waits for a marker file.
fn wait_line(rig: &Rig, marker: &str) -> String {
    format!("while [ ! -e '{}' ]; do sleep 0.01; done", rig.path(marker).display())
}

#[test]
fn a_clean_run_in_a_container_is_clean_with_a_gap() {
    if !namespaces() {
        return;
    }
    let rig = Rig::new();
    let end = inside(&rig, &check_line(&rig, "--sample 20ms", "alloc 0 2GiB sleep 0.4"));
    end.expect_code(0);
    let report = rig.judged();
    report.expect("clean").expect_charged(0);
    assert!(report.gaps().contains("holders outside cannot be seen"), "{}", report.gaps());
}

#[test]
fn a_number_from_outside_of_the_container_is_not_said_to_have_ended() {
    if !namespaces() {
        return;
    }
    let rig = Rig::new();
    let _outside = rig.start("alloc 0 1GiB ready outside hold");
    let outside = rig.wait_for("outside");
    let binary = env!("CARGO_BIN_EXE_gpuresid");
    let end = inside(&rig, &format!("{binary} --nvml-lib {} reclaim --pid {outside}", rig.library().display()));
    assert!(end.expect_code(0).stdout.contains(" has ended already, or cannot be seen from here"), "{end:?}");
}

#[test]
fn an_orphan_in_a_container_is_named_by_its_inner_number() {
    if !namespaces() {
        return;
    }
    let rig = Rig::new();
    let verbs = "spawn-session { alloc 0 1GiB ready left hold } alloc 0 1GiB sleep 0.4 wait-file left";
    // The shell is asked twice: after the check, and after its advice was followed.
    let script = format!(
        "{}; echo $?; {}; {}; while {}; do sleep 0.05; done; {}",
        check_line(&rig, SOON, verbs),
        status_line(&rig, "left.json"),
        follow_advice(&rig),
        "ps -e -o stat=,args= | grep -v '^Z' | grep -q '[r]eady left'",
        status_line(&rig, "over.json"),
    );
    let end = inside(&rig, &script);
    assert!(end.stdout.starts_with("121\n"), "{end:?}");
    let (report, left) = (rig.judged(), rig.wait_for("left"));
    report.expect("residue").expect_charged(GIB + CONTEXT);
    report.expect_holder(left, "orphan", "own");
    assert_eq!(report.commands()[0], format!("kill {left}"));
    assert_eq!(Judged(rig.report("left.json")).holder(left)["devices"][0]["held_bytes"], GIB + CONTEXT);
    let over = Judged(rig.report("over.json"));
    assert_eq!((over.pids(), &over.0["devices"][0]["used_bytes"]), (vec![], &json!(0)), "{:#}", over.0);
}

#[test]
fn a_holder_outside_of_the_container_is_out_of_sight_never_nobody() {
    if !namespaces() {
        return;
    }
    let rig = Rig::new();
    let outside = rig.start("alloc 0 1GiB ready outside wait-file grow alloc 0 4GiB ready grown hold");
    rig.wait_for("outside");
    // It was there before and stays as it is: the command is clean.
    inside(&rig, &check_line(&rig, "--sample 20ms", "alloc 0 2GiB sleep 0.4")).expect_code(0);
    // It grows meanwhile: from in here nobody can tell whose that is.
    let run = {
        let script = check_line(&rig, "--sample 20ms", "alloc 0 2GiB ready up wait-file go");
        rig.start_of(&["unshare", "-pf", "--mount-proc", "sh", "-c", &script].map(OsString::from))
    };
    rig.wait_for("up");
    rig.wait_for_looks();
    rig.mark("grow");
    rig.wait_for("grown");
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(122);
    let report = rig.judged();
    report.expect("inconclusive").expect_between(0, 4 * GIB);
    // It could have been memory on its way back, so it was watched, but not for as long as that may take.
    assert_eq!(report.0["settle_end"], "unchanged");
    assert!(report.finding_text("out_of_sight").contains("cannot be seen from here"), "{:#}", report.0);
    assert!(report.advice().contains("from the host"), "{}", report.advice());
    assert_eq!(report.commands(), ["sudo gpuresid"]);
    // After the fact it is the same, and from the host it is somebody.
    inside(&rig, &status_line(&rig, "inside.json")).expect_code(0);
    let seen = Judged(rig.report("inside.json"));
    assert!(seen.0["devices"][0]["used_bytes"].as_u64().unwrap() > 5 * GIB, "{:#}", seen.0);
    assert!(seen.finding_text("out_of_sight").contains("cannot be seen from here"), "{:#}", seen.0);
    assert!(seen.advice().contains("from the host"), "{:#}", seen.0);
    assert!(rig.now().pids().contains(&outside.pid().into()));
    // The whole growth is charged where the GPU is the command's alone.
    inside(&rig, &check_line(&rig, "--scope device --sample 20ms", "alloc 0 2GiB sleep 0.4")).expect_code(0);
}

#[test]
fn a_holder_below_has_both_numbers() {
    if !namespaces() {
        return;
    }
    let rig = Rig::new();
    let verbs = "namespace { alloc 0 1GiB ready inner hold } alloc 0 1GiB sleep 0.4 wait-file inner";
    let end = rig.check(&rig.reporting(SOON), verbs);
    end.expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    let inner = rig.wait_for("inner");
    assert_eq!(inner, 1);
    let holder =
        report.list("holders").iter().find(|h| h["inner_pid"] == inner).unwrap_or_else(|| panic!("{:#}", report.0));
    let outer = u32::try_from(holder["pid"].as_u64().unwrap()).unwrap();
    assert!(outer > 1 && alive(outer) && holder["lineage"] == "own", "{holder}");
    assert!(end.stderr.contains(&format!("PID {outer}, PID {inner} inside its container")), "{}", end.stderr);
    // After the fact too.
    assert_eq!(rig.now().holder(outer)["inner_pid"], inner);
    // The first process of a namespace takes no TERM that it does not handle.
    let advised = report.commands().into_iter().find(|c| c.contains(&outer.to_string())).unwrap().to_owned();
    assert_eq!(advised, format!("kill -KILL {outer}"));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(outer).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait_until("its memory to come back", || rig.used(0) == 0);
    assert_eq!(rig.now().pids(), [0; 0]);
}

#[test]
fn a_command_that_lets_others_do_the_work_is_open_and_a_scope_charges_them() {
    if support::out_of_sight() {
        return;
    }
    // The daemon is this test: it starts the work when the client asks, under another parent than the command.
    let served = |rig: &Rig, options: &str, client: &[OsString]| {
        let run = rig.launch(rig.check_of(&rig.reporting(options), client));
        rig.wait_for("asked");
        let worker = rig.start("alloc 0 3GiB ready served hold");
        rig.wait_for("served");
        rig.wait_for_looks();
        rig.mark("over");
        (run.wait(), worker)
    };
    for (options, code) in [(SOON, 122), ("--scope new --settle 800ms --sample 20ms", 121)] {
        let rig = Rig::new();
        let (end, worker) = served(&rig, options, &rig.program("ready asked wait-file over"));
        end.expect_code(code);
        let report = rig.judged();
        let pid = worker.pid();
        if code == 121 {
            report.expect("residue").expect_charged(3 * GIB + CONTEXT);
            report.expect_holder(pid, "still_running", "own");
        } else {
            report.expect("inconclusive").expect_between(0, 3 * GIB + CONTEXT);
            assert_eq!(report.holder(pid)["lineage"], "unknown", "{:#}", report.0);
            assert!(report.finding_text("client").contains("--scope new"), "{:#}", report.0);
            assert!(end.stderr.contains("--scope new"), "{}", end.stderr);
            // Nobody is to be ended on a guess.
            assert_eq!(report.commands(), ["gpuresid"]);
            assert!(report.advice().contains(&format!("see what PID {pid} is")), "{}", report.advice());
        }
        // The control: work that ends with its client leaves nothing.
        worker.kill();
        for marker in ["asked", "served", "over"] {
            fs::remove_file(rig.path(marker)).unwrap();
        }
        let run = rig.launch(rig.check_of(&rig.reporting(options), &rig.program("ready asked wait-file over")));
        rig.wait_for("asked");
        let worker = rig.start("alloc 0 3GiB ready served hold");
        rig.wait_for("served");
        rig.wait_for_looks();
        worker.kill();
        rig.mark("over");
        run.wait().expect_code(0);
        rig.judged().expect("clean").expect_charged(0);
    }
    // A known client is one even if something of the command used a GPU itself.
    let rig = Rig::new();
    let docker = rig.path("docker");
    let work = program_line(&rig, "alloc 0 512MiB ready asked wait-file over");
    fs::write(&docker, format!("#!/bin/sh\n{work}\n")).unwrap();
    fs::set_permissions(&docker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (end, worker) = served(&rig, SOON, &[docker.into()]);
    end.expect_code(122);
    rig.judged().expect("inconclusive");
    assert_eq!(rig.judged().holder(worker.pid())["lineage"], "unknown");
}

/// A copy whose parent's number goes to an innocent `sleep`: shell lines that make it so, in a namespace of their own.
fn give_number_away(rig: &Rig, marker_of_the_dead: &str) -> String {
    let dead = format!("$(cat '{}')", rig.path(marker_of_the_dead).display());
    format!(
        "P={dead}; while [ -e /proc/$P ]; do sleep 0.01; done; \
         for i in 1 2 3 4 5 6 7 8 9 10; do \
           echo $((P - 1)) > /proc/sys/kernel/ns_last_pid || exit 99; sleep 600 & \
           [ $! = $P ] && break; kill $!; \
         done; [ \"$(cat /proc/$P/comm)\" = sleep ] || exit 98; echo $P > '{}'",
        rig.path("reused").display()
    )
}

#[test]
fn the_innocent_bearer_of_a_ghosts_number_is_never_blamed() {
    if !namespaces() {
        return;
    }
    let rig = Rig::new();
    let verbs = "alloc 0 1GiB ready dead sleep 0.5 fork-and-exit ready copy hold";
    let script = format!(
        "{check} & CHECK=$!; {copy}; {give}; wait $CHECK; echo $?; {status}; kill -KILL $(cat '{copy_file}'); \
         while [ \"$(cat /proc/$(cat '{copy_file}')/stat 2>/dev/null | cut -d' ' -f3)\" != '' ] && \
         [ \"$(cut -d' ' -f3 /proc/$(cat '{copy_file}')/stat)\" != Z ]; do sleep 0.01; done; {over}; cat /proc/$P/comm",
        check = check_line(&rig, "--settle 4s --sample 20ms", verbs),
        copy = wait_line(&rig, "copy"),
        give = give_number_away(&rig, "dead"),
        copy_file = rig.path("copy").display(),
        status = status_line(&rig, "status.json"),
        over = status_line(&rig, "over.json"),
    );
    let end = inside(&rig, &script);
    if end.code == Some(99) || end.code == Some(98) {
        return skipped("the next PID of a namespace cannot be set here");
    }
    assert!(end.stdout.starts_with("121\n"), "{end:?}");
    let (report, dead, copy) = (rig.judged(), rig.wait_for("dead"), rig.wait_for("copy"));
    report.expect("residue").expect_charged(GIB + CONTEXT);
    let ghost = &report.list("ghosts")[0];
    assert_eq!((&ghost["pid"], &ghost["lineage"], &ghost["candidates"]), (&json!(dead), &json!("own"), &json!([copy])));
    assert!(ghost["impostor"].as_str().unwrap().starts_with("sleep"), "{ghost}");
    assert_eq!(report.pids(), [u64::from(copy)], "the innocent one is no holder: {:#}", report.0);
    report.expect_holder(copy, "forked_copy", "own");
    assert!(report.finding_text("reused_pid").contains("Do not end it"), "{:#}", report.0);
    assert!(report.commands().contains(&format!("kill {copy}").as_str()), "{:#}", report.0);
    let names_it = |c: &&str| c.split(' ').any(|w| w == dead.to_string());
    assert!(!report.commands().iter().any(names_it), "{:#}", report.0);
    // After the fact nobody is blamed for it either.
    let status = Judged(rig.report("status.json"));
    assert!(!status.commands().iter().any(names_it), "{:#}", status.0);
    assert!(!status.0.to_string().contains("\"command\":\"sleep 600\""), "{:#}", status.0);
    // The control: with the copy gone the memory is back, and the innocent one still sleeps.
    let over = Judged(rig.report("over.json"));
    assert_eq!((&over.0["devices"][0]["used_bytes"], over.pids()), (&json!(0), vec![]), "{:#}", over.0);
    assert!(end.stdout.ends_with("sleep\n"), "{end:?}");
}
