//! The driver against the fake NVML library: every way in which a real one was seen to misbehave, through the real
//! helper process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test that fails, fails it")]

mod support;

use gpuresid::{
    model::{Bytes, DeviceLook, Entry, ListApi, ListKind, Look, MemoryApi, ProcId},
    observe::driver::{Blocking, Failure, FailureKind, Inventory, Options, Placement, Source},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use support::{Allocation, DEADLINE, Fault, Instance, List, Machine, Rig, wait_until};

/// For a look that is known to hang.
const SHORT: Duration = Duration::from_millis(500);

/// The helper's binary with the rig's environment, which this process, shared by all tests, cannot have.
fn helper_of(rig: &Rig) -> PathBuf {
    let path = rig.path("helper");
    if !path.exists() {
        let quoted = |p: &Path| format!("'{}'", p.display());
        let (ledger, dev) = (quoted(rig.ledger.directory()), quoted(&rig.dev()));
        let binary = env!("CARGO_BIN_EXE_gpuresid");
        fs::write(&path, format!("#!/bin/sh\nFAKE_NVML_LEDGER={ledger} FAKE_DEV={dev} exec '{binary}' \"$@\"\n"))
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    path
}

fn options(rig: &Rig) -> Options {
    let source = Source::Nvml { library: Some(rig.library()) };
    Options { open_timeout: DEADLINE, look_timeout: DEADLINE, ..Options::new(source) }
}

fn start(rig: &Rig, options: &Options) -> Blocking {
    let binary = helper_of(rig);
    let mut started = Blocking::start_with(&binary, options);
    wait_until("the helper's script is free to run", || {
        // Another test's fork may still have it open for writing.
        let busy = started.as_ref().is_err_and(|e| format!("{e:#}").contains("busy"));
        if busy {
            started = Blocking::start_with(&binary, options);
        }
        !busy
    });
    started.unwrap()
}

fn inventory(driver: &mut Blocking) -> Result<Inventory, Failure> {
    driver.inventory(DEADLINE, || ())
}

fn open(rig: &Rig) -> (Blocking, Inventory) {
    let mut driver = start(rig, &options(rig));
    let inventory = inventory(&mut driver).unwrap();
    (driver, inventory)
}

fn refused(rig: &Rig) -> Failure {
    inventory(&mut start(rig, &options(rig))).unwrap_err()
}

fn look(rig: &Rig) -> Look {
    open(rig).0.look(&[]).unwrap()
}

fn only(look: Look) -> DeviceLook {
    assert_eq!(look.devices.len(), 1);
    look.devices.into_iter().next().unwrap()
}

fn held(pid: u32, mib: u64) -> Allocation {
    Allocation { pid: Some(pid), bytes: mib << 20, lists: vec![List::Compute], ..Allocation::default() }
}

fn pids(look: &DeviceLook) -> Vec<u32> {
    look.entries.as_ref().expect("a list").iter().map(|e| e.pid).collect()
}

fn reasons(look: &DeviceLook) -> String {
    look.gaps.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn devices_have_their_identity() {
    let machine = Machine::h200(2);
    let (mut driver, inventory) = open(&Rig::with_machine(&machine));
    let [first, second] = &inventory.devices[..] else { panic!("{inventory:?}") };
    assert_eq!((first.index, second.index), (0, 1));
    assert_eq!(second.uuid.0, machine.devices[1].uuid);
    assert_eq!(second.name.as_deref(), Some(&*machine.devices[1].name));
    assert_eq!(second.pci.as_deref(), Some(&*machine.devices[1].pci));
    assert_eq!(second.minor, Some(machine.devices[1].minor));
    assert!(inventory.gaps.is_empty() && !second.mig_parent && second.mig.is_none());
    assert_eq!(inventory.driver.driver_version.as_deref(), Some(&*machine.driver_version));
    assert_eq!(inventory.driver.nvml_version.as_deref(), Some(&*machine.nvml_version));
    assert_eq!(inventory.driver.cuda_version.as_deref(), Some("13.0"));
    assert!(inventory.driver.library.is_some_and(|file| file.ends_with("libfake_nvml.so")));
    // One of two, by UUID.
    let look = driver.look(std::slice::from_ref(&second.uuid)).unwrap();
    assert_eq!(only(look).uuid, second.uuid);
}

#[test]
fn a_look_has_memory_and_everybody_once() {
    let rig = Rig::new();
    rig.add("mps", Allocation { lists: vec![List::Compute, List::Mps], ..held(4_000_001, 100) });
    rig.add("x", Allocation { lists: vec![List::Graphics], ..held(4_000_002, 20) });
    let look = only(look(&rig));
    let memory = look.memory.unwrap();
    assert_eq!(memory.api, MemoryApi::V2);
    assert_eq!(memory.used, Bytes(rig.used(0)));
    assert_eq!(Some(memory.total), memory.reserved.map(|r| r + memory.used + memory.free));
    let mut entries = look.entries.clone().unwrap();
    entries.sort_by_key(|e| e.pid);
    let entry = |pid, mib, lists| Entry { pid, bytes: Some(Bytes::mib(mib)), gi: None, ci: None, lists };
    let expected =
        [entry(4_000_001, 100, vec![ListKind::Compute, ListKind::Mps]), entry(4_000_002, 20, vec![ListKind::Graphics])];
    assert_eq!(entries, expected);
    assert!(look.gaps.is_empty(), "{look:?}");
}

#[test]
fn an_old_driver_answers_by_the_old_calls() {
    let old = ["nvmlDeviceGetMemoryInfo_v2"];
    let lists = ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"];
    for without in [vec!["_v3"], vec!["_v3", "_v2"]] {
        let rig = Rig::new();
        rig.add("a", held(4_000_001, 100));
        rig.add("b", held(4_000_002, 200));
        let missing: Vec<_> = lists.iter().flat_map(|l| without.iter().map(move |v| format!("{l}{v}"))).collect();
        rig.without_symbols(&old.into_iter().chain(missing.iter().map(String::as_str)).collect::<Vec<_>>());
        let look = only(look(&rig));
        let memory = look.memory.unwrap();
        assert_eq!((memory.api, memory.reserved), (MemoryApi::V1, None));
        // Version 1 counts the driver's own memory as used.
        assert_eq!(memory.used, Bytes(rig.used(0)) + Bytes(Machine::h200(1).devices[0].reserved));
        assert_eq!(look.listed(), Some(Bytes::mib(300)), "{without:?}");
        assert!(look.gaps.is_empty(), "{look:?}");
    }
}

#[test]
fn a_call_that_the_driver_does_not_know_is_like_a_missing_symbol() {
    let rig = Rig::new();
    rig.add("a", held(4_000_001, 100));
    rig.answers("nvmlDeviceGetMemoryInfo_v2", 13);
    rig.answers("nvmlDeviceGetComputeRunningProcesses_v3", 25);
    let look = only(look(&rig));
    assert_eq!(look.memory.unwrap().api, MemoryApi::V1);
    assert_eq!(pids(&look), [4_000_001]);
}

#[test]
fn wide_records_are_read_as_what_they_are() {
    let rig = Rig::new();
    rig.edit_machine(|machine| machine["wide_records"] = true.into());
    for n in 1..=5 {
        rig.add(&format!("a{n}"), held(4_000_000 + n, 100 * u64::from(n)));
    }
    let look = only(look(&rig));
    assert_eq!(look.listed(), Some(Bytes::mib(1500)));
    assert_eq!(pids(&look).len(), 5);
}

#[test]
fn more_processes_than_there_is_room_for_at_first() {
    let rig = Rig::new();
    for n in 0..600 {
        rig.add(&format!("a{n}"), held(4_000_000 + n, 1));
    }
    assert_eq!(only(look(&rig)).listed(), Some(Bytes::mib(600)));
}

#[test]
fn memory_that_is_not_told_is_not_zero() {
    let rig = Rig::new();
    rig.add("a", held(4_000_001, 100));
    let function = "nvmlDeviceGet*".to_owned();
    rig.fault(Fault { function, bytes_unavailable: true, ..Fault::default() });
    let unavailable = only(look(&rig));
    assert_eq!(unavailable.entries.as_ref().unwrap()[0].bytes, None);
    assert_eq!(unavailable.listed(), None);
    // As on GB10: no device memory, but lists.
    rig.clear_faults();
    rig.answers("nvmlDeviceGetMemoryInfo*", 3);
    let unified = only(look(&rig));
    assert_eq!(unified.memory, None);
    assert_eq!(pids(&unified), [4_000_001]);
    assert!(reasons(&unified).contains("not supported"), "{unified:?}");
}

#[test]
fn numbers_that_cannot_be_are_no_reading() {
    let rig = Rig::new();
    rig.add("a", held(4_000_001, 100));
    let (mut driver, _) = open(&rig);
    let total = Machine::h200(1).devices[0].total;
    let all = |function: &str| Fault { function: function.into(), ..Fault::default() };
    for (used, of) in [(u64::MAX, None), (total + 1, None), (0, Some(0)), (u64::MAX, Some(u64::MAX))] {
        rig.clear_faults();
        rig.fault(Fault { used: Some(used), total: of, ..all("nvmlDeviceGetMemoryInfo*") });
        let look = only(driver.look(&[]).unwrap());
        assert_eq!((look.memory, pids(&look)), (None, vec![4_000_001]), "{used} of {of:?}");
        assert!(reasons(&look).contains("which cannot be: that is no reading"), "{look:?}");
    }
    // What a process holds: more than the device has. Everybody else is listed as ever.
    rig.clear_faults();
    rig.fault(Fault { entry_bytes: Some(u64::MAX - 1), ..all("nvmlDeviceGet*") });
    let look = only(driver.look(&[]).unwrap());
    assert!(look.memory.is_some() && look.listed().is_none(), "{look:?}");
    assert!(reasons(&look).contains("PID 4000001 holds"), "{look:?}");
    // All that a device has may well be held by one.
    rig.clear_faults();
    rig.fault(Fault { entry_bytes: Some(total), used: Some(total), ..all("nvmlDeviceGet*") });
    let full = only(driver.look(&[]).unwrap());
    assert_eq!((full.listed(), full.gaps.len()), (Some(Bytes(total)), 0), "{full:?}");
}

#[test]
fn whatever_a_library_prints_the_answers_arrive() {
    for placement in [Placement::Child, Placement::Nursery] {
        let rig = Rig::new();
        rig.add("a", held(4_000_001, 100));
        let prints = Some("{\"id\":1,\"say\":null}\nlibrary: ready\n".to_owned());
        rig.fault(Fault { function: "nvml*".into(), prints, ..Fault::default() });
        let mut driver = start(&rig, &Options { placement, ..options(&rig) });
        assert_eq!(inventory(&mut driver).unwrap().devices.len(), 1);
        for _ in 0..3 {
            assert_eq!(pids(&only(driver.look(&[]).unwrap())), [4_000_001]);
        }
        assert_eq!(
            driver.tool_processes().len(),
            if placement == Placement::Child { 1 } else { 2 },
            "the first helper"
        );
    }
}

#[test]
fn memory_that_never_stands_still_is_told_with_a_gap() {
    let rig = Rig::new();
    rig.add("a", held(4_000_001, 100));
    let (mut driver, _) = open(&rig);
    let calm = only(driver.look(&[]).unwrap());
    assert_eq!((calm.gaps.len(), calm.utilization_percent), (0, Some(0)));
    let function = "nvmlDeviceGetComputeRunningProcesses*".to_owned();
    rig.fault(Fault { function, delay_ms: 200, ..Fault::default() });
    let done = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                rig.alter("a", |allocation| allocation.bytes += 1 << 20);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let busy = driver.look(&[]);
        done.store(true, Ordering::SeqCst);
        only(busy.unwrap())
    });
    assert!(reasons(&busy).contains("changed"), "{busy:?}");
    assert!(busy.memory.is_some(), "the last reading is kept");
    assert_eq!(pids(&busy), [4_000_001]);
}

#[test]
fn a_lost_gpu_is_its_own_gap() {
    let rig = Rig::with_gpus(3);
    rig.add("a", Allocation { device: 2, ..held(4_000_001, 100) });
    // Lost while we look.
    let (mut driver, _) = open(&rig);
    rig.lose_gpu(1);
    // Lost before we came: no identity can be had.
    let (mut late, inventory) = open(&rig);
    assert_eq!(inventory.devices.len(), 3);
    assert_eq!(inventory.devices[1].uuid.0, "index-1");
    assert!(inventory.gaps.iter().any(|g| g.about == "GPU 1" && g.reason.contains("lost")), "{inventory:?}");
    for driver in [&mut driver, &mut late] {
        let look = driver.look(&[]).unwrap();
        assert_eq!((look.devices[1].memory, &look.devices[1].entries), (None, &None));
        assert!(reasons(&look.devices[1]).contains("lost"), "{look:?}");
        assert!(look.devices[0].memory.is_some() && look.devices[0].gaps.is_empty());
        assert_eq!(pids(&look.devices[2]), [4_000_001]);
    }
}

#[test]
fn codes_that_nobody_knows_are_gaps() {
    let rig = Rig::new();
    rig.add("a", held(4_000_001, 100));
    let (mut driver, _) = open(&rig);
    for code in [23, 27, 30, 31, 77, 999, 123_456] {
        rig.clear_faults();
        rig.answers("nvmlDeviceGetComputeRunningProcesses*", code);
        let look = only(driver.look(&[]).unwrap());
        assert!(look.memory.is_some() && look.entries.is_none(), "{look:?}");
        assert!(reasons(&look).contains(&format!("code {code}")), "{look:?}");
    }
    // The graphics list fails: what the compute list says still holds, and the gap is told.
    rig.clear_faults();
    rig.answers("nvmlDeviceGetGraphicsRunningProcesses*", 77);
    let partial = only(driver.look(&[]).unwrap());
    assert_eq!((pids(&partial), partial.gaps.len()), (vec![4_000_001], 1));
    // A list that is not supported is no failure; no list at all is not "nobody".
    rig.clear_faults();
    rig.answers("nvmlDeviceGetMPSComputeRunningProcesses*", 3);
    let without_mps = only(driver.look(&[]).unwrap());
    assert_eq!((pids(&without_mps), without_mps.gaps.len()), (vec![4_000_001], 0));
    rig.clear_faults();
    rig.answers("nvmlDeviceGetComputeRunningProcesses*", 3);
    rig.answers("nvmlDeviceGetGraphicsRunningProcesses*", 3);
    rig.answers("nvmlDeviceGetMPSComputeRunningProcesses*", 3);
    let without = only(driver.look(&[]).unwrap());
    assert_eq!((&without.entries, without.gaps.len()), (&None, 1));
}

#[test]
fn a_driver_that_does_not_start_says_why_and_what_to_do() {
    for (code, kind) in [
        (4, FailureKind::NoPermission),
        (9, FailureKind::NoDriver),
        (12, FailureKind::NoLibrary),
        (18, FailureKind::VersionMismatch),
        (28, FailureKind::NoGpu),
        (77, FailureKind::Other),
    ] {
        let rig = Rig::new();
        rig.init_answers(code);
        let failure = refused(&rig);
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(failure.hint.is_some(), "{failure:?}");
    }
    assert_eq!(refused(&Rig::with_gpus(0)).kind, FailureKind::NoGpu);
}

#[test]
fn a_library_that_is_none_says_so() {
    let rig = Rig::new();
    rig.use_library(rig.path("no-such-file.so"));
    let missing = refused(&rig);
    assert_eq!(missing.kind, FailureKind::NoLibrary);
    assert!(missing.message.contains("no-such-file.so"), "{missing}");
    fs::write(rig.path("text.so"), "no library").unwrap();
    rig.use_library(rig.path("text.so"));
    let broken = refused(&rig);
    assert_eq!(broken.kind, FailureKind::NoLibrary);
    assert!(broken.message.contains("text.so"), "{broken}");
}

#[test]
fn mig_instances_follow_their_gpu() {
    let mut machine = Machine::h200(2);
    let instance = |n: u32| Instance { uuid: format!("MIG-{n}"), gi: n, ci: 0, total: 10 << 30, reserved: 0 };
    machine.devices[0].mig = vec![instance(1), instance(2)];
    machine.devices[0].mig_parent_lists = true;
    let rig = Rig::with_machine(&machine);
    rig.add("a", Allocation { gi: Some(2), ci: Some(0), ..held(4_000_001, 100) });
    let (mut driver, inventory) = open(&rig);
    let order: Vec<_> = inventory.devices.iter().map(|d| (d.label(), d.mig_parent)).collect();
    let named = |label: &str, parent| (label.to_owned(), parent);
    assert_eq!(
        order,
        [named("GPU 0", true), named("MIG 0/1/0", false), named("MIG 0/2/0", false), named("GPU 1", false)]
    );
    assert_eq!(inventory.devices[2].mig.as_ref().unwrap().parent.0, machine.devices[0].uuid);
    let look = driver.look(&[]).unwrap();
    let entries = |n: usize| look.devices[n].entries.clone().unwrap();
    assert_eq!(entries(2).len(), 1);
    assert_eq!((entries(2)[0].gi, entries(2)[0].ci), (Some(2), Some(0)));
    assert!(entries(1).is_empty());
    assert!(look.devices.iter().all(|d| d.memory.is_some()));
}

#[test]
fn a_hang_while_opening_is_named() {
    let rig = Rig::new();
    rig.fault(Fault { function: "nvmlInit_v2".into(), hang: true, ..Fault::default() });
    let mut driver = start(&rig, &Options { open_timeout: Duration::from_secs(2), ..options(&rig) });
    let mut told = false;
    let failure = driver.inventory(Duration::from_millis(50), || told = true).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(failure.message.contains("nvmlInit_v2"), "{failure}");
    assert!(told, "the user hears that it takes long");
}

#[test]
fn a_hang_in_a_look_is_named_and_the_next_look_may_work() {
    for placement in [Placement::Child, Placement::Nursery] {
        let rig = Rig::with_gpus(2);
        let mut driver = start(&rig, &Options { look_timeout: SHORT, placement, ..options(&rig) });
        let inventory = inventory(&mut driver).unwrap();
        fs::write(rig.ledger.directory().join("stuck"), "").unwrap();
        rig.fault(Fault {
            function: "nvmlDeviceGetGraphicsRunningProcesses*".into(),
            device: Some(1),
            hang_while: Some("stuck".into()),
            ..Fault::default()
        });
        // Alone it is all that was asked for.
        let only = [inventory.devices[1].uuid.clone()];
        let failure = driver.look(&only).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout);
        assert!(failure.message.contains("nvmlDeviceGetGraphicsRunningProcesses on GPU 1"), "{failure}");
        rig.let_go("stuck");
        wait_until("a replacement answers", || driver.look(&[]).is_ok_and(|l| l.devices.len() == 2));
    }
}

