//! Which MIG instance each capability file stands for, as the driver tells below `/proc/driver/nvidia`: whoever has one
//! open keeps its instance busy.

use super::handle;
use crate::model::Capability;
use std::{collections::BTreeMap, os::fd::AsFd};

const ROOT: &str = "driver/nvidia/capabilities";

/// By the name of the node as in `DeviceFiles`; empty where no GPU is split.
pub(super) fn read(proc: impl AsFd) -> BTreeMap<String, Capability> {
    let mut found = BTreeMap::new();
    let proc = proc.as_fd();
    for gpu in numbered(proc, ROOT, "gpu") {
        let instances = format!("{ROOT}/gpu{gpu}/mig");
        for gi in numbered(proc, &instances, "gi") {
            let instance = format!("{instances}/gi{gi}");
            let mut note = |file: &str, ci| {
                let node = handle::read(proc, file, 4096).ok().and_then(|text| node(&text));
                found.extend(node.map(|node| (node, Capability { minor: gpu, gi, ci })));
            };
            note(&format!("{instance}/access"), None);
            for ci in numbered(proc, &instance, "ci") {
                note(&format!("{instance}/ci{ci}/access"), Some(ci));
            }
        }
    }
    found
}

/// The numbers of the entries `PREFIXn` of a directory.
fn numbered(proc: std::os::fd::BorrowedFd<'_>, directory: &str, prefix: &str) -> Vec<u32> {
    let Ok(directory) = handle::list(proc, directory) else { return Vec::new() };
    let Ok(entries) = rustix::fs::Dir::new(directory) else { return Vec::new() };
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    entries.flatten().filter_map(|entry| number(entry.file_name().to_str().ok()?)).collect()
}

fn node(access: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(access);
    let minor: u32 = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok())?;
    Some(format!("nvidia-caps/nvidia-cap{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_stands_for_its_instance() {
        let proc = tempfile::tempdir().unwrap();
        for (path, minor) in [("gpu1/mig/gi7", 66), ("gpu1/mig/gi7/ci0", 67), ("gpu1/mig/gi8/ci1", 80)] {
            let directory = proc.path().join(ROOT).join(path);
            std::fs::create_dir_all(&directory).unwrap();
            let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
            std::fs::write(directory.join("access"), text).unwrap();
        }
        let root = std::fs::File::open(proc.path()).unwrap();
        let capability = |gi, ci| Capability { minor: 1, gi, ci };
        let expected = [(66, capability(7, None)), (67, capability(7, Some(0))), (80, capability(8, Some(1)))];
        let named = expected.map(|(minor, stands_for)| (format!("nvidia-caps/nvidia-cap{minor}"), stands_for));
        assert_eq!(read(&root), BTreeMap::from(named));
        assert!(read(std::fs::File::open("/").unwrap()).is_empty());
    }
}
