//! The cases: what is told about them, what is run, and what the report must say.

use super::{
    place::Place,
    program::{self, Role},
};
use crate::{
    exit,
    model::{Bytes, Cause, Lineage, Report, Verdict},
};
use anyhow::Context;
use clap::ValueEnum;
use std::{ffi::OsString, process::Child};

/// One story.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Everything comes back
    Clean,
    /// A child process outlives its run
    Orphan,
    /// A forked copy keeps the memory of a process that is gone
    ForkedCopy,
    /// A neighbour gives back what an orphan keeps: the sum looks as if nothing had happened
    Neighbour,
}

/// What the trainer and each rank allocate beside their context.
pub(super) const TENSORS: Bytes = Bytes::mib(2048);
/// What a CUDA context takes on an H200.
pub(super) const CONTEXT: Bytes = Bytes::mib(518);
/// What the neighbour has, and what it gives back.
pub(super) const NEIGHBOUR: Bytes = Bytes::mib(8192);

impl Case {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 4] = [Self::Clean, Self::Orphan, Self::ForkedCopy, Self::Neighbour];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Orphan => "orphan",
            Self::ForkedCopy => "forked-copy",
            Self::Neighbour => "neighbour",
        }
    }

    /// What happens, for somebody who sees it for the first time.
    pub const fn story(self) -> &'static str {
        match self {
            Self::Clean => {
                "A program takes GPU memory, works, and ends. All of it comes back, PyTorch's cache would too."
            }
            Self::Orphan => {
                "A launcher starts a rank in a session of its own, and ends with exit code 0. The rank goes on and keeps \
                 its memory. For the caller everything looks fine."
            }
            Self::ForkedCopy => {
                "A trainer opens the GPU, then forks a worker, and ends. The worker has the trainer's files open, so the \
                 memory stays. The driver lists it under the number of the trainer, which no longer exists: nvidia-smi \
                 shows used memory and no process."
            }
            Self::Neighbour => {
                "As with the orphan; but somebody else on the same GPU gives back as much as the orphan keeps. The sum is \
                 the same as before, so a comparison of totals finds nothing."
            }
        }
    }

    const fn role(self) -> Role {
        match self {
            Self::Clean => Role::Train,
            Self::Orphan | Self::Neighbour => Role::Launch,
            Self::ForkedCopy => Role::TrainAndFork,
        }
    }

    /// The command that is checked, with the place as the working directory.
    pub fn command(self) -> Vec<OsString> {
        program::command_line(self.role()).map(Into::into).into()
    }

    /// Starts the neighbour, if the case has one, and waits until it uses the GPU. It ends with the place.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_neighbour(self, place: &Place) -> anyhow::Result<Option<Child>> {
        if self != Self::Neighbour {
            return Ok(None);
        }
        let child = program::spawn(place.path(), Role::Neighbour).context("cannot start the neighbour")?;
        anyhow::ensure!(place.wait_for("neighbour"), "the neighbour does not take its memory");
        Ok(Some(child))
    }

    /// The exit code of `check`.
    pub const fn exit_code(self) -> i32 {
        match self {
            Self::Clean => exit::CLEAN,
            Self::Orphan | Self::ForkedCopy | Self::Neighbour => exit::RESIDUE,
        }
    }

    const fn left(self) -> Option<Cause> {
        match self {
            Self::Clean => None,
            Self::Orphan | Self::Neighbour => Some(Cause::Orphan),
            Self::ForkedCopy => Some(Cause::ForkedCopy),
        }
    }

    /// What in this report is not as it should be; `None` if all of it is.
    pub fn wrong(self, report: &Report) -> Option<String> {
        let charged: Bytes = report.devices.iter().map(|d| d.charged_residue_bytes).sum();
        let own: Vec<Cause> = report.holders.iter().filter(|h| h.lineage == Lineage::Own).map(|h| h.cause).collect();
        let (verdict, bytes) = match self.left() {
            None => (Verdict::Clean, Bytes::ZERO),
            Some(_) => (Verdict::Residue, TENSORS + CONTEXT),
        };
        if !report.simulated {
            return Some("the report does not say that the GPU is simulated".into());
        }
        if (report.verdict, report.exit_code) != (verdict, self.exit_code()) {
            return Some(format!(
                "the verdict is {:?} with exit code {}, not {verdict:?} with {}",
                report.verdict,
                report.exit_code,
                self.exit_code()
            ));
        }
        if charged != bytes {
            return Some(format!("{charged} are charged, not {bytes}"));
        }
        if own != self.left().into_iter().collect::<Vec<_>>() {
            return Some(format!("the causes of what is left are {own:?}, not {:?}", self.left()));
        }
        None
    }
}
