//! `snapshot`: how it is now, to a file or to standard output.

use super::{driver_is_slow, marker, session_options, stdout};
use crate::{
    cli::{Global, SnapshotArgs},
    error::hinted,
    exit::{self, Ending},
    observe::{
        driver::Extras,
        marker::snapshot_id,
        session::{Session, SessionOptions},
    },
    report::{json, pending::Pending, redact},
};
use std::path::Path;

/// Takes a snapshot.
///
/// # Errors
/// If nothing could be read, or it cannot be written.
pub(super) fn run(global: &Global, args: &SnapshotArgs) -> anyhow::Result<Ending> {
    if args.output.as_deref() == Some(Path::new("-")) {
        return Err(hinted(
            "cannot write the snapshot to `-`: standard output is where it goes without -o",
            "leave out -o, or name a file; for a file of that name write -o ./-",
        ));
    }
    let file = args.output.as_deref().map(Pending::open).transpose()?;
    let options = SessionOptions { extras: Extras { bar1: args.bar1, utilization: true }, ..session_options(global) };
    let mut snapshot = Session::open(&options, driver_is_slow)?.snapshot()?;
    snapshot.marked = args.env;
    if global.redact {
        redact::snapshot(&mut snapshot);
    }
    match file {
        Some(file) => file.write(|out| json::pretty(&snapshot, out))?,
        None => {
            stdout::print(|out| json::pretty(&snapshot, out))?;
        }
    }
    if args.env {
        let line = marker::export_line(&snapshot_id(&snapshot.boot_id, snapshot.observer.id));
        stdout::print(|out| writeln!(out, "{line}"))?;
    }
    Ok(Ending::Code(exit::CLEAN))
}
