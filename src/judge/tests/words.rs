//! The words for processes: of a few all are named, of one it is not said "1 of them".

use super::build::{COMMAND, ROOT, ancestor, entry, files, id, launch, look, observation, process, snapshot};
use crate::{
    judge::{judge, status},
    model::{FindingKind, Gap, Scope, Uninspected},
    report::redact,
};

const CANNOT: &str = "cannot inspect the open files of ";

fn said(pids: &[u32], redacted: bool) -> String {
    let mut snapshot =
        snapshot(look(1 << 30, vec![entry(9, Some(1 << 30))]), vec![process(id(9, 5), Vec::new(), None)]);
    snapshot.host = Some("annex".into());
    snapshot.uninspected =
        pids.iter().map(|pid| Uninspected { id: id(*pid, 5), uid: Some(7), comm: format!("serve\t{pid}") }).collect();
    let mut report = status(&snapshot);
    if redacted {
        redact::status(&snapshot, &mut report);
    }
    let of_these = |gap: &Gap| gap.reason.strip_prefix(CANNOT).map(str::to_owned);
    report.gaps.iter().find_map(of_these).unwrap_or_default()
}

#[test]
fn a_few_are_named_and_of_many_the_first() {
    assert_eq!(said(&[], false), "");
    assert_eq!(said(&[1], false), "PID 1 (serve\\t1); not even root may");
    let three = "PID 1 (serve\\t1), PID 2 (serve\\t2), PID 3 (serve\\t3); not even root may";
    assert_eq!(said(&[3, 1, 2], false), three);
    assert_eq!(said(&[3, 1, 2], true), three, "the name of a program is no user");
    // Whom the driver lists is the one to look for.
    let holder = "PID 9 (serve\\t9 of root)";
    assert_eq!(
        said(&[4, 9, 2, 1, 3], false),
        format!("5 processes: {holder}, PID 1 (serve\\t1), PID 2 (serve\\t2), …; not even root may")
    );
}

/// What is said of own processes with these PIDs that live on, of which these are listed.
fn living(pids: &[u32], listed: &[u32]) -> String {
    let entries: Vec<_> = listed.iter().map(|pid| entry(*pid, Some(1 << 30))).collect();
    let own = |pid: &u32| {
        let above = vec![ancestor(COMMAND, "python"), ancestor(ROOT, "gpuresid")];
        process(id(*pid, 9_100), above, Some(if listed.contains(pid) { files(23, 2, 4) } else { files(0, 0, 0) }))
    };
    let mut launch = launch(COMMAND, ROOT, Scope::Run, false);
    launch.survivors = pids.iter().map(|pid| id(*pid, 9_100)).collect();
    let report = judge(&observation(
        snapshot(look(0, Vec::new()), Vec::new()),
        Default::default(),
        snapshot(look((listed.len() as u64) << 30, entries), pids.iter().map(own).collect()),
        launch,
    ));
    report.findings.into_iter().find(|f| f.kind() == FindingKind::StillRunning).map(|f| f.text()).unwrap_or_default()
}

#[test]
fn who_lives_on_is_spoken_of_in_the_right_number() {
    assert_eq!(living(&[70], &[70]), "1 process of the command still runs (PID 70) and holds GPU memory.");
    assert_eq!(living(&[70], &[]), "1 process of the command still runs (PID 70) and has no GPU open.");
    assert_eq!(living(&[70, 71], &[70, 71]), "2 processes of the command still run (PID 70, 71) and hold GPU memory.");
    assert_eq!(
        living(&[70, 71], &[71]),
        "2 processes of the command still run (PID 70, 71); 1 of them holds GPU memory."
    );
    assert_eq!(
        living(&[70, 71], &[]),
        "2 processes of the command still run (PID 70, 71); none of them has a GPU open."
    );
}
