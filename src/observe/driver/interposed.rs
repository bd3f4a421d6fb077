//! Which library really answers. Some installations put one in front of NVIDIA's (to share a GPU, to meter it), a linker
//! stub may be found in its place, or an old copy that does not fit the kernel module. Such a library may say anything,
//! so it is named, and nothing is decided by what it says.
//!
//! The loader tells which file a function lies in only through the map of our own memory; a name that was asked for
//! proves nothing, since whoever stands in front may answer to the same name.

use super::library;
use std::{fs, path::Path};

/// A mapped file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapped {
    start: usize,
    end: usize,
    path: String,
}

/// The file that answers for these functions, and why its word may not be NVIDIA's; `explicit` is what the user named,
/// which is taken as it is.
pub(super) fn look(functions: &[usize], explicit: Option<&Path>) -> (Option<String>, Option<String>) {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return (None, None) };
    let mapped = parse(&maps);
    let answering = files_of(&mapped, functions);
    let preloaded = preloaded().into_iter().filter(|file| intercepts(&mapped, file)).collect::<Vec<_>>();
    let why = match explicit {
        Some(named) => other_than(&answering, named),
        None => not_nvidias(&answering, library::kernel_version().as_deref()),
    };
    let why = why.or_else(|| {
        let file = preloaded.first()?;
        Some(format!("{file} is preloaded and stands in front of NVIDIA's library"))
    });
    (answering.first().cloned(), why)
}

fn parse(maps: &str) -> Vec<Mapped> {
    let line = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let path = line.get(line.find('/')?..)?.to_owned();
        Some(Mapped { start: address(start)?, end: address(end)?, path })
    };
    maps.lines().filter_map(line).collect()
}

/// The files in which these functions lie, each once, in the order of the functions.
fn files_of(mapped: &[Mapped], functions: &[usize]) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    for function in functions {
        let file = mapped.iter().find(|m| (m.start..m.end).contains(function)).map(|m| m.path.clone());
        if let Some(file) = file.filter(|f| !files.contains(f)) {
            files.push(file);
        }
    }
    files
}

/// The user named one file and another one answers.
fn other_than(answering: &[String], named: &Path) -> Option<String> {
    let named = fs::canonicalize(named).ok()?;
    let other = answering.iter().find(|file| fs::canonicalize(file).is_ok_and(|file| file != named))?;
    Some(format!("{other} answers in place of {}", named.display()))
}

fn not_nvidias(answering: &[String], kernel: Option<&str>) -> Option<String> {
    for file in answering {
        let name = file.rsplit('/').next().unwrap_or(file);
        if file.contains("/stubs/") {
            return Some(format!("{file} is a stub for linking and no driver library"));
        }
        if !name.starts_with("libnvidia-ml") && !name.starts_with("nvidia_drv") {
            return Some(format!("{file} answers in place of NVIDIA's library"));
        }
        if let (Some(version), Some(kernel)) = (library::file_version(Path::new(file)), kernel)
            && version != kernel
        {
            return Some(format!("{file} is of version {version} and the loaded kernel module of version {kernel}"));
        }
    }
    match answering {
        [one, another, ..] => Some(format!("{one} and {another} both answer: one stands in front of the other")),
        _ => None,
    }
}

/// What the loader was told to load before everything else.
fn preloaded() -> Vec<String> {
    let variable = std::env::var("LD_PRELOAD").unwrap_or_default();
    let file = fs::read_to_string("/etc/ld.so.preload").unwrap_or_default();
    let lines = file.lines().map(|line| line.split('#').next().unwrap_or_default());
    std::iter::once(variable.as_str())
        .chain(lines)
        .flat_map(|text| text.split([' ', ':', '\t']))
        .filter(|word| !word.is_empty())
        .map(Into::into)
        .collect()
}

/// Whether a preloaded file was really loaded and has NVML's functions in it, which no memory allocator or sanitizer
/// has.
fn intercepts(mapped: &[Mapped], preloaded: &str) -> bool {
    const CALL: &[u8] = b"nvmlDeviceGetMemoryInfo";
    let name = preloaded.rsplit('/').next().unwrap_or(preloaded);
    let Some(file) = mapped.iter().find(|m| m.path.rsplit('/').next() == Some(name)) else { return false };
    fs::read(&file.path).is_ok_and(|bytes| bytes.windows(CALL.len()).any(|w| w == CALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /usr/lib/libnvidia-ml.so.580.159.04
7f0000001000-7f0000002000 r-xp 00000000 08:01 2 /opt/share gpu/libvgpu.so
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
";

    #[test]
    fn an_address_tells_its_file() {
        let mapped = parse(MAPS);
        assert_eq!(mapped.len(), 2);
        let files = |at: &[usize]| files_of(&mapped, at);
        assert_eq!(files(&[0x7f00_0000_0010, 0x7f00_0000_0fff]), ["/usr/lib/libnvidia-ml.so.580.159.04"]);
        assert_eq!(files(&[0x7f00_0000_1000]), ["/opt/share gpu/libvgpu.so"]);
        assert!(files(&[0x7f00_0000_2000, 1]).is_empty());
        // Our own code lies in our own binary.
        let (file, _) = look(&[an_address_tells_its_file as fn() as usize], None);
        assert_eq!(file.as_deref(), std::env::current_exe().unwrap().to_str());
    }

    #[test]
    fn only_nvidias_own_library_is_believed() {
        let said = |files: &[&str]| {
            not_nvidias(&files.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>(), Some("580.159.04"))
        };
        assert_eq!(said(&["/usr/lib/libnvidia-ml.so.1"]), None);
        assert_eq!(said(&["/usr/lib/wsl/lib/libnvidia-ml.so.1"]), None);
        assert_eq!(said(&[]), None);
        for (files, part) in [
            (&["/usr/local/cuda/lib64/stubs/libnvidia-ml.so"][..], "stub"),
            (&["/opt/libvgpu.so"], "/opt/libvgpu.so answers in place"),
            (&["/opt/x/libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"], "both answer"),
        ] {
            assert!(said(files).is_some_and(|why| why.contains(part)), "{files:?}");
        }
    }

    #[test]
    fn a_version_in_the_name_has_to_fit_the_kernel_module() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libnvidia-ml.so.535.54.03");
        fs::write(&file, "").unwrap();
        let files = [file.display().to_string()];
        assert_eq!(not_nvidias(&files, Some("535.54.03")), None);
        assert_eq!(not_nvidias(&files, None), None);
        assert!(not_nvidias(&files, Some("580.159.04")).is_some_and(|why| why.contains("535.54.03")));
    }
}
