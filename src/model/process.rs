//! What `/proc` says about processes. Facts only: who belongs to whom is judged elsewhere.

use super::ProcId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state letter of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// R
    Running,
    /// S, I
    Sleeping,
    /// D
    DiskSleep,
    /// T
    Stopped,
    /// t
    Traced,
    /// Z
    Zombie,
    /// X, x
    Dead,
    /// Any letter that this version does not know.
    Other,
}

impl ProcessState {
    /// The word for people: `running`, `sleeping`, `in the kernel (D)`, `stopped`, `traced`, `zombie`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::DiskSleep => "in the kernel (D)",
            Self::Stopped => "stopped",
            Self::Traced => "traced",
            Self::Zombie => "zombie",
            Self::Dead => "dead",
            Self::Other => "unknown state",
        }
    }
}

/// Open NVIDIA device files of a process, counted by node name without `/dev/`, over all of its threads (threads share
/// one table as a rule; where they do not, the same descriptor number on the same node counts once).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFiles {
    /// `nvidia0` → 23, `nvidiactl` → 2, `nvidia-uvm` → 4, `nvidia-caps/nvidia-cap1` → 1, on WSL `dxg`, graphics
    /// `dri/renderD128` (of NVIDIA cards only).
    pub nodes: BTreeMap<String, u32>,
}

impl DeviceFiles {
    /// Open files on `/dev/nvidiaN`.
    pub fn on_minor(&self, minor: u32) -> u32 {
        self.nodes.get(&format!("nvidia{minor}")).copied().unwrap_or(0)
    }

    /// The minor numbers of the GPUs that it has files on, each with how many.
    pub fn on_gpus(&self) -> impl Iterator<Item = (u32, u32)> {
        let nodes = self.nodes.iter().filter(|(_, count)| **count > 0);
        nodes.filter_map(|(node, count)| Some((node.strip_prefix("nvidia")?.parse().ok()?, *count)))
    }

    /// Open files on the control node: alone it can hold memory of any GPU (an exported allocation handle).
    pub fn control(&self) -> u32 {
        self.nodes.get("nvidiactl").copied().unwrap_or(0)
    }

    /// Open files on the unified memory node, without which there is no CUDA context.
    pub fn uvm(&self) -> u32 {
        self.nodes.get("nvidia-uvm").copied().unwrap_or(0)
    }

    /// Whether any node is open that can hold memory: a GPU, the control node, unified memory, WSL's `dxg`, or
    /// an NVIDIA card's graphics node.
    /// Capability files (`nvidia-caps/…`), the profiler's and the display's node alone hold nothing.
    pub fn can_hold_memory(&self) -> bool {
        self.total() > 0
    }

    /// Whether a plain NVML client of this driver, such as a monitor, has as many: it may only watch. `client`: the files
    /// of one, where they are known.
    pub fn may_only_watch(&self, client: Option<&Self>) -> bool {
        // Our helper may have opened fewer GPUs than a monitor that watches all of them.
        let most = client.map_or(3, |client| client.on_gpus().map(|(_, count)| count).max().unwrap_or(0));
        let of_client = |node: &str| client.map_or(u32::MAX, |client| client.nodes.get(node).copied().unwrap_or(0));
        self.on_gpus().next().is_some()
            && self.on_gpus().all(|(_, count)| count <= most)
            && (client.is_some() || self.uvm() <= 2)
            && self.nodes.iter().all(|(node, count)| {
                let of_a_gpu = node.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
                of_a_gpu || node.starts_with("nvidia-caps") || *count <= of_client(node)
            })
    }

    /// All files that can hold memory.
    pub fn total(&self) -> u32 {
        let holds = |node: &str| {
            matches!(node, "nvidiactl" | "nvidia-uvm" | "dxg")
                || node.starts_with("dri/")
                || node.strip_prefix("nvidia").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        self.nodes.iter().filter(|(node, _)| holds(node)).map(|(_, count)| *count).fold(0, u32::saturating_add)
    }
}

/// One step up the parent chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Who.
    pub id: ProcId,
    /// Its name.
    pub comm: String,
    /// Its real user.
    pub uid: Option<u32>,
    /// Its session. `None`: a look of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<i32>,
}

