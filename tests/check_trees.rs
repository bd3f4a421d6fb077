//! Who is left of a command, and when `check` stops waiting for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::{ffi::OsString, fs, time::Duration};
use support::{Rig, alive, wait_until};

const GIB: u64 = 1 << 30;

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

fn report_option(rig: &Rig) -> String {
    format!("--report {}", rig.path("r.json").display())
}

fn survivors(report: &Value) -> Vec<u64> {
    report["survivors"].as_array().unwrap().iter().map(|s| s["pid"].as_u64().unwrap()).collect()
}

#[test]
fn a_clean_run_is_over_at_once_and_names_its_peak() {
    let rig = Rig::new();
    let neighbour = rig.start("alloc 0 3GiB ready neighbour hold");
    rig.wait_for("neighbour");
    let end = rig.check(&report_option(&rig), "alloc 0 2GiB sleep 0.5");
    end.expect_code(0);
    let report = rig.report("r.json");
    assert_eq!(report["settle_end"], "all_gone");
    assert!(report["settled_seconds"].as_f64().unwrap() < 1.0, "{report}");
    assert!(end.stderr.lines().count() <= 2, "{}", end.stderr);
    let peak = report["devices"][0]["command_peak_bytes"].as_u64().unwrap();
    assert!((2 * GIB..3 * GIB).contains(&peak), "{peak}");
    neighbour.kill();
}

#[test]
fn nobody_hides_from_the_subreaper() {
    for hide in ["spawn-session", "spawn-clean", "daemonize-twice", "namespace"] {
        let rig = Rig::new();
        let verbs = format!("{hide} {{ rename innocent alloc 0 1GiB ready up hold }} wait-file up");
        let end = rig.check(&format!("--settle 1s {}", report_option(&rig)), &verbs);
        end.expect_code(121);
        let report = rig.report("r.json");
        assert!(!survivors(&report).is_empty(), "{hide}: {report}");
        let holder = &report["holders"][0];
        assert_eq!((&holder["lineage"], &report["settle_end"]), (&"own".into(), &"cap".into()), "{hide}: {report}");
        // Found, not ended.
        assert!(alive(holder["pid"].as_u64().unwrap().try_into().unwrap()), "{hide}");
    }
}

#[test]
fn who_waits_for_pid_1_as_its_parent_lives_on_and_is_said_to() {
    let rig = Rig::new();
    let options = format!("--settle 1s {}", report_option(&rig));
    let run = rig.spawn_check(&options, "spawn { alloc 0 1GiB ready up until-adopted } wait-file up");
    run.wait().expect_code(121);
    let holder = &rig.report("r.json")["holders"][0];
    assert_eq!((&holder["pid"], &holder["cause"]), (&rig.wait_for("up").into(), &"orphan".into()));
    let said = "under check its parent is gpuresid, not PID 1: a program that watches for PID 1 does not notice";
    assert!(holder["why"].as_array().unwrap().iter().any(|why| why == said), "{holder}");
}

#[test]
fn who_keeps_the_pipe_of_our_output_open_is_named() {
    let rig = Rig::new();
    // The one keeps it, the other has let it go as a daemon does; neither has a GPU.
    let verbs =
        "spawn-session { ready keeps hold } daemonize-twice { ready daemon hold } wait-file keeps wait-file daemon";
    let mut line = words(&["bash", "-c", "\"$@\" | cat", "sh"]);
    let command = rig.check_of(&format!("--settle 1s {}", report_option(&rig)), &rig.program(verbs));
    line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    let mut run = rig.start_of(&line);
    let keeper = rig.wait_for("keeps");
    let said = format!("PID {keeper} keeps this output open: what reads it");
    wait_until("the verdict", || run.stderr().contains(&said));
    assert!(run.stderr().contains("clean") && run.is_running(), "the shell waits for the pipe");
    let kept: Vec<_> = rig.report("r.json")["findings"].as_array().unwrap().clone();
    assert_eq!(kept.iter().filter(|f| f["kind"] == "output_kept").count(), 1, "{kept:?}");
    rustix::process::kill_process(rustix::process::Pid::from_raw(keeper as i32).unwrap(), Signal::KILL).unwrap();
    run.wait().expect_code(0);
    // In a file nobody waits for anybody.
    let rig = Rig::new();
    let end = rig.check("--settle 1s", "spawn-session { ready keeps hold } wait-file keeps");
    assert!(end.stderr.contains("still runs") && !end.stderr.contains("output open"), "{end:?}");
}

