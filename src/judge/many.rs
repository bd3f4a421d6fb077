//! What ends many that are alike is one step, where a plain signal ends each of them.

use super::{
    advice::{again, gives_back, of_holder, step, sudo_note},
    draft::{Draft, plain},
    reclaim,
    scene::Scene,
};
use crate::{
    model::{Advice, Bytes, Cause, Holder},
    text,
};

/// What takes several PIDs at once, as it is typed.
const VERBS: [&str; 4] = ["kill", "kill -KILL", "gpuresid reclaim --pid", "gpuresid reclaim --force --pid"];

/// The steps for a group: one for all whom the same signal ends, the others one by one.
pub(super) fn of_group(scene: &Scene<'_>, group: &[&Holder]) -> Vec<Draft> {
    let mut apart: Vec<(&Holder, Vec<Draft>)> =
        group.iter().map(|holder| (*holder, of_holder(scene, holder))).collect();
    let mut together = Vec::new();
    if group.len() > 1 {
        for verb in VERBS {
            let ends = |(holder, steps): &(&Holder, Vec<Draft>)| {
                let plain = format!("{verb} {}", holder.pid);
                matches!(&steps[..], [only] if only.step.command.as_ref() == Some(&plain))
            };
            if apart.iter().filter(|one| ends(one)).count() > 1 {
                let (these, others) = apart.into_iter().partition(ends);
                apart = others;
                let these: Vec<&Holder> = these.into_iter().map(|(holder, _): (_, Vec<Draft>)| holder).collect();
                together.extend(all(scene, verb, &these));
            }
        }
    }
    plain(together).into_iter().chain(apart.into_iter().flat_map(|(_, steps)| steps)).collect()
}

fn all(scene: &Scene<'_>, verb: &str, these: &[&Holder]) -> Option<Advice> {
    let (first, n) = (these.first()?, these.len());
    let bytes = match these.iter().map(|holder| gives_back(scene, holder)).sum() {
        Bytes::ZERO => String::new(),
        bytes => format!(" and give back {bytes}"),
    };
    let whose = sudo_note(scene, first);
    if verb.starts_with("gpuresid") {
        let step = reclaim::of_left_over(these);
        let pids: Vec<String> = these.iter().map(|holder| holder.pid.to_string()).collect();
        let why = if verb.contains("--force") {
            format!("{}; a plain kill does nothing to them", step.why)
        } else {
            step.why
        };
        return Some(Advice { command: Some(format!("{verb} {}", pids.join(" "))), why, ..step });
    }
    let mut why = match first.cause {
        Cause::Orphan => format!(
            "end what outlived its run, {n} processes{bytes}{whose}. If they are servers that are meant to stay, leave them"
        ),
        Cause::ForkedCopy => {
            format!("end the {n} copies that keep the memory of a process that is gone{bytes}{whose}")
        }
        _ => format!("end all {n}{bytes}{whose}{}", again(scene, first, scene.living(first))),
    };
    if verb != "kill" {
        why.push_str("; a plain kill does nothing to them");
    }
    let pids: Vec<u32> = these.iter().map(|holder| holder.pid).collect();
    let named: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let disturbs = format!("PID {} ({n} × {})", text::ranges(&pids).join(", "), text::shorten(&first.gist(), 60));
    Some(step(Some(format!("{verb} {}", named.join(" "))), why, disturbs))
}
