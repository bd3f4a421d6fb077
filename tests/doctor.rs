//! `doctor` against fake machines, pretended installs of PyTorch and environments that are set up wrongly.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod support;

use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};
use support::{Fault, Finished, Instance, Machine, Rig};

/// A machine on which nothing is wrong, whatever runs the test: its own `/dev/shm` and kernel log, no Python.
fn well() -> Rig {
    prepared(Rig::new())
}

fn prepared(rig: Rig) -> Rig {
    fs::create_dir(rig.dev().join("shm")).unwrap();
    fs::write(rig.dev().join("kmsg"), "6,1,2,-;usb 1-1: new device\n").unwrap();
    fs::create_dir(rig.path("bin")).unwrap();
    rig
}

/// `gpuresid ARGUMENTS` with these variables and no others that matter.
fn command(rig: &Rig, arguments: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = rig.gpuresid(arguments.split_whitespace());
    for name in [
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MPS_PIPE_DIRECTORY",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NVML_MPS_DEVICE_ENUMERATION",
        "PYTHONPATH",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "VIRTUAL_ENV",
    ] {
        command.env_remove(name);
    }
    command.env("PATH", rig.path("bin")).env("HOME", rig.path("home")).envs(environment.iter().copied());
    command
}

fn doctor(rig: &Rig, options: &str, environment: &[(&str, &str)]) -> Finished {
    rig.launch(command(rig, &format!("doctor --json {options}"), environment)).wait()
}

/// The level and text of each line of this check.
fn lines(report: &Value, check: &str) -> Vec<(String, String)> {
    let all = report["lines"].as_array().unwrap_or_else(|| panic!("no lines in {report:#}"));
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_string();
    all.iter().filter(|l| l["check"] == check).map(|l| (text(l, "level"), text(l, "text"))).collect()
}

/// That one line of this check is of this level and says this.
#[track_caller]
fn says(report: &Value, check: &str, level: &str, words: &str) {
    let found = lines(report, check);
    let fits = found.iter().filter(|(l, text)| l == level && text.contains(words)).count();
    assert_eq!(fits, 1, "{check} {level} `{words}`: {found:#?}");
}

fn facts(rig: &Rig, facts: Value) {
    rig.edit_machine(|machine| machine["facts"] = json!([facts]));
}

#[test]
fn a_machine_on_which_nothing_is_wrong() {
    let rig = well();
    let end = doctor(&rig, "", &[]);
    end.expect_code(0);
    assert_eq!(end.stderr, "");
    let report = end.json();
    assert_eq!(report["schema"], "gpuresid.doctor/1");
    assert_eq!(report["driver_version"], "580.159.04");
    for (check, words) in [
        ("driver", "580.159.04 answers for 1 GPU, serves CUDA 13.0"),
        ("driver.nvml", "13.580.159.04"),
        ("library", "libfake_nvml.so is mapped"),
        ("device.persistence", "is on"),
        ("device.compute_mode", "default"),
        ("device.mig", "is off"),
        ("device.ecc", "is on"),
        ("device.remapped_rows", "no row"),
        ("device.memory", "615 MiB of 140.4 GiB"),
        ("permissions", "all 3 device files"),
        ("xid", "no Xid line"),
        ("env.CUDA_VISIBLE_DEVICES", "not set"),
    ] {
        says(&report, check, "ok", words);
    }
    assert_eq!(lines(&report, "device.retired_pages"), [], "this card does not know it, which is no line");
    says(&report, "torch", "could_not_look", "no python3");
    let fails: Vec<_> = report["lines"].as_array().unwrap().iter().filter(|l| l["level"] == "fail").collect();
    assert_eq!(fails, [] as [&Value; 0]);
}

