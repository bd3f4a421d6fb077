//! Knows the truth of a run, because it was planned, and which evidence the plan hid; compares with the report.

use crate::{
    plan::{Being, Deed, Left, Neighbour, Plan, Trouble},
    play::Played,
    support::sees_everybody,
};
use serde_json::Value;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 518 * MIB;
/// What a device and a few contexts cost beside their listed memory, and the limit of a verdict.
const SLACK: u64 = 16 * MIB;

/// What is true of one GPU at the end.
#[derive(Debug, Default)]
struct Truth {
    /// Memory of living leftovers that NVML lists, with them or with a ghost.
    listed: u64,
    /// Memory of living leftovers that no list names.
    unlisted: u64,
    /// Memory of the command's dead that is still coming back.
    in_flight: u64,
    /// Memory that a neighbour keeps who maps a file which is named after the command's process.
    shared: u64,
    /// It was listed with the command's process in some look.
    sharing_seen: bool,
    /// Memory that a handle keeps of which nobody is known to have it.
    in_socket: u64,
    /// Chance may explain it: nobody saw the process, it is little, or more of others came and went without a name.
    explained: bool,
    /// Somebody else is listed in some look.
    others_listed: bool,
    /// Somebody else was listed for a while in which there may have been no look.
    others_unseen: bool,
    /// Memory of others that no list names.
    others_unlisted: u64,
    /// Such memory that they gave back: between the same two looks it hides as much of the command's.
    others_gave_back: u64,
    /// Memory without a name became more while the command ran.
    rises: bool,
    /// Where the evidence is hidden, in words.
    hidden: BTreeSet<&'static str>,
    /// The forked copies' parents may not have been seen alive, and others' copies have the same files.
    unnamed_copies: bool,
    lost: bool,
    /// Memory without a name can only be the command's.
    chargeable: bool,
}

/// Compares; the word for what came out, or what is wrong.
pub(crate) fn judge(plan: &Plan, played: &Played) -> Result<String, String> {
    let report = &played.report;
    if played.enders.iter().any(|pid| survivors(report).contains(pid)) {
        return Ok("not judged: the machine was too slow for a process to end in time".into());
    }
    let verdict = report["verdict"].as_str().unwrap_or_default();
    let code = match (plan.exit_code, verdict) {
        (0, "clean") => 0,
        (0, "residue") => 121,
        (0, "inconclusive") => 122,
        (code, _) => code,
    };
    demand(played.code == Some(code), || format!("exit code {:?} for {verdict}, not {code}", played.code))?;
    let mut words = BTreeSet::new();
    let truths: Vec<Truth> = (0..plan.gpus).map(|gpu| truth(plan, played, gpu)).collect();
    let devices: Vec<&str> =
        (0..plan.gpus).map(|gpu| report["devices"][gpu]["verdict"].as_str().unwrap_or_default()).collect();
    for (gpu, truth) in truths.iter().enumerate() {
        let said = devices[gpu];
        let allowed = allowed(truth);
        demand(allowed.contains(&said), || {
            format!("GPU {gpu} is said to be {said}, the truth allows {allowed:?}: {truth:#?}")
        })?;
        bounds(&report["devices"][gpu], truth).map_err(|wrong| format!("GPU {gpu}: {wrong}: {truth:#?}"))?;
        if said == "inconclusive" {
            words.extend(truth.hidden.iter().copied());
            words.extend(truth.lost.then_some("the GPU was lost"));
            words.extend((truth.unlisted > 0).then_some("unlisted memory beside others"));
            words.extend((truth.in_socket > 0).then_some("a handle that nobody is known to have"));
            words.extend((truth.shared > 0).then_some("memory that a neighbour was given"));
            words.extend((truth.in_flight > 0).then_some("memory in flight beside others"));
            words.extend(truth.unnamed_copies.then_some("copies of which nobody saw the parent"));
        }
    }
    let worst = ["residue", "inconclusive", "clean"].into_iter().find(|word| devices.contains(word));
    demand(worst == Some(verdict), || format!("the run is said to be {verdict}, its GPUs {devices:?}"))?;
    named(plan, played, &truths, verdict)?;
    in_peace(played)?;
    let words: Vec<&str> = words.into_iter().collect();
    Ok(if words.is_empty() { verdict.into() } else { format!("{verdict}: {}", words.join(", ")) })
}

