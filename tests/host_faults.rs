//! A host that lets gpuresid down: it is killed or suspended at any moment, has hardly any descriptors, no open streams, or
//! `/proc` changes under its hands. The command runs as ever, files are whole, no process of ours stays, and no verdict is
//! wrong.
//!
//! `KILLS` sets how often it is killed (1000 before a release).
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use support::{Rig, line_of, shell, shell_line, wait_until};

/// Living processes that have this path in their environment: all that was started for a rig.
fn of_the_rig(place: &Path) -> Vec<u32> {
    let place = place.to_str().unwrap().as_bytes();
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        *pid != std::process::id() && environment.windows(place.len()).any(|part| part == place)
    };
    numbers.filter(has).collect()
}

#[test]
fn killed_at_any_moment_it_leaves_the_command_and_the_files_alone() {
    let kills = std::env::var("KILLS").ok().and_then(|n| n.parse::<u32>().ok()).unwrap_or(60);
    let (mut started, mut reported) = (0_u32, 0_u32);
    // As long as it takes undisturbed, for the first of them.
    let mut whole = Duration::from_secs(3600);
    for n in 0..=kills {
        let rig = Rig::new();
        fs::write(rig.path("r.json"), r#"{"old":true}"#).unwrap();
        let place = rig.path("");
        let script = format!("cd {}; echo > started; sleep 0.02; echo 1 > done", place.display());
        let options = format!("--report {}", rig.path("r.json").display());
        let check = rig.launch(rig.check_of(&options, &shell(&script)));
        let begun = Instant::now();
        if n == 0 {
            check.wait().expect_code(0);
            whole = begun.elapsed();
        } else {
            // Anywhere between its first and its last step, by the golden ratio, which leaves no large gaps.
            let moment = begun + whole.mul_f64((f64::from(n) * 0.618_034).fract() * 1.2);
            std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            check.signal(Signal::KILL);
            check.wait();
        }
        wait_until("everybody to be gone", || of_the_rig(rig.ledger.directory()).is_empty());
        let was = |name: &str| rig.path(name).exists();
        assert_eq!(was("started"), was("done"), "kill {n}: the command did not run to its end");
        let report = rig.report("r.json");
        assert!(report["old"] == true || report["verdict"] == "clean", "kill {n}: {report:#}");
        let odd = fs::read_dir(&place).unwrap().flatten().map(|e| e.file_name().into_string().unwrap());
        let odd: Vec<String> = odd.filter(|name| name.contains("r.json") && name != "r.json").collect();
        assert!(odd.is_empty(), "kill {n}: {odd:?}");
        started += u32::from(was("started"));
        reported += u32::from(report["old"] != true);
    }
    println!("{kills} kills: {started} times the command had started, {reported} times the report was there");
    assert!(1 < started && started <= kills, "the kills came all too early, or too late");
}

#[test]
fn suspended_and_woken_it_goes_on() {
    let rig = Rig::new();
    let check = rig.launch(rig.check_of(
        &format!("--report {}", rig.path("r.json").display()),
        &rig.program("alloc 0 512MiB ready up wait-file go"),
    ));
    rig.wait_for("up");
    check.signal(Signal::STOP);
    let state = || fs::read_to_string(format!("/proc/{}/stat", check.pid())).unwrap();
    wait_until("it to be suspended", || state().contains(") T "));
    // The command ends meanwhile, and its memory is back.
    rig.mark("go");
    wait_until("the memory to be back", || rig.used(0) == 0);
    check.signal(Signal::CONT);
    check.wait().expect_code(0);
    assert_eq!(rig.report("r.json")["verdict"], "clean");
}

#[test]
fn with_hardly_any_descriptors_it_says_so_or_is_right() {
    let mut codes = Vec::new();
    for limit in [3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64] {
        let rig = Rig::new();
        let report = rig.path("r.json");
        let options = format!("--settle 300ms --report {}", report.display());
        let command = format!("{} ; ulimit -n 512", "ulimit -Sn 512 2>/dev/null");
        let verbs = rig.program("spawn-session { alloc 0 1GiB ready left hold } wait-file left");
        // The command itself has as many as ever.
        let check = rig.check_of(&options, &shell(&format!("{command}; exec {}", shell_line(verbs))));
        let end = rig.start_of(&shell(&format!("ulimit -Sn {limit}; exec {}", line_of(&check)))).wait();
        let ran = rig.path("left").exists();
        let allowed: &[i32] = if ran { &[121, 122] } else { &[125, 126, 127] };
        assert!(end.code.is_some_and(|code| allowed.contains(&code)), "{limit} descriptors: {end:?}");
        assert!(!end.stderr.contains("panicked"), "{limit} descriptors: {end:?}");
        if let Ok(text) = fs::read_to_string(&report) {
            let verdict = serde_json::from_str::<Value>(&text).unwrap()["verdict"].clone();
            assert!(verdict == "residue" || verdict == "inconclusive", "{limit} descriptors: {verdict}: {end:?}");
        }
        codes.push((limit, end.code));
    }
    println!("{codes:?}");
    assert_eq!(codes.last().and_then(|(_, code)| *code), Some(121), "{codes:?}");
}

#[test]
fn with_closed_streams_the_exit_code_still_tells() {
    for closed in ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        for (verbs, code) in
            [("alloc 0 1GiB", 0), ("spawn-session { alloc 0 1GiB ready left hold } wait-file left", 121)]
        {
            let rig = Rig::new();
            let check = rig.check_of("--settle 300ms", &rig.program(verbs));
            let end = rig.start_of(&shell(&format!("exec {} {closed}", line_of(&check)))).wait();
            assert_eq!(end.code, Some(code), "{closed}: {end:?}");
        }
    }
}

#[test]
fn processes_that_come_and_go_while_it_looks_change_nothing() {
    let rig = Rig::new();
    let _neighbour = rig.start("alloc 0 1GiB ready neighbour hold");
    let neighbour = rig.wait_for("neighbour");
    // Thousands of them, until the rig is gone; none is left to others, who may not wait for them soon.
    let storm = format!("while [ -e {} ]; do (:) & wait; done", rig.ledger.directory().display());
    let storms: Vec<_> = (0..3).map(|_| rig.start_of(&shell(&storm))).collect();
    for _ in 0..12 {
        let report = rig.run("--json").expect_code(0).json();
        assert_eq!(report["holders"][0]["pid"], neighbour, "{report:#}");
        assert_eq!(report["holders"].as_array().map(Vec::len), Some(1), "{report:#}");
        rig.check("", "alloc 0 512MiB").expect_code(0);
    }
    rig.check("--settle 1s", "spawn-session { alloc 0 2GiB ready left hold } wait-file left").expect_code(121);
    storms.into_iter().for_each(support::Running::kill);
}
