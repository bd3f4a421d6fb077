//! How the GPUs are set up.

use super::Lines;
use crate::{
    doctor::facts::Facts,
    judge::trouble,
    model::{
        Addressing, ComputeMode, ConfCompute, ConfEnvironment, DeviceFacts, DeviceIdentity, DeviceLook, Gap, MemoryApi,
        SystemPages, Trouble,
    },
};

/// Reserved memory above this part of a device is worth a word: ECC on cards without memory for it takes 6 %.
const MUCH_RESERVED: f64 = 0.10;

pub(super) fn judge(facts: &Facts, lines: &mut Lines) {
    let Ok(seen) = &facts.driver else { return };
    match &seen.facts {
        Ok(driver) => {
            if let Some(state) = driver.conf_compute {
                confidential(state, lines);
            }
        }
        Err(failure) => {
            lines.hidden("devices", format!("the settings of the GPUs: {failure}"));
        }
    }
    // What is said of one GPU stands together.
    for device in seen.inventory.devices.iter().filter(|device| device.mig.is_none()) {
        let known = seen.facts.as_ref().ok().and_then(|all| all.devices.iter().find(|d| d.uuid == device.uuid));
        if let Some(known) = known {
            let of_it = |d: &&DeviceIdentity| d.mig.as_ref().is_some_and(|mig| mig.parent == device.uuid);
            protected(known, lines);
            settings(known, seen.inventory.devices.iter().filter(of_it).count(), facts, lines);
        }
        addressing(device, lines);
        if let Ok(look) = &seen.look
            && let Some(read) = look.devices.iter().find(|d| d.uuid == device.uuid)
        {
            match read.trouble() {
                Some((gap, trouble)) => in_trouble(device, gap, trouble, lines),
                None => memory(device, read, lines),
            }
        }
    }
    if let Err(failure) = &seen.look {
        lines.hidden("device.memory", format!("the memory of the GPUs: {failure}"));
    }
}

/// Where the operating system gives a GPU's memory away, that memory is no measure of what programs hold.
fn addressing(device: &DeviceIdentity, lines: &mut Lines) {
    let (gpu, check) = (device.label(), "device.addressing");
    match (device.system_pages(), device.addressing) {
        (SystemPages::Node(node), _) => {
            let text = format!(
                "{gpu}: its memory is NUMA node {node} of this machine, so page cache and host pages of any process count \
                 as used too, and may stay after a process has ended; memory that is listed \
                 with no process is not a sign of a leftover there"
            );
            lines.ok(check, text).source = Some(MEMORY_OF_NODES.into());
        }
        (SystemPages::Perhaps, _) => {
            lines.hidden(
                check,
                format!(
                    "{gpu}: addressing mode ATS; whether its memory is a NUMA node of this machine, where the system's own \
                     pages count as used, this driver does not tell (`numactl -H` shows nodes without CPUs)"
                ),
            );
        }
        (SystemPages::No, Some(Addressing::Ats)) => {
            lines.ok(check, format!("{gpu}: addressing mode ATS, and its memory is not a NUMA node of this machine"));
        }
        (SystemPages::No, Some(Addressing::Hmm)) => {
            lines.ok(check, format!("{gpu}: addressing mode HMM: programs may use system memory on it"));
        }
        (SystemPages::No, _) => {}
    }
}

/// Where NVIDIA says what memory readings are worth where GPUs are NUMA nodes.
const MEMORY_OF_NODES: &str = "https://docs.nvidia.com/deploy/nvidia-smi/index.html";

fn settings(device: &DeviceFacts, instances: usize, facts: &Facts, lines: &mut Lines) {
    let (gpu, n) = (format!("GPU {}", device.index), device.index);
    match device.persistence {
        Some(true) => {
            lines.ok("device.persistence", format!("{gpu}: persistence mode is on"));
        }
        Some(false) => {
            lines.warn(
                "device.persistence",
                format!(
                    "{gpu}: persistence mode is off, so the driver has to start the GPU again for the first \
                         program after a pause"
                ),
                format!("sudo nvidia-smi -i {n} -pm 1"),
            );
        }
        None => {}
    }
    compute_mode(device, &gpu, facts, lines);
    match device.mig {
        Some(mig) if mig.now != mig.next => {
            lines.warn(
                "device.mig",
                format!("{gpu}: MIG is {} and will be {} after a reset", on(mig.now), on(mig.next)),
                reset(n),
            );
        }
        Some(mig) if mig.now && instances == 0 => {
            lines.fail(
                "device.mig",
                format!("{gpu}: MIG is on and there is no instance, so a CUDA program finds no device"),
                format!("sudo nvidia-smi mig -i {n} -lgip"),
            );
        }
        Some(mig) if mig.now => {
            lines.ok("device.mig", format!("{gpu}: MIG is on, instances: {instances}"));
        }
        Some(_) => {
            lines.ok("device.mig", format!("{gpu}: MIG is off"));
        }
        None => {}
    }
    match device.ecc {
        Some(ecc) if ecc.now != ecc.next => {
            lines.warn(
                "device.ecc",
                format!("{gpu}: ECC is {} and will be {} after a reset", on(ecc.now), on(ecc.next)),
                reset(n),
            );
        }
        Some(ecc) => {
            lines.ok("device.ecc", format!("{gpu}: ECC is {}", on(ecc.now)));
        }
        None => {}
    }
    repairs(device, &gpu, lines);
    // What is wrong with the device as a whole is said once.
    for gap in device.gaps.iter().filter(|gap| gap.trouble.is_none()) {
        lines.hidden("device", gap.to_string());
    }
}

