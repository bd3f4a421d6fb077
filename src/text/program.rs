//! How this very program is called in a line to paste: `gpuresid` where the shell finds it by that name, else by its whole
//! path; after `sudo`, which looks into directories of its own and not into `~/.cargo/bin`, by what sudo finds. Learnt
//! once at the start of a command; whoever uses the library without that gets the plain name. Files keep the plain name,
//! because they are read elsewhere.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The plain name.
pub const NAME: &str = "gpuresid";

/// Where sudo and cron look by themselves.
const FOUND: [&str; 6] = ["/usr/bin", "/usr/local/bin", "/bin", "/sbin", "/usr/sbin", "/usr/local/sbin"];

static WORDS: OnceLock<Words> = OnceLock::new();

/// What stands for the plain name, where that does not do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Words {
    shell: Option<String>,
    sudo: Option<String>,
}

/// From now on our own path is shown where the plain name would lead elsewhere or nowhere.
pub fn learn() {
    if let Ok(path) = std::env::current_exe() {
        WORDS.get_or_init(|| words(&path, std::env::var_os("PATH").as_deref()));
    }
}

/// A line for people with `gpuresid` and `sudo gpuresid` written so that they can be pasted. In a sentence it is a command
/// where one begins: behind a colon or a back tick.
pub fn pasteable(line: &str) -> String {
    WORDS.get().map_or_else(|| line.into(), |words| replaced(line, words))
}

fn replaced(line: &str, words: &Words) -> String {
    const BEFORE: [&str; 5] = [": ", "`", "; ", "&& ", "\n"];
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(NAME) {
        out.push_str(before);
        let ends = after.is_empty() || after.starts_with([' ', '`', ';', '\n']);
        let begins = out.is_empty() || BEFORE.iter().any(|lead| out.ends_with(lead));
        let word = match ends {
            true if out.ends_with("sudo ") => words.sudo.as_deref(),
            true if begins => words.shell.as_deref(),
            _ => None,
        };
        out.push_str(word.unwrap_or(NAME));
        rest = after;
    }
    out.push_str(rest);
    out
}

fn words(path: &Path, directories: Option<&OsStr>) -> Words {
    // Where the file was replaced meanwhile, its old name leads nowhere.
    let Some(whole) = path.to_str().filter(|_| path.exists()).and_then(super::shell_word) else {
        return Words::default();
    };
    let searched: Vec<PathBuf> = directories.map(|all| std::env::split_paths(all).collect()).unwrap_or_default();
    let by_name = searched.iter().map(|directory| directory.join(NAME)).find(|file| file.is_file());
    let for_sudo = path.parent().is_some_and(|directory| FOUND.iter().any(|found| directory == Path::new(found)))
        && path.file_name().is_some_and(|name| name == NAME);
    Words {
        shell: Some(whole.clone()).filter(|_| !by_name.is_some_and(|found| is_the_same(&found, path))),
        sudo: Some(whole).filter(|_| !for_sudo),
    }
}

fn is_the_same(one: &Path, other: &Path) -> bool {
    let file = |path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    file(one).is_some_and(|it| file(other) == Some(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_name_does_where_it_leads_to_this_file() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (ours, other, links) = (place("a b"), place("other"), place("links"));
        let path = ours.join(NAME);
        let named = |directories: &[&PathBuf]| words(&path, Some(&std::env::join_paths(directories).unwrap()));
        assert_eq!(named(&[&ours]), Words::default(), "gone");
        fs::write(&path, "").unwrap();
        fs::write(other.join(NAME), "").unwrap();
        std::os::unix::fs::symlink(&path, links.join(NAME)).unwrap();
        let whole = Some(format!("'{}'", path.display()));
        for (directories, shell) in
            [(&[&ours][..], None), (&[&links, &other], None), (&[&other, &ours], whole.clone()), (&[], whole.clone())]
        {
            assert_eq!(named(directories), Words { shell, sudo: whole.clone() }, "{directories:?}");
        }
    }

    #[test]
    fn only_a_command_is_replaced() {
        let words = Words { shell: Some("/a/gpuresid".into()), sudo: Some("/b/gpuresid".into()) };
        for (line, expected) in [
            ("gpuresid -i 0", "/a/gpuresid -i 0"),
            ("run sudo gpuresid -i 0, not gpuresid", "run sudo /b/gpuresid -i 0, not gpuresid"),
            ("look again: gpuresid", "look again: /a/gpuresid"),
            ("with `gpuresid doctor`; gpuresid runs", "with `/a/gpuresid doctor`; /a/gpuresid runs"),
            ("it is gpuresid itself", "it is gpuresid itself"),
            ("write to: gpuresid.json", "write to: gpuresid.json"),
            ("there: ssh host gpuresid reclaim", "there: ssh host gpuresid reclaim"),
        ] {
            assert_eq!(replaced(line, &words), expected);
        }
    }
}
