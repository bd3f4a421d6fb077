//! What a command leaves behind, one scenario a test: what is charged to the byte, to whom, why, what to do about it,
//! and that the next look is clean after the advice was followed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use std::{fs, sync::atomic::AtomicU64, sync::atomic::Ordering, time::Duration};
use support::{CONTEXT, Rig, SLACK, state, wait_until};

const GIB: u64 = 1 << 30;
/// The short way: whoever lives is judged after this time.
const SOON: &str = "--settle 800ms --sample 20ms";

#[test]
fn a_normal_exit_is_clean_and_its_peak_is_that_of_a_fast_poller() {
    let rig = Rig::new();
    let run = rig.spawn_check(
        &rig.reporting(""),
        "alloc 0 1GiB sleep 0.5 alloc 0 2GiB ready top sleep 0.5 free 0 2GiB sleep 0.2",
    );
    let peak = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let polling = scope.spawn(|| {
            wait_until("the memory to come and go", || {
                let used = rig.used(0);
                peak.fetch_max(used, Ordering::Relaxed);
                used == 0 && peak.load(Ordering::Relaxed) > 0
            });
        });
        polling.join().unwrap();
    });
    let end = run.wait();
    end.expect_code(0);
    let report = rig.judged();
    report.expect("clean").expect_charged(0);
    let (seen, polled) = (report.0["devices"][0]["peak_bytes"].as_u64().unwrap(), peak.into_inner());
    assert!(seen.abs_diff(polled) * 50 <= polled, "peak {seen}, polled {polled}");
    assert!(polled > 3 * GIB, "{polled}");
    assert_eq!(report.0["devices"][0]["residue_rate"], 0.0);
    assert_eq!(report.0["devices"][0]["used_after_bytes"], 0);
    assert_eq!((report.pids(), report.commands()), (vec![], vec![]), "{:#}", report.0);
}

#[test]
fn an_orphaned_rank_is_charged_named_and_ended() {
    let rig = Rig::new();
    let run = rig.spawn_check(
        &rig.reporting(SOON),
        "alloc 0 2GiB spawn-session { alloc 0 1GiB ready left hold } ready launcher wait-file go",
    );
    let (launcher, left) = (rig.wait_for("launcher"), rig.wait_for("left"));
    rig.wait_for_looks();
    rig.mark("go");
    let end = run.wait();
    end.expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    let holder = report.expect_holder(left, "orphan", "own");
    assert_eq!(
        (&holder["launcher_gone"], &holder["devices"][0]["held_bytes"]),
        (&true.into(), &(GIB + CONTEXT).into())
    );
    assert!(holder["command"].as_str().unwrap().contains("cuda.py"), "{holder}");
    // Who started it, and how it is known to be the command's.
    assert!(report.why(left).contains(&format!("({launcher})")), "{holder}");
    assert!(report.why(left).contains("descends from the command"), "{holder}");
    assert_eq!(report.pids(), [u64::from(left)]);
    assert_eq!(report.commands(), [format!("kill {left}")]);
    let peak = report.0["devices"][0]["command_peak_bytes"].as_u64().unwrap();
    assert!(peak.abs_diff(3 * GIB + 2 * CONTEXT) < SLACK, "{peak}");
    // The same for a person.
    assert!(end.stderr.starts_with("gpuresid: residue: 1542 MiB"), "{}", end.stderr);
    assert!(end.stderr.contains(&format!("kill {left}\n")), "{}", end.stderr);
    rig.clean_after(&format!("kill {left}"), 0);
}

#[test]
fn a_forked_copy_is_charged_with_what_its_ghost_is_listed_with() {
    let rig = Rig::new();
    let run = rig.spawn_check(&rig.reporting(SOON), "alloc 0 5GiB ready ghost fork { ready copy hold } wait-file go");
    let (ghost, copy) = (rig.wait_for("ghost"), rig.wait_for("copy"));
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_charged(5 * GIB + CONTEXT);
    report.expect_holder(copy, "forked_copy", "own");
    assert!(report.why(copy).contains(&format!("PID {ghost}")), "{:#}", report.0);
    let found = &report.list("ghosts")[0];
    assert_eq!(
        (&found["pid"], &found["lineage"], &found["bytes"]),
        (&ghost.into(), &"own".into(), &(5 * GIB + CONTEXT).into())
    );
    assert_eq!(found["candidates"], serde_json::json!([copy]));
    assert!(found["command"].as_str().unwrap().contains("cuda.py"), "{found}");
    assert_eq!(report.commands(), [format!("kill {copy}")]);
    assert!(report.advice().contains("before the first CUDA call, or with the start method"), "{}", report.advice());
    rig.clean_after(&format!("kill {copy}"), 0);
}

