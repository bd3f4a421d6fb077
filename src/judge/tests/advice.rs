//! What is advised and what is not: to whom a remedy is given, what a step says that it gives back, and whom no step ends.

use super::{
    build::{COMMAND, ROOT, ancestor, entry, id, launch, look, observation, snapshot},
    causes::{MIB, commands, cuda, holder, init, listed, listed_beside, mps_server, one, rank, run, shell},
};
use crate::{
    judge::{judge, status},
    model::{Ancestor, Cause, DeviceLook, Entry, Lineage, ListKind, Process, ProcessState, Report, Scope, Verdict},
};

fn below_us() -> Vec<Ancestor> {
    vec![ancestor(ROOT, "gpuresid"), ancestor(id(1, 0), "init")]
}

/// What a run left, judged: these looks and processes at its end.
fn left(look: DeviceLook, processes: Vec<Process>) -> Report {
    let during = (look.clone(), processes.clone());
    run(snapshot(listed(&[]), Vec::new()), &[during], snapshot(look, processes))
}

/// What is new between two snapshots.
fn compared(look: DeviceLook, processes: Vec<Process>, above_us: &[Ancestor]) -> Report {
    let mut after = snapshot(look, processes);
    after.observer.ancestors = above_us.iter().map(|a| a.id).collect();
    let mut launch = launch(COMMAND, ROOT, Scope::New, false);
    (launch.command, launch.root, launch.all_gone) = (None, None, None);
    judge(&observation(snapshot(listed(&[]), Vec::new()), Default::default(), after, launch))
}

fn advised(report: &Report) -> Vec<&str> {
    report.advice.iter().filter_map(|a| a.command.as_deref()).collect()
}

fn called(mut process: Process, comm: &str, argv: &[&str]) -> Process {
    (process.comm, process.argv) = (comm.into(), argv.iter().map(|a| (*a).to_owned()).collect());
    process
}

#[test]
fn a_living_owners_remedy_is_not_given_to_who_has_lost_it() {
    for (comm, argv, owner, way) in [
        ("ollama", &["/usr/bin/ollama", "runner", "--model", "m"][..], "ollama", "ollama ps"),
        ("ray::f", &["ray::f"], "raylet", "ray stop"),
        ("python", &["python", "-m", "ipykernel_launcher", "-f", "/r/k.json"], "jupyter-lab", "python3 -c"),
    ] {
        let below = |above: Vec<Ancestor>| called(cuda(72, above), comm, argv);
        let orphan = left(listed(&[(72, 4000)]), vec![below(below_us())]);
        assert_eq!(advised(&orphan), ["kill 72"], "{comm}");
        let note = holder(&orphan.holders, 72).note.clone().unwrap_or_default();
        assert!(note.ends_with("is gone, so nothing uses it or ends it any more"), "{note}");
        let mut above = below_us();
        above.insert(0, ancestor(id(60, 59_000), owner));
        let served = left(listed(&[(72, 4000)]), vec![below(above)]);
        assert!(advised(&served)[0].starts_with(way), "{:?}", served.advice);
        // After the fact too, whoever has adopted it.
        for heir in ["init", "systemd", "tini"] {
            let left = below(vec![ancestor(id(9, 4), heir), ancestor(id(1, 0), "init")]);
            let report = one(Process { state: ProcessState::Stopped, ..left }, 4000);
            assert_eq!(commands(&report), ["kill -CONT 72", "kill 72; kill -CONT 72"], "{comm} below {heir}");
        }
        assert_ne!(holder(&one(below(init()), 4000).holders, 72).ends_with.as_deref(), Some(way));
    }
}

