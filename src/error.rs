//! Errors that tell the user what to do next. An error of the tool is an [`anyhow::Error`]; where there is a next step
//! it carries a hint, and only `main` prints the two.

use crate::{observe::driver::Failure, text};
use std::fmt;

/// A message with the step that helps, and what else one has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hinted {
    message: String,
    hint: Option<String>,
    note: Option<String>,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// An error that says `message` and advises `hint`.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hinted { message: message.into(), hint: Some(hint.into()), note: None })
}

/// The same error with a line that has to be seen whatever the reason is.
pub fn noted(error: &anyhow::Error, note: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hinted { message: format!("{error:#}"), hint: hint(error), note: Some(note.into()) })
}

/// The same error with other words: what it says and what it advises, each through `words`.
pub fn mapped(error: anyhow::Error, words: impl Fn(&str) -> String) -> anyhow::Error {
    let message = words(&format!("{error:#}"));
    match hint(&error) {
        Some(hint) => hinted(message, words(&hint)),
        None => anyhow::Error::msg(message),
    }
}

/// What is wrong with a file that should be JSON, in plain words.
pub fn not_json(shown: &str, error: &serde_json::Error) -> String {
    match (error.is_eof(), error.line(), error.column()) {
        (true, 0 | 1, 0) => format!("{shown} is empty"),
        (true, ..) => format!("{shown} is cut off: its JSON ends in the middle"),
        (false, line, column) => format!("{shown} is not JSON (line {line}, column {column})"),
    }
}

/// The same of JSON that is of ours and does not have what it should.
pub fn damaged(shown: &str, what: &str, error: &serde_json::Error) -> String {
    let text = error.to_string();
    let missing = text.strip_prefix("missing field ").and_then(|rest| rest.split(' ').next());
    let why =
        missing.map_or_else(|| "a value in it is not of the kind it should be".into(), |m| format!("it has no {m}"));
    format!("{shown} is a damaged {what}: {why}")
}

/// What to do about this error, if something in its chain knows.
pub fn hint(error: &anyhow::Error) -> Option<String> {
    let of_failure = |failure: &Failure| failure.hint.clone();
    error
        .downcast_ref::<Hinted>()
        .and_then(|h| h.hint.clone())
        .or_else(|| error.chain().find_map(|e| e.downcast_ref::<Hinted>()).and_then(|h| h.hint.clone()))
        .or_else(|| error.downcast_ref::<Failure>().and_then(of_failure))
        .or_else(|| error.chain().find_map(|e| e.downcast_ref::<Failure>()).and_then(of_failure))
}

/// The error as `main` prints it: `error: …`, and after a blank line `hint: …`, in lines of any length.
pub fn display(error: &anyhow::Error) -> String {
    display_in(error, None)
}

/// As [`display`], broken at so many columns, later lines indented. Where the output is no terminal (`None`) nothing is
/// broken, so that a log can be searched for a sentence.
pub fn display_in(error: &anyhow::Error, columns: Option<u16>) -> String {
    display_as("error: ", error, columns)
}

/// The same of an error that keeps nobody from going on: `warning: …`, and the hint.
pub fn warning(error: &anyhow::Error, columns: Option<u16>) -> String {
    display_as("warning: ", error, columns)
}

fn display_as(lead: &str, error: &anyhow::Error, columns: Option<u16>) -> String {
    let mut shown = String::new();
    paragraph(&mut shown, lead, &format!("{error:#}"), columns, |line, room| text::wrap(line, Some(room)));
    let note = error.downcast_ref::<Hinted>().and_then(|hinted| hinted.note.clone());
    let more = [("hint: ", hint(error).map(|hint| text::program::pasteable(&hint))), ("note: ", note)];
    let more: Vec<_> = more.iter().filter_map(|(lead, text)| Some((lead, text.as_ref()?))).collect();
    if !more.is_empty() {
        shown.push('\n');
    }
    for (lead, text) in more {
        paragraph(&mut shown, lead, text, columns, text::wrap_around_commands);
    }
    shown
}

