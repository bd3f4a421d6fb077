//! Signals around `check`: each reaches the command once, nothing that was ignored is caught, and there is a report.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use std::{
    ffi::OsString,
    fs,
    time::{Duration, Instant},
};
use support::{Fault, Finished, Rig, shell_line, wait_until};

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

/// A command that notes each signal in the file `got`, says `up` when it is ready, and ends with 0 when `go` exists.
fn listener(rig: &Rig) -> Vec<OsString> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/listener.py");
    words(&["python3", program, rig.path("").to_str().unwrap()])
}

/// A command that says `up` and dies of the first signal.
fn sleeper(rig: &Rig) -> Vec<OsString> {
    words(&["sh", "-c", &format!("echo $$ > {}; exec sleep 60", rig.path("up").display())])
}

fn got(rig: &Rig) -> String {
    fs::read_to_string(rig.path("got")).unwrap_or_default().replace('\n', " ").trim().to_owned()
}

fn wait_for_got(rig: &Rig, wanted: &str) {
    wait_until(&format!("the command to get {wanted}"), || got(rig) == wanted);
}

/// Watches for a while that nothing else arrives: longer than we would hold a signal back.
fn nothing_follows(rig: &Rig, so_far: &str) {
    let until = Instant::now() + Duration::from_millis(700);
    while Instant::now() < until {
        assert_eq!(got(rig), so_far);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a person at a terminal sees, who takes these steps.
fn at_a_terminal(rig: &Rig, steps: &[&str], argv: &[OsString]) -> Finished {
    let helper = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/terminal.py");
    let mut all = words(&["python3", helper]);
    all.extend(words(steps));
    all.push("--".into());
    all.extend_from_slice(argv);
    rig.start_of(&all).wait()
}

/// The whole command line of a check.
fn check_line(rig: &Rig, options: &str, argv: &[OsString]) -> Vec<OsString> {
    let command = rig.check_of(options, argv);
    std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect()
}

#[test]
fn what_a_process_sends_to_us_reaches_the_command_once() {
    let rig = Rig::new();
    let options = format!("--report {}", rig.path("r.json").display());
    let run = rig.launch(rig.check_of(&options, &listener(&rig)));
    rig.wait_for("up");
    let mut so_far = String::new();
    for (signal, name) in [
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::HUP, "SIGHUP"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::INT, "SIGINT"),
        (Signal::TERM, "SIGTERM"),
    ] {
        run.signal(signal);
        so_far = format!("{so_far} {name}").trim().to_owned();
        wait_for_got(&rig, &so_far);
    }
    rig.mark("go");
    run.wait().expect_code(0);
    assert_eq!(got(&rig), so_far);
    assert_eq!(rig.report("r.json")["verdict"], "clean");
}

#[test]
fn a_command_that_dies_of_the_passed_on_signal_is_reported() {
    let rig = Rig::new();
    let options = format!("--report {}", rig.path("r.json").display());
    let run = rig.spawn_check(&options, "alloc 0 1GiB ready up hold");
    rig.wait_for("up");
    run.signal(Signal::TERM);
    run.wait().expect_signal(Signal::TERM);
    let report = rig.report("r.json");
    assert_eq!((&report["verdict"], &report["exit_code"]), (&"clean".into(), &143.into()));
}

#[test]
fn before_the_command_starts_a_signal_ends_us_and_nothing_is_started() {
    let rig = Rig::new();
    rig.hangs("nvmlInit*", "stuck");
    let options = format!("--report {}", rig.path("r.json").display());
    let run = rig.launch(rig.check_of(&options, &words(&["touch", rig.path("started").to_str().unwrap()])));
    wait_until("the driver to be opened", || rig.calls().iter().any(|c| c.function.starts_with("nvmlInit")));
    run.signal(Signal::TERM);
    run.wait().expect_signal(Signal::TERM);
    assert!(!rig.path("started").exists() && !rig.path("r.json").exists());
    rig.let_go("stuck");
    let left: Vec<_> = fs::read_dir(rig.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("r.json")), "{left:?}");
}

