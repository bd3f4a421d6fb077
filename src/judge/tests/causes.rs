//! Every cause and the advice for it, on looks made by hand: one test a cause, each with what looks like it and is not.

use super::build::{COMMAND, NOISE, ROOT, ancestor, entry, files, id, launch, look, observation, process, snapshot};
use crate::{
    judge::{fold::Fold, judge, status, status_of_all},
    model::{
        Addressing, Ancestor, Blocked, BlockedThread, Bytes, Cause, DeviceLook, Entry, FindingKind, Holder, Lineage,
        ListKind, Look, NumaMemory, Observation, OnSigterm, Process, ProcessState, Report, Scope, Snapshot,
        StatusReport, Uninspected, Verdict,
    },
};

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn init() -> Vec<Ancestor> {
    vec![ancestor(id(1, 0), "init")]
}

pub(super) fn shell() -> Vec<Ancestor> {
    vec![ancestor(id(300, 1), "bash"), ancestor(id(1, 0), "init")]
}

/// A CUDA process with a context.
pub(super) fn cuda(pid: u32, above: Vec<Ancestor>) -> Process {
    process(id(pid, 50_000 + u64::from(pid)), above, Some(files(23, 2, 4)))
}

/// A look at processes that are listed with so many MiB.
pub(super) fn listed(rows: &[(u32, u64)]) -> DeviceLook {
    listed_beside(0, rows)
}

/// The same with memory that no list explains.
pub(super) fn listed_beside(excess_mib: u64, rows: &[(u32, u64)]) -> DeviceLook {
    let sum: u64 = rows.iter().map(|(_, mib)| mib * MIB).sum();
    let cost = if rows.is_empty() { 0 } else { (13 << 18) + (89 << 16) * rows.len() as u64 };
    look(sum + cost + excess_mib * MIB, rows.iter().map(|(pid, mib)| entry(*pid, Some(mib * MIB))).collect())
}

pub(super) fn one(process: Process, mib: u64) -> StatusReport {
    status(&snapshot(listed(&[(process.id.pid, mib)]), vec![process]))
}

pub(super) fn holder(holders: &[Holder], pid: u32) -> &Holder {
    holders.iter().find(|h| h.pid == pid).unwrap_or_else(|| panic!("{pid} is not named: {holders:#?}"))
}

fn cause_of(report: &StatusReport, pid: u32) -> Cause {
    holder(&report.holders, pid).cause
}

/// What is advised where somebody seems left over and may work all the same.
const PLAN: &str = "gpuresid reclaim --pid 70";

pub(super) fn commands(report: &StatusReport) -> Vec<&str> {
    // The plan for everybody at once stands beside the steps for each.
    let own_plan = |c: &&str| *c != "gpuresid reclaim --orphans";
    report.advice.iter().filter_map(|a| a.command.as_deref()).filter(own_plan).collect()
}

/// A run with these looks between and after, judged.
pub(super) fn run(before: Snapshot, looks: &[(DeviceLook, Vec<Process>)], after: Snapshot) -> Report {
    run_in_company(before, looks, after, false)
}

/// The same; `company`: others' orphans may stand below the tool too.
fn run_in_company(before: Snapshot, looks: &[(DeviceLook, Vec<Process>)], after: Snapshot, company: bool) -> Report {
    let mut fold = Fold::new(&before, Scope::Run, Some(ROOT), NOISE).of_command(COMMAND, "run");
    for (at, (look, processes)) in (1..).zip(looks) {
        for process in processes {
            fold.remember(process, at * 100);
        }
        fold.look(&Look { at_ms: at * 100, devices: vec![look.clone()] }, false);
    }
    let last = after.devices[0].look.clone();
    fold.look(&Look { at_ms: 100_000, devices: vec![last] }, true);
    let mut launch = launch(COMMAND, ROOT, Scope::Run, false);
    launch.company = company;
    let own = |p: &&Process| p.ancestors.iter().any(|a| a.id == ROOT);
    launch.survivors = after.scanned().iter().filter(own).map(|p| p.id).collect();
    launch.all_gone = Some(launch.survivors.is_empty());
    judge(&observation(before, fold.finish(), after, launch))
}

fn blocked(channel: &str, states: &[(ProcessState, u32)]) -> Option<Blocked> {
    let thread = BlockedThread { tid: 71, wait_channel: Some(channel.into()), waits_for: None };
    Some(Blocked { watched_ms: 300, threads: vec![thread], states: states.to_vec() })
}

#[test]
fn stuck_in_the_kernel_comes_before_all_others() {
    let states = [(ProcessState::Sleeping, 2), (ProcessState::DiskSleep, 1)];
    let mut killed = cuda(70, init());
    (killed.dying, killed.kill_pending) = (true, true);
    assert_eq!(cause_of(&one(killed.clone(), 4000), 70), Cause::Draining, "it may yet go");
    killed.blocked = blocked("uvm_va_space_destroy", &states);
    let report = one(killed, 4000);
    assert_eq!(cause_of(&report, 70), Cause::StuckInKernel);
    let why = holder(&report.holders, 70).why.sentences().join("\n");
    assert!(why.contains("2 sleeping, 1 in the kernel (D)") && why.contains("NVIDIA driver"), "{why}");
    let last = report.advice.last().unwrap();
    assert!(
        last.command.is_none() && last.why.contains("cannot be reset while"),
        "the last resort has its reason: {last:?}"
    );
    assert!(commands(&report).iter().all(|c| !c.starts_with("kill")), "a second SIGKILL does nothing");

    let mut hung = cuda(70, shell());
    (hung.state, hung.blocked) = (ProcessState::DiskSleep, blocked("rpc_wait_bit_killable", &states));
    let report = one(hung.clone(), 4000);
    assert_eq!((cause_of(&report, 70), commands(&report)), (Cause::StuckInKernel, vec!["kill -KILL 70"]));
    assert!(report.advice[0].why.contains("NFS"), "{:?}", report.advice);
    // A slow disk is no trouble.
    hung.blocked = blocked("io_schedule", &states);
    assert_eq!(cause_of(&one(hung, 4000), 70), Cause::InUse);
}

