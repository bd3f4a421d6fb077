//! What a wrong command line says: the same form as every other error, `error:` and then what to do. A value that was
//! not typed is laid to the environment variable that it comes from.

use super::Cli;
use crate::{
    error::{hinted, noted},
    report::{ReportTarget, earlier_reports},
    text,
};
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
    let typed: Vec<OsString> = args.collect();
    let mut hints: Vec<String> = instead(error, &typed).into_iter().collect();
    for named in named_arguments(error) {
        let Some((shown, set)) = untyped(&named, &typed, &variable) else { continue };
        message = message.replace(&format!("'{shown}'"), &format!("the environment variable {set}"));
        hints.push(format!("set {set} to something else, or not at all: unset {set}"));
    }
    let lines: Vec<&str> = paragraphs.flat_map(str::lines).map(str::trim).collect();
    // Which words are the command's is said by where they stand.
    let tips = lines.iter().filter_map(|line| line.strip_prefix("tip: ")).filter(|tip| !tip.starts_with("to pass '"));
    hints.extend(tips.map(str::to_owned));
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && !follows(word, "--watch", &typed)
    {
        let line = check_of(word, &typed);
        hints.extend(line.map(|line| format!("to run a program and check it: {line}")));
    }
    if hints.is_empty() {
        hints.extend(
            lines.iter().filter_map(|line| line.strip_prefix("Usage: ")).map(|usage| format!("usage: {usage}")),
        );
    }
    hints.push("more: gpuresid --help, gpuresid COMMAND --help".into());
    let error = hinted(message, hints.join("\n"));
    match earlier_reports(&reports(&typed)) {
        Some(note) => noted(&error, note),
        None => error,
    }
}

/// What was meant, where that is clear from another option or command of ours.
fn instead(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let about = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let word = about(ContextKind::InvalidSubcommand).or_else(|| about(ContextKind::InvalidArg))?;
    if follows(word, "--watch", typed) && super::values::some_time(word).is_ok() {
        return Some(format!("write --watch={word}"));
    }
    let of_check = typed.get(1).is_some_and(|command| command == "check");
    (of_check && word == "--json")
        .then(|| "check writes its report to a file: gpuresid check --report result.json -- COMMAND".into())
}

/// `gpuresid check` for the program whose name `word` stands where a command of ours was expected, with all that was
/// typed around it, as a shell reads it. `None`: it was meant for a command of ours, because `--` follows.
fn check_of(word: &str, typed: &[OsString]) -> Option<String> {
    let words: Option<Vec<&str>> = typed.iter().map(|word| word.to_str()).collect();
    let words = words.unwrap_or_default();
    let Some(at) = words.iter().skip(1).position(|typed| *typed == word).map(|at| at + 1) else {
        return Some(format!("gpuresid check -- {word}"));
    };
    let (ours, program) = words.split_at(at);
    if program.contains(&"--") {
        return None;
    }
    let mut line = vec!["gpuresid", "check"];
    let mut ours = ours.iter().skip(1);
    while let Some(option) = ours.next() {
        match option.split('=').next().unwrap_or_default() {
            // Options of `status`, and what parts ours from the program.
            "--json" | "--verbose" | "-v" | "--all" | "--bar1" | "--watch" | "--" => {}
            "--fail-on" | "--expect" | "--mine" if !option.contains('=') => drop(ours.next()),
            "--fail-on" | "--expect" | "--mine" => {}
            _ => line.push(option),
        }
    }
    line.push("--");
    let line: Vec<String> = line.iter().chain(program).map(ToString::to_string).collect();
    // Where a word cannot be pasted, a line without it would be another command.
    Some(text::shell_line(&line).unwrap_or_else(|| "gpuresid check -- COMMAND".into()))
}

/// Whether `word` was typed right behind `before`.
fn follows(word: &str, before: &str, typed: &[OsString]) -> bool {
    typed.windows(2).any(|pair| pair[0] == *before && pair[1] == *word)
}

/// The reports that a `check` was to write, as far as the words can be read that it was typed with.
fn reports(typed: &[OsString]) -> Vec<ReportTarget> {
    let words = typed.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str());
    // Of other commands it is a file to read.
    let mut words = words.skip_while(|word| *word != "check").skip(1);
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let path = match word.strip_prefix("--report") {
            Some("") => words.next(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        found.extend(path.and_then(|path| path.parse().ok()));
    }
    found
}

/// The long options of a command, those of all commands included.
pub(crate) fn long_options(command: &str) -> Vec<String> {
    let tool = <Cli as CommandFactory>::command();
    let own = tool.find_subcommand(command).into_iter().flat_map(|c| c.get_arguments());
    let all = own.chain(tool.get_arguments().filter(|arg| arg.is_global_set()));
    all.filter_map(|arg| arg.get_long()).map(str::to_owned).collect()
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
const VARIABLES: [&str; 19] = [
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
    "GPURESID_REQUIRE_GPU",
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

    fn message(args: &[&str]) -> String {
        let line: Vec<OsString> = ["gpuresid"].iter().chain(args).map(OsString::from).collect();
        let error = Cli::read(line.clone()).unwrap_err();
        crate::error::display(&explained(&error, line.into_iter(), |_| None))
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
    fn the_nearest_way_out_comes_first() {
        let more = "more: gpuresid --help, gpuresid COMMAND --help\n";
        for (args, hint) in [
            (&["chek", "--", "true"][..], "a similar subcommand exists: 'check'\n"),
            (
                &["python", "t.py", "--lr", "0.1"],
                "to run a program and check it: gpuresid check -- python t.py --lr 0.1\n",
            ),
            (&["--", "python", "t.py"], "to run a program and check it: gpuresid check -- python t.py\n"),
            (
                &["-i", "0", "--json", "--fail-on", "orphan", "python", "-c", "print('a b')"],
                "to run a program and check it: gpuresid check -i 0 -- python -c 'print('\\''a b'\\'')'\n",
            ),
            (&["python", "a\nb"], "to run a program and check it: gpuresid check -- COMMAND\n"),
            (&["--watch", "5"], "write --watch=5\n"),
            (&["status", "--watch", "5s"], "write --watch=5s\n"),
            (&["check", "--timout", "3", "--", "true"], "a similar argument exists: '--timeout'\n"),
            (
                &["check", "--json", "--", "true"],
                "check writes its report to a file: gpuresid check --report result.json -- COMMAND\n",
            ),
        ] {
            let said = message(args);
            assert!(said.ends_with(&format!("\n\nhint: {hint}{more}")), "{args:?}: {said}");
        }
    }

    #[test]
    fn the_reports_of_a_wrong_line_are_known() {
        let paths = |line: &[&str]| {
            let line: Vec<OsString> = line.iter().map(OsString::from).collect();
            reports(&line).into_iter().map(|target| target.path.display().to_string()).collect::<Vec<_>>()
        };
        let line = [
            "gpuresid",
            "-i",
            "0",
            "check",
            "--report",
            "a.json",
            "--report=json:b",
            "--x",
            "--",
            "--report",
            "c.json",
        ];
        assert_eq!(paths(&line), ["a.json", "b"]);
        assert_eq!(paths(&["gpuresid", "reclaim", "--report", "a.json"]), [""; 0]);
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