/// Columns that are never given up to an indent.
const LEAST_ROOM: usize = 20;

fn paragraph(
    shown: &mut String,
    lead: &str,
    text: &str,
    columns: Option<u16>,
    wrap: impl Fn(&str, usize) -> Vec<String>,
) {
    for (number, line) in text::clean_lines(text).lines().enumerate() {
        let (lead, indent) = if number == 0 { (lead, lead.len()) } else { ("", 2) };
        // What is indented is a row of a table.
        let Some(columns) = columns.filter(|_| !line.starts_with("  ")) else {
            shown.push_str(&format!("{lead}{line}\n"));
            continue;
        };
        let room = usize::from(columns).saturating_sub(indent).max(LEAST_ROOM);
        for (number, part) in wrap(line, room).iter().enumerate() {
            let lead = if number == 0 { lead.to_owned() } else { " ".repeat(indent) };
            shown.push_str(&format!("{lead}{part}\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::driver::FailureKind;
    use anyhow::Context;

    #[test]
    fn the_hint_is_found_under_a_context_and_above_a_cause() {
        let inner = hinted("no such GPU", "look with `gpuresid`").context("while selecting");
        assert_eq!(display(&inner), "error: while selecting: no such GPU\n\nhint: look with `gpuresid`\n");
        let outer = Err::<(), _>(std::io::Error::other("disk"))
            .context(Hinted { message: "cannot write".into(), hint: Some("make room".into()), note: None })
            .unwrap_err();
        assert_eq!(display(&outer), "error: cannot write: disk\n\nhint: make room\n");
    }

    #[test]
    fn a_failure_of_the_driver_brings_its_own_hint() {
        let failure =
            Failure { kind: FailureKind::NoDriver, message: "no driver".into(), hint: Some("load it".into()) };
        assert_eq!(display(&anyhow::Error::new(failure)), "error: no driver\n\nhint: load it\n");
    }

    #[test]
    fn a_note_stands_last() {
        let bare = noted(&anyhow::anyhow!("no disk").context("writing"), "there is an old one");
        assert_eq!(display(&bare), "error: writing: no disk\n\nnote: there is an old one\n");
        let both = noted(&hinted("no disk", "make room"), "there is an old one");
        assert_eq!(display(&both), "error: no disk\n\nhint: make room\nnote: there is an old one\n");
    }

    #[test]
    fn a_terminals_edge_breaks_no_command() {
        let error = hinted(
            "no NVIDIA driver is loaded here at all",
            "load it: sudo modprobe nvidia\nsee what else may be wrong: gpuresid doctor\n  GPU 0  a row of a table stays",
        );
        assert_eq!(
            display_in(&error, Some(30)),
            "error: no NVIDIA driver is\n       loaded here at all\n\n\
             hint: load it:\n      sudo modprobe nvidia\n\
             see what else may be wrong:\n  gpuresid doctor\n  GPU 0  a row of a table stays\n"
        );
        assert_eq!(display_in(&error, None), display(&error));
    }

    #[test]
    fn commands_of_a_hint_can_be_pasted_at_any_width() {
        let commands =
            "put it elsewhere, and use that one:\n  sudo install -m 755 /a/long/path/gpuresid /usr/local/bin";
        let shown = display_in(&hinted("no", commands), Some(40));
        assert!(shown.ends_with("\n  sudo install -m 755 /a/long/path/gpuresid /usr/local/bin\n"), "{shown}");
        let shown = display_in(&hinted("no", "first look with `sudo gpuresid doctor --strict`; then go on"), Some(40));
        assert!(
            shown.ends_with("hint: first look with\n      `sudo gpuresid doctor --strict`;\n      then go on\n"),
            "{shown}"
        );
    }

    #[test]
    fn foreign_text_in_an_error_is_escaped() {
        assert_eq!(display(&anyhow::anyhow!("no file \x1b[31mx")), "error: no file \\x1b[31mx\n");
    }
}
