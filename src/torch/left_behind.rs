//! The probe's directories that a killed gpuresid could not take away. Each gpuresid locks its own as long as it lives;
//! so one that nobody locks is nobody's, whatever PID namespace its owner lived in. A lock may be unknown to another
//! machine that has the same file system, so the name says which boot it is of; and a directory that only happens to be
//! named so is told by what lies in it.

use super::{FILES, STARTED};
use crate::model::BootId;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    process::geteuid,
};
use std::{
    fs::{self, File},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    time::Duration,
};
use tempfile::TempDir;

/// How the names of these directories begin.
const PREFIX: &str = "gpuresid-torch-";
/// Random letters and digits at their end.
const RANDOM: usize = 6;
/// What a directory that is being removed has behind them.
pub(super) const GONE: &str = "-gone";
/// A younger one may not have got its lock yet.
const OLD: Duration = Duration::from_secs(60);

/// An empty directory of ours, which nobody else may enter.
///
/// # Errors
/// If it cannot be made.
pub(super) fn make(boot: Option<&BootId>) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(&prefix(boot)).rand_bytes(RANDOM).tempdir()
}

/// Locks a directory of ours for as long as the answer lives.
///
/// # Errors
/// If it cannot be opened or locked.
pub(super) fn lock(directory: &Path) -> io::Result<File> {
    let file = opened(directory)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes what nobody of this boot holds. What cannot be removed stays: it is not what the user asked for.
pub(super) fn remove(place: &Path, boot: &BootId) {
    let prefix = prefix(Some(boot));
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    for path in entries.filter(|e| is_name(e.file_name().as_bytes(), &prefix)).map(|e| e.path()) {
        // Its owner may be about to lock a young one: it is not even tried.
        let Ok(file) = opened(&path) else { continue };
        let locked = is_old_and_ours(&file) && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if locked && holds_the_probe_alone(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn prefix(boot: Option<&BootId>) -> String {
    boot.map_or_else(|| PREFIX.to_owned(), |boot| format!("{PREFIX}{}-", boot.short()))
}

fn is_name(name: &[u8], prefix: &str) -> bool {
    let Some(rest) = name.strip_prefix(prefix.as_bytes()) else { return false };
    let rest = rest.strip_suffix(GONE.as_bytes()).unwrap_or(rest);
    rest.len() == RANDOM && rest.iter().all(u8::is_ascii_alphanumeric)
}

fn opened(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(open(directory, flags, Mode::empty())?))
}

fn is_old_and_ours(directory: &File) -> bool {
    directory.metadata().is_ok_and(|facts| {
        let old = facts.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > OLD));
        old && facts.uid() == geteuid().as_raw() && facts.mode() & 0o077 == 0
    })
}

/// Nothing lies in it but what we, the probe and Python write.
fn holds_the_probe_alone(directory: &Path) -> bool {
    let ours = |name: &[u8]| {
        let record = name.strip_suffix(b".new").unwrap_or(name);
        let probe = FILES.iter().any(|(file, _)| file.as_bytes() == name);
        probe || name == STARTED.as_bytes() || name == b"__pycache__" || record.ends_with(b".json")
    };
    fs::read_dir(directory)
        .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|e| ours(e.file_name().as_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt, symlink},
        time::SystemTime,
    };

    #[test]
    fn only_an_old_private_directory_of_the_probe_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let boot = BootId("0d5c1c2a-1111-2222-3333-444444444444".into());
        let prefix = prefix(Some(&boot));
        let made = |name: &str, files: &[&str]| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            for file in files {
                fs::write(path.join(file), "").unwrap();
            }
            path
        };
        let probe = ["sitecustomize.py", "probe.py", STARTED, "7-70.json", "8-80.json.new"];
        let left = [made(&format!("{prefix}aB3def"), &probe), made(&format!("{prefix}aB3deg{GONE}"), &[])];
        let stay = [
            made("gpuresid-torch-report", &["result.json"]),
            made(&format!("{PREFIX}00000000-aB3def"), &probe),
            made(&format!("{prefix}aB3deh"), &["sitecustomize.py", "thesis.tex"]),
            made(&format!("{prefix}aB3dei"), &probe),
            made(&format!("{prefix}locked"), &probe),
        ];
        fs::set_permissions(&stay[3], Permissions::from_mode(0o755)).unwrap();
        for path in left.iter().chain(&stay) {
            File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        let young = made(&format!("{prefix}youngs"), &probe);
        let target = made("target", &probe);
        File::open(&target).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        symlink(&target, place.path().join(format!("{prefix}linked"))).unwrap();
        let _lock = lock(&stay[4]).unwrap();
        remove(place.path(), &boot);
        assert!(left.iter().all(|path| !path.exists()));
        assert!(stay.iter().chain([&young, &target]).all(|path| path.exists()));
        assert_eq!(fs::read_dir(&target).unwrap().count(), probe.len());
    }
}
