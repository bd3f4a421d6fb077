//! Properties of the arithmetic on random worlds, one look after each event.

use super::worlds::{Event, Story, Told, tell};
use crate::{
    judge::run::Run,
    model::{Bytes, Lineage, Observation, Verdict},
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
/// The model's cost of contexts is off by some 40 KiB a context; worlds have at most 40 of them.
const TOLERANCE: u64 = 2 * MIB;

fn event() -> impl Strategy<Value = Event> {
    let bytes = (20u64..8000).prop_map(|m| m * MIB);
    let n = 0usize..8;
    prop_oneof![
        3 => bytes.clone().prop_map(Event::Start),
        2 => (n.clone(), bytes.clone()).prop_map(|(n, b)| Event::Grow(n, b)),
        2 => n.clone().prop_map(Event::Shrink),
        1 => (n.clone(), bytes.clone()).prop_map(|(n, b)| Event::Managed(n, b)),
        1 => n.clone().prop_map(Event::Unmanage),
        3 => n.clone().prop_map(Event::End),
        1 => n.prop_map(Event::ForkAndEnd),
        1 => bytes.prop_map(Event::Export),
        1 => Just(Event::Watch),
    ]
}

fn story() -> impl Strategy<Value = Story> {
    (prop::collection::vec(event(), 0..8), prop::collection::vec((any::<bool>(), event()), 1..24))
        .prop_map(|(before, during)| Story { before, during })
}

/// The same story without neighbours.
fn alone(story: &Story) -> Told {
    let during = story.during.iter().filter(|(own, _)| *own).cloned().collect();
    tell(&Story { before: Vec::new(), during })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_truth_lies_within_the_interval(story in story()) {
        let told = tell(&story);
        let truth = told.world.own_truth();
        prop_assert!(told.low() <= truth + TOLERANCE, "low {} > truth {truth}", told.low());
        let high = told.high().expect("every look was complete").0;
        prop_assert!(truth <= high + TOLERANCE, "truth {truth} > high {high}\n{:#?}", told.report.devices);
    }

    #[test]
    fn neighbours_never_raise_low_and_lower_it_by_the_unlisted_at_most(story in story()) {
        let (with, without) = (tell(&story), alone(&story));
        prop_assert!(with.low() <= without.low() + TOLERANCE);
        prop_assert!(without.low() - without.low().min(with.low()) <= with.world.own_unlisted() + TOLERANCE);
        let limit = Bytes::mib(16).0 + TOLERANCE;
        if without.low() > limit && with.low() + TOLERANCE < without.low() {
            prop_assert_ne!(with.report.verdict, Verdict::Clean);
        }
    }

    #[test]
    fn verdicts_follow_the_truth(story in story()) {
        let told = tell(&story);
        let truth = told.world.own_truth();
        match told.report.verdict {
            Verdict::Clean => prop_assert!(truth <= Bytes::mib(16).0 + TOLERANCE, "clean with {truth}"),
            Verdict::Residue => prop_assert!(truth + TOLERANCE > Bytes::mib(16).0, "residue with {truth}"),
            Verdict::Inconclusive => {}
        }
    }

    #[test]
    fn the_interval_closes_when_nothing_is_left_to_doubt(story in story()) {
        let told = tell(&story);
        let run = Run::new(&told.observation);
        let unknown = run.processes.iter().any(|p| run.lineage(p.into()) == Lineage::Unknown)
            || told.report.ghosts.iter().any(|g| g.lineage == Lineage::Unknown);
        let seen = &told.observation.trace.devices[0].handover;
        let coincided = seen.unlisted_then.0 > 0 || seen.growers.iter().any(|g| g.grown_then.0 > 0);
        let handle_of_others = story.during.iter().any(|(own, event)| !own && matches!(event, Event::Export(_)));
        if !told.world.own_alive() && !unknown && !coincided && !handle_of_others {
            prop_assert_eq!(told.high(), Some(Bytes(told.low())));
            prop_assert_eq!(told.report.verdict, Verdict::Clean);
        }
    }

    #[test]
    fn a_stored_observation_is_judged_the_same(story in story()) {
        let told = tell(&story);
        let stored = serde_json::to_string(&told.observation).expect("an observation is JSON");
        let read: Observation = serde_json::from_str(&stored).expect("it reads back");
        prop_assert_eq!(crate::judge::judge(&read), told.report);
    }
}
