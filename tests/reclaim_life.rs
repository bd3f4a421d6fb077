//! What a plan tells of those whom it would end: whether they work, and who talks to them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use std::{ffi::OsString, net::TcpListener};
use support::{Rig, shell_line};

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
    let with = life["pipes_with"].as_array().unwrap();
    assert!(with.iter().any(|one| one["pid"] == sleeper && one["command"] == "sleep 300"), "{life:#}");
    assert!(text.contains("connected to PID ") && text.contains(&format!("through pipes; {end}")), "{text}");
    // What tells of other machines is hidden with the rest.
    let redacted = rig.run(&format!("reclaim --pid {pid} --json --redact"));
    assert!(!redacted.expect_code(0).stdout.contains(&end.to_string()), "{}", redacted.stdout);
    let pid = rustix::process::Pid::from_raw(sleeper.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A shell that runs programs of these verbs, named `$1`, `$2` in its script.
fn shell(rig: &Rig, script: &str, programs: &[&str]) -> Vec<OsString> {
    let lines = programs.iter().map(|verbs| shell_line(rig.program(verbs)).into());
    support::shell(script).into_iter().chain(["sh".into()]).chain(lines).collect()
}

#[test]
fn who_writes_into_the_same_pipe_is_not_connected_by_it() {
    let rig = Rig::new();
    let programs = ["ready twin hold", "alloc 0 1GiB ready up hold"];
    let _both = rig.start_of(&shell(&rig, "{ eval \"$1 &\"; eval \"exec $2\"; } < /dev/null | cat", &programs));
    let (pid, twin) = (rig.wait_for("up"), rig.wait_for("twin"));
    let (_, life) = plan(&rig, pid);
    let with = life["pipes_with"].as_array().unwrap();
    let named = |pid: u32| with.iter().any(|one| one["pid"] == pid);
    assert!(with.iter().any(|one| one["command"] == "cat"), "who reads it is: {life:#}");
    assert!(!named(twin), "{life:#}");
}

#[test]
fn where_the_main_thread_is_gone_the_others_tell_who_talks_to_it() {
    let rig = Rig::new();
    let _piped =
        rig.start_of(&shell(&rig, "eval \"$1\" < /dev/null | cat", &["alloc 0 1GiB exit-main-thread ready up hold"]));
    let (_, life) = plan(&rig, rig.wait_for("up"));
    let with = life["pipes_with"].as_array().unwrap();
    assert!(with.iter().any(|one| one["command"] == "cat"), "{life:#}");
}

#[test]
fn two_of_one_plan_that_talk_to_each_other_are_no_reason_to_spare_them() {
    let rig = Rig::new();
    let script = "import os, socket, sys, time\n\
                  files = [os.open(path, os.O_RDWR) for path in sys.argv[3:] for _ in range(5)]\n\
                  if sys.argv[2] == 'serve':\n\
                  \x20   listener = socket.create_server(('127.0.0.1', 0)); port = listener.getsockname()[1]\n\
                  else: port, link = 0, socket.create_connection(('127.0.0.1', int(sys.argv[2])))\n\
                  with open(sys.argv[1] + '.port', 'w') as file: file.write(str(port))\n\
                  if port: link = listener.accept()[0]\n\
                  with open(sys.argv[1] + '.new', 'w') as file: file.write(f'{os.getpid()}')\n\
                  os.replace(sys.argv[1] + '.new', sys.argv[1])\n\
                  while os.path.exists(sys.argv[1]): time.sleep(0.01)\n";
    let start = |name: &str, does: &str| {
        let mut argv: Vec<OsString> = ["python3", "-c", script].map(Into::into).to_vec();
        argv.extend([rig.path(name).into_os_string(), does.into()]);
        argv.extend(["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| rig.dev().join(node).into_os_string()));
        rig.start_of(&argv)
    };
    let _server = start("server", "serve");
    let port = || std::fs::read_to_string(rig.path("server.port")).unwrap_or_default();
    support::wait_until("a port", || !port().is_empty());
    let _client = start("client", &port());
    let (server, client) = (rig.wait_for("server"), rig.wait_for("client"));
    let both = rig.run(&format!("reclaim --pid {server} --pid {client} --json")).json();
    for step in both["steps"].as_array().unwrap() {
        assert_eq!(step["life"]["tcp_peers"], serde_json::json!([]), "{both:#}");
    }
    // Where only one of them is meant the other is somebody.
    let (_, life) = plan(&rig, client);
    assert_eq!(life["tcp_peers"], serde_json::json!([format!("127.0.0.1:{}", port())]), "{life:#}");
    ["server", "client"].iter().for_each(|name| std::fs::remove_file(rig.path(name)).unwrap());
}

#[test]
fn whose_work_it_is_on_a_gpu_with_a_screen_is_not_known() {
    if support::out_of_sight() {
        return;
    }
    let rig = Rig::new();
    rig.edit_machine(|machine| machine["devices"][0]["utilization"] = 57.into());
    let _alone = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let (text, life) = plan(&rig, pid);
    assert_eq!(life["gpu_percent"], 57, "{life:#}");
    assert!(text.contains("its GPU is 57% busy"), "{text}");
    let _windows = rig.start("lists 0 graphics alloc 0 100MiB ready windows hold");
    rig.wait_for("windows");
    let (text, life) = plan(&rig, pid);
    assert!(life["gpu_percent"].is_null() && text.contains("GPU work: not known"), "{text}");
}

#[test]
fn whom_nobody_here_can_see_is_not_said_not_to_be_there() {
    let rig = Rig::new();
    let inside = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"];
    let works = std::process::Command::new(inside[0]).args(&inside[1..]).arg("true").output();
    if !works.is_ok_and(|end| end.status.success()) {
        println!("skipped: a PID namespace is not allowed here");
        return;
    }
    rig.edit_machine(|machine| machine["devices"][0]["utilization"] = 57.into());
    // Its output goes to somebody outside, and so may the GPU's work.
    let word = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
    let holder: Vec<String> = rig.program("alloc 0 1GiB ready up hold").iter().map(|w| word(w)).collect();
    let ask = rig.gpuresid(["reclaim", "--json", "--pid"]);
    let ask: Vec<String> = std::iter::once(ask.get_program()).chain(ask.get_args()).map(word).collect();
    let (holder, ask, up) = (holder.join(" "), ask.join(" "), rig.path("up"));
    let report = rig.path("plan.json");
    let script = format!(
        "({holder} | sleep 60) & until [ -e {up} ]; do sleep 0.05; done; {ask} $(cat {up}) > {report}",
        up = up.display(),
        report = report.display()
    );
    let argv: Vec<OsString> = inside.iter().map(Into::into).chain([script.into()]).collect();
    rig.start_of(&argv).wait().expect_code(0);
    let life = &rig.report("plan.json")["steps"][0]["life"];
    assert_eq!((&life["all_seen"], &life["gpu_percent"]), (&false.into(), &serde_json::Value::Null), "{life:#}");
    let with = life["pipes_with"].as_array().unwrap();
    assert!(with.iter().any(|one| one["command"] == "sleep 60"), "{life:#}");
}
