//! Neighbours on the same GPU while a command runs: whatever they do, they are never charged, never hide what the
//! command left, and what only they or the command could hold is said to be open.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use std::{fs, sync::atomic::AtomicBool, sync::atomic::Ordering, time::Duration};
use support::{Allocation, CONTEXT, Judged, List, Rig, Running, alive, skipped, wait_until};

const GIB: u64 = 1 << 30;
const SOON: &str = "--settle 800ms --sample 20ms";
/// A command that uses the GPU, is seen by several looks, ends when it is told to, and leaves nothing.
const CLEAN: &str = "alloc 0 2GiB ready up wait-file go";
/// The same, and it leaves 1542 MiB behind.
const DIRTY: &str = "spawn-session { alloc 0 1GiB ready left hold } alloc 0 2GiB ready up wait-file go";

/// What one neighbour does, in words of `cuda.py`: before the command, and while it runs.
struct Deed {
    what: &'static str,
    /// Nothing: it starts while the command runs.
    before: &'static str,
    meanwhile: &'static str,
    /// The cause by which it is named when it is; `None`: it is not a holder any more or not worth a word.
    cause: Option<&'static str>,
}

const DEEDS: [Deed; 8] = [
    Deed { what: "starts", before: "", meanwhile: "alloc 0 3GiB ready done hold", cause: Some("new_neighbour") },
    Deed {
        what: "grows",
        before: "alloc 0 1GiB",
        meanwhile: "alloc 0 3GiB ready done hold",
        cause: Some("grown_neighbour"),
    },
    Deed { what: "shrinks", before: "alloc 0 1GiB", meanwhile: "free 0 1GiB ready done hold", cause: None },
    Deed { what: "ends", before: "alloc 0 1GiB", meanwhile: "ready done exit 0", cause: None },
    Deed {
        what: "touches managed memory",
        before: "alloc 0 1GiB",
        meanwhile: "managed 0 4GiB ready done hold",
        cause: None,
    },
    Deed {
        what: "frees managed memory",
        before: "managed 0 4GiB",
        meanwhile: "managed 0 -4GiB ready done hold",
        cause: None,
    },
    Deed {
        what: "leaves its own ghost",
        before: "alloc 0 1GiB",
        meanwhile: "fork-and-exit ready done hold",
        cause: Some("forked_copy"),
    },
    Deed { what: "watches", before: "", meanwhile: "nvml ready done hold", cause: None },
];

/// Runs a command while a neighbour does its deed, and returns the report, the exit code, and the neighbour.
fn beside(rig: &Rig, options: &str, deed: &Deed, verbs: &str) -> (Judged, i32, Running) {
    let start = |before: &str| rig.start(&format!("{before} ready there wait-file deed {}", deed.meanwhile));
    let early = (!deed.before.is_empty()).then(|| start(deed.before));
    if early.is_some() {
        rig.wait_for("there");
    }
    let run = rig.spawn_check(&rig.reporting(options), verbs);
    rig.wait_for("up");
    rig.wait_for_looks();
    let neighbour = early.unwrap_or_else(|| start(""));
    rig.mark("deed");
    rig.wait_for("done");
    if deed.meanwhile.ends_with("exit 0") {
        wait_until("the neighbour to end", || !alive(neighbour.pid()));
    }
    rig.wait_for_looks();
    rig.mark("go");
    let code = run.wait().code.unwrap();
    (rig.judged(), code, neighbour)
}

/// No advice touches this process.
#[track_caller]
fn left_in_peace(report: &Judged, pid: u32) {
    let word = pid.to_string();
    let named = |command: &&str| command.split(|c: char| !c.is_ascii_digit()).any(|w| w == word);
    assert!(!report.commands().iter().any(named), "PID {pid} is to be ended: {:#}", report.0);
}

