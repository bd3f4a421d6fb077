//! The fake library through its C ABI and through the wrapper that the tool uses, and the simulated source over the
//! same ledger: all three must say the same.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod support;

use gpuresid::{model::Uuid, observe::driver::simulated::Simulated};
use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory};
use serde_json::{Value, json};
use std::process::Command;
use support::{Allocation, Fault, Instance, List, Machine, Rig, Running, wait_until};

const MIB: u64 = 1 << 20;

/// `[code, value]` of each call to the library.
fn ask(rig: &Rig, calls: &[&str]) -> Vec<Value> {
    let end = client(rig, calls).wait();
    end.expect_code(0);
    end.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|l: Value| json!([l["code"], l["value"]]))
        .collect()
}

fn client(rig: &Rig, calls: &[&str]) -> Running {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/nvml_client.py");
    let mut argv = vec!["python3".into(), script.into(), rig.library().into_os_string()];
    argv.extend(calls.iter().map(Into::into));
    rig.start_of(&argv)
}

/// A process of 100 MiB, one of graphics, one MPS client.
fn three(rig: &Rig) {
    rig.add("a", Allocation { pid: Some(11), bytes: 100 * MIB, ..Allocation::default() });
    rig.add("b", Allocation { pid: Some(12), bytes: 50 * MIB, lists: vec![List::Graphics], ..Allocation::default() });
    let lists = vec![List::Compute, List::Mps];
    rig.add("c", Allocation { pid: Some(13), bytes: 7 * MIB, lists, ..Allocation::default() });
    rig.edit_machine(|machine| machine["overhead"] = json!(false));
}

#[test]
fn the_abi_answers() {
    let rig = Rig::with_gpus(2);
    three(&rig);
    let (total, reserved, used) = (143_771 * MIB, 615 * MIB, 157 * MIB);
    let free = total - reserved - used;
    let calls = [
        ("count", json!([1, 0])),
        ("init", json!([0, null])),
        ("count", json!([0, 2])),
        ("driver", json!([0, "580.159.04"])),
        ("cuda", json!([0, 13000])),
        ("name:0", json!([0, "NVIDIA H200"])),
        ("uuid:1", json!([0, "GPU-00000001-5a1e-4c0d-9e57-000000000001"])),
        ("minor:1", json!([0, [1]])),
        ("index:1", json!([0, [1]])),
        ("pci:0", json!([0, [0, 10, 0, 0x10de, "00000000:0A:00.0"]])),
        ("memory:0", json!([0, [total, free, used + reserved]])),
        ("memory_v2:0", json!([0, [total, reserved, free, used]])),
        ("memory_v2:1", json!([0, [total, reserved, total - reserved, 0]])),
        ("memory_v2:2", json!([2, null])),
        ("utilization:0", json!([0, [0, 0]])),
        ("mig:0", json!([0, 0])),
        ("process:4194999", json!([6, null])),
        ("shutdown", json!([0, null])),
        ("name:0", json!([1, null])),
    ];
    let names: Vec<&str> = calls.iter().map(|(call, _)| *call).collect();
    for ((call, expected), got) in calls.iter().zip(ask(&rig, &names)) {
        assert_eq!(got, *expected, "{call}");
    }
    let log = rig.calls();
    assert!(log.iter().any(|c| c.function == "nvmlDeviceGetMemoryInfo_v2" && c.device.as_deref() == Some("1")));
    assert!(log.iter().all(|c| c.code.is_some()));
}

#[test]
fn the_lists_come_in_every_layout() {
    let rig = Rig::new();
    three(&rig);
    let none = u32::MAX;
    let short = |pid: u32, mib: u64| json!([pid, mib * MIB]);
    let long = |pid: u32, mib: u64| json!([pid, mib * MIB, none, none]);
    let got = ask(
        &rig,
        &[
            "init",
            "list:nvmlDeviceGetComputeRunningProcesses:0:16",
            "list:nvmlDeviceGetComputeRunningProcesses_v2:0:24",
            "list:nvmlDeviceGetComputeRunningProcesses_v3:0:24",
            "list:nvmlDeviceGetGraphicsRunningProcesses_v3:0:24",
            "list:nvmlDeviceGetMPSComputeRunningProcesses_v3:0:24",
        ],
    );
    assert_eq!(got[1], json!([0, [short(11, 100), short(13, 7)]]));
    assert_eq!(got[2], json!([0, [long(11, 100), long(13, 7)]]));
    assert_eq!(got[3], got[2]);
    assert_eq!(got[4], json!([0, [long(12, 50)]]));
    assert_eq!(got[5], json!([0, [long(13, 7)]]));
    rig.edit_machine(|machine| machine["wide_records"] = json!(true));
    let wide = ask(&rig, &["init", "list:nvmlDeviceGetComputeRunningProcesses_v3:0:32"]);
    assert_eq!(wide[1], got[2]);
}

