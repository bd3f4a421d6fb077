//! Recipes of README and guide that are programs of their own, run as they stand there: they blame and end whom they should, and
//! nobody beside.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test says what broke by breaking")]

mod support;

use gpuresid::guide::CHAPTERS;
use std::{collections::BTreeSet, ffi::OsString, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};
use support::{Fault, Finished, Rig, alive, skipped, wait_until};

/// The block of the README or the guide that has this line.
fn block(line: &str) -> &'static str {
    let texts = CHAPTERS.iter().map(|chapter| chapter.text).chain([include_str!("../README.md")]);
    let blocks = texts.flat_map(|text| text.split("```").skip(1).step_by(2));
    let found: Vec<&str> = blocks.filter(|block| block.lines().any(|known| known.starts_with(line))).collect();
    let [only] = found[..] else { panic!("{} blocks have the line {line}", found.len()) };
    only.split_once('\n').unwrap().1
}

/// A directory with `gpuresid` as it is on a machine with the fake driver.
fn installed(rig: &Rig) -> std::path::PathBuf {
    let place = rig.path("bin");
    fs::create_dir(&place).unwrap();
    let line = rig.gpuresid([] as [&str; 0]);
    let words = std::iter::once(line.get_program()).chain(line.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    executable(&place.join("gpuresid"), &format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")));
    place
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

// ---- Slurm ----------------------------------------------------------------------------------------------------------

/// The epilog of job 104, which had GPU 0; also what it logged.
fn epilog(rig: &Rig) -> (Finished, String) {
    let place = rig.path("bin");
    if !place.exists() {
        installed(rig);
        executable(&place.join("logger"), &format!("#!/bin/sh\ncat >> '{}'\n", rig.path("log").display()));
        let text = block("# Epilog, as root.");
        assert!(text.starts_with("#!/bin/sh\n"), "{text}");
        let text = text.replace("/usr/local/bin", place.to_str().unwrap()).replace("/usr/bin", place.to_str().unwrap());
        executable(&place.join("epilog"), &text);
    }
    let mut command = rig.beside(&[place.join("epilog").into()]);
    // As slurmd starts it, but for the fake driver.
    command.env_remove("HOME").env_remove("PATH").env("SLURM_JOB_ID", "104").env("SLURM_JOB_GPUS", "0");
    let end = rig.launch(command).wait();
    (end, fs::read_to_string(rig.path("log")).unwrap_or_default())
}

/// A process of a Slurm job.
fn of_job(rig: &Rig, job: &str, name: &str, gpu: u32) -> u32 {
    let program = rig.program(&format!("daemonize-twice {{ alloc {gpu} 1GiB ready {name} hold }}"));
    let mut command = rig.beside(&program);
    command.env("SLURM_JOB_ID", job);
    rig.launch(command).wait().expect_code(0);
    rig.wait_for(name)
}

#[test]
fn the_epilog_of_one_job_ends_what_it_left_and_nothing_of_another_on_the_node() {
    if !rustix::process::geteuid().is_root() {
        return skipped("an epilog is root's");
    }
    let rig = Rig::with_gpus(2);
    let others =
        [of_job(&rig, "105", "beside", 1), of_job(&rig, "105", "same-gpu", 0), of_job(&rig, "1040", "lookalike", 0)];
    // A job that left nothing.
    let (end, log) = epilog(&rig);
    end.expect_code(0);
    assert!(log.starts_with("reclaim: nobody to end: no process of job 104 has a GPU open\n"), "{log}");
    let left = of_job(&rig, "104", "left", 0);
    let (end, log) = epilog(&rig);
    end.expect_code(0);
    assert!(
        log.contains(&format!("PID {left}")) && others.iter().all(|pid| !log.contains(&format!("PID {pid}"))),
        "{log}"
    );
    assert!(!alive(left) && others.iter().all(|pid| alive(*pid)), "{log}");
    // Another job's lost GPU is that one's affair.
    let lost =
        |device| Fault { function: "nvmlDevice*".into(), device: Some(device), code: Some(15), ..Fault::default() };
    rig.fault(lost(1));
    epilog(&rig).0.expect_code(0);
    rig.fault(lost(0));
    epilog(&rig).0.expect_code(1);
}

// ---- pytest ---------------------------------------------------------------------------------------------------------

/// A Python that has pytest and xdist.
fn python() -> Option<&'static str> {
    let has = |python: &&str| {
        Command::new(python).args(["-c", "import pytest, xdist"]).output().is_ok_and(|o| o.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has)
}

/// Tests of a suite: some leave a process that holds memory, the others are innocent. `CUDA` is the program of the rig.
const SUITE: &str = r#"
import os, pathlib, signal, subprocess, sys, time
import pytest

PLACE = pathlib.Path(os.environ["PLACE"])
def cuda(*verbs, **how):
    return subprocess.Popen([sys.executable, PLACE / "cuda.py", *" ".join(verbs).split()], **how)
def wait_for(name):
    end = time.monotonic() + 60
    while not (PLACE / name).exists():
        assert time.monotonic() < end, name
        time.sleep(0.01)

@pytest.mark.parametrize("n", range(3))
def test_clean(n):
    assert cuda("alloc 0 1GiB sleep 0.2").wait() == 0

def test_leaves_a_session():
    cuda("alloc 0 1GiB ready session hold", start_new_session=True)
    wait_for("session")

def test_leaves_what_lost_its_parent():
    cuda("daemonize-twice { alloc 0 1GiB ready daemon hold }").wait()
    wait_for("daemon")

def test_leaves_a_forked_copy():
    cuda("alloc 0 1GiB fork-and-exit ready copy hold").wait()
    wait_for("copy")

def test_ends_late():
    child = cuda("alloc 0 1GiB ready late hold")
    wait_for("late")
    child.send_signal(signal.SIGTERM)

def test_others_start_meanwhile():
    (PLACE / "innocent").touch()
    wait_for("theirs")
    wait_for("unmarked")
"#;

#[test]
fn under_pytest_a_test_is_blamed_for_what_it_started_and_for_nothing_else() {
    let Some(python) = python() else {
        return skipped("there is no Python with pytest and xdist; CI has one");
    };
    let rig = Rig::new();
    let bin = installed(&rig);
    let suite = rig.path("suite");
    fs::create_dir(&suite).unwrap();
    fs::write(suite.join("conftest.py"), block("# conftest.py")).unwrap();
    fs::write(suite.join("test_gpu.py"), SUITE).unwrap();
    let usual = std::env::var_os("PATH").unwrap();
    let path = std::iter::once(bin).chain(std::env::split_paths(&usual));
    let options = ["-m", "pytest", "-n", "2", "-rA", "--color=no", "-p", "no:cacheprovider"];
    let line = std::iter::once(python).chain(options).map(OsString::from).chain([suite.clone().into()]);
    let mut command = rig.beside(&line.collect::<Vec<_>>());
    command
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("PLACE", rig.path(""))
        .env("COLUMNS", "200")
        .current_dir(&suite);
    command.arg("--basetemp").arg(rig.path("basetemp"));
    let run = rig.launch(command);
    // While an innocent test runs, somebody else and another program of the same user begin to use the GPU.
    wait_until("the innocent test", || rig.path("innocent").exists());
    let theirs = if rustix::process::geteuid().is_root() { "setuid 65534 " } else { "" };
    let _theirs = rig.start(&format!("{theirs}alloc 0 2GiB ready theirs hold"));
    let _unmarked = rig.start("alloc 0 2GiB ready unmarked hold");
    let end = run.wait_for(std::time::Duration::from_secs(120));
    end.expect_code(1);
    let blamed: BTreeSet<&str> = end
        .stdout
        .lines()
        .filter_map(|line| {
            line.strip_prefix("ERROR ")?.split_once("::")?.1.split_once(" - Failed: this test left GPU memory")
        })
        .map(|(name, _)| name)
        .collect();
    let wanted = ["test_leaves_a_forked_copy", "test_leaves_a_session", "test_leaves_what_lost_its_parent"];
    assert_eq!(blamed, BTreeSet::from(wanted), "{}", end.stdout);
    assert!(end.stdout.contains("8 passed, 3 errors"), "{}", end.stdout);
}
