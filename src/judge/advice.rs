//! What to do: ordered, what disturbs nobody first; each step with the command to paste, why, and whom it disturbs.
//!
//! No `kill` is advised for detached processes or for those of others: they may be doing somebody's work.

use super::{
    adoption::Parent,
    draft::{Draft, plain},
    ends, kernel, many, programs, reclaim,
    run::Run,
    scene::Scene,
    trouble,
};
use crate::{
    model::{Advice, Bytes, Cause, Ghost, Holder, Lineage, OnSigterm, Process, ProcessState, Scope, Verdict, groups},
    text,
};

/// The steps after a run. `is_left`: something may be left, as far as memory could be read at all.
pub(crate) fn of_run(
    verdict: Verdict,
    is_left: bool,
    scene: &Scene<'_>,
    holders: &[Holder],
    ghosts: &[Ghost],
) -> Vec<Advice> {
    if verdict == Verdict::Clean {
        return Vec::new();
    }
    let mine: Vec<&Holder> = holders.iter().filter(|h| h.lineage != Lineage::Foreign).collect();
    let mut steps = steps(scene, &mine, ghosts);
    steps.extend(trouble::steps(&scene.snapshot.devices, None));
    reclaim::of_report(scene, &mine, &mut steps);
    steps.extend(see_more(scene, verdict == Verdict::Inconclusive));
    steps.extend(either_s(verdict, scene, &mine));
    if steps.is_empty() {
        steps.push(step(
            Some("gpuresid".into()),
            if holders.is_empty() && !is_left {
                "look at the GPUs now: too little could be read to tell whether anything is left"
            } else if all_growth_counts(scene) && holders.iter().any(|h| h.grown() > Bytes::ZERO) {
                "see who has more than before: `--scope device` charges all growth, also that of processes that were there \
                 before and do their work; where those are not yours to end, charge only what is new: `--scope new`"
            } else if holders.is_empty() {
                "look again in a moment: no living process explains what is left"
            } else {
                "look at who uses the GPU now; if these processes do the command's work, check with `--scope new`"
            },
            "nobody",
        ));
    }
    steps
}

/// The steps after a single look.
pub(crate) fn of_snapshot(scene: &Scene<'_>, holders: &[Holder], ghosts: &[Ghost]) -> Vec<Advice> {
    // A server of the multi-process service is meant to stay: a finding says how it is ended.
    let all: Vec<&Holder> =
        holders.iter().filter(|h| !matches!(h.cause, Cause::InUse | Cause::Detached | Cause::MpsServer)).collect();
    let mut steps = steps(scene, &all, ghosts);
    steps.extend(trouble::steps(&scene.snapshot.devices, None));
    steps.extend(reclaim::of_orphans(scene, holders));
    steps.extend(reclaim::of_detached(scene, holders));
    let unexplained = scene.largest_excess().is_some_and(|(_, b)| b > super::cause::NOTICEABLE);
    steps.extend(see_more(scene, unexplained || holders.iter().any(|h| h.cause == Cause::OutOfSight)));
    steps
}

/// Also what a process took that was there before.
fn all_growth_counts(scene: &Scene<'_>) -> bool {
    scene.run.is_some_and(|run| run.launch.scope == Scope::Device)
}

pub(super) fn step(command: Option<String>, why: impl Into<String>, disturbs: impl Into<String>) -> Advice {
    Advice { command, why: why.into(), disturbs: disturbs.into() }
}

/// New processes that may be the command's or somebody else's: nobody is to be ended on a guess.
fn either_s(verdict: Verdict, scene: &Scene<'_>, holders: &[&Holder]) -> Option<Advice> {
    let unknown: Vec<u32> = holders.iter().filter(|h| h.lineage == Lineage::Unknown).map(|h| h.pid).collect();
    let (are, they, belong) = if unknown.len() == 1 { ("is", "it", "belongs") } else { ("are", "they", "belong") };
    let who = format!("see what PID {} {are}", text::ranges(&unknown).join(", "));
    let why = if scene.run.is_some_and(Run::compares) {
        format!(
            "{who}: {they} started after the earlier snapshot, and nothing shows whether {they} {belong} to what it \
             marked. To charge every new process, compare with `--scope new`"
        )
    } else {
        format!(
            "{who}: {they} started while the command ran, and may be the command's or somebody else's. If new processes do \
             the command's work (docker, srun, kubectl), check with `--scope new`"
        )
    };
    (verdict == Verdict::Inconclusive && !unknown.is_empty()).then(|| step(Some("gpuresid".into()), why, "nobody"))
}

