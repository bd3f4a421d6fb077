//! The pure judgement: no IO, no clock. [`judge`] turns an [`Observation`] into a [`Report`], [`status`] one
//! [`Snapshot`] into a [`StatusReport`]; [`fold::Fold`] keeps of the looks of a run what the judgement will need.

mod accounting;
mod adoption;
mod advice;
mod cause;
mod device;
mod draft;
mod elsewhere;
mod ends;
mod entries;
mod findings;
pub mod fold;
pub mod gate;
mod gpu_use;
mod grown;
mod handover;
mod holders;
mod keeps;
mod kernel;
mod lineage;
mod many;
pub(crate) mod mps;
mod place;
mod programs;
mod reclaim;
mod run;
mod scene;
mod sharing;
#[cfg(test)]
mod tests;
mod torch;
pub(crate) mod trouble;
mod unattributed;
mod unlisted;

use crate::{
    exit,
    model::{
        Bytes, Command, CommandReport, DeviceStatus, End, Failure, Gap, Holder, Limits, Observation, Report, Snapshot,
        StatusReport, Uninspected, Verdict, schema,
    },
    text,
};
pub(crate) use adoption::{has_lost_its_starter, may_be_left_to_its_parent, starter};
pub(crate) use ends::supervisorctl;
use gpu_use::GpuUse;
pub(crate) use place::{place as place_of, systemctl};
pub(crate) use reclaim::sign_of_end;
use run::Run;
use scene::Scene;
pub(crate) use trouble::steps as steps_of_trouble;

/// Says what did not come back, who holds it, why, and what to do.
pub fn judge(observation: &Observation) -> Report {
    let run = Run::new(observation);
    let mut scene = Scene::of_run(&run);
    let judged: Vec<_> = run.after.devices.iter().map(|d| device::judge(&run, &scene, d)).collect();
    let memory = judged.iter().map(|j| j.report.verdict).max().unwrap_or(Verdict::Inconclusive);
    let gpu_use = gpu_use::gpu_use(&run, &scene, &judged);
    let unused = run.limits.require_gpu && gpu_use != GpuUse::Seen;
    let verdict = if unused { memory.max(Verdict::Inconclusive) } else { memory };
    scene.unlisted = unlisted::shares(&scene, &judged);
    let (holders, ghosts) = holders::holders(&scene);
    let findings = findings::of_run(&run, &scene, &judged, &holders);
    let is_left =
        |j: &device::Judged| j.report.charged_residue_max_bytes.unwrap_or(j.report.charged_residue_bytes).0 > 0;
    let mut advice = advice::of_run(memory, judged.iter().any(is_left), &scene, &holders, &ghosts);
    advice.extend(unused.then(gpu_use::advice));
    let mut gaps = run.before.gaps.clone();
    // Why a before-reading failed: without it nothing compares.
    gaps.extend(run.before.devices.iter().flat_map(|d| d.look.gaps.iter().cloned()));
    gaps.extend(run.trace.gaps.iter().cloned());
    gaps.extend(run.after.gaps.iter().cloned());
    gaps.extend(judged.iter().flat_map(|j| j.gaps.iter().cloned()));
    // Where nothing was left to explain nobody looked again.
    let looked = if run.after.processes.is_some() { run.after } else { run.before };
    gaps.extend(sight_gaps(looked, &holders));
    let torch = observation.torch.as_ref().map(|view| {
        let (processes, blind) = torch::processes(&run, view);
        gaps.extend(blind);
        processes
    });
    let launch = run.launch;
    Report {
        schema: schema::REPORT.into(),
        tool_version: run.after.tool_version.clone(),
        taken_at: run.after.taken_at.clone(),
        run_id: launch.run_id.clone(),
        boot_id: run.after.boot_id.clone(),
        host: run.after.host.clone(),
        uid: run.after.observer.uid,
        simulated: is_simulated(run.before) || is_simulated(run.after),
        driver_version: driver_version(run.after).or_else(|| driver_version(run.before)),
        verdict,
        exit_code: exit_code(launch.command.as_ref(), verdict, unused, run.limits),
        command: launch.command.as_ref().map(|command| command_report(command, gpu_use)),
        scope: launch.scope,
        limits: run.limits.clone(),
        settled_seconds: launch.settled_ms.map(seconds),
        settle_end: launch.settle_end,
        survivors: launch.survivors.clone(),
        devices: judged.into_iter().map(|j| j.report).collect(),
        left_out: run.after.unselected.iter().flatten().map(|d| d.uuid.clone()).collect(),
        holders,
        ghosts,
        leftovers: launch.leftovers.clone(),
        cleanup: None,
        findings,
        advice,
        gaps: unique(gaps),
        events: run.trace.events.clone(),
        torch,
    }
}

