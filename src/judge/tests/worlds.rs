//! A world with one GPU, a checked command and neighbours, that knows the truth: what every process holds, listed or
//! not. It shows the judgement only what NVML and `/proc` would show.

use super::build::{COMMAND, NOISE, ROOT, ancestor, entry, files, id, launch, look, observation, process, snapshot};
use crate::{
    judge::{fold::Fold, judge},
    model::{Bytes, DeviceFiles, DeviceLook, Look, Observation, ProcId, Process, Report, Scope, Snapshot},
};

/// A device in use and each context cost this beside what is listed (measured: 8.8125, 14.375, 20.0 MiB).
const IN_USE: u64 = 13 << 18;
const CONTEXT: u64 = 89 << 16;

/// What somebody does between two looks.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// Somebody starts with a context and so many listed bytes.
    Start(u64),
    /// The n-th living one grows.
    Grow(usize, u64),
    /// The n-th gives back half of its listed memory.
    Shrink(usize),
    /// The n-th takes memory that no list names (managed).
    Managed(usize, u64),
    /// The n-th gives its unlisted memory back.
    Unmanage(usize),
    /// The n-th ends.
    End(usize),
    /// The n-th forks and ends: a ghost, kept by a copy.
    ForkAndEnd(usize),
    /// Somebody keeps an exported handle of so many bytes, with only the control node open.
    Export(u64),
    /// Somebody only watches: an NVML client.
    Watch,
}

#[derive(Debug, Clone)]
struct Body {
    id: ProcId,
    own: bool,
    /// Listed under this number, which a copy has from its parent.
    listed: Option<(u32, u64)>,
    unlisted: u64,
    files: DeviceFiles,
}

impl Body {
    /// The context that it can use: a copy keeps its parent's and cannot.
    fn own_context(&mut self) -> Option<&mut (u32, u64)> {
        self.listed.as_mut().filter(|(pid, _)| *pid == self.id.pid)
    }
}

/// The world.
pub(super) struct World {
    bodies: Vec<Body>,
    next: u32,
    at_ms: u64,
    ghosts_seen: Vec<Process>,
}

impl World {
    pub(super) fn new() -> Self {
        Self { bodies: Vec::new(), next: 1000, at_ms: 0, ghosts_seen: Vec::new() }
    }

    fn fresh(&mut self, own: bool) -> ProcId {
        self.next += 1;
        // Neighbours from before the run are older than the command, all others younger.
        let start =
            if own || self.at_ms > 0 { COMMAND.start_ticks + u64::from(self.next) } else { u64::from(self.next) };
        id(self.next, start)
    }

    pub(super) fn apply(&mut self, event: &Event, own: bool) {
        let mine: Vec<usize> = (0..self.bodies.len()).filter(|i| self.bodies[*i].own == own).collect();
        let pick = |n: usize| (!mine.is_empty()).then(|| mine[n % mine.len()]);
        let add = |world: &mut Self, listed: Option<u64>, unlisted, files| {
            let id = world.fresh(own);
            world.bodies.push(Body { id, own, listed: listed.map(|b| (id.pid, b)), unlisted, files });
        };
        match event {
            Event::Start(bytes) => add(self, Some(*bytes), 0, files(23, 2, 4)),
            Event::Export(bytes) => add(self, None, *bytes, files(0, 1, 0)),
            Event::Watch => add(self, None, 0, files(3, 1, 2)),
            Event::Grow(n, bytes) => {
                if let Some((_, b)) = pick(*n).and_then(|i| self.bodies[i].own_context()) {
                    *b += bytes;
                }
            }
            Event::Shrink(n) => {
                if let Some((_, b)) = pick(*n).and_then(|i| self.bodies[i].own_context()) {
                    *b /= 2;
                }
            }
            Event::Managed(n, bytes) => {
                if let Some(i) = pick(*n).filter(|i| self.bodies[*i].listed.is_some()) {
                    self.bodies[i].unlisted += bytes;
                }
            }
            Event::Unmanage(n) => {
                if let Some(i) = pick(*n).filter(|i| self.bodies[*i].listed.is_some()) {
                    self.bodies[i].unlisted = 0;
                }
            }
            Event::End(n) => {
                if let Some(i) = pick(*n) {
                    self.bodies.remove(i);
                }
            }
            Event::ForkAndEnd(n) => {
                if let Some(i) = pick(*n).filter(|i| self.bodies[*i].listed.is_some()) {
                    let parent = self.process(&self.bodies[i]);
                    self.ghosts_seen.push(parent);
                    self.bodies[i].id = self.fresh(own);
                }
            }
        }
    }

