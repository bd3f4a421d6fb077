//! `/proc` against real processes: everything here starts the process it reads. NVIDIA's nodes are plain files below a
//! temporary `--dev`, but for one test with a real device number. What needs another user or another PID namespace
//! runs this test program again from there; the inner half is `ignored` for everybody else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]
#![allow(clippy::print_stderr, reason = "a test that cannot run here says why")]

use gpuresid::{
    model::{OnSigterm, Process, ProcessState},
    observe::proc::{ProcOptions, ProcReader, Scan},
};
use std::{
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader, Write},
    os::unix::{ffi::OsStringExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// What every child needs: `node` opens a stand-in, `ready` speaks to the test and waits for its word.
const PRELUDE: &str = "
import ctypes, os, sys, threading, time
dev = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def node(name):
    return os.open(dev + '/' + name, os.O_RDWR)
def ready(*words):
    print('ready', *words, flush=True)
def forever():
    while True:
        time.sleep(1000)
def end_main_thread():
    libc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
";

/// A child that ends with the test.
struct Running {
    child: Child,
    words: Vec<u32>,
}

impl Running {
    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for pid in &self.words {
            // Grandchildren that the child told us of.
            signal(*pid, "KILL");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([format!("-{name}"), pid.to_string()]).stderr(Stdio::null()).status();
}

/// A directory of stand-ins.
fn dev() -> tempfile::TempDir {
    let dev = tempfile::tempdir().unwrap();
    std::fs::create_dir(dev.path().join("nvidia-caps")).unwrap();
    for name in
        ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1", "other"]
    {
        std::fs::write(dev.path().join(name), "").unwrap();
    }
    dev
}

fn reader(dev: &Path) -> ProcReader {
    ProcReader::new(ProcOptions { dev: dev.into(), ..ProcOptions::default() }).unwrap()
}

/// Starts Python, and returns once it said that it is ready.
fn python(dev: &Path, script: &str) -> Running {
    let mut command = Command::new("python3");
    command.arg("-c").arg(format!("{PRELUDE}\n{script}")).arg(dev);
    until_ready(command)
}

fn until_ready(mut command: Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let words = line.strip_prefix("ready").unwrap_or_else(|| panic!("the child said {line:?}"));
    let words = words.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    Running { child, words }
}

/// Asks until there is an answer.
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "in 30 s not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn find(scan: &Scan, pid: u32) -> Option<&Process> {
    scan.processes.iter().find(|p| p.id.pid == pid)
}

fn nodes(process: &Process) -> Vec<(&str, u32)> {
    process.files.as_ref().unwrap().nodes.iter().map(|(name, n)| (name.as_str(), *n)).collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn open_files_are_counted_by_node() {
    let dev = dev();
    let child = python(
        dev.path(),
        "
for name in ['nvidia0', 'nvidia0', 'nvidia1', 'nvidiactl', 'nvidia-uvm', 'nvidia-caps/nvidia-cap1', 'other']:
    node(name)
ready(); forever()",
    );
    let idle = python(dev.path(), "node('other'); ready(); forever()");
    let scan = reader(dev.path()).scan(&[]);
    let found = find(&scan, child.pid()).unwrap();
    let expected =
        [("nvidia-caps/nvidia-cap1", 1), ("nvidia-uvm", 1), ("nvidia0", 2), ("nvidia1", 1), ("nvidiactl", 1)];
    assert_eq!(nodes(found), expected);
    assert_eq!(found.files.as_ref().unwrap().total(), 5);
    assert!(find(&scan, idle.pid()).is_none());
    // Who is asked for by PID comes without files too, and then it is known that it has none.
    let scan = reader(dev.path()).scan(&[idle.pid()]);
    assert_eq!(nodes(find(&scan, idle.pid()).unwrap()), []);
}

#[test]
fn a_removed_node_is_still_open() {
    let dev = dev();
    let child = python(dev.path(), "node('nvidia0'); os.unlink(dev + '/nvidia0'); ready(); forever()");
    assert_eq!(nodes(find(&reader(dev.path()).scan(&[]), child.pid()).unwrap()), [("nvidia0", 1)]);
}

#[test]
fn the_facts_of_a_process() {
    let dev = dev();
    let mut command = Command::new("python3");
    command.arg("-c").arg(format!(
        "{PRELUDE}\nimport mmap
path = f'/dev/shm/torch_{{os.getpid()}}_test'
fd = os.open(path, os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 4096); m = mmap.mmap(fd, 4096); os.unlink(path)
node('nvidia0'); ready(); forever()"
    ));
    command.arg(dev.path()).env("GPURESID_RUN_ID", "outer:inner").process_group(0);
    let child = until_ready(command);
    let reader = reader(dev.path());
    let process =
        eventually("it sleeps", || reader.examine(child.pid()).unwrap().filter(|p| p.state == ProcessState::Sleeping));
    let me = reader.observer();
    assert_eq!(process.id.pid, child.pid());
    assert_eq!((process.ppid, process.pgid), (std::process::id(), child.pid().cast_signed()));
    assert_eq!(process.uid, Some(rustix::process::getuid().as_raw()));
    if is_root() {
        assert_eq!(process.user.as_deref(), Some("root"));
    }
    assert!(process.comm.starts_with("python3"), "{}", process.comm);
    assert!(process.argv.words()[0].ends_with("python3"));
    assert_eq!(process.argv.words().last().unwrap().as_str(), dev.path().to_str().unwrap());
    assert_eq!((process.threads, process.leader_gone, process.dying), (1, false, false));
    assert!(process.age_seconds.unwrap() < 600);
    assert_eq!(process.nspid, [child.pid()]);
    assert_eq!(process.pid_namespace, me.pid_namespace);
    assert_eq!(process.marker.as_deref(), Some("outer:inner"));
    assert!(process.cgroup.as_deref().is_some_and(|path| path.starts_with('/')));
    assert_eq!(process.shared_mappings, [format!("/dev/shm/torch_{}_test", child.pid())]);
    assert_eq!(process.ancestors[0].id, me.id);
    assert_eq!(process.ancestors.last().unwrap().id.pid, 1);
    assert!(process.ancestors.windows(2).all(|pair| pair[1].id.start_ticks <= pair[0].id.start_ticks));
    assert_eq!(reader.examine(child.pid()).unwrap().unwrap().id, process.id);

    let light = reader.identify(child.pid()).unwrap().unwrap();
    let same = Process { age_seconds: None, files: None, shared_mappings: Vec::new(), ..process.clone() };
    assert_eq!(Process { cpu_ticks: same.cpu_ticks, wait_channel: same.wait_channel.clone(), ..light }, same);

    let pid = child.pid();
    drop(child);
    assert_eq!(reader.examine(pid).unwrap(), None);
    assert_eq!(reader.identify(pid).unwrap(), None);
}

#[test]
fn a_process_whose_main_thread_is_gone_holds_files() {
    let dev = dev();
    let child = python(
        dev.path(),
        "
node('nvidia0'); node('nvidiactl')
for _ in range(3):
    threading.Thread(target=forever).start()
ready(); end_main_thread()",
    );
    let reader = reader(dev.path());
    let found = eventually("the main thread ends", || {
        reader.scan(&[]).processes.into_iter().find(|p| p.id.pid == child.pid() && p.leader_gone)
    });
    assert_eq!(found.state, ProcessState::Zombie);
    assert_eq!((found.threads, found.dying), (4, false));
    assert_eq!(nodes(&found), [("nvidia0", 1), ("nvidiactl", 1)]);
    // The main thread has no command line any more, but the process has.
    assert!(found.argv.words()[0].ends_with("python3"), "{found:?}");
    assert!(found.pid_namespace.is_some() && found.cgroup.is_some());
    assert!(reader.descendants(std::process::id()).iter().any(|p| p.id == found.id));
    assert!(reader.scan(&[]).uninspected.iter().all(|u| u.id != found.id));
}

#[test]
fn a_thread_with_a_table_of_its_own_is_seen() {
    const CLONE_FILES: &str = "
done = threading.Event()
def alone():
    assert libc.unshare(0x400) == 0
    CHANGE
    done.set(); forever()
spare = node('other')
threading.Thread(target=alone, daemon=True).start()
done.wait(); ready(); forever()";
    let dev = dev();
    let more = python(dev.path(), &CLONE_FILES.replace("CHANGE", "node('nvidia0')"));
    // The same number of files, so that only somebody who must be sure looks closer.
    let equal = python(dev.path(), &CLONE_FILES.replace("CHANGE", "os.close(spare); node('nvidia1')"));
    let reader = reader(dev.path());
    let scan = reader.scan(&[equal.pid(), more.pid()]);
    assert_eq!(nodes(find(&scan, more.pid()).unwrap()), [("nvidia0", 1)]);
    assert_eq!(nodes(find(&scan, equal.pid()).unwrap()), [("nvidia1", 1)]);
    assert_eq!(nodes(&reader.examine(equal.pid()).unwrap().unwrap()), [("nvidia1", 1)]);
    if tells_number_of_files() {
        assert_eq!(nodes(find(&reader.scan(&[]), more.pid()).unwrap()), [("nvidia0", 1)]);
    }
}

/// Kernels from 6.2 on tell how many files a table has.
fn tells_number_of_files() -> bool {
    std::fs::metadata("/proc/self/fd").unwrap().len() > 0
}

#[test]
fn threads_that_share_their_table_count_once() {
    let dev = dev();
    let child = python(
        dev.path(),
        "
for _ in range(20):
    threading.Thread(target=forever, daemon=True).start()
node('nvidia0'); ready(); forever()",
    );
    let reader = reader(dev.path());
    let found = reader.examine(child.pid()).unwrap().unwrap();
    assert_eq!((found.threads, nodes(&found)), (21, vec![("nvidia0", 1)]));
    // The number of a thread is no process, though the kernel opens its directory.
    let thread = std::fs::read_dir(format!("/proc/{}/task", child.pid()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap())
        .find(|thread| *thread != child.pid())
        .unwrap();
    assert_eq!(reader.identify(thread).unwrap(), None);
    assert_eq!(reader.examine(thread).unwrap(), None);
    assert!(find(&reader.scan(&[thread]), thread).is_none());
}

#[test]
fn a_stopped_process_is_stopped() {
    let dev = dev();
    let child = python(dev.path(), "node('nvidia0'); ready(); forever()");
    let reader = reader(dev.path());
    signal(child.pid(), "STOP");
    let found =
        eventually("it stops", || reader.examine(child.pid()).unwrap().filter(|p| p.state == ProcessState::Stopped));
    assert_eq!((nodes(&found), found.dying), (vec![("nvidia0", 1)], false));
}

#[test]
fn what_the_letter_of_the_state_does_not_tell() {
    let dev = dev();
    let facts = |script: &str| {
        let child = python(dev.path(), &format!("import signal\n{script}\nready()\nforever()"));
        let process = reader(dev.path()).identify(child.pid()).unwrap().unwrap();
        (process, child)
    };
    for (script, does) in [
        ("", OnSigterm::Ends),
        ("signal.signal(signal.SIGTERM, lambda *_: None)", OnSigterm::Handles),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", OnSigterm::Ignores),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])", OnSigterm::Blocks),
        // Another thread takes it.
        (
            "threading.Thread(target=forever, daemon=True).start(); signal.pthread_sigmask(signal.SIG_BLOCK, [15])",
            OnSigterm::Ends,
        ),
    ] {
        assert_eq!(facts(script).0.on_sigterm, Some(does), "{script}");
    }
    let (process, child) = facts("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])");
    assert!(!process.sigterm_pending && !process.core_dumping && !process.dying);
    signal(child.pid(), "TERM");
    assert!(reader(dev.path()).identify(child.pid()).unwrap().unwrap().sigterm_pending);
}

#[test]
fn the_program_is_known_whatever_the_title_says() {
    let dev = dev();
    let child = python(dev.path(), "libc.prctl(15, b'[kworker/0:1]', 0, 0, 0)\nready()\nforever()");
    let process = reader(dev.path()).identify(child.pid()).unwrap().unwrap();
    assert_eq!(process.comm, "[kworker/0:1]");
    let file = std::fs::read_link(format!("/proc/{}/exe", child.pid())).unwrap();
    assert_eq!(process.program.as_deref(), file.file_name().unwrap().to_str());
}

/// Writing a core of this size takes long enough to be seen.
#[test]
fn a_process_that_writes_its_core_is_seen_to() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with(['|', '/', '@']) {
        eprintln!("skipped: cores go elsewhere ({})", pattern.trim());
        return;
    }
    let (dev, cwd) = (dev(), tempfile::tempdir().unwrap());
    if rustix::process::getrlimit(rustix::process::Resource::Core).maximum == Some(0) {
        eprintln!("skipped: cores are switched off here");
        return;
    }
    let script = format!(
        "import resource\nos.chdir('{}')\nhard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n\
         resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\nfull = b'x' * (256 << 20)\nready()\nforever()",
        cwd.path().display()
    );
    let child = python(dev.path(), &script);
    signal(child.pid(), "ABRT");
    let reader = reader(dev.path());
    let process = eventually("it to write its core", || {
        let process = reader.identify(child.pid()).unwrap()?;
        assert_ne!(process.state, ProcessState::Zombie, "it ended without being seen to write its core");
        process.core_dumping.then_some(process)
    });
    assert!(process.dying && !process.kill_pending);
}

#[test]
fn files_that_stand_in_a_socket_are_counted() {
    let dev = dev();
    let script = "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0, 1])\nready()\nforever()";
    let child = python(dev.path(), script);
    let process = reader(dev.path()).examine(child.pid()).unwrap().unwrap();
    let sockets = process.sockets.expect("it has no NVIDIA file, so its sockets are looked into");
    if sockets.files_in_flight.is_none() {
        eprintln!("skipped: this kernel does not tell");
        return;
    }
    assert_eq!((sockets.open, sockets.files_in_flight), (2, Some(2)));
    let child = python(dev.path(), "f = node('nvidia0')\nready()\nforever()");
    assert_eq!(reader(dev.path()).examine(child.pid()).unwrap().unwrap().sockets, None, "it needs no such search");
}

#[test]
fn a_zombie_holds_nothing() {
    let dev = dev();
    let child = python(dev.path(), "node('nvidia0'); ready()");
    let reader = reader(dev.path());
    let zombie =
        eventually("it ends", || reader.examine(child.pid()).unwrap().filter(|p| p.state == ProcessState::Zombie));
    assert_eq!((nodes(&zombie), zombie.dying, zombie.leader_gone), (vec![], false, false));
    let scan = reader.scan(&[child.pid()]);
    assert!(find(&scan, child.pid()).is_none());
    assert!(scan.uninspected.iter().all(|u| u.id.pid != child.pid()));
    assert!(reader.descendants(std::process::id()).iter().all(|p| p.id.pid != child.pid()));
}

#[test]
fn a_forked_copy_has_the_files_too() {
    let dev = dev();
    let parent = python(
        dev.path(),
        "
node('nvidia0')
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.read(read, 1)
    forever()
ready(child); forever()",
    );
    let child = parent.words[0];
    let reader = reader(dev.path());
    let scan = reader.scan(&[]);
    assert_eq!(nodes(find(&scan, child).unwrap()), [("nvidia0", 1)]);
    assert_eq!(find(&scan, child).unwrap().ancestors[0].id.pid, parent.pid());
    let tree = reader.descendants(std::process::id());
    let place = |pid| tree.iter().position(|p| p.id.pid == pid);
    assert!(place(parent.pid()).unwrap() < place(child).unwrap(), "parents come before their children");
    assert!(tree.iter().all(|p| p.files.is_none() && p.age_seconds.is_none()));

    signal(parent.pid(), "KILL");
    eventually("the parent is gone", || {
        reader.examine(child).unwrap().filter(|p| p.ancestors.iter().all(|a| a.id.pid != parent.pid()))
    });
    assert_eq!(nodes(find(&reader.scan(&[parent.pid()]), child).unwrap()), [("nvidia0", 1)]);
}

#[test]
fn hostile_names_are_only_text() {
    let dev = dev();
    let mut command = Command::new("python3");
    command.arg("-c").arg(format!(
        "{PRELUDE}
libc.prctl(15, b'a) R 1 (\\n\\xff', 0, 0, 0)
node('nvidia0'); ready(); forever()"
    ));
    command.arg(dev.path()).arg("x".repeat(10_000)).arg("two\nlines\x1b[31m");
    command.arg(OsString::from_vec(b"\xff\xfe".to_vec())).args(std::iter::repeat_n("more", 500));
    let child = until_ready(command);
    let scan = reader(dev.path()).scan(&[]);
    let found = find(&scan, child.pid()).unwrap();
    assert_eq!(found.comm, "a) R 1 (\n\u{fffd}");
    assert_eq!(found.ppid, std::process::id());
    assert_eq!(found.argv.words()[4].len(), 10_000);
    assert_eq!(found.argv.words()[5], "two\nlines\x1b[31m");
    assert_eq!(found.argv.words()[6], "\u{fffd}\u{fffd}");
    assert_eq!(found.argv.words().len(), 200);
}

#[test]
fn processes_that_come_and_go_are_no_trouble() {
    let dev = dev();
    let steady = python(dev.path(), "node('nvidia0'); ready(); forever()");
    let restless = python(
        dev.path(),
        "
ready()
while True:
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            node('nvidia1')
            threading.Thread(target=lambda: None).start()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)",
    );
    let reader = reader(dev.path());
    let (mut seen, mut scans) = (0, 0);
    eventually("some of them are caught", || {
        let scan = reader.scan(&[steady.pid()]);
        assert_eq!(scan.gaps, []);
        assert_eq!(nodes(find(&scan, steady.pid()).unwrap()), [("nvidia0", 1)]);
        let tree = reader.descendants(restless.pid());
        assert!(tree.iter().all(|p| p.ancestors.iter().any(|a| a.id.pid == 1)));
        for short in scan.processes.iter().filter(|p| p.ppid == restless.pid()) {
            assert!(short.argv.is_empty() || short.argv.words()[0].ends_with("python3"));
            seen += 1;
        }
        scans += 1;
        (seen >= 5 && scans >= 50).then_some(())
    });
}

