//! `reclaim --unattended`: who is ended where there is nobody to ask. Only what a record says leave was given for, and only as
//! long as it is exactly that; whatever looks left over to everybody else is left alone.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::Path,
};
use support::{Records, Rig, alive, marker_of_an_ended_run, start_ticks, wait_until};

/// What a timer runs, and its answer.
fn timer(rig: &Rig, records: &Records) -> Value {
    let end = rig.run(&format!("reclaim --unattended --all-users --yes --json {}", records.option()));
    end.expect_code(0).json()
}

fn ended(report: &Value) -> Vec<u32> {
    let steps = report["steps"].as_array().unwrap().iter();
    steps.filter(|s| s["outcome"] == "ended").map(|s| s["pid"].as_u64().unwrap() as u32).collect()
}

#[track_caller]
fn why_left(report: &Value, pid: u32) -> String {
    let left = report["left_alone"].as_array().unwrap();
    let one = left.iter().find(|l| l["pid"] == pid).unwrap_or_else(|| panic!("{pid} is not named in {report:#}"));
    one["why"].as_str().unwrap().to_owned()
}

/// A check that leaves somebody behind; who.
fn left_by_a_check(rig: &Rig, records: &Records, options: &str) -> u32 {
    let options = format!("--settle 1s {options} {}", records.option());
    rig.check(&options, "spawn-session { alloc 0 1GiB ready left hold } wait-file left").expect_code(121);
    rig.wait_for("left")
}

#[test]
fn what_leave_was_given_for_is_ended_and_its_record_goes_with_it() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let _neighbour = rig.start("alloc 0 1GiB ready neighbour hold");
    let neighbour = rig.wait_for("neighbour");
    let left = left_by_a_check(&rig, &records, "--leave");
    let (_, record) = records.only();
    assert_eq!((&record["state"], &record["leave"]), (&"ended".into(), &true.into()), "{record:#}");
    assert_eq!(record["members"][0]["id"]["pid"], left, "{record:#}");
    let plan = rig.run(&format!("reclaim --unattended {}", records.option()));
    let text = plan.expect_code(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let why =
        "why: it is left of a checked run that is over, and its user gave leave to end what is left (check --leave or";
    assert!(text.contains(&format!("PID {left} of ")) && text.contains(why), "{text}");
    assert!(alive(left));
    let report = timer(&rig, &records);
    assert_eq!(ended(&report), [left], "{report:#}");
    assert!(alive(neighbour));
    assert_eq!(records.files().len(), 0);
    assert_eq!(ended(&timer(&rig, &records)), [0_u32; 0]);
}

#[test]
fn whoever_is_named_a_thousand_times_is_one() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let left = left_by_a_check(&rig, &records, "--leave");
    let repeat = |leave: bool| {
        records.change(&records.only().0, |record| {
            let member = record["members"][0].clone();
            record["members"] = vec![member; 1000].into();
            record["leave"] = leave.into();
        });
    };
    let named = |list: &Value| list.as_array().unwrap().iter().filter(|one| one["pid"] == left).count();
    repeat(false);
    assert_eq!(named(&timer(&rig, &records)["left_alone"]), 1);
    repeat(true);
    let report = timer(&rig, &records);
    assert_eq!((named(&report["steps"]), ended(&report)), (1, vec![left]), "{report:#}");
}

#[test]
fn one_user_with_too_many_records_is_alone_with_that() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let left = left_by_a_check(&rig, &records, "--leave");
    let (_, mut record) = records.only();
    record["boot_id"] = "of another boot".into();
    for n in 0..600 {
        let path = records.path().join(format!("{n}.run"));
        std::fs::write(&path, record.to_string()).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    }
    assert_eq!(ended(&timer(&rig, &records)), [left]);
    // So many of his were read, and are removed because they are of nobody who lives.
    assert_eq!(records.files().len(), 600 - 512);
    timer(&rig, &records);
    assert_eq!(records.files().len(), 0);
}

#[test]
fn without_leave_what_is_left_is_named_and_left_alone() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let left = left_by_a_check(&rig, &records, "");
    let report = timer(&rig, &records);
    let why = "it is left of a checked run that is over, but no leave was given to end that (check --leave)";
    assert_eq!((why_left(&report, left).as_str(), ended(&report).len()), (why, 0));
    assert!(alive(left));
}