/// Whom a signal to this holder disturbs, in words.
fn name(holder: &Holder) -> String {
    format!("PID {} ({})", holder.pid, text::shorten(holder.name(), 60))
}

/// The steps for each holder, by its cause; a step that serves several stands once.
fn steps(scene: &Scene<'_>, holders: &[&Holder], ghosts: &[Ghost]) -> Vec<Advice> {
    let mut steps: Vec<Advice> = Vec::new();
    let living = |h: &&&Holder| scene.living(h);
    let leaving = holders.iter().filter(|h| h.cause == Cause::Draining);
    if leaving.clone().any(|h| !living(&h).is_some_and(kernel::writes_its_core)) {
        steps.push(step(
            Some("gpuresid".into()),
            "look again in a few seconds: the kernel is giving the memory back, nothing needs to be ended",
            "nobody",
        ));
    }
    steps.extend(Draft::merged(groups(holders).iter().flat_map(|group| many::of_group(scene, group))));
    let copies = |h: &&Holder| ghosts.iter().any(|g| g.candidates.contains(&h.pid));
    if holders.iter().any(|h| h.cause == Cause::ForkedCopy && copies(h))
        || ghosts.iter().any(|g| g.lineage == Lineage::Own)
    {
        steps.push(step(
            None,
            "for the next run: start worker processes before the first CUDA call, or with the start method \"spawn\" \
             (multiprocessing.set_start_method(\"spawn\")), so that they do not inherit the GPU",
            "nobody",
        ));
    }
    steps
}

/// Where a plain signal would do nothing: who ignores or blocks it, and the first process of a PID namespace, which
/// takes no SIGTERM that it does not handle. Only SIGKILL from outside ends these.
fn firm(scene: &Scene<'_>, holder: &Holder, mut step: Advice) -> Advice {
    let process = scene.living(holder);
    let handles = process.is_some_and(|p| p.on_sigterm == Some(OnSigterm::Handles));
    let why = if process.is_some_and(kernel::resists_sigterm) {
        "; a plain kill does nothing to it"
    } else if holder.inner_pid == Some(1) && !handles {
        "; it is the first process of its PID namespace, which no other signal ends"
    } else {
        return step;
    };
    let pid = holder.pid;
    let firm = match step.command.as_deref() {
        Some(command) if command == format!("kill {pid}") => format!("kill -KILL {pid}"),
        Some(command) if command == format!("kill {pid}; kill -CONT {pid}") => format!("kill -KILL {pid}"),
        Some(command) if command == format!("gpuresid reclaim --pid {pid}") => {
            format!("gpuresid reclaim --force --pid {pid}")
        }
        _ => return step,
    };
    step.command = Some(firm);
    step.why.push_str(why);
    step
}

/// It ends by itself when its core is written. Only who does not want the core gains anything by ending it.
fn writes_its_core(scene: &Scene<'_>, holder: &Holder) -> Vec<Advice> {
    let (pid, bytes) = (holder.pid, amount(scene, holder));
    vec![
        step(
            Some("gpuresid".into()),
            format!(
                "look again later: PID {pid} ends by itself once its core dump is written; the more memory it has, the \
                 longer that takes"
            ),
            "nobody",
        ),
        step(
            Some(format!("kill -KILL {pid}")),
            format!(
                "only if nobody needs the core dump: end it at once{bytes}; the dump is then cut short and of no use"
            ),
            format!("whoever wants to know why {} crashed", name(holder)),
        ),
    ]
}

