//! Ready files for the systems around: `gpuresid gen NAME`. A table of names; each makes one or more files.

mod systemd;

use std::path::Path;

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
    pub use_it: &'static str,
    /// Makes the files for this binary.
    pub files: fn(binary: &Path) -> Vec<File>,
}

/// All of them.
pub const RECIPES: [Recipe; 1] = [Recipe {
    name: "systemd-timer",
    about: "a service and a timer that give back the memory of orphans every five minutes",
    use_it: systemd::USE_IT,
    files: systemd::files,
}];

/// The recipe with this name.
pub fn recipe(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|r| r.name == name)
}
