//! Who is never signalled, whatever a plan or a user says: a table, one row a rule, asked at the moment of each signal. The
//! rules go by what a process is to others (what it has open, what it started, what systemd says of it); names only add to
//! that. A guard that is wrong costs a line that says how to do it properly; one that is missing costs somebody's work.

use super::refusal::{Clients, Never};
use crate::{
    judge::mps,
    model::{DeviceFiles, Observer, ProcId, Process, Snapshot},
    observe::proc::{ProcReader, SessionFile, service_of},
    text::{self, name::Name},
};
use std::collections::BTreeSet;

/// Programs that people look at: ending one takes every window with it.
const DISPLAY: [&str; 12] = [
    "Xorg",
    "X",
    "Xvnc",
    "gnome-shell",
    "gnome-session",
    "mutter",
    "plasmashell",
    "ksmserver",
    "cinnamon",
    "xfwm4",
    "marco",
    "nvidia-persiste",
];

/// Programs that people's sessions hang on, and which may show no terminal of theirs.
const SESSIONS: [&str; 19] = [
    "tmux",
    "tmux: server",
    "tmux: client",
    "screen",
    "SCREEN",
    "zellij",
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
    "lightdm",
    "sddm",
];

/// Parents whose child is a container's main process.
const CONTAINER_PARENTS: [&str; 5] = ["containerd-shim", "conmon", "crun", "runc", "docker-init"];

/// For whom a rule holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    ForEverybody,
    /// Not for whoever descends from a command of ours: what that made a namespace or a helper for is of it, and ends
    /// with it, with or without GPU memory.
    NotForOurRun,
}

/// One rule.
struct Rule {
    name: &'static str,
    holds: Holds,
    broken_by: fn(&Guard, &Process) -> Option<Never>,
}

/// The rules, those that cost least first.
const RULES: [Rule; 13] = [
    rule("PID 1", Holds::ForEverybody, |guard, process| guard.us(process.id).filter(|us| *us == Never::Init)),
    rule("ourselves", Holds::ForEverybody, |guard, process| guard.us(process.id).filter(|us| *us == Never::Ourselves)),
    rule("our ancestors", Holds::ForEverybody, |guard, process| {
        guard.us(process.id).filter(|us| *us == Never::OurAncestor)
    }),
    rule("kernel threads", Holds::ForEverybody, |guard, process| {
        guard.reader.is_of_kernel(process.id).then_some(Never::Kernel)
    }),
    rule("below a container's supervisor", Holds::ForEverybody, |_, process| {
        let parent = process.ancestors.first()?;
        CONTAINER_PARENTS.iter().any(|name| parent.comm.starts_with(name)).then_some(Never::ContainerMain)
    }),
    rule("PID 1 of its namespace", Holds::NotForOurRun, |_, process| {
        (process.nspid.len() > 1 && process.nspid.last() == Some(&1)).then_some(Never::ContainerMain)
    }),
    rule("other namespaces", Holds::NotForOurRun, |guard, process| match (process.pid_namespace, guard.namespace) {
        (Some(theirs), Some(ours)) if theirs == ours => None,
        (Some(_), Some(_)) => Some(Never::OtherNamespace),
        _ => Some(Never::UnknownNamespace),
    }),
    rule("known names", Holds::ForEverybody, |_, process| by_name(process)),
    rule("what sessions hang on", Holds::ForEverybody, |guard, process| match guard.reader.session_file(process.id) {
        Ok(file) => file.map(|file| match file {
            SessionFile::Terminal => Never::Terminals,
            SessionFile::Console(name) => Never::Console(name),
            SessionFile::Input => Never::Input,
            SessionFile::Display(name) => Never::DisplaySocket(name),
        }),
        Err(_) => Some(Never::UnreadableFiles),
    }),
    rule("main processes of services", Holds::ForEverybody, |_, process| {
        let unit = service_of(process.cgroup.as_deref()?)?;
        match process.leads_unit {
            Some(false) => None,
            Some(true) => Some(Never::UnitMain(unit)),
            None => Some(Never::MayBeUnitMain(unit)),
        }
    }),
    rule("managers of others", Holds::NotForOurRun, manages),
    rule("who only watches", Holds::NotForOurRun, |guard, process| {
        let seen = guard.seen.as_ref().filter(|seen| !seen.listed.contains(&process.id.pid))?;
        let watches = process.files.as_ref()?.may_only_watch(seen.client_files.as_ref());
        watches.then_some(Never::OnlyWatches)
    }),
    rule("MPS with clients of others", Holds::ForEverybody, |guard, process| {
        let served = guard.seen.as_ref()?.served.iter().find(|(server, _)| *server == process.id);
        let mut clients = served?.1.clone();
        clients.retain(|(client, _)| !guard.members.iter().any(|member| member.pid == *client));
        (!clients.is_empty()).then_some(Never::Serves(clients))
    }),
];

