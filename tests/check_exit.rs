//! `check` passes on how the command ended, whatever that was, and says plainly when it could not be started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt, path::Path, thread};
use support::{Finished, Rig};

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

fn check(rig: &Rig, options: &str, argv: &[&str]) -> Finished {
    rig.launch(rig.check_of(options, &words(argv))).wait()
}

/// A file with this text, executable.
fn program(path: &Path, text: &[u8]) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs `each` for all numbers, two at a time.
fn sweep(numbers: impl IntoIterator<Item = i32>, each: impl Fn(i32) + Sync) {
    let (even, odd): (Vec<i32>, Vec<i32>) = numbers.into_iter().partition(|n| n % 2 == 0);
    thread::scope(|scope| {
        for half in [even, odd] {
            scope.spawn(|| half.into_iter().for_each(&each));
        }
    });
}

#[test]
fn every_exit_code_is_passed_on() {
    let rig = Rig::new();
    sweep(0..=255, |code| {
        check(&rig, "", &["sh", "-c", &format!("exit {code}")]).expect_code(code);
    });
}

#[test]
fn we_die_of_every_signal_that_the_command_dies_of() {
    let rig = Rig::new();
    // All but those whose default is to be ignored, to stop or to continue; 32 and 33 belong to the C library.
    let harmless = [17, 18, 19, 20, 21, 22, 23, 28, 32, 33];
    sweep((1..=64).filter(|s| !harmless.contains(s)), |signal| {
        let script = format!("import os; os.kill(os.getpid(), {signal})");
        let script = format!("import signal\nif {signal} != 9: signal.signal({signal}, signal.SIG_DFL)\n{script}");
        let end = check(&rig, "", &["python3", "-c", &script]);
        assert_eq!(end.signal, Some(signal), "{end:?}");
        assert!(end.stderr.contains("clean"), "{end:?}");
    });
}

#[test]
fn the_report_has_both_codes() {
    let rig = Rig::new();
    let options = format!("--report {}", rig.path("r.json").display());
    check(&rig, &options, &["sh", "-c", "exit 3"]).expect_code(3);
    let report = rig.report("r.json");
    assert_eq!((&report["exit_code"], &report["command"]["exit_code"]), (&3.into(), &3.into()));
    assert_eq!(report["verdict"], "clean");
    let end = check(&rig, &options, &["sh", "-c", "kill -SEGV $$"]);
    assert_eq!(end.signal, Some(11));
    let report = rig.report("r.json");
    assert_eq!((&report["exit_code"], &report["command"]["signal"]), (&139.into(), &11.into()));
}

#[test]
fn a_command_that_cannot_be_started_is_126_or_127_and_there_is_a_report() {
    let rig = Rig::new();
    let not_executable = rig.path("data");
    fs::write(&not_executable, "x").unwrap();
    let bad_interpreter = rig.path("bad");
    program(&bad_interpreter, b"#!/no/such/interpreter\n");
    let foreign = rig.path("foreign");
    program(&foreign, b"\x7fELF\0\0\0\0for another machine");
    let directory = rig.path("");
    let below_a_file = not_executable.join("x");
    let options = format!("--report {}", rig.path("r.json").display());
    for (name, code, text) in [
        ("no-such-command-here", 127, "no such command in PATH"),
        ("", 127, "no such"),
        ("./no/such/file", 127, "no such file"),
        (not_executable.to_str().unwrap(), 126, "chmod +x"),
        (directory.to_str().unwrap(), 126, "directory"),
        (bad_interpreter.to_str().unwrap(), 126, "interpreter"),
        (foreign.to_str().unwrap(), 126, "another machine"),
        (below_a_file.to_str().unwrap(), 126, "Not a directory"),
    ] {
        let end = check(&rig, &options, &[name]);
        end.expect_code(code);
        assert!(end.stderr.starts_with(&format!("error: cannot run `{name}`: ")), "{name}: {}", end.stderr);
        assert!(end.stderr.contains(text), "{name}: {}", end.stderr);
        if !text.ends_with("directory") {
            assert!(end.stderr.contains("\n\nhint: "), "{name}: {}", end.stderr);
        }
        assert_eq!(rig.report("r.json")["exit_code"], code, "{name}");
        fs::remove_file(rig.path("r.json")).unwrap();
    }
}

