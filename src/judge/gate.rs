//! The rules of a gate (`status --fail-on`), for who needs one exit code before a GPU is handed on: an epilog, a CI
//! runner. Which of them are broken, and by whom; nothing here decides what a cause is.

use super::{place, scene::Scene};
use crate::model::{BrokenRule, Cause, Device, FindingKind, Holder, Snapshot, StatusReport, Uuid};
use std::collections::BTreeSet;

/// What must not be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Nobody holds memory for one of these causes; the name that each has for scripts.
    pub causes: Vec<(Cause, &'static str)>,
    /// Every GPU can be read, none needs a reset, and so many are there.
    pub lost: Option<Expected>,
    /// Everybody who holds memory is mine.
    pub foreign: Option<Mine>,
}

/// How many GPUs must be there; `None`: those that are.
pub type Expected = Option<usize>;

/// Who is no stranger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mine {
    /// This user's processes.
    User(u32),
    /// Those of this Slurm job.
    Job(String),
}

/// The rules that are broken.
pub fn broken(rules: &Rules, snapshot: &Snapshot, report: &StatusReport) -> Vec<BrokenRule> {
    let mut broken: Vec<BrokenRule> =
        rules.causes.iter().filter_map(|(cause, name)| of_cause(*cause, name, report)).collect();
    broken.extend(rules.lost.and_then(|expected| lost(expected, snapshot, report)));
    broken.extend(rules.foreign.as_ref().and_then(|mine| foreign(mine, snapshot, report)));
    broken
}

fn of_cause(cause: Cause, name: &str, report: &StatusReport) -> Option<BrokenRule> {
    let those: Vec<&Holder> = report.holders.iter().filter(|holder| holder.cause == cause).collect();
    (!those.is_empty()).then(|| BrokenRule {
        rule: name.into(),
        pids: those.iter().map(|holder| holder.pid).collect(),
        device_uuids: Vec::new(),
        text: those.iter().map(|holder| who(holder, false)).collect::<Vec<_>>().join(", "),
    })
}

fn lost(expected: Expected, snapshot: &Snapshot, report: &StatusReport) -> Option<BrokenRule> {
    let mut said = Vec::new();
    let mut device_uuids = Vec::new();
    if report.failure.is_some() {
        said.push("the driver does not answer".to_owned());
    }
    for device in &snapshot.devices {
        if let Some(why) = why_lost(device) {
            said.push(format!("{}: {why}", device.identity.label()));
            device_uuids.push(device.identity.uuid.clone());
        }
    }
    // The whole machine's, whichever are looked at; an instance stands for its GPU.
    let gpus: BTreeSet<&Uuid> = snapshot.present().map(|d| d.mig.as_ref().map_or(&d.uuid, |mig| &mig.parent)).collect();
    let there = gpus.len();
    if let Some(expected) = expected.filter(|expected| there < *expected && report.failure.is_none()) {
        said.push(format!("only {there} of {expected} GPUs are there"));
    }
    (!said.is_empty()).then(|| BrokenRule {
        rule: "lost".into(),
        pids: Vec::new(),
        device_uuids,
        text: said.join("; "),
    })
}

fn why_lost(device: &Device) -> Option<String> {
    let look = &device.look;
    if let Some(gap) = look.gaps.iter().find(|gap| gap.trouble.is_some()) {
        return Some(gap.reason.clone());
    }
    // Some GPUs work in the machine's own memory and tell no amounts; of one in parts we may not read the whole's lists.
    let unread = look.entries.is_none() && !(device.identity.mig_parent && look.memory.is_some());
    unread.then(|| look.gaps.first().map_or_else(|| "it was not read".to_owned(), |gap| gap.reason.clone()))
}

fn foreign(mine: &Mine, snapshot: &Snapshot, report: &StatusReport) -> Option<BrokenRule> {
    let scene = Scene::of_snapshot(snapshot);
    let (ours, others): (Vec<&Holder>, Vec<&Holder>) =
        report.holders.iter().partition(|holder| is_mine(mine, &scene, holder));
    let mut said: Vec<String> = others.iter().map(|holder| who(holder, true)).collect();
    // Memory that somebody holds who cannot be seen; not where one of mine has that GPU, who may have it unlisted.
    let hidden = report.findings.iter().filter(|finding| finding.kind() == FindingKind::Unattributed);
    let mut device_uuids = Vec::new();
    for (uuid, bytes) in hidden.filter_map(|finding| finding.device_uuid.as_ref().zip(finding.bytes)) {
        let has_it =
            |holder: &&Holder| holder.devices.is_empty() || holder.devices.iter().any(|held| held.uuid == *uuid);
        let named = ours.iter().chain(&others).any(has_it);
        if let Some(device) = snapshot.device(uuid).filter(|_| !named) {
            said.push(format!("{bytes} on {}, held by nobody who can be seen from here", device.identity.label()));
            device_uuids.push(uuid.clone());
        }
    }
    let whose = match mine {
        Mine::User(_) => "not yours".to_owned(),
        Mine::Job(job) => format!("not of job {job}"),
    };
    (!said.is_empty()).then(|| BrokenRule {
        rule: "foreign".into(),
        pids: others.iter().map(|holder| holder.pid).collect(),
        device_uuids,
        text: format!("{whose}: {}", said.join(", ")),
    })
}

/// Whoever cannot be seen is a stranger.
fn is_mine(mine: &Mine, scene: &Scene<'_>, holder: &Holder) -> bool {
    match mine {
        Mine::User(uid) => holder.uid == Some(*uid),
        Mine::Job(job) => scene.living(holder).and_then(place::job).as_deref() == Some(job),
    }
}

fn who(holder: &Holder, with_user: bool) -> String {
    let user = holder.user.as_ref().filter(|_| with_user).map(|user| format!(" of {user}")).unwrap_or_default();
    let known = holder.devices.iter().any(|held| held.held_bytes.is_some());
    let memory = if known { format!(" ({})", holder.held()) } else { String::new() };
    format!("PID {}{user}{memory}", holder.pid)
}
