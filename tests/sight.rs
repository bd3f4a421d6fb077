//! From where it is looked: as another user, with hidepid, in a container, in another PID namespace. What cannot be seen
//! is said, with the one step that would show it, and nothing is called clean that cannot be known.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what broke by breaking, and why it is skipped"
)]

mod support;

use serde_json::Value;
use std::{ffi::OsString, process::Command};
use support::{Finished, Rig};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Whether a command that needs rights works here; a test without it says so and ends.
fn allowed(words: &[&str]) -> bool {
    let works = Command::new(words[0]).args(&words[1..]).arg("true").output().is_ok_and(|o| o.status.success());
    if !works {
        eprintln!("skipped: `{}` is not allowed here", words.join(" "));
    }
    works
}

/// A rig that another user can use, behind words that make one; `None`, and said, where that is not allowed.
fn rig_for_others(words: &[&str]) -> Option<Rig> {
    if !allowed(words) {
        return None;
    }
    let rig = Rig::new();
    rig.open_to_everybody();
    Some(rig)
}

/// Runs a command line of ours behind these words.
fn behind(rig: &Rig, words: &[&str], command: &Command) -> Finished {
    rig.start_of(&line_behind(words, command)).wait()
}

fn line_behind(words: &[&str], command: &Command) -> Vec<OsString> {
    let mut line: Vec<OsString> = words.iter().map(Into::into).collect();
    line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    line
}

fn gaps(report: &Value) -> String {
    let gap = |g: &Value| format!("{}: {}\n", g["about"].as_str().unwrap(), g["reason"].as_str().unwrap());
    report["gaps"].as_array().unwrap().iter().map(gap).collect()
}

/// The file is whose the check is: nobody replaces another user's.
fn report_option(rig: &Rig) -> String {
    format!("--settle 1s --report {}", rig.path("r.json").display())
}

#[test]
fn a_neighbour_of_another_user_is_named_and_cannot_be_inspected() {
    let Some(rig) = rig_for_others(&NOBODY) else { return };
    let neighbour = rig.start("alloc 0 3GiB ready up hold");
    let pid = rig.wait_for("up");
    let status = behind(&rig, &NOBODY, &rig.gpuresid(["status", "--json"]));
    let status = status.expect_code(0).json();
    let holder = &status["holders"][0];
    assert_eq!((&holder["pid"], &holder["user"]), (&pid.into(), &"root".into()), "{status:#}");
    assert_eq!(holder["devices"][0]["held_bytes"], (3 * 1024 + 518_u64) << 20, "{status:#}");
    let said = gaps(&status);
    assert!(said.contains("cannot inspect the open files of"), "{said}");
    // Of many the first are named, and whom the driver lists before others.
    assert!(said.contains(&format!("PID {pid} (")) && said.contains(" of root)"), "{said}");
    assert!(said.contains("`sudo gpuresid`"), "{said}");
    let table = behind(&rig, &NOBODY, &rig.gpuresid(["status"])).stdout;
    assert!(table.contains("cannot inspect"), "{table}");
    // The file keeps the plain name, a line to paste has the path where sudo would not find it.
    assert!(table.contains("`sudo /") && table.contains("gpuresid") && !table.contains("sudo gpuresid"), "{table}");
    let hidden = behind(&rig, &NOBODY, &rig.gpuresid(["status", "--redact"])).stdout;
    assert!(hidden.contains("`sudo gpuresid`"), "{hidden}");

    // It changes nothing about a run that is seen to its end, or about what the run leaves.
    let option = report_option(&rig);
    behind(&rig, &NOBODY, &rig.check_of(&option, &rig.program("alloc 0 1GiB sleep 0.3"))).expect_code(0);
    let left = rig.program("spawn-session { alloc 0 1GiB ready left hold } wait-file left");
    behind(&rig, &NOBODY, &rig.check_of(&option, &left)).expect_code(121);
    let report = rig.report("r.json");
    let own: Vec<_> = report["holders"].as_array().unwrap().iter().filter(|h| h["lineage"] == "own").collect();
    assert_eq!((own.len(), &own[0]["pid"]), (1, &rig.wait_for("left").into()), "{report:#}");
    assert_eq!(report["devices"][0]["charged_residue_bytes"], (1024 + 518_u64) << 20, "{report:#}");
    neighbour.kill();
}

#[test]
fn growth_that_only_a_process_of_others_can_explain_is_not_called_clean_or_residue() {
    let Some(rig) = rig_for_others(&NOBODY) else { return };
    let option = report_option(&rig);
    let check = rig.check_of(&option, &rig.program("spawn-session { init ready own hold } wait-file go"));
    let run = rig.start_of(&line_behind(&NOBODY, &check));
    rig.wait_for("own");
    let neighbour = rig.start("managed 0 4GiB ready up hold");
    rig.wait_for("up");
    rig.mark("go");
    run.wait().expect_code(122);
    let report = rig.report("r.json");
    assert!(gaps(&report).contains("cannot inspect"), "{report:#}");
    assert!(report["advice"].to_string().contains("sudo gpuresid"), "{report:#}");
    neighbour.kill();
}

