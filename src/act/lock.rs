//! One reclaim at a time on a machine: a second one would plan with what the first is ending.

use crate::error::hinted;
use anyhow::Context;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fchmod, flock, fstat, mkdir, openat};
use std::{
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Longer than one takes with the usual options.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

/// Held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

impl Lock {
    /// Waits for the lock and takes it.
    ///
    /// # Errors
    /// If another run keeps it for two minutes, or there is no place for it.
    pub fn take() -> anyhow::Result<Self> {
        let path = place();
        let file = open(&path)
            .with_context(|| format!("cannot open the lock {} that keeps two runs of reclaim apart", path.display()))?;
        let start = Instant::now();
        let mut said = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(anyhow::Error::new(error).context(format!("cannot lock {}", path.display()))),
            }
            if !said {
                said = true;
                let _ = writeln!(io::stderr(), "gpuresid: reclaim: another one is at work; waiting for it");
            }
            if start.elapsed() > PATIENCE {
                return Err(hinted(
                    format!("another gpuresid reclaim has been at work for {} s", PATIENCE.as_secs()),
                    format!("see which: fuser -v {}", path.display()),
                ));
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Root's is in /run, a user's in his own directory of the session; where there is none, a file of his own in the
/// directory for temporary files.
fn place() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return "/run/gpuresid/reclaim.lock".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute() && Path::new(dir).is_dir()) {
        Some(dir) => Path::new(&dir).join("gpuresid-reclaim.lock"),
        None => std::env::temp_dir().join(format!("gpuresid-reclaim-{}.lock", uid.as_raw())),
    }
}

/// Opens the file or makes it. In a directory that others may write to, theirs is not taken for ours.
fn open(path: &Path) -> anyhow::Result<OwnedFd> {
    if rustix::process::geteuid().is_root()
        && let Some(directory) = path.parent()
    {
        match mkdir(directory, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(CWD, path, flags, Mode::from_raw_mode(0o600))?;
    let owner = fstat(&file)?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        anyhow::bail!("it belongs to user {owner}");
    }
    fchmod(&file, Mode::from_raw_mode(0o600))?;
    Ok(file)
}
