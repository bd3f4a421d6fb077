//! What goes wrong on the command line, whole binary: each bad input says what is wrong and what to do, exits with 125,
//! and starts nothing.
#![allow(clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use std::{ffi::OsStr, fs};
use support::{Finished, Rig};

const MORE: &str = "more: gpuresid --help, gpuresid COMMAND --help\n";

/// The variables that are on or off, each with a command that has it.
const SWITCHES: [(&str, &str); 6] = [
    ("GPURESID_QUIET", "check -- true"),
    ("GPURESID_REDACT", "snapshot"),
    ("GPURESID_REQUIRE_GPU", "check -- true"),
    ("GPURESID_TORCH", "check -- true"),
    ("GPURESID_VISIBLE", "status"),
    ("GPURESID_WARN_ONLY", "check -- true"),
];

/// The exact words on stderr; nothing on stdout; exit code 125.
#[track_caller]
fn refused(end: &Finished, words: &str) {
    end.expect_code(125);
    assert_eq!(end.stderr, words);
    assert_eq!(end.stdout, "");
}

fn run(rig: &Rig, arguments: &[&dyn AsRef<OsStr>]) -> Finished {
    rig.launch(rig.gpuresid(arguments.iter().map(|a| a.as_ref()))).wait()
}

/// What the binary says with this variable in its environment.
fn with(rig: &Rig, variable: (&str, &str), arguments: &str) -> Finished {
    let mut command = rig.gpuresid(arguments.split_whitespace());
    command.env(variable.0, variable.1);
    rig.launch(command).wait()
}

#[test]
fn a_value_that_was_not_typed_is_laid_to_its_variable() {
    let rig = Rig::new();
    let hint = |name: &str| format!("hint: set {name} to something else, or not at all: unset {name}\n{MORE}");
    for (name, value, arguments, words) in [
        (
            "GPURESID_SETTLE",
            "soon",
            "check -- true --settle 1s",
            "invalid value 'soon' for the environment variable GPURESID_SETTLE: write a duration like 30s, 5m or 1h; a \
             bare number is seconds",
        ),
        (
            "GPURESID_MAX_RESIDUE",
            "16",
            "check -- true",
            "invalid value '16' for the environment variable GPURESID_MAX_RESIDUE: the unit is missing; write a size like \
             500MiB or 20GiB",
        ),
        ("GPURESID_COLOR", "pink", "", "invalid value 'pink' for the environment variable GPURESID_COLOR"),
        ("GPURESID_SCOPE", "all", "check -- true", "invalid value 'all' for the environment variable GPURESID_SCOPE"),
    ] {
        let end = with(&rig, (name, value), arguments);
        end.expect_code(125);
        assert!(end.stderr.starts_with(&format!("error: {words}")), "{}", end.stderr);
        assert!(end.stderr.contains(&hint(name)), "{}", end.stderr);
    }
    for (name, arguments) in SWITCHES {
        let end = with(&rig, (name, "maybe"), arguments);
        end.expect_code(125);
        let words = "write 1, true, yes or on; or 0, false, no or off\n";
        let said = format!("error: invalid value 'maybe' for the environment variable {name}: {words}\n{}", hint(name));
        assert_eq!(end.stderr, said);
    }
    // What was typed counts, and is what is said.
    let end = with(&rig, ("GPURESID_SETTLE", "5s"), "check --settle soon -- true");
    assert!(end.stderr.contains("for '--settle <DUR>'") && !end.stderr.contains("GPURESID"), "{}", end.stderr);
    assert!(rig.calls().is_empty(), "no driver was asked");
    let end = with(&rig, ("GPURESID_GPU", "7"), "");
    end.expect_code(125);
    assert!(end.stderr.starts_with("error: no GPU is called `7`, which GPURESID_GPU names\n"), "{}", end.stderr);
    let end = rig.run("-i 7");
    assert!(end.stderr.starts_with("error: no GPU is called `7`\n"), "{}", end.stderr);
}

#[test]
fn a_variable_is_on_or_off_by_any_usual_word() {
    let rig = Rig::new();
    for on in ["1", "true", "YES", "on"] {
        let end = with(&rig, ("GPURESID_QUIET", on), "check -- true");
        assert_eq!(end.expect_code(0).stderr, "", "{on}");
    }
    for off in ["0", "false", "No", "off", ""] {
        let end = with(&rig, ("GPURESID_QUIET", off), "check -- true");
        assert!(end.expect_code(0).stderr.contains("clean"), "{off}: {}", end.stderr);
    }
}

