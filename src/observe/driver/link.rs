//! The client's line to its helper, wherever that lives: as a child of ours or in a nursery. It starts, sends, kills
//! and reports; what that means is [`super::client`]'s business.

use super::{
    Extras, Failure, Heard, Placement,
    helper::START_NURSERY,
    keeper::{Kept, inner, pump},
    numbers,
    protocol::{Answer, Say},
    socket::{self, hear, say, say_with},
};
use crate::model::{DriverFacts, ProcId, Uuid};
use rustix::pipe::{PipeFlags, pipe_with};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::Sender,
    },
};

/// What the owner wants to know.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// A look at these devices; it goes where all looks go.
    Look(Vec<Uuid>, Extras),
    /// The facts, for whoever holds the other end. They are no message of the client's, because only one caller in its
    /// life asks for them.
    Facts(Sender<Result<DriverFacts, Failure>>),
}

/// What reaches the client's thread.
#[derive(Debug)]
pub(super) enum Event {
    /// The owner wants to know something.
    Request(Wanted),
    /// The owner wants another try.
    Afresh,
    /// The owner wants to know of a signal and its sender; `None`: of no further one.
    AskWitness(Option<(i32, u32)>),
    /// The owner is gone.
    Stop,
    /// The helper answered, or told events.
    Said(Answer),
    /// A helper in the nursery has this PID.
    Born(u64, u32),
    /// The helper with this number is gone; how.
    Gone(u64, String),
    /// What the witness says.
    Heard(Heard),
    /// The nursery is gone, and with it every further helper.
    NurseryGone,
}

/// The tool's own processes, shared with the owner.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    known: Arc<Mutex<Vec<ProcId>>>,
    procfs: PathBuf,
}

impl Tools {
    /// Processes that others look for in this `/proc`.
    pub(super) fn shown_in(procfs: &Path) -> Self {
        Self { known: Arc::default(), procfs: procfs.into() }
    }

    /// All that were started, also those that are gone: an identity is never reused.
    pub(super) fn list(&self) -> Vec<ProcId> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, pid: u32) {
        let ids = numbers::identities(pid, &self.procfs);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
    }
}

/// The line.
pub(super) struct Link {
    binary: PathBuf,
    at: At,
    ears: Ears,
    tools: Tools,
    /// The helper that lines go to.
    pub(super) pid: Option<u32>,
}

enum At {
    Child(Option<Kept>),
    Nursery {
        socket: Arc<OwnedFd>,
        /// The present helper's number and input.
        helper: Option<(u64, File)>,
    },
}

/// What the reading threads need.
#[derive(Clone)]
struct Ears {
    events: Sender<Event>,
    /// The request that an answer may come to; 0: to none. Everything else is dropped where it is read.
    expected: Arc<AtomicU64>,
}

/// A helper of ours says nothing unasked but a few events. One that goes on and on is broken.
const STRAY_LINES: u32 = 1000;

impl Ears {
    /// Hears one line from a helper; false: do not listen any longer.
    fn hear(&self, line: &str, strays: &mut u32) -> bool {
        let Ok(answer) = serde_json::from_str::<Answer>(line) else { return false };
        let unasked = matches!(answer.say, Say::Events(_));
        let id = answer.id;
        let expected = id != 0 && self.expected.compare_exchange(id, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if expected {
            *strays = 0;
        } else {
            *strays += 1;
        }
        if expected || unasked {
            let _ = self.events.send(Event::Said(answer));
        }
        *strays < STRAY_LINES
    }
}

impl Link {
    /// Starts the nursery, where there is to be one. When this returns it is no child of ours.
    pub(super) fn new(binary: &Path, placement: Placement, events: Sender<Event>, tools: Tools) -> io::Result<Self> {
        let ears = Ears { events, expected: Arc::default() };
        let at = match placement {
            Placement::Child => At::Child(None),
            Placement::Nursery => {
                At::Nursery { socket: start_nursery(binary, ears.events.clone(), tools.clone())?, helper: None }
            }
        };
        Ok(Self { binary: binary.into(), at, ears, tools, pid: None })
    }

