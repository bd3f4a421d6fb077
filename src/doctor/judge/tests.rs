//! Each line once as it should be and once for each way in which it is not: starting from a healthy machine, one fact
//! is changed and the lines of that check are compared.

use super::*;
use crate::{
    doctor::facts::{Access, DriverSeen, Fill, Kernel, Machine, Mps, Node, Python, Seen, Torch, Xid},
    model::{
        Bytes, ComputeMode, DeviceFacts, DeviceIdentity, DeviceLook, DriverFacts, DriverInfo, DriverSource, Gap, Look,
        Memory, MemoryApi, MigIdentity, NowAndNext, Observer, ProcId, RemappedRows, Uuid,
    },
    observe::driver::{Failure, FailureKind, Inventory},
};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

fn gpu(index: u32, name: &str) -> DeviceIdentity {
    DeviceIdentity {
        index,
        uuid: Uuid(format!("GPU-{index}{index}{index}{index}")),
        name: Some(name.into()),
        pci: None,
        minor: Some(index),
        mig: None,
        mig_parent: false,
    }
}

fn settings(index: u32) -> DeviceFacts {
    DeviceFacts {
        persistence: Some(true),
        compute_mode: Some(ComputeMode::Default),
        mig: Some(NowAndNext { now: false, next: false }),
        ecc: Some(NowAndNext { now: true, next: true }),
        remapped_rows: Some(RemappedRows { correctable: 0, uncorrectable: 0, pending: false, failed: false }),
        ..DeviceFacts::unknown(gpu(index, "").uuid, index)
    }
}

fn memory(index: u32) -> DeviceLook {
    let memory = Memory {
        total: Bytes::mib(143_771),
        reserved: Some(Bytes::mib(615)),
        used: Bytes::ZERO,
        free: Bytes::mib(143_156),
        api: MemoryApi::V2,
    };
    DeviceLook {
        uuid: gpu(index, "").uuid,
        memory: Some(memory),
        entries: Some(Vec::new()),
        utilization_percent: None,
        gaps: Vec::new(),
    }
}

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04";

fn healthy() -> Facts {
    let driver = DriverInfo {
        source: DriverSource::Nvml,
        driver_version: Some("580.159.04".into()),
        nvml_version: Some("13.580.159.04".into()),
        cuda_version: Some("13.0".into()),
        library: Some(LIBRARY.into()),
    };
    let inventory = Inventory { driver, devices: vec![gpu(0, "H200"), gpu(1, "H200")], gaps: Vec::new() };
    let node = |name: &str| Node { path: PathBuf::from("/dev").join(name), access: Access::Granted };
    Facts {
        driver: Ok(DriverSeen {
            inventory,
            look: Ok(Look { at_ms: 0, devices: vec![memory(0), memory(1)] }),
            facts: Ok(DriverFacts { mapped: Some(vec![LIBRARY.into()]), devices: vec![settings(0), settings(1)] }),
        }),
        kernel: Kernel { module: Some("580.159.04".into()), open: Some(true) },
        observer: Some(Observer {
            id: ProcId { pid: 7, start_ticks: 7 },
            uid: 0,
            pid_namespace: Some(1),
            initial_pid_namespace: Some(true),
            hidepid: false,
            foreign_procfs: false,
            tool_processes: Vec::new(),
            nvml_client_files: None,
        }),
        machine: Machine {
            nodes: ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"].map(node).into(),
            initial_cgroup_namespace: Some(true),
            shm: Seen::As(Fill { total: 8 << 30, free: 7 << 30 }),
            xids: Seen::As(Vec::new()),
            mps: Mps::default(),
            preload_file: Vec::new(),
            library_path_hits: Vec::new(),
        },
        environment: BTreeMap::new(),
        python: python(Torch {
            site: "/venv/lib/python3.12/site-packages".into(),
            version: Some("2.11.0+cu130".into()),
            metadata_version: Some("2.11.0".into()),
            cuda: Some("13.0".into()),
            hip: None,
        }),
    }
}

fn python(torch: Torch) -> Python {
    Python::Found { interpreter: "/venv/bin/python".into(), searched: Vec::new(), torch: vec![torch] }
}