#[test]
fn for_people_every_part_has_its_heading_and_every_fix_its_line() {
    let rig = well();
    facts(&rig, json!({"compute_mode": 2}));
    let end = rig.launch(command(&rig, "doctor", &[])).wait();
    end.expect_code(1);
    assert!(end.stdout.starts_with("1 failed, ") && end.stdout.contains(" not checked, "), "{}", end.stdout);
    for heading in ["Driver", "GPUs", "Machine", "Environment", "PyTorch"] {
        assert!(end.stdout.contains(&format!("\n\n{heading}\n")), "{}", end.stdout);
    }
    assert!(
        end.stdout.contains(
            "\n  fail            GPU 0: compute mode prohibited: no CUDA program may use it\
             \n                  fix: sudo nvidia-smi -i 0 -c DEFAULT\n"
        ),
        "{}",
        end.stdout
    );
}

#[test]
fn settings_that_the_driver_reports() {
    let rig = well();
    let cases = [
        (json!({"persistence": 0}), "device.persistence", "warn", "is off"),
        (json!({"compute_mode": 3}), "device.compute_mode", "warn", "exclusive process"),
        (json!({"compute_mode": 2}), "device.compute_mode", "fail", "prohibited"),
        (json!({"mig_next": 1}), "device.mig", "warn", "will be on after a reset"),
        (json!({"ecc": [1, 0]}), "device.ecc", "warn", "will be off after a reset"),
        (json!({"pages_pending": 1}), "device.retired_pages", "warn", "will be retired at the next reset"),
        (json!({"pages_pending": 0}), "device.retired_pages", "ok", "no memory page"),
        (json!({"remapped_rows": [2, 1, 0, 0]}), "device.remapped_rows", "ok", "so far: 3"),
        (json!({"remapped_rows": [0, 1, 1, 0]}), "device.remapped_rows", "warn", "will be replaced at the next reset"),
        (json!({"remapped_rows": [0, 1, 1, 1]}), "device.remapped_rows", "fail", "due for repair"),
    ];
    for (set, check, level, words) in cases {
        facts(&rig, set);
        let end = doctor(&rig, "", &[]);
        says(&end.json(), check, level, words);
        end.expect_code(i32::from(level == "fail"));
    }
    facts(&rig, json!({"persistence": 0}));
    doctor(&rig, "--strict", &[]).expect_code(1);
    // Looking changes nothing: only getters were called.
    for call in rig.calls() {
        let f = &call.function;
        assert!(!f.starts_with("nvmlDeviceSet") && !f.contains("Clear") && !f.contains("Reset"), "{f}");
    }
}

#[test]
fn memory_that_is_the_machines_too_and_memory_that_is_protected() {
    let rig = well();
    let report = doctor(&rig, "", &[]).json();
    says(&report, "confidential_computing", "ok", "confidential computing is off");
    assert_eq!(lines(&report, "device.addressing"), []);
    assert!(!rig.calls().iter().any(|c| c.function.contains("ConfComputeMem")), "nobody needs it");
    facts(&rig, json!({"addressing": 2, "numa_node": 1, "protected": [1_048_576, 536_870_912]}));
    rig.edit_machine(|machine| machine["conf_compute"] = json!([2, 1, 1]));
    let end = doctor(&rig, "", &[]);
    let report = end.json();
    says(&report, "device.addressing", "ok", "its memory is NUMA node 1 of this machine, so page cache");
    says(&report, "confidential_computing", "ok", "is on, production, with developers' tools allowed");
    says(
        &report,
        "confidential_computing",
        "ok",
        "GPU 0: 1024 MiB of its memory are protected (512 MiB of that in use)",
    );
    // The machine that runs the test may be warned about, this GPU is not.
    let all = report["lines"].as_array().unwrap().iter().filter(|l| l["text"].as_str().unwrap().starts_with("GPU 0: "));
    assert_eq!(all.filter(|line| line["level"] != "ok").collect::<Vec<_>>(), [] as [&Value; 0]);
    end.expect_code(0);
    rig.answers("nvmlDeviceGetConfComputeMemSizeInfo", 4);
    let report = doctor(&rig, "", &[]).json();
    says(&report, "device", "could_not_look", "the protected memory: no permission");
    rig.clear_faults();
    facts(&rig, json!({"addressing": 1}));
    says(&doctor(&rig, "", &[]).json(), "device.addressing", "ok", "addressing mode HMM");
    facts(&rig, json!({"addressing": 2}));
    says(&doctor(&rig, "", &[]).json(), "device.addressing", "ok", "is not a NUMA node");
    rig.without_symbols(&["nvmlDeviceGetNumaNodeId", "nvmlSystemGetConfComputeState"]);
    let report = doctor(&rig, "", &[]).json();
    says(&report, "device.addressing", "could_not_look", "this driver does not tell");
    assert_eq!(lines(&report, "confidential_computing"), [], "a driver that does not know it");
}

