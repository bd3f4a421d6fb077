//! Who holds memory, why, and what helps: real processes on the fake machine, each with its negative control, the look
//! after the advised step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{fs, process::Command};
use support::{Rig, Running, wait_until};

#[track_caller]
fn holder(report: &Value, pid: u32) -> &Value {
    report["holders"]
        .as_array()
        .and_then(|all| all.iter().find(|h| h["pid"] == pid))
        .unwrap_or_else(|| panic!("no holder {pid} in {report:#}"))
}

#[track_caller]
fn expect_cause(report: &Value, pid: u32, cause: &str) {
    let holder = holder(report, pid);
    assert_eq!(holder["cause"], cause, "{holder:#}");
}

/// The advised commands.
fn advised(report: &Value) -> Vec<&str> {
    report["advice"].as_array().unwrap().iter().filter_map(|a| a["command"].as_str()).collect()
}

/// Those that act at once: not our own plans.
fn commands(report: &Value) -> Vec<&str> {
    let all = advised(report).into_iter();
    all.filter(|command| !command.starts_with("gpuresid reclaim")).collect()
}

fn finding<'a>(report: &'a Value, kind: &str) -> Option<&'a Value> {
    report["findings"].as_array().unwrap().iter().find(|f| f["kind"] == kind)
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

fn status(rig: &Rig) -> Value {
    rig.run("status --json").expect_code(0).json()
}

/// `check` with a short time to settle; its report.
fn check(rig: &Rig, code: i32, verbs: &str) -> Value {
    rig.check(&format!("--settle 1s --report {}", rig.path("r.json").display()), verbs).expect_code(code);
    rig.report("r.json")
}

#[track_caller]
fn comes_back(rig: &Rig) {
    wait_until("the memory to come back", || rig.used(0) == 0);
    assert_eq!(status(rig)["holders"], Value::Array(vec![]));
}

/// A program with more in its environment.
fn start_with(rig: &Rig, verbs: &str, environment: &[(&str, &str)]) -> Running {
    let argv = rig.program(verbs);
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).envs(environment.iter().copied());
    command.env("FAKE_NVML_LEDGER", rig.ledger.directory()).env("FAKE_DEV", rig.dev());
    rig.launch(command)
}

#[test]
fn a_worker_of_a_data_loader_is_a_forked_copy_with_a_name() {
    let rig = Rig::new();
    let signal = format!("--settle 1s --report {}", rig.path("r.json").display());
    let end = rig.check(
        &signal,
        "alloc 0 2GiB sleep 0.3 fork { rename pt_data_worker ready worker hold } wait-file worker kill-self KILL",
    );
    end.expect_signal(Signal::KILL);
    let worker = rig.wait_for("worker");
    let report = rig.report("r.json");
    assert_eq!(report["verdict"], "residue");
    expect_cause(&report, worker, "forked_copy");
    assert_eq!(holder(&report, worker)["program"], "DataLoader worker");
    assert!(finding(&report, "died").unwrap()["text"].as_str().unwrap().contains("signal 9"));
    assert_eq!(commands(&report), [format!("kill {worker}")]);
    kill(worker, Signal::TERM);
    comes_back(&rig);
    // One that notices the end of its main process is none.
    let end = rig.check(
        &format!("--report {}", rig.path("r.json").display()),
        "alloc 0 2GiB sleep 0.3 fork { rename pt_data_worker ready idle sleep 1 } wait-file idle kill-self KILL",
    );
    end.expect_signal(Signal::KILL);
    assert_eq!(rig.report("r.json")["verdict"], "clean");
}

