//! The site's own written policy (`reclaim --unattended --idle 30m`): what nobody started that still lives, at no terminal,
//! and neither it nor its GPU has worked for so long. That cannot be seen in one look. So each look is kept for the next
//! one, in a file of root's beside the records, and who has done anything between the two begins anew.
//!
//! It says nothing of what such a process is for: a server that waits for its first request is idle too. That is why nobody
//! is ended by it who has not switched it on.

use super::{
    records::{self, RecordPlace},
    targets::{Claim, World},
};
use crate::{
    judge::has_lost_its_starter,
    model::{BootId, Device, Holder, ListKind, ProcId, Process, schema},
    report::pending::Pending,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

/// The policy, and what the look before saw.
#[derive(Debug)]
pub struct Idle {
    least: Duration,
    file: PathBuf,
    before: IdleLook,
}

/// What a look saw.
#[derive(Debug, Default, Serialize, Deserialize)]
struct IdleLook {
    schema: String,
    boot_id: Option<BootId>,
    idle: Vec<IdleProcess>,
}

/// One who may be idle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct IdleProcess {
    id: ProcId,
    /// CPU time of it and of what runs below it, in clock ticks.
    cpu_ticks: u64,
    /// Since when it is as it is, on the clock that stands still while the machine sleeps, in seconds.
    since: u64,
}

impl Idle {
    /// The policy, with the look that was kept in this place.
    pub(super) fn since_the_last_look(place: &RecordPlace, least: Duration) -> Self {
        let file = place.beside("idle.json");
        let before = read(&file).unwrap_or_default();
        Self { least, file, before }
    }

    pub(super) fn least(&self) -> humantime::FormattedDuration {
        humantime::format_duration(self.least)
    }

    /// Who has been idle for long enough, and keeps this look for the next one.
    pub(super) fn members(&self, world: &World<'_>) -> anyhow::Result<Vec<Claim>> {
        let now = u64::try_from(clock_gettime(ClockId::Monotonic).tv_sec).unwrap_or(0);
        let boot_id = &world.snapshot.boot_id;
        let before: &[IdleProcess] =
            if self.before.boot_id.as_ref() == Some(boot_id) { &self.before.idle } else { &[] };
        let (mut claims, mut idle) = (Vec::new(), Vec::new());
        for holder in &world.status.holders {
            let process = world.examine(holder.pid)?.filter(|p| Some(p.id.start_ticks) == holder.start_ticks);
            let Some(process) = process.filter(|p| !p.is_zombie() && seems_idle(world, holder, p)) else { continue };
            let below = world.reader.descendants(process.id.pid);
            let cpu_ticks = below.iter().map(|p| p.cpu_ticks).sum::<u64>() + process.cpu_ticks;
            let seen = since(before, IdleProcess { id: process.id, cpu_ticks, since: now });
            let lasted = Duration::from_secs(now.saturating_sub(seen.since));
            if seen.since < now && lasted >= self.least {
                let why = format!(
                    "what started it is gone, it is at no terminal, and neither it nor its GPU has worked for {} (--idle {})",
                    humantime::format_duration(lasted),
                    humantime::format_duration(self.least)
                );
                claims.push(Claim { process, why: vec![why] });
            }
            idle.push(seen);
        }
        let look = IdleLook { schema: schema::IDLE.into(), boot_id: Some(boot_id.clone()), idle };
        let text = serde_json::to_vec(&look)?;
        Pending::open(&self.file)?.write(|out| out.write_all(&text))?;
        Ok(claims)
    }
}

/// The same as in the look before, or new.
fn since(before: &[IdleProcess], now: IdleProcess) -> IdleProcess {
    let same = before.iter().find(|then| then.id == now.id && then.cpu_ticks == now.cpu_ticks);
    same.filter(|then| then.since <= now.since).cloned().unwrap_or(now)
}

/// As far as one look tells. What is not known is no sign of idleness.
fn seems_idle(world: &World<'_>, holder: &Holder, process: &Process) -> bool {
    let computes = |device: &&Device| {
        let entries = device.look.entries.iter().flatten();
        entries.filter(|entry| entry.pid == holder.pid).any(|entry| entry.lists.contains(&ListKind::Compute))
    };
    let mut devices = world.snapshot.devices.iter().filter(computes).peekable();
    devices.peek().is_some()
        && devices.all(|device| device.look.utilization_percent == Some(0))
        // A container, a service, a job: whoever owns it ends it.
        && holder.ends_with.is_none()
        && has_lost_its_starter(process, &world.snapshot.observer)
        && world.reader.fingerprint(process).is_some_and(|it| it.terminal == 0)
}

fn read(file: &Path) -> Option<IdleLook> {
    let mut text = Vec::new();
    let (mut file, _) = records::open(file).filter(|(_, owner)| *owner == 0)?;
    file.read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok().filter(|look: &IdleLook| look.schema == schema::IDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_done_anything_begins_anew() {
        let seen = |start_ticks, cpu_ticks, since| IdleProcess { id: ProcId { pid: 7, start_ticks }, cpu_ticks, since };
        let before = [seen(70, 500, 1_000)];
        assert_eq!(since(&before, seen(70, 500, 4_000)), seen(70, 500, 1_000));
        assert_eq!(since(&before, seen(70, 501, 4_000)), seen(70, 501, 4_000), "it has worked");
        assert_eq!(since(&before, seen(70, 400, 4_000)), seen(70, 400, 4_000), "what ran below it has ended");
        assert_eq!(since(&before, seen(71, 500, 4_000)), seen(71, 500, 4_000), "another with its number");
        assert_eq!(since(&before, seen(70, 500, 400)), seen(70, 500, 400), "a look of another boot's clock");
        assert_eq!(since(&[], seen(70, 500, 4_000)), seen(70, 500, 4_000));
    }
}
