//! How long it takes to find out who has device files open among thousands of processes, against `fuser -v` and `lsof`
//! over the same files in the same run; and whether `status` beside the start of NVML feels the processes at all.
//!
//! ```text
//! cargo bench --bench scan                     # 5,000 processes with 40 open files each
//! cargo bench --bench scan -- 1000 40 5        # processes, files, rounds
//! ```
//!
//! The benchmark makes the processes itself: forked copies of one small Python program, which share its memory. Exit
//! code 1 says that the scan took more than half of the time of one of the others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and breaks where it cannot measure"
)]

use fake_nvml::{
    faults::Fault,
    ledger::{Ledger, Machine},
};
use gpuresid::observe::proc::{ProcOptions, ProcReader};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Device files, and how many of the processes have one open.
const NODES: usize = 8;
const HOLDERS: usize = 8;
/// What NVML's start takes on a real machine with one GPU.
const NVML_START: Duration = Duration::from_millis(20);

/// Forks N processes with F open files each, one after the other; they end with their parent's pipe.
const CROWD: &str = "
import os, sys
n, files, holders, dev, nodes = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
fds = [os.open('/dev/null', os.O_RDONLY) for _ in range(files)]
r, w = os.pipe()
for i in range(n):
    if os.fork() == 0:
        os.close(w)
        if i < holders:
            for k in range(23):
                os.dup2(os.open(f'{dev}/nvidia{i % nodes}', os.O_RDONLY), fds[k])
        os.read(r, 1)
        os._exit(0)
print('ready', flush=True)
sys.stdin.read()
";

struct Crowd(Child);

impl Crowd {
    fn start(processes: usize, files: usize, dev: &Path) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", CROWD, &processes.to_string(), &files.to_string(), &HOLDERS.min(processes).to_string()])
            .arg(dev)
            .arg(NODES.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the processes could not be made; look at `ulimit -u`");
        Self(child)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // Its end closes the pipe that all of them read from.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn timed(what: impl FnOnce()) -> Duration {
    let start = Instant::now();
    what();
    start.elapsed()
}

fn quietly(program: &str, arguments: &[String]) -> Option<Duration> {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    command.status().ok()?;
    Some(start.elapsed())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// `gpuresid status` as a whole process.
fn status(library: &Path, ledger: &Path, dev: &Path) -> Duration {
    timed(|| {
        let status = Command::new(env!("CARGO_BIN_EXE_gpuresid"))
            .args(["--json", "--nvml-lib"])
            .arg(library)
            .arg("--dev")
            .arg(dev)
            .env("FAKE_NVML_LEDGER", ledger)
            .env("FAKE_DEV", dev)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    })
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let number = |place: usize, otherwise| numbers.get(place).copied().unwrap_or(otherwise);
    let (processes, files, rounds) = (number(0, 5000), number(1, 40), number(2, 5).max(1));
    let directory = tempfile::tempdir().unwrap();
    let dev = directory.path().join("dev");
    fs::create_dir(&dev).unwrap();
    let mut paths: Vec<PathBuf> = (0..NODES).map(|n| dev.join(format!("nvidia{n}"))).collect();
    paths.extend([dev.join("nvidiactl"), dev.join("nvidia-uvm")]);
    paths.iter().for_each(|p| fs::write(p, "").unwrap());
    let reader = ProcReader::new(ProcOptions { dev: dev.clone(), ..ProcOptions::default() }).unwrap();

    let crowd = Crowd::start(processes, files, &dev);
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    let fuser: Vec<String> = std::iter::once("-v".to_owned()).chain(names.iter().cloned()).collect();
    let (mut ours, mut fusers, mut lsofs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        // In turn, so that a busy moment of the machine meets all of them.
        ours.push(timed(|| {
            let found = reader.scan(&[]).processes.iter().filter(|p| p.can_hold_memory() == Some(true)).count();
            assert_eq!(found, HOLDERS.min(processes), "every holder is found");
        }));
        fusers.extend(quietly("fuser", &fuser));
        lsofs.extend(quietly("lsof", &names));
    }
    let ours = median(ours);
    println!("{processes} processes with {files} open files each, {rounds} rounds, medians");
    println!("  gpuresid's scan  {:8.1} ms", ms(ours));
    let mut too_slow = false;
    for (name, times) in [("fuser -v", fusers), ("lsof", lsofs)] {
        if times.is_empty() {
            println!("  {name:<16} is not installed");
            continue;
        }
        let theirs = median(times);
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!("  {name:<16} {:8.1} ms: the scan takes {ratio:.2} of it", ms(theirs));
        too_slow |= ratio > 0.5;
    }
    drop(crowd);

    let library = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    let ledger = Ledger::create(directory.path().join("ledger"), &Machine::h200(1)).unwrap();
    let slow = Fault {
        function: "nvmlInit_v2".into(),
        delay_ms: u64::try_from(NVML_START.as_millis()).unwrap(),
        ..Fault::default()
    };
    let machine = ledger.directory().join("machine.json");
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&machine).unwrap()).unwrap();
    value["faults"] = serde_json::json!([slow]);
    fs::write(&machine, value.to_string()).unwrap();
    println!("gpuresid status as a whole process beside an NVML start of {} ms", NVML_START.as_millis());
    for more in [0, 1000] {
        let crowd = (more > 0).then(|| Crowd::start(more, files, &dev));
        let times = (0..rounds.max(9)).map(|_| status(&library, ledger.directory(), &dev)).collect();
        println!("  {more:>4} more processes {:8.1} ms", ms(median(times)));
        drop(crowd);
    }
    if too_slow {
        std::process::exit(1);
    }
}
