//! Each NVML function that the binary calls, as its log of calls tells, answers each code, at its first, second, every
//! later call and always, in each command. Nothing panics, nothing unknown is a number, no verdict is wrong, and the
//! command of a check runs undisturbed or not at all.
//!
//! `SWEEP_RUNS` says how many cases are drawn (`all` before a release: every one), `SWEEP_SEED` which.
//!
//! ```text
//! SWEEP_RUNS=all cargo test --locked --test sweep -- --nocapture
//! ```
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use support::{Fault, Finished, Rig, alive};

const MIB: u64 = 1 << 20;
/// Cases where nobody asks for more.
const RUNS: usize = 160;
/// What the neighbour has.
const NEIGHBOUR: u64 = (1024 + 518) * MIB;

/// What is run, and what is true then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    Status,
    CheckClean,
    CheckDirty,
    DiffClean,
    DiffDirty,
    WaitFree,
    WaitFull,
    Plan,
    Reclaim,
}

const DEEDS: [Deed; 9] = [
    Deed::Status,
    Deed::CheckClean,
    Deed::CheckDirty,
    Deed::DiffClean,
    Deed::DiffDirty,
    Deed::WaitFree,
    Deed::WaitFull,
    Deed::Plan,
    Deed::Reclaim,
];

/// From which call to which.
const MOMENTS: [(u64, Option<u64>); 4] = [(0, Some(0)), (1, Some(1)), (2, None), (0, None)];

#[derive(Debug, Clone)]
struct Case {
    deed: Deed,
    function: String,
    code: u32,
    moment: (u64, Option<u64>),
}

fn codes() -> impl Iterator<Item = u32> {
    (1..=30).chain([77, 999])
}

/// A machine with a neighbour, and what the deed needs.
struct World {
    rig: Rig,
    neighbour: u32,
    /// Who is left over.
    left: Option<u32>,
}

fn world(deed: Deed) -> World {
    let rig = Rig::new();
    let before = rig.path("before.json").display().to_string();
    // It ends with the rig.
    std::mem::forget(rig.start("alloc 0 1GiB ready neighbour hold"));
    let neighbour = rig.wait_for("neighbour");
    if matches!(deed, Deed::DiffClean | Deed::DiffDirty) {
        rig.run(&format!("snapshot -o {before}")).expect_code(0);
    }
    let left = matches!(deed, Deed::DiffDirty | Deed::Plan | Deed::Reclaim).then(|| {
        let verbs = rig.program("daemonize-twice { alloc 0 2GiB ready left hold }");
        rig.start_marked(&verbs, &support::marker_of_an_ended_run()).wait().expect_code(0);
        rig.wait_for("left")
    });
    World { rig, neighbour, left }
}

fn play(world: &World, deed: Deed) -> Finished {
    let World { rig, left, .. } = world;
    let before = rig.path("before.json").display().to_string();
    let report = rig.path("report.json").display().to_string();
    let check = |verbs: &str| rig.check(&format!("--settle 300ms --report {report}"), verbs);
    let whom = left.unwrap_or(0);
    match deed {
        Deed::Status => rig.run("--json"),
        Deed::CheckClean => check("alloc 0 512MiB ready ran"),
        Deed::CheckDirty => check("spawn-session { alloc 0 2GiB ready left hold } wait-file left ready ran"),
        Deed::DiffClean | Deed::DiffDirty => rig.run(&format!("diff {before} --scope new --json")),
        Deed::WaitFree => rig.run("wait --free 1GiB --timeout 200ms"),
        Deed::WaitFull => rig.run("wait --below 500MiB --timeout 200ms"),
        Deed::Plan => rig.run(&format!("reclaim --pid {whom} --json")),
        Deed::Reclaim => rig.run("reclaim --orphans --yes --json --grace 1s --settle 300ms"),
    }
}

/// What is wrong with the outcome, if anything is.
fn wrong(world: &World, deed: Deed, end: &Finished) -> Option<String> {
    let Some(code) = end.code else { return Some("it died of a signal".into()) };
    if end.stderr.contains("panicked") {
        return Some("it panicked".into());
    }
    let ran = world.rig.path("ran").exists();
    let allowed: &[i32] = match deed {
        Deed::Status => &[0, 125],
        // Residue of a clean command would be a lie, and clean behind a leftover too.
        Deed::CheckClean if ran => &[0, 122],
        Deed::CheckDirty if ran => &[121, 122],
        Deed::CheckClean | Deed::CheckDirty => &[125],
        Deed::DiffClean => &[0, 122, 125],
        Deed::DiffDirty => &[121, 122, 125],
        Deed::WaitFree => &[0, 124, 125],
        Deed::WaitFull => &[124, 125],
        Deed::Plan => &[0, 122, 125],
        Deed::Reclaim => &[0, 121, 122, 125],
    };
    if !allowed.contains(&code) {
        return Some(format!("exit code {code}, allowed are {allowed:?}"));
    }
    if code == 125 && !end.stderr.lines().any(|line| line.starts_with("error: ")) {
        return Some("no error was told".into());
    }
    if !alive(world.neighbour) {
        return Some("the neighbour was ended".into());
    }
    let text = match deed {
        Deed::CheckClean | Deed::CheckDirty if ran => std::fs::read_to_string(world.rig.path("report.json")).ok()?,
        Deed::Status | Deed::DiffClean | Deed::DiffDirty | Deed::Plan | Deed::Reclaim if code != 125 => {
            end.stdout.clone()
        }
        _ => return None,
    };
    let Ok(report) = serde_json::from_str::<Value>(&text) else { return Some("its JSON is none".into()) };
    numbers(&report, deed)
}