/// The lines of one check after one change.
fn after(check: &str, change: impl FnOnce(&mut Facts)) -> Vec<(Level, String)> {
    let mut facts = healthy();
    change(&mut facts);
    let lines = lines(&facts, &Table::built_in().unwrap());
    for line in &lines {
        assert!(!matches!(line.level, Level::Warn | Level::Fail) || line.fix.is_some(), "no fix: {line:?}");
    }
    let shown = |line: &DoctorLine| (line.level, format!("{} | {}", line.text, line.fix.as_deref().unwrap_or("")));
    lines.iter().filter(|line| line.check == check).map(shown).collect()
}

/// That exactly one line of the check is of this level and says this.
#[track_caller]
fn says(check: &str, level: Level, words: &str, change: impl FnOnce(&mut Facts)) {
    let found = after(check, change);
    let fits = found.iter().filter(|(l, text)| *l == level && text.contains(words)).count();
    assert_eq!(fits, 1, "{check} {level:?} `{words}`: {found:#?}");
}

fn seen(facts: &mut Facts) -> &mut DriverSeen {
    facts.driver.as_mut().unwrap()
}

fn device(facts: &mut Facts) -> &mut DeviceFacts {
    &mut seen(facts).facts.as_mut().unwrap().devices[0]
}

fn set(name: &str, value: &str) -> impl FnOnce(&mut Facts) {
    let (name, value) = (name.to_string(), value.to_string());
    move |facts| {
        facts.environment.insert(name, value);
    }
}

#[test]
fn a_healthy_machine_is_fine_throughout() {
    let report = report(&healthy(), &Table::built_in().unwrap(), true, String::new(), None);
    let odd: Vec<_> = report.lines.iter().filter(|line| line.level != Level::Ok).collect();
    assert_eq!(odd, [] as [&DoctorLine; 0]);
    assert_eq!((report.exit_code, report.verdict), (0, Level::Ok));
    assert_eq!(report.driver_version.as_deref(), Some("580.159.04"));
    assert_eq!(report.torch_version.as_deref(), Some("2.11.0+cu130"));
}

#[test]
fn a_warning_fails_only_where_it_is_asked_for() {
    let mut facts = healthy();
    device(&mut facts).persistence = Some(false);
    let table = Table::built_in().unwrap();
    assert_eq!(report(&facts, &table, false, String::new(), None).exit_code, 0);
    assert_eq!(report(&facts, &table, true, String::new(), None).exit_code, 1);
    device(&mut facts).persistence = Some(true);
    facts.machine.shm = Seen::Hidden("no".into());
    assert_eq!(report(&facts, &table, true, String::new(), None).exit_code, 0, "unseen is not wrong");
    device(&mut facts).compute_mode = Some(ComputeMode::Prohibited);
    assert_eq!(report(&facts, &table, false, String::new(), None).exit_code, 1);
}

#[test]
fn a_driver_that_does_not_answer() {
    for (kind, fix) in [
        (FailureKind::NoDriver, "sudo modprobe nvidia"),
        (FailureKind::NoLibrary, "ldconfig -p"),
        (FailureKind::VersionMismatch, "sudo modprobe -r nvidia_uvm"),
        (FailureKind::NoPermission, "ls -l /dev/nvidia*"),
        (FailureKind::NoGpu, "lspci"),
        (FailureKind::Timeout, "dmesg"),
    ] {
        let broken = |facts: &mut Facts| {
            facts.driver = Err(Failure { kind, message: "starting NVML: no".into(), hint: Some("do this".into()) });
        };
        says("driver", Level::Fail, "starting NVML: no. do this", broken);
        says("driver", Level::Fail, fix, broken);
        says("devices", Level::CouldNotLook, "does not answer", broken);
        // The kernel module still tells the version that PyTorch needs.
        says("torch.cuda", Level::Ok, "driver 580.159.04 serves", broken);
    }
}

