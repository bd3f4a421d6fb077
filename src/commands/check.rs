//! `gpuresid check`: before, run, settle, after, verdict, report. Wiring only: what happens in between lives in
//! [`crate::run`].

use crate::{
    act::records::RecordKeeper,
    cli::{CheckArgs, Global, usage},
    exit::{self, Ending},
    judge,
    model::{
        Bytes, CommandReport, Finding, FindingData, FindingKind, Launch, Limit, Limits, Observation, Report, Scope,
        TorchView, Trace, schema,
    },
    observe::{
        driver::{self, Client, Placement, Source},
        marker,
        proc::{ProcOptions, ProcReader},
        select::Selection,
    },
    report::{Format, ReportTarget, Style, Targets, earlier_reports, redact, table, words},
    run::{self, Before, Event, NotStarted, Outcome, Session, Stop},
    text,
    torch::Probe,
};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// What `check` was asked for.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Which devices.
    pub selection: Selection,
    /// The limits of the verdict.
    pub limits: Limits,
    /// Whom to charge.
    pub scope: Scope,
    /// Longest time from the end of the command to the verdict.
    pub settle: Duration,
    /// Living processes of the command are judged when nothing about them has changed for so long.
    pub quiet: Duration,
    /// End the command after this time.
    pub timeout: Option<Duration>,
    /// From SIGTERM to SIGKILL at the time limit.
    pub grace: Duration,
    /// End what is left after the verdict.
    pub cleanup: bool,
    /// What is left may be ended by `reclaim --unattended`.
    pub leave: bool,
    /// Where the record of the run is kept, if that place is there. `None`: there is none.
    pub records: Option<PathBuf>,
    /// Time between two looks.
    pub sample: Duration,
    /// Ask PyTorch in the command's processes.
    pub torch: bool,
    /// Show all.
    pub verbose: bool,
    /// Print nothing; the exit code and the reports say it.
    pub silent: bool,
    /// Hide arguments, users and host names in everything that is written.
    pub redact: bool,
    /// The reports to write.
    pub reports: Vec<ReportTarget>,
    /// Where device readings come from.
    pub source: Source,
    /// Longest time for opening the driver.
    pub open_timeout: Duration,
    /// Longest time for one later look.
    pub look_timeout: Duration,
    /// Where processes are read.
    pub proc: ProcOptions,
}

impl CheckOptions {
    /// The defaults of the command line for this command.
    pub fn new(argv: Vec<OsString>) -> Self {
        Self {
            argv,
            selection: Selection::default(),
            limits: Limits::default(),
            scope: Scope::default(),
            settle: Duration::from_secs(120),
            quiet: Duration::from_secs(12),
            timeout: None,
            grace: Duration::from_secs(5),
            cleanup: false,
            leave: false,
            records: None,
            sample: Duration::from_millis(100),
            torch: false,
            verbose: false,
            silent: false,
            redact: false,
            reports: Vec::new(),
            source: Source::Nvml { library: None },
            open_timeout: Duration::from_secs(60),
            look_timeout: Duration::from_secs(10),
            proc: ProcOptions::default(),
        }
    }

    /// Unaccounted growth that cannot change a verdict.
    fn tolerated(&self) -> Bytes {
        match self.limits.max_residue {
            _ if self.limits.max_residue_rate_percent.is_some() => Bytes::ZERO,
            Limit::Bytes(bytes) => bytes,
            // Of which device is not known here; so much is noise on every one.
            Limit::PercentOfTotal(_) => Bytes::mib(16),
        }
    }
}

/// What is to be said about words of a command that was typed without `--`, where they look like options of `check`: they
/// are the command's.
pub(super) fn misplaced(command: &[OsString], typed: &[OsString]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let before = typed.len().checked_sub(command.len() + 1).and_then(|at| typed.get(at));
    if before.is_none_or(|word| word == "--") {
        return None;
    }
    let ours = usage::long_options("check");
    let words = arguments.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str()?.strip_prefix("--"));
    let names = words.map(|word| word.split('=').next().unwrap_or(word));
    let mut names: Vec<String> =
        names.filter(|name| ours.iter().any(|known| known == name)).map(|name| format!("--{name}")).collect();
    names.dedup();
    let go = match names.len() {
        0 => return None,
        1 => "goes",
        _ => "go",
    };
    let name = short_name(program);
    Some(format!("note: {} {go} to {name}; options of gpuresid stand before the command", words::list(&names)))
}

