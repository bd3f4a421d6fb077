//! Drivers and platforms that are not the usual one, whole binary: MIG, memory that is not told, a GPU that hangs,
//! libraries that stand in front of NVIDIA's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what broke by breaking, and why it is skipped"
)]

mod support;

use serde_json::Value;
use std::{fs, process::Command};
use support::{Allocation, Fault, Instance, Machine, Rig, wait_until};

const GIB: u64 = 1 << 30;

fn with_mig() -> Rig {
    let mut machine = Machine::h200(2);
    let instance = |n: u32| Instance { uuid: format!("MIG-0000000{n}"), gi: n, ci: 0, total: 20 * GIB, reserved: 0 };
    machine.devices[0].mig = vec![instance(1), instance(2)];
    Rig::with_machine(&machine)
}

fn report_option(rig: &Rig) -> String {
    format!("--settle 1s --report {}", rig.path("r.json").display())
}

fn gaps(report: &Value) -> String {
    let gap = |g: &Value| format!("{}: {}\n", g["about"].as_str().unwrap(), g["reason"].as_str().unwrap());
    report["gaps"].as_array().unwrap().iter().map(gap).collect()
}

#[test]
fn a_mig_instance_has_its_own_memory_and_holders() {
    let rig = with_mig();
    let neighbour = rig.start("instance 0 2 0 alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let status = rig.run("status --json").json();
    let devices = status["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 4, "{status:#}");
    let used = |n: usize| devices[n]["used_bytes"].as_u64().unwrap();
    assert!(used(1) < GIB && used(2) >= GIB && used(3) < 4 << 20, "{status:#}");
    let holders = status["holders"].as_array().unwrap();
    assert_eq!((holders.len(), &holders[0]["pid"]), (1, &pid.into()), "{status:#}");
    let held = holders[0]["devices"].as_array().unwrap();
    assert_eq!((held.len(), &held[0]["uuid"]), (1, &"MIG-00000002".into()), "{status:#}");
    assert!(gaps(&status).contains("GPU 0: it is split into MIG instances"), "{status:#}");
    rig.run("status").expect_code(0);

    // A clean run beside it waits for nothing, though the parent tells no processes.
    let end = rig
        .check(&format!("--report {}", rig.path("r.json").display()), "instance 0 1 0 alloc 0 1GiB ready ran exit 0");
    end.expect_code(0);
    let report = rig.report("r.json");
    assert!(report["settled_seconds"].as_f64().unwrap() < 5.0, "{report:#}");
    neighbour.kill();
}

#[test]
fn a_mig_instance_is_charged_alone() {
    let rig = with_mig();
    let verbs = "spawn-session { instance 0 1 0 alloc 0 1GiB ready up hold } wait-file up";
    rig.check(&report_option(&rig), verbs).expect_code(121);
    let report = rig.report("r.json");
    let verdicts: Vec<_> =
        report["devices"].as_array().unwrap().iter().map(|d| d["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["clean", "residue", "clean", "clean"], "{report:#}");
    assert_eq!(report["holders"][0]["devices"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(report["holders"][0]["devices"][0]["uuid"], "MIG-00000001");
}

#[test]
fn bytes_that_are_not_told_are_null_and_a_gap() {
    // As in WSL and with a virtual GPU.
    let rig = Rig::new();
    let function = "nvmlDeviceGetComputeRunningProcesses*".into();
    rig.fault(Fault { function, bytes_unavailable: true, ..Fault::default() });
    let end = rig.check(&report_option(&rig), "spawn-session { alloc 0 1GiB ready up hold } wait-file up");
    end.expect_code(122);
    let pid = rig.wait_for("up");
    let status = rig.run("status --json").json();
    assert_eq!(status["holders"][0]["devices"][0]["held_bytes"], Value::Null, "{status:#}");
    assert_eq!(status["devices"][0]["listed_bytes"], Value::Null, "{status:#}");
    assert!(gaps(&status).contains(&format!("does not tell how much memory PID {pid} holds")), "{status:#}");
}

#[test]
fn in_wsl_the_one_device_file_tells_who_may_hold_memory() {
    let rig = Rig::new();
    fs::write(rig.dev().join("dxg"), "").unwrap();
    rig.add("unlisted", Allocation { unlisted_bytes: 2 * GIB, ..Allocation::default() });
    let process = rig.start("open dxg 2 ready up hold");
    let pid = rig.wait_for("up");
    let status = rig.run("status --json").json();
    let holder = status["holders"].as_array().unwrap().iter().find(|h| h["pid"] == pid);
    let why = holder.unwrap_or_else(|| panic!("{status:#}"))["why"].to_string();
    assert!(why.contains("2 on /dev/dxg"), "{why}");
    process.kill();
    assert_eq!(rig.run("status --json").json()["holders"], serde_json::json!([]));
}

#[test]
fn memory_that_is_not_supported_is_null_and_the_lists_still_answer() {
    // As on GB10 and Jetson.
    let rig = Rig::new();
    rig.answers("nvmlDeviceGetMemoryInfo*", 3);
    let neighbour = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let status = rig.run("status --json").json();
    assert_eq!(status["devices"][0]["used_bytes"], Value::Null, "{status:#}");
    assert_eq!(status["holders"][0]["pid"], pid, "{status:#}");
    assert_eq!(status["holders"][0]["devices"][0]["held_bytes"], (1024 + 518) << 20, "{status:#}");
    assert!(gaps(&status).contains("shares the machine's memory"), "{status:#}");
    assert!(rig.run("status").stdout.contains('?'));
    // Nothing can be called clean without a reading, and nothing is called 0.
    rig.check(&report_option(&rig), "alloc 0 1GiB").expect_code(122);
    let report = rig.report("r.json");
    assert_eq!(report["devices"][0]["used_after_bytes"], Value::Null, "{report:#}");
    // What stays is charged by the list.
    rig.check(&report_option(&rig), "spawn-session { alloc 0 1GiB ready left hold } wait-file left").expect_code(121);
    neighbour.kill();
}

#[test]
fn without_the_list_of_who_computes_nothing_is_said_of_who_is_listed() {
    let rig = Rig::new();
    rig.answers("nvmlDeviceGetComputeRunningProcesses*", 3);
    let neighbour = rig.start("alloc 0 1GiB ready up hold");
    rig.wait_for("up");
    let status = rig.run("status --json").json();
    let device = &status["devices"][0];
    assert_eq!((&device["listed_bytes"], &device["unaccounted_bytes"]), (&Value::Null, &Value::Null), "{status:#}");
    assert!(device["used_bytes"].as_u64().is_some_and(|used| used > 1 << 30), "{status:#}");
    assert!(gaps(&status).contains("no list of who computes"), "{status:#}");
    neighbour.kill();
}

#[test]
fn a_gpu_that_hangs_does_not_hide_the_other() {
    let rig = Rig::with_gpus(2);
    let run = rig.spawn_check(
        &format!("--nvml-timeout 2s {}", report_option(&rig)),
        "spawn-session { alloc 1 1GiB ready left hold } wait-file left ready up wait-file go",
    );
    rig.wait_for("up");
    fs::write(rig.ledger.directory().join("stuck"), "").unwrap();
    let function = "nvmlDeviceGetMemoryInfo_v2".into();
    rig.fault(Fault { function, device: Some(0), hang_while: Some("stuck".into()), ..Fault::default() });
    wait_until("a call to hang", || rig.calls().iter().any(|c| c.code.is_none()));
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.report("r.json");
    assert_eq!(report["devices"][0]["verdict"], "inconclusive", "{report:#}");
    assert_eq!(report["devices"][1]["verdict"], "residue", "{report:#}");
    assert!(gaps(&report).contains("nvmlDeviceGetMemoryInfo_v2 on GPU 0 did not come back"), "{report:#}");
    rig.let_go("stuck");
}

#[test]
fn a_preloaded_library_decides_nothing() {
    let rig = Rig::new();
    let shim = rig.path("libvgpu.so");
    fs::copy(rig.library(), &shim).unwrap();
    let option = report_option(&rig);
    let mut command = rig.check_of(&option, &["true".into()]);
    command.env("LD_PRELOAD", &shim);
    rig.launch(command).wait().expect_code(122);
    let report = rig.report("r.json");
    assert_eq!(report["verdict"], "inconclusive");
    assert!(gaps(&report).contains("libvgpu.so is preloaded"), "{report:#}");
    // A preloaded library that has nothing to do with NVML changes nothing.
    let mut command = rig.check_of(&option, &["true".into()]);
    command.env("LD_PRELOAD", "libm.so.6");
    rig.launch(command).wait().expect_code(0);
}

#[test]
fn the_library_that_really_answers_is_named() {
    let rig = Rig::new();
    let shim = rig.path("libnvidia-ml.so.1");
    let fake = rig.library();
    // A library without a function of its own: the loader finds them in what it needs.
    let built = Command::new("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-x", "none", "-Wl,--no-as-needed", "-o"])
        .arg(&shim)
        .arg(&fake)
        .arg(format!("-Wl,-rpath,{}", fake.parent().unwrap().display()))
        .output();
    if !built.as_ref().is_ok_and(|b| b.status.success()) {
        eprintln!("skipped: no C compiler here ({built:?})");
        return;
    }
    rig.use_library(&shim);
    let snapshot = rig.run("snapshot");
    let snapshot = snapshot.expect_code(0).json();
    let library = snapshot["driver"]["library"].as_str().unwrap();
    assert!(library.ends_with("libfake_nvml.so"), "{library}");
    let status = rig.run("status --json").json();
    assert!(gaps(&status).contains("libfake_nvml.so answers in place of"), "{status:#}");
    rig.check(&report_option(&rig), "alloc 0 1GiB").expect_code(122);
    // Named itself, it is what was asked for.
    rig.use_library(&fake);
    rig.check(&report_option(&rig), "alloc 0 1GiB").expect_code(0);
}

#[test]
fn an_xid_is_a_finding_of_its_gpu_and_a_full_gpu_is_one_of_a_failed_run() {
    let rig = Rig::with_gpus(2);
    let run = rig.spawn_check(&report_option(&rig), "alloc 1 138GiB ready up wait-file go exit 1");
    rig.wait_for("up");
    rig.xid(1, 31);
    wait_until("the event to be asked for", || rig.calls().iter().any(|c| c.function.starts_with("nvmlEventSetWait")));
    // The event wait answers within its period.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    rig.mark("go");
    run.wait().expect_code(1);
    let report = rig.report("r.json");
    let of = |kind: &str| {
        let all = report["findings"].as_array().unwrap().iter().filter(|f| f["kind"] == kind);
        all.map(|f| f["device_uuid"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("xid"), [report["devices"][1]["uuid"].clone()], "{report:#}");
    assert_eq!(of("out_of_memory"), [report["devices"][1]["uuid"].clone()], "{report:#}");
    // A run that succeeded did not run out of anything.
    rig.check(&report_option(&rig), "alloc 1 138GiB sleep 0.5").expect_code(0);
    assert!(!rig.report("r.json")["findings"].to_string().contains("out_of_memory"));
}

#[test]
fn what_a_run_leaves_in_shared_memory_is_listed_and_left_there() {
    let rig = Rig::new();
    let shm = rig.dev().join("shm");
    fs::create_dir(&shm).unwrap();
    fs::write(shm.join("before"), "x").unwrap();
    let script = "import mmap, os, subprocess, sys\n\
         d = sys.argv[1]\n\
         open(d + '/torch_1_2', 'wb').write(b'x' * 65536)\n\
         open(d + '/with space', 'wb').write(b'x')\n\
         open(d + '/before', 'ab').write(b'y')\n\
         held = open(d + '/held', 'w+b'); held.write(b'x' * 4096); held.flush()\n\
         m = open(d + '/mapped', 'w+b'); m.write(b'x' * 4096); m.flush(); mm = mmap.mmap(m.fileno(), 4096); m.close()\n\
         pid = os.fork()\n\
         if pid == 0:\n\
        \x20    import time\n\
        \x20    open(sys.argv[2], 'w').write(str(os.getpid()))\n\
        \x20    while os.path.exists(sys.argv[3]): time.sleep(0.01)\n\
         while not os.path.exists(sys.argv[2]): pass\n";
    let alive = rig.path("alive");
    fs::write(&alive, "").unwrap();
    let words = ["python3", "-c", script, shm.to_str().unwrap()].map(std::ffi::OsString::from);
    let mut argv = words.to_vec();
    argv.extend([rig.path("child").into_os_string(), alive.clone().into_os_string()]);
    let end = rig.launch(rig.check_of(&report_option(&rig), &argv)).wait();
    end.expect_code(0);
    fs::remove_file(&alive).unwrap();
    let report = rig.report("r.json");
    let left = report["leftovers"].as_array().unwrap();
    let path = |name: &str| shm.join(name).display().to_string();
    let paths: Vec<_> = left.iter().map(|l| l["path"].as_str().unwrap().to_owned()).collect();
    let mut expected = [path("torch_1_2"), path("with space")];
    expected.sort();
    let mut sorted = paths.clone();
    sorted.sort();
    assert_eq!(sorted, expected, "{report:#}");
    let torch = left.iter().find(|l| l["path"] == path("torch_1_2")).unwrap();
    assert!(torch["bytes"].as_u64().unwrap() >= 65536, "{torch}");
    assert_eq!(torch["remove"], format!("rm {}", path("torch_1_2")));
    assert!(end.stderr.contains(&format!("remove it: rm '{}'", path("with space"))), "{}", end.stderr);
    // Only where everybody could be asked nobody is said to use it.
    let all_seen = !gaps(&rig.run("status --json").json()).contains("/proc");
    for l in left {
        assert_eq!(l["unused"], if all_seen { Value::Bool(true) } else { Value::Null }, "{report:#}");
    }
    assert!(shm.join("torch_1_2").exists(), "listed, and never removed");
    // The next run made nothing: nothing is laid to its charge.
    rig.check(&report_option(&rig), "alloc 0 1GiB").expect_code(0);
    assert_eq!(rig.report("r.json")["leftovers"], Value::Null);
}
