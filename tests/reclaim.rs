//! `reclaim` against a fake machine with real processes: each kind of target, and everybody who must be left alone.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};
use support::{Finished, Rig, Running, alive, marker_of_an_ended_run, start_ticks, wait_until};

const MIB: u64 = 1 << 20;

fn step(report: &Value, pid: u32) -> &Value {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().find(|s| s["pid"] == pid).unwrap_or_else(|| panic!("no step for {pid} in {report:#}"))
}

fn left_alone(report: &Value, pid: u32) -> String {
    let left = report["left_alone"].as_array().unwrap();
    let one = left.iter().find(|l| l["pid"] == pid).unwrap_or_else(|| panic!("{pid} is not named in {report:#}"));
    one["why"].as_str().unwrap().to_owned()
}

/// A program with the marker of a run that has ended, left to PID 1.
fn left_over(rig: &Rig, verbs: &str) -> Running {
    rig.start_marked(&rig.program(&format!("daemonize-twice {{ {verbs} }}")), &marker_of_an_ended_run())
}

/// Checks a command that leaves things behind; the report's option for reclaim.
fn checked(rig: &Rig, verbs: &str) -> String {
    let report = rig.path("r.json").display().to_string();
    rig.check(&format!("--settle 1s --report {report}"), verbs);
    format!("--report {report}")
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        support::skipped("this needs root");
    }
    root
}

/// Everything came back, and it says so.
#[track_caller]
fn all_back(rig: &Rig, end: &Finished) -> Value {
    end.expect_code(0);
    assert_eq!(rig.used(0), 0, "{}", end.stdout);
    end.json()
}

// ---- the targets ----------------------------------------------------------------------------------------------------

#[test]
fn a_plan_comes_first_and_does_nothing() {
    let rig = Rig::new();
    let running = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {pid}"));
    end.expect_code(0);
    for words in [
        "reclaim: plan to end 1 process, which should give back 1542 MiB",
        &format!(" 1. PID {pid} of "),
        "signals: TERM\n",
        "gives back: 1542 MiB on GPU 0",
        "Disturbs: ",
        "Nothing was done. To carry this out:\n  ",
        &format!(" reclaim --pid {pid} --yes\n"),
    ] {
        assert!(end.stdout.contains(words), "{words} is not in {}", end.stdout);
    }
    assert_eq!(end.stderr, "");
    let plan = rig.run(&format!("reclaim --pid {pid} --json --force")).json();
    assert_eq!((&plan["schema"], &plan["carried_out"]), (&"gpuresid.reclaim/1".into(), &false.into()));
    assert_eq!(step(&plan, pid)["signals"], serde_json::json!(["TERM", "KILL"]));
    assert_eq!(plan["devices"][0]["expected_bytes"], 1542 * MIB);
    assert!(alive(pid));
    drop(running);
}

#[test]
fn the_plan_ends_with_the_line_that_carries_it_out() {
    let rig = Rig::new();
    let mut running = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up").to_string();
    let plan = rig.launch(rig.gpuresid(["-i", "0", "reclaim", "--pid", &pid, "--grace", "9 s"])).wait();
    let line = plan.expect_code(0).stdout.lines().last().unwrap().trim();
    assert!(line.ends_with(&format!(" -i 0 reclaim --pid {pid} --grace '9 s' --yes")), "{line}");
    let end = rig.start_of(&["sh".into(), "-c".into(), line.into()]).wait();
    assert!(end.expect_code(0).stdout.starts_with("reclaim: done: 1542 MiB came back"), "{}", end.stdout);
    assert!(!running.is_running());
    // By its name if a shell finds it, else by its path; also in advice.
    let named = format!("gpuresid --nvml-lib {} --dev ", rig.library().display());
    assert!(line.starts_with(&named), "{line}");
    let plan_of = |pid: &str| {
        let mut command = rig.gpuresid(["reclaim", "--pid", pid]);
        command.env("PATH", "/usr/bin:/bin");
        rig.launch(command).wait()
    };
    let _third = rig.start("alloc 0 1GiB ready third hold");
    let plan = plan_of(&rig.wait_for("third").to_string());
    let line = plan.expect_code(0).stdout.lines().last().unwrap().trim().to_owned();
    assert!(line.starts_with(&format!("{} --nvml-lib ", env!("CARGO_BIN_EXE_gpuresid"))), "{line}");
    let refused = plan_of("1");
    let hint = format!("see who holds memory: {}\n", env!("CARGO_BIN_EXE_gpuresid"));
    assert!(refused.stderr.contains(&hint), "{}", refused.stderr);
    // A name in it may be one that is to be hidden.
    let _other = rig.start("alloc 0 1GiB ready other hold");
    let plan = rig.run(&format!("reclaim --pid {} --redact", rig.wait_for("other")));
    assert!(plan.expect_code(0).stdout.ends_with("To carry this out, add --yes.\n"), "{}", plan.stdout);
}

#[test]
fn where_nobody_is_to_end_it_says_so() {
    let rig = Rig::new();
    let report = rig.path("r.json").display().to_string();
    let mut gone = rig.start("alloc 0 1GiB ready gone exit 0");
    let gone = {
        rig.wait_for("gone");
        let pid = gone.pid();
        wait_until("its end", || !gone.is_running());
        pid
    };
    rig.check(&format!("--report {report}"), "alloc 0 1GiB exit 0").expect_code(0);
    for (options, words) in [
        ("--orphans".to_owned(), "nobody to end: no process of yours seems left over".to_owned()),
        (
            "--orphans --older-than 10m".into(),
            "nobody to end: no process of yours that was started at least 10m ago seems left over".into(),
        ),
        (format!("--report {report}"), "nobody to end: the report names no process that outlived its run".into()),
        (format!("--pid {gone}"), format!("nobody to end: PID {gone} has ended already")),
    ] {
        for yes in ["", " --yes"] {
            let end = rig.run(&format!("reclaim {options}{yes}"));
            let text = &end.expect_code(0).stdout;
            assert!(text.starts_with(&format!("reclaim: {words}\n")), "{options}{yes}: {text}");
            assert!(!text.contains("came back") && !text.contains("DEVICE"), "{options}{yes}: {text}");
        }
    }
    let _running = rig.start("alloc 0 1GiB ready running hold");
    rig.wait_for("running");
    rig.fault(support::Fault { function: "nvmlDeviceGetMemoryInfo*".into(), code: Some(999), ..Default::default() });
    let end = rig.run("reclaim --orphans");
    let words = "reclaim: too little could be seen, so nothing was done";
    assert!(end.expect_code(122).stdout.starts_with(words), "{}", end.stdout);
}

