//! Evidence: what follows "PID 70: …", one sentence without a full stop.

use super::commas;
use crate::model::{Amount, Beginning, Cure, Evidence, Maker, OnSigterm, SignSeen, Starter, WaitsOn};
use std::fmt;

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Command => "the command started",
            Self::Snapshot => "the earlier snapshot was taken",
        })
    }
}

impl fmt::Display for WaitsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nfs => "an NFS server",
            Self::Fuse => "a FUSE file system",
            Self::NetworkFileSystem => "a network file system",
            Self::NvidiaDriver => "the NVIDIA driver",
            Self::FrozenFileSystem => "a frozen file system",
            Self::Userfaultfd => "the program that provides its memory page by page, userfaultfd",
            Self::MemoryLimit => "memory: its cgroup is at its limit and nothing is ended for it",
            Self::Disk => "a disk",
            Self::Vfork => "a child that it started and that has not yet called exec",
        })
    }
}

/// `291 MiB on GPU 0`.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.bytes, self.device)
    }
}

impl fmt::Display for SignSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comm(name) => write!(f, "its name begins with {name}"),
            Self::Program(name) => write!(f, "its program is {name}"),
            Self::Title(title) => write!(f, "its title begins with {title}"),
            Self::Argument(word) => write!(f, "its command line says `{word}`"),
            Self::Variable(name, Some(rank)) => write!(f, "its environment says {name}={rank}"),
            Self::Variable(name, None) => write!(f, "its environment has {name}"),
            Self::Parent(name) => write!(f, "its parent is {name}"),
            Self::LeadsSession => f.write_str("it leads a session of its own"),
        }
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seen(who, had) => write!(f, "PID {} ({}), which is gone and had {had}", who.pid, who.name),
            Self::Gone(pid) => write!(f, "PID {pid}, which is gone or has left the GPU"),
        }
    }
}