/// What was typed.
pub(super) fn options(global: &Global, args: CheckArgs) -> CheckOptions {
    let session = super::session_options(global);
    CheckOptions {
        selection: session.selection,
        limits: Limits { require_gpu: args.require_gpu, ..super::limits(&args.limits) },
        scope: args.scope.into(),
        settle: args.settle,
        timeout: args.timeout,
        grace: args.grace,
        cleanup: args.cleanup,
        leave: args.leave || args.cleanup,
        records: Some(global.records.clone()),
        sample: args.sample,
        torch: args.torch,
        verbose: args.verbose,
        silent: args.quiet,
        redact: global.redact,
        reports: args.report,
        source: session.source,
        open_timeout: session.open_timeout,
        look_timeout: session.look_timeout,
        proc: session.proc,
        ..CheckOptions::new(args.command)
    }
}

/// Runs the command and says what did not come back.
///
/// # Errors
/// Only before the command was started: then nothing of it has run, and the exit code is [`exit::CANNOT`].
pub fn run(options: &CheckOptions) -> anyhow::Result<Ending> {
    match checked(options) {
        Ok(ending) | Err(Stop::Told(ending)) => Ok(ending),
        Err(Stop::Cannot(error)) => {
            let notes: Vec<String> =
                nothing_started(&options.argv).into_iter().chain(earlier_reports(&options.reports)).collect();
            Err(if notes.is_empty() { error } else { crate::error::noted(&error, notes.join("; ")) })
        }
    }
}

/// Whoever waits for the command's work has to know that there is none.
fn nothing_started(argv: &[OsString]) -> Option<String> {
    argv.first().map(|program| format!("{} was not started", short_name(program)))
}

/// How people call a program: its name without the directories.
fn short_name(program: &OsStr) -> String {
    let name = text::clean(&program.to_string_lossy());
    text::shorten(text::file_name(&name), 60)
}

fn checked(options: &CheckOptions) -> Result<Ending, Stop> {
    if options.argv.is_empty() {
        return Err(crate::error::hinted(
            "there is no command to check",
            "write it after `--`: gpuresid check -- python train.py",
        )
        .into());
    }
    let reader = ProcReader::new(options.proc.clone())?;
    let looker = reader.clone();
    let boot = options.torch.then(|| reader.boot_id().ok()).flatten();
    let (events, received) = run::channel();
    let mut session = Session::start(reader, &events, received, options.look_timeout)?;
    // From here on a signal lets us clear up what is made now.
    let targets = Targets::prepare(&options.reports)?;
    let probe = options.torch.then(|| Probe::prepare(boot.as_ref())).transpose()?;
    let driver = driver::Options {
        source: options.source.clone(),
        placement: Placement::Nursery,
        open_timeout: options.open_timeout,
        look_timeout: options.look_timeout,
        events: true,
        procfs: options.proc.procfs.clone(),
    };
    let client = Client::start(&driver, move |message| {
        let _ = events.send(Event::Driver(message));
    });
    let client = session.unless_told_to_end(client)?;
    session.set_looker(Box::new(client));
    let mut before = session.before(options.open_timeout, |inventory| options.selection.resolve(inventory))?;
    let run_options = run::Options {
        argv: options.argv.clone(),
        environment: probe.as_ref().map(Probe::environment).unwrap_or_default(),
        run_id: marker::run_id(&before.boot_id, session.root()),
        scope: options.scope,
        settle: options.settle,
        quiet: options.quiet,
        tolerated: options.tolerated(),
        // What is tolerated anyhow needs no longer look.
        noise: options.limits.max_unattributed.max(options.tolerated()),
        timeout: options.timeout,
        grace: options.grace,
        sample: options.sample,
        silent: options.silent,
    };
    let mut record = options
        .records
        .as_ref()
        .and_then(|place| RecordKeeper::open(place, &looker, &before.boot_id, &run_options.run_id, options.leave));
    let chronicle = record.as_mut().map(|keeper| keeper as &mut dyn run::Chronicle);
    let outcome = session.watch(&mut before, &run_options, chronicle)?;
    if !options.cleanup || outcome.is_err() {
        session.leave_at_next_signal();
    }
    match outcome {
        Ok(outcome) => {
            let torch = probe.map(|probe| probe.collect(session.began()));
            Ok(report(outcome, torch, options, targets, &mut session, &before, record))
        }
        Err(error) => Ok(not_started(&error, &before, &session, &run_options, options, targets)),
    }
}

