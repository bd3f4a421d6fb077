//! The process lists, in the record layouts of the drivers.

use crate::{
    abi::{self, Handle, Outcome, get, put, put_record},
    call::{Call, Part},
    ledger::{List, Listed},
};
use std::ffi::{c_uint, c_void};

/// "No such instance" and "not available".
const NONE: u32 = u32::MAX;
const NOT_AVAILABLE: u64 = u64::MAX;

/// The layouts that drivers have written.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// 16 bytes: pid, bytes.
    V1,
    /// 24 bytes: instances added.
    V2,
    /// 24 bytes, or 32 where the driver is of the odd kind.
    V3,
}

nvml! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Compute, Layout::V1, count, infos)
    };
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Compute, Layout::V2, count, infos)
    };
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Compute, Layout::V3, count, infos)
    };
    fn nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Graphics, Layout::V1, count, infos)
    };
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Graphics, Layout::V2, count, infos)
    };
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Graphics, Layout::V3, count, infos)
    };
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Mps, Layout::V1, count, infos)
    };
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Mps, Layout::V2, count, infos)
    };
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: *mut c_uint, infos: *mut c_void) of device |call, part| {
        fill(call, part, List::Mps, Layout::V3, count, infos)
    };
}

fn fill(call: &Call, part: Part, list: List, layout: Layout, count: *mut c_uint, infos: *mut c_void) -> Outcome {
    let gpu = call.gpu(part)?;
    if part.instance.is_none() && !gpu.mig.is_empty() && !gpu.mig_parent_lists {
        return Err(abi::NO_PERMISSION);
    }
    let room = get(count)? as usize;
    let lines: Vec<Listed> = call.processes(part)?.into_iter().filter(|l| l.lists.contains(&list)).collect();
    put(count, lines.len() as c_uint)?;
    if lines.len() > room {
        return Err(abi::INSUFFICIENT_SIZE);
    }
    if infos.is_null() {
        return if lines.is_empty() { Ok(()) } else { Err(abi::INVALID_ARGUMENT) };
    }
    for (index, line) in lines.iter().enumerate() {
        put_record(infos, index, &record(call, layout, line));
    }
    Ok(())
}

fn record(call: &Call, layout: Layout, line: &Listed) -> Vec<u8> {
    let told = call.effect.entry_bytes.or(line.bytes);
    let bytes = told.filter(|_| !call.effect.bytes_unavailable).unwrap_or(NOT_AVAILABLE);
    let mut record = Vec::with_capacity(32);
    record.extend(line.pid.to_ne_bytes());
    record.extend([0; 4]);
    record.extend(bytes.to_ne_bytes());
    if !matches!(layout, Layout::V1) {
        record.extend(line.gi.unwrap_or(NONE).to_ne_bytes());
        record.extend(line.ci.unwrap_or(NONE).to_ne_bytes());
    }
    if matches!(layout, Layout::V3) && call.odd.wide_records {
        record.extend(0_u64.to_ne_bytes());
    }
    record
}
