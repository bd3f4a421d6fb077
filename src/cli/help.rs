//! Help as people ask for it: `help check`, `check --help`, `--help check`; and of each command only the options that do
//! something there. Apart from the declarations, because options of all commands are declared once.

use super::Cli;
use crate::{demo::Case, r#gen::RECIPES};
use clap::{Command, CommandFactory, ValueEnum};
use std::ffi::OsString;

/// Commands that look at nothing on this machine, and the options of all commands that they use.
const LOOK_AT_NOTHING: [(&str, &[&str]); 2] = [("demo", &["color"]), ("gen", &["gpu"])];

/// What can be typed, with the help that fits each command.
pub(super) fn tool() -> Command {
    let mut tool = <Cli as CommandFactory>::command();
    let common: Vec<_> = tool.get_arguments().filter(|a| a.is_global_set()).map(|a| a.get_id().clone()).collect();
    // Only then each command has the options of all commands.
    tool.build();
    tool.mut_subcommands(|command| {
        if command.get_name() == "help" {
            return command.about("Print this, or the help of a command");
        }
        let Some((_, used)) = LOOK_AT_NOTHING.iter().find(|(name, _)| *name == command.get_name()) else {
            return command;
        };
        command.mut_args(|arg| {
            let idle = common.contains(arg.get_id()) && !used.contains(&arg.get_id().as_str());
            arg.hide(idle)
        })
    })
}

/// `gpuresid --help check` asks for the help of `check`.
pub(super) fn before_command(mut line: Vec<OsString>, tool: &Command) -> Vec<OsString> {
    let is_command = |word: &OsString| word.to_str().is_some_and(|word| tool.find_subcommand(word).is_some());
    let Some(command) = line.iter().skip(1).position(is_command).map(|at| at + 1) else { return line };
    if line.get(command - 1).is_some_and(|word| word == "--help" || word == "-h") {
        line.swap(command - 1, command);
        line.truncate(command + 1);
    }
    line
}

/// What `demo` can play. Below the options and not beside CASE, because clap then spreads all of the help.
pub(super) fn cases() -> String {
    let cases = Case::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let named = |case: clap::builder::PossibleValue| {
        let help = case.get_help().map(ToString::to_string).unwrap_or_default();
        (case.get_name().to_owned(), help)
    };
    named_list("Cases:", &cases.map(named).collect::<Vec<_>>())
}

/// What `gen` can print.
pub(super) fn recipes() -> String {
    named_list("Names:", &RECIPES.iter().map(|r| (r.name.to_owned(), r.about.to_owned())).collect::<Vec<_>>())
}

fn named_list(heading: &str, list: &[(String, String)]) -> String {
    let lines = list.iter().map(|(name, about)| format!("  {name}\n      {about}"));
    std::iter::once(heading.to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
}