/// No unknown number is a 0, and whoever is not named is a gap.
fn numbers(report: &Value, deed: Deed) -> Option<String> {
    for device in report["devices"].as_array().into_iter().flatten() {
        let least = match deed {
            Deed::DiffDirty | Deed::CheckDirty => NEIGHBOUR + 2048 * MIB,
            _ => NEIGHBOUR,
        };
        for name in ["used_bytes", "used_after_bytes"] {
            // After a reclaim only the neighbour is left, and its plan tells of no time after.
            if let Some(used) = device[name].as_u64().filter(|used| *used < least) {
                return Some(format!("{name} is {used}, and at least {least} are in use"));
            }
        }
        if let Some(total) = device["total_bytes"].as_u64().filter(|total| *total < 1 << 36) {
            return Some(format!("total_bytes is {total}"));
        }
    }
    let gaps = report["gaps"].as_array().map_or(0, Vec::len);
    let named = report["holders"].as_array().is_some_and(|holders| !holders.is_empty());
    let nobody = deed == Deed::Status && !named && gaps == 0;
    nobody.then(|| "nobody is named, and nothing is said to be missing".into())
}

/// All functions that a run of everything calls.
fn functions() -> BTreeSet<String> {
    DEEDS
        .into_iter()
        .flat_map(|deed| {
            let world = world(deed);
            let end = play(&world, deed);
            if let Some(wrong) = wrong(&world, deed, &end) {
                panic!("{deed:?} without a fault: {wrong}\n{}\n{}", end.stdout, end.stderr);
            }
            world.rig.calls().into_iter().map(|call| call.function)
        })
        .collect()
}

fn cases() -> Vec<Case> {
    let functions = functions();
    assert!(functions.len() > 15, "{functions:?}");
    let mut all = Vec::new();
    for deed in DEEDS {
        for function in &functions {
            for code in codes() {
                all.extend(MOMENTS.map(|moment| Case { deed, function: function.clone(), code, moment }));
            }
        }
    }
    let wanted = std::env::var("SWEEP_RUNS").ok();
    if wanted.as_deref() == Some("all") {
        return all;
    }
    let number = |text: Option<String>, otherwise| text.and_then(|t| t.parse().ok()).unwrap_or(otherwise);
    let (runs, seed) = (number(wanted, RUNS), number(std::env::var("SWEEP_SEED").ok(), 1));
    // A stride without a common divisor visits all of them, evenly.
    let stride = (all.len() / runs.max(1)).max(1) | 1;
    (0..runs).map(|n| all[(seed * 7919 + n * stride) % all.len()].clone()).collect()
}

#[test]
fn whatever_nvml_answers_nothing_wrong_is_said_and_nobody_is_disturbed() {
    let cases = cases();
    let (next, bad) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let counts: Mutex<BTreeMap<(Deed, i32), usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, std::num::NonZero::get) * 2 {
            scope.spawn(|| {
                // What nobody changes serves for many.
                let mut kept: Vec<(Deed, World)> = Vec::new();
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let place = kept.iter().position(|(deed, _)| *deed == case.deed);
                    let (deed, world) = match place {
                        Some(place) => kept.swap_remove(place),
                        None => (case.deed, world(case.deed)),
                    };
                    let Case { function, code, moment: (from, to), .. } = case.clone();
                    world.rig.fault(Fault { function, from, to, code: Some(code), ..Fault::default() });
                    let end = play(&world, deed);
                    let wrong = wrong(&world, deed, &end);
                    world.rig.clear_faults();
                    *counts.lock().unwrap().entry((deed, end.code.unwrap_or(-1))).or_default() += 1;
                    if let Some(wrong) = wrong {
                        bad.lock().unwrap().push(format!("{case:?}: {wrong}\n{}\n{}", end.stdout, end.stderr));
                        continue;
                    }
                    let used_up = matches!(deed, Deed::CheckClean | Deed::CheckDirty | Deed::Reclaim);
                    if !used_up {
                        kept.push((deed, world));
                    }
                }
            });
        }
    });
    let bad = bad.into_inner().unwrap();
    assert!(bad.is_empty(), "{} of {} went wrong:\n{}", bad.len(), cases.len(), bad[..bad.len().min(5)].join("\n\n"));
    let counts = counts.into_inner().unwrap();
    println!("{} cases, all right; how often each deed ended with which code: {counts:?}", cases.len());
    // A fault that changes nothing shows nothing.
    let other = counts.iter().filter(|((deed, code), _)| *deed == Deed::CheckClean && *code != 0).count();
    assert!(other > 0, "no fault has done anything");
}