#[test]
fn a_server_of_mps_without_its_daemon_is_ended_and_nobody_is_told_to_quit() {
    let client = Entry { lists: vec![ListKind::Compute, ListKind::Mps], ..entry(81, Some(600 * MIB)) };
    let both = || look(680 * MIB, vec![entry(80, Some(66 * MIB)), client.clone()]);
    let told = |above: Vec<Ancestor>| {
        let client = cuda(81, vec![ancestor(COMMAND, "python3"), ancestor(ROOT, "gpuresid")]);
        left(both(), vec![mps_server(above), client])
    };
    let of_server = |report: &Report| {
        let step = report.advice.iter().find(|a| !a.command.as_deref().unwrap_or_default().contains("81"));
        (holder(&report.holders, 80).cause, step.cloned().unwrap())
    };
    let (cause, step) = of_server(&told(below_us()));
    assert_eq!((cause, step.command.as_deref()), (Cause::MpsServer, Some("kill 80")));
    let mut above = below_us();
    above.insert(0, ancestor(id(79, 59_000), "nvidia-cuda-mps"));
    let (cause, step) = of_server(&told(above));
    assert_eq!((cause, step.command.as_deref()), (Cause::MpsServer, Some("echo quit | nvidia-cuda-mps-control")));
    assert_eq!(step.disturbs, "every program that uses the GPU through MPS: now PID 81");
}

#[test]
fn a_unit_is_stopped_for_its_main_process_only() {
    let told = |unit: &str, leads: Option<bool>| {
        let mut left = rank(70, init());
        (left.cgroup, left.leads_unit) = (Some(format!("/system.slice/{unit}")), leads);
        let report = one(left, 4000);
        assert_eq!(holder(&report.holders, 70).cause, Cause::Orphan);
        commands(&report).into_iter().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told("train.service", Some(true)), ["systemctl stop train.service"]);
    let alone = ["gpuresid reclaim --pid 70"];
    assert_eq!(told("train.service", Some(false)), alone, "the service works on without it");
    for runner in ["actions.runner.o-r.host.service", "gitlab-runner.service", "buildkite-agent@1.service"] {
        for leads in [Some(false), Some(true), None] {
            assert_eq!(told(runner, leads), alone, "{runner}");
        }
    }
}

#[test]
fn what_gpuresid_runs_in_is_in_no_advice() {
    // A shell, a snapshot, something left in the background, a diff.
    let report = compared(listed(&[(70, 4000)]), vec![cuda(70, shell())], &shell());
    assert_eq!((report.verdict, holder(&report.holders, 70).cause), (Verdict::Residue, Cause::StillRunning));
    assert_eq!(advised(&report), ["kill 70"]);
    assert!(!report.advice[0].why.contains("bash"), "{:?}", report.advice);
    // Anybody else's parent is named, and not to be ended before it is seen to be needed.
    let report = compared(listed(&[(70, 4000)]), vec![cuda(70, shell())], &[]);
    let why = &report.advice[0].why;
    assert!(why.ends_with("; should it be started again, end what starts it first: bash (300)"), "{why}");
    // A test that calls gpuresid has the GPU open itself, and may be a rank.
    let tests = ancestor(id(70, 50_070), "pytest");
    let mut above: Vec<_> = std::iter::once(tests).chain(shell()).collect();
    let report = compared(listed(&[(70, 4000)]), vec![cuda(70, shell())], &above);
    assert_eq!(advised(&report), [""; 0]);
    assert!(report.advice[0].why.starts_with("gpuresid was started from PID 70"), "{:?}", report.advice);
    let agent = ancestor(id(65, 6), "pt_elastic");
    above.push(agent.clone());
    let report = compared(listed(&[(71, 4000)]), vec![rank(71, vec![agent])], &above);
    assert_eq!(advised(&report), ["kill 71"], "its agent is above us");
    // After the fact.
    let mut now = snapshot(listed(&[(70, 4000)]), vec![cuda(70, init())]);
    now.observer.ancestors = vec![id(70, 50_070)];
    assert_eq!(commands(&status(&now)), [""; 0]);
}

#[test]
fn what_a_step_gives_back_is_what_is_charged() {
    // Managed memory: the list says what its context takes.
    let managed = || cuda(71, below_us());
    let report = left(listed_beside(3071, &[(71, 518)]), vec![managed()]);
    let charged = report.devices[0].charged_residue_bytes;
    assert!(report.advice[0].why.contains(&format!("give back {charged}")), "{charged} {:?}", report.advice);
    assert_eq!(charged.to_string(), "3589 MiB");
    // Of two that can keep it nobody knows.
    let report = left(listed_beside(3071, &[(71, 518), (72, 518)]), vec![managed(), cuda(72, below_us())]);
    assert!(report.advice.iter().all(|a| !a.why.contains("3589 MiB")), "{:?}", report.advice);
    assert!(report.advice[0].why.contains("give back 518 MiB"), "{:?}", report.advice);
}

