//! Who is never signalled, whatever a plan or a user says: PID 1, kernel threads, ourselves and those we live in; whoever
//! keeps people's terminals, a console or a display; the main process of a service or a container; a manager of programs
//! that are not meant; and everybody whom we see in another numbering than the kernel takes from us. What a process has
//! open and whom it has started tells that; names only add to it. It is asked at the moment of each signal. A guard that is
//! wrong costs a line that says how to do it properly; one that is missing costs somebody's work.

use crate::{
    model::{Observer, ProcId, Process},
    observe::proc::{Attached, ProcReader},
    text::{self, name::Name},
};
use std::{collections::BTreeSet, fmt};

/// Programs that people look at: ending one takes every window with it. Names suffice to refuse.
const DISPLAY: [&str; 22] = [
    "Xorg",
    "X",
    "Xwayland",
    "Xvnc",
    "gnome-shell",
    "gnome-session",
    "mutter",
    "kwin_wayland",
    "kwin_x11",
    "plasmashell",
    "ksmserver",
    "weston",
    "sway",
    "Hyprland",
    "wayfire",
    "cinnamon",
    "xfwm4",
    "marco",
    "gdm-x-session",
    "sddm",
    "lightdm",
    "nvidia-persiste",
];

/// Programs that people's sessions hang on: whatever runs below them ends with them, and much of it has nothing to do with
/// what is meant.
const SESSIONS: [&str; 23] = [
    "tmux",
    "tmux: server",
    "tmux: client",
    "screen",
    "SCREEN",
    "zellij",
    "dtach",
    "abduco",
    "sshd",
    "sshd-session",
    "login",
    "su",
    "sudo",
    "doas",
    "systemd",
    "systemd-logind",
    "gdm",
    "gdm3",
    "gdm-session-wor",
    "gdm-session-worker",
    "xdm",
    "lxdm",
    "greetd",
];

/// Parents whose child is a container's main process.
const CONTAINER_PARENTS: [&str; 5] = ["containerd-shim", "conmon", "crun", "runc", "docker-init"];

/// Why a process is never signalled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Never {
    /// `/proc` is of another PID namespace than ours: its numbers are not the kernel's to us.
    ForeignProc,
    /// PID 1.
    Init,
    /// gpuresid itself, or its helper.
    Ourselves,
    /// A process that we run below.
    OurAncestor,
    /// A display server.
    Display,
    /// A terminal multiplexer, a login, or whatever else somebody's sessions hang on.
    Sessions,
    /// A thread of the kernel.
    Kernel,
    /// It keeps this for people.
    Keeps(Attached),
    /// What it keeps for people cannot be read.
    KeepsUnknown,
    /// It has started this process, which is not meant.
    Manages {
        /// PID.
        pid: u32,
        /// Its name.
        command: String,
    },
    /// The main process of this unit.
    UnitMain(String),
    /// A container's main process.
    ContainerMain,
    /// It lives in another PID namespace.
    OtherNamespace,
    /// In which PID namespace it lives may not be read, as of a process that took over its user's rights.
    UnknownNamespace,
}

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignProc => f.write_str(
                "this /proc shows another PID namespace, whose numbers mean other processes here; end it from inside \
                 that one",
            ),
            Self::Init => f.write_str("it is PID 1"),
            Self::Ourselves => f.write_str("it is gpuresid itself"),
            Self::OurAncestor => f.write_str("gpuresid runs below it: ending it would end this command"),
            Self::Display => f.write_str("it is part of the display: ending it would close every window"),
            Self::Sessions => f.write_str("somebody's sessions hang on it: ending it would end all that runs in them"),
            Self::Kernel => f.write_str("it is a thread of the kernel"),
            Self::Keeps(Attached::Terminals) => {
                f.write_str("it keeps terminals open, and ending it would end all that runs in them")
            }
            Self::Keeps(Attached::Console) => f.write_str("it keeps a text console open that somebody may sit at"),
            Self::Keeps(Attached::Input) => f.write_str("it reads keyboards and mice: ending it would end a desktop"),
            Self::Keeps(Attached::Display) => {
                f.write_str("windows are drawn on the display that it keeps: ending it would close them all")
            }
            Self::KeepsUnknown => f.write_str("what it has open cannot be read, so it may keep somebody's terminals"),
            Self::Manages { pid, command } => write!(
                f,
                "it has started others too (PID {pid}, {command}), and ending it may end them. Stop the one that is meant \
                 as this program does that, or end that one alone"
            ),
            Self::UnitMain(unit) => {
                write!(f, "it is the main process of {unit}; if it is to end: systemctl stop {unit}")
            }
            Self::ContainerMain => {
                f.write_str("it is a container's main process; if it is to end, stop the container (docker stop)")
            }
            Self::OtherNamespace => f.write_str(
                "it lives in another PID namespace (a container); end it from inside, or stop the container",
            ),
            Self::UnknownNamespace => f.write_str("the PID namespace that it lives in cannot be read by this user"),
        }
    }
}

/// From where we act.
#[derive(Debug, Clone)]
pub struct Guard {
    own: ProcId,
    ancestors: Vec<ProcId>,
    tool: Vec<ProcId>,
    namespace: Option<u64>,
    foreign: bool,
    /// Whom the plan means; `None`: all that any of them has started.
    meant: Option<BTreeSet<ProcId>>,
}