#[test]
fn a_gpu_that_hangs_is_its_own_gap_and_comes_back() {
    // In the first look, which opens threads of its own, and in a later one.
    for looks_before in [0, 2] {
        let rig = Rig::with_gpus(3);
        rig.add("a", Allocation { device: 2, ..held(4_000_001, 100) });
        let mut driver = start(&rig, &Options { look_timeout: Duration::from_secs(2), ..options(&rig) });
        inventory(&mut driver).unwrap();
        for _ in 0..looks_before {
            assert!(driver.look(&[]).unwrap().devices.iter().all(|d| d.gaps.is_empty()));
        }
        fs::write(rig.ledger.directory().join("stuck"), "").unwrap();
        let stuck = Some("stuck".into());
        let function = "nvmlDeviceGetMemoryInfo_v2".into();
        rig.fault(Fault { function, device: Some(1), hang_while: stuck, ..Fault::default() });
        let look = driver.look(&[]).unwrap();
        assert_eq!((look.devices[1].memory, &look.devices[1].entries), (None, &None));
        assert!(
            reasons(&look.devices[1]).contains("nvmlDeviceGetMemoryInfo_v2 on GPU 1 did not come back"),
            "{look:?}"
        );
        assert!(look.devices[0].memory.is_some() && look.devices[0].gaps.is_empty());
        assert_eq!(pids(&look.devices[2]), [4_000_001]);
        // It is asked no more, and costs no more time.
        let hung = rig.calls().iter().filter(|c| c.code.is_none()).count();
        for _ in 0..20 {
            let begun = std::time::Instant::now();
            assert_eq!(driver.look(&[]).unwrap().devices[1].memory, None);
            assert!(begun.elapsed() < Duration::from_secs(1));
        }
        assert_eq!(rig.calls().iter().filter(|c| c.code.is_none()).count(), hung);
        assert_eq!(driver.tool_processes().len(), 1, "the helper need not be replaced");
        rig.let_go("stuck");
        wait_until("it answers again", || driver.look(&[]).unwrap().devices.iter().all(|d| d.memory.is_some()));
    }
}

