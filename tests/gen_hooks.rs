//! `gen github-hook` and `gen gitlab-hook`: run as the runners run them, each ends its own job's leftovers and nobody
//! else, and changes no job's result.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use gpuresid::r#gen::{Wanted, recipe};
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};
use support::{Finished, Rig, Running, alive, line_of};

/// The first file of a recipe, for a program that talks to the fake driver.
fn file(rig: &Rig, name: &str) -> String {
    let wrapper = rig.path("50% gpu'resid");
    let gpuresid = rig.gpuresid(std::iter::empty::<OsString>());
    fs::write(&wrapper, format!("#!/bin/sh\nexec {} \"$@\"\n", line_of(&gpuresid))).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let wanted = Wanted { binary: &wrapper, gpus: &["0".into()], act: false, idle: None };
    (recipe(name).unwrap().files)(&wanted).remove(0).text
}

fn start(rig: &Rig, name: &str, cookie: (&str, &str)) -> (Running, u32) {
    let mut command = rig.beside(&rig.program(&format!("alloc 0 1GiB ready {name} hold")));
    command.env(cookie.0, cookie.1);
    (rig.launch(command), rig.wait_for(name))
}

/// Runs a script in a job's environment.
fn run(rig: &Rig, script: &Path, cookie: Option<(&str, &str)>) -> Finished {
    let mut command = rig.beside(&["bash".into(), "-e".into(), script.into()]);
    command.env_remove("RUNNER_TRACKING_ID").env_remove("CI_JOB_ID").envs(cookie);
    rig.launch(command).wait()
}

#[test]
fn the_github_hook_ends_what_its_job_left_and_fails_no_job() {
    let rig = Rig::new();
    let script = rig.path("hook.sh");
    fs::write(&script, file(&rig, "github-hook")).unwrap();
    let (_left, left) = start(&rig, "left", ("RUNNER_TRACKING_ID", "github_5f1c"));
    let (_other, other) = start(&rig, "other", ("RUNNER_TRACKING_ID", "github_77aa"));
    let end = run(&rig, &script, Some(("RUNNER_TRACKING_ID", "github_5f1c")));
    end.expect_code(0);
    assert!(!alive(left) && alive(other), "{end:?}");
    assert!(!end.stdout.contains("::warning"), "{end:?}");
    // Outside of a job nothing is known, and nobody is ended.
    let end = run(&rig, &script, None);
    end.expect_code(0);
    assert!(end.stdout.contains("::warning title=GPU memory::") && end.stdout.contains("(exit code 125)"), "{end:?}");
    assert!(alive(other));
}

#[test]
fn the_gitlab_hook_is_yaml_whose_command_ends_what_its_job_left() {
    let rig = Rig::new();
    let (yaml, script) = (rig.path("hook.yml"), rig.path("hook.sh"));
    fs::write(&yaml, file(&rig, "gitlab-hook")).unwrap();
    let read = "import sys, yaml
lines = yaml.safe_load(open(sys.argv[1]))['default']['after_script']
open(sys.argv[2], 'w').write('\\n'.join(lines) + '\\n')";
    let reads_yaml =
        |python: &&str| Command::new(python).args(["-c", "import yaml"]).output().is_ok_and(|end| end.status.success());
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(reads_yaml) else {
        return println!("skipped: there is no Python with yaml; CI has one");
    };
    let words = [python.into(), "-c".into(), read.into(), yaml.into(), OsString::from(&script)];
    rig.launch(rig.beside(&words)).wait().expect_code(0);
    let (_left, left) = start(&rig, "left", ("CI_JOB_ID", "4711"));
    let (_other, other) = start(&rig, "other", ("CI_JOB_ID", "47"));
    let end = run(&rig, &script, Some(("CI_JOB_ID", "4711")));
    end.expect_code(0);
    assert!(!alive(left) && alive(other), "{end:?}");
    let end = run(&rig, &script, None);
    end.expect_code(0);
    assert!(end.stdout.contains("gpuresid ended with code 125"), "{end:?}");
}

#[test]
fn what_only_a_timer_takes_is_refused() {
    let rig = Rig::new();
    let end = rig.run("gen github-hook --act");
    assert!(end.expect_code(125).stderr.contains("--act and --idle say what a timer may end by itself"), "{end:?}");
    let end = rig.run("gen gitlab-hook");
    assert!(end.expect_code(0).stdout.contains("# ---- gpuresid-after-script.yml ----"), "{end:?}");
}
