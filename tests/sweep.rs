//! Each NVML function that the binary calls, as its log of calls tells, answers each code, at its first, second, every
//! later call and always, in each command. Nothing panics, nothing unknown is a number, no verdict is wrong, and the
//! command of a check runs undisturbed or not at all.
//!
//! ```text
//! SWEEP_RUNS=all SWEEP_PART=1/4 cargo test --locked --test sweep -- --nocapture
//! ```
//!
//! How many are drawn, and which, is told in `sweep/draw.rs`; what may be said, whatever is answered, in `sweep/deeds.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

#[path = "sweep/deeds.rs"]
mod deeds;
#[path = "sweep/draw.rs"]
mod draw;
mod support;

use deeds::{DEEDS, Deed, World};
use std::collections::BTreeSet;
use support::Fault;

/// Cases where nobody asks for more.
const RUNS: usize = 160;

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

/// All functions that a run of everything calls. A list that depended on how often they are called would be another one in
/// each run, and its parts would not make up a whole.
fn functions() -> BTreeSet<String> {
    let called = |deed: Deed| {
        let world = World::new(deed);
        let end = world.rig.launch(world.command()).wait();
        if let Some(wrong) = world.wrong(&end) {
            panic!("{deed:?} without a fault: {wrong}\n{}\n{}", end.stdout, end.stderr);
        }
        world.rig.calls().into_iter().map(|call| call.function)
    };
    DEEDS.into_iter().flat_map(called).collect()
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
    all
}

#[test]
fn whatever_nvml_answers_nothing_wrong_is_said_and_nobody_is_disturbed() {
    let counts = draw::play(
        &cases(),
        RUNS,
        |case| case.deed,
        |world, case| {
            let Case { function, code, moment: (from, to), .. } = case.clone();
            world.rig.fault(Fault { function, from, to, code: Some(code), ..Fault::default() });
            let end = world.rig.launch(world.command()).wait();
            let wrong = world.wrong(&end);
            world.rig.clear_faults();
            (end, wrong)
        },
    );
    // A fault that changes nothing shows nothing.
    let blind = counts.iter().filter(|((_, code), _)| [122, 125].contains(code)).count();
    assert!(blind > 0, "no fault has done anything");
}