impl fmt::Display for Evidence {
    #[allow(clippy::too_many_lines, reason = "a list of sentences")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WritesCore => f.write_str(
                "it has crashed, and the kernel is writing its memory to a core file (CoreDumping in /proc/PID/status): it \
                 keeps its GPU memory until the core is written, and then ends by itself",
            ),
            Self::CoreKeepsSigterm => {
                f.write_str("SIGTERM does nothing to it meanwhile; SIGKILL ends it at once and cuts the core short")
            }
            Self::Leaving => f.write_str("it was killed or is exiting, and its memory is on the way back"),
            Self::Sigterm { does: OnSigterm::Blocks, pending: true } => {
                f.write_str("SIGTERM was sent, and every thread of it blocks that signal")
            }
            Self::Sigterm { does: OnSigterm::Blocks, .. } => {
                f.write_str("every thread of it blocks SIGTERM: a plain kill does nothing to it")
            }
            Self::Sigterm { .. } => f.write_str("it ignores SIGTERM: a plain kill does nothing to it"),
            Self::SigtermWaits => f.write_str("SIGTERM was sent already: it takes effect as soon as it goes on"),
            Self::StuckInKernel { kill_pending, dying } => f.write_str(match (kill_pending, dying) {
                (true, _) => "SIGKILL was sent and cannot take effect: a thread does not come out of the kernel",
                (false, true) => "it is exiting and gets no further: a thread does not come out of the kernel",
                (false, false) => {
                    "a thread does not come out of the kernel (state D), so no ordinary signal reaches it"
                }
            }),
            Self::ThreadStates { states, blocked, watched_ms } => {
                let counts = commas(states.iter().map(|(state, n)| format!("{n} {}", state.word())));
                write!(
                    f,
                    "its threads: {counts}; {blocked} of them did not run once in the {watched_ms} ms that they were watched"
                )
            }
            Self::ThreadWaits { tid, channel, on, file } => {
                write!(f, "thread {tid} waits ")?;
                match (channel, on) {
                    (Some(channel), Some(on)) => write!(f, "in {channel} ({on})")?,
                    (Some(channel), None) => write!(f, "in {channel}")?,
                    (None, _) => {}
                }
                match file {
                    Some(file) if channel.is_some() => write!(f, ", for {file}"),
                    Some(file) => write!(f, "for {file}"),
                    None => Ok(()),
                }
            }
            Self::Stopped => f.write_str("it is stopped (state T, as after Ctrl-Z), so it cannot end by itself"),
            Self::Traced { by: Some(tracer) } => write!(f, "{tracer}, which traces it, holds it stopped (state t)"),
            Self::Traced { by: None } => f.write_str("a debugger holds it stopped (state t)"),
            Self::Frozen => f.write_str("its cgroup is frozen, as by `docker pause` or `systemctl freeze`"),
            Self::HalfDead { threads: 1 } => {
                f.write_str("its main thread has ended while another thread lives on and keeps the GPU open")
            }
            Self::HalfDead { threads } => {
                write!(f, "its main thread has ended while {threads} other threads live on and keep the GPU open")
            }
            Self::Signs { signs } => f.write_str(&commas(signs)),
            Self::LooksLike { program, signs } => write!(f, "it looks like a {program}: {}", commas(signs)),
            Self::OwnerGone { program, owner, signs } => {
                write!(f, "it is a {program} ({}), and its {owner} is gone", commas(signs))
            }
            Self::MpsDaemonAbove { pid } => write!(f, "its parent is the control daemon ({pid})"),
            Self::MpsClients { pids } if pids.is_empty() => {
                f.write_str("no client is listed now: it keeps its context for the next one")
            }
            Self::MpsClients { pids } => {
                write!(f, "the driver lists clients of the service beside it: PID {}", commas(pids))
            }
            Self::BareContext => f.write_str(
                "it is listed with about what a bare CUDA context takes, so it has little or no memory beside that",
            ),
            Self::BytesUnavailable => f.write_str("the driver does not tell on this platform how much it holds"),
            Self::ForkedCopy { files, ghosts } => write!(
                f,
                "it is not listed itself, has {files} open files on the GPU, and NVML still lists PID {}, which is gone: it \
                 keeps that process's memory",
                commas(ghosts)
            ),
            Self::InheritedFiles { from, kept } => {
                let from =
                    from.as_ref().map_or("a process of the command".into(), |p| format!("PID {} ({})", p.pid, p.name));
                write!(
                    f,
                    "it was started below {from}, which used the GPU and has ended, and has that one's GPU files open: it may \
                     keep up to {} that are on no list",
                    commas(kept)
                )
            }
            Self::ControlFileOnly { kept } => write!(
                f,
                "it has the NVIDIA control file open and no GPU context, while {} belong to no listed process: it may keep an \
                 exported allocation handle",
                commas(kept)
            ),
            Self::FilesInSockets { files, kept } => {
                let sockets = match files {
                    Some(1) => "in a socket of it stands a file that was sent and not received".into(),
                    Some(files) => format!("in its sockets stand {files} files that were sent and not received"),
                    None => {
                        "in its sockets files may stand that were sent and not received (this kernel does not tell)".into()
                    }
                };
                write!(
                    f,
                    "{sockets}, while {} belong to no listed process: an allocation handle on its way keeps its memory",
                    commas(kept)
                )
            }
            Self::MapsSharedMemory { file, maker } => write!(
                f,
                "it maps {file}, through which {maker}, shared its GPU memory: what it still maps stays in use"
            ),
            Self::Listed { bytes: Some(bytes), device } => write!(f, "NVML lists it with {bytes} on {device}"),
            Self::Listed { bytes: None, device } => {
                write!(f, "NVML lists it on {device}, without an amount of memory")
            }
            Self::OneOfSeveral { candidates, ghost } => write!(
                f,
                "one of {candidates} processes that can keep the memory of PID {ghost}; how that is divided cannot be seen"
            ),
            Self::NotVisible => f.write_str("NVML lists it, and no process of that number can be seen from here"),
            Self::OnlyWatches => {
                f.write_str("it has no more open than a program that only watches the GPU (nvidia-smi, a monitor)")
            }
            Self::OpenedAndNotListed => {
                f.write_str("it opened the GPU, and the driver lists no memory of it there")
            }
            Self::KeepsMigBusy { devices } => write!(
                f,
                "it has the capability file of {} open, which keeps that busy: it cannot be destroyed as long as that is open",
                commas(devices)
            ),
            Self::OpenFiles { nodes } => {
                let open = nodes.iter().filter(|(node, n)| **n > 0 && !node.starts_with("nvidia-caps"));
                let of_a_gpu = nodes.keys().any(|node| {
                    node.strip_prefix("nvidia").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()) && !n.is_empty())
                });
                let note = if of_a_gpu { "" } else { " (no GPU's own file)" };
                let open = commas(open.map(|(node, n)| format!("{n} on /dev/{node}")));
                write!(f, "open NVIDIA files: {open}{note}")
            }
            Self::FilesUnreadable => {
                f.write_str("this user may not read its open files, so nothing more can be said")
            }
            Self::FromBeforeTheCommand => f.write_str(
                "its state, age, parents and files are those from before the command: it was not looked at again",
            ),
            Self::StarterRuns { by } => write!(f, "what started it still runs: {by}"),
            Self::StarterEnded { by: None } => f.write_str("what started it has ended"),
            Self::StarterEnded { by: Some(Starter::Process(who)) } => write!(f, "what started it has ended: {who}"),
            Self::StarterEnded { by: Some(Starter::Command(who)) } => {
                write!(f, "what started it has ended: the command ({}, {}) or a process of it", who.name, who.pid)
            }
            Self::AdoptedByGpuresid => f.write_str(
                "under check its parent is gpuresid, not PID 1: a program that watches for PID 1 does not notice",
            ),
            Self::RunEnded => f.write_str(
                "what started it is gone, and it carries the marker of a checked run that has ended; whatever that run left \
                 running hands the marker on",
            ),
            Self::SlurmStepEnded { job } => {
                write!(f, "a step of Slurm job {job} started it, and none of that job runs here any more")
            }
            Self::ParentIs { parent } => write!(f, "its parent is {parent}"),
            Self::InUseBelow { parent } => write!(f, "it is in use; its parent is {parent}"),
            Self::AdoptedBy { parent } => write!(
                f,
                "what started it is gone: its parent is {parent}, which did not start it and has adopted it"
            ),
            Self::ParentMayHaveAdopted { parent } => write!(
                f,
                "its parent is {parent}: what started it is gone, or let it go on purpose (nohup, a service, a container's \
                 main process)"
            ),
            Self::NoParentVisible => f.write_str("no parent of it is visible from here"),
            Self::IsCommand => f.write_str("it is the command itself"),
            Self::CommandStillRuns => f.write_str("it is the command itself, still running"),
            Self::DescendsFromCommand => f.write_str("it descends from the command"),
            Self::HasMarker => f.write_str("its environment carries this run's marker"),
            Self::HasOtherMarker => f.write_str("its environment carries another run's marker"),
            Self::WasThereBefore { beginning } => write!(f, "it was there before {beginning}"),
            Self::WasThereAndGrew { beginning, more } => {
                write!(f, "it was there before {beginning} and has {more} more now")
            }
            Self::WasNotThereBefore { beginning } => write!(f, "it was not there before {beginning}"),
            Self::UsesGpuSince { beginning } => write!(f, "it started before {beginning}, and has used a GPU since"),
            Self::NewInScope => f.write_str("it was not there before (scope: everything new)"),
            Self::NewBesideClient => f.write_str(
                "it is new, and the command used no GPU itself or works through a client program, so it may be the command's",
            ),
            Self::NewWithoutMarker => f.write_str("it is new, and does not show the snapshot's marker"),
            Self::NewAndNotBelow => f.write_str(
                "it is new and does not descend from the command: it may be the command's or somebody else's",
            ),
            Self::OfOtherUser => f.write_str("it belongs to a user that the command never ran as"),
            Self::OlderThanCommand => f.write_str("it is older than the command"),
            Self::StartedByOlder { by } => write!(f, "it was started by {by}, which is older than the command"),
            Self::OpensNoMoreThanMonitor => {
                f.write_str("it has no more open than a program that only watches the GPU")
            }
            Self::CopyOfOthers { pid } => write!(f, "it is a copy of PID {pid}, which was somebody else's"),
            Self::EntryWasThereBefore { beginning } => write!(f, "the entry was there before {beginning}"),
            Self::OwnerWasThereBefore { pid, beginning } => write!(f, "PID {pid} was there before {beginning}"),
            Self::EntryIsNew => f.write_str("the entry was not there before"),
            Self::OutOfSight => f.write_str("its process cannot be seen from here"),
            Self::SeenAlive { pid, why } => write!(f, "PID {pid} was seen alive: {why}"),
            Self::KeptByCommand => f.write_str("every process that can keep its memory is the command's"),
            Self::KeptByOthers => f.write_str("every process that can keep its memory is somebody else's"),
            Self::GoneUnidentified => f.write_str("its process was gone before it could be identified"),
        }
    }
}

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{file}"),
            Self::On(on) => write!(f, "{on}"),
        }
    }
}