#[test]
fn a_gpu_that_hangs_while_it_is_opened_is_its_own_gap() {
    let rig = Rig::with_gpus(2);
    let function = "nvmlDeviceGetHandleByIndex_v2".into();
    rig.fault(Fault { function, device: Some(1), hang: true, ..Fault::default() });
    let mut driver = start(&rig, &Options { open_timeout: Duration::from_secs(3), ..options(&rig) });
    let inventory = inventory(&mut driver).unwrap();
    assert_eq!(inventory.devices.len(), 2);
    let gaps: Vec<_> = inventory.gaps.iter().map(ToString::to_string).collect();
    assert!(gaps.iter().any(|g| g.contains("nvmlDeviceGetHandleByIndex_v2")), "{gaps:?}");
    let look = driver.look(&[]).unwrap();
    assert_eq!(look.devices.iter().filter(|d| d.memory.is_some()).count(), 1, "{look:?}");
}

#[test]
fn the_calls_that_answered_are_kept() {
    let lists = ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"];
    for (without, api) in [(&[][..], ListApi::V3), (&["_v3"], ListApi::V2), (&["_v3", "_v2"], ListApi::V1)] {
        let rig = Rig::new();
        let missing: Vec<_> = lists.iter().flat_map(|l| without.iter().map(move |v| format!("{l}{v}"))).collect();
        if !missing.is_empty() {
            rig.without_symbols(&missing.iter().map(String::as_str).collect::<Vec<_>>());
        }
        assert_eq!(only(look(&rig)).list_api, Some(api));
    }
}

