//! One look at a time for the commands that have no run to watch: starts the driver, scans `/proc` beside it, and joins
//! the two into a [`Snapshot`].

use super::{
    SnapshotParts, assemble,
    driver::{Client, Extras, Failure, FailureKind, Inventory, Message, Options, Placement, Source},
    marker,
    proc::{ProcOptions, ProcReader, Scan},
    select::Selection,
};
use crate::model::{BootId, Gap, Look, Observer, ProcId, Snapshot, Uuid};
use anyhow::Context;
use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// After this time the user is told what is waited for.
const A_WORD_AFTER: Duration = Duration::from_secs(3);

/// What to look at, and through what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// Where device readings come from.
    pub source: Source,
    /// Where processes are read.
    pub proc: ProcOptions,
    /// Which devices.
    pub selection: Selection,
    /// Longest time for opening the driver.
    pub open_timeout: Duration,
    /// Longest time for one look.
    pub look_timeout: Duration,
    /// What snapshots read beside memory and lists.
    pub extras: Extras,
}

/// A driver that answers, and a `/proc` to go with it.
pub struct Session {
    client: Client,
    messages: Receiver<Message>,
    reader: ProcReader,
    observer: Observer,
    boot_id: BootId,
    inventory: Inventory,
    selected: Vec<Uuid>,
    began: Instant,
    /// The scan that ran while the driver opened; the first snapshot takes it.
    first_scan: Option<JoinHandle<Scan>>,
    extras: Extras,
}

/// A driver that does not answer.
#[derive(Debug)]
pub struct Unanswered {
    /// Why.
    pub failure: Failure,
    /// The helper that asked it: it may hang, with the driver's files open.
    pub tool_processes: Vec<ProcId>,
}

/// Who has NVIDIA's files open, from `/proc` alone: what can be said where the driver does not answer.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn look_at_files(options: &ProcOptions, tool_processes: Vec<ProcId>) -> anyhow::Result<Snapshot> {
    let reader = ProcReader::new(options.clone())?;
    let boot_id = reader.boot_id()?;
    let observer = Observer { tool_processes, ..reader.observer() };
    let mut scan = reader.scan(&[]);
    marker::look_for_runs(&reader, &boot_id, observer.pid_namespace, &mut scan.processes);
    Ok(assemble(SnapshotParts {
        inventory: None,
        selected: &[],
        look: None,
        scan: Some(scan),
        observer,
        boot_id,
        gaps: Vec::new(),
    }))
}

impl Session {
    /// Opens the driver. `slow` is called once if that takes more than three seconds.
    ///
    /// # Errors
    /// If the driver does not answer (its [`super::driver::Failure`] with a hint), if no selected device is there, or
    /// if `/proc` cannot be read.
    pub fn open(options: &SessionOptions, slow: impl FnOnce()) -> anyhow::Result<Self> {
        Self::open_or_why_not(options, slow)?.map_err(|unanswered| anyhow::Error::new(unanswered.failure))
    }

    /// As [`Self::open`], for who has something to say where the driver does not answer.
    ///
    /// # Errors
    /// If no selected device is there, or if `/proc` cannot be read.
    pub fn open_or_why_not(options: &SessionOptions, slow: impl FnOnce()) -> anyhow::Result<Result<Self, Unanswered>> {
        let began = Instant::now();
        let reader = ProcReader::new(options.proc.clone())?;
        let boot_id = reader.boot_id()?;
        let (sender, messages) = channel();
        let driver = Options {
            source: options.source.clone(),
            placement: Placement::Child,
            open_timeout: options.open_timeout,
            look_timeout: options.look_timeout,
            events: false,
            procfs: options.proc.procfs.clone(),
        };
        let client = Client::start(&driver, move |message| {
            // Nobody listens any more once the session has ended.
            let _ = sender.send(message);
        })?;
        let scanner = {
            let reader = reader.clone();
            thread::Builder::new()
                .name("scan".into())
                .spawn(move || reader.scan(&[]))
                .context("cannot start a thread")?
        };
        let inventory = match wait_for_opened(&messages, slow) {
            Ok(inventory) => inventory,
            Err(failure) => return Ok(Err(Unanswered { failure, tool_processes: client.tool_processes() })),
        };
        let selected = options.selection.resolve(&inventory)?;
        let mut observer = reader.observer();
        observer.tool_processes = client.tool_processes();
        Ok(Ok(Self {
            client,
            messages,
            reader,
            observer,
            boot_id,
            inventory,
            selected,
            began,
            first_scan: Some(scanner),
            extras: options.extras,
        }))
    }

    /// The devices that there are.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The running boot.
    pub fn boot_id(&self) -> &BootId {
        &self.boot_id
    }

