//! Memory that changes hands, worked by hand: a look every 0.1 s, one context costs what it does on an H200.

use super::{
    build::{COMMAND, NOISE, ROOT, ancestor, files, id, process, snapshot},
    causes::{listed_beside, shell},
    settled::settle,
};
use crate::{
    judge::fold::Fold,
    model::{Bytes, DeviceLook, FindingKind, Look, Process, ProcessState, Report, Scope, Verdict},
};

const OWN: u32 = 901;
const KEEPER: u32 = 60;

/// What is listed (PID, MiB) and what is on no list (MiB) in one look.
#[derive(Clone, Default)]
struct Moment {
    listed: Vec<(u32, u64)>,
    unlisted: u64,
    torn: bool,
}

fn moment(listed: &[(u32, u64)], unlisted: u64) -> Moment {
    Moment { listed: listed.to_vec(), unlisted, torn: false }
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
        let torn = if moment.torn { Bytes::mib(300) } else { Bytes::ZERO };
        (n * 100, DeviceLook { torn, ..listed_beside(moment.unlisted, &moment.listed) }, processes)
    };
    let (_, first, mut processes) = look(0);
    // What was mapped before the run proves nothing.
    processes.iter_mut().for_each(|p| p.shared_mappings.clear());
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

#[test]
fn a_look_that_is_not_of_one_moment_does_not_hide_who_ended_in_it() {
    let (report, _) = judged(6, |n| match n {
        0 => moment(&[(KEEPER, 600)], 0),
        n if n < 6 => moment(&[(KEEPER, 600), (OWN, 1018)], 0),
        n => Moment { torn: n == 6, ..moment(&[(KEEPER, 600)], 500) },
    });
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 500));
    // Where there is none of one moment before or after, what is in use is not known to be nobody's, though no other is there.
    for before in [true, false] {
        let (report, _) = judged(6, |n| match n {
            n if (1..6).contains(&n) => moment(&[(OWN, 1018)], 0),
            n => Moment { torn: (n == 0) == before, ..moment(&[], if n == 0 { 0 } else { 500 }) },
        });
        assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 500), "{before}");
    }
}

#[test]
fn a_rise_of_others_just_before_does_not_hide_one_in_the_ending_look() {
    let (report, _) = judged(200, |n| {
        let own = (1..200).contains(&n).then_some((OWN, 1018));
        let unlisted = if n >= 199 { 70 } else { 0 } + if n >= 200 { 500 } else { 0 };
        moment(&[Some((KEEPER, 600)), own].into_iter().flatten().collect::<Vec<_>>(), unlisted)
    });
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 500));
}

#[test]
fn what_the_keeper_gave_back_before_does_not_hide_what_came_to_it() {
    let world = |n: u64| match n {
        0 => moment(&[(KEEPER, 2500)], 0),
        n if n < 50 => moment(&[(KEEPER, 2500), (OWN, 2018)], 0),
        n if n < 200 => moment(&[(KEEPER, 1000), (OWN, 2018)], 0),
        _ => moment(&[(KEEPER, 2500)], 0),
    };
    let (report, _) = judged(200, world);
    assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 1500));
    let maps = |pid: u32| Process { shared_mappings: vec![format!("/dev/shm/cuda.shm.0.{OWN:x}.1")], ..neighbour(pid) };
    assert_eq!(judged_with(200, world, maps).0.verdict, Verdict::Residue);
}

#[test]
fn a_mapping_from_before_was_named_after_an_earlier_bearer_of_the_number() {
    let old = || Process { shared_mappings: vec![format!("/dev/shm/cuda.shm.0.{OWN:x}.1")], ..neighbour(KEEPER) };
    let own = || process(id(OWN, 9_902), vec![ancestor(ROOT, "gpuresid")], Some(files(23, 2, 4)));
    let before = snapshot(listed_beside(0, &[(KEEPER, 518)]), vec![old()]);
    let (report, _) = settle(before, 6, |n| match n {
        n if n < 6 => Some((n * 100, listed_beside(0, &[(KEEPER, 518), (OWN, 2018)]), vec![old(), own()])),
        n => Some((n * 100, listed_beside(0, &[(KEEPER, 2018)]), vec![old()])),
    });
    assert_eq!(report.verdict, Verdict::Clean);
}

