//! Did the bytes come back? Compared device by device with what the plan promised, by the entries of those who were to
//! give it back, so that neighbours who grow or shrink meanwhile neither hide nor feign anything.

use super::{again, plan::Plan};
use crate::{
    model::{Advice, Bytes, Cause, DeviceStatus, ProcId, ReclaimStep, Role, Snapshot, StatusReport, StepOutcome, Uuid},
    observe::proc::ProcReader,
    text::name::Name,
};
use std::collections::BTreeSet;

/// Less than this is jitter.
const NOTICEABLE: Bytes = Bytes::mib(16);

/// A look and what is said of it.
#[derive(Clone, Copy)]
pub struct Looked<'a> {
    /// The look.
    pub snapshot: &'a Snapshot,
    /// What is said.
    pub status: &'a StatusReport,
}

/// What was found out.
#[derive(Debug, Default)]
pub struct Verified {
    /// Something that was to come back did not, or somebody who was to end lives.
    pub remains: bool,
    /// Of that, more than those hold who live on: it may come back yet.
    pub awaited: bool,
    /// A device could not be read.
    pub blind: bool,
    /// Who was started in the place of those that were ended.
    pub started_again: Vec<u32>,
    /// Nobody has been started again yet, and somebody lives who may do it.
    pub may_be_started_again: bool,
    /// What to do next.
    pub advice: Vec<Advice>,
}

/// Writes into the plan's devices what came back, and says what to do about the rest.
pub fn verify(plan: &mut Plan, before: Looked<'_>, after: Looked<'_>, reader: &ProcReader) -> Verified {
    let mut verified = Verified::default();
    let related = related(plan, before.status, |_| true);
    let living = |step: &ReclaimStep| matches!(step.outcome, Some(StepOutcome::Lives | StepOutcome::Refused));
    let kept_by = self::related(plan, before.status, living);
    let again = again::started(plan, reader);
    let handles = plan.steps.iter().any(|s| s.shown.cause == Some(Cause::ExportedHandle));
    for device in &mut plan.devices {
        let listed_for = |pids: &BTreeSet<u32>, looked: Looked<'_>| {
            let entries = looked.snapshot.device(&device.uuid)?.look.entries.as_ref()?;
            Some(entries.iter().filter(|e| pids.contains(&e.pid)).filter_map(|e| e.bytes).sum::<Bytes>())
        };
        let listed = |looked| listed_for(&related, looked);
        let used = after.snapshot.device(&device.uuid).and_then(|d| d.look.used());
        device.used_after_bytes = used;
        let (Some(then), Some(now), Some(_)) = (listed(before), listed(after), used) else {
            (verified.blind, device.came_back_bytes, device.remaining_bytes) = (true, None, None);
            continue;
        };
        let mut came_back = then.saturating_sub(now);
        let mut remaining = now;
        for (pid, command, bytes) in moved(&device.uuid, before, after, &related) {
            let bytes = bytes.min(came_back);
            came_back = came_back.saturating_sub(bytes);
            remaining = remaining + bytes;
            verified.advice.push(Advice {
                command: Some(format!("gpuresid reclaim --pid {pid}")),
                why: format!(
                    "{bytes} passed to PID {pid} ({command}), which shared that memory: this shows what \
                              ending it gives back"
                ),
                disturbs: "nobody: without --yes nothing is ended".into(),
            });
        }
        let unlisted = |looked: Looked<'_>| {
            looked.status.devices.iter().find(|d| d.uuid == device.uuid).and_then(excess).unwrap_or_default()
        };
        if handles {
            came_back = came_back + unlisted(before).saturating_sub(unlisted(after));
            remaining = remaining + unlisted(after);
        } else {
            // An entry goes with its process; the memory can take longer (pinned host memory, a large context).
            let late = unlisted(after).saturating_sub(unlisted(before));
            // What a context costs beside its entry is an estimate, and there is one less.
            let late = if late > NOTICEABLE { late.min(came_back) } else { Bytes::ZERO };
            came_back = came_back.saturating_sub(late);
            remaining = remaining + late;
        }
        device.came_back_bytes = Some(came_back);
        device.remaining_bytes = Some(remaining);
        verified.remains |= remaining > NOTICEABLE;
        let kept = listed_for(&kept_by, after).unwrap_or_default();
        verified.awaited |= remaining.saturating_sub(kept) > NOTICEABLE;
    }
    let lives = |s: &ReclaimStep| matches!(s.outcome, Some(StepOutcome::Lives));
    let refused = |s: &ReclaimStep| matches!(s.outcome, Some(StepOutcome::Refused)) && s.role == Role::Holder;
    verified.remains |= plan.steps.iter().any(|s| lives(&s.shown) || refused(&s.shown)) || !again.is_empty();
    verified.started_again = again.iter().map(|(new, _)| new.pid).collect();
    verified.may_be_started_again = again.is_empty() && again::is_to_be_watched(plan, reader);
    advise(plan, after, &again, &related, &mut verified);
    verified
}

