//! The driver: whether it answers, which library speaks for it, and whether library and kernel module belong together.

use super::Lines;
use crate::{
    doctor::facts::Facts,
    model::{DriverSource, StatusReport, Uuid},
    observe::driver::{Failure, FailureKind},
};
use std::path::Path;

/// Libraries that are put before NVIDIA's own to share or to limit a GPU: what they say about memory is their own
/// arithmetic.
const SHIMS: [&str; 7] =
    ["libvgpu", "libcuda-control", "libgpushare", "libnvshare", "libgemhook", "libtgpu", "libcuda_vgpu"];

pub(super) fn judge(facts: &Facts, lines: &mut Lines) {
    match &facts.driver {
        Err(failure) => does_not_answer(facts, failure, lines),
        Ok(seen) => {
            let driver = &seen.inventory.driver;
            let version = driver.driver_version.as_deref().unwrap_or("of an unknown version");
            let gpus = seen.inventory.devices.iter().filter(|d| d.mig.is_none()).count();
            let cuda = driver.cuda_version.as_ref().map_or_else(String::new, |cuda| format!(", serves CUDA {cuda}"));
            let gpus = if gpus == 1 { "1 GPU".into() } else { format!("{gpus} GPUs") };
            let simulated = if driver.source == DriverSource::Simulated { "simulated " } else { "" };
            lines.ok("driver", format!("{simulated}driver {version} answers for {gpus}{cuda}"));
            let nvml = driver.nvml_version.as_deref().unwrap_or("of an unknown version");
            lines.ok("driver.nvml", format!("NVML is {nvml}"));
            kernel(facts, driver.driver_version.as_deref(), lines);
            // A device that cannot be read is said with its device.
            let in_trouble = |label: &str| {
                let of_it = |uuid: &Uuid| seen.inventory.devices.iter().any(|d| d.uuid == *uuid && d.label() == label);
                let looks = seen.look.iter().flat_map(|look| &look.devices);
                looks.filter(|look| of_it(&look.uuid)).any(|look| look.trouble().is_some())
            };
            for gap in seen.inventory.gaps.iter().filter(|gap| !in_trouble(&gap.about)) {
                lines.hidden("driver.device", gap.to_string());
            }
        }
    }
    library(facts, lines);
    search_path(facts, lines);
}

/// The driver's version: as NVML says it, else the kernel module's.
pub(super) fn version(facts: &Facts) -> Option<String> {
    let said = facts.driver.as_ref().ok().and_then(|seen| seen.inventory.driver.driver_version.clone());
    said.or_else(|| facts.kernel.module.clone())
}

/// The newest CUDA that the driver says it serves.
pub(super) fn cuda(facts: &Facts) -> Option<String> {
    facts.driver.as_ref().ok().and_then(|seen| seen.inventory.driver.cuda_version.clone())
}

fn does_not_answer(facts: &Facts, failure: &Failure, lines: &mut Lines) {
    let usual = match failure.kind {
        FailureKind::NoDriver => "sudo modprobe nvidia",
        FailureKind::NoLibrary => "ldconfig -p | grep libnvidia-ml",
        FailureKind::VersionMismatch => {
            "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia"
        }
        FailureKind::NoPermission => "ls -l /dev/nvidia*",
        FailureKind::NoGpu => "lspci -d 10de:",
        FailureKind::Timeout | FailureKind::HelperDied | FailureKind::Other => "sudo dmesg | grep -i -e nvrm -e xid",
    };
    // What stands in the fix is not said twice, and doctor is what runs.
    let more = failure.hint.iter().flat_map(|hint| hint.lines());
    let more = more.filter(|line| !line.contains(usual) && !line.contains("gpuresid doctor"));
    let more: Vec<&str> = more.collect();
    let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join("; ")) };
    lines.fail("driver", format!("{}{more}", failure.message), usual);
    match &facts.kernel.module {
        Some(version) => lines.ok("driver.kernel", format!("the kernel module {version} is loaded")),
        None => lines.hidden("driver.kernel", "no version of a kernel module can be read"),
    };
    lines.hidden("devices", "the settings of the GPUs: the driver does not answer");
    let Some(seen) = who_has_files(facts) else {
        lines.hidden("driver.files", "who has its device files open: /proc cannot be read");
        return;
    };
    lines.ok(
        "driver.files",
        match seen.holders.len() {
            0 => "nobody who can be seen from here has its device files open".into(),
            1 => "one process has its device files open; it is listed at the end".into(),
            many => format!("{many} processes have its device files open; they are listed at the end"),
        },
    );
    // The first is the driver's own.
    for gap in seen.gaps.iter().skip(1) {
        lines.hidden("driver.files", gap.to_string());
    }
}

/// Who has the files of a driver open that does not answer.
pub(super) fn who_has_files(facts: &Facts) -> Option<StatusReport> {
    let failure = facts.driver.as_ref().err()?;
    Some(crate::judge::status_without_driver(facts.files.as_ref()?, failure))
}

