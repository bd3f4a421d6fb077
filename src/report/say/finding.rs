//! Findings: one or two sentences that do not name their device.

use super::{commas, doubt::account_of, few};
use crate::{
    model::{Death, Exclusion, FindingData, Obstacle, Possibility, Scope, SystemPages, Taker},
    text,
};
use std::fmt;

/// How many takers are named on one device.
const MOST_TAKERS: usize = 3;
/// How many survivors are named.
const MOST_SURVIVORS: usize = 8;

/// What ended programs by a signal most often mean by it.
const fn signal(number: i32) -> &'static str {
    match number {
        1 => "SIGHUP: its terminal closed",
        2 => "SIGINT: Ctrl-C",
        3 => "SIGQUIT",
        4 => "SIGILL: illegal instruction",
        6 => "SIGABRT: it aborted, as after a failed assertion",
        7 => "SIGBUS: bad memory access, often a full /dev/shm",
        8 => "SIGFPE",
        9 => "SIGKILL: killed from outside, or by the kernel when memory ran out",
        11 => "SIGSEGV: bad memory access",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM: asked to end",
        24 => "SIGXCPU: CPU time limit",
        _ => "a signal",
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InKernel => f.write_str("It waits in the kernel, where no signal reaches it."),
            Self::OfUser(user) => {
                write!(f, "It became a process of {user}, which only {user} or root may end.")
            }
            Self::OfRoot => f.write_str("It became a process of root, which only root may end."),
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CouldNotBeEnded { pid, because } => {
                write!(f, "The command ran into its time limit and could not be ended: PID {pid} still runs.")?;
                because.as_ref().map_or(Ok(()), |because| write!(f, " {because}"))
            }
            Self::Signal { number, core_dumped } => {
                let core = if *core_dumped { ", with a core dump" } else { "" };
                write!(f, "The command was ended by signal {number} ({}){core}.", signal(*number))
            }
            Self::StillRuns => f.write_str("The command was still running when this report was made."),
        }
    }
}

fn processes(n: usize) -> String {
    text::count(n, "process", "processes")
}

fn of_survivors(pids: &[u32], holding: usize, open: usize, elsewhere: bool) -> String {
    let n = pids.len();
    let who = commas(pids.iter().take(MOST_SURVIVORS));
    let more = if n > MOST_SURVIVORS { ", …" } else { "" };
    let (are, what) = if n == 1 { ("process", "runs") } else { ("processes", "run") };
    let hold = match (n, holding, open) {
        (_, 0, _) if elsewhere => String::new(),
        (1, 0, 0) => " and has no GPU open".to_owned(),
        (1, 0, _) => " and has a GPU open, but is not known to hold memory".to_owned(),
        (1, ..) => " and holds GPU memory".to_owned(),
        (_, 0, 0) => "; none of them has a GPU open".to_owned(),
        (_, 0, m) => format!("; {m} of them with a GPU open, none known to hold memory"),
        (_, 1, _) => "; 1 of them holds GPU memory".to_owned(),
        (n, m, _) if n == m => " and hold GPU memory".to_owned(),
        (_, m, _) => format!("; {m} of them hold GPU memory"),
    };
    format!("{n} {are} of the command still {what} (PID {who}{more}){hold}.")
}

fn of_takers(takers: &[Taker], scope: Scope, compares: bool) -> String {
    let name = |taker: &Taker| format!("PID {} ({})", taker.who.pid, taker.who.name);
    let who = match takers {
        [one] if one.was_there => format!("{}, which was there before, has {} more", name(one), one.took),
        [one] if compares => format!("{}, which started later, has {}", name(one), one.took),
        [one] => format!("{}, which started during the run, has {}", name(one), one.took),
        many => {
            let (named, rest) = many.split_at(many.len().min(MOST_TAKERS));
            let one = |taker: &Taker| {
                format!("{} {} {}", name(taker), taker.took, if taker.was_there { "more" } else { "(new)" })
            };
            let mut parts: Vec<String> = named.iter().map(one).collect();
            if !rest.is_empty() {
                let processes = if rest.len() == 1 { "process" } else { "processes" };
                let took: crate::model::Bytes = rest.iter().map(|taker| taker.took).sum();
                parts.push(format!("{} more {processes} {took}", rest.len()));
            }
            format!("others hold more than before: {}", parts.join(", "))
        }
    };
    let charged = match (scope, takers.len()) {
        (Scope::Device, _) => "With `--scope device` all growth is charged",
        (Scope::Run | Scope::New, 1) => "It is not charged",
        (Scope::Run | Scope::New, _) => "They are not charged",
    };
    format!("{who}. {charged}.")
}

