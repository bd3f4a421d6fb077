//! Memory that is not simply the device's: BAR1 beside it, GPUs whose memory is a NUMA node of the machine, and
//! confidential computing. Whole binary.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails the test")]

mod support;

use serde_json::{Value, json};
use std::fs;
use support::{Allocation, Fault, Rig, out_of_sight, wait_until};

const GIB: u64 = 1 << 30;
const BAR1: &str = "nvmlDeviceGetBAR1MemoryInfo";

fn facts(rig: &Rig, facts: Value) {
    rig.edit_machine(|machine| machine["facts"] = facts);
}

/// The gaps and what else is said, as one text.
fn gaps(report: &Value) -> String {
    report["gaps"].to_string()
}

fn asked(rig: &Rig, function: &str) -> usize {
    rig.calls().iter().filter(|c| c.function == function).count()
}

// ---- BAR1 ------------------------------------------------------------------------------------------------------------

#[test]
fn bar1_is_read_on_request_and_never_else() {
    let rig = Rig::with_gpus(2);
    facts(&rig, json!([{"bar1": [256 * GIB, 3 << 20]}, {"bar1": null}]));
    let status = rig.run("status --json").json();
    assert_eq!(status["devices"][0]["bar1_used_bytes"], Value::Null);
    assert!(!rig.run("status").stdout.contains("BAR1"));
    rig.check("--settle 1s", "alloc 0 1GiB").expect_code(0);
    let snapshot = rig.run("snapshot").json();
    assert_eq!(snapshot["devices"][0]["look"]["bar1"], Value::Null);
    assert_eq!(asked(&rig, BAR1), 0, "nobody asked for it");

    let status = rig.run("status --json --bar1").json();
    let devices = status["devices"].as_array().unwrap();
    assert_eq!((&devices[0]["bar1_total_bytes"], &devices[0]["bar1_used_bytes"]), (&json!(256 * GIB), &json!(3 << 20)));
    assert_eq!((&devices[1]["bar1_total_bytes"], &devices[1]["bar1_used_bytes"]), (&Value::Null, &Value::Null));
    assert!(gaps(&status).contains("reading the BAR1 memory: not supported on this device"), "{status:#}");
    assert!(gaps(&status).contains("GPU 1") && !gaps(&status).contains("GPU 0"), "{status:#}");
    assert_eq!(asked(&rig, BAR1), 2, "once a device");
    let table = rig.run("--bar1").stdout;
    assert!(table.contains("BAR1 USED  BAR1 TOTAL\n"), "{table}");
    assert!(table.contains("3.0 MiB   256.0 GiB\n") && table.lines().any(|l| l.ends_with("?           ?")), "{table}");
    let snapshot = rig.run("snapshot --bar1").json();
    assert_eq!(snapshot["devices"][0]["look"]["bar1"], json!({"total": 256 * GIB, "used": 3 << 20}));
    assert_eq!(snapshot["devices"][1]["look"].get("bar1"), None);
}

#[test]
fn a_library_without_the_call_says_so_and_one_that_hangs_names_it() {
    let rig = Rig::new();
    rig.hangs(BAR1, "stuck");
    let end = rig.run("--bar1 --nvml-timeout 1s");
    end.expect_code(125);
    assert!(end.stderr.contains(&format!("{BAR1} on GPU 0 did not come back within 1s")), "{}", end.stderr);
    rig.let_go("stuck");
    rig.clear_faults();
    rig.without_symbols(&[BAR1]);
    let status = rig.run("status --json --bar1").json();
    assert_eq!(status["devices"][0]["bar1_used_bytes"], Value::Null);
    assert!(gaps(&status).contains("BAR1 memory: this driver does not know the call"), "{status:#}");
}

// ---- NUMA ------------------------------------------------------------------------------------------------------------

/// A GB200: addressing mode ATS, memory is node 1.
fn node() -> Rig {
    let rig = Rig::new();
    facts(&rig, json!([{"addressing": 2, "numa_node": 1}]));
    rig
}