fn demand(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn survivors(report: &Value) -> Vec<u32> {
    let all = report["survivors"].as_array().into_iter().flatten();
    all.filter_map(|s| u32::try_from(s["pid"].as_u64()?).ok()).collect()
}

/// A process that keeps files or memory when the command has ended.
fn stays(kind: Left) -> bool {
    kind != Left::Server && !ends_empty(kind)
}

/// A process that ends with the command and leaves nobody of its own.
fn ends_empty(kind: Left) -> bool {
    use Left::{DrainsInTime, DrainsLate, InSocket, Shared, SharedRaw, Worker};
    matches!(kind, DrainsInTime | DrainsLate | Worker | Shared | SharedRaw | InSocket)
}

fn copies_something(kind: Left) -> bool {
    matches!(kind, Left::ForkedCopy | Left::ForkOfCommand)
}

/// The neighbour is there at the end.
fn remains(neighbour: &Neighbour) -> bool {
    neighbour.deed != Deed::Ends
}

/// It is, or leaves, a process that was born while the command ran.
fn born(neighbour: &Neighbour) -> bool {
    remains(neighbour) && (neighbour.late || neighbour.deed == Deed::LeavesCopy)
}

/// It is a copy whose parent is gone.
fn is_copy(neighbour: &Neighbour) -> bool {
    remains(neighbour) && (neighbour.being == Being::Ghost || neighbour.deed == Deed::LeavesCopy)
}

fn truth(plan: &Plan, played: &Played, gpu: usize) -> Truth {
    let mut truth = Truth { lost: plan.trouble == Trouble::Lost(gpu), ..Truth::default() };
    let capped = played.report["settle_end"] == "cap";
    for left in plan.leftovers.iter().filter(|left| left.gpu == gpu) {
        let bytes = left.mib * MIB;
        match left.kind {
            Left::Managed => {
                truth.listed += CONTEXT + 2 * MIB;
                truth.unlisted += bytes;
                truth.rises = true;
            }
            Left::ExportedHandle => {
                truth.unlisted += bytes;
                truth.rises = true;
            }
            Left::DrainsInTime | Left::DrainsLate => {
                // A machine that is slow does not keep the time.
                truth.in_flight += if left.kind == Left::DrainsLate || capped { bytes } else { 0 };
                truth.rises = true;
            }
            Left::Shared => {
                truth.shared += bytes;
                truth.others_listed = true;
            }
            Left::SharedRaw => {
                truth.others_listed = true;
                truth.hidden.insert("memory that a neighbour was given without a trace");
            }
            Left::InSocket => {
                truth.in_socket += bytes;
                truth.rises = true;
                truth.explained |= left.mib < 128;
            }
            Left::ForkOfCommand | Left::Server | Left::Opener | Left::Worker => {}
            _ => truth.listed += CONTEXT + bytes,
        }
    }
    if plan.leftovers.iter().any(|left| left.kind == Left::ForkOfCommand)
        && let Some((on, mib)) = plan.command
        && on == gpu
    {
        truth.listed += CONTEXT + mib * MIB;
    }
    others(plan, gpu, &mut truth);
    if !truth.chargeable && plan.leftovers.iter().any(|left| left.gpu == gpu && left.kind == Left::DrainsInTime) {
        // Looks go on for a while that depends on how often there was a look.
        truth.hidden.insert("memory that came back a little late beside others");
    }
    truth
}

/// What the others do to the evidence.
fn others(plan: &Plan, gpu: usize, truth: &mut Truth) {
    let holds = |n: &&Neighbour| n.being != Being::Monitor && n.gpu == gpu;
    let here: Vec<&Neighbour> = plan.neighbours.iter().filter(holds).collect();
    // What happened while it could not be read may have cancelled out.
    truth.rises |= matches!(plan.trouble, Trouble::FailsMeanwhile(on) | Trouble::ListsFailMeanwhile(on) if on == gpu);
    truth.sharing_seen = !plan.hasty;
    truth.explained |= plan.hasty;
    // Who came and went in a hurry, or while no list could be read, was seen by nobody.
    let lists_fail = matches!(plan.trouble, Trouble::ListsFailMeanwhile(on) | Trouble::FailsMeanwhile(on) if on == gpu);
    let unseen = |n: &&Neighbour| n.late && !remains(n) && (plan.hasty || lists_fail);
    truth.others_unseen = here.iter().any(&unseen);
    truth.others_listed |= here.iter().any(|n| !unseen(n));
    for neighbour in &here {
        let own = if neighbour.being == Being::Managed { neighbour.mib * MIB } else { 0 };
        let touches = matches!(neighbour.deed, Deed::TouchesManaged | Deed::TouchesAtTheEnd);
        let more = if touches { neighbour.more_mib * MIB } else { 0 };
        let rises = more > 0 || (own > 0 && neighbour.late);
        truth.rises |= rises;
        truth.explained |= rises;
        if remains(neighbour) && neighbour.deed != Deed::FreesManaged {
            truth.others_unlisted += own + more;
        } else {
            truth.others_gave_back += own;
        }
    }
    // The command itself, or a process of it, was seen in NVML's list: only then a new process can be told from its own.
    let seen = !plan.hasty && (plan.command.is_some() || plan.leftovers.iter().any(|left| uses_gpu(left.kind)));
    let fails = matches!(plan.trouble, Trouble::FailsMeanwhile(_) | Trouble::ListsFailMeanwhile(_));
    let blind = |n: &Neighbour| {
        let never_seen_alive = n.being == Being::Ghost || (n.deed == Deed::LeavesCopy && (plan.hasty || fails));
        n.late && remains(n) && (!seen || never_seen_alive)
    };
    if here.iter().any(|n| blind(n)) {
        truth.hidden.insert("a new process that could be the command's");
    }
    let strangers = plan.neighbours.iter().any(|n| blind(n) || (is_copy(n) && born(n)));
    let hider = plan.leftovers.iter().any(|left| stays(left.kind)) || strangers;
    let without_a_name = truth.others_unlisted + truth.unlisted + truth.in_socket + truth.in_flight;
    // Of which GPU a handle is cannot be seen.
    let handle = plan.leftovers.iter().any(|left| left.kind == Left::ExportedHandle);
    if hider && (truth.rises || handle) && without_a_name > 0 {
        truth.hidden.insert("memory without a name, and somebody who could hold it");
    }
    let dies = plan.command.is_some_and(|(on, _)| on == gpu)
        || plan.leftovers.iter().any(|left| left.gpu == gpu && uses_gpu(left.kind));
    let grows_then = |n: &&Neighbour| match n.deed {
        Deed::GrowsAtTheEnd | Deed::TouchesAtTheEnd => true,
        Deed::Grows | Deed::TouchesManaged => plan.hasty,
        _ => false,
    };
    if dies && here.iter().any(grows_then) {
        truth.hidden.insert("a neighbour that grew when the command ended");
    }
    let copies = plan.leftovers.iter().any(|left| copies_something(left.kind));
    truth.unnamed_copies = plan.hasty && copies && plan.neighbours.iter().any(is_copy);
    if !sees_everybody() {
        // In a container all growth may be somebody's outside.
        truth.hidden.insert("somebody may be out of sight");
        truth.unnamed_copies |= copies && (plan.hasty || fails);
    }
    // A plain client of the library is known by its few files.
    let could_keep = |n: &Neighbour| born(n) && n.being != Being::Monitor;
    truth.chargeable = sees_everybody() && !truth.others_listed && !plan.neighbours.iter().any(could_keep);
}

fn uses_gpu(kind: Left) -> bool {
    !matches!(kind, Left::Server | Left::Opener | Left::ForkOfCommand)
}

/// The verdicts that are right.
fn allowed(truth: &Truth) -> Vec<&'static str> {
    let hidden = !truth.hidden.is_empty();
    if truth.lost {
        return vec!["inconclusive"];
    }
    if truth.listed > 0 {
        return if truth.unnamed_copies { vec!["residue", "inconclusive"] } else { vec!["residue"] };
    }
    if truth.shared > 0 && truth.sharing_seen {
        return vec!["residue"];
    }
    let open = match (truth.chargeable, truth.others_unseen) {
        (true, false) => vec!["residue"],
        (true, true) => vec!["residue", "inconclusive"],
        (false, _) => vec!["inconclusive"],
    };
    if truth.unlisted > 0 {
        return open;
    }
    if truth.shared > 0 {
        return vec!["residue", "inconclusive", "clean"];
    }
    if truth.in_socket > 0 {
        let clean = (!truth.chargeable || truth.others_unseen) && truth.explained;
        return open.into_iter().chain(clean.then_some("clean")).collect();
    }
    match (truth.in_flight > 0, truth.chargeable) {
        (true, true) if truth.others_unseen => vec!["residue", "inconclusive", "clean"],
        (true, true) => vec!["residue", "clean"],
        // All of it comes back, but who looks too early cannot tell it from memory that somebody keeps.
        (true, false) => vec!["clean", "inconclusive"],
        (false, _) if hidden => vec!["clean", "inconclusive"],
        _ => vec!["clean"],
    }
}