#[test]
fn a_consumer_that_keeps_a_dead_producers_tensor() {
    let rig = Rig::new();
    let verbs = "spawn-session { ipc-consume handle ready consumer hold } ipc-produce 0 2GiB handle wait-file consumer sleep 0.5";
    let report = check(&rig, 121, verbs);
    let consumer = rig.wait_for("consumer");
    expect_cause(&report, consumer, "peer_mapping");
    let why = holder(&report, consumer)["why"][0].as_str().unwrap();
    assert!(why.contains("/dev/shm/cuda.shm.") && why.contains("which is gone and had 2566 MiB"), "{why}");
    assert_eq!(commands(&report), [format!("kill {consumer}")]);
    // After the fact too.
    expect_cause(&status(&rig), consumer, "peer_mapping");
    kill(consumer, Signal::TERM);
    comes_back(&rig);
}

#[test]
fn ranks_without_their_agent_are_orphans_and_with_it_the_agent_goes_first() {
    let rig = Rig::new();
    let ranks = "rename pt_elastic supervise 2 { alloc 0 1GiB ready rank%RANK hold }";
    let agent = rig.start(ranks);
    let two = [rig.wait_for("rank0"), rig.wait_for("rank1")];
    let report = status(&rig);
    for rank in two {
        expect_cause(&report, rank, "in_use");
        assert_eq!(holder(&report, rank)["program"], "torchrun rank");
        assert_eq!(holder(&report, rank)["ends_with"], format!("kill {}", agent.pid()));
    }
    assert_eq!(commands(&report), [""; 0]);
    agent.kill();
    let report = status(&rig);
    for rank in two {
        expect_cause(&report, rank, "orphan");
        let why = holder(&report, rank)["why"][0].as_str().unwrap();
        assert!(why.contains("torchrun rank") && why.contains("its torchrun agent is gone"), "{why}");
        assert!(advised(&report).contains(&format!("gpuresid reclaim --pid {rank}").as_str()), "it may train on");
        assert_eq!(commands(&report), [""; 0]);
        kill(rank, Signal::TERM);
    }
    comes_back(&rig);
}

#[test]
fn a_rank_that_is_killed_alone_is_started_again() {
    let rig = Rig::new();
    let report = check(
        &rig,
        121,
        "spawn-session { ready agent rename pt_elastic supervise 2 { alloc 0 1GiB ready rank%RANK hold } } \
         wait-file rank0 wait-file rank1",
    );
    let (agent, rank) = (rig.wait_for("agent"), rig.wait_for("rank0"));
    expect_cause(&report, rank, "still_running");
    assert_eq!(commands(&report), [format!("kill {agent}")], "one step, and none for a rank alone");
    kill(rank, Signal::KILL);
    wait_until("a new rank", || rig.wait_for("rank0") != rank);
    kill(agent, Signal::TERM);
    comes_back(&rig);
}

/// The daemon and its server, which keeps a context of 66 MiB.
const MPS: &str =
    "rename nvidia-cuda-mps spawn { rename nvidia-cuda-mps context 0 free 0 452MiB ready server hold } hold";

#[test]
fn a_foreign_mps_server_is_no_residue_and_is_told_how_to_quit() {
    let rig = Rig::new();
    let _daemon = rig.start(MPS);
    let server = rig.wait_for("server");
    let report = check(&rig, 0, "alloc 0 1GiB lists 0 compute,mps sleep 0.5");
    assert_eq!(report["verdict"], "clean");
    expect_cause(&report, server, "mps_server");
    let found = finding(&report, "mps_server").unwrap_or_else(|| panic!("{report:#}"));
    assert!(found["text"].as_str().unwrap().contains("echo quit | nvidia-cuda-mps-control"));
    assert_eq!(found["bytes"], 66 << 20);
    assert_eq!(report["devices"][0]["command_peak_bytes"], (1024 + 518) << 20, "a client in two lists counts once");
    let report = status(&rig);
    expect_cause(&report, server, "mps_server");
    assert_eq!(commands(&report), [""; 0]);
}

#[test]
fn an_mps_server_that_the_command_started_is_residue() {
    let rig = Rig::new();
    let report = check(&rig, 121, &format!("spawn-session {{ {MPS} }} wait-file server sleep 0.3"));
    let server = rig.wait_for("server");
    expect_cause(&report, server, "mps_server");
    assert_eq!(report["devices"][0]["charged_residue_bytes"], 66 << 20);
    assert_eq!(commands(&report), ["echo quit | nvidia-cuda-mps-control"]);
}

