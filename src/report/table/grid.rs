//! Columns without borders, one line a row. One column gives way when the terminal is narrow, so that numbers and
//! PIDs, which people copy, always stay whole.

use crate::{report::Style, text};
use comfy_table::{CellAlignment, Table, presets};
use std::io::{self, Write};

/// Columns between two columns.
const GAP: usize = 2;
/// Room for the flexible column where the output is no terminal.
const PLAIN_ROOM: usize = 60;
/// Optional columns stay as long as the flexible one has so much.
const ENOUGH_ROOM: usize = 20;
/// The flexible column never gets narrower; the line then runs over the edge.
const LEAST_ROOM: usize = 10;

/// One column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    head: &'static str,
    right: bool,
    flexible: bool,
    /// Left out where there is no room for it.
    dispensable: bool,
}

impl Column {
    pub(super) const fn left(head: &'static str) -> Self {
        Self { head, right: false, flexible: false, dispensable: false }
    }

    pub(super) const fn right(head: &'static str) -> Self {
        Self { head, right: true, flexible: false, dispensable: false }
    }

    pub(super) const fn flexible(head: &'static str) -> Self {
        Self { head, right: false, flexible: true, dispensable: false }
    }

    /// One that goes where the one that gives way would get too narrow, those on the left first.
    pub(super) const fn optional(head: &'static str) -> Self {
        Self { head, right: false, flexible: false, dispensable: true }
    }

    /// One that gives way, and goes where even its least width is too much.
    pub(super) const fn dispensable(head: &'static str) -> Self {
        Self { head, right: false, flexible: true, dispensable: true }
    }
}

/// A table in the making. Cells are made safe here.
#[derive(Debug)]
pub(super) struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub(super) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self { columns: columns.into(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| text::clean(&cell)).collect());
    }

    pub(super) fn write(mut self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.fit(style.width);
        let mut table = Table::new();
        table.load_style(presets::NOTHING).force_no_tty();
        table.set_header(self.columns.iter().map(|c| c.head));
        table.add_rows(self.rows);
        for (column, shown) in self.columns.iter().zip(table.column_iter_mut()) {
            shown.set_padding((0, u16::try_from(GAP).unwrap_or(0)));
            if column.right {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        for (number, line) in table.lines().enumerate() {
            let line = line.trim_end();
            if number == 0 { writeln!(out, "{}", style.bold(line))? } else { writeln!(out, "{line}")? }
        }
        Ok(())
    }

    /// What is left for the flexible column.
    fn room(&self, width: Option<u16>, flexible: usize) -> usize {
        let taken: usize = self
            .columns
            .iter()
            .enumerate()
            .filter(|(number, _)| *number != flexible)
            .map(|(number, column)| {
                let cells = self.rows.iter().filter_map(|row| row.get(number)).map(|cell| text::width(cell));
                cells.max().unwrap_or(0).max(text::width(column.head)) + GAP
            })
            .sum();
        width.map_or(PLAIN_ROOM, |columns| usize::from(columns).saturating_sub(taken))
    }

    fn remove(&mut self, column: usize) {
        self.columns.remove(column);
        for row in self.rows.iter_mut().filter(|row| column < row.len()) {
            row.remove(column);
        }
    }

    fn fit(&mut self, width: Option<u16>) {
        let Some(mut flexible) = self.columns.iter().position(|c| c.flexible) else { return };
        let mut room = self.room(width, flexible);
        while room < ENOUGH_ROOM
            && let Some(optional) = self.columns.iter().position(|c| c.dispensable && !c.flexible)
        {
            self.remove(optional);
            flexible -= usize::from(optional < flexible);
            room = self.room(width, flexible);
        }
        if room < LEAST_ROOM && self.columns.get(flexible).is_some_and(|column| column.dispensable) {
            return self.remove(flexible);
        }
        let room = room.max(LEAST_ROOM);
        for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(flexible)) {
            *cell = text::shorten(cell, room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_columns_go_from_the_left_until_there_is_room() {
        let shown = |width| {
            let columns = [Column::optional("STATE"), Column::optional("WHERE"), Column::flexible("COMMAND")];
            let mut grid = Grid::new(columns);
            grid.row(["sleeping".into(), "job 104".into(), "python train.py --epochs 3".into()]);
            let mut out = Vec::new();
            grid.write(&Style { width: Some(width), ..Style::default() }, &mut out).unwrap();
            String::from_utf8(out).unwrap().lines().last().unwrap().to_owned()
        };
        assert_eq!(shown(39), "sleeping  job 104  python train.py --e…");
        assert_eq!(shown(38), "job 104  python train.py --epochs 3");
        assert_eq!(shown(28), "python train.py --epochs 3");
        assert_eq!(shown(5), "python tr…");
    }

    fn shown(width: Option<u16>) -> String {
        let mut grid = Grid::new([Column::right("PID"), Column::flexible("COMMAND"), Column::left("STATE")]);
        grid.row(["4711".into(), "python train.py --epochs 3".into(), "sleeping".into()]);
        grid.row(["12".into(), "evil\x1b[2J\nname".into(), String::new()]);
        let mut out = Vec::new();
        grid.write(&Style { width, ..Style::default() }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_the_flexible_column_gives_way() {
        assert_eq!(
            shown(None),
            " PID  COMMAND                     STATE\n\
             4711  python train.py --epochs 3  sleeping\n\
             \x20 12  evil\\x1b[2J\\nname\n"
        );
        assert_eq!(
            shown(Some(34)),
            " PID  COMMAND             STATE\n\
             4711  python train.py -…  sleeping\n\
             \x20 12  evil\\x1b[2J\\nname\n"
        );
        assert!(shown(Some(5)).contains("4711  python tr…  sleeping"));
    }

    #[test]
    fn a_name_that_has_no_room_goes() {
        let shown = |width| {
            let mut grid = Grid::new([Column::left("DEVICE"), Column::dispensable("NAME"), Column::right("USED")]);
            grid.row(["GPU 0".into(), "NVIDIA H200".into(), "518 MiB".into()]);
            let mut out = Vec::new();
            grid.write(&Style { width: Some(width), ..Style::default() }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(27), "DEVICE  NAME           USED\nGPU 0   NVIDIA H2…  518 MiB\n");
        assert_eq!(shown(26), "DEVICE     USED\nGPU 0   518 MiB\n");
    }
}
