//! Who has NVIDIA's device files open, where the driver does not answer: no amounts, but who, since when and where. That
//! is the moment in which the driver's own tools say nothing at all.

use super::{
    grid::{Column, Grid},
    parts::Page,
    place::place,
};
use crate::{
    model::{FailureKind, Holder, StatusReport},
    report::{Style, words},
    text,
};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// Writes them. Why the driver does not answer is the error that follows.
///
/// # Errors
/// If the writer fails.
pub fn files(report: &StatusReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    // Without a driver there are no files that somebody could have open.
    let no_driver = report.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::NoDriver);
    if no_driver && report.holders.is_empty() {
        return Ok(());
    }
    let mut page = Page::new(style, out, Vec::new());
    page.paragraph("", "The NVIDIA driver does not answer, so how much memory is in use is not known.")?;
    page.files(&report.holders)?;
    // The first is the driver's, which the error says.
    page.gaps(report.gaps.get(1..).unwrap_or_default())?;
    page.line("")
}

impl Page<'_> {
    /// Who has which files open.
    pub(super) fn files(&mut self, holders: &[Holder]) -> io::Result<()> {
        if holders.is_empty() {
            self.line("")?;
            return self.paragraph("", "Nobody who can be seen from here has NVIDIA's device files open.");
        }
        self.heading("Who has NVIDIA's device files open")?;
        let places = holders.iter().any(|holder| place(holder).is_some());
        let mut columns = vec![Column::right("PID"), Column::left("USER"), Column::right("AGE"), Column::left("CAUSE")];
        columns.extend(places.then_some(Column::left("WHERE")));
        columns.extend([Column::left("FILES"), Column::flexible("COMMAND")]);
        let mut grid = Grid::new(columns);
        for holder in holders {
            let mut row = vec![
                holder.pid.to_string(),
                holder.user.clone().unwrap_or_else(|| "?".into()),
                holder.age_seconds.map_or_else(|| "?".into(), words::age),
                words::cause(holder.cause).into(),
            ];
            row.extend(places.then(|| place(holder).unwrap_or_default()));
            row.extend([nodes(&holder.open_files), holder.name().to_owned()]);
            grid.row(row);
        }
        grid.write(self.style, self.out)?;
        let odd: Vec<&Holder> = holders.iter().filter(|holder| words::stands_out(holder.cause)).collect();
        self.why(&odd)
    }
}

/// `nvidia0-7, nvidiactl, nvidia-uvm`: the GPUs' own nodes as a range, then the others.
fn nodes(open: &BTreeMap<String, u32>) -> String {
    let number = |node: &String| node.strip_prefix("nvidia")?.parse::<u32>().ok();
    let gpus: Vec<u32> = open.keys().filter_map(number).collect();
    let mut named: Vec<String> = text::ranges(&gpus).into_iter().map(|range| format!("nvidia{range}")).collect();
    // Capabilities of MIG instances are many, and tell nobody anything here.
    named.extend(open.keys().filter(|node| number(node).is_none() && !node.starts_with("nvidia-caps/")).cloned());
    if named.is_empty() { "nvidia-caps".into() } else { named.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_many_gpus_are_a_range() {
        let shown = |names: &[&str]| nodes(&names.iter().map(|name| ((*name).to_owned(), 1)).collect());
        assert_eq!(shown(&["nvidia0", "nvidia-uvm", "nvidiactl"]), "nvidia0, nvidia-uvm, nvidiactl");
        assert_eq!(shown(&["nvidia10", "nvidia9", "nvidia2", "nvidia0", "nvidia8"]), "nvidia0, nvidia2, nvidia8-10");
        assert_eq!(shown(&["nvidia-caps/nvidia-cap1", "dri/card1"]), "dri/card1");
        assert_eq!(shown(&["nvidia-caps/nvidia-cap1"]), "nvidia-caps");
    }
}