#[test]
fn what_the_driver_will_not_tell_is_a_line_of_its_own() {
    let rig = well();
    rig.answers("nvmlDeviceGetEccMode", 4);
    let end = doctor(&rig, "--strict", &[]);
    says(&end.json(), "device", "could_not_look", "the ECC mode: no permission");
    assert_eq!(lines(&end.json(), "device.ecc"), []);
    rig.clear_faults();
    // A driver that is too old for a call is no gap.
    rig.without_symbols(&["nvmlDeviceGetRemappedRows"]);
    let report = doctor(&rig, "", &[]).json();
    assert_eq!(lines(&report, "device.remapped_rows"), []);
    assert_eq!(lines(&report, "device"), []);
}

#[test]
fn a_gpu_that_does_not_answer_fails_with_what_to_do() {
    let words = [(15, "the GPU is lost"), (16, "must be reset"), (999, "unknown error")];
    let calls = ["nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetComputeRunningProcesses*", "nvmlDeviceGetHandleByIndex*"];
    let rig = prepared(Rig::with_gpus(2));
    for ((code, words), function) in words.into_iter().flat_map(|w| calls.map(|call| (w, call))) {
        rig.clear_faults();
        rig.fault(Fault { function: function.into(), device: Some(0), code: Some(code), ..Fault::default() });
        for strict in ["", "--strict"] {
            let end = doctor(&rig, strict, &[]);
            end.expect_code(1);
            let report = end.json();
            says(&report, "device", "fail", words);
            says(&report, "device", "fail", "restart of the machine");
            let failed: Vec<_> = report["lines"].as_array().unwrap().iter().filter(|l| l["level"] == "fail").collect();
            assert_eq!(failed.len(), 1, "said once: {report:#}");
            assert!(failed[0].to_string().contains("--gpu-reset -i 0"), "{report:#}");
            says(&report, "device.memory", "ok", "GPU 1");
        }
        // Who works without it has nothing to mend.
        doctor(&rig, "-i 1", &[]).expect_code(0);
    }
    rig.clear_faults();
    rig.hangs("nvmlDeviceGetMemoryInfo*", "stuck");
    rig.edit_machine(|machine| machine["faults"][0]["device"] = 0.into());
    let end = doctor(&rig, "--nvml-timeout 2", &[]);
    end.expect_code(1);
    says(&end.json(), "device", "fail", "did not come back");
    rig.let_go("stuck");
}

#[test]
fn a_setting_that_hangs_is_named_and_the_rest_is_said() {
    let rig = well();
    rig.hangs("nvmlDeviceGetComputeMode", "stuck");
    let end = doctor(&rig, "--nvml-timeout 1", &[]);
    let report = end.json();
    says(&report, "devices", "could_not_look", "reading the settings on GPU 0 did not come back within 1s");
    says(&report, "driver", "ok", "answers");
    says(&report, "device.memory", "ok", "reserved");
    rig.let_go("stuck");
}

#[test]
fn a_driver_that_does_not_answer_fails_with_what_to_do() {
    for (code, words, fix) in [
        (9, "no NVIDIA driver is loaded", "sudo modprobe nvidia"),
        (18, "does not fit", "sudo modprobe -r nvidia_uvm"),
        (4, "no permission", "ls -l /dev/nvidia*"),
    ] {
        let rig = well();
        rig.init_answers(code);
        let end = doctor(&rig, "", &[]);
        end.expect_code(1);
        let report = end.json();
        says(&report, "driver", "fail", words);
        says(&report, "devices", "could_not_look", "does not answer");
        let driver = report["lines"].as_array().unwrap().iter().find(|l| l["check"] == "driver").unwrap();
        assert!(driver["fix"].as_str().unwrap().starts_with(fix), "{driver:#}");
        // The rest is looked at all the same.
        says(&report, "xid", "ok", "no Xid line");
        says(&report, "env.CUDA_VISIBLE_DEVICES", "ok", "not set");
    }
}

