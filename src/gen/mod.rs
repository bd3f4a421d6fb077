//! Ready files for the systems around: `gpuresid gen NAME`. A table of names; each makes one or more files.

mod hooks;
mod systemd;
pub mod trust;

use crate::text;
use std::{path::Path, time::Duration};

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// Something that can be generated.
pub struct Recipe {
    /// As it is typed.
    pub name: &'static str,
    /// In one line.
    pub about: &'static str,
    /// How to use it: shell lines, shown as comments above the files.
    pub use_it: fn(&Wanted<'_>) -> String,
    /// Makes the files.
    pub files: fn(&Wanted<'_>) -> Vec<File>,
    /// Root will run the program.
    pub for_root: bool,
}

/// What the files are for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The program that they run.
    pub binary: &'a Path,
    /// Only these GPUs, as `-i` takes them; empty: all.
    pub gpus: &'a [String],
    /// What is to be ended is ended, and not only shown.
    pub act: bool,
    /// The site's policy for what is idle for so long, if it has one.
    pub idle: Option<Duration>,
}

/// All of them.
pub const RECIPES: [Recipe; 3] = [
    Recipe {
        name: "systemd-timer",
        about: "a service and a timer that show every five minutes, and with --act give back, what is left of runs that may be ended",
        use_it: systemd::use_it,
        files: systemd::files,
        for_root: true,
    },
    Recipe {
        name: "github-hook",
        about: "a job-completed hook for self-hosted GitHub Actions runners that gives back what a job has left",
        use_it: hooks::use_github,
        files: hooks::github,
        for_root: false,
    },
    Recipe {
        name: "gitlab-hook",
        about: "an after_script for GitLab's shell executor that gives back what a job has left",
        use_it: hooks::use_gitlab,
        files: hooks::gitlab,
        for_root: false,
    },
];

/// A word as a shell reads it.
fn word(text: &str) -> String {
    text::shell_word(text).unwrap_or_else(|| "gpuresid".into())
}

/// The GPUs as an option, quoted for its reader.
fn option(wanted: &Wanted<'_>, quoted: impl Fn(&str) -> String) -> String {
    if wanted.gpus.is_empty() { String::new() } else { format!(" -i {}", quoted(&wanted.gpus.join(","))) }
}

/// The recipe with this name.
pub fn recipe(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|r| r.name == name)
}
