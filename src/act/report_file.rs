//! The report of a check as a list of leftovers to end. It is untrusted: anybody can write JSON. So the file must be ours
//! or root's, of this machine and this boot, and whatever it says of a process only points at one, which is then looked
//! at anew.

use crate::{
    error::{damaged, hinted, not_json},
    model::{BootId, Lineage, ProcId, schema},
};
use anyhow::Context;
use rustix::fs::OFlags;
use serde::Deserialize;
use std::{
    fs::File,
    io::{ErrorKind, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

/// What to do where a report cannot be believed.
const LOOK_YOURSELF: &str = "look for yourself who holds memory, and name it: gpuresid; gpuresid reclaim --pid PID";
/// Larger ones are not ours.
const LARGEST: u64 = 32 << 20;

/// What is read of a report.
#[derive(Debug, Clone, Deserialize)]
pub struct ReportFile {
    /// The run's marker.
    pub run_id: String,
    /// When its after-look was taken.
    pub taken_at: String,
    boot_id: BootId,
    host: Option<String>,
    command: Option<Ran>,
    #[serde(default)]
    settled_seconds: Option<f64>,
    #[serde(default)]
    survivors: Vec<ProcId>,
    holders: Vec<HolderInFile>,
}

#[derive(Debug, Clone, Deserialize)]
struct Ran {
    seconds: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
struct HolderInFile {
    pid: u32,
    start_ticks: Option<u64>,
    lineage: Lineage,
}

impl ReportFile {
    /// Reads a report of a check on this machine since it was started.
    ///
    /// # Errors
    /// If it is not that, or belongs to somebody who may not say whom we end.
    pub fn read(path: &Path, boot_id: &BootId) -> anyhow::Result<Self> {
        let shown = path.display();
        // A pipe would not open before somebody writes into it.
        let without_waiting = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = match File::options().read(true).custom_flags(without_waiting).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(hinted(format!("there is no report {shown}"), WHERE_FROM));
            }
            opened => opened.with_context(|| format!("cannot read the report {shown}"))?,
        };
        let facts = file.metadata().with_context(|| format!("cannot read the report {shown}"))?;
        if !facts.is_file() {
            return Err(hinted(format!("{shown} is not a file"), WHERE_FROM));
        }
        let ours = rustix::process::geteuid().as_raw();
        if facts.uid() != ours && facts.uid() != 0 {
            return Err(hinted(
                format!(
                    "the report {shown} belongs to user {}, and another user may not choose the processes that you end",
                    facts.uid()
                ),
                LOOK_YOURSELF,
            ));
        }
        if facts.mode() & 0o002 != 0 {
            return Err(hinted(
                format!("every user can write the report {shown}, so it proves nothing"),
                LOOK_YOURSELF,
            ));
        }
        let group = facts.gid();
        if facts.mode() & 0o020 != 0 && group != 0 && group != rustix::process::getegid().as_raw() {
            return Err(hinted(
                format!("the whole group {group} can write the report {shown}, so it proves nothing"),
                LOOK_YOURSELF,
            ));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read the report {shown}"))?;
        if bytes.len() as u64 > LARGEST {
            return Err(hinted(format!("{shown} is too large for a report"), WHERE_FROM));
        }
        let report = parse(&bytes, &shown.to_string())?;
        let host = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
        report.is_of_here(&shown.to_string(), boot_id, host.as_deref())?;
        Ok(report)
    }

    fn is_of_here(&self, shown: &str, boot_id: &BootId, host: Option<&str>) -> anyhow::Result<()> {
        if let (Some(theirs), Some(ours)) = (self.host.as_deref(), host)
            && theirs != ours
        {
            return Err(hinted(
                format!("the report {shown} is of the machine {theirs}, this is {ours}"),
                format!("run it there: ssh {} gpuresid reclaim --report …", crate::text::clean(theirs)),
            ));
        }
        if self.boot_id != *boot_id {
            return Err(hinted(
                format!("the report {shown} was made before this machine was last started"),
                "nothing that ran before a restart holds GPU memory now; look at what there is with: gpuresid",
            ));
        }
        Ok(())
    }

    /// The own processes of the run that it names, with or without GPU memory.
    pub fn own(&self) -> Vec<ProcId> {
        let mut own: Vec<ProcId> = self.survivors.clone();
        own.extend(
            self.holders
                .iter()
                .filter(|h| h.lineage == Lineage::Own)
                .filter_map(|h| Some(ProcId { pid: h.pid, start_ticks: h.start_ticks? })),
        );
        own.retain(|id| id.pid > 0);
        own.sort_unstable();
        own.dedup();
        own
    }

    /// Seconds since 1970 between which every process of the run was started, as far as the report tells; a second is
    /// added on both sides.
    pub fn started_between(&self) -> Option<(f64, f64)> {
        let end: jiff::Timestamp = self.taken_at.parse().ok()?;
        let end = end.as_duration().as_secs_f64();
        // What no run lasted was made up. A year is long.
        let lasted = |seconds: f64| (0.0..=366.0 * 86_400.0).contains(&seconds).then_some(seconds);
        let ran = lasted(self.command.as_ref()?.seconds?)?;
        // The look after settling takes a moment too.
        Some((end - ran - lasted(self.settled_seconds.unwrap_or(0.0))? - 60.0, end + 1.0))
    }
}

const WHERE_FROM: &str = "write one with: gpuresid check --report result.json -- COMMAND";

fn parse(bytes: &[u8], shown: &str) -> anyhow::Result<ReportFile> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| hinted(not_json(shown, &error), WHERE_FROM))?;
    let found = value.get("schema").and_then(|name| name.as_str()).unwrap_or_default();
    if found != schema::REPORT {
        let number = |name: &str| name.rsplit_once('/').and_then(|(_, n)| n.parse::<u32>().ok());
        if found.starts_with("gpuresid.report/") && number(found) > number(schema::REPORT) {
            return Err(hinted(
                format!("{shown} was made by a newer gpuresid ({found}; this version reads {})", schema::REPORT),
                "update gpuresid",
            ));
        }
        return Err(hinted(format!("{shown} is not a report of a check"), WHERE_FROM));
    }
    if value.get("simulated").and_then(serde_json::Value::as_bool) == Some(true) {
        return Err(hinted(format!("{shown} is of a simulated GPU: nothing is held"), WHERE_FROM));
    }
    serde_json::from_value(value).map_err(|error| hinted(damaged(shown, "report", &error), WHERE_FROM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::mangled::mangled;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_report_holds_it_is_read_or_refused(text in mangled(&[REPORT])) {
            match parse(&text, "r.json") {
                Ok(report) => prop_assert!(report.own().iter().all(|id| id.pid > 0) && report.started_between().is_none_or(|(from, to)| from <= to)),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    const REPORT: &str = r#"{"schema":"gpuresid.report/1","run_id":"b-1-2","taken_at":"2026-01-01T00:01:00Z",
        "boot_id":"b","host":"here","simulated":false,"command":{"seconds":10.0},"settled_seconds":5.0,
        "survivors":[{"pid":7,"start_ticks":70}],"holders":[
        {"pid":7,"start_ticks":70,"lineage":"own"},{"pid":8,"start_ticks":80,"lineage":"own"},
        {"pid":9,"start_ticks":90,"lineage":"foreign"},{"pid":10,"start_ticks":null,"lineage":"own"}]}"#;

    fn refused(text: &str) -> String {
        let boot = BootId("b".into());
        match parse(text.as_bytes(), "r.json").and_then(|r| r.is_of_here("r.json", &boot, Some("here"))) {
            Ok(()) => String::new(),
            Err(error) => crate::error::display(&error),
        }
    }

    #[test]
    fn own_processes_with_an_identity_are_named() {
        let report = parse(REPORT.as_bytes(), "r.json").unwrap();
        let id = |pid, start_ticks| ProcId { pid, start_ticks };
        assert_eq!(report.own(), [id(7, 70), id(8, 80)]);
        let (from, to) = report.started_between().unwrap();
        assert!((to - from - 76.0).abs() < 0.001, "{from} {to}");
        assert_eq!(refused(REPORT), "");
    }

    #[test]
    fn reports_of_elsewhere_are_refused() {
        let with = |what: &str, instead: &str| refused(&REPORT.replace(what, instead));
        assert!(with("\"here\"", "\"there\"").contains("of the machine there"));
        assert!(with("\"boot_id\":\"b\"", "\"boot_id\":\"a\"").contains("before this machine was last started"));
        assert!(with("report/1", "report/2").contains("newer gpuresid"));
        assert!(with("report/1", "status/1").contains("not a report of a check"));
        assert!(with("\"simulated\":false", "\"simulated\":true").contains("simulated"));
        assert!(refused("{").contains("cut off"));
        assert!(refused(r#"{"schema":"gpuresid.report/1"}"#).contains("damaged report"));
        let missing = ReportFile::read(Path::new("/no/r.json"), &BootId("b".into())).unwrap_err();
        assert_eq!(
            crate::error::display(&missing),
            format!("error: there is no report /no/r.json\n\nhint: {WHERE_FROM}\n")
        );
    }
}