#[test]
fn real_nodes_are_known_by_their_number_wherever_they_lie() {
    let place = tempfile::tempdir().unwrap();
    let node = place.path().join("nvidia-under-another-name");
    if !Command::new("mknod").arg(&node).args(["c", "195", "7"]).status().is_ok_and(|s| s.success()) {
        eprintln!("not run: making a device node is not permitted here");
        return;
    }
    std::fs::write(place.path().join("nvidia0"), "a plain file").unwrap();
    // O_PATH, because without a driver the node does not open.
    let script = "os.open(dev + '/nvidia-under-another-name', os.O_PATH); node('nvidia0'); ready(); forever()";
    let child = python(place.path(), script);
    let scan = ProcReader::new(ProcOptions::default()).unwrap().scan(&[]);
    assert_eq!(nodes(find(&scan, child.pid()).unwrap()), [("nvidia7", 1)]);
}

#[test]
fn where_we_are() {
    let reader = ProcReader::new(ProcOptions::default()).unwrap();
    let me = reader.observer();
    assert_eq!((me.id.pid, me.foreign_procfs, me.hidepid), (std::process::id(), false, false));
    assert_eq!(me.uid, rustix::process::geteuid().as_raw());
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
    assert_eq!(link.to_str().unwrap(), format!("pid:[{}]", me.pid_namespace.unwrap()));
    assert_eq!(me.initial_pid_namespace, Some(link == Path::new("pid:[4026531836]")));
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(reader.boot_id().unwrap().0, boot.trim());
    assert_eq!(reader.identify(me.id.pid).unwrap().unwrap().id, me.id);

    let nowhere = tempfile::tempdir().unwrap();
    for procfs in [nowhere.path().to_owned(), nowhere.path().join("missing")] {
        assert!(ProcReader::new(ProcOptions { procfs, ..ProcOptions::default() }).is_err());
    }
}

