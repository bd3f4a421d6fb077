//! The parts that `check` and `status` have in common: holders, why, ghosts, findings, gaps, advice.

use super::{
    grid::{Column, Grid},
    place::place,
};
use crate::{
    model::{Advice, Bytes, Cause, Finding, Gap, Ghost, Held, Holder, Leftover, Uuid, groups, said_of_all},
    report::{Style, words},
    text,
};
use std::io::{self, Write};

/// Where a text goes, and what is needed to name things in it.
pub(super) struct Page<'a> {
    pub(super) style: &'a Style,
    pub(super) out: &'a mut dyn Write,
    /// Each device with its label, in order.
    pub(super) devices: Vec<(Uuid, String)>,
    /// Something was not shown that `-v` shows.
    pub(super) more: bool,
}

impl<'a> Page<'a> {
    pub(super) fn new(style: &'a Style, out: &'a mut dyn Write, devices: Vec<(Uuid, String)>) -> Self {
        Self { style, out, devices, more: false }
    }
}

impl Page<'_> {
    /// So many of them are shown.
    pub(super) fn shown(&mut self, of: usize, most: usize) -> usize {
        let most = if self.style.verbose { of } else { most.min(of) };
        self.more |= most < of;
        most
    }

    /// Those that are alike together, where not all are asked for.
    fn gathered<'h>(&mut self, holders: &[&'h Holder]) -> Vec<Vec<&'h Holder>> {
        if self.style.verbose {
            return holders.iter().map(|holder| vec![*holder]).collect();
        }
        let groups = groups(holders);
        self.more |= groups.iter().any(|group| group.len() > 1);
        groups
    }
}