#[test]
fn a_step_that_ends_several_names_all_and_their_amounts() {
    let ranks = |pids: std::ops::Range<u32>| {
        let above = || {
            let mut above = below_us();
            above.insert(0, ancestor(id(65, 49_000), "pt_elastic"));
            above
        };
        let rows: Vec<_> = pids.clone().map(|pid| (pid, u64::from(pid) * 10)).collect();
        left(listed(&rows), pids.map(|pid| rank(pid, above())).collect())
    };
    let step =
        |report: &Report| report.advice.iter().find(|a| a.command.as_deref() == Some("kill 65")).cloned().unwrap();
    let two = step(&ranks(70..72)).why;
    assert!(two.ends_with(" (PID 71 gives back 710 MiB, PID 70 gives back 700 MiB; 1410 MiB together)"), "{two}");
    let one = step(&ranks(70..71)).why;
    assert!(one.ends_with(" (PID 70 gives back 700 MiB)"), "{one}");
    let many = step(&ranks(70..75)).why;
    assert!(many.ends_with(" (5 processes give back 3600 MiB: PID 74, 73, 72, 71, 70)"), "{many}");
}

#[test]
fn a_new_process_below_who_adopts_was_not_started_by_it() {
    for heir in [id(1, 0), id(9, 4)] {
        let mut adopted = cuda(70, vec![ancestor(heir, "systemd")]);
        let report = compared(listed(&[(70, 4000)]), vec![adopted.clone()], &[]);
        let held = holder(&report.holders, 70);
        assert_eq!((held.cause, held.lineage, &held.launcher), (Cause::Detached, Lineage::Own, &None));
        assert!(!held.why.sentences().join(" ").contains("still runs"), "{:?}", held.why);
        assert_eq!(advised(&report), ["gpuresid reclaim --pid 70"]);
        // With a proof it is what it is anywhere else.
        adopted = rank(70, adopted.ancestors);
        let report = compared(listed(&[(70, 4000)]), vec![adopted], &[]);
        assert_eq!(holder(&report.holders, 70).cause, Cause::Orphan);
        assert_eq!(advised(&report), ["kill 70"]);
    }
    // Whoever inherits without a known name has a session that is not the process's.
    let mut parent = ancestor(id(9, 4), "any-subreaper");
    parent.sid = Some(9);
    let adopted = Process { sid: 60, ..cuda(70, vec![parent]) };
    let report = compared(listed(&[(70, 4000)]), vec![adopted], &[]);
    let held = holder(&report.holders, 70);
    assert_eq!(held.cause, Cause::Detached);
    assert!(
        held.why[0].to_string().ends_with("its parent is any-subreaper (9), which did not start it and has adopted it")
    );
    // Below a check that watched it, that is its end.
    let mut above = below_us();
    above.insert(0, Ancestor { sid: Some(9), ..ancestor(id(60, 59_000), "any-subreaper") });
    let report = left(listed(&[(70, 4000)]), vec![Process { sid: 60, ..cuda(70, above) }]);
    assert_eq!(holder(&report.holders, 70).cause, Cause::Orphan);
}

#[test]
fn many_that_are_alike_are_ended_by_one_command() {
    let all: Vec<Process> = (70..75).map(|pid| cuda(pid, below_us())).collect();
    let rows: Vec<(u32, u64)> = (70..75).map(|pid| (pid, 1000)).collect();
    let report = left(listed(&rows), all.clone());
    assert_eq!(advised(&report)[0], "kill 70 71 72 73 74");
    let step = &report.advice[0];
    assert!(step.why.starts_with("end what outlived its run, 5 processes and give back 5000 MiB"), "{step:?}");
    assert_eq!(step.disturbs, "PID 70-74 (5 × python3 train.py)");
    // Who does nothing on a plain kill has a step of its own, and three stand one by one.
    let mut mixed = all.clone();
    mixed[0].on_sigterm = Some(crate::model::OnSigterm::Ignores);
    assert_eq!(advised(&left(listed(&rows), mixed))[..2], ["kill 71 72 73 74", "kill -KILL 70"]);
    let few = left(listed(&rows[..3]), all[..3].to_vec());
    assert_eq!(advised(&few), ["kill 70", "kill 71", "kill 72"]);
}
