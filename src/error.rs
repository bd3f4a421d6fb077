//! Errors that tell the user what to do next. An error of the tool is an [`anyhow::Error`]; where there is a next step
//! it carries a hint, and only `main` prints the two.

use crate::observe::driver::Failure;
use std::fmt;

/// A message with the step that helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hinted {
    message: String,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// An error that says `message` and advises `hint`.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hinted { message: message.into(), hint: hint.into() })
}

/// The same error with other words: what it says and what it advises, each through `words`.
pub fn mapped(error: anyhow::Error, words: impl Fn(&str) -> String) -> anyhow::Error {
    let message = words(&format!("{error:#}"));
    match hint(&error) {
        Some(hint) => hinted(message, words(&hint)),
        None => anyhow::Error::msg(message),
    }
}

/// What to do about this error, if something in its chain knows.
pub fn hint(error: &anyhow::Error) -> Option<String> {
    let of_failure = |failure: &Failure| failure.hint.clone();
    error
        .downcast_ref::<Hinted>()
        .map(|h| h.hint.clone())
        .or_else(|| error.chain().find_map(|e| e.downcast_ref::<Hinted>()).map(|h| h.hint.clone()))
        .or_else(|| error.downcast_ref::<Failure>().and_then(of_failure))
        .or_else(|| error.chain().find_map(|e| e.downcast_ref::<Failure>()).and_then(of_failure))
}

/// The error as `main` prints it: `error: …`, and after a blank line `hint: …`.
pub fn display(error: &anyhow::Error) -> String {
    let message = crate::text::clean_lines(&format!("{error:#}"));
    match hint(error).map(|hint| crate::text::program::pasteable(&hint)) {
        Some(hint) => format!("error: {message}\n\nhint: {}\n", crate::text::clean_lines(&hint)),
        None => format!("error: {message}\n"),
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
            .context(Hinted { message: "cannot write".into(), hint: "make room".into() })
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
    fn foreign_text_in_an_error_is_escaped() {
        assert_eq!(display(&anyhow::anyhow!("no file \x1b[31mx")), "error: no file \\x1b[31mx\n");
    }
}