impl fmt::Display for FindingData {
    #[allow(clippy::too_many_lines, reason = "a list of sentences")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { why } => write!(f, "not started: {why}"),
            Self::Died { death, oom_kills } => {
                let oom = oom_kills.map(|n| {
                    format!(
                        "The kernel's out-of-memory killer ended {} of this group during the run: the machine (not the GPU) \
                         ran out of memory.",
                        processes(usize::try_from(n).unwrap_or(usize::MAX))
                    )
                });
                let parts = death.iter().map(ToString::to_string).chain(oom);
                f.write_str(&parts.collect::<Vec<_>>().join(" "))
            }
            Self::StillRunning { pids, holding, open, elsewhere } => {
                f.write_str(&of_survivors(pids, *holding, *open, *elsewhere))
            }
            Self::NotLookedAt { pids, minors } => {
                let files: Vec<String> = minors.iter().map(|minor| format!("/dev/nvidia{minor}")).collect();
                let has = if pids.len() == 1 { "has" } else { "have" };
                let was = if files.len() == 1 { "was" } else { "were" };
                write!(f, "PID {} {has} {} open, which {was} not looked at.", few(pids), few(&files))
            }
            Self::OutputKept { pids } => {
                let (who, they, end) = match pids.as_slice() {
                    [one] => (format!("PID {one} keeps"), "that process", "ends"),
                    _ => (format!("PIDs {} keep", commas(pids)), "these processes", "end"),
                };
                write!(
                    f,
                    "{who} this output open: what reads it (`| tee log`, a CI job) waits until {they} {end}. With `> log 2>&1` \
                     nothing waits; `--cleanup` ends what the command left."
                )
            }
            Self::NearlyFull { peak, usable, own } => write!(
                f,
                "{peak} of {usable} were in use at the peak, {own} of them by the command, which failed: it may have run out \
                 of GPU memory."
            ),
            Self::NotCharged { growth, pages, compares } => {
                let why = match pages {
                    SystemPages::No => "Others use this GPU or could not be inspected, so".to_owned(),
                    pages => format!("It may be nobody's: {pages}; so"),
                };
                let to = if *compares { "" } else { " to the command" };
                write!(
                    f,
                    "{growth} more are in use than before and belong to no listed process. {why} this memory is not charged{to}."
                )
            }
            Self::MovedToOthers { amount, shared } => {
                let how = match shared {
                    true => "that shares memory with a process of the command",
                    false => "that grew when a process of the command ended",
                };
                write!(f, "{amount} are now listed with a process of others {how}.")
            }
            Self::OthersGrew { takers, scope, compares } => f.write_str(&of_takers(takers, *scope, *compares)),
            Self::MpsServer { pid, held, user, quit } => {
                let user = user.as_ref().map_or_else(|| "its user".to_owned(), ToString::to_string);
                write!(
                    f,
                    "The MPS server (PID {pid}) keeps {held} for the programs that share the GPU through it. It is meant to \
                     stay; to be rid of it, {user} runs `{quit}`."
                )
            }
            Self::StillLeaving { amount, processes: n } => write!(
                f,
                "{amount} are still on their way back: {} of the command {} exiting. A longer `--settle` would show the end \
                 of it.",
                processes(*n),
                if *n == 1 { "is" } else { "are" }
            ),
            Self::StillComingBack { amount, fell } => write!(
                f,
                "Every process of the command is gone; {fell} have come back since, and {amount} were still there when the \
                 time to settle was up. A longer `--settle` would show the end of it."
            ),
            Self::StillInUse { amount } => write!(
                f,
                "Every process of the command is gone, and {amount} were still in use when the time to settle was up. A \
                 longer `--settle` would tell whether they come back."
            ),
            Self::Unchanged { amount } => write!(
                f,
                "{amount} have not changed since every process of the command ended, and no process has a GPU open: perhaps \
                 the driver keeps them for itself."
            ),
            Self::WorkedThroughOthers => f.write_str(
                "The command itself never used a GPU, while new processes did: if it worked through a daemon (docker, srun, \
                 kubectl, ray), use `--scope new` to charge every new process.",
            ),
            Self::DriverError { xid, times, placed } => {
                let place = if *placed { "" } else { " on a GPU" };
                let often = if *times == 1 { String::new() } else { format!(" {times} times") };
                write!(
                    f,
                    "the driver reported error Xid {xid}{place}{often} during the run (see `dmesg | grep -i xid`)."
                )
            }
            Self::ReusedPid { pid, name } => write!(
                f,
                "NVML (and nvidia-smi) shows PID {pid} as \"{name}\", but that process has nothing to do with the memory: the \
                 number was reused. Do not end it."
            ),
            Self::OutOfSight { why } => {
                write!(f, "Processes outside may hold memory and cannot be seen from here: {why}.")
            }
            Self::NewDevices { devices } => {
                let (was, whose) = if devices.len() == 1 { ("was", "its") } else { ("were", "their") };
                write!(
                    f,
                    "{} {was} not there before, so nothing can be said about {whose} memory.",
                    commas(devices)
                )
            }
            Self::FewLooks { taken } => {
                match taken {
                    0 => f.write_str(
                        "No look was taken while the command ran, so how much GPU memory it used is not known",
                    ),
                    1 => f.write_str(
                        "Only one look was taken while the command ran, so it may have used more than was seen",
                    ),
                    n => write!(
                        f,
                        "Only {n} looks were taken while the command ran, so it may have used more than was seen"
                    ),
                }?;
                f.write_str(": a shorter `--sample` would tell.")
            }
            Self::Unexplained { excess, suspects } => {
                write!(f, "{excess} are in use that no listed process explains.")?;
                match suspects.as_slice() {
                    [] => Ok(()),
                    pids => write!(f, " Unlisted processes that may keep it: PID {}.", commas(pids)),
                }
            }
            Self::BusyAndEmpty { percent } => write!(
                f,
                "it is reported to be {percent}% busy while nobody holds memory on it. That is the figure for the last \
                 second, so a process may just have ended; if it stays so, the GPU hangs (see `dmesg | grep -i xid`)."
            ),
            Self::MemoryNotTold { processes: n } => write!(
                f,
                "the driver lists {} and does not tell how much memory is in use, as on platforms where GPU and CPU share \
                 their memory.",
                processes(*n)
            ),
            Self::SharesNotTold { processes } => write!(
                f,
                "the driver does not tell how much {processes} of its processes hold, as under WSL, on virtual GPUs and in \
                 some containers."
            ),
        }
    }
}