#[test]
fn who_holds_it_stopped_is_said() {
    let mut traced = cuda(70, shell());
    (traced.state, traced.tracer) = (ProcessState::Traced, Some(ancestor(id(60, 6), "cuda-gdb")));
    let report = one(traced, 4000);
    assert_eq!(cause_of(&report, 70), Cause::Stopped);
    assert!(holder(&report.holders, 70).why[0].to_string().contains("cuda-gdb (60)"));
    assert!(report.advice[0].why.contains("detach") && commands(&report).is_empty(), "CONT does nothing here");

    let mut paused = cuda(70, shell());
    paused.wait_channel = Some("do_freezer_trap".into());
    paused.cgroup = Some(format!("/docker/{}", "ab".repeat(32)));
    let report = one(paused, 4000);
    assert_eq!((cause_of(&report, 70), commands(&report)), (Cause::Stopped, vec!["docker unpause abababababab"]));
}

#[test]
fn a_consumer_keeps_what_its_producer_lost() {
    let above = vec![ancestor(ROOT, "gpuresid")];
    let mut consumer = cuda(72, above.clone());
    consumer.shared_mappings = vec!["/dev/shm/cuda.shm.0.47.1".into()]; // 0x47 is 71.
    let producer = cuda(71, above);
    let during = (listed(&[(71, 5730), (72, 518)]), vec![producer, consumer.clone()]);
    let told = |consumer: Process| {
        run(
            snapshot(listed(&[]), Vec::new()),
            std::slice::from_ref(&during),
            snapshot(listed(&[(72, 5638)]), vec![consumer]),
        )
    };
    let report = told(consumer.clone());
    let held = holder(&report.holders, 72);
    assert_eq!((held.cause, report.verdict), (Cause::PeerMapping, Verdict::Residue));
    assert!(
        held.why[0].to_string().contains("PID 71") && held.why[0].to_string().contains("5730 MiB"),
        "{:?}",
        held.why
    );
    assert_eq!(report.advice.iter().filter_map(|a| a.command.as_deref()).next(), Some("kill 72"));
    // Without the mapping nothing is proven.
    consumer.shared_mappings.clear();
    assert_eq!(holder(&told(consumer).holders, 72).cause, Cause::Orphan);
}

#[test]
fn a_foreign_consumer_with_a_proof_is_charged_and_not_to_be_ended() {
    let mut consumer = cuda(72, shell());
    consumer.id.start_ticks = 10;
    consumer.shared_mappings = vec!["/dev/shm/torch_71_5_0".into()];
    let producer = cuda(71, vec![ancestor(ROOT, "gpuresid")]);
    let not_yet = Process { shared_mappings: Vec::new(), ..consumer.clone() };
    let before = snapshot(listed(&[(72, 518)]), vec![not_yet]);
    let during = (listed(&[(71, 5730), (72, 518)]), vec![producer, consumer.clone()]);
    let report = run(before, &[during], snapshot(listed(&[(72, 5638)]), vec![consumer]));
    let held = holder(&report.holders, 72);
    assert_eq!((held.cause, held.lineage), (Cause::PeerMapping, crate::model::Lineage::Foreign));
    assert_eq!(report.devices[0].charged_residue_bytes, Bytes(5120 * MIB));
    assert!(
        report.advice.iter().all(|a| a.command.as_ref().is_none_or(|c| !c.contains("kill"))),
        "{:?}",
        report.advice
    );
}

#[test]
fn after_the_fact_only_cudas_own_files_prove_sharing() {
    let told = |mapping: &str, beside: Vec<Process>| {
        let mut consumer = cuda(72, shell());
        consumer.shared_mappings = vec![mapping.into()];
        let rows: Vec<_> = std::iter::once((72, 5638)).chain(beside.iter().map(|p| (p.id.pid, 600))).collect();
        cause_of(&status(&snapshot(listed(&rows), std::iter::once(consumer).chain(beside).collect())), 72)
    };
    assert_eq!(told("/dev/shm/cuda.shm.0.47.1", vec![]), Cause::PeerMapping);
    assert_eq!(told("/dev/shm/cuda.shm.0.47.1", vec![cuda(71, shell())]), Cause::InUse, "its maker lives");
    let mut elsewhere = cuda(900, shell());
    (elsewhere.nspid, elsewhere.pid_namespace) = (vec![900, 71], Some(2));
    assert_eq!(told("/dev/shm/cuda.shm.0.47.1", vec![elsewhere]), Cause::InUse, "its maker lives in another container");
    assert_eq!(told("/dev/shm/torch_71_5_0", vec![]), Cause::InUse, "a tensor of the CPU may be shared so");
}

