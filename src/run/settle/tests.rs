//! Settling on paper: a run is a function from time to facts.

use super::*;
use proptest::prelude::*;

const RULES: Rules = Rules { cap: Duration::from_secs(120), quiet: Duration::from_secs(12), tolerated: Bytes::mib(16) };

/// What is so at a time, in the words of the test.
#[derive(Clone, Default)]
struct World {
    members: Vec<(u32, u32, u64, bool)>,
    listed: Option<Bytes>,
    unread: bool,
    entries: usize,
    growth: Bytes,
    undecided: bool,
    told: bool,
    blind: bool,
}

fn empty() -> World {
    World { listed: Some(Bytes::ZERO), ..World::default() }
}

/// Steps through time in tenths of a second; the end and when it came.
fn settle(rules: Rules, world: impl Fn(f64) -> World) -> (SettleEnd, f64) {
    let mut settle = Settle::new(rules);
    for tenth in 0..100_000 {
        let now = Duration::from_millis(tenth * 100);
        let seen = world(now.as_secs_f64());
        let tree = TreeFacts {
            at: now,
            members: seen
                .members
                .iter()
                .map(|(pid, files, cpu_ticks, dying)| {
                    let files = Some(DeviceFiles { nodes: [("nvidia0".to_owned(), *files)].into() });
                    let member = Member { files, cpu_ticks: *cpu_ticks, dying: *dying };
                    (ProcId { pid: *pid, start_ticks: 1 }, member)
                })
                .collect(),
        };
        let all_gone = seen.members.is_empty();
        let look = LookFacts {
            listed: seen.listed,
            complete: !seen.unread,
            entries: seen.entries,
            growth: seen.growth,
            undecided: seen.undecided,
            after_all_gone: all_gone,
        };
        let facts = Facts { now, all_gone, look: Some(look), tree: Some(&tree), blind: seen.blind, told: seen.told };
        if let Step::Done(end) = settle.step(facts) {
            return (end, now.as_secs_f64());
        }
    }
    panic!("settling never ended");
}

#[test]
fn a_clean_run_is_over_at_the_first_look() {
    assert_eq!(settle(RULES, |_| empty()), (SettleEnd::AllGone, 0.0));
    // Growth below the limit cannot change the verdict.
    assert_eq!(settle(RULES, |_| World { growth: Bytes::mib(16), ..empty() }), (SettleEnd::AllGone, 0.0));
}

#[test]
fn a_look_from_before_the_last_end_proves_nothing() {
    let mut settle = Settle::new(RULES);
    let old = LookFacts {
        listed: Some(Bytes::ZERO),
        complete: true,
        entries: 0,
        growth: Bytes::ZERO,
        undecided: false,
        after_all_gone: false,
    };
    let facts = Facts { now: Duration::ZERO, all_gone: true, look: Some(old), tree: None, blind: false, told: false };
    assert_eq!(settle.step(facts), Step::Wait(Waiting::Look));
    let new = LookFacts { after_all_gone: true, ..old };
    assert_eq!(settle.step(Facts { look: Some(new), ..facts }), Step::Done(SettleEnd::AllGone));
}

#[test]
fn memory_of_the_dead_is_waited_for() {
    // Flat for five seconds, then gone in one step, as when host memory is unpinned.
    let late = |t: f64| World { listed: Some(if t < 5.0 { Bytes::gib(4) } else { Bytes::ZERO }), ..empty() };
    assert_eq!(settle(RULES, late), (SettleEnd::AllGone, 5.0));
    let unaccounted = |t: f64| World { growth: if t < 5.0 { Bytes::mib(17) } else { Bytes::ZERO }, ..empty() };
    assert_eq!(settle(RULES, unaccounted), (SettleEnd::AllGone, 5.0));
    // What has stood still for so long is not on its way, and nothing of the run is left that could give it back.
    assert_eq!(settle(RULES, |_| World { listed: Some(Bytes(1)), ..empty() }), (SettleEnd::Unchanged, 12.0));
    assert_eq!(settle(RULES, |_| World { growth: Bytes::mib(256), ..empty() }), (SettleEnd::Unchanged, 12.0));
    let falling = |t: f64| World { listed: Some(Bytes::mib(10_000 - (t as u64) * 10)), ..empty() };
    assert_eq!(settle(RULES, falling), (SettleEnd::Cap, 120.0));
}

#[test]
fn a_doubt_is_looked_at_for_as_long_as_more_looks_may_end_it() {
    let doubt = |until: f64| move |t: f64| World { undecided: t < until, ..empty() };
    assert_eq!(settle(RULES, doubt(0.3)), (SettleEnd::AllGone, 0.3));
    assert_eq!(settle(RULES, doubt(99.0)), (SettleEnd::AllGone, 12.0));
    // From the first doubt on, which is not always the end of the command.
    let mut late = Settle::new(RULES);
    let look = LookFacts {
        listed: Some(Bytes::ZERO),
        complete: true,
        entries: 0,
        growth: Bytes::ZERO,
        undecided: true,
        after_all_gone: true,
    };
    let now = Duration::from_secs(2);
    let facts = Facts { now, all_gone: true, look: Some(look), tree: None, blind: false, told: false };
    assert_eq!(late.step(facts), Step::Wait(Waiting::Telling(Duration::from_secs(14))));
}

