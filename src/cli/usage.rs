//! What a wrong command line says: the same form as every other error, `error:` and then what to do.

use crate::error::hinted;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// clap's error as one of ours. Help and version are no errors and do not come here.
pub fn error(error: &clap::Error) -> anyhow::Error {
    let text = error.render().to_string();
    let mut paragraphs = text.trim_end().split("\n\n");
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message).trim_end();
    let mut hints = Vec::new();
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
    {
        hints.push(format!("to run a program and check it: gpuresid check -- {word}"));
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

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::Parser;

    fn message(args: &[&str]) -> String {
        let line = ["gpuresid"].into_iter().chain(args.iter().copied());
        crate::error::display(&super::error(&Cli::try_parse_from(line).unwrap_err()))
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
}