#[test]
fn a_run_that_leaves_nobody_leaves_no_record_and_one_without_a_place_is_judged_alike() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let check = rig.spawn_check(&format!("--leave {}", records.option()), "alloc 0 1GiB wait-file over");
    wait_until("the record", || !records.files().is_empty());
    rig.mark("over");
    check.wait().expect_code(0);
    assert_eq!(records.files().len(), 0);
    fs::set_permissions(records.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    rig.check(
        &format!("--cleanup {}", records.option()),
        "spawn-session { alloc 0 1GiB ready left hold } wait-file left",
    )
    .expect_code(121);
    assert_eq!(records.files().len(), 0);
}

#[test]
fn a_check_that_was_killed_has_ended_once_its_command_has() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let verbs = "spawn-session { alloc 0 1GiB ready worker hold } alloc 0 1GiB ready command wait-file over";
    let check = rig.spawn_check(&format!("--leave {}", records.option()), verbs);
    let (command, worker) = (rig.wait_for("command"), rig.wait_for("worker"));
    let named = |record: &Value, pid: u32| record["members"].to_string().contains(&format!("\"pid\":{pid},"));
    wait_until("the record of both", || {
        records.files().iter().any(|file| {
            let record = fs::read(file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
            record.is_some_and(|record| named(&record, command) && named(&record, worker))
        })
    });
    check.signal(Signal::KILL);
    check.wait();
    assert_eq!(timer(&rig, &records)["steps"], json!([]), "its command may be worth days of work");
    assert!(alive(command) && alive(worker));
    rig.mark("over");
    wait_until("the command's end", || !alive(command));
    assert_eq!(ended(&timer(&rig, &records)), [worker]);
}

#[test]
fn lookalikes_that_work_on_get_no_signal() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    // A rank whose agent was killed trains on.
    let agent = rig.start("rename pt_elastic supervise 1 { alloc 0 1GiB ready rank hold }");
    let rank = rig.wait_for("rank");
    agent.kill();
    // A worker whose forkserver was killed, and works for its main process.
    let main = rig.path("main.py");
    let script = "import multiprocessing, os, signal, sys, time\n\
        def work(rig):\n    \
            held = [os.open(f'{rig}/dev/{node}', os.O_RDWR) for node in ('nvidia0', 'nvidiactl', 'nvidia-uvm')]\n    \
            open(f'{rig}/worker.new', 'w').write(str(os.getpid()))\n    \
            os.replace(f'{rig}/worker.new', f'{rig}/worker')\n    \
            while os.path.exists(f'{rig}/ledger/machine.json'): time.sleep(0.05)\n\
        if __name__ == '__main__':\n    \
            context = multiprocessing.get_context('forkserver')\n    \
            worker = context.Process(target=work, args=(sys.argv[1],), daemon=True)\n    \
            worker.start()\n    \
            from multiprocessing.forkserver import _forkserver\n    \
            while not os.path.exists(f'{sys.argv[1]}/worker'): time.sleep(0.01)\n    \
            os.kill(_forkserver._forkserver_pid, signal.SIGKILL)\n    \
            while os.path.exists(f'{sys.argv[1]}/ledger/machine.json'): time.sleep(0.05)\n";
    fs::write(&main, script).unwrap();
    let mut main = rig.start_of(&["python3".into(), main.into(), rig.path("").into()]);
    let worker = rig.wait_for("worker");
    // A checked command that leaves a server of sessions behind: what is started in it later carries the marker.
    let server =
        "spawn-session { ready server wait-file later daemonize-twice { alloc 0 1GiB ready later-child hold } hold }";
    rig.check(&format!("--settle 1s --leave {}", records.option()), &format!("{server} wait-file server"));
    rig.mark("later");
    let later = rig.wait_for("later-child");
    // And whoever else carries the marker of a run that has ended.
    let _marked =
        rig.start_marked(&rig.program("daemonize-twice { alloc 0 1GiB ready marked hold }"), &marker_of_an_ended_run());
    let marked = rig.wait_for("marked");
    let all = [rank, worker, rig.wait_for("server"), later, marked];
    wait_until("the orphans", || [rank, worker, later, marked].into_iter().all(|pid| support::parent(pid) != Some(0)));
    for _ in 0..2 {
        let report = timer(&rig, &records);
        assert_eq!(report["steps"], json!([]), "{report:#}");
        assert!(all.into_iter().all(alive) && main.is_running());
    }
    // The true leftover beside them does.
    let left = left_by_a_check(&rig, &records, "--leave");
    assert_eq!(ended(&timer(&rig, &records)), [left]);
    assert!(all.into_iter().all(alive) && main.is_running());
    kill(worker);
}

