//! Foreign text is hostile: names with escape sequences, newlines, ten kilobytes, no UTF-8, and secrets, in every output.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{ffi::OsString, fs, os::unix::ffi::OsStringExt as _};
use support::Rig;

const SECRET: &str = "s3cr3t-value-9";
const PRIVATE: &str = "private_dataset_7";

/// Arguments as a hostile neighbour would choose them, each one word.
fn hostile(then: &[&str]) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["alloc", "0", "1GiB", "rename", "\x1b]0;x\x07\n;reboot"].map(Into::into).to_vec();
    let texts = [
        b"\x1b[2J\x1b[1;1Hforged\n  verdict: clean".to_vec(),
        b"$(touch /tmp/gpuresid-was-here); `id`; '\"; rm -rf ~ #".to_vec(),
        "\u{202e}gnp.exe\u{2066}\u{200b}\u{9b}31m".as_bytes().to_vec(),
        b"caf\xe9 \xff\xfe".to_vec(),
        format!("--password={SECRET}").into_bytes(),
        format!("HF_TOKEN={SECRET} run --api-key {SECRET}").into_bytes(),
        format!("/home/somebody/{PRIVATE}.bin").into_bytes(),
        vec![b'x'; 10_000],
        b"\r\n\x08\x7f\x00".iter().copied().filter(|b| *b != 0).collect(),
    ];
    for text in texts {
        words.extend(["print".into(), OsString::from_vec(text)]);
    }
    words.extend(then.iter().map(Into::into));
    words
}

/// Fails if a text would act on a terminal or tells a secret.
#[track_caller]
fn harmless(what: &str, text: &str) {
    let acts = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.chars().any(acts), "{what}: {text:?}");
    assert!(!text.contains(SECRET), "{what}: {text}");
    for line in text.lines() {
        assert!(!line.trim_start().starts_with("verdict: clean"), "{what}: a forged line: {text}");
    }
}

/// The same for every string of a JSON value, none of which may have a line end either.
fn harmless_json(what: &str, value: &Value) {
    match value {
        Value::String(text) => {
            harmless(what, text);
            assert!(!text.contains('\n') && text.len() < 20_000, "{what}: {text}");
        }
        Value::Array(all) => all.iter().for_each(|v| harmless_json(what, v)),
        Value::Object(fields) => fields.values().for_each(|v| harmless_json(what, v)),
        _ => {}
    }
}

/// A command to paste is one line that runs nothing of what a stranger wrote.
fn harmless_advice(report: &Value) {
    for advice in report["advice"].as_array().unwrap() {
        let command = advice["command"].as_str().unwrap_or_default();
        for part in ["touch", "reboot", "rm -rf", "\n", "`"] {
            assert!(!command.contains(part), "{command}");
        }
    }
}

#[test]
fn a_hostile_holder_is_shown_safely_everywhere() {
    let rig = Rig::new();
    let mut command = std::process::Command::new("python3");
    let argv = rig.program_of(hostile(&["fork-and-exit", "ready", "up", "hold"]));
    command.args(&argv[1..]).env("FAKE_NVML_LEDGER", rig.ledger.directory()).env("FAKE_DEV", rig.dev());
    command.env("GPURESID_RUN_ID", "\x1b[31mx\n1-2-3");
    let holder = rig.launch(command);
    let pid = rig.wait_for("up");
    let table = rig.run("status");
    harmless("the table", &table.expect_code(0).stdout);
    assert!(table.stdout.contains(&pid.to_string()) && table.stdout.len() < 10_000, "{}", table.stdout);
    let status = rig.run("status --json").json();
    harmless_json("status", &status);
    harmless_advice(&status);
    assert!(status["holders"][0]["command"].as_str().unwrap().contains("\\x1b[2J"), "{status:#}");
    harmless_json("snapshot", &rig.run("snapshot").json());
    rig.run(&format!("snapshot -o {}", rig.path("s.json").display())).expect_code(0);
    harmless("diff", &rig.run(&format!("diff {}", rig.path("s.json").display())).stdout);
    holder.wait();
}

/// A program that leaves one behind, both with `also` among their words.
fn leaves_one<'a>(also: &[&'a str]) -> Vec<&'a str> {
    let block: [&[&str]; 5] = [
        also,
        &["spawn-session", "{", "alloc", "0", "1GiB"],
        also,
        &["ready", "up", "hold", "}"],
        &["wait-file", "up"],
    ];
    block.concat()
}

