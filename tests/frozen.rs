//! Processes that really hang in the kernel: the NVML helper in a call, and leftovers of a run, on a file system that is
//! frozen or never answers. Whoever made it takes it away again whatever becomes of the test; where it cannot be made,
//! the test is skipped and says why.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails the test")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use support::{Fault, Rig, out_of_sight, skipped, state, wait_until};

/// A file system of our own on which everything can be made to hang. Dropping it lets go of everybody and takes it away;
/// to be declared after the rig, whose end waits for its programs.
struct FileSystem {
    mount: PathBuf,
    /// Ends with its stdin, which it loses even if this process is killed, and cleans up then.
    keeper: Child,
    _directory: tempfile::TempDir,
}

impl FileSystem {
    /// An ext4 in a file; `None` where there cannot be one.
    fn ext4() -> Option<Self> {
        let clean_up = "fsfreeze -u \"$0\" 2>/dev/null; umount \"$0\" 2>/dev/null || umount -l \"$0\"";
        let script = format!(
            "truncate -s 16M \"$1\" && mkfs.ext4 -q -F \"$1\" && mount -o loop \"$1\" \"$0\" && echo mounted; \
             cat >/dev/null; {clean_up}"
        );
        Self::kept(|mount, directory| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(script).arg(mount).arg(directory.join("image"));
            command
        })
        .and_then(|fs| {
            let froze = fs.freeze().and_then(|()| fs.thaw());
            froze.map_err(|why| skipped(&format!("no file system can be frozen here: {why}"))).ok()?;
            Some(fs)
        })
    }

    /// One whose server takes requests and never answers.
    fn silent() -> Option<Self> {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/silent_fuse.py");
        let script = format!("python3 {program} \"$0\"; umount -l \"$0\"");
        Self::kept(|mount, _| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(script).arg(mount);
            command
        })
    }

    fn kept(command: impl FnOnce(&Path, &Path) -> Command) -> Option<Self> {
        let directory = tempfile::Builder::new().prefix("frozen").tempdir().unwrap();
        let mount = directory.path().join("mount");
        fs::create_dir(&mount).unwrap();
        let errors = directory.path().join("errors");
        let mut keeper = command(&mount, directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).unwrap())
            // Ctrl-C is for the test; it ends by the pipe.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut said = String::new();
        // It says something or ends.
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let made = Self { mount, keeper, _directory: directory };
        if said == "mounted\n" {
            return Some(made);
        }
        skipped(&format!("no file system can be mounted here: {}", fs::read_to_string(errors).unwrap().trim()));
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    fn freeze(&self) -> Result<(), String> {
        self.fsfreeze("-f")
    }

    fn thaw(&self) -> Result<(), String> {
        self.fsfreeze("-u")
    }

    fn fsfreeze(&self, what: &str) -> Result<(), String> {
        let end = Command::new("fsfreeze").arg(what).arg(&self.mount).output().map_err(|e| format!("fsfreeze: {e}"))?;
        if end.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&end.stderr).trim().to_owned()) }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn hanging(state: Option<char>) -> bool {
    state == Some('D')
}

