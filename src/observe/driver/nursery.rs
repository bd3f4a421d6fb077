//! The nursery: a process that starts helpers so that none of them is a child of a `check`, whose proof that nothing of
//! the command lives is that it has no child left. It is no child of the check either: an intermediate process starts
//! it and ends, before the check becomes a subreaper.
//!
//! It is not in the way of the looks: client and helper talk through pipes that the client makes and hands over. On a
//! socket of its own the nursery hears `start N` with the helper's ends of the pipes, and `kill N`; it says
//! `nursery PID`, `born N PID` and `gone N how`. It ends when the socket does.
//!
//! While the command runs it stays in the process group of the check, and is its [witness](super::witness): asked
//! `heard SIGNAL PID`, it says `heard SIGNAL PID yes` if that one's signal has reached the group, or `no`. After `apart`
//! it leaves the group.

use super::{
    helper::NURSERY,
    keeper::{OWN_BINARY, how_it_ended, inner, kill, reap_within},
    socket::{hear, say},
    witness::Witness,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

/// How long a helper may take to end once nobody wants it, and once it was killed.
const PATIENCE: Duration = Duration::from_secs(1);
const KILLED: Duration = Duration::from_millis(200);

/// The intermediate: starts the nursery on its own socket and ends.
pub(super) fn start() -> io::Result<()> {
    inner(Path::new(OWN_BINARY), Some(NURSERY)).stdin(Stdio::inherit()).stdout(Stdio::null()).spawn()?;
    Ok(())
}

/// Be the nursery until the socket on stdin ends.
pub(super) fn serve() -> io::Result<()> {
    let socket = io::stdin();
    say(&socket, &format!("nursery {}", std::process::id()))?;
    let (tell_gone, gone) = mpsc::channel();
    let mut wards: BTreeMap<String, Arc<Mutex<Child>>> = BTreeMap::new();
    let mut witness: Option<Witness> = None;
    while let Some((order, pipes)) = hear(&socket)? {
        for number in gone.try_iter() {
            wards.remove(&number);
        }
        match order.split_once(' ') {
            Some(("start", number)) => {
                match start_helper(number, pipes, tell_gone.clone()) {
                    Ok(ward) => {
                        wards.insert(number.into(), ward);
                    }
                    Err(e) => say(&socket, &format!("gone {number} could not be started: {e}"))?,
                }
                // Not before the first helper, whose start is part of every check's time.
                if witness.is_none() {
                    witness = Witness::start().ok();
                }
            }
            Some(("heard", what)) => {
                // Who has no witness is not answered, and decides alone.
                if let Some((witness, (signal, sender))) = witness.as_ref().zip(numbers(what)) {
                    let answer = if witness.heard(signal, sender) { "yes" } else { "no" };
                    say(&socket, &format!("heard {signal} {sender} {answer}"))?;
                }
            }
            Some(("kill", number)) => {
                if let Some(ward) = wards.get(number) {
                    kill(ward);
                }
            }
            None if order == "apart" => {
                let _ = rustix::process::setsid();
            }
            _ => {}
        }
    }
    // The helpers' input ends with the client. One that does not notice is killed; one that hangs in the kernel is left
    // to PID 1.
    let mut patience = PATIENCE;
    while !wards.is_empty() {
        if let Ok(number) = gone.recv_timeout(patience) {
            wards.remove(&number);
        } else if patience > KILLED {
            patience = KILLED;
            wards.values().for_each(|ward| kill(ward));
        } else {
            break;
        }
    }
    Ok(())
}

/// A signal and its sender.
fn numbers(what: &str) -> Option<(i32, u32)> {
    let (signal, sender) = what.split_once(' ')?;
    Some((signal.parse().ok()?, sender.parse().ok()?))
}

fn start_helper(number: &str, pipes: Vec<OwnedFd>, tell_gone: mpsc::Sender<String>) -> io::Result<Arc<Mutex<Child>>> {
    let Ok([stdin, stdout]) = <[OwnedFd; 2]>::try_from(pipes) else {
        return Err(io::Error::other("its pipes did not come along"));
    };
    let child = inner(Path::new(OWN_BINARY), None).stdin(stdin).stdout(stdout).spawn()?;
    let pid = child.id();
    say(&io::stdin(), &format!("born {number} {pid}"))?;
    let ward = Arc::new(Mutex::new(child));
    let (theirs, number) = (Arc::clone(&ward), number.to_owned());
    thread::Builder::new().name("reaper".into()).spawn(move || {
        if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
            // It stays a zombie until the lock is ours, so that its number is never killed after it was reused.
            let ended = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            while matches!(ended(), Err(rustix::io::Errno::INTR)) {}
        }
        let how = reap_within(&theirs, KILLED).map_or_else(|| "ended".into(), how_it_ended);
        // The client may be gone already.
        let _ = say(&io::stdin(), &format!("gone {number} {how}"));
        let _ = tell_gone.send(number);
    })?;
    Ok(ward)
}