fn kill(pid: u32) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn forged_and_outdated_records_end_nobody() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let left = left_by_a_check(&rig, &records, "--leave");
    let (path, honest) = records.only();
    let refused = |what: &str| {
        let report = timer(&rig, &records);
        assert_eq!(report["steps"], json!([]), "{what}: {report:#}");
        assert!(alive(left), "{what}");
        report
    };
    let changed = |what: &str, change: &dyn Fn(&mut Value)| {
        // A record of nobody who is there may have been removed.
        fs::write(&path, honest.to_string()).unwrap();
        records.change(&path, change);
        refused(what)
    };
    let start = honest["members"][0]["id"]["start_ticks"].as_u64().unwrap();
    changed("a number that was given anew", &|r| r["members"][0]["id"]["start_ticks"] = (start - 1).into());
    changed("another boot", &|r| r["boot_id"] = "00000000-0000-0000-0000-000000000000".into());
    changed("another PID namespace", &|r| r["pid_namespace"] = 7.into());
    changed("a schema of later", &|r| r["schema"] = "gpuresid.record/9".into());
    changed("a command that runs", &|r| {
        r["command"] = json!({"pid": std::process::id(), "start_ticks": start_ticks(std::process::id())});
    });
    changed("a run that goes on", &|r| {
        r["state"] = "running".into();
        r["writer"] = json!({"pid": std::process::id(), "start_ticks": start_ticks(std::process::id())});
    });
    for (field, value, why) in [
        ("program", json!([1, 2]), "it runs another program now"),
        ("arguments", json!(7), "it has another command line now"),
        ("terminal", json!(34816), "it has another terminal now"),
        ("cgroup", json!("/elsewhere"), "it is in another control group now"),
    ] {
        let report = changed(field, &|r| r["members"][0]["fingerprint"][field] = value.clone());
        assert!(why_left(&report, left).ends_with(why), "{report:#}");
    }
    let text = honest.to_string();
    // A second name, by which somebody else can still change it.
    fs::write(&path, &text).unwrap();
    let second = records.path().join("second.run");
    fs::hard_link(&path, &second).unwrap();
    refused("two names");
    fs::remove_file(&path).unwrap();
    // A link to a file that is somewhere else.
    let aside = rig.path("aside.json");
    fs::rename(&second, &aside).unwrap_or_else(|_| fs::write(&aside, &text).unwrap());
    let _ = fs::remove_file(&second);
    symlink(&aside, &path).unwrap();
    refused("a link");
    fs::remove_file(&path).unwrap();
    // Written by somebody else than the process's own user.
    fs::write(&path, &text).unwrap();
    chown(&path, Some(65_534), None).unwrap();
    let report = refused("another's");
    assert!(why_left(&report, left).contains("is another user's"), "{report:#}");
    records.change(&path, |r| r["members"][0]["fingerprint"]["uid"] = 65_534.into());
    refused("another's, who says that it is his");
    // Untouched it is believed.
    fs::remove_file(&path).unwrap();
    fs::write(&path, &text).unwrap();
    assert_eq!(ended(&timer(&rig, &records)), [left]);
}