pub(super) fn mps_server(above: Vec<Ancestor>) -> Process {
    let mut server = process(id(80, 60_000), above, Some(files(20, 1, 1)));
    (server.comm, server.argv) = ("nvidia-cuda-mps".into(), ["nvidia-cuda-mps-server"].into());
    server
}

#[test]
fn a_server_of_mps_is_known_by_its_daemon_or_its_clients() {
    let daemon = vec![ancestor(id(79, 6), "nvidia-cuda-mps"), ancestor(id(1, 0), "init")];
    let report = one(mps_server(daemon), 66);
    assert_eq!(cause_of(&report, 80), Cause::MpsServer);
    let found = report.findings.iter().find(|f| f.kind() == FindingKind::MpsServer).unwrap();
    assert!(found.text().contains("`echo quit | nvidia-cuda-mps-control`"), "{found:?}");
    assert_eq!(found.bytes, Some(Bytes::mib(66)));
    assert!(report.advice.is_empty(), "it is meant to stay");
    // A name alone is none.
    assert_ne!(cause_of(&one(mps_server(shell()), 66), 80), Cause::MpsServer);
    let client = Entry { lists: vec![ListKind::Compute, ListKind::Mps], ..entry(81, Some(600 * MIB)) };
    let both = look(680 * MIB, vec![entry(80, Some(66 * MIB)), client]);
    let report = status(&snapshot(both, vec![mps_server(shell()), cuda(81, shell())]));
    assert_eq!(cause_of(&report, 80), Cause::MpsServer);
}

#[test]
fn a_daemon_of_mps_that_the_command_started_is_residue_and_quits_by_its_own_command() {
    let above = vec![ancestor(id(79, 60_000), "nvidia-cuda-mps"), ancestor(ROOT, "gpuresid")];
    let (look, server) = (listed(&[(80, 66)]), vec![mps_server(above)]);
    let during = (look.clone(), server.clone());
    let report = run(snapshot(listed(&[]), Vec::new()), &[during], snapshot(look, server));
    assert_eq!((report.verdict, holder(&report.holders, 80).cause), (Verdict::Residue, Cause::MpsServer));
    assert_eq!(report.advice[0].command.as_deref(), Some("echo quit | nvidia-cuda-mps-control"));
}

#[test]
fn a_bare_context_is_said_to_be_one() {
    let report = one(cuda(70, shell()), 518);
    assert_eq!(cause_of(&report, 70), Cause::ContextOnly);
    assert!(report.advice.is_empty());
    assert_eq!(cause_of(&one(cuda(70, shell()), 2566), 70), Cause::InUse);
    // More than what it looks like counts first.
    let mut stopped = cuda(70, shell());
    stopped.state = ProcessState::Stopped;
    assert_eq!(cause_of(&one(stopped, 518), 70), Cause::Stopped);
    let graphics = Entry { lists: vec![ListKind::Graphics], ..entry(70, Some(40 * MIB)) };
    let report = status(&snapshot(look(50 * MIB, vec![graphics]), vec![cuda(70, shell())]));
    assert_eq!(cause_of(&report, 70), Cause::InUse, "a desktop has no CUDA context");
}

#[test]
fn what_a_platform_keeps_to_itself_is_said_and_never_0() {
    let silent = look(4000 * MIB, vec![entry(70, None)]);
    let report = status(&snapshot(silent, vec![cuda(70, shell())]));
    assert_eq!(cause_of(&report, 70), Cause::Platform);
    assert_eq!(holder(&report.holders, 70).devices[0].held_bytes, None);
    assert!(report.findings.iter().any(|f| f.kind() == FindingKind::Platform && f.text().contains("WSL")));
    let mut unified = listed(&[(70, 900)]);
    unified.memory = None;
    let report = status(&snapshot(unified, vec![cuda(70, shell())]));
    assert!(
        report.findings.iter().any(|f| f.kind() == FindingKind::Platform && f.text().contains("share their memory"))
    );
    assert!(one(cuda(70, shell()), 900).findings.iter().all(|f| f.kind() != FindingKind::Platform));
}

