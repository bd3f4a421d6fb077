//! `demo`: tells a case, plays it with the real `check` on a simulated GPU, and says what the exit code means. Each check
//! is in a process of its own, as it would be, because it becomes the reaper of what its command leaves behind. The
//! demo owns the place and clears it up; it signals nobody.

use super::{
    check::{self, CheckOptions},
    stdout, typed,
};
use crate::{
    cli::{DemoArgs, Global},
    demo::{Case, Place},
    error::hinted,
    exit::{self, Ending},
    model::Report,
    observe::{driver::Source, proc::ProcOptions},
    report::Style,
    run, text,
};
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// First argument of the inner command that is the process of a check.
const STAGE: &str = "__demo-check";
/// What is left in a case stays as long as the demo wants: waiting longer would show the same.
const SETTLE: Duration = Duration::from_secs(1);
const SAMPLE: Duration = Duration::from_millis(50);
/// A check of a case takes two seconds; this is for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest line of a story.
const COLUMNS: u16 = 100;

/// Plays the case, or all of them.
///
/// # Errors
/// If a case cannot be played, or does not behave as it should.
pub(super) fn run(global: &Global, args: &DemoArgs) -> anyhow::Result<Ending> {
    if !global.gpu.is_empty() && typed("gpu") || global.visible && typed("visible") {
        return Err(hinted(
            "the demo has a simulated GPU of its own, so there is no GPU to choose with -i or --visible",
            "leave it out; to check a command on a real GPU: gpuresid check -i 0 -- python train.py",
        ));
    }
    let told = Told::listen()?;
    let cases = args.case.as_ref().map_or(&Case::ALL[..], std::slice::from_ref);
    tell(&format!(
        "A simulated GPU, real processes, and the real `gpuresid check` with {} s to settle. No GPU is needed, and none is \
         touched.",
        SETTLE.as_secs()
    ))?;
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        heading(*case, number, cases.len())?;
        let played = play(*case, &told);
        // What went wrong then is that it was interrupted.
        if let Some(signal) = told.signal() {
            return Ok(Ending::Signal(signal));
        }
        match played?.and_then(|report| case.wrong(&report)) {
            None => conclude(*case)?,
            Some(what) => wrong.push(format!("{}: {what}", case.name())),
        }
    }
    if !wrong.is_empty() {
        bail!("the demo did not go as it should: {}", wrong.join("; "));
    }
    Ok(Ending::Code(exit::CLEAN))
}

/// Runs the inner command if that is what the process was started as. `args` begin with the program's name.
pub fn inner_command(args: impl IntoIterator<Item = OsString>) -> Option<Ending> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != STAGE {
        return None;
    }
    let mut word = || args.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    let (case, color) = (word(), word());
    let case = Case::ALL.into_iter().find(|known| known.name() == case)?;
    match color.as_str() {
        "always" => anstream::ColorChoice::Always.write_global(),
        "never" => anstream::ColorChoice::Never.write_global(),
        _ => {}
    }
    let checked = std::env::current_dir().map_err(Into::into).and_then(|directory| {
        let place = crate::demo::Paths::of(&directory);
        check::run(&CheckOptions {
            settle: SETTLE,
            sample: SAMPLE,
            reports: vec![format!("json:{}", place.report.display()).parse()?],
            source: Source::Simulated { ledger: place.ledger },
            proc: ProcOptions { dev: place.dev, ..ProcOptions::default() },
            ..CheckOptions::new(case.command())
        })
    });
    Some(checked.unwrap_or_else(|error| {
        let _ =
            io::Write::write_all(&mut io::stderr(), crate::error::display_in(&error, Style::stderr().width).as_bytes());
        Ending::Code(exit::CANNOT)
    }))
}

/// Plays a case. `None` where it was interrupted.
fn play(case: Case, told: &Told) -> anyhow::Result<Option<Report>> {
    let mut place = Place::new()?;
    let mut neighbour = None;
    let played = perform(case, &mut place, &mut neighbour, told);
    let closed = place.close();
    if let Some(mut child) = neighbour {
        let _ = child.wait();
    }
    let report = played?;
    closed?;
    Ok(report)
}

