//! What else a reader should know beside the holders, as values.

use super::{Bytes, Fact, Facts, Foreign, Named, Scope, SystemPages, Uuid};
use serde::{Deserialize, Serialize, Serializer};

/// What kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Processes of the command still run.
    StillRunning,
    /// Such a process keeps the output open that the report goes to.
    OutputKept,
    /// Memory that nobody is listed with and that cannot be charged.
    Unattributed,
    /// Somebody may be out of sight.
    OutOfSight,
    /// Memory seems to have moved to another process.
    Moved,
    /// Processes of others hold more than before.
    Grown,
    /// A process of the command uses a GPU that was not looked at.
    NotLookedAt,
    /// The command did its work through somebody else (docker, srun, kubectl).
    Client,
    /// Memory is on its way back.
    Draining,
    /// How the command died.
    Died,
    /// The command failed while a GPU had next to nothing left.
    OutOfMemory,
    /// The driver reported an error of the device.
    Xid,
    /// A number of NVML's list has been reused by an innocent process.
    ReusedPid,
    /// A server of the multi-process service keeps memory for its clients.
    MpsServer,
    /// A GPU is said to be busy while nobody holds memory on it.
    Utilization,
    /// The platform does not tell everything.
    Platform,
    /// Anything else that a reader should know.
    Note,
}

/// How the command came to its end, or did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Death {
    /// The time limit could not end it.
    CouldNotBeEnded {
        /// The command.
        pid: u32,
        /// What stands in the way, if that is known.
        because: Option<Obstacle>,
    },
    /// A signal ended it.
    Signal {
        /// Its number.
        number: i32,
        /// It left a core.
        core_dumped: bool,
    },
    /// It still runs.
    StillRuns,
}

/// Why a process cannot be ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// It waits in the kernel.
    InKernel,
    /// It is this user's, whom we may not signal.
    OfUser(Foreign),
    /// It is root's.
    OfRoot,
}

/// Somebody else who has more than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taker {
    /// Who.
    pub who: Named,
    /// How much more, or all that one has who is new.
    pub took: Bytes,
    /// It was there before.
    pub was_there: bool,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is explained by its sentence, in report/say/finding.rs")]
pub enum FindingData {
    NotStarted { why: String },
    Died { death: Option<Death>, oom_kills: Option<u64> },
    StillRunning { pids: Vec<u32>, holding: usize, open: usize, elsewhere: bool },
    NotLookedAt { pids: Vec<u32>, minors: Vec<u32> },
    OutputKept { pids: Vec<u32> },
    NearlyFull { peak: Bytes, usable: Bytes, own: Bytes },
    NotCharged { growth: Bytes, pages: SystemPages, compares: bool },
    MovedToOthers { amount: Bytes, shared: bool },
    OthersGrew { takers: Vec<Taker>, scope: Scope, compares: bool },
    MpsServer { pid: u32, held: Bytes, user: Option<Foreign>, quit: String },
    StillLeaving { amount: Bytes, processes: usize },
    StillComingBack { amount: Bytes, fell: Bytes },
    StillInUse { amount: Bytes },
    Unchanged { amount: Bytes },
    WorkedThroughOthers,
    DriverError { xid: u64, times: usize, placed: bool },
    ReusedPid { pid: u32, name: Foreign },
    OutOfSight { why: String },
    NewDevices { devices: Vec<String> },
    FewLooks { taken: usize },
    Unexplained { excess: Bytes, suspects: Vec<u32> },
    BusyAndEmpty { percent: u32 },
    MemoryNotTold { processes: usize },
    SharesNotTold { processes: usize },
}

