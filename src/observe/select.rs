//! Which devices are meant: `--gpu` in all the forms in which people know a GPU, and `--visible` as CUDA would read
//! `CUDA_VISIBLE_DEVICES`. A device that cannot be found is an error that lists what there is, never an empty answer.

use super::driver::Inventory;
use crate::{
    error::hinted,
    model::{DeviceIdentity, Uuid},
};

/// What the user asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// `--gpu`: index, UUID prefix or PCI id, one each. Empty, or `all`: all devices.
    pub selectors: Vec<String>,
    /// The environment variable that they come from, where they were not typed.
    pub from: Option<&'static str>,
    /// `--visible`: the devices that a CUDA program started now would see.
    pub visible: Option<Visible>,
}

/// The environment that CUDA goes by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visible {
    /// `CUDA_VISIBLE_DEVICES`; `None`: unset, which means all.
    pub devices: Option<String>,
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`: CUDA counts as NVML does.
    pub pci_order: bool,
}

impl Visible {
    /// As this process would see it.
    pub fn from_env() -> Self {
        Self {
            devices: std::env::var_os("CUDA_VISIBLE_DEVICES").map(|v| v.to_string_lossy().into_owned()),
            pci_order: std::env::var_os("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID"),
        }
    }
}

impl Selection {
    /// The selected devices in the order of the inventory. A GPU that is split brings its MIG instances along, because
    /// memory is read of them and not of the parent.
    ///
    /// # Errors
    /// If a selector fits no device or several, or nothing is visible.
    pub fn resolve(&self, inventory: &Inventory) -> anyhow::Result<Vec<Uuid>> {
        let devices = &inventory.devices;
        let mut wanted: Vec<&DeviceIdentity> = Vec::new();
        if let Some(visible) = &self.visible {
            wanted.extend(visible.resolve(devices)?);
        }
        for selector in &self.selectors {
            if !is_all(selector) {
                wanted.push(find(selector, devices, self.from)?);
            }
        }
        let named = !self.selectors.is_empty() && !self.selectors.iter().any(|s| is_all(s));
        let all = !named && self.visible.is_none();
        let is_wanted = |d: &DeviceIdentity| {
            all || wanted.iter().any(|w| w.uuid == d.uuid || d.mig.as_ref().is_some_and(|mig| mig.parent == w.uuid))
        };
        Ok(devices.iter().filter(|d| is_wanted(d)).map(|d| d.uuid.clone()).collect())
    }
}

fn is_all(selector: &str) -> bool {
    selector.trim().eq_ignore_ascii_case("all")
}

/// The one device that a selector means.
fn find<'a>(selector: &str, devices: &'a [DeviceIdentity], from: Option<&str>) -> anyhow::Result<&'a DeviceIdentity> {
    let from = from.map(|variable| format!(", which {variable} names")).unwrap_or_default();
    let text = selector.trim();
    let fitting: Vec<_> = devices.iter().filter(|device| fits(text, device)).collect();
    match fitting.as_slice() {
        [one] => Ok(one),
        [] => Err(hinted(format!("no GPU is called `{text}`{from}"), there_are(devices))),
        several => match several.iter().find(|d| d.uuid.0.eq_ignore_ascii_case(text)) {
            Some(exact) => Ok(exact),
            None => Err(hinted(
                format!("`{text}`{from} fits {} devices", several.len()),
                format!("write more of the UUID. {}", there_are(devices)),
            )),
        },
    }
}

fn fits(text: &str, device: &DeviceIdentity) -> bool {
    if let Ok(index) = text.parse::<u32>() {
        return device.index == index && device.mig.is_none();
    }
    if starts_with_ignoring_case(text, "GPU-") || starts_with_ignoring_case(text, "MIG-") {
        return starts_with_ignoring_case(&device.uuid.0, text) && text.len() > "GPU-".len();
    }
    // `MIG 0/7/0` or `0/7/0`, as the tool itself names an instance.
    if text.contains('/') {
        return device.mig.is_some() && device.label().trim_start_matches("MIG ") == text.trim_start_matches("MIG ");
    }
    match (pci_id(text), device.pci.as_deref().and_then(pci_id)) {
        (Some(wanted), Some(has)) => wanted == has && device.mig.is_none(),
        _ => device.uuid.0 == text,
    }
}

fn starts_with_ignoring_case(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Domain, bus, device and function of `00000000:0A:00.0`, `0000:0a:00.0`, `0a:00.0` or `0a:00`.
fn pci_id(text: &str) -> Option<[u32; 4]> {
    let (rest, function) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<&str> = rest.split(':').collect();
    let (domain, bus, device) = match parts.as_slice() {
        [bus, device] => ("0", *bus, *device),
        [domain, bus, device] => (*domain, *bus, *device),
        _ => return None,
    };
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    Some([hex(domain)?, hex(bus)?, hex(device)?, hex(function)?])
}

fn there_are(devices: &[DeviceIdentity]) -> String {
    if devices.is_empty() {
        return "the driver lists no GPU at all".into();
    }
    let mut text = String::from("there are:");
    for device in devices {
        let name = device.name.as_deref().unwrap_or("unknown model");
        let pci = device.pci.as_ref().map(|pci| format!("  {pci}")).unwrap_or_default();
        text.push_str(&format!("\n  {}  {name}  {}{pci}", device.label(), device.uuid));
    }
    text
}

impl Visible {
    /// The devices of the list, which CUDA cuts at the first entry that it cannot resolve.
    fn resolve<'a>(&self, devices: &'a [DeviceIdentity]) -> anyhow::Result<Vec<&'a DeviceIdentity>> {
        let Some(list) = &self.devices else { return Ok(devices.iter().collect()) };
        let mut found: Vec<&DeviceIdentity> = Vec::new();
        let mut by_index = None;
        for entry in list.split(',').map(str::trim) {
            let is_index = entry.parse::<u32>().is_ok();
            // CUDA takes numbers or UUIDs, and stops where the kind changes.
            if *by_index.get_or_insert(is_index) != is_index {
                break;
            }
            if is_index {
                self.check_order(devices)?;
            }
            match devices.iter().filter(|device| is_visible_as(entry, device)).collect::<Vec<_>>().as_slice() {
                [one] => found.push(one),
                _ => break,
            }
        }
        if found.is_empty() {
            return Err(hinted(
                match list.is_empty() {
                    true => "CUDA_VISIBLE_DEVICES is set but empty, so a program would see no GPU".into(),
                    false => format!("CUDA_VISIBLE_DEVICES is `{list}`, so a program would see no GPU"),
                },
                format!("leave out --visible, or set CUDA_VISIBLE_DEVICES; {}", there_are(devices)),
            ));
        }
        Ok(found)
    }

    /// By itself CUDA counts the fastest card first. Among cards of one model that is the order of the bus; among
    /// different ones the number means another card than here.
    fn check_order(&self, devices: &[DeviceIdentity]) -> anyhow::Result<()> {
        let mut models = devices.iter().filter(|d| d.mig.is_none()).map(|d| d.name.as_deref());
        let first = models.next().flatten();
        if self.pci_order || models.all(|model| model.is_some() && model == first) {
            return Ok(());
        }
        Err(hinted(
            "the numbers in CUDA_VISIBLE_DEVICES cannot be read: there are GPUs of different models, and CUDA counts \
             them in another order",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID for your programs and gpuresid, or use UUIDs in CUDA_VISIBLE_DEVICES",
        ))
    }
}

fn is_visible_as(entry: &str, device: &DeviceIdentity) -> bool {
    match entry.parse::<u32>() {
        Ok(index) => device.index == index && device.mig.is_none(),
        Err(_) => (entry.starts_with("GPU-") || entry.starts_with("MIG-")) && device.uuid.0.starts_with(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DriverInfo, DriverSource, MigIdentity};

    fn gpu(index: u32, uuid: &str, name: &str, pci: &str) -> DeviceIdentity {
        DeviceIdentity {
            index,
            uuid: Uuid(uuid.into()),
            name: Some(name.into()),
            pci: Some(pci.into()),
            minor: Some(index),
            mig: None,
            mig_parent: false,
            addressing: None,
            numa: None,
        }
    }

    fn inventory(devices: Vec<DeviceIdentity>) -> Inventory {
        let driver = DriverInfo {
            source: DriverSource::Nvml,
            driver_version: None,
            nvml_version: None,
            cuda_version: None,
            library: None,
            interposed: None,
        };
        Inventory { driver, devices, gaps: Vec::new() }
    }

    fn three() -> Inventory {
        inventory(vec![
            gpu(0, "GPU-aaaa1111", "NVIDIA H200", "00000000:0A:00.0"),
            gpu(1, "GPU-aaaa2222", "NVIDIA H200", "00000000:1B:00.0"),
            gpu(2, "GPU-bbbb3333", "NVIDIA H200", "00000001:0A:00.0"),
        ])
    }

    fn split() -> Inventory {
        let parent = DeviceIdentity { mig_parent: true, ..gpu(0, "GPU-aaaa1111", "NVIDIA H200", "00000000:0A:00.0") };
        let instance = |uuid: &str, gi| DeviceIdentity {
            mig: Some(MigIdentity { parent: parent.uuid.clone(), gi: Some(gi), ci: Some(0) }),
            mig_parent: false,
            uuid: Uuid(uuid.into()),
            ..parent.clone()
        };
        let instances = [instance("MIG-1111", 7), instance("MIG-2222", 8)];
        let mut devices = vec![parent];
        devices.extend(instances);
        devices.push(gpu(1, "GPU-cccc", "NVIDIA H200", "00000000:1B:00.0"));
        inventory(devices)
    }

    fn uuids(result: anyhow::Result<Vec<Uuid>>) -> Result<String, String> {
        result
            .map(|found| found.into_iter().map(|u| u.0).collect::<Vec<_>>().join(" "))
            .map_err(|error| crate::error::display(&error))
    }

    fn select(inventory: &Inventory, selectors: &[&str]) -> Result<String, String> {
        let selectors = selectors.iter().map(|s| (*s).to_string()).collect();
        uuids(Selection { selectors, from: None, visible: None }.resolve(inventory))
    }

    fn visible(inventory: &Inventory, list: Option<&str>, pci_order: bool) -> Result<String, String> {
        let visible = Some(Visible { devices: list.map(Into::into), pci_order });
        uuids(Selection { selectors: Vec::new(), from: None, visible }.resolve(inventory))
    }

    #[test]
    fn a_gpu_is_known_by_number_uuid_and_pci_id() {
        let three = three();
        for (selector, uuid) in [
            ("0", "GPU-aaaa1111"),
            (" 2 ", "GPU-bbbb3333"),
            ("GPU-b", "GPU-bbbb3333"),
            ("gpu-AAAA2", "GPU-aaaa2222"),
            ("00000000:0A:00.0", "GPU-aaaa1111"),
            ("0000:0a:00.0", "GPU-aaaa1111"),
            ("0a:00.0", "GPU-aaaa1111"),
            ("a:0", "GPU-aaaa1111"),
            ("1:0a:00.0", "GPU-bbbb3333"),
            ("1b:00", "GPU-aaaa2222"),
        ] {
            assert_eq!(select(&three, &[selector]), Ok(uuid.into()), "{selector}");
        }
        assert_eq!(select(&three, &[]), Ok("GPU-aaaa1111 GPU-aaaa2222 GPU-bbbb3333".into()));
        assert_eq!(select(&three, &["2", "0", "GPU-b"]), Ok("GPU-aaaa1111 GPU-bbbb3333".into()));
    }

    #[test]
    fn an_unknown_gpu_lists_what_there_is() {
        let list = "there are:\n  GPU 0  NVIDIA H200  GPU-aaaa1111  00000000:0A:00.0\
                    \n  GPU 1  NVIDIA H200  GPU-aaaa2222  00000000:1B:00.0\
                    \n  GPU 2  NVIDIA H200  GPU-bbbb3333  00000001:0A:00.0\n";
        for selector in ["3", "-1", "GPU-", "GPU-x", "MIG-1", "0b:00.0", "h200", "", "1.5"] {
            assert_eq!(
                select(&three(), &[selector]),
                Err(format!("error: no GPU is called `{selector}`\n\nhint: {list}"))
            );
        }
        assert_eq!(
            select(&three(), &["GPU-aaaa"]),
            Err(format!("error: `GPU-aaaa` fits 2 devices\n\nhint: write more of the UUID. {list}"))
        );
        assert_eq!(
            select(&inventory(Vec::new()), &["0"]),
            Err("error: no GPU is called `0`\n\nhint: the driver lists no GPU at all\n".into())
        );
    }

    #[test]
    fn a_split_gpu_brings_its_instances_and_an_instance_stands_alone() {
        assert_eq!(select(&split(), &["0"]), Ok("GPU-aaaa1111 MIG-1111 MIG-2222".into()));
        assert_eq!(select(&split(), &["0a:00.0"]), Ok("GPU-aaaa1111 MIG-1111 MIG-2222".into()));
        for selector in ["MIG-2", "MIG 0/8/0", "0/8/0"] {
            assert_eq!(select(&split(), &[selector]), Ok("MIG-2222".into()), "{selector}");
        }
    }

    #[test]
    fn visible_reads_the_list_as_cuda_does() {
        let three = three();
        let all = "GPU-aaaa1111 GPU-aaaa2222 GPU-bbbb3333";
        for (list, found) in [
            (None, all),
            (Some("1"), "GPU-aaaa2222"),
            (Some("2, 0"), "GPU-aaaa1111 GPU-bbbb3333"),
            (Some("0,7,1"), "GPU-aaaa1111"),
            (Some("0,-1,1"), "GPU-aaaa1111"),
            (Some("GPU-b,GPU-aaaa1"), "GPU-aaaa1111 GPU-bbbb3333"),
            (Some("GPU-b,GPU-aaaa,GPU-aaaa1"), "GPU-bbbb3333"),
            (Some("0,GPU-b"), "GPU-aaaa1111"),
        ] {
            assert_eq!(visible(&three, list, false), Ok(found.into()), "{list:?}");
        }
        for list in ["", "-1", "7,0", "NoDevFiles", "GPU-x,GPU-b"] {
            let message = visible(&three, Some(list), false).unwrap_err();
            let is = if list.is_empty() { "set but empty".into() } else { format!("`{list}`") };
            let start = format!("error: CUDA_VISIBLE_DEVICES is {is}, so a program would see no GPU\n\nhint: leave");
            assert!(message.starts_with(&start), "{message}");
        }
    }

    #[test]
    fn numbers_on_mixed_models_are_refused_unless_cuda_counts_by_the_bus() {
        let mut mixed = three();
        mixed.devices[2].name = Some("NVIDIA T4".into());
        assert!(visible(&mixed, Some("2"), false).unwrap_err().contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
        assert_eq!(visible(&mixed, Some("2"), true), Ok("GPU-bbbb3333".into()));
        assert_eq!(visible(&mixed, Some("GPU-b"), false), Ok("GPU-bbbb3333".into()));
        mixed.devices[2].name = None;
        assert!(visible(&mixed, Some("2"), false).is_err());
    }

    #[test]
    fn visible_mig_instances() {
        assert_eq!(visible(&split(), Some("MIG-1111"), false), Ok("MIG-1111".into()));
        assert_eq!(visible(&split(), Some("0"), false), Ok("GPU-aaaa1111 MIG-1111 MIG-2222".into()));
    }
}
