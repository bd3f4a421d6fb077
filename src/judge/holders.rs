//! The living processes that hold memory, or may, and the ghosts.

use super::{
    cause::{Findings, NOTICEABLE, cause},
    ends,
    entries::Keeper,
    keeps, kernel, place,
    programs::{self, Known},
    reclaim,
    run::Run,
    scene::Scene,
};
use crate::{
    model::{
        Bytes, Cause, Device, Evidence, Facts, Ghost, Held, Holder, Lineage, ListKind, ProcId, Process, ProcessState,
    },
    text::{self, name::Name},
};
use std::collections::{BTreeMap, BTreeSet};

/// Everything about one living process while its holder is put together.
struct Draft<'a> {
    process: &'a Process,
    held: Vec<Held>,
    listed: bool,
    keeps: Vec<u32>,
    growth: Bytes,
    entries: Vec<(Option<Bytes>, bool)>,
    why: Vec<Evidence>,
}

/// Holders, most memory first, and ghosts.
pub(crate) fn holders(scene: &Scene<'_>) -> (Vec<Holder>, Vec<Ghost>) {
    let mut drafts: BTreeMap<ProcId, Draft<'_>> = BTreeMap::new();
    let mut hidden: BTreeMap<u32, Holder> = BTreeMap::new();
    let mut ghosts = Vec::new();
    for e in &scene.entries {
        let device = &e.device.identity;
        match e.keeper {
            Keeper::Alive(process) => {
                let draft = draft(&mut drafts, process);
                draft.listed = true;
                draft.growth = draft.growth + e.growth();
                draft.entries.push((e.entry.bytes, e.entry.lists.contains(&ListKind::Compute)));
                let grown = scene.run.filter(|run| run.was_there(process.id)).map(|_| e.growth()).filter(|g| g.0 > 0);
                let held = held(process, device.uuid.clone(), device.minor, e.entry.bytes);
                draft.held.push(Held { grown_bytes: grown, ..held });
                draft.why.push(Evidence::Listed { bytes: e.entry.bytes, device: device.label() });
            }
            Keeper::Ghost { id, impostor } => {
                let only = e.candidates.len() == 1;
                for process in &e.candidates {
                    let draft = draft(&mut drafts, process);
                    if !draft.keeps.contains(&e.entry.pid) {
                        draft.keeps.push(e.entry.pid);
                    }
                    let bytes = if only { e.entry.bytes } else { None };
                    draft.held.push(held(process, device.uuid.clone(), device.minor, bytes));
                    if !only {
                        let ghost = e.entry.pid;
                        draft.why.push(Evidence::OneOfSeveral { candidates: e.candidates.len(), ghost });
                    }
                }
                ghosts.push(Ghost {
                    pid: e.entry.pid,
                    device_uuid: device.uuid.clone(),
                    bytes: e.entry.bytes,
                    lineage: e.lineage,
                    command: remembered_command(scene, id),
                    impostor: impostor.map(|p| Name::from(p).whole()),
                    candidates: e.candidates.iter().map(|p| p.id.pid).collect(),
                });
            }
            Keeper::OutOfSight => {
                let holder =
                    hidden.entry(e.entry.pid).or_insert_with(|| out_of_sight(e.entry.pid, e.lineage, e.why.as_ref()));
                holder.devices.push(Held {
                    uuid: device.uuid.clone(),
                    held_bytes: e.entry.bytes,
                    open_files: None,
                    may_hold_bytes: None,
                    grown_bytes: None,
                });
            }
        }
    }
    for process in scene.near().filter(|p| !scene.is_listed(p.id)) {
        if !drafts.contains_key(&process.id) && worth_naming(scene, process) {
            let draft = draft(&mut drafts, process);
            for (device, bytes) in keeps::may_keep(scene, process) {
                let identity = &device.identity;
                let held = held(process, identity.uuid.clone(), identity.minor, None);
                draft.held.push(Held { may_hold_bytes: Some(bytes), ..held });
            }
        }
    }
    let mut holders: Vec<Holder> = drafts.into_values().map(|d| finish(scene, d)).collect();
    holders.extend(hidden.into_values());
    holders.sort_by_key(|h| (std::cmp::Reverse(h.held()), h.pid));
    (holders, ghosts)
}

fn draft<'m, 'a>(drafts: &'m mut BTreeMap<ProcId, Draft<'a>>, process: &'a Process) -> &'m mut Draft<'a> {
    drafts.entry(process.id).or_insert_with(|| Draft {
        process,
        held: Vec::new(),
        listed: false,
        keeps: Vec::new(),
        growth: Bytes::ZERO,
        entries: Vec::new(),
        why: Vec::new(),
    })
}

fn held(process: &Process, uuid: crate::model::Uuid, minor: Option<u32>, bytes: Option<Bytes>) -> Held {
    let open_files = process.files.as_ref().zip(minor).map(|(f, minor)| f.on_minor(minor));
    Held { uuid, held_bytes: bytes, open_files, may_hold_bytes: None, grown_bytes: None }
}

