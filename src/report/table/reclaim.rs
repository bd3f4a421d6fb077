//! The plan and the result of `reclaim` for people, and what `check --cleanup` ended.

use super::{
    grid::{Column, Grid},
    life::life_of,
    parts::Page,
};
use crate::{
    model::{
        Bytes, Cause, Cleanup, ReclaimReport, ReclaimStep, Report, Role, StepOutcome, Uuid, gist, said_of_all,
        step_groups,
    },
    report::{Style, words},
    text,
};
use anstyle::AnsiColor;
use std::io::{self, Write};

/// What the report itself does not know: how it was asked for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Why there is nobody to end, where there is nobody.
    pub nobody: String,
    /// The command line that carries the plan out; `None`: it cannot be pasted.
    pub carry_out: Option<String>,
}

/// Writes the plan, or what became of it.
///
/// # Errors
/// If the writer fails.
pub fn reclaim(report: &ReclaimReport, asked: &Asked, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let devices = report.devices.iter().map(|d| (d.uuid.clone(), d.label())).collect();
    let mut page = Page::new(style, out, devices);
    headline(&mut page, report, asked)?;
    for (number, group) in step_groups(&report.steps).iter().enumerate() {
        one(&mut page, number + 1, group)?;
    }
    if !report.left_alone.is_empty() {
        page.heading("Left alone")?;
        for left in &report.left_alone {
            let command = left.command.as_ref().map(|c| format!(" ({})", text::shorten(c, 60))).unwrap_or_default();
            let why = text::program::pasteable(&left.why);
            page.paragraph("- ", &format!("PID {}{command}: {why}", left.pid))?;
        }
    }
    if report.carried_out && !report.steps.is_empty() {
        device_table(&mut page, report)?;
    }
    page.gaps(&report.gaps)?;
    page.advice(&report.advice)?;
    if !report.carried_out && !report.steps.is_empty() {
        match &asked.carry_out {
            Some(command) => {
                page.line("\nNothing was done. To carry this out:")?;
                page.command("  ", command)?;
            }
            None => page.line("\nNothing was done. To carry this out, add --yes.")?,
        }
    }
    Ok(())
}

fn headline(page: &mut Page<'_>, report: &ReclaimReport, asked: &Asked) -> io::Result<()> {
    if report.steps.is_empty() {
        return page.paragraph("reclaim: ", &asked.nobody);
    }
    if !report.carried_out {
        let n = words::count(report.steps.len(), "process", "processes");
        let sentence = format!("reclaim: plan to end {n}{}", promise(report));
        return page.line(&page.style.bold(&sentence));
    }
    let back: Option<Bytes> = report.devices.iter().map(|d| d.came_back_bytes).sum();
    let back = back.map_or_else(|| "what came back could not be read".into(), |b| format!("{b} came back"));
    let (color, word) = match report.exit_code {
        crate::exit::CLEAN => (AnsiColor::Green, "done"),
        crate::exit::RESIDUE => (AnsiColor::Red, what_is_wrong(report)),
        _ => (AnsiColor::Yellow, "could not see enough"),
    };
    let again = match report.started_again.as_slice() {
        [] => String::new(),
        [one] => format!("; PID {one} was started in its place"),
        many => format!("; PID {} were started in their place", text::ranges(many).join(", ")),
    };
    let word = page.style.strong(color, word);
    page.line(&format!("reclaim: {word}: {back}{again}"))
}

/// What the plan should give back, to follow whom it ends.
fn promise(report: &ReclaimReport) -> String {
    let known: Bytes = report.steps.iter().flat_map(|step| &step.gives_back).filter_map(|held| held.held_bytes).sum();
    if !report.steps.iter().any(ReclaimStep::gives_an_unknown_amount) {
        return format!(", which should give back {known}");
    }
    if known > Bytes::ZERO {
        return format!(", which should give back {known} or more");
    }
    let all: Vec<&ReclaimStep> = report.steps.iter().collect();
    let possible: Bytes = may_give_back(&all).iter().map(|(_, bytes)| *bytes).sum();
    match (possible, report.steps.len()) {
        (Bytes::ZERO, 1) => "; how much it gives back is not known yet".into(),
        (Bytes::ZERO, _) => "; how much they give back is not known yet".into(),
        (possible, _) => format!(", which may give back up to {possible}"),
    }
}

