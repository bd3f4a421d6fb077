//! Who is never signalled: each rule with a real process that it is for, and one that looks like it and is none.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use gpuresid::{
    act::{
        guard::{self, Guard},
        refusal::Never,
    },
    model::{ProcId, Unit},
    observe::proc::{ProcOptions, ProcReader},
};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
};
use support::{ControlGroup, Rig, Running, skipped, wait_until};

/// The machine, seen as `reclaim` sees it.
fn look(rig: &Rig) -> (ProcReader, Guard) {
    let options = ProcOptions { dev: rig.dev(), run: rig.path("run"), ..ProcOptions::default() };
    let reader = ProcReader::new(options).unwrap();
    let guard = Guard::new(&reader, &[]).unwrap();
    (reader, guard)
}

/// What is said of this process.
fn told(rig: &Rig, pid: u32) -> Result<(), Never> {
    let (reader, guard) = look(rig);
    guard.never(&reader.examine(pid).unwrap().unwrap())
}

/// A Python program with a GPU open that says `up` when it is where it is to be, and stays.
fn program(rig: &Rig, name: &str, body: &str) -> (Running, u32) {
    let script = format!(
        "import ctypes, os, pty, signal, socket, subprocess, sys, time\n\
         gpu = os.open({dev:?}, os.O_RDWR)\n{body}\n\
         open({up:?} + '.part', 'w').write(str(os.getpid()))\n\
         os.rename({up:?} + '.part', {up:?})\nsignal.pause()\n",
        dev = rig.dev().join("nvidia0"),
        up = rig.path(name),
    );
    let running = rig.start_of(&["python3", "-c", &script].map(OsString::from));
    (running, rig.wait_for(name))
}

#[test]
fn every_rule_stands_in_the_table_once_and_has_its_test() {
    // The name of a rule, and the test of it here or elsewhere.
    let tested = [
        ("PID 1", "the_first_process_the_kernels_and_our_own_are_spared"),
        ("ourselves", "the_first_process_the_kernels_and_our_own_are_spared"),
        ("our ancestors", "the_first_process_the_kernels_and_our_own_are_spared"),
        ("kernel threads", "the_first_process_the_kernels_and_our_own_are_spared"),
        ("below a container's supervisor", "a_containers_first_process_is_spared"),
        ("PID 1 of its namespace", "a_containers_first_process_is_spared"),
        ("other namespaces", "a_containers_first_process_is_spared"),
        ("known names", "names_only_add_to_it"),
        ("what sessions hang on", "whoever_keeps_a_terminal_a_console_or_a_display_is_spared"),
        ("main processes of services", "the_main_process_is_who_systemd_says_it_is"),
        ("managers of others", "a_manager_is_spared_for_the_sake_of_those_who_were_not_named"),
        ("who only watches", "a_monitor_is_spared"),
        ("MPS with clients of others", "a_server_of_mps_is_not_ended_under_its_clients"),
    ];
    assert!(guard::rules().eq(tested.iter().map(|(rule, _)| *rule)), "{:?}", guard::rules().collect::<Vec<_>>());
    let sources = [include_str!("never.rs"), include_str!("reclaim.rs")].concat();
    for (rule, test) in tested {
        assert!(sources.contains(&format!("\nfn {test}() {{")), "{rule}: there is no test {test}");
    }
}

#[test]
fn the_first_process_the_kernels_and_our_own_are_spared() {
    let rig = Rig::new();
    assert_eq!(told(&rig, 1), Err(Never::Init));
    assert_eq!(told(&rig, std::process::id()), Err(Never::Ourselves));
    assert_eq!(told(&rig, std::os::unix::process::parent_id()), Err(Never::OurAncestor));
    let (reader, guard) = look(&rig);
    let kthreadd = reader.examine(2).unwrap().filter(|process| reader.is_of_kernel(process.id));
    match kthreadd {
        Some(thread) => assert_eq!(guard.never(&thread), Err(Never::Kernel)),
        None => skipped("no thread of the kernel is to be seen here"),
    }
    let (_plain, plain) = program(&rig, "plain", "");
    assert_eq!(told(&rig, plain), Ok(()));
    // One that calls itself a thread of the kernel is none.
    let (_titled, titled) = program(&rig, "titled", "ctypes.CDLL(None).prctl(15, b'kworker/0:1', 0, 0, 0)");
    assert_eq!(told(&rig, titled), Ok(()));
}

