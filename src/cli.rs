//! What can be typed: clap types and help, nothing else. What the values mean is in [`crate::commands`]; how a single
//! value is read is in [`values`]; what a wrong command line says is in [`usage`].

mod acting;
mod help;
pub mod usage;
mod values;

pub(crate) use help::{overview, tool};
pub(crate) use values::name_of as cause_name;

pub use acting::{Except, GenArgs, ReclaimArgs, WaitArgs};

use crate::{
    demo::Case,
    exit,
    model::{Bytes, Cause, Limit, Scope},
    report::ReportTarget,
};
use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::{ffi::OsString, path::PathBuf, time::Duration};

const EXAMPLES: &str = "\
Examples:
  gpuresid                                  who holds GPU memory now, and why
  gpuresid check -- python train.py         run it, then say what did not come back
  gpuresid snapshot -o before.json          remember how it is ...
  gpuresid diff before.json                 ... and compare later";

const CHECK_EXAMPLES: &str = "\
Examples:
  gpuresid check -- python train.py
  gpuresid check --report result.json --max-residue 100MiB -- python train.py
  gpuresid check --torch -- python train.py
  gpuresid check --scope new -- docker run --rm --gpus all my-image
  gpuresid check -i 0 --timeout 2h --warn-only -- make gpu-tests";

const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  gpuresid snapshot -o before.json
  eval \"$(gpuresid snapshot -o before.json --env)\"";

fn with_exit_codes(before: &str, command: Option<&str>) -> String {
    format!("{before}\n\n{}", exit::help(command))
}

/// Says who still holds GPU memory after a program ended, why, and how to get it back.
#[derive(Debug, Parser)]
#[command(
    name = "gpuresid",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = with_exit_codes(&format!("{EXAMPLES}\n\n{}", help::topic_names()), None),
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where to look.
    #[command(flatten)]
    pub global: Global,
    /// Options of `status`, which is what happens without a command.
    #[command(flatten)]
    status: StatusArgs,
}

impl Cli {
    /// Reads a command line, which begins with the program's name.
    ///
    /// # Errors
    /// If it is wrong, or asks for help or for the version.
    pub fn read(line: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut tool = help::tool();
        let matches = tool.try_get_matches_from_mut(help::before_command(line, &tool))?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut tool))
    }

    /// The command; `status` if none is named.
    ///
    /// # Errors
    /// If options of `status` stand before another command.
    pub fn command(self) -> Result<(Global, Command), clap::Error> {
        let Self { command, global, status } = self;
        let command = match command {
            None => Command::Status(status),
            Some(Command::Status(after)) => Command::Status(status.or(after)),
            Some(_) if status != StatusArgs::default() => {
                return Err(clap::Error::raw(
                    clap::error::ErrorKind::ArgumentConflict,
                    "--json, --watch, --verbose, --bar1, --fail-on, --expect and --mine are options of `status` when they stand before the \
                     command; write them after it\n",
                ));
            }
            Some(other) => other,
        };
        Ok((global, command))
    }
}

/// Options of all commands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Where to look")]
pub struct Global {
    /// Only these GPUs: number, start of a GPU-/MIG- UUID, PCI id, or all [default: all]
    #[arg(
        long,
        short = 'i',
        global = true,
        value_name = "GPU",
        value_delimiter = ',',
        env = "GPURESID_GPU",
        hide_env_values = true
    )]
    pub gpu: Vec<String>,
    /// Only the GPUs of CUDA_VISIBLE_DEVICES
    #[arg(long, global = true, env = "GPURESID_VISIBLE", hide_env_values = true, value_parser = values::switch, conflicts_with = "gpu")]
    pub visible: bool,
    /// Longest time for one answer of the driver [default: 10s, and 60s for opening it]
    #[arg(long, global = true, value_name = "DUR", value_parser = values::some_time, env = "GPURESID_NVML_TIMEOUT", hide_env_values = true)]
    pub nvml_timeout: Option<Duration>,
    /// NVIDIA's management library, where it is not in a usual place
    #[arg(long, global = true, value_name = "PATH")]
    pub nvml_lib: Option<PathBuf>,
    /// The /proc to look into, such as a host's that is mounted in a container
    #[arg(long, global = true, value_name = "PATH", default_value = "/proc")]
    pub procfs: PathBuf,
    /// Where the NVIDIA device files are
    #[arg(long, global = true, value_name = "PATH", default_value = "/dev")]
    pub dev: PathBuf,
    /// Where the records of checks are kept: for tests
    #[arg(long, global = true, value_name = "PATH", default_value = "/run/gpuresid/records", hide = true)]
    pub records: PathBuf,
    /// Hide arguments, users and host names in everything that is written
    #[arg(long, global = true, env = "GPURESID_REDACT", hide_env_values = true, value_parser = values::switch)]
    pub redact: bool,
    /// Colour: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        env = "GPURESID_COLOR",
        hide_env_values = true
    )]
    pub color: Color,
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show who holds GPU memory now, and why (this is the default)
    #[command(after_help = exit::help(Some("status")))]
    Status(StatusArgs),
    /// Run a command, then say which GPU memory did not come back
    #[command(
        override_usage = "gpuresid check [OPTIONS] -- COMMAND [ARGUMENT]...",
        after_help = with_exit_codes(CHECK_EXAMPLES, Some("check"))
    )]
    Check(CheckArgs),
    /// Remember how it is now, for `diff`
    #[command(after_help = with_exit_codes(SNAPSHOT_EXAMPLES, Some("snapshot")))]
    Snapshot(SnapshotArgs),
    /// Say which GPU memory is held that was not held in a snapshot
    #[command(after_help = exit::help(Some("diff")))]
    Diff(DiffArgs),
    /// Check driver, permissions, environment and PyTorch, and say how to mend what is wrong
    #[command(after_help = exit::help(Some("doctor")))]
    Doctor(DoctorArgs),
    /// Show what `check` finds, with real processes on a simulated GPU: works on any machine
    #[command(after_help = with_exit_codes(&help::cases(), Some("demo")))]
    Demo(DemoArgs),
    /// Show which processes to end to get GPU memory back, and with --yes end them
    #[command(
        override_usage = "gpuresid reclaim <--orphans|--report FILE|--pid PID|...> [OPTIONS]",
        after_help = with_exit_codes(acting::RECLAIM_EXAMPLES, Some("reclaim"))
    )]
    Reclaim(ReclaimArgs),
    /// Wait until GPU memory is free
    #[command(
        override_usage = "gpuresid wait <--below SIZE|--free SIZE|--to SNAPSHOT> [OPTIONS]",
        after_help = with_exit_codes(acting::WAIT_EXAMPLES, Some("wait"))
    )]
    Wait(WaitArgs),
    /// Print a ready file for another system
    #[command(after_help = with_exit_codes(&help::recipes(), Some("gen")))]
    Gen(GenArgs),
    /// Print all commands and topics, the help of a command, or a topic of the guide
    #[command(after_help = with_exit_codes(&help::topics(), Some("help")))]
    Help(HelpArgs),
}

