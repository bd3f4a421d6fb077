//! The helper process: this same binary under a hidden inner command. It alone loads NVML, answers one line for one
//! line, and ends when its stdin does. It holds nothing of its starter: no terminal, no directory, no descriptor.

use super::{
    DeviceSource, Failure, FailureKind, Source,
    calls::{Call, about_to, set_name},
    nursery,
    nvml::Nvml,
    protocol::{self, Answer, Ask, Request, Say},
    raw,
    simulated::Simulated,
};
use crate::dispositions;
use rustix::io::fcntl_dupfd_cloexec;
use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufReader, Write},
    time::Duration,
};

/// First argument of the inner command.
pub(super) const INNER: &str = "__nvml-helper";
/// Second argument: start a nursery and end.
pub(super) const START_NURSERY: &str = "start-nursery";
/// Our line is moved to descriptors from here on, away from those that a program takes for its standard ones.
const FIRST_OWN: i32 = 10;
/// Second argument: be a nursery.
pub(super) const NURSERY: &str = "nursery";

/// Runs the inner command if that is what the process was started as, and gives its exit code. To be called first thing
/// in `main`, before the command line is parsed: the helper's start is part of every command's time. `args` begin with
/// the program's name.
pub fn inner_command(args: impl IntoIterator<Item = OsString>) -> Option<i32> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != INNER {
        return None;
    }
    let role = args.next();
    let done = match role.as_ref().and_then(|r| r.to_str()) {
        None => {
            detach("gpuresid-nvml");
            let _ = rustix::process::setsid();
            serve()
        }
        Some(START_NURSERY) => nursery::start(),
        Some(NURSERY) => {
            detach("gpuresid-nest");
            nursery::serve()
        }
        Some(_) => return Some(2),
    };
    // Nobody reads an error message here; the other end sees the pipe close.
    Some(i32::from(done.is_err()))
}

/// Lets go of everything that the starter gave us, but of its process group.
fn detach(name: &str) {
    raw::close_inherited_files();
    // Each step alone is worth having, and none of them is worth not starting for.
    let _ = std::env::set_current_dir("/");
    // We end at the end of stdin and not before: the report that the signal asks for needs us. Whoever signals all
    // processes of a job or a service means us too.
    dispositions::outlive();
    set_name(name);
}

fn serve() -> io::Result<()> {
    let (input, mut output) = own_line()?;
    let mut input = BufReader::new(input);
    let mut source: Option<Box<dyn DeviceSource>> = None;
    let mut text = String::new();
    while protocol::next_line(&mut input, &mut text)?.is_some() {
        let Request { id, ask } = serde_json::from_str(&text)?;
        let say = match ask {
            Ask::Open { source: which, events, patience_ms } => {
                Say::Opened(open(which, events, patience(patience_ms)).and_then(|mut opened| {
                    let inventory = opened.inventory();
                    source = Some(opened);
                    inventory
                }))
            }
            Ask::Look { devices, extras, patience_ms } => Say::Look(
                source
                    .as_mut()
                    .ok_or_else(unopened)
                    .and_then(|source| source.look(&devices, extras, patience(patience_ms))),
            ),
            Ask::Facts => Say::Facts(source.as_mut().ok_or_else(unopened).and_then(|source| source.facts())),
        };
        let events = source.as_mut().map(|s| s.poll_events()).unwrap_or_default();
        let mut lines = String::new();
        if !events.is_empty() {
            lines += &protocol::line(&Answer { id: 0, say: Say::Events(events) })?;
        }
        lines += &protocol::line(&Answer { id, say })?;
        output.write_all(lines.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

/// The line to our starter on descriptors that nobody else knows. A library may read and print what it likes: the
/// standard ones lead nowhere from here on.
fn own_line() -> io::Result<(File, File)> {
    let line = (fcntl_dupfd_cloexec(io::stdin(), FIRST_OWN)?, fcntl_dupfd_cloexec(io::stdout(), FIRST_OWN)?);
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok((line.0.into(), line.1.into()))
}

fn unopened() -> Failure {
    Failure::new(FailureKind::Other, "reading the GPUs: they were not opened")
}

fn patience(ms: u64) -> Duration {
    // Longer than any deadline, and small enough that no clock overflows.
    Duration::from_millis(ms.min(1 << 40))
}

fn open(source: Source, events: bool, patience: Duration) -> Result<Box<dyn DeviceSource>, Failure> {
    Ok(match source {
        Source::Nvml { library } => Box::new(Nvml::open(library.as_deref(), events, patience)?),
        Source::Simulated { ledger } => {
            about_to(Call::Ledger, None);
            Box::new(Simulated::new(ledger))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_inner_command_is_taken() {
        let run = |args: &[&str]| inner_command(args.iter().map(OsString::from));
        assert_eq!(run(&["gpuresid"]), None);
        assert_eq!(run(&["gpuresid", "status"]), None);
        assert_eq!(run(&["gpuresid", "check", INNER]), None);
        assert_eq!(run(&["gpuresid", INNER, "nonsense"]), Some(2));
    }
}