/// Why it is not done: memory, a process that lives on, or one that came after.
fn what_is_wrong(report: &ReclaimReport) -> &'static str {
    /// Less is what a context costs beside its entry.
    const JITTER: Bytes = Bytes::mib(16);
    let remains = report.devices.iter().any(|d| d.remaining_bytes.is_none_or(|bytes| bytes > JITTER));
    let ended = |step: &ReclaimStep| matches!(step.outcome, Some(StepOutcome::Ended | StepOutcome::GoneBefore));
    match remains {
        true => "not all came back",
        false if !report.steps.iter().all(ended) => "not all ended",
        false => "started again",
    }
}

/// What may be theirs on each device, all or nothing of it: not added up over several.
fn may_give_back<'a>(group: &[&'a ReclaimStep]) -> Vec<(&'a Uuid, Bytes)> {
    let mut most: Vec<(&Uuid, Bytes)> = Vec::new();
    for held in group.iter().flat_map(|step| &step.gives_back) {
        let Some(bytes) = held.may_hold_bytes else { continue };
        match most.iter_mut().find(|(uuid, _)| **uuid == held.uuid) {
            Some((_, known)) => *known = bytes.max(*known),
            None => most.push((&held.uuid, bytes)),
        }
    }
    most
}

/// One step, or many that are alike.
fn one(page: &mut Page<'_>, number: usize, group: &[&ReclaimStep]) -> io::Result<()> {
    let Some((step, others)) = group.split_first() else { return Ok(()) };
    let role = match (step.role, step.cause) {
        (Role::Supervisor, _) => ", supervisor".to_owned(),
        (Role::Holder, Some(cause)) => format!(", {}", words::cause(cause)),
        (Role::Holder, None) => String::new(),
    };
    let user = step.user.as_ref().map(|u| format!(" of {u}")).unwrap_or_default();
    let lead = format!("{number:>2}. ");
    page.line("")?;
    let indent = "    ";
    let pids: Vec<u32> = group.iter().map(|step| step.pid).collect();
    let pids = text::ranges(&pids).join(", ");
    let all_the_same = others.iter().all(|other| other.command == step.command);
    let called = if all_the_same { step.command.clone() } else { gist(&step.command) };
    let called = text::shorten(&called, 120);
    if others.is_empty() {
        page.paragraph(&lead, &format!("PID {pids}{user}{role}: {called}"))?;
    } else {
        page.paragraph(&lead, &format!("{} processes{user}{role}: {called}", group.len()))?;
        page.paragraph(indent, &format!("PID {pids}"))?;
    }
    let whys: Vec<Vec<String>> = group.iter().map(|step| step.why.clone()).collect();
    for why in said_of_all(step.pid, &whys) {
        page.paragraph(indent, &format!("why: {why}"))?;
    }
    match step.outcome {
        None => {
            page.paragraph(indent, &format!("signals: {}", step.signals.join(", then ")))?;
            if step.role == Role::Holder {
                let memory = memory(page, group);
                page.paragraph(indent, &format!("gives back: {memory}"))?;
            }
            let disturbs = match others.iter().all(|other| other.disturbs == step.disturbs) {
                true => step.disturbs.clone(),
                false => "these processes, and what runs below them".to_owned(),
            };
            page.paragraph(indent, &format!("Disturbs: {disturbs}"))?;
            for fact in life_of(group) {
                page.paragraph(indent, &fact)?;
            }
            let Some(restarter) = &step.restarter else { return Ok(()) };
            let how = words::how_to_stop(restarter);
            page.paragraph(indent, &format!("{}. {how}", words::restarter(restarter)))?;
            restarter.end_first(step.pid).map_or(Ok(()), |command| page.command("      ", &command))
        }
        Some(outcome) => {
            let word = match outcome {
                StepOutcome::Ended => "ended",
                StepOutcome::GoneBefore => "had ended before",
                StepOutcome::Lives => "lives",
                StepOutcome::Refused => "not signalled",
            };
            let why = step.outcome_why.as_ref().map(|w| format!(": {w}")).unwrap_or_default();
            let sent = if step.sent.is_empty() { String::new() } else { format!(" (sent: {})", step.sent.join(", ")) };
            page.paragraph(indent, &format!("{word}{why}{sent}"))
        }
    }
}

