//! Which rules of `status --fail-on` are broken: the last lines, because a log is read from its end.

use super::parts::Page;
use crate::{exit, model::StatusReport, report::Style};
use std::io::{self, Write};

/// Writes them; nothing where all hold.
///
/// # Errors
/// If the writer fails.
pub fn broken_rules(report: &StatusReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    if report.broken_rules.is_empty() {
        return Ok(());
    }
    let mut page = Page::new(style, out, Vec::new());
    // An error has a code of its own.
    let code = if report.failure.is_some() { exit::CANNOT } else { exit::RESIDUE };
    page.heading(&format!("--fail-on (exit code {code})"))?;
    for rule in &report.broken_rules {
        page.paragraph(&format!("- {}: ", rule.rule), &rule.text)?;
    }
    Ok(())
}