#[test]
fn ctrl_c_while_the_helper_starts_ends_us_as_a_signal_does() {
    let rig = Rig::new();
    let script = "import os, signal, subprocess, sys
gpuresid = subprocess.Popen(sys.argv[1:], start_new_session=True)
children = open(f'/proc/{gpuresid.pid}/task/{gpuresid.pid}/children')
while gpuresid.poll() is None and not children.read(): children.seek(0)
if gpuresid.returncode is None: os.killpg(gpuresid.pid, signal.SIGINT)
sys.exit(gpuresid.wait() != -signal.SIGINT)";
    for _ in 0..5 {
        let mut line = words(&["python3", "-c", script]);
        line.extend(check_line(&rig, "", &words(&["sleep", "60"])));
        rig.start_of(&line).wait().expect_code(0);
    }
}

#[test]
fn nohup_keeps_working() {
    let rig = Rig::new();
    let script = "import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.setsid()
os.execvp(sys.argv[1], sys.argv[1:])";
    let mut line = words(&["python3", "-c", script]);
    line.extend(check_line(&rig, "", &listener(&rig)));
    let run = rig.start_of(&line);
    rig.wait_for("up");
    // To us, to the command, and to the group, as when a terminal closes.
    run.signal(Signal::HUP);
    let group = rustix::process::Pid::from_raw(run.pid() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::HUP).unwrap();
    run.signal(Signal::USR1);
    wait_for_got(&rig, "SIGUSR1");
    rig.mark("go");
    run.wait().expect_code(0);
}

#[test]
fn an_inherited_ignored_sigchld_does_no_harm() {
    let rig = Rig::new();
    let script = "import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])";
    let mut line = words(&["python3", "-c", script]);
    line.extend(check_line(&rig, "", &words(&["sh", "-c", "exit 9"])));
    rig.start_of(&line).wait().expect_code(9);
}

/// `timeout` ends a check after 4 s: the command gets what it would get without us, and may go on until it is told to end.
fn signals_of(rig: &Rig, timeout: &[&str], options: &str, wanted: &str) {
    let mut line = words(timeout);
    line.extend(check_line(rig, options, &listener(rig)));
    let run = rig.start_of(&line);
    rig.wait_for("up");
    wait_for_got(rig, wanted);
    nothing_follows(rig, wanted);
    rig.mark("go");
    run.wait().expect_code(124);
}

#[test]
fn timeout_ends_the_command_with_one_signal() {
    let rig = Rig::new();
    let options = format!("--report {}", rig.path("r.json").display());
    // It wakes up its group, which may be stopped.
    signals_of(&rig, &["timeout", "--kill-after", "40", "4"], &options, "SIGTERM SIGCONT");
    assert_eq!(rig.report("r.json")["command"]["exit_code"], 0);
}

#[test]
fn timeout_in_the_foreground_reaches_the_command_through_us() {
    let line = ["setsid", "--wait", "timeout", "--foreground", "--kill-after", "40", "4"];
    signals_of(&Rig::new(), &line, "", "SIGTERM");
}

#[test]
fn what_is_sent_to_the_whole_group_reaches_the_command_once() {
    let rig = Rig::new();
    let run = rig.start_of(&[words(&["setsid"]), check_line(&rig, "", &listener(&rig))].concat());
    rig.wait_for("up");
    let group = rustix::process::Pid::from_raw(run.pid() as i32).unwrap();
    let mut wanted = Vec::new();
    let signals = [("USR1", Signal::USR1), ("TERM", Signal::TERM), ("HUP", Signal::HUP), ("INT", Signal::INT)];
    for (name, signal) in signals {
        // To all, then to us alone from somebody else: that one is passed on.
        rustix::process::kill_process_group(group, signal).unwrap();
        wanted.push(format!("SIG{name}"));
        wait_for_got(&rig, &wanted.join(" "));
        nothing_follows(&rig, &wanted.join(" "));
        rig.start_of(&words(&["kill", "-s", name, &run.pid().to_string()])).wait().expect_code(0);
        wanted.push(format!("SIG{name}"));
        wait_for_got(&rig, &wanted.join(" "));
    }
    rig.mark("go");
    run.wait().expect_code(0);
}

