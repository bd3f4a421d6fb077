//! What every phase of a run needs: the channel's end, the readers, the driver, ourselves.

use super::{
    before::Before,
    event::{Event, Looker},
    family::Myself,
    inbox::Inbox,
    signals::{Caught, Signals},
    worker::{Job, ScanFor, Workers},
};
use crate::{
    dispositions,
    exit::Ending,
    model::{Look, Observer, Uuid},
    observe::{
        driver::{Extras, Inventory},
        proc::ProcReader,
    },
};
use anyhow::Context;
use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

/// A word to the user is due when opening the driver takes longer.
const A_WORD_AFTER: Duration = Duration::from_secs(3);
/// How long the command waits for a slow scan.
const SCAN_PATIENCE: Duration = Duration::from_millis(50);
/// How long the before-look waits for others' memory to stand still.
const CALM_PATIENCE: Duration = Duration::from_millis(200);
/// How long after its effect a signal may be heard of.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(100);
/// Beyond the driver's own deadlines: then its client is at fault.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

/// Why a run ended before there was anything to report.
#[derive(Debug)]
pub enum Stop {
    /// It cannot be done.
    Cannot(anyhow::Error),
    /// A signal told us to end.
    Told(Ending),
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Cannot(error)
    }
}

/// A run in progress.
pub struct Session {
    pub(super) inbox: Inbox,
    pub(super) workers: Workers,
    pub(super) signals: Signals,
    pub(super) reader: ProcReader,
    pub(super) myself: Myself,
    pub(super) looker: Option<Box<dyn Looker>>,
    /// When the observation began.
    pub(super) zero: Instant,
    pub(super) look_timeout: Duration,
}

/// A driver that is not there.
struct Nobody;

impl Looker for Nobody {
    fn request_look(&self, _: &[Uuid], _: Extras) {}
    fn tool_processes(&self) -> Vec<crate::model::ProcId> {
        Vec::new()
    }
}

impl Session {
    /// Installs the signal handlers and starts to read `/proc`. Before the driver's helper is started, so that an
    /// inherited "SIGCHLD is ignored" does no harm.
    ///
    /// # Errors
    /// If the system refuses what is needed.
    pub fn start(
        reader: ProcReader,
        events: &Sender<Event>,
        received: Receiver<Event>,
        look_timeout: Duration,
    ) -> anyhow::Result<Self> {
        let myself = Myself::look(&reader.options.procfs).context("could not read /proc/self; is /proc mounted?")?;
        let signals = Signals::install(events.clone())?;
        let workers = Workers::start(&reader, events)?;
        workers.ask(Job::Scan(ScanFor::Before, Vec::new()));
        Ok(Self {
            inbox: Inbox::new(received),
            workers,
            signals,
            reader,
            myself,
            looker: None,
            zero: Instant::now(),
            look_timeout,
        })
    }

    /// The driver's client.
    pub fn set_looker(&mut self, looker: Box<dyn Looker>) {
        self.looker = Some(looker);
    }

    /// The process below which every survivor of the run stands: we.
    pub fn root(&self) -> crate::model::ProcId {
        self.myself.id
    }

    /// When the observation began.
    pub fn began(&self) -> Instant {
        self.zero
    }

    pub(super) fn looker(&self) -> &dyn Looker {
        self.looker.as_deref().unwrap_or(&Nobody)
    }

