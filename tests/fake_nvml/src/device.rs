//! What one device says about itself, its memory first.

use crate::abi::{self, AddressingMode, ConfSizes, Handle, MemoryV1, MemoryV2, PciInfo, Utilization, put, put_text};
use crate::call::Part;
use std::ffi::{c_char, c_uint};

nvml! {
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle) of (Part::whole(index as usize).handle()) |_call, part| {
        put(device, part.handle())
    };
    fn nvmlDeviceGetName(device: Handle, text: *mut c_char, length: c_uint) of device |call, part| {
        put_text(text, length, &call.gpu(part)?.name)
    };
    fn nvmlDeviceGetUUID(device: Handle, text: *mut c_char, length: c_uint) of device |call, part| {
        let uuid = match call.instance(part)? {
            Some(instance) => &instance.uuid,
            None => &call.gpu(part)?.uuid,
        };
        put_text(text, length, uuid)
    };
    fn nvmlDeviceGetSerial(device: Handle, _text: *mut c_char, _length: c_uint) of device |_call, _part| {
        Err(abi::NOT_SUPPORTED)
    };
    fn nvmlDeviceGetMinorNumber(device: Handle, number: *mut c_uint) of device |call, part| {
        match call.instance(part)? {
            Some(_) => Err(abi::INVALID_ARGUMENT),
            None => put(number, call.gpu(part)?.minor),
        }
    };
    fn nvmlDeviceGetIndex(device: Handle, index: *mut c_uint) of device |_call, part| {
        put(index, part.instance.unwrap_or(part.gpu) as c_uint)
    };
    fn nvmlDeviceGetPciInfo_v3(device: Handle, info: *mut PciInfo) of device |call, part| {
        put(info, pci_info(&call.gpu(part)?.pci).ok_or(abi::UNKNOWN)?)
    };
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut MemoryV1) of device |call, part| {
        // Version 1 has no room for the driver's own memory and calls it used.
        let m = call.memory(part)?;
        put(memory, MemoryV1 { total: m.total, free: m.free, used: m.used.saturating_add(m.reserved) })
    };
    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) of device |call, part| {
        if memory.is_null() {
            return Err(abi::INVALID_ARGUMENT);
        }
        // The client has filled in only the version; the rest may be uninitialised, so it is not read.
        let version = abi::get(memory.cast::<c_uint>())?;
        if version != MemoryV2::VERSION {
            return Err(abi::ARGUMENT_VERSION_MISMATCH);
        }
        let m = call.memory(part)?;
        put(memory, MemoryV2 { version, total: m.total, reserved: m.reserved, free: m.free, used: m.used })
    };
    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: *mut MemoryV1) of device |call, part| {
        // The record of BAR1 has the form of the first memory record.
        let (total, used) = call.facts(part).bar1.ok_or(abi::NOT_SUPPORTED)?;
        let used = call.effect.bar1_used.unwrap_or(used);
        put(memory, MemoryV1 { total, free: total.saturating_sub(used), used })
    };
    fn nvmlDeviceGetAddressingMode(device: Handle, mode: *mut AddressingMode) of device |call, part| {
        let version = abi::get(mode)?.version;
        if version != AddressingMode::VERSION {
            return Err(abi::ARGUMENT_VERSION_MISMATCH);
        }
        put(mode, AddressingMode { version, value: call.facts(part).addressing })
    };
    fn nvmlDeviceGetNumaNodeId(device: Handle, node: *mut c_uint) of device |call, part| {
        put(node, call.facts(part).numa_node.ok_or(abi::NOT_SUPPORTED)?)
    };
    fn nvmlDeviceGetConfComputeMemSizeInfo(device: Handle, sizes: *mut ConfSizes) of device |call, part| {
        let gpu = call.gpu(part)?;
        let (protected_kib, _) = call.facts(part).protected;
        put(sizes, ConfSizes { protected_kib, unprotected_kib: (gpu.total - gpu.reserved) / 1024 - protected_kib })
    };
    fn nvmlDeviceGetConfComputeProtectedMemoryUsage(device: Handle, memory: *mut MemoryV1) of device |call, part| {
        let (kib, used) = call.facts(part).protected;
        put(memory, MemoryV1 { total: kib * 1024, free: kib * 1024 - used, used })
    };
    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: *mut Utilization) of device |call, part| {
        let gpu = call.gpu(part)?;
        if !gpu.mig.is_empty() {
            return Err(abi::NOT_SUPPORTED);
        }
        put(rates, Utilization { gpu: gpu.utilization, memory: 0 })
    };
    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: *mut c_uint) of device |call, part| {
        put(mode, call.facts(part).persistence)
    };
    fn nvmlDeviceGetComputeMode(device: Handle, mode: *mut c_uint) of device |call, part| {
        put(mode, call.facts(part).compute_mode)
    };
    fn nvmlDeviceGetEccMode(device: Handle, now: *mut c_uint, next: *mut c_uint) of device |call, part| {
        let (is, will_be) = call.facts(part).ecc;
        put(now, is)?;
        put(next, will_be)
    };
    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, pending: *mut c_uint) of device |call, part| {
        put(pending, call.facts(part).pages_pending.ok_or(abi::NOT_SUPPORTED)?)
    };
    fn nvmlDeviceGetRemappedRows(
        device: Handle,
        correctable: *mut c_uint,
        uncorrectable: *mut c_uint,
        pending: *mut c_uint,
        failed: *mut c_uint,
    ) of device |call, part| {
        let rows = call.facts(part).remapped_rows.ok_or(abi::NOT_SUPPORTED)?;
        put(correctable, rows.0)?;
        put(uncorrectable, rows.1)?;
        put(pending, rows.2)?;
        put(failed, rows.3)
    };
    fn nvmlDeviceGetDisplayActive(device: Handle, active: *mut c_uint) of device |_call, _part| put(active, 0);
}

/// Takes `00000000:0A:00.0` apart.
fn pci_info(id: &str) -> Option<PciInfo> {
    let (domain, rest) = id.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, _function) = rest.split_once('.')?;
    let number = |text| c_uint::from_str_radix(text, 16).ok();
    let mut info = PciInfo {
        bus_id_legacy: [0; 16],
        domain: number(domain)?,
        bus: number(bus)?,
        device: number(device)?,
        device_id: 0x2335_10de,
        subsystem_id: 0,
        bus_id: [0; 32],
    };
    let fill = |to: &mut [c_char], text: &str| {
        for (to, byte) in to.iter_mut().zip(text.bytes()) {
            *to = byte as c_char;
        }
    };
    fill(&mut info.bus_id[..31], id);
    fill(&mut info.bus_id_legacy[..15], id.get(4..)?);
    Some(info)
}
