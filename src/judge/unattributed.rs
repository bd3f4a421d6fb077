//! Memory that is in use and that no list explains: what can still be behind it, the likeliest first, and what was
//! excluded and by what. Nobody is blamed here; a reader gets the short list that a careful person would go through.

use super::scene::Scene;
use crate::{
    model::{Device, DeviceIdentity, Lineage, ListKind, NumaMemory, Process, SystemPages},
    text,
};

/// How many PIDs are named in one sentence.
const MOST_NAMED: usize = 5;

/// What is left, and what is not.
pub(crate) struct Explanation {
    pub(crate) possible: Vec<String>,
    pub(crate) excluded: Vec<String>,
}

/// One possibility, and whom it names.
struct Possible {
    text: String,
    pids: Vec<u32>,
}

impl Possible {
    fn nobody_named(text: impl Into<String>) -> Self {
        Self { text: text.into(), pids: Vec::new() }
    }
}

/// Goes through everything that can hold memory without being listed.
pub(crate) fn explain(scene: &Scene<'_>, device: &Device) -> Explanation {
    let mut possible = Vec::new();
    let mut excluded: Vec<String> = Vec::new();
    let is_own = |pid: u32| {
        scene
            .run
            .is_some_and(|run| scene.processes.iter().any(|p| p.id.pid == pid && run.lineage(p.into()) == Lineage::Own))
    };
    // What the run still has open is the likeliest, in a sentence and among the sentences.
    let own_first = |mut pids: Vec<u32>| {
        pids.sort_by_key(|pid| !is_own(*pid));
        pids
    };
    let snapshot = scene.snapshot;
    let read = snapshot.processes.is_some();

    let unlisted = || {
        scene.near().filter(|p| {
            p.can_hold_memory() == Some(true)
                && !scene.looks_like_nvml_client(p)
                && !device.look.entries.iter().flatten().any(|e| e.pid == p.id.pid)
        })
    };
    let minor = device.identity.minor;
    let on_it = |p: &Process| p.files.as_ref().is_some_and(|f| minor.is_none_or(|minor| f.on_minor(minor) > 0));
    let bare = own_first(unlisted().filter(|p| scene.may_keep_a_handle(p)).map(|p| p.id.pid).collect());
    let has_unified = |p: &Process| p.files.as_ref().is_some_and(|f| f.uvm() > 0);
    let open = own_first(unlisted().filter(|p| on_it(p) && has_unified(p)).map(|p| p.id.pid).collect());
    let nobody_unlisted = bare.is_empty() && open.is_empty();
    if !bare.is_empty() {
        let who = named(&bare, "has", "have");
        let text = format!("an exported allocation handle: {who} only the control file open, without a GPU context");
        possible.push(Possible { text, pids: bare });
    }
    if !open.is_empty() {
        let who = named(&open, "is one", "are such");
        let text = format!("a process that has this GPU open without being listed: {who}");
        possible.push(Possible { text, pids: open });
    }
    if read && nobody_unlisted {
        excluded.push(
            "a handle or a forked copy in a process that can be seen: nobody unlisted has more NVIDIA files open than a \
             program that only watches"
                .into(),
        );
    }

    let listed: Vec<_> =
        device.look.entries.iter().flatten().filter(|e| e.lists.contains(&ListKind::Compute)).map(|e| e.pid).collect();
    let listed = own_first(listed);
    match (listed.is_empty(), device.look.entries.is_some()) {
        (false, _) => possible.push(Possible {
            text: format!(
                "managed memory (cudaMallocManaged) or shared allocations of a listed process: PID {}",
                short(&listed)
            ),
            pids: listed,
        }),
        (true, true) => excluded.push("managed memory of a listed process: none is listed".into()),
        (true, false) => possible.push(Possible::nobody_named("a listed process: the lists could not be read")),
    }

    // Where the memory is the operating system's to give, that is the likeliest; where it may be, it comes late.
    match device.identity.system_pages() {
        SystemPages::Node(node) => {
            possible.insert(0, Possible::nobody_named(format!("{HELD_BY_THE_SYSTEM} {node}): {}", see(node))));
        }
        SystemPages::Perhaps => possible.push(Possible::nobody_named(format!(
            "{HELD_BY_THE_SYSTEM}, if its memory is one: the driver does not tell)"
        ))),
        SystemPages::No if device.identity.numa == Some(NumaMemory::No) => excluded
            .push("memory that the system holds there: the driver says that the GPU's memory is no NUMA node".into()),
        SystemPages::No => {}
    }

    let uninspected = &snapshot.uninspected;
    if !read {
        possible.push(Possible::nobody_named("anybody: the open files of processes were not read"));
    } else if uninspected.is_empty() {
        excluded.push("a process that could not be inspected: there is none".into());
    } else {
        let who: Vec<_> = uninspected.iter().map(|u| format!("{} ({})", u.id.pid, text::clean(&u.comm))).collect();
        possible.push(Possible {
            text: format!("a process whose open files may not be read: PID {}", short(&who)),
            pids: uninspected.iter().map(|u| u.id.pid).collect(),
        });
    }
    match snapshot.observer.blind_spot() {
        Some(why) => {
            possible.push(Possible::nobody_named(format!("a process that cannot be seen from here: {why}")));
        }
        None => excluded.push("a process out of sight: from here every process of the machine can be seen".into()),
    }
    // In a run the holder of the socket is named as one that may keep a handle.
    if scene.run.is_none() {
        possible.push(Possible::nobody_named(
            "an allocation handle on its way: a file that was sent through a socket and not received belongs to no process",
        ));
    }
    possible.push(Possible::nobody_named("the driver itself: it keeps some memory while a GPU is in use"));
    possible.sort_by_key(|possible| !possible.pids.iter().any(|pid| is_own(*pid)));
    Explanation { possible: possible.into_iter().map(|possible| possible.text).collect(), excluded }
}

const HELD_BY_THE_SYSTEM: &str =
    "held by the system as ordinary memory (page cache or a process's host pages on the GPU's NUMA node";

/// Where the kernel's own account of a node is.
fn see(node: u32) -> String {
    format!("see `grep -e FilePages -e AnonPages /sys/devices/system/node/node{node}/meminfo`")
}

/// Why memory on this device may be in use without a program that uses the GPU.
pub(crate) fn system_pages(identity: &DeviceIdentity) -> String {
    match identity.system_pages() {
        SystemPages::Node(node) => format!(
            "the GPU's memory is NUMA node {node} of this machine, where the system keeps page cache and host pages of any \
             process too, and keeps them after a process has ended ({})",
            see(node)
        ),
        _ => "the GPU's memory may be a NUMA node of this machine (addressing mode ATS; the driver does not tell), where the \
              system keeps page cache and host pages of any process too"
            .into(),
    }
}

fn named(pids: &[u32], one: &str, many: &str) -> String {
    format!("PID {} {}", short(pids), if pids.len() == 1 { one } else { many })
}

pub(super) fn short(items: &[impl ToString]) -> String {
    let shown: Vec<_> = items.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    let more = items.len().saturating_sub(MOST_NAMED);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}
