//! NVML's memory and process calls by their raw symbols, and nothing else: the safe wrapper knows only the newest
//! version of each, which drivers before R510 lack. Its unsafe code stays here; it hands out safe functions.
#![allow(unsafe_code, reason = "calls through C symbols")]

use super::codes::Code;
use super::records::{Record, Records, UnknownLayout};
use crate::model::{
    Addressing, Bar1, Bytes, ConfCompute, ConfEnvironment, ConfMemory, ListApi, ListKind, Memory, MemoryApi,
    NumaMemory, RemappedRows,
};
use nvml_wrapper::{Device, Nvml};
use std::{ffi::c_void, os::fd::RawFd};

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Default)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

impl MemoryV2 {
    /// `NVML_STRUCT_VERSION(Memory, 2)`: the size, and the version in the top byte. The size is 40.
    const VERSION: u32 = 40 | 2 << 24;
}

/// `nvmlBAR1Memory_t`.
#[repr(C)]
#[derive(Default)]
struct Bar1Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlDeviceAddressingMode_v1_t`.
#[repr(C)]
struct AddressingMode {
    version: u32,
    value: u32,
}

impl AddressingMode {
    /// `NVML_STRUCT_VERSION(DeviceAddressingMode, 1)`.
    const VERSION: u32 = 8 | 1 << 24;
}

/// `nvmlConfComputeSystemState_t`.
#[repr(C)]
#[derive(Default)]
struct ConfState {
    environment: u32,
    feature: u32,
    developer_tools: u32,
}

/// `nvmlConfComputeMemSizeInfo_t`.
#[repr(C)]
#[derive(Default)]
struct ConfSizes {
    protected_kib: u64,
    unprotected_kib: u64,
}

const _: () = assert!(size_of::<MemoryV2>() == 40 && size_of::<MemoryV1>() == 24);
const _: () = assert!(size_of::<Bar1Memory>() == 24 && size_of::<AddressingMode>() == 8);
const _: () = assert!(size_of::<ConfState>() == 12 && size_of::<ConfSizes>() == 16);

type Handle = *mut c_void;
type MemoryV1Call = unsafe extern "C" fn(Handle, *mut MemoryV1) -> u32;
type MemoryV2Call = unsafe extern "C" fn(Handle, *mut MemoryV2) -> u32;
type ListCall = unsafe extern "C" fn(Handle, *mut u32, *mut c_void) -> u32;
type NumberCall = unsafe extern "C" fn(Handle, *mut u32) -> u32;
type Bar1Call = unsafe extern "C" fn(Handle, *mut Bar1Memory) -> u32;
type AddressingCall = unsafe extern "C" fn(Handle, *mut AddressingMode) -> u32;
type ConfStateCall = unsafe extern "C" fn(*mut ConfState) -> u32;
type ConfSizesCall = unsafe extern "C" fn(Handle, *mut ConfSizes) -> u32;
type RowsCall = unsafe extern "C" fn(Handle, *mut u32, *mut u32, *mut u32, *mut u32) -> u32;

/// The symbols that this library has. The library is never unloaded ([`super::nvml`] leaks it), so they stay valid.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbols {
    memory_v1: Option<MemoryV1Call>,
    memory_v2: Option<MemoryV2Call>,
    /// Newest first.
    compute: [Option<ListCall>; 3],
    graphics: [Option<ListCall>; 3],
    mps: [Option<ListCall>; 3],
    gpu_instance: Option<NumberCall>,
    compute_instance: Option<NumberCall>,
    remapped_rows: Option<RowsCall>,
    bar1: Option<Bar1Call>,
    addressing: Option<AddressingCall>,
    numa_node: Option<NumberCall>,
    conf_state: Option<ConfStateCall>,
    conf_sizes: Option<ConfSizesCall>,
    conf_used: Option<MemoryV1Call>,
}

/// Why a list could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListError {
    /// NVML said no.
    Code(Code),
    /// NVML said something that cannot be read.
    Layout(UnknownLayout),
}

impl std::fmt::Display for ListError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => code.fmt(f),
            Self::Layout(layout) => layout.fmt(f),
        }
    }
}

impl Symbols {
    /// Looks the symbols up. One that is missing is no failure: an older version of the call may be there.
    pub(super) fn load(nvml: &'static Nvml) -> Self {
        // SAFETY: the types are those of nvml.h for these names, and the library stays loaded for the life of the
        // process because `nvml` does.
        unsafe {
            let list =
                |name: &str| ["_v3", "_v2", ""].map(|version| symbol::<ListCall>(nvml, &format!("{name}{version}")));
            Self {
                memory_v1: symbol(nvml, "nvmlDeviceGetMemoryInfo"),
                memory_v2: symbol(nvml, "nvmlDeviceGetMemoryInfo_v2"),
                compute: list("nvmlDeviceGetComputeRunningProcesses"),
                graphics: list("nvmlDeviceGetGraphicsRunningProcesses"),
                mps: list("nvmlDeviceGetMPSComputeRunningProcesses"),
                gpu_instance: symbol(nvml, "nvmlDeviceGetGpuInstanceId"),
                compute_instance: symbol(nvml, "nvmlDeviceGetComputeInstanceId"),
                remapped_rows: symbol(nvml, "nvmlDeviceGetRemappedRows"),
                bar1: symbol(nvml, "nvmlDeviceGetBAR1MemoryInfo"),
                addressing: symbol(nvml, "nvmlDeviceGetAddressingMode"),
                numa_node: symbol(nvml, "nvmlDeviceGetNumaNodeId"),
                conf_state: symbol(nvml, "nvmlSystemGetConfComputeState"),
                conf_sizes: symbol(nvml, "nvmlDeviceGetConfComputeMemSizeInfo"),
                conf_used: symbol(nvml, "nvmlDeviceGetConfComputeProtectedMemoryUsage"),
            }
        }
    }

    /// Where the functions lie that answer for memory and processes.
    pub(super) fn addresses(&self) -> Vec<usize> {
        let v1 = self.memory_v1.map(|f| f as usize);
        let v2 = self.memory_v2.map(|f| f as usize);
        let lists = [self.compute, self.graphics].into_iter().flatten().flatten().map(|f| f as usize);
        v1.into_iter().chain(v2).chain(lists).collect()
    }

    /// One memory reading by this version of the call.
    pub(super) fn memory(&self, device: &Device<'static>, api: MemoryApi) -> Result<Memory, Code> {
        // SAFETY: the handle comes from this library and is used only for the call.
        let handle: Handle = unsafe { device.handle() }.cast();
        match api {
            MemoryApi::V1 => {
                let call = self.memory_v1.ok_or(Code::FUNCTION_NOT_FOUND)?;
                let mut m = MemoryV1::default();
                // SAFETY: `m` is what the call writes to, and outlives it.
                check(unsafe { call(handle, &raw mut m) })?;
                Ok(Memory { total: Bytes(m.total), reserved: None, used: Bytes(m.used), free: Bytes(m.free), api })
            }
            MemoryApi::V2 => {
                let call = self.memory_v2.ok_or(Code::FUNCTION_NOT_FOUND)?;
                let mut m = MemoryV2 { version: MemoryV2::VERSION, ..MemoryV2::default() };
                // SAFETY: as above; `version` tells the library how much it may write.
                check(unsafe { call(handle, &raw mut m) })?;
                Ok(Memory {
                    total: Bytes(m.total),
                    reserved: Some(Bytes(m.reserved)),
                    used: Bytes(m.used),
                    free: Bytes(m.free),
                    api,
                })
            }
        }
    }

    /// One process list by the newest version of the call that this driver knows.
    ///
    /// # Errors
    /// [`Code::FUNCTION_NOT_FOUND`] if it knows none, else the code of the newest that it knows.
    pub(super) fn list(
        &self,
        device: &Device<'static>,
        kind: ListKind,
        buffer: &mut Records,
    ) -> Result<(Vec<Record>, ListApi), ListError> {
        // SAFETY: as in `memory`.
        let handle: Handle = unsafe { device.handle() }.cast();
        let versions = match kind {
            ListKind::Compute => self.compute,
            ListKind::Graphics => self.graphics,
            ListKind::Mps => self.mps,
        };
        for (call, api) in versions.into_iter().zip([ListApi::V3, ListApi::V2, ListApi::V1]) {
            let Some(call) = call else { continue };
            match list_once(handle, call, buffer) {
                Err(ListError::Code(code)) if code.is_missing_call() => {}
                other => return other.map(|records| (records, api)),
            }
        }
        Err(ListError::Code(Code::FUNCTION_NOT_FOUND))
    }

    /// Rows of memory that were replaced by spare ones, which the wrapper does not know.
    pub(super) fn remapped_rows(&self, device: &Device<'static>) -> Result<RemappedRows, Code> {
        let call = self.remapped_rows.ok_or(Code::FUNCTION_NOT_FOUND)?;
        let [mut correctable, mut uncorrectable, mut pending, mut failed] = [0u32; 4];
        // SAFETY: the handle is this library's, and the four numbers outlive the call.
        let code = unsafe {
            call(
                device.handle().cast(),
                &raw mut correctable,
                &raw mut uncorrectable,
                &raw mut pending,
                &raw mut failed,
            )
        };
        check(code)?;
        Ok(RemappedRows { correctable, uncorrectable, pending: pending != 0, failed: failed != 0 })
    }

    /// BAR1 memory. On an H200 this takes 160 µs, twenty times as long as the memory itself.
    pub(super) fn bar1(&self, device: &Device<'static>) -> Result<Bar1, Code> {
        let call = self.bar1.ok_or(Code::FUNCTION_NOT_FOUND)?;
        let mut m = Bar1Memory::default();
        // SAFETY: the handle is this library's, and `m` outlives the call.
        check(unsafe { call(device.handle().cast(), &raw mut m) })?;
        Ok(Bar1 { total: Bytes(m.total), used: Bytes(m.used) })
    }

    /// How the device reaches system memory.
    pub(super) fn addressing(&self, device: &Device<'static>) -> Result<Addressing, Code> {
        let call = self.addressing.ok_or(Code::FUNCTION_NOT_FOUND)?;
        let mut mode = AddressingMode { version: AddressingMode::VERSION, value: 0 };
        // SAFETY: as above; `version` tells the library how much it may write.
        check(unsafe { call(device.handle().cast(), &raw mut mode) })?;
        Ok(match mode.value {
            0 => Addressing::None,
            1 => Addressing::Hmm,
            2 => Addressing::Ats,
            _ => Addressing::Other,
        })
    }

    /// Whether the device's memory is a NUMA node. NVML answers "not supported" where GPUs are none.
    pub(super) fn numa(&self, device: &Device<'static>) -> Result<NumaMemory, Code> {
        let call = self.numa_node.ok_or(Code::FUNCTION_NOT_FOUND)?;
        let mut node = 0;
        // SAFETY: as above; `node` outlives the call.
        match check(unsafe { call(device.handle().cast(), &raw mut node) }) {
            Ok(()) => Ok(NumaMemory::Node(node)),
            Err(code) if code == Code::NOT_SUPPORTED => Ok(NumaMemory::No),
            Err(code) => Err(code),
        }
    }

    /// The machine's state of confidential computing.
    pub(super) fn conf_compute(&self) -> Result<ConfCompute, Code> {
        let call = self.conf_state.ok_or(Code::FUNCTION_NOT_FOUND)?;
        let mut state = ConfState::default();
        // SAFETY: `state` is what the call writes to, and outlives it.
        check(unsafe { call(&raw mut state) })?;
        let environment = match state.environment {
            0 => ConfEnvironment::Unavailable,
            1 => ConfEnvironment::Simulation,
            2 => ConfEnvironment::Production,
            _ => ConfEnvironment::Other,
        };
        Ok(ConfCompute { on: state.feature == 1, environment, developer_tools: state.developer_tools == 1 })
    }

    /// How confidential computing divides the device's memory, and what is used of the protected part.
    pub(super) fn conf_memory(&self, device: &Device<'static>) -> Result<ConfMemory, Code> {
        let call = self.conf_sizes.ok_or(Code::FUNCTION_NOT_FOUND)?;
        let mut sizes = ConfSizes::default();
        // SAFETY: as above.
        check(unsafe { call(device.handle().cast(), &raw mut sizes) })?;
        let protected_used = self.conf_used.and_then(|call| {
            let mut m = MemoryV1::default();
            // SAFETY: as above; the call fills an `nvmlMemory_t`.
            check(unsafe { call(device.handle().cast(), &raw mut m) }).ok()?;
            Some(Bytes(m.used))
        });
        let bytes = |kib: u64| Bytes(kib.saturating_mul(1024));
        Ok(ConfMemory {
            protected: bytes(sizes.protected_kib),
            unprotected: bytes(sizes.unprotected_kib),
            protected_used,
        })
    }

    /// GPU instance and compute instance of a MIG handle.
    pub(super) fn instance(&self, device: &Device<'static>) -> (Option<u32>, Option<u32>) {
        let number = |call: Option<NumberCall>| {
            let mut n = 0;
            // SAFETY: as in `memory`; `n` outlives the call.
            check(unsafe { call?(device.handle().cast(), &raw mut n) }).ok()?;
            Some(n)
        };
        (number(self.gpu_instance), number(self.compute_instance))
    }
}

/// # Safety
/// `T` must be the type of the function with this name.
unsafe fn symbol<T: Copy>(nvml: &'static Nvml, name: &str) -> Option<T> {
    // SAFETY: the caller's promise.
    unsafe { nvml.lib().__library.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// More processes than this on one GPU are not expected at first; the buffer grows.
const FIRST_ROOM: usize = 256;

fn list_once(handle: Handle, call: ListCall, buffer: &mut Records) -> Result<Vec<Record>, ListError> {
    let mut room = FIRST_ROOM;
    for _ in 0..5 {
        let words = buffer.prepare(room);
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        // SAFETY: `words` has room for `count` records of the largest size that any driver writes, and outlives the
        // call.
        match unsafe { call(handle, &raw mut count, words.as_mut_ptr().cast()) } {
            0 => return buffer.read(count as usize).map_err(ListError::Layout),
            code if Code(code) == Code::INSUFFICIENT_SIZE => {
                // Processes may start between two calls: ask for more than it said.
                room = (count as usize).clamp(room, 1 << 16) * 2;
            }
            code => return Err(ListError::Code(Code(code))),
        }
    }
    Err(ListError::Code(Code::INSUFFICIENT_SIZE))
}

fn check(code: u32) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

/// Closes every descriptor but the standard ones. A helper inherits whatever its starter was given (a lock, a pipe of
/// the shell) and would keep it if an NVML call hung.
///
/// To be called first thing in a process of our own, before anything was opened.
pub(super) fn close_inherited_files() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let inherited: Vec<RawFd> =
        open.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect();
    for fd in inherited {
        // The listing had a descriptor too, which is closed by now.
        if std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok() {
            // SAFETY: it is open, and nothing in this process owns it: nothing was opened here yet.
            unsafe { rustix::io::close(fd) };
        }
    }
}
