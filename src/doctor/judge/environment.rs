//! The variables of this shell, as a program started from it would get them.

use super::{
    Lines,
    alloc_conf::{self, Trouble},
    visible::{self, Visible, Why},
};
use crate::doctor::{facts::Facts, table::Table, version::Version};

/// The names of the allocator's settings; where both are set, PyTorch takes the first.
pub(super) const ALLOC_CONF: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

pub(super) fn judge(facts: &Facts, table: &Table, lines: &mut Lines) {
    let get = |name: &str| facts.environment.get(name).map(String::as_str);
    visible_devices(facts, lines);
    match get("CUDA_DEVICE_ORDER") {
        None => {}
        Some("PCI_BUS_ID") => {
            lines.ok("env.CUDA_DEVICE_ORDER", "CUDA counts the GPUs as nvidia-smi does (PCI_BUS_ID)");
        }
        Some("FASTEST_FIRST") => {
            lines.ok("env.CUDA_DEVICE_ORDER", "CUDA counts the fastest GPU first, which is its default");
        }
        Some(other) => {
            lines.warn(
                "env.CUDA_DEVICE_ORDER",
                format!("`{other}` is not an order that CUDA knows"),
                "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            );
        }
    }
    if let Some(value) = get("CUDA_LAUNCH_BLOCKING").filter(|value| !matches!(*value, "" | "0")) {
        lines.warn(
            "env.CUDA_LAUNCH_BLOCKING",
            format!("CUDA_LAUNCH_BLOCKING={value} makes every kernel wait for the one before: for debugging only"),
            "unset CUDA_LAUNCH_BLOCKING",
        );
    }
    if let Some(value) = get("NVML_MPS_DEVICE_ENUMERATION").filter(|value| !matches!(*value, "" | "0")) {
        lines.warn(
            "env.NVML_MPS_DEVICE_ENUMERATION",
            format!("NVML_MPS_DEVICE_ENUMERATION={value} changes which devices NVML lists, so numbers may differ from those in other shells"),
            "unset NVML_MPS_DEVICE_ENUMERATION",
        );
    }
    if let Some(value) = get("PYTORCH_NO_CUDA_MEMORY_CACHING").filter(|value| !matches!(*value, "" | "0")) {
        lines.warn(
            "env.PYTORCH_NO_CUDA_MEMORY_CACHING",
            format!("PYTORCH_NO_CUDA_MEMORY_CACHING={value} turns PyTorch's cache off: slow, and for debugging only"),
            "unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        );
    }
    allocator(facts, table, lines);
}

fn visible_devices(facts: &Facts, lines: &mut Lines) {
    const CHECK: &str = "env.CUDA_VISIBLE_DEVICES";
    let Some(value) = facts.environment.get("CUDA_VISIBLE_DEVICES") else {
        lines.ok(CHECK, "CUDA_VISIBLE_DEVICES is not set: a program sees every GPU");
        return;
    };
    let devices = facts.driver.as_ref().ok().map(|seen| seen.inventory.devices.as_slice());
    match visible::read(value, devices) {
        Visible::Nothing => {
            lines.fail(
                CHECK,
                format!("CUDA_VISIBLE_DEVICES=`{value}` selects nothing: a program sees no GPU"),
                "unset CUDA_VISIBLE_DEVICES",
            );
        }
        Visible::Cut { seen, at, why } => {
            let why = match why {
                Why::Mix => "numbers and UUIDs cannot be mixed",
                Why::Unknown => "no single GPU is called so",
            };
            lines.warn(
                CHECK,
                format!("CUDA_VISIBLE_DEVICES=`{value}`: CUDA stops at `{at}` ({why}), so a program sees only the first {seen}"),
                "nvidia-smi -L",
            );
        }
        Visible::All(n) => {
            lines.ok(CHECK, format!("CUDA_VISIBLE_DEVICES=`{value}` selects {n}"));
        }
        Visible::FormOnly => {
            lines.hidden(
                CHECK,
                format!("whether CUDA_VISIBLE_DEVICES=`{value}` selects anything: the driver does not answer"),
            );
        }
    }
    let order = facts.environment.get("CUDA_DEVICE_ORDER").map(String::as_str);
    if let Some(devices) = devices
        && visible::numbers_are_ambiguous(value, order, devices)
    {
        lines.warn(
            "env.CUDA_DEVICE_ORDER",
            "the GPUs are of different models, and CUDA counts them in another order than nvidia-smi",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        );
    }
}

fn allocator(facts: &Facts, table: &Table, lines: &mut Lines) {
    let torch = facts.python.torch().and_then(|t| Version::parse(t.version.as_ref().or(t.metadata_version.as_ref())?));
    let set: Vec<(&str, &String)> = ALLOC_CONF.iter().filter_map(|n| Some((*n, facts.environment.get(*n)?))).collect();
    if let [(first, one), (second, two)] = set.as_slice()
        && one != two
    {
        lines.warn(
            "env.PYTORCH_ALLOC_CONF",
            format!("{first} and {second} are both set and differ; which one counts depends on the version"),
            format!("unset {second}"),
        );
    }
    for (name, value) in set {
        let check = format!("env.{name}");
        let (settings, troubles) = alloc_conf::read(value, table, torch.as_ref());
        for trouble in &troubles {
            match trouble {
                Trouble::Refused(why) => lines.fail(
                    &check,
                    format!("{name}: {why}; PyTorch stops at its first CUDA call"),
                    format!("unset {name}"),
                ),
                Trouble::Doubtful(why) => lines.warn(&check, format!("{name}: {why}"), format!("unset {name}")),
            }
            .source = Some("https://docs.pytorch.org/docs/stable/notes/cuda.html".into());
        }
        let since = table.apis.iter().find(|api| api.name == name);
        if let (Some(api), Some(torch)) = (since, &torch)
            && *torch < api.since
        {
            let older = ALLOC_CONF.iter().find(|other| **other != name).copied().unwrap_or(name);
            let text = format!("{name} is not read by PyTorch {}; it is since {}", torch.release(), api.since);
            lines.warn(&check, text, format!("export {older}=\"${name}\"")).source = Some(api.source.clone());
        } else if troubles.is_empty() {
            let n = settings.len();
            lines.ok(&check, format!("{name}: {n} setting{} understood", if n == 1 { "" } else { "s" }));
        }
    }
}
