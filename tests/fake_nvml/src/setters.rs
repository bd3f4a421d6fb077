//! Functions that would change a device. They do nothing and succeed; `calls.log` shows that somebody called them,
//! which a tool that only looks must never do.

use crate::abi::Handle;
use std::ffi::{c_int, c_uint};

nvml! {
    fn nvmlDeviceSetPersistenceMode(device: Handle, _mode: c_uint) of device |_call, _part| Ok(());
    fn nvmlDeviceSetComputeMode(device: Handle, _mode: c_uint) of device |_call, _part| Ok(());
    fn nvmlDeviceSetAccountingMode(device: Handle, _mode: c_uint) of device |_call, _part| Ok(());
    fn nvmlDeviceClearAccountingPids(device: Handle) of device |_call, _part| Ok(());
    fn nvmlDeviceClearEccErrorCounts(device: Handle, _counter: c_int) of device |_call, _part| Ok(());
    fn nvmlDeviceResetGpuLockedClocks(device: Handle) of device |_call, _part| Ok(());
    fn nvmlDeviceSetMigMode(device: Handle, _mode: c_uint, _status: *mut c_uint) of device |_call, _part| Ok(());
}