#[test]
fn a_gpu_without_memory_of_its_own_still_tells_its_processes() {
    let rig = Rig::new();
    rig.add("a", held(4_000_001, 100));
    rig.answers("nvmlDeviceGetMemoryInfo*", 3);
    let look = only(look(&rig));
    assert_eq!((look.memory, pids(&look)), (None, vec![4_000_001]));
    assert!(reasons(&look).contains("shares the machine's memory"), "{look:?}");
}

#[test]
fn a_driver_that_hangs_for_ever_is_asked_twice_and_no_more() {
    let rig = Rig::new();
    let mut driver = start(&rig, &Options { look_timeout: SHORT, ..options(&rig) });
    inventory(&mut driver).unwrap();
    rig.fault(Fault { function: "nvmlDeviceGetMemoryInfo_v2".into(), hang: true, ..Fault::default() });
    let hung = || rig.calls().iter().filter(|c| c.code.is_none()).count();
    wait_until("two helpers hang", || driver.look(&[]).is_err() && hung() == 2);
    for _ in 0..10 {
        let failure = driver.look(&[]).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout);
        assert!(failure.message.contains("nvmlDeviceGetMemoryInfo_v2 on GPU 0"), "{failure}");
    }
    assert_eq!(hung(), 2);
    assert_eq!(driver.tool_processes().len(), 2);
}

