//! `doctor`: looks at everything that is not memory itself, and says what would keep a program from its GPU or this
//! tool from seeing it.

use super::{driver_is_slow, session_options, stdout};
use crate::{
    cli::{DoctorArgs, Global},
    doctor::{judge, observe, table::Table},
    error,
    exit::Ending,
    report::{Style, json, redact, table},
};

/// Looks and says.
///
/// # Errors
/// If no process could be started, or `--gpu` or `--python` names something that is not there.
pub(super) fn run(global: &Global, args: DoctorArgs) -> anyhow::Result<Ending> {
    if let Some(path) = &args.python {
        // Who asks for this names no path, not even one that was typed.
        let hidden = |words: &str| words.replace(&format!(" {}:", path.display()), ":");
        let as_it_is = |error| if global.redact { error::mapped(error, hidden) } else { error };
        observe::python::must_be_there(path).map_err(as_it_is)?;
    }
    let known = Table::built_in()?;
    let facts = observe::look(&session_options(global), args.python, driver_is_slow)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut report = judge::report(&facts, &known, args.strict, jiff::Timestamp::now().to_string(), Some(host));
    if global.redact {
        redact::doctor(facts.files.as_ref(), &mut report);
    }
    stdout::print(|out| match args.json {
        true => json::pretty(&report, out),
        false => table::doctor(&report, &Style::stdout(), out),
    })?;
    Ok(Ending::Code(report.exit_code))
}
