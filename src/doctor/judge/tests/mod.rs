//! Each line once as it should be and once for each way in which it is not: starting from a healthy machine, one fact
//! is changed and the lines of that check are compared.

mod driver;
mod environment;
mod machine;
mod torch;

use super::*;
use crate::{
    doctor::facts::{Access, DriverSeen, Fill, Kernel, Machine, Mps, Node, Python, Seen, Torch, Xid},
    model::{
        Bytes, ComputeMode, ConfCompute, ConfEnvironment, DeviceFacts, DeviceIdentity, DeviceLook, DriverFacts,
        DriverInfo, DriverSource, Gap, Look, Memory, MemoryApi, MigIdentity, NowAndNext, Observer, ProcId,
        RemappedRows, Uuid,
    },
    observe::driver::{Failure, FailureKind, Inventory},
};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

pub(super) fn gpu(index: u32, name: &str) -> DeviceIdentity {
    DeviceIdentity {
        index,
        uuid: Uuid(format!("GPU-{index}{index}{index}{index}")),
        name: Some(name.into()),
        pci: None,
        minor: Some(index),
        mig: None,
        mig_parent: false,
        addressing: None,
        numa: None,
    }
}

pub(super) fn settings(index: u32) -> DeviceFacts {
    DeviceFacts {
        persistence: Some(true),
        compute_mode: Some(ComputeMode::Default),
        mig: Some(NowAndNext { now: false, next: false }),
        ecc: Some(NowAndNext { now: true, next: true }),
        remapped_rows: Some(RemappedRows { correctable: 0, uncorrectable: 0, pending: false, failed: false }),
        ..DeviceFacts::unknown(gpu(index, "").uuid, index)
    }
}

pub(super) fn memory(index: u32) -> DeviceLook {
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
        bar1: None,
        list_api: None,
        torn: Bytes::ZERO,
        gaps: Vec::new(),
    }
}

pub(super) const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04";

pub(super) fn healthy() -> Facts {
    let driver = DriverInfo {
        source: DriverSource::Nvml,
        driver_version: Some("580.159.04".into()),
        nvml_version: Some("13.580.159.04".into()),
        cuda_version: Some("13.0".into()),
        library: Some(LIBRARY.into()),
        interposed: None,
    };
    let inventory = Inventory { driver, devices: vec![gpu(0, "H200"), gpu(1, "H200")], gaps: Vec::new() };
    let node = |name: &str| Node { path: PathBuf::from("/dev").join(name), access: Access::Granted };
    Facts {
        driver: Ok(DriverSeen {
            inventory,
            look: Ok(Look { at_ms: 0, devices: vec![memory(0), memory(1)] }),
            facts: Ok(DriverFacts {
                mapped: Some(vec![LIBRARY.into()]),
                conf_compute: None,
                devices: vec![settings(0), settings(1)],
            }),
        }),
        kernel: Kernel { module: Some("580.159.04".into()), open: Some(true) },
        files: None,
        observer: Some(Observer {
            id: ProcId { pid: 7, start_ticks: 7 },
            uid: 0,
            pid_namespace: Some(1),
            initial_pid_namespace: Some(true),
            hidepid: false,
            foreign_procfs: false,
            tool_processes: Vec::new(),
            nvml_client_files: None,
            cgroup: None,
            slurm_job: None,
            capabilities: Default::default(),
            ancestors: Vec::new(),
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
            tells_cuda: true,
        }),
    }
}

pub(super) fn python(torch: Torch) -> Python {
    Python::Found { interpreter: "/venv/bin/python".into(), searched: Vec::new(), torch: vec![torch] }
}

/// The lines of one check after one change.
pub(super) fn after(check: &str, change: impl FnOnce(&mut Facts)) -> Vec<(Level, String)> {
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
pub(super) fn says(check: &str, level: Level, words: &str, change: impl FnOnce(&mut Facts)) {
    let found = after(check, change);
    let fits = found.iter().filter(|(l, text)| *l == level && text.contains(words)).count();
    assert_eq!(fits, 1, "{check} {level:?} `{words}`: {found:#?}");
}

pub(super) fn seen(facts: &mut Facts) -> &mut DriverSeen {
    facts.driver.as_mut().unwrap()
}

pub(super) fn device(facts: &mut Facts) -> &mut DeviceFacts {
    &mut seen(facts).facts.as_mut().unwrap().devices[0]
}

pub(super) fn set(name: &str, value: &str) -> impl FnOnce(&mut Facts) {
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
fn the_lines_of_one_gpu_stand_together() {
    let lines = lines(&healthy(), &Table::built_in().unwrap());
    let of =
        |line: &DoctorLine| line.text.get(.."GPU 0".len()).filter(|start| start.starts_with("GPU ")).map(str::to_owned);
    let mut gpus: Vec<_> = lines.iter().filter_map(of).collect();
    assert!(gpus.len() > 8, "{gpus:?}");
    gpus.dedup();
    assert_eq!(gpus, ["GPU 0", "GPU 1"]);
}

#[test]
fn every_check_has_its_place_in_the_table() {
    let mut facts = healthy();
    let on = ConfCompute { on: true, environment: ConfEnvironment::Production, developer_tools: false };
    seen(&mut facts).facts.as_mut().unwrap().conf_compute = Some(on);
    let report = report(&facts, &Table::built_in().unwrap(), false, String::new(), None);
    let mut shown = Vec::new();
    crate::report::table::doctor(&report, &crate::report::Style::default(), &mut shown).unwrap();
    let shown = String::from_utf8(shown).unwrap();
    for line in &report.lines {
        assert!(shown.contains(&line.text), "{} is missing: {shown}", line.check);
    }
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

pub(super) fn torch(version: &str, cuda: Option<&str>) -> Torch {
    Torch {
        site: "/site".into(),
        version: Some(version.into()),
        metadata_version: Some(version.into()),
        cuda: cuda.map(Into::into),
        hip: None,
        tells_cuda: true,
    }
}