/// `help`.
#[derive(Debug, Clone, Args)]
pub struct HelpArgs {
    /// A command, or a topic from the list below
    #[arg(value_name = "COMMAND|TOPIC")]
    pub topic: Option<String>,
}

/// What `status --fail-on` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailOn {
    /// A process that holds memory for this cause.
    Cause(Cause),
    /// A GPU that cannot be used.
    Lost,
    /// Somebody else.
    Foreign,
}

/// Whose memory is not somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mine {
    /// The user's
    User,
    /// The Slurm job's
    Job,
}

/// `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Status")]
pub struct StatusArgs {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Look again every S seconds until Ctrl-C [default: 2s]
    #[arg(
        long,
        value_name = "S",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = values::some_time,
        conflicts_with = "fail_on"
    )]
    pub watch: Option<Duration>,
    /// Show all: each process with the evidence for its cause, those that have a GPU open without known memory too
    /// (monitors, ranks with a GPU they do not use), and how busy the GPUs are
    #[arg(long, short, visible_alias = "all")]
    pub verbose: bool,
    /// Read BAR1 memory too, the window through which the CPU and other devices reach GPU memory
    #[arg(long)]
    pub bar1: bool,
    /// Exit with 121 if one of these is so: a process holds memory for this cause (orphan, half_dead ...), lost (a GPU cannot
    /// be read, must be reset, or is not there), foreign (somebody else holds memory, or nobody who can be seen)
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = values::rule)]
    pub fail_on: Vec<FailOn>,
    /// For --fail-on lost: so many GPUs must be there, counting those that --gpu leaves out
    #[arg(long, value_name = "N", requires = "fail_on", value_parser = values::gpus)]
    pub expect: Option<u32>,
    /// For --fail-on foreign: who does not count as somebody else: this user (with sudo: who called it) or this Slurm job
    /// [default: user]
    #[arg(long, value_name = "user|job", requires = "fail_on", hide_possible_values = true)]
    pub mine: Option<Mine>,
}

impl StatusArgs {
    fn or(self, after: Self) -> Self {
        Self {
            json: self.json || after.json,
            verbose: self.verbose || after.verbose,
            bar1: self.bar1 || after.bar1,
            watch: after.watch.or(self.watch),
            fail_on: [self.fail_on, after.fail_on].concat(),
            expect: after.expect.or(self.expect),
            mine: after.mine.or(self.mine),
        }
    }
}

