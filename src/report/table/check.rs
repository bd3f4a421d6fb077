//! The report of `check` and `diff` for people. A clean one is a single line.

use super::{
    grid::{Column, Grid},
    parts::Page,
    torch::{is_about_torch, torch},
};
use crate::{
    model::{Bytes, Cause, CommandReport, DeviceReport, FindingKind, Holder, Lineage, Report, Scope, Verdict},
    report::{Style, words},
    text,
};
use anstyle::AnsiColor;
use std::io::{self, Write};

/// Less is noise.
const JITTER: Bytes = Bytes::mib(16);

/// Writes the report.
///
/// # Errors
/// If the writer fails.
pub fn check(report: &Report, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let devices = report.devices.iter().map(|d| (d.uuid.clone(), d.label())).collect();
    let mut page = Page::new(style, out, devices);
    headline(&mut page, report)?;
    if report.verdict == Verdict::Clean && !style.verbose {
        // Nothing is wrong. What was not seen did not matter, or the verdict would be another; it is in the JSON.
        for finding in &report.findings {
            page.finding("  note: ", finding)?;
        }
        page.leftovers(&report.leftovers)?;
        // What PyTorch was asked for is not about the verdict, and neither is where it could not be asked.
        if let Some(processes) = &report.torch {
            torch(&mut page, processes, &report.gaps)?;
            let blind: Vec<_> = report.gaps.iter().filter(|gap| is_about_torch(gap)).cloned().collect();
            page.gaps(&blind)?;
        }
        return Ok(());
    }
    command(&mut page, report)?;
    device_table(&mut page, report)?;
    holders(&mut page, report)?;
    page.ghosts(&report.ghosts.iter().collect::<Vec<_>>())?;
    page.findings(&report.findings)?;
    page.leftovers(&report.leftovers)?;
    if let Some(processes) = &report.torch {
        torch(&mut page, processes, &report.gaps)?;
    }
    page.gaps(&report.gaps)?;
    page.advice(&report.advice)?;
    last_line(&mut page, report)
}

/// The verdict once more, where the eye is when all has been printed.
fn last_line(page: &mut Page<'_>, report: &Report) -> io::Result<()> {
    let sum: Bytes = report.devices.iter().map(|d| d.charged_residue_bytes).sum();
    let own = report.holders.iter().filter(|h| h.lineage == Lineage::Own).count();
    let mut facts: Vec<String> = report.command.as_ref().and_then(timed_out).into_iter().collect();
    facts.push(verdict(report.verdict).to_owned());
    facts.extend((sum > Bytes::ZERO).then(|| sum.to_string()));
    facts.extend((own > 0).then(|| words::count(own, "process", "processes")));
    facts.push(format!("exit code {}", report.exit_code));
    let label = if report.simulated { "gpuresid (simulated GPU)" } else { "gpuresid" };
    let more = if page.more { " (with -v: more)" } else { "" };
    page.line(&format!("\n{label}: {}{more}", facts.join(", ")))
}

fn headline(page: &mut Page<'_>, report: &Report) -> io::Result<()> {
    let (color, word) = match report.verdict {
        Verdict::Clean => (AnsiColor::Green, "clean"),
        Verdict::Inconclusive => (AnsiColor::Yellow, "inconclusive"),
        Verdict::Residue => (AnsiColor::Red, "residue"),
    };
    // A command that did not come to its end comes first: whatever else is so, this run failed.
    let late = report.command.as_ref().and_then(timed_out);
    let (color, word, then) = match (&late, report.verdict) {
        (None, _) => (color, word.to_owned(), ": ".to_owned()),
        (Some(late), Verdict::Clean) => (AnsiColor::Yellow, late.clone(), "; ".to_owned()),
        (Some(late), _) => (color, late.clone(), format!("; {word}: ")),
    };
    let label = if report.simulated { "gpuresid (simulated GPU)" } else { "gpuresid" };
    let sentence = match report.verdict {
        Verdict::Clean => clean_sentence(report),
        Verdict::Inconclusive => inconclusive_sentence(report),
        Verdict::Residue => residue_sentence(report),
    };
    // A finding says more about a command that was killed; below another verdict the command has its own line.
    let said = report.verdict != Verdict::Clean || report.findings.iter().any(|f| f.kind() == FindingKind::Died);
    let ended = report.command.as_ref().filter(|_| !said).and_then(bad_end).unwrap_or_default();
    let cleaned = if report.verdict == Verdict::Residue { after_cleanup(report) } else { None };
    let head = format!("{label}: ");
    let line = format!("{head}{word}{then}{}{ended}{}", text::clean(&sentence), cleaned.unwrap_or_default());
    let columns = page.style.width.map(usize::from);
    let later = "  ";
    // Colour takes no room, so it comes after the breaking.
    let lines = match columns {
        Some(columns) if text::width(&line) > columns => text::wrap(&line, Some(columns.saturating_sub(later.len()))),
        _ => vec![line],
    };
    for (number, line) in lines.iter().enumerate() {
        match (number, line.strip_prefix(&head).and_then(|rest| rest.strip_prefix(&word))) {
            (0, Some(rest)) => page.line(&format!("{head}{}{rest}", page.style.strong(color, &word)))?,
            (0, None) => page.line(line)?,
            _ => page.line(&format!("{later}{line}"))?,
        }
    }
    Ok(())
}

