//! Whether a service of root may run a program: only if nobody but root can put something else in its place, and if the
//! service's own view of the file system has it.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

/// Where a service with a /tmp of its own sees nothing, or where files of users are.
const NOT_BELOW: [&str; 4] = ["/tmp", "/var/tmp", "/home", "/run/user"];
/// Debian's group `staff`, which may install into /usr/local and by that is as good as root.
const STAFF: u32 = 50;

/// Who owns a file or directory and who may write it.
#[derive(Debug, Clone, Copy)]
struct Owned {
    uid: u32,
    gid: u32,
    mode: u32,
}

/// Why the program at `path` must not be run as root; `None`: it may be.
///
/// # Errors
/// If that cannot be found out.
pub fn objection(path: &Path) -> std::io::Result<Option<String>> {
    let path = fs::canonicalize(path)?;
    if let Some(place) = NOT_BELOW.iter().find(|place| path.starts_with(place)) {
        return Ok(Some(format!("it is below {place}, which is no place for programs of root")));
    }
    for part in path.ancestors() {
        let facts = fs::symlink_metadata(part)?;
        let owned = Owned { uid: facts.uid(), gid: facts.gid(), mode: facts.mode() };
        if let Some(who) = other_than_root(part, owned) {
            return Ok(Some(format!("{} {who}, who could put another program in its place", part.display())));
        }
    }
    Ok(None)
}

fn other_than_root(part: &Path, owned: Owned) -> Option<String> {
    let Owned { uid, gid, mode } = owned;
    let installs = gid == STAFF && part.starts_with("/usr/local");
    if uid != 0 {
        Some(format!("belongs to user {uid}"))
    } else if mode & 0o002 != 0 {
        Some("can be written by everybody".into())
    } else if mode & 0o020 != 0 && gid != 0 && !installs {
        Some(format!("can be written by group {gid}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_root_alone_can_write_is_trusted() {
        let who = |part: &str, uid, gid, mode| other_than_root(Path::new(part), Owned { uid, gid, mode });
        for (part, gid, mode) in
            [("/usr/bin", 0, 0o755), ("/usr/bin", 0, 0o775), ("/usr/local/bin", 50, 0o2775), ("/opt/x", 1000, 0o755)]
        {
            assert_eq!(who(part, 0, gid, mode), None, "{part}");
        }
        assert_eq!(who("/opt/x", 1000, 0, 0o755).as_deref(), Some("belongs to user 1000"));
        assert_eq!(who("/opt/x", 0, 0, 0o757).as_deref(), Some("can be written by everybody"));
        assert_eq!(who("/opt/x", 0, 50, 0o775).as_deref(), Some("can be written by group 50"));
    }

    #[test]
    fn what_lies_among_files_of_users_is_refused() {
        let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        assert!(objection(file.path()).unwrap().unwrap().contains("below /tmp"));
        assert!(objection(Path::new("/no/such/file")).is_err());
    }
}
