//! The rig itself: a fake that is wrong would make every other test worthless.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod support;

use rustix::process::Signal;
use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use support::{Allocation, Inherit, Keeper, Rig, wait_until};

const MIB: u64 = 1 << 20;
/// What one context costs beside its own memory, as measured: 8.8125 MiB.
const ONE_CONTEXT: u64 = 141 << 16;

/// The listed `(pid, bytes)` of GPU 0 as this process sees them.
fn listed(rig: &Rig) -> Vec<(u32, Option<u64>)> {
    let machine = rig.ledger.machine().unwrap();
    let moment = rig.ledger.moment(&machine).unwrap();
    let mut sight = fake_nvml::ledger::Sight::own();
    moment.processes(&rig.ledger, 0, &mut sight).into_iter().map(|l| (l.pid, l.bytes)).collect()
}

/// Waits until keepers of this very process have let go. A child that another test starts at that moment has a copy of
/// them until it has become its program.
fn let_go(rig: &Rig, left: u64) {
    wait_until("keepers that were dropped", || rig.used(0) == left);
}

#[test]
fn memory_is_back_when_wait_returns() {
    let rig = Rig::new();
    for round in 0..10 {
        let up = format!("up{round}");
        let program = rig.start(&format!("alloc 0 1GiB ready {up} hold"));
        rig.wait_for(&up);
        assert_eq!(listed(&rig), [(program.pid(), Some(1542 * MIB))]);
        assert_eq!(rig.used(0), 1542 * MIB + ONE_CONTEXT);
        program.kill();
        assert_eq!((listed(&rig), rig.used(0)), (vec![], 0), "round {round}");
    }
}

#[test]
fn contexts_cost_what_was_measured() {
    let rig = Rig::new();
    let mut programs = Vec::new();
    for (n, cost) in [(1, 8.8125), (2, 14.375), (3, 19.9375)] {
        programs.push(rig.start(&format!("context 0 ready up{n} hold")));
        rig.wait_for(&format!("up{n}"));
        let sum: u64 = listed(&rig).into_iter().filter_map(|(_, bytes)| bytes).sum();
        assert_eq!((rig.used(0) - sum) as f64 / MIB as f64, cost);
    }
    let touched = Rig::new();
    let _program = touched.start("init ready up hold");
    touched.wait_for("up");
    assert_eq!((listed(&touched), touched.used(0)), (vec![], 13 << 18));
}

#[test]
fn managed_memory_is_used_but_not_listed() {
    let rig = Rig::new();
    let program = rig.start("managed 0 4GiB ready up hold");
    rig.wait_for("up");
    assert_eq!(listed(&rig), [(program.pid(), Some(520 * MIB))]);
    assert_eq!(rig.used(0), 4616 * MIB + ONE_CONTEXT);
}

#[test]
fn a_forked_copy_keeps_the_dead_parents_memory() {
    let rig = Rig::new();
    let parent = rig.start("alloc 0 1GiB fork { ready child wait-file close close-files ready closed hold } hold");
    let child = rig.wait_for("child");
    let ghost = parent.pid();
    parent.kill();
    assert_ne!(child, ghost);
    assert_eq!(listed(&rig), [(ghost, Some(1542 * MIB))]);
    rig.mark("close");
    rig.wait_for("closed");
    assert_eq!((listed(&rig), rig.used(0)), (vec![], 0), "closing the files gives the memory back, alive or not");
}

#[test]
fn exec_keeps_only_what_is_not_close_on_exec() {
    let rig = Rig::new();
    rig.start("alloc 0 1GiB exec-child").wait().expect_code(0);
    assert_eq!(rig.used(0), 0);
    rig.start("export-handle 0 4GiB").wait().expect_code(0);
    assert_eq!((listed(&rig), rig.used(0)), (vec![], 4096 * MIB + (13 << 18)));
}

