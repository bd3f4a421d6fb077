//! The nursery: a process that starts helpers so that none of them is a child of a `check`, whose proof that nothing of
//! the command lives is that it has no child left. It is no child of the check either: an intermediate process starts
//! it and ends, before the check becomes a subreaper.
//!
//! Lines that begin with `@` are between client and nursery (`@start N`, `@kill`; `@nursery PID`, `@born N PID`,
//! `@gone N how`); all others go through to and from the helper.

use super::{
    helper::NURSERY,
    keeper::{Kept, OWN_BINARY, inner},
    protocol,
};
use std::{
    io::{self, Write},
    path::Path,
    process::Stdio,
    sync::mpsc,
    time::Duration,
};

/// What begins a line between client and nursery.
pub(super) const CONTROL: char = '@';

/// The intermediate: starts the nursery on its own pipes and ends.
pub(super) fn start() -> io::Result<()> {
    inner(Path::new(OWN_BINARY), Some(NURSERY)).stdin(Stdio::inherit()).stdout(Stdio::inherit()).spawn()?;
    Ok(())
}

/// Be the nursery until stdin ends.
pub(super) fn serve() -> io::Result<()> {
    say(&format!("@nursery {}\n", std::process::id()))?;
    let mut helper: Option<Kept> = None;
    let (tell_gone, gone) = mpsc::channel::<()>();
    let mut alive = 0_usize;
    let mut input = io::stdin().lock();
    let mut text = String::new();
    while protocol::next_line(&mut input, &mut text)?.is_some() {
        match text.strip_prefix(CONTROL) {
            Some("kill") => {
                if let Some(helper) = helper.take() {
                    helper.end_now();
                }
            }
            Some(order) => {
                let Some(number) = order.strip_prefix("start ") else { continue };
                match start_helper(number, tell_gone.clone()) {
                    Ok(kept) => {
                        alive += 1;
                        say(&format!("@born {number} {}\n", kept.pid))?;
                        helper = Some(kept);
                    }
                    Err(e) => say(&format!("@gone {number} could not be started: {e}\n"))?,
                }
            }
            None => {
                text.push('\n');
                // A helper that is gone is reported by the thread that read from it.
                if let Some(helper) = &mut helper {
                    let _ = helper.send(&text);
                }
            }
        }
    }
    // A helper's input ends with ours. One that does not notice is killed; one that hangs in the kernel is left to PID 1.
    let last = helper.map(Kept::hang_up);
    let mut patience = Duration::from_secs(1);
    while alive > 0 {
        if gone.recv_timeout(patience).is_ok() {
            alive -= 1;
        } else if patience > KILLED {
            patience = KILLED;
            if let Some(hung_up) = &last {
                hung_up.end_now();
            }
        } else {
            break;
        }
    }
    Ok(())
}

/// How long a killed helper may take to end.
const KILLED: Duration = Duration::from_millis(200);

fn start_helper(number: &str, tell_gone: mpsc::Sender<()>) -> io::Result<Kept> {
    let number = number.to_owned();
    Kept::start(
        &mut inner(Path::new(OWN_BINARY), None),
        |line| say(&format!("{line}\n")).is_ok(),
        move |how| {
            // The client may be gone already.
            let _ = say(&format!("@gone {number} {how}\n"));
            let _ = tell_gone.send(());
        },
    )
}

/// One whole write at a time: threads take turns.
fn say(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(line.as_bytes())?;
    output.flush()
}
