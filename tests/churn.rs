//! A GPU that is never at rest: clean and dirty commands in numbers, while neighbours start, grow, shrink and end at
//! random. It is the busy card of the suite for real GPUs, rehearsed on the fake driver (`tests/gpu/simulated.py`), so
//! the same programs stand for both, and that suite is known to start, count and end what it should:
//!
//! ```text
//! python3 tests/gpu/run.py churn --binary target/debug/gpuresid --simulated target/debug/deps/libfake_nvml.so
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use support::Rig;

/// Runs the suite with these options; its report. Whatever is wrong by its own account fails the test.
fn suite(options: &str) -> Value {
    let rig = Rig::new();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/run.py");
    let (library, json) = (rig.library(), rig.path("churn.json"));
    let places = [("--simulated", library.as_os_str()), ("--json", json.as_os_str())];
    let mut argv = vec!["env".into(), "ROUNDS=4".into(), "python3".into(), suite.into()];
    argv.extend(["--binary".into(), env!("CARGO_BIN_EXE_gpuresid").into()]);
    argv.extend(places.iter().flat_map(|(option, value)| [(*option).into(), (*value).into()]));
    argv.extend(options.split(' ').map(Into::into));
    rig.start_of(&argv).wait().expect_code(0);
    rig.report("churn.json")
}

/// How many runs of this kind were called so.
fn count(report: &Value, kind: &str, called: &str) -> u64 {
    let row = report["rows"].as_array().unwrap().iter().find(|row| row["kind"] == kind);
    row.unwrap_or_else(|| panic!("no {kind} in {:#}", report["rows"]))[called].as_u64().unwrap()
}

#[test]
fn commands_beside_three_restless_neighbours_are_called_what_they_are() {
    if support::out_of_sight() {
        return;
    }
    // Random coincidences may leave a clean command open once in a while.
    let report = suite("churn --only 3 --goal 32,9 --lanes 3 --seconds 40 --open 10");
    assert!(count(&report, "clean", "clean") >= 20, "{:#}", report["rows"]);
    for (kind, verdict) in [("orphan", "residue"), ("copy", "residue"), ("handle", "inconclusive")] {
        assert!(count(&report, kind, verdict) >= 2, "{kind}: {:#}", report["rows"]);
        assert_eq!(count(&report, kind, verdict), count(&report, kind, "n"), "{kind}: {:#}", report["rows"]);
    }
    // The neighbours did all that they are there for.
    for order in ["start", "alloc", "free"] {
        assert!(report["orders"][order].as_u64().unwrap() > 3, "{:#}", report["orders"]);
    }
}

#[test]
fn rounds_of_reclaim_end_what_is_left_and_nobody_else() {
    // The records of `--unattended` are root's.
    if support::out_of_sight() || !rustix::process::geteuid().is_root() {
        return;
    }
    let report = suite("--group rounds");
    assert_eq!(report["scenarios"][0]["result"], "ok", "{report:#}");
}