#[test]
fn library_and_kernel_module() {
    says("driver", Level::Ok, "580.159.04 answers for 2 GPUs, serves CUDA 13.0", |_| {});
    says("driver.kernel", Level::Ok, "open kernel module is 580.159.04", |_| {});
    says("driver.kernel", Level::Warn, "570.1 and the library speaks of 580", |f| {
        f.kernel.module = Some("570.1".into())
    });
    says("driver.kernel", Level::CouldNotLook, "no version", |f| f.kernel.module = None);
    says("library", Level::Ok, LIBRARY, |_| {});
    says("library.stub", Level::Fail, "stub for linking", |f| {
        let stub = "/usr/local/cuda/lib64/stubs/libnvidia-ml.so.1";
        seen(f).inventory.driver.library = Some(stub.into());
        seen(f).facts.as_mut().unwrap().mapped = Some(vec![stub.into()]);
    });
    says("library.stub", Level::Fail, "/cuda/lib64/stubs/libcuda.so.1", |f| {
        f.machine.library_path_hits = vec!["/cuda/lib64/stubs/libcuda.so.1".into()];
    });
    says("library.search_path", Level::Warn, "/opt/old/libcuda.so.1 before", |f| {
        f.machine.library_path_hits = vec!["/opt/old/libcuda.so.1".into()];
    });
    says("library", Level::Warn, "several NVML libraries", |f| {
        seen(f).facts.as_mut().unwrap().mapped = Some(vec![LIBRARY.into(), "/opt/libnvidia-ml.so.1".into()]);
    });
    says("library", Level::CouldNotLook, "maps", |f| {
        seen(f).inventory.driver.library = None;
        seen(f).facts.as_mut().unwrap().mapped = None;
    });
    says("driver.device", Level::CouldNotLook, "GPU 1: lost", |f| {
        seen(f).inventory.gaps.push(Gap::new("GPU 1", "lost"));
    });
}

#[test]
fn preloaded_libraries() {
    says("library.preload", Level::Ok, "nothing", |_| {});
    says("library.preload", Level::Warn, "libvgpu.so stands before", |f| {
        f.machine.preload_file = vec!["/usr/local/vgpu/libvgpu.so".into()];
    });
    says("library.preload", Level::Warn, "libnvshare.so stands before", set("LD_PRELOAD", "/a/libnvshare.so"));
    says("library.preload", Level::Warn, "every program, this one too: /a/libjemalloc.so", |f| {
        f.environment.insert("LD_PRELOAD".into(), "/a/libjemalloc.so".into());
        seen(f).facts.as_mut().unwrap().mapped.as_mut().unwrap().push("/a/libjemalloc.so".into());
    });
    says("library.preload", Level::Ok, "nothing", set("LD_PRELOAD", "/a/not-there.so"));
}

#[test]
fn settings_of_a_gpu() {
    says("device.persistence", Level::Warn, "-i 0 -pm 1", |f| device(f).persistence = Some(false));
    assert_eq!(after("device.persistence", |f| device(f).persistence = None).len(), 1, "not known is not said");
    says("device.compute_mode", Level::Warn, "exclusive process: while", |f| {
        device(f).compute_mode = Some(ComputeMode::ExclusiveProcess);
    });
    says("device.compute_mode", Level::Ok, "with MPS as its one process", |f| {
        device(f).compute_mode = Some(ComputeMode::ExclusiveProcess);
        f.machine.mps.daemons = vec![7];
    });
    says("device.compute_mode", Level::Fail, "prohibited", |f| {
        device(f).compute_mode = Some(ComputeMode::Prohibited);
    });
    says("device.mig", Level::Warn, "MIG is off and waits to be on", |f| {
        device(f).mig = Some(NowAndNext { now: false, next: true });
    });
    let split = |f: &mut Facts| device(f).mig = Some(NowAndNext { now: true, next: true });
    says("device.mig", Level::Fail, "there is no instance", split);
    says("device.mig", Level::Ok, "instances: 1", |f| {
        split(f);
        let instance = MigIdentity { parent: gpu(0, "").uuid, gi: Some(1), ci: Some(0) };
        let identity = DeviceIdentity { uuid: Uuid("MIG-1".into()), mig: Some(instance), ..gpu(0, "H200 MIG") };
        seen(f).inventory.devices.push(identity);
    });
    says("device.ecc", Level::Warn, "ECC is on and waits to be off", |f| {
        device(f).ecc = Some(NowAndNext { now: true, next: false });
    });
    says("device", Level::CouldNotLook, "GPU 0: reading the ECC mode", |f| {
        device(f).gaps.push(Gap::new("GPU 0", "reading the ECC mode: no"));
    });
    says("devices", Level::CouldNotLook, "did not come back", |f| {
        seen(f).facts = Err(Failure { kind: FailureKind::Timeout, message: "it did not come back".into(), hint: None });
    });
}

