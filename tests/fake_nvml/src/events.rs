//! Xid events: lines `DEVICE XID` that are appended to the ledger's file `xids` after a client registered.

use crate::{
    abi::{self, Code, EventData, Handle, Outcome, put},
    call::{self, Part},
};
use std::{
    collections::BTreeSet,
    ffi::{c_uint, c_ulonglong, c_void},
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

/// `nvmlEventTypeXidCriticalError`.
const XID: c_ulonglong = 8;

/// An event set: how many lines of the file were seen, and for which GPUs events are wanted.
#[derive(Default)]
struct Set {
    seen: usize,
    gpus: BTreeSet<usize>,
}

/// All event sets; the client's pointer is the place in here plus one. A freed one is `None`.
static SETS: Mutex<Vec<Option<Set>>> = Mutex::new(Vec::new());

fn with_set<T>(set: *mut c_void, then: impl FnOnce(&mut Set) -> Result<T, Code>) -> Result<T, Code> {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = set.addr().checked_sub(1).and_then(|place| sets.get_mut(place)).and_then(Option::as_mut);
    then(found.ok_or(abi::INVALID_ARGUMENT)?)
}

fn lines() -> Vec<(usize, u64)> {
    let text = call::directory().and_then(|d| std::fs::read_to_string(d.join("xids")).ok()).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let parse = |line: &str| {
        let (gpu, xid) = line.split_once(' ')?;
        Some((gpu.parse().ok()?, xid.trim().parse().ok()?))
    };
    whole.lines().filter_map(parse).collect()
}

/// Waits for an event of the set, at most `timeout_ms`.
fn wait(set: *mut c_void, data: *mut EventData, timeout_ms: c_uint) -> Outcome {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let next = with_set(set, |set| {
            let mut new = lines().into_iter().enumerate().skip(set.seen);
            let next = new.find(|(_, (gpu, _))| set.gpus.contains(gpu));
            if let Some((line, _)) = next {
                set.seen = line + 1;
            }
            Ok(next)
        })?;
        if let Some((_, (gpu, xid))) = next {
            let device = Part::whole(gpu).handle();
            let none = c_uint::MAX;
            return put(
                data,
                EventData { device, event_type: XID, event_data: xid, gpu_instance: none, compute_instance: none },
            );
        }
        if Instant::now() >= deadline {
            return Err(abi::TIMEOUT);
        }
        sleep(Duration::from_millis(5));
    }
}

nvml! {
    fn nvmlEventSetCreate(set: *mut *mut c_void) |_call| {
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.push(Some(Set { seen: lines().len(), gpus: BTreeSet::new() }));
        put(set, std::ptr::without_provenance_mut(sets.len()))
    };
    fn nvmlEventSetWait(set: *mut c_void, data: *mut EventData, timeout_ms: c_uint) |_call| wait(set, data, timeout_ms);
    fn nvmlEventSetWait_v2(set: *mut c_void, data: *mut EventData, timeout_ms: c_uint) |_call| wait(set, data, timeout_ms);
    fn nvmlEventSetFree(set: *mut c_void) |_call| {
        with_set(set, |_| Ok(()))?;
        if let Some(place) = SETS.lock().unwrap_or_else(PoisonError::into_inner).get_mut(set.addr() - 1) {
            *place = None;
        }
        Ok(())
    };
}

nvml! {
    fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: *mut c_ulonglong) of device |_call, _part| put(types, XID);
    fn nvmlDeviceRegisterEvents(device: Handle, types: c_ulonglong, set: *mut c_void) of device |_call, part| {
        with_set(set, |set| {
            if types & XID != 0 {
                set.gpus.insert(part.gpu);
            }
            Ok(())
        })
    };
}
