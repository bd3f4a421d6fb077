//! What is known of the lives of those whom a plan would end: whether they work, where they run, and who talks to them. The
//! plan waits for it, because nobody can take a signal back; carrying it out does not.

use super::{plan::Plan, targets::command};
use crate::{
    model::{LifeSigns, ListKind, ProcId, Snapshot, Talker},
    observe::proc::{ProcReader, ticks_per_second},
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// So long their CPU time is watched.
const WATCHED: Duration = Duration::from_secs(1);

/// Fills it in.
pub fn look(plan: &mut Plan, reader: &ProcReader, snapshot: &Snapshot) {
    if plan.steps.is_empty() {
        return;
    }
    let ids: Vec<ProcId> = plan.steps.iter().map(|step| step.target.id).collect();
    let used = || ids.iter().map(|id| cpu_ticks(reader, *id)).collect::<Vec<_>>();
    let (start, before) = (Instant::now(), used());
    let peers = reader.peers(&ids, &snapshot.observer.tool_processes);
    thread::sleep(WATCHED.saturating_sub(start.elapsed()));
    let (after, watched) = (used(), start.elapsed());
    for ((step, before), after) in plan.steps.iter_mut().zip(before).zip(after) {
        let id = step.target.id;
        let ticks = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        let peers = peers.get(&id);
        step.shown.life = Some(LifeSigns {
            watched_ms: u64::try_from(watched.as_millis()).unwrap_or(0),
            cpu_ms: ticks.map(|ticks| ticks.saturating_mul(1000) / ticks_per_second()),
            gpu_percent: gpu_percent(snapshot, id.pid),
            terminal: reader.terminal(id),
            pipes_with: peers
                .and_then(|peers| Some(peers.pipes.as_ref()?.iter().filter_map(|id| talker(reader, *id)).collect())),
            all_seen: peers.is_some_and(|peers| peers.all_seen),
            tcp_peers: peers.and_then(|peers| Some(peers.tcp.as_ref()?.iter().map(ToString::to_string).collect())),
        });
    }
}

fn cpu_ticks(reader: &ProcReader, id: ProcId) -> Option<u64> {
    reader.find(id).ok().flatten().map(|process| process.cpu_ticks)
}

/// Whoever has ended meanwhile talks to nobody.
fn talker(reader: &ProcReader, id: ProcId) -> Option<Talker> {
    let process = reader.find(id).ok().flatten()?;
    Some(Talker { pid: id.pid, start_ticks: id.start_ticks, command: command(&process) })
}

/// How busy the GPUs are that it computes on, where nobody else is on them or may be: else nothing tells whose work it is.
fn gpu_percent(snapshot: &Snapshot, pid: u32) -> Option<u32> {
    let sees_all = !snapshot.observer.out_of_sight();
    let mut busiest = None;
    for device in &snapshot.devices {
        let entries = || device.look.entries.iter().flatten();
        if !entries().any(|entry| entry.pid == pid && entry.lists.contains(&ListKind::Compute)) {
            continue;
        }
        let alone = sees_all && entries().all(|entry| entry.pid == pid);
        let percent = device.look.utilization_percent.filter(|percent| alone || *percent == 0)?;
        busiest = busiest.max(Some(percent));
    }
    busiest
}
