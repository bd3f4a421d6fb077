//! The plan: who is ended, in which order, with which signals, what it should give back and whom it disturbs. Making it
//! changes nothing, and what it says is checked again at the moment of each signal.

use super::{
    again,
    refusal::Never,
    signal::{Grounds, Target},
    targets::{Claim, Targets, World, command, leave},
    terms::Terms,
};
use crate::{
    error::hinted,
    judge::mps,
    model::{
        Bytes, Cause, Gap, LeftAlone, ProcId, Process, ProcessState, ReclaimDevice, ReclaimStep, Role, Snapshot, Uuid,
    },
    text,
};
use std::{collections::BTreeSet, time::Duration};

/// What the user allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// Processes of other users.
    pub all_users: bool,
    /// SIGKILL, for who does not end of SIGTERM.
    pub force: bool,
    /// From SIGTERM to SIGKILL, or to giving up.
    pub grace: Duration,
}

/// One process to end.
#[derive(Debug, Clone)]
pub struct Step {
    /// What is shown of it.
    pub shown: ReclaimStep,
    /// Whom the signals are for.
    pub target: Target,
    /// It is ended before the others: they are below it.
    pub first: bool,
    /// Its ancestors, to know whose worker it is.
    pub ancestors: Vec<ProcId>,
    /// Its command line, to know it when it is started again.
    pub argv: crate::model::Argv,
}

/// The plan.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// Who is not touched.
    pub left_alone: Vec<LeftAlone>,
    /// What should come back where.
    pub devices: Vec<ReclaimDevice>,
    /// All whose end was asked for, with or without a step of their own.
    pub members: BTreeSet<ProcId>,
    /// Somebody may be meant who could not be read.
    pub unsure: bool,
    /// When carrying it out began, in clock ticks since boot.
    pub began: Option<u64>,
}

impl Plan {
    /// What cannot be done for one who was named by number is an error; another is left alone.
    fn refuse(&mut self, terms: Terms, process: &Process, no: No) -> anyhow::Result<()> {
        if terms.by_number {
            return Err(no.error(process));
        }
        self.left_alone.push(leave(process, no.why));
        Ok(())
    }
}

/// Why a look is too poor to act on; empty: it is good enough.
pub fn blindness(snapshot: &Snapshot) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for device in snapshot.devices.iter().filter(|d| !d.identity.mig_parent) {
        let label = device.identity.label();
        if device.look.memory.is_none() {
            gaps.push(Gap::new(label, "its memory could not be read, so it is not known whether any came back"));
        } else if device.look.entries.is_none() {
            gaps.push(Gap::new(
                label,
                "its processes could not be listed, so it is not known which process holds what",
            ));
        }
    }
    if snapshot.processes.is_none() {
        gaps.push(Gap::new("/proc", "the processes could not be read"));
    }
    gaps
}

/// Makes the plan.
///
/// # Errors
/// If a named process cannot or must not be ended: then nobody is.
pub fn plan(targets: &Targets, world: &World<'_>, allowed: Allowed) -> anyhow::Result<Plan> {
    world
        .guard
        .may_signal_at_all()
        .map_err(|never| hinted(format!("no process can be ended from here: {never}"), FROM_INSIDE))?;
    let terms = targets.terms();
    let found = targets.find(world)?;
    let members: BTreeSet<ProcId> = found.claims.iter().map(|c| c.process.id).chain(found.belong).collect();
    let guard = world.guard.among(members.clone(), terms.heirs);
    let world = &World { guard: &guard, ..*world };
    let mut plan = Plan { left_alone: found.left_alone, unsure: found.unsure, members, ..Plan::default() };
    let (us, found): (Vec<Claim>, Vec<Claim>) =
        found.claims.into_iter().partition(|c| world.guard.never_us(c.process.id).is_err());
    for Claim { process, .. } in us {
        let Err(never) = world.guard.never_us(process.id) else { continue };
        if terms.forgeable {
            return Err(hinted(
                format!("the report names PID {} as a leftover, but {never}: it is forged or damaged", process.id),
                "look for yourself who holds memory: gpuresid",
            ));
        }
        plan.refuse(terms, &process, No::new(never.to_string(), "nothing was ended; see who holds memory: gpuresid"))?;
    }
    let (holders, rest): (Vec<Claim>, Vec<Claim>) =
        found.into_iter().partition(|c| c.process.can_hold_memory() != Some(false));
    let mut admitted = Vec::new();
    for claim in holders {
        match admit(world, &claim.process, terms, allowed) {
            Ok(()) => admitted.push(claim),
            Err(no) => plan.refuse(terms, &claim.process, no)?,
        }
    }
    let is_above = |claim: &Claim, other: &Claim| other.process.ancestors.iter().any(|a| a.id == claim.process.id);
    let (supervisors, rest): (Vec<Claim>, Vec<Claim>) =
        rest.into_iter().partition(|claim| admitted.iter().any(|holder| is_above(claim, holder)));
    for claim in supervisors.into_iter().chain(rest) {
        place(world, terms, claim, &admitted, allowed, &mut plan)?;
    }
    plan.steps.sort_by_key(|s| (s.ancestors.len(), s.target.id));
    let ids: BTreeSet<ProcId> = admitted.iter().map(|c| c.process.id).collect();
    let above: BTreeSet<ProcId> =
        admitted.iter().flat_map(|c| c.process.ancestors.iter().map(|a| a.id)).filter(|id| ids.contains(id)).collect();
    let mut steps: Vec<Step> = admitted
        .into_iter()
        .map(|c| {
            let first = above.contains(&c.process.id);
            step(world, c.process, Role::Holder, c.why, allowed, first)
        })
        .collect();
    // Whoever has others below it first, of these the one nearer to PID 1; then most memory first.
    steps.sort_by_key(|s| {
        let held: Bytes = s.shown.gives_back.iter().filter_map(|h| h.held_bytes).sum();
        (!s.first, if s.first { s.ancestors.len() } else { 0 }, std::cmp::Reverse(held), s.shown.pid)
    });
    plan.steps.extend(steps);
    let planned: BTreeSet<ProcId> = plan.steps.iter().map(|s| s.target.id).collect();
    for step in plan.steps.iter_mut().filter(|s| s.shown.role == Role::Holder) {
        let process = world.find(step.target.id)?;
        step.shown.restarter = process.and_then(|process| again::restarter(world, &process, &planned));
    }
    plan.devices = devices(world, &plan.steps);
    Ok(plan)
}