#[test]
fn after_the_fact_a_full_machine_is_sorted_out() {
    let rig = Rig::new();
    let parent = rig.start("alloc 0 2GiB fork-and-exit ready copy hold");
    let ghost = parent.pid();
    let copy = rig.wait_for("copy");
    parent.wait().expect_code(0);
    let agent = rig.start("rename pt_elastic supervise 1 { alloc 0 1GiB ready rank hold }");
    let rank = rig.wait_for("rank");
    agent.kill();
    // nohup: its shell goes, it ignores SIGHUP.
    let script = format!("nohup {} >/dev/null 2>&1 &", line(&rig, "ignore HUP alloc 0 3GiB ready nohup hold"));
    rig.start_of(&["sh".into(), "-c".into(), script.into()]).wait().expect_code(0);
    let training = rig.wait_for("nohup");
    rig.start("daemonize-twice { alloc 0 4GiB ready service hold } wait-file service").wait().expect_code(0);
    let service = rig.wait_for("service");

    let report = status(&rig);
    expect_cause(&report, copy, "forked_copy");
    assert_eq!(report["ghosts"][0]["pid"], ghost);
    assert_eq!(report["ghosts"][0]["candidates"], serde_json::json!([copy]));
    expect_cause(&report, rank, "orphan");
    expect_cause(&report, training, "detached");
    expect_cause(&report, service, "detached");
    assert_eq!(commands(&report), [format!("kill {copy}")], "none for those that may be meant to run");
    assert!(advised(&report).contains(&format!("gpuresid reclaim --pid {rank}").as_str()), "{report:#}");
    let text = rig.run("status").stdout;
    for pid in [training, service] {
        let whole = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_digit());
        assert!(!text.split(&format!("kill {pid}")).skip(1).any(whole), "{pid}: {text}");
    }
    kill(copy, Signal::TERM);
    kill(rank, Signal::TERM);
    wait_until("both to end", || status(&rig)["holders"].as_array().unwrap().len() == 2);
    assert_eq!(commands(&status(&rig)), [""; 0]);
}

