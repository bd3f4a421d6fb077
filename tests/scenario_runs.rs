//! Runs beside and inside of runs, and how the command's launcher dies.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::{ffi::OsString, fs, path::PathBuf};
use support::{CONTEXT, Judged, Rig, Running, alive, shell, skipped, wait_until};

const GIB: u64 = 1 << 30;
const SOON: &str = "--settle 800ms --sample 20ms";

fn line<'a>(words: impl IntoIterator<Item = &'a std::ffi::OsStr>) -> String {
    words.into_iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
}

fn program_line(rig: &Rig, verbs: &str) -> String {
    line(rig.program(verbs).iter().map(OsString::as_os_str))
}

fn check_line(rig: &Rig, report: &str, verbs: &str) -> String {
    let options = format!("{SOON} --report {}", rig.path(report).display());
    let command = rig.check_of(&options, &rig.program(verbs));
    line(std::iter::once(command.get_program()).chain(command.get_args()))
}

#[test]
fn parallel_checks_charge_each_its_own() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    // Number, what it leaves in GiB; the second hides its marker.
    let runs: Vec<(u64, u64, Running)> = [(1, 1, "spawn-session"), (2, 2, "spawn-clean"), (3, 0, ""), (4, 0, "")]
        .into_iter()
        .map(|(n, left, how)| {
            let leave = match left {
                0 => String::new(),
                gib => format!("{how} {{ alloc 0 {gib}GiB ready left-{n} hold }} wait-file left-{n}"),
            };
            let verbs = format!("alloc 0 512MiB {leave} ready up-{n} wait-file go exit 0");
            let options = format!("{SOON} --report {}", rig.path(format!("{n}.json")).display());
            (n, left, rig.spawn_check(&options, &verbs))
        })
        .collect();
    for (n, ..) in &runs {
        rig.wait_for(&format!("up-{n}"));
    }
    (0..4).for_each(|_| rig.wait_for_looks());
    rig.mark("go");
    for (n, left, run) in runs {
        run.wait().expect_code(if left > 0 { 121 } else { 0 });
        let report = Judged(rig.report(&format!("{n}.json")));
        let wanted = if left > 0 { left * GIB + CONTEXT } else { 0 };
        report.expect_charged(wanted);
        let own: Vec<_> = report.list("holders").iter().filter(|h| h["lineage"] == "own").collect();
        if left > 0 {
            let pid = rig.wait_for(&format!("left-{n}"));
            report.expect("residue").expect_holder(pid, "orphan", "own");
            assert_eq!((own.len(), report.commands()), (1, vec![&*format!("kill {pid}")]), "{:#}", report.0);
        } else {
            report.expect("clean");
            assert!(own.is_empty() && report.commands().is_empty(), "{:#}", report.0);
        }
    }
    for n in [1, 2] {
        rig.paste(&format!("kill {}", rig.wait_for(&format!("left-{n}"))));
    }
    wait_until("all memory to come back", || rig.used(0) == 0);
    assert_eq!(rig.now().pids(), [0; 0]);
}

#[test]
fn what_an_inner_check_leaves_is_both_s() {
    let rig = Rig::new();
    let inner = check_line(
        &rig,
        "inner.json",
        "alloc 0 512MiB spawn-session { alloc 0 1GiB ready left hold } wait-file left sleep 0.3",
    );
    let before = program_line(&rig, "alloc 0 512MiB sleep 0.3");
    let end = rig
        .launch(rig.check_of(&rig.reporting(SOON), &shell(&format!("{before}\n{inner}\ncode=$?\n[ $code = 121 ]"))))
        .wait();
    end.expect_code(121);
    let left = rig.wait_for("left");
    for report in [Judged(rig.report("inner.json")), rig.judged()] {
        report.expect("residue").expect_charged(GIB + CONTEXT);
        report.expect_holder(left, "orphan", "own");
    }
    // The code of a command that fails wins: the inner check is one.
    let inner = check_line(&rig, "inner.json", "alloc 0 1GiB sleep 0.2 exit 5");
    rig.launch(rig.check_of(&rig.reporting(SOON), &shell(&format!("exec {inner}")))).wait().expect_code(5);
    rig.judged().expect("clean");
    rig.clean_after(&format!("kill {left}"), 0);
}

#[test]
fn an_inner_check_is_not_charged_with_what_the_outer_run_does_meanwhile() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    let sibling = program_line(&rig, "spawn-session { wait-file inner-up alloc 0 2GiB ready sibling hold }");
    let inner =
        check_line(&rig, "inner.json", "alloc 0 1GiB sleep 0.3 ready inner-up wait-file sibling sleep 0.3 exit 0");
    let script = format!("{sibling}\n{inner}\n");
    let end = rig.launch(rig.check_of(&rig.reporting(SOON), &shell(&script))).wait();
    end.expect_code(121);
    let sibling = rig.wait_for("sibling");
    let inner = Judged(rig.report("inner.json"));
    inner.expect("clean").expect_charged(0);
    inner.expect_holder(sibling, "grown_neighbour", "foreign");
    let outer = rig.judged();
    outer.expect("residue").expect_charged(2 * GIB + CONTEXT);
    outer.expect_holder(sibling, "orphan", "own");
    rig.clean_after(&format!("kill {sibling}"), 0);
}

