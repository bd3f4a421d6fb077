//! A hostile neighbour: a normal user who wants root's timer, root's check or somebody's `reclaim` to end or to spare what is
//! not his to decide about. What is read of whom, what is believed, and what he can gain:
//!
//! | read | of whom | believed | what he gains |
//! |---|---|---|---|
//! | the marker in an environment | each process, of itself | it adds a process to a run that has ended | his own is shown as left over |
//! | name and title | each process, of itself | names only spare, and only himself | his own is spared |
//! | terminals, sockets, children | each process, by the kernel | they spare himself | his own is spared |
//! | what systemd says | its own socket, root's or that user's | of services of theirs | his own service's processes are spared |
//! | the name of a control group | whoever may make one | it is shown, and in a command it is quoted or left out | nothing |
//! | a record in the place for records | its file's owner | what the owner could signal himself | nothing |
//! | files in /tmp and /dev/shm | nobody | that somebody maps memory of another's | a check of another's may be called residue |
//! | a number | nobody | with the start time, through a pidfd | nothing |
//!
//! Each row is tried, beside the processes of others who work on: here, records in `unattended.rs`, numbers in
//! `reclaim_reuse.rs`, files in `report_files.rs`, whom terminals and children spare in `never.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use gpuresid::{
    act::{guard::Guard, refusal::Never},
    observe::proc::{ProcOptions, ProcReader},
};
use serde_json::json;
use std::{
    fs,
    os::unix::{fs::chown, net::UnixListener, process::CommandExt as _},
};
use support::{
    ControlGroup, Records, Rig, Running, alive, marker_of_an_ended_run, parent, skipped, start_ticks, wait_until,
};

/// One that every user may run.
const PYTHON: &str = "/usr/bin/python3";
const HOSTILE: u32 = 65534;
const VICTIM: u32 = 4711;

/// A program of this user's, with this in its environment.
fn start(rig: &Rig, uid: u32, verbs: &str, environment: &[(&str, String)]) -> Running {
    let mut argv = rig.program(verbs);
    argv[0] = PYTHON.into();
    let mut command = rig.beside(&argv);
    command.uid(uid).gid(uid).envs(environment.iter().map(|(name, value)| (*name, value.clone())));
    rig.launch(command)
}

#[test]
fn whatever_he_claims_of_himself_ends_nobody_else() {
    let Some(records) = Records::new() else { return };
    if !std::path::Path::new(PYTHON).exists() {
        return skipped("there is no Python that every user may run");
    }
    let rig = Rig::new();
    let _roots = rig.start("alloc 0 1GiB ready roots hold");
    let _theirs = start(&rig, VICTIM, "daemonize-twice { alloc 0 1GiB ready theirs hold } wait-file theirs hold", &[]);
    let victims = [rig.wait_for("roots"), rig.wait_for("theirs")];
    let ended = marker_of_an_ended_run();
    // The marker of a run whose gpuresid would be a process of root's.
    let of_roots = format!("{}-{}-{}", &ended[..8], victims[0], start_ticks(victims[0]));
    let claims = [
        ("marked", "alloc 0 1GiB", vec![("GPURESID_RUN_ID", ended.clone())]),
        ("marked_as_roots", "alloc 0 1GiB", vec![("GPURESID_RUN_ID", of_roots)]),
        ("of_the_job", "alloc 0 1GiB", vec![("SLURM_JOB_ID", "77".into()), ("CI_JOB_ID", "7".into())]),
        ("a_kernel_thread", "alloc 0 1GiB rename kworker/0:1 settitle [kworker/0:1]", Vec::new()),
        ("a_supervisor", "rename supervisord alloc 0 1GiB", vec![("SYSTEMD_EXEC_PID", victims[0].to_string())]),
        ("an_engine", "rename tmux alloc 0 1GiB", vec![("TORCHELASTIC_RUN_ID", "x".into())]),
    ];
    let mut hostile = Vec::new();
    for (name, verbs, environment) in &claims {
        hostile.push(start(&rig, HOSTILE, &format!("{verbs} ready {name} hold"), environment));
        rig.wait_for(name);
    }
    let roots_own = [
        "--orphans --all-users --yes --json".to_owned(),
        format!("--unattended --all-users --yes --json {}", records.option()),
        "--job 78 --all-users --yes --json".to_owned(),
    ];
    for options in roots_own {
        let report = rig.run(&format!("reclaim {options}")).json();
        assert_eq!(report["steps"], json!([]), "{options}: {report:#}");
        assert!(victims.into_iter().all(alive), "{options}: {report:#}");
    }
    let left = "spawn-session { alloc 0 1GiB ready left hold } wait-file left";
    rig.check(&format!("--settle 500ms --cleanup --report {}", rig.path("r.json").display()), left);
    let cleanup = rig.report("r.json")["cleanup"].clone();
    assert_eq!(cleanup["ended"].as_array().unwrap().len(), 1, "{cleanup:#}");
    assert!(!alive(rig.wait_for("left")) && victims.into_iter().all(alive), "{cleanup:#}");
    assert!(hostile.iter_mut().all(Running::is_running), "nor was he ended for what he said");
}

#[test]
fn a_socket_of_his_does_not_speak_for_systemd() {
    if !rustix::process::geteuid().is_root() {
        return skipped("this needs root");
    }
    let Some(group) = ControlGroup::new("gpuresid-hostile.service") else { return };
    let rig = Rig::new();
    let _main = rig.start("alloc 0 1GiB ready main hold");
    let main = rig.wait_for("main");
    group.add(main);
    let socket = rig.path("run/dbus/system_bus_socket");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    chown(&socket, Some(HOSTILE), Some(HOSTILE)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let options = ProcOptions { dev: rig.dev(), run: rig.path("run"), ..ProcOptions::default() };
    let reader = ProcReader::new(options).unwrap();
    let said = Guard::new(&reader, &[]).unwrap().never(&reader.examine(main).unwrap().unwrap());
    let asked = listener.accept().is_ok();
    assert!(!asked, "what he says is not even heard");
    // It is no child of a service manager, so it is not the main process.
    assert!(matches!(said, Ok(()) | Err(Never::MayBeUnitMain(_))), "{said:?}");
}

#[test]
fn a_control_group_that_he_names_writes_no_command() {
    if !rustix::process::geteuid().is_root() {
        return skipped("this needs root");
    }
    // Whoever has a part of the tree to himself gives names to what is below it.
    let name = "x $(touch gpuresid-was-here);`id` \u{1b}[31m.service";
    let Some(group) = ControlGroup::new(name) else { return };
    let rig = Rig::new();
    rig.start("daemonize-twice { alloc 0 1GiB ready main hold } wait-file main").wait().expect_code(0);
    let main = rig.wait_for("main");
    wait_until("PID 1 to adopt", || parent(main) == Some(1));
    group.add(main);
    let refused = rig.run(&format!("reclaim --pid {main} --yes"));
    let status = rig.run("status");
    assert!(alive(main), "{}", refused.stderr);
    let said = &refused.expect_code(125).stderr;
    assert!(said.contains("may be the main process of") || said.contains("is the main process of"), "{said}");
    for text in [said, &status.stdout] {
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(!text.contains("systemctl stop x") && !text.contains("systemctl status x"), "{text}");
    }
}
