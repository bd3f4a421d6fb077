//! `status` against a fake machine with real processes.
#![allow(clippy::panic, reason = "a helper that fails fails the test")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use support::{Allocation, Rig, marker_of_an_ended_run, wait_until};

/// The holder with this PID.
#[track_caller]
fn holder(status: &Value, pid: u32) -> &Value {
    status["holders"]
        .as_array()
        .and_then(|all| all.iter().find(|h| h["pid"] == pid))
        .unwrap_or_else(|| panic!("no holder {pid} in {status:#}"))
}

#[test]
fn a_free_machine_is_said_to_be_free() {
    let rig = Rig::new();
    let end = rig.run("status");
    end.expect_code(0);
    assert!(
        end.stdout.starts_with("GPU memory: 0 B of 140.4 GiB in use on 1 GPU (driver 580.159.04, CUDA 13.0)\n"),
        "{}",
        end.stdout
    );
    assert_eq!(end.stderr, "");
    // Without a command it is the same, its options too.
    assert_eq!(rig.run("").stdout, end.stdout);
    assert_eq!(rig.run("--json").json()["schema"], "gpuresid.status/1");
    assert_eq!(rig.run("--json status").json()["schema"], "gpuresid.status/1");
}

#[test]
fn used_is_listed_and_unaccounted_together() {
    let rig = Rig::with_gpus(2);
    let neighbour = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let status = rig.run("status --json").json();
    for device in status["devices"].as_array().unwrap() {
        let bytes = |name: &str| device[name].as_i64().unwrap();
        assert_eq!(bytes("used_bytes"), bytes("listed_bytes") + bytes("unaccounted_bytes"));
    }
    assert_eq!(status["devices"][0]["used_bytes"], rig.used(0));
    let found = holder(&status, pid);
    assert_eq!(found["cause"], "in_use");
    assert_eq!(found["devices"][0]["held_bytes"], (1024 + 518) << 20);
    assert_eq!(found["devices"].as_array().unwrap().len(), 1, "it merely has the other GPU open");
    assert_eq!(found["launcher_gone"], false);
    assert_eq!(status["ghosts"], Value::Array(vec![]));
    neighbour.kill();
    // The negative control: the holder goes with its process.
    wait_until("the memory to come back", || rig.used(0) == 0);
    let after = rig.run("status --json").json();
    assert_eq!(after["holders"], Value::Array(vec![]));
    assert_eq!(after["devices"][0]["used_bytes"], 0);
}

#[test]
fn a_forked_copy_is_named_with_its_ghost() {
    let rig = Rig::new();
    let parent = rig.start("alloc 0 2GiB fork-and-exit ready up hold");
    let copy = rig.wait_for("up");
    let ghost = parent.pid();
    parent.wait().expect_code(0);
    let status = rig.run("status --json").json();
    assert_eq!(holder(&status, copy)["cause"], "forked_copy");
    assert_eq!(status["ghosts"][0]["pid"], ghost);
    assert_eq!(status["ghosts"][0]["candidates"], serde_json::json!([copy]));
    assert_eq!(status["advice"][0]["command"], format!("kill {copy}"));
    let text = rig.run("status").stdout;
    assert!(text.contains(&format!("Look at PID {copy} (forked copy, 2566 MiB).\n")), "{text}");
    assert!(text.contains(&format!("- PID {ghost} on GPU 0: 2566 MiB. Its memory is kept by PID {copy}.\n")), "{text}");
    assert!(text.contains(&format!("\n 1. kill {copy}\n")), "{text}");
}

#[test]
fn a_stopped_process_is_advised_to_go_on_first() {
    let rig = Rig::new();
    let stopped = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    stopped.signal(Signal::STOP);
    wait_until("it to stop", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().rsplit(')').next().unwrap().starts_with(" T")
    });
    let status = rig.run("status --json").json();
    assert_eq!(holder(&status, pid)["cause"], "stopped");
    assert_eq!(status["advice"][0]["command"], format!("kill -CONT {pid}"));
    assert_eq!(rig.run("status --fail-on orphan,stopped").code, Some(121));
    assert_eq!(rig.run("status --fail-on orphan").code, Some(0));
    stopped.signal(Signal::CONT);
    wait_until("it to go on", || rig.run("status --fail-on stopped").code == Some(0));
}