#[test]
fn a_named_process_ends_and_its_bytes_come_back() {
    let rig = Rig::new();
    let neighbour = rig.start("alloc 0 3GiB ready neighbour hold");
    rig.wait_for("neighbour");
    let before = rig.used(0);
    let mut running = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {pid} --yes --json"));
    end.expect_code(0);
    let report = end.json();
    assert_eq!(step(&report, pid)["outcome"], "ended");
    assert_eq!(step(&report, pid)["sent"], serde_json::json!(["TERM"]));
    let device = &report["devices"][0];
    assert_eq!((&device["came_back_bytes"], &device["remaining_bytes"]), (&(1542 * MIB).into(), &0.into()));
    assert!(!running.is_running());
    assert!(alive(neighbour.pid()));
    assert!(rig.used(0) <= before);
    // One line a decision.
    assert!(end.stderr.contains(&format!("gpuresid: reclaim: PID {pid} (")), "{}", end.stderr);
    assert!(
        end.stderr.contains("TERM sent; its start time, user, and an open NVIDIA file were seen"),
        "{}",
        end.stderr
    );
}

#[test]
fn a_report_names_own_leftovers_of_every_kind() {
    for (kind, verbs) in [
        ("orphan", "spawn-session { alloc 0 1GiB ready up hold } wait-file up"),
        ("forked copy", "alloc 0 1GiB sleep 0.3 fork { ready up hold } wait-file up"),
        ("stopped", "spawn-session { alloc 0 1GiB ready up stop-self hold } wait-file up sleep 0.2"),
        ("half dead", "spawn-session { alloc 0 1GiB exit-main-thread ready up hold } wait-file up"),
        ("erased environment", "spawn-session { alloc 0 1GiB settitle python ready up hold } wait-file up"),
        ("handle", "export-handle 0 1GiB"),
    ] {
        let rig = Rig::new();
        let option = checked(&rig, verbs);
        assert!(rig.used(0) > 1024 * MIB, "{kind}: the program left nothing");
        let end = rig.run(&format!("reclaim {option} --yes --json"));
        assert_eq!((end.code, rig.used(0)), (Some(0), 0), "{kind}: {} {}", end.stdout, end.stderr);
        let back = end.json()["devices"][0]["came_back_bytes"].as_u64().unwrap();
        assert!(back >= 1024 * MIB, "{kind}: {}", end.stdout);
        // Again: they are gone, which is fine.
        let again = rig.run(&format!("reclaim {option} --yes --json"));
        again.expect_code(0);
        assert!(again.json()["steps"].as_array().unwrap().is_empty(), "{}", again.stdout);
    }
}

