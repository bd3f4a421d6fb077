//! The probe's directories that a killed gpuresid could not take away. Each gpuresid locks its own as long as it lives;
//! so one that nobody locks is nobody's, whatever PID namespace its owner lived in.

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, fstat, open},
    process::geteuid,
};
use std::{
    fs::{self, File},
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::Duration,
};

/// How the names of these directories begin.
pub(super) const PREFIX: &str = "gpuresid-torch-";
/// A younger one may not have got its lock yet.
const OLD: Duration = Duration::from_secs(60);

/// Locks a directory of ours for as long as the answer lives.
///
/// # Errors
/// If it cannot be opened or locked.
pub(super) fn lock(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(directory, flags, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(File::from(file))
}

/// Removes what nobody holds. What cannot be removed stays: it is not what the user asked for.
pub(super) fn remove(place: &Path) {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    for path in entries.filter(|e| e.file_name().as_bytes().starts_with(PREFIX.as_bytes())).map(|e| e.path()) {
        let Ok(locked) = lock(&path) else { continue };
        let ours = fstat(&locked).is_ok_and(|stat| stat.st_uid == geteuid().as_raw());
        let changed = locked.metadata().and_then(|m| m.modified());
        if ours && changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > OLD)) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}
