//! Where the records of checks are kept: a directory in which everybody can make a file, and nobody but root can read, rename
//! or replace what others have made. So a file there names its writer by its owner, and root can believe that much of it.
//! A home, `/run/user` and `/dev/shm` are no such places. An administrator makes it (`gpuresid gen systemd-timer` says how);
//! where there is none, nothing is recorded, and nothing else changes.
//!
//! [`RecordKeeper`] is the side of a check, [`RecordPlace::read`] that of whoever comes later.

use crate::{
    model::{BootId, Fingerprint, ProcId, Process, RunMember, RunRecord, RunState, arguments_of, schema},
    observe::proc::ProcReader,
    report::pending::Pending,
    run::Chronicle,
};
use rustix::fs::OFlags;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Everybody makes, only root lists, and nobody removes what is not his.
const MODE: u32 = 0o1733;
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;
/// Larger ones are none of ours: this is some thousand processes.
const LARGEST: u64 = 1 << 20;
/// More of one user are not read: nobody checks so many runs at once, and whoever makes them up shall not keep root busy.
const MOST_OF_ONE: usize = 512;
/// While a run goes on its record is not written more often.
const PERIOD: Duration = Duration::from_secs(2);
/// How the name of a record ends.
const ENDING: &str = "run";

/// The directory.
#[derive(Debug, Clone)]
pub struct RecordPlace(PathBuf);

/// A file of the directory.
#[derive(Debug)]
pub struct Recorded {
    /// Its path.
    pub path: PathBuf,
    /// Whose it is.
    pub owner: u32,
    /// What it says.
    pub record: RunRecord,
}

impl RecordPlace {
    /// The directory, if it can be trusted.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        if !path.is_absolute() {
            return Err(format!("{shown} is not an absolute path"));
        }
        for part in path.ancestors() {
            let facts = fs::symlink_metadata(part).map_err(|error| format!("{}: {error}", part.display()))?;
            let (mode, part) = (facts.mode() & 0o7777, part.display());
            if !facts.is_dir() {
                return Err(format!("{part} is no directory"));
            } else if facts.uid() != 0 {
                return Err(format!("{part} belongs to user {}, and not to root", facts.uid()));
            } else if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
                return Err(format!("in {part} others than root can rename what is not theirs"));
            }
        }
        match fs::symlink_metadata(path).map(|facts| facts.mode() & 0o7777) {
            Ok(MODE) => Ok(Self(path.into())),
            Ok(mode) => Err(format!("the mode of {shown} is {mode:o} and not {MODE:o}")),
            Err(error) => Err(format!("{shown}: {error}")),
        }
    }

    /// The records in it that can be read as such. What is no plain file of one name is none: somebody else may have made
    /// the second name, or may change what it leads to.
    ///
    /// # Errors
    /// If it cannot be listed: only root can.
    pub fn read(&self) -> io::Result<Vec<Recorded>> {
        let Self(path) = self;
        let ours = |path: &PathBuf| path.extension() == Some(OsStr::new(ENDING));
        let paths = fs::read_dir(path)?.flatten().map(|entry| entry.path()).filter(ours);
        let mut of_each: BTreeMap<u32, usize> = BTreeMap::new();
        let within = |path: &PathBuf| {
            let Ok(owner) = fs::symlink_metadata(path).map(|facts| facts.uid()) else { return false };
            let known = of_each.entry(owner).or_default();
            *known += 1;
            *known <= MOST_OF_ONE
        };
        Ok(paths.filter(within).filter_map(|path| read(&path)).collect())
    }

    /// The path of a file beside it, where users make none.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.0.with_file_name(name)
    }
}

/// Opens what can be believed to be its owner's, and that owner: a plain file of one name, and not a large one.
pub(super) fn open(path: &Path) -> Option<(io::Take<File>, u32)> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let facts = file.metadata().ok().filter(|facts| facts.is_file() && facts.nlink() == 1 && facts.len() <= LARGEST)?;
    Some((file.take(LARGEST), facts.uid()))
}

fn read(path: &Path) -> Option<Recorded> {
    let (mut file, owner) = open(path)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    let record: RunRecord = serde_json::from_slice(&text).ok()?;
    (record.schema == schema::RECORD).then(|| Recorded { path: path.into(), owner, record })
}

impl Recorded {
    /// It is of this boot, and its numbers are those that we see.
    pub fn is_of_here(&self, boot_id: &BootId, pid_namespace: Option<u64>) -> bool {
        self.record.boot_id == *boot_id && Some(self.record.pid_namespace) == pid_namespace
    }