#[test]
fn shared_memory_moves_to_the_consumer() {
    let rig = Rig::new();
    let producer = rig.start("ipc-produce 0 5GiB shared hold");
    let consumer = rig.start("ipc-consume shared ready up hold");
    rig.wait_for("up");
    assert!(listed(&rig).contains(&(consumer.pid(), Some(518 * MIB))));
    assert!(listed(&rig).contains(&(producer.pid(), Some(5638 * MIB))));
    producer.kill();
    assert_eq!(listed(&rig), [(consumer.pid(), Some(5638 * MIB))]);
    let maps = fs::read_to_string(format!("/proc/{}/maps", consumer.pid())).unwrap();
    assert!(maps.contains("/dev/shm/cuda.shm."), "{maps}");
    consumer.kill();
    assert_eq!(rig.used(0), 0);
}

#[test]
fn the_threads_keep_what_the_main_thread_opened() {
    let rig = Rig::new();
    let program = rig.start("alloc 0 1GiB exit-main-thread ready up hold");
    rig.wait_for("up");
    let state = || fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
    wait_until("the end of the main thread", || state().contains(") Z "));
    assert_eq!(fs::read_dir(format!("/proc/{}/fd", program.pid())).into_iter().flatten().count(), 0);
    assert_eq!(listed(&rig), [(program.pid(), Some(1542 * MIB))]);
    program.kill();
    assert_eq!(rig.used(0), 0);
}

#[test]
fn a_stopped_program_holds_and_a_zombie_does_not() {
    let rig = Rig::new();
    let program = rig.start("alloc 0 1GiB ready up stop-self");
    rig.wait_for("up");
    let stat = || fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
    wait_until("the stop", || stat().contains(") T "));
    assert_eq!(listed(&rig).len(), 1);
    program.signal(Signal::KILL);
    // It is not reaped yet.
    wait_until("its death", || stat().contains(") Z "));
    assert_eq!((listed(&rig), rig.used(0)), (vec![], 0));
}

#[test]
fn readers_at_the_same_time_agree() {
    let rig = Rig::new();
    let dead = Allocation { pid: Some(1), bytes: MIB, ..Allocation::default() };
    drop(Keeper::hold(&rig.ledger, "dead", &dead).unwrap());
    let alive = Allocation { pid: Some(2), bytes: 2 * MIB, ..Allocation::default() };
    let keeper = Keeper::hold(&rig.ledger, "alive", &alive).unwrap();
    let done = AtomicBool::new(false);
    let expected = 2 * MIB + ONE_CONTEXT;
    let_go(&rig, expected);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for _ in 0..4 {
            readers.push(scope.spawn(|| {
                for _ in 0..300 {
                    assert_eq!(rig.used(0), expected);
                }
            }));
        }
        // Meanwhile allocations come and go, and the text of one is replaced.
        scope.spawn(|| {
            let nothing = Allocation { device: 7, ..Allocation::default() };
            while !done.load(Ordering::Relaxed) {
                drop(Keeper::hold(&rig.ledger, "fleeting", &nothing).unwrap());
                rig.ledger.write("alive", &alive).unwrap();
            }
        });
        let results: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.into_iter().all(|r| r.is_ok()), "a reader saw something else");
    });
    drop(keeper);
    let_go(&rig, 0);
}

#[test]
fn a_copy_of_a_keeper_keeps_and_its_text_may_change() {
    let rig = Rig::new();
    let small = Allocation { pid: Some(9), bytes: MIB, ..Allocation::default() };
    let keeper = Keeper::hold(&rig.ledger, "a", &small).unwrap();
    // A child has a copy as its stdin and ends: of no consequence while the keeper has its own.
    let mut child = Command::new("true").stdin(keeper.copy().unwrap()).spawn().unwrap();
    child.wait().unwrap();
    assert_eq!(listed(&rig), [(9, Some(MIB))]);
    rig.alter("a", |a| a.bytes = 3 * MIB);
    assert_eq!(listed(&rig), [(9, Some(3 * MIB))]);
    let copy = keeper.copy().unwrap();
    drop(keeper);
    assert_eq!(listed(&rig), [(9, Some(3 * MIB))]);
    drop(copy);
    let_go(&rig, 0);
}

