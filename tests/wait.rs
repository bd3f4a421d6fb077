//! `wait`: until memory is free, or the time is over.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use std::time::{Duration, Instant};
use support::{Allocation, Machine, Rig, wait_until};

fn gib(n: u64) -> Allocation {
    Allocation { device: 0, bytes: n << 30, ..Allocation::default() }
}

#[test]
fn a_condition_that_holds_needs_no_waiting() {
    let rig = Rig::new();
    for arguments in ["wait --below 500MiB", "wait --below 3%", "wait --free 100GiB", "wait --free 100GiB -i 0"] {
        let end = rig.run(arguments);
        end.expect_code(0);
        assert!(end.took < Duration::from_secs(10), "{arguments}: {:?}", end.took);
        assert_eq!((end.stdout.as_str(), end.stderr.as_str()), ("", ""), "{arguments}");
    }
}

#[test]
fn exactly_one_condition_is_needed() {
    let rig = Rig::new();
    for arguments in [
        "wait",
        "wait --timeout 5s",
        "wait --below 1GiB --free 1GiB",
        "wait --below 1",
        "wait --free 20",
        "wait --free 1GiB --except ancestors",
        "wait --below 1GiB --except somebody",
        "wait --below 1GiB --except 4194300",
        "wait --to /no/such/snapshot",
    ] {
        let end = rig.run(arguments);
        end.expect_code(125);
        assert!(end.stderr.starts_with("error: "), "{arguments}: {}", end.stderr);
    }
}

#[test]
fn more_than_a_gpu_has_is_not_waited_for() {
    let mut machine = Machine::h200(2);
    machine.devices[1].total = 40 << 30;
    let rig = Rig::with_machine(&machine);
    for (arguments, words) in [
        ("wait --free 200GiB", "no selected GPU can ever have 200.0 GiB free; when empty: GPU 0 "),
        ("wait --free 200GiB --any", "no selected GPU can ever have 200.0 GiB free; when empty: GPU 0 "),
        ("wait --free 100GiB", "not every selected GPU can ever have 100.0 GiB free; when empty: GPU 1 "),
        ("wait --free 100GiB -i 1", "no selected GPU can ever have 100.0 GiB free; when empty: GPU 1 "),
        ("wait --free 40GiB -i 1", "no selected GPU can ever have 40.0 GiB free; when empty: GPU 1 39"),
        ("wait --below 101%", "invalid value '101%'"),
    ] {
        let end = rig.run(arguments);
        end.expect_code(125);
        assert!(end.stderr.contains(words), "{arguments}: {}", end.stderr);
        assert!(end.took < Duration::from_secs(30), "{arguments}: {:?}", end.took);
    }
    rig.run("wait --free 100GiB --any --timeout 20s").expect_code(0);
    rig.run("wait --free 100GiB --timeout 20s -i 0").expect_code(0);
    // One that cannot be read may be large enough.
    rig.lose_gpu(0);
    rig.run("wait --free 100GiB --any --timeout 200ms").expect_code(124);
}

#[test]
fn it_ends_when_the_memory_is_back() {
    let rig = Rig::new();
    let holder = rig.start("alloc 0 4GiB ready up hold");
    rig.wait_for("up");
    let mut waiting = rig.spawn("wait --below 500MiB --timeout 60s");
    wait_until("some looks", || rig.calls().iter().filter(|c| c.function.contains("MemoryInfo")).count() > 6);
    assert!(waiting.is_running());
    holder.kill();
    wait_until("the memory", || rig.used(0) == 0);
    let back = Instant::now();
    waiting.wait().expect_code(0);
    // A debug build on a loaded machine: the real GPU's suite measures the promise of 100 ms.
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
}

#[test]
fn one_look_is_not_enough() {
    let rig = Rig::new();
    rig.add("holder", gib(4));
    let waiting = rig.spawn("wait --below 500MiB --timeout 30s");
    wait_until("some looks", || rig.calls().iter().filter(|c| c.function.contains("MemoryInfo")).count() > 4);
    let before = rig.calls().len();
    rig.remove("holder");
    waiting.wait().expect_code(0);
    let memory = rig.calls()[before..].iter().filter(|c| c.function.contains("MemoryInfo")).count();
    // A look reads the memory twice.
    assert!(memory >= 4, "{memory} readings after the memory was back");
}