/// What the clean-up after the verdict got back of what had stayed, where that is known.
fn after_cleanup(report: &Report) -> Option<String> {
    let cleaned = report.cleanup.as_ref().filter(|cleanup| !cleanup.ended.is_empty())?;
    let back: Option<Vec<(Bytes, Bytes)>> = report
        .devices
        .iter()
        .filter(|d| d.verdict == Verdict::Residue)
        .map(|d| {
            let back = cleaned.devices.iter().find(|c| c.uuid == d.uuid)?.came_back()?;
            // Others may have given something back at the same time.
            Some((d.charged_residue_bytes, back.min(d.charged_residue_bytes)))
        })
        .collect();
    let back = back?;
    let all = back.iter().all(|(stayed, back)| stayed.saturating_sub(*back) <= JITTER);
    let sum: Bytes = back.iter().map(|(_, back)| *back).sum();
    match (all, sum == Bytes::ZERO) {
        (true, _) => Some("; --cleanup got it back".into()),
        (false, true) => None,
        (false, false) => Some(format!("; --cleanup got {sum} of it back")),
    }
}

/// That the time limit ended the command, or could not.
fn timed_out(command: &CommandReport) -> Option<String> {
    let after = command.timeout_seconds.map(|limit| format!(" after {}", words::seconds(limit))).unwrap_or_default();
    let runs = if ended_somehow(command) { "" } else { ", and could not be ended" };
    command.timed_out.then(|| format!("timed out{after}{runs}"))
}

const fn ended_somehow(command: &CommandReport) -> bool {
    command.exit_code.is_some() || command.signal.is_some()
}

/// How the command ended, where it did not end well. A time limit is said apart.
fn bad_end(command: &CommandReport) -> Option<String> {
    let ended = end_of(command).filter(|_| !command.timed_out)?;
    (command.exit_code != Some(0)).then(|| format!("; the command {ended}"))
}

fn end_of(command: &CommandReport) -> Option<String> {
    if let Some(late) = timed_out(command) {
        return Some(late);
    }
    match (command.exit_code, command.signal) {
        (_, Some(signal)) => Some(format!("was ended by {}", words::signal(signal))),
        (Some(code), None) => Some(format!("exited with {code}")),
        (None, None) => None,
    }
}

fn clean_sentence(report: &Report) -> String {
    let stays: Bytes = report.devices.iter().map(|d| d.charged_residue_bytes).sum();
    let found = |kinds: &[FindingKind]| report.findings.iter().any(|f| kinds.contains(&f.kind()));
    // Memory of others may have grown: then "all came back" would be read as a statement about the GPU.
    let others = found(&[FindingKind::Unattributed, FindingKind::Moved]);
    let grown: Bytes = report.holders.iter().filter(|h| h.lineage == Lineage::Foreign).map(Holder::grown).sum();
    let swelled = grown > JITTER || found(&[FindingKind::Grown]);
    let fact = match &report.command {
        _ if stays > Bytes::ZERO => {
            format!("{stays} of GPU memory stay{}, within the limit of {}", place(report), report.limits.max_residue)
        }
        Some(command) if command.used_gpu == Some(false) || command.too_short_to_see => return no_use(report, command),
        Some(command) if !ended_somehow(command) => "the command still runs and holds no GPU memory".to_string(),
        Some(_) if others => "nothing that is left is charged to the command".to_string(),
        Some(_) if swelled => "all of the command's GPU memory came back".to_string(),
        Some(_) => "all GPU memory came back".to_string(),
        None if report.scope == Scope::Run => "nothing with the snapshot's marker holds GPU memory".to_string(),
        None if swelled => format!("no new process holds GPU memory; those that were there before have {grown} more"),
        None if others => "no process is known to hold GPU memory that was not held before".to_string(),
        None => "no GPU memory is held that was not held before".to_string(),
    };
    let fact = if stays > Bytes::ZERO { fact } else { format!("{fact}{}", place(report)) };
    let peaks: Vec<_> = report
        .devices
        .iter()
        .filter_map(|d| Some((d, d.command_peak_bytes.filter(|peak| *peak > Bytes::ZERO)?)))
        .map(|(d, peak)| match report.devices.len() {
            1 => peak.to_string(),
            _ => format!("{peak} on {}", d.label()),
        })
        .collect();
    match peaks.is_empty() {
        true => fact,
        false => format!("{fact} (the command's peak: {})", peaks.join(", ")),
    }
}