#[test]
fn odd_entries_of_path_are_passed_over() {
    let rig = Rig::new();
    std::os::unix::fs::symlink("loop", rig.path("loop")).unwrap();
    fs::write(rig.path("file"), "").unwrap();
    for odd in [rig.path("loop"), rig.path("file"), rig.path("x".repeat(300)), rig.path("none")] {
        let mut command = rig.check_of("", &words(&["true"]));
        command.env("PATH", format!("{}:{}", odd.display(), std::env::var("PATH").unwrap()));
        rig.launch(command).wait().expect_code(0);
    }
    // A directory of that name is no command.
    fs::create_dir(rig.path("tools")).unwrap();
    let mut command = rig.check_of("", &words(&["tools"]));
    command.env("PATH", format!("{}:{}", rig.path("").display(), std::env::var("PATH").unwrap()));
    let end = rig.launch(command).wait();
    assert!(end.expect_code(127).stderr.contains("there is no such command in PATH"), "{}", end.stderr);
}

#[test]
fn a_script_without_an_interpreter_line_runs_in_sh() {
    let rig = Rig::new();
    let script = rig.path("script");
    program(&script, b"echo \"$0 $1 $#\"; exit 7\n");
    let end = check(&rig, "", &[script.to_str().unwrap(), "a b", "c"]);
    end.expect_code(7);
    assert_eq!(end.stdout, format!("{} a b 2\n", script.display()));
    // Found in PATH, and with a name that looks like an option.
    program(&rig.path("-x"), b"exit 8\n");
    let mut command = rig.check_of("", &words(&["script", "1"]));
    command.env("PATH", format!("{}:{}", rig.path("").display(), std::env::var("PATH").unwrap()));
    rig.launch(command).wait().expect_code(7);
    let mut command = rig.check_of("", &words(&["-x"]));
    command.env("PATH", format!(":{}", std::env::var("PATH").unwrap())).current_dir(rig.path(""));
    rig.launch(command).wait().expect_code(8);
    let empty = rig.path("empty");
    program(&empty, b"");
    check(&rig, "", &[empty.to_str().unwrap()]).expect_code(0);
}