/// What they give back together on each device.
fn memory(page: &Page<'_>, group: &[&ReclaimStep]) -> String {
    let mut sums: Vec<(&Uuid, Bytes)> = Vec::new();
    for held in group.iter().flat_map(|step| &step.gives_back) {
        let Some(bytes) = held.held_bytes else { continue };
        match sums.iter_mut().find(|(uuid, _)| **uuid == held.uuid) {
            Some((_, sum)) => *sum = *sum + bytes,
            None => sums.push((&held.uuid, bytes)),
        }
    }
    let known: Vec<String> = sums.iter().map(|(uuid, bytes)| format!("{bytes} on {}", page.label(uuid))).collect();
    if !known.is_empty() {
        return words::list(&known);
    }
    let possible: Vec<String> =
        may_give_back(group).iter().map(|(uuid, bytes)| format!("{bytes} on {}", page.label(uuid))).collect();
    if !possible.is_empty() {
        return format!("not known yet; up to {}, which no process list names", words::list(&possible));
    }
    let why = match group.first().and_then(|step| step.cause) {
        Some(Cause::Platform) => "the driver does not tell on this platform",
        _ => "the driver lists no memory for it",
    };
    format!("not known yet: {why}")
}

fn device_table(page: &mut Page<'_>, report: &ReclaimReport) -> io::Result<()> {
    let mut grid = Grid::new([
        Column::left("DEVICE"),
        Column::right("PLANNED"),
        Column::right("CAME BACK"),
        Column::right("REMAINS"),
        Column::right("USED BEFORE"),
        Column::right("NOW"),
    ]);
    for d in &report.devices {
        grid.row([
            d.label(),
            words::amount(d.expected_bytes),
            words::amount(d.came_back_bytes),
            words::amount(d.remaining_bytes),
            words::amount(d.used_before_bytes),
            words::amount(d.used_after_bytes),
        ]);
    }
    page.line("")?;
    grid.write(page.style, page.out)
}

/// So many processes of a clean-up are shown one by one.
const SHOWN: usize = 10;

/// Writes what `check --cleanup` ended, below the report.
///
/// # Errors
/// If the writer fails.
pub fn cleanup(report: &Report, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let Some(cleanup) = &report.cleanup else { return Ok(()) };
    if cleanup.ended.is_empty() && cleanup.left_alone.is_empty() {
        return Ok(());
    }
    let devices = report.devices.iter().map(|d| (d.uuid.clone(), d.label())).collect();
    let mut page = Page::new(style, out, devices);
    page.line("")?;
    page.paragraph("", &sentence(&page, cleanup))?;
    let (ended, left) = (page.shown(cleanup.ended.len(), SHOWN), page.shown(cleanup.left_alone.len(), SHOWN));
    let more = (cleanup.ended.len() - ended, cleanup.left_alone.len() - left);
    for ended in cleanup.ended.iter().take(ended) {
        let sent = ended.sent.join(", ");
        page.paragraph("- ", &format!("PID {} ({}): {sent}", ended.pid, text::shorten(&ended.command, 80)))?;
    }
    if more.0 > 0 {
        page.paragraph("- ", &format!("and {} more", more.0))?;
    }
    for left in cleanup.left_alone.iter().take(left) {
        let command = left.command.as_ref().map(|c| format!(" ({})", text::shorten(c, 80))).unwrap_or_default();
        page.paragraph("- ", &format!("PID {}{command}: {}", left.pid, left.why))?;
    }
    if more.1 > 0 {
        page.paragraph("- ", &format!("and {} more that still run", more.1))?;
    }
    Ok(())
}

fn sentence(page: &Page<'_>, cleanup: &Cleanup) -> String {
    let n = words::count(cleanup.ended.len(), "process", "processes");
    let back: Vec<String> = cleanup
        .devices
        .iter()
        .filter_map(|d| Some((d.came_back()?, d)))
        .filter(|(bytes, _)| *bytes > Bytes::ZERO)
        .map(|(bytes, d)| format!("{bytes} on {}", page.label(&d.uuid)))
        .collect();
    let back = if back.is_empty() { String::new() } else { format!("; {} came back", words::list(&back)) };
    let rest = match cleanup.nothing_lives {
        true => "nothing of the command is left",
        false => "something of the command still runs",
    };
    format!("cleanup: {n} ended in {:.1} s{back}; {rest}", cleanup.seconds)
}
