//! Finding NVML's library, and whether there is a driver that it could talk to. The second comes first: loading the
//! real library as root on a machine without a driver creates `/dev/nvidiactl`.

use super::{Failure, FailureKind};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// The name that the loader knows.
const NAME: &str = "libnvidia-ml.so.1";

/// Where installations put the library without telling the loader.
const PLACES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/opengl-driver/lib",
    WSL,
];

/// Windows' own driver inside WSL: no kernel module, and no device file that loading could create.
const WSL: &str = "/usr/lib/wsl/lib";

/// What to hand to the loader, in this order.
///
/// # Errors
/// If no driver is loaded, or an explicit file is not there.
pub(super) fn candidates(explicit: Option<&Path>) -> Result<Vec<OsString>, Failure> {
    if let Some(path) = explicit {
        // A name without a slash would make the loader search; a path is what was asked for.
        return match path.metadata() {
            Ok(_) => Ok(vec![path.into()]),
            Err(e) => Err(Failure::new(
                FailureKind::NoLibrary,
                format!("opening the NVML library {}: {}", path.display(), words(&e)),
            )
            .hint("give --nvml-lib the path of a libnvidia-ml.so.1, or leave it out to search the usual places")),
        };
    }
    let wsl = Path::new("/dev/dxg").exists();
    if !driver_is_loaded() && !wsl {
        return Err(no_driver());
    }
    let places = PLACES.iter().map(|place| Path::new(place).join(NAME)).filter(|file| file.exists());
    Ok(std::iter::once(OsString::from(NAME)).chain(places.map(PathBuf::into_os_string)).collect())
}

fn words(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".into(),
        _ => error.to_string(),
    }
}

/// Whether the kernel module is there.
fn driver_is_loaded() -> bool {
    ["/sys/module/nvidia", "/proc/driver/nvidia/version"].iter().any(|path| Path::new(path).exists())
}

/// No driver.
pub(super) fn no_driver() -> Failure {
    Failure::new(
        FailureKind::NoDriver,
        "no NVIDIA driver is loaded here: neither /sys/module/nvidia nor /proc/driver/nvidia/version exists",
    )
    .hint(
        "load it: sudo modprobe nvidia\n\
         in a container, start that with its GPUs, for example: docker run --gpus all IMAGE\n\
         without that kernel module (Jetson), name the library: --nvml-lib PATH\n\
         more about this machine: gpuresid doctor",
    )
}

/// A driver without a GPU.
pub(super) fn no_gpu() -> Failure {
    Failure::new(FailureKind::NoGpu, "the NVIDIA driver is loaded, but it shows no GPU").hint(
        "see whether the card is there: lspci -d 10de:\n\
         in a container, start that with its GPUs, for example: docker run --gpus all IMAGE\n\
         more about this machine: gpuresid doctor",
    )
}

/// Nothing that the loader accepted.
pub(super) fn no_library(tried: &[(OsString, String)]) -> Failure {
    let tried: Vec<_> = tried.iter().map(|(file, why)| format!("{}: {why}", file.to_string_lossy())).collect();
    Failure::new(FailureKind::NoLibrary, format!("loading the NVML library failed ({})", tried.join("; "))).hint(
        "install the driver's user-space libraries (Debian, Ubuntu: libnvidia-compute-NNN of the driver's version)\n\
         or name the file: --nvml-lib PATH\n\
         more about this machine: gpuresid doctor",
    )
}

/// Kernel module and library differ, as after an upgrade without a reload.
pub(super) fn version_mismatch(library: Option<&str>) -> Failure {
    let kernel = kernel_version();
    let library = library.and_then(|l| file_version(Path::new(l)));
    let part = |name: &str, version: Option<String>| version.map_or_else(|| name.to_owned(), |v| format!("{name} {v}"));
    Failure::new(
        FailureKind::VersionMismatch,
        format!(
            "starting NVML: {} does not fit {}",
            part("the library's version", library),
            part("the loaded kernel module's", kernel)
        ),
    )
    .hint(
        "the driver was upgraded and the old kernel module is still loaded\n\
         it can be replaced once nobody has its device files open (gpuresid lists who has)\n\
         with: sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia\n\
         or restart the machine; in a container, restart the container",
    )
}

/// The loaded kernel module's version.
pub(super) fn kernel_version() -> Option<String> {
    fs::read_to_string("/sys/module/nvidia/version")
        .ok()
        .map(|text| text.trim().to_owned())
        .filter(|version| is_version(version))
        .or_else(|| nvrm_version(&fs::read_to_string("/proc/driver/nvidia/version").ok()?))
}

/// The version in the NVRM line of `/proc/driver/nvidia/version`.
fn nvrm_version(text: &str) -> Option<String> {
    text.lines().find(|l| l.starts_with("NVRM"))?.split_whitespace().find(|w| is_version(w)).map(Into::into)
}

/// The version that the file name carries: `libnvidia-ml.so.580.159.04`, once links are followed.
pub(super) fn file_version(file: &Path) -> Option<String> {
    let file = fs::canonicalize(file).ok()?;
    let version = file.file_name()?.to_str()?.split_once(".so.")?.1;
    is_version(version).then(|| version.into())
}

/// `580.159.04`, `470.256`.
fn is_version(word: &str) -> bool {
    word.contains('.') && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// The NVML library that is mapped into this process: the loader does not tell which file it took.
pub(super) fn loaded_file() -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines()
        .find_map(|line| line.find('/').map(|at| &line[at..]).filter(|p| p.contains("libnvidia-ml")))
        .map(Into::into)
}

/// Every file that is mapped into this process, once, in the order of the addresses.
pub(super) fn mapped_files() -> Option<Vec<String>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mut files: Vec<String> = Vec::new();
    for file in maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..))) {
        if !files.iter().any(|known| known == file) {
            files.push(file.into());
        }
    }
    Some(files)
}

/// The library that a search would take, for a message when it is not mapped any more.
pub(super) fn probable_file() -> Option<String> {
    PLACES.iter().map(|place| Path::new(place).join(NAME)).find(|file| file.exists())?.to_str().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\nGCC version:  gcc version 12.2.0";
        assert_eq!(nvrm_version(closed).as_deref(), Some("535.54.03"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@x)\n";
        assert_eq!(nvrm_version(open).as_deref(), Some("580.159.04"));
        assert_eq!(nvrm_version("GCC version: 12.2.0"), None);
        assert!(!is_version("12"));
        assert!(!is_version("x86_64"));
        assert!(!is_version("1..2"));
    }

    #[test]
    fn a_file_name_tells_its_version_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libnvidia-ml.so.580.159.04");
        fs::write(&file, "").unwrap();
        let link = dir.path().join(NAME);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(file_version(&link).as_deref(), Some("580.159.04"));
        let message = version_mismatch(link.to_str()).message;
        assert!(message.contains("580.159.04"), "{message}");
    }

    #[test]
    fn an_explicit_library_needs_no_driver() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(candidates(Some(file.path())).unwrap(), [file.path().as_os_str()]);
        let failure = candidates(Some(Path::new("/no/such/library.so"))).unwrap_err();
        assert_eq!(failure.kind, FailureKind::NoLibrary);
        assert!(failure.message.contains("/no/such/library.so"), "{}", failure.message);
    }
}
