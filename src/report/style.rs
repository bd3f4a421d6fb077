//! How wide a stream is and whether it takes colour. Apart from the tables, so that they stay pure functions of a
//! report and a style.

use anstyle::{AnsiColor, Effects};
use std::io::{self, IsTerminal};

/// How to write for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// Columns of the terminal; `None` where the output is no terminal.
    pub width: Option<u16>,
    /// Use ANSI colour.
    pub color: bool,
    /// Show all, one by one and with the evidence (`-v`).
    pub verbose: bool,
}

impl Style {
    /// The style of standard output. `--color` counts once it was handed to
    /// [`anstream::ColorChoice::write_global`]; `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` count as ever.
    pub fn stdout() -> Self {
        let stream = io::stdout();
        Self { width: width_of(&stream), color: takes_color(&stream), verbose: false }
    }

    /// The same that shows all.
    #[must_use]
    pub const fn verbose(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// The style of standard error, as [`Self::stdout`].
    pub fn stderr() -> Self {
        let stream = io::stderr();
        Self { width: width_of(&stream), color: takes_color(&stream), verbose: false }
    }

    /// `text` in bold.
    pub fn bold(self, text: &str) -> String {
        self.paint(anstyle::Style::new().effects(Effects::BOLD), text)
    }

    /// `text` dimmed.
    pub fn dim(self, text: &str) -> String {
        self.paint(anstyle::Style::new().effects(Effects::DIMMED), text)
    }

    /// `text` in bold and a colour.
    pub fn strong(self, color: AnsiColor, text: &str) -> String {
        self.paint(color.on_default().effects(Effects::BOLD), text)
    }

    fn paint(self, style: anstyle::Style, text: &str) -> String {
        if self.color { format!("{style}{text}{style:#}") } else { text.into() }
    }
}

fn takes_color(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

fn width_of(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> Option<u16> {
    if !stream.is_terminal() {
        return None;
    }
    // A terminal that does not know its size (a serial line, some CI) says 0.
    rustix::termios::tcgetwinsize(stream).ok().map(|size| size.ws_col).filter(|columns| *columns > 0).or(Some(80))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meaning_survives_without_colour() {
        let plain = Style::default();
        assert_eq!(plain.strong(AnsiColor::Red, "residue"), "residue");
        let colour = Style { color: true, ..plain };
        assert_eq!(colour.bold("x"), "\u{1b}[1mx\u{1b}[0m");
    }
}