const CONFIDENTIAL: &str = "confidential_computing";

/// Only what the driver tells: whether it is on, and how it divides the memory.
fn confidential(state: ConfCompute, lines: &mut Lines) {
    if !state.on {
        lines.ok(CONFIDENTIAL, "confidential computing is off");
        return;
    }
    let environment = match state.environment {
        ConfEnvironment::Production => ", production",
        ConfEnvironment::Simulation => ", simulated",
        ConfEnvironment::Unavailable | ConfEnvironment::Other => "",
    };
    let tools = if state.developer_tools { ", with developers' tools allowed" } else { "" };
    lines.ok(
        CONFIDENTIAL,
        format!(
            "confidential computing is on{environment}{tools}: what the driver then does not answer is a gap, and never taken \
             for 0"
        ),
    );
}

fn protected(device: &DeviceFacts, lines: &mut Lines) {
    let Some(memory) = device.conf_memory else { return };
    let used = memory.protected_used.map(|used| format!(" ({used} of that in use)")).unwrap_or_default();
    lines.ok(
        CONFIDENTIAL,
        format!(
            "GPU {}: {} of its memory are protected{used}, {} are not; `used` and `free` of the other commands are \
             NVML's numbers for the whole device",
            device.index, memory.protected, memory.unprotected
        ),
    );
}

fn compute_mode(device: &DeviceFacts, gpu: &str, facts: &Facts, lines: &mut Lines) {
    let n = device.index;
    match device.compute_mode {
        Some(ComputeMode::Default) => {
            lines.ok("device.compute_mode", format!("{gpu}: every process may use it (compute mode default)"));
        }
        Some(ComputeMode::ExclusiveProcess) if !facts.machine.mps.daemons.is_empty() => {
            lines.ok(
                "device.compute_mode",
                format!("{gpu}: compute mode exclusive process, with MPS as its one process"),
            );
        }
        Some(ComputeMode::ExclusiveProcess) => {
            lines.warn(
                "device.compute_mode",
                format!(
                    "{gpu}: compute mode exclusive process: while one leftover lives, every other program is refused"
                ),
                format!("sudo nvidia-smi -i {n} -c DEFAULT"),
            );
        }
        Some(ComputeMode::Prohibited) => {
            lines.fail(
                "device.compute_mode",
                format!("{gpu}: compute mode prohibited: no CUDA program may use it"),
                format!("sudo nvidia-smi -i {n} -c DEFAULT"),
            );
        }
        None => {}
    }
}

fn repairs(device: &DeviceFacts, gpu: &str, lines: &mut Lines) {
    let n = device.index;
    if let Some(pending) = device.pages_pending {
        if pending {
            lines.warn(
                "device.retired_pages",
                format!("{gpu}: memory pages with errors will be retired at the next reset"),
                reset(n),
            );
        } else {
            lines.ok("device.retired_pages", format!("{gpu}: no memory page is waiting to be retired"));
        }
    }
    match device.remapped_rows {
        Some(rows) if rows.failed => {
            lines.fail(
                "device.remapped_rows",
                format!("{gpu}: a faulty row of memory could not be replaced: the card is due for repair"),
                format!("nvidia-smi -i {n} -q -d ROW_REMAPPER"),
            );
        }
        Some(rows) if rows.pending => {
            lines.warn(
                "device.remapped_rows",
                format!("{gpu}: a faulty row of memory will be replaced at the next reset"),
                reset(n),
            );
        }
        Some(rows) if rows.correctable + rows.uncorrectable > 0 => {
            let total = rows.correctable + rows.uncorrectable;
            lines
                .ok("device.remapped_rows", format!("{gpu}: rows of memory replaced so far: {total}, none is waiting"));
        }
        Some(_) => {
            lines.ok("device.remapped_rows", format!("{gpu}: no row of memory was replaced"));
        }
        None => {}
    }
}

fn in_trouble(device: &DeviceIdentity, gap: &Gap, trouble: Trouble, lines: &mut Lines) {
    let cure = trouble::step(device, trouble);
    let text = format!("{gap}; {}. Until then `-i` leaves it out", cure.why);
    lines.fail("device", text, cure.command.unwrap_or_default());
}

fn memory(identity: &DeviceIdentity, device: &DeviceLook, lines: &mut Lines) {
    let (gpu, check) = (identity.label(), "device.memory");
    match device.memory {
        None => {
            let why = device.gaps.first().map_or_else(|| "no reading".into(), |gap| gap.reason.clone());
            lines.hidden(check, format!("{gpu}: memory: {why}"));
        }
        Some(memory) if memory.api == MemoryApi::V1 => {
            lines.warn(
                check,
                format!(
                    "{gpu}: this driver counts its own reserved memory as used; drivers from 510 on tell them apart"
                ),
                "nvidia-smi --query-gpu=driver_version --format=csv",
            );
        }
        Some(memory) => {
            let reserved = memory.reserved.unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "a part of a device's memory")]
            let much = reserved.0 as f64 > MUCH_RESERVED * memory.total.0 as f64;
            let text = format!("{gpu}: {reserved} of {} are the driver's own (reserved)", memory.total);
            if much {
                lines.warn(check, text, format!("nvidia-smi -i {} -q -d MEMORY", identity.index));
            } else {
                lines.ok(check, text);
            }
        }
    }
}

fn on(is: bool) -> &'static str {
    if is { "on" } else { "off" }
}

/// A reset is refused while anybody has the device open, so whoever has is shown first.
fn reset(index: u32) -> String {
    format!("gpuresid -i {index} && sudo nvidia-smi --gpu-reset -i {index}")
}
