//! One device as NVML shows it: a handle, and one look through it. Apart from opening, because a slot travels to the
//! thread that reads it and may stay there.

use super::{
    Extras,
    calls::{Call, about_to},
    codes::Code,
    raw::{ListError, Symbols},
    records::{Records, merge},
    settings,
};
use crate::model::{
    AGREEING, Bar1, Bytes, DeviceFacts, DeviceIdentity, DeviceLook, Entry, Gap, ListApi, ListKind, Memory, MemoryApi,
};
use nvml_wrapper::Device;

/// How often a look is tried until the memory before and after the lists is the same.
const ATTEMPTS: u32 = 5;

/// A device with what is needed to read it.
pub(super) struct Slot {
    pub(super) identity: DeviceIdentity,
    /// Why there is no handle, or the handle.
    pub(super) device: Result<Device<'static>, Gap>,
    /// Why its UUID is unknown.
    pub(super) nameless: Option<Gap>,
    /// The machine computes confidentially: what is not supported then may be so for that reason.
    pub(super) confidential: bool,
    /// What the next look reads beside memory and lists.
    pub(super) extras: Extras,
    /// The utilisation was asked for once: from then on it costs nothing.
    knows_utilization: bool,
    symbols: Symbols,
    memory_api: MemoryApi,
    buffer: Records,
}

/// The calmest reading of a look so far.
struct Calm {
    torn: Bytes,
    memory: Memory,
    entries: Option<Vec<Entry>>,
    list_api: Option<ListApi>,
    gaps: Vec<Gap>,
}

impl Slot {
    pub(super) fn new(symbols: Symbols, identity: DeviceIdentity, device: Result<Device<'static>, Gap>) -> Self {
        Self {
            identity,
            device,
            nameless: None,
            confidential: false,
            extras: Extras::default(),
            knows_utilization: false,
            symbols,
            memory_api: MemoryApi::V2,
            buffer: Records::default(),
        }
    }

    /// How the device is set up.
    pub(super) fn facts(&self) -> DeviceFacts {
        settings::of(self.device.as_ref(), &self.identity, &self.symbols, self.confidential)
    }

    /// Memory, lists, memory; if the two memories differ, again, at most five times.
    pub(super) fn look(&mut self) -> DeviceLook {
        let symbols = &self.symbols;
        let mut gaps = Vec::new();
        let device = match &self.device {
            Ok(device) => device,
            Err(gap) => return self.result(None, None, vec![gap.clone()]),
        };
        let index = self.identity.index;
        let mut reading = memory(symbols, device, index, &mut self.memory_api);
        let (mut entries, mut list_api) = (None, None);
        let mut calmest: Option<Calm> = None;
        for _ in 0..ATTEMPTS {
            gaps.clear();
            (entries, list_api) =
                lists(symbols, device, &self.identity, self.confidential, &mut self.buffer, &mut gaps);
            let Ok(first) = reading else { break };
            reading = memory(symbols, device, index, &mut self.memory_api);
            let Ok(then) = reading else { break };
            let torn = Bytes(first.used.0.abs_diff(then.used.0));
            if calmest.as_ref().is_none_or(|calmest| torn < calmest.torn) {
                calmest = Some(Calm { torn, memory: then, entries: entries.take(), list_api, gaps: gaps.clone() });
            }
            if torn == Bytes::ZERO {
                break;
            }
        }
        let mut torn = Bytes::ZERO;
        if let (Ok(_), Some(calm)) = (&reading, calmest) {
            (reading, torn) = (Ok(calm.memory), calm.torn);
            (entries, list_api, gaps) = (calm.entries, calm.list_api, calm.gaps);
            if torn > AGREEING {
                let reason = format!(
                    "its memory changed by {torn} or more during each of {ATTEMPTS} readings: used and listed do not agree"
                );
                gaps.push(Gap::new(self.identity.label(), reason));
            }
        }
        match reading {
            Err(Code::NOT_SUPPORTED) if self.confidential => {
                gaps.push(Gap::new(self.identity.label(), format!("reading the memory: {CONFIDENTIAL}")));
            }
            // GB10 and Jetson: the GPU works in the machine's own memory, which no call divides.
            Err(Code::NOT_SUPPORTED) if entries.is_some() => gaps.push(Gap::new(
                self.identity.label(),
                "it shares the machine's memory and tells no amounts of its own (not supported on this device); what each \
                 process holds is known from the process list alone",
            )),
            Err(code) => gaps.push(
                Gap::new(self.identity.label(), format!("reading the memory: {code}")).because_of(code.trouble()),
            ),
            Ok(_) => {}
        }
        // A hint on who is idle, no more: where it is not known nothing is missing.
        let mut utilization_percent = None;
        if self.extras.utilization || self.knows_utilization {
            about_to(Call::Utilization, Some(index));
            utilization_percent = device.utilization_rates().ok().map(|rates| rates.gpu);
            self.knows_utilization = true;
        }
        let bar1 = if self.extras.bar1 { self.bar1(device, &mut gaps) } else { None };
        let mut look =
            DeviceLook { list_api, utilization_percent, bar1, torn, ..self.result(reading.ok(), entries, gaps) };
        look.without_the_impossible(&self.identity.label());
        look
    }

