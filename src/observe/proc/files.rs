//! The scan of open files: the hot path. A link is read for every descriptor of the machine, so nothing here takes a
//! path from the root, allocates for a file of no interest, or stats a file without a telling name.
//!
//! Which threads are read: the main thread always. The threads of a process share one table as a rule; the others are
//! read where that is in doubt:
//! - the main thread is gone, and its table reads as empty while others hold files;
//! - a thread has another number of files open than the main thread (told by kernels from 6.2 on);
//! - the caller must be sure (NVML lists the process, or somebody asks for it alone) and the main thread has none.
//!
//! A file counts once for each descriptor number and node, over all tables, so that a table that is read twice, or was
//! copied, does not count twice.

use super::{
    handle::{PidDir, denied, gone, list, numbers, numbers_in},
    nodes::Nodes,
};
use crate::model::DeviceFiles;
use rustix::{
    fs::{AtFlags, FileType, StatxFlags, readlinkat_raw, statx},
    io::Errno,
};
use std::{collections::BTreeSet, mem::MaybeUninit, os::fd::AsFd};

/// Tables of other threads that are read for one process when nobody insists: a bound on a process that opens and
/// closes files so fast that every count differs.
const MOST_TABLES: usize = 64;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Files {
    /// The NVIDIA files of a process that has files open.
    Open(DeviceFiles),
    /// No table has any file at all: a kernel thread, a zombie, or a process that is closing its files right now,
    /// which hides them before it is done.
    NoTable,
    /// We may not look.
    Denied,
    /// The process ended.
    Gone,
    /// Neither of these: too many open files, for example.
    Failed(Errno),
}

/// Reads tables, with room that is used again for the next process.
pub(super) struct FileScan<'a> {
    nodes: &'a Nodes,
    room: Vec<MaybeUninit<u8>>,
    found: BTreeSet<(u32, String)>,
}

impl<'a> FileScan<'a> {
    pub(super) fn new(nodes: &'a Nodes) -> Self {
        Self { nodes, room: vec![MaybeUninit::uninit(); 16 << 10], found: BTreeSet::new() }
    }

    /// The NVIDIA files of one process. `sure`: read every thread rather than say none.
    pub(super) fn process(&mut self, dir: &PidDir, sure: bool) -> Files {
        self.found.clear();
        let files = match self.table(dir, "fd") {
            Ok(files) => files,
            Err(error) if gone(error) => return Files::Gone,
            // Without memory a process belongs to root: a zombie leader of our own is as closed as a foreign process.
            Err(error) if denied(error) => match super::facts::stat(dir) {
                Ok(Some(stat)) if stat.of_kernel() || stat.plain_zombie() => return Files::NoTable,
                Ok(Some(stat)) if stat.dead() => 0,
                Ok(None) => return Files::Gone,
                _ => return Files::Denied,
            },
            Err(error) => return Files::Failed(error),
        };
        let mut any = files > 0;
        if dir.threads() != Some(1) {
            match self.threads(dir, files, sure) {
                Ok(more) => any |= more,
                Err(error) if denied(error) => return Files::Denied,
                Err(error) if gone(error) => return Files::Gone,
                Err(error) => return Files::Failed(error),
            }
        }
        if any { Files::Open(self.count()) } else { Files::NoTable }
    }

    /// Reads the tables of the other threads where they may differ from one with `reference` files. Whether one of
    /// them has files open.
    fn threads(&mut self, dir: &PidDir, mut reference: u64, sure: bool) -> Result<bool, Errno> {
        let counts = reference > 0 && dir.open_files("fd").is_some();
        if reference > 0 && !counts && (!sure || !self.found.is_empty()) {
            return Ok(false);
        }
        let mut any = false;
        let mut tables = 0;
        for thread in numbers_in(dir, "task")?.into_iter().filter(|thread| *thread != dir.pid) {
            let name = format!("task/{thread}/fd");
            let must = sure && self.found.is_empty();
            if reference > 0 && !must && (tables >= MOST_TABLES || !differs(dir, &name, reference)) {
                continue;
            }
            match self.table(dir, &name) {
                Ok(files) => {
                    tables += 1;
                    any |= files > 0;
                    if reference == 0 {
                        reference = files;
                    }
                }
                Err(error) if gone(error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }

    /// Reads one table; the number of its files.
    fn table(&mut self, dir: &PidDir, name: &str) -> Result<u64, Errno> {
        let table = list(dir, name)?;
        let (nodes, found) = (self.nodes, &mut self.found);
        let mut files = 0;
        numbers(table.as_fd(), &mut self.room, |number, file| {
            files += 1;
            let mut room = [MaybeUninit::<u8>::uninit(); 4096];
            let link = match readlinkat_raw(&table, file, &mut room) {
                Ok((link, _)) => &*link,
                Err(error) if gone(error) => return Ok(()),
                // A path too long for the kernel's page is none of a node.
                Err(Errno::NAMETOOLONG) => return Ok(()),
                Err(error) => return Err(error),
            };
            let device = || {
                let flags = AtFlags::STATX_DONT_SYNC;
                let file = statx(&table, file, flags, StatxFlags::TYPE).ok()?;
                let kind = FileType::from_raw_mode(file.stx_mode.into());
                (kind == FileType::CharacterDevice).then_some((file.stx_rdev_major, file.stx_rdev_minor))
            };
            if let Some(node) = nodes.name(link, device) {
                found.insert((number, node));
            }
            Ok(())
        })?;
        Ok(files)
    }

    fn count(&self) -> DeviceFiles {
        let mut files = DeviceFiles::default();
        for (_, node) in &self.found {
            *files.nodes.entry(node.clone()).or_default() += 1;
        }
        files
    }
}

/// Whether the table `name` has another number of files than `reference`, and than the main thread's has by now: a file
/// that is opened in between makes a shared table look different.
fn differs(dir: &PidDir, name: &str, reference: u64) -> bool {
    let other = |than: u64| dir.open_files(name).is_some_and(|files| files != than);
    other(reference) && dir.open_files("fd").is_none_or(other)
}
