//! The view from inside PyTorch that `check --torch` adds: lays the probe (four small Python files) into a private
//! directory at the head of the command's PYTHONPATH, and reads what it wrote there. What that means is said in
//! `judge/torch`.
//!
//! The files come from processes of the command, so they are data of a stranger: limited in number and size, no links
//! followed, and one that cannot be read is a gap.

mod left_behind;
#[cfg(test)]
mod tests;

use crate::{
    error::hinted,
    model::{BootId, Gap, ProcId, TorchRecord, TorchStart, TorchView},
};
use rustix::{
    fs::{Mode, OFlags},
    thread::ClockId,
    time::clock_gettime,
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File, Permissions},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    time::Instant,
};

/// The probe: what every Python process runs at its start, and what is loaded once CUDA is in use.
const FILES: [(&str, &str); 4] = [
    ("sitecustomize.py", include_str!("sitecustomize.py")),
    ("probe.py", include_str!("probe.py")),
    ("tensors.py", include_str!("tensors.py")),
    ("names.py", include_str!("names.py")),
];
/// Where the probe notes that it was started.
const STARTED: &str = "started";
/// Form of the records that this version reads.
const SCHEMA: &str = "gpuresid.torch/1";
/// Largest record: a full one has some 30 kB.
const LARGEST: u64 = 4 << 20;
/// Records that are read.
const MOST: usize = 4096;
/// Of the notes of started processes, 20 bytes each.
const LARGEST_NOTES: u64 = 16 << 20;

/// The probe in its directory. Dropping it takes the directory away; a probe in a process that lives on then falls
/// silent.
#[derive(Debug)]
pub struct Probe {
    directory: PathBuf,
    /// Says that the directory is in use; `None` where the file system knows no locks, and so nobody removes it.
    _lock: Option<File>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Processes that live on go on writing. Under another name they do not find it, so that nothing comes into it
        // while it is emptied.
        let mut aside = self.directory.clone().into_os_string();
        aside.push(left_behind::GONE);
        let moved = fs::rename(&self.directory, &aside).is_ok();
        let place = if moved { PathBuf::from(aside) } else { self.directory.clone() };
        // What cannot be removed lies in the directory for temporary files; there is nobody to tell any more.
        let _ = fs::remove_dir_all(place);
    }
}

impl Probe {
    /// Lays the files out, and removes what a killed gpuresid of this boot left. `None`: which boot it is is not known.
    ///
    /// # Errors
    /// If there is no place for them.
    pub fn prepare(boot: Option<&BootId>) -> anyhow::Result<Self> {
        let place = env::temp_dir();
        if place.as_os_str().as_bytes().contains(&b':') {
            return Err(hinted(
                format!(
                    "--torch cannot use the directory {}: a colon separates the entries of PYTHONPATH",
                    place.display()
                ),
                "set TMPDIR to a directory without a colon in its name",
            ));
        }
        if let Some(boot) = boot {
            left_behind::remove(&place, boot);
        }
        let laid = left_behind::make(boot).and_then(|directory| {
            let path = fs::canonicalize(directory.path())?;
            fs::set_permissions(&path, Permissions::from_mode(0o700))?;
            for (name, text) in FILES {
                fs::write(path.join(name), text)?;
            }
            let lock = left_behind::lock(&path).ok();
            Ok(Self { directory: directory.keep(), _lock: lock })
        });
        laid.map_err(|error| {
            hinted(
                format!("--torch could not write its files below {}: {error}", place.display()),
                "set TMPDIR to a directory that you may write to, or leave --torch out",
            )
        })
    }

    /// What the command's environment needs: our directory before its own PYTHONPATH.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let name = OsStr::new("PYTHONPATH");
        let mut value = self.directory.clone().into_os_string();
        if let Some(own) = env::var_os(name).filter(|own| !own.is_empty()) {
            value.push(":");
            value.push(own);
        }
        vec![(name.to_owned(), value)]
    }

    /// Reads what was told. `began`: when the observation began.
    pub fn collect(self, began: Instant) -> TorchView {
        read(&self.directory, monotonic_ms(began))
    }
}

/// The moment `began` on the clock that the probe uses, in milliseconds.
fn monotonic_ms(began: Instant) -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let now = u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
    now.saturating_sub(u64::try_from(began.elapsed().as_millis()).unwrap_or(0))
}

fn read(directory: &Path, zero: u64) -> TorchView {
    let mut view = TorchView::default();
    match read_file(&directory.join(STARTED), LARGEST_NOTES) {
        Ok(notes) => view.started = String::from_utf8_lossy(&notes).lines().filter_map(started).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => view.gaps.push(Gap::new("PyTorch", format!("which processes had the probe is unknown: {error}"))),
    }
    let names = fs::read_dir(directory).map(|entries| {
        let names = entries.flatten().map(|e| e.file_name()).filter(|name| name.as_bytes().ends_with(b".json"));
        names.collect::<Vec<_>>()
    });
    let mut names = match names {
        Ok(names) => names,
        Err(error) => {
            view.gaps.push(Gap::new("PyTorch", format!("the probe's directory could not be read: {error}")));
            return view;
        }
    };
    names.sort();
    if names.len() > MOST {
        let reason = format!("{} processes told of their tensors; the first {MOST} were read", names.len());
        view.gaps.push(Gap::new("PyTorch", reason));
        names.truncate(MOST);
    }
    for name in names {
        match record(&directory.join(&name), zero) {
            Ok(record) => view.records.push(record),
            Err(error) => {
                let reason = format!("what process {} told could not be read: {error:#}", shown(&name));
                view.gaps.push(Gap::new("PyTorch", reason));
            }
        }
    }
    view
}

/// `PID` of `PID-START.json`, made safe to show.
fn shown(name: &OsStr) -> String {
    let name = crate::text::clean(&name.to_string_lossy());
    name.split(['-', '.']).next().unwrap_or_default().chars().take(20).collect()
}

fn started(line: &str) -> Option<TorchStart> {
    let mut words = line.split(' ');
    let id = ProcId { pid: words.next()?.parse().ok()?, start_ticks: words.next()?.parse().ok()? };
    Some(TorchStart { id, forked_from: words.next()?.parse().ok().filter(|pid| *pid != 0) })
}

fn record(path: &Path, zero: u64) -> anyhow::Result<TorchRecord> {
    let bytes = read_file(path, LARGEST)?;
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|_| anyhow::anyhow!("it is damaged"))?;
    anyhow::ensure!(value.get("schema").and_then(|s| s.as_str()) == Some(SCHEMA), "it has another form");
    let mut record: TorchRecord = serde_json::from_value(value).map_err(|_| anyhow::anyhow!("it is damaged"))?;
    // Written in the clock of the machine; in the observation everything counts from its beginning. A process in
    // another time namespace has another clock.
    let ours = |ms: u64| ms.checked_sub(zero);
    record.timeline = record.timeline.into_iter().filter_map(|(at, d, a, r)| Some((ours(at)?, d, a, r))).collect();
    record.at_ms = record.at_ms.and_then(ours);
    Ok(record)
}

/// A regular file of ours, not longer than `most`.
fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // A named pipe would block, a link could lead anywhere.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other("it is too large")),
        false => Ok(bytes),
    }
}