#[test]
fn orphans_are_those_with_a_sign() {
    let rig = Rig::new();
    let _left = left_over(&rig, "alloc 0 1GiB ready left hold");
    let left = rig.wait_for("left");
    // As with nohup: its parent is gone, nothing else is known.
    rig.start("daemonize-twice { alloc 0 2GiB ready detached hold } wait-file detached").wait().expect_code(0);
    let detached = rig.wait_for("detached");
    let _working = rig.start("alloc 0 1GiB ready working hold");
    let working = rig.wait_for("working");
    // A copy whose parent is gone, but of no known run.
    rig.start("alloc 0 1GiB fork-and-exit ready copy hold").wait().expect_code(0);
    let copy = rig.wait_for("copy");
    let young = rig.run("reclaim --orphans --older-than 1h --yes --json");
    young.expect_code(0);
    assert!(left_alone(&young.json(), left).contains("less than 1h ago"), "{}", young.stdout);
    assert!(alive(left));
    let end = rig.run("reclaim --orphans --yes --json");
    let report = end.expect_code(0).json();
    assert_eq!(report["steps"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(step(&report, left)["outcome"], "ended");
    assert!(left_alone(&report, detached).contains("detached"), "{report:#}");
    assert!(left_alone(&report, copy).contains("nothing shows that its run has ended"), "{report:#}");
    assert!(!alive(left) && alive(detached) && alive(working) && alive(copy));
}

#[test]
fn a_run_whose_check_was_killed_goes_on_until_its_command_has_ended() {
    let rig = Rig::new();
    let check = rig.spawn_check(
        "",
        "spawn-session { alloc 0 1GiB ready worker hold } spawn-session { alloc 0 1GiB ready stopped stop-self hold } \
         alloc 0 2GiB ready command wait-file over",
    );
    let (command, worker, stopped) = (rig.wait_for("command"), rig.wait_for("worker"), rig.wait_for("stopped"));
    wait_until("the stop", || support::state(stopped) == Some('T'));
    check.signal(Signal::KILL);
    check.wait();
    let end = rig.run("reclaim --orphans --yes --json");
    assert_eq!(end.expect_code(0).json()["steps"], serde_json::json!([]), "{}", end.stdout);
    let end = rig.run("--json");
    assert!(!end.stdout.contains("has ended"), "{}", end.stdout);
    assert!([command, worker, stopped].into_iter().all(alive));
    // What the command leaves behind is proven then, also without a check that saw it.
    rig.mark("over");
    wait_until("the command's end", || !alive(command));
    let end = rig.run("reclaim --orphans --yes --json");
    let report = all_back(&rig, &end);
    assert!([worker, stopped].into_iter().all(|pid| step(&report, pid)["outcome"] == "ended"), "{report:#}");
}

#[test]
fn a_command_that_goes_on_under_another_marker_has_not_ended() {
    for other in ["$GPURESID_RUN_ID:0d5c1c2a-1-2-snapshot", "0d5c1c2a-1-2-snapshot"] {
        let rig = Rig::new();
        let cuda: Vec<_> = rig.program("").into_iter().map(|word| word.into_string().unwrap()).collect();
        // As after `eval "$(gpuresid snapshot --env)"`, then `exec`.
        let script = format!(
            "{} spawn-session '{{' alloc 0 1GiB ready worker hold '}}' wait-file worker; export GPURESID_RUN_ID={other}; \
             exec {} ready command wait-file over",
            cuda.join(" "),
            cuda.join(" ")
        );
        let check = rig.launch(rig.check_of("", &["sh".into(), "-c".into(), script.into()]));
        let (worker, command) = (rig.wait_for("worker"), rig.wait_for("command"));
        check.signal(Signal::KILL);
        check.wait();
        let end = rig.run("reclaim --orphans --yes --json");
        assert_eq!(end.expect_code(0).json()["steps"], serde_json::json!([]), "{}", end.stdout);
        assert!(alive(worker) && alive(command), "{other}");
        rig.mark("over");
        wait_until("the command's end", || !alive(command));
        let end = rig.run("reclaim --orphans --yes --json");
        assert_eq!(step(&all_back(&rig, &end), worker)["outcome"], "ended");
    }
}

#[test]
fn a_job_is_known_by_its_control_group() {
    if !is_root() {
        return;
    }
    let Some(group) = Group::new("slurm/uid_0/job_77/step_0") else { return };
    let rig = Rig::new();
    let _member = rig.start("alloc 0 1GiB ready member hold");
    let _other = rig.start("alloc 0 1GiB ready other hold");
    let (member, other) = (rig.wait_for("member"), rig.wait_for("other"));
    group.add(member);
    rig.run("reclaim --job 78 --yes").expect_code(122);
    assert!(alive(member));
    let end = rig.run("reclaim --job 77 --yes --json");
    assert_eq!(step(&end.expect_code(0).json(), member)["outcome"], "ended");
    assert!(!alive(member) && alive(other));
    // One that left the group is known by its environment.
    let mut command = rig.beside(&rig.program("alloc 0 1GiB ready stray hold"));
    command.env("SLURM_JOB_ID", "77");
    let _stray = rig.launch(command);
    let stray = rig.wait_for("stray");
    rig.run("reclaim --job 77 --yes").expect_code(0);
    assert!(!alive(stray) && alive(other));
}

#[test]
fn a_job_that_is_not_here_is_no_success_but_to_its_own_hook() {
    let rig = Rig::new();
    let missed = rig.run("reclaim --job 1234 --yes");
    let words =
        "reclaim: nobody to end: no process of job 1234 is seen here: it has ended, or it runs on another machine\n";
    assert!(missed.expect_code(122).stdout.starts_with(words), "{}", missed.stdout);
    // As in an epilog: the job has left nobody.
    let mut hook = rig.gpuresid(["reclaim", "--job", "1234", "--yes"]);
    hook.env("SLURM_JOB_ID", "1234");
    let hook = rig.launch(hook).wait();
    let words = "reclaim: nobody to end: no process of job 1234 has a GPU open\n";
    assert!(hook.expect_code(0).stdout.starts_with(words), "{}", hook.stdout);
}

#[test]
fn a_task_of_an_array_is_told_its_number() {
    let rig = Rig::new();
    let start = |name: &str, task: &str, job: &str| {
        let mut command = rig.beside(&rig.program(&format!("alloc 0 1GiB ready {name} hold")));
        command.env("SLURM_ARRAY_JOB_ID", "104").env("SLURM_ARRAY_TASK_ID", task).env("SLURM_JOB_ID", job);
        (rig.launch(command), rig.wait_for(name))
    };
    // The last task of an array has the number of the whole.
    let ((_two, two), (_last, last)) = (start("two", "2", "106"), start("last", "3", "104"));
    let named = rig.run("reclaim --job 104_2 --yes");
    let text = &named.expect_code(125).stderr;
    assert!(text.contains("104_2 is a task of an array, and Slurm gives each a job number of its own"), "{text}");
    assert!(text.contains(&format!("PID {two} (")) && text.ends_with("gpuresid reclaim --job 106\n"), "{text}");
    assert!(alive(two) && alive(last));
    let unknown = rig.run("reclaim --job 104_9");
    assert!(unknown.expect_code(125).stderr.contains("squeue -h -j 104_9 -o %A"), "{}", unknown.stderr);
    let plan = rig.run("reclaim --job 106 --yes --json").expect_code(0).json();
    assert_eq!((&plan["steps"][0]["pid"], plan["steps"].as_array().unwrap().len()), (&two.into(), 1));
    // The number of the whole ends the one task that has it, and none of the others.
    let (_two, two) = start("again", "2", "107");
    rig.run("reclaim --job 104 --yes").expect_code(0);
    assert!(!alive(last) && alive(two));
}

#[test]
fn the_main_process_of_a_service_is_who_was_started_as_it_and_not_who_is_older() {
    if !is_root() {
        return;
    }
    let Some(group) = Group::new("gpuresid-test-main.service") else { return };
    let rig = Rig::new();
    // What an earlier run of the service left, and the service as it was started again: children of PID 1 both.
    rig.start("daemonize-twice { alloc 0 1GiB ready left hold } wait-file left").wait().expect_code(0);
    let left = rig.wait_for("left");
    let program = rig.program("alloc 0 1GiB ready main hold");
    let words: Vec<_> = program.iter().map(|word| word.to_str().unwrap()).collect();
    let start = format!("SYSTEMD_EXEC_PID=$$ exec {}", words.join(" "));
    rig.start_of(&["setsid", "-f", "sh", "-c", &start].map(OsString::from)).wait().expect_code(0);
    let main = rig.wait_for("main");
    wait_until("PID 1 to adopt", || [left, main].into_iter().all(|pid| support::parent(pid) == Some(1)));
    [left, main].into_iter().for_each(|pid| group.add(pid));
    let refused = rig.run(&format!("reclaim --pid {main} --yes"));
    let why = "it is the main process of gpuresid-test-main.service; if it is to end: systemctl stop gpuresid-test-main.service";
    assert!(refused.expect_code(125).stderr.contains(why), "{}", refused.stderr);
    let end = rig.run(&format!("reclaim --pid {left} --yes --json"));
    assert_eq!(step(&end.expect_code(0).json(), left)["outcome"], "ended");
    assert!(alive(main) && !alive(left));
}

/// A control group of a hierarchy that this machine lets us use; removed with the value.
struct Group(std::path::PathBuf);

impl Group {
    fn new(path: &str) -> Option<Self> {
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"] {
            let place = Path::new(root).join(path);
            if fs::create_dir_all(&place).is_ok() && place.join("cgroup.procs").exists() {
                return Some(Self(place));
            }
            let _ = fs::remove_dir(&place);
        }
        support::skipped("no control group can be made here");
        None
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its members have ended, or are moved out.
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let root = self.0.ancestors().find(|a| a.parent() == Some(Path::new("/sys/fs/cgroup")));
            let root = root.filter(|r| r.join("cgroup.procs").exists()).unwrap_or(Path::new("/sys/fs/cgroup"));
            let _ = fs::write(root.join("cgroup.procs"), pid);
        }
        let mut place = self.0.clone();
        while fs::remove_dir(&place).is_ok() {
            place.pop();
        }
    }
}

// ---- those who resist -----------------------------------------------------------------------------------------------

#[test]
fn term_that_is_ignored_takes_force() {
    let rig = Rig::new();
    let _running = rig.start("ignore TERM alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {pid} --grace 300ms --yes --json"));
    let report = end.expect_code(121).json();
    assert_eq!(step(&report, pid)["outcome"], "lives");
    assert_eq!(report["devices"][0]["remaining_bytes"], 1542 * MIB);
    let advice = report["advice"][0]["command"].as_str().unwrap().to_owned();
    assert_eq!(advice, format!("gpuresid reclaim --pid {pid} --force --yes"));
    assert!(alive(pid));
    let end = rig.run(&format!("{} --grace 300ms --json", advice.strip_prefix("gpuresid ").unwrap()));
    let report = all_back(&rig, &end);
    assert_eq!(step(&report, pid)["sent"], serde_json::json!(["TERM", "KILL"]));
}

#[test]
fn nobody_waits_for_the_memory_of_those_who_live_on() {
    let rig = Rig::new();
    let _stubborn = rig.start("ignore TERM alloc 0 1GiB ready stubborn hold");
    let _ends = rig.start("alloc 0 2GiB ready ends hold");
    let (stubborn, ends) = (rig.wait_for("stubborn"), rig.wait_for("ends"));
    // With a patience that no test has.
    let end = rig.run(&format!("reclaim --pid {stubborn} --pid {ends} --grace 300ms --settle 24h --yes --json"));
    let report = end.expect_code(121).json();
    assert_eq!(
        (&step(&report, stubborn)["outcome"], &step(&report, ends)["outcome"]),
        (&"lives".into(), &"ended".into())
    );
    assert_eq!(report["devices"][0]["remaining_bytes"], 1542 * MIB);
    assert_eq!(report["devices"][0]["came_back_bytes"], (2048 + 518) * MIB);
}