#[test]
fn a_hostile_command_is_reported_safely() {
    let rig = Rig::new();
    let (report, looks) = (rig.path("r.json"), rig.path("o.json"));
    let options = format!("--settle 1s --report {} --report observation:{}", report.display(), looks.display());
    let argv = rig.program_of(hostile(&leaves_one(&[])));
    let end = rig.launch(rig.check_of(&options, &argv)).wait();
    end.expect_code(121);
    harmless("the table", &end.stderr);
    let judged = rig.report("r.json");
    harmless_json("report", &judged);
    harmless_advice(&judged);
    harmless_json("observation", &rig.report("o.json"));
    // What could not be started is named as safely.
    let end =
        rig.launch(rig.check_of(&options, &["/no/\x1b[31m\nsuch".into(), format!("--token={SECRET}").into()])).wait();
    end.expect_code(127);
    harmless("the error", &end.stderr);
    harmless_json("report", &rig.report("r.json"));
    harmless_json("observation", &rig.report("o.json"));
}

#[test]
fn redacted_output_names_no_arguments_users_or_hosts() {
    let rig = Rig::new();
    let uname = rustix::system::uname();
    let host = uname.nodename().to_str().unwrap();
    let holder = rig.start_of(&rig.program_of(hostile(&["ready", "beside", "hold"])));
    rig.wait_for("beside");
    let (report, looks, before) = (rig.path("r.json"), rig.path("o.json"), rig.path("s.json"));
    let options =
        format!("--redact --settle 1s --report {} --report observation:{}", report.display(), looks.display());
    let argv = rig.program_of(leaves_one(&["print", PRIVATE]));
    let end = rig.launch(rig.check_of(&options, &argv)).wait();
    end.expect_code(121);
    rig.run(&format!("--redact snapshot -o {}", before.display())).expect_code(0);
    let read = |path: &std::path::Path| fs::read_to_string(path).unwrap();
    let outputs = [
        ("check", end.stderr.clone()),
        ("report", read(&report)),
        ("observation", read(&looks)),
        ("snapshot", read(&before)),
        ("status", rig.run("--redact status").stdout),
        ("status --json", rig.run("status --json --redact").stdout),
        ("diff", rig.run(&format!("diff --redact --json {}", before.display())).stdout),
    ];
    for (what, text) in &outputs {
        for word in [PRIVATE, "cuda.py", "forged", SECRET] {
            assert!(!text.contains(word), "{what} tells {word}: {text}");
        }
        assert!(!text.contains(&format!("\"{host}\"")), "{what} tells the host: {text}");
        assert!(!text.contains("\"user\": \"root\""), "{what} tells the user: {text}");
        assert!(text.contains("python3") || what == &"diff", "{what} still names the program: {text}");
    }
    // The numbers are the same, and so is what they say.
    let judged = rig.report("r.json");
    let own = judged["holders"].as_array().unwrap().iter().find(|h| h["lineage"] == "own").unwrap();
    assert_eq!((&judged["verdict"], &own["cause"]), (&"residue".into(), &"orphan".into()));
    assert_eq!(judged["command"]["argv"], serde_json::json!(["python3", "***"]));
    holder.kill();
}

#[test]
fn a_title_is_named_whole_and_with_its_program() {
    let rig = Rig::new();
    let title = "[kworker/0:1]";
    let words = ["alloc", "0", "1GiB", "settitle", title, "rename", title, "ready", "up", "stop-self", "hold"];
    let _stopped = rig.start_of(&rig.program_of(words));
    let pid = rig.wait_for("up");
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let shown = format!("{title} ({})", program.file_name().unwrap().to_str().unwrap());
    let look = || rig.run("status --json").json();
    support::wait_until("it to stop", || look()["holders"][0]["cause"] == "stopped");
    let status = look();
    assert_eq!(status["holders"][0]["command"], shown);
    assert_eq!(status["holders"][0]["name"], shown);
    let disturbs = format!("PID {pid} ({shown})");
    assert!(status["advice"].as_array().unwrap().iter().any(|step| step["disturbs"] == disturbs), "{status:#}");
    let text = rig.run("status").stdout;
    assert!(text.contains(&format!("  {shown}\n")) && text.contains(&format!("Disturbs: {disturbs}\n")), "{text}");
}
