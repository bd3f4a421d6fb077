//! PyTorch's view for people: the three parts of each process's memory, the largest tensors with their names, what to
//! do. Shown under a clean verdict too, because whoever asked for it wants to read it.

use super::{
    grid::{Column, Grid},
    parts::Page,
};
use crate::{
    model::{TorchDevice, TorchLive, TorchProcess, TorchReference, TorchSplit, TorchStage},
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
pub(super) fn torch(page: &mut Page<'_>, processes: &[TorchProcess]) -> io::Result<()> {
    page.heading("Inside PyTorch")?;
    if processes.is_empty() {
        return page.paragraph("- ", "no process of the command told that PyTorch uses CUDA in it");
    }
    for process in processes.iter().take(PROCESSES) {
        one(page, process)?;
    }
    if processes.len() > PROCESSES {
        let more = processes.len() - PROCESSES;
        page.paragraph("- ", &format!("{more} more processes are in the JSON report"))?;
    }
    page.paragraph(
        "",
        "All of it goes when its process ends: tensors, cache, context. What stays after that has another holder.",
    )
}

fn one(page: &mut Page<'_>, process: &TorchProcess) -> io::Result<()> {
    let command = process.command.as_deref().map(|c| format!(" ({})", text::shorten(&text::clean(c), 60)));
    let when = match (process.stage, process.alive) {
        (TorchStage::Exit, _) => "at its exit",
        (TorchStage::Sample, true) => "at its last sample, it still runs",
        (TorchStage::Sample, false) => "at its last sample",
    };
    page.paragraph("", &format!("PID {}{}, {when}:", process.pid, command.unwrap_or_default()))?;
    let mut columns = vec![Column::left(""), Column::right("LIVE TENSORS"), Column::right("CACHE")];
    columns.extend([Column::right("CONTEXT, LIBRARIES"), Column::right("LISTED")]);
    let mut grid = Grid::new(columns);
    for device in &process.devices {
        let label = device.uuid.as_ref().map_or_else(|| format!("CUDA {}", device.cuda_index), |uuid| page.label(uuid));
        grid.row(row(format!("  {label}, end"), &device.end));
        grid.row(row(format!("  {label}, peak"), &device.peak));
    }
    grid.write(page.style, page.out)?;
    for device in &process.devices {
        if let Some(live) = &device.live {
            tensors(page, live)?;
        }
        counts(page, device)?;
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
    for storage in live.largest.iter().take(STORAGES) {
        let shape: Vec<String> = storage.shape.iter().map(ToString::to_string).collect();
        let shape = if shape.is_empty() { "scalar".into() } else { shape.join("×") };
        let names: Vec<String> = storage.references.iter().map(name).collect();
        let names = if names.is_empty() { "no name found".into() } else { names.join("; also ") };
        page.paragraph("  - ", &format!("{} {} ({shape} {})", storage.bytes, names, storage.dtype))?;
    }
    let rest = live.storages.saturating_sub(STORAGES as u64);
    if rest > 0 {
        let shown: crate::model::Bytes = live.largest.iter().take(STORAGES).map(|s| s.bytes).sum();
        page.paragraph("  - ", &format!("{} in {rest} smaller storages", live.bytes.saturating_sub(shown)))?;
    }
    if let Some(hidden) = live.hidden_bytes.filter(|hidden| hidden.0 >= 1 << 20) {
        let what =
            "held by C++ alone, without a Python object: autograd, DDP buckets, CUDA graphs or cuBLAS workspaces";
        page.paragraph("  - ", &format!("{hidden} {what}"))?;
    }
    Ok(())
}

fn name(reference: &TorchReference) -> String {
    let name = text::shorten(&reference.name, NAME);
    match &reference.scope {
        Some(scope) => format!("{name}, {}", text::shorten(scope, NAME)),
        None => name,
    }
}

fn counts(page: &mut Page<'_>, device: &TorchDevice) -> io::Result<()> {
    if let Some(bytes) = device.releasable_bytes {
        page.paragraph("  - ", &format!("empty_cache() would have given back {bytes}"))?;
    }
    let (ooms, retries) = (device.ooms.unwrap_or(0), device.retries.unwrap_or(0));
    if ooms + retries > 0 {
        page.paragraph("  - ", &format!("allocations that failed: {ooms}, that needed an emptied cache: {retries}"))?;
    }
    Ok(())
}
