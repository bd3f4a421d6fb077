//! What is run while something goes wrong, on a machine with a neighbour, and what may be said then, whatever it is: the
//! oracle of both sweeps.

use crate::support::{CONTEXT, Finished, Rig, SLACK, alive, marker_of_an_ended_run};
use serde_json::Value;
use std::process::Command;

const MIB: u64 = 1 << 20;
/// What the neighbour has.
const NEIGHBOUR: u64 = 1024 * MIB + CONTEXT;
/// What a leftover has beside its context.
const LEFTOVER: u64 = 2048 * MIB;
/// What an H200 has, and what its driver has of it.
const TOTAL: u64 = 143_771 * MIB;
const RESERVED: u64 = 615 * MIB;
/// How a command ends that fails by itself, and what it says.
const FAILS: i32 = 7;

/// What is run, and what is true then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deed {
    Status,
    CheckClean,
    CheckFailing,
    CheckDirty,
    DiffClean,
    DiffDirty,
    WaitFree,
    WaitFull,
    Plan,
    Reclaim,
}

pub(crate) const DEEDS: [Deed; 10] = [
    Deed::Status,
    Deed::CheckClean,
    Deed::CheckFailing,
    Deed::CheckDirty,
    Deed::DiffClean,
    Deed::DiffDirty,
    Deed::WaitFree,
    Deed::WaitFull,
    Deed::Plan,
    Deed::Reclaim,
];

impl Deed {
    pub(crate) fn is_check(self) -> bool {
        matches!(self, Self::CheckClean | Self::CheckFailing | Self::CheckDirty)
    }

    /// Whether its world is another one afterwards.
    pub(crate) fn changes_the_world(self) -> bool {
        self.is_check() || self == Self::Reclaim
    }
}

/// A machine with a neighbour, and what the deed needs.
pub(crate) struct World {
    pub(crate) rig: Rig,
    deed: Deed,
    neighbour: u32,
    /// Who is left over.
    left: Option<u32>,
}

impl World {
    pub(crate) fn new(deed: Deed) -> Self {
        let rig = Rig::new();
        let before = rig.path("before.json").display().to_string();
        // It ends with the rig.
        std::mem::forget(rig.start("alloc 0 1GiB ready neighbour hold"));
        let neighbour = rig.wait_for("neighbour");
        if matches!(deed, Deed::DiffClean | Deed::DiffDirty) {
            rig.run(&format!("snapshot -o {before}")).expect_code(0);
        }
        let left = matches!(deed, Deed::DiffDirty | Deed::Plan | Deed::Reclaim).then(|| {
            let verbs = rig.program("daemonize-twice { alloc 0 2GiB ready left hold }");
            rig.start_marked(&verbs, &marker_of_an_ended_run()).wait().expect_code(0);
            rig.wait_for("left")
        });
        Self { rig, deed, neighbour, left }
    }

    pub(crate) fn command(&self) -> Command {
        let rig = &self.rig;
        let before = rig.path("before.json").display().to_string();
        let check = |verbs: &str| {
            let report = rig.path("report.json").display().to_string();
            let verbs = format!("{verbs} ready ran print done");
            rig.check_of(&format!("--settle 300ms --report {report}"), &rig.program(&verbs))
        };
        let run = |line: &str| rig.gpuresid(line.split_whitespace());
        match self.deed {
            Deed::Status => run("--json"),
            Deed::CheckClean => check("alloc 0 512MiB"),
            Deed::CheckFailing => {
                let verbs = format!("alloc 0 512MiB ready ran print done exit {FAILS}");
                rig.check_of("--settle 300ms", &rig.program(&verbs))
            }
            Deed::CheckDirty => check("spawn-session { alloc 0 2GiB ready left hold } wait-file left"),
            Deed::DiffClean | Deed::DiffDirty => run(&format!("diff {before} --scope new --json")),
            Deed::WaitFree => run("wait --free 1GiB --timeout 200ms"),
            Deed::WaitFull => run("wait --below 500MiB --timeout 200ms"),
            Deed::Plan => run(&format!("reclaim --pid {} --json", self.left.unwrap())),
            Deed::Reclaim => run("reclaim --orphans --yes --json --grace 1s --settle 300ms"),
        }
    }

    /// What is wrong with the outcome, if anything is.
    pub(crate) fn wrong(&self, end: &Finished) -> Option<String> {
        let Some(code) = end.code else { return Some("it died of a signal".into()) };
        if end.stderr.contains("panicked") {
            return Some("it panicked".into());
        }
        let ran = self.rig.path("ran").exists();
        let allowed: &[i32] = match self.deed {
            Deed::Status => &[0, 125],
            // Residue of a clean command would be a lie, and clean behind a leftover too.
            Deed::CheckClean if ran => &[0, 122],
            Deed::CheckFailing if ran => &[FAILS],
            Deed::CheckDirty if ran => &[121, 122],
            Deed::CheckClean | Deed::CheckFailing | Deed::CheckDirty => &[125],
            Deed::DiffClean => &[0, 122, 125],
            Deed::DiffDirty => &[121, 122, 125],
            Deed::WaitFree => &[0, 124, 125],
            Deed::WaitFull => &[124, 125],
            Deed::Plan => &[0, 122, 125],
            Deed::Reclaim => &[0, 121, 122, 125],
        };
        if !allowed.contains(&code) {
            return Some(format!("exit code {code}, allowed are {allowed:?}"));
        }
        if code == 125 && !end.stderr.lines().any(|line| line.starts_with("error: ")) {
            return Some("no error was told".into());
        }
        if self.deed.is_check() && end.stdout != if ran { "done\n" } else { "" } {
            return Some("the command's output is not as ever".into());
        }
        if !alive(self.neighbour) {
            return Some("the neighbour was ended".into());
        }
        if self.deed == Deed::Plan && !self.left.is_some_and(alive) {
            return Some("a plan has ended somebody".into());
        }
        let text = match self.deed {
            Deed::CheckClean | Deed::CheckDirty if ran => {
                std::fs::read_to_string(self.rig.path("report.json")).unwrap_or_default()
            }
            Deed::Status | Deed::DiffClean | Deed::DiffDirty | Deed::Plan | Deed::Reclaim if code != 125 => {
                end.stdout.clone()
            }
            _ => return None,
        };
        let Ok(report) = serde_json::from_str::<Value>(&text) else { return Some("its JSON is none".into()) };
        self.unnamed(&report, code).or_else(|| self.numbers(&report))
    }

