//! `wait`: until memory is free, or the time is over. Two looks must agree, because a number that is read while a
//! process starts or ends may be right for a moment only.
//!
//! Whose memory is excepted, its listed bytes are taken off what is in use, together with what its context costs beside
//! them. That is exact where NVML lists it, and it never hides a ghost: a number is excepted only while the process that
//! had it at the beginning lives.

use super::{
    diff::{host, same_machine},
    driver_is_slow, session_options,
    status::judged,
    stdout,
};
use crate::{
    cli::{Except, Global, WaitArgs},
    error::hinted,
    exit::{self, Ending},
    judge::trouble,
    model::{Advice, Bytes, Device, DeviceIdentity, DeviceLook, Limit, Look, ProcId, Snapshot, Uuid},
    observe::{proc::ProcReader, select::Selection, session::Session},
    report::{Style, load, table, words},
    text,
};
use rustix::termios;
use std::{
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

/// Between two looks at first; later it may take twice as long. The end of the waiting is never more than a look and
/// twice this behind the memory.
const PAUSE: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_secs(10);
/// Between the two looks that must agree.
const AGAIN: Duration = Duration::from_millis(10);
/// What a context costs beside its listed bytes, and a device that is in use at all (driver 580: 5.6 and 3.25 MiB).
const CONTEXT: Bytes = Bytes((56 << 20) / 10);
const IN_USE: Bytes = Bytes(13 << 18);
/// As much as a snapshot and now may differ by without anybody holding more.
const JITTER: Bytes = Bytes::mib(16);
/// No line before this time has passed.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is waited for.
enum Goal {
    Below(Limit),
    Free(Bytes),
    To(Box<Snapshot>),
}

/// A device and why it does not do yet.
struct Held {
    uuid: Uuid,
    text: String,
}

/// Waits.
///
/// # Errors
/// If the devices or the snapshot cannot be read.
pub(super) fn run(global: &Global, args: &WaitArgs) -> anyhow::Result<Ending> {
    let started = Instant::now();
    let options = session_options(global);
    let reader = ProcReader::new(options.proc.clone())?;
    let goal = goal(args)?;
    if let Goal::To(snapshot) = &goal {
        same_machine(snapshot, &reader.boot_id()?, host().as_deref())?;
    }
    let except = excepted(&reader, &args.except)?;
    let mut session = Session::open(&options, driver_is_slow)?;
    let devices: Vec<DeviceIdentity> = session.inventory().devices.clone();
    if let Goal::To(snapshot) = &goal {
        if options.selection == Selection::default()
            && let Some(ending) = the_same_devices(snapshot, &mut session, args.any)
        {
            return Ok(ending);
        }
        comparable(snapshot, &session.look()?, &devices)?;
    }
    if let Goal::Free(wanted) = goal {
        can_ever_be_free(wanted, &session.look()?, &devices, args.any)?;
    }
    let mut line = Line { terminal: termios::isatty(io::stderr()), shown: String::new() };
    let mut before: Vec<Uuid> = Vec::new();
    loop {
        let look = session.look()?;
        let living: Vec<u32> = except.iter().filter(|id| lives(&reader, **id)).map(|id| id.pid).collect();
        let (ready, held) = weigh(&look, &devices, &goal, &living);
        let agreed = ready.iter().find(|uuid| before.contains(uuid));
        let all = held.is_empty() && !ready.is_empty();
        if let Some(uuid) = agreed
            && (args.any || all && ready.iter().all(|uuid| before.contains(uuid)))
        {
            line.clear();
            if args.any {
                stdout::print(|out| writeln!(out, "{uuid}"))?;
            }
            return Ok(Ending::Code(exit::CLEAN));
        }
        let elapsed = started.elapsed();
        if elapsed >= args.timeout {
            line.clear();
            return timed_out(&mut session, &held, args.timeout, global.redact);
        }
        line.show(&reader, &look, &held, &living, elapsed, args.timeout);
        let hopeful = if args.any { !ready.is_empty() } else { all };
        let pause = if hopeful { AGAIN } else { PAUSE * if elapsed > LATER { 2 } else { 1 } };
        before = ready;
        thread::sleep(pause.min(args.timeout - elapsed));
    }
}

fn goal(args: &WaitArgs) -> anyhow::Result<Goal> {
    Ok(match (args.below, args.free, &args.to) {
        (Some(limit), _, _) => Goal::Below(limit),
        (_, Some(bytes), _) => Goal::Free(bytes),
        (_, _, Some(file)) => Goal::To(Box::new(load::snapshot(file)?)),
        (None, None, None) => anyhow::bail!("there is nothing to wait for"),
    })
}

/// Looks at the devices of the snapshot. Those that are new since then are not waited for; for one that is gone there is
/// nothing to wait, unless another is enough.
fn the_same_devices(snapshot: &Snapshot, session: &mut Session, any: bool) -> Option<Ending> {
    let mut err = io::stderr().lock();
    let inventory = session.inventory();
    let is_there = |d: &&Device| inventory.devices.iter().any(|now| now.uuid == d.identity.uuid);
    let (there, gone): (Vec<_>, Vec<_>) = snapshot.devices.iter().partition(is_there);
    // A terminal that is gone changes nothing about the result.
    for device in snapshot.newcomers(inventory.devices.iter()) {
        let label = device.label();
        let _ = writeln!(err, "gpuresid: {label} was not there when the snapshot was taken: it is not waited for");
    }
    for device in &gone {
        let look = DeviceLook::gone(&device.identity, inventory.devices.iter(), &inventory.gaps);
        for gap in &look.gaps {
            let _ = writeln!(err, "gpuresid: {}", text::clean(&gap.to_string()));
        }
        if let Some((_, trouble)) = look.trouble() {
            let Advice { command, why, .. } = trouble::step(&device.identity, trouble);
            let _ = writeln!(err, "gpuresid: {why}: {}", command.unwrap_or_default());
        }
    }
    if there.is_empty() || !gone.is_empty() && !any {
        return Some(Ending::Code(exit::INCONCLUSIVE));
    }
    let there = there.into_iter().map(|d| d.identity.uuid.clone()).collect();
    session.select(there);
    None
}

/// Who is excepted: with the start time, because the number may go to somebody else.
fn excepted(reader: &ProcReader, wanted: &[Except]) -> anyhow::Result<Vec<ProcId>> {
    let mut ids = Vec::new();
    for except in wanted {
        match except {
            Except::Ancestors => {
                let us = reader.identify(reader.observer().id.pid)?;
                ids.extend(us.into_iter().flat_map(|p| p.ancestors).map(|a| a.id));
            }
            Except::Pid(pid) => match reader.identify(*pid)? {
                Some(process) => ids.push(process.id),
                None => {
                    return Err(hinted(
                        format!("there is no process {pid} to except"),
                        "see who holds memory: gpuresid",
                    ));
                }
            },
        }
    }
    Ok(ids)
}

fn lives(reader: &ProcReader, id: ProcId) -> bool {
    // A zombie holds nothing, and what is listed under its number is a copy's.
    reader.find(id).ok().flatten().is_some_and(|process| !process.is_zombie())
}

/// The snapshot must know a device that is looked at, counted in the same way.
fn comparable(snapshot: &Snapshot, look: &Look, devices: &[DeviceIdentity]) -> anyhow::Result<()> {
    for (device, identity) in whole(look, devices) {
        let then = snapshot.device(&device.uuid).and_then(|d| d.look.memory);
        match (then, device.memory) {
            (None, _) => {
                return Err(hinted(
                    format!("the snapshot does not know how much of {} was in use", identity.label()),
                    "take it again: gpuresid snapshot -o before.json; or choose GPUs with -i",
                ));
            }
            (Some(then), Some(now)) if then.api != now.api => {
                return Err(hinted(
                    format!("the snapshot counted the memory of {} differently", identity.label()),
                    "take it again with this driver: gpuresid snapshot -o before.json",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// No waiting makes a GPU larger: more than it has when it is empty will never be free.
fn can_ever_be_free(wanted: Bytes, look: &Look, devices: &[DeviceIdentity], any: bool) -> anyhow::Result<()> {
    let mut too_small = Vec::new();
    let mut all = 0;
    for (device, identity) in whole(look, devices) {
        all += 1;
        let Some(memory) = device.memory else { continue };
        let empty = memory.total.saturating_sub(memory.reserved.unwrap_or_default());
        if empty < wanted {
            too_small.push(format!("{} {empty}", identity.label()));
        }
    }
    if too_small.is_empty() || any && too_small.len() < all {
        return Ok(());
    }
    let sizes = too_small.join(", ");
    let (message, hint) = if too_small.len() == all {
        (format!("no selected GPU can ever have {wanted} free; when empty: {sizes}"), "ask for less")
    } else {
        (
            format!("not every selected GPU can ever have {wanted} free; when empty: {sizes}"),
            "ask for less, choose larger GPUs with -i, or be content with one of them: --any",
        )
    };
    Err(hinted(message, hint))
}

/// The devices of the look that count: a GPU that is split is not one of them.
fn whole<'a>(
    look: &'a Look,
    devices: &'a [DeviceIdentity],
) -> impl Iterator<Item = (&'a DeviceLook, &'a DeviceIdentity)> {
    let identity = |device: &DeviceLook| devices.iter().find(|d| d.uuid == device.uuid);
    look.devices.iter().filter_map(move |d| Some((d, identity(d)?))).filter(|(_, d)| !d.mig_parent)
}

/// Which devices are as wanted, and what the others lack.
fn weigh(look: &Look, devices: &[DeviceIdentity], goal: &Goal, except: &[u32]) -> (Vec<Uuid>, Vec<Held>) {
    let (mut ready, mut held) = (Vec::new(), Vec::new());
    for (device, identity) in whole(look, devices) {
        let label = identity.label();
        let Some(memory) = device.memory else {
            let why = device.gaps.first().map(|gap| format!(": {}", gap.reason)).unwrap_or_default();
            held.push(Held { uuid: device.uuid.clone(), text: format!("{label} cannot be read{why}") });
            continue;
        };
        let (met, text) = match goal {
            Goal::Free(wanted) => (memory.free >= *wanted, format!("{label}: {} free, {wanted} wanted", memory.free)),
            Goal::Below(limit) => {
                let used = memory.used.saturating_sub(cost(device, except));
                let met = limit.on(Some(memory.total)).is_some_and(|limit| used <= limit);
                (met, format!("{label}: {used} in use, no more than {limit} wanted"))
            }
            Goal::To(snapshot) => {
                let then = snapshot.device(&device.uuid);
                let wanted = then
                    .and_then(|d| Some(d.look.used()?.saturating_sub(cost(&d.look, except))))
                    .map(|used| used + JITTER);
                let used = memory.used.saturating_sub(cost(device, except));
                let shown = words::amount(wanted);
                (wanted.is_some_and(|w| used <= w), format!("{label}: {used} in use, no more than {shown} wanted"))
            }
        };
        if met {
            ready.push(device.uuid.clone());
        } else {
            held.push(Held { uuid: device.uuid.clone(), text });
        }
    }
    (ready, held)
}

/// What the excepted processes have on a device, and what that costs beside it.
fn cost(device: &DeviceLook, except: &[u32]) -> Bytes {
    let entries = device.entries.as_deref().unwrap_or_default();
    let theirs: Vec<_> = entries.iter().filter(|e| except.contains(&e.pid)).collect();
    let listed: Bytes = theirs.iter().filter_map(|e| e.bytes).sum();
    let contexts: Bytes = theirs.iter().map(|_| CONTEXT).sum();
    let alone = if !theirs.is_empty() && theirs.len() == entries.len() { IN_USE } else { Bytes::ZERO };
    listed + contexts + alone
}

fn timed_out(session: &mut Session, held: &[Held], timeout: Duration, redacted: bool) -> anyhow::Result<Ending> {
    let mut err = io::stderr().lock();
    // A terminal that is gone changes nothing about the result.
    let _ = writeln!(err, "gpuresid: the memory was not free after {}", humantime::format_duration(timeout));
    for device in held {
        let _ = writeln!(err, "gpuresid: {}", text::clean(&device.text));
    }
    if let Ok(snapshot) = session.snapshot() {
        let _ = writeln!(err);
        let _ = table::status(&judged(&snapshot, redacted), &Style::stderr(), &mut err);
    }
    Ok(Ending::Code(exit::TIMED_OUT))
}

/// The one line on a terminal.
struct Line {
    terminal: bool,
    shown: String,
}

impl Line {
    fn show(
        &mut self,
        reader: &ProcReader,
        look: &Look,
        held: &[Held],
        except: &[u32],
        elapsed: Duration,
        timeout: Duration,
    ) {
        let Some(first) = held.first().filter(|_| self.terminal && elapsed >= PATIENCE) else { return };
        let time = format!("{}/{} s", elapsed.as_secs(), timeout.as_secs());
        if self.shown.ends_with(&time) {
            return;
        }
        let device = look.devices.iter().find(|d| d.uuid == first.uuid);
        let mut holders: Vec<(Bytes, u32)> = device
            .and_then(|d| d.entries.as_deref())
            .unwrap_or_default()
            .iter()
            .filter(|e| !except.contains(&e.pid))
            .filter_map(|e| Some((e.bytes?, e.pid)))
            .collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        let named: Vec<String> = holders
            .into_iter()
            .take(2)
            .map(|(bytes, pid)| {
                let name = reader.identify(pid).ok().flatten().map_or_else(|| "gone".into(), |p| text::clean(&p.comm));
                format!("{name} ({pid}) {bytes}")
            })
            .collect();
        let by = if named.is_empty() { String::new() } else { format!("; held by {}", named.join(", ")) };
        let width = termios::tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(20));
        let said = text::shorten(&format!("gpuresid: {}{by}", first.text), width.saturating_sub(time.len() + 2));
        let _ = write!(io::stderr(), "\r\x1b[K{said} {time}");
        self.shown = format!("{said} {time}");
    }

    fn clear(&mut self) {
        if !std::mem::take(&mut self.shown).is_empty() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