#[test]
fn a_gpu_that_cannot_be_read_does_not_end_the_wait_for_another() {
    let late = |t: f64| {
        let listed = Some(if t < 5.0 { Bytes::gib(4) } else { Bytes::ZERO });
        World { listed, unread: true, ..empty() }
    };
    // The other may answer in a moment: it is asked for one more second.
    assert_eq!(settle(RULES, late), (SettleEnd::AllGone, 6.0));
}

#[test]
fn a_quiet_survivor_is_judged_after_the_quiet_time() {
    let quiet = |t: f64| World {
        members: vec![(7, 23, 500 + (t * 5.0) as u64, false)],
        listed: Some(Bytes(Bytes::gib(2).0 + (t as u64 % 2) * Bytes::mib(2).0)),
        ..empty()
    };
    assert_eq!(settle(RULES, quiet), (SettleEnd::Unchanged, 12.0));
}

#[test]
fn a_server_that_still_imports_is_not_judged() {
    // Five seconds of imports at full speed, then the GPU is opened, then it idles.
    let server = |t: f64| World {
        members: vec![(7, if t < 5.0 { 0 } else { 23 }, (t.min(5.0) * 100.0) as u64, false)],
        listed: Some(if t < 6.0 { Bytes::ZERO } else { Bytes::gib(1) }),
        ..empty()
    };
    let (end, at) = settle(RULES, server);
    assert_eq!(end, SettleEnd::Unchanged);
    assert!((18.0..18.2).contains(&at), "{at}");
    // One that goes on working is judged at the cap.
    let busy = |t: f64| World { members: vec![(7, 0, (t * 100.0) as u64, false)], ..empty() };
    assert_eq!(settle(RULES, busy), (SettleEnd::Cap, 120.0));
}

#[test]
fn a_new_number_is_a_change_and_the_dying_are_waited_for() {
    let respawning = |t: f64| World { members: vec![(7 + (t / 10.0) as u32, 0, 0, false)], ..empty() };
    assert_eq!(settle(RULES, respawning), (SettleEnd::Cap, 120.0));
    let killed = |t: f64| {
        let members = if t < 26.0 { vec![(7, 23, 0, true)] } else { Vec::new() };
        World { members, listed: Some(if t < 26.0 { Bytes::gib(9) } else { Bytes::ZERO }), ..empty() }
    };
    assert_eq!(settle(RULES, killed), (SettleEnd::AllGone, 26.0));
}

#[test]
fn holders_outside_the_tree_are_judged_when_quiet() {
    let container = |t: f64| World { listed: Some(if t < 3.0 { Bytes::ZERO } else { Bytes::gib(1) }), ..empty() };
    assert_eq!(settle(RULES, container), (SettleEnd::AllGone, 0.0));
    let stays = |_| World { listed: Some(Bytes::gib(1)), ..empty() };
    assert_eq!(settle(RULES, stays), (SettleEnd::Unchanged, 12.0));
}

#[test]
fn what_the_driver_does_not_tell_is_asked_for_a_second() {
    assert_eq!(settle(RULES, |_| World::default()), (SettleEnd::AllGone, 1.0));
    assert_eq!(settle(RULES, |t| if t < 0.5 { World::default() } else { empty() }), (SettleEnd::AllGone, 0.5));
    assert_eq!(settle(RULES, |_| World { entries: 1, ..World::default() }), (SettleEnd::Unchanged, 12.0));
}

#[test]
fn the_user_and_a_dead_driver_end_it() {
    let told = |t: f64| World { listed: Some(Bytes::gib(1)), told: t >= 2.0, ..empty() };
    assert_eq!(settle(RULES, told), (SettleEnd::Interrupted, 2.0));
    let blind = |t: f64| World { listed: Some(Bytes::gib(1)), blind: t >= 2.0, ..empty() };
    assert_eq!(settle(RULES, blind), (SettleEnd::Blind, 2.0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens: it ends by the cap, it never ends as gone while somebody lives or charged memory is listed,
    /// and never as unchanged within the quiet time of the last change.
    #[test]
    fn never_too_late_and_never_too_early(
        leaves in 0u32..1500, frees in 0u32..1500, last_file in 0u32..1500, cap in 1u64..150, quiet in 1u64..30,
    ) {
        let tenths = |n: u32| f64::from(n) / 10.0;
        let (leaves, frees, last_file) = (tenths(leaves), tenths(frees), tenths(last_file));
        let rules = Rules { cap: Duration::from_secs(cap), quiet: Duration::from_secs(quiet), ..RULES };
        let (end, at) = settle(rules, |t| World {
            members: if t < leaves { vec![(7, if t < last_file { 3 } else { 23 }, 0, false)] } else { Vec::new() },
            listed: Some(if t < frees { Bytes::gib(1) } else { Bytes::ZERO }),
            ..empty()
        });
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let (cap, quiet) = (cap as f64, quiet as f64);
        prop_assert!(at <= cap);
        match end {
            SettleEnd::AllGone => prop_assert!(at >= leaves && at >= frees),
            SettleEnd::Unchanged => {
                prop_assert!(at < leaves || at < frees);
                for change in [last_file.min(leaves), leaves, frees] {
                    prop_assert!(at < change || at - change > quiet - 0.2, "{at} {change}");
                }
            }
            SettleEnd::Cap => prop_assert!(at >= cap),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