#[test]
fn without_a_terminal_a_long_wait_is_said_once() {
    let verbs = "alloc 0 4GiB late 0 0:4GiB,3500:0B sleep 0.3";
    let rig = Rig::new();
    let end = rig.check("", verbs);
    end.expect_code(0);
    let waiting: Vec<_> = end.stderr.lines().filter(|line| line.contains("waiting")).collect();
    assert_eq!(waiting.len(), 1, "{end:?}");
    assert!(waiting[0].starts_with("gpuresid: waiting for 4") && waiting[0].ends_with(" to come back, at most 120 s"));
    assert!(!end.stderr.contains(['\r', '\x1b']), "{end:?}");
    let end = rig.check("-q", verbs);
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_survivor_without_gpu_is_clean_and_named() {
    let rig = Rig::new();
    let end =
        rig.check(&format!("--settle 1s {}", report_option(&rig)), "daemonize-twice { ready up hold } wait-file up");
    end.expect_code(0);
    let pid = rig.wait_for("up");
    let report = rig.report("r.json");
    assert_eq!(survivors(&report), [u64::from(pid)]);
    assert!(report["findings"].as_array().unwrap().iter().any(|f| f["kind"] == "still_running"), "{report}");
}

#[test]
fn a_server_that_still_imports_is_waited_for_and_then_judged_when_quiet() {
    let rig = Rig::new();
    let end = rig.check(&report_option(&rig), "spawn { slow-import 5 alloc 0 1GiB ready up hold }");
    end.expect_code(121);
    let report = rig.report("r.json");
    assert_eq!(report["settle_end"], "unchanged");
    let settled = report["settled_seconds"].as_f64().unwrap();
    assert!((15.0..40.0).contains(&settled), "{settled}");
    assert_eq!(report["holders"][0]["pid"], rig.wait_for("up"));
}

#[test]
fn a_lost_gpu_does_not_hide_that_the_memory_of_another_is_on_its_way_back() {
    for from_the_start in [true, false] {
        let rig = Rig::with_gpus(2);
        let verbs = if from_the_start {
            rig.lose_gpu(1);
            "alloc 0 4GiB late 0 0:4GiB,3000:0B sleep 0.3"
        } else {
            "alloc 0 4GiB late 0 0:4GiB,3000:0B ready up wait-file lost sleep 0.3"
        };
        let run = rig.spawn_check(&format!("--report {}", rig.path("r.json").display()), verbs);
        if !from_the_start {
            rig.wait_for("up");
            rig.lose_gpu(1);
            rig.mark("lost");
        }
        run.wait();
        let report = rig.report("r.json");
        let verdicts: Vec<&str> =
            report["devices"].as_array().unwrap().iter().map(|d| d["verdict"].as_str().unwrap()).collect();
        assert_eq!(verdicts, ["clean", "inconclusive"], "lost from the start: {from_the_start}: {report:#}");
    }
}

#[test]
fn memory_that_comes_back_late_is_waited_for() {
    let rig = Rig::new();
    let verbs = "alloc 0 4GiB late 0 0:4GiB,1500:1GiB,3000:0B sleep 0.3";
    let end = rig.check(&report_option(&rig), verbs);
    end.expect_code(0);
    let report = rig.report("r.json");
    let settled = report["settled_seconds"].as_f64().unwrap();
    assert!((2.5..8.0).contains(&settled), "{report}");
    // Less patience: it says that memory was still on its way, and how much; but not where none was seen to come back.
    rig.check(&format!("--settle 500ms {}", report_option(&rig)), verbs);
    let draining = |report: &Value| report["findings"].as_array().unwrap().iter().any(|f| f["kind"] == "draining");
    let report = rig.report("r.json");
    assert!(report["settle_end"] == "cap" && !draining(&report), "{report}");
    let rig = Rig::new();
    let verbs = "alloc 0 4GiB late 0 0:4GiB,700:2GiB,9000:0B sleep 0.3";
    let end = rig.check(&format!("--settle 2s {}", report_option(&rig)), verbs);
    let report = rig.report("r.json");
    assert_eq!(report["settle_end"], "cap");
    assert!(draining(&report) && report["devices"][0]["used_after_bytes"].as_u64().unwrap() > GIB, "{report}");
    end.expect_code(121);
}

#[test]
fn a_forked_copy_is_found_behind_its_ghost() {
    let rig = Rig::new();
    let end = rig.check(
        &format!("--settle 1s {}", report_option(&rig)),
        "alloc 0 2GiB sleep 0.3 fork { ready up hold } wait-file up",
    );
    end.expect_code(121);
    let report = rig.report("r.json");
    let child = rig.wait_for("up");
    assert_eq!(report["holders"][0]["pid"], child, "{report}");
    assert_eq!(report["holders"][0]["cause"], "forked_copy", "{report}");
    assert_eq!(report["ghosts"][0]["candidates"], serde_json::json!([child]), "{report}");
}

#[test]
fn a_command_killed_from_outside_is_reported() {
    let rig = Rig::new();
    let run = rig.spawn_check(
        &format!("--settle 1s {}", report_option(&rig)),
        "spawn { alloc 0 1GiB ready up hold } wait-file never",
    );
    let child = rig.wait_for("up");
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    let launcher: i32 = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(launcher).unwrap(), Signal::KILL).unwrap();
    run.wait().expect_signal(Signal::KILL);
    let report = rig.report("r.json");
    assert_eq!((&report["verdict"], &report["command"]["signal"]), (&"residue".into(), &9.into()));
    assert_eq!(report["holders"][0]["pid"], child);
}