#[test]
fn a_process_that_goes_on_as_another_program_is_not_the_one_that_leave_was_given_for() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let script = "import os, sys, time\n\
        rig = sys.argv[1]\n\
        for node in ('nvidia0', 'nvidiactl', 'nvidia-uvm'): os.set_inheritable(os.open(f'{rig}/dev/{node}', os.O_RDWR), True)\n\
        open(f'{rig}/left.new', 'w').write(str(os.getpid()))\n\
        os.replace(f'{rig}/left.new', f'{rig}/left')\n\
        while not os.path.exists(f'{rig}/go'): time.sleep(0.01)\n\
        os.execvp('sleep', ['sleep', '30'])\n";
    fs::write(rig.path("exec.py"), script).unwrap();
    let argv = ["setsid", "-f", "python3"].map(OsString::from).into_iter();
    let argv: Vec<OsString> = argv.chain([rig.path("exec.py").into(), rig.path("").into()]).collect();
    rig.launch(rig.check_of(&format!("--settle 2s --leave {}", records.option()), &argv)).wait();
    let left = rig.wait_for("left");
    rig.mark("go");
    wait_until("its exec", || fs::read_to_string(format!("/proc/{left}/comm")).unwrap().trim() == "sleep");
    let report = timer(&rig, &records);
    assert!(why_left(&report, left).contains("not as it was then: it runs another program now"), "{report:#}");
    assert!(alive(left));
    kill(left);
}

#[test]
fn a_place_that_others_could_have_changed_is_none() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let left = left_by_a_check(&rig, &records, "--leave");
    let place = records.path();
    let refused = |place: &Path, why: &str| {
        let end = rig.run(&format!("reclaim --unattended --all-users --yes --records {}", place.display()));
        let text = &end.expect_code(125).stderr;
        assert!(text.contains("nobody can give leave to be ended on this machine") && text.contains(why), "{text}");
        assert!(text.contains("sudo install -d -m 1733 "), "{text}");
        assert!(alive(left));
    };
    refused(&rig.path("nowhere"), "No such file");
    for mode in [0o777, 0o1777, 0o1755] {
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        refused(&place, if mode == 0o777 { "can rename what is not theirs" } else { "and not 1733" });
    }
    fs::set_permissions(&place, fs::Permissions::from_mode(0o1733)).unwrap();
    chown(place.parent().unwrap(), Some(65_534), None).unwrap();
    refused(&place, "belongs to user 65534, and not to root");
    chown(place.parent().unwrap(), Some(0), None).unwrap();
    let link = place.with_file_name("link");
    symlink(&place, &link).unwrap();
    refused(&link, "is no directory");
    assert_eq!(ended(&timer(&rig, &records)), [left]);
}

#[test]
fn other_users_give_leave_for_their_own_and_for_nobody_elses() {
    use std::os::unix::process::CommandExt as _;
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    if !Path::new("/usr/bin/python3").exists() {
        support::skipped("there is no Python that every user may run");
        return;
    }
    rig.open_to_everybody();
    let _roots = rig.start("alloc 0 1GiB ready roots hold");
    let roots = rig.wait_for("roots");
    let mut argv = rig.program("spawn-session { alloc 0 1GiB ready left hold } wait-file left");
    argv[0] = "/usr/bin/python3".into();
    let mut check = rig.check_of(&format!("--settle 1s --leave {}", records.option()), &argv);
    check.uid(65_534).gid(65_534).current_dir("/");
    rig.launch(check).wait().expect_code(121);
    let left = rig.wait_for("left");
    let (path, _) = records.only();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(&path).unwrap()), 65_534);
    // He cannot see who else has a record, and what is root's does not become his by naming it.
    let mut listing = rig.beside(&["ls".into(), records.path().into()]);
    listing.uid(65_534).gid(65_534);
    assert_ne!(rig.launch(listing).wait().code, Some(0));
    records.change(&path, |record| {
        let mut forged = record["members"][0].clone();
        forged["id"] = json!({"pid": roots, "start_ticks": start_ticks(roots)});
        record["members"].as_array_mut().unwrap().push(forged);
    });
    let end = rig.run(&format!("reclaim --unattended --yes --json {}", records.option()));
    assert!(why_left(&end.expect_code(0).json(), left).contains("belongs to"), "without --all-users");
    let report = timer(&rig, &records);
    assert_eq!(ended(&report), [left], "{report:#}");
    assert!(why_left(&report, roots).contains("is another user's"), "{report:#}");
    assert!(alive(roots));
}

