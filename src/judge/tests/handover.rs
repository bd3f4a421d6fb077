//! Memory that changes hands, worked by hand: a look every 0.1 s, one context costs what it does on an H200.

use super::{
    build::{ROOT, ancestor, files, id, process, snapshot},
    causes::{listed_beside, shell},
    settled::settle,
};
use crate::model::{Bytes, Process, Report, Verdict};

const OWN: u32 = 901;
const KEEPER: u32 = 60;

/// What is listed (PID, MiB) and what is on no list (MiB) in one look.
#[derive(Clone, Default)]
struct Moment {
    listed: Vec<(u32, u64)>,
    unlisted: u64,
}

fn moment(listed: &[(u32, u64)], unlisted: u64) -> Moment {
    Moment { listed: listed.to_vec(), unlisted }
}

fn neighbour(pid: u32) -> Process {
    process(id(pid, u64::from(pid)), shell(), Some(files(23, 2, 4)))
}

/// The world at look n (1, 2, …; 0 is the before-look), looked at until `ended` and then for as long as a check would.
/// The report, and how many looks it took.
fn judged(ended: u64, world: impl Fn(u64) -> Moment) -> (Report, u64) {
    judged_with(ended, world, neighbour)
}

fn judged_with(ended: u64, world: impl Fn(u64) -> Moment, other: impl Fn(u32) -> Process) -> (Report, u64) {
    let own = |pid: u32| (OWN..60_000).contains(&pid);
    let person = |pid: u32| match own(pid) {
        true => process(id(pid, 9_001 + u64::from(pid)), vec![ancestor(ROOT, "gpuresid")], Some(files(23, 2, 4))),
        false => other(pid),
    };
    let look = |n: u64| {
        let moment = world(n);
        let processes: Vec<_> = moment.listed.iter().map(|(pid, _)| person(*pid)).collect();
        (n * 100, listed_beside(moment.unlisted, &moment.listed), processes)
    };
    let (_, first, processes) = look(0);
    settle(snapshot(first, processes), ended, |n| Some(look(n)))
}

/// The most that may be the command's, in MiB; the model of a context's cost is off by some KiB.
fn high(report: &Report) -> u64 {
    (report.devices[0].charged_residue_max_bytes.unwrap().0 + (1 << 19)) >> 20
}

#[test]
fn a_quiet_keeper_that_grows_as_the_command_ends_is_a_doubt() {
    let run = |end: u64| {
        judged(end, move |n| match n {
            0 => moment(&[(KEEPER, 2500)], 0),
            n if n < end => moment(&[(KEEPER, 2500), (OWN, 2018)], 0),
            _ => moment(&[(KEEPER, 4000)], 0),
        })
    };
    // 0.1 s of 20.1 s: 0.5 % of 1500 would have been chance.
    let (report, looks) = run(200);
    assert_eq!((report.verdict, high(&report), looks), (Verdict::Inconclusive, 1500, 200));
    assert!(report.devices[0].charged_residue_bytes.0 == 0);
    // 0.1 s of 5.1 s: two per cent is no rarity.
    assert_eq!(run(50).0.verdict, Verdict::Clean);
}

#[test]
fn among_others_that_grow_one_coincides_sooner() {
    let (report, _) = judged(200, |n| {
        let mut listed: Vec<_> = (0..3).map(|i| (KEEPER + 1 + i, if n > 20 { 1000 } else { 500 })).collect();
        listed.push((KEEPER, if n < 200 { 2500 } else { 4000 }));
        if (1..200).contains(&n) {
            listed.push((OWN, 2018));
        }
        moment(&listed, 0)
    });
    assert_eq!(report.verdict, Verdict::Clean);
}

#[test]
fn memory_that_goes_to_no_list_beside_a_neighbour_is_a_doubt() {
    let run = |later: u64, back: u64| {
        judged(6, move |n| match n {
            0 => moment(&[(KEEPER, 600)], 0),
            n if n < 6 => moment(&[(KEEPER, 600), (OWN, 1018)], 0),
            n => moment(&[(KEEPER, 600)], if n >= back { 0 } else { 500 } + if n >= 40 { later } else { 0 }),
        })
    };
    // Looked at until a hundred times the ending look's time was quiet: a hundred looks of 0.1 s.
    let (report, looks) = run(0, u64::MAX);
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 500));
    assert!((100..=108).contains(&looks), "{looks}");
    // Somebody's 400 MiB that came later explain too little of it.
    let (report, _) = run(400, u64::MAX);
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 500));
    // Back at its level: whatever it was, it is not kept.
    let (report, looks) = run(0, 26);
    assert_eq!(report.verdict, Verdict::Clean);
    assert!((26..30).contains(&looks), "{looks}");
}

