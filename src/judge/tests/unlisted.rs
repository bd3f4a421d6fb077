//! Memory on no list, or of nobody who could be named: who may keep it, in which order, and nobody else.

use super::{
    build::{COMMAND, ROOT, ancestor, files, id, process, snapshot},
    causes::{cuda, listed, listed_beside, run, shell},
};
use crate::model::{FindingKind, Process, Report};

/// Of the run and adopted by us.
fn adopted(pid: u32, gpu: u32, control: u32, uvm: u32) -> Process {
    process(id(pid, 50_000 + u64::from(pid)), vec![ancestor(ROOT, "gpuresid")], Some(files(gpu, control, uvm)))
}

fn unlisted_finding(report: &Report) -> &crate::model::Finding {
    report.findings.iter().find(|f| f.kind() == FindingKind::Unattributed).unwrap_or_else(|| panic!("{report:#?}"))
}

#[test]
fn a_number_in_anothers_is_not_taken_for_it() {
    // PID 12 is of the run and listed; PID 123 is not, and keeps a bare handle.
    let own = cuda(12, vec![ancestor(COMMAND, "python3"), ancestor(ROOT, "gpuresid")]);
    let stranger = process(id(123, 1), shell(), Some(files(0, 1, 0)));
    let neighbour = cuda(40, shell());
    let before = snapshot(listed(&[(40, 600)]), vec![stranger.clone(), neighbour.clone()]);
    let after = snapshot(listed_beside(500, &[(12, 900), (40, 600)]), vec![own.clone(), stranger, neighbour]);
    let report = run(before, &[(listed(&[(12, 900), (40, 600)]), vec![own])], after);
    let possible = unlisted_finding(&report).possible.sentences();
    assert!(possible[0].starts_with("managed memory") && possible[0].ends_with("PID 12, 40"), "{possible:#?}");
    assert!(possible[1].contains("PID 123 has only the control file open"), "{possible:#?}");
}

#[test]
fn the_runs_own_is_named_before_others_however_many_they_are() {
    let strangers = (20..28).map(|pid| process(id(pid, 1), shell(), Some(files(0, 1, 0))));
    let neighbour = cuda(40, shell());
    let others = strangers.chain([neighbour]);
    let before = snapshot(listed(&[(40, 600)]), others.clone().collect());
    let after = snapshot(listed_beside(500, &[(40, 600)]), others.chain([adopted(70, 0, 1, 0)]).collect());
    let report = run(before, &[(listed(&[(40, 600)]), vec![adopted(70, 0, 1, 0)])], after);
    let possible = unlisted_finding(&report).possible.sentences();
    assert!(possible[0].contains("PID 70, 20, 21, 22, 23 and 4 more have only"), "{possible:#?}");
}

#[test]
fn of_whom_nobody_could_name_it_is_not_said_that_it_was_not_the_command() {
    // Listed in one look, and gone before anybody could ask who it was.
    let uses_gpu = |now: &[(u32, u64)]| {
        let neighbour = || vec![cuda(40, shell())];
        let (quiet, looks) = (listed(&[(40, 600)]), [listed(&[(40, 600)]), listed(&[(40, 600)]), listed(now)]);
        let looks: Vec<_> = looks.into_iter().map(|look| (look, neighbour())).collect();
        run(snapshot(quiet.clone(), neighbour()), &looks, snapshot(quiet, neighbour())).command.unwrap().used_gpu
    };
    assert_eq!(uses_gpu(&[(40, 600), (901, 1542)]), None);
    // What a neighbour took says nothing of the command.
    assert_eq!(uses_gpu(&[(40, 2142)]), Some(false));
    assert_eq!(uses_gpu(&[(40, 600)]), Some(false));
}