    /// From now on only these devices.
    pub fn select(&mut self, devices: Vec<Uuid>) {
        self.selected = devices;
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        self.client.request_look(&self.selected, self.extras);
        let observer = self.observer();
        let look = self.wait_for_look(self.extras)?;
        let scan = self.first_scan.take().and_then(|scanner| scanner.join().ok());
        let mut scan = scan.unwrap_or_else(|| self.reader.scan(&listed_pids(&look)));
        self.complete(&mut scan, &look);
        marker::look_for_runs(&self.reader, &self.boot_id, observer.pid_namespace, &mut scan.processes);
        Ok(assemble(SnapshotParts {
            inventory: Some(&self.inventory),
            selected: &self.selected,
            look: Some(&look),
            scan: Some(scan),
            observer,
            boot_id: self.boot_id.clone(),
            gaps: Vec::new(),
        }))
    }

    /// As [`Self::snapshot`], for who has something to say where the driver does not answer.
    ///
    /// # Errors
    /// If it is not the driver that does not answer.
    pub fn snapshot_or_why_not(&mut self) -> anyhow::Result<Result<Snapshot, Unanswered>> {
        self.snapshot().map(Ok).or_else(|error| {
            let failure = error.downcast::<Failure>()?;
            Ok(Err(Unanswered { failure, tool_processes: self.client.tool_processes() }))
        })
    }

    /// Reads the devices alone: cheap enough to ask many times a second.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn look(&mut self) -> anyhow::Result<Look> {
        // By the time of a later snapshot it would be old.
        self.first_scan = None;
        self.client.request_look(&self.selected, Extras::default());
        self.wait_for_look(Extras::default())
    }

    fn wait_for_look(&self, extras: Extras) -> anyhow::Result<Look> {
        let mut again = true;
        loop {
            match self.messages.recv() {
                // A library that crashes once may do its work the next time.
                Ok(Message::Look(Err(failure))) if failure.kind == FailureKind::HelperDied && again => {
                    again = false;
                    self.client.try_afresh();
                    self.client.request_look(&self.selected, extras);
                }
                Ok(Message::Look(look)) => {
                    let mut look = look.map_err(anyhow::Error::new)?;
                    look.at_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    return Ok(look);
                }
                Ok(Message::Events(_) | Message::Opened(_) | Message::Heard(_)) => {}
                Err(_) => return Err(anyhow::Error::new(ended())),
            }
        }
    }

    /// The scan may be older than the look: whoever ended in between held nothing at the time of the look, and whoever
    /// is listed and was not there yet is examined now.
    fn complete(&self, scan: &mut Scan, look: &Look) {
        scan.processes.retain(|process| match self.reader.identify(process.id.pid) {
            Ok(now) => now.is_some_and(|now| now.id == process.id),
            Err(_) => true,
        });
        for pid in listed_pids(look) {
            if scan.processes.iter().any(|p| p.id.pid == pid) {
                continue;
            }
            match self.reader.examine(pid) {
                Ok(Some(process)) => scan.processes.push(process),
                // Gone, which with the entry in the list makes it a ghost.
                Ok(None) => {}
                Err(error) => scan.gaps.push(Gap::new(format!("process {pid}"), format!("{error:#}"))),
            }
        }
    }

    /// Our own helper had not opened all of its files when the scan saw it, and they are the measure for others.
    fn observer(&self) -> Observer {
        let mut observer = self.observer.clone();
        observer.nvml_client_files = observer
            .tool_processes
            .iter()
            .filter_map(|tool| self.reader.examine(tool.pid).ok()?.filter(|p| p.id == *tool)?.files)
            .filter(|files| files.total() > 0)
            .max_by_key(super::super::model::DeviceFiles::total);
        observer
    }
}

fn listed_pids(look: &Look) -> Vec<u32> {
    let mut pids: Vec<u32> = look.devices.iter().flat_map(|d| d.entries.iter().flatten()).map(|e| e.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn wait_for_opened(messages: &Receiver<Message>, slow: impl FnOnce()) -> Result<Inventory, Failure> {
    let mut first = messages.recv_timeout(A_WORD_AFTER);
    if matches!(first, Err(RecvTimeoutError::Timeout)) {
        slow();
        first = messages.recv().map_err(|_| RecvTimeoutError::Disconnected);
    }
    match first {
        Ok(Message::Opened(opened)) => opened,
        Ok(Message::Look(_) | Message::Events(_) | Message::Heard(_)) | Err(_) => Err(ended()),
    }
}

fn ended() -> Failure {
    Failure::new(FailureKind::HelperDied, "the driver helper ended without an answer")
}