/// What a timer with the site's policy runs.
fn idle_timer(rig: &Rig, records: &Records, least: &str) -> Value {
    let end =
        rig.run(&format!("reclaim --unattended --idle {least} --all-users --force --yes --json {}", records.option()));
    end.expect_code(0).json()
}

#[test]
fn what_has_been_idle_for_as_long_as_the_site_says_is_ended_where_that_is_switched_on() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    let left = |name: &str, what: &str| {
        rig.start(&format!("daemonize-twice {{ alloc 0 1GiB ready {name} {what} }} wait-file {name}")).wait();
        let pid = rig.wait_for(name);
        wait_until("its heir", || support::parent(pid).is_some_and(support::alive));
        pid
    };
    // Those that are stopped take no CPU time: one that may be ended, one whose launcher lives, one at a terminal.
    let idle = left("idle", "stop-self");
    let works = left("works", "busy 60");
    let _launcher = rig.start("spawn { alloc 0 1GiB ready launched stop-self } hold");
    let launched = rig.wait_for("launched");
    let script = "import pty, sys; pty.spawn(sys.argv[1:])";
    let session = rig.program("fork { fork { alloc 0 1GiB ready at-terminal stop-self } exit 0 } hold");
    let terminal: Vec<OsString> = ["python3", "-c", script].map(Into::into).into_iter().chain(session).collect();
    let terminal = rig.start_of(&terminal);
    let at_terminal = rig.wait_for("at-terminal");
    wait_until("the stop", || [idle, launched, at_terminal].into_iter().all(|pid| support::state(pid) == Some('T')));
    let others = [works, launched, at_terminal];
    let tty = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .unwrap()
            .rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .nth(4)
            .unwrap()
            .to_owned()
    };
    assert_eq!((tty(idle).as_str(), tty(at_terminal) == "0"), ("0", false));
    // A look alone says nothing, and neither do many that are not far enough apart.
    for _ in 0..3 {
        assert_eq!(idle_timer(&rig, &records, "1h")["steps"], json!([]));
    }
    assert_eq!(timer(&rig, &records)["steps"], json!([]), "nobody has switched it on");
    // The GPU works, for whomever.
    rig.edit_machine(|machine| machine["devices"][0]["utilization"] = 97.into());
    assert_eq!(idle_timer(&rig, &records, "0s")["steps"], json!([]));
    rig.edit_machine(|machine| machine["devices"][0]["utilization"] = 0.into());
    let mut report = idle_timer(&rig, &records, "1s");
    assert_eq!(report["steps"], json!([]), "it begins anew");
    wait_until("the policy to hold", || {
        report = idle_timer(&rig, &records, "1s");
        !ended(&report).is_empty()
    });
    assert_eq!(ended(&report), [idle], "{report:#}");
    let why = report["steps"][0]["why"][0].as_str().unwrap();
    assert!(
        why.starts_with("what started it is gone, it is at no terminal, and neither it nor its GPU has worked"),
        "{why}"
    );
    assert!(!alive(idle) && others.into_iter().all(alive));
    let state = records.path().with_file_name("idle.json");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(state).unwrap()), 0);
    others.into_iter().for_each(kill);
    drop(terminal);
}

#[test]
fn what_others_say_of_looks_is_not_believed() {
    let Some(records) = Records::new() else { return };
    let rig = Rig::new();
    rig.start("daemonize-twice { alloc 0 1GiB ready idle stop-self } wait-file idle").wait();
    let idle = rig.wait_for("idle");
    wait_until("the stop", || support::state(idle) == Some('T'));
    assert_eq!(idle_timer(&rig, &records, "1h")["steps"], json!([]));
    let state = records.path().with_file_name("idle.json");
    let mut look: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    assert_eq!(look["idle"][0]["id"]["pid"], idle, "{look:#}");
    look["idle"][0]["since"] = 0.into();
    fs::write(&state, look.to_string()).unwrap();
    chown(&state, Some(65_534), None).unwrap();
    assert_eq!(idle_timer(&rig, &records, "1s")["steps"], json!([]));
    assert!(alive(idle));
    kill(idle);
}