pub(super) fn of_holder(scene: &Scene<'_>, holder: &Holder) -> Vec<Draft> {
    let (pid, bytes) = (holder.pid, amount(scene, holder));
    let whose = sudo_note(scene, holder);
    let process = scene.living(holder);
    if scene.snapshot.observer.foreign_procfs {
        // These numbers are another namespace's: here they may be anybody's.
        return Vec::new();
    }
    if process.is_some_and(|process| scene.is_above_us(process.id)) {
        return plain(vec![step(
            None,
            format!(
                "gpuresid was started from PID {pid}, so do not end that for this: free the memory in it \
                 (`del`, then `torch.cuda.empty_cache()`), or look again when it has ended"
            ),
            "nobody",
        )]);
    }
    // It came while the command ran, and whose it is nobody knows: it may be doing somebody's work.
    if scene.run.is_some() && holder.lineage == Lineage::Unknown {
        return Vec::new();
    }
    match holder.cause {
        Cause::StuckInKernel => process.map(|p| plain(stuck(holder, p))).unwrap_or_default(),
        Cause::Draining if process.is_some_and(kernel::writes_its_core) => plain(writes_its_core(scene, holder)),
        Cause::Stopped => stopped(scene, holder, process, &whose),
        Cause::HalfDead => end(scene, holder, process, || {
            step(
                Some(format!("kill {pid}")),
                format!(
                    "end its remaining threads{bytes}{whose}. If that does not end it (Python runs a handler only in the main \
                     thread, which is gone): kill -KILL {pid}"
                ),
                name(holder),
            )
        }),
        Cause::ForkedCopy => end(scene, holder, process, || {
            step(
                Some(format!("kill {pid}")),
                format!("end the copy that keeps the memory of the process that is gone{bytes}{whose}"),
                name(holder),
            )
        }),
        Cause::ExportedHandle => end(scene, holder, process, || {
            step(
                Some(format!("kill {pid}")),
                format!(
                    "end the process that keeps the exported allocation{whose}; the next look shows whether it was \
                     this one"
                ),
                name(holder),
            )
        }),
        Cause::Orphan if scene.run.is_none() => end(scene, holder, process, || {
            // Nobody is ended by us in another PID namespace.
            if process.is_none_or(|process| process.pid_namespace == scene.snapshot.observer.pid_namespace) {
                return reclaim::of_left_over(&[holder]);
            }
            let why = format!("if you know that it does no more work, end it{bytes}{whose}: what started it is gone");
            step(Some(format!("kill {pid}")), why, name(holder))
        }),
        Cause::Orphan => end(scene, holder, process, || {
            step(
                Some(format!("kill {pid}")),
                format!(
                    "end what outlived its run{bytes}{whose}. If it is a server that is meant to stay, leave it: then the \
                     memory is in use, not lost"
                ),
                name(holder),
            )
        }),
        Cause::PeerMapping => peer_mapping(scene, holder, process, &whose),
        // Of a run by its marker, and who started it is not known (`diff`).
        Cause::Detached if holder.lineage == Lineage::Own => end(scene, holder, process, || {
            reclaim::see(holder, "it is of this run, and what started it cannot be seen any more")
        }),
        Cause::StillRunning if holder.lineage != Lineage::Foreign => end(scene, holder, process, || {
            step(
                Some(format!("kill {pid}")),
                format!("end it{bytes}{whose}{}", again(scene, holder, process)),
                name(holder),
            )
        }),
        Cause::MpsServer => end(scene, holder, process, || {
            step(
                Some(format!("kill {pid}")),
                format!("end the server of the multi-process service, whose control daemon is gone{bytes}{whose}"),
                name(holder),
            )
        }),
        _ => Vec::new(),
    }
}

/// Who may start it again, where that is not ourselves, nor the shell that we were typed into.
pub(super) fn again(scene: &Scene<'_>, holder: &Holder, process: Option<&Process>) -> String {
    let parent = process.and_then(|p| p.ancestors.first()).filter(|parent| !scene.is_above_us(parent.id));
    match parent.and(holder.launcher.as_ref()) {
        Some(launcher) => format!("; should it be started again, end what starts it first: {launcher}"),
        None => String::new(),
    }
}

/// How a holder is ended: with the plain signal, or at the level that owns it, or the one and then the other.
fn end(scene: &Scene<'_>, holder: &Holder, process: Option<&Process>, signal: impl FnOnce() -> Advice) -> Vec<Draft> {
    let signal = || plain(vec![firm(scene, holder, signal())]);
    let known = process.and_then(programs::recognise);
    if let Some(known) = &known
        && let programs::Remedy::LeaveAlone(why) = known.program.remedy
    {
        let leave = format!("leave PID {} ({}) alone: {why}", holder.pid, known.program.name);
        return plain(vec![step(None, leave, "nobody")]);
    }
    match process.and_then(|process| ends::of(scene, process, known.as_ref())) {
        None => signal(),
        Some(way) => {
            let mut steps = if way.signal_first { signal() } else { Vec::new() };
            let again = if way.signal_first { "if it comes back: " } else { "" };
            let step = step(Some(way.command), format!("{again}{}", way.why), way.disturbs);
            steps.push(Draft { step, ends: vec![(holder.pid, gives_back(scene, holder))] });
            steps
        }
    }
}

