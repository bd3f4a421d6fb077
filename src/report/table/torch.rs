//! PyTorch's view for people: the three parts of each process's memory, the largest tensors with their names, what to
//! do. Shown under a clean verdict too, because whoever asked for it wants to read it.

use super::{
    grid::{Column, Grid},
    parts::Page,
};
use crate::{
    model::{Gap, TorchDevice, TorchLive, TorchProcess, TorchReference, TorchSplit, TorchStage, TorchStorage},
    report::words,
    text,
};
use std::io;

/// Processes that are shown in full; a run of a hundred workers has as many.
const PROCESSES: usize = 8;
/// Storages of a device that are shown.
const STORAGES: usize = 5;
/// Columns of a name.
const NAME: usize = 90;

/// Writes the part, if PyTorch was asked.
pub(super) fn torch(page: &mut Page<'_>, processes: &[TorchProcess], gaps: &[Gap]) -> io::Result<()> {
    page.heading("Inside PyTorch")?;
    if processes.is_empty() {
        let unseen = if gaps.iter().any(is_about_torch) { "; who could not be seen stands under Not seen" } else { "" };
        let told = format!("PyTorch used CUDA in no process of the command that could be seen{unseen}");
        return page.paragraph("- ", &told);
    }
    let shown = page.shown(processes.len(), PROCESSES);
    for process in processes.iter().take(shown) {
        one(page, process)?;
    }
    if processes.len() > shown {
        page.paragraph("- ", &format!("and {} more processes", processes.len() - shown))?;
    }
    page.paragraph(
        "",
        "All of it goes when its process ends: tensors, cache, context. What stays after that has another holder.",
    )
}

/// A process that PyTorch was to be asked in, and could not.
pub(super) fn is_about_torch(gap: &Gap) -> bool {
    gap.about == "PyTorch"
}

fn one(page: &mut Page<'_>, process: &TorchProcess) -> io::Result<()> {
    let command = process.command.as_deref().map(|c| format!(" ({})", text::shorten(&text::clean(c), 60)));
    let (when, row_of) = match (process.stage, process.alive) {
        (TorchStage::Exit, _) => ("at its exit", "end"),
        (TorchStage::Sample, true) => ("which still runs", "last sample"),
        (TorchStage::Sample, false) => ("at its last sample", "last sample"),
    };
    page.paragraph("", &format!("PID {}{}, {when}:", process.pid, command.unwrap_or_default()))?;
    let mut columns = vec![Column::left(""), Column::right("LIVE TENSORS"), Column::right("CACHE")];
    columns.extend([Column::right("CONTEXT, LIBRARIES"), Column::right("LISTED")]);
    let mut grid = Grid::new(columns);
    for device in &process.devices {
        let label = device.uuid.as_ref().map_or_else(|| format!("CUDA {}", device.cuda_index), |uuid| page.label(uuid));
        grid.row(row(format!("  {label}, {row_of}"), &device.end));
        grid.row(row(format!("  {label}, peak"), &device.peak));
    }
    grid.write(page.style, page.out)?;
    for device in &process.devices {
        if let Some(live) = &device.live {
            tensors(page, live)?;
        }
        counts(page, device)?;
    }
    let is_said = |text: &str| process.advice.iter().any(|step| step.why.contains(text));
    for device in process.devices.iter().filter(|_| !is_said("empty_cache()")) {
        if let Some(bytes) = device.releasable_bytes {
            page.paragraph("  - ", &format!("empty_cache() would have given back {bytes}"))?;
        }
    }
    for thread in &process.threads {
        let function = thread.function.as_ref().map(|f| format!(", {f}")).unwrap_or_default();
        page.paragraph("  - ", &format!("kept alive by the thread {}{function}", thread.name))?;
    }
    for gap in &process.gaps {
        page.paragraph("  - ", gap)?;
    }
    for step in &process.advice {
        if let Some(command) = &step.command {
            page.paragraph("  > ", &format!("{}: {command}", step.why))?;
        } else {
            page.paragraph("  > ", &step.why)?;
        }
    }
    Ok(())
}

