//! What a plan says of the lives of those whom it would end. What is not known is said to be unknown: only what was seen
//! speaks against ending somebody, and that nothing was seen speaks for nothing.

use crate::{
    model::{LifeSigns, ReclaimStep},
    report::words,
    text,
};
use std::collections::BTreeSet;

/// So many other ends of connections are shown.
const MOST_PEERS: usize = 3;

/// What is known of the lives of a group, one short sentence each.
pub(super) fn life_of(group: &[&ReclaimStep]) -> Vec<String> {
    let lives: Vec<&LifeSigns> = group.iter().filter_map(|step| step.life.as_ref()).collect();
    let Some(first) = lives.first().filter(|_| lives.len() == group.len()) else { return Vec::new() };
    let seconds = |ms: u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
    let cpu: Option<u64> = lives.iter().map(|life| life.cpu_ms).sum();
    let mut facts = vec![match cpu {
        None => "CPU time: cannot be read".into(),
        Some(0) => format!("used no CPU time in the last {}", seconds(first.watched_ms)),
        Some(cpu) => {
            // A thread that waits in a loop takes some too.
            let works = if cpu * 4 >= first.watched_ms { ": working" } else { "" };
            format!("used {} of CPU time in the last {}{works}", seconds(cpu.max(100)), seconds(first.watched_ms))
        }
    }];
    let gpu: Option<Vec<u32>> = lives.iter().map(|life| life.gpu_percent).collect();
    facts.push(match gpu.as_ref().and_then(|gpu| gpu.iter().max()) {
        None => "GPU work: not known".into(),
        Some(0) => "its GPU is idle".into(),
        Some(percent) => format!("its GPU is {percent}% busy"),
    });
    let terminals: BTreeSet<Option<&str>> = lives.iter().map(|life| life.terminal.as_deref()).collect();
    for terminal in terminals {
        match terminal {
            None => facts.push("terminal: not known".into()),
            Some("") => {}
            Some(name) => facts.push(format!("runs at the terminal {name}")),
        }
    }
    let mut talks = Vec::new();
    let pipes: BTreeSet<u32> = lives.iter().flat_map(|life| life.pipes_with.iter().flatten().copied()).collect();
    if !pipes.is_empty() {
        let pids: Vec<u32> = pipes.into_iter().collect();
        talks.push(format!("PID {} through pipes", text::ranges(&pids).join(", ")));
    }
    let ends: BTreeSet<&String> = lives.iter().flat_map(|life| life.tcp_peers.iter().flatten()).collect();
    let shown: Vec<String> = ends.iter().take(MOST_PEERS).map(|end| text::clean(end)).collect();
    match ends.len().saturating_sub(MOST_PEERS) {
        0 if shown.is_empty() => {}
        0 => talks.push(words::list(&shown)),
        more => talks.push(format!("{} and {more} more", shown.join(", "))),
    }
    if !talks.is_empty() {
        facts.push(format!("connected to {}", talks.join("; ")));
    }
    if lives.iter().any(|life| life.pipes_with.is_none() || life.tcp_peers.is_none()) {
        facts.push("who else talks to it: not all can be seen".into());
    }
    facts
}
