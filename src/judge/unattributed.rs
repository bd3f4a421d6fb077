//! Memory that is in use and that no list explains: what can still be behind it, the likeliest first, and what was
//! excluded and by what. Nobody is blamed here; a reader gets the short list that a careful person would go through.

use super::scene::Scene;
use crate::model::{Device, Exclusion, Facts, Lineage, ListKind, Named, NumaMemory, Possibility, Process, SystemPages};

/// Goes through everything that can hold memory without being listed.
pub(crate) fn explain(scene: &Scene<'_>, device: &Device) -> (Facts<Possibility>, Facts<Exclusion>) {
    let mut possible = Vec::new();
    let mut excluded = Facts::default();
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
        possible.push(Possibility::Handle { pids: bare });
    }
    if !open.is_empty() {
        possible.push(Possibility::OpenAndNotListed { pids: open });
    }
    if read && nobody_unlisted {
        excluded.push(Exclusion::NobodyUnlisted);
    }

    let listed: Vec<_> =
        device.look.entries.iter().flatten().filter(|e| e.lists.contains(&ListKind::Compute)).map(|e| e.pid).collect();
    let listed = own_first(listed);
    match (listed.is_empty(), device.look.entries.is_some()) {
        (false, _) => possible.push(Possibility::Listed { pids: listed }),
        (true, true) => excluded.push(Exclusion::NobodyListed),
        (true, false) => possible.push(Possibility::ListsUnread),
    }

    // Where the memory is the operating system's to give, that is the likeliest; where it may be, it comes late.
    match device.identity.system_pages() {
        pages @ SystemPages::Node(_) => possible.insert(0, Possibility::SystemPages { pages }),
        pages @ SystemPages::Perhaps => possible.push(Possibility::SystemPages { pages }),
        SystemPages::No if device.identity.numa == Some(NumaMemory::No) => excluded.push(Exclusion::NoNumaNode),
        SystemPages::No => {}
    }

    let uninspected = &snapshot.uninspected;
    if !read {
        possible.push(Possibility::AnybodyUnread);
    } else if uninspected.is_empty() {
        excluded.push(Exclusion::NobodyUninspected);
    } else {
        let who = uninspected.iter().map(|u| Named { pid: u.id.pid, name: u.comm.as_str().into() });
        possible.push(Possibility::Uninspected { who: who.collect() });
    }
    match snapshot.observer.blind_spot() {
        Some(why) => possible.push(Possibility::OutOfSight { why: why.to_string() }),
        None => excluded.push(Exclusion::NobodyOutOfSight),
    }
    // In a run the holder of the socket is named as one that may keep a handle.
    if scene.run.is_none() {
        possible.push(Possibility::HandleOnItsWay);
    }
    possible.push(Possibility::Driver);
    possible.sort_by_key(|possible| !possible.pids().iter().any(|pid| is_own(*pid)));
    (possible.into(), excluded)
}