const NOTHING: &str = "nothing was ended";
const FROM_INSIDE: &str = "run gpuresid reclaim where the processes run, with that place's own /proc";

/// Why a process is not ended, and what would help.
struct No {
    why: String,
    hint: String,
}

impl No {
    fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { why: why.into(), hint: hint.into() }
    }

    fn never(world: &World<'_>, process: &Process, never: &Never) -> Self {
        let hint = match never {
            Never::Serves(clients) => quit_first(process, &clients.iter().map(|(pid, _)| *pid).collect::<Vec<_>>()),
            Never::Manages { .. } => with_all_below(world, process),
            _ => NOTHING.into(),
        };
        Self::new(never.to_string(), hint)
    }

    fn error(self, process: &Process) -> anyhow::Error {
        hinted(format!("PID {} ({}) will not be ended: {}", process.id, command(process), self.why), self.hint)
    }
}

fn admit(world: &World<'_>, process: &Process, terms: Terms, allowed: Allowed) -> Result<(), No> {
    let user = process.user.clone().or_else(|| process.uid.map(|u| u.to_string())).unwrap_or_else(|| "somebody".into());
    let pid = process.id.pid;
    let ours = rustix::process::geteuid();
    if process.uid != Some(ours.as_raw()) {
        if !ours.is_root() {
            return Err(No::new(
                format!("it belongs to {user}, and this user may not signal it"),
                format!("if it is yours to end: sudo gpuresid reclaim --all-users --pid {pid} --yes"),
            ));
        }
        let ask = format!("ask first; then: gpuresid reclaim --all-users --pid {pid} --yes");
        if !terms.others {
            return Err(No::new(format!("it belongs to {user}, and a sign is not enough to end it: {ask}"), ask));
        }
        if !allowed.all_users {
            return Err(No::new(format!("it belongs to {user}"), ask));
        }
    }
    // Whose files may not be read has no readable namespace either: to whoever may read them, both are told.
    if process.can_hold_memory().is_none() {
        return Err(No::new(
            "its open files cannot be read by this user, so it is not known whether it holds GPU memory",
            format!("look with more rights: sudo gpuresid reclaim --all-users --pid {pid}"),
        ));
    }
    if let Err(never) = world.guard.never(process) {
        return Err(No::never(world, process, &never));
    }
    if process.dying {
        return Err(No::new("it is already ending, so nothing needs to be done", "look again in a moment: gpuresid"));
    }
    Ok(())
}

/// A server of the multi-process service takes its clients' GPU with it: they are to be named too.
fn quit_first(server: &Process, clients: &[u32]) -> String {
    format!(
        "once that is no loss, quit the service as the user who started it: {}; or end its clients with it: gpuresid \
         reclaim --pid {}{}",
        mps::quit_of(server),
        server.id.pid,
        also(clients)
    )
}

/// Whoever is ended with all that runs below it is named with all of them.
fn with_all_below(world: &World<'_>, manager: &Process) -> String {
    let pid = manager.id.pid;
    let mut below: Vec<u32> = world.reader.children(pid).iter().map(|child| child.id.pid).collect();
    below.sort_unstable();
    format!("if none of these is wanted any more, name them all: gpuresid reclaim --pid {pid}{}", also(&below))
}

fn also(pids: &[u32]) -> String {
    pids.iter().map(|pid| format!(" --pid {pid}")).collect()
}

