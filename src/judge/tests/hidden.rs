//! Memory that a living process of the run may hold beside somebody else's that no list names either: what the looks
//! show of it, and what they cannot.

use super::{
    build::{ROOT, ancestor, files, id, process, snapshot},
    causes::{listed_beside, run, shell},
};
use crate::model::{Bytes, DeviceLook, Process, Report, Verdict};

/// A neighbour's memory that no list names: as much before as after.
fn beside_managed_memory(survivor: Process, between: &[DeviceLook]) -> Report {
    let neighbour = process(id(60, 6), shell(), Some(files(23, 2, 4)));
    let with = |more: Option<&Process>| [&neighbour].into_iter().chain(more).cloned().collect::<Vec<_>>();
    let looks: Vec<_> = between.iter().map(|look| (look.clone(), with(Some(&survivor)))).collect();
    let steady = listed_beside(512, &[(60, 522)]);
    run(snapshot(steady.clone(), with(None)), &looks, snapshot(steady, with(Some(&survivor))))
}

#[test]
fn a_handle_that_takes_what_a_neighbour_gives_back_between_two_looks_is_not_clean() {
    let below = || vec![ancestor(ROOT, "gpuresid"), ancestor(id(1, 0), "init")];
    let sleep = process(id(90, 60_000), below(), Some(files(0, 1, 0)));
    let report = beside_managed_memory(sleep, &[]);
    assert_eq!(report.verdict, Verdict::Inconclusive);
    assert!(report.devices[0].charged_residue_max_bytes > Some(Bytes::mib(500)));
    // Who has the GPU itself open may hold memory too, but then it would have risen.
    let opener = process(id(90, 60_000), below(), Some(files(7, 1, 4)));
    assert_eq!(beside_managed_memory(opener.clone(), &[]).verdict, Verdict::Clean);
    // While it could not be read it may have, and gone back elsewhere.
    let mut blind = listed_beside(512, &[(60, 522)]);
    blind.memory = None;
    assert_eq!(beside_managed_memory(opener, &[blind]).verdict, Verdict::Inconclusive);
}