    fn bar1(&self, device: &Device<'static>, gaps: &mut Vec<Gap>) -> Option<Bar1> {
        about_to(Call::Bar1, Some(self.identity.index));
        match self.symbols.bar1(device) {
            Ok(bar1) => Some(bar1),
            Err(code) => {
                let reason = format!("reading the BAR1 memory: {}", in_words(code, self.confidential));
                gaps.push(Gap::new(self.identity.label(), reason));
                None
            }
        }
    }

    /// What is said of a device that could not be read.
    pub(super) fn unread(&self, reason: impl Into<String>) -> DeviceLook {
        self.result(None, None, vec![Gap::new(self.identity.label(), reason)])
    }

    fn result(&self, memory: Option<Memory>, entries: Option<Vec<Entry>>, gaps: Vec<Gap>) -> DeviceLook {
        DeviceLook { memory, entries, ..DeviceLook::unread(self.identity.uuid.clone(), gaps) }
    }
}

/// What "not supported" may mean while confidential computing is on.
const CONFIDENTIAL: &str = "not supported on this device while confidential computing is on";

fn in_words(code: Code, confidential: bool) -> String {
    if confidential && code == Code::NOT_SUPPORTED { CONFIDENTIAL.into() } else { code.to_string() }
}

/// One memory reading: version 2, or for good version 1 where the driver lacks that.
fn memory(symbols: &Symbols, device: &Device<'static>, index: u32, api: &mut MemoryApi) -> Result<Memory, Code> {
    if *api == MemoryApi::V2 {
        about_to(Call::MemoryV2, Some(index));
        match symbols.memory(device, MemoryApi::V2) {
            Err(code) if code.is_missing_call() => *api = MemoryApi::V1,
            other => return other,
        }
    }
    about_to(Call::MemoryV1, Some(index));
    symbols.memory(device, MemoryApi::V1)
}

/// The three lists as one. `None` if none could be read, or the compute list, the one that matters, failed: half a list
/// would look like "nobody".
fn lists(
    symbols: &Symbols,
    device: &Device<'static>,
    identity: &DeviceIdentity,
    confidential: bool,
    buffer: &mut Records,
    gaps: &mut Vec<Gap>,
) -> (Option<Vec<Entry>>, Option<ListApi>) {
    let mut api = None;
    let mut entries = Vec::new();
    let mut supported = false;
    let mut compute_failed = false;
    for (kind, call, name) in [
        (ListKind::Compute, Call::Compute, "compute"),
        (ListKind::Graphics, Call::Graphics, "graphics"),
        (ListKind::Mps, Call::Mps, "MPS"),
    ] {
        about_to(call, Some(identity.index));
        match symbols.list(device, kind, buffer) {
            Ok((records, version)) => {
                supported = true;
                // The compute list is asked first, and it is the one that matters.
                api = api.or(Some(version));
                merge(&mut entries, kind, &records);
            }
            Err(ListError::Code(code)) if code == Code::NOT_SUPPORTED || code.is_missing_call() => {
                if kind == ListKind::Compute {
                    compute_failed = true;
                    if confidential {
                        gaps.push(Gap::new(
                            identity.label(),
                            format!("reading the {name} process list: {CONFIDENTIAL}"),
                        ));
                    }
                }
            }
            Err(e) => {
                compute_failed |= kind == ListKind::Compute;
                let trouble = if let ListError::Code(code) = e { code.trouble() } else { None };
                let reason = match e {
                    ListError::Code(Code::NO_PERMISSION) if identity.mig_parent => {
                        "it is split into MIG instances, and we may not read its own process lists (`sudo gpuresid` may); \
                         the instances tell theirs"
                            .to_owned()
                    }
                    e => format!("reading the {name} process list: {e}"),
                };
                let gap = Gap::new(identity.label(), reason).because_of(trouble);
                if !gaps.contains(&gap) {
                    gaps.push(gap);
                }
            }
        }
    }
    if gaps.is_empty() && !supported {
        gaps.push(Gap::new(identity.label(), "the driver has no process lists for this device"));
    } else if gaps.is_empty() && compute_failed {
        gaps.push(Gap::new(identity.label(), "the driver has no list of who computes on this device"));
    }
    ((supported && !compute_failed).then_some(entries), api)
}