#[test]
fn the_command_gets_the_world_as_it_is() {
    let rig = Rig::new();
    // Open files, signals and the process group: as without us.
    let script = "import os
fds = sorted(os.listdir('/proc/self/fd'))
# Signals 32 and 33 are the C library's own, which has them ignored where it starts a program by posix_spawn.
signals = (line.split() for line in open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn', 'SigCgt')))
status = [(name, hex(int(bits, 16) & ~(3 << 31))) for name, bits in signals]
print(fds, status, os.environ.get('GPURESID_QUIET'), os.environ.get('OTHER'))";
    let alone = rig.start_of(&words(&["env", "OTHER=1", "python3", "-c", script])).wait();
    let mut command = rig.check_of("", &words(&["python3", "-c", script]));
    command.env("OTHER", "1").env("GPURESID_COLOR", "never");
    let checked = rig.launch(command).wait();
    checked.expect_code(0);
    assert_eq!(checked.stdout, alone.stdout);
}

#[test]
fn the_marker_is_the_only_variable_of_ours_that_the_command_gets() {
    let rig = Rig::new();
    let mut command = rig.check_of("", &words(&["sh", "-c", "echo $$; env | grep ^GPURESID_"]));
    command.env("GPURESID_SETTLE", "9s").env("GPURESID_ANYTHING", "1").env("GPURESID_RUN_ID", "outer");
    let end = rig.launch(command).wait();
    end.expect_code(0);
    let (command, line) = end.stdout.trim().split_once('\n').unwrap();
    let inner = line.strip_prefix("GPURESID_RUN_ID=outer:").unwrap_or_else(|| panic!("{}", end.stdout));
    let parts: Vec<&str> = inner.split('-').collect();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(parts.len(), 4, "{line}");
    assert_eq!(parts[0], &boot[..8]);
    assert!(parts[1..].iter().all(|n| n.parse::<u64>().is_ok()), "{line}");
    assert_eq!(parts[3], command);
}

#[test]
fn standard_input_and_output_are_the_commands() {
    let rig = Rig::new();
    fs::write(rig.path("in"), "one\ntwo\n").unwrap();
    let script = format!(
        "{} --nvml-lib {} check -- cat < {} | wc -l",
        env!("CARGO_BIN_EXE_gpuresid"),
        rig.library().display(),
        rig.path("in").display()
    );
    let end = rig.start_of(&words(&["sh", "-c", &script])).wait();
    assert_eq!(end.stdout.trim(), "2");
    assert!(end.stderr.contains("clean"), "{end:?}");
}

#[test]
fn a_report_that_cannot_be_written_keeps_the_command_from_starting() {
    let rig = Rig::new();
    let started = rig.path("started");
    let options = format!("--report {}", rig.path("no/such/place/r.json").display());
    let end = check(&rig, &options, &["touch", started.to_str().unwrap()]);
    end.expect_code(125);
    assert!(!started.exists());
    assert!(end.stderr.contains("error:"), "{end:?}");
}

#[test]
fn a_report_that_fails_at_the_end_is_said_and_122_where_it_were_0() {
    let rig = Rig::new();
    // A device that takes nothing.
    let end = check(&rig, "--report json:/dev/full", &["true"]);
    end.expect_code(122);
    assert!(end.stderr.contains("/dev/full"), "{end:?}");
    check(&rig, "--report json:/dev/full", &["sh", "-c", "exit 5"]).expect_code(5);
}

#[test]
fn a_command_that_used_no_gpu_is_told_from_one_that_gave_all_back() {
    let rig = Rig::with_gpus(2);
    let said = |options: &str, verbs: &str, code: i32| {
        let end = rig.check(options, verbs);
        end.expect_code(code);
        end.stderr.lines().next().unwrap().strip_prefix("gpuresid: ").unwrap().to_owned()
    };
    let uses = "alloc 1 1GiB sleep 0.3";
    assert_eq!(said("", "sleep 0.9 exit 0", 0), "clean: the command used no GPU");
    assert_eq!(said("", "sleep 0.9 exit 3", 3), "clean: the command used no GPU; the command exited with 3");
    assert_eq!(said("-i 0", "sleep 0.9 exit 0", 0), "clean: the command used nothing of GPU 0");
    assert_eq!(said("--scope new", "sleep 0.9 exit 0", 0), "clean: the command used no GPU");
    assert!(said("", uses, 0).starts_with("clean: all GPU memory came back"));

    // Where a GPU has to be used, that is no success; other doubts are another matter.
    let refused = "inconclusive: the command used no GPU (--require-gpu)";
    assert_eq!(said("--require-gpu", "sleep 0.9 exit 0", 122), refused);
    assert_eq!(said("--require-gpu --inconclusive pass", "sleep 0.9 exit 0", 122), refused);
    assert_eq!(said("--require-gpu --warn-only", "sleep 0.9 exit 0", 0), refused);
    assert_eq!(said("--require-gpu", "sleep 0.9 exit 3", 3), refused);
    assert!(said("--require-gpu", uses, 0).starts_with("clean: all GPU memory came back"));
    assert!(
        said("--require-gpu --inconclusive pass -i 1", uses, 0).starts_with("clean: all GPU memory came back on GPU 1")
    );

    // What nobody looked at nobody can deny.
    let unseen = "inconclusive: cannot tell whether the command used a GPU (--require-gpu)";
    assert_eq!(said("--require-gpu --sample 10s", "sleep 2", 122), unseen);
    assert_eq!(said("--sample 10s", "sleep 2", 0), "clean: all GPU memory came back");

    let options = format!("--require-gpu --report {}", rig.path("r.json").display());
    let end = rig.check(&options, "sleep 0.9 exit 0");
    let report = rig.report("r.json");
    assert_eq!((&report["command"]["used_gpu"], &report["verdict"]), (&false.into(), &"inconclusive".into()));
    assert_eq!(report["advice"][0]["command"], "gpuresid doctor", "{report:#}");
    assert_eq!(report["advice"].as_array().unwrap().len(), 1, "{}", end.stderr);
    let mut command = rig.check_of("", &words(&["true"]));
    command.env("GPURESID_REQUIRE_GPU", "1");
    rig.launch(command).wait().expect_code(122);
}

#[test]
fn of_a_run_too_short_to_see_it_is_not_said_that_it_used_no_gpu() {
    let rig = Rig::with_gpus(2);
    let said = |options: &str, code: i32| {
        let end = check(&rig, options, &["true"]);
        end.expect_code(code);
        end.stderr.lines().next().unwrap().strip_prefix("gpuresid: ").unwrap().to_owned()
    };
    let short = |line: &str, words: &str| {
        let ran = line.strip_prefix(words).unwrap_or_else(|| panic!("{line}"));
        let ran = ran.strip_prefix("less than ").unwrap_or(ran);
        assert!(ran.starts_with("0.") && ran.contains(" s, too short to see)"), "{line}");
    };
    short(&said("", 0), "clean: the command was not seen using a GPU (it ran ");
    short(&said("-i 1", 0), "clean: the command was not seen using GPU 1 (it ran ");
    let unsure = said("--require-gpu", 122);
    short(&unsure, "inconclusive: the command was not seen using a GPU (it ran ");
    assert!(unsure.ends_with(" (--require-gpu)"), "{unsure}");
    let options = format!("--report {}", rig.path("r.json").display());
    check(&rig, &options, &["true"]).expect_code(0);
    let command = &rig.report("r.json")["command"];
    assert_eq!((&command["used_gpu"], &command["too_short_to_see"]), (&Value::Null, &true.into()), "{command}");
    // What was seen is said, however short it was.
    rig.check(&options, "alloc 1 1GiB sleep 0.25").expect_code(0);
    let command = &rig.report("r.json")["command"];
    assert_eq!((&command["used_gpu"], &command["too_short_to_see"]), (&true.into(), &Value::Null), "{command}");
}

#[test]
fn a_time_limit_that_was_reached_comes_first() {
    let rig = Rig::new();
    let end = check(&rig, "--timeout 1s", &["sleep", "30"]);
    end.expect_code(124);
    assert_eq!(end.stderr, "gpuresid: timed out after 1 s; the command used no GPU\n");
    let end = rig.check("--timeout 2500ms --settle 300ms", "spawn-session { alloc 0 1GiB ready left hold } hold");
    end.expect_code(124);
    let line = "gpuresid: timed out after 2.5 s; residue: 1542 MiB of GPU memory did not come back";
    assert!(end.stderr.starts_with(line), "{}", end.stderr);
    assert!(end.stderr.contains(" (timed out after 2.5 s, ran "), "{}", end.stderr);
    let last = "\ngpuresid: timed out after 2.5 s, residue, 1542 MiB, 1 process, exit code 124\n";
    assert!(end.stderr.ends_with(last), "{}", end.stderr);
}

/// A command that became another user, as by sudo: a signal of ours does not reach it.
#[test]
fn a_command_that_could_not_be_ended_was_not_ended() {
    let rig = Rig::new();
    let become_root = rig.path("become-root");
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists());
    let (Some(setpriv), true) = (setpriv, rustix::process::geteuid().is_root()) else {
        return support::skipped("it takes root and setpriv to make a program that becomes root");
    };
    fs::copy(setpriv, &become_root).unwrap();
    fs::set_permissions(&become_root, fs::Permissions::from_mode(0o4755)).unwrap();
    // By its real user it would still be ours.
    let mut command = rig.beside(&words(&[setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups"]));
    let options = format!("--timeout 1s --grace 100ms --report {}", rig.path("r.json").display());
    let argv = [become_root.into_os_string()].into_iter().chain(words(&["--reuid", "0", "sleep", "60"]));
    let checked = rig.check_of(&options, &argv.collect::<Vec<_>>());
    command.arg(checked.get_program()).args(checked.get_args());
    let end = rig.launch(command).wait();
    let report = fs::read(rig.path("r.json")).map(|text| serde_json::from_slice::<serde_json::Value>(&text).unwrap());
    let Some(pid) = report.ok().and_then(|report| report["survivors"][0]["pid"].as_u64()) else {
        return support::skipped(&format!("no program of another user can become root here: {}", end.stderr));
    };
    let ended = std::process::Command::new("kill").arg(pid.to_string()).status().unwrap();
    end.expect_code(124);
    let mut lines = end.stderr.lines();
    assert_eq!(
        lines.next(),
        Some("gpuresid: timed out after 1 s, and could not be ended; the command still runs and holds no GPU memory")
    );
    let said = end.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = format!(
        "The command ran into its time limit and could not be ended: PID {pid} still runs. It became a process of root, \
         which only root may end."
    );
    assert!(said.contains(&why), "{said}");
    assert!(!said.contains("was ended"), "{said}");
    assert!(end.took < std::time::Duration::from_secs(9), "{:?}", end.took);
    assert!(ended.success());
}
