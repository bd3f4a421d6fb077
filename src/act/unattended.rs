//! Whom a timer may end, which has nobody to ask: what is left of a checked run that is over and whose user gave leave for
//! it. The record says so, and is believed in so far as nobody gains by forging it: its owner could signal each of its
//! processes himself, and whoever is not exactly what it tells of is left alone.

use super::{
    idle::Idle,
    records::{RecordPlace, Recorded},
    targets::{Claim, Found, World},
};
use crate::{
    error::hinted,
    model::{Fingerprint, ProcId, Process, RunMember},
    text,
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    path::Path,
    time::Duration,
};

/// What the timer goes by.
#[derive(Debug)]
pub struct Unattended {
    records: Vec<Recorded>,
    idle: Option<Idle>,
}

impl Unattended {
    /// By the records in this place, and by the site's policy for what is `idle` for so long.
    ///
    /// # Errors
    /// If the place cannot be trusted, or we may not read it.
    pub fn by_records(place: &Path, idle: Option<Duration>) -> anyhow::Result<Self> {
        let shown = text::shell_word(&place.to_string_lossy()).unwrap_or_else(|| "DIR".into());
        let place = RecordPlace::open(place).map_err(|why| {
            hinted(
                format!("nobody can give leave to be ended on this machine: {why}"),
                format!("make a place for the records of checks: sudo install -d -m 1733 {shown}"),
            )
        })?;
        let records = place.read().map_err(|error| {
            hinted(
                format!("cannot read the records of checks: {error}"),
                "only root can: sudo gpuresid reclaim --unattended --all-users",
            )
        })?;
        let idle = idle.map(|least| Idle::since_the_last_look(&place, least));
        Ok(Self { records, idle })
    }

    pub(super) fn nobody(&self) -> String {
        let leave = "no process is left of a checked run whose user gave leave to end it";
        match &self.idle {
            None => leave.into(),
            Some(idle) => format!("{leave}, and none is known to have been idle for {}", idle.least()),
        }
    }

    pub(super) fn members(&self, world: &World<'_>) -> anyhow::Result<Found> {
        let mut found = Found::default();
        let observer = &world.snapshot.observer;
        // Each is looked at once, however often the records name it: whoever can write one could else keep us busy.
        let mut looked_at: BTreeMap<ProcId, Option<(Process, Option<Fingerprint>)>> = BTreeMap::new();
        let of_here = |record: &&Recorded| record.is_of_here(&world.snapshot.boot_id, observer.pid_namespace);
        for recorded in self.records.iter().filter(of_here).filter(|recorded| recorded.is_over(world.reader)) {
            for member in &recorded.record.members {
                let looked = match looked_at.entry(member.id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(look(world, member.id)?),
                };
                let Some((process, now)) = looked else { continue };
                match believed(recorded, member, process, now.as_ref()) {
                    Ok(_) if found.claims.iter().any(|claim| claim.process.id == member.id) => {}
                    Ok(why) => found.claims.push(Claim { process: process.clone(), why: vec![why] }),
                    Err(_) if found.left_alone.iter().any(|left| left.pid == member.id.pid) => {}
                    Err(why) if process.can_hold_memory() != Some(false) => found.leave(process, why),
                    Err(_) => {}
                }
            }
        }
        for claim in
            self.idle.iter().map(|idle| idle.members(world)).collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten()
        {
            if !found.claims.iter().any(|known| known.process.id == claim.process.id) {
                found.left_alone.retain(|left| left.pid != claim.process.id.pid);
                found.claims.push(claim);
            }
        }
        found.belong.extend(found.claims.iter().map(|claim| claim.process.id));
        // Who holds nothing is of interest only where he may start again who does.
        let holders: Vec<Process> =
            found.claims.iter().map(|c| &c.process).filter(|p| p.can_hold_memory() != Some(false)).cloned().collect();
        found.claims.retain(|claim| {
            let is_above = |holder: &Process| holder.ancestors.iter().any(|a| a.id == claim.process.id);
            claim.process.can_hold_memory() != Some(false) || holders.iter().any(is_above)
        });
        Ok(found)
    }

    /// Removes the records of those who are all gone.
    pub fn tidy_up(&self, world: &World<'_>) {
        for recorded in self.records.iter().filter(|r| r.is_stale(&world.snapshot.boot_id, world.reader)) {
            let _ = fs::remove_file(&recorded.path);
        }
    }
}

/// The process, if it lives, and what it is now.
fn look(world: &World<'_>, id: ProcId) -> anyhow::Result<Option<(Process, Option<Fingerprint>)>> {
    let process = world.find(id)?.filter(|process| !process.is_zombie());
    Ok(process.map(|process| {
        let now = world.reader.fingerprint(&process);
        (process, now)
    }))
}

/// Why this process may be ended by that record; else why it may not.
fn believed(
    recorded: &Recorded,
    member: &RunMember,
    process: &Process,
    now: Option<&Fingerprint>,
) -> Result<String, String> {
    let left = "it is left of a checked run that is over";
    if !recorded.record.leave {
        return Err(format!("{left}, but no leave was given to end that (check --leave)"));
    }
    if process.uid != Some(recorded.owner) || member.fingerprint.uid != Some(recorded.owner) {
        return Err("the record that names it as left of a checked run is another user's".into());
    }
    let change = match now {
        Some(now) => member.fingerprint.change(now),
        None => Some("it cannot be looked at"),
    };
    match change {
        Some(change) => Err(format!("{left}, but not as it was then: {change}")),
        None => Ok(format!("{left}, and its user gave leave to end what is left (check --leave or --cleanup)")),
    }
}