#[test]
fn several_copies_share_a_ghost_and_the_bytes_are_not_divided() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let run = rig.spawn_check(
        &rig.reporting(SOON),
        "alloc 0 1GiB ready ghost fork { ready one hold } fork { ready two hold } wait-file go",
    );
    let (ghost, one, two) = (rig.wait_for("ghost"), rig.wait_for("one"), rig.wait_for("two"));
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    assert_eq!(report.list("ghosts")[0]["pid"], ghost);
    let mut candidates: Vec<u64> =
        report.list("ghosts")[0]["candidates"].as_array().unwrap().iter().map(|c| c.as_u64().unwrap()).collect();
    candidates.sort_unstable();
    let mut copies = [u64::from(one), u64::from(two)];
    copies.sort_unstable();
    assert_eq!(candidates, copies);
    for copy in [one, two] {
        let holder = report.expect_holder(copy, "forked_copy", "own");
        assert_eq!(holder["devices"][0]["held_bytes"], serde_json::Value::Null, "{holder}");
    }
    // One of them alone is not enough, and the look between says so.
    rig.paste(&format!("kill {one}"));
    wait_until("one copy to end", || !support::alive(one));
    assert_eq!(rig.now().list("ghosts")[0]["candidates"], serde_json::json!([two]));
    rig.clean_after(&format!("kill {two}"), 0);
}

#[test]
fn who_hides_is_own_by_descent() {
    // Name, how it hides, and the end of the launcher's own words.
    for (hide, inside) in [
        ("daemonize-twice", "rename innocent"),
        ("spawn-session", "settitle ray::worker"),
        ("spawn-clean", "rename [kworker/0:0]"),
        ("daemonize-twice", "settitle vllm:engine rename python3"),
    ] {
        let rig = Rig::new();
        let verbs = format!("{hide} {{ {inside} alloc 0 1GiB ready left hold }} alloc 0 512MiB ready up wait-file go");
        let run = rig.spawn_check(&rig.reporting(SOON), &verbs);
        let left = rig.wait_for("left");
        rig.wait_for("up");
        if hide == "spawn-clean" || inside.contains("settitle") {
            let environment = fs::read(format!("/proc/{left}/environ")).unwrap();
            assert!(!String::from_utf8_lossy(&environment).contains("GPURESID"), "{hide} {inside} hides nothing");
        }
        rig.wait_for_looks();
        rig.mark("go");
        run.wait().expect_code(121);
        let report = rig.judged();
        report.expect("residue").expect_charged(GIB + CONTEXT);
        report.expect_holder(left, "orphan", "own");
        assert!(report.why(left).contains("descends from the command"), "{hide} {inside}: {:#}", report.0);
        assert_eq!(report.commands(), [format!("kill {left}")], "{hide} {inside}");
        rig.clean_after(&format!("kill {left}"), 0);
    }
}

#[test]
fn a_server_left_on_purpose_is_residue_and_the_advice_names_the_choice() {
    let rig = Rig::new();
    let server = rig.program("alloc 0 1GiB ready server hold");
    let line: Vec<_> = server.iter().map(|w| w.to_str().unwrap()).collect();
    let script = format!("{} & exit 0", line.join(" "));
    let end =
        rig.launch(rig.check_of(&rig.reporting("--settle 3s"), &["bash".into(), "-c".into(), script.into()])).wait();
    end.expect_code(121);
    let server = rig.wait_for("server");
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    report.expect_holder(server, "orphan", "own");
    assert!(report.advice().contains("If it is a server that is meant to stay"), "{}", report.advice());
    assert!(report.finding_text("still_running").contains(&server.to_string()), "{:#}", report.0);
    rig.clean_after(&format!("kill {server}"), 0);
}

#[test]
fn a_server_that_never_touches_the_gpu_is_clean_and_one_that_opens_it_is_too() {
    for verbs in ["", "nvml", "init"] {
        let rig = Rig::new();
        let verbs = format!("alloc 0 1GiB spawn-session {{ {verbs} ready server hold }} wait-file server");
        rig.check(&rig.reporting(SOON), &verbs).expect_code(0);
        let report = rig.judged();
        report.expect("clean").expect_between(0, 0);
        assert!(report.finding_text("still_running").contains(&rig.wait_for("server").to_string()), "{:#}", report.0);
        assert_eq!(report.commands(), [""; 0], "{verbs}");
    }
}