/// Gone, or only waiting for its parent to notice: no thread of it lives. The main thread alone may be a zombie while
/// another hangs.
fn gone(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let name =
        |task: std::io::Result<fs::DirEntry>| task.ok()?.file_name().to_str().map(|tid| format!("{pid}/task/{tid}"));
    let stat = |task: String| fs::read_to_string(format!("/proc/{task}/stat")).ok();
    tasks
        .filter_map(name)
        .filter_map(stat)
        .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// From now on this call hangs in the kernel, on this GPU.
fn freeze_call(rig: &Rig, fs: &FileSystem, function: &str, device: Option<usize>) {
    let log = fs.path("log");
    fs::write(&log, "").unwrap();
    fs.freeze().unwrap();
    let write_to = Some(log.to_str().unwrap().to_owned());
    rig.fault(Fault { function: function.into(), device, write_to, ..Fault::default() });
}

/// The helper that hangs.
fn stuck_helper(rig: &Rig) -> u32 {
    let hangs = || rig.calls().into_iter().find(|c| c.code.is_none()).map(|c| c.pid);
    wait_until("a call to hang", || hangs().is_some());
    hangs().unwrap()
}

/// Nobody can end it before the file system thaws, and then it goes by itself.
fn dies_with_the_thaw(fs: &FileSystem, helper: u32) {
    assert!(!gone(helper), "nothing hung, so nothing was shown");
    fs.thaw().unwrap();
    wait_until("the helper to end", || gone(helper));
}

fn gaps(report: &Value) -> String {
    report["gaps"].to_string()
}

// ---- the helper ------------------------------------------------------------------------------------------------------

#[test]
fn status_ends_though_its_helper_cannot() {
    let rig = Rig::new();
    let Some(fs) = FileSystem::ext4() else { return };
    freeze_call(&rig, &fs, "nvmlDeviceGetMemoryInfo_v2", None);
    let end = rig.run("status --nvml-timeout 1s");
    end.expect_code(125);
    assert!(end.took < Duration::from_secs(20), "{end:?}");
    let helper = stuck_helper(&rig);
    let named = format!(
        "nvmlDeviceGetMemoryInfo_v2 on GPU 0 did not come back within 1s (helper process {helper}: state D, kernel wait \
         channel "
    );
    assert!(end.stderr.contains(&named), "{}", end.stderr);
    dies_with_the_thaw(&fs, helper);
    // The negative control: the same call, and nothing frozen.
    rig.run("status --nvml-timeout 5s").expect_code(0);
}

#[test]
fn of_two_gpus_the_other_one_is_still_told() {
    let rig = Rig::with_gpus(2);
    let Some(fs) = FileSystem::ext4() else { return };
    freeze_call(&rig, &fs, "nvmlDeviceGetMemoryInfo_v2", Some(0));
    let end = rig.run("status --json --nvml-timeout 2s");
    end.expect_code(0);
    assert!(end.took < Duration::from_secs(20), "{end:?}");
    let status = end.json();
    let told = gaps(&status);
    assert!(told.contains("nvmlDeviceGetMemoryInfo_v2 on GPU 0 did not come back within"), "{told}");
    assert!(told.contains("(state D, kernel wait channel "), "{told}");
    assert_eq!((&status["devices"][0]["used_bytes"], &status["devices"][1]["used_bytes"]), (&Value::Null, &0.into()));
    let helper = stuck_helper(&rig);
    dies_with_the_thaw(&fs, helper);
}

#[test]
fn check_stops_before_the_command_if_the_driver_cannot_be_opened() {
    let rig = Rig::new();
    let Some(fs) = FileSystem::ext4() else { return };
    freeze_call(&rig, &fs, "nvmlInit*", None);
    let started = rig.path("started");
    let argv = ["touch".into(), started.clone().into_os_string()];
    let end = rig.launch(rig.check_of(&rig.reporting("--nvml-timeout 1s"), &argv)).wait();
    end.expect_code(125);
    assert!(end.took < Duration::from_secs(20), "{end:?}");
    assert!(!started.exists() && !rig.path("report.json").exists());
    assert!(end.stderr.contains("nvmlInit_v2 did not come back within 1s"), "{}", end.stderr);
    assert!(end.stderr.contains("state D, kernel wait channel "), "{}", end.stderr);
    let helper = stuck_helper(&rig);
    dies_with_the_thaw(&fs, helper);
}

#[test]
fn a_command_is_not_disturbed_by_a_helper_that_hangs_in_the_kernel() {
    for (exit, code) in [("exit 0", 122), ("exit 6", 6)] {
        let rig = Rig::new();
        let Some(fs) = FileSystem::ext4() else { return };
        let options = rig.reporting("--nvml-timeout 1s --settle 2s");
        let run = rig.spawn_check(&options, &format!("alloc 0 1GiB ready up wait-file go print done {exit}"));
        let command = rig.wait_for("up");
        freeze_call(&rig, &fs, "nvmlDeviceGetMemoryInfo_v2", None);
        let helper = stuck_helper(&rig);
        wait_until("the helper to be in the kernel", || hanging(state(helper)));
        assert!(!hanging(state(command)) && !gone(command));
        rig.mark("go");
        wait_until("the command to end", || gone(command));
        let end = run.wait();
        end.expect_code(code);
        assert_eq!(end.stdout, "done\n");
        assert!(end.took < Duration::from_secs(30), "{end:?}");
        let report = rig.report("report.json");
        assert_eq!(report["verdict"], "inconclusive", "{report:#}");
        let told = gaps(&report);
        assert!(told.contains("nvmlDeviceGetMemoryInfo_v2 on GPU 0 did not come back within 1s"), "{told}");
        assert!(told.contains(&format!("helper process {helper}: state D, kernel wait channel ")), "{told}");
        assert!(report["command"]["seconds"].as_f64().unwrap() < 20.0, "{report:#}");
        dies_with_the_thaw(&fs, helper);
    }
}

// ---- leftovers -------------------------------------------------------------------------------------------------------

/// What a leftover does between "it may go on" and its end.
fn leftover(verbs: &str) -> String {
    format!("spawn-session {{ alloc 0 1GiB {verbs} hold }} wait-file left wait-file go")
}

/// A run whose leftover hangs and was killed, judged; also what `status` says then.
fn stuck_and_killed(rig: &Rig, verbs: &str, hang: impl FnOnce(), may_be: impl Fn(u32) -> bool) -> u32 {
    let run = rig.spawn_check(&rig.reporting("--settle 1s"), &leftover(verbs));
    let pid = rig.wait_for("left");
    hang();
    rig.mark("frozen");
    wait_until("the leftover to wait", || may_be(pid));
    kill(pid);
    wait_until("the leftover to hang in the kernel", || hanging(state(pid)));
    rig.mark("go");
    run.wait().expect_code(121);
    pid
}

#[track_caller]
fn is_told(rig: &Rig, pid: u32, words: &[&str]) {
    let report = rig.judged();
    report.expect("residue").expect_holder(pid, "stuck_in_kernel", "own");
    assert_eq!(report.interval(0).0, (1 << 30) + support::CONTEXT, "{:#}", report.0);
    let now = rig.now();
    assert_eq!(now.holder(pid)["cause"], "stuck_in_kernel", "{:#}", now.0);
    for why in [report.why(pid), now.why(pid)] {
        assert!(why.contains("SIGKILL was sent and cannot take effect"), "{why}");
        for word in words {
            assert!(why.contains(word), "{word}: {why}");
        }
    }
    let text = rig.run("status").stdout;
    assert!(text.contains(&format!("Look at PID {pid} (stuck in kernel")), "{text}");
    assert!(!report.commands().contains(&format!("kill -9 {pid}").as_str()), "{:#}", report.0);
}

fn comes_back(rig: &Rig, pid: u32) {
    wait_until("the leftover to end", || gone(pid));
    wait_until("its memory to come back", || rig.used(0) == 0);
    assert_eq!(rig.now().list("holders"), [Value::Null; 0]);
}

#[test]
fn a_killed_leftover_on_a_frozen_file_system_is_stuck_and_names_it() {
    if out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let Some(fs) = FileSystem::ext4() else { return };
    let log = fs.path("train.log");
    let log = log.to_str().unwrap();
    let verbs = format!("log-to {log} ready left wait-file frozen log epoch");
    let pid = stuck_and_killed(&rig, &verbs, || fs.freeze().unwrap(), |pid| hanging(state(pid)));
    is_told(&rig, pid, &["(a frozen file system)", &format!("{log} (ext4 from /dev/loop")]);
    fs.thaw().unwrap();
    comes_back(&rig, pid);
}

#[test]
fn one_that_nobody_killed_yet_is_stuck_too() {
    if out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let Some(fs) = FileSystem::ext4() else { return };
    let path = fs.path("checkpoint");
    let verbs = format!("ready left wait-file frozen touch {}", path.display());
    let run = rig.spawn_check(&rig.reporting("--settle 1s"), &leftover(&verbs));
    let pid = rig.wait_for("left");
    fs.freeze().unwrap();
    rig.mark("frozen");
    wait_until("the leftover to wait", || hanging(state(pid)));
    rig.mark("go");
    run.wait().expect_code(121);
    let report = rig.judged();
    report.expect("residue").expect_holder(pid, "stuck_in_kernel", "own");
    let why = report.why(pid);
    assert!(why.contains("(a frozen file system)") && why.contains("no ordinary signal reaches it"), "{why}");
    assert!(!gone(pid));
    // The negative control: it only waited, so it goes on, and is an orphan like any other.
    fs.thaw().unwrap();
    wait_until("the leftover to go on", || path.exists() && !hanging(state(pid)));
    assert_ne!(rig.now().holder(pid)["cause"], "stuck_in_kernel");
    kill(pid);
    comes_back(&rig, pid);
}

#[test]
fn a_killed_leftover_whose_file_system_never_answers_is_stuck_and_says_so() {
    if out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let Some(fs) = FileSystem::silent() else { return };
    let verbs = format!("ready left wait-file frozen touch {}", fs.path("checkpoint").display());
    let waits = |pid: u32| fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|w| w == "request_wait_answer");
    let pid = stuck_and_killed(&rig, &verbs, || (), waits);
    is_told(&rig, pid, &["request_wait_answer (a FUSE file system)"]);
    drop(fs);
    comes_back(&rig, pid);
}