#[test]
fn a_containers_first_process_is_spared() {
    let rig = Rig::new();
    let shim = "ctypes.CDLL(None).prctl(15, b'conmon', 0, 0, 0)\n\
                if os.fork(): signal.pause()\n\
                ctypes.CDLL(None).prctl(15, b'python3', 0, 0, 0)";
    let (_shim, main) = program(&rig, "main", shim);
    assert_eq!(told(&rig, main), Err(Never::ContainerMain));
    if !rustix::process::geteuid().is_root() {
        return skipped("a namespace needs root");
    }
    let _inside = rig.start("namespace { alloc 0 1GiB ready inside hold } wait-children");
    rig.wait_for("inside");
    let holders = rig.run("status --json").json()["holders"].clone();
    let outer = u32::try_from(holders[0]["pid"].as_u64().unwrap()).unwrap();
    let said = told(&rig, outer);
    assert!(matches!(said, Err(Never::ContainerMain | Never::OtherNamespace)), "{said:?}");
    // What a command of ours has made a namespace for ends with it.
    let (reader, guard) = look(&rig);
    assert_eq!(guard.never_of_our_run(&reader.examine(outer).unwrap().unwrap()), Ok(()));
}

#[test]
fn names_only_add_to_it() {
    let rig = Rig::new();
    let named = |name: &str| {
        let (_running, pid) = program(&rig, name, &format!("ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)"));
        told(&rig, pid)
    };
    assert_eq!(named("Xorg"), Err(Never::Display));
    assert_eq!(named("sshd"), Err(Never::Sessions));
    assert_eq!(named("Xorgan"), Ok(()));
}

#[test]
fn whoever_keeps_a_terminal_a_console_or_a_display_is_spared() {
    let rig = Rig::new();
    let said = |name: &str, body: &str| {
        let (_running, pid) = program(&rig, name, body);
        told(&rig, pid)
    };
    // By no name that anybody knows: tmux, screen, sshd, Jupyter's and an editor's terminals.
    assert_eq!(said("keeper", "ours, theirs = pty.openpty()"), Err(Never::Terminals));
    assert_eq!(
        said("in_a_thread", "import threading\nthreading.Thread(target=pty.openpty).start()"),
        Err(Never::Terminals)
    );
    // Who works in one keeps none.
    assert_eq!(said("worker", "ours, theirs = pty.openpty(); os.dup2(theirs, 0); os.close(ours)"), Ok(()));
    let listen = |path: &str| format!("s = socket.socket(socket.AF_UNIX); s.bind({path:?}); s.listen()");
    let wayland = rig.path("wayland-7").display().to_string();
    assert_eq!(said("compositor", &listen(&wayland)), Err(Never::DisplaySocket("wayland-7".into())));
    let plain = rig.path("plain.sock").display().to_string();
    assert_eq!(said("server", &listen(&plain)), Ok(()));
    // A window on that display, whose connection bears the same name on the other side.
    let wayland = rig.path("wayland-8").display().to_string();
    let listener = UnixListener::bind(&wayland).unwrap();
    assert_eq!(said("window", &format!("s = socket.socket(socket.AF_UNIX); s.connect({wayland:?})")), Ok(()));
    drop(listener);
    if fs::File::options().read(true).write(true).open("/dev/tty1").is_err() {
        return skipped("the console cannot be opened here");
    }
    let open = "os.open('/dev/tty1', os.O_RDWR | os.O_NOCTTY)";
    assert_eq!(said("console", &format!("for _ in range(4): {open}")), Err(Never::Console("tty1".into())));
    assert_eq!(said("started_there", &format!("os.dup2({open}, 0); os.closerange(gpu + 1, 20)")), Ok(()));
}

/// A bus that says of every service that this is its main process.
fn bus(run: &Path, main: u32) {
    let place = run.join("dbus");
    fs::create_dir_all(&place).unwrap();
    let listener = UnixListener::bind(place.join("system_bus_socket")).unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| answer(stream, main)));
}

fn answer(mut stream: UnixStream, main: u32) {
    let mut heard = Vec::new();
    let mut hear = |stream: &mut UnixStream, end: &[u8]| {
        let mut byte = [0];
        while !heard.ends_with(end) && stream.read(&mut byte).is_ok_and(|n| n > 0) {
            heard.push(byte[0]);
        }
    };
    hear(&mut stream, b"\r\n");
    stream.write_all(b"OK 0\r\n").unwrap();
    hear(&mut stream, b"MainPID\0");
    let mut reply = vec![b'l', 2, 0, 1, 8, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 5, 1, b'u', 0, 2, 0, 0, 0, 1, b'u', 0, 0];
    reply.extend(main.to_le_bytes());
    stream.write_all(&reply).unwrap();
}

fn service(name: &str) -> Unit {
    Unit { name: name.into(), of_user: false }
}

