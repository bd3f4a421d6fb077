//! `diff`: compares two snapshots, or one with now, and judges the difference like a check.

use super::{driver_is_slow, limits, marker, session_options, stdout, to_paste};
use crate::{
    cli::{DiffArgs, Global},
    error::hinted,
    exit::Ending,
    judge,
    model::{Device, DeviceLook, Launch, Observation, Scope, Snapshot, Trace, schema},
    observe::{marker::snapshot_id, select::Selection, session::Session},
    report::{Style, json, load, redact, table},
    text,
};
use std::{
    collections::BTreeSet,
    io::{self, Write},
};

const TAKE_AGAIN: &str = "take both snapshots on the machine in question: gpuresid snapshot -o before.json";

/// Compares.
///
/// # Errors
/// If a snapshot cannot be read, or the two do not compare.
pub(super) fn run(global: &Global, args: &DiffArgs) -> anyhow::Result<Ending> {
    let mut before = load::snapshot(&args.before)?;
    let mut after = match &args.after {
        Some(path) => {
            let mut after = load::snapshot(path)?;
            same_machine(&before, &after.boot_id, after.host.as_deref())?;
            in_order(&before, &after)?;
            only_selected(global, &mut before, &mut after)?;
            after
        }
        // Now is later, whatever the clock says.
        None => now(global, &mut before)?,
    };
    align(&before, &mut after);
    comparable(&before, &after)?;
    if global.redact {
        redact::arguments(&mut before);
        redact::arguments(&mut after);
    }
    let run_id = snapshot_id(&before.boot_id, before.observer.id);
    let scope = match args.scope {
        Some(scope) => scope.into(),
        None if marker::is_known(&run_id, &after) => Scope::Run,
        None => {
            let _ = before.marked.then(|| unmarked(args));
            Scope::New
        }
    };
    let mut observation = Observation {
        schema: schema::OBSERVATION.into(),
        launch: launch(run_id, scope, &before),
        before,
        trace: Trace::default(),
        after,
        limits: limits(&args.limits),
        torch: None,
    };
    let mut report = judge::judge(&observation);
    if global.redact {
        redact::run(&mut observation, &mut report);
    }
    stdout::print(|out| match args.json {
        true => json::pretty(&report, out),
        false => table::check(&report, &Style::stdout().verbose(args.verbose), out),
    })?;
    Ok(Ending::Code(report.exit_code))
}

/// The marker was made and nobody has it: said, because the other question is answered then.
fn unmarked(args: &DiffArgs) {
    let words = ["gpuresid", "diff", "--scope", "run"].map(str::to_owned).into_iter();
    let files = [Some(&args.before), args.after.as_ref()].into_iter().flatten().map(|file| file.display().to_string());
    let ask = to_paste(&words.chain(files).collect::<Vec<_>>()).unwrap_or_else(|| "gpuresid diff --scope run".into());
    let line = format!(
        "gpuresid: neither this shell nor any process has the snapshot's marker, so every new process is charged; to charge \
         only what has it: {ask}"
    );
    // The report says what counts all the same.
    let _ = writeln!(io::stderr(), "{}", text::program::pasteable(&line));
}

/// A run of which nothing is known but its two ends.
fn launch(run_id: String, scope: Scope, before: &Snapshot) -> Launch {
    Launch {
        run_id,
        scope,
        command: None,
        root: None,
        company: false,
        own_uids: BTreeSet::from([before.observer.uid]),
        all_gone: None,
        settled_ms: None,
        settle_end: None,
        survivors: Vec::new(),
        output_kept_by: Vec::new(),
        oom_kills: None,
        leftovers: Vec::new(),
        report_file: None,
    }
}

/// Now, on the devices of the snapshot unless others are asked for.
fn now(global: &Global, before: &mut Snapshot) -> anyhow::Result<Snapshot> {
    let mut options = session_options(global);
    let asked = std::mem::take(&mut options.selection);
    let mut session = Session::open(&options, driver_is_slow)?;
    // Another boot or machine is said before a device is missed that is not there any more.
    same_machine(before, session.boot_id(), host().as_deref())?;
    if asked != Selection::default() {
        let wanted = asked.resolve(session.inventory())?;
        before.keep_only(&wanted);
        session.select(wanted);
    }
    session.snapshot()
}

