//! What the demo runs: programs that use the simulated GPU as a CUDA program uses a real one. They hold an allocation
//! of the ledger and have the device files open as often as was counted on an H200.

use super::{
    case::{CONTEXT, NEIGHBOUR, TENSORS},
    place::Inside,
};
use crate::{
    model::Bytes,
    observe::driver::ledger::{Allocation, Keeper},
};
use rustix::io::{FdFlags, fcntl_setfd};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// First argument of the inner command.
pub const PROGRAM: &str = "__demo-program";

/// Long enough to be seen at work.
const WORK: Duration = Duration::from_millis(500);
/// No program lives longer, whatever happens to the demo.
const LIFE: Duration = Duration::from_secs(60);

/// What a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Takes memory, works, ends.
    Train,
    /// Starts a rank and ends; where there is a neighbour, after that one has given memory back.
    Launch,
    /// Takes memory and stays.
    Rank,
    /// Takes memory, starts a worker that inherits it, ends.
    TrainAndFork,
    /// Stays with what it inherited.
    Worker,
    /// Somebody else: gives memory back when the rank has taken as much.
    Neighbour,
}

impl Role {
    pub(super) const ALL: [Self; 6] =
        [Self::Train, Self::Launch, Self::Rank, Self::TrainAndFork, Self::Worker, Self::Neighbour];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Launch => "launch",
            Self::Rank => "rank",
            Self::TrainAndFork => "train-and-fork",
            Self::Worker => "worker",
            Self::Neighbour => "neighbour",
        }
    }

    /// The file in the place's directory by which it is started, so that lists of processes show a telling name.
    pub(super) fn file(self) -> String {
        format!("demo-{}", self.name())
    }
}

/// Runs the inner command if that is what the process was started as, and gives its exit code. `args` begin with the
/// program's name.
pub fn inner_command(args: impl IntoIterator<Item = OsString>) -> Option<i32> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != PROGRAM {
        return None;
    }
    let name = args.next()?;
    let role = Role::ALL.into_iter().find(|role| OsStr::new(role.name()) == name)?;
    // Why it could not be played shows in the report: what should have stayed is not there.
    Some(i32::from(play(role).is_err()))
}

/// The command line of a program, where the place is the working directory.
pub(super) fn command_line(role: Role) -> [String; 3] {
    [format!("./{}", role.file()), PROGRAM.into(), role.name().into()]
}

/// Starts a program in this directory, with nothing of our terminal.
pub(super) fn spawn(directory: &Path, role: Role) -> io::Result<std::process::Child> {
    let [shown, inner, name] = command_line(role);
    Command::new(directory.join(role.file()))
        .arg0(shown)
        .args([inner, name])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

fn play(role: Role) -> io::Result<()> {
    let inside = Inside::enter()?;
    let mark = |name: &str| File::create(inside.path(name));
    let stay = || inside.wait(LIFE, || false);
    let until = |name: &str| inside.wait(LIFE, || inside.path(name).exists());
    let work = || inside.wait(WORK, || false);
    let start = |role: Role| spawn(&inside.path(""), role);
    match role {
        Role::Train => {
            let _gpu = Gpu::take(&inside, role, TENSORS + TENSORS)?;
            work();
        }
        Role::Launch => {
            start(Role::Rank)?;
            until("rank");
            if inside.path("neighbour").exists() {
                until("shrunk");
            }
            work();
        }
        Role::Rank => {
            // Ctrl-C and the end of the terminal do not reach it, as it is with many launchers.
            let _ = rustix::process::setsid();
            let _gpu = Gpu::take(&inside, role, TENSORS)?;
            mark("rank")?;
            stay();
        }
        Role::TrainAndFork => {
            let gpu = Gpu::take(&inside, role, TENSORS)?;
            work();
            let _copies = gpu.leave_to_children()?;
            start(Role::Worker)?;
            until("worker");
        }
        // What it holds came with the descriptors that it was started with.
        Role::Worker => {
            mark("worker")?;
            stay();
        }
        Role::Neighbour => {
            let gpu = Gpu::take(&inside, role, NEIGHBOUR)?;
            mark("neighbour")?;
            until("rank");
            gpu.shrink(&inside, role, TENSORS + CONTEXT)?;
            mark("shrunk")?;
            stay();
        }
    }
    Ok(())
}

/// The GPU in use: memory that lives as long as somebody has these files open.
struct Gpu {
    memory: Keeper,
    files: Vec<File>,
    allocation: Allocation,
}

impl Gpu {
    fn take(inside: &Inside, role: Role, tensors: Bytes) -> io::Result<Self> {
        let mut files = inside.open("nvidiactl", 2)?;
        files.extend(inside.open("nvidia-uvm", 4)?);
        files.extend(inside.open("nvidia0", 23)?);
        let allocation = Allocation::of_this_process(0, (tensors + CONTEXT).0);
        let memory = Keeper::hold(&inside.ledger(), role.name(), &allocation)?;
        Ok(Self { memory, files, allocation })
    }

    fn shrink(&self, inside: &Inside, role: Role, by: Bytes) -> io::Result<()> {
        let bytes = self.allocation.bytes.saturating_sub(by.0);
        inside.ledger().write(role.name(), &Allocation { bytes, ..self.allocation.clone() })
    }

    /// From now on children inherit the files, as after a `fork` without `exec`. What is returned is the copy of the
    /// memory's lock that they get.
    fn leave_to_children(&self) -> io::Result<File> {
        let memory = self.memory.copy()?;
        for file in self.files.iter().chain([&memory]) {
            fcntl_setfd(file, FdFlags::empty())?;
        }
        Ok(memory)
    }
}