impl Guard {
    /// Looks at ourselves. `tool`: our helpers.
    ///
    /// # Errors
    /// If our own ancestors cannot be read: then nobody can be told from them.
    pub fn new(reader: &ProcReader, tool: &[ProcId]) -> anyhow::Result<Self> {
        let Observer { id, pid_namespace, foreign_procfs, .. } = reader.observer();
        let ancestors = if foreign_procfs {
            Vec::new()
        } else {
            let us = reader.identify(id.pid)?.ok_or_else(|| anyhow::anyhow!("cannot find gpuresid itself in /proc"))?;
            us.ancestors.iter().map(|a| a.id).collect()
        };
        Ok(Self {
            own: id,
            ancestors,
            tool: tool.to_vec(),
            namespace: pid_namespace,
            foreign: foreign_procfs,
            meant: None,
        })
    }

    /// The same, where only these are meant.
    #[must_use]
    pub fn for_those(&self, meant: impl IntoIterator<Item = ProcId>) -> Self {
        Self { meant: Some(meant.into_iter().collect()), ..self.clone() }
    }

    /// Nobody is signalled through a `/proc` that counts otherwise than the kernel does for us.
    ///
    /// # Errors
    /// If it does.
    pub fn may_signal_at_all(&self) -> Result<(), Never> {
        if self.foreign { Err(Never::ForeignProc) } else { Ok(()) }
    }

    /// PID 1, ourselves, our helpers, our ancestors.
    ///
    /// # Errors
    /// If it is one of these.
    pub fn never_us(&self, id: ProcId) -> Result<(), Never> {
        if id.pid == 1 {
            Err(Never::Init)
        } else if id == self.own || self.tool.contains(&id) {
            Err(Never::Ourselves)
        } else if self.ancestors.contains(&id) {
            Err(Never::OurAncestor)
        } else {
            Ok(())
        }
    }

    /// Of the module's list what holds for those whom we started ourselves too, whatever they have become: they may have
    /// started what people sit at.
    ///
    /// # Errors
    /// If people's terminals or windows hang on it, or that cannot be told.
    pub fn never_people_s(&self, reader: &ProcReader, process: &Process) -> Result<(), Never> {
        self.may_signal_at_all()?;
        self.never_us(process.id)?;
        match reader.attached(process.id.pid) {
            Ok(None) => Ok(()),
            Ok(Some(attached)) => Err(Never::Keeps(attached)),
            Err(_) => Err(Never::KeepsUnknown),
        }
    }

    /// That it has started nobody who is not meant. For one who holds no memory itself: then it is there for others.
    ///
    /// # Errors
    /// If it has.
    pub fn never_a_manager(&self, reader: &ProcReader, process: &Process) -> Result<(), Never> {
        let Some(meant) = &self.meant else { return Ok(()) };
        let below = reader.descendants(process.id.pid);
        let other = below.iter().find(|child| {
            let own_child = child.ancestors.first().is_some_and(|parent| parent.id == process.id);
            own_child && !meant.contains(&child.id) && !tracks_resources(child)
        });
        match other {
            Some(child) => {
                Err(Never::Manages { pid: child.id.pid, command: text::shorten(&Name::from(child).whole(), 60) })
            }
            None => Ok(()),
        }
    }

    /// All of the module's list but what a manager is.
    ///
    /// # Errors
    /// The reason why this process is never signalled.
    pub fn never(&self, reader: &ProcReader, process: &Process) -> Result<(), Never> {
        self.may_signal_at_all()?;
        self.never_us(process.id)?;
        if process.ppid == 2 || process.id.pid == 2 {
            return Err(Never::Kernel);
        }
        let parent = process.ancestors.first();
        let first_of_its_namespace = process.nspid.len() > 1 && process.nspid.last() == Some(&1);
        let of_a_shim = parent.is_some_and(|p| CONTAINER_PARENTS.iter().any(|name| p.comm.starts_with(name)));
        if first_of_its_namespace || of_a_shim {
            return Err(Never::ContainerMain);
        }
        match (process.pid_namespace, self.namespace) {
            (Some(theirs), Some(ours)) if theirs == ours => {}
            (Some(_), Some(_)) => return Err(Never::OtherNamespace),
            _ => return Err(Never::UnknownNamespace),
        }
        if is_display(process) {
            return Err(Never::Display);
        }
        if keeps_sessions(process) {
            return Err(Never::Sessions);
        }
        if let Some(unit) = main_of_unit(process) {
            return Err(Never::UnitMain(unit));
        }
        self.never_people_s(reader, process)
    }
}

/// A helper that Python starts beside worker processes; it ends by itself when the last of them has.
fn tracks_resources(process: &Process) -> bool {
    process.argv.words().iter().any(|word| word.contains("multiprocessing.resource_tracker"))
}

fn is_display(process: &Process) -> bool {
    is_one_of(process, &DISPLAY)
}

fn keeps_sessions(process: &Process) -> bool {
    // A login shell is started with a hyphen before its name.
    is_one_of(process, &SESSIONS) || process.argv.first().is_some_and(|program| program.starts_with('-'))
}

fn is_one_of(process: &Process, names: &[&str]) -> bool {
    let program = process.argv.first().map(|a| a.rsplit('/').next().unwrap_or(a));
    names.contains(&process.comm.as_str()) || program.is_some_and(|name| names.contains(&name))
}

/// The service whose main process this is, or may be.
fn main_of_unit(process: &Process) -> Option<String> {
    let unit = process.cgroup.as_deref()?.rsplit('/').next().filter(|leaf| leaf.ends_with(".service"))?;
    (process.leads_unit != Some(false)).then(|| unit.to_owned())
}