const fn rule(name: &'static str, holds: Holds, broken_by: fn(&Guard, &Process) -> Option<Never>) -> Rule {
    Rule { name, holds, broken_by }
}

/// The rules' names.
pub fn rules() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.name)
}

/// From where we act, and on whom.
#[derive(Debug, Clone)]
pub struct Guard {
    reader: ProcReader,
    own: ProcId,
    ancestors: Vec<ProcId>,
    tool: Vec<ProcId>,
    namespace: Option<u64>,
    foreign: bool,
    seen: Option<Seen>,
    /// All whose end was asked for.
    members: BTreeSet<ProcId>,
    /// What they have started is meant with them.
    heirs: bool,
}

/// What the last look at the GPUs tells of who depends on whom.
#[derive(Debug, Clone)]
struct Seen {
    client_files: Option<DeviceFiles>,
    listed: BTreeSet<u32>,
    served: Vec<(ProcId, Clients)>,
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
            reader: reader.clone(),
            own: id,
            ancestors,
            tool: tool.to_vec(),
            namespace: pid_namespace,
            foreign: foreign_procfs,
            seen: None,
            members: BTreeSet::new(),
            heirs: false,
        })
    }

    /// Who is listed, and who serves whom, as this look has it.
    #[must_use]
    pub fn seeing(mut self, snapshot: &Snapshot) -> Self {
        let entries = snapshot.devices.iter().flat_map(|device| device.look.entries.iter().flatten());
        let named = |pid: u32| {
            let process = snapshot.process(pid);
            (pid, process.map(|process| text::shorten(&Name::from(process).whole(), 60)))
        };
        let served = mps::served(snapshot).into_iter();
        self.seen = Some(Seen {
            client_files: snapshot.observer.nvml_client_files.clone(),
            listed: entries.map(|entry| entry.pid).collect(),
            served: served.map(|(server, clients)| (server, clients.into_iter().map(named).collect())).collect(),
        });
        self
    }

    /// The end of all of these was asked for, and with `heirs` of all that they have started: who only works for them
    /// loses nothing.
    #[must_use]
    pub fn among(&self, members: BTreeSet<ProcId>, heirs: bool) -> Self {
        Self { members, heirs, ..self.clone() }
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
        self.us(id).map_or(Ok(()), Err)
    }

    fn us(&self, id: ProcId) -> Option<Never> {
        if id.pid == 1 {
            Some(Never::Init)
        } else if self.is_ours(id) {
            Some(Never::Ourselves)
        } else {
            self.ancestors.contains(&id).then_some(Never::OurAncestor)
        }
    }

    fn is_ours(&self, id: ProcId) -> bool {
        id == self.own || self.tool.contains(&id)
    }

    /// All of the table.
    ///
    /// # Errors
    /// The reason why this process is never signalled.
    pub fn never(&self, process: &Process) -> Result<(), Never> {
        self.asked(process, |_| true)
    }

    /// What of the table holds for whoever descends from a command of ours.
    ///
    /// # Errors
    /// The reason why this process is never signalled.
    pub fn never_of_our_run(&self, process: &Process) -> Result<(), Never> {
        self.asked(process, |rule| rule.holds == Holds::ForEverybody)
    }

    fn asked(&self, process: &Process, asks: impl Fn(&Rule) -> bool) -> Result<(), Never> {
        self.may_signal_at_all()?;
        let mut asked = RULES.iter().filter(|rule| asks(rule));
        asked.find_map(|rule| (rule.broken_by)(self, process)).map_or(Ok(()), Err)
    }
}

/// A manager of many programs (supervisord, s6, a shell), of which only some are to end.
fn manages(guard: &Guard, process: &Process) -> Option<Never> {
    if guard.heirs || process.can_hold_memory() != Some(false) {
        return None;
    }
    let mut others = guard.reader.children(process.id.pid);
    others.retain(|child| !guard.members.contains(&child.id) && !guard.is_ours(child.id) && !tracks_resources(child));
    let (first, more) = others.split_first()?;
    let command = text::shorten(&Name::from(first).whole(), 60);
    Some(Never::Manages { pid: first.id.pid, command, more: more.len() })
}

/// A helper that Python starts beside worker processes; it ends by itself when the last of them has.
fn tracks_resources(process: &Process) -> bool {
    process.argv.words().iter().any(|word| word.contains("multiprocessing.resource_tracker"))
}

fn by_name(process: &Process) -> Option<Never> {
    let program = process.argv.first().map(|program| text::file_name(program));
    let is_one_of =
        |names: &[&str]| names.contains(&process.comm.as_str()) || program.is_some_and(|name| names.contains(&name));
    // A login shell is started with a hyphen before its name.
    let is_login = process.argv.first().is_some_and(|program| program.starts_with('-'));
    if is_one_of(&DISPLAY) {
        Some(Never::Display)
    } else {
        (is_login || is_one_of(&SESSIONS)).then_some(Never::Sessions)
    }
}