#[test]
fn a_slow_driver_is_not_a_hanging_one() {
    let rig = Rig::new();
    let (mut driver, _) = open(&rig);
    rig.fault(Fault { function: "nvmlDeviceGet*".into(), delay_ms: 50, ..Fault::default() });
    assert!(driver.look(&[]).unwrap().devices[0].memory.is_some());
}

#[test]
fn nothing_is_ever_changed_on_a_gpu() {
    let mut machine = Machine::h200(2);
    machine.devices[0].mig = vec![Instance { uuid: "MIG-1".into(), gi: 1, ci: 0, total: 10 << 30, reserved: 0 }];
    let rig = Rig::with_machine(&machine);
    let mut driver = start(&rig, &Options { events: true, ..options(&rig) });
    inventory(&mut driver).unwrap();
    driver.look(&[]).unwrap();
    let helper = driver.tool_processes()[0];
    drop(driver);
    wait_until("the helper ends", || is_gone(helper));
    let calls = rig.calls();
    assert!(calls.iter().any(|c| c.function == "nvmlDeviceGetMemoryInfo_v2"), "{calls:?}");
    let forbidden = ["nvmlDeviceSet", "nvmlSystemSet", "Reset", "Clear", "Shutdown", "Create", "Destroy", "Modify"];
    for call in calls.iter().filter(|c| c.function != "nvmlEventSetCreate") {
        assert!(!forbidden.iter().any(|word| call.function.contains(word)), "{call:?}");
    }
}