#[test]
fn what_outlived_a_checked_run_is_an_orphan_and_what_a_snapshot_marked_is_not() {
    let rig = Rig::new();
    let marker = &rig.marking_snapshot(rig.path("s.json").to_str().unwrap());
    let start = |name: &str, verbs: &str, marker: &str| {
        let running = rig.start_marked(&rig.program(verbs), marker);
        (rig.wait_for(name), running)
    };
    // What started it is gone too.
    let ended = marker_of_an_ended_run();
    let (left, _left) = start("left", "daemonize-twice { alloc 0 1GiB ready left hold }", &ended);
    let (meant, _meant) = start("meant", "alloc 0 1GiB ready meant hold", marker);
    let status = rig.run("status --json").json();
    assert_eq!(holder(&status, left)["cause"], "orphan");
    assert_eq!(holder(&status, meant)["cause"], "in_use");
}

#[test]
fn secrets_of_a_command_line_are_hidden_everywhere() {
    let rig = Rig::new();
    let words = ["alloc", "0", "1GiB", "ready", "up", "print", "--token=hush", "print", "hf_abcdefgh12345678", "hold"];
    let _running = rig.start_of(&rig.program_of(words));
    rig.wait_for("up");
    for arguments in ["status", "status --json", "snapshot"] {
        let text = rig.run(arguments).stdout;
        assert!(text.contains("cuda.py"), "{text}");
        assert!(!text.contains("hush") && !text.contains("hf_abc"), "{arguments}: {text}");
    }
}