fn kernel(facts: &Facts, library: Option<&str>, lines: &mut Lines) {
    let Some(module) = &facts.kernel.module else {
        lines.hidden(
            "driver.kernel",
            "no version of a kernel module can be read (WSL, Jetson and some sandboxes have none)",
        );
        return;
    };
    let kind = match facts.kernel.open {
        Some(true) => "open kernel module",
        Some(false) => "closed kernel module",
        None => "kernel module",
    };
    match library {
        Some(library) if library != module => lines.warn(
            "driver.kernel",
            format!(
                "the {kind} is {module} and the library says {library}: it is another library, or the driver was \
                     upgraded and not reloaded"
            ),
            "cat /proc/driver/nvidia/version",
        ),
        _ => lines.ok("driver.kernel", format!("the {kind} is {module}")),
    };
}

/// Which library really answers. Others that are mapped beside it may change what it says.
fn library(facts: &Facts, lines: &mut Lines) {
    let Ok(seen) = &facts.driver else { return };
    let mapped = match &seen.facts {
        Ok(facts) => facts.mapped.as_deref(),
        Err(failure) => {
            lines.hidden("library", format!("which library answers: {failure}"));
            return;
        }
    };
    let file = |path: &str| Path::new(path).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match (&seen.inventory.driver.library, mapped) {
        (None, _) if seen.inventory.driver.source == DriverSource::Simulated => {
            lines.ok("library", "the GPU is simulated: no library is loaded");
        }
        (None, None) => {
            lines.hidden("library", "which library answers: /proc/self/maps of the helper cannot be read");
        }
        (loaded, mapped) => {
            let mapped = mapped.unwrap_or_default();
            let speakers: Vec<&String> = mapped.iter().filter(|path| file(path).starts_with("libnvidia-ml")).collect();
            // What is mapped is the file behind every link.
            let name = speakers.first().map(ToString::to_string).or_else(|| loaded.clone());
            let name = name.unwrap_or_else(|| "an unknown file".into());
            if speakers.len() > 1 {
                let all: Vec<_> = speakers.iter().map(|s| s.as_str()).collect();
                lines.warn(
                    "library",
                    format!("several NVML libraries are mapped: {}", all.join(", ")),
                    "ldconfig -p | grep libnvidia-ml",
                );
            } else if is_stub(&name) {
                stub(&name, lines);
            } else {
                lines.ok("library", format!("{name} is mapped"));
            }
        }
    }
    preloads(facts, mapped.unwrap_or_default(), lines);
}

fn is_stub(path: &str) -> bool {
    Path::new(path).components().any(|part| part.as_os_str() == "stubs")
}

fn stub(path: &str, lines: &mut Lines) {
    lines.fail(
        "library.stub",
        format!("{path} is the toolkit's stub for linking, not the driver's library"),
        "export LD_LIBRARY_PATH=$(echo \"$LD_LIBRARY_PATH\" | tr ':' '\\n' | grep -v stubs | paste -sd:)",
    );
}

fn preloads(facts: &Facts, mapped: &[String], lines: &mut Lines) {
    let file = |path: &str| Path::new(path).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let variable = facts.environment.get("LD_PRELOAD").map_or("", String::as_str);
    let mut asked: Vec<String> = variable.split([' ', ':']).filter(|p| !p.is_empty()).map(Into::into).collect();
    asked.extend(facts.machine.preload_file.iter().cloned());
    let shims: Vec<&str> = mapped
        .iter()
        .chain(&asked)
        .filter(|path| SHIMS.iter().any(|shim| file(path).starts_with(shim)))
        .map(String::as_str)
        .collect();
    if let Some(shim) = shims.first() {
        lines.warn(
            "library.preload",
            format!("{shim} is loaded before NVIDIA's libraries and gives its own numbers for memory"),
            "env -u LD_PRELOAD gpuresid doctor",
        );
        return;
    }
    let known = |path: &&String| mapped.iter().any(|m| m == *path || file(m) == file(path));
    let loaded: Vec<&str> = asked.iter().filter(known).map(String::as_str).collect();
    if loaded.is_empty() {
        lines.ok("library.preload", "nothing is preloaded before it");
    } else {
        lines.warn(
            "library.preload",
            format!("preloaded into every program, this one too: {}", loaded.join(", ")),
            "env -u LD_PRELOAD gpuresid doctor",
        );
    }
}

/// A search path with NVIDIA's libraries in it wins over the system's for every program that is started from here.
fn search_path(facts: &Facts, lines: &mut Lines) {
    let hits: Vec<String> = facts.machine.library_path_hits.iter().map(|path| path.display().to_string()).collect();
    match (hits.iter().find(|hit| is_stub(hit)), hits.first()) {
        (Some(path), _) => stub(path, lines),
        (None, Some(path)) => {
            lines.warn(
                "library.search_path",
                format!("LD_LIBRARY_PATH puts {path} before the driver's own; after an upgrade the versions differ"),
                "env -u LD_LIBRARY_PATH gpuresid doctor",
            );
        }
        (None, None) => {}
    }
}