#[test]
fn unattributed_memory_has_a_short_list_and_what_was_excluded() {
    let told = |excess, rows: &[(u32, u64)], processes: Vec<Process>, change: fn(&mut Snapshot)| {
        let mut snapshot = snapshot(listed_beside(excess, rows), processes);
        change(&mut snapshot);
        let report = status(&snapshot);
        let found = report.findings.into_iter().find(|f| f.kind() == FindingKind::Unattributed).unwrap();
        (found.possible.sentences().join("\n"), found.excluded.sentences().join("\n"))
    };
    let (possible, excluded) = told(4096, &[(70, 900)], vec![cuda(70, shell())], |_| {});
    assert!(possible.starts_with("managed memory") && possible.contains("PID 70"), "{possible}");
    for gone in ["a handle or a forked copy", "could not be inspected: there is none", "out of sight"] {
        assert!(excluded.contains(gone), "{gone}: {excluded}");
    }
    // An exported handle is likelier than managed memory.
    let sleep = process(id(90, 90), shell(), Some(files(0, 1, 0)));
    let (possible, excluded) = told(4096, &[(70, 900)], vec![cuda(70, shell()), sleep], |_| {});
    assert!(possible.starts_with("an exported allocation handle: PID 90"), "{possible}");
    assert!(!excluded.contains("a handle"), "{excluded}");
    // With nobody listed it cannot be managed memory; whoever may not be read is possible.
    let (possible, excluded) = told(4096, &[], vec![], |s| {
        s.uninspected = vec![Uninspected { id: id(95, 95), uid: Some(7), comm: "x\ny".into() }];
        s.observer.hidepid = true;
    });
    assert!(possible.contains("PID 95 (x\\ny)") && possible.contains("hidepid"), "{possible}");
    assert!(excluded.contains("managed memory") && !excluded.contains("out of sight"), "{excluded}");
    // What is a NUMA node of the machine is the system's to fill; a driver that does not tell leaves it possible.
    let (possible, _) = told(4096, &[(70, 900)], vec![cuda(70, shell())], |s| {
        s.devices[0].identity.numa = Some(NumaMemory::Node(2));
    });
    assert!(possible.starts_with("held by the system as ordinary memory") && possible.contains("node2"), "{possible}");
    let (possible, _) = told(4096, &[(70, 900)], vec![cuda(70, shell())], |s| {
        s.devices[0].identity.addressing = Some(Addressing::Ats);
    });
    assert!(possible.starts_with("managed memory") && possible.contains("the driver does not tell"), "{possible}");
    let (_, excluded) = told(4096, &[], vec![], |s| {
        s.devices[0].identity.addressing = Some(Addressing::Ats);
        s.devices[0].identity.numa = Some(NumaMemory::No);
    });
    assert!(excluded.contains("no NUMA node"), "{excluded}");
    // Nobody has looked.
    let (possible, _) = told(4096, &[], vec![], |s| s.processes = None);
    assert!(possible.contains("anybody"), "{possible}");
}

#[test]
fn a_busy_gpu_without_memory_is_odd() {
    let told = |used, entries, percent| {
        let look = DeviceLook { utilization_percent: percent, ..look(used, entries) };
        status(&snapshot(look, vec![cuda(70, shell())])).findings.iter().any(|f| f.kind() == FindingKind::Utilization)
    };
    assert!(told(0, vec![], Some(97)));
    assert!(!told(0, vec![], Some(3)) && !told(0, vec![], None));
    assert!(!told(900 * MIB, vec![entry(70, Some(890 * MIB))], Some(97)));
}

#[test]
fn who_merely_has_it_open_is_named_on_request_and_never_blamed() {
    let monitor = process(id(60, 6), shell(), Some(files(3, 1, 2)));
    let idle = process(id(61, 7), shell(), Some(files(7, 2, 4)));
    let snapshot = snapshot(listed(&[(70, 900)]), vec![cuda(70, shell()), monitor, idle]);
    let report = status(&snapshot);
    assert_eq!((report.holders.len(), report.open_only.len()), (1, 0));
    let all = status_of_all(&snapshot);
    assert_eq!((all.holders.len(), all.advice.len()), (1, 0));
    let pids: Vec<_> = all.open_only.iter().map(|h| (h.pid, h.cause)).collect();
    assert_eq!(pids, [(60, Cause::OpenOnly), (61, Cause::OpenOnly)]);
    assert!(
        all.open_only[0].why[0].to_string().contains("only watches")
            && all.open_only[1].why[0].to_string().contains("no memory")
    );
    assert!(all.open_only.iter().all(|h| h.held() == Bytes::ZERO && h.devices[0].held_bytes.is_none()));
}

#[test]
fn several_candidates_of_a_ghost_are_all_named_and_its_bytes_not_divided() {
    let report = status(&snapshot(listed(&[(69, 5730)]), vec![cuda(70, init()), cuda(71, init())]));
    assert_eq!(report.ghosts[0].candidates, [70, 71]);
    for pid in [70, 71] {
        let held = holder(&report.holders, pid);
        assert_eq!((held.cause, held.devices[0].held_bytes), (Cause::ForkedCopy, None));
        assert!(held.why.iter().any(|w| w.to_string().contains("one of 2 processes")), "{:?}", held.why);
    }
}

pub(super) fn rank(pid: u32, above: Vec<Ancestor>) -> Process {
    let mut rank = cuda(pid, above);
    rank.sid = i32::try_from(pid).unwrap();
    rank.argv = ["/usr/bin/python3", "-u", "train.py"].into();
    for (name, value) in [("TORCHELASTIC_RUN_ID", "none"), ("LOCAL_RANK", "0"), ("MASTER_PORT", "29500")] {
        rank.environment.insert(name.into(), value.into());
    }
    rank
}