#[test]
fn memory_that_waits_for_a_reset() {
    let rows = |correctable, pending, failed| {
        move |f: &mut Facts| {
            device(f).remapped_rows = Some(RemappedRows { correctable, uncorrectable: 0, pending, failed });
        }
    };
    says("device.remapped_rows", Level::Ok, "replaced so far: 3", rows(3, false, false));
    says("device.remapped_rows", Level::Warn, "--gpu-reset -i 0", rows(1, true, false));
    says("device.remapped_rows", Level::Fail, "due for repair", rows(1, true, true));
    says("device.retired_pages", Level::Warn, "wait for a reset", |f| device(f).pages_pending = Some(true));
    says("device.retired_pages", Level::Ok, "no page waits", |f| device(f).pages_pending = Some(false));
}

#[test]
fn reserved_memory() {
    assert_eq!(after("device.memory", |_| {}).len(), 2);
    let memory = |f: &mut Facts, change: fn(&mut Memory)| {
        change(seen(f).look.as_mut().unwrap().devices[0].memory.as_mut().unwrap());
    };
    says("device.memory", Level::Warn, "28.3 GiB of 140.4 GiB", |f| {
        memory(f, |m| m.reserved = Some(Bytes::mib(29_000)))
    });
    says("device.memory", Level::Warn, "drivers from 510 on", |f| {
        memory(f, |m| (m.api, m.reserved) = (MemoryApi::V1, None));
    });
    says("device.memory", Level::CouldNotLook, "the GPU is lost", |f| {
        let look = &mut seen(f).look.as_mut().unwrap().devices[0];
        look.memory = None;
        look.gaps.push(Gap::new("GPU 0", "the GPU is lost"));
    });
}

#[test]
fn device_files() {
    says("permissions", Level::Ok, "all 4 device files", |_| {});
    says("permissions", Level::Fail, "nvidia-modprobe -u", |f| f.machine.nodes[1].access = Access::Missing);
    says("permissions", Level::Fail, "/dev/nvidia0 is missing", |f| f.machine.nodes[2].access = Access::Missing);
    says("permissions", Level::Fail, "usermod -aG video", |f| {
        f.machine.nodes[2].access = Access::Denied { mode: 0o660, group: Some("video".into()) };
    });
    says("permissions", Level::Fail, "ls -l /dev/nvidia0", |f| {
        f.machine.nodes[2].access = Access::Denied { mode: 0o600, group: Some("root".into()) };
    });
    says("permissions", Level::CouldNotLook, "no device files", |f| {
        f.driver = Err(Failure { kind: FailureKind::NoDriver, message: "no".into(), hint: None });
        f.kernel.module = None;
        for node in &mut f.machine.nodes {
            node.access = Access::Missing;
        }
    });
}

#[test]
fn what_we_can_see_of_others() {
    fn observer(f: &mut Facts) -> &mut Observer {
        f.observer.as_mut().unwrap()
    }
    says("namespace.pid", Level::Warn, "--pid=host", |f| observer(f).initial_pid_namespace = Some(false));
    says("namespace.pid", Level::CouldNotLook, "could not be told", |f| observer(f).initial_pid_namespace = None);
    says("namespace.pid", Level::CouldNotLook, "/proc could not be read", |f| f.observer = None);
    says("namespace.cgroup", Level::Warn, "--cgroupns=host", |f| f.machine.initial_cgroup_namespace = Some(false));
    says("namespace.cgroup", Level::CouldNotLook, "could not", |f| f.machine.initial_cgroup_namespace = None);
    says("hidepid", Level::Warn, "sudo gpuresid", |f| observer(f).hidepid = true);
    says("privileges", Level::CouldNotLook, "only root", |f| observer(f).uid = 1000);
}

