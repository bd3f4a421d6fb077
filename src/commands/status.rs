//! `status`: one look, or one after the other until Ctrl-C.

use super::{
    session_options,
    stdout::{self, Reader},
};
use crate::{
    cli::{FailOn, Global, Mine, StatusArgs, cause_name},
    error::hinted,
    exit::{self, Ending},
    judge::{
        self,
        gate::{self, Rules},
    },
    model::{Snapshot, StatusReport},
    observe::{
        driver::Extras,
        session::{self, Session, SessionOptions},
    },
    report::{Style, json, redact, table},
    text,
};
use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

/// From this time between two looks on, the driver is closed in between: an open driver keeps a GPU from being reset.
const SLOW: Duration = Duration::from_secs(5);

/// Looks.
///
/// # Errors
/// If nothing could be read.
pub(super) fn run(global: &Global, args: &StatusArgs) -> anyhow::Result<Ending> {
    let options = SessionOptions {
        extras: Extras { bar1: args.bar1, utilization: args.verbose || args.watch.is_some() },
        ..session_options(global)
    };
    let view = View { verbose: args.verbose, redacted: global.redact, rules: rules(args)? };
    if let Some(every) = args.watch {
        return watch(&options, every, args.json, &view);
    }
    let report = shown(look(&options, &mut None, &view)?, args.json, &view)?;
    Ok(Ending::Code(if report.broken_rules.is_empty() { exit::CLEAN } else { exit::RESIDUE }))
}

/// What is made of a look.
#[derive(Debug, Default)]
struct View {
    verbose: bool,
    redacted: bool,
    rules: Rules,
}

impl View {
    fn style(&self) -> Style {
        Style::stdout().verbose(self.verbose)
    }

    fn of(&self, snapshot: &Snapshot, mut report: StatusReport) -> StatusReport {
        report.broken_rules = gate::broken(&self.rules, snapshot, &report);
        if self.redacted {
            redact::status(snapshot, &mut report);
        }
        report
    }
}

/// What `--fail-on` and its companions ask for.
fn rules(args: &StatusArgs) -> anyhow::Result<Rules> {
    let asked = |rule| args.fail_on.contains(&rule);
    if args.expect.is_some() && !asked(FailOn::Lost) {
        return Err(hinted(
            "--expect says how many GPUs `--fail-on lost` looks for",
            "write --fail-on lost --expect N",
        ));
    }
    if args.mine.is_some() && !asked(FailOn::Foreign) {
        return Err(hinted(
            "--mine says who does not count as somebody else for `--fail-on foreign`",
            "write --fail-on foreign --mine user, or --mine job",
        ));
    }
    let causes = args.fail_on.iter().filter_map(|rule| match rule {
        FailOn::Cause(cause) => Some((*cause, cause_name(*cause))),
        FailOn::Lost | FailOn::Foreign => None,
    });
    Ok(Rules {
        causes: causes.collect(),
        lost: asked(FailOn::Lost).then(|| args.expect.and_then(|expected| usize::try_from(expected).ok())),
        foreign: asked(FailOn::Foreign).then(|| mine(args.mine)).transpose()?,
    })
}

/// Who does not count as somebody else.
fn mine(mine: Option<Mine>) -> anyhow::Result<gate::Mine> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| value.bytes().all(|b| b.is_ascii_digit()));
    if mine == Some(Mine::Job) {
        return variable("SLURM_JOB_ID").filter(|job| !job.is_empty()).map(gate::Mine::Job).ok_or_else(|| {
            hinted(
                "--mine job needs the number of the job, and SLURM_JOB_ID is not set",
                "run it in a job, a prolog or an epilog of Slurm, or write --mine user",
            )
        });
    }
    let user = rustix::process::geteuid();
    let caller = variable("SUDO_UID").filter(|_| user.is_root()).and_then(|uid| uid.parse().ok());
    Ok(gate::Mine::User(caller.unwrap_or(user.as_raw())))
}

/// Shows the report. That the driver does not answer is an error all the same.
fn shown(report: StatusReport, as_json: bool, view: &View) -> anyhow::Result<StatusReport> {
    stdout::print(|out| match as_json {
        true => json::pretty(&report, out),
        false => page(&report, &view.style(), out),
    })?;
    match report.failure {
        Some(failure) => Err(anyhow::Error::new(failure)),
        None => Ok(report),
    }
}

/// The report for people.
fn page(report: &StatusReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    match &report.failure {
        Some(_) => table::files(report, style, out),
        None => table::status(report, style, out),
    }?;
    table::broken_rules(report, style, out)
}