/// Leaves in the second snapshot the devices of the first. One that is gone stays as a device that cannot be read: its
/// memory may be held by anybody.
fn align(before: &Snapshot, after: &mut Snapshot) {
    let (there, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut after.devices).into_iter().partition(|d| before.device(&d.identity.uuid).is_some());
    let unselected = after.unselected.get_or_insert_default();
    unselected.extend(others.into_iter().map(|d| d.identity));
    let now = |then: &Device| {
        let uuid = &then.identity.uuid;
        match there.iter().find(|d| d.identity.uuid == *uuid) {
            Some(device) => Some(device.clone()),
            None if after.present().any(|d| d.uuid == *uuid) => None,
            None => {
                let look = DeviceLook::gone(&then.identity, after.present(), &after.gaps);
                Some(Device { identity: then.identity.clone(), look })
            }
        }
    };
    after.devices = before.devices.iter().filter_map(now).collect();
}

/// The name of this machine as snapshots have it.
pub(super) fn host() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().map(Into::into)
}

/// Leaves in both snapshots what is asked for.
fn only_selected(global: &Global, before: &mut Snapshot, after: &mut Snapshot) -> anyhow::Result<()> {
    let asked = super::selection(global);
    if asked == Selection::default() {
        return Ok(());
    }
    let inventory = crate::observe::driver::Inventory {
        driver: before.driver.clone().ok_or_else(|| anyhow::anyhow!("the first snapshot has no GPUs"))?,
        devices: before.devices.iter().map(|d| d.identity.clone()).collect(),
        gaps: Vec::new(),
    };
    let wanted = asked.resolve(&inventory)?;
    for snapshot in [before, after] {
        snapshot.keep_only(&wanted);
    }
    Ok(())
}

pub(super) fn same_machine(
    before: &Snapshot,
    boot_id: &crate::model::BootId,
    host: Option<&str>,
) -> anyhow::Result<()> {
    if let (Some(then), Some(now)) = (before.host.as_deref(), host)
        && then != now
    {
        return Err(hinted(
            format!("the snapshots do not compare: the first is of the machine {then}, the second of {now}"),
            TAKE_AGAIN,
        ));
    }
    if before.boot_id != *boot_id {
        return Err(hinted(
            "the snapshots do not compare: the machine was started anew between them",
            "nothing that ran before a restart holds GPU memory now; look at what there is with: gpuresid",
        ));
    }
    Ok(())
}

/// The older one is the first. Of one boot the start of whoever took it tells, which no setting of the clock changes.
fn in_order(before: &Snapshot, after: &Snapshot) -> anyhow::Result<()> {
    let taken = |s: &Snapshot| (s.observer.id.start_ticks, s.at_ms);
    if taken(after) >= taken(before) {
        return Ok(());
    }
    Err(hinted(
        "the first snapshot was taken after the second",
        "write the older one first: gpuresid diff BEFORE AFTER",
    ))
}

/// Refuses what would give numbers without meaning.
fn comparable(before: &Snapshot, after: &Snapshot) -> anyhow::Result<()> {
    if before.driver.as_ref().map(|d| d.source) != after.driver.as_ref().map(|d| d.source) {
        return Err(hinted(
            "the snapshots do not compare: one is of a simulated GPU, the other of a real one",
            TAKE_AGAIN,
        ));
    }
    for device in &after.devices {
        let Some(then) = before.device(&device.identity.uuid) else { continue };
        let api = |d: &crate::model::Device| d.look.memory.map(|m| m.api);
        if let (Some(first), Some(second)) = (api(then), api(device))
            && first != second
        {
            return Err(hinted(
                format!(
                    "the snapshots do not compare: the driver counted the memory of {} differently in the two (with its \
                     own reserve, and without)",
                    device.identity.label()
                ),
                "take both snapshots with the same driver version",
            ));
        }
    }
    if !after.devices.iter().any(|d| before.device(&d.identity.uuid).is_some()) {
        return Err(hinted("the snapshots do not compare: they have no GPU in common", TAKE_AGAIN));
    }
    Ok(())
}