/// What is charged at least is no more than the truth, and at most no less.
fn bounds(device: &Value, truth: &Truth) -> Result<(), String> {
    let low = device["charged_residue_bytes"].as_u64().unwrap_or(u64::MAX);
    let high = device["charged_residue_max_bytes"].as_u64();
    let all = truth.listed + truth.unlisted + truth.shared + truth.in_socket;
    demand(low <= all + truth.in_flight + SLACK, || format!("{low} are charged, and the truth is {all}"))?;
    // What is allowed to be called clean need not be within the interval.
    let unseen = if truth.sharing_seen { 0 } else { truth.shared } + if truth.explained { truth.in_socket } else { 0 };
    // What others gave back at the very moment hides it from the sum of the rises; nothing tells the two apart.
    let kept = all - unseen - truth.unlisted.min(truth.others_gave_back);
    if truth.lost {
        return demand(high.is_none(), || "its memory could not be read, and a largest charge is given".into());
    }
    demand(high.is_some_and(|high| high + SLACK >= kept), || {
        format!("at most {high:?} are charged, and the truth is {kept}")
    })?;
    demand(truth.unnamed_copies || low >= truth.listed, || {
        format!("only {low} are charged, and {} are listed", truth.listed)
    })
}

/// Every leftover that holds memory is named, with its cause.
fn named(plan: &Plan, played: &Played, truths: &[Truth], verdict: &str) -> Result<(), String> {
    for (left, pid) in plan.leftovers.iter().zip(&played.leftovers) {
        let gpu =
            if left.kind == Left::ForkOfCommand { plan.command.map_or(left.gpu, |(gpu, _)| gpu) } else { left.gpu };
        let cause = match left.kind {
            Left::Orphan | Left::CleanEnvironment | Left::Daemon | Left::Titled | Left::Managed => "orphan",
            Left::ForkedCopy | Left::ForkOfCommand => "forked_copy",
            Left::HalfDead => "half_dead",
            Left::Stopped => "stopped",
            Left::ExportedHandle => "exported_handle",
            _ => continue,
        };
        if verdict == "clean" || truths[gpu].lost {
            continue;
        }
        let pid = pid.ok_or_else(|| format!("nobody keeps what {left:?} left"))?;
        let holders = played.report["holders"].as_array();
        let holder = holders.into_iter().flatten().find(|holder| holder["pid"] == pid);
        let holder = holder.ok_or_else(|| format!("PID {pid} of {left:?} is not named"))?;
        demand(holder["cause"] == cause && holder["lineage"] == "own", || {
            format!("PID {pid} of {left:?} is {}, {}", holder["cause"], holder["lineage"])
        })?;
    }
    Ok(())
}

/// Nobody is advised to end a neighbour that is known to be one.
fn in_peace(played: &Played) -> Result<(), String> {
    let list = |name: &str| played.report[name].as_array().cloned().unwrap_or_default();
    for pid in &played.neighbours {
        let word = pid.to_string();
        let unknown = list("holders").iter().any(|h| h["pid"] == *pid && h["lineage"] == "unknown");
        for step in list("advice") {
            let command = step["command"].as_str().unwrap_or_default();
            let named = command.split(|c: char| !c.is_ascii_digit()).any(|w| w == word);
            demand(!named || unknown, || format!("`{command}` would end a neighbour"))?;
        }
    }
    Ok(())
}