#[test]
fn memory_comes_back_late_in_steps() {
    let rig = Rig::new();
    rig.start("alloc 0 8GiB late 0 400:2GiB,1500:0").wait().expect_code(0);
    let first = rig.used(0);
    assert_eq!((listed(&rig), first), (vec![], 8710 * MIB + (13 << 18)));
    let mut seen = vec![first];
    wait_until("all of it", || {
        let used = rig.used(0);
        if seen.last() != Some(&used) {
            seen.push(used);
        }
        used == 0
    });
    assert_eq!(seen, [first, 2048 * MIB + (13 << 18), 0]);
}

#[test]
fn what_is_inherited_stays_away_while_the_other_lives() {
    let rig = Rig::new();
    let other = Keeper::hold(&rig.ledger, "other", &Allocation { bytes: MIB, ..Allocation::default() }).unwrap();
    let inherits = vec![Inherit { from: "other".into(), bytes: MIB }];
    rig.add("heir", Allocation { inherits, ..Allocation::default() });
    let before = rig.used(0);
    drop(other);
    assert_eq!(rig.used(0), before, "at no moment is it gone");
    assert_eq!(before, MIB + (13 << 18));
    rig.remove("heir");
    let_go(&rig, 0);
}

#[test]
fn namespaces_see_their_own() {
    let rig = Rig::new();
    if !Command::new("unshare").args(["-pf", "--mount-proc", "true"]).status().is_ok_and(|s| s.success()) {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: no new PID namespace can be made here\n");
        return;
    }
    let outside = rig.start("alloc 0 1GiB ready outside hold");
    rig.wait_for("outside");
    // The inner program keeps its copy alive through a fork, so that its entry becomes a ghost.
    let _inside = rig.start(
        "namespace { spawn { alloc 0 2GiB fork { ready copy hold } ready inside wait-file end } hold } wait-children",
    );
    let inner = rig.wait_for("inside");
    rig.wait_for("copy");
    let seen = |list: Vec<(u32, Option<u64>)>| -> Vec<_> { list.into_iter().map(|(pid, _)| pid).collect() };
    let here = seen(listed(&rig));
    let outer = *here.iter().find(|pid| **pid != outside.pid()).unwrap();
    assert_ne!(outer, inner, "the outer number is another one");
    let status = fs::read_to_string(format!("/proc/{outer}/status")).unwrap();
    assert!(status.lines().any(|l| l.starts_with("NSpid:") && l.ends_with(&format!("\t{inner}"))), "{status}");
    rig.mark("end");
    wait_until("the inner program's end", || {
        !fs::read_to_string(format!("/proc/{outer}/stat")).is_ok_and(|s| !s.contains(") Z "))
    });
    assert!(seen(listed(&rig)).contains(&outer), "the ghost keeps its outer number");
    assert!(rig.used(0) > 3072 * MIB);
}

#[test]
fn titles_and_environments_can_be_erased() {
    let rig = Rig::new();
    let program = rig.start("rename renamed settitle worker-7 ready up hold");
    rig.wait_for("up");
    let read = |file: &str| fs::read(format!("/proc/{}/{file}", program.pid())).unwrap();
    assert_eq!(read("comm"), b"renamed\n");
    assert!(read("cmdline").starts_with(b"worker-7"));
    assert!(read("environ").iter().all(|byte| *byte == 0), "{}", String::from_utf8_lossy(&read("environ")));
    let clean = rig.start("spawn-clean { ready clean hold } hold");
    let pid = rig.wait_for("clean");
    assert_eq!(fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
    drop(clean);
}

#[test]
fn device_files_are_as_many_as_measured() {
    let rig = Rig::with_gpus(2);
    let count = |pid: u32, node: &str| {
        let node = rig.dev().join(node);
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == node)).count()
    };
    for (verbs, expected) in [("nvml", [3, 3, 1, 2]), ("init", [7, 7, 2, 4]), ("context 1", [7, 23, 2, 4])] {
        let up = format!("up {verbs}").replace(' ', "-");
        let program = rig.start(&format!("{verbs} ready {up} hold"));
        rig.wait_for(&up);
        let nodes = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"];
        assert_eq!(nodes.map(|node| count(program.pid(), node)), expected, "{verbs}");
    }
}

