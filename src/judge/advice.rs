//! What to do: ordered, what disturbs nobody first; each step with the command to paste, why, and whom it disturbs.
//!
//! No `kill` is advised for detached processes or for those of others: they may be doing somebody's work.

use super::scene::Scene;
use crate::model::{Advice, Bytes, Cause, Ghost, Holder, Lineage, Verdict};

/// The steps after a run.
pub(crate) fn of_run(verdict: Verdict, scene: &Scene<'_>, holders: &[Holder], ghosts: &[Ghost]) -> Vec<Advice> {
    if verdict == Verdict::Clean {
        return Vec::new();
    }
    let mine: Vec<&Holder> = holders.iter().filter(|h| h.lineage != Lineage::Foreign).collect();
    let mut steps = steps(&mine, ghosts);
    steps.extend(see_more(scene, verdict == Verdict::Inconclusive));
    steps.extend(either_s(verdict, &mine));
    if steps.is_empty() {
        steps.push(step(
            Some("gpuresid".into()),
            "look again in a moment: no living process explains what is left",
            "nobody",
        ));
    }
    steps
}

/// The steps after a single look.
pub(crate) fn of_snapshot(scene: &Scene<'_>, holders: &[Holder], ghosts: &[Ghost]) -> Vec<Advice> {
    let all: Vec<&Holder> = holders.iter().filter(|h| !matches!(h.cause, Cause::InUse | Cause::Detached)).collect();
    let mut steps = steps(&all, ghosts);
    let unexplained = scene.largest_excess().is_some_and(|(_, b)| b > super::cause::NOTICEABLE);
    steps.extend(see_more(scene, unexplained || holders.iter().any(|h| h.cause == Cause::OutOfSight)));
    steps
}

fn step(command: Option<String>, why: impl Into<String>, disturbs: impl Into<String>) -> Advice {
    Advice { command, why: why.into(), disturbs: disturbs.into() }
}

/// New processes that may be the command's or somebody else's: nobody is to be ended on a guess.
fn either_s(verdict: Verdict, holders: &[&Holder]) -> Option<Advice> {
    let unknown: Vec<_> = holders.iter().filter(|h| h.lineage == Lineage::Unknown).map(|h| h.pid.to_string()).collect();
    let pids = unknown.join(", ");
    (verdict == Verdict::Inconclusive && !unknown.is_empty()).then(|| {
        step(
            Some("gpuresid".into()),
            format!(
                "see what PID {pids} is: it came while the command ran, and may be the command's or somebody else's. If \
                 new processes do the command's work (docker, srun, kubectl), check with `--scope new`"
            ),
            "nobody",
        )
    })
}

/// Whom a signal to this holder disturbs, in words.
fn name(holder: &Holder) -> String {
    let short: String = holder.command.chars().take(40).collect();
    format!("PID {} ({short})", holder.pid)
}

/// The step for each holder, by its cause.
fn steps(holders: &[&Holder], ghosts: &[Ghost]) -> Vec<Advice> {
    let mut steps = Vec::new();
    if holders.iter().any(|h| h.cause == Cause::Draining) {
        steps.push(step(
            Some("gpuresid".into()),
            "look again in a few seconds: the kernel is giving the memory back, nothing needs to be ended",
            "nobody",
        ));
    }
    for holder in holders {
        let (pid, bytes) = (holder.pid, amount(holder));
        let whose = sudo_note(holder);
        match holder.cause {
            Cause::Stopped => {
                steps.push(step(
                    Some(format!("kill -CONT {pid}")),
                    "let it go on; if it was stopped by mistake (Ctrl-Z), it ends its work and gives the memory back"
                        .to_owned(),
                    "nobody",
                ));
                steps.push(step(
                    Some(format!("kill {pid}; kill -CONT {pid}")),
                    format!("end it{bytes}: a stopped process takes TERM only when it may go on{whose}"),
                    name(holder),
                ));
            }
            Cause::HalfDead => steps.push(step(
                Some(format!("kill -KILL {pid}")),
                format!("end its remaining threads{bytes}: without its main thread it can end no other way{whose}"),
                name(holder),
            )),
            Cause::ForkedCopy => steps.push(step(
                Some(format!("kill {pid}")),
                format!("end the copy that keeps the memory of the process that is gone{bytes}{whose}"),
                name(holder),
            )),
            Cause::ExportedHandle => steps.push(step(
                Some(format!("kill {pid}")),
                format!("end the process that keeps the exported allocation{whose}; the look after it shows whether it was this one"),
                name(holder),
            )),
            Cause::Orphan => steps.push(step(
                Some(format!("kill {pid}")),
                format!(
                    "end what outlived its run{bytes}{whose}. If it is a server that is meant to stay, leave it: then the \
                     memory is in use, not lost"
                ),
                name(holder),
            )),
            Cause::StillRunning if holder.lineage != Lineage::Foreign => steps.push(step(
                Some(format!("kill {pid}")),
                format!(
                    "end it{bytes}{whose}, after what started it{}: a supervisor would start it again",
                    holder.launcher.as_ref().map(|l| format!(", {l}")).unwrap_or_default()
                ),
                name(holder),
            )),
            _ => {}
        }
    }
    if holders.iter().any(|h| h.cause == Cause::ForkedCopy) || ghosts.iter().any(|g| g.lineage == Lineage::Own) {
        steps.push(step(
            None,
            "for the next run: start worker processes before the first CUDA call, or with the start method \"spawn\" \
             (multiprocessing.set_start_method(\"spawn\")), so that they do not inherit the GPU",
            "nobody",
        ));
    }
    steps
}

fn amount(holder: &Holder) -> String {
    match holder.held() {
        Bytes::ZERO => String::new(),
        bytes => format!(" and give back {bytes}"),
    }
}

/// A process of another user wants asking first, and rights.
fn sudo_note(holder: &Holder) -> String {
    match (&holder.user, holder.lineage) {
        (Some(user), Lineage::Unknown) => format!(" (it belongs to {user}: ask first if that is not you)"),
        _ => String::new(),
    }
}

/// The one step that would show what could not be seen.
fn see_more(scene: &Scene<'_>, wanted: bool) -> Vec<Advice> {
    let observer = &scene.snapshot.observer;
    let mut steps = Vec::new();
    if !wanted {
        return steps;
    }
    if observer.out_of_sight() {
        let why = if observer.hidepid {
            "look as root: this /proc hides the processes of other users"
        } else {
            "look from the host, outside of this container: only there every holder can be seen"
        };
        steps.push(step(Some("sudo gpuresid".into()), why, "nobody"));
    } else if !scene.snapshot.uninspected.is_empty() && observer.uid != 0 {
        steps.push(step(
            Some("sudo gpuresid".into()),
            format!(
                "look as root: the open files of {} process(es) of other users could not be read",
                scene.snapshot.uninspected.len()
            ),
            "nobody",
        ));
    }
    steps
}