const HELD_BY_THE_SYSTEM: &str =
    "held by the system as ordinary memory (page cache or a process's host pages on the GPU's NUMA node";

fn unattributed(report: &Value) -> &Value {
    let found = report["findings"].as_array().unwrap().iter().find(|f| f["kind"] == "unattributed");
    found.unwrap_or_else(|| panic!("nothing is unattributed in {report:#}"))
}

/// Page cache on the GPU's node.
fn page_cache(rig: &Rig, bytes: u64) {
    rig.add("cache", Allocation { unlisted_bytes: bytes, ..Allocation::default() });
}

#[test]
fn memory_of_a_numa_node_is_first_thought_to_be_the_systems() {
    let rig = node();
    page_cache(&rig, 4 * GIB);
    // Somebody with nothing but the control file open would be a suspect elsewhere.
    let process = rig.start("open nvidiactl 1 ready up hold");
    let pid = rig.wait_for("up");
    let status = rig.run("status --json").json();
    let found = unattributed(&status);
    let first = found["possible"][0].as_str().unwrap();
    assert!(first.starts_with(&format!("{HELD_BY_THE_SYSTEM} 1)")), "{found:#}");
    assert!(first.contains("/sys/devices/system/node/node1/meminfo"), "{found:#}");
    assert_eq!((&status["holders"], &status["advice"].to_string().contains("kill")), (&json!([]), &false));
    let identity = rig.run("snapshot").json()["devices"][0]["identity"].clone();
    assert_eq!((&identity["addressing"], &identity["numa"]), (&json!("ats"), &json!({"node": 1})));

    // The control: on any other GPU he is one.
    facts(&rig, json!([{}]));
    let status = rig.run("status --json").json();
    assert_eq!(status["holders"][0]["pid"], pid, "{status:#}");
    assert!(!status["findings"].to_string().contains(HELD_BY_THE_SYSTEM), "{status:#}");
    assert!(unattributed(&status)["excluded"].to_string().contains("no NUMA node"), "{status:#}");
    process.kill();
}

#[test]
fn a_run_is_not_charged_with_what_the_system_may_hold() {
    if out_of_sight() {
        return;
    }
    let verdicts = |rig: &Rig, options: &str, code: i32| {
        let go = rig.path("go");
        let _ = fs::remove_file(&go);
        let _ = fs::remove_file(rig.path("up"));
        let run = rig.spawn_check(&rig.reporting(options), "alloc 0 1GiB ready up wait-file go");
        rig.wait_for("up");
        page_cache(rig, 4 * GIB);
        rig.wait_for_looks();
        rig.mark("go");
        let end = run.wait();
        end.expect_code(code);
        rig.remove("cache");
        (rig.report("report.json"), end.took)
    };
    let rig = node();
    let (report, _) = verdicts(&rig, "--settle 30s", 0);
    assert_eq!(report["verdict"], "clean", "{report:#}");
    assert!(report["settled_seconds"].as_f64().unwrap() < 20.0, "nothing is waited for: {report:#}");
    let found = unattributed(&report);
    assert!(found["text"].as_str().unwrap().contains("NUMA node 1 of this machine"), "{found:#}");
    assert!(found["possible"][0].as_str().unwrap().starts_with(HELD_BY_THE_SYSTEM), "{found:#}");
    // Whoever says that all growth is his is believed as far as it can be known.
    let (report, _) = verdicts(&rig, "--settle 1s --scope device", 122);
    let device = &report["devices"][0];
    assert!(device["charged_residue_bytes"].as_u64().unwrap() < 16 << 20, "{report:#}");
    assert!(device["charged_residue_max_bytes"].as_u64().unwrap() >= 4 * GIB, "{report:#}");
    assert!(device["because"].to_string().contains("may be the operating system's"), "{report:#}");

    // The control: where the memory is the driver's alone, it is the run's.
    let rig = Rig::new();
    let (report, _) = verdicts(&rig, "--settle 1s", 121);
    assert_eq!(report["verdict"], "residue", "{report:#}");
}

