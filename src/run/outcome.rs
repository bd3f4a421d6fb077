//! What a run is asked for, and what comes of it.

use super::{cleanup::Rest, oom, output, watch::Watch};
use crate::{
    exit::Ending,
    model::{Bytes, Command, End, Launch, Scope, SettleEnd, Snapshot, Trace},
    text,
};
use std::{ffi::OsString, time::Duration};

/// How to run and watch a command.
#[derive(Debug, Clone)]
pub struct Options {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// More for the command's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The marker's value for this run.
    pub run_id: String,
    /// Whom to charge.
    pub scope: Scope,
    /// Longest time from the end of the command to the verdict.
    pub settle: Duration,
    /// So long nothing may change about living processes.
    pub quiet: Duration,
    /// Unaccounted growth up to here is not waited for.
    pub tolerated: Bytes,
    /// Unaccounted growth beside others below this is noise.
    pub noise: Bytes,
    /// The command is ended after this time.
    pub timeout: Option<Duration>,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Time between two looks.
    pub sample: Duration,
    /// Say nothing on a terminal.
    pub silent: bool,
}

/// What was seen.
#[derive(Debug)]
pub struct Outcome {
    /// Before the command.
    pub before: Snapshot,
    /// Meanwhile.
    pub trace: Trace,
    /// After it.
    pub after: Snapshot,
    /// The run.
    pub launch: Launch,
    pub(super) rest: Rest,
}

impl Outcome {
    /// How gpuresid ends with this exit code of the report: of the command's signal, if that is what the code says.
    pub fn ending(&self, exit_code: i32) -> Ending {
        match self.launch.command.as_ref().map(|c| (c.timed_out, c.end)) {
            Some((false, Some(End::Signaled { signal, .. }))) if exit_code == crate::exit::SIGNAL_BASE + signal => {
                Ending::Signal(signal)
            }
            _ => Ending::Code(exit_code),
        }
    }
}

impl Watch<'_> {
    /// Puts together what was seen.
    pub(super) fn outcome(self, end: Option<SettleEnd>, settled_ms: Option<u64>, after: Snapshot) -> Outcome {
        let root = self.session.myself.id;
        let before = match self.before_snapshot {
            Some(snapshot) => snapshot,
            None => self.before.snapshot(root, Some(self.command)),
        };
        let command = Command {
            argv: text::display_arguments(&self.options.argv),
            id: self.command,
            started_ms: self.started_ms,
            ended_ms: self.ended.map(|e| e.at_ms),
            end: self.ended.and_then(|e| e.end),
            timed_out: self.timed_out,
            timeout_ms: self.options.timeout.and_then(|limit| u64::try_from(limit.as_millis()).ok()),
        };
        let living = if self.all_gone { &[] } else { self.tree.living() };
        let output_kept_by = output::keepers(&self.session.reader.options.procfs, living);
        let survivors = living.iter().map(|p| p.id).collect();
        let launch = Launch {
            run_id: self.options.run_id.clone(),
            scope: self.options.scope,
            command: Some(command),
            root: Some(root),
            company: self.reaper.has_company(),
            own_uids: self.tree.uids().clone(),
            all_gone: Some(self.all_gone),
            settled_ms,
            settle_end: end,
            survivors,
            output_kept_by,
            leftovers: self.leftovers,
            oom_kills: self.oom_before.zip(oom::kills()).map(|(before, now)| now.saturating_sub(before)),
            report_file: None,
        };
        let rest = Rest { reaper: self.reaper, running: self.running };
        Outcome { before, trace: self.sampler.finish(), after, launch, rest }
    }
}