    /// Starts helper number `number`; lines go to it from now on.
    pub(super) fn start(&mut self, number: u64) -> io::Result<()> {
        self.pid = None;
        match &mut self.at {
            At::Nursery { socket, helper } => {
                let (its_input, our_output) = pipe_with(PipeFlags::CLOEXEC)?;
                let (our_input, its_output) = pipe_with(PipeFlags::CLOEXEC)?;
                say_with(socket, &format!("start {number}"), &[its_input.as_fd(), its_output.as_fd()])?;
                *helper = Some((number, our_output.into()));
                let (ears, socket, mut strays) = (self.ears.clone(), Arc::clone(socket), 0);
                pump(
                    File::from(our_input),
                    move |line| ears.hear(line, &mut strays),
                    move || {
                        // One that closes its output and lives, or says what no helper of ours says, is of no use. The
                        // nursery tells when it is gone; if the nursery is gone, that is told too.
                        let _ = say(&socket, &format!("kill {number}"));
                    },
                )
            }
            At::Child(kept) => {
                let (ears, events, mut strays) = (self.ears.clone(), self.ears.events.clone(), 0);
                let helper = Kept::start(
                    &mut inner(&self.binary, None),
                    move |line| ears.hear(line, &mut strays),
                    move |how| {
                        let _ = events.send(Event::Gone(number, how));
                    },
                )?;
                self.tools.add(helper.pid);
                self.pid = Some(helper.pid);
                *kept = Some(helper);
                Ok(())
            }
        }
    }

    /// Sends a request and lets its answer, and no other, come through.
    pub(super) fn send(&mut self, id: u64, line: &str) -> io::Result<()> {
        self.ears.expected.store(id, Ordering::SeqCst);
        match &mut self.at {
            At::Nursery { helper: Some((_, input)), .. } => input.write_all(line.as_bytes()),
            At::Child(Some(kept)) => kept.send(line),
            At::Nursery { helper: None, .. } | At::Child(None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Asks the nursery whether it has had this signal of this sender too; `None`: lets it leave our process group.
    pub(super) fn ask_witness(&self, what: Option<(i32, u32)>) {
        if let At::Nursery { socket, .. } = &self.at {
            let order = what.map_or_else(|| "apart".into(), |(signal, sender)| format!("heard {signal} {sender}"));
            // A nursery that is gone is reported by the thread that reads from it.
            let _ = say(socket, &order);
        }
    }

    /// Leaves the helper behind: nothing that it still says comes through. It is killed, as far as that works.
    pub(super) fn abandon(&mut self) {
        self.ears.expected.store(0, Ordering::SeqCst);
        self.pid = None;
        match &mut self.at {
            At::Nursery { socket, helper } => {
                if let Some((number, _)) = helper.take() {
                    // A nursery that does not listen is reported by the thread that reads from it.
                    let _ = say(socket, &format!("kill {number}"));
                }
            }
            At::Child(kept) => {
                if let Some(kept) = kept.take() {
                    kept.end_now();
                }
            }
        }
    }
}

impl Drop for Link {
    /// The thread that listens to the nursery has the socket too: both ends are told that it is over.
    fn drop(&mut self) {
        if let At::Nursery { socket, .. } = &self.at {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Starts a nursery and waits for the intermediate process to end: then the nursery has another parent than us.
fn start_nursery(binary: &Path, events: Sender<Event>, tools: Tools) -> io::Result<Arc<OwnedFd>> {
    let (ours, theirs) = socket::pair()?;
    let mut intermediate =
        inner(binary, Some(START_NURSERY)).stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
    // Where SIGCHLD was inherited as ignored, waiting works and then fails for want of a status.
    if let Ok(status) = intermediate.wait()
        && !status.success()
    {
        return Err(io::Error::other(format!("the helper's starter ended with {status}")));
    }
    let socket = Arc::new(ours);
    let from = Arc::clone(&socket);
    std::thread::Builder::new().name("nursery".into()).spawn(move || {
        while let Ok(Some((text, _))) = hear(&from) {
            report(&text, &events, &tools);
        }
        let _ = events.send(Event::NurseryGone);
    })?;
    Ok(socket)
}

/// What the nursery says.
fn report(text: &str, events: &Sender<Event>, tools: &Tools) {
    let mut words = text.splitn(3, ' ');
    let (what, number) = (words.next(), words.next().and_then(|n| n.parse::<u64>().ok()));
    match (what, number, words.next()) {
        (Some("nursery"), Some(pid), None) => tools.add(u32::try_from(pid).unwrap_or(0)),
        (Some("heard"), Some(signal), Some(rest)) => {
            if let Some((sender, answer)) = rest.split_once(' ')
                && let (Ok(signal), Ok(sender)) = (i32::try_from(signal), sender.parse())
            {
                let _ = events.send(Event::Heard(Heard { signal, sender, by_all: answer == "yes" }));
            }
        }
        (Some("born"), Some(number), Some(pid)) => {
            if let Ok(pid) = pid.parse() {
                tools.add(pid);
                let _ = events.send(Event::Born(number, pid));
            }
        }
        (Some("gone"), Some(number), how) => {
            let _ = events.send(Event::Gone(number, how.unwrap_or("ended").into()));
        }
        _ => {}
    }
}