#[test]
fn children_from_before_us_are_not_the_runs() {
    // A shell starts something and then becomes us.
    let rig = Rig::new();
    let command = rig.check_of(&report_option(&rig), &words(&["true"]));
    let line: Vec<OsString> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect();
    let mut argv =
        words(&["sh", "-c", "sleep 30 & echo $! > \"$0\"; exec \"$@\"", rig.path("bystander").to_str().unwrap()]);
    argv.extend(line);
    let end = rig.start_of(&argv).wait();
    end.expect_code(0);
    let report = rig.report("r.json");
    assert_eq!((&report["settle_end"], survivors(&report)), (&"all_gone".into(), vec![]));
    let bystander = fs::read_to_string(rig.path("bystander")).unwrap();
    let bystander = rustix::process::Pid::from_raw(bystander.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(bystander, Signal::KILL).unwrap();
}

#[test]
fn what_such_a_child_starts_is_not_the_runs_either() {
    // An entrypoint: a shell starts an agent and then becomes us; the agent starts a holder while the command runs.
    let rig = Rig::new();
    let agent = rig.program("wait-file up spawn { alloc 0 3GiB ready beside hold } hold");
    let options = format!("--sample 20ms {}", report_option(&rig));
    let command = rig.check_of(&options, &rig.program("alloc 0 1GiB ready up wait-file beside wait-file go"));
    let mut argv = words(&["sh", "-c", "python3 \"$0\" $1 & shift; exec \"$@\""]);
    argv.push(agent[1].clone());
    argv.push(agent[2..].join(" ".as_ref()));
    argv.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    let run = rig.start_of(&argv);
    let beside = rig.wait_for("beside");
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_code(0);
    let report = rig.report("r.json");
    assert_eq!((&report["verdict"], survivors(&report)), (&"clean".into(), vec![]));
    let device = &report["devices"][0];
    assert_eq!(device["charged_residue_max_bytes"], 0);
    let peak = device["command_peak_bytes"].as_u64().unwrap();
    assert!((GIB..2 * GIB).contains(&peak), "the holder beside it is counted: {peak}");
    let holder = report["holders"].as_array().unwrap().iter().find(|h| h["pid"] == beside).unwrap();
    assert_eq!((&holder["cause"], &holder["lineage"]), (&"new_neighbour".into(), &"foreign".into()));
}

#[test]
fn as_the_first_process_of_a_namespace() {
    let rig = Rig::new();
    let inside = |options: &str, argv: &[OsString]| {
        let command = rig.check_of(options, argv);
        let mut line = words(&["unshare", "--pid", "--fork", "--mount-proc"]);
        line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
        rig.start_of(&line).wait()
    };
    let end = inside(&report_option(&rig), &words(&["sh", "-c", "sleep 0.1 & exit 0"]));
    end.expect_code(0);
    assert_eq!(rig.report("r.json")["settle_end"], "all_gone");
    // It cannot die of a signal.
    inside("", &words(&["sh", "-c", "kill -TERM $$"])).expect_code(143);
    let end = inside(
        &format!("--settle 1s {}", report_option(&rig)),
        &rig.program("daemonize-twice { alloc 0 1GiB ready up hold } wait-file up"),
    );
    end.expect_code(121);
    assert_eq!(rig.report("r.json")["survivors"].as_array().unwrap().len(), 1);
}

#[test]
fn in_a_namespace_with_the_outer_proc() {
    let rig = Rig::new();
    let command = rig.check_of("--settle 5s", &words(&["sh", "-c", "(sleep 0.2 &) ; exit 4"]));
    let mut line = words(&["unshare", "--pid", "--fork"]);
    line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    rig.start_of(&line).wait().expect_code(4);
}

#[test]
fn with_the_proc_of_a_host() {
    let rig = Rig::new();
    let host = rig.path("host");
    fs::create_dir(&host).unwrap();
    let verbs = "daemonize-twice { alloc 0 1GiB ready up hold } wait-file up";
    let options = format!("--settle 1s --procfs {} {}", host.display(), report_option(&rig));
    let command = rig.check_of(&options, &rig.program(verbs));
    let script = "mount --rbind /proc \"$0\" && mount -t proc proc /proc && \"$@\"; exit $?";
    let mut line = words(&["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, host.to_str().unwrap()]);
    line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    let end = rig.start_of(&line).wait();
    // It stands in the host's /proc under another number than in ours.
    let report = rig.report("r.json");
    assert_eq!(report["survivors"].as_array().unwrap().len(), 1, "{end:?} {report}");
    let pid = survivors(&report)[0];
    let holder = report["holders"].as_array().unwrap().iter().find(|h| h["pid"] == pid);
    let holder = holder.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(holder["lineage"], "own", "{report}");
    assert_eq!(holder["inner_pid"], rig.wait_for("up"), "{report}");
    assert_ne!(holder["inner_pid"], pid, "{report}");
}

#[test]
fn a_check_inside_a_check_charges_its_own() {
    let rig = Rig::new();
    let inner_report = rig.path("inner.json");
    let inner = rig.check_of(&format!("--settle 1s --report {}", inner_report.display()), &words(&["true"]));
    let inner: Vec<String> =
        std::iter::once(inner.get_program()).chain(inner.get_args()).map(|w| w.to_str().unwrap().to_owned()).collect();
    let outer = rig.program("spawn-session { alloc 0 1GiB ready up hold } wait-file up");
    let outer: Vec<String> = outer.iter().map(|w| w.to_str().unwrap().to_owned()).collect();
    // The outer run's process is there before the inner one starts.
    let script = format!("{} && {}", outer.join(" "), inner.join(" "));
    let end = rig
        .launch(rig.check_of(&format!("--settle 1s {}", report_option(&rig)), &words(&["sh", "-c", &script])))
        .wait();
    end.expect_code(121);
    assert_eq!(rig.report("inner.json")["verdict"], "clean");
    assert_eq!(rig.report("r.json")["holders"][0]["pid"], rig.wait_for("up"));
}

#[test]
fn the_time_limit_ends_the_command_and_finds_what_it_left() {
    let rig = Rig::new();
    let end = rig.check(
        &format!("--timeout 4s --settle 1s {}", report_option(&rig)),
        "spawn-session { alloc 0 1GiB ready up hold } wait-file never",
    );
    end.expect_code(124);
    let report = rig.report("r.json");
    assert_eq!((&report["verdict"], &report["command"]["timed_out"]), (&"residue".into(), &true.into()));
    assert_eq!(report["holders"][0]["pid"], rig.wait_for("up"));
}

#[test]
fn a_command_that_ignores_the_time_limit_is_killed() {
    let rig = Rig::new();
    let end = rig.check(&format!("--timeout 4s {}", report_option(&rig)), "ignore TERM alloc 0 1GiB ready up hold");
    end.expect_code(124);
    assert!(end.took > Duration::from_secs(9), "{end:?}");
    assert_eq!(rig.report("r.json")["command"]["signal"], 9);
    assert_eq!(rig.report("r.json")["verdict"], "clean");
}

#[test]
fn no_zombie_gathers_while_the_command_runs() {
    let rig = Rig::new();
    // Each inner shell ends before its child: a hundred orphans for us to bury.
    let script = format!(
        "for i in $(seq 100); do (sleep 0.05 &); done; while [ ! -e {} ]; do sleep 0.02; done",
        rig.path("go").display()
    );
    let run = rig.launch(rig.check_of("", &words(&["sh", "-c", &script])));
    let children = || {
        let list = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap_or_default();
        list.split_ascii_whitespace().count()
    };
    wait_until("the orphans to come", || children() > 1);
    wait_until("the orphans to be buried", || children() == 1);
    rig.mark("go");
    run.wait().expect_code(0);
}