/// What counts as residue.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Memory that may stay: 100MiB, or 1% of the GPU
    #[arg(
        long,
        value_name = "SIZE|PCT",
        default_value = "16MiB",
        env = "GPURESID_MAX_RESIDUE",
        hide_env_values = true
    )]
    pub max_residue: Limit,
    /// Growth of a neighbour, or of no known process, that is not charged: below this it is noise and not mentioned
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "128MiB",
        env = "GPURESID_MAX_UNATTRIBUTED",
        hide_env_values = true
    )]
    pub max_unattributed: Bytes,
    /// Memory that may stay, in percent of the most that the command used. Beside --max-residue: it is residue if either
    /// is exceeded
    #[arg(long, value_name = "PCT", value_parser = values::percent, env = "GPURESID_MAX_RESIDUE_RATE", hide_env_values = true)]
    pub max_residue_rate: Option<f64>,
    /// Report, but exit with 0 instead of 121 and 122
    #[arg(long, env = "GPURESID_WARN_ONLY", hide_env_values = true, value_parser = values::switch)]
    pub warn_only: bool,
    /// An inconclusive answer is a fail (exit with 122) or a pass (exit with 0)
    #[arg(
        long,
        value_name = "fail|pass",
        default_value = "fail",
        hide_possible_values = true,
        env = "GPURESID_INCONCLUSIVE",
        hide_env_values = true
    )]
    pub inconclusive: Inconclusive,
}

/// What an inconclusive answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Inconclusive {
    /// Exit with 122
    Fail,
    /// Exit with 0
    Pass,
}

/// Whom to charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// Processes that the command started
    Run,
    /// Every process that is new since before: for docker run, srun, kubectl
    New,
    /// All growth of the GPU: for a GPU that nobody else uses
    Device,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Run => Self::Run,
            ScopeArg::New => Self::New,
            ScopeArg::Device => Self::Device,
        }
    }
}

/// `check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// The command and its arguments, best after `--`
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<OsString>,
    /// Write a report to a file: .json by its ending, or FORMAT:PATH with the formats json and observation (repeatable)
    #[arg(long, value_name = "[FORMAT:]PATH")]
    pub report: Vec<ReportTarget>,
    /// Whom to charge: run (what the command started), new (every new process: for docker run, srun, kubectl) or device
    /// (all growth: for a GPU that nobody else uses)
    #[arg(long, default_value = "run", hide_possible_values = true, env = "GPURESID_SCOPE", hide_env_values = true)]
    pub scope: ScopeArg,
    /// Fail with 122 if the command used no GPU, as where all GPU tests were skipped
    #[arg(long, env = "GPURESID_REQUIRE_GPU", hide_env_values = true, value_parser = values::switch)]
    pub require_gpu: bool,
    /// End the command after this time, and exit with 124
    #[arg(long, value_name = "DUR", value_parser = values::some_time, env = "GPURESID_TIMEOUT", hide_env_values = true)]
    pub timeout: Option<Duration>,
    /// From SIGTERM to SIGKILL, where --timeout or --cleanup ends something
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = values::time, env = "GPURESID_GRACE", hide_env_values = true)]
    pub grace: Duration,
    /// After the verdict, end what the command left behind; the exit code still tells of it
    #[arg(long)]
    pub cleanup: bool,
    /// Let `reclaim --unattended` end what the command left behind; --cleanup lets it too
    #[arg(long)]
    pub leave: bool,
    /// Wait at most this long for memory to come back
    #[arg(long, value_name = "DUR", default_value = "120s", value_parser = values::time, env = "GPURESID_SETTLE", hide_env_values = true)]
    pub settle: Duration,
    /// Time between two looks while the command runs, with its unit
    #[arg(long, value_name = "DUR", default_value = "100ms", value_parser = values::short_time, env = "GPURESID_SAMPLE", hide_env_values = true)]
    pub sample: Duration,
    /// Ask PyTorch in the command's Python processes who refers to its tensors, and what is cache and context
    #[arg(long, env = "GPURESID_TORCH", hide_env_values = true, value_parser = values::switch)]
    pub torch: bool,
    /// Show all: each process with the evidence for its cause, also where all came back
    #[arg(long, short, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print nothing; the exit code and the reports say it
    #[arg(long, short, env = "GPURESID_QUIET", hide_env_values = true, value_parser = values::switch)]
    pub quiet: bool,
    /// What counts as residue.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// `snapshot`.
#[derive(Debug, Clone, Args)]
pub struct SnapshotArgs {
    /// Write it to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Read BAR1 memory too
    #[arg(long)]
    pub bar1: bool,
    /// Print a line for the shell that marks what is started from now on, by which `diff` knows it
    #[arg(long, requires = "output")]
    pub env: bool,
}

/// `diff`.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// The snapshot to compare with
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// A later snapshot [default: now]
    #[arg(value_name = "AFTER")]
    pub after: Option<PathBuf>,
    /// Whom to charge: run (what carries the marker of `snapshot --env`), new (every new process) or device (all growth)
    /// [default: run if somebody has the marker, else new]
    #[arg(long, hide_possible_values = true, env = "GPURESID_SCOPE", hide_env_values = true)]
    pub scope: Option<ScopeArg>,
    /// Show all: each process with the evidence for its cause, also where nothing is left
    #[arg(long, short)]
    pub verbose: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// What counts as residue.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// `doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// The Python whose PyTorch is looked at: an interpreter or an environment's directory [default: the first on PATH]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
    /// Exit with 1 on a warning too; what could not be looked at does not count
    #[arg(long)]
    pub strict: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// `demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// What to play [default: one after the other]
    #[arg(value_name = "CASE", hide_possible_values = true)]
    pub case: Option<Case>,
}