#[test]
fn all_gpus_may_be_called_so_and_a_dash_is_no_file() {
    let rig = Rig::with_gpus(2);
    for all in ["-i all", "--gpu ALL", "-i 0,all"] {
        let status = rig.run(&format!("status --json {all}")).json();
        assert_eq!(status["devices"].as_array().map(Vec::len), Some(2), "{all}");
    }
    with(&rig, ("GPURESID_GPU", "all"), "").expect_code(0);
    refused(
        &rig.run("snapshot -o -"),
        "error: cannot write the snapshot to `-`: standard output is where it goes without -o\n\nhint: leave out -o, or name \
         a file; for a file of that name write -o ./-\n",
    );
    refused(
        &rig.run("gen systemd-timer -o -"),
        "error: cannot write into `-`: standard output is where it goes without -o\n\nhint: leave out -o to print, or name a \
         directory; for one of that name write -o ./-\n",
    );
    refused(
        &rig.run("check --report json:/dev/fd/99 -- true"),
        "error: cannot write /dev/fd/99: descriptor 99 is not open here\n\nhint: open it where you start gpuresid: 99>FILE, \
         or name a file\nnote: true was not started\n",
    );
}

#[test]
fn nonsense_on_the_command_line() {
    let rig = Rig::new();
    for (arguments, words) in [
        ("check", "there is no command to check\n\nhint: write it after `--`: gpuresid check -- python train.py\n"),
        ("check --", "there is no command to check\n\nhint: write it after `--`: gpuresid check -- python train.py\n"),
        (
            "check --max-residue 16 -- true",
            "invalid value '16' for '--max-residue <SIZE|PCT>': the unit is missing; write a size like 500MiB or \
             20GiB\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "check --max-residue 101% -- true",
            "invalid value '101%' for '--max-residue <SIZE|PCT>': a percentage lies between 0% and 100%\n\nhint: more: \
             gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "check --max-unattributed 5GB -- true",
            "invalid value '5GB' for '--max-unattributed <SIZE>': KB, MB and GB are ambiguous, units here are binary; \
             write a size like 500MiB or 20GiB\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "check --max-residue-rate 200 -- true",
            "invalid value '200' for '--max-residue-rate <PCT>': write a percentage between 0 and 100, such as \
             5%\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "check --settle soon -- true",
            "invalid value 'soon' for '--settle <DUR>': write a duration like 30s, 5m or 1h; a bare number is \
             seconds\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "check --sample 0 -- true",
            "invalid value '0' for '--sample <DUR>': it must be at least 1ms\n\nhint: more: gpuresid --help, gpuresid \
             COMMAND --help\n",
        ),
        (
            "check --report - -- true",
            "invalid value '-' for '--report <[FORMAT:]PATH>': standard output belongs to the command; name a file, or \
             write json:/dev/fd/3 with 3>FILE\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "check --report r.html -- true",
            "invalid value 'r.html' for '--report <[FORMAT:]PATH>': this version writes no .html reports; it writes json \
             and observation\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "status --fail-on tiredness",
            "invalid value 'tiredness' for '--fail-on <RULE>': write lost, foreign, or a cause; the causes are stuck_in_kernel, draining (on its way out), stopped, \
             half_dead, mps_server, forked_copy, exported_handle, peer_mapping, orphan, still_running, detached, context_only, \
             grown_neighbour (grew meanwhile), new_neighbour (new meanwhile), out_of_sight, platform (not told), in_use\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
        (
            "reclaim --pid abc",
            "invalid value 'abc' for '--pid <PID>...': not a PID\n\nhint: more: gpuresid --help, gpuresid COMMAND \
             --help\n",
        ),
        (
            "--json check -- true",
            "--json, --watch, --verbose, --bar1, --fail-on, --expect and --mine are options of `status` when they stand before the \
             command; write them after it\n\nhint: more: gpuresid --help, gpuresid COMMAND --help\n",
        ),
    ] {
        refused(&rig.run(arguments), &format!("error: {words}"));
    }
    let end = rig.run("python train.py --lr 0.1");
    end.expect_code(125);
    let (said, hint) = end.stderr.split_once("\n\nhint: ").unwrap_or_default();
    assert_eq!(said, "error: unrecognized subcommand 'python'");
    // The options of this test stand between.
    assert!(hint.starts_with("to run a program and check it: gpuresid check --nvml-lib "), "{hint}");
    assert!(hint.ends_with(&format!(" -- python train.py --lr 0.1\n{MORE}")), "{hint}");
    let end = rig.run("status --jason");
    refused(
        &end,
        &format!("error: unexpected argument '--jason' found\n\nhint: a similar argument exists: '--json'\n{MORE}"),
    );
    assert!(rig.calls().is_empty(), "no driver was asked");
}

#[test]
fn a_variable_is_checked_like_an_option() {
    let rig = Rig::new();
    let mut command = rig.gpuresid(["check", "--", "true"]);
    command.env("GPURESID_SETTLE", "soon");
    refused(
        &rig.launch(command).wait(),
        "error: invalid value 'soon' for the environment variable GPURESID_SETTLE: write a duration like 30s, 5m or 1h; a \
         bare number is seconds\n\nhint: set GPURESID_SETTLE to something else, or not at all: unset GPURESID_SETTLE\nmore: \
         gpuresid --help, gpuresid COMMAND --help\n",
    );
}

#[test]
fn dangerous_options_are_no_variables() {
    let rig = Rig::new();
    let mut command = rig.gpuresid(["status", "--json"]);
    for name in ["GPURESID_NVML_LIB", "GPURESID_PROCFS", "GPURESID_DEV", "GPURESID_REPORT"] {
        command.env(name, rig.path("no-such"));
    }
    rig.launch(command).wait().expect_code(0);
}

#[test]
fn an_unknown_gpu_is_refused_before_anything_starts() {
    let rig = Rig::new();
    let there_are = "there are:\n  GPU 0  NVIDIA H200  GPU-00000000-5a1e-4c0d-9e57-000000000000  00000000:0A:00.0\n";
    refused(&rig.run("status -i 7"), &format!("error: no GPU is called `7`\n\nhint: {there_are}"));
    let started = rig.path("started");
    let end = run(&rig, &[&"check", &"-i", &"GPU-ffff", &"--", &"touch", &started]);
    refused(&end, &format!("error: no GPU is called `GPU-ffff`\n\nhint: {there_are}note: touch was not started\n"));
    assert!(!started.exists());
    let mut none = rig.gpuresid(["status", "--visible"]);
    none.env("CUDA_VISIBLE_DEVICES", "");
    refused(
        &rig.launch(none).wait(),
        &format!(
            "error: CUDA_VISIBLE_DEVICES is set but empty, so a program would see no GPU\n\nhint: leave out --visible, or set \
             CUDA_VISIBLE_DEVICES; {there_are}"
        ),
    );
}

#[test]
fn a_report_that_cannot_be_written_starts_nothing() {
    let rig = Rig::new();
    let started = rig.path("started");
    let shown = rig.path("").display().to_string();
    let shown = shown.trim_end_matches('/');
    let target = format!("{shown}/none/r.json");
    refused(
        &run(&rig, &[&"check", &"--report", &target, &"--", &"touch", &started]),
        &format!(
            "error: cannot write {shown}/none/r.json: there is no directory {shown}/none\n\nhint: make it first: mkdir -p \
             {shown}/none\nnote: touch was not started\n"
        ),
    );
    let directory = format!("json:{shown}");
    refused(
        &run(&rig, &[&"check", &"--report", &directory, &"--", &"touch", &started]),
        &format!(
            "error: cannot write {shown}: it is a directory\n\nhint: name a file in it: {shown}/report.json\nnote: touch was not started\n"
        ),
    );
    let twice = format!("{shown}/r.json");
    refused(
        &run(&rig, &[&"check", &"--report", &twice, &"--report", &twice, &"--", &"touch", &started]),
        &format!(
            "error: two reports go to {shown}/r.json\n\nhint: give each --report a file of its own\nnote: touch was not started\n"
        ),
    );
    assert!(!started.exists());
    assert!(rig.calls().is_empty(), "no driver was asked");
}

#[test]
fn snapshot_files_that_are_none() {
    let rig = Rig::new();
    let file = rig.path("b.json");
    let shown = file.display();
    let take = "\n\nhint: take one with: gpuresid snapshot -o before.json\n";
    let refused_as = |words: &str| refused(&run(&rig, &[&"diff", &file]), &format!("error: {words}"));
    refused_as(&format!("there is no file {shown}{take}"));
    for (text, words) in [
        ("", format!("{shown} is empty{take}")),
        ("{}", format!("{shown} is not a snapshot of gpuresid{take}")),
        ("{\"schema\":\"gpuresid.report/1\"}", format!("{shown} is a report of gpuresid, not a snapshot{take}")),
        (
            "{\"schema\":\"gpuresid.snapshot/2\"}",
            format!(
                "{shown} was made by a newer gpuresid (gpuresid.snapshot/2; this version reads \
                 gpuresid.snapshot/1)\n\nhint: update gpuresid, or take the snapshot again with this version\n"
            ),
        ),
        (
            "{\"schema\":\"gpuresid.snapshot/1\"}",
            format!("{shown} is a damaged snapshot: it has no `tool_version`{take}"),
        ),
    ] {
        fs::write(&file, text).unwrap();
        refused_as(&words);
    }
    let target = rig.path("none/s.json");
    let end = run(&rig, &[&"snapshot", &"-o", &target]);
    assert!(end.stderr.contains("there is no directory"), "{}", end.stderr);
    end.expect_code(125);
}

#[test]
fn no_driver_no_library_no_proc() {
    let rig = Rig::new();
    let end = run(&rig, &[&"status", &"--procfs", &rig.dev()]);
    end.expect_code(125);
    assert!(end.stderr.starts_with(&format!("error: {} has no processes", rig.dev().display())), "{}", end.stderr);
    for (code, word) in [(9, "driver"), (18, "version"), (4, "permi")] {
        rig.init_answers(code);
        let end = rig.run("status");
        end.expect_code(125);
        assert!(end.stderr.starts_with("error: ") && end.stderr.contains("\n\nhint: "), "{}", end.stderr);
        assert!(end.stderr.to_lowercase().contains(word), "{}", end.stderr);
        assert!(end.stderr.lines().all(|line| line.len() < 120), "{}", end.stderr);
        if code == 9 {
            assert!(end.stderr.contains("\nmore about this machine: gpuresid doctor\n"), "{}", end.stderr);
            assert!(end.stderr.contains("for example: docker run --gpus all IMAGE\n"), "{}", end.stderr);
        }
        rig.clear_faults();
    }
    rig.run("status").expect_code(0);
}

#[test]
fn help_and_version_are_no_errors() {
    let rig = Rig::new();
    for (command, ways) in [
        (None, &["--help", "-h"][..]),
        (Some("check"), &["check --help", "help check", "--help check", "-h check"]),
        (Some("diff"), &["diff --help", "help diff"]),
    ] {
        for arguments in ways {
            let end = rig.run(arguments);
            end.expect_code(0);
            assert!(end.stdout.contains(&gpuresid::exit::help(command)), "{arguments}: {}", end.stdout);
            let usage = format!("Usage: gpuresid {}", command.unwrap_or("[OPTIONS]"));
            assert!(end.stdout.contains(&usage), "{arguments}: {}", end.stdout);
            assert_eq!(end.stderr, "");
        }
    }
    assert!(!rig.run("diff --help").stdout.contains("126"), "diff runs no command");
    for (arguments, shown, hidden) in [
        ("demo --help", &["--color"][..], &["--gpu", "--procfs", "--redact"][..]),
        ("gen --help", &["--gpu"], &["--color", "--procfs", "--redact"]),
        ("wait --help", &["--color", "--gpu", "--procfs", "--redact"], &[]),
    ] {
        let help = rig.run(arguments).stdout;
        for (options, there) in [(shown, true), (hidden, false)] {
            assert!(options.iter().all(|option| help.contains(option) == there), "{arguments}: {help}");
        }
    }
    // What is not shown is no error: a script may give the same options to every command.
    let end = rig.run("gen systemd-timer --color never");
    end.expect_code(0);
    // Where users can write the build, the program is none for root.
    assert!(end.stderr.is_empty() || end.stderr.starts_with("warning: root must not run "), "{}", end.stderr);
    assert_eq!(rig.run("--version").stdout, format!("gpuresid {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn options_behind_the_command_are_said_to_be_the_commands() {
    let rig = Rig::new();
    let report = rig.path("x.json").display().to_string();
    let note = "note: --report goes to echo; options of gpuresid stand before the command\n";
    let end = rig.run(&format!("check --settle 1s /bin/echo a --report {report} --other"));
    end.expect_code(0);
    assert!(end.stderr.starts_with(note), "{}", end.stderr);
    assert_eq!(end.stdout, format!("a --report {report} --other\n"));
    let end = rig.run("check --settle 1s echo --report=x --gpu 0");
    assert!(end.stderr.starts_with("note: --report and --gpu go to echo; "), "{}", end.stderr);
    for silent in ["check --settle 1s -- echo --report x", "check -q echo --report x", "check echo -- --report x"] {
        assert!(!rig.run(silent).stderr.contains("note:"), "{silent}");
    }
}

#[test]
fn a_report_of_an_earlier_run_is_called_so_when_there_is_no_new_one() {
    let rig = Rig::new();
    let report = rig.path("c.json").display().to_string();
    rig.run(&format!("check --report {report} -- true")).expect_code(0);
    let old = fs::read(&report).unwrap();
    let note = format!("the report at {report} is of an earlier run\n");
    let not_started = format!("\nnote: true was not started; {note}");
    for (arguments, note) in
        [("-i 7 -- true", &not_started), ("--settle soon -- true", &format!("\nnote: {note}")), ("", &note)]
    {
        let end = rig.run(&format!("check --report {report} {arguments}"));
        end.expect_code(125);
        assert!(end.stderr.ends_with(note), "{arguments}: {}", end.stderr);
    }
    rig.init_answers(9);
    let end = rig.run(&format!("check --report {report} -- true"));
    end.expect_code(125);
    assert!(end.stderr.contains("hint: ") && end.stderr.ends_with(&not_started), "{}", end.stderr);
    assert_eq!(fs::read(&report).unwrap(), old, "nothing is lost");
    // Where there is none, nothing is said.
    let end = rig.run(&format!("check --report {report}.json -- true"));
    assert!(!end.stderr.contains("earlier run"), "{}", end.stderr);
    rig.clear_faults();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    use std::process::Stdio;
    let rig = Rig::new();
    for arguments in [&["status"][..], &["snapshot"], &["--help"]] {
        let mut child = rig.gpuresid(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let end = child.wait_with_output().unwrap();
        assert_eq!((end.status.code(), String::from_utf8_lossy(&end.stderr).as_ref()), (Some(0), ""));
    }
}

#[test]
fn help_speaks_of_processes_and_not_of_persons() {
    let rig = Rig::new();
    for command in ["--help", "reclaim --help", "wait --help", "gen --help"] {
        let text = rig.run(command).expect_code(0).stdout.clone();
        for word in [" he ", " his ", " him ", "verybody", "hoever", "so much", "so long"] {
            assert!(!text.contains(word), "{command} says `{word}`: {text}");
        }
    }
}

/// Every command, and the codes that its help names.
const COMMANDS: [(&str, &[&str]); 10] = [
    ("status", &["0", "121", "125"]),
    ("check", &["0", "N", "121", "122", "124", "125", "126", "127"]),
    ("snapshot", &["0", "125"]),
    ("diff", &["0", "121", "122", "125"]),
    ("doctor", &["0", "1", "125"]),
    ("demo", &["0", "125"]),
    ("reclaim", &["0", "121", "122", "125"]),
    ("wait", &["0", "124", "125"]),
    ("gen", &["0", "125"]),
    ("help", &["0", "125"]),
];

#[test]
fn the_help_of_each_command_has_its_own_exit_codes() {
    let rig = Rig::new();
    let listed = rig.run("--help").stdout.clone();
    for (command, codes) in COMMANDS {
        assert!(listed.contains(&format!("\n  {command} ")), "{command} is not in {listed}");
        let help = rig.run(&format!("{command} --help")).expect_code(0).stdout.clone();
        let (_, table) = help.split_once("\nExit codes:\n").unwrap_or_else(|| panic!("no exit codes: {help}"));
        let named: Vec<_> = table.lines().filter_map(|line| line.get(2..5)).map(str::trim).collect();
        let named: Vec<_> = named.into_iter().filter(|code| codes.contains(code)).collect();
        assert_eq!(named, codes, "{help}");
        assert!(!table.contains("(in check:") && !table.contains("or the condition is met"), "{help}");
    }
}

#[test]
fn help_is_laid_out_alike_and_breaks_at_no_terminal_of_80_columns() {
    let rig = Rig::new();
    for (command, _) in COMMANDS {
        let wide = rig.run(&format!("{command} --help")).stdout.clone();
        assert!(!wide.contains("see a summary"), "{command} has a long form: {wide}");
        let mut narrow = rig.gpuresid([command, "--help"]);
        // Where there is no terminal, clap goes by this.
        narrow.env("COLUMNS", "80");
        let narrow = rig.launch(narrow).wait().stdout;
        assert!(
            narrow.lines().count() > wide.lines().count() || ["gen", "help"].contains(&command),
            "{command}: nothing was narrow"
        );
        for line in narrow.lines().chain(wide.lines()) {
            assert_eq!(line.trim_end(), line, "{command}: spaces at the end");
        }
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        // What stands below the options has lines that are not broken anew, but for whole paragraphs.
        let (_, examples) = narrow.split_once("\nExamples:\n").unwrap_or_default();
        for line in examples.lines().take_while(|line| !line.is_empty()) {
            assert!(wide.contains(&format!("\n{line}\n")), "{command} breaks `{line}`");
        }
    }
}