#[test]
fn the_main_process_is_who_systemd_says_it_is() {
    if !rustix::process::geteuid().is_root() {
        return skipped("a control group needs root");
    }
    let Some(unit) = ControlGroup::new("gpuresid-never.service") else { return };
    let rig = Rig::new();
    // What an earlier run of the service left, and the service itself: nothing but systemd tells them apart.
    rig.start("daemonize-twice { alloc 0 1GiB ready left hold } wait-file left").wait().expect_code(0);
    let left = rig.wait_for("left");
    rig.start("daemonize-twice { alloc 0 1GiB ready main hold } wait-file main").wait().expect_code(0);
    let main = rig.wait_for("main");
    wait_until("PID 1 to adopt", || [left, main].into_iter().all(|pid| support::parent(pid) == Some(1)));
    [left, main].into_iter().for_each(|pid| unit.add(pid));
    let may_be = Err(Never::MayBeUnitMain(service("gpuresid-never.service")));
    assert_eq!((told(&rig, left), told(&rig, main)), (may_be.clone(), may_be.clone()), "systemd is not there");
    bus(&rig.path("run"), main);
    let is = Err(Never::UnitMain(service("gpuresid-never.service")));
    assert_eq!((told(&rig, left), told(&rig, main)), (Ok(()), is));
    // A number of another namespace is nobody's here.
    fs::remove_dir_all(rig.path("run")).unwrap();
    bus(&rig.path("run"), std::process::id());
    assert_eq!((told(&rig, left), told(&rig, main)), (may_be.clone(), may_be));
}

#[test]
fn a_main_process_in_a_group_of_its_own_below_its_service_is_one() {
    if !rustix::process::geteuid().is_root() {
        return skipped("a control group needs root");
    }
    let Some(unit) = ControlGroup::new("gpuresid-split.service") else { return };
    let rig = Rig::new();
    rig.start("daemonize-twice { alloc 0 1GiB ready main hold } wait-file main").wait().expect_code(0);
    rig.start("daemonize-twice { alloc 0 1GiB ready left hold } wait-file left").wait().expect_code(0);
    let (main, left) = (rig.wait_for("main"), rig.wait_for("left"));
    wait_until("PID 1 to adopt", || [main, left].into_iter().all(|pid| support::parent(pid) == Some(1)));
    let (supervisor, worker) = (unit.below("supervisor"), unit.below("worker"));
    supervisor.add(main);
    worker.add(left);
    let may_be = Err(Never::MayBeUnitMain(service("gpuresid-split.service")));
    let is = Err(Never::UnitMain(service("gpuresid-split.service")));
    for said in [told(&rig, main), told(&rig, left)] {
        assert!(said == may_be || said == is, "systemd is not there, so that each of them may be it: {said:?}");
    }
    bus(&rig.path("run"), main);
    assert_eq!((told(&rig, left), told(&rig, main)), (Ok(()), is));
    // These before the one that they are in.
    drop((supervisor, worker));
}

#[test]
fn a_manager_is_spared_for_the_sake_of_those_who_were_not_named() {
    let rig = Rig::new();
    let body = "os.close(gpu)\nfor n in ['300', '301']: subprocess.Popen(['sleep', n])";
    let (_manager, manager) = program(&rig, "manager", body);
    let (reader, guard) = look(&rig);
    let process = |pid: u32| reader.examine(pid).unwrap().unwrap();
    let it = process(manager);
    assert_eq!(support::children(manager).len(), 2);
    let named =
        |pids: &[u32]| guard.among(pids.iter().map(|pid| process(*pid).id).collect::<BTreeSet<ProcId>>(), false);
    let [one, other] = support::children(manager)[..] else { panic!("two children") };
    let spared = |guard: Guard| match guard.never(&it) {
        Err(Never::Manages { pid, more, .. }) => Some((pid, more)),
        Ok(()) => None,
        Err(never) => panic!("{never}"),
    };
    assert_eq!(spared(named(&[manager])), Some((one.min(other), 1)));
    assert_eq!(spared(named(&[one])), Some((other, 0)));
    assert_eq!(spared(named(&[one, other])), None);
    // Who has a GPU open is ended for its memory, whoever it started.
    let (_holder, holder) = program(&rig, "holder", "subprocess.Popen(['sleep', '302'])");
    assert_eq!(guard.never(&process(holder)), Ok(()));
}

#[test]
fn a_monitor_is_spared() {
    let rig = Rig::new();
    let _monitor = rig.start("nvml ready monitor hold");
    let _holder = rig.start("alloc 0 1GiB ready holder hold");
    let (monitor, holder) = (rig.wait_for("monitor"), rig.wait_for("holder"));
    let end = rig.run(&format!("reclaim --pid {monitor} --yes --force"));
    let why = "it only watches the GPU, as a monitor does: it holds no memory there, and no list has it";
    assert!(end.expect_code(125).stderr.contains(why), "{}", end.stderr);
    rig.run(&format!("reclaim --pid {holder} --yes")).expect_code(0);
    assert!(support::alive(monitor) && !support::alive(holder));
}