#[test]
fn a_script_can_end_us_by_our_pid() {
    // The script leads our process group, as `timeout` would, but signals only us.
    let rig = Rig::new();
    let script = format!(
        "{} & pid=$!; while [ ! -e {} ]; do sleep 0.01; done; kill $pid; wait $pid; exit $?",
        shell_line(check_line(&rig, "", &listener(&rig))),
        rig.path("up").display()
    );
    let run = rig.start_of(&words(&["setsid", "--wait", "bash", "-c", &script]));
    wait_for_got(&rig, "SIGTERM");
    rig.mark("go");
    run.wait().expect_code(0);
}

#[test]
fn the_commands_own_signals_to_its_parent_are_not_sent_back() {
    let rig = Rig::new();
    let script = format!("kill -USR1 $PPID; kill -TERM $PPID; touch {}; exec sleep 0.5", rig.path("sent").display());
    let end = rig.launch(rig.check_of("", &words(&["sh", "-c", &script]))).wait();
    end.expect_code(0);
    assert!(rig.path("sent").exists());
}

#[test]
fn ctrl_c_reaches_the_command_once_and_we_die_of_it_after_the_report() {
    let rig = Rig::new();
    let up = rig.path("up");
    let end = at_a_terminal(
        &rig,
        &["file", up.to_str().unwrap(), "key", "c", "see", "clean"],
        &check_line(&rig, "", &sleeper(&rig)),
    );
    assert!(end.stdout.ends_with("signal 2\n"), "{end:?}");
    // A command that goes on gets it once, and its own end counts.
    let rig = Rig::new();
    let (up, got_it) = (rig.path("up"), rig.path("got"));
    let script = shell_line(check_line(&rig, "", &listener(&rig)));
    let watcher = format!(
        "while [ ! -s {} ]; do sleep 0.01; done; sleep 0.3; touch {}",
        got_it.display(),
        rig.path("go").display()
    );
    let line = words(&[
        "bash",
        "-c",
        &format!("({watcher}) </dev/null >/dev/null 2>&1 & disown; trap '' INT; (trap - INT; exec {script})"),
    ]);
    let end = at_a_terminal(&rig, &["file", up.to_str().unwrap(), "key", "c"], &line);
    assert!(end.stdout.ends_with("exit 0\n"), "{end:?}");
    assert_eq!(got(&rig), "SIGINT");
}