fn stuck(holder: &Holder, process: &Process) -> Vec<Advice> {
    let pid = holder.pid;
    let mut steps = Vec::new();
    if let Some(what) = kernel::waits_for(process) {
        steps.push(step(
            None,
            format!("fix what PID {pid} is waiting for ({what}): it goes on, or ends, as soon as that answers"),
            "nobody",
        ));
    } else {
        steps.push(step(
            Some("gpuresid".into()),
            format!("look again: PID {pid} may still come out of the kernel"),
            "nobody",
        ));
    }
    if !process.dying {
        steps.push(step(
            Some(format!("kill -KILL {pid}")),
            "end it: some waits in the kernel can be interrupted by SIGKILL and by nothing else",
            name(holder),
        ));
    }
    steps.push(step(
        None,
        format!(
            "only if PID {pid} never comes out: restart the machine. No signal reaches it, so nothing less ends it; and the GPU \
             cannot be reset while it has the device open"
        ),
        "everybody on this machine",
    ));
    steps
}

fn stopped(scene: &Scene<'_>, holder: &Holder, process: Option<&Process>, whose: &str) -> Vec<Draft> {
    let (pid, bytes) = (holder.pid, amount(scene, holder));
    if let Some(process) = process.filter(|p| p.state == ProcessState::Traced) {
        let debugger = process.tracer.as_ref();
        let who =
            debugger.map_or_else(|| "the debugger".into(), |d| format!("{} ({})", text::clean(&d.comm), d.id.pid));
        return plain(vec![step(
            None,
            format!("leave the debugger: in {who} type `detach` and `quit`, then PID {pid} goes on and can end"),
            "nobody",
        )]);
    }
    if let Some(process) = process.filter(|p| kernel::is_frozen(p)) {
        let place = super::place::place(process).unwrap_or_default();
        let thaw = match (&place.container, &place.unit) {
            (Some(c), _) if matches!(c.runtime.as_deref(), Some("docker" | "podman" | "nerdctl")) => {
                Some(format!("{} unpause {}", c.runtime.as_deref().unwrap_or("docker"), c.short()))
            }
            (None, Some(unit)) if !unit.of_user && !unit.name.contains('\\') => {
                Some(format!("systemctl thaw {}", unit.name))
            }
            _ => None,
        };
        return plain(vec![step(
            thaw,
            format!("thaw the cgroup of PID {pid}: then it goes on, and takes signals again"),
            "nobody",
        )]);
    }
    let mut steps = plain(vec![step(
        Some(format!("kill -CONT {pid}")),
        "either let it go on: if it was stopped by mistake (Ctrl-Z), it ends its work and gives the memory back",
        "nobody",
    )]);
    steps.extend(end(scene, holder, process, || {
        step(
            Some(format!("kill {pid}; kill -CONT {pid}")),
            format!("or end it{bytes}: a stopped process takes TERM only when it may go on{whose}"),
            name(holder),
        )
    }));
    steps
}

/// A consumer may be somebody's running work: it is to be ended only if it is the run's, or left over itself.
fn peer_mapping(scene: &Scene<'_>, holder: &Holder, process: Option<&Process>, whose: &str) -> Vec<Draft> {
    let (pid, bytes) = (holder.pid, amount(scene, holder));
    let mut steps = plain(vec![step(
        None,
        format!(
            "in PID {pid}: let go of the tensors that came from the process that is gone (`del`, then \
             `torch.cuda.empty_cache()`)"
        ),
        "nobody",
    )]);
    let left_over = process.is_none_or(|p| Parent::of(p).may_have_adopted());
    if holder.lineage == Lineage::Own || (holder.lineage == Lineage::Unknown && left_over) {
        steps.extend(end(scene, holder, process, || {
            step(
                Some(format!("kill {pid}")),
                format!("end the process that still maps the memory{bytes}{whose}"),
                name(holder),
            )
        }));
    }
    steps
}

fn amount(scene: &Scene<'_>, holder: &Holder) -> String {
    match gives_back(scene, holder) {
        Bytes::ZERO => String::new(),
        bytes => format!(" and give back {bytes}"),
    }
}

/// What its end should give back: what the lists say, and what is charged beside them and only it can keep.
pub(super) fn gives_back(scene: &Scene<'_>, holder: &Holder) -> Bytes {
    let unlisted = scene.living(holder).and_then(|process| scene.unlisted.get(&process.id));
    holder.held() + unlisted.copied().unwrap_or_default()
}

/// A process of another user wants asking first, and rights.
pub(super) fn sudo_note(scene: &Scene<'_>, holder: &Holder) -> String {
    match &holder.user {
        Some(user) if holder.uid != Some(scene.snapshot.observer.uid) => format!(" (it belongs to {user}: ask first)"),
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
                "look as root: the open files of {} of other users could not be read",
                text::count(scene.snapshot.uninspected.len(), "process", "processes")
            ),
            "nobody",
        ));
    }
    steps
}