/// As [`status`], and names everybody who has a GPU open without being known to hold memory.
pub fn status_of_all(snapshot: &Snapshot) -> StatusReport {
    let scene = Scene::of_snapshot(snapshot);
    let report = status(snapshot);
    let open_only = holders::open_only(&scene, &report.holders);
    StatusReport { open_only, ..report }
}

/// Says who holds what now.
pub fn status(snapshot: &Snapshot) -> StatusReport {
    let scene = Scene::of_snapshot(snapshot);
    let (holders, ghosts) = holders::holders(&scene);
    let findings = findings::of_snapshot(&scene, &holders);
    let advice = advice::of_snapshot(&scene, &holders, &ghosts);
    let mut gaps = snapshot.gaps.clone();
    gaps.extend(snapshot.devices.iter().flat_map(|d| d.look.gaps.iter().cloned()));
    gaps.extend(snapshot.devices.iter().filter_map(device::overlisted));
    gaps.extend(snapshot.devices.iter().filter_map(untold));
    gaps.extend(sight_gaps(snapshot, &holders));
    StatusReport {
        schema: schema::STATUS.into(),
        tool_version: snapshot.tool_version.clone(),
        taken_at: snapshot.taken_at.clone(),
        boot_id: snapshot.boot_id.clone(),
        host: snapshot.host.clone(),
        simulated: is_simulated(snapshot),
        driver_version: driver_version(snapshot),
        cuda_version: snapshot.driver.as_ref().and_then(|d| d.cuda_version.clone()),
        broken_rules: Vec::new(),
        failure: None,
        devices: snapshot.devices.iter().map(device_status).collect(),
        holders,
        open_only: Vec::new(),
        ghosts,
        findings,
        advice,
        gaps: unique(gaps),
    }
}

/// Says who has NVIDIA's files open, where the driver does not answer.
pub fn status_without_driver(snapshot: &Snapshot, failure: &Failure) -> StatusReport {
    let holders = holders::with_files(&Scene::of_snapshot(snapshot));
    let mut gaps = vec![Gap::new("NVML", failure.message.clone())];
    gaps.extend(snapshot.gaps.iter().cloned());
    gaps.extend(sight_gaps(snapshot, &holders));
    StatusReport {
        failure: Some(failure.clone()),
        holders,
        advice: Vec::new(),
        findings: Vec::new(),
        gaps: unique(gaps),
        ..status(snapshot)
    }
}

fn device_status(device: &crate::model::Device) -> DeviceStatus {
    let memory = device.look.memory;
    let cost = accounting::context_cost(device.look.entries.as_ref().map_or(0, Vec::len));
    DeviceStatus {
        index: device.identity.index,
        uuid: device.identity.uuid.clone(),
        mig: device.identity.mig.clone(),
        name: device.identity.name.clone(),
        pci: device.identity.pci.clone(),
        total_bytes: memory.map(|m| m.total),
        reserved_bytes: memory.and_then(|m| m.reserved),
        used_bytes: memory.map(|m| m.used),
        free_bytes: memory.map(|m| m.free),
        listed_bytes: device.listed(),
        unaccounted_bytes: device.unaccounted().and_then(|u| i64::try_from(u).ok()),
        context_cost_bytes: Bytes::at_least_zero(cost.min(device.unaccounted().unwrap_or(0))),
        utilization_percent: device.look.utilization_percent,
        bar1_total_bytes: device.look.bar1.map(|b| b.total),
        bar1_used_bytes: device.look.bar1.map(|b| b.used),
    }
}

/// The exit code: a time limit, then the failing command, then residue, then inconclusive, then 0. `unused`: a GPU had to
/// be used and was not, which is no doubt about memory that somebody may want to pass.
fn exit_code(command: Option<&Command>, verdict: Verdict, unused: bool, limits: &Limits) -> i32 {
    if let Some(command) = command {
        if command.timed_out {
            return exit::TIMED_OUT;
        }
        match command.end {
            Some(End::Exited(code)) if code != 0 => return code,
            Some(End::Signaled { signal, .. }) => return exit::SIGNAL_BASE + signal,
            _ => {}
        }
    }
    match verdict {
        _ if limits.warn_only => exit::CLEAN,
        Verdict::Residue => exit::RESIDUE,
        Verdict::Inconclusive if limits.inconclusive_fails || unused => exit::INCONCLUSIVE,
        Verdict::Inconclusive | Verdict::Clean => exit::CLEAN,
    }
}