/// Nothing came back because nothing was taken, or none of it was seen.
fn no_use(report: &Report, command: &CommandReport) -> String {
    match (looked_at(report), command.too_short_to_see) {
        (None, false) => "the command used no GPU".into(),
        (Some(gpus), false) => format!("the command used nothing of {gpus}"),
        (gpus, true) => {
            let gpus = gpus.unwrap_or_else(|| "a GPU".into());
            let ran = match command.seconds {
                Some(seconds) if seconds < 0.01 => "less than 0.01 s".to_owned(),
                Some(seconds) => format!("{seconds:.2} s"),
                None => "briefly".to_owned(),
            };
            format!("the command was not seen using {gpus} (it ran {ran}, too short to see)")
        }
    }
}

/// Which GPUs that is about, where it is not about all that there are.
fn place(report: &Report) -> String {
    looked_at(report).map(|gpus| format!(" on {gpus}")).unwrap_or_default()
}

/// The GPUs that were looked at; `None`: all that there are.
fn looked_at(report: &Report) -> Option<String> {
    /// More are counted.
    const MOST_NAMED: usize = 4;
    let labels: Vec<_> = report.devices.iter().map(DeviceReport::label).collect();
    match labels.len() {
        _ if report.left_out.is_empty() => None,
        n if n > MOST_NAMED => Some(format!("{n} of {} GPUs", n + report.left_out.len())),
        _ => Some(words::list(&labels)),
    }
}

fn residue_sentence(report: &Report) -> String {
    let left: Vec<&DeviceReport> = report.devices.iter().filter(|d| d.verdict == Verdict::Residue).collect();
    let sum: Bytes = left.iter().map(|d| d.charged_residue_bytes).sum();
    let exact = left.iter().all(|d| d.charged_residue_max_bytes == Some(d.charged_residue_bytes));
    let least = if exact { "" } else { "at least " };
    let what = match report.command {
        Some(_) => "of GPU memory did not come back",
        None => "of GPU memory is held that was not held before",
    };
    let place = match left.as_slice() {
        [one] => one.label(),
        _ => {
            let parts: Vec<_> = left.iter().map(|d| format!("{} on {}", d.charged_residue_bytes, d.label())).collect();
            parts.join(", ")
        }
    };
    format!("{least}{sum} {what} ({place}; limit {})", limit(report))
}

fn limit(report: &Report) -> String {
    match report.limits.max_residue_rate_percent {
        Some(percent) => format!("{} or {percent}% of the peak", report.limits.max_residue),
        None => report.limits.max_residue.to_string(),
    }
}

fn inconclusive_sentence(report: &Report) -> String {
    let open: Vec<_> = report
        .devices
        .iter()
        .filter(|d| d.verdict == Verdict::Inconclusive)
        .map(|d| {
            let label = d.label();
            match d.used_after_bytes {
                None => format!("{label} cannot be read"),
                Some(_) => {
                    format!("{label}: {}", words::interval(d.charged_residue_bytes, d.charged_residue_max_bytes))
                }
            }
        })
        .collect();
    let question = match report.command {
        Some(_) => "cannot tell whether all GPU memory came back",
        None => "cannot tell whether the same GPU memory is held as before",
    };
    match &report.command {
        _ if !open.is_empty() || !report.limits.require_gpu => {}
        Some(command) if command.used_gpu == Some(false) || command.too_short_to_see => {
            return format!("{} (--require-gpu)", no_use(report, command));
        }
        _ => return "cannot tell whether the command used a GPU (--require-gpu)".into(),
    }
    if open.is_empty() { question.into() } else { format!("{question} ({})", open.join(", ")) }
}

