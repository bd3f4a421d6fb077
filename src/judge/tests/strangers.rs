//! Files that others hand to us: a stored observation or snapshot in which anything may be anything. What can be read is
//! judged, and what is said of it keeps to its words.

use super::{
    build::{COMMAND, NOISE, ROOT, ancestor, files, id, launch, observation, process, snapshot},
    causes::{listed_beside, shell},
};
use crate::{
    judge::{fold::Fold, judge, status},
    model::{Look, Observation, Process, ProcessState, Scope, Snapshot, Verdict},
    report::{Style, table},
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A run that left an orphan, a stopped one and memory on no list, beside a neighbour that grew.
fn sample() -> Observation {
    let neighbour = || process(id(60, 60), shell(), Some(files(23, 2, 4)));
    let own =
        |pid: u32| process(id(pid, 9_900 + u64::from(pid)), vec![ancestor(ROOT, "gpuresid")], Some(files(23, 2, 4)));
    let before = snapshot(listed_beside(0, &[(60, 600)]), vec![neighbour()]);
    let mut fold = Fold::new(&before, Scope::Run, Some(ROOT), NOISE).of_command(COMMAND, "run");
    let stopped = Process { state: ProcessState::Stopped, ..own(902) };
    for n in 1..=8 {
        for process in [&own(901), &stopped] {
            fold.remember(process, n * 100);
        }
        let ghost = if n < 5 { vec![(903, 518)] } else { vec![] };
        let listed: Vec<_> = [(60, 600 + n), (901, 1018), (902, 700)].into_iter().chain(ghost).collect();
        fold.look(&Look { at_ms: n * 100, devices: vec![listed_beside(if n > 4 { 300 } else { 0 }, &listed)] }, n > 6);
    }
    let last = listed_beside(300, &[(60, 608), (901, 1018), (902, 700), (77, 30)]);
    let after = snapshot(last, vec![neighbour(), own(901), stopped]);
    let mut launch = launch(COMMAND, ROOT, Scope::Run, false);
    launch.survivors = vec![own(901).id, own(902).id];
    observation(before, fold.finish(), after, launch)
}

/// A value of any sort in the place of another.
fn odd() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!(0),
        json!(1),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MAX),
        json!(u32::MAX),
        json!(1e300),
        json!(true),
        json!(""),
        json!("\u{1b}[2J\u{202e}x\n"),
        json!([]),
        json!({}),
    ])
}

/// All places in a value, as a path of steps.
fn places(value: &Value, above: &str, found: &mut Vec<String>) {
    let mut step = |name: String, below: &Value| {
        let path = format!("{above}/{name}");
        places(below, &path, found);
        found.push(path);
    };
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, below)| step(name.replace('~', "~0").replace('/', "~1"), below));
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(at, below)| step(at.to_string(), below)),
        _ => {}
    }
}

/// The same with some of its places changed.
fn changed(value: Value) -> impl Strategy<Value = Value> {
    let mut all = Vec::new();
    places(&value, "", &mut all);
    let change = (prop::sample::select(all), odd());
    prop::collection::vec(change, 1..4).prop_map(move |changes| {
        let mut value = value.clone();
        for (path, other) in changes {
            if let Some(place) = value.pointer_mut(&path) {
                *place = other;
            }
        }
        value
    })
}

fn observed() -> Value {
    serde_json::to_value(sample()).unwrap()
}

#[test]
fn the_sample_is_read_and_judged_as_it_is() {
    let read: Observation = serde_json::from_value(observed()).unwrap();
    assert_eq!(judge(&read), judge(&sample()));
    assert_eq!(judge(&sample()).verdict, Verdict::Residue);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_an_observation_holds_it_is_judged(value in changed(observed())) {
        let Ok(observation) = serde_json::from_value::<Observation>(value) else { return Ok(()) };
        let report = judge(&observation);
        for device in &report.devices {
            let high = device.charged_residue_max_bytes;
            prop_assert!(high.is_none_or(|high| high >= device.charged_residue_bytes), "{device:?}");
        }
        let mut out = Vec::new();
        table::check(&report, &Style::default(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        prop_assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    }

    #[test]
    fn whatever_a_snapshot_holds_a_status_is_made_of_it(value in changed(serde_json::to_value(sample().after).unwrap())) {
        let Ok(snapshot) = serde_json::from_value::<Snapshot>(value) else { return Ok(()) };
        let report = status(&snapshot);
        let mut out = Vec::new();
        table::status(&report, &Style::default(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        prop_assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    }
}