#[test]
fn a_clean_command_stays_clean_whatever_a_neighbour_does() {
    if support::out_of_sight() {
        return;
    }
    for deed in &DEEDS {
        let rig = Rig::new();
        let (report, code, _neighbour) = beside(&rig, "--sample 20ms", deed, CLEAN);
        let pid = rig.wait_for("done");
        assert_eq!((report.verdict(), code), ("clean", 0), "a neighbour {}: {:#}", deed.what, report.0);
        report.expect_charged(0);
        // Where no more is used than before nobody is looked for, so a ghost's keeper has no name.
        if let Some(cause) = deed.cause.filter(|cause| *cause != "forked_copy") {
            report.expect_holder(pid, cause, "foreign");
        }
        left_in_peace(&report, pid);
    }
}

#[test]
fn an_orphan_is_charged_in_full_whatever_a_neighbour_does() {
    if support::out_of_sight() {
        return;
    }
    for deed in &DEEDS {
        let rig = Rig::new();
        let (report, code, _neighbour) = beside(&rig, SOON, deed, DIRTY);
        let (pid, left) = (rig.wait_for("done"), rig.wait_for("left"));
        assert_eq!((report.verdict(), code), ("residue", 121), "a neighbour {}: {:#}", deed.what, report.0);
        let (low, high) = report.interval(0);
        assert_eq!(low, GIB + CONTEXT, "a neighbour {}: {:#}", deed.what, report.0);
        // Managed memory of the neighbour is listed with nobody: it may be the orphan's.
        let open = if deed.what == "touches managed memory" { 4 * GIB } else { 0 };
        assert!(high.unwrap().abs_diff(low + open) <= support::SLACK, "a neighbour {}: {:#}", deed.what, report.0);
        report.expect_holder(left, "orphan", "own");
        left_in_peace(&report, pid);
        assert_eq!(report.commands()[0], format!("kill {left}"), "a neighbour {}", deed.what);
        rig.paste(&format!("kill {left}"));
        wait_until("the orphan to end", || !alive(left));
        wait_until("its memory to come back", || !rig.now().pids().contains(&left.into()));
    }
}

#[test]
fn memory_that_only_a_neighbour_or_the_command_could_hold_is_open() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    // A server of the command has the GPU open, without a listed byte; the neighbour's managed memory could be its.
    let deed = &DEEDS[4];
    let verbs = "spawn-session { nvml ready server hold } alloc 0 2GiB ready up wait-file go";
    let (report, code, neighbour) = beside(&rig, SOON, deed, verbs);
    assert_eq!(code, 122);
    report.expect("inconclusive").expect_between(0, 4 * GIB);
    assert!(report.because().contains("may be held by a process of the command"), "{}", report.because());
    let unattributed = report.finding("unattributed").unwrap();
    assert!(unattributed["bytes"].as_u64().unwrap().abs_diff(4 * GIB) <= support::SLACK, "{unattributed}");
    left_in_peace(&report, neighbour.pid());
    // The control: with the neighbour gone there is nothing left, so the server holds nothing.
    neighbour.kill();
    wait_until("the memory to come back", || rig.used(0) == 0);
    assert!(rig.now().finding("unattributed").is_none());
}

#[test]
fn sixteen_neighbours_at_once() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let start = |n: u32| {
        rig.start(&format!("alloc 0 256MiB ready there-{n} wait-file deed alloc 0 128MiB ready done-{n} hold"))
    };
    let all = |numbers: std::ops::Range<u32>, marker: &str| {
        for n in numbers {
            rig.wait_for(&format!("{marker}-{n}"));
        }
    };
    let early: Vec<Running> = (0..8).map(start).collect();
    all(0..8, "there");
    let run = rig.spawn_check(&rig.reporting(SOON), DIRTY);
    rig.wait_for("up");
    rig.wait_for_looks();
    let late: Vec<Running> = (8..16).map(start).collect();
    all(8..16, "there");
    rig.mark("deed");
    all(0..16, "done");
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let (report, left) = (rig.judged(), rig.wait_for("left"));
    report.expect("residue").expect_charged(GIB + CONTEXT);
    report.expect_holder(left, "orphan", "own");
    for (neighbours, cause) in [(&early, "grown_neighbour"), (&late, "new_neighbour")] {
        for neighbour in neighbours {
            report.expect_holder(neighbour.pid(), cause, "foreign");
            left_in_peace(&report, neighbour.pid());
        }
    }
    assert_eq!(report.commands(), [format!("kill {left}")]);
}