#[test]
fn an_own_leftover_on_a_numa_node_is_charged_as_ever() {
    let rig = node();
    page_cache(&rig, GIB);
    let verbs = "spawn-session { alloc 0 1GiB ready left hold } wait-file left";
    rig.check(&rig.reporting("--settle 1s"), verbs).expect_code(121);
    let report = rig.judged();
    let pid = rig.wait_for("left");
    report.expect("residue").expect_holder(pid, "orphan", "own");
    assert_eq!(report.interval(0).0, GIB + support::CONTEXT, "{:#}", report.0);
}

#[test]
fn a_driver_that_tells_no_node_leaves_it_possible_and_one_that_tells_nothing_changes_nothing() {
    let rig = node();
    page_cache(&rig, 4 * GIB);
    rig.without_symbols(&["nvmlDeviceGetNumaNodeId"]);
    let status = rig.run("status --json").json();
    let possible = unattributed(&status)["possible"].as_array().unwrap().clone();
    let held = possible.iter().position(|p| p.as_str().unwrap().starts_with(HELD_BY_THE_SYSTEM)).unwrap();
    assert!(
        possible[held].as_str().unwrap().ends_with("if its memory is one: the driver does not tell)"),
        "{possible:#?}"
    );
    rig.without_symbols(&["nvmlDeviceGetAddressingMode"]);
    let status = rig.run("status --json").json();
    assert!(!status["findings"].to_string().contains(HELD_BY_THE_SYSTEM), "{status:#}");
    let identity = rig.run("snapshot").json()["devices"][0]["identity"].clone();
    assert_eq!((identity.get("addressing"), identity.get("numa")), (None, None));
    // ATS without a node: the driver manages the memory itself.
    let rig = Rig::new();
    facts(&rig, json!([{"addressing": 2}]));
    page_cache(&rig, 4 * GIB);
    let status = rig.run("status --json").json();
    assert!(unattributed(&status)["excluded"].to_string().contains("no NUMA node"), "{status:#}");
}

// ---- confidential computing ------------------------------------------------------------------------------------------

#[test]
fn not_supported_under_confidential_computing_is_a_gap_with_that_reason() {
    let rig = Rig::with_gpus(2);
    rig.edit_machine(|machine| machine["conf_compute"] = json!([2, 1, 0]));
    let refuse = |function: &str| {
        rig.fault(Fault { function: function.into(), device: Some(0), code: Some(3), ..Fault::default() });
    };
    refuse("nvmlDeviceGetMemoryInfo*");
    refuse("nvmlDeviceGetComputeRunningProcesses*");
    refuse(BAR1);
    let neighbour = rig.start("alloc 1 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let status = rig.run("status --json --bar1").json();
    let why = "not supported on this device while confidential computing is on";
    for what in ["the memory", "the compute process list", "the BAR1 memory"] {
        assert!(gaps(&status).contains(&format!("reading {what}: {why}")), "{what}: {status:#}");
    }
    assert_eq!(
        (&status["devices"][0]["used_bytes"], &status["devices"][0]["listed_bytes"]),
        (&json!(null), &json!(null))
    );
    assert_eq!(status["holders"][0]["pid"], pid, "the other GPU is as ever: {status:#}");
    rig.check(&rig.reporting("--settle 1s"), "alloc 1 1GiB").expect_code(122);
    neighbour.kill();
    wait_until("the neighbour's memory to come back", || rig.used(1) == 0);

    // The control: with it off the reasons are the usual ones, and a list that is not supported is nobody's.
    rig.edit_machine(|machine| machine["conf_compute"] = json!([0, 0, 0]));
    let status = rig.run("status --json --bar1").json();
    assert!(!gaps(&status).contains("confidential"), "{status:#}");
}