/// A program's command line for a shell.
fn line(rig: &Rig, verbs: &str) -> String {
    let quoted = |word: &std::ffi::OsString| format!("'{}'", word.to_str().unwrap());
    rig.program(verbs).iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_exported_handle_names_the_process_that_keeps_it() {
    let rig = Rig::new();
    let report = check(&rig, 121, "export-handle 0 2GiB sleep 0.5");
    let sleep = u32::try_from(report["holders"][0]["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(fs::read_to_string(format!("/proc/{sleep}/comm")).unwrap().trim(), "sleep");
    expect_cause(&report, sleep, "exported_handle");
    // A GPU in use costs 3.25 MiB beside what is held.
    let charged = report["devices"][0]["charged_residue_bytes"].as_u64().unwrap();
    assert!((2 << 30..=(2 << 30) + (4 << 20)).contains(&charged), "{charged}");
    assert_eq!(commands(&report), [format!("kill {sleep}")]);
    let after = status(&rig);
    let found = finding(&after, "unattributed").unwrap();
    assert!(found["possible"][0].as_str().unwrap().starts_with("an exported allocation handle"), "{found:#}");
    assert!(found["excluded"].to_string().contains("managed memory"), "{found:#}");
    kill(sleep, Signal::TERM);
    comes_back(&rig);
}

#[test]
fn beside_a_neighbours_context_an_exported_handle_is_inconclusive_and_both_are_said() {
    let rig = Rig::new();
    let neighbour = rig.start("alloc 0 1GiB ready neighbour hold");
    let other = rig.wait_for("neighbour");
    let report = check(&rig, 122, "export-handle 0 2GiB sleep 0.5");
    let sleep = report["survivors"][0]["pid"].as_u64().unwrap();
    expect_cause(&report, sleep.try_into().unwrap(), "exported_handle");
    let found = finding(&report, "unattributed").unwrap_or_else(|| panic!("{report:#}"));
    let possible = found["possible"].as_array().unwrap();
    assert!(possible[0].as_str().unwrap().contains(&format!("PID {sleep}")), "{possible:?}");
    assert!(possible.iter().any(|p| p.as_str().unwrap().contains(&format!("PID {other}"))), "{possible:?}");
    neighbour.kill();
}

#[test]
fn a_debugger_that_holds_it_is_named() {
    let rig = Rig::new();
    let _tracee = rig.start("alloc 0 1GiB ready tracee hold");
    let pid = rig.wait_for("tracee");
    let debugger = rig.start("rename cuda-gdb trace tracee ready attached hold");
    rig.wait_for("attached");
    let report = status(&rig);
    expect_cause(&report, pid, "stopped");
    let why = holder(&report, pid)["why"][0].as_str().unwrap();
    assert!(why.contains(&format!("cuda-gdb ({})", debugger.pid())), "{why}");
    assert_eq!(commands(&report), [""; 0], "a signal would wait for the debugger");
    debugger.kill();
    wait_until("it to go on", || holder(&status(&rig), pid)["cause"] != "stopped");
}

#[test]
fn a_thread_that_stays_in_the_kernel_is_seen_with_what_it_waits_for() {
    let rig = Rig::new();
    let _blocked = rig.start("alloc 0 1GiB ready up block-in-kernel hold");
    let pid = rig.wait_for("up");
    wait_until("it to sleep in the kernel", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().rsplit(')').next().unwrap().starts_with(" D")
    });
    let snapshot = rig.run("snapshot").expect_code(0).json();
    let process = snapshot["processes"].as_array().unwrap().iter().find(|p| p["pid"] == pid || p["id"]["pid"] == pid);
    let blocked = &process.unwrap()["blocked"];
    assert_eq!(blocked["threads"][0]["tid"], pid, "{blocked:#}");
    assert!(blocked["watched_ms"].as_u64().unwrap() >= 300 && !blocked["states"].as_array().unwrap().is_empty());
    // It waits for its own child, which is no trouble.
    expect_cause(&status(&rig), pid, "in_use");
}

#[test]
fn a_slurm_job_that_has_ended_leaves_orphans() {
    let rig = Rig::new();
    let job = [("SLURM_JOB_ID", "4242424"), ("SLURMD_NODENAME", "node7"), ("SLURM_STEP_ID", "0")];
    let verbs = "daemonize-twice { alloc 0 1GiB ready left hold } wait-file left";
    start_with(&rig, verbs, &job).wait().expect_code(0);
    let left = rig.wait_for("left");
    let supervisor = rig.start("rename slurmstepd settitle slurmstepd:[4242424.0] ready step hold");
    rig.wait_for("step");
    let report = status(&rig);
    expect_cause(&report, left, "detached");
    assert_eq!(holder(&report, left)["ends_with"], "scancel 4242424.0");
    assert_eq!(holder(&report, left)["place"]["slurm"]["by_environment"], true);
    supervisor.kill();
    let report = status(&rig);
    expect_cause(&report, left, "orphan");
    assert!(holder(&report, left)["why"][0].as_str().unwrap().contains("Slurm job 4242424"));
    let plan = format!("gpuresid reclaim --pid {left}");
    assert_eq!(advised(&report), [&plan, "gpuresid reclaim --orphans"], "Slurm does not know it any more");
}

#[test]
fn monitors_are_named_on_request_only() {
    let rig = Rig::new();
    let _monitor = rig.start("nvml ready monitor hold");
    let monitor = rig.wait_for("monitor");
    let report = status(&rig);
    assert_eq!((report["holders"].as_array().unwrap().len(), report.get("open_only")), (0, None));
    let all = rig.run("status --all --json").json();
    assert_eq!(all["open_only"][0]["pid"], monitor, "{all:#}");
    assert_eq!(all["open_only"][0]["cause"], "open_only");
    assert_eq!((all["holders"].as_array().unwrap().len(), commands(&all).len()), (0, 0));
    let text = rig.run("--all").stdout;
    assert!(text.contains("Have a GPU open and are not known to hold memory"), "{text}");
}

#[test]
fn a_busy_gpu_that_nobody_holds_is_a_finding() {
    let rig = Rig::new();
    rig.edit_machine(|machine| machine["devices"][0]["utilization"] = 97.into());
    let all = || rig.run("status --all --json").expect_code(0).json();
    let found = all();
    let text = finding(&found, "utilization").unwrap()["text"].as_str().unwrap();
    assert!(text.contains("97% busy"), "{text}");
    // It takes milliseconds, so that a plain look leaves it out.
    let asked = || rig.calls().iter().filter(|call| call.function == "nvmlDeviceGetUtilizationRates").count();
    let before = asked();
    assert_eq!(finding(&status(&rig), "utilization"), None);
    assert!(before > 0 && asked() == before, "a plain look asked for it");
    let _neighbour = rig.start("alloc 0 1GiB ready up hold");
    rig.wait_for("up");
    assert_eq!(finding(&all(), "utilization"), None);
}

/// A program that nobody knows by name and that inherits whatever is orphaned below it. Below it a check ran and left
/// something: the heir, and what was left.
fn left_to_a_subreaper(rig: &Rig, left: &str) -> (Running, u32) {
    let check = rig.check_of("--settle 1s", &rig.program(left));
    let words: Vec<_> = std::iter::once(check.get_program()).chain(check.get_args()).map(ToOwned::to_owned).collect();
    let count = words.len().to_string();
    let before = ["subreaper", "spawn", "{", "run", &count].map(std::ffi::OsString::from);
    let after = ["}", "wait-children", "ready", "checked", "hold"].map(std::ffi::OsString::from);
    let heir = rig.start_of(&rig.program_of(before.into_iter().chain(words).chain(after)));
    rig.wait_for("checked");
    (heir, rig.wait_for("left"))
}

#[test]
fn whoever_adopts_it_what_a_check_left_is_an_orphan() {
    let rig = Rig::new();
    let (mut heir, left) = left_to_a_subreaper(&rig, "spawn-session { alloc 0 1GiB ready left hold } wait-file left");
    assert_eq!(support::parent(left), Some(heir.pid()));
    let report = status(&rig);
    expect_cause(&report, left, "orphan");
    let why = holder(&report, left)["why"][0].as_str().unwrap();
    assert!(
        why.starts_with("what started it is gone, and it carries the marker of a checked run that has ended;"),
        "{why}"
    );
    assert_eq!(advised(&report), [format!("gpuresid reclaim --pid {left}").as_str(), "gpuresid reclaim --orphans"]);
    let plan = rig.run("reclaim --orphans --yes --json").expect_code(0).json();
    assert_eq!(plan["steps"][0]["pid"], left, "{plan:#}");
    comes_back(&rig);
    assert!(heir.is_running(), "who adopts has nothing to do with it");
}

#[test]
fn what_was_left_to_a_subreaper_without_a_marker_is_detached_and_what_it_started_is_in_use() {
    let rig = Rig::new();
    let orphan = "spawn-session { spawn { alloc 0 1GiB ready left hold } wait-file left }";
    let heir = rig.start(&format!("subreaper {orphan} wait-children spawn {{ alloc 0 1GiB ready own hold }} hold"));
    let (left, own) = (rig.wait_for("left"), rig.wait_for("own"));
    wait_until("its heir", || support::parent(left) == Some(heir.pid()));
    let report = status(&rig);
    expect_cause(&report, left, "detached");
    let why = holder(&report, left)["why"][0].as_str().unwrap();
    assert!(why.ends_with("which did not start it and has adopted it"), "{why}");
    expect_cause(&report, own, "in_use");
    assert_eq!(commands(&report), [""; 0]);
}
