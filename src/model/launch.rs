//! The checked command: what was started, how it ended, and what we asked of it.

use super::{Bytes, Limit, ProcId, RunTree};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Whom to charge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Descendants of the command.
    #[default]
    Run,
    /// Every holder that was absent before: for work that a daemon does for the command (docker, srun, kubectl).
    New,
    /// All growth of the device: for a GPU that nobody else uses.
    Device,
}

/// The limits of a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Charged residue above this is residue.
    pub max_residue: Limit,
    /// Unaccounted growth that cannot be charged is noise below this.
    pub max_unattributed: Bytes,
    /// Residue above this percentage (0–100) of the command's peak is residue.
    pub max_residue_rate_percent: Option<f64>,
    /// Turn 121 and 122 into 0.
    pub warn_only: bool,
    /// An inconclusive verdict counts as a failure (122).
    pub inconclusive_fails: bool,
    /// A command that used no GPU is no success.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_gpu: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_residue: Limit::Bytes(Bytes::mib(16)),
            max_unattributed: Bytes::mib(128),
            max_residue_rate_percent: None,
            warn_only: false,
            inconclusive_fails: true,
            require_gpu: false,
        }
    }
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled {
        /// Signal number.
        signal: i32,
        /// It left a core dump.
        core_dumped: bool,
    },
}

/// Why settling ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleEnd {
    /// Nothing of the run is alive and nothing chargeable is left.
    AllGone,
    /// Own processes live and did not change for the quiet time (12 s).
    Unchanged,
    /// `--settle` ran out.
    Cap,
    /// The user asked for the report now.
    Interrupted,
    /// The driver could not be read any more.
    Blind,
}

/// The command as it was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments.
    pub argv: super::Argv,
    /// The process we started.
    pub id: ProcId,
    /// Milliseconds since the observation began.
    pub started_ms: u64,
    /// When it ended; `None` if it still runs (we were told to report before it ended).
    pub ended_ms: Option<u64>,
    /// How it ended.
    pub end: Option<End>,
    /// `--timeout` ended it, or tried to.
    pub timed_out: bool,
    /// The time limit in milliseconds, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A file that the run left in shared memory (`/dev/shm`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Where it is, safe to show.
    pub path: String,
    /// Main memory that it takes.
    pub bytes: Bytes,
    /// Whose it is.
    pub uid: u32,
    /// `true`: nobody maps it or has it open. `None`: nobody that we may inspect does, and not everybody could be
    /// inspected.
    pub unused: Option<bool>,
    /// The command that removes it. gpuresid never does.
    pub remove: String,
}

impl Launch {
    /// The processes of the run, by descent; nobody's where there was no command (a `diff`).
    pub fn tree(&self) -> Option<RunTree> {
        Some(RunTree { root: self.root, command: Some(self.command.as_ref()?.id) })
    }
}

/// The run around the command. `None` fields of an [`super::Observation`] without a command (a `diff`) say so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The marker's value for this run.
    pub run_id: String,
    /// Whom to charge.
    pub scope: Scope,
    /// The command; `None` for a comparison of two snapshots.
    pub command: Option<Command>,
    /// The process below which every survivor of the run stands: gpuresid itself, the subreaper. `None` where there
    /// was none.
    pub root: Option<ProcId>,
    /// Others' orphans may come to stand below it too: it had children before the command, or is the first process of a
    /// PID namespace that others may enter. Then standing there alone proves nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub company: bool,
    /// Real user ids that processes of the run had.
    pub own_uids: BTreeSet<u32>,
    /// Proof that nothing of the run is alive: `waitid(P_ALL)` says ECHILD (or as PID 1 no child but our own helpers).
    /// `None` where the question makes no sense.
    pub all_gone: Option<bool>,
    /// Milliseconds from the end of the command to the verdict.
    pub settled_ms: Option<u64>,
    /// Why settling ended.
    pub settle_end: Option<SettleEnd>,
    /// Descendants seen alive at the end, with or without GPU memory.
    pub survivors: Vec<ProcId>,
    /// Those of them that keep our output open, where it is a pipe: whatever reads it waits for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_kept_by: Vec<ProcId>,
    /// The kernel's OOM killer ended a process of the run's cgroup (growth of `oom_kill` in `memory.events`). `None`:
    /// could not be read.
    pub oom_kills: Option<u64>,
    /// What it left in shared memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// The file of the JSON report that was asked for, quoted for a shell: `reclaim --report` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_file: Option<String>,
}
