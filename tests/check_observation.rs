//! What `check` saw, stored: judging it again gives its report, its two ends give `diff` the same numbers, and the
//! driver was never asked to change anything.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use gpuresid::{judge, model::Observation};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};
use support::{CONTEXT, Judged, Rig};

const GIB: u64 = 1 << 30;

/// Runs a check that stores everything; the observation and the report.
fn check(rig: &Rig, options: &str, verbs: &str) -> (Value, Value) {
    let (looks, report) = (rig.path("looks"), rig.path("report"));
    let options = format!(
        "--settle 800ms --sample 20ms --report observation:{} --report json:{} {options}",
        looks.display(),
        report.display()
    );
    let run = rig.spawn_check(&options, verbs);
    rig.wait_for("up");
    rig.wait_for_looks();
    rig.mark("go");
    run.wait();
    (rig.report("looks"), rig.report("report"))
}

/// What happens in the runs below, each on a machine with two GPUs and a neighbour.
const RUNS: [(&str, &str); 6] = [
    ("", "alloc 0 2GiB ready up wait-file go exit 3"),
    ("", "spawn-session { alloc 1 1GiB ready left hold } alloc 0 2GiB ready up wait-file go"),
    ("--max-residue 2GiB --warn-only", "alloc 0 1GiB fork { ready left hold } ready up wait-file go"),
    ("--scope new", "export-handle 0 4GiB ready up wait-file go"),
    ("--scope device", "spawn-session { managed 0 1GiB ready left stop-self hold } ready up wait-file go"),
    (
        "--max-residue-rate 50",
        "alloc 0 1GiB spawn-session { alloc 0 1GiB exit-main-thread ready left hold } ready up wait-file go",
    ),
];

#[test]
fn judging_the_stored_looks_gives_the_report() {
    for (options, verbs) in RUNS {
        let rig = Rig::with_gpus(2);
        let _neighbour = rig.start("alloc 0 1GiB ready there hold");
        rig.wait_for("there");
        let (looks, report) = check(&rig, options, verbs);
        let observation: Observation = serde_json::from_value(looks.clone()).unwrap();
        let again = serde_json::to_value(judge::judge(&observation)).unwrap();
        assert_eq!(again, report, "{options} {verbs}");
        // Nothing is lost by storing.
        assert_eq!(serde_json::to_value(&observation).unwrap(), looks, "{options} {verbs}");
    }
}

/// PID, and memory on each device, of everybody who holds some.
fn held(report: &Value) -> BTreeSet<(u64, String, u64)> {
    let holders = report["holders"].as_array().unwrap().iter();
    let devices = |holder: &Value| holder["devices"].as_array().unwrap().clone();
    let one = |pid: u64, held: Value| Some((pid, held["uuid"].as_str()?.to_owned(), held["held_bytes"].as_u64()?));
    holders
        .flat_map(|h| devices(h).into_iter().filter_map(|d| one(h["pid"].as_u64().unwrap(), d)).collect::<Vec<_>>())
        .collect()
}

#[test]
fn the_two_ends_of_a_check_say_the_same_through_diff() {
    if support::out_of_sight() {
        return;
    }
    for (options, verbs) in RUNS {
        let rig = Rig::with_gpus(2);
        let _neighbour = rig.start("alloc 0 1GiB ready there hold");
        rig.wait_for("there");
        let (looks, report) = check(&rig, options, verbs);
        for end in ["before", "after"] {
            fs::write(rig.path(end), looks[end].to_string()).unwrap();
        }
        let scope = options.strip_prefix("--scope ").unwrap_or("new");
        let (before, after) = (rig.path("before"), rig.path("after"));
        let end = rig.run(&format!("diff {} {} --scope {scope} --json", before.display(), after.display()));
        let diff = Judged(end.json());
        for (mine, its) in diff.list("devices").iter().zip(report["devices"].as_array().unwrap()) {
            for field in
                ["uuid", "used_before_bytes", "used_after_bytes", "free_bytes", "total_bytes", "unaccounted_bytes"]
            {
                assert_eq!(mine[field], its[field], "{field}: {options} {verbs}");
            }
        }
        // A clean end has no scan of its own: then the holders of the check are those that stood there before.
        assert_eq!(held(&diff.0), held(&report), "{options} {verbs}\n{:#}\n{report:#}", diff.0);
        assert_eq!(diff.0["ghosts"].as_array().map(Vec::len), report["ghosts"].as_array().map(Vec::len));
        // What is charged is the same where descent tells no more than novelty.
        if scope == "device" || verbs.contains("hold }") && !verbs.contains("export") {
            let charged = |report: &Value| {
                let devices = report["devices"].as_array().unwrap().iter();
                devices.map(|d| d["charged_residue_bytes"].clone()).collect::<Vec<_>>()
            };
            assert_eq!(charged(&diff.0), charged(&report), "{options} {verbs}");
        }
    }
}

#[test]
fn the_growth_of_an_orphan_is_the_same_in_both() {
    let rig = Rig::new();
    let (looks, report) =
        check(&rig, "", "spawn-session { alloc 0 1GiB ready left hold } alloc 0 1GiB ready up wait-file go");
    assert_eq!(report["devices"][0]["charged_residue_bytes"], GIB + CONTEXT);
    fs::write(rig.path("before"), looks["before"].to_string()).unwrap();
    // The orphan still holds: now is as good as the stored end.
    let end = rig.run(&format!("diff {} --json", rig.path("before").display()));
    let diff = Judged(end.expect_code(121).json());
    assert_eq!(diff.0["devices"][0]["charged_residue_bytes"], GIB + CONTEXT);
    let left = rig.wait_for("left");
    assert_eq!(diff.pids(), [u64::from(left)]);
    // The run's marker proves after the fact whose it was.
    assert_eq!(diff.holder(left)["cause"], "orphan");
    rig.paste(&format!("kill {left}"));
    support::wait_until("its end", || rig.used(0) == 0);
    rig.run(&format!("diff {}", rig.path("before").display())).expect_code(0);
}

/// The calls that only read, and those that set up reading.
const HARMLESS: [&str; 9] = [
    "nvmlInit",
    "nvmlShutdown",
    "nvmlErrorString",
    "nvmlSystemGet",
    "nvmlDeviceGet",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetCreate",
    "nvmlEventSetWait",
];

#[test]
fn the_driver_is_only_ever_asked() {
    let rig = Rig::with_gpus(2);
    // The control: the library logs what changes something, were it called.
    let word = |name: &str| !HARMLESS.iter().any(|start| name.starts_with(start)) && name != "nvmlEventSetFree";
    assert!(word("nvmlDeviceSetPowerManagementLimit") && word("nvmlDeviceResetGpuLockedClocks"));
    assert!(word("nvmlDeviceClearCpuAffinity") && word("nvmlEventSetFreeAll"));
    let (_, report) =
        check(&rig, "", "spawn-session { alloc 1 1GiB ready left hold } alloc 0 2GiB ready up wait-file go");
    assert_eq!(report["verdict"], "residue");
    rig.run("status").expect_code(0);
    rig.run(&format!("snapshot -o {}", rig.path("s.json").display())).expect_code(0);
    rig.run(&format!("diff {}", rig.path("s.json").display())).expect_code(0);
    let called: BTreeSet<String> = rig.calls().into_iter().map(|call| call.function).collect();
    assert!(called.len() > 5, "{called:?}");
    let changing: Vec<&String> = called.iter().filter(|name| word(name)).collect();
    assert_eq!(json!(changing), json!([]), "all calls: {called:?}");
}
