//! MIG: instances behave as devices of their own.

use crate::{
    abi::{self, Handle, put},
    call::Part,
};
use std::ffi::c_uint;

/// The most instances that a GPU can have.
const MOST: c_uint = 7;

nvml! {
    fn nvmlDeviceGetMigMode(device: Handle, current: *mut c_uint, pending: *mut c_uint) of device |call, part| {
        let on = c_uint::from(!call.gpu(part)?.mig.is_empty());
        put(current, on)?;
        put(pending, call.facts(part).mig_next.unwrap_or(on))
    };
    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is: *mut c_uint) of device |_call, part| {
        put(is, c_uint::from(part.instance.is_some()))
    };
    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: *mut c_uint) of device |call, part| {
        put(count, if call.gpu(part)?.mig.is_empty() { 0 } else { MOST })
    };
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: c_uint, mig: *mut Handle) of device |call, part| {
        let index = index as usize;
        call.gpu(part)?.mig.get(index).ok_or(abi::NOT_FOUND)?;
        put(mig, Part { gpu: part.gpu, instance: Some(index) }.handle())
    };
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: Handle, device: *mut Handle) of mig |_call, part| {
        part.instance.ok_or(abi::INVALID_ARGUMENT)?;
        put(device, Part::whole(part.gpu).handle())
    };
    fn nvmlDeviceGetGpuInstanceId(device: Handle, id: *mut c_uint) of device |call, part| {
        put(id, call.instance(part)?.ok_or(abi::INVALID_ARGUMENT)?.gi)
    };
    fn nvmlDeviceGetComputeInstanceId(device: Handle, id: *mut c_uint) of device |call, part| {
        put(id, call.instance(part)?.ok_or(abi::INVALID_ARGUMENT)?.ci)
    };
}