/// An unlisted process with NVIDIA files open is named if it can be behind something: it is of the run, or memory is
/// unaccounted or listed with a number that cannot be resolved, and it is more than a plain NVML client. One without
/// such files is named where files are on their way to it and memory is on no list.
fn worth_naming(scene: &Scene<'_>, process: &Process) -> bool {
    if process.can_hold_memory() != Some(true) {
        return process.can_hold_memory() == Some(false) && !keeps::may_keep(scene, process).is_empty();
    }
    let own = scene.run.is_some_and(|r| scene.attribute(r, process).lineage == Lineage::Own);
    let unexplained = scene.largest_excess().is_some_and(|(_, bytes)| bytes > NOTICEABLE);
    let unresolved = scene.entries.iter().any(|e| matches!(e.keeper, Keeper::OutOfSight));
    own || ((unexplained || unresolved) && !scene.looks_like_nvml_client(process))
}

fn remembered_command(scene: &Scene<'_>, id: Option<ProcId>) -> Option<String> {
    let seen = scene.run?.trace.seen(id?)?;
    Some(text::display_command(&seen.argv, &seen.comm))
}

/// A listed PID that cannot be seen from here.
fn out_of_sight(pid: u32, lineage: Lineage, why: Option<&Evidence>) -> Holder {
    let said: Facts<_> = std::iter::once(Evidence::NotVisible).chain(why.cloned()).collect();
    Holder {
        pid,
        start_ticks: None,
        inner_pid: None,
        user: None,
        uid: None,
        command: "(not visible from here)".into(),
        name: None,
        state: None,
        age_seconds: None,
        ppid: None,
        launcher: None,
        started_by: None,
        launcher_gone: None,
        cgroup: None,
        place: None,
        program: None,
        note: None,
        ends_with: None,
        cause: Cause::OutOfSight,
        lineage,
        open_files: BTreeMap::new(),
        why: said,
        devices: Vec::new(),
    }
}

fn finish(scene: &Scene<'_>, draft: Draft<'_>) -> Holder {
    let process = draft.process;
    let (lineage, lineage_why) = match scene.run {
        Some(run) => {
            let said = scene.attribute(run, process);
            (said.lineage, Some(said.why))
        }
        None => (Lineage::Unknown, None),
    };
    let known = programs::recognise(process);
    let evidence = Findings {
        process,
        lineage,
        listed: draft.listed,
        keeps_ghosts: draft.keeps,
        growth: draft.growth,
        was_there: scene.run.map(|r| r.was_there(process.id)),
        entries: draft.entries,
        known: known.clone(),
    };
    let (cause, cause_why) = cause(scene, &evidence);
    let mut why = cause_why;
    let ended = reclaim::sign_in_a_look(scene, cause, process) && !why.contains(&Evidence::RunEnded);
    why.extend(ended.then_some(Evidence::RunEnded));
    why.extend(kernel::sigterm(process));
    why.extend(lineage_why);
    why.extend(draft.why);
    why.extend(keeps_busy(scene, process));
    match &process.files {
        Some(files) if files.total() > 0 => why.push(Evidence::OpenFiles { nodes: files.nodes.clone() }),
        None => why.push(Evidence::FilesUnreadable),
        Some(_) => {}
    }
    // Its memory is what the driver says at the end, everything else is older.
    if scene.run.is_some_and(Run::looked_only_before) {
        why.push(Evidence::FromBeforeTheCommand);
    }
    describe(scene, process, Said { cause, lineage, why, devices: draft.held, known })
}

/// What was found out about a process.
struct Said {
    cause: Cause,
    lineage: Lineage,
    why: Vec<Evidence>,
    devices: Vec<Held>,
    known: Option<Known>,
}

/// A holder: who it is, and what was said about it.
fn describe(scene: &Scene<'_>, process: &Process, said: Said) -> Holder {
    let Said { cause, lineage, mut why, devices, known } = said;
    let parent = process.ancestors.first();
    let launcher_gone = match cause {
        Cause::Orphan => Some(true),
        Cause::StillRunning | Cause::InUse | Cause::ContextOnly => Some(false),
        _ => scene.run.and_then(|r| r.launch.root).zip(parent).map(|(root, p)| p.id == root),
    };
    if let Some(known) = &known
        && !why.iter().any(|why| why.signs() == Some(known.signs.as_slice()))
    {
        why.push(Evidence::LooksLike { program: known.program.name.to_owned(), signs: known.signs.clone() });
    }
    Holder {
        pid: process.id.pid,
        start_ticks: Some(process.id.start_ticks),
        inner_pid: inner_pid(process),
        user: process.user.clone().or_else(|| process.uid.map(|u| u.to_string())),
        uid: process.uid,
        command: Name::from(process).whole(),
        name: Some(Name::from(process).short()),
        state: Some(state(process)),
        age_seconds: process.age_seconds,
        ppid: Some(process.ppid),
        launcher: parent
            .filter(|_| launcher_gone == Some(false))
            .map(|p| format!("{} ({})", text::clean(&p.comm), p.id.pid)),
        started_by: started_by(scene, process, launcher_gone),
        launcher_gone,
        cgroup: process.cgroup.clone(),
        place: place::place(process),
        program: known.as_ref().map(|k| k.program.name.to_owned()),
        note: known.as_ref().map(|k| k.note(scene, process)),
        ends_with: ends::of(scene, process, known.as_ref()).map(|e| e.command),
        cause,
        lineage,
        open_files: process.files.as_ref().map(|f| f.nodes.clone()).unwrap_or_default(),
        why: why.into(),
        devices,
    }
}

