//! `CUDA_VISIBLE_DEVICES` as CUDA reads it: numbers or UUIDs, cut without a word at the first entry that fits nothing.

use crate::model::DeviceIdentity;

/// What a value comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Visible {
    /// A program sees nothing.
    Nothing,
    /// All that it names.
    All(usize),
    /// Only the first ones; the entry at which CUDA stops, and why.
    Cut {
        /// How many before it.
        seen: usize,
        /// The entry.
        at: String,
        /// Why CUDA stops there.
        why: Why,
    },
    /// Without a driver only its form could be looked at.
    FormOnly,
}

/// Why CUDA stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Numbers and UUIDs are mixed.
    Mix,
    /// No device, or more than one, is called so.
    Unknown,
}

/// Reads the value. `devices`: `None` where the driver does not answer.
pub(super) fn read(value: &str, devices: Option<&[DeviceIdentity]>) -> Visible {
    let mut by_number = None;
    let mut seen = 0;
    let mut named: Vec<String> = Vec::new();
    let entries: Vec<&str> = value.split(',').map(str::trim).collect();
    for entry in &entries {
        let is_number = number(entry).is_some();
        let cut = |why| Visible::Cut { seen, at: (*entry).to_string(), why };
        if seen > 0 && by_number != Some(is_number) && !entry.is_empty() {
            return cut(Why::Mix);
        }
        by_number = Some(is_number);
        let plausible = number(entry).is_some_and(|n| n >= 0) || entry.starts_with("GPU-") || entry.starts_with("MIG-");
        let there = match devices {
            Some(devices) => plausible && devices.iter().filter(|device| is_called(entry, device)).count() == 1,
            None => plausible,
        };
        if !there {
            return if seen == 0 { Visible::Nothing } else { cut(Why::Unknown) };
        }
        // One that is named twice makes the whole list void.
        let name = number(entry).map_or_else(|| (*entry).into(), |n| n.to_string());
        if named.contains(&name) {
            return Visible::Nothing;
        }
        named.push(name);
        seen += 1;
    }
    if devices.is_none() { Visible::FormOnly } else { Visible::All(seen) }
}

/// The number that an entry begins with: as CUDA reads it, `1x` is 1.
fn number(entry: &str) -> Option<i64> {
    let digits = entry.strip_prefix(['-', '+']).unwrap_or(entry);
    let rest = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    entry.strip_suffix(rest)?.parse().ok()
}

fn is_called(entry: &str, device: &DeviceIdentity) -> bool {
    match number(entry) {
        Some(number) => device.mig.is_none() && i64::from(device.index) == number,
        None => device.uuid.0.starts_with(entry),
    }
}

/// Numbers mean other cards for CUDA than for NVML: the fastest comes first unless told otherwise.
pub(super) fn numbers_are_ambiguous(value: &str, order: Option<&str>, devices: &[DeviceIdentity]) -> bool {
    let numbers = value.split(',').any(|entry| number(entry.trim()).is_some());
    let mut models = devices.iter().filter(|d| d.mig.is_none()).map(|d| d.name.as_deref());
    let first = models.next().flatten();
    numbers && order != Some("PCI_BUS_ID") && !models.all(|model| model.is_some() && model == first)
}
