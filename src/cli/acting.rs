//! The commands that act or wait: `reclaim`, `wait` and `gen`. Apart, so that no file of options grows too long to read.

use super::values;
use crate::model::{Bytes, Limit};
use clap::{
    ArgGroup, Args,
    builder::{PossibleValue, PossibleValuesParser},
};
use std::{path::PathBuf, time::Duration};

pub(super) const RECLAIM_EXAMPLES: &str = "\
Without --yes nothing is ended: you see the plan, with each process, the signals it would get, and the memory that \
should come back.

Examples:
  Your processes that seem left over:
    gpuresid reclaim --orphans
  What a checked command left behind:
    gpuresid reclaim --report result.json --yes
  One process, with SIGKILL if SIGTERM does not end it:
    gpuresid reclaim --pid 4711 --force --yes";

pub(super) const WAIT_EXAMPLES: &str = "\
Examples:
  Until every GPU has at most that much in use:
    gpuresid wait --below 500MiB
  Until one GPU has that much free; its UUID is printed:
    gpuresid wait --free 20GiB --any
  Until as little is in use as in a snapshot, leaving aside our own parents:
    gpuresid wait --to before.json --except ancestors";

/// `reclaim`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("whom").required(true).multiple(false).args(["report", "pid", "orphans", "job", "ci", "unattended"]))]
pub struct ReclaimArgs {
    /// End what a checked command left behind, by the JSON report of the check
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// End these processes
    #[arg(long, value_name = "PID", num_args = 1.., value_delimiter = ',', value_parser = values::pid)]
    pub pid: Vec<u32>,
    /// End your processes that seem left over: their launcher is gone, and a sign says that their run has ended
    #[arg(long)]
    pub orphans: bool,
    /// End the processes of this Slurm job, as its epilog does
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// End the processes of the CI job that this runs in, as its runner's job-completed hook does
    #[arg(long)]
    pub ci: bool,
    /// End what is left of checked runs that are over and whose user gave leave (check --leave, --cleanup): for timers
    #[arg(long)]
    pub unattended: bool,
    /// With --unattended, the site's policy: end also what has been idle for so long (its launcher gone, no terminal, no CPU
    /// time and no work on its GPU between the looks)
    #[arg(long, value_name = "DUR", value_parser = values::time, conflicts_with_all = ["report", "pid", "orphans", "job", "ci"])]
    pub idle: Option<Duration>,
    /// With --orphans: only processes that were started at least this long ago
    #[arg(long, value_name = "DUR", value_parser = values::time, conflicts_with_all = ["report", "pid", "job", "ci", "unattended"])]
    pub older_than: Option<Duration>,
    /// Carry the plan out; without it nothing is ended
    #[arg(long)]
    pub yes: bool,
    /// Send SIGKILL to processes that SIGTERM does not end
    #[arg(long)]
    pub force: bool,
    /// How long a process may take to end after SIGTERM
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = values::time, env = "GPURESID_GRACE", hide_env_values = true)]
    pub grace: Duration,
    /// Wait at most this long for the memory to come back
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = values::time, env = "GPURESID_SETTLE", hide_env_values = true)]
    pub settle: Duration,
    /// End processes of other users too
    #[arg(long)]
    pub all_users: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// `wait`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(false).args(["below", "free", "to"]))]
pub struct WaitArgs {
    /// Wait until no more than this is in use: 500MiB, or 3% of the GPU
    #[arg(long, value_name = "SIZE|PCT")]
    pub below: Option<Limit>,
    /// Wait until this much is free
    #[arg(long, value_name = "SIZE", conflicts_with = "except")]
    pub free: Option<Bytes>,
    /// Wait until no more is in use than in this snapshot
    #[arg(long, value_name = "SNAPSHOT")]
    pub to: Option<PathBuf>,
    /// One GPU is enough; its UUID is printed
    #[arg(long)]
    pub any: bool,
    /// Give up after this time, and exit with 124
    #[arg(long, value_name = "DUR", default_value = "120s", value_parser = values::time, env = "GPURESID_WAIT_TIMEOUT", hide_env_values = true)]
    pub timeout: Duration,
    /// Do not wait for the memory of this process, or with `ancestors` of our own parent processes (repeatable)
    #[arg(long, value_name = "ancestors|PID", value_parser = values::except)]
    pub except: Vec<Except>,
}

/// Whose memory is not waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Except {
    /// The processes that gpuresid runs below.
    Ancestors,
    /// This one.
    Pid(u32),
}

/// `gen`.
#[derive(Debug, Clone, Args)]
pub struct GenArgs {
    /// What to print
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(crate::r#gen::RECIPES.iter().map(|r| PossibleValue::new(r.name))), hide_possible_values = true)]
    pub name: String,
    /// Of systemd-timer: end what may be ended, instead of showing it in the journal
    #[arg(long)]
    pub act: bool,
    /// Of systemd-timer: the site's policy, as of `reclaim --unattended`
    #[arg(long, value_name = "DUR", value_parser = values::time)]
    pub idle: Option<Duration>,
    /// Write the files into this directory instead of printing them
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}
