//! From facts to lines: no IO, no clock. Each part says what it knows and nothing that it does not: what could not be
//! seen is a line of its own, never silence and never "ok".

mod alloc_conf;
mod devices;
mod driver;
mod environment;
mod machine;
#[cfg(test)]
mod tests;
mod torch;
mod torch_cuda;
mod visible;

use super::{facts::Facts, table::Table};
use crate::{
    exit,
    model::{DoctorLine, DoctorReport, Level, schema},
};

/// The lines, in the order in which they depend on each other.
#[derive(Debug, Default)]
struct Lines(Vec<DoctorLine>);

impl Lines {
    fn add(&mut self, level: Level, check: &str, text: impl Into<String>) -> &mut DoctorLine {
        self.0.push(DoctorLine { check: check.into(), level, text: text.into(), fix: None, source: None });
        // The line was pushed just now.
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn ok(&mut self, check: &str, text: impl Into<String>) -> &mut DoctorLine {
        self.add(Level::Ok, check, text)
    }

    fn warn(&mut self, check: &str, text: impl Into<String>, fix: impl Into<String>) -> &mut DoctorLine {
        let line = self.add(Level::Warn, check, text);
        line.fix = Some(fix.into());
        line
    }

    fn fail(&mut self, check: &str, text: impl Into<String>, fix: impl Into<String>) -> &mut DoctorLine {
        let line = self.add(Level::Fail, check, text);
        line.fix = Some(fix.into());
        line
    }

    fn hidden(&mut self, check: &str, text: impl Into<String>) -> &mut DoctorLine {
        self.add(Level::CouldNotLook, check, text)
    }
}

/// All lines for these facts.
pub fn lines(facts: &Facts, table: &Table) -> Vec<DoctorLine> {
    let mut lines = Lines::default();
    driver::judge(facts, &mut lines);
    devices::judge(facts, &mut lines);
    machine::judge(facts, &mut lines);
    environment::judge(facts, table, &mut lines);
    torch::judge(facts, table, &mut lines);
    lines.0
}

/// The report. `taken_at` and `host` come from outside, because judging has no clock.
pub fn report(facts: &Facts, table: &Table, strict: bool, taken_at: String, host: Option<String>) -> DoctorReport {
    let lines = lines(facts, table);
    let verdict = lines.iter().map(|line| line.level).max().unwrap_or(Level::Ok);
    let bad = verdict == Level::Fail || strict && verdict == Level::Warn;
    DoctorReport {
        schema: schema::DOCTOR.into(),
        tool_version: env!("CARGO_PKG_VERSION").into(),
        taken_at,
        host,
        driver_version: driver::version(facts),
        torch_version: facts.python.torch().and_then(|t| t.version.clone().or_else(|| t.metadata_version.clone())),
        exit_code: if bad { exit::DOCTOR_FAIL } else { exit::CLEAN },
        verdict,
        lines,
        holders: driver::who_has_files(facts).map(|seen| seen.holders).unwrap_or_default(),
    }
}