    /// Who lives on after "all is well" has to be named.
    fn unnamed(&self, report: &Value, code: i32) -> Option<String> {
        let left = self.left.filter(|left| alive(*left))?;
        let alone = report["left_alone"].as_array().is_some_and(|all| all.iter().any(|one| one["pid"] == left));
        let lies = self.deed == Deed::Reclaim && code == 0 && !alone;
        lies.then(|| "it says that all was given back, and it was not".into())
    }

    /// How much is in use, by the neighbour and who is left over, without what the driver needs for it.
    fn truth(&self, with_left: bool) -> u64 {
        NEIGHBOUR + if with_left { LEFTOVER + CONTEXT } else { 0 }
    }

    /// What is said of the devices is true, or unknown with a reason, and whoever is not named is missing for a reason.
    fn numbers(&self, report: &Value) -> Option<String> {
        let gaps = report["gaps"].as_array().map_or(&[][..], Vec::as_slice);
        let devices = report["devices"].as_array().map_or(&[][..], Vec::as_slice);
        // A list of devices that could not be had is a gap of the library.
        let about = |whom: &str| gaps.iter().any(|gap| gap["about"].as_str().is_some_and(|about| about.contains(whom)));
        let explained = about("GPU") || about("NVML") || !report["failure"].is_null();
        let wrong = match devices {
            [] => (!explained).then(|| "there is no device, and nothing is said to be missing".into()),
            devices => devices.iter().find_map(|device| self.of_a_device(report, device, explained)),
        };
        let holders = report["holders"].as_array();
        let named = holders.is_none_or(|all| all.iter().any(|holder| holder["pid"] == self.neighbour));
        wrong.or_else(|| {
            (!named && gaps.is_empty()).then(|| "the neighbour is not named, and nothing is missing".into())
        })
    }

    fn of_a_device(&self, report: &Value, device: &Value, explained: bool) -> Option<String> {
        let left = match self.deed {
            Deed::CheckDirty | Deed::DiffDirty | Deed::Plan => true,
            // Before it; afterwards whoever lives.
            Deed::Reclaim => self.left.is_some_and(alive),
            _ => false,
        };
        // The older call counts what is reserved as used; which one answered is told for the memory of now alone.
        let older = |name: &str| match device.get("reserved_bytes") {
            Some(reserved) if name != "used_before_bytes" => vec![if reserved.is_null() { RESERVED } else { 0 }],
            _ => vec![0, RESERVED],
        };
        let then = self.truth(matches!(self.deed, Deed::Plan | Deed::Reclaim));
        let now = self.truth(left);
        let of_used = |name, bytes: u64| older(name).into_iter().map(|more| bytes + more).collect();
        let truths: [(&str, Vec<u64>); 7] = [
            ("total_bytes", vec![TOTAL]),
            ("used_bytes", of_used("used_bytes", now)),
            ("used_before_bytes", of_used("used_before_bytes", then)),
            ("used_after_bytes", of_used("used_after_bytes", now)),
            ("free_bytes", vec![TOTAL - RESERVED - now]),
            ("listed_bytes", vec![now]),
            ("unaccounted_bytes", of_used("unaccounted_bytes", 0)),
        ];
        let planned = report["carried_out"] == false;
        for (name, truths) in truths {
            let Some(told) = device.get(name) else { continue };
            let right = match told.as_u64() {
                // A plan knows of no time after it.
                _ if planned && name == "used_after_bytes" => told.is_null(),
                Some(told) => truths.iter().any(|truth| told.abs_diff(*truth) <= 2 * SLACK),
                None => told.is_null() && explained,
            };
            if !right {
                return Some(format!(
                    "{name} is {told}, in truth {truths:?}; a gap says why it is unknown: {explained}"
                ));
            }
        }
        let dirty = matches!(self.deed, Deed::CheckDirty | Deed::DiffDirty);
        let (charged, at_most) =
            (device["charged_residue_bytes"].as_u64(), device["charged_residue_max_bytes"].as_u64());
        if charged.is_some_and(|bytes| bytes > if dirty { LEFTOVER + CONTEXT + SLACK } else { 0 }) {
            return Some(format!("{charged:?} are charged"));
        }
        (dirty && at_most.is_some_and(|bytes| bytes < LEFTOVER)).then(|| format!("{at_most:?} are charged at most"))
    }
}