#[test]
fn mig_with_and_without_instances() {
    let mut machine = Machine::h200(2);
    machine.devices[1].mig = vec![Instance { uuid: "MIG-1".into(), gi: 1, ci: 0, total: 1 << 34, reserved: 0 }];
    let rig = prepared(Rig::with_machine(&machine));
    let report = doctor(&rig, "", &[]).json();
    says(&report, "device.mig", "ok", "GPU 0: MIG is off");
    says(&report, "device.mig", "ok", "GPU 1: MIG is on, instances: 1");
    let report = doctor(&rig, "-i 1", &[]).json();
    assert_eq!(lines(&report, "device.mig").len(), 1, "only what was asked for");
    says(&doctor(&rig, "", &[("CUDA_VISIBLE_DEVICES", "MIG-1")]).json(), "env.CUDA_VISIBLE_DEVICES", "ok", "selects 1");
    doctor(&rig, "-i 7", &[]).expect_code(125);
}

#[test]
fn device_files_that_are_missing() {
    let rig = well();
    fs::remove_file(rig.dev().join("nvidia-uvm")).unwrap();
    let end = doctor(&rig, "", &[]);
    end.expect_code(1);
    says(&end.json(), "permissions", "fail", "nvidia-uvm is missing, so no CUDA program can start");
}

#[test]
fn the_kernels_log() {
    let rig = well();
    let lines_of_log = "6,1,2,-;NVRM: Xid (PCI:0000:0a:00): 43, pid=4711, name=python, Ch 00000008\n\
        6,2,3,-;NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.\n";
    // A time stamp that lies in the future counts as now, so that the age of this machine does not matter.
    let lines_of_log = lines_of_log.replace(",2,-", ",9000000000000000,-").replace(",3,-", ",9000000000000000,-");
    fs::write(rig.dev().join("kmsg"), lines_of_log).unwrap();
    let end = doctor(&rig, "", &[]);
    end.expect_code(1);
    says(&end.json(), "xid", "fail", "Xid 79 on 0000:0a:00, once");
    says(&end.json(), "xid", "warn", "Xid 43 on 0000:0a:00, once");
    fs::remove_file(rig.dev().join("kmsg")).unwrap();
    says(&doctor(&rig, "", &[]).json(), "xid", "could_not_look", "kmsg");
    fs::remove_dir(rig.dev().join("shm")).unwrap();
    says(&doctor(&rig, "", &[]).json(), "shm", "could_not_look", "shm");
}