#[test]
fn a_neighbour_that_shrinks_by_the_same_amount_does_not_hide_an_orphan() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    // Its context and 1 GiB go, exactly what the orphan has.
    let neighbour = rig.start("alloc 0 1GiB ready there wait-file deed ready done exit 0");
    rig.wait_for("there");
    let before = rig.used(0);
    let run = rig.spawn_check(&rig.reporting(SOON), DIRTY);
    rig.wait_for("up");
    rig.wait_for_looks();
    rig.mark("deed");
    neighbour.wait().expect_code(0);
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(121);
    let left = rig.wait_for("left");
    assert_eq!(rig.used(0), before, "the GPU is as full as before");
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    report.expect_holder(left, "orphan", "own");
    rig.clean_after(&format!("kill {left}"), 0);
}

#[test]
fn a_desktop_drifts() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let desktop = rig.start("nvml open nvidia0 23 ready desktop hold");
    let windows = |bytes: u64, pool: u64| {
        let lists = vec![List::Graphics];
        let pid = Some(desktop.pid());
        rig.add("windows", Allocation { pid, bytes, unlisted_bytes: pool, lists, ..Allocation::default() });
    };
    windows(400 << 20, 100 << 20);
    rig.wait_for("desktop");
    let over = AtomicBool::new(false);
    let (clean, dirty) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                windows((400 + n * 37 % 15) << 20, (100 + n * 53 % 15) << 20);
                std::thread::sleep(Duration::from_millis(7));
            }
        });
        let mut verdicts = Vec::new();
        for verbs in [CLEAN, DIRTY] {
            let _ = fs::remove_file(rig.path("up"));
            let _ = fs::remove_file(rig.path("go"));
            let run = rig.spawn_check(&rig.reporting(SOON), verbs);
            rig.wait_for("up");
            rig.wait_for_looks();
            rig.mark("go");
            let code = run.wait().code;
            verdicts.push((code, rig.judged()));
        }
        over.store(true, Ordering::Relaxed);
        (verdicts.remove(0), verdicts.remove(0))
    });
    assert_eq!((clean.0, clean.1.verdict()), (Some(0), "clean"), "{:#}", clean.1.0);
    // What grows in the look in which the command ended may seem to have moved, never more than the drift.
    let (low, high) = clean.1.interval(0);
    assert!(low == 0 && high.unwrap() <= 16 << 20, "{:#}", clean.1.0);
    dirty.1.expect("residue");
    assert_eq!((dirty.0, dirty.1.interval(0).0), (Some(121), GIB + CONTEXT), "{:#}", dirty.1.0);
    left_in_peace(&dirty.1, desktop.pid());
}

#[test]
fn a_ghost_that_stood_there_before_is_the_neighbours() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let parent = rig.start("alloc 0 3GiB fork-and-exit ready copy hold");
    let (ghost, copy) = (parent.pid(), rig.wait_for("copy"));
    parent.wait().expect_code(0);
    for (verbs, code, low) in [(CLEAN, 0, 0), (DIRTY, 121, GIB + CONTEXT)] {
        let _ = fs::remove_file(rig.path("up"));
        let _ = fs::remove_file(rig.path("go"));
        let run = rig.spawn_check(&rig.reporting(SOON), verbs);
        rig.wait_for("up");
        rig.wait_for_looks();
        rig.mark("go");
        run.wait().expect_code(code);
        let report = rig.judged();
        report.expect_charged(low);
        if code != 0 {
            let found = report.list("ghosts").iter().find(|g| g["pid"] == ghost).unwrap();
            assert_eq!((&found["lineage"], &found["candidates"]), (&"foreign".into(), &serde_json::json!([copy])));
        }
        left_in_peace(&report, copy);
    }
}

