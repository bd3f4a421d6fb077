//! Who gets no signal, whoever asks: told by what a process has open and whom it has started, at the moment of the signal.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use serde_json::Value;
use std::{ffi::OsString, fs};
use support::{Rig, Running, alive};

/// Refused by number, with this reason, and nothing is ended.
#[track_caller]
fn refused(rig: &Rig, pids: &[u32], why: &str) {
    let named: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let end = rig.run(&format!("reclaim --pid {} --force --yes", named.join(",")));
    let said = end.expect_code(125).stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("will not be ended") && said.contains(why), "{said}");
    assert!(pids.iter().all(|pid| alive(*pid)), "{said}");
}

#[test]
fn who_keeps_terminals_or_a_display_is_refused_whatever_its_name() {
    let rig = Rig::new();
    let _terminals = rig.start("keep /dev/ptmx alloc 0 1GiB ready terminals hold");
    refused(&rig, &[rig.wait_for("terminals")], "it keeps terminals open");
    let _display = rig.start("listen wayland-7 alloc 0 1GiB ready display hold");
    refused(&rig, &[rig.wait_for("display")], "windows are drawn on the display that it keeps");
    // One that runs in such a terminal, and one with a socket of its own, are ended like anybody.
    let _plain = rig.start("listen sock alloc 0 1GiB ready plain hold");
    let plain = rig.wait_for("plain");
    rig.run(&format!("reclaim --pid {plain} --yes")).expect_code(0);
    assert!(!alive(plain));
}

#[test]
fn what_it_keeps_is_looked_at_before_each_signal() {
    let rig = Rig::new();
    // Told to end, it opens a terminal instead.
    let script = "import os, signal, sys, time
files = [os.open(path, os.O_RDWR) for path in sys.argv[2:] for _ in range(5)]
def term(*_): files.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
signal.signal(signal.SIGTERM, term)
with open(sys.argv[1] + '.new', 'w') as file: file.write(str(os.getpid()))
os.replace(sys.argv[1] + '.new', sys.argv[1])
while os.path.exists(sys.argv[1]): time.sleep(0.01)";
    let mut argv: Vec<OsString> = ["python3", "-c", script].map(Into::into).to_vec();
    argv.push(rig.path("up").into());
    argv.extend(["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| rig.dev().join(node).into_os_string()));
    let mut running = rig.start_of(&argv);
    let pid = rig.wait_for("up");
    let end = rig.run(&format!("reclaim --pid {pid} --grace 300ms --force --yes --json --settle 1s"));
    let step = &end.json()["steps"][0];
    assert_eq!(step["sent"], serde_json::json!(["TERM"]), "{step:#}");
    assert!(step["outcome_why"].as_str().unwrap().contains("keeps terminals open"), "{step:#}");
    assert!(running.is_running());
    fs::remove_file(rig.path("up")).unwrap();
}

/// A manager of many programs: a GPU worker and two who have nothing to do with it.
fn manager(rig: &Rig) -> (Running, u32, [u32; 2]) {
    let manager = rig.start(
        "rename supervisord spawn-session { alloc 0 1GiB ready worker hold } spawn-session { ready web hold } \
         spawn-session { ready mail hold } hold",
    );
    (manager, rig.wait_for("worker"), ["web", "mail"].map(|name| rig.wait_for(name)))
}

#[test]
fn a_manager_of_many_programs_is_never_ended_for_one_of_them() {
    let rig = Rig::new();
    let (mut manager, worker, others) = manager(&rig);
    refused(&rig, &[worker, manager.pid()], "it has started others too");
    // The worker alone is the user's decision; who may start it again is named.
    let plan = rig.run(&format!("reclaim --pid {worker}"));
    let text = plan.expect_code(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("may start it again"), "{text}");
    rig.run(&format!("reclaim --pid {worker} --yes --settle 2s")).expect_code(0);
    assert!(!alive(worker) && others.into_iter().all(alive) && manager.is_running());
}

#[test]
fn a_clean_up_spares_the_terminals_that_its_run_has_started_and_what_runs_in_them() {
    let rig = Rig::new();
    let verbs = "spawn-session { keep /dev/ptmx spawn-session { alloc 0 1GiB ready inside hold } hold } \
                 spawn-session { alloc 0 2GiB ready left hold } wait-file inside wait-file left";
    let end = rig.check(&format!("--settle 500ms --cleanup --report {}", rig.path("r.json").display()), verbs);
    end.expect_code(121);
    let (inside, left) = (rig.wait_for("inside"), rig.wait_for("left"));
    assert!(alive(inside) && !alive(left), "{}", end.stderr);
    let cleanup = &rig.report("r.json")["cleanup"];
    let spared: Vec<&Value> = cleanup["left_alone"].as_array().unwrap().iter().collect();
    let why = |pid: u32| {
        let one = spared.iter().find(|one| one["pid"] == pid);
        one.map_or_else(String::new, |one| one["why"].as_str().unwrap().to_owned())
    };
    assert!(why(inside).contains("keeps open for people"), "{cleanup:#}");
    assert_eq!((spared.len(), &cleanup["nothing_lives"]), (2, &Value::Bool(false)), "{cleanup:#}");
}
