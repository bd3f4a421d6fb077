//! `--redact`: whatever of a report one looks at, it names no user, host, home or argument. Every string of the whole
//! JSON is looked at, so that a field that is added later is covered too.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails the test")]

mod support;

use rustix::process::{Signal, getuid};
use serde_json::Value;
use std::{fs, process::Command};
use support::{Rig, Running, skipped, wait_until};

/// An account of every Debian, with a name that our own sentences do not use.
const USER: (&str, &str) = ("games", "5");
/// What must not be told.
const HOME: &str = "/home/josephine";
const NODE: &str = "gpunode17";
const ARGUMENT: &str = "private-dataset-7";
const RUN: &str = "josephines-run";

/// Every string, with the way to it; names of fields too.
fn strings(value: &Value, way: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => found.push((way.to_owned(), text.clone())),
        Value::Array(all) => {
            all.iter().enumerate().for_each(|(n, v)| strings(v, &format!("{way}[{n}]"), found));
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                found.push((format!("the name of {way}.{name}"), name.clone()));
                strings(value, &format!("{way}.{name}"), found);
            }
        }
        _ => {}
    }
}

/// What is told of what must not be: (what, where, text).
fn told(value: &Value) -> Vec<(String, String, String)> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_str().unwrap().to_owned();
    let mut all = Vec::new();
    strings(value, "", &mut all);
    let words = [USER.0, HOME, "josephine", NODE, ARGUMENT, RUN, host.as_str()];
    let mut found = Vec::new();
    for (way, text) in all {
        for word in words {
            if has_word(&text, word) {
                found.push((word.to_owned(), way.clone(), text.clone()));
            }
        }
    }
    found
}

fn has_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word)
        .any(|(at, _)| !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next()))
}

/// A program with everything private about it that a process can have.
fn private(rig: &Rig, verbs: &str) -> Running {
    let mut words: Vec<&str> = vec!["print", "--data=/home/josephine/private-dataset-7", "print", ARGUMENT];
    words.extend(verbs.split_whitespace());
    let argv = rig.program_of(words);
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).envs(environment(rig));
    rig.launch(command)
}

fn environment(rig: &Rig) -> Vec<(&'static str, String)> {
    vec![
        ("FAKE_NVML_LEDGER", rig.ledger.directory().display().to_string()),
        ("FAKE_DEV", rig.dev().display().to_string()),
        ("CUDA_MPS_PIPE_DIRECTORY", format!("{HOME}/mps")),
        ("SLURM_JOB_ID", "4711".into()),
        ("SLURMD_NODENAME", NODE.into()),
        ("TORCHELASTIC_RUN_ID", RUN.into()),
    ]
}

/// Whatever the argument is, an ordinary word too, and however the program was called.
#[test]
fn no_argument_survives_in_a_sentence() {
    let rig = Rig::new();
    let python = Command::new("sh").args(["-c", "command -v python3"]).output().unwrap().stdout;
    let mut argv = rig.program_of(
        "print falcon spawn-session { alloc 0 1GiB print falcon ready left hold } wait-file left".split_whitespace(),
    );
    argv[0] = String::from_utf8(python).unwrap().trim().into();
    for (option, tells) in [("", true), ("--redact", false)] {
        let _ = fs::remove_file(rig.path("left"));
        let reports =
            format!("--report {} --report observation:{}", rig.path("r.json").display(), rig.path("o.json").display());
        let end = rig.launch(rig.check_of(&format!("--settle 1s {reports} {option}"), &argv)).wait();
        end.expect_code(121);
        let texts = [end.stderr.clone(), rig.report("r.json").to_string(), rig.report("o.json").to_string()];
        for text in texts.iter().chain([&rig.run(&format!("status -v {option}")).stdout]) {
            assert_eq!(has_word(text, "falcon"), tells, "{option}: {text}");
            assert!(tells || !text.contains("cuda.py"), "{text}");
        }
        let disturbed = end.stderr.lines().find(|line| line.contains("isturbs")).unwrap();
        assert_eq!(disturbed.contains("(python3 ***)"), !tells, "{}", end.stderr);
        let left = rig.wait_for("left");
        let plan = rig.run(&format!("reclaim --pid {left} {option}"));
        assert!(plan.stdout.contains("python3") && (tells || !has_word(&plan.stdout, "falcon")), "{}", plan.stdout);
        rustix::process::kill_process(rustix::process::Pid::from_raw(left.try_into().unwrap()).unwrap(), Signal::KILL)
            .unwrap();
        wait_until("the leftover to end", || !support::alive(left));
    }
}

/// A server of the multi-process service below its daemon: what ends it names its directory.
const SERVER: &str =
    "rename nvidia-cuda-mps spawn { rename nvidia-cuda-mps context 0 free 0 452MiB ready server hold } hold";