#[test]
fn behind_hidepid_the_hidden_are_out_of_sight_and_the_step_is_root() {
    let mount = "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"";
    let hidden = ["unshare", "--mount", "sh", "-c", mount, "sh"];
    let words: Vec<&str> = hidden.iter().chain(&NOBODY).copied().collect();
    let Some(rig) = rig_for_others(&words) else { return };
    let neighbour = rig.start("alloc 0 3GiB ready up hold");
    let pid = rig.wait_for("up");
    let status = behind(&rig, &words, &rig.gpuresid(["status", "--json"]));
    let status = status.expect_code(0).json();
    let holder = &status["holders"][0];
    assert_eq!((&holder["pid"], &holder["cause"]), (&pid.into(), &"out_of_sight".into()), "{status:#}");
    let said = gaps(&status);
    assert!(said.contains("hidepid") && said.contains("`sudo gpuresid` can"), "{said}");
    assert!(status["ghosts"].as_array().unwrap().is_empty(), "who is hidden is not gone: {status:#}");
    let option = report_option(&rig);
    behind(&rig, &words, &rig.check_of(&option, &rig.program("alloc 0 1GiB sleep 0.3"))).expect_code(0);
    neighbour.kill();
}

#[test]
fn in_a_container_growth_from_outside_is_inconclusive_and_says_where_to_look() {
    let rig = Rig::new();
    let inside = ["unshare", "--pid", "--fork", "--mount-proc"];
    if !allowed(&inside) {
        return;
    }
    let option = report_option(&rig);
    // A clean run there is clean, with the gap said.
    behind(&rig, &inside, &rig.check_of(&option, &rig.program("alloc 0 1GiB sleep 0.3"))).expect_code(0);
    let report = rig.report("r.json");
    assert!(gaps(&report).contains("container") && gaps(&report).contains("on the host"), "{report:#}");
    // What the run itself leaves there is residue.
    let left = rig.program("spawn-session { alloc 0 1GiB ready left hold } wait-file left");
    behind(&rig, &inside, &rig.check_of(&option, &left)).expect_code(121);
    assert_eq!(rig.report("r.json")["holders"][0]["lineage"], "own");
    // Somebody outside grows meanwhile: nobody inside can know whose that is.
    for (scope, code) in [("run", 122), ("device", 121)] {
        let (up, go, beside) = (format!("up-{scope}"), format!("go-{scope}"), format!("beside-{scope}"));
        let program = rig.program(&format!("ready {up} wait-file {go}"));
        let run = rig.start_of(&line_behind(&inside, &rig.check_of(&format!("--scope {scope} {option}"), &program)));
        rig.wait_for(&up);
        let neighbour = rig.start(&format!("alloc 0 4GiB ready {beside} hold"));
        rig.wait_for(&beside);
        rig.mark(&go);
        run.wait().expect_code(code);
        let report = rig.report("r.json");
        assert!(gaps(&report).contains("on the host"), "{report:#}");
        assert!(!report["findings"].to_string().contains("nobody holds"), "{report:#}");
        neighbour.kill();
        support::wait_until("the memory to come back", || rig.used(0) == 0);
    }
}

#[test]
fn with_the_proc_of_another_namespace_nobody_is_said_to_be_gone() {
    let rig = Rig::new();
    // The tool alone in a namespace, with the outer /proc; and the holder in one of its own.
    let inside = ["unshare", "--pid", "--fork"];
    if !allowed(&inside) {
        return;
    }
    let neighbour = rig.start("alloc 0 2GiB ready up hold");
    rig.wait_for("up");
    let status = behind(&rig, &inside, &rig.gpuresid(["status", "--json"]));
    let status = status.expect_code(0).json();
    assert!(gaps(&status).contains("another PID namespace"), "{status:#}");
    assert!(gaps(&status).contains("on the host"), "{status:#}");
    neighbour.kill();
}

#[test]
fn a_holder_inside_a_namespace_is_known_by_both_its_numbers() {
    let rig = Rig::new();
    if !allowed(&["unshare", "--pid", "--fork", "--mount-proc"]) {
        return;
    }
    let outer = rig.start("namespace { alloc 0 2GiB ready up hold } ready outer hold");
    let inner = rig.wait_for("up");
    let status = rig.run("status --json").json();
    let holder = &status["holders"][0];
    assert_eq!(holder["inner_pid"], inner, "{status:#}");
    assert_ne!(holder["pid"], inner, "{status:#}");
    assert!(gaps(&status).lines().all(|g| !g.contains("out of sight")), "{status:#}");
    outer.kill();
}