impl fmt::Display for Possibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const OF_THE_SYSTEM: &str =
            "held by the system as ordinary memory (page cache or a process's host pages on the GPU's NUMA node";
        match self {
            Self::Handle { pids } => {
                let has = if pids.len() == 1 { "has" } else { "have" };
                write!(
                    f,
                    "an exported allocation handle: PID {} {has} only the control file open, without a GPU context",
                    few(pids)
                )
            }
            Self::OpenAndNotListed { pids } => {
                let are = if pids.len() == 1 { "is one" } else { "are such" };
                write!(f, "a process that has this GPU open without being listed: PID {} {are}", few(pids))
            }
            Self::Listed { pids } => write!(
                f,
                "managed memory (cudaMallocManaged) or shared allocations of a listed process: PID {}",
                few(pids)
            ),
            Self::ListsUnread => f.write_str("a listed process: the lists could not be read"),
            Self::SystemPages { pages: SystemPages::Node(node) } => {
                write!(f, "{OF_THE_SYSTEM} {node}): {}", account_of(*node))
            }
            Self::SystemPages { .. } => write!(f, "{OF_THE_SYSTEM}, if its memory is one: the driver does not tell)"),
            Self::AnybodyUnread => f.write_str("anybody: the open files of processes were not read"),
            Self::Uninspected { who } => {
                let who: Vec<String> = who.iter().map(|one| format!("{} ({})", one.pid, one.name)).collect();
                write!(f, "a process whose open files may not be read: PID {}", few(&who))
            }
            Self::OutOfSight { why } => write!(f, "a process that cannot be seen from here: {why}"),
            Self::HandleOnItsWay => f.write_str(
                "an allocation handle on its way: a file that was sent through a socket and not received belongs to no process",
            ),
            Self::Driver => f.write_str("the driver itself: it keeps some memory while a GPU is in use"),
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NobodyUnlisted => {
                "a handle or a forked copy in a process that can be seen: nobody unlisted has more NVIDIA files open than a \
                 program that only watches"
            }
            Self::NobodyListed => "managed memory of a listed process: none is listed",
            Self::NoNumaNode => {
                "memory that the system holds there: the driver says that the GPU's memory is no NUMA node"
            }
            Self::NobodyUninspected => "a process that could not be inspected: there is none",
            Self::NobodyOutOfSight => {
                "a process out of sight: from here every process of the machine can be seen"
            }
        })
    }
}
