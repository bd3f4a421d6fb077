//! Well-known programs: what is worth knowing about each, and how it is ended for good. A table, so that a program is
//! one row. A row is matched on evidence that the program itself leaves (command line, environment, title, parent), and
//! it never makes a cause by itself: it adds a note, a better remedy, and in some rows the launcher without which such a
//! worker has most often outlived its run.

use super::{adoption, scene::Scene};
use crate::{
    model::{Process, SignSeen},
    text::file_name,
};

/// Something to be seen of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sign {
    /// Its short name begins so.
    Comm(&'static str),
    /// The file name of its program.
    Program(&'static str),
    /// Its command line begins so: a title that it gave itself.
    Title(&'static str),
    /// One of its arguments, or the file name of one.
    Argument(&'static str),
    /// Its first argument.
    FirstArgument(&'static str),
    /// A part of an argument.
    Part(&'static str),
    /// A variable of its environment.
    Variable(&'static str),
    /// Its parent's short name begins so.
    Parent(&'static str),
    /// It leads a session of its own.
    LeadsSession,
}

/// How such a program is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// With a signal, like any other.
    Signal,
    /// Its parent first, which ends it, and would start it again if it were killed alone.
    ParentFirst,
    /// Through what it works for, while that lives: its name, the command, why, whom it disturbs.
    Owner(&'static str, &'static str, &'static str, &'static str),
    /// Through its connection file, as Jupyter does while it lives.
    ConnectionFile,
    /// Through the control daemon of the multi-process service, while that lives.
    MpsServer,
    /// With the command that the control daemon of the multi-process service takes.
    MpsDaemon,
    /// Not at all, for this reason.
    LeaveAlone(&'static str),
}

/// One program.
#[derive(Debug)]
pub(crate) struct Program {
    /// What people call it.
    pub(crate) name: &'static str,
    /// All signs of one line must be there.
    signs: &'static [&'static [Sign]],
    /// What is worth knowing.
    pub(crate) note: &'static str,
    /// How it is ended.
    pub(crate) remedy: Remedy,
    /// Its parent starts it and ends it; that this one is gone is a sign that its run is over. The parent's name.
    pub(crate) lives_below: Option<&'static str>,
}

use Sign::{Argument, Comm, FirstArgument, LeadsSession, Parent, Part, Program as Named, Title, Variable};

/// Rows are tried from the top.
const PROGRAMS: &[Program] = &[
    Program {
        name: "DataLoader worker",
        signs: &[&[Comm("pt_data_worker")]],
        note: "a PyTorch DataLoader worker, forked after CUDA was in use; it notices that its main process is gone only \
               between two items",
        remedy: Remedy::Signal,
        lives_below: None,
    },
    Program {
        name: "torchrun rank",
        // torchrun starts its ranks so: `python -u` (torch/distributed/run.py), in sessions of their own
        // (torch/distributed/elastic/multiprocessing/subprocess_handler).
        signs: &[&[Variable("TORCHELASTIC_RUN_ID"), Variable("LOCAL_RANK"), FirstArgument("-u"), LeadsSession]],
        note: "a rank of torchrun; its agent restarts ranks that die",
        remedy: Remedy::ParentFirst,
        lives_below: Some("torchrun agent"),
    },
    Program {
        // A rank of an older torchrun or one started with --no-python, or what a rank started and let go: the variables
        // are inherited.
        name: "torchrun rank",
        signs: &[&[Variable("TORCHELASTIC_RUN_ID"), Variable("LOCAL_RANK")]],
        note: "a rank of torchrun, or started by one; the agent restarts ranks that die",
        remedy: Remedy::ParentFirst,
        lives_below: None,
    },
    Program {
        name: "torchrun agent",
        signs: &[
            &[Comm("pt_elastic")],
            &[Named("torchrun")],
            &[Argument("torchrun")],
            &[Argument("torch.distributed.run")],
            &[Argument("torch.distributed.launch")],
        ],
        note: "the agent of torchrun: when it ends, it ends its ranks",
        remedy: Remedy::Signal,
        lives_below: None,
    },
    Program {
        name: "MPI rank",
        signs: &[&[Variable("OMPI_COMM_WORLD_RANK")], &[Variable("PMIX_RANK"), Parent("prte")]],
        note: "a rank of an MPI program; mpirun ends the others when one is killed",
        remedy: Remedy::ParentFirst,
        lives_below: None,
    },
    Program {
        name: "vLLM engine",
        signs: &[&[Title("VLLM::")], &[Argument("vllm"), Argument("serve")], &[Part("vllm.entrypoints.")]],
        note: "vLLM reserves most of the GPU at its start (--gpu-memory-utilization), whether it is used or not",
        remedy: Remedy::ParentFirst,
        lives_below: None,
    },
    Program {
        name: "SGLang engine",
        signs: &[&[Title("sglang::")], &[Argument("sglang.launch_server")], &[Part("sglang/launch_server")]],
        note: "SGLang reserves most of the GPU at its start (--mem-fraction-static), whether it is used or not",
        remedy: Remedy::ParentFirst,
        lives_below: None,
    },
    Program {
        name: "Ray worker",
        signs: &[
            &[Title("ray::"), Comm("ray::")],
            &[Part("ray/_private/workers/default_worker.py")],
            &[Comm("ray::"), Parent("raylet")],
        ],
        note: "a worker of Ray; raylet starts a new one for each that is killed while the job runs",
        remedy: Remedy::Owner(
            "raylet",
            "ray stop",
            "stop Ray on this machine, workers first",
            "everything that Ray runs on this machine",
        ),
        lives_below: Some("raylet"),
    },
    Program {
        name: "multiprocessing worker",
        signs: &[&[Part("from multiprocessing.spawn import spawn_main"), Argument("--multiprocessing-fork")]],
        note: "a worker of Python's multiprocessing (start method spawn)",
        remedy: Remedy::Signal,
        lives_below: Some("main process"),
    },
    Program {
        name: "multiprocessing forkserver",
        signs: &[&[Part("from multiprocessing.forkserver import main")]],
        note: "Python's multiprocessing forkserver, or a worker of it, which lives on without the forkserver",
        remedy: Remedy::Signal,
        // What is gone may be the forkserver, while the main process goes on.
        lives_below: None,
    },
    Program {
        name: "multiprocessing resource tracker",
        signs: &[&[Part("from multiprocessing.resource_tracker import main")]],
        note: "it removes the shared memory of a Python program when that ends; it ends by itself",
        remedy: Remedy::LeaveAlone("it ends by itself, and cleans /dev/shm up when it does"),
        lives_below: None,
    },
    Program {
        name: "Jupyter kernel",
        signs: &[&[Argument("ipykernel_launcher")], &[Part("ipykernel_launcher.py")], &[Argument("ipykernel")]],
        note: "the kernel of a notebook: it keeps every variable until it is restarted, also when the browser is closed",
        remedy: Remedy::ConnectionFile,
        lives_below: None,
    },
    Program {
        name: "debugger",
        signs: &[&[Comm("cuda-gdb")], &[Named("gdb")], &[Comm("cuda-gdbserver")]],
        note: "a debugger",
        remedy: Remedy::Signal,
        lives_below: None,
    },
    Program {
        name: "TensorFlow Serving",
        signs: &[&[Named("tensorflow_model_server")]],
        note: "TensorFlow takes nearly all memory of the GPU at its start (TF_FORCE_GPU_ALLOW_GROWTH=true changes that)",
        remedy: Remedy::Signal,
        lives_below: None,
    },
    Program {
        name: "Triton server",
        signs: &[&[Named("tritonserver")]],
        note: "NVIDIA's Triton inference server; a model can be unloaded without ending it",
        remedy: Remedy::Signal,
        lives_below: None,
    },
    Program {
        name: "Ollama model runner",
        signs: &[&[Named("ollama"), Argument("runner")], &[Comm("ollama_llama_se")]],
        note: "Ollama keeps a model for five minutes after its last use (OLLAMA_KEEP_ALIVE)",
        remedy: Remedy::Owner(
            "Ollama server",
            "ollama ps",
            "see the model, then `ollama stop MODEL`: a runner that is killed is started again",
            "nobody",
        ),
        lives_below: None,
    },
    Program {
        name: "MPS server",
        signs: &[&[Named("nvidia-cuda-mps-server")], &[Comm("nvidia-cuda-mps"), Parent("nvidia-cuda-mps")]],
        note: "the server of NVIDIA's multi-process service",
        remedy: Remedy::MpsServer,
        lives_below: None,
    },
    Program {
        name: "MPS control daemon",
        signs: &[&[Named("nvidia-cuda-mps-control")], &[Comm("nvidia-cuda-mps")]],
        note: "the control daemon of NVIDIA's multi-process service; it starts a server for the first client",
        remedy: Remedy::MpsDaemon,
        lives_below: None,
    },
    Program {
        name: "display server",
        signs: &[
            &[Named("Xorg")],
            &[Named("X"), Argument("vt1")],
            &[Named("Xwayland")],
            &[Named("gnome-shell")],
            &[Named("kwin_wayland")],
            &[Named("mutter")],
            &[Named("sway")],
            &[Named("weston")],
            &[Named("Hyprland")],
        ],
        note: "it draws somebody's desktop",
        remedy: Remedy::LeaveAlone("to end it closes somebody's desktop with all of its windows"),
        lives_below: None,
    },
    Program {
        name: "DCGM",
        signs: &[&[Named("nv-hostengine")], &[Named("dcgm-exporter")]],
        note: "NVIDIA's monitoring; it holds no memory",
        remedy: Remedy::LeaveAlone("it only watches; but it must be stopped before a GPU is reset"),
        lives_below: None,
    },
    Program {
        name: "persistence daemon",
        signs: &[&[Named("nvidia-persistenced")]],
        note: "it keeps the driver loaded; it holds no memory",
        remedy: Remedy::LeaveAlone("it only keeps the driver loaded; but it must be stopped before a GPU is reset"),
        lives_below: None,
    },
    Program {
        name: "monitor",
        signs: &[
            &[Named("nvidia-smi")],
            &[Named("nvtop")],
            &[Argument("nvitop")],
            &[Argument("gpustat")],
            &[Named("btop")],
        ],
        note: "it only watches",
        remedy: Remedy::LeaveAlone("it only watches"),
        lives_below: None,
    },
];

impl Remedy {
    /// What a program of this kind works for, and is ended by while that lives.
    pub(crate) const fn owner(self) -> Option<&'static str> {
        match self {
            Self::Owner(owner, ..) => Some(owner),
            Self::ConnectionFile => Some("Jupyter server"),
            Self::MpsServer => Some("control daemon"),
            Self::Signal | Self::ParentFirst | Self::MpsDaemon | Self::LeaveAlone(_) => None,
        }
    }
}

/// A program that was recognised, and by what.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) program: &'static Program,
    pub(crate) signs: Vec<SignSeen>,
}

/// Which well-known program this is.
pub(crate) fn recognise(process: &Process) -> Option<Known> {
    PROGRAMS.iter().find_map(|program| {
        let line = program.signs.iter().find(|line| line.iter().all(|sign| sign.shows(process)))?;
        Some(Known { program, signs: line.iter().map(|sign| sign.seen(process)).collect() })
    })
}

impl Known {
    /// What it works for is gone: then nothing that goes through that one ends it.
    pub(crate) fn lost_owner(&self, scene: &Scene<'_>, process: &Process) -> Option<&'static str> {
        self.program.remedy.owner().filter(|_| adoption::has_lost_its_starter(process, &scene.snapshot.observer))
    }

    /// What is worth knowing of this one.
    pub(crate) fn note(&self, scene: &Scene<'_>, process: &Process) -> String {
        match self.lost_owner(scene, process) {
            Some(owner) => format!("its {owner} is gone, so nothing uses it or ends it any more"),
            None => self.program.note.to_owned(),
        }
    }
}

impl Sign {
    fn shows(self, process: &Process) -> bool {
        let first = process.argv.first().map_or("", String::as_str);
        match self {
            Self::Comm(name) => process.comm.starts_with(name),
            Self::Program(name) => file_name(first.split(' ').next().unwrap_or(first)) == name,
            Self::Title(title) => first.starts_with(title),
            Self::Argument(word) => process.argv.words().iter().any(|a| a == word || file_name(a) == word),
            Self::FirstArgument(word) => process.argv.words().get(1).is_some_and(|a| a == word),
            Self::Part(part) => process.argv.words().iter().any(|a| a.contains(part)),
            Self::Variable(name) => process.environment.contains_key(name),
            Self::Parent(name) => process.ancestors.first().is_some_and(|a| a.comm.starts_with(name)),
            Self::LeadsSession => u32::try_from(process.sid) == Ok(process.id.pid),
        }
    }

    fn seen(self, process: &Process) -> SignSeen {
        match self {
            Self::Comm(name) => SignSeen::Comm(name.into()),
            Self::Program(name) => SignSeen::Program(name.into()),
            Self::Title(title) => SignSeen::Title(title.into()),
            Self::Argument(word) | Self::FirstArgument(word) | Self::Part(word) => SignSeen::Argument(word.into()),
            // Whoever names a run may name it after a person; a number names a rank.
            Self::Variable(name) => {
                SignSeen::Variable(name.into(), process.environment.get(name).and_then(|value| value.parse().ok()))
            }
            Self::Parent(name) => SignSeen::Parent(name.into()),
            Self::LeadsSession => SignSeen::LeadsSession,
        }
    }
}

/// The connection file of a notebook's kernel, if its path can stand in a command.
pub(crate) fn connection_file(process: &Process) -> Option<&str> {
    let at = process.argv.words().iter().position(|a| a == "-f")?;
    let path = process.argv.words().get(at + 1)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-' | b'+' | b'@');
    (path.ends_with(".json") && path.starts_with('/') && path.bytes().all(plain)).then_some(path.as_str())
}

#[cfg(test)]
mod tests;
