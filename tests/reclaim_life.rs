//! What a plan tells of those whom it would end: whether they work, and who talks to them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use std::{ffi::OsString, net::TcpListener};
use support::Rig;

/// The plan for this process, as text on one line and as JSON.
fn plan(rig: &Rig, pid: u32) -> (String, serde_json::Value) {
    let text = rig.run(&format!("reclaim --pid {pid}")).expect_code(0).stdout.clone();
    let report = rig.run(&format!("reclaim --pid {pid} --json")).expect_code(0).json();
    (text.split_whitespace().collect::<Vec<_>>().join(" "), report["steps"][0]["life"].clone())
}

#[test]
fn who_works_is_said_to_and_who_does_not_is_not() {
    let rig = Rig::new();
    let _working = rig.start("alloc 0 1GiB ready working busy 60");
    let (text, life) = plan(&rig, rig.wait_for("working"));
    let (cpu, watched) = (life["cpu_ms"].as_u64().unwrap(), life["watched_ms"].as_u64().unwrap());
    assert!(watched >= 1000 && cpu * 4 >= watched, "{life:#}");
    assert!(text.contains("of CPU time in the last ") && text.contains(" s: working "), "{text}");
    assert_eq!(life["gpu_percent"], 0, "{life:#}");
    assert!(text.contains("its GPU is idle"), "{text}");
    rig.edit_machine(|machine| machine["devices"][0]["utilization"] = 57.into());
    let _idle = rig.start("alloc 0 2GiB ready idle sleep 60");
    let (text, life) = plan(&rig, rig.wait_for("idle"));
    assert_eq!(life["cpu_ms"], 0, "{life:#}");
    assert!(text.contains("used no CPU time in the last "), "{text}");
    // Whose work it is that keeps a shared GPU busy, nobody knows.
    assert!(life["gpu_percent"].is_null() && text.contains("GPU work: not known"), "{text}");
}

#[test]
fn who_talks_to_it_is_named() {
    let rig = Rig::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let end = listener.local_addr().unwrap();
    let script = "import os, signal, socket, subprocess, sys\n\
                  files = [os.open(path, os.O_RDWR) for path in sys.argv[3:] for _ in range(5)]\n\
                  talk = socket.create_connection(('127.0.0.1', int(sys.argv[2])))\n\
                  listener = subprocess.Popen(['sleep', '300'], stdin=subprocess.PIPE)\n\
                  with open(sys.argv[1] + '.new', 'w') as file: file.write(f'{os.getpid()}')\n\
                  os.replace(sys.argv[1] + '.new', sys.argv[1])\n\
                  signal.pause()\n";
    let mut argv: Vec<OsString> = ["python3", "-c", script].map(Into::into).to_vec();
    argv.extend([rig.path("up").into_os_string(), end.port().to_string().into()]);
    argv.extend(["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| rig.dev().join(node).into_os_string()));
    let _running = rig.start_of(&argv);
    let pid = rig.wait_for("up");
    let sleeper = support::children(pid)[0];
    let (text, life) = plan(&rig, pid);
    assert_eq!(life["tcp_peers"], serde_json::json!([end.to_string()]), "{life:#}");
    assert!(life["pipes_with"].as_array().unwrap().contains(&sleeper.into()), "{life:#}");
    assert!(text.contains("connected to PID ") && text.contains(&format!("through pipes; {end}")), "{text}");
    // What tells of other machines is hidden with the rest.
    let redacted = rig.run(&format!("reclaim --pid {pid} --json --redact"));
    assert!(!redacted.expect_code(0).stdout.contains(&end.to_string()), "{}", redacted.stdout);
    let pid = rustix::process::Pid::from_raw(sleeper.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