/// One who is meant and has no NVIDIA file open: it goes first where a holder of the plan runs below it, which it may
/// start again; else it is left alone.
fn place(
    world: &World<'_>,
    terms: Terms,
    claim: Claim,
    holders: &[Claim],
    allowed: Allowed,
    plan: &mut Plan,
) -> anyhow::Result<()> {
    let Claim { process, why } = claim;
    let below = holders.iter().find(|holder| holder.process.ancestors.iter().any(|a| a.id == process.id));
    let no = match (below, world.guard.never(&process)) {
        (Some(holder), Ok(())) if holder.process.uid == process.uid => {
            let why = why.into_iter().chain([format!("PID {} runs below it", holder.process.id.pid)]).collect();
            plan.steps.push(step(world, process, Role::Supervisor, why, allowed, true));
            return Ok(());
        }
        (Some(_), Ok(())) => No::new("it belongs to another user than what runs below it", NOTHING),
        (None, _) if plan.steps.iter().any(|above| process.ancestors.iter().any(|a| a.id == above.target.id)) => {
            plan.left_alone.push(leave(
                &process,
                "it has no NVIDIA file open: it gets no signal of its own, and is left to what started it, which is ended",
            ));
            return Ok(());
        }
        (_, Err(never)) => No::never(world, &process, &never),
        (None, Ok(())) => No::new(
            "it has no NVIDIA file open, so it holds no GPU memory",
            "see who holds memory: gpuresid. A number that the driver still lists may have gone to an innocent process; a \
             launcher is ended together with a worker of it that you name too",
        ),
    };
    plan.refuse(terms, &process, no)
}

fn step(world: &World<'_>, process: Process, role: Role, why: Vec<String>, allowed: Allowed, first: bool) -> Step {
    let holder = world.holder(process.id).filter(|_| role == Role::Holder);
    let uid = process.uid.unwrap_or(u32::MAX);
    let mut signals = vec!["TERM".to_owned()];
    if process.state == ProcessState::Stopped {
        signals.push("CONT".into());
    }
    if allowed.force {
        signals.push("KILL".into());
    }
    let shown = ReclaimStep {
        pid: process.id.pid,
        start_ticks: process.id.start_ticks,
        user: process.user.clone().or_else(|| process.uid.map(|u| u.to_string())),
        uid,
        command: command(&process),
        role,
        cause: holder.map(|h| h.cause),
        why,
        signals,
        gives_back: holder.map(|h| h.devices.clone()).unwrap_or_default(),
        disturbs: disturbs(world, &process, role),
        restarter: None,
        life: None,
        sent: Vec::new(),
        outcome: None,
        outcome_why: None,
    };
    Step {
        target: Target {
            id: process.id,
            uid,
            grounds: if role == Role::Supervisor { Grounds::Supervisor } else { Grounds::Holder },
        },
        shown,
        first,
        ancestors: process.ancestors.iter().map(|a| a.id).collect(),
        argv: process.argv,
    }
}

/// Whoever works with it: itself, and what it has started.
fn disturbs(world: &World<'_>, process: &Process, role: Role) -> String {
    let below: Vec<String> = world
        .reader
        .descendants(process.id.pid)
        .iter()
        .map(|p| format!("{} ({})", p.id, text::clean(&p.comm)))
        .collect();
    let serves = world.holder(process.id).is_some_and(|holder| holder.cause == Cause::MpsServer);
    let itself = match role {
        Role::Supervisor => "everything that it supervises".to_owned(),
        Role::Holder if serves => format!(
            "nobody else now; its control daemon starts another server for the next client. To be rid of both: {}",
            mps::quit_of(process)
        ),
        Role::Holder => "whoever still uses it".to_owned(),
    };
    match below.len() {
        0 => itself,
        1..=6 => format!("{itself}, and what it has started: {}", below.join(", ")),
        n => format!("{itself}, and the {n} processes that it has started"),
    }
}

fn devices(world: &World<'_>, steps: &[Step]) -> Vec<ReclaimDevice> {
    let expected = |uuid: &Uuid| -> Option<Bytes> {
        let mut unknown = steps.iter().map(|s| &s.shown).filter(|s| s.gives_an_unknown_amount());
        if unknown.any(|s| s.gives_back.is_empty() || s.gives_back.iter().any(|h| h.uuid == *uuid)) {
            return None;
        }
        // A device that a process merely has open is not said to come back.
        let held = steps.iter().flat_map(|s| &s.shown.gives_back).filter(|h| h.uuid == *uuid);
        Some(held.filter_map(|h| h.held_bytes).sum())
    };
    let whole = world.snapshot.devices.iter().filter(|d| !d.identity.mig_parent);
    whole
        .map(|device| ReclaimDevice {
            index: device.identity.index,
            uuid: device.identity.uuid.clone(),
            mig: device.identity.mig.clone(),
            expected_bytes: expected(&device.identity.uuid),
            used_before_bytes: device.look.used(),
            used_after_bytes: None,
            came_back_bytes: None,
            remaining_bytes: None,
        })
        .collect()
}