#[test]
fn a_stopped_holder_needs_more_than_term() {
    let rig = Rig::new();
    let run = rig.spawn_check(
        &rig.reporting(SOON),
        "spawn-session { alloc 0 1GiB ready left stop-self hold } alloc 0 1GiB ready up wait-file go",
    );
    let left = rig.wait_for("left");
    rig.wait_for("up");
    wait_until("it to stop", || state(left) == Some('T'));
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    let holder = report.expect_holder(left, "stopped", "own");
    assert_eq!(holder["state"], "stopped");
    let end = format!("kill {left}; kill -CONT {left}");
    assert_eq!(report.commands(), [format!("kill -CONT {left}"), end.clone()]);
    // TERM alone stays pending.
    rig.paste(&format!("kill {left}"));
    wait_until("the signal to be pending", || {
        let status = fs::read_to_string(format!("/proc/{left}/status")).unwrap();
        let pending = status.lines().find_map(|l| l.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(pending.trim(), 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    });
    assert_eq!(state(left), Some('T'));
    assert_eq!(rig.now().holder(left)["cause"], "stopped");
    rig.clean_after(&end, 0);
}

#[test]
fn a_holder_whose_main_thread_is_gone_is_found_through_its_threads() {
    let rig = Rig::new();
    let run = rig.spawn_check(
        &rig.reporting(SOON),
        "spawn-session { alloc 0 1GiB exit-main-thread ready left hold } alloc 0 1GiB ready up wait-file go",
    );
    let left = rig.wait_for("left");
    rig.wait_for("up");
    wait_until("the main thread to end", || state(left) == Some('Z'));
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    let holder = report.expect_holder(left, "half_dead", "own");
    assert_eq!(holder["state"], "half dead");
    assert!(holder["devices"][0]["open_files"].as_u64().unwrap() > 3, "{holder}");
    assert_eq!(report.commands(), [format!("kill {left}")]);
    assert_eq!(rig.now().holder(left)["cause"], "half_dead");
    rig.clean_after(&format!("kill {left}"), 0);
}

#[test]
fn a_plain_zombie_holds_nothing_and_is_not_blamed() {
    let rig = Rig::new();
    let run = rig.spawn_check(
        &rig.reporting(SOON),
        "spawn-session { spawn { alloc 0 1GiB ready zombie wait-file go } ready parent hold } alloc 0 1GiB ready up wait-file go",
    );
    let (zombie, parent) = (rig.wait_for("zombie"), rig.wait_for("parent"));
    rig.wait_for("up");
    rig.wait_for_looks();
    rig.mark("go");
    wait_until("the child to be a zombie", || state(zombie) == Some('Z'));
    run.wait().expect_code(0);
    assert_eq!(state(zombie), Some('Z'), "somebody waited for it, so that the test shows nothing");
    let report = rig.judged();
    report.expect("clean").expect_charged(0);
    assert!(!report.pids().contains(&zombie.into()), "{:#}", report.0);
    assert!(report.finding_text("still_running").contains(&parent.to_string()), "{:#}", report.0);
    assert_eq!(rig.now().pids(), [0; 0]);
}

#[test]
fn memory_on_its_way_back_is_draining_then_clean() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let verbs = |steps: &str| format!("alloc 0 4GiB late 0 {steps} ready up wait-file go");
    let run = rig.spawn_check(&rig.reporting("--settle 1500ms --sample 20ms"), &verbs("0:5GiB,500:4GiB,6000:0B"));
    rig.wait_for("up");
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_between(4 * GIB, 4 * GIB);
    // It was seen to fall; how much is still to come.
    let draining = report.finding("draining").unwrap_or_else(|| panic!("{:#}", report.0));
    assert!(draining["bytes"].as_u64().unwrap().abs_diff(4 * GIB) <= SLACK, "{draining}");
    assert!(draining["text"].as_str().unwrap().contains("--settle"), "{draining}");
    assert_eq!(report.commands(), ["gpuresid"]);
    // The control: looking again, as advised, is all that is needed.
    wait_until("the memory to come back", || rig.used(0) == 0);
    assert_eq!(rig.now().pids(), [0; 0]);
    // And with patience there is nothing to report.
    rig.check(&rig.reporting("--sample 20ms"), &verbs("0:4GiB,1000:3GiB,2500:0B")).expect_code(0);
    let report = rig.judged();
    report.expect("clean").expect_charged(0);
    assert!(report.0["settled_seconds"].as_f64().unwrap() >= 2.0, "{:#}", report.0);
}

#[test]
fn work_in_flight_at_exit_is_waited_for() {
    // Listed until the end, or not listed any more: both occur.
    for late in ["late", "late-listed"] {
        let rig = Rig::new();
        let verbs = format!("alloc 0 2GiB {late} 0 0:2GiB,300:1GiB,700:0B ready up sleep 0.4");
        let end = rig.check(&rig.reporting("--sample 20ms"), &verbs);
        end.expect_code(0);
        let report = rig.judged();
        report.expect("clean").expect_charged(0);
        let settled = report.0["settled_seconds"].as_f64().unwrap();
        assert!((0.5..40.0).contains(&settled), "{late}: {settled}");
        assert!(end.took < Duration::from_secs(20), "{end:?}");
    }
}

#[test]
fn an_exported_handle_is_held_by_a_plain_sleep() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let run = rig.spawn_check(&rig.reporting(SOON), "export-handle 0 4GiB ready up wait-file go");
    let exporter = rig.wait_for("up");
    let children = fs::read_to_string(format!("/proc/{exporter}/task/{exporter}/children")).unwrap();
    let sleep: u32 = children.trim().parse().unwrap();
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_between(4 * GIB, 4 * GIB);
    let (low, high) = report.interval(0);
    assert_eq!(Some(low), high, "nobody else can hold it");
    let holder = report.expect_holder(sleep, "exported_handle", "own");
    assert!(holder["command"].as_str().unwrap().starts_with("sleep "), "{holder}");
    assert_eq!(report.pids(), [u64::from(sleep)]);
    assert_eq!(report.commands(), [format!("kill {sleep}")]);
    rig.clean_after(&format!("kill {sleep}"), 0);
}