/// Judges, prints and writes.
fn report(
    mut outcome: Outcome,
    torch: Option<TorchView>,
    options: &CheckOptions,
    targets: Targets,
    session: &mut Session,
    before: &Before,
    record: Option<RecordKeeper>,
) -> Ending {
    outcome.launch.report_file = report_file(options);
    let mut observation = Observation {
        schema: schema::OBSERVATION.into(),
        before: outcome.before.clone(),
        trace: outcome.trace.clone(),
        after: outcome.after.clone(),
        launch: outcome.launch.clone(),
        limits: options.limits.clone(),
        torch,
    };
    let mut report = judge::judge(&observation);
    if options.cleanup {
        let cleanup = session.clean_up(&mut outcome, &before.selected, options.grace);
        if cleanup.nothing_lives {
            // Whoever was to be ended has been.
            report.advice.retain(|step| step.command.is_none());
            report.findings.retain(|finding| finding.kind() != FindingKind::OutputKept);
        }
        report.cleanup = Some(cleanup);
        session.leave_at_next_signal();
    }
    if let (Some(mut record), Some(command)) = (record, outcome.launch.command.as_ref()) {
        record.ended(command.id, outcome.launch.survivors.iter().copied());
    }
    if options.redact {
        redact::run(&mut observation, &mut report);
    }
    let ending = outcome.ending(report.exit_code);
    // The files come first: a terminal or a pipe that takes nothing must not cost them.
    let written = write(targets, &report, &observation);
    if !options.silent {
        let style = Style::stderr().verbose(options.verbose);
        say(|out| table::check(&report, &style, out));
        say(|out| table::cleanup(&report, &style, out));
    }
    match (written, ending) {
        (false, Ending::Code(exit::CLEAN)) => Ending::Code(exit::INCONCLUSIVE),
        _ => ending,
    }
}

/// The report that `reclaim` can read afterwards, as a word of a command line. A path may name somebody.
fn report_file(options: &CheckOptions) -> Option<String> {
    let stays =
        |path: &Path| !path.starts_with("/dev") && !path.starts_with("/proc") && (path.is_file() || !path.exists());
    let reports = options.reports.iter().filter(|target| target.format == Format::Json && !options.redact);
    let path = reports.map(|target| target.path.as_path()).find(|path| stays(path))?;
    text::shell_word(path.to_str()?)
}

/// The command could not be run: nothing to judge, but whoever reads the report shall find one.
fn not_started(
    error: &NotStarted,
    before: &Before,
    session: &Session,
    run: &run::Options,
    options: &CheckOptions,
    targets: Targets,
) -> Ending {
    let snapshot = before.snapshot(session.root(), None);
    let launch = Launch {
        run_id: run.run_id.clone(),
        scope: run.scope,
        command: None,
        root: None,
        company: false,
        own_uids: [].into(),
        all_gone: None,
        settled_ms: None,
        settle_end: None,
        survivors: Vec::new(),
        output_kept_by: Vec::new(),
        oom_kills: None,
        leftovers: Vec::new(),
        report_file: None,
    };
    let mut observation = Observation {
        schema: schema::OBSERVATION.into(),
        before: snapshot.clone(),
        trace: Trace::default(),
        after: snapshot,
        launch,
        limits: options.limits.clone(),
        torch: None,
    };
    let mut report = judge::judge(&observation);
    report.exit_code = error.exit_code;
    report.command = Some(CommandReport {
        argv: text::display_arguments(&run.argv),
        exit_code: Some(error.exit_code),
        signal: None,
        timed_out: false,
        timeout_seconds: None,
        used_gpu: None,
        too_short_to_see: false,
        seconds: None,
    });
    report.findings.insert(0, Finding::new(None, None, FindingData::NotStarted { why: error.to_string() }));
    if options.redact {
        redact::run(&mut observation, &mut report);
    }
    // As it was hidden, if it was.
    let said = match report.findings.first().map(|finding| &finding.data) {
        Some(FindingData::NotStarted { why }) => why.clone(),
        _ => error.to_string(),
    };
    let told = match error.hint.as_ref().and_then(|hint| Some((said.strip_suffix(hint)?.strip_suffix("; ")?, hint))) {
        Some((message, hint)) => crate::error::hinted(message, hint),
        None => anyhow::Error::msg(said),
    };
    say(|out| write!(out, "{}", crate::error::display_in(&told, Style::stderr().width)));
    write(targets, &report, &observation);
    Ending::Code(error.exit_code)
}

/// Writes the reports; whether all of them are there.
fn write(targets: Targets, report: &Report, observation: &Observation) -> bool {
    let errors = targets.write(report, observation);
    for error in &errors {
        say(|out| write!(out, "{}", crate::error::display_in(error, Style::stderr().width)));
    }
    errors.is_empty()
}

/// Speaks to the user. A terminal that is gone is no reason to stop.
fn say(speak: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    let _ = speak(&mut io::stderr().lock());
}
