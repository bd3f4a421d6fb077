//! Who of the run keeps our output open. Whatever reads it through a pipe (`| tee log`, `$(…)`, a CI job) waits for the
//! end of everybody who has that pipe, and not for ours.

use crate::model::{ProcId, Process};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// Those of these processes that have a pipe or socket open that is our standard output or error. Who may not be looked
/// at is not among them.
pub(super) fn keepers(procfs: &Path, living: &[Process]) -> Vec<ProcId> {
    let ours = ours();
    let keeps = |process: &&Process| {
        let files = fs::read_dir(procfs.join(process.id.pid.to_string()).join("fd"));
        files.into_iter().flatten().flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| ours.contains(&to)))
    };
    if ours.is_empty() { Vec::new() } else { living.iter().filter(keeps).map(|p| p.id).collect() }
}

/// As `/proc` names them. A terminal and a file wait for nobody.
fn ours() -> BTreeSet<PathBuf> {
    let places = ["/proc/self/fd/1", "/proc/self/fd/2"].map(Path::new).into_iter();
    let read_by_somebody =
        |place: &&Path| fs::metadata(place).is_ok_and(|m| m.file_type().is_fifo() || m.file_type().is_socket());
    places.filter(read_by_somebody).filter_map(|place| fs::read_link(place).ok()).collect()
}