#[test]
fn a_redacted_report_names_nobody_anywhere() {
    let rig = Rig::new();
    let setuid = if getuid().is_root() { format!("setuid {}", USER.1) } else { String::new() };
    if setuid.is_empty() {
        skipped("not root: everything is of one user, whose name is not looked for");
    }
    let server = private(&rig, SERVER);
    let server_pid = rig.wait_for("server");
    let neighbour = private(&rig, &format!("alloc 0 1GiB ready neighbour {setuid} hold"));
    let neighbour_pid = rig.wait_for("neighbour");
    let parent = private(&rig, &format!("alloc 0 2GiB fork-and-exit {setuid} ready copy hold"));
    rig.wait_for("copy");
    parent.wait().expect_code(0);
    if !setuid.is_empty() {
        wait_until("the neighbour to be another user", || {
            fs::read_to_string(format!("/proc/{neighbour_pid}/status")).is_ok_and(|s| s.contains("Uid:\t5\t"))
        });
    }
    let path = |name: &str| rig.path(name).display().to_string();
    // What is private lies in all of them as long as nobody asks for it to be hidden: the control.
    let told_of = |what: &str, value: &Value, redacted: bool, words: &[&str]| {
        let found = told(value);
        if redacted {
            assert_eq!(found, [], "{what}");
        } else {
            for word in words {
                assert!(found.iter().any(|(w, ..)| w == word), "{what} does not tell {word}, so nothing is shown");
            }
        }
    };
    let user: &[&str] = if setuid.is_empty() { &[HOME, ARGUMENT] } else { &[HOME, ARGUMENT, USER.0] };
    for (redacted, option) in [(false, ""), (true, "--redact")] {
        let status = rig.run(&format!("status --json --all --bar1 {option}")).json();
        told_of("status", &status, redacted, user);
        let ends = status["holders"].as_array().unwrap().iter().find(|h| h["pid"] == server_pid).unwrap();
        let ends_with = ends["ends_with"].as_str().unwrap();
        assert_eq!(ends_with.contains(&format!("CUDA_MPS_PIPE_DIRECTORY={HOME}/mps")), !redacted, "{ends:#}");
        assert_eq!(ends_with.contains("CUDA_MPS_PIPE_DIRECTORY=*** nvidia-cuda-mps-control"), redacted, "{ends:#}");

        let snapshot = rig.run(&format!("snapshot {option}")).json();
        told_of("snapshot", &snapshot, redacted, &[user, &[NODE, RUN]].concat());
        let processes = snapshot["processes"].as_array().unwrap();
        let variables = &processes.iter().find(|p| p["id"]["pid"] == server_pid).unwrap()["environment"];
        assert_eq!(variables["CUDA_MPS_PIPE_DIRECTORY"] == "***", redacted, "{variables:#}");
        assert_eq!(variables["SLURM_JOB_ID"], "4711", "a number names nobody: {variables:#}");

        rig.run(&format!("snapshot -o {} {option}", path("before.json"))).expect_code(0);
        let diff = rig.run(&format!("diff --json {} {option}", path("before.json"))).json();
        told_of("diff", &diff, redacted, user);

        for name in ["left", "go"] {
            let _ = fs::remove_file(rig.path(name));
        }
        let reports = format!("--report {} --report observation:{}", path("r.json"), path("o.json"));
        let mut run = rig.check_of(
            &format!("--settle 1s {reports} {option}"),
            &rig.program_of(format!("spawn-session {{ alloc 0 1GiB print {ARGUMENT} print {HOME}/x.bin ready left hold }} wait-file left").split_whitespace()),
        );
        run.envs(environment(&rig));
        rig.launch(run).wait().expect_code(121);
        let (report, looks) = (rig.report("r.json"), rig.report("o.json"));
        told_of("check", &report, redacted, user);
        told_of("observation", &looks, redacted, &[user, &[NODE, RUN]].concat());
        assert_eq!(report["verdict"], "residue");

        let plan = rig.run(&format!("reclaim --report {} --json {option}", path("r.json")));
        told_of("reclaim", &plan.json(), redacted, &[]);
        let pids = format!("{server_pid},{neighbour_pid},{}", rig.wait_for("left"));
        let plan = rig.run(&format!("reclaim --pid {pids} --all-users --json {option}")).json();
        told_of("reclaim --pid", &plan, redacted, &[HOME]);
        assert!(plan.to_string().contains("python3"), "{plan:#}");
        if !setuid.is_empty() {
            let refused = rig.run(&format!("reclaim --pid {neighbour_pid} {option}"));
            refused.expect_code(125);
            told_of("a refusal", &Value::String(refused.stderr), redacted, user);
        }
        let refused = rig.run(&format!("doctor --python {HOME}/venv {option}"));
        told_of("a refusal of doctor", &Value::String(refused.stderr), redacted, &[HOME]);
        let mut doctor = rig.gpuresid(["doctor", "--json"].into_iter().chain(option.split_whitespace()));
        // An option that nobody knows is told with its name.
        doctor.env("PYTORCH_ALLOC_CONF", format!("{HOME}/conf:1"));
        told_of("doctor", &rig.launch(doctor).wait().json(), redacted, &[HOME]);
        let left = rig.wait_for("left");
        rustix::process::kill_process(rustix::process::Pid::from_raw(left.try_into().unwrap()).unwrap(), Signal::KILL)
            .unwrap();
        wait_until("the leftover to end", || !support::alive(left));
    }
    server.kill();
    neighbour.kill();
}
