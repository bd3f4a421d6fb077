//! `--report [FORMAT:]PATH`: which reports are asked for, and writing them.

use super::{
    json,
    pending::{Pending, is_there},
    words,
};
use crate::model::{Observation, Report};
use std::{fmt, path::PathBuf, str::FromStr};

/// A format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The report as JSON.
    Json,
    /// The raw looks behind it as JSON, from which the report can be judged again.
    Observation,
}

impl Format {
    const ALL: [(&'static str, Self); 2] = [("json", Self::Json), ("observation", Self::Observation)];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }
}

/// One `--report`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportTarget {
    /// What to write.
    pub format: Format,
    /// Where to.
    pub path: PathBuf,
}

/// Why a `--report` cannot be meant so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseTargetError(String);

impl fmt::Display for ParseTargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseTargetError {}

impl FromStr for ReportTarget {
    type Err = ParseTargetError;

    /// `report.json`, `json:report.txt`, `observation:looks.json`, `json:/dev/fd/3`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why: String| Err(ParseTargetError(why));
        let prefix = text.split_once(':').filter(|(name, _)| name.chars().all(|c| c.is_ascii_alphabetic()));
        let (format, path) = match prefix {
            Some((name, path)) => match Format::named(&name.to_ascii_lowercase()) {
                Some(format) => (Some(format), path),
                None => {
                    return wrong(format!(
                        "there is no report format `{name}`; the formats are json and observation. For a file of that \
                         name \
                         write json:./{text}"
                    ));
                }
            },
            None => (None, text),
        };
        if path == "-" {
            return wrong(
                "standard output belongs to the command; name a file, or write json:/dev/fd/3 with 3>FILE".into(),
            );
        }
        if path.is_empty() {
            return wrong("the path is missing; write a file name such as report.json".into());
        }
        let path = PathBuf::from(path);
        let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match (format, ending.as_deref()) {
            (Some(format), _) => Ok(Self { format, path }),
            (None, Some("json")) => Ok(Self { format: Format::Json, path }),
            (None, None) if path.starts_with("/dev") || path.starts_with("/proc") => {
                Ok(Self { format: Format::Json, path })
            }
            (None, Some(ending @ ("html" | "xml" | "md" | "prom"))) => {
                wrong(format!("this version writes no .{ending} reports; it writes json and observation"))
            }
            (None, _) => wrong(format!(
                "the ending does not tell the format; write json:{text}, or observation:{text} for the raw looks"
            )),
        }
    }
}

/// What has to be said of these reports when a run does not come about: a file that is there is not of this run.
pub fn earlier_reports(targets: &[ReportTarget]) -> Option<String> {
    let mut paths: Vec<_> =
        targets.iter().filter(|t| is_there(&t.path)).map(|t| t.path.display().to_string()).collect();
    paths.dedup();
    match paths.len() {
        0 => None,
        1 => Some(format!("the report at {} is of an earlier run", words::list(&paths))),
        _ => Some(format!("the reports at {} are of an earlier run", words::list(&paths))),
    }
}

/// The reports of a run, each known to be writable.
#[derive(Debug, Default)]
pub struct Targets {
    files: Vec<(Format, Pending)>,
}

impl Targets {
    /// Finds out before anything is started that each report can be written.
    ///
    /// # Errors
    /// If one cannot, or if two go to the same file.
    pub fn prepare(targets: &[ReportTarget]) -> anyhow::Result<Self> {
        let mut files = Vec::with_capacity(targets.len());
        let mut taken = Vec::new();
        for target in targets {
            let pending = Pending::open(&target.path)?;
            if let Some(place) = pending.target() {
                if taken.contains(&place) {
                    return Err(crate::error::hinted(
                        format!("two reports go to {}", target.path.display()),
                        "give each --report a file of its own",
                    ));
                }
                taken.push(place);
            }
            files.push((target.format, pending));
        }
        Ok(Self { files })
    }

    /// Writes all of them. One that fails does not keep the others from being written.
    #[must_use]
    pub fn write(self, report: &Report, observation: &Observation) -> Vec<anyhow::Error> {
        self.files
            .into_iter()
            .filter_map(|(format, file)| {
                file.write(|out| match format {
                    Format::Json => json::pretty(report, out),
                    Format::Observation => json::pretty(observation, out),
                })
                .err()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn parsed(text: &str) -> Result<(Format, String), String> {
        text.parse::<ReportTarget>()
            .map(|t| (t.format, t.path.display().to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_format_is_named_or_told_by_the_ending() {
        for (text, format, path) in [
            ("r.json", Format::Json, "r.json"),
            ("dir.d/R.JSON", Format::Json, "dir.d/R.JSON"),
            ("json:r.txt", Format::Json, "r.txt"),
            ("observation:r.json", Format::Observation, "r.json"),
            ("./a:b.json", Format::Json, "./a:b.json"),
            ("/dev/fd/3", Format::Json, "/dev/fd/3"),
            ("observation:/dev/fd/3", Format::Observation, "/dev/fd/3"),
            ("/tmp/x:y.json", Format::Json, "/tmp/x:y.json"),
        ] {
            assert_eq!(parsed(text), Ok((format, path.to_string())), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_written_says_what_can() {
        for (text, message) in [
            ("-", "standard output belongs to the command; name a file, or write json:/dev/fd/3 with 3>FILE"),
            ("json:-", "standard output belongs to the command; name a file, or write json:/dev/fd/3 with 3>FILE"),
            ("json:", "the path is missing; write a file name such as report.json"),
            ("r.html", "this version writes no .html reports; it writes json and observation"),
            (
                "html:r.html",
                "there is no report format `html`; the formats are json and observation. For a file of that name write \
                 json:./html:r.html",
            ),
            (
                "report",
                "the ending does not tell the format; write json:report, or observation:report for the raw looks",
            ),
        ] {
            assert_eq!(parsed(text), Err(message.to_string()), "{text}");
        }
    }

    #[test]
    fn two_reports_do_not_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let target = |name: &str| ReportTarget { format: Format::Json, path: dir.path().join(name) };
        assert!(Targets::prepare(&[target("a.json"), target("b.json")]).is_ok());
        let error = Targets::prepare(&[target("a.json"), target("./a.json")]).unwrap_err();
        assert_eq!(error.to_string(), format!("two reports go to {}", dir.path().join("./a.json").display()));
        let (a, b) = (target("a.json"), target("b.json"));
        let both = [a.clone(), b, ReportTarget { format: Format::Json, path: "/dev/null".into() }];
        assert_eq!(earlier_reports(&both), None);
        fs::write(&a.path, "old").unwrap();
        assert_eq!(earlier_reports(&both), Some(format!("the report at {} is of an earlier run", a.path.display())));
        let nowhere = ReportTarget { format: Format::Json, path: "/dev/null".into() };
        assert!(Targets::prepare(&[nowhere.clone(), nowhere]).is_ok());
    }
}
