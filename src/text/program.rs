//! How this very program is called in a line for `sudo`: by its whole path where sudo would not find it, because sudo
//! looks into directories of its own and not into `~/.cargo/bin`. Learnt once at the start of a command; whoever uses
//! the library without that gets the plain name. Files keep the plain name, because they are read elsewhere.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Where sudo and cron look by themselves.
const FOUND: [&str; 6] = ["/usr/bin", "/usr/local/bin", "/bin", "/sbin", "/usr/sbin", "/usr/local/sbin"];

static WORD: OnceLock<String> = OnceLock::new();

/// From now on our own path is shown where sudo needs it.
pub fn learn() {
    if let Ok(path) = std::env::current_exe()
        && let Some(word) = word(&path)
    {
        WORD.get_or_init(|| word);
    }
}

/// A line for people with `sudo gpuresid` written so that it can be pasted.
pub fn pasteable(line: &str) -> String {
    match WORD.get() {
        Some(word) => replaced(line, word),
        None => line.into(),
    }
}

fn replaced(line: &str, word: &str) -> String {
    line.replace("sudo gpuresid", &format!("sudo {word}"))
}

/// `None`: the plain name does, or there is nothing better.
fn word(path: &Path) -> Option<String> {
    let plain = path.parent().is_some_and(|directory| FOUND.iter().any(|found| directory == Path::new(found)))
        && path.file_name().is_some_and(|name| name == "gpuresid");
    // Where the file was replaced meanwhile, its old name leads nowhere.
    if plain || !path.exists() { None } else { super::shell_word(PathBuf::from(path).to_str()?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_is_told_the_path_that_it_would_not_find() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a b");
        assert_eq!(word(&path), None);
        std::fs::write(&path, "").unwrap();
        let word = word(&path).unwrap();
        assert_eq!(word, format!("'{}'", path.display()));
        assert_eq!(
            replaced("run sudo gpuresid -i 0, not gpuresid", &word),
            format!("run sudo {word} -i 0, not gpuresid")
        );
        assert_eq!(super::word(Path::new("/usr/local/bin/gpuresid")), None);
    }
}