#[test]
fn faults_do_what_they_say() {
    let rig = Rig::with_gpus(2);
    three(&rig);
    rig.fault(Fault { function: "nvmlDeviceGetName".into(), code: Some(3), from: 1, to: Some(1), ..Fault::default() });
    rig.fault(Fault { function: "nvmlDeviceGetC*".into(), bytes_unavailable: true, ..Fault::default() });
    let list = "list:nvmlDeviceGetComputeRunningProcesses:0:16";
    let got = ask(&rig, &["init", "name:0", "name:0", "name:1", "name:0", list]);
    let codes: Vec<u64> = got.iter().map(|g| g[0].as_u64().unwrap()).collect();
    assert_eq!(codes, [0, 0, 3, 0, 0, 0]);
    assert_eq!(got[5][1], json!([[11, u64::MAX], [13, u64::MAX]]));
    rig.lose_gpu(1);
    let got = ask(&rig, &["init", "memory_v2:0", "memory_v2:1"]);
    assert_eq!((&got[1][0], &got[2][0]), (&json!(0), &json!(15)));
    rig.clear_faults();
    for code in [4, 9, 12, 18] {
        rig.init_answers(code);
        assert_eq!(ask(&rig, &["init"]), [json!([code, null])]);
        rig.clear_faults();
    }
}

#[test]
fn a_call_hangs_until_it_is_let_go() {
    let rig = Rig::new();
    rig.hangs("nvmlDeviceGetMemoryInfo_v2", "stuck");
    let mut client = client(&rig, &["init", "memory_v2:0"]);
    wait_until("the hang in the log", || rig.calls().iter().any(|c| c.code.is_none()));
    assert!(client.is_running());
    rig.let_go("stuck");
    client.wait().expect_code(0);
    assert_eq!(rig.calls().last().unwrap().code, Some(0));
}

#[test]
fn symbols_can_be_missing() {
    let rig = Rig::new();
    let gone = ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"];
    let has = ["has:nvmlDeviceGetMemoryInfo_v2", "has:nvmlDeviceGetComputeRunningProcesses_v3", "has:nvmlInit_v2"];
    assert_eq!(ask(&rig, &has), [json!([0, true]), json!([0, true]), json!([0, true])]);
    rig.without_symbols(&gone);
    let got = ask(&rig, &[&has[..], &["init", "memory:0"]].concat());
    assert_eq!(got[..3], [json!([0, false]), json!([0, false]), json!([0, true])]);
    assert_eq!(got[4][0], json!(0));
}

#[test]
fn events_reach_who_registered() {
    let rig = Rig::with_gpus(2);
    rig.xid(1, 99);
    let client = client(&rig, &["init", "xid:1"]);
    wait_until("registration", || client.stdout().contains("registered"));
    rig.xid(0, 13);
    rig.xid(1, 43);
    let end = client.wait();
    assert!(end.expect_code(0).stdout.ends_with("\"value\": [true, 8, 43]}\n"), "{}", end.stdout);
}

#[test]
fn setters_only_leave_a_line() {
    let rig = Rig::new();
    assert_eq!(ask(&rig, &["init", "set:nvmlDeviceSetPersistenceMode:0"])[1], json!([0, null]));
    assert!(rig.calls().iter().any(|c| c.function == "nvmlDeviceSetPersistenceMode"));
}

/// One GPU in two instances, a process in each.
fn split() -> Rig {
    let mut machine = Machine::h200(1);
    let instance = |n: u32| Instance {
        uuid: format!("MIG-0000000{n}"),
        gi: n + 7,
        ci: 0,
        total: 16_384 * MIB,
        reserved: 10 * MIB,
    };
    machine.devices[0].mig = vec![instance(0), instance(1)];
    machine.overhead = false;
    let rig = Rig::with_machine(&machine);
    for (name, pid, gi) in [("a", 21, 7), ("b", 22, 8)] {
        let place = Allocation { pid: Some(pid), gi: Some(gi), ci: Some(0), ..Allocation::default() };
        rig.add(name, Allocation { bytes: u64::from(pid) * MIB, ..place });
    }
    rig
}