#[test]
fn environments_that_are_set_up_wrongly() {
    let rig = prepared(Rig::with_gpus(2));
    let uuid = Machine::h200(1).devices[0].uuid.clone();
    let mix = format!("1,{uuid}");
    for (name, value, check, level, words) in [
        ("CUDA_VISIBLE_DEVICES", "5", "env.CUDA_VISIBLE_DEVICES", "fail", "selects nothing"),
        ("CUDA_VISIBLE_DEVICES", mix.as_str(), "env.CUDA_VISIBLE_DEVICES", "warn", "cannot be mixed"),
        ("CUDA_VISIBLE_DEVICES", "1,0", "env.CUDA_VISIBLE_DEVICES", "ok", "selects 2"),
        ("CUDA_LAUNCH_BLOCKING", "1", "env.CUDA_LAUNCH_BLOCKING", "warn", "debugging"),
        ("CUDA_DEVICE_ORDER", "PCI", "env.CUDA_DEVICE_ORDER", "warn", "not an order"),
        ("NVML_MPS_DEVICE_ENUMERATION", "1", "env.NVML_MPS_DEVICE_ENUMERATION", "warn", "lists"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:8", "env.PYTORCH_CUDA_ALLOC_CONF", "fail", "of at least 20"),
        (
            "PYTORCH_ALLOC_CONF",
            "expandeable_segments:True",
            "env.PYTORCH_ALLOC_CONF",
            "fail",
            "`expandable_segments` is one",
        ),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "env.PYTORCH_ALLOC_CONF", "ok", "1 setting understood"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/no/such", "mps", "warn", "not there"),
    ] {
        let end = doctor(&rig, "", &[(name, value)]);
        says(&end.json(), check, level, words);
        end.expect_code(i32::from(level == "fail"));
    }
}

#[test]
fn stubs_on_the_search_path_and_libraries_put_before_it() {
    let rig = well();
    let stubs = rig.path("cuda/lib64/stubs");
    fs::create_dir_all(&stubs).unwrap();
    fs::write(stubs.join("libcuda.so.1"), "").unwrap();
    let end = doctor(&rig, "", &[("LD_LIBRARY_PATH", stubs.to_str().unwrap())]);
    end.expect_code(1);
    says(&end.json(), "library.stub", "fail", "stub for linking");
    // The fake library under the name of one that virtualises memory: the linker loads it into every program.
    let shim = rig.path("libvgpu.so");
    fs::copy(rig.library(), &shim).unwrap();
    let report = doctor(&rig, "", &[("LD_PRELOAD", shim.to_str().unwrap())]).json();
    says(&report, "library.preload", "warn", "libvgpu.so is loaded before");
}

// ---- PyTorch ------------------------------------------------------------------------------------------------------

/// A Python that cannot run, so that running it would show.
fn pretend_python(prefix: &Path) -> PathBuf {
    let bin = prefix.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(prefix.join("lib/python3.12/site-packages")).unwrap();
    let python = bin.join("python3.12");
    fs::write(&python, "\x7fELF is all there is").unwrap();
    if !bin.join("python3").exists() {
        symlink("python3.12", bin.join("python3")).unwrap();
    }
    python
}

fn pretend_torch(prefix: &Path, version: &str, cuda: Option<&str>) {
    let site = prefix.join("lib/python3.12/site-packages");
    fs::create_dir_all(site.join("torch")).unwrap();
    // Importing it would fail.
    fs::write(site.join("torch/__init__.py"), "raise SystemExit('imported')\n").unwrap();
    let cuda = cuda.map_or_else(|| "None".into(), |cuda| format!("'{cuda}'"));
    let module = format!(
        "from typing import Optional\n\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n\
         git_version = '0'\nhip: Optional[str] = None\n"
    );
    fs::write(site.join("torch/version.py"), module).unwrap();
    let release = version.split('+').next().unwrap();
    let info = site.join(format!("torch-{release}.dist-info"));
    fs::create_dir_all(&info).unwrap();
    fs::write(info.join("METADATA"), format!("Metadata-Version: 2.1\nName: torch\nVersion: {release}\n\n")).unwrap();
}

#[test]
fn pytorch_is_read_from_files_in_several_versions() {
    for (version, cuda, driver, level, words) in [
        ("2.11.0+cu130", Some("13.0"), "580.159.04", "ok", "serves PyTorch's CUDA 13.0"),
        ("2.11.0+cu130", Some("13.0"), "570.86.10", "fail", "which needs 580 or newer"),
        ("2.7.1+cu128", Some("12.8"), "525.60.13", "ok", "it needs 525 or newer"),
        ("2.7.1+cu128", Some("12.8"), "515.65.01", "fail", "which needs 525 or newer"),
        ("2.0.1+cu118", Some("11.8"), "450.80.02", "ok", "it needs 450.80 or newer"),
        ("2.0.1+cu118", Some("11.8"), "450.51.06", "fail", "which needs 450.80 or newer"),
        ("1.8.1", Some("10.2"), "440.33.01", "ok", "it needs 440.33 or newer"),
        ("2.11.0+cpu", None, "580.159.04", "warn", "built without CUDA"),
        ("2.11.0+cu132", Some("13.2"), "580.159.04", "ok", "by minor version compatibility within CUDA 13"),
        ("2.99.0+cu140", Some("14.0"), "580.159.04", "could_not_look", "the driver here reports CUDA 13.0"),
    ] {
        let rig = well();
        rig.edit_machine(|machine| machine["driver_version"] = json!(driver));
        pretend_python(&rig.path(""));
        pretend_torch(&rig.path(""), version, cuda);
        let end = doctor(&rig, "", &[]);
        let report = end.json();
        assert_eq!(report["torch_version"], version);
        says(&report, "torch.cuda", level, words);
        end.expect_code(i32::from(level == "fail"));
        if level == "fail" {
            let line = report["lines"].as_array().unwrap().iter().find(|l| l["check"] == "torch.cuda").unwrap();
            assert!(line["source"].as_str().unwrap().starts_with("https://docs.nvidia.com/"), "{line:#}");
        }
    }
}

#[test]
fn an_environment_may_be_named_and_its_faults_are_told() {
    let rig = well();
    let base = rig.path("base");
    let python = pretend_python(&base);
    pretend_torch(&base, "1.13.1+cu117", Some("11.7"));
    let venv = rig.path("venv");
    fs::create_dir_all(venv.join("bin")).unwrap();
    fs::create_dir_all(venv.join("lib/python3.12/site-packages")).unwrap();
    symlink(&python, venv.join("bin/python3")).unwrap();
    let home = python.parent().unwrap().display();
    fs::write(venv.join("pyvenv.cfg"), format!("home = {home}\ninclude-system-site-packages = false\n")).unwrap();
    let in_venv = format!("--python {}", venv.display());
    says(&doctor(&rig, &in_venv, &[]).json(), "torch", "could_not_look", "no PyTorch is installed");
    pretend_torch(&venv, "2.9.1+cu128", Some("12.8"));
    let set = [("PYTORCH_ALLOC_CONF", "expandable_segments:True")];
    let report = doctor(&rig, &in_venv, &set).json();
    assert_eq!(report["torch_version"], "2.9.1+cu128");
    says(&report, "torch.fault.alloc-conf-ignored", "warn", "is ignored without a word");
    let in_base = format!("--python {}", python.display());
    let report = doctor(&rig, &in_base, &set).json();
    assert_eq!(report["torch_version"], "1.13.1+cu117");
    says(&report, "env.PYTORCH_ALLOC_CONF", "fail", "known since PyTorch 2.1.0, and 1.13.1 is installed");
    says(&report, "torch.memory", "ok", "expandable_segments (since 2.1.0)");
}

#[test]
fn a_python_that_is_not_there_is_an_error_before_anything_is_looked_at() {
    let rig = well();
    let empty = rig.path("empty");
    fs::create_dir(&empty).unwrap();
    let empty = empty.display().to_string();
    for (path, why) in
        [("nowhere", "there is no such path"), (empty.as_str(), "there is no bin/python in this directory")]
    {
        let end = doctor(&rig, &format!("--python {path}"), &[]);
        end.expect_code(125);
        assert!(
            end.stderr.starts_with(&format!("error: --python {path}: {why}\n\nhint: name an int")),
            "{}",
            end.stderr
        );
        assert_eq!(end.stdout, "");
    }
    assert!(rig.calls().is_empty(), "the driver was asked");
    // What is there and not understood is no error.
    let script = rig.path("python");
    fs::write(&script, "#!/bin/sh\nexec pyenv\n").unwrap();
    let end = doctor(&rig, &format!("--python {}", script.display()), &[]);
    end.expect_code(0);
    says(&end.json(), "torch", "could_not_look", "a script that starts another Python");
}

#[test]
fn output_that_nobody_reads_is_no_error_and_text_from_outside_is_made_safe() {
    let rig = well();
    let end = rig.launch(command(&rig, "doctor", &[("CUDA_VISIBLE_DEVICES", "\x1b[31mred")])).wait();
    end.expect_code(1);
    assert!(!end.stdout.contains('\x1b'), "{}", end.stdout);
    assert!(end.stdout.contains("\\x1b[31mred"), "{}", end.stdout);
}