/// A process with an NVIDIA file open, or one that NVML lists, or one of the checked command's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Who.
    pub id: ProcId,
    /// Parent PID; 0 for none that is visible.
    pub ppid: u32,
    /// Parent, grandparent … up to and including PID 1, as far as it could be read.
    pub ancestors: Vec<Ancestor>,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// Real user id.
    pub uid: Option<u32>,
    /// User name of `uid`, where it has one.
    pub user: Option<String>,
    /// The kernel's short name (15 bytes, can be changed by the process).
    pub comm: String,
    /// The file name of the program that it runs (`/proc/PID/exe`), which it cannot choose; `None`: may not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The command line; empty for a process that has none any more (a zombie), never had one, or whose memory could
    /// not be read in time.
    pub argv: super::Argv,
    /// State of the main thread.
    pub state: ProcessState,
    /// Number of threads, the main thread included.
    pub threads: u32,
    /// Seconds since it started.
    pub age_seconds: Option<u64>,
    /// CPU time used so far by the whole process, in clock ticks.
    pub cpu_ticks: u64,
    /// Its PIDs from the outermost visible PID namespace to its own; one number where they are the same.
    pub nspid: Vec<u32>,
    /// Inode of its PID namespace.
    pub pid_namespace: Option<u64>,
    /// Its open NVIDIA files over all threads; `None` if we may not read them.
    pub files: Option<DeviceFiles>,
    /// The main thread is gone while other threads live: its own file table reads as empty.
    pub leader_gone: bool,
    /// SIGKILL is pending, the process is exiting (flag PF_EXITING), or it writes its core: it is on its way out.
    pub dying: bool,
    /// It has crashed and the kernel writes its memory to a core file (`CoreDumping`), whatever its state letter says.
    #[serde(default)]
    pub core_dumping: bool,
    /// Kernel function of the main thread's sleep, where readable and not `0`.
    pub wait_channel: Option<String>,
    /// The value of `GPURESID_RUN_ID` in its environment. Absence proves nothing.
    pub marker: Option<String>,
    /// Whether the run that the marker names last goes on: its gpuresid lives, or its command does. `None` without a
    /// readable marker of a checked run, and where that cannot be told.
    #[serde(default)]
    pub marker_alive: Option<bool>,
    /// Its command line, environment and mappings could not be read: what they would say is unknown, and not absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_unread: bool,
    /// The path of its cgroup (v2 line, else the first v1 line that says more than `/`).
    pub cgroup: Option<String>,
    /// Mappings that prove sharing of GPU memory between processes: `/dev/shm/cuda.shm…`, `/dev/shm/torch_…`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_mappings: Vec<String>,
    /// What it waits for inside the kernel, if a thread of it did not come out of there for as long as we watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// SIGKILL was sent and not yet acted upon.
    #[serde(default)]
    pub kill_pending: bool,
    /// What a SIGTERM does to it; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_sigterm: Option<OnSigterm>,
    /// SIGTERM was sent, and no thread has taken it.
    #[serde(default)]
    pub sigterm_pending: bool,
    /// Who traces it (a debugger), if anybody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracer: Option<Ancestor>,
    /// The few variables of its environment that tell where it belongs (`SLURM_JOB_ID`, `LOCAL_RANK` …). Absence proves
    /// nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Its sockets; `None`: not looked at, or may not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Sockets>,
    /// Whether a step of the Slurm job that started it still runs on this machine. `None`: it is of no job, or that
    /// cannot be seen from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_step_alive: Option<bool>,
    /// Whether it is the main process of the service in whose control group it is. `None`: it is in none, or that cannot
    /// be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leads_unit: Option<bool>,
}

/// Open sockets of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// How many; those of Unix where the kernel tells them apart.
    pub open: u32,
    /// Files that stand in them, sent and not yet received (`scm_fds`); `None`: the kernel does not tell.
    pub files_in_flight: Option<u64>,
}

/// What a process does with a SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSigterm {
    /// It ends of it.
    Ends,
    /// It has a handler, which most often ends it.
    Handles,
    /// It ignores it.
    Ignores,
    /// All of its threads block it: it stays pending.
    Blocks,
}

/// A thread in an uninterruptible sleep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedThread {
    /// Its number.
    pub tid: u32,
    /// The kernel function it sleeps in.
    pub wait_channel: Option<String>,
    /// The file it waits for and that file's file system, or the kernel module it is in, where it can be told.
    pub waits_for: Option<String>,
}

/// A process with threads that do not come out of the kernel: no signal reaches these, SIGKILL included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// How long we watched without any of `threads` running, in milliseconds.
    pub watched_ms: u64,
    /// The threads that did not run meanwhile (the first 16).
    pub threads: Vec<BlockedThread>,
    /// Number of threads in each state, all threads of the process.
    pub states: Vec<(ProcessState, u32)>,
}

impl Process {
    /// The command line for people, or the short name in brackets where there is none.
    pub fn command_line(&self) -> String {
        if self.argv.is_empty() { format!("[{}]", self.comm) } else { self.argv.shown().join(" ") }
    }

    /// It has ended, and nobody has waited for it yet. One whose main thread alone is gone lives.
    pub fn is_zombie(&self) -> bool {
        self.state == ProcessState::Zombie && !self.leader_gone
    }

    /// Whether it has a file open that can hold memory. `None`: we may not look.
    pub fn can_hold_memory(&self) -> Option<bool> {
        self.files.as_ref().map(DeviceFiles::can_hold_memory)
    }
}

/// A process whose open files we may not read, so that nobody knows whether it holds memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uninspected {
    /// Who.
    pub id: ProcId,
    /// Its real user.
    pub uid: Option<u32>,
    /// Its name.
    pub comm: String,
}