#[test]
fn instances_are_devices_and_the_parent_keeps_its_list() {
    let rig = split();
    let list = "nvmlDeviceGetComputeRunningProcesses_v3";
    let lists = ["0", "0.0", "0.1"].map(|device| format!("list:{list}:{device}:24"));
    let calls =
        ["init", "mig:0", "uuid:0.1", "memory_v2:0.0", "memory_v2:0", "uuid:0.2", &lists[0], &lists[1], &lists[2]];
    let got = ask(&rig, &calls);
    assert_eq!(got[1], json!([0, 1]));
    assert_eq!(got[2], json!([0, "MIG-00000001"]));
    assert_eq!(got[3], json!([0, [16_384 * MIB, 10 * MIB, (16_384 - 10 - 21) * MIB, 21 * MIB]]));
    assert_eq!(got[4][1][3], json!(43 * MIB));
    assert_eq!(got[5], json!([6, null]));
    assert_eq!(got[6], json!([4, null]));
    assert_eq!(got[7], json!([0, [[21, 21 * MIB, 7, 0]]]));
    assert_eq!(got[8], json!([0, [[22, 22 * MIB, 8, 0]]]));
}

#[test]
fn the_simulated_source_says_the_same() {
    let rig = split();
    let mut simulated = Simulated::new(rig.ledger.directory().to_owned());
    let inventory = simulated.inventory().unwrap();
    let labels: Vec<String> = inventory.devices.iter().map(|d| d.label()).collect();
    assert_eq!(labels, ["GPU 0", "MIG 0/7/0", "MIG 0/8/0"]);
    assert_eq!(inventory.driver.cuda_version.as_deref(), Some("13.0"));
    let look = simulated.look(&[]).unwrap();
    let used: Vec<u64> = look.devices.iter().map(|d| d.used().unwrap().0 / MIB).collect();
    assert_eq!(used, [43, 21, 22]);
    let pids: Vec<Option<Vec<u32>>> =
        look.devices.iter().map(|d| d.entries.as_ref().map(|e| e.iter().map(|e| e.pid).collect())).collect();
    assert_eq!(pids, [None, Some(vec![21]), Some(vec![22])]);
    let one = simulated.look(&[Uuid("MIG-00000001".into())]).unwrap();
    assert_eq!(one.devices.len(), 1);
    std::fs::remove_file(rig.ledger.directory().join("machine.json")).unwrap();
    assert!(simulated.look(&[]).unwrap_err().message.contains("machine.json"), "the message names what is missing");
}

#[test]
fn the_wrapper_loads_it() {
    let rig = Rig::new();
    three(&rig);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "wrapper_client", "--ignored", "--nocapture"])
        .env("FAKE_NVML_LEDGER", rig.ledger.directory())
        .env("FAKE_NVML_LIBRARY", rig.library());
    rig.launch(command).wait().expect_code(0);
    let log = rig.calls();
    assert!(log.iter().any(|c| c.function == "nvmlShutdown" && c.code == Some(0)), "{log:?}");
}

/// Runs in a process of its own, because the library takes its ledger from the environment.
#[test]
#[ignore = "started by the_wrapper_loads_it"]
fn wrapper_client() {
    let library = std::env::var_os("FAKE_NVML_LIBRARY").unwrap();
    let nvml = Nvml::builder().lib_path(&library).init().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.04");
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA H200");
    assert_eq!(nvml.device_by_uuid(device.uuid().unwrap()).unwrap().minor_number().unwrap(), 0);
    assert_eq!(device.pci_info().unwrap().bus_id, "00000000:0A:00.0");
    assert_eq!(device.memory_info().unwrap().used, 157 * MIB);
    let listed = device.running_compute_processes().unwrap();
    let listed: Vec<_> = listed.iter().map(|p| (p.pid, p.used_gpu_memory.clone())).collect();
    assert_eq!(listed, [(11, UsedGpuMemory::Used(100 * MIB)), (13, UsedGpuMemory::Used(7 * MIB))]);
    assert_eq!(device.running_graphics_processes().unwrap().len(), 1);
    let events = nvml.create_event_set().unwrap();
    let kind = nvml_wrapper::bitmasks::event::EventTypes::CRITICAL_XID_ERROR;
    let events = device.register_events(kind, events).unwrap();
    assert!(matches!(events.wait(1), Err(nvml_wrapper::error::NvmlError::Timeout)));
}
