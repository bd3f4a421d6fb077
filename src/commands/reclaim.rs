//! `reclaim`: a look, a plan, and with `--yes` the carrying out and the proof by the bytes.

use super::{driver_is_slow, session_options, stdout, to_paste};
use crate::{
    act::{
        again,
        carry_out::Hands,
        ci::CiJob,
        guard::Guard,
        job::Job,
        life,
        lock::Lock,
        plan::{self, Allowed, Plan},
        report_file::ReportFile,
        targets::{Targets, World},
        unattended::Unattended,
        verify::{Looked, Verified, verify},
    },
    cli::{Global, ReclaimArgs},
    error,
    error::hinted,
    exit::{self, Ending},
    judge,
    model::{Advice, Gap, ReclaimReport, Snapshot, StatusReport, schema},
    observe::{
        proc::ProcReader,
        session::{Session, SessionOptions},
    },
    report::{
        Style, json, redact,
        table::{self, Asked},
        words,
    },
    text::{self, program::NAME},
};
use std::{
    io::{self, Write},
    iter, thread,
    time::{Duration, Instant},
};

/// So often whoever was started meanwhile is ended too.
const MOST_HEIRS: usize = 3;
/// Between two looks after the signals.
const PAUSE: Duration = Duration::from_millis(50);

/// Plans, and with `--yes` acts.
///
/// # Errors
/// If nothing could be read, or the plan is refused: then nobody was signalled.
pub(super) fn run(global: &Global, args: &ReclaimArgs) -> anyhow::Result<Ending> {
    let mut options = session_options(global);
    // It costs its first look some milliseconds a GPU, and only what tells of lives wants it.
    options.extras.utilization = !args.yes || args.idle.is_some();
    let reader = ProcReader::new(options.proc.clone())?;
    // Before anything is looked at: a look from there is of no use here.
    Guard::new(&reader, &[])?.may_signal_at_all().map_err(|never| {
        hinted(
            format!("no process can be ended from here: {never}"),
            "run gpuresid reclaim where the processes run, with that place's own /proc",
        )
    })?;
    let targets = targets(global, args, &reader)?;
    // Whoever else reclaims is let finish first, so that the plan is of what is left then.
    let _lock = args.yes.then(Lock::take).transpose()?;
    act(&options, args, &reader, &targets, global.redact)
}

/// The command line as it was typed, with `--yes`; `None` where it may not be shown or cannot be pasted.
fn carry_out(redacted: bool) -> Option<String> {
    let words = iter::once(NAME.to_owned()).chain(typed_words(redacted)?).chain(["--yes".to_owned()]);
    to_paste(&words.collect::<Vec<_>>())
}

fn typed_words(redacted: bool) -> Option<Vec<String>> {
    let words = std::env::args_os().skip(1).map(|word| word.into_string().ok());
    words.collect::<Option<Vec<_>>>().filter(|_| !redacted)
}

/// What to do where a GPU cannot be read: the same with those that can.
fn where_blind(before: &Snapshot, redacted: bool) -> Vec<Advice> {
    let next = typed_words(redacted).and_then(|words| text::shell_line(&without_gpus(words)));
    let mut steps = judge::steps_of_trouble(&before.devices, next.as_deref());
    if steps.is_empty() {
        steps.push(Advice {
            command: Some("gpuresid doctor".into()),
            why: "see what keeps the GPUs, or the processes, from being read".into(),
            disturbs: "nobody".into(),
        });
    }
    steps
}

/// The words without a choice of GPUs, in whose place another comes.
fn without_gpus(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-i" | "--gpu" => drop(words.next()),
            "--visible" => {}
            other if other.starts_with("-i") || other.starts_with("--gpu=") => {}
            _ => kept.push(word),
        }
    }
    kept
}

fn targets(global: &Global, args: &ReclaimArgs, reader: &ProcReader) -> anyhow::Result<Targets> {
    Ok(match (&args.report, &args.job) {
        (Some(file), _) => Targets::Report(Box::new(ReportFile::read(file, &reader.boot_id()?)?)),
        (None, Some(job)) => Targets::Job(Job::read(job, reader)?),
        (None, None) if args.orphans => Targets::Orphans { older_than: args.older_than },
        (None, None) if args.ci => Targets::Ci(CiJob::ours()?),
        (None, None) if args.unattended => Targets::Unattended(Unattended::by_records(&global.records, args.idle)?),
        (None, None) => Targets::Pids(args.pid.clone()),
    })
}

