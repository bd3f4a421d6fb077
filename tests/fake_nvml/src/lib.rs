//! A `libnvidia-ml.so` for the tests: NVML's C ABI over a ledger of allocations.
//!
//! The directory named by `FAKE_NVML_LEDGER` says what there is (see [`ledger`]) and, in the field `faults` of its
//! `machine.json`, what goes wrong (see [`faults::Fault`]); both may change while a client runs. It also takes what the
//! library writes: `calls.log`, one line a call (`PID FUNCTION DEVICE CODE`, the device `-` where there is none, the
//! code `hang` while a call hangs), and gives it Xid events: lines `DEVICE XID` appended to `xids`.
//!
//! With `FAKE_DEV` set the library keeps the device files there open as the real one does: 3 on every GPU, the control
//! node once and nvidia-uvm twice, all close-on-exec.
#![allow(non_snake_case, reason = "the symbols have NVML's names")]
#![allow(clippy::missing_safety_doc, reason = "the contract of every exported function is NVML's")]

#[path = "../../../src/observe/driver/ledger.rs"]
pub mod ledger;

#[macro_use]
mod abi;
mod call;
mod device;
mod events;
pub mod faults;
mod lists;
mod mig;
mod setters;
mod system;
