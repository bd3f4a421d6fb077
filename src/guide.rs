//! The guide: what there is to read about the tool beyond the README, as chapters that the binary carries, because a
//! server with a full GPU may have no network. Each is a Markdown file in `guide/`, written to be read as it is, on a
//! page and on a terminal of 80 columns.

use crate::report::Style;

/// One chapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chapter {
    /// As it is typed. No command has this name.
    pub name: &'static str,
    /// In one line.
    pub about: &'static str,
    /// The commands whose help refers to it.
    pub commands: &'static [&'static str],
    /// Markdown.
    pub text: &'static str,
}

macro_rules! chapter {
    ($name:literal, $about:literal $(, $command:literal)*) => {
        Chapter {
            name: $name,
            about: $about,
            commands: &[$($command),*],
            text: include_str!(concat!("guide/", $name, ".md")),
        }
    };
}

/// All of them, in the order in which one would read them.
pub const CHAPTERS: [Chapter; 16] = [
    chapter!("full", "the GPU is full now: who holds it, and what to do", "status"),
    chapter!("words", "verdicts and causes, and what to do about each", "status", "check", "diff"),
    chapter!("runs", "checking a run: output, clean-up, containers, two steps", "check", "snapshot", "diff"),
    chapter!("ci", "GitHub, GitLab, pytest; a gate before a GPU is handed on", "check", "gen"),
    chapter!("slurm", "an epilog that ends what a job left, and nothing else", "reclaim"),
    chapter!("neighbours", "GPUs and machines that other people use too", "check"),
    chapter!("freeing", "getting memory back, by hand or by a timer", "reclaim", "gen"),
    chapter!("waiting", "waiting for free memory, in scripts and test suites", "wait"),
    chapter!("torch", "what a PyTorch program keeps, and who refers to it", "check"),
    chapter!("memory", "what keeps GPU memory, during a run and after it"),
    chapter!("folklore", "common advice on freeing GPU memory, put to the test"),
    chapter!("setup", "driver, permissions and PyTorch, before you look for a leak", "doctor"),
    chapter!("json", "reports and snapshots: the names that scripts may rely on", "check", "snapshot"),
    chapter!("limits", "what it cannot see"),
    chapter!("speed", "how long a look takes, and what watching costs"),
    chapter!("zh", "中文说明"),
];

/// The chapter with this name.
pub fn chapter(name: &str) -> Option<&'static Chapter> {
    CHAPTERS.iter().find(|chapter| chapter.name == name)
}

/// Chapters for who asks about something that is no topic: those that explain the word, which stands in bold there; else
/// those that have it.
pub fn about(word: &str) -> Vec<&'static Chapter> {
    let word = word.to_lowercase().replace(['_', '-'], " ");
    let with = |text: &str| -> Vec<&'static Chapter> {
        CHAPTERS.iter().filter(|chapter| word.len() > 2 && chapter.text.to_lowercase().contains(text)).collect()
    };
    let explain = with(&format!("**{word}**"));
    if explain.is_empty() { with(&word) } else { explain }
}

impl Chapter {
    /// Its text on a terminal: the file as it is, with headings that the eye finds and without pictures.
    pub fn page(&self, style: Style) -> String {
        let mut code = false;
        let line = |line: &str| {
            let fence = line.starts_with("```");
            code ^= fence;
            match (fence, line.starts_with('#') && !code) {
                (true, _) => style.dim(line),
                (_, true) => style.bold(line),
                _ => line.to_owned(),
            }
        };
        let parts: Vec<_> = self.text.split("\n\n").filter(|part| !part.starts_with("![")).collect();
        parts.join("\n\n").lines().map(line).flat_map(|line| [line, "\n".to_owned()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Chapter = Chapter { name: "a", about: "b", commands: &[], text: "# A\n```sh\n# b\n```\ntext\n" };

    #[test]
    fn a_chapter_is_printed_as_it_is() {
        assert_eq!(SMALL.page(Style::default()), SMALL.text);
        let pictured = Chapter { text: "# A\n\n![a picture](a.svg)\n\ntext\n", ..SMALL };
        assert_eq!(pictured.page(Style::default()), "# A\n\ntext\n", "a terminal shows no pictures");
    }

    #[test]
    fn with_colour_a_heading_is_bold_and_a_comment_in_code_is_not() {
        let page = SMALL.page(Style { color: true, ..Style::default() });
        assert!(page.starts_with("\u{1b}[1m# A\u{1b}[0m\n") && page.contains("\n# b\n"), "{page:?}");
    }
}
