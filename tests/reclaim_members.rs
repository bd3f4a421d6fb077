//! Who is of a job: what its own hook ends, and what only looks as if it were of it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};
use support::{Finished, Rig, Running, alive};

/// A program with this in its environment, when it holds memory.
fn start(rig: &Rig, name: &str, environment: &[(&str, &str)], before: &str) -> (Running, u32) {
    let mut command = rig.beside(&rig.program(&format!("{before} alloc 0 1GiB ready {name} hold")));
    command.envs(environment.iter().copied());
    let running = rig.launch(command);
    (running, rig.wait_for(name))
}

/// `gpuresid reclaim` in a hook with this environment.
fn hook(rig: &Rig, arguments: &str, environment: &[(&str, &str)]) -> Finished {
    let mut command = rig.gpuresid(format!("reclaim {arguments} --yes --json").split_whitespace());
    for cookie in ["RUNNER_TRACKING_ID", "JENKINS_NODE_COOKIE", "CI_JOB_ID"] {
        command.env_remove(cookie);
    }
    command.envs(environment.iter().copied());
    rig.launch(command).wait()
}

fn ended(report: &Value) -> Vec<u32> {
    let steps = report["steps"].as_array().unwrap().iter();
    steps.filter(|s| s["outcome"] == "ended").map(|s| s["pid"].as_u64().unwrap() as u32).collect()
}

#[test]
fn a_ci_job_takes_what_carries_its_own_cookie() {
    for (cookie, ours, theirs) in [
        ("RUNNER_TRACKING_ID", "github_5f1c", "github_5f1d"),
        ("JENKINS_NODE_COOKIE", "0f3a", "0f3b"),
        ("CI_JOB_ID", "4711", "47"),
    ] {
        let rig = Rig::new();
        let (_left, left) = start(&rig, "left", &[(cookie, ours)], "");
        // Another job on the same machine, one that was meant to stay, and somebody who has nothing to do with CI.
        let (_other, other) = start(&rig, "other", &[(cookie, theirs)], "");
        let (_stays, stays) = start(&rig, "stays", &[(cookie, "")], "");
        let (_beside, beside) = start(&rig, "beside", &[], "");
        let report = hook(&rig, "--ci", &[(cookie, ours)]).expect_code(0).json();
        assert_eq!(ended(&report), [left], "{report:#}");
        assert_eq!(report["steps"][0]["why"][0], format!("it carries this CI job's own {cookie}"));
        assert!(!alive(left) && [other, stays, beside].into_iter().all(alive));
        // Nothing more is left, which is what was hoped for.
        assert_eq!(ended(&hook(&rig, "--ci", &[(cookie, ours)]).expect_code(0).json()), [0_u32; 0]);
    }
}

#[test]
fn a_ci_job_that_opted_out_and_one_that_is_none_end_nobody() {
    let rig = Rig::new();
    let (_left, left) = start(&rig, "left", &[("RUNNER_TRACKING_ID", ""), ("CI_JOB_ID", "7")], "");
    for environment in [&[("RUNNER_TRACKING_ID", "")][..], &[("RUNNER_TRACKING_ID", ""), ("CI_JOB_ID", "7")]] {
        assert_eq!(ended(&hook(&rig, "--ci", environment).expect_code(0).json()), [0_u32; 0]);
    }
    let none = hook(&rig, "--ci", &[("CI", "true")]);
    assert!(
        none.expect_code(125).stderr.contains("not the job of a CI runner: none of RUNNER_TRACKING_ID"),
        "{}",
        none.stderr
    );
    assert!(alive(left));
}

#[test]
fn a_launcher_of_the_same_ci_job_goes_before_its_workers_and_our_own_ancestors_never() {
    let rig = Rig::new();
    let mut command = rig.beside(&rig.program("supervise 1 { alloc 0 1GiB ready worker hold }"));
    command.env("CI_JOB_ID", "7");
    let mut agent = rig.launch(command);
    let worker = rig.wait_for("worker");
    // The hook's own shell carries the cookie, and has a GPU open.
    let gpuresid = rig.gpuresid("reclaim --ci --yes --json".split(' '));
    let mut words = rig.program("alloc 0 1GiB run");
    words.push((1 + gpuresid.get_args().count()).to_string().into());
    words.extend(std::iter::once(gpuresid.get_program()).chain(gpuresid.get_args()).map(ToOwned::to_owned));
    let mut shell = rig.beside(&words);
    shell.env("CI_JOB_ID", "7");
    let end = rig.launch(shell).wait();
    let report = end.expect_code(0).json();
    let roles: Vec<_> = report["steps"].as_array().unwrap().iter().map(|s| s["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["supervisor", "holder"], "{report:#}");
    assert!(!agent.is_running() && !alive(worker));
}

#[test]
fn whom_a_member_starts_on_its_way_out_is_ended_too() {
    let rig = Rig::new();
    let script = "import os, signal, subprocess, sys, time\n\
                  def start(verbs): subprocess.Popen([sys.executable, sys.argv[1], *verbs.split()], start_new_session=True)\n\
                  def term(*_):\n    start('alloc 0 1GiB ready born hold')\n    \
                  while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n    os._exit(0)\n\
                  signal.signal(signal.SIGTERM, term)\n\
                  start('alloc 0 1GiB ready worker hold')\n\
                  while True: time.sleep(1)\n";
    fs::write(rig.path("agent.py"), script).unwrap();
    let argv = ["python3".into(), rig.path("agent.py").into(), rig.program("")[1].clone(), rig.path("born").into()];
    let mut agent = rig.beside(&argv);
    agent.env("CI_JOB_ID", "7");
    let _agent = rig.launch(agent);
    let worker = rig.wait_for("worker");
    let report = hook(&rig, "--ci", &[("CI_JOB_ID", "7")]).expect_code(0).json();
    let born = rig.wait_for("born");
    assert!(ended(&report).contains(&worker) && ended(&report).contains(&born), "{report:#}");
    assert!(!alive(born) && rig.used(0) == 0);
}

#[test]
fn what_a_slurm_job_handed_on_is_none_of_it() {
    let rig = Rig::new();
    let job = [("SLURM_JOB_ID", "77")];
    let (_left, left) = start(&rig, "left", &job, "");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let uid = rustix::process::geteuid().as_raw();
    let told = |uid: u32, began: u64| {
        let (uid, began) = (uid.to_string(), began.to_string());
        hook(&rig, "--job 77", &[job[0], ("SLURM_JOB_UID", &uid), ("SLURM_JOB_START_TIME", &began)]).json()
    };
    let why = |report: &Value| report["left_alone"][0]["why"].as_str().unwrap().to_owned();
    // As after `sbatch` from within that job's shell, or `sudo` in it.
    let report = told(uid, now + 600);
    assert_eq!(why(&report), "its environment names job 77, but it is older than that job");
    let report = told(uid + 1, now - 600);
    assert_eq!(why(&report), "its environment names job 77, but it belongs to another user than that job");
    assert!(alive(left));
    assert_eq!(ended(&told(uid, now - 600)), [left]);
}