#[test]
fn a_supervisor_starts_both_ranks_anew_and_a_rig_ends_everything() {
    let rig = Rig::new();
    let started = || {
        let log = fs::read_to_string(rig.ledger.directory().join("started.log")).unwrap();
        log.lines().map(|l| l.split(' ').next().unwrap().parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    let agent = rig.start("supervise 2 { context 0 hold }");
    wait_until("two ranks", || listed(&rig).len() == 2);
    let first: Vec<u32> = listed(&rig).into_iter().map(|(pid, _)| pid).collect();
    rustix::process::kill_process(rustix::process::Pid::from_raw(first[0] as i32).unwrap(), Signal::KILL).unwrap();
    wait_until("two new ranks", || {
        let now = listed(&rig);
        now.len() == 2 && now.iter().all(|(pid, _)| !first.contains(pid))
    });
    drop(agent);
    assert_eq!(listed(&rig).len(), 2, "the agent was killed, its ranks live on");
    let all = started();
    drop(rig);
    let deadline = Duration::from_secs(5);
    support::wait_until_for("the end of all", deadline, || {
        all.iter().all(|pid| {
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |s| s.contains(") Z ") || !s.contains("python"))
        })
    });
}

#[test]
fn programs_end_as_they_are_told() {
    let rig = Rig::new();
    rig.start("alloc 0 1GiB exit 3").wait().expect_code(3);
    rig.start("alloc 0 1GiB").wait().expect_code(0);
    rig.start("alloc 0 1GiB kill-self SEGV").wait().expect_signal(Signal::SEGV);
    rig.start("abort").wait().expect_signal(Signal::ABORT);
    rig.start("no-such-verb").wait().expect_code(98);
    assert_eq!(rig.start("print word exit 0").wait().stdout, "word\n");
    assert_eq!(rig.used(0), 0);
}

#[test]
fn survivors_live_on_in_their_own_way() {
    let rig = Rig::new();
    let session = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.split(' ').nth(3).unwrap().parse::<u32>().unwrap()
    };
    rig.start("daemonize-twice { alloc 0 1GiB ready daemon hold } wait-file daemon").wait().expect_code(0);
    rig.start("spawn-session { alloc 0 2GiB ready session hold } wait-file session").wait().expect_code(0);
    let copy = rig.start("alloc 0 3GiB fork-and-exit ready copy hold");
    let ghost = copy.pid();
    copy.wait().expect_code(0);
    let [daemon, leader, copy] = ["daemon", "session", "copy"].map(|marker| rig.wait_for(marker));
    assert_ne!(session(daemon), session(copy));
    assert_eq!(session(leader), leader);
    let mut expected = [(daemon, Some(1542 * MIB)), (leader, Some(2566 * MIB)), (ghost, Some(3590 * MIB))];
    expected.sort_unstable();
    let mut got = listed(&rig);
    got.sort_unstable();
    assert_eq!(got, expected);
}

#[test]
fn memory_grows_shrinks_and_may_be_unavailable() {
    let rig = Rig::new();
    let program =
        rig.start("alloc 0 2GiB ready a wait-file b free 0 1GiB lists 0 compute,mps unavailable 0 ready c hold");
    rig.wait_for("a");
    assert_eq!(listed(&rig), [(program.pid(), Some(2566 * MIB))]);
    rig.mark("b");
    rig.wait_for("c");
    assert_eq!((listed(&rig), rig.used(0)), (vec![(program.pid(), None)], 1542 * MIB + ONE_CONTEXT));
}

#[test]
fn another_user_can_run_programs() {
    if !rustix::process::geteuid().is_root() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: only root can become another user\n");
        return;
    }
    let rig = Rig::new();
    let program = rig.start("setuid 65534 alloc 0 1GiB ready up hold");
    rig.wait_for("up");
    assert_eq!(listed(&rig), [(program.pid(), Some(1542 * MIB))]);
    program.kill();
    assert_eq!(rig.used(0), 0);
}
