//! Numbers that went to somebody else, tried for real in a private PID namespace, where the next number can be chosen:
//! a ghost whose number an innocent got, and a process that ended between the report and the reclaim.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{ffi::OsString, fs, process::Command};
use support::{Finished, Rig};

/// Runs a shell script in a PID namespace of its own; `$GPURESID` and `$CUDA` are the two programs' command lines, `$RIG`
/// the rig's directory. `None`: that cannot be made here.
fn inside(rig: &Rig, script: &str) -> Option<Finished> {
    let may = Command::new("unshare").args(["-pf", "--mount-proc", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        support::skipped("no private PID namespace can be made here");
        return None;
    }
    let join =
        |words: Vec<OsString>| words.iter().map(|w| w.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ");
    let gpuresid = rig.gpuresid([] as [&str; 0]);
    let mut line: Vec<OsString> = vec![gpuresid.get_program().into()];
    line.extend(gpuresid.get_args().map(Into::into));
    let cuda = join(rig.program(""));
    // The next process gets this number.
    let next = "next() { echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; }";
    let wait = "wait_for() { while [ ! -e \"$RIG/$1\" ]; do sleep 0.01; done; }";
    let script =
        format!("GPURESID='{}'\nCUDA='{cuda}'\nRIG='{}'\n{next}\n{wait}\n{script}", join(line), rig.path("").display());
    let argv: Vec<OsString> = ["unshare", "-pf", "--mount-proc", "sh", "-c"].map(Into::into).to_vec();
    Some(rig.start_of(&[argv, vec![script.into()]].concat()).wait())
}

/// The report of a script that reclaims and ends with 0, or with 41 where the number that it wants was taken meanwhile.
fn reclaimed_inside(rig: &Rig, script: &str) -> Option<Value> {
    // The first process of the namespace has to reap what the check leaves, or the number is never free.
    let end = inside(rig, &format!("trap 'true' CHLD\n{script}"))?;
    if end.code == Some(41) {
        support::skipped("the number was taken meanwhile");
        return None;
    }
    end.expect_code(0);
    Some(rig.report("reclaimed.json"))
}

#[test]
fn an_innocent_with_a_ghosts_number_is_never_signalled() {
    let rig = Rig::new();
    let script = "
        next 700; $CUDA alloc 0 2GiB ready parent fork '{' ready copy hold '}' wait-file go &
        wait_for copy; copy=$(cat $RIG/copy)
        touch $RIG/go; wait $!
        next 700; sleep 300 & innocent=$!
        [ $innocent = 700 ] || exit 40
        $GPURESID reclaim --pid 700 --yes --force 2> $RIG/named; [ $? = 125 ] || exit 41
        kill -0 700 || exit 42
        $GPURESID reclaim --pid $copy --yes --json > $RIG/reclaimed.json || exit 43
        kill -0 700 || exit 44
        kill -0 $copy 2>/dev/null && exit 45
        kill $innocent
        exit 0";
    let Some(end) = inside(&rig, script) else { return };
    end.expect_code(0);
    assert!(fs::read_to_string(rig.path("named")).unwrap().contains("it has no NVIDIA file open"));
    let report = rig.report("reclaimed.json");
    assert_eq!(report["devices"][0]["remaining_bytes"], 0, "{report:#}");
    assert_eq!(rig.used(0), 0);
}

#[test]
fn a_number_reused_since_the_report_is_refused() {
    let rig = Rig::new();
    // The new bearer has a GPU open too, and the same name.
    let script = "
        next 800
        $GPURESID check --settle 500ms --report $RIG/r.json -- $CUDA spawn-session '{' alloc 0 1GiB ready left hold '}' wait-file left
        [ $? = 121 ] || exit 40
        left=$(cat $RIG/left); kill -9 $left; sleep 0.3
        while kill -0 $left 2>/dev/null; do sleep 0.01; done
        next $left; $CUDA alloc 0 1GiB ready other hold & other=$!
        wait_for other
        [ $other = $left ] || exit 41
        $GPURESID reclaim --report $RIG/r.json --yes --force --json > $RIG/reclaimed.json || exit 42
        kill -0 $other || exit 43
        kill -9 $other; exit 0";
    let Some(report) = reclaimed_inside(&rig, script) else { return };
    assert!(report["steps"].as_array().unwrap().is_empty(), "{report:#}");
    let why = report["left_alone"][0]["why"].as_str().unwrap();
    assert!(why.contains("its number belongs to another process now"), "{report:#}");
}

#[test]
fn whoever_got_the_number_of_a_command_that_has_ended_does_not_shield_its_leftovers() {
    let rig = Rig::new();
    let script = "
        next 900; $GPURESID check -- $CUDA spawn-session '{' alloc 0 1GiB ready left hold '}' ready command wait-file never &
        check=$!
        wait_for left; wait_for command; command=$(cat $RIG/command)
        kill -9 $check; kill -9 $command
        while kill -0 $command 2>/dev/null; do sleep 0.01; done
        next $command; sleep 300 & innocent=$!
        [ $innocent = $command ] || exit 41
        $GPURESID reclaim --orphans --yes --json > $RIG/reclaimed.json || exit 42
        kill $innocent || exit 43
        exit 0";
    let Some(report) = reclaimed_inside(&rig, script) else { return };
    assert_eq!(report["steps"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(report["steps"][0]["outcome"], "ended", "{report:#}");
}
