//! Small builders for the words of the model.

use crate::model::{
    Ancestor, BootId, Bytes, Command, Device, DeviceFiles, DeviceIdentity, DeviceLook, DriverInfo, DriverSource, End,
    Entry, Launch, Limits, ListKind, Memory, MemoryApi, Observation, Observer, ProcId, Process, ProcessState, Scope,
    Snapshot, Trace, Uuid, schema,
};
use std::collections::BTreeSet;

/// Unaccounted growth below this is noise, as by default.
pub(in crate::judge) const NOISE: Bytes = Bytes::mib(128);
/// The subreaper of all test runs.
pub(in crate::judge) const ROOT: ProcId = ProcId { pid: 900, start_ticks: 9_000 };
/// The command of all test runs, unless a recording names its own.
pub(in crate::judge) const COMMAND: ProcId = ProcId { pid: 901, start_ticks: 9_001 };

pub(in crate::judge) fn id(pid: u32, start_ticks: u64) -> ProcId {
    ProcId { pid, start_ticks }
}

pub(in crate::judge) fn ancestor(id: ProcId, comm: &str) -> Ancestor {
    Ancestor { id, comm: comm.into(), uid: Some(0), sid: None }
}

pub(in crate::judge) fn files(gpu: u32, control: u32, uvm: u32) -> DeviceFiles {
    let nodes = [("nvidia0", gpu), ("nvidiactl", control), ("nvidia-uvm", uvm)];
    DeviceFiles { nodes: nodes.into_iter().filter(|(_, n)| *n > 0).map(|(k, n)| (k.to_owned(), n)).collect() }
}

/// A process below `ancestors` with these files.
pub(in crate::judge) fn process(id: ProcId, ancestors: Vec<Ancestor>, files: Option<DeviceFiles>) -> Process {
    Process {
        id,
        ppid: ancestors.first().map_or(1, |a| a.id.pid),
        ancestors,
        pgid: 1,
        sid: 1,
        uid: Some(0),
        user: Some("root".into()),
        comm: "python3".into(),
        program: None,
        argv: ["python3", "train.py"].into(),
        state: ProcessState::Sleeping,
        threads: 3,
        age_seconds: Some(1),
        cpu_ticks: 0,
        nspid: vec![id.pid],
        pid_namespace: Some(1),
        files,
        leader_gone: false,
        dying: false,
        core_dumping: false,
        wait_channel: None,
        marker: None,
        marker_alive: None,
        memory_unread: false,
        cgroup: None,
        shared_mappings: Vec::new(),
        blocked: None,
        kill_pending: false,
        on_sigterm: None,
        sigterm_pending: false,
        tracer: None,
        environment: Default::default(),
        sockets: None,
        slurm_step_alive: None,
        leads_unit: None,
    }
}

pub(in crate::judge) fn uuid() -> Uuid {
    Uuid("GPU-test".into())
}

pub(in crate::judge) fn entry(pid: u32, bytes: Option<u64>) -> Entry {
    Entry { pid, bytes: bytes.map(Bytes), gi: None, ci: None, lists: vec![ListKind::Compute] }
}

pub(in crate::judge) fn look(used: u64, entries: Vec<Entry>) -> DeviceLook {
    let total = Bytes::gib(140);
    DeviceLook {
        uuid: uuid(),
        memory: Some(Memory {
            total,
            reserved: Some(Bytes::mib(615)),
            used: Bytes(used),
            free: total.saturating_sub(Bytes(used)),
            api: MemoryApi::V2,
        }),
        entries: Some(entries),
        list_api: None,
        torn: Bytes::ZERO,
        utilization_percent: None,
        bar1: None,
        gaps: Vec::new(),
    }
}

pub(in crate::judge) fn snapshot(look: DeviceLook, processes: Vec<Process>) -> Snapshot {
    Snapshot {
        schema: schema::SNAPSHOT.into(),
        tool_version: "0".into(),
        taken_at: "2026-01-01T00:00:00Z".into(),
        at_ms: 0,
        boot_id: BootId("boot".into()),
        host: None,
        driver: Some(DriverInfo {
            source: DriverSource::Nvml,
            driver_version: None,
            nvml_version: None,
            cuda_version: None,
            library: None,
            interposed: None,
        }),
        observer: Observer {
            id: ROOT,
            uid: 0,
            pid_namespace: Some(1),
            initial_pid_namespace: Some(true),
            hidepid: false,
            foreign_procfs: false,
            tool_processes: Vec::new(),
            nvml_client_files: Some(files(3, 1, 2)),
            cgroup: None,
            slurm_job: None,
            capabilities: Default::default(),
            ancestors: Vec::new(),
        },
        devices: vec![Device {
            identity: DeviceIdentity {
                index: 0,
                uuid: look.uuid.clone(),
                name: Some("Test".into()),
                pci: None,
                minor: Some(0),
                mig: None,
                mig_parent: false,
                addressing: None,
                numa: None,
            },
            look,
        }],
        unselected: None,
        marked: false,
        processes: Some(processes),
        uninspected: Vec::new(),
        gaps: Vec::new(),
    }
}

/// A launch whose command exited with 0. `all_gone`: nothing of the run is alive.
pub(in crate::judge) fn launch(command: ProcId, root: ProcId, scope: Scope, all_gone: bool) -> Launch {
    Launch {
        run_id: "run".into(),
        scope,
        command: Some(Command {
            argv: ["python3", "train.py"].into(),
            id: command,
            started_ms: 0,
            ended_ms: Some(1000),
            end: Some(End::Exited(0)),
            timed_out: false,
            timeout_ms: None,
        }),
        root: Some(root),
        company: false,
        own_uids: BTreeSet::from([0]),
        all_gone: Some(all_gone),
        settled_ms: Some(1),
        settle_end: None,
        survivors: Vec::new(),
        output_kept_by: Vec::new(),
        oom_kills: None,
        leftovers: Vec::new(),
        report_file: None,
    }
}

/// What a judgement is made of, with the default limits.
pub(in crate::judge) fn observation(before: Snapshot, trace: Trace, after: Snapshot, launch: Launch) -> Observation {
    Observation {
        schema: schema::OBSERVATION.into(),
        before,
        trace,
        after,
        launch,
        limits: Limits::default(),
        torch: None,
    }
}