#[test]
fn at_the_end_of_the_time_the_holders_are_named() {
    let rig = Rig::new();
    let _holder = rig.start("alloc 0 4GiB ready up hold");
    let pid = rig.wait_for("up");
    let end = rig.run("wait --below 1GiB --timeout 300ms");
    end.expect_code(124);
    assert!(end.stderr.contains("the memory was not free after 300ms"), "{}", end.stderr);
    assert!(end.stderr.contains("GPU 0: 4623 MiB in use, no more than 1024 MiB wanted"), "{}", end.stderr);
    assert!(end.stderr.contains(&pid.to_string()) && end.stderr.contains("cuda.py"), "{}", end.stderr);
    assert_eq!(end.stdout, "");
    rig.run("wait --free 139GiB --timeout 0").expect_code(124);
}

#[test]
fn one_gpu_is_enough_and_is_printed() {
    let rig = Rig::with_gpus(2);
    rig.add("holder", gib(4));
    rig.run("wait --below 1GiB --timeout 200ms").expect_code(124);
    let status = rig.run("status --json").json();
    let end = rig.run("wait --below 1GiB --timeout 20s --any");
    assert_eq!(end.expect_code(0).stdout.trim(), status["devices"][1]["uuid"].as_str().unwrap());
    rig.run("wait --below 1GiB --timeout 200ms --any -i 0").expect_code(124);
    rig.run("wait --below 1GiB --timeout 20s -i 1").expect_code(0);
}

#[test]
fn a_gpu_that_cannot_be_read_is_not_free() {
    let rig = Rig::with_gpus(2);
    rig.lose_gpu(1);
    let end = rig.run("wait --below 1GiB --timeout 300ms");
    end.expect_code(124);
    assert!(end.stderr.contains("GPU 1 cannot be read"), "{}", end.stderr);
    rig.run("wait --below 1GiB --timeout 20s --any").expect_code(0);
}

#[test]
fn back_to_a_snapshot() {
    let rig = Rig::new();
    rig.add("before", gib(2));
    let file = rig.path("s.json").display().to_string();
    rig.run(&format!("snapshot -o {file}")).expect_code(0);
    rig.run(&format!("wait --to {file} --timeout 20s")).expect_code(0);
    rig.add("more", gib(1));
    rig.run(&format!("wait --to {file} --timeout 300ms")).expect_code(124);
    rig.remove("more");
    rig.run(&format!("wait --to {file} --timeout 20s")).expect_code(0);
    // Of another boot it says nothing.
    let mut old: serde_json::Value = rig.report("s.json");
    old["boot_id"] = "00000000-0000-0000-0000-000000000000".into();
    std::fs::write(&file, old.to_string()).unwrap();
    rig.run(&format!("wait --to {file}")).expect_code(125);
}

#[test]
fn for_a_gpu_of_the_snapshot_that_is_gone_nothing_is_waited() {
    let rig = Rig::with_gpus(2);
    let file = rig.path("s.json").display().to_string();
    let mut second = serde_json::Value::Null;
    rig.run(&format!("snapshot -o {file}")).expect_code(0);
    rig.edit_machine(|machine| second = machine["devices"].as_array_mut().unwrap().pop().unwrap());
    let end = rig.run(&format!("wait --to {file} --timeout 60s"));
    end.expect_code(122);
    let said = "gpuresid: GPU 1: it was there before, and the driver does not have it any more\n";
    assert!(end.stderr.starts_with(said) && end.stderr.contains("nvidia-smi -L"), "{}", end.stderr);
    rig.run(&format!("wait --to {file} --timeout 20s -i 0")).expect_code(0);
    rig.run(&format!("wait --to {file} --timeout 20s --any")).expect_code(0);
    // One that came since is not waited for.
    rig.run(&format!("snapshot -o {file}")).expect_code(0);
    rig.edit_machine(|machine| machine["devices"].as_array_mut().unwrap().push(second));
    rig.add("new", Allocation { device: 1, ..gib(2) });
    let end = rig.run(&format!("wait --to {file} --timeout 20s"));
    let said = "gpuresid: GPU 1 was not there when the snapshot was taken: it is not waited for\n";
    assert_eq!(end.expect_code(0).stderr, said);
}