fn command(page: &mut Page<'_>, report: &Report) -> io::Result<()> {
    let Some(command) = &report.command else { return Ok(()) };
    let mut facts = Vec::new();
    facts.push(end_of(command).unwrap_or_else(|| "still runs".into()));
    if let Some(seconds) = command.seconds {
        facts.push(format!("ran {seconds:.1} s"));
    }
    if let Some(seconds) = report.settled_seconds {
        let end = report.settle_end.map(|end| format!(": {}", words::settle_end(end))).unwrap_or_default();
        facts.push(format!("waited {seconds:.1} s{end}"));
    }
    let all = text::clean(&command.argv.shown().join(" "));
    let shown = if page.style.verbose { all.clone() } else { text::shorten(&all, 200) };
    page.more |= shown != all;
    let line = format!("{shown} ({})", facts.join(", "));
    page.paragraph("  command: ", &line)
}

fn device_table(page: &mut Page<'_>, report: &Report) -> io::Result<()> {
    // Between two snapshots nobody looked, so there is no peak to show.
    let with_peak = report.command.is_some();
    let mut columns = vec![Column::left("DEVICE"), Column::dispensable("NAME"), Column::right("BEFORE")];
    if with_peak {
        columns.push(Column::right("PEAK"));
    }
    columns.extend([Column::right("NOW"), Column::right("CHARGED"), Column::left("VERDICT")]);
    let mut grid = Grid::new(columns);
    for d in &report.devices {
        let mut row = vec![d.label(), d.name.clone().unwrap_or_else(|| "?".into()), words::amount(d.used_before_bytes)];
        if with_peak {
            row.push(words::amount(d.peak_bytes));
        }
        row.extend([
            words::amount(d.used_after_bytes),
            words::interval(d.charged_residue_bytes, d.charged_residue_max_bytes),
            verdict(d.verdict).into(),
        ]);
        grid.row(row);
    }
    page.line("")?;
    grid.write(page.style, page.out)?;
    // What decided for residue is the amount, which stands in the first line.
    let several = report.devices.len() > 1;
    for d in report.devices.iter().filter(|d| d.verdict == Verdict::Inconclusive) {
        for because in d.because.iter() {
            let lead = if several { format!("{}: ", d.label()) } else { String::new() };
            page.paragraph("- ", &format!("{lead}{because}"))?;
        }
    }
    Ok(())
}

const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Clean => "clean",
        Verdict::Inconclusive => "inconclusive",
        Verdict::Residue => "residue",
    }
}

fn holders(page: &mut Page<'_>, report: &Report) -> io::Result<()> {
    let comparison = report.command.is_none();
    // Where all growth counts, who grew is charged, whoever it is.
    let charged = |h: &&Holder| report.scope == Scope::Device && h.grown() > Bytes::ZERO;
    let (grown, others): (Vec<&Holder>, Vec<&Holder>) =
        report.holders.iter().filter(|h| h.lineage == Lineage::Foreign).partition(charged);
    let of = |lineage| report.holders.iter().filter(|h| h.lineage == lineage).collect();
    let groups: [(&str, Vec<&Holder>); 4] = [
        (if comparison { "New since the earlier snapshot" } else { "Left by the command" }, of(Lineage::Own)),
        (if comparison { "Perhaps new" } else { "Perhaps left by the command" }, of(Lineage::Unknown)),
        ("There before and grown since: charged, because all growth is", grown),
        ("Others on these GPUs, not charged", others),
    ];
    for (heading, group) in groups.into_iter().filter(|(_, group)| !group.is_empty()) {
        page.heading(heading)?;
        page.holders(&group)?;
        let all = group.len();
        let verbose = page.style.verbose;
        let explained = |h: &&Holder| verbose || h.lineage != Lineage::Foreign || charged(h) || moved(h.cause);
        let explained: Vec<_> = group.into_iter().filter(explained).collect();
        page.more |= explained.len() < all;
        page.why(&explained)?;
    }
    Ok(())
}

/// A neighbour that may have something of ours.
const fn moved(cause: Cause) -> bool {
    matches!(cause, Cause::GrownNeighbour | Cause::ExportedHandle)
}