#[test]
fn a_test_suite_beside_unlisted_memory_that_moves_by_itself() {
    // 150 processes, each of which ends in every fourth look.
    let run = |before: bool| {
        judged(600, move |n| {
            let own = (n % 4 != 0 && n < 600).then_some((OWN + u32::try_from(n / 4).unwrap(), 1018));
            let managed = if n >= 300 { 600 } else { 0 } + if before && (101..131).contains(&n) { 600 } else { 0 };
            moment(&[Some((KEEPER, 600)), own].into_iter().flatten().collect::<Vec<_>>(), managed)
        })
    };
    let (report, _) = run(false);
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 600));
    assert_eq!(run(true).0.verdict, Verdict::Clean);
}

#[test]
fn a_churning_neighbour_is_itself() {
    let (report, looks) = judged(6, |n| {
        let bytes = if n < 3 {
            1030
        } else if n < 6 {
            1542
        } else {
            2542
        };
        let own = (1..6).contains(&n).then_some((OWN, 1518));
        moment(&[Some((KEEPER, bytes)), own].into_iter().flatten().collect::<Vec<_>>(), 0)
    });
    assert_eq!((report.verdict, looks), (Verdict::Clean, 6));
}

#[test]
fn one_torn_look_moves_nothing_and_many_small_moves_add_up() {
    // Off the list one look before it is off the device.
    let (report, looks) = judged(6, |n| match n {
        0 => moment(&[(KEEPER, 600)], 0),
        n if n < 6 => moment(&[(KEEPER, 600), (OWN, 1018)], 0),
        6 => moment(&[(KEEPER, 600)], 1018),
        _ => moment(&[(KEEPER, 600)], 0),
    });
    assert_eq!((report.verdict, looks), (Verdict::Clean, 7));
    // A hundred processes of the run that each leave 10 MiB.
    let (report, _) = judged(400, |n| {
        let own = (n % 4 != 0 && n < 400).then_some((OWN + u32::try_from(n / 4).unwrap(), 1018));
        moment(&[Some((KEEPER, 600)), own].into_iter().flatten().collect::<Vec<_>>(), n.min(400) / 4 * 10)
    });
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 980));
}

#[test]
fn a_proof_of_sharing_needs_no_coincidence_to_be_rare() {
    let consumer =
        |pid: u32| Process { shared_mappings: vec![format!("/dev/shm/cuda.shm.0.{OWN:x}.1")], ..neighbour(pid) };
    let world = |n: u64| match n {
        0 => moment(&[(KEEPER, 518)], 0),
        n if n < 6 => moment(&[(KEEPER, 518), (OWN, 2018)], 0),
        _ => moment(&[(KEEPER, 2018)], 0),
    };
    let (report, _) = judged_with(6, world, consumer);
    assert_eq!(report.verdict, Verdict::Residue);
    assert_eq!(report.devices[0].charged_residue_bytes, Bytes::mib(1500));
    // The same growth without it is the neighbour's own, as far as a short run can tell.
    assert_eq!(judged(6, world).0.verdict, Verdict::Clean);
}

#[test]
fn a_new_bare_control_handle_of_others_is_a_doubt_whatever_chance_says() {
    let bare = |pid: u32| match pid {
        61 => process(id(61, 61), shell(), Some(files(0, 1, 0))),
        pid => neighbour(pid),
    };
    let mut before = snapshot(listed_beside(0, &[(KEEPER, 600)]), vec![neighbour(KEEPER)]);
    let held = |handle: bool| {
        move |n: u64| {
            let listed: Vec<_> =
                [(KEEPER, 600)].into_iter().chain((1..50).contains(&n).then_some((OWN, 1018))).collect();
            // What comes and goes by itself hides the moment.
            let own = process(id(OWN, 9_002), vec![ancestor(ROOT, "gpuresid")], Some(files(23, 2, 4)));
            let mut processes = vec![neighbour(KEEPER)];
            processes.extend((1..50).contains(&n).then_some(own));
            processes.extend((handle && n > 1).then(|| bare(61)));
            Some((n * 100, listed_beside(if n < 30 { 0 } else { 500 }, &listed), processes))
        }
    };
    assert_eq!(settle(before.clone(), 50, held(false)).0.verdict, Verdict::Clean);
    let (report, _) = settle(before.clone(), 50, held(true));
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 500));
    // It was there before, with as much open: it was handed nothing.
    before.processes.as_mut().unwrap().push(bare(61));
    assert_eq!(settle(before, 50, held(true)).0.verdict, Verdict::Clean);
}
