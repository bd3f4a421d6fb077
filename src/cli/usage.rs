//! What a wrong command line says: the same form as every other error, `error:` and then what to do. A value that was
//! not typed is laid to the environment variable that it comes from.

use super::Cli;
use crate::error::hinted;
use clap::{
    Arg, Command, CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::ffi::{OsStr, OsString};

/// clap's error as one of ours. Help and version are no errors and do not come here.
pub fn error(error: &clap::Error) -> anyhow::Error {
    explained(error, std::env::args_os(), |name| std::env::var_os(name))
}

fn explained(
    error: &clap::Error,
    args: impl Iterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Error {
    let text = error.render().to_string();
    let mut paragraphs = text.trim_end().split("\n\n");
    let message = paragraphs.next().unwrap_or_default();
    let mut message = message.strip_prefix("error: ").unwrap_or(message).trim_end().to_owned();
    let mut hints = Vec::new();
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
    {
        hints.push(format!("to run a program and check it: gpuresid check -- {word}"));
    }
    let typed: Vec<OsString> = args.collect();
    for named in named_arguments(error) {
        let Some((shown, set)) = untyped(&named, &typed, &variable) else { continue };
        message = message.replace(&format!("'{shown}'"), &format!("the environment variable {set}"));
        hints.push(format!("set {set} to something else, or not at all: unset {set}"));
    }
    for paragraph in paragraphs {
        for line in paragraph.lines() {
            let line = line.trim();
            if let Some(tip) = line.strip_prefix("tip: ") {
                hints.push(tip.into());
            } else if let Some(usage) = line.strip_prefix("Usage: ").filter(|_| hints.is_empty()) {
                hints.push(format!("usage: {usage}"));
            }
        }
    }
    hints.push("more: gpuresid --help, gpuresid COMMAND --help".into());
    hinted(message, hints.join("\n"))
}

/// The arguments that an error is about, as it shows them: `--settle <DUR>`.
fn named_arguments(error: &clap::Error) -> Vec<String> {
    let kinds = [ContextKind::InvalidArg, ContextKind::PriorArg];
    let values = kinds.into_iter().filter_map(|kind| error.get(kind));
    values
        .flat_map(|value| match value {
            ContextValue::String(one) => vec![one.clone()],
            ContextValue::Strings(many) => many.clone(),
            _ => Vec::new(),
        })
        .collect()
}

/// What is shown of an argument that was not typed, and the variable that it comes from.
fn untyped(
    shown: &str,
    typed: &[OsString],
    variable: &impl Fn(&str) -> Option<OsString>,
) -> Option<(String, &'static str)> {
    let name = shown.strip_prefix("--")?.split([' ', '=']).next()?;
    Some((shown.to_owned(), variable_behind(name, typed.iter().cloned(), variable)?))
}

/// The environment variable that the option `--name` has its value from: it is set, and the option was not typed.
pub(crate) fn variable_behind(
    name: &str,
    typed: impl Iterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<&'static str> {
    let option = options(&<Cli as CommandFactory>::command()).into_iter().find(|arg| arg.get_long() == Some(name))?;
    let set = VARIABLES.into_iter().find(|known| option.get_env() == Some(OsStr::new(known)))?;
    variable(set)?;
    // What stands behind `--` is the command's.
    let typed = typed.take_while(|word| word != "--").any(|word| {
        let word = word.to_string_lossy();
        let long = word.strip_prefix("--").map(|rest| rest.split('=').next().unwrap_or(rest));
        let short = option.get_short().is_some_and(|short| word.starts_with('-') && word[1..].starts_with(short));
        long == Some(name) || short
    });
    (!typed).then_some(set)
}

fn options(command: &Command) -> Vec<Arg> {
    command.get_arguments().cloned().chain(command.get_subcommands().flat_map(options)).collect()
}

/// Every variable that stands for an option.
const VARIABLES: [&str; 18] = [
    "GPURESID_COLOR",
    "GPURESID_GPU",
    "GPURESID_GRACE",
    "GPURESID_INCONCLUSIVE",
    "GPURESID_MAX_RESIDUE",
    "GPURESID_MAX_RESIDUE_RATE",
    "GPURESID_MAX_UNATTRIBUTED",
    "GPURESID_NVML_TIMEOUT",
    "GPURESID_QUIET",
    "GPURESID_REDACT",
    "GPURESID_SAMPLE",
    "GPURESID_SCOPE",
    "GPURESID_SETTLE",
    "GPURESID_TIMEOUT",
    "GPURESID_TORCH",
    "GPURESID_VISIBLE",
    "GPURESID_WAIT_TIMEOUT",
    "GPURESID_WARN_ONLY",
];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn message(args: &[&str]) -> String {
        let line = ["gpuresid"].into_iter().chain(args.iter().copied());
        crate::error::display(&error(&Cli::try_parse_from(line).unwrap_err()))
    }

    #[test]
    fn a_wrong_line_says_what_and_what_now() {
        assert_eq!(
            message(&["--jason"]),
            "error: unexpected argument '--jason' found\n\n\
             hint: a similar argument exists: '--json'\n\
             more: gpuresid --help, gpuresid COMMAND --help\n"
        );
        assert_eq!(
            message(&["train.py"]),
            "error: unrecognized subcommand 'train.py'\n\n\
             hint: to run a program and check it: gpuresid check -- train.py\n\
             more: gpuresid --help, gpuresid COMMAND --help\n"
        );
        assert_eq!(
            message(&["check", "--max-residue", "16", "true"]),
            "error: invalid value '16' for '--max-residue <SIZE|PCT>': the unit is missing; write a size like 500MiB or \
             20GiB\n\n\
             hint: more: gpuresid --help, gpuresid COMMAND --help\n"
        );
    }

    #[test]
    fn every_variable_of_an_option_is_known() {
        let mut found: Vec<_> = options(&<Cli as CommandFactory>::command())
            .iter()
            .filter_map(|o| Some(o.get_env()?.to_str()?.to_owned()))
            .collect();
        found.sort();
        found.dedup();
        assert_eq!(found, VARIABLES);
    }

    #[test]
    fn who_typed_an_option_has_it_from_nowhere_else() {
        let set = |name: &str| (name == "GPURESID_GPU").then(|| "7".into());
        let behind = |line: &[&str]| variable_behind("gpu", line.iter().map(OsString::from), set);
        assert_eq!(behind(&["gpuresid"]), Some("GPURESID_GPU"));
        assert_eq!(behind(&["gpuresid", "check", "--", "x", "-i", "0"]), Some("GPURESID_GPU"));
        for line in [["gpuresid", "-i0"], ["gpuresid", "--gpu=0"], ["-i", "0"], ["--gpu", "0"]] {
            assert_eq!(behind(&line), None, "{line:?}");
        }
        assert_eq!(variable_behind("gpu", std::iter::empty(), |_| None), None);
        assert_eq!(variable_behind("json", std::iter::empty(), |_| Some("1".into())), None);
    }
}
