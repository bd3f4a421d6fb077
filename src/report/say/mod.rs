//! All the English of the judgement: one sentence for each fact. Judging makes values and no sentences; whoever wants
//! another language, or another wording, comes here and nowhere else.

mod evidence;

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
