//! One short file per subcommand: wiring and loops only.

pub mod check;
pub mod demo;
mod diff;
mod doctor;
mod r#gen;
mod help;
mod marker;
mod reclaim;
mod snapshot;
mod status;
mod stdout;
mod wait;

use crate::{
    cli::{Cli, Color, Command, Global, Inconclusive, LimitArgs, usage},
    exit::Ending,
    model::Limits,
    observe::{
        driver::{Extras, Source},
        proc::ProcOptions,
        select::{Selection, Visible},
        session::SessionOptions,
    },
    text,
};
use std::{io::Write, time::Duration};

/// Longest time for opening the driver, and for one look, where `--nvml-timeout` does not say.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Does what was typed.
///
/// # Errors
/// If gpuresid itself could not do it.
pub fn run(cli: Cli) -> anyhow::Result<Ending> {
    let (global, command) = cli.command().map_err(|error| usage::error(&error))?;
    let color = match global.color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    color.write_global();
    // A path can name a user.
    if !global.redact {
        text::program::learn();
    }
    match command {
        Command::Status(args) => status::run(&global, &args),
        Command::Check(args) => {
            let typed: Vec<_> = std::env::args_os().collect();
            if let Some(note) = check::misplaced(&args.command, &typed).filter(|_| !args.quiet) {
                let _ = writeln!(std::io::stderr(), "{note}");
            }
            check::run(&check::options(&global, args))
        }
        Command::Snapshot(args) => snapshot::run(&global, &args),
        Command::Demo(args) => demo::run(&global, &args),
        Command::Diff(args) => diff::run(&global, &args),
        Command::Doctor(args) => doctor::run(&global, args),
        Command::Reclaim(args) => reclaim::run(&global, &args),
        Command::Wait(args) => wait::run(&global, &args),
        Command::Gen(args) => r#gen::run(&global, &args),
        Command::Help(args) => help::run(&args),
    }
}

/// What to look at, as the global options say.
fn session_options(global: &Global) -> SessionOptions {
    SessionOptions {
        source: Source::Nvml { library: global.nvml_lib.clone() },
        proc: ProcOptions {
            procfs: global.procfs.clone(),
            dev: global.dev.clone(),
            hide_arguments: global.redact,
            ..ProcOptions::default()
        },
        selection: selection(global),
        open_timeout: global.nvml_timeout.unwrap_or(OPEN_TIMEOUT),
        look_timeout: global.nvml_timeout.unwrap_or(LOOK_TIMEOUT),
        extras: Extras::default(),
    }
}

fn selection(global: &Global) -> Selection {
    let is_set = std::env::var_os("GPURESID_GPU").is_some();
    let from = is_set.then(|| usage::variable_behind("gpu", std::env::args_os(), |name| std::env::var_os(name)));
    Selection { selectors: global.gpu.clone(), from: from.flatten(), visible: global.visible.then(Visible::from_env) }
}

/// A command line of ours to paste, its first word the plain name. Whoever came here by sudo needs it again.
fn to_paste(words: &[String]) -> Option<String> {
    let line = text::shell_line(words)?;
    let by_sudo = rustix::process::geteuid().is_root() && std::env::var_os("SUDO_UID").is_some();
    Some(if by_sudo { format!("sudo {line}") } else { line })
}

/// Whether an option of this name was typed: what stands in the environment is meant for all commands.
fn typed(name: &str) -> bool {
    usage::variable_behind(name, std::env::args_os(), |name| std::env::var_os(name)).is_none()
}

fn limits(args: &LimitArgs) -> Limits {
    Limits {
        max_residue: args.max_residue,
        max_unattributed: args.max_unattributed,
        max_residue_rate_percent: args.max_residue_rate,
        warn_only: args.warn_only,
        inconclusive_fails: args.inconclusive == Inconclusive::Fail,
        require_gpu: false,
    }
}

/// Tells the user why nothing happens yet.
fn driver_is_slow() {
    // A word on a terminal that is gone is not worth an error.
    let _ = writeln!(std::io::stderr(), "gpuresid: waiting for the NVIDIA driver to answer");
}