/// How the launcher dies, and what is left, for a signal it dies of.
fn launcher_dies(rig: &Rig, end_of_launcher: &str, signal: Signal, words: &str) {
    let verbs = format!(
        "spawn-session {{ alloc 0 1GiB ready left hold }} alloc 0 1GiB ready launcher wait-file go {end_of_launcher}"
    );
    let run = rig.spawn_check(&rig.reporting(SOON), &verbs);
    let (launcher, left) = (rig.wait_for("launcher"), rig.wait_for("left"));
    rig.wait_for_looks();
    if end_of_launcher.is_empty() {
        kill_process(Pid::from_raw(i32::try_from(launcher).unwrap()).unwrap(), signal).unwrap();
    } else {
        rig.mark("go");
    }
    run.wait().expect_signal(signal);
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    report.expect_holder(left, "orphan", "own");
    assert!(report.finding_text("died").contains(words), "{:#}", report.0);
    assert_eq!(report.0["command"]["signal"], signal.as_raw());
    assert_eq!(report.0["exit_code"], 128 + signal.as_raw());
    rig.clean_after(&format!("kill {left}"), 0);
}

#[test]
fn how_the_launcher_died_is_in_the_report() {
    launcher_dies(&Rig::new(), "abort", Signal::ABORT, "SIGABRT");
    launcher_dies(&Rig::new(), "kill-self SEGV", Signal::SEGV, "SIGSEGV");
    launcher_dies(&Rig::new(), "", Signal::KILL, "SIGKILL: killed from outside");
}

/// A memory cgroup with a limit, of whichever version there is.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(bytes: u64) -> Option<Self> {
        let name = format!("gpuresid-test-{}", std::process::id());
        let limits = |directory: &str, files: &[(&str, u64)]| {
            let made = PathBuf::from(directory).join(&name);
            fs::create_dir(&made).ok()?;
            let cgroup = Self(made);
            for (n, (file, value)) in files.iter().enumerate() {
                let written = fs::write(cgroup.0.join(file), value.to_string());
                // The first is the limit itself; the others only keep the machine from swapping.
                if n == 0 && written.is_err() {
                    return None;
                }
            }
            Some(cgroup)
        };
        limits("/sys/fs/cgroup/memory", &[("memory.limit_in_bytes", bytes), ("memory.memsw.limit_in_bytes", bytes)])
            .or_else(|| limits("/sys/fs/cgroup", &[("memory.max", bytes), ("memory.swap.max", 0)]))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes have been ended, and may take a moment to leave.
        for _ in 0..400 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn a_launcher_that_the_out_of_memory_killer_ended() {
    let Some(cgroup) = Cgroup::new(300 << 20) else {
        return skipped("no memory cgroup can be made here (it takes root and a memory controller)");
    };
    let rig = Rig::new();
    let check = check_line(
        &rig,
        "report.json",
        "spawn-session { alloc 0 1GiB ready left hold } alloc 0 1GiB ready launcher wait-file go eat 2GiB",
    );
    let script = format!("echo $$ > '{}' || exit 99\nexec {check}", cgroup.0.join("cgroup.procs").display());
    let run = rig.start_of(&shell(&script));
    let left = rig.wait_for("left");
    rig.wait_for("launcher");
    rig.wait_for_looks();
    rig.mark("go");
    run.wait().expect_signal(Signal::KILL);
    let report = rig.judged();
    report.expect("residue").expect_charged(GIB + CONTEXT);
    report.expect_holder(left, "orphan", "own");
    let died = report.finding_text("died");
    assert!(died.contains("SIGKILL") && died.contains("out-of-memory killer ended 1 process"), "{died}");
    rig.clean_after(&format!("kill {left}"), 0);
    wait_until("the orphan to be gone", || !alive(left));
}

#[test]
fn what_is_left_on_a_gpu_that_was_not_looked_at_is_said() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::with_gpus(2);
    let verbs = "alloc 0 1GiB spawn-session { alloc 1 2GiB ready left hold } ready up wait-file left sleep 0.3";
    // Long enough to be judged as a server that stays.
    let end = rig.check(&rig.reporting("-i 0 --sample 20ms --settle 1s"), verbs);
    let left = rig.wait_for("left");
    end.expect_code(0);
    let lines: Vec<&str> = end.stderr.lines().collect();
    assert_eq!(
        lines,
        [
            // It has GPU 0 open as well, which costs a little, and no context there.
            "gpuresid: clean: 3.2 MiB of GPU memory stay on GPU 0, within the limit of 16 MiB (the command's peak: 1542 MiB)",
            &format!("  note: 1 process of the command still runs (PID {left})."),
            &format!("  note: PID {left} has /dev/nvidia1 open, which was not looked at."),
        ]
    );
    // The control: looked at, it is residue, and nothing else is said to be elsewhere.
    let report = Judged(rig.run("status --json -i 0,1").json());
    assert!(report.pids().contains(&left.into()), "{:#}", report.0);
    rig.paste(&format!("kill {left}"));
    let clean = rig.check("-i 0", "alloc 0 1GiB sleep 0.3");
    assert!(clean.stderr.starts_with("gpuresid: clean: all GPU memory came back on GPU 0 (the"), "{}", clean.stderr);
    let both = rig.check("", "alloc 0 1GiB sleep 0.3");
    assert!(both.stderr.starts_with("gpuresid: clean: all GPU memory came back (the"), "{}", both.stderr);
}
