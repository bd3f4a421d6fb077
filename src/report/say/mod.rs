//! All the English of the judgement: one sentence for each fact. Judging makes values and no sentences; whoever wants
//! another language, or another wording, comes here and nowhere else.

mod doubt;
mod evidence;
mod finding;

use crate::{
    model::{Foreign, Named},
    text,
};
use std::fmt;

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::clean(&self.0))
    }
}

/// `python (70)`.
impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.pid)
    }
}

/// `1, 2, 3`.
fn commas<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// The first of them, and how many more there are.
fn few(items: &[impl ToString]) -> String {
    const MOST: usize = 5;
    let shown = commas(items.iter().take(MOST).map(ToString::to_string));
    match items.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