fn command_report(command: &Command, gpu_use: GpuUse) -> CommandReport {
    CommandReport {
        argv: text::display_argv(&command.argv),
        exit_code: command.end.and_then(|e| match e {
            End::Exited(code) => Some(code),
            End::Signaled { .. } => None,
        }),
        signal: command.end.and_then(|e| match e {
            End::Signaled { signal, .. } => Some(signal),
            End::Exited(_) => None,
        }),
        timed_out: command.timed_out,
        timeout_seconds: command.timeout_ms.filter(|_| command.timed_out).map(seconds),
        used_gpu: gpu_use.known(),
        too_short_to_see: gpu_use == GpuUse::TooShort,
        seconds: command.ended_ms.map(|end| seconds(end.saturating_sub(command.started_ms))),
    }
}

fn seconds(ms: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run; 53 bits are 285,000 years")]
    let ms = ms as f64;
    ms / 1000.0
}

fn is_simulated(snapshot: &Snapshot) -> bool {
    snapshot.driver.as_ref().is_some_and(|d| d.source == crate::model::DriverSource::Simulated)
}

fn driver_version(snapshot: &Snapshot) -> Option<String> {
    snapshot.driver.as_ref().and_then(|d| d.driver_version.clone())
}

/// Processes that the driver lists without their memory, as it does on WSL and in virtual GPUs.
fn untold(device: &crate::model::Device) -> Option<Gap> {
    let pids: Vec<String> =
        device.look.entries.iter().flatten().filter(|e| e.bytes.is_none()).map(|e| e.pid.to_string()).collect();
    let reason = || format!("the driver does not tell how much memory PID {} holds", pids.join(", "));
    (!pids.is_empty()).then(|| Gap::new(device.identity.label(), reason()))
}

/// What a snapshot could not see at all: one gap for all processes that may not be inspected, one for a blind spot.
fn sight_gaps(snapshot: &Snapshot, holders: &[Holder]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    if let Some(why) = snapshot.driver.as_ref().and_then(|d| d.interposed.as_deref()) {
        gaps.push(Gap::new(
            "NVML",
            format!(
                "{why}, so its numbers may not be the driver's; without it, or with `--nvml-lib` and the path of NVIDIA's \
                 libnvidia-ml.so.1, they would be"
            ),
        ));
    }
    if let Some(why) = snapshot.observer.blind_spot() {
        let step = if snapshot.observer.hidepid && !snapshot.observer.foreign_procfs {
            "`sudo gpuresid` can"
        } else {
            "`gpuresid` on the host, as root, can"
        };
        gaps.push(Gap::new("/proc", format!("holders outside cannot be seen: {why}; {step}")));
    }
    if !snapshot.uninspected.is_empty() {
        let whom = uninspected(snapshot, holders);
        let who = if snapshot.observer.uid == 0 { "not even root may" } else { "`sudo gpuresid` can do it" };
        gaps.push(Gap::new("/proc", format!("cannot inspect the open files of {whom}; {who}")));
    }
    gaps
}

/// Who may not be inspected: all of a few; of many the count and the first, those that the driver lists before others.
fn uninspected(snapshot: &Snapshot, holders: &[Holder]) -> String {
    const MOST: usize = 3;
    let holder = |u: &Uninspected| holders.iter().find(|h| h.pid == u.id.pid);
    let mut all: Vec<_> = snapshot.uninspected.iter().map(|u| (holder(u), u)).collect();
    all.sort_by_key(|(holder, u)| (holder.is_none(), u.id.pid));
    let names = all.iter().take(MOST).map(|(holder, u)| {
        let user = holder.map(|h| format!(" of {}", h.user.as_deref().unwrap_or("an unknown user")));
        format!("PID {} ({}{})", u.id.pid, text::clean(&u.comm), user.unwrap_or_default())
    });
    let names: Vec<_> = names.collect();
    match all.len() {
        n if n > MOST => format!("{n} processes: {}, …", names.join(", ")),
        _ => names.join(", "),
    }
}

fn unique(gaps: Vec<Gap>) -> Vec<Gap> {
    let mut seen = Vec::with_capacity(gaps.len());
    for gap in gaps {
        if !seen.contains(&gap) {
            seen.push(gap);
        }
    }
    seen
}