    /// What the command's processes hold in truth, without the cost of contexts.
    pub(super) fn own_truth(&self) -> u64 {
        self.bodies.iter().filter(|b| b.own).map(|b| b.unlisted + b.listed.map_or(0, |(_, n)| n)).sum()
    }

    /// Of that, what no list names.
    pub(super) fn own_unlisted(&self) -> u64 {
        self.bodies.iter().filter(|b| b.own).map(|b| b.unlisted).sum()
    }

    pub(super) fn own_alive(&self) -> bool {
        self.bodies.iter().any(|b| b.own)
    }

    fn process(&self, body: &Body) -> Process {
        let chain = if body.own {
            vec![ancestor(ROOT, "gpuresid")]
        } else {
            vec![ancestor(id(300, 1), "bash"), ancestor(id(1, 0), "init")]
        };
        process(body.id, chain, Some(body.files.clone()))
    }

    fn look(&self) -> DeviceLook {
        let listed: Vec<_> = self.bodies.iter().filter_map(|b| b.listed).collect();
        let cost = if listed.is_empty() { 0 } else { IN_USE + CONTEXT * listed.len() as u64 };
        let used: u64 =
            listed.iter().map(|(_, n)| n).sum::<u64>() + self.bodies.iter().map(|b| b.unlisted).sum::<u64>();
        look(used + cost, listed.iter().map(|(pid, n)| entry(*pid, Some(*n))).collect())
    }

    fn snapshot(&self) -> Snapshot {
        snapshot(self.look(), self.bodies.iter().map(|b| self.process(b)).collect())
    }
}

/// One run: what neighbours did before it, and who did what during it (`true`: the command), a look after each event.
#[derive(Debug, Clone)]
pub(super) struct Story {
    pub(super) before: Vec<Event>,
    pub(super) during: Vec<(bool, Event)>,
}

/// The story as the judgement saw it, and the truth.
pub(super) struct Told {
    pub(super) report: Report,
    pub(super) observation: Observation,
    pub(super) world: World,
}

impl Told {
    pub(super) fn low(&self) -> u64 {
        self.report.devices[0].charged_residue_bytes.0
    }

    pub(super) fn high(&self) -> Option<Bytes> {
        self.report.devices[0].charged_residue_max_bytes
    }
}

pub(super) fn tell(story: &Story) -> Told {
    let mut world = World::new();
    for event in &story.before {
        world.apply(event, false);
    }
    let before = world.snapshot();
    world.at_ms = 1;
    let mut fold = Fold::new(&before, Scope::Run, Some(ROOT), NOISE);
    for (own, event) in &story.during {
        world.at_ms += 100;
        world.apply(event, *own);
        for body in &world.bodies {
            fold.remember(&world.process(body), world.at_ms);
        }
        fold.look(&Look { at_ms: world.at_ms, devices: vec![world.look()] }, false);
    }
    fold.look(&Look { at_ms: world.at_ms + 1, devices: vec![world.look()] }, true);
    let after = world.snapshot();
    let mut run = launch(COMMAND, ROOT, Scope::Run, !world.own_alive());
    run.survivors = world.bodies.iter().filter(|b| b.own).map(|b| b.id).collect();
    let observation = observation(before, fold.finish(), after, run);
    Told { report: judge(&observation), observation, world }
}