    /// The run is over: it says so, or whoever would have said so is gone; and the command is gone in any case.
    pub fn is_over(&self, reader: &ProcReader) -> bool {
        let said = self.record.state == RunState::Ended || is_gone(reader, self.record.writer);
        said && is_gone(reader, self.record.command)
    }

    /// Nobody of whom it tells can be there any more.
    pub fn is_stale(&self, boot_id: &BootId, reader: &ProcReader) -> bool {
        let RunRecord { writer, command, members, .. } = &self.record;
        self.record.boot_id != *boot_id
            || [*writer, *command]
                .into_iter()
                .chain(members.iter().map(|member| member.id))
                .all(|id| is_gone(reader, id))
    }
}

/// The process, if it lives.
fn living(reader: &ProcReader, id: ProcId) -> anyhow::Result<Option<Process>> {
    Ok(reader.find(id)?.filter(|process| !process.is_zombie()))
}

/// What cannot be looked at may live.
fn is_gone(reader: &ProcReader, id: ProcId) -> bool {
    living(reader, id).is_ok_and(|found| found.is_none())
}

/// Keeps the record of one run. Whatever goes wrong is silent: a run must not depend on it.
#[derive(Debug)]
pub struct RecordKeeper {
    path: PathBuf,
    reader: ProcReader,
    record: RunRecord,
    /// There is a file.
    is_written: bool,
    looked: Option<Instant>,
}

impl Chronicle for RecordKeeper {
    fn lives(&mut self, command: ProcId, living: &[Process]) {
        if self.looked.is_some_and(|at| at.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        self.record.command = command;
        if self.take(living, true) {
            self.write();
        }
    }
}

impl RecordKeeper {
    /// For a run of this marker that we watch; `None` where there is no place for it.
    pub fn open(place: &Path, reader: &ProcReader, boot_id: &BootId, run_id: &str, leave: bool) -> Option<Self> {
        let RecordPlace(place) = RecordPlace::open(place).ok()?;
        let observer = reader.observer();
        // A name that nobody can take beforehand.
        let name = format!("{run_id}-{:016x}.{ENDING}", RandomState::new().hash_one(run_id));
        let record = RunRecord {
            schema: schema::RECORD.into(),
            tool_version: env!("CARGO_PKG_VERSION").into(),
            run_id: run_id.into(),
            boot_id: boot_id.clone(),
            pid_namespace: observer.pid_namespace.filter(|_| !observer.foreign_procfs)?,
            writer: observer.id,
            command: ProcId { pid: 0, start_ticks: 0 },
            state: RunState::Running,
            ended_at: None,
            leave,
            members: Vec::new(),
        };
        Some(Self { path: place.join(name), reader: reader.clone(), record, is_written: false, looked: None })
    }

    /// The verdict is made, and these live.
    pub fn ended(&mut self, command: ProcId, survivors: impl Iterator<Item = ProcId>) {
        let survivors: Vec<Process> = survivors.filter_map(|id| living(&self.reader, id).ok().flatten()).collect();
        self.record.command = command;
        self.record.state = RunState::Ended;
        self.record.ended_at = Some(jiff::Timestamp::now().to_string());
        self.take(&survivors, false);
        if self.record.members.is_empty() {
            self.remove();
        } else {
            self.write();
        }
    }

    /// Takes them down; whether anything is not as it was. Who looks the same is not read again where that is `cheap`: what
    /// this misses makes the record disbelieved, and nothing else.
    fn take(&mut self, living: &[Process], cheap: bool) -> bool {
        let known: BTreeMap<ProcId, &RunMember> = self.record.members.iter().map(|m| (m.id, m)).collect();
        let member = |process: &Process| {
            let same = |member: &&&RunMember| {
                let Fingerprint { uid, arguments, cgroup, .. } = &member.fingerprint;
                (uid, *arguments, cgroup) == (&process.uid, arguments_of(&process.argv), &process.cgroup)
            };
            if let Some(member) = known.get(&process.id).filter(|_| cheap).filter(same) {
                return Some(RunMember::clone(member));
            }
            let fingerprint = self.reader.fingerprint(process)?;
            Some(RunMember { id: process.id, fingerprint })
        };
        let members: Vec<RunMember> = living.iter().filter_map(member).collect();
        let same = known.len() == members.len() && members.iter().all(|m| known.get(&m.id).is_some_and(|k| *k == m));
        self.record.members = members;
        !same
    }

    fn write(&mut self) {
        let Ok(text) = serde_json::to_vec(&self.record) else { return };
        let written = Pending::open(&self.path).and_then(|file| file.write(|out| out.write_all(&text)));
        self.is_written |= written.is_ok();
    }

    fn remove(&self) {
        if self.is_written {
            let _ = fs::remove_file(&self.path);
        }
    }
}
