//! NVML's numbers and records, and the only places that write through a client's pointers.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};

/// A device: opaque to the client. See [`crate::call::Part`] for what is in it.
pub(crate) type Handle = *mut c_void;
/// What a function says when it fails.
pub(crate) type Code = c_uint;
/// The outcome of a function's body.
pub(crate) type Outcome = Result<(), Code>;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const UNINITIALIZED: Code = 1;
pub(crate) const INVALID_ARGUMENT: Code = 2;
pub(crate) const NOT_SUPPORTED: Code = 3;
pub(crate) const NO_PERMISSION: Code = 4;
pub(crate) const NOT_FOUND: Code = 6;
pub(crate) const INSUFFICIENT_SIZE: Code = 7;
pub(crate) const DRIVER_NOT_LOADED: Code = 9;
pub(crate) const TIMEOUT: Code = 10;
pub(crate) const ARGUMENT_VERSION_MISMATCH: Code = 25;
pub(crate) const UNKNOWN: Code = 999;

/// `nvmlMemory_t`.
#[repr(C)]
pub(crate) struct MemoryV1 {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

impl MemoryV2 {
    /// What a client must put into `version`.
    pub(crate) const VERSION: c_uint = size_of::<Self>() as c_uint | 2 << 24;
}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) device_id: c_uint,
    pub(crate) subsystem_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

/// `nvmlDeviceAddressingMode_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AddressingMode {
    pub(crate) version: c_uint,
    pub(crate) value: c_uint,
}

impl AddressingMode {
    /// What a client must put into `version`.
    pub(crate) const VERSION: c_uint = size_of::<Self>() as c_uint | 1 << 24;
}

/// `nvmlConfComputeSystemState_t`.
#[repr(C)]
pub(crate) struct ConfState {
    pub(crate) environment: c_uint,
    pub(crate) feature: c_uint,
    pub(crate) developer_tools: c_uint,
}

/// `nvmlConfComputeMemSizeInfo_t`.
#[repr(C)]
pub(crate) struct ConfSizes {
    pub(crate) protected_kib: c_ulonglong,
    pub(crate) unprotected_kib: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

/// `nvmlEventData_t`.
#[repr(C)]
pub(crate) struct EventData {
    pub(crate) device: Handle,
    pub(crate) event_type: c_ulonglong,
    pub(crate) event_data: c_ulonglong,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

/// Writes a value where the client asked for it.
pub(crate) fn put<T>(at: *mut T, value: T) -> Outcome {
    if at.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: NVML's contract: a pointer that is not null points to room for one value of this type.
    unsafe { at.write(value) };
    Ok(())
}

/// Reads a value that the client prepared.
pub(crate) fn get<T: Copy>(at: *const T) -> Result<T, Code> {
    if at.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as in `put`.
    Ok(unsafe { at.read() })
}

/// Writes a text with its closing zero.
pub(crate) fn put_text(at: *mut c_char, length: c_uint, text: &str) -> Outcome {
    if at.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: NVML's contract: `length` bytes are there; the text and its zero fit, as was just checked.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), at, text.len());
        at.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a record's raw bytes as element `index` of an array whose elements are as large as the record.
pub(crate) fn put_record(array: *mut c_void, index: usize, record: &[u8]) {
    // SAFETY: the caller has checked that the client's array has room for this element.
    unsafe {
        std::ptr::copy_nonoverlapping(record.as_ptr(), array.cast::<u8>().add(index * record.len()), record.len())
    }
}

/// Reads a C string.
pub(crate) fn text_at(at: *const c_char) -> Result<String, Code> {
    if at.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: NVML's contract: a string argument ends with a zero.
    Ok(unsafe { std::ffi::CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

/// Exports functions that ask for nothing of a device or (after `of`) something of one.
macro_rules! nvml {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) of $device:tt |$call:ident, $part:ident| $body:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of one device.")]
        #[allow(unused_parens, reason = "a device that is no argument stands in parentheses")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::abi::Code {
            $crate::call::answer_for(stringify!($name), $device, |$call, $part| $body)
        }
    )*};
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$call:ident| $body:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::abi::Code {
            $crate::call::answer(stringify!($name), |$call| $body)
        }
    )*};
}