#[test]
fn shared_memory() {
    let fill = |total: u64, free: u64| move |f: &mut Facts| f.machine.shm = Seen::As(Fill { total, free });
    says("shm", Level::Ok, "12% of 8192 MiB", fill(8 << 30, 7 << 30));
    says("shm", Level::Warn, "85% of", fill(100 << 30, 15 << 30));
    says("shm", Level::Fail, "96% of", fill(100 << 30, 4 << 30));
    says("shm", Level::Warn, "--shm-size", fill(64 << 20, 64 << 20));
    says("shm", Level::CouldNotLook, "no such", |f| f.machine.shm = Seen::Hidden("no such".into()));
}

#[test]
fn xid_lines() {
    let xids = |list: &[(u32, Option<u64>)]| {
        let list = list
            .iter()
            .map(|(number, ago)| Xid {
                number: *number,
                pci: Some("0000:0a:00".into()),
                ago: ago.map(Duration::from_secs),
                text: String::new(),
            })
            .collect();
        move |f: &mut Facts| f.machine.xids = Seen::As(list)
    };
    says("xid", Level::Ok, "has no Xid line |", |_| {});
    says("xid", Level::Ok, "older ones", xids(&[(79, Some(90_000))]));
    says("xid", Level::Fail, "Xid 79 on 0000:0a:00, once, last 5 min ago: the GPU fell off", xids(&[(79, Some(300))]));
    says(
        "xid",
        Level::Warn,
        "Xid 43 on 0000:0a:00, 2 times, last 3 h ago: mostly a program",
        xids(&[(43, Some(20_000)), (43, Some(10_800))]),
    );
    says("xid", Level::Warn, "once: a memory error", xids(&[(48, None)]));
    says("xid", Level::CouldNotLook, "root only", |f| f.machine.xids = Seen::Hidden("root only".into()));
}

#[test]
fn mps() {
    says("mps", Level::Ok, "does not run", |_| {});
    says("mps", Level::Ok, "is left from one", |f| f.machine.mps.directory_exists = true);
    says("mps", Level::Warn, "which is not there", set("CUDA_MPS_PIPE_DIRECTORY", "/x"));
    says("mps", Level::Warn, "no MPS daemon is visible", |f| {
        f.machine.mps.directory_exists = true;
        f.environment.insert("CUDA_MPS_PIPE_DIRECTORY".into(), "/x".into());
    });
    says("mps", Level::Ok, "daemon PID 7, server PID 8", |f| {
        (f.machine.mps.daemons, f.machine.mps.servers) = (vec![7], vec![8]);
    });
    says("mps", Level::Warn, "kill 8", |f| f.machine.mps.servers = vec![8]);
}

#[test]
fn visible_devices() {
    const CHECK: &str = "env.CUDA_VISIBLE_DEVICES";
    says(CHECK, Level::Ok, "not set", |_| {});
    for (value, n) in [("0", 1), ("0,1", 2), (" 1 , 0", 2), ("GPU-0000", 1), ("GPU-1,GPU-0", 2)] {
        says(CHECK, Level::Ok, &format!("selects {n} "), set("CUDA_VISIBLE_DEVICES", value));
    }
    for value in ["", "-1", "7", "NoDevFiles", "GPU-9", "GPU-", "2,0"] {
        says(CHECK, Level::Fail, "selects nothing", set("CUDA_VISIBLE_DEVICES", value));
    }
    for (value, at, why) in [
        ("0,GPU-1111", "GPU-1111", "mixed"),
        ("GPU-1111,0", "`0`", "mixed"),
        ("0,7,1", "`7`", "called so"),
        ("0,-1,1", "`-1`", "called so"),
        ("0,", "``", "called so"),
    ] {
        says(CHECK, Level::Warn, at, set("CUDA_VISIBLE_DEVICES", value));
        says(CHECK, Level::Warn, why, set("CUDA_VISIBLE_DEVICES", value));
        says(CHECK, Level::Warn, "only the first 1", set("CUDA_VISIBLE_DEVICES", value));
    }
    let blind = |value: &'static str| {
        move |f: &mut Facts| {
            f.driver = Err(Failure { kind: FailureKind::NoDriver, message: "no".into(), hint: None });
            f.environment.insert("CUDA_VISIBLE_DEVICES".into(), value.into());
        }
    };
    says(CHECK, Level::CouldNotLook, "selects anything", blind("0,1"));
    says(CHECK, Level::Fail, "selects nothing", blind("-1"));
    says(CHECK, Level::Warn, "mixed", blind("0,GPU-1"));
}