/// The numbers under which the driver lists what these of the plan's processes hold: their own, and those of ghosts
/// whose memory they can keep.
fn related(plan: &Plan, before: &StatusReport, these: impl Fn(&ReclaimStep) -> bool) -> BTreeSet<u32> {
    let mut pids: BTreeSet<u32> = plan.steps.iter().map(|s| &s.shown).filter(|s| these(s)).map(|s| s.pid).collect();
    let of_ghosts = before.ghosts.iter().filter(|g| g.candidates.iter().any(|c| pids.contains(c)));
    let of_ghosts: Vec<u32> = of_ghosts.map(|g| g.pid).collect();
    pids.extend(of_ghosts);
    pids
}

/// Unlisted memory beyond what contexts cost.
fn excess(device: &DeviceStatus) -> Option<Bytes> {
    let excess = i128::from(device.unaccounted_bytes?) - i128::from(device.context_cost_bytes.0);
    Some(Bytes::at_least_zero(excess)).filter(|b| *b > NOTICEABLE)
}

/// Others who shared memory and have more of it now: PID, command, growth.
fn moved(uuid: &Uuid, before: Looked<'_>, after: Looked<'_>, related: &BTreeSet<u32>) -> Vec<(u32, String, Bytes)> {
    let entries = |looked: Looked<'_>| -> Vec<(u32, Bytes)> {
        let device = looked.snapshot.device(uuid);
        let all = device.and_then(|d| d.look.entries.as_ref()).into_iter().flatten();
        all.filter_map(|e| Some((e.pid, e.bytes?))).collect()
    };
    let then = entries(before);
    entries(after)
        .into_iter()
        .filter(|(pid, _)| !related.contains(pid))
        .filter_map(|(pid, now)| {
            let (_, had) = then.iter().find(|(p, _)| *p == pid)?;
            let process = after.snapshot.process(pid).filter(|p| !p.shared_mappings.is_empty())?;
            let growth = now.saturating_sub(*had);
            (growth > NOTICEABLE).then(|| (pid, Name::from(process).whole(), growth))
        })
        .collect()
}

fn advise(
    plan: &Plan,
    after: Looked<'_>,
    again: &[(ProcId, ProcId)],
    related: &BTreeSet<u32>,
    verified: &mut Verified,
) {
    let nobody = "nobody: without --yes nothing is ended";
    let advice = &mut verified.advice;
    for (new, parent) in again {
        let restarter = plan.steps.iter().filter_map(|s| s.shown.restarter.as_ref()).find(|r| r.pid == parent.pid);
        let named = format!("gpuresid reclaim --pid {new} --pid {parent}");
        let first = restarter.map_or(Some(named), |restarter| restarter.end_first(new.pid));
        let how = match (&first, restarter.is_some_and(|r| r.stop.is_some())) {
            (_, true) => "this stops it for good".into(),
            (Some(_), _) => format!("this ends PID {parent} first"),
            (None, _) => format!("stop it in PID {parent}'s own way, which keeps others too"),
        };
        advice.push(Advice {
            command: first,
            why: format!("PID {parent} has started it again, as PID {new}: {how}"),
            disturbs: nobody.into(),
        });
    }
    for step in plan.steps.iter().map(|s| &s.shown).filter(|s| s.outcome == Some(StepOutcome::Lives)) {
        let forced = step.sent.iter().any(|s| s == "KILL");
        advice.push(if forced {
            Advice {
                command: Some(format!("cat /proc/{pid}/wchan /proc/{pid}/stack", pid = step.pid)),
                why: format!(
                    "SIGKILL was sent to PID {} and takes effect when the kernel call that it is in ends; this shows \
                     which call that is. No other signal can do more",
                    step.pid
                ),
                disturbs: "nobody".into(),
            }
        } else {
            Advice {
                command: Some(format!("gpuresid reclaim --pid {} --force --yes", step.pid)),
                why: "SIGTERM did not end it; with --force SIGKILL follows, which it cannot ignore".into(),
                disturbs: format!("PID {}: what it has not saved is lost", step.pid),
            }
        });
    }
    if !verified.remains {
        return;
    }
    let ghosts = after.status.ghosts.iter().filter(|g| related.contains(&g.pid) && !g.candidates.is_empty());
    for ghost in ghosts {
        let rest: Vec<_> = ghost.candidates.iter().map(|pid| format!("--pid {pid}")).collect();
        advice.push(Advice {
            command: Some(format!("gpuresid reclaim {}", rest.join(" "))),
            why: format!("only these can be keeping the memory that the driver lists for PID {}", ghost.pid),
            disturbs: nobody.into(),
        });
    }
    if advice.is_empty() {
        advice.push(Advice {
            command: Some("gpuresid".into()),
            why:
                "look again in a moment: it says who holds the rest, and why; pinned host memory alone can delay it by \
                  half a minute"
                    .into(),
            disturbs: "nobody".into(),
        });
    }
}
