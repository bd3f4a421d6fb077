//! Why a holder has its cause, and whose it is: what was seen, as values.

use super::{Bytes, Fact, Foreign, Named, OnSigterm, ProcessState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an earlier look came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beginning {
    /// The start of the command.
    Command,
    /// There is no command: the earlier of two snapshots.
    Snapshot,
}

/// What a thread waits for inside the kernel, as the name of the function there tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsOn {
    /// An NFS server.
    Nfs,
    /// A file system in user space.
    Fuse,
    /// Another file system over a network.
    NetworkFileSystem,
    /// The GPU's driver.
    NvidiaDriver,
    /// A file system that is frozen.
    FrozenFileSystem,
    /// A program that provides its memory page by page.
    Userfaultfd,
    /// Memory, at the limit of its control group.
    MemoryLimit,
    /// A disk.
    Disk,
    /// A child that has not yet called exec.
    Vfork,
}

/// Memory that is in use on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// How much.
    pub bytes: Bytes,
    /// The device, as it is called in sentences.
    pub device: String,
}

/// Something to be seen of a process that tells which well-known program it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "sign", content = "value", rename_all = "snake_case")]
pub enum SignSeen {
    /// Its short name begins so.
    Comm(String),
    /// The file name of its program.
    Program(String),
    /// Its command line begins so.
    Title(String),
    /// Its command line has this.
    Argument(String),
    /// A variable of its environment; with its value where that is the number of a rank.
    Variable(String, Option<u16>),
    /// Its parent's short name.
    Parent(String),
    /// It leads a session of its own.
    LeadsSession,
}

/// Who started a process that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Starter {
    /// This process.
    Process(Named),
    /// The command, or a process of it.
    Command(Named),
}

/// Whose memory it is that a process maps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Maker {
    /// This process was seen to have so much, and is gone.
    Seen(Named, Bytes),
    /// Who had this number is gone, or has left the GPU.
    Gone(u32),
}

/// One fact behind a cause or a lineage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is explained by its sentence, in report/say/evidence.rs")]
pub enum Evidence {
    // What it does, or cannot do.
    WritesCore,
    CoreKeepsSigterm,
    Leaving,
    Sigterm { does: OnSigterm, pending: bool },
    SigtermWaits,
    StuckInKernel { kill_pending: bool, dying: bool },
    ThreadStates { states: Vec<(ProcessState, u32)>, blocked: usize, watched_ms: u64 },
    ThreadWaits { tid: u32, channel: Option<Foreign>, on: Option<WaitsOn>, file: Option<Foreign> },
    Stopped,
    Traced { by: Option<Named> },
    Frozen,
    HalfDead { threads: u32 },
    // Which program it is.
    Signs { signs: Vec<SignSeen> },
    LooksLike { program: String, signs: Vec<SignSeen> },
    OwnerGone { program: String, owner: String, signs: Vec<SignSeen> },
    MpsDaemonAbove { pid: u32 },
    MpsClients { pids: Vec<u32> },
    // What it holds, and how.
    BareContext,
    BytesUnavailable,
    ForkedCopy { files: u32, ghosts: Vec<u32> },
    InheritedFiles { from: Option<Named>, kept: Vec<Amount> },
    ControlFileOnly { kept: Vec<Amount> },
    FilesInSockets { files: Option<u64>, kept: Vec<Amount> },
    MapsSharedMemory { file: Foreign, maker: Maker },
    Listed { bytes: Option<Bytes>, device: String },
    OneOfSeveral { candidates: usize, ghost: u32 },
    NotVisible,
    OnlyWatches,
    OpenedAndNotListed,
    KeepsMigBusy { devices: Vec<String> },
    OpenFiles { nodes: BTreeMap<String, u32> },
    FilesUnreadable,
    FromBeforeTheCommand,
    // Who started it.
    StarterRuns { by: Named },
    StarterEnded { by: Option<Starter> },
    AdoptedByGpuresid,
    RunEnded,
    SlurmStepEnded { job: Foreign },
    ParentIs { parent: Named },
    InUseBelow { parent: Named },
    AdoptedBy { parent: Named },
    ParentMayHaveAdopted { parent: Named },
    NoParentVisible,
    // Whose it is.
    IsCommand,
    CommandStillRuns,
    DescendsFromCommand,
    HasMarker,
    HasOtherMarker,
    WasThereBefore { beginning: Beginning },
    WasThereAndGrew { beginning: Beginning, more: Bytes },
    WasNotThereBefore { beginning: Beginning },
    UsesGpuSince { beginning: Beginning },
    NewInScope,
    NewBesideClient,
    NewWithoutMarker,
    NewAndNotBelow,
    OfOtherUser,
    OlderThanCommand,
    StartedByOlder { by: Named },
    OpensNoMoreThanMonitor,
    CopyOfOthers { pid: u32 },
    EntryWasThereBefore { beginning: Beginning },
    OwnerWasThereBefore { pid: u32, beginning: Beginning },
    EntryIsNew,
    OutOfSight,
    SeenAlive { pid: u32, why: Box<Evidence> },
    KeptByCommand,
    KeptByOthers,
    GoneUnidentified,
}

impl Fact for Evidence {
    const SENTENCES: &'static str = "why";
    const VALUES: &'static str = "evidence";
}

impl Evidence {
    /// The signs of a well-known program that it rests on.
    pub fn signs(&self) -> Option<&[SignSeen]> {
        match self {
            Self::Signs { signs } | Self::LooksLike { signs, .. } | Self::OwnerGone { signs, .. } => Some(signs),
            _ => None,
        }
    }
}

/// What has to answer before a process can go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cure {
    /// This file, or where it lies.
    File(Foreign),
    /// This.
    On(WaitsOn),
}