fn act(
    options: &SessionOptions,
    args: &ReclaimArgs,
    reader: &ProcReader,
    targets: &Targets,
    redacted: bool,
) -> anyhow::Result<Ending> {
    let mut session = Session::open(options, driver_is_slow)?;
    let before = session.snapshot()?;
    let before_status = judge::status(&before);
    let guard = Guard::new(reader, &before.observer.tool_processes)?.seeing(&before);
    let hide = redacted.then(|| redact::lines(&before));
    let hidden = |line: &str| hide.as_ref().map_or_else(|| line.to_owned(), |hide| hide(line));
    let log = |line: &str| log(&hidden(line));
    let mut report = report_of(&before, &before_status);
    let mut asked = Asked { nobody: targets.nobody(&[], &before.observer), carry_out: carry_out(redacted) };
    let blind = plan::blindness(&before);
    if !blind.is_empty() {
        log("too little could be seen: nothing is done");
        report.gaps.extend(blind);
        report.advice = where_blind(&before, redacted);
        report.exit_code = exit::INCONCLUSIVE;
        asked.nobody = "too little could be seen, so nothing was done".into();
        if redacted {
            redact::reclaim(&before, &mut report);
        }
        return say(&report, &asked, args.json);
    }
    let allowed = Allowed { all_users: args.all_users, force: args.force, grace: args.grace };
    let world = World { snapshot: &before, status: &before_status, reader, guard: &guard };
    let mut plan = plan::plan(targets, &world, allowed).map_err(|refused| error::mapped(refused, hidden))?;
    if !args.yes {
        life::look(&mut plan, reader, &before);
    }
    if args.yes {
        for left in &plan.left_alone {
            log(&format!("PID {}: left alone: {}", left.pid, left.why));
        }
        for step in plan.steps.iter().map(|s| &s.shown) {
            if let Some(restarter) = &step.restarter {
                log(&format!("PID {}: {}", step.pid, words::restarter(restarter)));
            }
        }
        let carry_out = |plan: &mut Plan| {
            let guard = guard.among(plan.members.clone(), targets.terms().heirs);
            Hands { reader, guard: &guard, allowed, log: &log }.carry_out(plan);
        };
        carry_out(&mut plan);
        for _ in 0..MOST_HEIRS {
            if !targets.terms().heirs || plan.steps.is_empty() {
                break;
            }
            let Ok(now) = session.snapshot() else { break };
            let world = World { snapshot: &now, status: &judge::status(&now), reader, guard: &guard };
            let mut heirs = plan::plan(targets, &world, allowed)?;
            heirs.steps.retain(|heir| plan.steps.iter().all(|known| known.target.id != heir.target.id));
            if heirs.steps.is_empty() {
                break;
            }
            carry_out(&mut heirs);
            plan.steps.extend(heirs.steps);
        }
        if let Targets::Unattended(leave) = targets {
            leave.tidy_up(&world);
        }
        let before = Looked { snapshot: &before, status: &before_status };
        let verified = settle(&mut session, &mut plan, before, reader, args.settle);
        report.carried_out = true;
        report.exit_code = match &verified {
            Verified { remains: true, .. } => exit::RESIDUE,
            Verified { blind: true, .. } => exit::INCONCLUSIVE,
            _ => exit::CLEAN,
        };
        report.advice = verified.advice;
        report.started_again = verified.started_again;
        if verified.blind {
            report.gaps.push(Gap::new("NVML", "what came back could not be read on every GPU"));
        }
    }
    let missed = plan.steps.is_empty() && plan.left_alone.is_empty() && targets.is_missed(&before.observer);
    if report.exit_code == exit::CLEAN && (missed || plan.unsure) {
        report.exit_code = exit::INCONCLUSIVE;
    }
    report.steps = plan.steps.into_iter().map(|s| s.shown).collect();
    asked.nobody = hidden(&targets.nobody(&plan.left_alone, &before.observer));
    report.left_alone = plan.left_alone;
    report.devices = plan.devices;
    if redacted {
        redact::reclaim(&before, &mut report);
    }
    say(&report, &asked, args.json)
}

/// Looks until everything is back, or the time is over.
fn settle(
    session: &mut Session,
    plan: &mut Plan,
    before: Looked<'_>,
    reader: &ProcReader,
    patience: Duration,
) -> Verified {
    let ended = Instant::now();
    let until = ended + patience;
    loop {
        let verified = match session.snapshot() {
            Ok(after) => {
                let status = judge::status(&after);
                verify(plan, before, Looked { snapshot: &after, status: &status }, reader)
            }
            Err(error) => {
                log(&format!("the look afterwards failed: {error:#}"));
                Verified { blind: true, ..Verified::default() }
            }
        };
        // Whoever lives on will not give anything back, however long we look.
        let settled = !verified.awaited && !verified.blind;
        let watched = !verified.may_be_started_again || ended.elapsed() >= again::WATCH;
        if settled && watched || Instant::now() >= until {
            return verified;
        }
        thread::sleep(PAUSE);
    }
}

fn report_of(snapshot: &Snapshot, status: &StatusReport) -> ReclaimReport {
    ReclaimReport {
        schema: schema::RECLAIM.into(),
        tool_version: snapshot.tool_version.clone(),
        taken_at: snapshot.taken_at.clone(),
        boot_id: snapshot.boot_id.clone(),
        host: snapshot.host.clone(),
        carried_out: false,
        exit_code: exit::CLEAN,
        steps: Vec::new(),
        left_alone: Vec::new(),
        devices: Vec::new(),
        started_again: Vec::new(),
        advice: Vec::new(),
        gaps: status.gaps.clone(),
    }
}

fn say(report: &ReclaimReport, asked: &Asked, as_json: bool) -> anyhow::Result<Ending> {
    stdout::print(|out| match as_json {
        true => json::pretty(report, out),
        false => table::reclaim(report, asked, &Style::stdout(), out),
    })?;
    Ok(Ending::Code(report.exit_code))
}

/// One line a decision. A log that nobody takes is no reason to stop halfway.
fn log(line: &str) {
    let _ = writeln!(io::stderr(), "gpuresid: reclaim: {line}");
}