#[test]
fn who_is_on_its_way_out_when_its_grace_is_over_has_not_resisted() {
    for threads in ["", "exit-main-thread"] {
        let rig = Rig::new();
        // The kernel takes a moment to tear this memory down.
        let _running = rig.start(&format!("alloc 0 1GiB eat 2GiB {threads} ready up hold"));
        let pid = rig.wait_for("up");
        let end = rig.run(&format!("reclaim --pid {pid} --grace 40ms --yes --json"));
        assert_eq!(step(&all_back(&rig, &end), pid)["outcome"], "ended", "{threads}");
    }
}

#[test]
fn a_stopped_process_is_let_go_on_to_end() {
    let rig = Rig::new();
    let _running = rig.start("alloc 0 1GiB ready up stop-self hold");
    let pid = rig.wait_for("up");
    wait_until("it to stop", || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T "));
    let plan = rig.run(&format!("reclaim --pid {pid} --json")).json();
    assert_eq!(step(&plan, pid)["signals"], serde_json::json!(["TERM", "CONT"]));
    let end = rig.run(&format!("reclaim --pid {pid} --yes --json"));
    assert_eq!(step(&all_back(&rig, &end), pid)["sent"], serde_json::json!(["TERM", "CONT"]));
}

#[test]
fn an_agent_that_starts_its_workers_again_goes_first() {
    // What a check left: agent and workers are of the run.
    let rig = Rig::new();
    let option = checked(&rig, "spawn-session { supervise 2 { alloc 0 1GiB ready up hold } } wait-file up sleep 0.5");
    let plan = rig.run(&format!("reclaim {option} --json")).json();
    let roles: Vec<&str> = plan["steps"].as_array().unwrap().iter().map(|s| s["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["supervisor", "holder", "holder"], "{plan:#}");
    let agent = u32::try_from(plan["steps"][0]["pid"].as_u64().unwrap()).unwrap();
    let end = rig.run(&format!("reclaim {option} --yes --json"));
    all_back(&rig, &end);
    assert!(!alive(agent));
    // Nobody is started any more.
    assert_eq!(rig.run("status --json").json()["holders"], Value::Array(vec![]));
}

#[test]
fn a_worker_alone_is_started_again_and_that_is_said() {
    let rig = Rig::new();
    let mut agent = rig.start("supervise 1 { alloc 0 1GiB ready up hold }");
    let worker = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {worker} --yes --json --settle 2s"));
    let report = end.expect_code(121).json();
    let advice = report["advice"][0]["command"].as_str().unwrap().to_owned();
    assert!(advice.ends_with(&format!("--pid {}", agent.pid())), "{advice}");
    wait_until("the new worker", || rig.used(0) > 1024 * MIB);
    // The advice is followed; the worker may be another by now only if somebody ended it.
    let end = rig.run(&format!("{} --yes --json", advice.strip_prefix("gpuresid ").unwrap()));
    let report = all_back(&rig, &end);
    assert_eq!(report["steps"][0]["role"], "supervisor", "{report:#}");
    assert!(!agent.is_running());
}

#[test]
fn who_may_start_it_again_is_named_before_and_looked_for_afterwards() {
    let rig = Rig::new();
    let mut nanny = rig.start("nanny 1 { alloc 0 1GiB ready worker hold }");
    let worker = rig.wait_for("worker");
    let first = format!("reclaim --pid {worker} --pid {}", nanny.pid());
    let plan = rig.run(&format!("reclaim --pid {worker}"));
    let text = plan.expect_code(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("PID {} (", nanny.pid())), "{text}");
    assert!(text.contains("started it, is still alive, and may start it again. To end that first: gpuresid"), "{text}");
    assert!(text.contains(&first), "{text}");
    // All is back at once, and a second later it is not.
    let end = rig.run(&format!("reclaim --pid {worker} --yes --json"));
    let report = end.expect_code(121).json();
    assert_eq!(step(&report, worker)["outcome"], "ended");
    wait_until("the new worker", || rig.wait_for("worker") != worker);
    assert_eq!(step(&report, worker)["restarter"]["pid"], nanny.pid());
    assert!(end.stderr.contains("may start it again"), "{}", end.stderr);
    assert_eq!(report["started_again"], serde_json::json!([rig.wait_for("worker")]), "{report:#}");
    let advice = report["advice"][0].clone();
    assert!(advice["why"].as_str().unwrap().contains("has started it again, as PID"), "{advice}");
    let command = advice["command"].as_str().unwrap().strip_prefix("gpuresid ").unwrap();
    all_back(&rig, &rig.run(&format!("{command} --yes --json")));
    assert!(!nanny.is_running());
}

#[test]
fn what_was_taken_again_did_come_back() {
    let rig = Rig::new();
    let _nanny = rig.start("nanny 1 { alloc 0 1GiB ready worker hold }");
    let worker = rig.wait_for("worker");
    let end = rig.run(&format!("reclaim --pid {worker} --yes"));
    let head = end.expect_code(121).stdout.lines().next().unwrap().to_owned();
    wait_until("the new worker", || rig.wait_for("worker") != worker);
    let new = rig.wait_for("worker");
    assert_eq!(head, format!("reclaim: started again: 1542 MiB came back; PID {new} was started in its place"));
    // One that stays is another matter.
    let _firm = rig.start("ignore TERM alloc 0 1GiB ready firm hold");
    let end = rig.run(&format!("reclaim --pid {} --grace 100ms --yes", rig.wait_for("firm")));
    assert!(end.expect_code(121).stdout.starts_with("reclaim: not all came back: 0 B came back\n"), "{}", end.stdout);
}

#[test]
fn an_amount_that_is_not_known_is_not_0() {
    let plan = |rig: &Rig, pid: u32| rig.run(&format!("reclaim --pid {pid}")).expect_code(0).stdout.clone();
    // Its handle keeps memory that is on no list.
    let rig = Rig::new();
    rig.start("alloc 0 1GiB export-handle 0 2GiB sleep 0.2").wait();
    let keeper = rig.run("status --json").json()["holders"][0]["pid"].as_u64().unwrap();
    let text = plan(&rig, u32::try_from(keeper).unwrap());
    for words in [
        "reclaim: plan to end 1 process, which may give back up to 2051 MiB\n",
        "gives back: not known yet; up to 2051 MiB on GPU 0, which no process list names\n",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // It has the GPU open, and there is nothing that it could keep.
    let rig = Rig::new();
    let _open = rig.start("open nvidiactl 2 open nvidia0 2 ready up hold");
    let text = plan(&rig, rig.wait_for("up"));
    for words in [
        "reclaim: plan to end 1 process; how much it gives back is not known yet\n",
        "gives back: not known yet: the driver lists no memory for it\n",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Beside one whose memory is known.
    let _known = rig.start("alloc 0 1GiB ready known hold");
    let (open, known) = (rig.wait_for("up"), rig.wait_for("known"));
    let end = rig.run(&format!("reclaim --pid {open} --pid {known}"));
    let words = "reclaim: plan to end 2 processes, which should give back 1542 MiB or more\n";
    assert!(end.stdout.starts_with(words), "{}", end.stdout);
    let plan = rig.run(&format!("reclaim --pid {open} --pid {known} --json")).json();
    assert_eq!(plan["devices"][0]["expected_bytes"], Value::Null);
}

#[test]
fn a_parent_that_starts_nobody_again_is_no_trouble() {
    let rig = Rig::new();
    let block = "alloc 0 1GiB ready one hold";
    let mut parent = rig.start(&format!("spawn {{ {block} }} wait-file one sleep 0.1 spawn {{ {block} }} hold"));
    let one = rig.wait_for("one");
    // Its brother has the same command line, and was there before.
    wait_until("its brother", || rig.used(0) > 2048 * MIB);
    let end = rig.run(&format!("reclaim --pid {one} --yes --json"));
    assert_eq!(step(&end.expect_code(0).json(), one)["restarter"]["pid"], parent.pid());
    assert!(parent.is_running() && rig.used(0) > 1024 * MIB);
}

#[test]
fn a_server_of_mps_is_not_ended_under_its_clients() {
    let rig = Rig::new();
    let daemon = "rename nvidia-cuda-mps fork { rename nvidia-cuda-mps context 0 ready server hold } hold";
    let mut daemon = rig.beside(&rig.program(daemon));
    daemon.env("CUDA_MPS_PIPE_DIRECTORY", "/run/mps-7");
    let mut daemon = rig.launch(daemon);
    let server_pid = rig.wait_for("server");
    let client = rig.start("alloc 0 1GiB lists 0 compute,mps ready client hold");
    let client_pid = rig.wait_for("client");
    for yes in ["", " --yes"] {
        let refused = rig.run(&format!("reclaim --pid {server_pid}{yes}"));
        let text = &refused.expect_code(125).stderr;
        assert!(text.contains(&format!("would lose the GPU with it: PID {client_pid} (")), "{text}");
        let quit = "echo quit | CUDA_MPS_PIPE_DIRECTORY=/run/mps-7 nvidia-cuda-mps-control";
        assert!(text.contains(quit) && text.contains(&format!("--pid {server_pid} --pid {client_pid}")), "{text}");
    }
    assert!(alive(server_pid) && alive(client_pid));
    let end = rig.run(&format!("reclaim --pid {server_pid} --pid {client_pid} --yes --json"));
    all_back(&rig, &end);
    assert!(daemon.is_running() && !alive(server_pid) && !alive(client_pid));
    drop(client);
}

/// A launcher in Python by the name of torchrun; `on_term` is what it does when it is asked to end.
fn torchrun(rig: &Rig, workers: &[&str], on_term: &str) -> Running {
    let path = rig.path("torchrun");
    let script = format!(
        "import signal, subprocess, sys, os, time\n\
         def start(verbs): subprocess.Popen([sys.executable, *sys.argv[1:], *verbs.split()], start_new_session=True)\n\
         def wait(name):\n    while not os.path.exists(os.path.join({directory:?}, name)): time.sleep(0.005)\n\
         def term(*_):\n    {on_term}\n    os._exit(0)\n\
         signal.signal(signal.SIGTERM, term)\n\
         for verbs in {workers:?}: start(verbs)\n\
         while True: time.sleep(1)\n",
        directory = rig.path(""),
    );
    fs::write(&path, script).unwrap();
    let program = rig.program("");
    rig.start_of(&["python3".into(), path.into(), program[1].clone()])
}

#[test]
fn a_manager_of_others_is_not_ended_for_one_program_of_its_but_told() {
    let rig = Rig::new();
    let script = "import os, subprocess, sys, time\n\
                  env = {**os.environ, 'SUPERVISOR_ENABLED': '1', 'SUPERVISOR_GROUP_NAME': 'ml'}\n\
                  for name in ['nginx', 'cron']: subprocess.Popen(['sleep', '300'], env={**env, 'SUPERVISOR_PROCESS_NAME': name})\n\
                  env['SUPERVISOR_PROCESS_NAME'] = 'trainer'\n\
                  while True: subprocess.call([sys.executable, *sys.argv[1:]], env=env)\n";
    fs::write(rig.path("supervisord"), script).unwrap();
    let program = rig.program("alloc 0 1GiB ready worker hold");
    let argv = [vec!["python3".into(), rig.path("supervisord").into()], program[1..].to_vec()].concat();
    let mut manager = rig.start_of(&argv);
    let worker = rig.wait_for("worker");
    let sleepers = || support::children(manager.pid()).into_iter().filter(|pid| *pid != worker).collect::<Vec<_>>();
    wait_until("the others", || sleepers().len() == 2);
    let others = sleepers();
    let plan = rig.run(&format!("reclaim --pid {worker}"));
    let text = plan.expect_code(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let words =
        "started it, is still alive, and may start it again. To stop it for good: supervisorctl stop ml:trainer";
    assert!(text.contains(words), "{text}");
    let refused = rig.run(&format!("reclaim --pid {worker} --pid {} --yes --force", manager.pid()));
    let why = " and 1 more), and ending it may end them.";
    assert!(refused.expect_code(125).stderr.contains(why), "{}", refused.stderr);
    let end = rig.run(&format!("reclaim --pid {worker} --yes --json"));
    let report = end.expect_code(121).json();
    assert_eq!(report["steps"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(report["advice"][0]["command"], "supervisorctl stop ml:trainer", "{report:#}");
    assert!(manager.is_running() && others.into_iter().all(alive) && !alive(worker));
}

#[test]
fn an_agent_takes_nobody_with_it_who_stood_there_before_the_plan() {
    let rig = Rig::new();
    let workers = ["alloc 0 1GiB ready worker hold", "alloc 0 2GiB ready other hold"];
    let mut agent = torchrun(&rig, &workers, "start('alloc 0 1GiB ready born hold'); wait('born'); time.sleep(1)");
    let (worker, other) = (rig.wait_for("worker"), rig.wait_for("other"));
    // It is not ended for what was named, but told.
    let report = rig.run(&format!("reclaim --pid {worker} --json")).json();
    assert_eq!(report["steps"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(step(&report, worker)["restarter"]["pid"], agent.pid(), "{report:#}");
    // Named too, it is refused as long as somebody else hangs on it, and nobody is ended.
    let both = format!("reclaim --pid {worker} --pid {} --yes", agent.pid());
    let end = rig.run(&both);
    end.expect_code(125);
    assert!(end.stderr.contains(&format!("it has started others too (PID {other}, ")), "{}", end.stderr);
    assert!(alive(worker) && alive(other) && agent.is_running(), "{}", end.stderr);
    let report = rig.run(&format!("{both} --pid {other} --json --settle 2s")).json();
    assert!(!alive(worker) && !alive(other) && !agent.is_running(), "{report:#}");
    // Nobody has decided about whom it started on its way out.
    assert!(alive(rig.wait_for("born")), "{report:#}");
}

#[test]
fn a_multiplexer_is_no_agent_by_the_command_line_that_started_it() {
    let rig = Rig::new();
    // A server keeps the words of its first session as its own command line.
    let script = "import ctypes, subprocess, sys, time\n\
                  ctypes.CDLL(None).prctl(15, b'tmux: server', 0, 0, 0)\n\
                  for verbs in ['alloc 0 1GiB ready worker hold', 'alloc 0 2GiB ready other hold']:\n    \
                  subprocess.Popen([sys.executable, sys.argv[1], *verbs.split()], start_new_session=True)\n\
                  while True: time.sleep(1)\n";
    let program = rig.program("");
    let words = ["new-session", "-d", "python", "-m", "torch.distributed.run", "train.py"].map(Into::into);
    fs::write(rig.path("tmux"), script).unwrap();
    let mut argv = vec!["python3".into(), rig.path("tmux").into(), program[1].clone()];
    argv.extend(words);
    let mut server = rig.start_of(&argv);
    let (worker, other) = (rig.wait_for("worker"), rig.wait_for("other"));
    let report = rig.run(&format!("reclaim --pid {worker} --yes --json --settle 2s")).json();
    assert_eq!(report["steps"].as_array().unwrap().len(), 1, "{report:#}");
    assert!(!alive(worker) && alive(other) && server.is_running(), "{report:#}");
    // Named together with a worker it is refused as well.
    let end = rig.run(&format!("reclaim --pid {other} --pid {} --yes", server.pid()));
    assert!(format!("{}{}", end.stdout, end.stderr).contains("sessions hang on it"), "{} {}", end.stdout, end.stderr);
    assert!(server.is_running());
}

#[test]
fn an_agent_that_ignores_term_shields_its_workers_until_forced() {
    let rig = Rig::new();
    let marker = marker_of_an_ended_run();
    // A shell that starts its worker again whatever happens, and ignores TERM.
    let script = "trap '' TERM; while :; do \"$@\"; done";
    let shell = ["sh", "-c", script, "sh"].map(OsString::from);
    let argv = [shell.to_vec(), rig.program("alloc 0 1GiB ready up hold")].concat();
    let mut agent = rig.start_marked(&argv, &marker);
    let worker = rig.wait_for("up");
    let both = format!("--pid {worker} --pid {}", agent.pid());
    let report = rig.run(&format!("reclaim {both} --grace 200ms --settle 1s --yes --json")).expect_code(121).json();
    assert_eq!(step(&report, worker)["outcome"], "refused", "{report:#}");
    assert!(alive(worker));
    let end = rig.run(&format!("reclaim {both} --grace 200ms --force --yes --json"));
    let report = end.expect_code(0).json();
    assert_eq!(report["steps"][0]["sent"], serde_json::json!(["TERM", "KILL"]), "{report:#}");
    assert!(!agent.is_running() && !alive(worker));
    assert_eq!(rig.used(0), 0);
}

// ---- those who are left alone ---------------------------------------------------------------------------------------

#[test]
fn a_process_without_an_nvidia_file_is_refused() {
    let rig = Rig::new();
    let _innocent = rig.start("ready up hold");
    let pid = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {pid} --yes"));
    end.expect_code(125);
    assert!(end.stderr.contains("it has no NVIDIA file open"), "{}", end.stderr);
    assert!(alive(pid));
    // One refusal stops all of it.
    let _holder = rig.start("alloc 0 1GiB ready holder hold");
    let holder = rig.wait_for("holder");
    rig.run(&format!("reclaim --pid {pid},{holder} --yes --force")).expect_code(125);
    assert!(alive(pid) && alive(holder));
}

#[test]
fn the_first_process_ourselves_and_our_ancestors_are_refused() {
    let rig = Rig::new();
    let end = rig.run("reclaim --pid 1 --yes --force --all-users");
    end.expect_code(125);
    assert!(end.stderr.contains("PID 1"), "{}", end.stderr);
    let end = rig.run(&format!("reclaim --pid {} --yes --force", std::process::id()));
    end.expect_code(125);
    assert!(end.stderr.contains("gpuresid runs below it"), "{}", end.stderr);
    // A CUDA program that runs us: a test runner that reclaims in its own tree.
    let mut argv: Vec<_> = rig.program("alloc 0 1GiB ready up");
    argv.clear();
    let script = "import os,sys,subprocess\nfd=os.open(sys.argv[1],os.O_RDWR)\n\
                  sys.exit(subprocess.run(sys.argv[2:]+['--pid',str(os.getpid())]).returncode)";
    let gpuresid = rig.gpuresid(["reclaim", "--yes", "--force"]);
    argv.extend(["python3".into(), "-c".into(), script.into(), rig.dev().join("nvidia0").into_os_string()]);
    argv.push(gpuresid.get_program().into());
    argv.extend(gpuresid.get_args().map(Into::into));
    let end = rig.start_of(&argv).wait();
    end.expect_code(125);
    assert!(end.stderr.contains("gpuresid runs below it"), "{}", end.stderr);
}

#[test]
fn a_display_server_is_refused() {
    let rig = Rig::new();
    let _display = rig.start("rename Xorg alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {pid} --yes --force"));
    end.expect_code(125);
    assert!(end.stderr.contains("part of the display"), "{}", end.stderr);
    assert!(alive(pid));
}

#[test]
fn the_main_process_of_a_service_is_refused_and_its_leftover_is_not() {
    if !is_root() {
        return;
    }
    let Some(group) = Group::new("gpuresid-test.service") else { return };
    let rig = Rig::new();
    rig.start("daemonize-twice { alloc 0 1GiB ready main hold } wait-file main").wait().expect_code(0);
    let main = rig.wait_for("main");
    let parent = || {
        let stat = fs::read_to_string(format!("/proc/{main}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    wait_until("its adoption", || parent() != "0");
    if parent() != "1" {
        support::skipped("orphans do not go to PID 1 here");
        return;
    }
    group.add(main);
    let end = rig.run(&format!("reclaim --pid {main} --yes --force"));
    end.expect_code(125);
    assert!(end.stderr.contains("systemctl stop gpuresid-test.service"), "{}", end.stderr);
    // What a worker of the service left behind has the same parent by now, and nothing tells the two apart.
    rig.start("daemonize-twice { alloc 0 1GiB ready left hold } wait-file left").wait().expect_code(0);
    let left = rig.wait_for("left");
    group.add(left);
    for pid in [main, left] {
        let refused = rig.run(&format!("reclaim --pid {pid} --yes"));
        let why = "it may be the main process of gpuresid-test.service, and systemd could not be asked";
        assert!(refused.expect_code(125).stderr.contains(why), "{}", refused.stderr);
    }
    assert!(alive(main) && alive(left));
}

#[test]
fn a_containers_processes_are_refused() {
    if !is_root() {
        return;
    }
    let rig = Rig::new();
    let _running = rig.start("namespace { alloc 0 1GiB ready up hold } wait-children");
    rig.wait_for("up");
    let holders = rig.run("status --json").json()["holders"].clone();
    let pid = holders[0]["pid"].as_u64().unwrap();
    let end = rig.run(&format!("reclaim --pid {pid} --yes --force"));
    end.expect_code(125);
    assert!(end.stderr.contains("container"), "{}", end.stderr);
    assert!(alive(u32::try_from(pid).unwrap()));
}

#[test]
fn a_neighbour_named_like_the_target_is_not_touched() {
    let rig = Rig::new();
    let option = checked(&rig, "spawn-session { rename trainer alloc 0 1GiB ready up hold } wait-file up");
    let _twin = rig.start("rename trainer alloc 0 1GiB ready twin hold");
    let twin = rig.wait_for("twin");
    rig.run(&format!("reclaim {option} --yes")).expect_code(0);
    assert!(alive(twin) && !alive(rig.wait_for("up")));
}

#[test]
fn other_users_are_left_alone() {
    if !is_root() {
        return;
    }
    let rig = Rig::new();
    let _theirs = left_over(&rig, "setuid 65534 alloc 0 1GiB ready theirs hold");
    let theirs = rig.wait_for("theirs");
    // As root without --all-users.
    let end = rig.run(&format!("reclaim --pid {theirs} --yes"));
    end.expect_code(125);
    assert!(end.stderr.contains(&format!("gpuresid reclaim --all-users --pid {theirs} --yes")), "{}", end.stderr);
    let end = rig.run("reclaim --orphans --yes --json");
    assert!(left_alone(&end.expect_code(0).json(), theirs).contains("belongs to"), "{}", end.stdout);
    assert!(alive(theirs));
    // As nobody, against root's.
    let _roots = rig.start("alloc 0 1GiB ready roots hold");
    let roots = rig.wait_for("roots");
    let end = as_nobody(&rig, &["reclaim", "--pid", &roots.to_string(), "--yes", "--force", "--all-users"]);
    end.expect_code(125);
    // Where sudo does not find it by its name, with its path.
    let copy = rig.path("gpuresid-copy");
    let with_sudo = format!("sudo {} reclaim --all-users --pid {roots} --yes", copy.display());
    assert!(end.stderr.contains(&with_sudo), "{}", end.stderr);
    assert!(alive(roots));
    // A sign is not enough to end what belongs to others, also for root; a decision by number is.
    let end = rig.run("reclaim --orphans --all-users --yes --json");
    let why = left_alone(&end.expect_code(0).json(), theirs);
    let by_number = format!("gpuresid reclaim --all-users --pid {theirs} --yes");
    assert!(why.contains("a sign is not enough to end it") && why.ends_with(&by_number), "{why}");
    assert!(alive(theirs));
    rig.run(by_number.strip_prefix("gpuresid ").unwrap()).expect_code(0);
    assert!(!alive(theirs) && alive(roots));
}

#[test]
fn one_that_took_over_its_users_rights_is_unreadable_and_not_elsewhere() {
    if !is_root() {
        return;
    }
    let rig = Rig::new();
    let _theirs = rig.start("setuid 65534 alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let end = as_nobody(&rig, &["reclaim", "--pid", &pid.to_string()]);
    end.expect_code(125);
    let words = "its open files cannot be read by this user, so it is not known whether it holds GPU memory\n\nhint: look \
                 with more rights: sudo ";
    assert!(end.stderr.contains(words) && !end.stderr.contains("namespace"), "{}", end.stderr);
}

/// The binary as nobody; from a copy, because the build directory may not be open to all.
fn as_nobody(rig: &Rig, arguments: &[&str]) -> Finished {
    use std::os::unix::process::CommandExt as _;
    let original = rig.gpuresid(arguments);
    let (copy, library) = (rig.path("gpuresid-copy"), rig.path("libnvml-copy.so"));
    fs::copy(original.get_program(), &copy).unwrap();
    fs::copy(rig.library(), &library).unwrap();
    fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(copy);
    command.arg("--nvml-lib").arg(library).arg("--dev").arg(rig.dev()).args(arguments);
    command.env("FAKE_NVML_LEDGER", rig.ledger.directory()).env_remove("XDG_RUNTIME_DIR").uid(65534).gid(65534);
    rig.launch(command).wait()
}

// ---- what cannot be believed ----------------------------------------------------------------------------------------

#[test]
fn forged_reports_end_nobody() {
    let rig = Rig::new();
    let _innocent = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let option = checked(&rig, "alloc 0 1GiB sleep 0.3");
    let path = rig.path("r.json");
    let honest = rig.report("r.json");
    let name = |pid: u32, ticks: u64| {
        let mut forged = honest.clone();
        let holder = serde_json::json!({"pid": pid, "start_ticks": ticks, "lineage": "own"});
        forged["holders"] = Value::Array(vec![holder]);
        forged["survivors"] = serde_json::json!([{"pid": pid, "start_ticks": ticks}]);
        forged
    };
    let run = |forged: &Value| {
        fs::write(&path, forged.to_string()).unwrap();
        rig.run(&format!("reclaim {option} --yes --force --json"))
    };
    // Somebody's living training: its parent is not of that run.
    let end = run(&name(pid, start_ticks(pid)));
    assert!(left_alone(&end.expect_code(0).json(), pid).contains("its parent is"), "{}", end.stdout);
    // Its number with another start: reused since.
    let end = run(&name(pid, start_ticks(pid) + 1));
    assert!(left_alone(&end.expect_code(0).json(), pid).contains("another process now"), "{}", end.stdout);
    // PID 1, and the one that runs us.
    for pid in [1, std::process::id()] {
        let end = run(&name(pid, start_ticks(pid)));
        end.expect_code(125);
    }
    // A process that never existed.
    run(&name(4_194_300, 1)).expect_code(0);
    // Another machine, another boot.
    for (field, value) in [("host", "elsewhere"), ("boot_id", "00000000-0000-0000-0000-000000000000")] {
        let mut forged = name(pid, start_ticks(pid));
        forged[field] = value.into();
        run(&forged).expect_code(125);
    }
    // Anybody may have written it.
    fs::write(&path, name(pid, start_ticks(pid)).to_string()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let end = rig.run(&format!("reclaim {option} --yes"));
    assert!(end.expect_code(125).stderr.contains("every user can write the report"), "{}", end.stderr);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let end = rig.run(&format!("reclaim {option} --yes"));
        assert!(end.expect_code(125).stderr.contains("belongs to user 65534"), "{}", end.stderr);
    }
    assert!(alive(pid));
}

#[test]
fn a_report_that_is_a_pipe_or_that_a_group_can_write_is_refused_at_once() {
    let rig = Rig::new();
    let pipe = rig.path("pipe.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let end = rig.run(&format!("reclaim --report {} --yes", pipe.display()));
    end.expect_code(125);
    assert!(end.stderr.contains("pipe.json is not a file"), "{}", end.stderr);
    let option = checked(&rig, "spawn-session { alloc 0 1GiB ready up hold } wait-file up");
    let file = rig.path("r.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    // The own group is the owner's, as a umask of 002 leaves it.
    rig.run(&format!("reclaim {option}")).expect_code(0);
    if is_root() {
        std::os::unix::fs::chown(&file, None, Some(65534)).unwrap();
        let end = rig.run(&format!("reclaim {option} --yes"));
        end.expect_code(125);
        assert!(end.stderr.contains("group 65534 can write"), "{}", end.stderr);
        assert!(alive(rig.wait_for("up")));
    }
}

#[test]
fn a_leftover_of_another_run_is_not_this_reports() {
    let rig = Rig::new();
    let option = checked(&rig, "alloc 0 1GiB sleep 0.3");
    let _other = left_over(&rig, "alloc 0 1GiB ready other hold");
    let other = rig.wait_for("other");
    let mut forged = rig.report("r.json");
    forged["survivors"] = serde_json::json!([{"pid": other, "start_ticks": start_ticks(other)}]);
    fs::write(rig.path("r.json"), forged.to_string()).unwrap();
    let end = rig.run(&format!("reclaim {option} --yes --json"));
    assert!(left_alone(&end.expect_code(0).json(), other).contains("another run's marker"), "{}", end.stdout);
    assert!(alive(other));
}

#[test]
fn a_foreign_proc_is_for_looking_only() {
    if !is_root() {
        return;
    }
    let rig = Rig::new();
    let _running = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let host = rig.path("host-proc");
    fs::create_dir(&host).unwrap();
    // A private PID namespace with its own /proc, where the outer one stands aside as a container would have it.
    let script = "mount --rbind /proc \"$0\" && mount -t proc proc /proc && exec \"$@\"";
    let gpuresid =
        rig.gpuresid(["--procfs", host.to_str().unwrap(), "reclaim", "--pid", &pid.to_string(), "--yes", "--force"]);
    let mut argv: Vec<std::ffi::OsString> =
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script].iter().map(Into::into).collect();
    argv.push(host.into_os_string());
    argv.push(gpuresid.get_program().into());
    argv.extend(gpuresid.get_args().map(Into::into));
    let end = rig.start_of(&argv).wait();
    end.expect_code(125);
    assert!(end.stderr.contains("another PID namespace"), "{}", end.stderr);
    assert!(alive(pid));
}

#[test]
fn who_sees_too_little_does_nothing() {
    let rig = Rig::with_gpus(2);
    let _left = left_over(&rig, "alloc 0 1GiB ready left hold");
    let left = rig.wait_for("left");
    rig.lose_gpu(1);
    let end = rig.run("reclaim --orphans --yes --json");
    let report = end.expect_code(122).json();
    assert!(report["steps"].as_array().unwrap().is_empty());
    assert!(alive(left));
    // The next step is the same without that GPU.
    let advice = report["advice"].as_array().unwrap().last().unwrap();
    let next = advice["command"].as_str().unwrap();
    assert!(next.starts_with("gpuresid -i 0 ") && next.ends_with(" reclaim --orphans --yes --json"), "{advice}");
    // On the one that can be seen it acts.
    rig.run("reclaim --orphans --yes -i 0").expect_code(0);
    assert!(!alive(left));
}

#[test]
fn exactly_one_kind_of_target_is_named() {
    let rig = Rig::new();
    for arguments in
        ["reclaim", "reclaim --yes", "reclaim --orphans --pid 7", "reclaim --pid 7 --older-than 5m", "reclaim --pid 0"]
    {
        rig.run(arguments).expect_code(125);
    }
    // It narrows what is found, not what is named.
    let named = ["--pid 7", "--report x.json", "--job 7", "--ci", "--unattended"];
    let idle = ["--pid 7", "--report x.json", "--job 7", "--ci", "--orphans"];
    for (option, others) in [("--older-than", named), ("--idle", idle)] {
        for named in others {
            let end = rig.run(&format!("reclaim {named} {option} 5m"));
            let said = end.expect_code(125).stderr.lines().next().unwrap_or_default();
            assert!(said.contains(option) && said.contains("cannot be used with"), "{named} {option}: {said}");
        }
    }
}

// ---- time -----------------------------------------------------------------------------------------------------------

#[test]
fn one_that_dies_between_plan_and_signal_is_fine() {
    let rig = Rig::new();
    // The first ignores TERM, so that the second's turn comes after its end.
    let marker = marker_of_an_ended_run();
    let script = "trap 'sleep 0.3; exit 0' TERM; \"$@\" & wait";
    let shell = ["sh", "-c", script, "sh"].map(OsString::from);
    let argv = [shell.to_vec(), rig.program("alloc 0 1GiB ready up wait-gone there")].concat();
    rig.mark("there");
    let agent = rig.start_marked(&argv, &marker);
    let worker = rig.wait_for("up");
    let reclaim = rig.spawn(&format!("reclaim --pid {worker} --pid {} --grace 20s --yes --json", agent.pid()));
    wait_until("the agent's signal", || reclaim.stderr().contains("TERM sent"));
    fs::remove_file(rig.path("there")).unwrap();
    let report = reclaim.wait().expect_code(0).json();
    let outcome = step(&report, worker)["outcome"].as_str().unwrap();
    assert!(["gone_before", "ended"].contains(&outcome), "{report:#}");
    assert_eq!(rig.used(0), 0);
}

#[test]
fn memory_that_comes_back_late_is_waited_for() {
    let rig = Rig::new();
    let _running = rig.start("alloc 0 1GiB late 0 0:1GiB,700:0B ready up hold");
    let pid = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {pid} --yes --json --settle 100ms"));
    assert_eq!(end.code, Some(121), "{}", end.stdout);
    assert!(!end.json()["advice"].as_array().unwrap().is_empty());
    let _running = rig.start("alloc 0 1GiB late 0 0:1GiB,700:0B ready again hold");
    let again = rig.wait_for("again");
    rig.run(&format!("reclaim --pid {again} --yes --settle 10s")).expect_code(0);
}

#[test]
fn two_at_once_are_kept_apart() {
    let rig = Rig::new();
    let _first = rig.start("ignore TERM alloc 0 1GiB ready one hold");
    let one = rig.wait_for("one");
    let slow = rig.spawn(&format!("reclaim --pid {one} --grace 1500ms --force --yes --json"));
    wait_until("the first to act", || slow.stderr().contains("TERM sent"));
    let second = rig.spawn(&format!("reclaim --pid {one} --force --yes --json"));
    wait_until("the second to wait", || second.stderr().contains("another reclaim is running"));
    assert!(alive(one));
    let first = slow.wait();
    assert_eq!(step(&first.expect_code(0).json(), one)["sent"], serde_json::json!(["TERM", "KILL"]));
    // The second planned after the first had finished: nothing was left to signal.
    let second = second.wait();
    assert!(second.expect_code(0).json()["steps"].as_array().unwrap().is_empty(), "{}", second.stdout);
    assert!(!second.stderr.contains("sent"), "{}", second.stderr);
}

#[test]
fn a_plan_needs_no_lock() {
    let rig = Rig::new();
    let _first = rig.start("ignore TERM alloc 0 1GiB ready one hold");
    let one = rig.wait_for("one");
    let slow = rig.spawn(&format!("reclaim --pid {one} --grace 2s --yes"));
    wait_until("the first to act", || slow.stderr().contains("TERM sent"));
    let plan = rig.run(&format!("reclaim --pid {one}"));
    assert!(!plan.expect_code(0).stderr.contains("waiting"), "{}", plan.stderr);
    slow.signal(Signal::INT);
    slow.wait().expect_signal(Signal::INT);
    assert!(alive(one));
}
