//! What `reclaim` plans and does, and what `check --cleanup` ended.

use super::{Advice, BootId, Bytes, Cause, Gap, Held, Uuid};
use serde::{Deserialize, Serialize};

/// Why a process stands in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It would start a holder again; it goes first.
    Supervisor,
    /// It holds the memory.
    Holder,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOutcome {
    /// It has ended.
    Ended,
    /// It had ended before its signal was due.
    GoneBefore,
    /// It was signalled and lives.
    Lives,
    /// It was not signalled: `outcome_why` says why.
    Refused,
}

/// One process of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimStep {
    /// PID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// User name, or the number where it has none.
    pub user: Option<String>,
    /// Real user id.
    pub uid: u32,
    /// The command line.
    pub command: String,
    /// Why it stands here.
    pub role: Role,
    /// Why it holds memory, for a holder that the look named.
    pub cause: Option<Cause>,
    /// Why it may be ended, one sentence each.
    pub why: Vec<String>,
    /// The signals in order, without `SIG`; KILL only where it was allowed.
    pub signals: Vec<String>,
    /// What it should give back.
    pub gives_back: Vec<Held>,
    /// Whom it disturbs.
    pub disturbs: String,
    /// Who started it, lives, and is not in the plan: it may start it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarter: Option<Restarter>,
    /// What is known of its life, in a plan that was not carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<LifeSigns>,
    /// The signals that were sent.
    pub sent: Vec<String>,
    /// What became of it; `None` in a plan that was not carried out.
    pub outcome: Option<StepOutcome>,
    /// The reason of the outcome, where there is one.
    pub outcome_why: Option<String>,
}

impl ReclaimStep {
    /// It holds memory, and how much is known on no device.
    pub fn gives_an_unknown_amount(&self) -> bool {
        self.role == Role::Holder && self.gives_back.iter().all(|held| held.held_bytes.is_none())
    }
}

/// Whether a process works, and who needs it, as far as can be seen. `None` is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeSigns {
    /// How long it was watched.
    pub watched_ms: u64,
    /// The CPU time that it used meanwhile.
    pub cpu_ms: Option<u64>,
    /// How busy the GPUs are that it computes on, where nobody else is or may be on them, or they are idle.
    pub gpu_percent: Option<u32>,
    /// Its terminal, such as `pts/3`; empty: it has none.
    pub terminal: Option<String>,
    /// Living processes outside of the plan that read what it writes into a pipe, or write what it reads.
    pub pipes_with: Option<Vec<Talker>>,
    /// Everybody's open files could be read. Otherwise there may be more than `pipes_with`.
    #[serde(default)]
    pub all_seen: bool,
    /// The other ends of its TCP connections, but for those that are of the plan too.
    pub tcp_peers: Option<Vec<String>>,
}

/// A process at the other end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Talker {
    /// PID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The command line.
    pub command: String,
}

/// A living parent that may start a process again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarter {
    /// PID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The command line.
    pub command: String,
    /// The service whose main process it is: then it is ended through that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The command with which it is told to stop this process and not to start it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Its other children that run the same, which end with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alike: Vec<u32>,
    /// It keeps others too, which run something else: it is not to be ended for this one.
    #[serde(default)]
    pub keeps_others: bool,
}

impl Restarter {
    /// The command that keeps it from starting this process of its again; `None`: it has its own way.
    pub fn end_first(&self, pid: u32) -> Option<String> {
        match (&self.stop, &self.unit) {
            (Some(stop), _) => Some(stop.clone()),
            (None, Some(_)) => None,
            (None, None) if self.keeps_others => None,
            (None, None) => {
                let alike: String = self.alike.iter().map(|pid| format!(" --pid {pid}")).collect();
                Some(format!("gpuresid reclaim --pid {pid}{alike} --pid {}", self.pid))
            }
        }
    }
}

/// A process that is not touched, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// PID.
    pub pid: u32,
    /// The command line; `None` for one that is gone.
    pub command: Option<String>,
    /// Why.
    pub why: String,
}

/// One device of a reclaim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimDevice {
    /// NVML's index.
    pub index: u32,
    /// UUID.
    pub uuid: Uuid,
    /// Present for a MIG instance: which part of which GPU it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<super::MigIdentity>,
    /// What the plan should give back; `None`: it is not known of each of its processes how much it has there.
    pub expected_bytes: Option<Bytes>,
    /// Used before.
    pub used_before_bytes: Option<Bytes>,
    /// Used after; `None` in a plan that was not carried out, or where it could not be read.
    pub used_after_bytes: Option<Bytes>,
    /// What came back of the memory of the plan's holders; `None` as above.
    pub came_back_bytes: Option<Bytes>,
    /// What did not; `None` as above.
    pub remaining_bytes: Option<Bytes>,
}

impl ReclaimDevice {
    /// Its name in tables and sentences.
    pub fn label(&self) -> String {
        super::device::label(self.index, &self.uuid, self.mig.as_ref())
    }
}

/// The result of `reclaim`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// [`super::schema::RECLAIM`].
    pub schema: String,
    /// Version of gpuresid.
    pub tool_version: String,
    /// When the plan was made, RFC 3339.
    pub taken_at: String,
    /// The boot.
    pub boot_id: BootId,
    /// Host name.
    pub host: Option<String>,
    /// It was carried out (`--yes`).
    pub carried_out: bool,
    /// The exit code.
    pub exit_code: i32,
    /// Who is ended, in order.
    pub steps: Vec<ReclaimStep>,
    /// Who is not, and why.
    pub left_alone: Vec<LeftAlone>,
    /// The devices.
    pub devices: Vec<ReclaimDevice>,
    /// Processes that somebody has started in the place of those that were ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub started_again: Vec<u32>,
    /// What to do next.
    pub advice: Vec<Advice>,
    /// What could not be seen.
    pub gaps: Vec<Gap>,
}

/// A process that `check --cleanup` ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// PID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The command line.
    pub command: String,
    /// The signals that were sent, without `SIG`.
    pub sent: Vec<String>,
}

/// Used memory of a device around the clean-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanedDevice {
    /// UUID.
    pub uuid: Uuid,
    /// Used before.
    pub used_before_bytes: Option<Bytes>,
    /// Used after.
    pub used_after_bytes: Option<Bytes>,
}

impl CleanedDevice {
    /// How much less is used; `None`: not known.
    pub fn came_back(&self) -> Option<Bytes> {
        Some(self.used_before_bytes?.saturating_sub(self.used_after_bytes?))
    }
}

/// What `check --cleanup` did after the verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cleanup {
    /// Who was signalled, and was seen to end.
    pub ended: Vec<Ended>,
    /// Who still runs, and why.
    pub left_alone: Vec<LeftAlone>,
    /// The proof that nothing of the run is alive any more.
    pub nothing_lives: bool,
    /// How long it took.
    pub seconds: f64,
    /// The devices.
    pub devices: Vec<CleanedDevice>,
}