/// Everybody who has any NVIDIA file open, by PID: all that is known where the driver does not answer. That one is merely
/// in use is then no more than that it has the files open.
pub(crate) fn with_files(scene: &Scene<'_>) -> Vec<Holder> {
    let open = |p: &&Process| p.files.as_ref().is_some_and(|files| !files.nodes.is_empty());
    let holder = |process| {
        let mut draft = BTreeMap::new();
        self::draft(&mut draft, process);
        draft.into_values().map(|draft| finish(scene, draft)).map(|holder| match holder.cause {
            Cause::InUse => {
                let why = open_files(process).into_iter().collect();
                Holder { cause: Cause::OpenOnly, why, ..holder }
            }
            _ => holder,
        })
    };
    scene.processes.iter().filter(open).flat_map(holder).collect()
}

/// Who started it: its parent where it was first seen, unless that had adopted it by then.
fn started_by(scene: &Scene<'_>, process: &Process, launcher_gone: Option<bool>) -> Option<u32> {
    let root = scene.run.and_then(|run| run.launch.root);
    let first = scene.run.and_then(|run| run.trace.seen(process.id)).and_then(|seen| seen.ancestors.first());
    let now = process.ancestors.first().filter(|_| launcher_gone == Some(false));
    first.or(now).filter(|parent| Some(parent.id) != root && parent.id.pid > 1).map(|parent| parent.id.pid)
}

/// Its PID inside its own PID namespace, where that differs.
pub(super) fn inner_pid(process: &Process) -> Option<u32> {
    process.nspid.last().copied().filter(|inner| process.nspid.len() > 1 && *inner != process.id.pid)
}

/// Who has an NVIDIA file open and is none of the holders. Nothing is wrong with any of them.
pub(crate) fn open_only(scene: &Scene<'_>, holders: &[Holder]) -> Vec<Holder> {
    let named = |p: &Process| holders.iter().any(|h| h.pid == p.id.pid && h.start_ticks == Some(p.id.start_ticks));
    scene
        .near()
        .filter(|p| p.can_hold_memory() == Some(true) && !named(p))
        .map(|process| {
            let what = if scene.looks_like_nvml_client(process) {
                Evidence::OnlyWatches
            } else {
                Evidence::OpenedAndNotListed
            };
            let why = std::iter::once(what).chain(open_files(process)).chain(keeps_busy(scene, process)).collect();
            let devices = scene.snapshot.devices.iter().filter_map(|d| {
                let minor = d.identity.minor?;
                let open = process.files.as_ref()?.on_minor(minor);
                (open > 0).then(|| held(process, d.identity.uuid.clone(), Some(minor), None))
            });
            let known = programs::recognise(process);
            let said =
                Said { cause: Cause::OpenOnly, lineage: Lineage::Unknown, why, devices: devices.collect(), known };
            describe(scene, process, said)
        })
        .collect()
}

fn state(process: &Process) -> String {
    if process.leader_gone {
        "half dead".into()
    } else if process.core_dumping {
        "dumping core".into()
    } else if process.dying && process.state != ProcessState::Zombie {
        "exiting".into()
    } else {
        process.state.word().into()
    }
}

/// The MIG instances whose capability files a process has open: they cannot be destroyed meanwhile.
fn keeps_busy(scene: &Scene<'_>, process: &Process) -> Option<Evidence> {
    let devices = &scene.snapshot.devices;
    let open = process.files.iter().flat_map(|files| &files.nodes).filter(|(_, count)| **count > 0);
    let stands_for = open.filter_map(|(node, _)| scene.snapshot.observer.capabilities.get(node));
    let named = stands_for.flat_map(|capability| {
        let is_it = move |device: &&Device| {
            let Some(mig) = &device.identity.mig else { return false };
            let parent = devices.iter().find(|d| d.identity.uuid == mig.parent).and_then(|d| d.identity.minor);
            parent == Some(capability.minor)
                && mig.gi == Some(capability.gi)
                && capability.ci.is_none_or(|ci| mig.ci == Some(ci))
        };
        devices.iter().filter(is_it).map(|device| device.identity.label())
    });
    let named: BTreeSet<String> = named.collect();
    let devices: Vec<String> = named.into_iter().collect();
    (!devices.is_empty()).then_some(Evidence::KeepsMigBusy { devices })
}

fn open_files(process: &Process) -> Option<Evidence> {
    process.files.as_ref().map(|files| Evidence::OpenFiles { nodes: files.nodes.clone() })
}