pub(super) fn judged(snapshot: &Snapshot, redacted: bool) -> StatusReport {
    with_driver(snapshot, &View { redacted, ..View::default() })
}

fn with_driver(snapshot: &Snapshot, view: &View) -> StatusReport {
    view.of(snapshot, if view.verbose { judge::status_of_all(snapshot) } else { judge::status(snapshot) })
}

fn watch(options: &SessionOptions, every: Duration, as_json: bool, view: &View) -> anyhow::Result<Ending> {
    let mut session = None;
    let mut first = true;
    loop {
        let looked = look(options, &mut session, view);
        if every >= SLOW || !looked.as_ref().is_ok_and(|report| report.failure.is_none()) {
            session = None;
        }
        let report = match looked {
            // What fails at once will not get better; later a driver may be reloaded under us, and come back.
            Err(error) if first => return Err(error),
            Ok(report) if first && report.failure.is_some() => Ok(shown(report, as_json, view)?),
            other => other,
        };
        let reader = match (&report, as_json) {
            (Ok(report), true) => stdout::print(|out| json::line(report, out))?,
            (Err(_), true) => Reader::There,
            (report, false) => stdout::print(|out| frame(report, every, &view.style(), first, out))?,
        };
        if reader == Reader::Gone {
            return Ok(Ending::Code(exit::CLEAN));
        }
        first = false;
        thread::sleep(every);
    }
}

fn look(options: &SessionOptions, session: &mut Option<Session>, view: &View) -> anyhow::Result<StatusReport> {
    let opened = match session {
        Some(session) => Ok(session),
        None => Session::open_or_why_not(options, || driver_is_slow_for(options.open_timeout))?
            .map(|opened| session.insert(opened)),
    };
    let looked = match opened {
        Ok(session) => session.snapshot_or_why_not()?,
        Err(unanswered) => Err(unanswered),
    };
    match looked {
        Ok(snapshot) => Ok(with_driver(&snapshot, view)),
        Err(unanswered) => {
            // What can be said all the same.
            let snapshot = session::look_at_files(&options.proc, unanswered.tool_processes)?;
            Ok(view.of(&snapshot, judge::status_without_driver(&snapshot, &unanswered.failure)))
        }
    }
}

/// Tells the user why nothing happens yet, and what comes then.
fn driver_is_slow_for(patience: Duration) {
    let patience = humantime::format_duration(patience);
    // A word on a terminal that is gone is not worth an error.
    let _ = writeln!(
        io::stderr(),
        "gpuresid: waiting for the NVIDIA driver to answer, at most {patience} (--nvml-timeout); if it does not, whoever has \
         its device files open is shown"
    );
}

/// One picture. On a terminal it is drawn over the one before, line by line, so that nothing flickers.
fn frame(
    report: &anyhow::Result<StatusReport>,
    every: Duration,
    style: &Style,
    first: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut body = Vec::new();
    match report {
        Ok(report) => {
            page(report, style, &mut body)?;
            if let Some(failure) = &report.failure {
                let error = anyhow::Error::new(failure.clone());
                writeln!(body, "{}", crate::error::display_in(&error, style.width))?;
            }
        }
        Err(error) => writeln!(body, "{}", crate::error::display_in(error, style.width))?,
    }
    let now = jiff::ZonedDateTime::now().strftime("%H:%M:%S").to_string();
    let title = format!("{now}, again every {}; Ctrl-C ends", humantime::format_duration(every));
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        writeln!(out, "{title}")?;
        out.write_all(&body)?;
        return writeln!(out);
    }
    let rows = rustix::termios::tcgetwinsize(&stdout).map_or(24, |size| usize::from(size.ws_row)).max(2);
    let body = String::from_utf8_lossy(&body);
    let lines: Vec<&str> = body.lines().collect();
    let title = text::shorten(&title, style.width.map_or(80, usize::from));
    out.write_all(if first { b"\x1b[2J\x1b[H" } else { b"\x1b[H" })?;
    write!(out, "{}\x1b[K", style.dim(&title))?;
    // The last row stays free: a line end there would scroll the picture.
    let room = rows - 2;
    let (shown, cut) = if lines.len() > room { (room.saturating_sub(1), true) } else { (lines.len(), false) };
    for line in lines.iter().take(shown) {
        write!(out, "\r\n{line}\x1b[K")?;
    }
    if cut {
        write!(out, "\r\n… {} more lines\x1b[K", lines.len() - shown)?;
    }
    write!(out, "\r\n\x1b[J")
}