#[test]
fn an_exported_handle_beside_a_neighbours_context_is_open_and_both_are_said() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let neighbour = rig.start("alloc 0 1GiB ready there hold");
    rig.wait_for("there");
    let run = rig.spawn_check(&rig.reporting(SOON), "export-handle 0 4GiB ready up wait-file go");
    let exporter = rig.wait_for("up");
    let children = fs::read_to_string(format!("/proc/{exporter}/task/{exporter}/children")).unwrap();
    let sleep: u32 = children.trim().parse().unwrap();
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(122);
    let report = rig.judged();
    report.expect("inconclusive").expect_between(0, 4 * GIB);
    report.expect_holder(sleep, "exported_handle", "own");
    assert!(report.because().contains("may be held by a process of the command"), "{}", report.because());
    assert!(report.finding_text("unattributed").contains("Others use this GPU"), "{:#}", report.0);
    left_in_peace(&report, neighbour.pid());
    assert_eq!(report.commands(), [format!("kill {sleep}")]);
    // The advice shows whose it was.
    rig.paste(&format!("kill {sleep}"));
    wait_until("the handle's memory to come back", || rig.used(0) < 2 * GIB);
    let now = rig.now();
    assert!(now.finding("unattributed").is_none() && now.pids() == [u64::from(neighbour.pid())], "{:#}", now.0);
}

/// A command that leaves nothing, seen by several looks, on a machine without neighbours.
fn a_clean_run() -> (Rig, Running) {
    let rig = Rig::new();
    let run = rig.spawn_check(&rig.reporting("--sample 20ms"), CLEAN);
    rig.wait_for("up");
    rig.wait_for_looks();
    (rig, run)
}

#[test]
fn a_new_process_that_could_be_either_s_is_open() {
    if support::out_of_sight() {
        return;
    }
    let (rig, run) = a_clean_run();
    // It starts outside of the command's tree, and nothing is left that tells who started it.
    let starter = rig.start("daemonize-twice { alloc 0 1GiB ready stranger hold }");
    let stranger = rig.wait_for("stranger");
    starter.wait().expect_code(0);
    let stat = fs::read_to_string(format!("/proc/{stranger}/stat")).unwrap();
    if stat.rsplit_once(") ").unwrap().1.split(' ').nth(1) != Some("1") {
        return skipped("orphans are adopted by another process than PID 1 here");
    }
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(122);
    let report = rig.judged();
    report.expect("inconclusive").expect_between(0, GIB + CONTEXT);
    report.expect_holder(stranger, "detached", "unknown");
    assert!(report.because().contains("may be the command's or somebody else's"), "{}", report.because());
    left_in_peace(&report, stranger);
}

#[test]
fn a_new_neighbour_whose_starter_ended_meanwhile_is_still_a_neighbour() {
    if support::out_of_sight() {
        return;
    }
    let (rig, run) = a_clean_run();
    let starter = rig.start("spawn-clean { alloc 0 1GiB ready new hold } wait-file leave exit 0");
    let new = rig.wait_for("new");
    // It is seen below its starter; then it stands below PID 1, where it could be anybody's.
    rig.wait_for_looks();
    rig.mark("leave");
    starter.wait().expect_code(0);
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(0);
    let report = rig.judged();
    report.expect("clean").expect_charged(0);
    report.expect_holder(new, "new_neighbour", "foreign");
    assert!(report.why(new).contains("older than the command"), "{}", report.why(new));
    left_in_peace(&report, new);
}

#[test]
fn memory_that_lives_on_in_a_neighbour_is_not_outweighed_by_what_another_gives_back() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let _consumer = rig.start("alloc 0 1GiB ready there ipc-consume share ready mapped hold");
    rig.wait_for("there");
    let _giver = rig.start("alloc 0 8GiB ready full wait-file mapped free 0 6GiB ready freed hold");
    rig.wait_for("full");
    rig.check(&rig.reporting(""), "ipc-produce 0 4GiB share wait-file freed");
    let report = rig.judged();
    assert_ne!(report.verdict(), "clean", "{:#}", report.0);
    let (_, high) = report.interval(0);
    assert_eq!(high, Some(4 * GIB), "{:#}", report.0);
}