#[test]
fn whoever_is_excepted_is_not_waited_for() {
    let rig = Rig::new();
    let _mine = rig.start("alloc 0 4GiB ready mine hold");
    let mine = rig.wait_for("mine");
    rig.run("wait --below 16MiB --timeout 300ms").expect_code(124);
    rig.run(&format!("wait --below 16MiB --timeout 20s --except {mine}")).expect_code(0);
    // Not for free memory: what it holds is not free.
    let neighbour = rig.start("alloc 0 2GiB ready neighbour hold");
    rig.wait_for("neighbour");
    rig.run(&format!("wait --below 16MiB --timeout 300ms --except {mine}")).expect_code(124);
    rig.run(&format!("wait --below 16MiB --timeout 20s --except {mine} --except {}", neighbour.pid())).expect_code(0);
}

#[test]
fn a_test_runner_does_not_wait_for_itself() {
    let rig = Rig::new();
    // A CUDA program that waits, as pytest does whose own process has a context.
    let wait = |except: &[&str]| {
        let gpuresid = rig.gpuresid(["wait", "--below", "16MiB", "--timeout", "1s"]);
        let mut line: Vec<std::ffi::OsString> = vec![gpuresid.get_program().into()];
        line.extend(gpuresid.get_args().map(Into::into));
        line.extend(except.iter().map(Into::into));
        let words: Vec<_> = line.iter().map(|w| w.to_str().unwrap().to_owned()).collect();
        let mut argv: Vec<std::ffi::OsString> = rig.program("alloc 0 1GiB run");
        argv.push(words.len().to_string().into());
        argv.extend(line);
        rig.start_of(&argv).wait()
    };
    wait(&[]).expect_code(124);
    wait(&["--except", "ancestors"]).expect_code(0);
}

#[test]
fn the_number_of_an_excepted_process_that_ended_is_no_excuse() {
    let rig = Rig::new();
    // It forks and dies while it is excepted: the copy keeps the memory under its number.
    let _mine = rig.start("alloc 0 2GiB fork { ready copy hold } ready mine wait-file go");
    let mine = rig.wait_for("mine");
    rig.wait_for("copy");
    let excepted = format!("wait --below 16MiB --timeout 1s --except {mine}");
    rig.run(&excepted).expect_code(0);
    rig.add("other", gib(1));
    let waiting = rig.spawn(&format!("wait --below 16MiB --timeout 3s --except {mine}"));
    wait_until("some looks", || waiting.stderr().is_empty() && rig.calls().len() > 60);
    rig.mark("go");
    wait_until("its end", || std::fs::read_to_string(format!("/proc/{mine}/fd")).is_err() && zombie(mine));
    rig.remove("other");
    waiting.wait().expect_code(124);
}

fn zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "))
        || !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_terminal_shows_what_is_waited_for() {
    let rig = Rig::new();
    let _holder = rig.start("alloc 0 4GiB ready up hold");
    let pid = rig.wait_for("up");
    // `script` gives it a terminal.
    let gpuresid = rig.gpuresid(["wait", "--below", "1GiB", "--timeout", "2500ms"]);
    let mut line = gpuresid.get_program().to_str().unwrap().to_owned();
    for argument in gpuresid.get_args() {
        line.push_str(&format!(" '{}'", argument.to_str().unwrap()));
    }
    let words = ["script", "-qec", &line, "/dev/null"].map(std::ffi::OsString::from);
    if std::process::Command::new("script").arg("--version").output().is_err() {
        support::skipped("there is no `script` here");
        return;
    }
    let end = rig.start_of(&words).wait();
    let shown = format!("gpuresid: GPU 0: 4623 MiB in use, no more than 1024 MiB wanted; held by python3 ({pid})");
    assert!(end.stdout.contains(&shown[..60]), "{:?}", end.stdout);
}
