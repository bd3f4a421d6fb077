//! Xid events: what the driver says about a GPU in trouble. Their own thread waits for them, because NVML tells them
//! only to somebody who waits.

use super::{
    calls::{Call, about_to, set_name},
    codes::Code,
};
use crate::model::{DeviceEvent, DeviceIdentity, Gap, Uuid};
use nvml_wrapper::{Device, EventSet, Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError};
use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

/// Events that were seen and not yet taken.
#[derive(Debug)]
pub(super) struct Events {
    seen: Receiver<DeviceEvent>,
}

impl Events {
    /// Watches these devices. Those that cannot be watched get a gap; `None` if none can.
    pub(super) fn watch(
        library: &'static Nvml,
        devices: Vec<(&Device<'static>, &DeviceIdentity)>,
        gaps: &mut Vec<Gap>,
    ) -> Option<Self> {
        // Dropping a set calls this symbol and panics without it.
        library.lib().nvmlEventSetFree.as_ref().ok()?;
        let set = register(library, devices, gaps)?;
        let (tell, seen) = mpsc::channel();
        let watching = thread::Builder::new().spawn(move || wait(&set, &tell));
        match watching {
            Ok(_) => Some(Self { seen }),
            Err(e) => {
                gaps.push(Gap::new("Xid events", format!("no thread could be started for them: {e}")));
                None
            }
        }
    }

    /// What was seen since the last call.
    pub(super) fn take(&self) -> Vec<DeviceEvent> {
        self.seen.try_iter().collect()
    }
}

/// One set for all devices. Registering uses the set up when a device refuses, so then all of it starts again without
/// that device.
fn register(
    library: &'static Nvml,
    mut devices: Vec<(&Device<'static>, &DeviceIdentity)>,
    gaps: &mut Vec<Gap>,
) -> Option<EventSet<'static>> {
    'set: while !devices.is_empty() {
        about_to(Call::Events, None);
        let mut set = match library.create_event_set() {
            Ok(set) => set,
            Err(e) => {
                gaps.push(Gap::new("Xid events", format!("they cannot be watched: {}", Code::from(&e))));
                return None;
            }
        };
        for (place, (device, identity)) in devices.iter().enumerate() {
            about_to(Call::Events, Some(identity.index));
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(same) => set = same,
                Err(e) => {
                    let code = Code::from(&e.error);
                    // A device without events has none to miss.
                    if code != Code::NOT_SUPPORTED {
                        gaps.push(Gap::new(identity.label(), format!("Xid events cannot be watched: {code}")));
                    }
                    devices.remove(place);
                    continue 'set;
                }
            }
        }
        return Some(set);
    }
    None
}

/// Waits until nobody listens any more, or NVML refuses for good.
fn wait(set: &EventSet<'static>, tell: &Sender<DeviceEvent>) {
    set_name("gpuresid-xid");
    let mut refusals = 0;
    while refusals < 10 {
        match set.wait(1000) {
            Ok(event) => {
                refusals = 0;
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => xid,
                    // 999 is NVML's own number for "unknown".
                    Some(XidError::Unknown) => 999,
                    None => continue,
                };
                let uuid = event.device.uuid().ok().map(Uuid);
                if tell.send(DeviceEvent { at_ms: 0, uuid, xid }).is_err() {
                    return;
                }
            }
            Err(NvmlError::Timeout) => refusals = 0,
            Err(_) => {
                refusals += 1;
                // One lost GPU makes the whole wait fail at once: not to spin on it.
                thread::sleep(Duration::from_secs(1));
            }
        }
    }
}