#[test]
fn who_grew_is_said_beside_a_clean_run() {
    if support::out_of_sight() {
        return;
    }
    let (report, code, neighbour) = beside(&Rig::new(), "--sample 20ms", &DEEDS[1], CLEAN);
    assert_eq!((report.verdict(), code), ("clean", 0), "{:#}", report.0);
    let said =
        format!("PID {} (python3), which was there before, has 3072 MiB more. It is not charged.", neighbour.pid());
    assert!(report.finding_text("grown").ends_with(&said), "{:#}", report.0);
    // Who came and has gone is nothing to go by, and who shrank has nothing of ours.
    for deed in [&DEEDS[2], &DEEDS[3], &DEEDS[7]] {
        let (report, ..) = beside(&Rig::new(), "--sample 20ms", deed, CLEAN);
        assert!(report.finding("grown").is_none(), "a neighbour {}: {:#}", deed.what, report.0);
    }
}

#[test]
fn where_all_that_is_new_counts_a_process_that_was_there_before_does_not() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    // It is older than our look, and opens the GPU only now.
    let old = rig.start("ready old wait-file deed alloc 0 3GiB ready done hold");
    rig.wait_for("old");
    let run = rig.spawn_check(&rig.reporting(&format!("{SOON} --scope new")), CLEAN);
    rig.wait_for("up");
    rig.mark("deed");
    rig.wait_for("done");
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(0);
    let report = rig.judged();
    report.expect("clean").expect_charged(0);
    report.expect_holder(old.pid(), "grown_neighbour", "foreign");
    assert!(report.why(old.pid()).contains("it started before the command started"), "{:#}", report.0);
    // Nor is its memory the command's peak.
    assert_eq!(report.0["devices"][0]["command_peak_bytes"], 2 * GIB + CONTEXT, "{:#}", report.0);
    assert!(report.finding_text("grown").contains("has 3590 MiB more"), "{:#}", report.0);
    left_in_peace(&report, old.pid());
}

#[test]
fn a_monitor_that_starts_meanwhile_is_not_left_by_the_command() {
    if support::out_of_sight() {
        return;
    }
    for (verbs, code) in [(CLEAN, 0), (DIRTY, 121)] {
        let rig = Rig::new();
        let run = rig.spawn_check(&rig.reporting(&format!("{SOON} --scope new")), verbs);
        rig.wait_for("up");
        rig.wait_for_looks();
        let monitor = rig.start("nvml ready monitor hold");
        rig.wait_for("monitor");
        rig.mark("go");
        let end = run.wait();
        end.expect_code(code);
        let report = rig.judged();
        assert!(!report.pids().contains(&monitor.pid().into()), "{:#}", report.0);
        assert!(!end.stderr.contains(&monitor.pid().to_string()), "{}", end.stderr);
        left_in_peace(&report, monitor.pid());
    }
}

#[test]
fn who_is_on_another_gpu_is_nobody_s_suspect() {
    if support::out_of_sight() {
        return;
    }
    for scope in ["new", "device"] {
        let rig = Rig::with_gpus(2);
        let run = rig.spawn_check(&rig.reporting(&format!("{SOON} -i 0 --scope {scope}")), CLEAN);
        rig.wait_for("up");
        let other = rig.start("open nvidia1 23 open nvidiactl 2 open nvidia-uvm 4 ready other hold");
        rig.wait_for("other");
        // Nobody is listed with it.
        rig.add("unlisted", Allocation { unlisted_bytes: 700 << 20, ..Allocation::default() });
        rig.wait_for_looks();
        rig.mark("go");
        let end = run.wait();
        end.expect_code(121);
        assert!(!end.stderr.contains(&other.pid().to_string()), "{scope}: {}", end.stderr);
        assert!(!rig.judged().0.to_string().contains(&other.pid().to_string()), "{scope}: {:#}", rig.judged().0);
    }
}