#[test]
fn a_rank_without_its_agent_is_an_orphan_and_one_with_it_is_ended_through_it() {
    let agent = vec![ancestor(id(65, 6), "pt_elastic"), ancestor(id(300, 1), "bash"), ancestor(id(1, 0), "init")];
    let report = one(rank(70, init()), 4000);
    assert_eq!((cause_of(&report, 70), commands(&report)), (Cause::Orphan, vec![PLAN]));
    assert_eq!(holder(&report.holders, 70).program.as_deref(), Some("torchrun rank"));
    let report = one(rank(70, agent.clone()), 4000);
    assert_eq!((cause_of(&report, 70), commands(&report).len()), (Cause::InUse, 0));
    assert_eq!(holder(&report.holders, 70).ends_with.as_deref(), Some("kill 65"));
    // The agent lives, with another rank: what left the run on purpose is none of ours to judge.
    let two = vec![rank(70, init()), rank(71, agent)];
    assert_eq!(cause_of(&status(&snapshot(listed(&[(70, 4000), (71, 4000)]), two)), 70), Cause::Detached);
    // Its variables are inherited by what it starts and lets go, in the same session or in a new one.
    let mut daemon = rank(70, init());
    daemon.argv = ["python3", "server.py"].into();
    assert_eq!(cause_of(&one(daemon, 4000), 70), Cause::Detached);
    let mut let_go = rank(70, init());
    let_go.sid = 69;
    assert_eq!(cause_of(&one(let_go, 4000), 70), Cause::Detached);
    // Started by hand with the same numbers: nothing says that its parent should live.
    let mut by_hand = rank(70, init());
    by_hand.environment.remove("TORCHELASTIC_RUN_ID");
    assert_eq!(cause_of(&one(by_hand, 4000), 70), Cause::Detached);
}

#[test]
fn a_detached_process_is_shown_what_its_end_gives_back_unless_it_has_an_owner() {
    let report = one(cuda(70, init()), 4000);
    assert_eq!((cause_of(&report, 70), commands(&report)), (Cause::Detached, vec!["gpuresid reclaim --pid 70"]));
    // Nothing to speak of, a service, and a monitor.
    assert_eq!(commands(&one(cuda(70, init()), 8)), [""; 0]);
    let mut service = cuda(70, init());
    service.cgroup = Some("/system.slice/train.service".into());
    assert_eq!(commands(&one(service, 4000)), [""; 0]);
    // Whom the plan would leave alone: another user's, one in a container, who only watches; and a desktop's program.
    let changed = |change: fn(&mut Process)| {
        let mut process = cuda(70, init());
        change(&mut process);
        process
    };
    for left_alone in [
        changed(|p| (p.uid, p.user) = (Some(1000), Some("alice".into()))),
        changed(|p| p.pid_namespace = Some(2)),
        changed(|p| p.argv = ["/usr/bin/nv-hostengine"].into()),
    ] {
        assert_eq!(commands(&one(left_alone, 4000)), [""; 0]);
    }
    // Below a container's first program, which may have started it: but not what came in later.
    let in_a_container = |sid| {
        let mut process = cuda(70, vec![ancestor(id(1, 0), "bash")]);
        process.sid = sid;
        let mut snapshot = snapshot(listed(&[(70, 4000)]), vec![process]);
        snapshot.observer.initial_pid_namespace = Some(false);
        status(&snapshot)
    };
    let advised = |report: &StatusReport| commands(report).contains(&"gpuresid reclaim --pid 70");
    assert!(!advised(&in_a_container(1)) && advised(&in_a_container(60)));
    let mut drawn = listed(&[(70, 4000)]);
    drawn.entries.as_mut().unwrap()[0].lists = vec![ListKind::Graphics];
    assert_eq!(commands(&status(&snapshot(drawn.clone(), vec![cuda(70, init())]))), [""; 0]);
    drawn.entries.as_mut().unwrap()[0].lists.push(ListKind::Compute);
    assert_eq!(commands(&status(&snapshot(drawn, vec![cuda(70, init())]))), ["gpuresid reclaim --pid 70"]);
    // The largest first, and no more than can be read.
    let sizes = [(70, 100), (71, 4000), (72, 300), (73, 200)];
    let all = sizes.iter().map(|(pid, _)| cuda(*pid, init())).collect();
    let report = status(&snapshot(listed(&sizes), all));
    let steps = ["gpuresid reclaim --pid 71", "gpuresid reclaim --pid 72", "gpuresid reclaim --pid 73"];
    assert_eq!(commands(&report), steps);
}

#[test]
fn an_unknown_parent_is_never_to_be_ended_for_its_child() {
    for comm in ["tcsh", "ksh", "su", "sudo", "code", "node", "gnome-terminal-", "sshd-session", "tmux", "python3"] {
        let above = vec![ancestor(id(65, 6), comm), ancestor(id(1, 0), "init")];
        let mut server = cuda(70, above.clone());
        server.argv = ["vllm", "serve", "model"].into();
        let report = one(server, 4000);
        assert_eq!(holder(&report.holders, 70).program.as_deref(), Some("vLLM engine"));
        assert_ne!(holder(&report.holders, 70).ends_with.as_deref(), Some("kill 65"), "{comm}");
        if comm != "python3" {
            let report = one(rank(70, above), 4000);
            assert_ne!(holder(&report.holders, 70).ends_with.as_deref(), Some("kill 65"), "{comm}");
        }
    }
}

#[test]
fn the_first_process_of_a_container_may_be_the_agent_itself() {
    let told = |comm: &str| {
        let mut inside = snapshot(listed(&[(70, 4000)]), vec![rank(70, vec![ancestor(id(1, 0), comm)])]);
        inside.observer.initial_pid_namespace = Some(false);
        cause_of(&status(&inside), 70)
    };
    assert_eq!(told("torchrun"), Cause::Detached);
    assert_eq!(told("tini"), Cause::Orphan);
}

