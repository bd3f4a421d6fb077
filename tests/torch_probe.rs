//! `check --torch`: the probe by itself in plain Python, and the whole binary with a stand-in for PyTorch on the fake
//! machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{ffi::OsString, fs, process::Command};
use support::{Finished, Rig, wait_until};

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 518 * MIB;
const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch");

/// `check --torch` of a Python program with this text; `before` stands before the program's name.
fn check(rig: &Rig, options: &str, before: &[&str], text: &str) -> Finished {
    rig.launch(command(rig, options, before, text)).wait()
}

fn command(rig: &Rig, options: &str, before: &[&str], text: &str) -> Command {
    let program = rig.path("train.py");
    fs::write(&program, text).unwrap();
    let mut argv: Vec<OsString> = before.iter().map(Into::into).collect();
    argv.push(program.into());
    let options = format!("--torch --report {} {options}", rig.path("r.json").display());
    let mut command = rig.check_of(&options, &argv);
    command.env("PYTHONPATH", STAND_IN).env("PYTHONDONTWRITEBYTECODE", "1").env("TMPDIR", rig.path(""));
    command
}

/// The directory of the probe is gone.
fn nothing_is_left(rig: &Rig) {
    let names = fs::read_dir(rig.path("")).unwrap().flatten().map(|e| e.file_name().into_string().unwrap());
    let left: Vec<_> = names.filter(|name| name.starts_with("gpuresid-torch-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn only(report: &Value) -> &Value {
    let processes = report["torch"].as_array().unwrap();
    assert_eq!(processes.len(), 1, "{report}");
    &processes[0]
}

fn gaps_about_pytorch(report: &Value) -> Vec<String> {
    let gaps = report["gaps"].as_array().unwrap().iter().filter(|g| g["about"] == "PyTorch");
    gaps.map(|g| g["reason"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_probe_by_itself() {
    let done = Command::new("python3").args(["-B", "test_probe.py"]).current_dir(STAND_IN).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_memory_is_split_and_the_global_tensor_named() {
    let rig = Rig::new();
    let end = check(
        &rig,
        "",
        &["python3"],
        "import torch, time\n\
         global_tensor = torch.zeros(10000, 10000)\n\
         waste = torch.zeros(64, 1024, 1024)\n\
         del waste\n\
         time.sleep(1)\n",
    );
    end.expect_code(0);
    let report = rig.report("r.json");
    let process = only(&report);
    assert_eq!((&process["stage"], &process["alive"]), (&"exit".into(), &false.into()), "{process}");
    assert_eq!(process["gaps"], serde_json::json!([]), "{process}");
    let device = &process["devices"][0];
    assert_eq!(device["uuid"], report["devices"][0]["uuid"]);
    let tensor = 400_000_000u64.div_ceil(512) * 512;
    for when in ["end", "peak"] {
        let split = &device[when];
        assert_eq!(split["context_bytes"], CONTEXT, "{when}: {device}");
        assert_eq!(split["listed_bytes"], CONTEXT + tensor + 256 * MIB, "{when}: {device}");
    }
    assert_eq!((&device["end"]["live_bytes"], &device["end"]["cached_bytes"]), (&tensor.into(), &(256 * MIB).into()));
    assert_eq!(device["releasable_bytes"], 256 * MIB);
    let largest = &device["live"]["largest"][0];
    assert_eq!((&largest["bytes"], &largest["dtype"]), (&400_000_000.into(), &"float32".into()));
    assert_eq!(largest["references"][0]["name"], "train.global_tensor");
    let text = end.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "gpuresid: clean:",
        "Inside PyTorch",
        "at its exit",
        "381 MiB train.global_tensor (10000×10000 float32)",
        "would have given back 256 MiB of the cache's 256 MiB",
        "`train.global_tensor` (381 MiB)",
        "`torch.cuda.empty_cache()`",
        "All of it goes when its process ends",
    ] {
        assert!(text.contains(words), "{words}: {}", end.stderr);
    }
    nothing_is_left(&rig);
}

#[test]
fn a_cache_given_back_at_the_end_is_not_taken_for_context() {
    let rig = Rig::new();
    check(
        &rig,
        "",
        &["python3"],
        "import torch, time\n\
         big = torch.zeros(1024, 1024, 1024)\n\
         time.sleep(0.6)\n\
         del big\n\
         torch.cuda.empty_cache()\n",
    )
    .expect_code(0);
    let report = rig.report("r.json");
    let device = &only(&report)["devices"][0];
    assert_eq!((&device["end"]["live_bytes"], &device["end"]["cached_bytes"]), (&0.into(), &0.into()), "{device}");
    assert_eq!(device["end"]["context_bytes"], CONTEXT, "{device}");
    assert_eq!(
        (&device["peak"]["live_bytes"], &device["peak"]["context_bytes"]),
        (&(4u64 << 30).into(), &CONTEXT.into())
    );
}

#[test]
fn a_server_that_stays_shows_its_last_sample() {
    let rig = Rig::new();
    let end = check(
        &rig,
        "--settle 6s",
        &["python3"],
        "import os, sys, subprocess, time\n\
         if len(sys.argv) == 1:\n\
         \x20   subprocess.Popen([sys.executable, __file__, 'server'], start_new_session=True, stdin=subprocess.DEVNULL)\n\
         \x20   ready = os.path.join(os.path.dirname(__file__), 'up')\n\
         \x20   while not os.path.exists(ready): time.sleep(0.01)\n\
         else:\n\
         \x20   import torch\n\
         \x20   weights = torch.zeros(256, 1024, 1024)\n\
         \x20   with open(os.path.join(os.path.dirname(__file__), 'up'), 'w') as f: f.write(str(os.getpid()))\n\
         \x20   while os.path.exists(os.environ['FAKE_NVML_LEDGER'] + '/machine.json'): time.sleep(0.05)\n",
    );
    end.expect_code(121);
    let report = rig.report("r.json");
    let process = only(&report);
    assert_eq!((&process["stage"], &process["alive"]), (&"sample".into(), &true.into()), "{process}");
    assert_eq!(process["pid"], rig.wait_for("up"));
    let device = &process["devices"][0];
    assert_eq!(device["end"]["context_bytes"], CONTEXT, "{device}");
    // It was at rest long enough to be looked through.
    assert_eq!(device["live"]["owners"][0]["name"], "train.weights", "{device}");
    let advice = process["advice"].as_array().unwrap();
    assert!(advice.iter().any(|a| a["command"] == format!("kill {}", process["pid"])), "{process}");
    nothing_is_left(&rig);
}

#[test]
fn who_did_not_tell_is_named_with_the_reason() {
    let torch = format!("import sys; sys.path.insert(0, {STAND_IN:?})\nimport torch\nkept = torch.zeros(1024, 1024)\n");
    let program = format!("{torch}import time; time.sleep(0.5)\n");
    for (before, reason) in [
        (&["python3", "-S"][..], "started with -S"),
        (&["python3", "-BE"], "started with -E"),
        (&["python3", "-BI"], "started with -I"),
        (&["env", "PYTHONPATH=", "python3"], "PYTHONPATH was set anew"),
    ] {
        let rig = Rig::new();
        check(&rig, "", before, &program).expect_code(0);
        let report = rig.report("r.json");
        assert_eq!(report["torch"], serde_json::json!([]), "{before:?}");
        let gaps = gaps_about_pytorch(&report);
        assert!(gaps.len() == 1 && gaps[0].contains(reason), "{before:?}: {gaps:?}");
    }
    // The environment is cleared; the fake machine is named on the command line.
    let rig = Rig::new();
    let verbs = "spawn-clean { alloc 0 1GiB sleep 0.5 } alloc 0 1GiB wait-children";
    let report = rig.path("r.json");
    rig.check(&format!("--torch --report {}", report.display()), verbs).expect_code(0);
    let gaps = gaps_about_pytorch(&rig.report("r.json"));
    assert!(gaps.iter().any(|g| g.contains("does not have what `check` gave")), "{gaps:?}");
    // The other one ran the probe, but it is no PyTorch.
    assert!(gaps.iter().any(|g| g.contains("PyTorch did not use CUDA")), "{gaps:?}");
    // Without the option nothing of it is said.
    rig.check(&format!("--report {}", report.display()), "alloc 0 1GiB").expect_code(0);
    assert!(rig.report("r.json").get("torch").is_none());
}

#[test]
fn no_python_program_is_needed() {
    let rig = Rig::new();
    let report = rig.path("r.json");
    let options = format!("--torch --report {}", report.display());
    let end = rig.launch(rig.check_of(&options, &["true".into()])).wait();
    end.expect_code(0);
    assert!(end.stderr.contains("PyTorch used CUDA in no process of the command"), "{}", end.stderr);
}

#[test]
fn the_programs_own_path_stays_and_codes_too() {
    let rig = Rig::new();
    let text = "import os, sys\nprint(os.environ['PYTHONPATH'].split(':')[1], *[n for n in os.environ if n.startswith('GPURESID')])\nsys.exit(9)";
    let end = check(&rig, "", &["python3"], text);
    end.expect_code(9);
    assert_eq!(end.stdout.trim(), format!("{STAND_IN} GPURESID_RUN_ID"));
    nothing_is_left(&rig);
}

#[test]
fn what_a_killed_check_left_is_removed_by_the_next_and_a_living_ones_is_not() {
    let rig = Rig::new();
    let directories = || {
        let entries = fs::read_dir(rig.path("")).unwrap().flatten().map(|e| e.path());
        entries.filter(|path| path.to_str().unwrap().contains("/gpuresid-torch-")).collect::<Vec<_>>()
    };
    let started = |mark: &str| {
        let script =
            format!("open('{mark}', 'w').close()\nimport time\nwhile not os.path.exists('over'): time.sleep(0.01)");
        let mut command = command(&rig, "", &["python3"], &format!("import os\n{script}"));
        command.current_dir(rig.path(""));
        let check = rig.launch(command);
        wait_until(mark, || rig.path(mark).exists());
        check
    };
    let killed = started("killed");
    killed.signal(rustix::process::Signal::KILL);
    killed.wait();
    let left = directories();
    assert_eq!(left.len(), 1);
    let living = started("living");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for directory in directories() {
        fs::File::open(directory).unwrap().set_modified(long_ago).unwrap();
    }
    check(&rig, "", &["python3"], "pass").expect_code(0);
    let now = directories();
    assert!(now.len() == 1 && now[0] != left[0], "{left:?} {now:?}");
    fs::write(rig.path("over"), "").unwrap();
    living.wait().expect_code(0);
    nothing_is_left(&rig);
}

#[test]
fn without_a_place_for_the_files_nothing_is_run() {
    let rig = Rig::new();
    for (place, words) in [("/no/such/place", "set TMPDIR"), ("/tmp/a:b", "colon")] {
        let mut command = command(&rig, "", &["python3"], "open('ran', 'w')");
        command.env("TMPDIR", place).current_dir(rig.path(""));
        let end = rig.launch(command).wait();
        end.expect_code(125);
        assert!(end.stderr.contains(words), "{}", end.stderr);
        assert!(!rig.path("ran").exists());
    }
}
