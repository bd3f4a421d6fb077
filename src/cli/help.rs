//! Help as people ask for it: `help check`, `check --help`, `--help check`; of each command only the options that do
//! something there, and where to read on. Apart from the declarations, because options of all commands are declared once.

use super::Cli;
use crate::{demo::Case, r#gen::RECIPES, guide::CHAPTERS, text};
use clap::{Command, CommandFactory, ValueEnum};
use std::ffi::OsString;

/// Commands that look at nothing on this machine, and the options of all commands that they use.
const LOOK_AT_NOTHING: [(&str, &[&str]); 3] = [("demo", &["color"]), ("gen", &["gpu"]), ("help", &["color"])];

/// What can be typed, with the help that fits each command.
pub(crate) fn tool() -> Command {
    let mut tool = <Cli as CommandFactory>::command();
    let common: Vec<_> = tool.get_arguments().filter(|a| a.is_global_set()).map(|a| a.get_id().clone()).collect();
    // Only then each command has the options of all commands.
    tool.build();
    tool.mut_subcommands(|command| {
        let command = with_chapters(command);
        let Some((_, used)) = LOOK_AT_NOTHING.iter().find(|(name, _)| *name == command.get_name()) else {
            return command;
        };
        command.mut_args(|arg| {
            let idle = common.contains(arg.get_id()) && !used.contains(&arg.get_id().as_str());
            arg.hide(idle)
        })
    })
}

/// The command, its help followed by the chapters about it.
fn with_chapters(command: Command) -> Command {
    let about = CHAPTERS.iter().filter(|chapter| chapter.commands.contains(&command.get_name()));
    let topics: Vec<_> = about.map(|chapter| chapter.name).collect();
    match (topics.is_empty(), command.get_after_help()) {
        (false, Some(below)) => {
            let below = format!("{below}\n\nRead more (gpuresid help TOPIC): {}", topics.join(", "));
            command.after_help(below)
        }
        _ => command,
    }
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

/// What `help` prints by itself: one screen with all commands and all chapters.
pub(crate) fn overview() -> Command {
    let below = format!("{}\n\nOptions and exit codes: gpuresid --help, gpuresid help COMMAND", topics());
    tool()
        .help_template("{about-with-newline}\n{usage-heading} {usage}\n\nCommands:\n{subcommands}{after-help}")
        .after_help(below)
}

/// What there is to read, one line a chapter.
pub(super) fn topics() -> String {
    let longest = CHAPTERS.iter().map(|chapter| chapter.name.len()).max().unwrap_or_default();
    let lines = CHAPTERS.iter().map(|chapter| format!("  {:longest$}  {}", chapter.name, chapter.about));
    std::iter::once("Topics (gpuresid help TOPIC):".to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
}

/// The same in a line or two.
pub(super) fn topic_names() -> String {
    let names = CHAPTERS.map(|chapter| chapter.name).join(", ");
    text::wrap(&format!("Topics (gpuresid help TOPIC): {names}"), Some(79)).join("\n  ")
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