#[test]
fn the_proc_of_another_namespace_is_foreign() {
    if !may_unshare(&["-pf", "--mount-proc"]) {
        return;
    }
    let dev = dev();
    let mut command = Command::new("unshare");
    command.args(["-pf", "--mount-proc", "--kill-child", "python3", "-c"]);
    command.arg(format!("{PRELUDE}\nnode('nvidia0'); ready(); forever()")).arg(dev.path());
    let child = until_ready(command);
    let ours = reader(dev.path());
    let outside = ours.scan(&[]).processes.into_iter().find(|p| p.ppid == child.pid()).unwrap();
    assert_eq!(outside.nspid, [outside.id.pid, 1]);
    assert_ne!(outside.pid_namespace, ours.observer().pid_namespace);

    let procfs = format!("/proc/{}/root/proc", outside.id.pid).into();
    let inner = ProcReader::new(ProcOptions { procfs, dev: dev.path().into(), ..ProcOptions::default() }).unwrap();
    let me = inner.observer();
    assert!(me.foreign_procfs && me.out_of_sight());
    assert_eq!(me.pid_namespace, outside.pid_namespace);
    assert_eq!(me.initial_pid_namespace, Some(false));
    let scan = inner.scan(&[]);
    let [inside] = scan.processes.as_slice() else { panic!("one process: {scan:?}") };
    assert_eq!((inside.id.pid, inside.ppid, nodes(inside)), (1, 0, vec![("nvidia0", 1)]));
    assert_eq!(inside.id.start_ticks, outside.id.start_ticks);
    assert!(inner.boot_id().is_ok());
}