#[test]
fn who_is_charged_for_is_not_said_to_have_grown_for_nothing() {
    let stopped = |pid: u32| Process {
        shared_mappings: vec![format!("/dev/shm/cuda.shm.0.{OWN:x}.1")],
        state: ProcessState::Stopped,
        ..neighbour(pid)
    };
    let world = |n: u64| match n {
        0 => moment(&[(KEEPER, 518)], 0),
        n if n < 6 => moment(&[(KEEPER, 518), (OWN, 2018)], 0),
        _ => moment(&[(KEEPER, 2018)], 0),
    };
    let (report, _) = judged_with(6, world, stopped);
    assert_eq!(report.verdict, Verdict::Residue);
    assert!(report.findings.iter().all(|f| f.kind() != FindingKind::Grown), "{:?}", report.findings);
}

/// Beside a neighbour with 500 MiB on no list, who gives them back before the command leaves as much.
fn beside_one_that_gave_back(handle: bool) -> Report {
    let before = snapshot(listed_beside(500, &[(KEEPER, 600)]), vec![neighbour(KEEPER)]);
    let look = |n: u64| {
        let own = (n < 6).then_some((OWN, 1018));
        let listed: Vec<_> = [Some((KEEPER, 600)), own].into_iter().flatten().collect();
        let own = process(id(OWN, 9_902), vec![ancestor(ROOT, "gpuresid")], Some(files(23, 2, 4)));
        let bare = process(id(61, 61), shell(), Some(files(0, 1, 0)));
        let processes =
            [Some(neighbour(KEEPER)), (n < 6).then_some(own), (handle && n > 1).then_some(bare)].into_iter().flatten();
        Some((n * 100, listed_beside(if (3..6).contains(&n) { 0 } else { 500 }, &listed), processes.collect()))
    };
    settle(before, 6, look).0
}

#[test]
fn a_bare_handle_of_others_does_not_take_a_doubt_away() {
    for handle in [false, true] {
        let report = beside_one_that_gave_back(handle);
        assert_eq!((report.verdict, high(&report)), (Verdict::Inconclusive, 500), "{handle}");
    }
}

#[test]
fn a_program_that_draws_has_no_bare_handle() {
    let (report, _) = judged_with(
        50,
        |n| {
            let draws = (n > 10).then_some((62, 300));
            let own = (1..50).contains(&n).then_some((OWN, 1018));
            let listed: Vec<_> = [Some((KEEPER, 600)), draws, own].into_iter().flatten().collect();
            moment(&listed, if n > 20 { 150 } else { 0 })
        },
        |pid| Process { files: Some(if pid == 62 { files(12, 1, 0) } else { files(23, 2, 4) }), ..neighbour(pid) },
    );
    assert_eq!(report.verdict, Verdict::Clean);
}

#[test]
fn nobody_is_to_be_ended_whose_handle_and_run_are_guesses() {
    let service = || Process {
        age_seconds: Some(20),
        ..process(id(20_000, 50_000), vec![ancestor(id(1, 0), "init")], Some(files(0, 1, 0)))
    };
    let before = snapshot(listed_beside(0, &[(KEEPER, 600)]), vec![neighbour(KEEPER)]);
    let (report, _) = settle(before, 50, |n| {
        let own = process(id(OWN, 9_902), vec![ancestor(ROOT, "gpuresid")], Some(files(23, 2, 4)));
        let listed: Vec<_> = [Some((KEEPER, 600)), (n < 50).then_some((OWN, 1018))].into_iter().flatten().collect();
        let processes = [Some(neighbour(KEEPER)), (n < 50).then_some(own), (n > 10).then(service)];
        let unlisted = if n > 20 { 200 } else { 0 };
        Some((n * 100, listed_beside(unlisted, &listed), processes.into_iter().flatten().collect()))
    });
    assert_eq!(report.verdict, Verdict::Inconclusive);
    let told: Vec<_> = report.advice.iter().filter_map(|a| a.command.as_deref()).collect();
    assert!(told.iter().all(|command| !command.contains("kill")), "{told:?}");
}

