//! Which open file is an NVIDIA node. Apart from the scan because there are two answers: the device number where nodes
//! are real, the path where `--dev` names a directory of stand-ins.

use super::handle;
use procfs::{Devices, FromRead};
use rustix::fs::{CWD, FileType, StatxFlags};
use std::{
    collections::BTreeMap,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

/// NVIDIA's fixed character device number: GPUs, the control node and the display node.
const NVIDIA: u32 = 195;

/// The number of graphics nodes of all makers.
const GRAPHICS: u32 = 226;
/// NVIDIA's number as a maker of PCI devices.
const NVIDIA_PCI: &str = "0x10de";

/// How nodes are recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nodes {
    how: How,
    /// The graphics nodes of NVIDIA's cards (`renderD128`, `card1`), each with its minor number. Those of other makers
    /// are none of ours.
    graphics: BTreeMap<String, u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum How {
    /// Real nodes: a file with a telling name anywhere (a container may have its nodes elsewhere), and then its device
    /// number decides. Nodes that somebody made under a name of his own stay unseen.
    ByNumber {
        /// The number of nvidia-uvm, which the kernel hands out when the module is loaded.
        uvm: Option<u32>,
        /// That of the capability files.
        caps: Option<u32>,
    },
    /// Plain files below this path, which ends in a slash.
    ByPath(Vec<u8>),
}

impl Nodes {
    /// Read anew for every scan: nvidia-uvm may be loaded by the very command that is checked.
    pub(super) fn read(root: &OwnedFd, dev: &Path, sys: &Path) -> Self {
        Self { how: How::read(root, dev), graphics: graphics(sys) }
    }

    /// The graphics node of an NVIDIA card that this path ends in, and its minor number.
    fn card(&self, path: &[u8]) -> Option<(String, u32)> {
        let (directory, name) = path.split_at(path.iter().rposition(|b| *b == b'/')?);
        let name = std::str::from_utf8(name.get(1..)?).ok()?;
        let minor = self.graphics.get(name)?;
        (directory == b"dri" || directory.ends_with(b"/dri")).then(|| (format!("dri/{name}"), *minor))
    }

    /// The node's name without `/dev/` if the link leads to one. `device` gives the number of a character device
    /// behind the link; it is asked only for telling names.
    pub(super) fn name(&self, link: &[u8], device: impl FnOnce() -> Option<(u32, u32)>) -> Option<String> {
        if !link.starts_with(b"/") {
            return None;
        }
        // A node that was removed and made again (udev, nvidia-modprobe) is open as a deleted file.
        let link = link.strip_suffix(b" (deleted)").unwrap_or(link);
        match &self.how {
            How::ByPath(prefix) => {
                let name = link.strip_prefix(prefix.as_slice())?;
                known(name).or_else(|| self.card(name).map(|(node, _)| node))
            }
            How::ByNumber { uvm, caps } => {
                if let Some((node, minor)) = self.card(link) {
                    return (device()? == (GRAPHICS, minor)).then_some(node);
                }
                let name = link.rsplit(|b| *b == b'/').next().filter(|n| n.starts_with(b"nvidia") || *n == b"dxg")?;
                match device()? {
                    (NVIDIA, 255) => Some("nvidiactl".into()),
                    (NVIDIA, 254) => Some("nvidia-modeset".into()),
                    (NVIDIA, gpu) => Some(format!("nvidia{gpu}")),
                    (major, 0) if Some(major) == *uvm => Some("nvidia-uvm".into()),
                    (major, 1) if Some(major) == *uvm => Some("nvidia-uvm-tools".into()),
                    (major, cap) if Some(major) == *caps => Some(format!("nvidia-caps/nvidia-cap{cap}")),
                    _ if uvm.is_none() && name == b"nvidia-uvm" => Some("nvidia-uvm".into()),
                    _ if name == b"dxg" => Some("dxg".into()),
                    _ => None,
                }
            }
        }
    }
}

impl How {
    fn read(root: &OwnedFd, dev: &Path) -> Self {
        if dev != Path::new("/dev") && !has_real_nodes(dev) {
            let dev = std::fs::canonicalize(dev).unwrap_or_else(|_| dev.to_owned());
            let mut prefix = dev.as_os_str().as_bytes().to_vec();
            prefix.push(b'/');
            return Self::ByPath(prefix);
        }
        let devices =
            handle::read(root, "devices", 1 << 20).ok().and_then(|text| Devices::from_read(text.as_slice()).ok());
        let number = |name: &str| {
            devices.as_ref().and_then(|d| d.char_devices.iter().find(|d| d.name == name)).map(|device| device.major)
        };
        Self::ByNumber { uvm: number("nvidia-uvm"), caps: number("nvidia-caps") }
    }
}

/// The graphics nodes of NVIDIA's cards, as the kernel's own tree tells them.
fn graphics(sys: &Path) -> BTreeMap<String, u32> {
    let nodes = std::fs::read_dir(sys.join("class/drm")).into_iter().flatten().flatten();
    let of_nvidia = |node: std::fs::DirEntry| {
        let name = node.file_name().into_string().ok().filter(|name| is_graphics(name))?;
        let text = |file: &str| std::fs::read_to_string(node.path().join(file)).ok();
        let minor = text("dev")?.trim().split_once(':')?.1.parse().ok()?;
        (text("device/vendor")?.trim() == NVIDIA_PCI).then_some((name, minor))
    };
    nodes.filter_map(of_nvidia).collect()
}

/// `renderD128`, `card1`, and not a connector such as `card1-DP-1`.
fn is_graphics(name: &str) -> bool {
    let number = name.strip_prefix("renderD").or_else(|| name.strip_prefix("card"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// `--dev` may also name the nodes of another root (`/host/dev`).
fn has_real_nodes(dev: &Path) -> bool {
    ["nvidiactl", "nvidia-uvm", "nvidia0", "dxg"].iter().any(|name| {
        rustix::fs::statx(CWD, dev.join(name), rustix::fs::AtFlags::empty(), StatxFlags::TYPE)
            .is_ok_and(|file| FileType::from_raw_mode(file.stx_mode.into()) == FileType::CharacterDevice)
    })
}

/// The name itself, if it is one of NVIDIA's.
fn known(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let known = matches!(name, "nvidiactl" | "nvidia-uvm" | "nvidia-uvm-tools" | "nvidia-modeset" | "dxg")
        || numbered("nvidia")
        || numbered("nvidia-caps/nvidia-cap");
    known.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(how: How) -> Nodes {
        Nodes { how, graphics: [("renderD128".to_owned(), 128)].into() }
    }

    #[test]
    fn only_nvidias_graphics_nodes_count() {
        let sys = tempfile::tempdir().unwrap();
        let node = |name: &str, number: &str, maker: &str| {
            let dir = sys.path().join("class/drm").join(name);
            std::fs::create_dir_all(dir.join("device")).unwrap();
            std::fs::write(dir.join("dev"), format!("226:{number}\n")).unwrap();
            std::fs::write(dir.join("device/vendor"), format!("{maker}\n")).unwrap();
        };
        node("renderD128", "128", "0x8086");
        node("renderD129", "129", "0x10de");
        node("card1", "1", "0x10de");
        node("card1-DP-1", "7", "0x10de");
        let found = graphics(sys.path());
        assert_eq!(found, [("card1".to_owned(), 1), ("renderD129".to_owned(), 129)].into());
        assert!(graphics(Path::new("/no/such")).is_empty());
        let nodes = Nodes { how: How::ByNumber { uvm: None, caps: None }, graphics: found };
        let name = |link: &str, number| nodes.name(link.as_bytes(), || number);
        assert_eq!(name("/dev/dri/renderD129", Some((226, 129))).as_deref(), Some("dri/renderD129"));
        assert_eq!(name("/dev/dri/renderD128", Some((226, 128))), None, "another maker's");
        assert_eq!(name("/dev/dri/renderD129", Some((226, 128))), None, "another node under this name");
        assert_eq!(name("/tmp/card1", Some((226, 1))), None);
        assert_eq!(name("/dev/dri/card1", None), None, "a plain file");
    }

    #[test]
    fn stand_ins_go_by_path() {
        let nodes = with(How::ByPath(b"/tmp/dev/".to_vec()));
        let name = |link: &str| nodes.name(link.as_bytes(), || panic!("no stat needed"));
        for node in [
            "nvidia0",
            "nvidia15",
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-uvm-tools",
            "nvidia-modeset",
            "dxg",
            "nvidia-caps/nvidia-cap1",
            "dri/renderD128",
        ] {
            assert_eq!(name(&format!("/tmp/dev/{node}")).as_deref(), Some(node));
            assert_eq!(name(&format!("/tmp/dev/{node} (deleted)")).as_deref(), Some(node));
            assert_eq!(name(&format!("/dev/{node}")), None);
        }
        for link in ["/tmp/dev/nvidia", "/tmp/dev/nvidia0x", "/tmp/dev/", "/tmp/devnvidia0", "socket:[1]", "", "/"] {
            assert_eq!(name(link), None, "{link}");
        }
    }

    #[test]
    fn real_nodes_go_by_number() {
        let nodes = with(How::ByNumber { uvm: Some(235), caps: Some(236) });
        let name = |link: &str, number| nodes.name(link.as_bytes(), || number);
        for (link, number, node) in [
            ("/dev/nvidia0", (195, 0), "nvidia0"),
            ("/jail/dev/nvidia3", (195, 3), "nvidia3"),
            ("/dev/nvidia0 (deleted)", (195, 0), "nvidia0"),
            ("/dev/nvidiactl", (195, 255), "nvidiactl"),
            ("/dev/nvidia-modeset", (195, 254), "nvidia-modeset"),
            ("/dev/nvidia-uvm", (235, 0), "nvidia-uvm"),
            ("/dev/nvidia-uvm-tools", (235, 1), "nvidia-uvm-tools"),
            ("/dev/nvidia-caps/nvidia-cap2", (236, 2), "nvidia-caps/nvidia-cap2"),
            ("/dev/dxg", (10, 120), "dxg"),
        ] {
            assert_eq!(name(link, Some(number)).as_deref(), Some(node), "{link}");
        }
        assert_eq!(name("/dev/nvidia0", None), None, "a plain file is no node");
        assert_eq!(name("/dev/nvidia-uvm", Some((1, 3))), None, "another device under this name");
        assert_eq!(name("/dev/null", Some((195, 0))), None, "not a telling name");
        let unknown = with(How::ByNumber { uvm: None, caps: None });
        assert_eq!(unknown.name(b"/dev/nvidia-uvm", || Some((511, 0))).as_deref(), Some("nvidia-uvm"));
    }
}