#[test]
fn ctrl_c_between_fork_and_exec_reaches_the_command() {
    // A long PATH makes that time long: the file `forked` is there when our child has been one for some milliseconds.
    let watcher = "import os, signal, sys, time
gpuresid = os.fork()
if gpuresid == 0:
    os.environ['PATH'] = '/x:' * 40000 + os.environ['PATH']
    os.execv(sys.argv[2], sys.argv[2:])
signal.signal(signal.SIGINT, signal.SIG_IGN)
line = lambda pid: open(f'/proc/{pid}/cmdline', 'rb').read()
since = {}
while 'forked' not in since and os.waitid(os.P_PID, gpuresid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
    for child in open(f'/proc/{gpuresid}/task/{gpuresid}/children').read().split():
        try:
            if line(child) != line(gpuresid): continue
        except OSError: continue
        if time.monotonic() - since.setdefault(child, time.monotonic()) > 0.003:
            since['forked'] = open(sys.argv[1], 'w')
status = os.waitpid(gpuresid, 0)[1]
print('ended by', os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'nothing')
";
    let rig = Rig::new();
    let forked = rig.path("forked");
    let forked = forked.to_str().unwrap();
    let mut line = words(&["python3", "-c", watcher, forked]);
    line.extend(check_line(&rig, "", &words(&["sleep", "60"])));
    let end = at_a_terminal(&rig, &["file", forked, "key", "c"], &line);
    assert!(end.stdout.contains("ended by 2\n"), "{end:?}");
}

#[test]
fn ctrl_c_while_waiting_reports_now_and_leaves_the_survivor() {
    let rig = Rig::new();
    let up = rig.path("up");
    let line = check_line(&rig, "", &rig.program("spawn-session { alloc 0 1GiB ready up hold } wait-file up"));
    let end = at_a_terminal(&rig, &["file", up.to_str().unwrap(), "see", "Ctrl-C reports now", "key", "c"], &line);
    assert!(end.stdout.contains("residue") && end.stdout.ends_with("exit 121\n"), "{end:?}");
}

#[test]
fn a_second_ctrl_c_leaves() {
    // The driver hangs when the command has ended, so that even a report that is wanted now takes a while.
    let rig = Rig::new();
    let up = rig.path("up");
    rig.fault(Fault { function: "nvmlDevice*".into(), hang_while: Some("stuck".into()), ..Fault::default() });
    let stuck = rig.ledger.directory().join("stuck");
    let script = format!("sleep 60 & echo $$ > {}; touch {}", up.display(), stuck.display());
    let options = format!("--nvml-timeout 30s --report {}", rig.path("r.json").display());
    let line = check_line(&rig, &options, &words(&["sh", "-c", &script]));
    let steps = [
        "file",
        up.to_str().unwrap(),
        "see",
        "Ctrl-C reports now",
        "key",
        "c",
        "see",
        "^C",
        "see",
        "\u{1b}[K",
        "key",
        "c",
    ];
    let end = at_a_terminal(&rig, &steps, &line);
    assert!(end.stdout.ends_with("signal 2\n"), "{end:?}");
    assert!(!rig.path("r.json").exists());
    rig.let_go("stuck");
}

#[test]
fn ctrl_z_stops_all_and_fg_goes_on() {
    let rig = Rig::new();
    let up = rig.path("up");
    let program = "import os, sys, time
open(sys.argv[1] + '/up', 'w').write(str(os.getpid()))
while not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)
";
    let line = check_line(&rig, "", &words(&["python3", "-c", program, rig.path("").to_str().unwrap()]));
    let go = format!("touch {}; echo mar''ked", rig.path("go").display());
    let end = at_a_terminal(
        &rig,
        &[
            "type",
            "PS1=; bind 'set enable-bracketed-paste off'; echo rea''dy",
            "see",
            "ready",
            "type",
            &shell_line(&line),
            "file",
            up.to_str().unwrap(),
            "key",
            "z",
            "see",
            "Stopped",
            "type",
            &go,
            "see",
            "marked",
            "type",
            "fg",
            "see",
            "clean",
            "type",
            "echo code=$?",
            "see",
            "code=0",
            "type",
            "exit 5",
        ],
        &words(&["bash", "--norc", "--noprofile", "-i"]),
    );
    assert!(end.stdout.ends_with("exit 5\n"), "{end:?}");
}

#[test]
fn a_shell_loop_stops_at_ctrl_c() {
    let rig = Rig::new();
    let up = rig.path("up");
    let line = shell_line(check_line(&rig, "", &sleeper(&rig)));
    let script = format!("for i in 1 2 3; do echo round $i; {line}; done");
    let end = at_a_terminal(&rig, &["file", up.to_str().unwrap(), "key", "c"], &words(&["bash", "-c", &script]));
    assert!(end.stdout.contains("round 1") && !end.stdout.contains("round 2"), "{end:?}");
    assert!(end.stdout.ends_with("signal 2\n"), "{end:?}");
}

#[test]
fn a_closed_terminal_ends_the_command_and_the_report_is_written() {
    // As the session's leader we alone get the hangup.
    let rig = Rig::new();
    let up = rig.path("up");
    let options = format!("--report {}", rig.path("r.json").display());
    let line = check_line(&rig, &options, &rig.program("alloc 0 1GiB ready up hold"));
    let end = at_a_terminal(&rig, &["file", up.to_str().unwrap(), "hang-up"], &line);
    assert!(end.stdout.ends_with("signal 1\n"), "{end:?}");
    assert_eq!(rig.report("r.json")["command"]["signal"], 1);
}
