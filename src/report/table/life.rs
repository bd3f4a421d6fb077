//! What a plan says of the lives of those whom it would end. What is not known is said to be unknown: only what was seen
//! speaks against ending somebody, and that nothing was seen speaks for nothing.

use crate::{
    model::{LifeSigns, ReclaimStep, Talker},
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
    let mut facts = vec![cpu_of(&lives, first.watched_ms)];
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
    let pipes: BTreeSet<&Talker> = lives.iter().flat_map(|life| life.pipes_with.iter().flatten()).collect();
    let named = |talker: &&Talker| format!("PID {} ({})", talker.pid, text::shorten(&talker.command, 60));
    let shown: Vec<String> = pipes.iter().take(MOST_PEERS).map(named).collect();
    match pipes.len().saturating_sub(MOST_PEERS) {
        0 if shown.is_empty() => {}
        0 => talks.push(format!("{} through pipes", words::list(&shown))),
        more => talks.push(format!("{} and {more} more through pipes", shown.join(", "))),
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
    if lives.iter().any(|life| !life.all_seen || life.pipes_with.is_none() || life.tcp_peers.is_none()) {
        facts.push("who else talks to it: not all can be seen".into());
    }
    facts
}

/// One that works is not lost in the sum of many that wait, and one that cannot be read hides nobody.
fn cpu_of(lives: &[&LifeSigns], watched_ms: u64) -> String {
    let known: Vec<u64> = lives.iter().filter_map(|life| life.cpu_ms).collect();
    if known.is_empty() {
        return "CPU time: cannot be read".into();
    }
    let used = match known.iter().sum::<u64>() {
        0 => "no CPU time".to_owned(),
        ms @ 1..100 => format!("0.{:02} s of CPU time", ms.div_ceil(10)),
        ms => format!("{} of CPU time", seconds(ms)),
    };
    // A thread that waits in a loop takes some too.
    let working = known.iter().filter(|ms| **ms * 4 >= watched_ms).count();
    let works = match (working, lives.len()) {
        (0, _) => String::new(),
        (working, all) if working == all => ": working".into(),
        (working, all) => format!(": {working} of {all} working"),
    };
    let unread = match lives.len() - known.len() {
        0 => String::new(),
        n => format!("; of {} it cannot be read", words::count(n, "process", "processes")),
    };
    format!("used {used} in the last {}{works}{unread}", seconds(watched_ms))
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_works_is_not_lost_among_others() {
        let said = |all: &[Option<u64>]| {
            let signs = |cpu_ms: &Option<u64>| LifeSigns {
                watched_ms: 1000,
                cpu_ms: *cpu_ms,
                gpu_percent: None,
                terminal: None,
                pipes_with: None,
                all_seen: false,
                tcp_peers: None,
            };
            let lives: Vec<LifeSigns> = all.iter().map(signs).collect();
            cpu_of(&lives.iter().collect::<Vec<_>>(), 1000)
        };
        assert_eq!(said(&[Some(980)]), "used 0.9 s of CPU time in the last 1.0 s: working");
        assert_eq!(said(&[Some(10)]), "used 0.01 s of CPU time in the last 1.0 s");
        assert_eq!(said(&[Some(0)]), "used no CPU time in the last 1.0 s");
        assert_eq!(said(&[None]), "CPU time: cannot be read");
        assert_eq!(said(&[Some(20); 32]), "used 0.6 s of CPU time in the last 1.0 s", "many that wait are not at work");
        let some = [Some(0), Some(1000), None];
        let words = "used 1.0 s of CPU time in the last 1.0 s: 1 of 3 working; of 1 process it cannot be read";
        assert_eq!(said(&some), words);
    }
}