#[test]
fn the_order_of_devices() {
    const CHECK: &str = "env.CUDA_DEVICE_ORDER";
    assert_eq!(after(CHECK, set("CUDA_VISIBLE_DEVICES", "0")), []);
    let mixed = |order: Option<&'static str>| {
        move |f: &mut Facts| {
            seen(f).inventory.devices[1].name = Some("T4".into());
            f.environment.insert("CUDA_VISIBLE_DEVICES".into(), "0".into());
            if let Some(order) = order {
                f.environment.insert("CUDA_DEVICE_ORDER".into(), order.into());
            }
        }
    };
    says(CHECK, Level::Warn, "different models", mixed(None));
    says(CHECK, Level::Warn, "different models", mixed(Some("FASTEST_FIRST")));
    assert_eq!(after(CHECK, mixed(Some("PCI_BUS_ID"))).iter().filter(|(l, _)| *l != Level::Ok).count(), 0);
    says(CHECK, Level::Warn, "no order that CUDA knows", set("CUDA_DEVICE_ORDER", "pci"));
}

#[test]
fn switches_left_on() {
    for name in ["CUDA_LAUNCH_BLOCKING", "NVML_MPS_DEVICE_ENUMERATION", "PYTORCH_NO_CUDA_MEMORY_CACHING"] {
        let check = format!("env.{name}");
        says(&check, Level::Warn, &format!("unset {name}"), set(name, "1"));
        assert_eq!(after(&check, set(name, "0")), []);
        assert_eq!(after(&check, |_| {}), []);
    }
}

