//! Looks at a made-up or recorded world for as long as a check would, and judges.

use super::build::{COMMAND, NOISE, ROOT, launch, observation};
use crate::{
    judge::{fold::Fold, judge},
    model::{DeviceLook, Look, Process, Report, Scope, Snapshot},
};

/// Longest time that a doubt is looked at after the end, as in settling.
const LOOK_ON_MS: u64 = 12_000;

/// The looks 1, 2, … of a world: milliseconds, the device, who is there. Everybody below [`ROOT`] is the run's. From look
/// `ended` on the command has ended; then looks go on while something of the run is listed or more looks may tell, and
/// there are any.
/// The report, and how many looks it took.
pub(super) fn settle(
    before: Snapshot,
    ended: u64,
    world: impl Fn(u64) -> Option<(u64, DeviceLook, Vec<Process>)>,
) -> (Report, u64) {
    let mut fold = Fold::new(&before, Scope::Run, Some(ROOT), NOISE).of_command(COMMAND, "run");
    let mut after = before.clone();
    let (mut looks, mut end_ms) = (0, 0);
    for n in 1.. {
        let Some((at_ms, device, processes)) = world(n) else { break };
        for process in &processes {
            fold.remember(process, at_ms);
        }
        fold.look(&Look { at_ms, devices: vec![device.clone()] }, n >= ended);
        after.devices[0].look = device;
        after.processes = Some(processes);
        looks = n;
        if n == ended {
            end_ms = at_ms;
        }
        let charge = fold.charge();
        let settled = charge.complete && !charge.undecided;
        if n >= ended && charge.entries == 0 && (settled || at_ms >= end_ms + LOOK_ON_MS) {
            break;
        }
    }
    let own = |p: &&Process| p.ancestors.iter().any(|a| a.id == ROOT);
    let mut launch = launch(COMMAND, ROOT, Scope::Run, !after.scanned().iter().any(|p| own(&p)));
    launch.survivors = after.scanned().iter().filter(own).map(|p| p.id).collect();
    let report = judge(&observation(before, fold.finish(), after, launch));
    (report, looks)
}