/// Whether `unshare` with these options works here; says why not.
fn may_unshare(options: &[&str]) -> bool {
    let output = Command::new("unshare").args(options).arg("true").output();
    match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) => eprintln!("not run: unshare {options:?}: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => eprintln!("not run: unshare {options:?}: {error}"),
    }
    false
}

/// Runs the inner half of a test, started through `before` (a command that runs what follows it).
fn again(before: &[&str], inner: &str, words: &[&OsStr]) {
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", inner, "--ignored", "--nocapture", "--test-threads=1"]);
    for (at, word) in words.iter().enumerate() {
        command.env(format!("PROC_TEST_{at}"), word);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let _ = std::io::stderr().write_all(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn word(at: usize) -> Option<OsString> {
    std::env::var_os(format!("PROC_TEST_{at}"))
}

const NOBODY: [&str; 5] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];

fn may_be_nobody() -> bool {
    let can = is_root() && Command::new(NOBODY[0]).args(&NOBODY[1..]).arg("true").status().is_ok_and(|s| s.success());
    if !can {
        eprintln!("not run: becoming another user needs root and setpriv");
    }
    can
}

#[test]
fn another_user_is_uninspected() {
    if !may_be_nobody() {
        return;
    }
    let dev = dev();
    let child = python(dev.path(), "node('nvidia0'); ready(); forever()");
    again(&NOBODY, "inner_nobody", &[dev.path().as_os_str(), child.pid().to_string().as_ref()]);
}

#[test]
#[ignore = "the inner half of another_user_is_uninspected"]
fn inner_nobody() {
    let (Some(dev), Some(pid)) = (word(0), word(1)) else { return };
    let pid: u32 = pid.to_str().unwrap().parse().unwrap();
    let scan = reader(Path::new(&dev)).scan(&[pid]);
    let other = scan.uninspected.iter().find(|u| u.id.pid == pid).unwrap();
    assert_eq!(other.uid, Some(0));
    assert!(other.comm.starts_with("python3"));
    let listed = find(&scan, pid).unwrap();
    assert_eq!((&listed.files, listed.id), (&None, other.id), "unknown is not none");
    assert!(listed.argv.words()[0].ends_with("python3"));
    assert_eq!(scan.gaps, []);
    // Nobody needs to inspect threads of the kernel (PF_KTHREAD, in the flags of `stat`).
    for who in &scan.uninspected {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", who.id.pid)) else { continue };
        let flags: u32 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(6).unwrap().parse().unwrap();
        assert_eq!(flags & 0x0020_0000, 0, "{who:?}");
    }
    // Ourselves we can read.
    assert!(scan.uninspected.iter().all(|u| u.id.pid != std::process::id()));
}

#[test]
fn hidepid_counts_where_it_hides() {
    if !may_be_nobody() || !may_unshare(&["-m"]) {
        return;
    }
    for (options, hidden) in
        [("hidepid=2", "yes"), ("hidepid=1", "yes"), ("hidepid=2,gid=65534", "no"), ("hidepid=0", "no")]
    {
        let mount = format!("mount -t proc -o {options} proc /proc && exec \"$@\"");
        let root = ["unshare", "-m", "sh", "-c", &mount, "sh"];
        // Some machines guard their first process from root too; then hidepid hides it from root.
        if std::fs::read_link("/proc/1/ns/pid").is_ok() {
            again(&root, "inner_hidepid", &["no".as_ref()]);
        }
        again(&[&root[..], &NOBODY].concat(), "inner_hidepid", &[hidden.as_ref()]);
    }
}

#[test]
#[ignore = "the inner half of hidepid_counts_where_it_hides"]
fn inner_hidepid() {
    let Some(hidden) = word(0) else { return };
    let reader = ProcReader::new(ProcOptions::default()).unwrap();
    let me = reader.observer();
    assert_eq!((me.hidepid, me.foreign_procfs), (hidden == "yes", false));
    let scan = reader.scan(&[1]);
    let seen = find(&scan, 1).is_some() || scan.uninspected.iter().any(|u| u.id.pid == 1);
    assert_eq!(seen, hidden == "no", "{me:?} {scan:?}");
}

#[test]
fn inside_a_private_namespace() {
    if may_unshare(&["-pf", "--mount-proc"]) {
        again(&["unshare", "-pf", "--mount-proc"], "inner_private", &["own".as_ref()]);
        // The /proc of the outer namespace is still mounted: its numbers are not ours.
        again(&["unshare", "-pf"], "inner_private", &["outer".as_ref()]);
    }
}

#[test]
#[ignore = "the inner half of inside_a_private_namespace"]
fn inner_private() {
    let Some(which) = word(0) else { return };
    let dev = dev();
    let reader = reader(dev.path());
    let me = reader.observer();
    assert!(me.out_of_sight());
    if which == "outer" {
        assert!(me.foreign_procfs);
        return;
    }
    assert_eq!((me.foreign_procfs, me.initial_pid_namespace, me.id.pid), (false, Some(false), 1));
    let child = python(dev.path(), "node('nvidia0'); ready(); forever()");
    let scan = reader.scan(&[]);
    let found = find(&scan, child.pid()).unwrap();
    assert_eq!((nodes(found), found.nspid.as_slice()), (vec![("nvidia0", 1)], &[child.pid()][..]));
    assert_eq!(found.ancestors.len(), 1);
}