    /// Waits for the driver, selects the devices, and takes the before-look.
    ///
    /// # Errors
    /// If the driver does not answer, no device fits, or a signal told us to end.
    pub fn before(
        &mut self,
        open_timeout: Duration,
        select: impl FnOnce(&Inventory) -> anyhow::Result<Vec<Uuid>>,
    ) -> Result<Before, Stop> {
        let opened = self.wait_for(open_timeout + CLIENT_PATIENCE, true, |inbox| inbox.opened.take())?;
        let inventory = opened.context("the NVIDIA driver did not answer in time")?.map_err(anyhow::Error::new)?;
        let selected = select(&inventory)?;
        let mut look = self.look(&selected)?;
        // All is compared with this one, so others' memory should not be on the move in it.
        let calm = Instant::now() + CALM_PATIENCE;
        while look.devices.iter().any(|device| !device.agrees()) && Instant::now() < calm {
            self.inbox.wait(Instant::now() + Duration::from_millis(5));
            look = self.look(&selected)?;
        }
        look.at_ms = u64::try_from(self.zero.elapsed().as_millis()).unwrap_or(u64::MAX);
        nothing_to_measure(&look)?;
        let boot_id = self.reader.boot_id()?;
        let mut before = Before::new(inventory, selected, look, self.observer(), boot_id);
        let until = Instant::now() + SCAN_PATIENCE;
        while !before.advance(&mut self.inbox, &self.workers) && Instant::now() < until {
            self.inbox.wait(until);
            self.told_to_end()?;
        }
        Ok(before)
    }

    fn look(&mut self, selected: &[Uuid]) -> Result<Look, Stop> {
        self.looker().request_look(selected, Extras::default());
        let looked = self.wait_for(self.look_timeout + CLIENT_PATIENCE, false, |inbox| inbox.look.take())?;
        Ok(looked.context("the NVIDIA driver did not answer in time")?.map_err(anyhow::Error::new)?)
    }

    /// From where we look now.
    pub(super) fn observer(&self) -> Observer {
        let mut observer = self.reader.observer();
        observer.tool_processes = self.looker().tool_processes();
        observer
    }

    /// Waits for something to arrive; `None` when the time is over.
    fn wait_for<T>(
        &mut self,
        patience: Duration,
        mut say_so: bool,
        mut take: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<Option<T>, Stop> {
        let start = Instant::now();
        loop {
            if let Some(found) = take(&mut self.inbox) {
                return Ok(Some(found));
            }
            self.told_to_end()?;
            let waited = start.elapsed();
            if waited >= patience {
                return Ok(None);
            }
            if say_so && waited >= A_WORD_AFTER {
                say_so = false;
                let _ =
                    writeln!(io::stderr(), "gpuresid: waiting for the NVIDIA driver; the command has not started yet");
            }
            let wake = if say_so { A_WORD_AFTER } else { patience };
            self.inbox.wait(start + wake.min(patience));
        }
    }

    /// Whether a signal came while there is no command that it could be meant for: it ends us.
    ///
    /// # Errors
    /// Then.
    pub(super) fn told_to_end(&mut self) -> Result<(), Stop> {
        while let Some(Caught { signal, .. }) = self.inbox.signals.pop_front() {
            if dispositions::ends_by_default(signal) {
                return Err(Stop::Told(Ending::Signal(signal)));
            }
        }
        Ok(())
    }

    /// The result of a step that starts processes before the command. A Ctrl-C ends those too: then it is not their end
    /// that ends us, but the signal, of which we hear a moment later.
    ///
    /// # Errors
    /// If the step failed, or a signal told us to end.
    pub fn unless_told_to_end<T>(&mut self, result: anyhow::Result<T>) -> Result<T, Stop> {
        let until = Instant::now() + SIGNAL_PATIENCE;
        while result.is_err() && Instant::now() < until {
            self.told_to_end()?;
            self.inbox.wait(until);
        }
        Ok(result?)
    }

    /// Nobody waits for events from here on: the next signal that asks for an end ends the process.
    pub fn leave_at_next_signal(&self) {
        self.signals.leave_at_once();
    }
}

/// Devices that tell neither memory nor processes cannot be checked.
fn nothing_to_measure(look: &Look) -> anyhow::Result<()> {
    if look.devices.iter().any(|d| d.memory.is_some() || d.entries.is_some()) {
        return Ok(());
    }
    let gaps: Vec<_> = look.devices.iter().flat_map(|d| &d.gaps).map(ToString::to_string).collect();
    anyhow::bail!("no selected GPU tells its memory or its processes: {}", gaps.join("; "))
}
