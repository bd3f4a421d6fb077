//! How a device is set up: persistence, compute mode, MIG, ECC, memory that waits for a reset. Getters only, and apart
//! from the looks, because nothing but `doctor` asks for it. What a device or a driver does not know is absent without
//! a gap; what could not be read is a gap.

use super::{
    calls::{Call, about_to},
    codes::Code,
    raw::Symbols,
};
use crate::model::{ComputeMode, DeviceFacts, DeviceIdentity, Gap, NowAndNext};
use nvml_wrapper::{Device, enum_wrappers::device::ComputeMode as Mode, error::NvmlError};

/// The facts of one GPU.
pub(super) fn of(
    device: Result<&Device<'static>, &Gap>,
    identity: &DeviceIdentity,
    symbols: &Symbols,
    confidential: bool,
) -> DeviceFacts {
    let mut facts = DeviceFacts::unknown(identity.uuid.clone(), identity.index);
    let device = match device {
        Ok(device) => device,
        Err(gap) => {
            facts.gaps.push(gap.clone());
            return facts;
        }
    };
    about_to(Call::Settings, Some(identity.index));
    let gaps = &mut facts.gaps;
    facts.persistence = known("the persistence mode", device.is_in_persistent_mode(), identity, gaps);
    facts.compute_mode = known("the compute mode", device.compute_mode(), identity, gaps).map(in_our_words);
    facts.mig = known("the MIG mode", device.mig_mode(), identity, gaps)
        .map(|mode| NowAndNext { now: mode.current == 1, next: mode.pending == 1 });
    facts.ecc = known("the ECC mode", device.is_ecc_enabled(), identity, gaps)
        .map(|mode| NowAndNext { now: mode.currently_enabled, next: mode.pending_enabled });
    facts.pages_pending = known("the retired pages", device.are_pages_pending_retired(), identity, gaps);
    facts.remapped_rows = match symbols.remapped_rows(device) {
        Ok(rows) => Some(rows),
        Err(code) => refused("the remapped rows", code, identity, gaps),
    };
    if confidential {
        facts.conf_memory = match symbols.conf_memory(device) {
            Ok(memory) => Some(memory),
            Err(code) => refused("the protected memory", code, identity, gaps),
        };
    }
    facts
}

fn known<T>(what: &str, answer: Result<T, NvmlError>, identity: &DeviceIdentity, gaps: &mut Vec<Gap>) -> Option<T> {
    answer.map_or_else(|error| refused(what, Code::from(&error), identity, gaps), Some)
}

fn refused<T>(what: &str, code: Code, identity: &DeviceIdentity, gaps: &mut Vec<Gap>) -> Option<T> {
    if code != Code::NOT_SUPPORTED && !code.is_missing_call() {
        gaps.push(Gap::new(identity.label(), format!("reading {what}: {code}")));
    }
    None
}

fn in_our_words(mode: Mode) -> ComputeMode {
    match mode {
        Mode::Default => ComputeMode::Default,
        // Today's drivers take the old thread mode for this one.
        Mode::ExclusiveThread | Mode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
        Mode::Prohibited => ComputeMode::Prohibited,
    }
}