#[test]
fn settings_of_the_allocator() {
    says(
        "env.PYTORCH_ALLOC_CONF",
        Level::Ok,
        "1 setting understood",
        set("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    );
    says(
        "env.PYTORCH_CUDA_ALLOC_CONF",
        Level::Fail,
        "no option `max_split_size`; `max_split_size_mb` is one",
        set("PYTORCH_CUDA_ALLOC_CONF", "max_split_size:64"),
    );
    says("env.PYTORCH_ALLOC_CONF", Level::Warn, "both set and differ", |f| {
        f.environment.insert("PYTORCH_ALLOC_CONF".into(), "max_split_size_mb:64".into());
        f.environment.insert("PYTORCH_CUDA_ALLOC_CONF".into(), "max_split_size_mb:128".into());
    });
    says("env.PYTORCH_ALLOC_CONF", Level::Warn, "not read by PyTorch 2.5.1", |f| {
        f.python = python(torch("2.5.1", Some("12.4")));
        f.environment.insert("PYTORCH_ALLOC_CONF".into(), "max_split_size_mb:64".into());
    });
}

fn torch(version: &str, cuda: Option<&str>) -> Torch {
    Torch {
        site: "/site".into(),
        version: Some(version.into()),
        metadata_version: Some(version.into()),
        cuda: cuda.map(Into::into),
        hip: None,
    }
}

fn with(version: &'static str, cuda: Option<&'static str>, driver: &'static str) -> impl Fn(&mut Facts) {
    move |f| {
        f.python = python(torch(version, cuda));
        seen(f).inventory.driver.driver_version = Some(driver.into());
        f.kernel.module = Some(driver.into());
    }
}

#[test]
fn pytorchs_cuda_needs_a_driver() {
    for (version, cuda, driver) in [
        ("2.11.0+cu130", "13.0", "580.65"),
        ("2.7.1+cu128", "12.8", "525.60.13"),
        ("2.0.1+cu118", "11.8", "450.80.02"),
        ("1.8.1", "10.2", "440.33"),
    ] {
        says("torch.cuda", Level::Ok, "serves PyTorch's CUDA", with(version, Some(cuda), driver));
    }
    for (version, cuda, driver, fix) in [
        ("2.11.0+cu130", "13.0", "575.51", "whl/cu126"),
        ("2.7.1+cu128", "12.8", "515.105", "whl/cu118"),
        ("2.0.1+cu118", "11.8", "450.51", "nvidia-driver-450"),
        ("1.8.1", "10.2", "418.87", "nvidia-driver-440"),
    ] {
        says("torch.cuda", Level::Fail, fix, with(version, Some(cuda), driver));
    }
    says("torch.cuda", Level::CouldNotLook, "not known", with("0.4.0", Some("8.0"), "580.1"));
    says("torch.cuda", Level::Warn, "without CUDA", with("2.11.0+cpu", None, "580.1"));
    says("torch.cuda", Level::Warn, "ROCm 6.2", |f| {
        f.python = python(Torch { hip: Some("6.2".into()), ..torch("2.5.0+rocm6.2", None) });
    });
    says("torch.cuda", Level::CouldNotLook, "none to compare with", |f| {
        f.driver = Err(Failure { kind: FailureKind::NoDriver, message: "no".into(), hint: None });
        f.kernel.module = None;
    });
}

#[test]
fn an_install_that_is_not_whole() {
    says("torch.install", Level::Fail, "files are 2.11.0+cu130, pip says 2.9.1", |f| {
        f.python = python(Torch { metadata_version: Some("2.9.1".into()), ..torch("2.11.0+cu130", Some("13.0")) });
    });
    says("torch.install", Level::Warn, "/other and is hidden", |f| {
        let other = Torch { site: "/other".into(), ..torch("2.0.0", None) };
        if let Python::Found { torch, .. } = &mut f.python {
            torch.push(other);
        }
    });
    says("torch", Level::CouldNotLook, "no PyTorch is installed", |f| {
        if let Python::Found { torch, .. } = &mut f.python {
            torch.clear();
        }
    });
    says("torch", Level::CouldNotLook, "no python", |f| f.python = Python::None("no python".into()));
    says("torch", Level::CouldNotLook, "sys.executable", |f| {
        f.python = Python::Unclear("/shims/python".into(), "a script".into());
    });
    says("torch", Level::CouldNotLook, "version.py cannot be read", |f| {
        f.python = python(Torch { version: None, metadata_version: None, ..torch("", None) });
    });
}

#[test]
fn what_a_version_can_tell_of_memory() {
    says("torch.memory", Level::Ok, "PYTORCH_ALLOC_CONF", |_| {});
    says("torch.memory", Level::Ok, "expandable_segments (since 2.1.0)", with("1.8.1", Some("10.2"), "580.1"));
    says("torch.memory", Level::Ok, "it has torch.cuda.empty_cache", with("1.0.0", Some("9.0"), "580.1"));
}

#[test]
fn known_faults() {
    let fault = |id: &str, version: &'static str, variable: &'static str, value: &'static str| {
        after(&format!("torch.fault.{id}"), |f| {
            with(version, Some("12.1"), "580.1")(f);
            f.environment.insert(variable.into(), value.into());
        })
        .len()
    };
    const CUDA: &str = "PYTORCH_CUDA_ALLOC_CONF";
    for (version, n) in [("2.1.2", 0), ("2.2.0", 1), ("2.3.0+cu121", 1), ("2.3.1", 0)] {
        assert_eq!(fault("compile-leak", version, "X", ""), n, "{version}");
    }
    for (version, value, n) in [
        ("2.4.0", "expandable_segments:True,max_split_size_mb:64", 1),
        ("2.4.0", "expandable_segments:True", 0),
        ("2.4.0", "expandable_segments:False,max_split_size_mb:64", 0),
        ("2.5.0", "expandable_segments:True,max_split_size_mb:64", 0),
    ] {
        assert_eq!(fault("segments-and-limits", version, CUDA, value), n, "{version} {value}");
    }
    for (version, variable, n) in
        [("2.9.1", "PYTORCH_ALLOC_CONF", 1), ("2.9.1", CUDA, 0), ("2.11.0", "PYTORCH_ALLOC_CONF", 0)]
    {
        assert_eq!(
            fault("alloc-conf-ignored", version, variable, "expandable_segments:True"),
            n,
            "{version} {variable}"
        );
    }
    assert_eq!(fault("segments-not-shared", "2.5.0", CUDA, "expandable_segments:True"), 1);
    assert_eq!(fault("segments-shared-in-containers", "2.11.0", CUDA, "expandable_segments:True"), 1);
    assert_eq!(fault("early-leaks", "1.3.0", "X", ""), 0, "nobody has shown it");
    says("torch.fault", Level::Ok, "no fault with memory is known of 1.3.0", with("1.3.0", Some("10.1"), "580.1"));
}