#[test]
fn in_a_run_both_ranks_are_ended_by_one_step() {
    let above = vec![ancestor(id(65, 60_000), "pt_elastic"), ancestor(ROOT, "gpuresid")];
    let (look, ranks) = (listed(&[(70, 4000), (71, 4000)]), vec![rank(70, above.clone()), rank(71, above)]);
    let during = (look.clone(), ranks.clone());
    let report = run(snapshot(listed(&[]), Vec::new()), &[during], snapshot(look, ranks));
    let commands: Vec<_> = report.advice.iter().filter_map(|a| a.command.as_deref()).collect();
    assert_eq!(commands, ["kill 65"]);
}

#[test]
fn a_process_of_an_ended_job_is_an_orphan_that_slurm_does_not_know_any_more() {
    let mut left = cuda(70, init());
    left.environment.insert("SLURM_JOB_ID".into(), "123".into());
    let told = |alive| one(Process { slurm_step_alive: alive, ..left.clone() }, 4000);
    let report = told(Some(false));
    assert_eq!((cause_of(&report, 70), commands(&report)), (Cause::Orphan, vec![PLAN]));
    for alive in [Some(true), None] {
        let report = told(alive);
        assert_eq!((cause_of(&report, 70), commands(&report).len()), (Cause::Detached, 0));
        assert_eq!(holder(&report.holders, 70).ends_with.as_deref(), Some("scancel 123"));
    }
}