#[test]
fn whoever_came_meanwhile_is_not_to_be_ended_whatever_its_state() {
    let stranger = || process(id(20_000, 50_000), vec![ancestor(id(1, 0), "init")], Some(files(23, 2, 4)));
    let stopped = Process { state: ProcessState::Stopped, ..stranger() };
    let half_dead = Process { state: ProcessState::Zombie, leader_gone: true, ..stranger() };
    let copy = Process { files: Some(files(23, 1, 3)), ..stranger() };
    for (what, mib, who) in [("stopped", 600, stopped), ("half dead", 600, half_dead), ("a copy", 0, copy)] {
        let before = snapshot(listed_beside(0, &[(KEEPER, 600)]), vec![neighbour(KEEPER)]);
        let (report, _) = settle(before, 2, |n| {
            let listed = [Some((KEEPER, 600)), (mib > 0).then_some((who.id.pid, mib))];
            let listed: Vec<_> = listed.into_iter().flatten().collect();
            (n < 40).then(|| (n * 100, listed_beside(0, &listed), vec![neighbour(KEEPER), who.clone()]))
        });
        let told: Vec<_> = report.advice.iter().filter_map(|a| a.command.as_deref()).collect();
        assert!(told.iter().all(|command| !command.contains("kill")), "{what}: {told:?}");
        assert!(mib == 0 || report.verdict == Verdict::Inconclusive && !told.is_empty(), "{what}: {report:#?}");
    }
}

#[test]
fn where_all_growth_is_charged_nothing_is_looked_at_any_longer() {
    let before = snapshot(listed_beside(0, &[(KEEPER, 600)]), vec![neighbour(KEEPER)]);
    let undecided = |scope| {
        let mut fold = Fold::new(&before, scope, Some(ROOT), NOISE).of_command(COMMAND, "run");
        let own = process(id(OWN, 9_902), vec![ancestor(ROOT, "gpuresid")], Some(files(23, 2, 4)));
        fold.remember(&own, 100);
        for n in 1..=20 {
            let listed: &[(u32, u64)] = if n < 10 { &[(KEEPER, 600), (OWN, 1018)] } else { &[(KEEPER, 600)] };
            let unlisted = if n < 10 { 0 } else { 500 };
            fold.look(&Look { at_ms: n * 100, devices: vec![listed_beside(unlisted, listed)] }, n >= 10);
        }
        fold.charge().undecided
    };
    assert!(undecided(Scope::Run) && !undecided(Scope::Device));
}

#[test]
fn who_carries_the_marker_is_charged_while_it_runs_too() {
    let before = snapshot(listed_beside(0, &[]), Vec::new());
    let charged = |marker: Option<&str>| {
        let mut fold = Fold::new(&before, Scope::Run, Some(ROOT), NOISE).of_command(COMMAND, "run");
        let outside = process(id(OWN, 9_902), vec![ancestor(id(1, 0), "init")], Some(files(23, 2, 4)));
        fold.remember(&Process { marker: marker.map(Into::into), ..outside }, 100);
        fold.look(&Look { at_ms: 100, devices: vec![listed_beside(0, &[(OWN, 600)])] }, true);
        fold.charge().entries
    };
    assert_eq!((charged(Some("run")), charged(Some("another")), charged(None)), (1, 0, 0));
}

#[test]
fn where_nothing_is_noise_nothing_that_did_not_rise_is_looked_at() {
    let before = snapshot(listed_beside(0, &[(KEEPER, 600)]), vec![neighbour(KEEPER)]);
    let mut fold = Fold::new(&before, Scope::Run, Some(ROOT), Bytes::ZERO);
    fold.look(&Look { at_ms: 100, devices: vec![before.devices[0].look.clone()] }, true);
    assert!(!fold.charge().undecided);
}

#[test]
fn what_is_long_explained_is_not_looked_at_any_more() {
    // Memory of a neighbour that grows in steps, the first of which fell into an ending look.
    let (report, looks) = judged(600, |n| {
        let own = (n % 4 != 0 && n < 600).then_some((OWN + u32::try_from(n / 4).unwrap(), 1018));
        let unlisted = if n >= 4 { 600 } else { 0 } + n.min(500) / 50 * 600;
        moment(&[Some((KEEPER, 600)), own].into_iter().flatten().collect::<Vec<_>>(), unlisted)
    });
    assert_eq!((report.verdict, looks), (Verdict::Clean, 600));
}
