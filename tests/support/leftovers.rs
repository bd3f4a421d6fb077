//! Ends what the programs of a rig left behind: by PID, and only if it is still the process that wrote itself down.

use super::running::wait_until_for;
use rustix::process::{Pid, Signal, kill_process};
use std::{fs, path::Path, time::Duration};

/// Killed processes end at once; this is for a loaded machine.
const SHORT: Duration = Duration::from_secs(20);

/// A process as it wrote itself down: its number in its own PID namespace, that namespace, its start.
struct Noted {
    pid: u32,
    namespace: u64,
    start_ticks: u64,
}

/// Ends everybody who is noted here, and removes the shared memory files that are.
pub(super) fn end(log: &Path) {
    // Supervisors start new ones while they are being ended: until nobody is left.
    let nobody_left = || {
        let text = fs::read_to_string(log).unwrap_or_default();
        let living: Vec<u32> = text.lines().filter_map(parse).filter_map(|noted| living(&noted)).collect();
        for pid in &living {
            if let Some(pid) = Pid::from_raw(*pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        living.is_empty()
    };
    if std::thread::panicking() {
        // A second panic would hide the first, so the deadline only ends the waiting.
        let _ = std::panic::catch_unwind(|| wait_until_for("the rig's programs", SHORT, nobody_left));
    } else {
        wait_until_for("the end of the rig's programs", SHORT, nobody_left);
    }
    let text = fs::read_to_string(log).unwrap_or_default();
    for path in text.lines().filter_map(|line| line.strip_prefix("shm ")) {
        let _ = fs::remove_file(path);
    }
}

fn parse(line: &str) -> Option<Noted> {
    let mut words = line.split(' ');
    let mut next = || words.next()?.parse::<u64>().ok();
    Some(Noted { pid: u32::try_from(next()?).ok()?, namespace: next()?, start_ticks: next()? })
}

/// The number here of a noted process that is still alive.
fn living(noted: &Noted) -> Option<u32> {
    if namespace("self") == Some(noted.namespace) {
        return is(noted.pid, noted).then_some(noted.pid);
    }
    let everybody = fs::read_dir("/proc").ok()?.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    everybody.filter(|pid| namespace(&pid.to_string()) == Some(noted.namespace)).find(|pid| is(*pid, noted))
}

/// Whether the process with this number here is the noted one, and no zombie.
fn is(pid: u32, noted: &Noted) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let words: Vec<&str> = rest.split(' ').collect();
    // A leader that is gone while its threads live shows as a zombie too.
    let threads = words.get(17).and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    words.get(19).and_then(|n| n.parse().ok()) == Some(noted.start_ticks) && (words[0] != "Z" || threads > 1)
}

fn namespace(process: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{process}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}
