//! Command lines as a shell reads them, for tests that need a shell around what they start.

use std::{
    ffi::{OsStr, OsString},
    process::Command,
};

/// A shell that runs this script.
pub fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(OsString::from).into()
}

/// These words as a shell reads them.
pub fn shell_line(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let quoted = |word: &OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''"));
    words.into_iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// The words of a command, in the same way.
pub fn line_of(command: &Command) -> String {
    shell_line(std::iter::once(command.get_program()).chain(command.get_args()))
}
