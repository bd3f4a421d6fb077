//! The command line of somebody's process. It has two sides: the words, by which one decides what the process is, and
//! what may be shown of them. With `--redact` it is told when it is read that its arguments are hidden; whoever then
//! shows it, in a sentence or in a file, shows the name of the program and no argument.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Stands for what is hidden.
const HIDDEN: &str = "***";

/// A command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Argv {
    words: Vec<String>,
    hidden: bool,
}

impl Argv {
    /// One whose arguments are `hidden` or not.
    pub const fn new(words: Vec<String>, hidden: bool) -> Self {
        Self { words, hidden }
    }

    /// The words as they are: to decide by, never to be shown.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// What may be shown.
    pub fn shown(&self) -> Vec<String> {
        let Some(first) = self.words.first().filter(|_| self.hidden) else { return self.words.clone() };
        let mut parts = first.split_whitespace();
        let program = parts.next().unwrap_or_default();
        let more = parts.next().is_some() || self.words.iter().skip(1).any(|word| !word.is_empty());
        // A directory may be somebody's home.
        let program = program.rsplit('/').next().unwrap_or(program);
        std::iter::once(program).chain(more.then_some(HIDDEN)).map(Into::into).collect()
    }

    /// The same with other words.
    #[must_use]
    pub fn with(&self, words: Vec<String>) -> Self {
        Self { words, hidden: self.hidden }
    }

    /// From now on its arguments are not shown.
    pub const fn hide(&mut self) {
        self.hidden = true;
    }

    /// Nobody can tell what it was.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The program, as it was called.
    pub fn first(&self) -> Option<&String> {
        self.words.first()
    }
}

impl From<Vec<String>> for Argv {
    fn from(words: Vec<String>) -> Self {
        Self::new(words, false)
    }
}

impl FromIterator<String> for Argv {
    fn from_iter<I: IntoIterator<Item = String>>(words: I) -> Self {
        Vec::from_iter(words).into()
    }
}

impl<const N: usize> From<[&str; N]> for Argv {
    fn from(words: [&str; N]) -> Self {
        words.into_iter().map(String::from).collect()
    }
}

impl Serialize for Argv {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.shown().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Argv {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_one_shows_its_program_and_decides_as_before() {
        for (words, shown) in [
            (&["/usr/bin/python3", "red.py", "falcon"][..], "[\"python3\",\"***\"]"),
            (&["sshd: ann@pts/0"], "[\"sshd:\",\"***\"]"),
            (&["/usr/bin/sleep"], "[\"sleep\"]"),
            // Programs that set their title leave empty arguments behind it.
            (&["ray::IDLE", "", ""], "[\"ray::IDLE\"]"),
            (&[], "[]"),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).into()).collect();
            let mut argv = Argv::from(words.clone());
            assert_eq!(argv.shown(), words);
            argv.hide();
            assert_eq!(serde_json::to_string(&argv).unwrap(), shown);
            assert_eq!(argv.words(), words);
        }
    }
}