#[test]
fn an_owner_is_asked_unless_we_are_inside_too() {
    let container = format!("/system.slice/docker-{}.scope", "ab".repeat(32));
    let told = |cgroup: &str, nspid: &[u32], ours: Option<&str>, above: Vec<Ancestor>| {
        let mut left = rank(70, above);
        (left.cgroup, left.nspid) = (Some(cgroup.into()), nspid.to_vec());
        let mut snapshot = snapshot(listed(&[(70, 4000)]), vec![left]);
        snapshot.observer.cgroup = ours.map(ToOwned::to_owned);
        let report = status(&snapshot);
        assert_eq!(cause_of(&report, 70), Cause::Orphan);
        commands(&report).into_iter().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let tini = || vec![ancestor(id(400, 4), "tini")];
    let plan = [PLAN];
    // The main process of a container is started again; another one in it is not.
    assert_eq!(told(&container, &[70, 1], None, init()), ["docker stop abababababab"]);
    assert_eq!(told(&container, &[70, 9], None, tini()), [PLAN, "docker stop abababababab"]);
    assert_eq!(told(&container, &[70, 9], Some(&container), tini()), plan, "we stand in the same container");
    let step = "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0";
    assert_eq!(told(step, &[70], None, init()), ["scancel 123.0"]);
    assert_eq!(told(step, &[70], Some("/system.slice/slurmstepd.scope/job_123/step_extern/user"), init()), plan);
    let unit = "/system.slice/train.service";
    assert_eq!(told(unit, &[70], Some("/user.slice/session-1.scope"), init()), ["systemctl stop train.service"]);
}

#[test]
fn a_service_is_detached_and_told_how_but_not_that_it_be_ended() {
    let mut service = cuda(70, init());
    service.cgroup = Some("/system.slice/tritonserver.service".into());
    let report = one(service, 4000);
    let held = holder(&report.holders, 70);
    assert_eq!((held.cause, held.ends_with.as_deref()), (Cause::Detached, Some("systemctl stop tritonserver.service")));
    assert_eq!(held.place.as_ref().map(|p| p.words()).as_deref(), Some("unit tritonserver.service"));
    assert!(report.advice.is_empty());
}

#[test]
fn programs_with_a_way_of_their_own() {
    let told = |comm: &str, argv: &[&str], above: Vec<Ancestor>| {
        let mut left = cuda(70, above);
        (left.comm, left.argv) = (comm.into(), argv.iter().map(|a| (*a).to_owned()).collect());
        left.state = ProcessState::Stopped;
        let report = one(left, 4000);
        commands(&report).into_iter().skip(1).map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let raylet = vec![ancestor(id(66, 6), "raylet"), ancestor(id(1, 0), "init")];
    assert_eq!(told("ray::f", &["ray::f"], raylet), ["ray stop"]);
    let kernel = ["python", "-m", "ipykernel_launcher", "-f", "/run/k/kernel-1.json"];
    let way = told("python", &kernel, shell());
    assert!(way[0].contains("connection_file='/run/k/kernel-1.json'") && way[0].contains("shutdown()"), "{way:?}");
    assert_eq!(told("Xorg", &["/usr/lib/xorg/Xorg"], shell()), [""; 0], "nobody's desktop is closed");
    let engine = vec![ancestor(id(67, 6), "vllm"), ancestor(id(300, 1), "bash")];
    assert_eq!(told("VLLM::EngineCor", &["VLLM::EngineCore"], engine), ["kill 67"]);
}

#[test]
fn how_a_command_died_is_a_finding() {
    let mut killed = observation(
        snapshot(listed(&[]), Vec::new()),
        Default::default(),
        snapshot(listed(&[]), Vec::new()),
        launch(COMMAND, ROOT, Scope::Run, true),
    );
    let died =
        |o: &Observation| judge(o).findings.into_iter().find(|f| f.kind() == FindingKind::Died).map(|f| f.text());
    assert_eq!(died(&killed), None);
    killed.launch.oom_kills = Some(1);
    assert!(died(&killed).unwrap().contains("out-of-memory killer ended 1 process"));
    let end = crate::model::End::Signaled { signal: 9, core_dumped: false };
    killed.launch.command.as_mut().unwrap().end = Some(end);
    let text = died(&killed).unwrap();
    assert!(text.contains("signal 9") && text.contains("out-of-memory"), "{text}");
}

#[test]
fn what_a_bystander_starts_is_not_the_runs() {
    // A shell that became gpuresid by `exec` had a child; what that one starts meanwhile is below us too.
    let bystander = ancestor(id(890, 9_000), "agent");
    let child = cuda(71, vec![bystander, ancestor(ROOT, "gpuresid"), ancestor(id(1, 0), "init")]);
    let own = cuda(72, vec![ancestor(ROOT, "gpuresid"), ancestor(id(1, 0), "init")]);
    let before = || snapshot(listed(&[]), vec![]);
    let both = (listed(&[(71, 4000), (72, 1000)]), vec![child.clone(), own]);

    let mut fold = Fold::new(&before(), Scope::Run, Some(ROOT), NOISE).of_command(COMMAND, "run");
    for process in &both.1 {
        fold.remember(process, 100);
    }
    fold.look(&Look { at_ms: 100, devices: vec![both.0.clone()] }, false);
    assert_eq!((fold.charge().entries, fold.charge().listed), (1, Some(Bytes::mib(1000))));

    // It has grown, and its parent has ended: it hangs directly below us now.
    let mut adopted = child.clone();
    adopted.ancestors.remove(0);
    for last in [child, adopted] {
        let looks = [both.clone(), (listed(&[(71, 4000)]), vec![])];
        let report = run(before(), &looks, snapshot(listed(&[(71, 6000)]), vec![last]));
        let device = &report.devices[0];
        assert_eq!((report.verdict, device.charged_residue_max_bytes), (Verdict::Clean, Some(Bytes::ZERO)));
        assert!(device.command_peak_bytes.is_some_and(|peak| peak < Bytes::mib(1100)), "{device:?}");
        assert_eq!(holder(&report.holders, 71).cause, Cause::NewNeighbour);
    }
}

#[test]
fn who_was_left_to_us_may_be_anybodys_where_others_stand_below_us_too() {
    let before = || snapshot(listed(&[]), vec![]);
    let left = cuda(71, vec![ancestor(ROOT, "gpuresid"), ancestor(id(1, 0), "init")]);
    let judged = |process: &Process, seen: &[Process], company| {
        let looks = [(listed(&[(72, 900)]), seen.to_vec())];
        let after = snapshot(listed(&[(71, 4000)]), vec![process.clone()]);
        run_in_company(before(), &looks, after, company).verdict
    };
    let command = ancestor(COMMAND, "python3");
    let own = cuda(72, vec![command.clone(), ancestor(ROOT, "gpuresid"), ancestor(id(1, 0), "init")]);
    assert_eq!(judged(&left, std::slice::from_ref(&own), false), Verdict::Residue, "alone below us");
    assert_eq!(judged(&left, std::slice::from_ref(&own), true), Verdict::Inconclusive, "it may be a bystander's");
    // Three things prove it: its own chain as it was, that of whom it stands below, or the marker.
    let mut seen = left.clone();
    seen.ancestors.insert(0, command);
    assert_eq!(judged(&left, &[own.clone(), seen], true), Verdict::Residue);
    let mut child = left.clone();
    child.ancestors.insert(0, ancestor(own.id, "python3"));
    assert_eq!(judged(&child, std::slice::from_ref(&own), true), Verdict::Residue);
    let mut marked = left.clone();
    marked.marker = Some("run".into());
    assert_eq!(judged(&marked, std::slice::from_ref(&own), true), Verdict::Residue);
    // And one proves the contrary.
    let mut strangers = left.clone();
    strangers.ancestors.insert(0, ancestor(id(890, 8_900), "agent"));
    assert_eq!(judged(&left, &[own, strangers], true), Verdict::Clean);
}

#[test]
fn who_is_older_than_the_command_is_not_its() {
    // A service that stood there without a GPU loads its model while the check runs.
    let mut service = cuda(71, vec![ancestor(id(1, 0), "init")]);
    let own = cuda(72, vec![ancestor(COMMAND, "python3"), ancestor(ROOT, "gpuresid"), ancestor(id(1, 0), "init")]);
    let mut verdict = |start_ticks| {
        service.id.start_ticks = start_ticks;
        let looks = [(listed(&[(72, 900)]), vec![own.clone()])];
        let after = snapshot(listed(&[(71, 4000)]), vec![service.clone()]);
        run(snapshot(listed(&[]), vec![]), &looks, after).verdict
    };
    assert_eq!(verdict(COMMAND.start_ticks - 1), Verdict::Clean);
    assert_eq!(verdict(COMMAND.start_ticks + 1), Verdict::Inconclusive);
}

#[test]
fn a_number_that_was_reused_between_two_looks_is_its_present_owners() {
    let own = |start| {
        let mut own = cuda(71, vec![ancestor(COMMAND, "python3"), ancestor(ROOT, "gpuresid")]);
        own.id.start_ticks = start;
        own
    };
    let mut theirs = cuda(71, shell());
    theirs.id.start_ticks = 5_000;
    // A neighbour's number went to a process of the run.
    let before = snapshot(listed(&[(71, 4000)]), vec![theirs.clone()]);
    let report = run(before, &[], snapshot(listed(&[(71, 1500)]), vec![own(9_500)]));
    let low = report.devices[0].charged_residue_bytes;
    assert!(report.verdict == Verdict::Residue && low > Bytes::mib(1400), "{:?} {low}", report.verdict);
    assert_eq!((report.ghosts.len(), report.holders[0].lineage), (0, Lineage::Own));
    // The other way round.
    theirs.id.start_ticks = 9_800;
    let looks = [(listed(&[(71, 1500)]), vec![own(9_500)])];
    let report = run(snapshot(listed(&[]), vec![]), &looks, snapshot(listed(&[(71, 4000)]), vec![theirs]));
    assert_eq!((report.verdict, report.devices[0].charged_residue_bytes), (Verdict::Clean, Bytes::ZERO));
}

#[test]
fn who_was_not_looked_at_again_is_told_as_of_then() {
    let neighbour = cuda(71, shell());
    let before = || snapshot(listed(&[(71, 4000)]), vec![neighbour.clone()]);
    let again = |report: &Report| {
        holder(&report.holders, 71).why.iter().any(|why| why.to_string().contains("not looked at again"))
    };
    let mut after = before();
    assert!(!again(&run(before(), &[], after.clone())));
    after.processes = None;
    let report = run(before(), &[], after);
    assert!(again(&report), "{:?}", report.holders);
    assert_eq!(holder(&report.holders, 71).held(), Bytes::mib(4000));
}

#[test]
fn who_writes_a_core_ends_by_itself_and_is_not_to_be_killed_blindly() {
    let mut crashed = cuda(70, init());
    (crashed.core_dumping, crashed.dying) = (true, true);
    let report = one(crashed.clone(), 4000);
    let found = holder(&report.holders, 70);
    assert_eq!((found.cause, found.state.as_deref()), (Cause::Draining, Some("dumping core")));
    let why = found.why.sentences().join("\n");
    for part in ["writing its memory to a core file", "ends by itself", "SIGTERM does nothing", "cuts the core short"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert_eq!(commands(&report), ["gpuresid", "kill -KILL 70"]);
    assert!(report.advice[0].why.contains("ends by itself once its core dump is written"), "{:?}", report.advice);
    assert!(report.advice[1].why.contains("only if nobody needs the core dump"), "{:?}", report.advice);
    assert!(report.advice[1].disturbs.contains("why PID 70 (python3 train.py) crashed"), "{:?}", report.advice);
    // A slow disk, and threads that wait for the writer, are no trouble; a server that does not answer is.
    let waiting = |channel| {
        let blocked = blocked(channel, &[(ProcessState::DiskSleep, 2)]);
        cause_of(&one(Process { blocked, ..crashed.clone() }, 4000), 70)
    };
    for channel in ["io_schedule", "coredump_task_exit", "nobody_knows"] {
        assert_eq!(waiting(channel), Cause::Draining, "{channel}");
    }
    assert_eq!(waiting("nfs_wait_bit_killable"), Cause::StuckInKernel);
    // Killed meanwhile it is like anybody who was killed.
    crashed.kill_pending = true;
    assert_eq!(commands(&one(crashed, 4000)), ["gpuresid"]);
}

#[test]
fn who_does_nothing_on_a_plain_kill_gets_the_firm_one() {
    const FORCE: &str = "gpuresid reclaim --force --pid 70";
    let orphan = |on_sigterm, pending| {
        let mut left = Process { marker_alive: Some(false), on_sigterm, sigterm_pending: pending, ..cuda(70, init()) };
        left.marker = Some("boot-1-2".into());
        one(left, 4000)
    };
    for (does, pending, command, why) in [
        (Some(OnSigterm::Ends), false, PLAN, None),
        (Some(OnSigterm::Handles), false, PLAN, None),
        (None, false, PLAN, None),
        (Some(OnSigterm::Ignores), false, FORCE, Some("it ignores SIGTERM")),
        (Some(OnSigterm::Blocks), false, FORCE, Some("every thread of it blocks SIGTERM")),
        (Some(OnSigterm::Blocks), true, FORCE, Some("SIGTERM was sent, and every thread")),
    ] {
        let report = orphan(does, pending);
        assert_eq!(commands(&report)[0], command, "{does:?}");
        let said = holder(&report.holders, 70).why.sentences().join("\n");
        assert_eq!(said.contains("SIGTERM"), why.is_some(), "{does:?}: {said}");
        assert!(why.is_none_or(|why| said.contains(why)), "{does:?}: {said}");
    }
    // Who is stopped has a signal that waits for it to go on.
    let stopped = Process { state: ProcessState::Stopped, sigterm_pending: true, ..cuda(70, shell()) };
    let said = holder(&one(stopped, 4000).holders, 70).why.sentences().join("\n");
    assert!(said.contains("SIGTERM was sent already: it takes effect as soon as it goes on"), "{said}");
    // The first process of a namespace takes a signal that it handles.
    let first = |does| {
        let process = Process { nspid: vec![70, 1], leader_gone: true, on_sigterm: does, ..cuda(70, init()) };
        commands(&one(process, 4000))[0].to_owned()
    };
    assert_eq!(
        (first(Some(OnSigterm::Handles)), first(Some(OnSigterm::Ends))),
        ("kill 70".into(), "kill -KILL 70".into())
    );
}
