//! The report of `status` for people: like nvidia-smi, with the holders that nvidia-smi hides.

use super::{
    grid::{Column, Grid},
    parts::{Page, known_memory},
};
use crate::{
    model::{Bytes, Cause, DeviceStatus, Holder, StatusReport, groups},
    report::{Style, words},
    text,
};
use anstyle::AnsiColor;
use std::io::{self, Write};

/// Writes the status.
///
/// # Errors
/// If the writer fails.
pub fn status(report: &StatusReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let devices = report.devices.iter().map(|d| (d.uuid.clone(), d.label())).collect();
    let mut page = Page::new(style, out, devices);
    headline(&mut page, report)?;
    stands_out(&mut page, report)?;
    device_table(&mut page, report)?;
    if !report.holders.is_empty() {
        page.heading("Who holds it")?;
        page.holders(&report.holders.iter().collect::<Vec<_>>())?;
        if style.verbose {
            page.why(&report.holders.iter().collect::<Vec<_>>())?;
        }
        page.more |= !style.verbose;
    }
    page.open_only(&report.open_only)?;
    page.ghosts(&report.ghosts.iter().collect::<Vec<_>>())?;
    page.findings(&report.findings)?;
    page.gaps(&report.gaps)?;
    page.advice(&report.advice)?;
    match page.more {
        true => page.command("\nThe evidence for each cause, and whole command lines: ", "gpuresid -v"),
        false => Ok(()),
    }
}

fn headline(page: &mut Page<'_>, report: &StatusReport) -> io::Result<()> {
    let gpus: Vec<&DeviceStatus> = report.devices.iter().filter(|d| !d.is_instance()).collect();
    let instances = report.devices.len() - gpus.len();
    let mut on = Vec::new();
    if !gpus.is_empty() || instances == 0 {
        on.push(words::count(gpus.len(), "GPU", "GPUs"));
    }
    if instances > 0 {
        on.push(words::count(instances, "MIG instance", "MIG instances"));
    }
    let on = words::list(&on);
    // MIG instances are parts of their GPU: they are added up only where no whole GPU is shown.
    let counted: Vec<&DeviceStatus> = if gpus.is_empty() { report.devices.iter().collect() } else { gpus };
    let sum = |of: fn(&DeviceStatus) -> Option<Bytes>| counted.iter().map(|d| of(d)).sum::<Option<Bytes>>();
    let used = match (sum(|d| d.used_bytes), sum(|d| d.total_bytes)) {
        (Some(used), Some(total)) => format!("{used} of {total} in use on {on}"),
        _ => format!("what is in use on {on} could not be read in full"),
    };
    let mut versions = Vec::new();
    versions.extend(report.driver_version.as_ref().map(|v| format!("driver {v}")));
    versions.extend(report.cuda_version.as_ref().map(|v| format!("CUDA {v}")));
    let versions = if versions.is_empty() { String::new() } else { format!(" ({})", versions.join(", ")) };
    let label = if report.simulated { "Simulated GPU, not a real one: " } else { "GPU memory: " };
    let plain = text::clean(&format!("{used}{versions}"));
    if page.style.width.is_some_and(|columns| text::width(label) + text::width(&plain) > usize::from(columns)) {
        return page.paragraph("", &format!("{label}{plain}"));
    }
    let used = page.style.bold(&used);
    page.line(&format!("{label}{used}{}", page.style.dim(&text::clean(&versions))))
}

fn stands_out(page: &mut Page<'_>, report: &StatusReport) -> io::Result<()> {
    let odd: Vec<_> = report
        .holders
        .iter()
        .filter(|h| words::stands_out(h.cause) || (h.cause == Cause::Detached && is_advised(report, h.pid)))
        .collect();
    let one = |group: &Vec<&Holder>| {
        let first = group.first()?;
        let memory = if group.iter().any(|h| known_memory(&h.devices)) {
            format!(", {}", words::held(group))
        } else {
            String::new()
        };
        let who = match group.len() {
            1 => format!("PID {}", first.pid),
            n => format!("{n} × {}", text::shorten(&words::all_called(group), 60)),
        };
        Some(format!("{who} ({}{memory})", words::cause(first.cause)))
    };
    let odd: Vec<String> = groups(&odd).iter().filter_map(one).collect();
    if !odd.is_empty() {
        let line = format!("Look at {}.", words::list(&odd));
        for line in text::wrap(&line, page.style.width.map(usize::from)) {
            page.line(&page.style.strong(AnsiColor::Yellow, &line))?;
        }
        return Ok(());
    }
    let quiet = report.ghosts.is_empty() && report.findings.is_empty() && report.gaps.is_empty();
    if quiet { page.line("Nothing stands out.") } else { Ok(()) }
}

/// A step names it.
fn is_advised(report: &StatusReport, pid: u32) -> bool {
    let names = |command: &str| command.split([' ', ';']).any(|word| word == pid.to_string());
    report.advice.iter().filter_map(|step| step.command.as_deref()).any(names)
}

fn device_table(page: &mut Page<'_>, report: &StatusReport) -> io::Result<()> {
    let with_bar1 = report.devices.iter().any(|d| d.bar1_total_bytes.is_some());
    let mut columns = vec![
        Column::left("DEVICE"),
        Column::dispensable("NAME"),
        Column::right("TOTAL"),
        Column::right("FREE"),
        Column::right("USED ="),
        Column::right("LISTED +"),
        Column::right("UNACCOUNTED"),
    ];
    // Asked of all and answered by some: who does not answer has a mark.
    let with_busy = report.devices.iter().any(|d| d.utilization_percent.is_some());
    if with_busy {
        columns.push(Column::right("BUSY"));
    }
    if with_bar1 {
        columns.extend([Column::right("BAR1 USED"), Column::right("BAR1 TOTAL")]);
    }
    let mut grid = Grid::new(columns);
    for d in &report.devices {
        let mut row = vec![
            d.label(),
            d.name.clone().unwrap_or_else(|| "?".into()),
            words::amount(d.total_bytes),
            words::amount(d.free_bytes),
            words::amount(d.used_bytes),
            words::amount(d.listed_bytes),
            words::signed(d.unaccounted_bytes),
        ];
        if with_busy {
            row.push(d.utilization_percent.map_or_else(|| "?".into(), |percent| format!("{percent}%")));
        }
        if with_bar1 {
            row.extend([words::amount(d.bar1_used_bytes), words::amount(d.bar1_total_bytes)]);
        }
        grid.row(row);
    }
    page.line("")?;
    grid.write(page.style, page.out)
}
