//! Opening, closing, versions, names.

use crate::{
    abi::{self, Code, ConfState, put, put_text, text_at},
    call::{self, Part},
};
use std::ffi::{c_char, c_int, c_uint};

/// `nvmlInit_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> Code {
    // A real driver has no ledger to open at each call, so it is not this that runs out of descriptors first.
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let all = rustix::process::Rlimit { current: most, maximum: most };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, all);
    call::open("nvmlInit_v2")
}

/// `nvmlInitWithFlags`; the flags change nothing here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Code {
    call::open("nvmlInitWithFlags")
}

/// `nvmlShutdown`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> Code {
    call::close("nvmlShutdown")
}

/// `nvmlErrorString`: never null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    let text = match code {
        0 => c"The operation was successful",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

nvml! {
    fn nvmlSystemGetDriverVersion(text: *mut c_char, length: c_uint) |call| {
        put_text(text, length, &call.machine.driver_version)
    };
    fn nvmlSystemGetNVMLVersion(text: *mut c_char, length: c_uint) |call| {
        put_text(text, length, &call.machine.nvml_version)
    };
    fn nvmlSystemGetConfComputeState(state: *mut ConfState) |call| {
        let [environment, feature, developer_tools] = call.odd.conf_compute;
        put(state, ConfState { environment, feature, developer_tools })
    };
    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) |call| put(version, call.machine.cuda_version);
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) |call| put(version, call.machine.cuda_version);
    fn nvmlSystemGetProcessName(pid: c_uint, text: *mut c_char, length: c_uint) |_call| {
        // As the real library does, this trusts the number: of a reused one it tells the newcomer's name.
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| abi::NOT_FOUND)?;
        let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let name: String = String::from_utf8_lossy(first).chars().take(200).collect();
        put_text(text, length, &name)
    };
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) |call| put(count, call.machine.devices.len() as c_uint);
    fn nvmlDeviceGetHandleByPciBusId_v2(pci: *const c_char, device: *mut abi::Handle) |call| {
        let pci = text_at(pci)?;
        let found = call.machine.devices.iter().position(|gpu| gpu.pci.eq_ignore_ascii_case(&pci));
        put(device, Part::whole(found.ok_or(abi::NOT_FOUND)?).handle())
    };
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut abi::Handle) |call| {
        let uuid = text_at(uuid)?;
        let parts = call.machine.devices.iter().enumerate().flat_map(|(gpu, it)| {
            let instances = it.mig.iter().enumerate();
            std::iter::once((Part::whole(gpu), &it.uuid))
                .chain(instances.map(move |(i, instance)| (Part { gpu, instance: Some(i) }, &instance.uuid)))
        });
        let found = parts.filter(|(_, u)| **u == uuid).map(|(part, _)| part).next();
        put(device, found.ok_or(abi::NOT_FOUND)?.handle())
    };
}