#[test]
fn xid_events_come_with_a_look() {
    let rig = Rig::with_gpus(2);
    // One GPU that refuses does not spoil the other.
    rig.fault(Fault {
        function: "nvmlDeviceRegisterEvents".into(),
        device: Some(0),
        code: Some(3),
        ..Fault::default()
    });
    let mut driver = start(&rig, &Options { events: true, ..options(&rig) });
    let inventory = inventory(&mut driver).unwrap();
    assert!(inventory.gaps.is_empty(), "{inventory:?}");
    rig.xid(1, 43);
    let mut events = Vec::new();
    wait_until("the event arrives", || {
        driver.look(&[]).unwrap();
        events.extend(driver.take_events());
        !events.is_empty()
    });
    assert_eq!((events[0].xid, events[0].uuid.as_ref()), (43, Some(&inventory.devices[1].uuid)));
}

// ---- the processes ---------------------------------------------------------------------------------------------------

/// A zombie still has its directory: gone means reaped.
fn is_gone(id: ProcId) -> bool {
    !Path::new(&format!("/proc/{}", id.pid)).exists()
}

/// Ended, if perhaps not yet reaped: that is up to PID 1, which takes its time on some machines.
fn has_ended(id: ProcId) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", id.pid)).map_or(true, |text| text.contains(") Z "))
}

