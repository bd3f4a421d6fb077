//! The driver, its library, and how the GPUs are set up.

use super::*;

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
        says("driver", Level::Fail, "starting NVML: no (do this)", broken);
        says("driver", Level::Fail, fix, broken);
        says("devices", Level::CouldNotLook, "does not answer", broken);
        // The kernel module still tells the version that PyTorch needs.
        says("torch.cuda", Level::Ok, "driver 580.159.04 serves", broken);
    }
    // What to paste stands in one place, and who runs doctor is not told to.
    let hint =
        "load it: sudo modprobe nvidia\nin a container, start that with GPUs\nmore about this machine: gpuresid doctor";
    let broken = |facts: &mut Facts| {
        let kind = FailureKind::NoDriver;
        facts.driver = Err(Failure { kind, message: "there is none".into(), hint: Some(hint.into()) });
    };
    let line = (Level::Fail, "there is none (in a container, start that with GPUs) | sudo modprobe nvidia".to_owned());
    assert_eq!(after("driver", broken), [line]);
}

#[test]
fn library_and_kernel_module() {
    says("driver", Level::Ok, "580.159.04 answers for 2 GPUs, serves CUDA 13.0", |_| {});
    says("driver.kernel", Level::Ok, "open kernel module is 580.159.04", |_| {});
    says("driver.kernel", Level::Warn, "570.1 and the library says 580", |f| f.kernel.module = Some("570.1".into()));
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
    says("library.preload", Level::Warn, "libvgpu.so is loaded before", |f| {
        f.machine.preload_file = vec!["/usr/local/vgpu/libvgpu.so".into()];
    });
    says("library.preload", Level::Warn, "libnvshare.so is loaded before", set("LD_PRELOAD", "/a/libnvshare.so"));
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
    says("device.mig", Level::Warn, "MIG is off and will be on", |f| {
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
    says("device.ecc", Level::Warn, "ECC is on and will be off", |f| {
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
    says("device.retired_pages", Level::Warn, "will be retired at the next reset", |f| {
        device(f).pages_pending = Some(true)
    });
    says("device.retired_pages", Level::Ok, "no memory page is waiting", |f| device(f).pages_pending = Some(false));
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