#[test]
fn a_gpu_can_be_chosen() {
    let rig = Rig::with_gpus(2);
    let indices = |arguments: &str| {
        let status = rig.run(arguments).json();
        status["devices"].as_array().unwrap().iter().map(|d| d["index"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(indices("status --json"), [0, 1]);
    assert_eq!(indices("status --json -i 1"), [1]);
    assert_eq!(indices("-i 1 status --json"), [1]);
    assert_eq!(indices("status --json --gpu 0,1"), [0, 1]);
    assert_eq!(indices("status --json -i GPU-00000001"), [1]);
    let mut visible = rig.gpuresid(["status", "--json", "--visible"]);
    visible.env("CUDA_VISIBLE_DEVICES", "1,9,0");
    let status = rig.launch(visible).wait().json();
    assert_eq!(status["devices"].as_array().unwrap().len(), 1);
    assert_eq!(status["devices"][0]["index"], 1);
    let mut by_variable = rig.gpuresid(["status", "--json"]);
    by_variable.env("GPURESID_GPU", "0");
    assert_eq!(rig.launch(by_variable).wait().json()["devices"][0]["index"], 0);
}

#[test]
fn what_cannot_be_read_is_null_and_said() {
    let rig = Rig::with_gpus(2);
    rig.lose_gpu(1);
    let end = rig.run("status --json");
    let status = end.expect_code(0).json();
    assert_eq!(status["devices"][0]["used_bytes"], 0);
    assert_eq!(status["devices"][1]["used_bytes"], Value::Null);
    assert!(!status["gaps"].as_array().unwrap().is_empty(), "{status:#}");
    let text = rig.run("status").stdout;
    assert!(text.contains("what is in use on 2 GPUs could not be read in full"), "{text}");
    assert!(text.contains("\nNot seen\n"), "{text}");
}

#[test]
fn watching_goes_on_until_it_is_ended() {
    let rig = Rig::new();
    let mut watching = rig.spawn("status --json --watch=10ms");
    wait_until("three looks", || watching.stdout().lines().count() >= 3);
    rig.add("later", Allocation { device: 0, bytes: 1 << 30, ..Allocation::default() });
    wait_until("the change to show", || {
        watching
            .stdout()
            .lines()
            .filter_map(|l| serde_json::from_str::<Value>(l).ok())
            .any(|s| s["devices"][0]["used_bytes"].as_u64().unwrap() > 1 << 30)
    });
    assert!(watching.is_running());
    watching.signal(Signal::INT);
    watching.wait().expect_signal(Signal::INT);
}

#[test]
fn all_tells_how_busy_every_gpu_is() {
    let rig = Rig::with_gpus(2);
    rig.edit_machine(|machine| {
        for device in machine["devices"].as_array_mut().unwrap() {
            device["utilization"] = 57.into();
        }
    });
    rig.add("memory", Allocation { device: 0, bytes: 1 << 30, ..Allocation::default() });
    let status = rig.run("status --all --json").json();
    for device in status["devices"].as_array().unwrap() {
        assert_eq!(device["utilization_percent"], 57, "{status:#}");
    }
    let text = rig.run("status --all").stdout;
    assert_eq!(text.lines().filter(|line| line.starts_with("GPU ") && line.ends_with(" 57%")).count(), 2, "{text}");
    assert!(!rig.run("status").stdout.contains("BUSY"), "it was not asked for");
}

#[test]
fn many_orphans_of_one_launcher_are_one_line_one_step_and_one_plan() {
    let rig = Rig::with_gpus(2);
    // A neighbour of the same program, whose launcher lives, is not of them.
    let _neighbour = rig.start("alloc 1 1GiB ready beside hold");
    let beside = rig.wait_for("beside");
    let agent = rig.start("rename pt_elastic supervise 4 { alloc 0 1GiB ready rank%RANK hold }");
    let ranks = [0, 1, 2, 3].map(|rank| rig.wait_for(&format!("rank{rank}")));
    agent.kill();
    let status = rig.run("status --json").json();
    let mut pids: Vec<u32> =
        status["holders"].as_array().unwrap().iter().map(|h| h["pid"].as_u64().unwrap() as u32).collect();
    pids.retain(|pid| *pid != beside);
    let named: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let commands: Vec<_> = status["advice"].as_array().unwrap().iter().map(|a| a["command"].clone()).collect();
    let plan_of_all = format!("gpuresid reclaim --pid {}", named.join(" "));
    assert_eq!(commands, [plan_of_all.as_str(), "gpuresid reclaim --orphans"], "{status:#}");
    let why = status["advice"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("what started it is gone, but it may still do its work. If you know that"), "{why}");
    assert!(why.contains("gives back (6168 MiB)"), "{why}");
    let text = rig.run("status").stdout;
    assert!(text.contains("\nLook at 4 × python3 "), "{text}");
    let evidence = "its torchrun agent is gone";
    assert!(!text.contains(evidence) && text.ends_with(" command lines: gpuresid -v\n"), "{text}");
    let all = rig.run("status -v").stdout;
    assert_eq!(all.matches(evidence).count(), 4, "{all}");
    assert!(all.contains(&format!("\nPID {beside}: in use\n")) && !all.contains("gpuresid -v"), "{all}");
    let plan = rig.run("reclaim --orphans").stdout;
    assert!(plan.contains("plan to end 4 processes") && plan.contains("\n 1. 4 processes of "), "{plan}");
    assert!(plan.contains("gives back: 6168 MiB on GPU 0\n") && !plan.contains("\n 2. "), "{plan}");
    assert!(!plan.contains(&beside.to_string()), "{plan}");
    // The step that was advised is right for all of them.
    rig.run(&format!("{} --yes", plan_of_all.strip_prefix("gpuresid ").unwrap())).expect_code(0);
    // The neighbour has this GPU open too.
    wait_until("the memory to come back", || rig.used(0) < 16 << 20);
    assert_eq!(rig.run("status --json").json()["holders"][0]["pid"], beside);
    assert_eq!(ranks.len(), pids.len());
}