fn perform(
    case: Case,
    place: &mut Place,
    neighbour: &mut Option<Child>,
    told: &Told,
) -> anyhow::Result<Option<Report>> {
    *neighbour = case.start_neighbour(place)?;
    let mut check = start_check(case, place).context("cannot start the check")?;
    let status = wait(&mut check, place, told)?;
    if told.signal().is_some() {
        return Ok(None);
    }
    let report = fs::read(place.paths().report)
        .map_err(anyhow::Error::from)
        .and_then(|bytes| Ok(serde_json::from_slice::<Report>(&bytes)?))
        .with_context(|| format!("the check of the case {} ({status}) left no report", case.name()))?;
    if status.code() != Some(report.exit_code) {
        bail!("the check of the case {} ended with {status}, its report says {}", case.name(), report.exit_code);
    }
    Ok(Some(report))
}

/// Starts the process of the check. Its report is part of what the demo prints, so it goes the same way.
fn start_check(case: Case, place: &Place) -> io::Result<Child> {
    let color = match anstream::ColorChoice::global() {
        anstream::ColorChoice::Always | anstream::ColorChoice::AlwaysAnsi => "always",
        anstream::ColorChoice::Never => "never",
        anstream::ColorChoice::Auto => "auto",
    };
    Command::new(std::env::current_exe()?)
        .args([STAGE, case.name(), color])
        .current_dir(place.path())
        .stderr(Stdio::from(io::stdout().as_fd().try_clone_to_owned()?))
        .spawn()
}

/// Waits for the check. When a signal tells us to end, the programs end first, and the check with them.
fn wait(check: &mut Child, place: &mut Place, told: &Told) -> anyhow::Result<ExitStatus> {
    let until = Instant::now() + PATIENCE;
    loop {
        // What happens after this wakes us.
        told.forget_wakes();
        if let Some(status) = check.try_wait().context("cannot wait for the check")? {
            return Ok(status);
        }
        if told.signal().is_some() {
            place.end();
        }
        if Instant::now() >= until {
            bail!("the check (PID {}) does not end", check.id());
        }
        told.wait(until);
    }
}

fn heading(case: Case, number: usize, all: usize) -> anyhow::Result<()> {
    let title = match all {
        1 => format!("Case {}", case.name()),
        _ => format!("Case {} of {all}: {}", number + 1, case.name()),
    };
    stdout::print(|out| writeln!(out, "\n{}", Style::stdout().bold(&title)))?;
    tell(case.story())?;
    stdout::print(|out| writeln!(out))?;
    Ok(())
}

fn conclude(case: Case) -> anyhow::Result<()> {
    let code = case.exit_code();
    let says = match code {
        exit::CLEAN => "In CI this step passes: exit code 0.".to_owned(),
        _ => format!(
            "In CI this step fails: exit code {code} (residue), although the command itself exited with 0. Here the demo \
             has ended what was left, and its report is gone."
        ),
    };
    stdout::print(|out| writeln!(out))?;
    tell(&says)
}

fn tell(paragraph: &str) -> anyhow::Result<()> {
    let columns = Style::stdout().width.map_or(COLUMNS, |width| width.min(COLUMNS));
    stdout::print(|out| {
        text::wrap(paragraph, Some(columns.into())).iter().try_for_each(|line| writeln!(out, "{line}"))
    })?;
    Ok(())
}

/// The signal that tells us to end. What was ignored when we were started stays ignored.
struct Told {
    signal: Arc<AtomicUsize>,
    /// Readable after a signal, the end of a child included.
    wakes: UnixStream,
}

impl Told {
    fn listen() -> anyhow::Result<Self> {
        use signal_hook::{
            consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM},
            flag,
            low_level::pipe,
        };
        let cannot = "cannot listen to signals";
        let told = Arc::new(AtomicUsize::new(0));
        let (wakes, wake) = UnixStream::pair().context(cannot)?;
        wakes.set_nonblocking(true).context(cannot)?;
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(|s| !run::was_ignored(*s)) {
            flag::register_usize(signal, Arc::clone(&told), usize::try_from(signal)?).context(cannot)?;
            // After the flag, so that whoever is woken finds it.
            pipe::register(signal, wake.try_clone().context(cannot)?).context(cannot)?;
        }
        // An inherited "ignored" would make waiting impossible.
        pipe::register(SIGCHLD, wake).context(cannot)?;
        Ok(Self { signal: told, wakes })
    }

    fn signal(&self) -> Option<i32> {
        i32::try_from(self.signal.load(Ordering::SeqCst)).ok().filter(|signal| *signal != 0)
    }

    fn forget_wakes(&self) {
        while matches!((&self.wakes).read(&mut [0; 64]), Ok(1..)) {}
    }

    /// Waits for a signal that came since [`Self::forget_wakes`], at the longest until then.
    fn wait(&self, until: Instant) {
        let time = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let _ = poll(&mut [PollFd::new(&self.wakes, PollFlags::IN)], time.as_ref());
    }
}
