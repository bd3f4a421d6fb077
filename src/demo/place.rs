//! Where a case takes place: a private directory with the ledger of a simulated GPU, stand-ins for its device files, a
//! name for each program, and two locks that replace signals.
//!
//! The owner of the place holds `demo.lock` as long as the case goes on; a program that finds it free ends, even if
//! the owner was killed. Every program holds `programs.lock` together with the others as long as it lives, so the
//! owner knows when the last one has ended, whoever its parent is.

use super::program::Role;
use crate::observe::driver::ledger::{Ledger, Machine};
use anyhow::Context;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The programs look every few milliseconds; this is for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(20);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Files that programs may open as they would open the device files.
const NODES: [&str; 3] = ["nvidia0", "nvidiactl", "nvidia-uvm"];

/// The owner's side.
#[derive(Debug)]
pub struct Place {
    directory: TempDir,
    /// `None` once the case is over.
    goes_on: Option<File>,
}

impl Place {
    /// A new place.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> anyhow::Result<Self> {
        let above = std::env::temp_dir();
        Self::make(&above).map_err(|error| {
            crate::error::hinted(
                format!("cannot set the demo up in {}: {error:#}", above.display()),
                "set TMPDIR to a directory that you can write: TMPDIR=. gpuresid demo",
            )
        })
    }

    fn make(above: &Path) -> anyhow::Result<Self> {
        // The helper that reads the ledger and the programs have other working directories.
        let above = fs::canonicalize(above)?;
        let directory = tempfile::Builder::new()
            .prefix("gpuresid-demo-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(above)?;
        let inside = directory.path();
        let paths = Paths::of(inside);
        Ledger::create(paths.ledger, &Machine::h200(1))?;
        fs::create_dir(&paths.dev)?;
        for node in NODES {
            File::create(paths.dev.join(node))?;
        }
        let binary = std::env::current_exe().context("cannot find the file of gpuresid itself")?;
        for role in Role::ALL {
            symlink(&binary, inside.join(role.file()))?;
        }
        File::create(inside.join(PROGRAMS))?;
        let goes_on = File::create(inside.join(DEMO))?;
        flock(&goes_on, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { directory, goes_on: Some(goes_on) })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What is in it.
    pub fn paths(&self) -> Paths {
        Paths::of(self.path())
    }

    /// Waits for a program's mark; false if it does not come.
    pub(super) fn wait_for(&self, mark: &str) -> bool {
        let path = self.path().join(mark);
        let until = Instant::now() + PATIENCE;
        while !path.exists() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        true
    }

    /// The case is over: the programs end.
    pub fn end(&mut self) {
        self.goes_on = None;
    }

    /// Lets the programs end, waits until they have, and takes the directory away.
    ///
    /// # Errors
    /// If a program does not end, or the directory cannot be removed.
    pub fn close(mut self) -> anyhow::Result<()> {
        self.end();
        let directory = self.directory;
        let programs = File::open(directory.path().join(PROGRAMS))?;
        let until = Instant::now() + PATIENCE;
        loop {
            // Held on success: a program that comes late finds it taken and does not begin.
            match flock(&programs, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(BETWEEN_LOOKS),
                Err(Errno::WOULDBLOCK) => {
                    anyhow::bail!(
                        "a program of the demo does not end; it was started in {}",
                        directory.path().display()
                    )
                }
                Err(other) => return Err(other.into()),
            }
        }
        let path = directory.path().to_owned();
        directory.close().with_context(|| format!("cannot remove {}", path.display()))
    }
}

const DEMO: &str = "demo.lock";
const PROGRAMS: &str = "programs.lock";

/// What is in a place.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The ledger of the simulated GPU.
    pub ledger: PathBuf,
    /// The stand-ins for the device files.
    pub dev: PathBuf,
    /// Where the case's report goes.
    pub report: PathBuf,
}

impl Paths {
    /// Those of the place in this directory.
    pub fn of(directory: &Path) -> Self {
        Self { ledger: directory.join("ledger"), dev: directory.join("dev"), report: directory.join("report.json") }
    }
}

/// A program's side.
#[derive(Debug)]
pub(super) struct Inside {
    directory: PathBuf,
    _lives: File,
}

impl Inside {
    /// The place in the working directory.
    ///
    /// # Errors
    /// If there is none, or its case is over.
    pub(super) fn enter() -> io::Result<Self> {
        let directory = std::env::current_dir()?;
        let lives = File::open(directory.join(PROGRAMS))?;
        flock(&lives, FlockOperation::NonBlockingLockShared)?;
        let inside = Self { directory, _lives: lives };
        if inside.is_over() { Err(io::ErrorKind::NotFound.into()) } else { Ok(inside) }
    }

    /// Whether the case is over, its directory gone included.
    pub(super) fn is_over(&self) -> bool {
        let Ok(file) = File::open(self.directory.join(DEMO)) else { return true };
        flock(&file, FlockOperation::NonBlockingLockShared) != Err(Errno::WOULDBLOCK)
    }

    /// Waits until `done`, the end of the case, or this time; whether it is done.
    pub(super) fn wait(&self, at_most: Duration, mut done: impl FnMut() -> bool) -> bool {
        let until = Instant::now() + at_most;
        while Instant::now() < until && !self.is_over() {
            if done() {
                return true;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        done()
    }

    /// A path inside.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The ledger.
    pub(super) fn ledger(&self) -> Ledger {
        Ledger::open(Paths::of(&self.directory).ledger)
    }

    /// Opens a stand-in so many times, as CUDA does.
    pub(super) fn open(&self, node: &str, times: usize) -> io::Result<Vec<File>> {
        let path = Paths::of(&self.directory).dev.join(node);
        (0..times).map(|_| File::options().read(true).write(true).open(&path)).collect()
    }
}