/// The fields after the name in `/proc/PID/stat`: state, parent, process group, session …
fn stat(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit_once(") ").unwrap().1.split(' ').map(Into::into).collect()
}

fn signal(id: ProcId, signal: Signal) {
    kill_process(Pid::from_raw(id.pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn the_helper_holds_nothing_of_its_starter() {
    let rig = Rig::new();
    let lock = fs::File::create(rig.path("lock")).unwrap();
    rustix::io::fcntl_setfd(&lock, rustix::io::FdFlags::empty()).unwrap();
    let (mut driver, _) = open(&rig);
    let helper = driver.tool_processes()[0];
    let link = |path: &str| fs::read_link(format!("/proc/{}/{path}", helper.pid)).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    for standard in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(link(standard), Path::new("/dev/null"));
    }
    for entry in fs::read_dir(format!("/proc/{}/fd", helper.pid)).unwrap().flatten() {
        assert_ne!(fs::read_link(entry.path()).unwrap(), rig.path("lock"));
    }
    let fields = stat(helper.pid);
    assert_eq!(fields[1], std::process::id().to_string(), "our child");
    assert_eq!((&fields[2], &fields[3]), (&helper.pid.to_string(), &helper.pid.to_string()), "a session of its own");
    for ended in [Signal::INT, Signal::QUIT, Signal::HUP, Signal::TERM] {
        signal(helper, ended);
    }
    assert!(driver.look(&[]).is_ok(), "signals of a terminal or a stopped unit do not end it");
    assert_eq!(driver.tool_processes(), [helper]);
    drop(driver);
    wait_until("the helper is reaped", || is_gone(helper));
}

#[test]
fn a_nursery_and_its_helpers_are_no_children_of_ours() {
    let rig = Rig::new();
    let mut driver = start(&rig, &Options { placement: Placement::Nursery, ..options(&rig) });
    inventory(&mut driver).unwrap();
    // The nursery tells of the helper on a line of its own.
    wait_until("both to be known", || driver.tool_processes().len() == 2);
    let [nursery, helper] = driver.tool_processes()[..] else { panic!("{:?}", driver.tool_processes()) };
    let us = std::process::id().to_string();
    assert_ne!(stat(nursery.pid)[1], us);
    assert_eq!(stat(helper.pid)[1], nursery.pid.to_string());
    assert_eq!(stat(helper.pid)[19], helper.start_ticks.to_string());
    assert_eq!(stat(nursery.pid)[2], stat(std::process::id())[2], "it hears what our group hears");
    assert_eq!(stat(helper.pid)[3], helper.pid.to_string(), "a session of its own");
    assert_eq!(only(driver.look(&[]).unwrap()).gaps, []);
    // The helper dies: the nursery reaps it and starts another.
    signal(helper, Signal::KILL);
    wait_until("the dead helper is reaped", || is_gone(helper));
    wait_until("another one answers", || driver.look(&[]).is_ok());
    let tools = driver.tool_processes();
    assert_eq!(tools.len(), 3);
    assert_eq!(stat(tools[2].pid)[1], nursery.pid.to_string());
    drop(driver);
    wait_until("the helper ends", || is_gone(tools[2]));
    wait_until("the nursery ends", || has_ended(nursery));
}

#[test]
fn an_ignored_sigchld_changes_nothing() {
    for placement in [Placement::Child, Placement::Nursery] {
        let rig = Rig::new();
        let script = helper_of(&rig);
        let text = fs::read_to_string(&script).unwrap();
        fs::write(&script, text.replacen('\n', "\ntrap '' CHLD\n", 1)).unwrap();
        let mut driver = start(&rig, &Options { placement, ..options(&rig) });
        inventory(&mut driver).unwrap();
        let helper = *driver.tool_processes().last().unwrap();
        signal(helper, Signal::KILL);
        wait_until("another one answers", || driver.look(&[]).is_ok());
        assert!(is_gone(helper));
    }
}

#[test]
fn without_its_nursery_there_is_no_further_helper() {
    let rig = Rig::new();
    let mut driver = start(&rig, &Options { placement: Placement::Nursery, ..options(&rig) });
    inventory(&mut driver).unwrap();
    // The nursery tells of the helper on a line of its own.
    wait_until("both to be known", || driver.tool_processes().len() == 2);
    let [nursery, helper] = driver.tool_processes()[..] else { panic!("{:?}", driver.tool_processes()) };
    signal(nursery, Signal::KILL);
    wait_until("the helper ends with it", || has_ended(helper));
    wait_until("the loss is noticed", || driver.look(&[]).is_err());
    for _ in 0..3 {
        assert_eq!(driver.look(&[]).unwrap_err().kind, FailureKind::HelperDied);
    }
    assert_eq!(driver.tool_processes().len(), 2);
}

#[test]
fn the_end_of_the_nursery_ends_a_helper_that_hangs() {
    let rig = Rig::new();
    let mut driver = start(&rig, &Options { placement: Placement::Nursery, look_timeout: SHORT, ..options(&rig) });
    inventory(&mut driver).unwrap();
    rig.fault(Fault { function: "nvmlDeviceGetMemoryInfo_v2".into(), hang: true, ..Fault::default() });
    assert_eq!(driver.look(&[]).unwrap_err().kind, FailureKind::Timeout);
    let tools = driver.tool_processes();
    drop(driver);
    for tool in tools {
        wait_until("all of them end", || has_ended(tool));
    }
}

#[test]
fn the_simulated_gpu_lives_in_the_same_helper() {
    let rig = Rig::new();
    rig.add("a", held(4_000_001, 100));
    let source = Source::Simulated { ledger: rig.ledger.directory().into() };
    let mut driver = start(&rig, &Options { source, ..options(&rig) });
    assert_eq!(inventory(&mut driver).unwrap().devices.len(), 1);
    assert_eq!(pids(&only(driver.look(&[]).unwrap())), [4_000_001]);
    assert!(rig.calls().is_empty(), "NVML is not touched");
}