impl FindingData {
    /// Which kind this is of.
    pub const fn kind(&self) -> FindingKind {
        match self {
            Self::NotStarted { .. } | Self::Died { .. } => FindingKind::Died,
            Self::StillRunning { .. } => FindingKind::StillRunning,
            Self::NotLookedAt { .. } => FindingKind::NotLookedAt,
            Self::OutputKept { .. } => FindingKind::OutputKept,
            Self::NearlyFull { .. } => FindingKind::OutOfMemory,
            Self::NotCharged { .. } | Self::StillInUse { .. } | Self::Unchanged { .. } | Self::Unexplained { .. } => {
                FindingKind::Unattributed
            }
            Self::MovedToOthers { .. } => FindingKind::Moved,
            Self::OthersGrew { .. } => FindingKind::Grown,
            Self::MpsServer { .. } => FindingKind::MpsServer,
            Self::StillLeaving { .. } | Self::StillComingBack { .. } => FindingKind::Draining,
            Self::WorkedThroughOthers => FindingKind::Client,
            Self::DriverError { .. } => FindingKind::Xid,
            Self::ReusedPid { .. } => FindingKind::ReusedPid,
            Self::OutOfSight { .. } => FindingKind::OutOfSight,
            Self::NewDevices { .. } | Self::FewLooks { .. } => FindingKind::Note,
            Self::BusyAndEmpty { .. } => FindingKind::Utilization,
            Self::MemoryNotTold { .. } | Self::SharesNotTold { .. } => FindingKind::Platform,
        }
    }
}

/// Memory on no list: what can be behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is explained by its sentence, in report/say/finding.rs")]
pub enum Possibility {
    Handle { pids: Vec<u32> },
    OpenAndNotListed { pids: Vec<u32> },
    Listed { pids: Vec<u32> },
    ListsUnread,
    SystemPages { pages: SystemPages },
    AnybodyUnread,
    Uninspected { who: Vec<Named> },
    OutOfSight { why: String },
    HandleOnItsWay,
    Driver,
}

impl Fact for Possibility {
    const SENTENCES: &'static str = "possible";
    const VALUES: &'static str = "possibilities";
}

impl Possibility {
    /// Whom it names.
    pub fn pids(&self) -> Vec<u32> {
        match self {
            Self::Handle { pids } | Self::OpenAndNotListed { pids } | Self::Listed { pids } => pids.clone(),
            Self::Uninspected { who } => who.iter().map(|one| one.pid).collect(),
            _ => Vec::new(),
        }
    }
}

/// Memory on no list: what cannot be behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is explained by its sentence, in report/say/finding.rs")]
pub enum Exclusion {
    NobodyUnlisted,
    NobodyListed,
    NoNumaNode,
    NobodyUninspected,
    NobodyOutOfSight,
}

impl Fact for Exclusion {
    const SENTENCES: &'static str = "excluded";
    const VALUES: &'static str = "exclusions";
}

/// Something worth saying beside the holders.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Finding {
    /// On which device, if on one.
    pub device_uuid: Option<Uuid>,
    /// How many bytes it is about, if about bytes.
    pub bytes: Option<Bytes>,
    /// What it is. Its sentence does not name the device.
    #[serde(flatten)]
    pub data: FindingData,
    /// What can still be behind it, the likeliest first.
    #[serde(flatten)]
    pub possible: Facts<Possibility>,
    /// What cannot be behind it.
    #[serde(flatten)]
    pub excluded: Facts<Exclusion>,
}

impl Finding {
    /// A finding without lists.
    pub fn new(device_uuid: Option<&Uuid>, bytes: Option<Bytes>, data: FindingData) -> Self {
        Self { device_uuid: device_uuid.cloned(), bytes, data, possible: Facts::default(), excluded: Facts::default() }
    }

    /// Which kind it is of.
    pub const fn kind(&self) -> FindingKind {
        self.data.kind()
    }

    /// One or two sentences, without the name of the device.
    pub fn text(&self) -> String {
        self.data.to_string()
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            kind: FindingKind,
            device_uuid: &'a Option<Uuid>,
            bytes: Option<Bytes>,
            text: String,
            #[serde(flatten)]
            possible: Option<&'a Facts<Possibility>>,
            #[serde(flatten)]
            excluded: Option<&'a Facts<Exclusion>>,
            #[serde(flatten)]
            data: &'a FindingData,
        }
        let Self { device_uuid, bytes, data, possible, excluded } = self;
        let possible = Some(possible).filter(|possible| !possible.is_empty());
        let excluded = Some(excluded).filter(|excluded| !excluded.is_empty());
        let (kind, text) = (self.kind(), self.text());
        Written { kind, device_uuid, bytes: *bytes, text, possible, excluded, data }.serialize(serializer)
    }
}
