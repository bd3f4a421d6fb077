//! The report of `doctor` for people: a line for each check, what is wrong first in the headline, each fix beside its
//! line so that nothing has to be looked up.

use super::parts::Page;
use crate::{
    model::{DoctorReport, Level},
    report::{Style, words},
};
use anstyle::AnsiColor;
use std::io::{self, Write};

/// Headings, and how the names of their checks begin.
const PARTS: [(&str, &[&str]); 5] = [
    ("Driver", &["driver", "library"]),
    ("GPUs", &["device", "confidential_computing"]),
    ("Machine", &["permissions", "namespace", "hidepid", "privileges", "shm", "xid", "mps"]),
    ("Environment", &["env"]),
    ("PyTorch", &["torch"]),
];

/// Room for the longest level.
const LEVEL: usize = "could not look".len();

/// Writes the lines.
///
/// # Errors
/// If the writer fails.
pub fn doctor(report: &DoctorReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(style, out, Vec::new());
    headline(&mut page, report)?;
    for (heading, starts) in PARTS {
        let of_this = |check: &str| check.split('.').next().is_some_and(|first| starts.contains(&heading_of(first)));
        if !report.lines.iter().any(|line| of_this(&line.check)) {
            continue;
        }
        page.heading(heading)?;
        for line in report.lines.iter().filter(|line| of_this(&line.check)) {
            let level = shown(line.level);
            let indent = " ".repeat(LEVEL.saturating_sub(level.len()));
            let lead = format!("  {}{indent}  ", paint(style, line.level, level));
            // Colour takes no room, so the width is that of the plain words.
            page.paragraph_after(&lead, LEVEL + 4, &line.text)?;
            if let Some(fix) = line.fix.as_ref() {
                let lead = if line.level == Level::Ok { "to change it: " } else { "fix: " };
                page.command(&format!("{}{lead}", " ".repeat(LEVEL + 4)), fix)?;
            }
        }
    }
    if report.holders.is_empty() { Ok(()) } else { page.files(&report.holders) }
}

/// `devices` stands for the checks of all of them at once.
fn heading_of(first: &str) -> &str {
    if first == "devices" { "device" } else { first }
}

fn headline(page: &mut Page<'_>, report: &DoctorReport) -> io::Result<()> {
    let mut parts = Vec::new();
    let mut say = |level, one: &str, many: &str| {
        let n = report.count(level);
        if n > 0 {
            parts.push(words::count(n, one, many));
        }
    };
    say(Level::Fail, "failed", "failed");
    say(Level::Warn, "warning", "warnings");
    say(Level::CouldNotLook, "not checked", "not checked");
    let ok = report.count(Level::Ok);
    let text =
        if parts.is_empty() { format!("All {ok} checks are ok.") } else { format!("{}, {ok} ok.", parts.join(", ")) };
    let color = match report.verdict {
        Level::Fail => AnsiColor::Red,
        Level::Warn => AnsiColor::Yellow,
        Level::CouldNotLook | Level::Ok => AnsiColor::Green,
    };
    let text = page.style.strong(color, &text);
    page.line(&text)
}

fn shown(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::CouldNotLook => "could not look",
        Level::Warn => "warn",
        Level::Fail => "fail",
    }
}

fn paint(style: &Style, level: Level, text: &str) -> String {
    match level {
        Level::Ok => style.strong(AnsiColor::Green, text),
        Level::CouldNotLook => style.dim(text),
        Level::Warn => style.strong(AnsiColor::Yellow, text),
        Level::Fail => style.strong(AnsiColor::Red, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DoctorLine;

    #[test]
    fn every_line_is_shown_with_its_fix() {
        let line = |check: &str, level, text: &str, fix: Option<&str>| DoctorLine {
            check: check.into(),
            level,
            text: text.into(),
            fix: fix.map(Into::into),
            source: None,
        };
        let report = DoctorReport {
            schema: crate::model::schema::DOCTOR.into(),
            tool_version: "0".into(),
            taken_at: String::new(),
            host: None,
            driver_version: None,
            torch_version: None,
            exit_code: 1,
            verdict: Level::Fail,
            holders: Vec::new(),
            lines: vec![
                line("driver", Level::Fail, "no driver", Some("sudo modprobe nvidia")),
                line("devices", Level::CouldNotLook, "settings", None),
                line("shm", Level::Ok, "fine\x1b[31m", None),
                line("torch.cuda", Level::Warn, "old", Some("pip")),
            ],
        };
        let mut out = Vec::new();
        doctor(&report, &Style::default(), &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "1 failed, 1 warning, 1 not checked, 1 ok.\n\
             \nDriver\
             \n  fail            no driver\
             \n                  fix: sudo modprobe nvidia\n\
             \nGPUs\
             \n  could not look  settings\n\
             \nMachine\
             \n  ok              fine\\x1b[31m\n\
             \nPyTorch\
             \n  warn            old\
             \n                  fix: pip\n"
        );
    }
}
