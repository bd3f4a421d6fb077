//! `status`: one look, or one after the other until Ctrl-C.

use super::{
    session_options,
    stdout::{self, Reader},
};
use crate::{
    cli::{Global, StatusArgs},
    exit::{self, Ending},
    judge,
    model::{Snapshot, StatusReport},
    observe::{
        driver::Extras,
        proc::ProcOptions,
        session::{self, Session, SessionOptions, Unanswered},
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
        extras: Extras { bar1: args.bar1, utilization: args.all || args.watch.is_some() },
        ..session_options(global)
    };
    if let Some(every) = args.watch {
        return watch(&options, every, args, global.redact);
    }
    let report = shown(look(&options, &mut None, args.all, global.redact)?, args.json)?;
    let found = report.holders.iter().any(|h| args.fail_on.contains(&h.cause));
    Ok(Ending::Code(if found { exit::RESIDUE } else { exit::CLEAN }))
}

/// Shows the report. That the driver does not answer is an error all the same.
fn shown(report: StatusReport, as_json: bool) -> anyhow::Result<StatusReport> {
    stdout::print(|out| match as_json {
        true => json::pretty(&report, out),
        false => page(&report, &Style::stdout(), out),
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
    }
}

pub(super) fn judged(snapshot: &Snapshot, all: bool, redacted: bool) -> StatusReport {
    let mut report = if all { judge::status_of_all(snapshot) } else { judge::status(snapshot) };
    if redacted {
        redact::status(snapshot, &mut report);
    }
    report
}

fn watch(options: &SessionOptions, every: Duration, args: &StatusArgs, redacted: bool) -> anyhow::Result<Ending> {
    let mut session = None;
    let mut first = true;
    loop {
        let looked = look(options, &mut session, args.all, redacted);
        if every >= SLOW || !looked.as_ref().is_ok_and(|report| report.failure.is_none()) {
            session = None;
        }
        let report = match looked {
            // What fails at once will not get better; later a driver may be reloaded under us, and come back.
            Err(error) if first => return Err(error),
            Ok(report) if first && report.failure.is_some() => Ok(shown(report, args.json)?),
            other => other,
        };
        let reader = match (&report, args.json) {
            (Ok(report), true) => stdout::print(|out| json::line(report, out))?,
            (Err(_), true) => Reader::There,
            (report, false) => stdout::print(|out| frame(report, every, first, out))?,
        };
        if reader == Reader::Gone {
            return Ok(Ending::Code(exit::CLEAN));
        }
        first = false;
        thread::sleep(every);
    }
}

fn look(
    options: &SessionOptions,
    session: &mut Option<Session>,
    all: bool,
    redacted: bool,
) -> anyhow::Result<StatusReport> {
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
        Ok(snapshot) => Ok(judged(&snapshot, all, redacted)),
        Err(unanswered) => {
            let (snapshot, mut report) = who_has_files(&options.proc, unanswered)?;
            if redacted {
                redact::status(&snapshot, &mut report);
            }
            Ok(report)
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

/// What can be said where the driver does not answer.
pub(super) fn who_has_files(proc: &ProcOptions, unanswered: Unanswered) -> anyhow::Result<(Snapshot, StatusReport)> {
    let snapshot = session::look_at_files(proc, unanswered.tool_processes)?;
    let report = judge::status_without_driver(&snapshot, &unanswered.failure);
    Ok((snapshot, report))
}

/// One picture. On a terminal it is drawn over the one before, line by line, so that nothing flickers.
fn frame(report: &anyhow::Result<StatusReport>, every: Duration, first: bool, out: &mut dyn Write) -> io::Result<()> {
    let style = Style::stdout();
    let mut body = Vec::new();
    match report {
        Ok(report) => {
            page(report, &style, &mut body)?;
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
