//! Holders that are the same to a reader: the ranks of one launcher that died, thirty workers of one container. What is
//! said of them, and what ends them, is said once.

use super::{Cause, Holder, ReclaimStep};

/// Fewer stand one by one.
const FEWEST: usize = 4;

/// The holders in their order, those that are alike together at the place of the first. Every other group has one.
pub fn groups<'a>(holders: &[&'a Holder]) -> Vec<Vec<&'a Holder>> {
    together(holders.iter().copied(), Holder::is_like)
}

/// The steps of a plan in the same way.
pub fn step_groups(steps: &[ReclaimStep]) -> Vec<Vec<&ReclaimStep>> {
    together(steps.iter(), ReclaimStep::is_like)
}

fn together<'a, T>(all: impl Iterator<Item = &'a T>, alike: impl Fn(&T, &T) -> bool) -> Vec<Vec<&'a T>> {
    let mut groups: Vec<Vec<(usize, &T)>> = Vec::new();
    for (place, one) in all.enumerate() {
        match groups.iter_mut().find(|group| group.first().is_some_and(|(_, first)| alike(first, one))) {
            Some(group) => group.push((place, one)),
            None => groups.push(vec![(place, one)]),
        }
    }
    let (many, few): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.len() >= FEWEST);
    let mut apart: Vec<Vec<(usize, &T)>> = few.into_iter().flatten().map(|one| vec![one]).chain(many).collect();
    apart.sort_by_key(|group| group.first().map(|(place, _)| *place));
    apart.into_iter().map(|group| group.into_iter().map(|(_, one)| one).collect()).collect()
}

impl ReclaimStep {
    /// For the same cause, with the same signals and the same outcome, of the same program.
    fn is_like(&self, other: &Self) -> bool {
        let same = |one: &Self| {
            let whom = (one.uid, one.user.clone(), one.role, one.cause, gist(&one.command));
            (whom, one.signals.clone(), one.sent.clone(), one.outcome, one.outcome_why.clone())
        };
        // Who may start it again is told for each.
        self.restarter.is_none() && other.restarter.is_none() && same(self) == same(other)
    }
}

/// What is said of a group: what holds for all of it, and first what the first of them rests on, as the others rest on the
/// like of it. `of` names the first.
pub fn said_of_all(of: u32, whys: &[Vec<String>]) -> Vec<String> {
    let Some((first, others)) = whys.split_first() else { return Vec::new() };
    let common = |why: &&String| others.iter().all(|other| other.contains(why));
    let reason = first.first().filter(|why| !common(why)).map(|why| format!("PID {of}: {why}"));
    reason.into_iter().chain(first.iter().filter(common).cloned()).collect()
}

/// Program and script, without the arguments that tell its like apart: `python3 rank.py`.
pub fn gist(line: &str) -> String {
    let mut words = line.split(' ');
    let first = words.next().unwrap_or_default();
    let program = if first.starts_with('/') { first.rsplit('/').next().unwrap_or(first) } else { first };
    match words.find(|word| !word.starts_with('-')) {
        Some(script) if program.starts_with("python") => format!("{program} {script}"),
        _ => program.to_owned(),
    }
}

impl Holder {
    /// The same cause, by the same launcher, in the same place, of the same program, and ended in the same way.
    fn is_like(&self, other: &Self) -> bool {
        let same = |one: &Self| {
            let owner = (one.uid, one.user.clone(), one.lineage, one.cgroup.clone(), one.place.clone());
            let launcher = (one.launcher.clone(), one.launcher_gone, one.started_by);
            let end = (one.ends_with.clone(), one.inner_pid == Some(1));
            (one.cause, one.gist(), one.program.clone(), owner, launcher, end)
        };
        // What only lost its parent may be of several people's runs, unless more is known.
        let tied = self.cause != Cause::Detached || self.started_by.is_some() || self.place.is_some();
        tied && same(self) == same(other)
    }

    /// What it has in common with its like.
    pub fn gist(&self) -> String {
        gist(self.name())
    }
}