fn row(label: String, split: &TorchSplit) -> [String; 5] {
    [
        label,
        words::amount(split.live_bytes),
        words::amount(split.cached_bytes),
        words::amount(split.context_bytes),
        words::amount(split.listed_bytes),
    ]
}

fn tensors(page: &mut Page<'_>, live: &TorchLive) -> io::Result<()> {
    let alike = alike(&live.largest);
    let (mut rest, mut bytes) = (live.storages, live.bytes);
    for Alike { names, what, storages } in alike.into_iter().take(STORAGES) {
        let (count, sum) = (storages.len() as u64, storages.iter().map(|s| s.bytes).sum());
        (rest, bytes) = (rest.saturating_sub(count), bytes.saturating_sub(sum));
        let times = if count > 1 { format!("{count} of ") } else { String::new() };
        page.paragraph("  - ", &format!("{sum} {names} ({times}{what})"))?;
    }
    if rest > 0 {
        let storages = if rest == 1 { "storage" } else { "storages" };
        page.paragraph("  - ", &format!("{bytes} in {rest} other {storages}"))?;
    }
    if let Some(hidden) = live.hidden_bytes.filter(|hidden| hidden.0 >= 1 << 20) {
        let what =
            "held by C++ alone, without a Python object: autograd, DDP buckets, CUDA graphs or cuBLAS workspaces";
        page.paragraph("  - ", &format!("{hidden} {what}"))?;
    }
    Ok(())
}

/// Storages that differ by their place in a list alone.
struct Alike<'a> {
    names: String,
    what: String,
    storages: Vec<&'a TorchStorage>,
}

/// The largest first.
fn alike(largest: &[TorchStorage]) -> Vec<Alike<'_>> {
    let mut found: Vec<(String, Alike<'_>)> = Vec::new();
    for storage in largest {
        let shape: Vec<String> = storage.shape.iter().map(ToString::to_string).collect();
        let shape = if shape.is_empty() { "scalar".into() } else { shape.join("×") };
        let what = format!("{shape} {}", storage.dtype);
        let names: Vec<String> = storage.references.iter().map(name).collect();
        let names = if names.is_empty() { "no name found".into() } else { names.join("; also ") };
        let lists = storage.references.iter().map(in_list).collect::<Option<Vec<_>>>();
        let list = lists.filter(|lists| !lists.is_empty()).map(|lists| lists.join("; also "));
        let key = format!("{} {what}", list.as_ref().unwrap_or(&names));
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some((_, alike)) => {
                alike.storages.push(storage);
                alike.names = list.unwrap_or(names);
            }
            None => found.push((key, Alike { names, what, storages: vec![storage] })),
        }
    }
    let mut found: Vec<Alike<'_>> = found.into_iter().map(|(_, alike)| alike).collect();
    found.sort_by_key(|alike| std::cmp::Reverse(alike.storages.iter().map(|s| s.bytes.0).sum::<u64>()));
    found
}

/// `a.losses[…]` for `a.losses[3]`.
fn in_list(reference: &TorchReference) -> Option<String> {
    let (list, place) = reference.name.strip_suffix(']')?.rsplit_once('[')?;
    let list = TorchReference { name: format!("{list}[…]"), ..reference.clone() };
    (!place.is_empty() && place.bytes().all(|b| b.is_ascii_digit())).then(|| name(&list))
}

fn name(reference: &TorchReference) -> String {
    let name = text::shorten(&reference.name, NAME);
    match &reference.scope {
        Some(scope) => format!("{name}, {}", text::shorten(scope, NAME)),
        None => name,
    }
}

fn counts(page: &mut Page<'_>, device: &TorchDevice) -> io::Result<()> {
    let (ooms, retries) = (device.ooms.unwrap_or(0), device.retries.unwrap_or(0));
    if ooms + retries > 0 {
        page.paragraph("  - ", &format!("allocations that failed: {ooms}, that needed an emptied cache: {retries}"))?;
    }
    Ok(())
}