impl Page<'_> {
    pub(super) fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.out, "{line}")
    }

    pub(super) fn heading(&mut self, heading: &str) -> io::Result<()> {
        let heading = self.style.bold(heading);
        writeln!(self.out, "\n{heading}")
    }

    /// A paragraph behind `first`, its later lines indented as deep. The text may hold a stranger's words.
    pub(super) fn paragraph(&mut self, first: &str, paragraph: &str) -> io::Result<()> {
        self.paragraph_after(first, text::width(first), paragraph)
    }

    /// As [`Self::paragraph`] behind a text that takes `indent` columns, colour not counted.
    pub(super) fn paragraph_after(&mut self, first: &str, indent: usize, paragraph: &str) -> io::Result<()> {
        let room = self.style.width.map(|columns| usize::from(columns).saturating_sub(indent).max(20));
        for (number, line) in text::wrap(&text::clean(paragraph), room).iter().enumerate() {
            let lead = if number == 0 { first.to_string() } else { " ".repeat(indent) };
            writeln!(self.out, "{lead}{line}")?;
        }
        Ok(())
    }

    /// Something to paste: never broken, because a broken line does not work when pasted.
    pub(super) fn command(&mut self, first: &str, command: &str) -> io::Result<()> {
        let command = self.style.bold(&text::clean(&text::program::pasteable(command)));
        writeln!(self.out, "{first}{command}")
    }

    pub(super) fn label(&self, uuid: &Uuid) -> String {
        self.devices.iter().find(|(known, _)| known == uuid).map_or_else(|| text::clean(&uuid.0), |(_, l)| l.clone())
    }

    /// The table of holders.
    pub(super) fn holders(&mut self, holders: &[&Holder]) -> io::Result<()> {
        let several = self.devices.len() > 1;
        let places = holders.iter().any(|holder| place(holder).is_some());
        let mut columns = vec![Column::right("PID"), Column::left("USER"), Column::right("AGE")];
        // Where it belongs says more than that it sleeps, as most do.
        columns.push(if places { Column::optional("STATE") } else { Column::left("STATE") });
        if several {
            columns.push(Column::left("ON"));
        }
        columns.extend([Column::right("MEMORY"), Column::left("CAUSE")]);
        columns.extend(places.then_some(Column::optional("WHERE")));
        columns.push(Column::flexible("COMMAND"));
        let mut grid = Grid::new(columns);
        for group in self.gathered(holders) {
            let Some((holder, others)) = group.split_first() else { continue };
            let known = |cell: &Option<String>| cell.clone().unwrap_or_else(|| "?".into());
            if !others.is_empty() {
                let states = others.iter().all(|other| other.state == holder.state);
                let mut row = vec![
                    format!("{} ×", group.len()),
                    known(&holder.user),
                    group.iter().filter_map(|h| h.age_seconds).max().map_or_else(|| "?".into(), words::age),
                    if states { known(&holder.state) } else { "several".into() },
                ];
                row.extend(several.then(|| self.devices_of(&group)));
                row.extend([words::held(&group), words::cause(holder.cause).into()]);
                row.extend(places.then(|| place(holder).unwrap_or_default()));
                row.push(words::all_called(&group));
                grid.row(row);
                continue;
            }
            for (number, (on, memory)) in self.memory_of(holder).into_iter().enumerate() {
                // A second device of the same process repeats nothing but the numbers.
                let once = |cell: String| if number == 0 { cell } else { String::new() };
                let mut row = vec![
                    once(holder.pid.to_string()),
                    once(known(&holder.user)),
                    once(holder.age_seconds.map_or_else(|| "?".into(), words::age)),
                    once(known(&holder.state)),
                ];
                if several {
                    row.push(on);
                }
                row.extend([memory, once(words::cause(holder.cause).into())]);
                row.extend(places.then(|| once(place(holder).unwrap_or_default())));
                row.push(once(holder.name().to_owned()));
                grid.row(row);
            }
        }
        grid.write(self.style, self.out)
    }

    /// The devices on which a group has memory, those that follow each other as one.
    fn devices_of(&self, group: &[&Holder]) -> String {
        let holds = |uuid: &Uuid| {
            let mut held = group.iter().flat_map(|holder| &holder.devices).filter(|held| held.uuid == *uuid);
            held.any(|held| held.held_bytes.is_some() || held.may_hold_bytes.is_some())
        };
        let shown: Vec<_> = self.devices.iter().map(|(uuid, label)| (holds(uuid), label)).collect();
        let range = |run: &[(bool, &String)]| match run {
            [(true, only)] => Some((*only).clone()),
            [(true, first), .., (_, last)] => Some(format!("{first} to {last}")),
            _ => None,
        };
        let all: Vec<String> = shown.chunk_by(|one, next| one.0 == next.0).filter_map(range).collect();
        if all.is_empty() { "?".into() } else { all.join(", ") }
    }

    /// Device and memory, a pair for each device on which memory is known. A device that a process merely has open is
    /// not laid to its charge; where nothing is known there stands what may be its, else the devices it has open together
    /// beside a `?`.
    fn memory_of(&self, holder: &Holder) -> Vec<(String, String)> {
        let known: Vec<_> = holder
            .devices
            .iter()
            .filter_map(|held| Some((self.label(&held.uuid), held.held_bytes?.to_string())))
            .collect();
        if !known.is_empty() {
            return known;
        }
        let may: Vec<_> = holder
            .devices
            .iter()
            .filter_map(|held| Some((self.label(&held.uuid), format!("up to {}", held.may_hold_bytes?))))
            .collect();
        if !may.is_empty() {
            return may;
        }
        let open: Vec<_> = holder.devices.iter().map(|held| self.label(&held.uuid)).collect();
        vec![(if open.is_empty() { "?".into() } else { open.join(", ") }, "?".into())]
    }

    /// What is behind the cause of each holder.
    pub(super) fn why(&mut self, holders: &[&Holder]) -> io::Result<()> {
        for group in self.gathered(holders) {
            let Some((holder, others)) = group.split_first() else { continue };
            if others.is_empty() {
                let inner = holder.inner_pid.map(|pid| format!(", PID {pid} inside its container")).unwrap_or_default();
                let name = self.style.bold(&format!("PID {}", holder.pid));
                writeln!(self.out, "\n{name}{inner}: {}", words::cause(holder.cause))?;
                if !holder.command.is_empty() {
                    self.paragraph("  command: ", &holder.command)?;
                }
            } else {
                let pids: Vec<u32> = group.iter().map(|holder| holder.pid).collect();
                let many = self.style.bold(&format!("{} ×", group.len()));
                let called = text::clean(&words::all_called(&group));
                writeln!(self.out, "\n{many} {called}: {}", words::cause(holder.cause))?;
                self.paragraph("  PID ", &text::ranges(&pids).join(", "))?;
            }
            if let Some(place) = &holder.place {
                self.paragraph("  where: ", &place.words())?;
            }
            // These causes rest on who that is, so their evidence names it.
            if let Some(launcher) = &holder.launcher
                && !matches!(holder.cause, Cause::InUse | Cause::StillRunning)
            {
                self.paragraph("  started by: ", launcher)?;
            }
            // What differs stands in the JSON.
            let whys: Vec<Vec<String>> = group.iter().map(|holder| holder.why.sentences()).collect();
            let said = said_of_all(holder.pid, &whys);
            if said.is_empty() {
                self.paragraph("  - ", words::meaning(holder.cause))?;
            }
            for why in said {
                self.paragraph("  - ", &why)?;
            }
            if let Some(note) = &holder.note {
                self.paragraph("  note: ", note)?;
            }
            // Others may rely on it: said how, not that.
            if let (Cause::Detached, Some(command)) = (holder.cause, &holder.ends_with) {
                self.paragraph("  ", "if it is yours and no longer needed, this ends it:")?;
                self.command("    ", command)?;
            }
        }
        Ok(())
    }

    /// Who has a GPU open without being known to hold memory.
    pub(super) fn open_only(&mut self, holders: &[Holder]) -> io::Result<()> {
        if holders.is_empty() {
            return Ok(());
        }
        self.heading("Have a GPU open and are not known to hold memory")?;
        let all: Vec<&Holder> = holders.iter().collect();
        self.holders(&all)?;
        self.why(&all)
    }

    /// Entries of the driver's list whose process is gone.
    pub(super) fn ghosts(&mut self, ghosts: &[&Ghost]) -> io::Result<()> {
        if ghosts.is_empty() {
            return Ok(());
        }
        self.heading("Ended processes that the driver still lists")?;
        for ghost in ghosts {
            let was = ghost.command.as_ref().map(|c| format!(", it was `{}`", text::shorten(&text::clean(c), 60)));
            let impostor = ghost
                .impostor
                .as_ref()
                .map(|name| format!(" The number now belongs to `{name}`, which has nothing to do with it."));
            let pids: Vec<_> = ghost.candidates.iter().map(|pid| format!("PID {pid}")).collect();
            let kept = match pids.len() {
                0 => "Nobody who could keep its memory is visible.".to_string(),
                1 => format!("Its memory is kept by {}.", words::list(&pids)),
                _ => format!("Its memory is kept by one or more of {}.", words::list(&pids)),
            };
            let text = format!(
                "PID {} on {}: {}{}. {kept}{}",
                ghost.pid,
                self.label(&ghost.device_uuid),
                ghost.bytes.map_or_else(|| "memory not known".into(), |b| b.to_string()),
                was.unwrap_or_default(),
                impostor.unwrap_or_default()
            );
            self.paragraph("- ", &text)?;
        }
        Ok(())
    }

    /// Files that stay in shared memory. They are main memory, so they are no part of the verdict.
    pub(super) fn leftovers(&mut self, leftovers: &[Leftover]) -> io::Result<()> {
        const MOST: usize = 8;
        if leftovers.is_empty() {
            return Ok(());
        }
        let sum: Bytes = leftovers.iter().map(|l| l.bytes).sum();
        let files = words::count(leftovers.len(), "file", "files");
        self.heading(&format!("Left in shared memory: {files}, {sum} of main memory"))?;
        let shown = self.shown(leftovers.len(), MOST);
        for leftover in leftovers.iter().take(shown) {
            let doubt = match leftover.unused {
                Some(true) => "nobody uses it any more",
                _ => "nobody who can be inspected uses it, but not everybody can be inspected",
            };
            self.paragraph("- ", &format!("{}: {}; {doubt}", leftover.path, leftover.bytes))?;
            self.command("  remove it: ", &leftover.remove)?;
        }
        if leftovers.len() > shown {
            self.paragraph("- ", &format!("and {} more", leftovers.len() - shown))?;
        }
        Ok(())
    }

    /// What else was found.
    pub(super) fn findings(&mut self, findings: &[Finding]) -> io::Result<()> {
        if !findings.is_empty() {
            self.heading("Also found")?;
        }
        for finding in findings {
            self.finding("- ", finding)?;
            for (number, possible) in finding.possible.iter().enumerate() {
                self.paragraph(&format!("  {}. perhaps ", number + 1), &possible.to_string())?;
            }
            for excluded in finding.excluded.iter() {
                self.paragraph("  not ", &excluded.to_string())?;
            }
        }
        Ok(())
    }

    /// The sentence of a finding, behind the device that it is about: the sentence itself does not name it.
    pub(super) fn finding(&mut self, first: &str, finding: &Finding) -> io::Result<()> {
        let device = finding.device_uuid.as_ref().map(|uuid| format!("{}: ", self.label(uuid)));
        self.paragraph(first, &format!("{}{}", device.unwrap_or_default(), finding.text()))
    }

    /// What could not be seen.
    pub(super) fn gaps(&mut self, gaps: &[Gap]) -> io::Result<()> {
        if !gaps.is_empty() {
            self.heading("Not seen")?;
        }
        for gap in gaps {
            self.paragraph("- ", &text::program::pasteable(&gap.to_string()))?;
        }
        Ok(())
    }

    /// The numbered steps.
    pub(super) fn advice(&mut self, advice: &[Advice]) -> io::Result<()> {
        if !advice.is_empty() {
            self.heading("What to do")?;
        }
        for (number, step) in advice.iter().enumerate() {
            let first = format!("{:>2}. ", number + 1);
            let indent = " ".repeat(first.len());
            match &step.command {
                Some(command) => {
                    self.command(&first, command)?;
                    self.paragraph(&indent, &step.why)?;
                }
                None => self.paragraph(&first, &step.why)?,
            }
            self.paragraph(&indent, &format!("Disturbs: {}", step.disturbs))?;
        }
        Ok(())
    }
}

/// Whether there is anything known of its memory.
pub(super) fn known_memory(held: &[Held]) -> bool {
    held.iter().any(|h| h.held_bytes.is_some())
}
