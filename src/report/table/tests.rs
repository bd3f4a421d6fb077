//! Whole pictures, compared to the last character: what a person sees is the product.

use super::{check, status};
use crate::{
    model::{
        Advice, BootId, Bytes, Cause, CleanedDevice, Cleanup, CommandReport, Container, Death, DeviceReport,
        DeviceStatus, Doubt, Ended, Evidence, Finding, FindingData, Gap, Ghost, Held, Holder, Limits, Lineage,
        MigIdentity, Named, Place, Report, Scope, SettleEnd, Starter, StatusReport, Uuid, Verdict, schema,
    },
    report::Style,
    text,
};

const PLAIN: Style = Style { width: None, color: false, verbose: false };
const VERBOSE: Style = Style { verbose: true, ..PLAIN };
const NARROW: Style = Style { width: Some(80), ..PLAIN };

fn gpu(index: u32) -> Uuid {
    Uuid(format!("GPU-{index}"))
}

fn device(index: u32, verdict: Verdict, low: u64, high: Option<u64>) -> DeviceReport {
    DeviceReport {
        index,
        uuid: gpu(index),
        mig: None,
        name: Some("NVIDIA H200".into()),
        verdict,
        total_bytes: Some(Bytes::mib(143_771)),
        reserved_bytes: Some(Bytes::mib(615)),
        used_before_bytes: Some(Bytes::ZERO),
        used_after_bytes: Some(Bytes::mib(low)),
        free_bytes: Some(Bytes::mib(143_156 - low)),
        peak_bytes: Some(Bytes::mib(10_758)),
        command_peak_bytes: Some(Bytes::mib(10_750)),
        charged_residue_bytes: Bytes::mib(low),
        charged_residue_max_bytes: high.map(Bytes::mib),
        residue_rate: None,
        unaccounted_bytes: Some(0),
        because: Default::default(),
    }
}

fn report(verdict: Verdict, devices: Vec<DeviceReport>) -> Report {
    Report {
        schema: schema::REPORT.into(),
        tool_version: "0.1.0".into(),
        taken_at: "2026-11-30T02:00:00Z".into(),
        run_id: "0d5c1c2a-1-2".into(),
        boot_id: BootId("0d5c1c2a".into()),
        host: None,
        uid: 1000,
        simulated: false,
        driver_version: Some("580.159.04".into()),
        verdict,
        exit_code: 0,
        command: Some(CommandReport {
            argv: ["python", "train.py"].into(),
            exit_code: Some(0),
            signal: None,
            timed_out: false,
            timeout_seconds: None,
            used_gpu: None,
            too_short_to_see: false,
            seconds: Some(12.34),
        }),
        scope: Scope::Run,
        limits: Limits::default(),
        settled_seconds: Some(12.0),
        settle_end: Some(SettleEnd::Unchanged),
        survivors: Vec::new(),
        devices,
        left_out: Vec::new(),
        holders: Vec::new(),
        ghosts: Vec::new(),
        leftovers: Vec::new(),
        cleanup: None,
        findings: Vec::new(),
        advice: Vec::new(),
        gaps: Vec::new(),
        events: Vec::new(),
        torch: None,
    }
}

fn holder(pid: u32, cause: Cause, lineage: Lineage, devices: Vec<Held>) -> Holder {
    Holder {
        pid,
        start_ticks: Some(1),
        inner_pid: None,
        user: Some("alice".into()),
        uid: Some(1000),
        command: "/usr/bin/python train.py --epochs 3".into(),
        name: Some("python train.py --epochs 3".into()),
        state: Some("sleeping".into()),
        age_seconds: Some(125),
        ppid: Some(1),
        launcher: None,
        started_by: None,
        launcher_gone: None,
        cgroup: None,
        place: None,
        program: None,
        note: None,
        ends_with: None,
        cause,
        lineage,
        open_files: Default::default(),
        why: Default::default(),
        devices,
    }
}

fn held(index: u32, mib: Option<u64>) -> Held {
    Held {
        uuid: gpu(index),
        held_bytes: mib.map(Bytes::mib),
        open_files: Some(23),
        may_hold_bytes: None,
        grown_bytes: None,
    }
}

fn checked(report: &Report, style: Style) -> String {
    let mut out = Vec::new();
    check(report, &style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn seen(report: &StatusReport, style: Style) -> String {
    let mut out = Vec::new();
    status(report, &style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_clean_check_is_one_line() {
    let clean = report(Verdict::Clean, vec![device(0, Verdict::Clean, 0, Some(0))]);
    assert_eq!(checked(&clean, NARROW), "gpuresid: clean: all GPU memory came back (the command's peak: 10.5 GiB)\n");
    let mut idle = device(1, Verdict::Clean, 0, Some(0));
    idle.command_peak_bytes = None;
    let two = report(Verdict::Clean, vec![device(0, Verdict::Clean, 0, Some(0)), idle]);
    assert_eq!(
        checked(&two, NARROW),
        "gpuresid: clean: all GPU memory came back (the command's peak: 10.5 GiB on GPU\n  0)\n"
    );
    let mut failed = report(Verdict::Clean, vec![device(0, Verdict::Clean, 3, Some(3))]);
    failed.simulated = true;
    failed.command.as_mut().unwrap().exit_code = Some(3);
    assert_eq!(
        checked(&failed, NARROW),
        "gpuresid (simulated GPU): clean: 3.0 MiB of GPU memory stay, within the limit\n  of 16 MiB (the command's \
         peak: 10.5 GiB); the command exited with 3\n"
    );
    let mut partly = clean.clone();
    partly.gaps = vec![Gap::new("/proc", "a process of another user")];
    assert_eq!(checked(&partly, NARROW), checked(&clean, NARROW));
    let all = checked(&partly, VERBOSE);
    for part in [
        "gpuresid: clean: ",
        "\nDEVICE ",
        "\nNot seen\n- /proc: a process of another user\n",
        "\ngpuresid: clean, exit code 0\n",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let colour = Style { color: true, ..NARROW };
    assert!(checked(&clean, colour).starts_with("gpuresid: \u{1b}[1m\u{1b}[32mclean\u{1b}[0m: "));
}

#[test]
fn residue_at_80_columns() {
    let mut dirty = report(Verdict::Residue, vec![device(0, Verdict::Residue, 5738, Some(5738))]);
    let mut copy = holder(452, Cause::ForkedCopy, Lineage::Own, vec![held(0, Some(5738))]);
    copy.why = vec![Evidence::ForkedCopy { files: 23, ghosts: vec![427] }].into();
    copy.inner_pid = Some(7);
    let neighbour = holder(99, Cause::InUse, Lineage::Foreign, vec![held(0, Some(518))]);
    dirty.holders = vec![copy, neighbour];
    dirty.ghosts = vec![Ghost {
        pid: 427,
        device_uuid: gpu(0),
        bytes: Some(Bytes::mib(5738)),
        lineage: Lineage::Own,
        command: Some("python train.py".into()),
        impostor: None,
        candidates: vec![452],
    }];
    dirty.findings = vec![Finding::new(
        None,
        None,
        FindingData::StillRunning { pids: vec![452], holding: 0, open: 0, elsewhere: true },
    )];
    dirty.gaps = vec![Gap::new("process 88", "its files may not be read")];
    dirty.advice = vec![
        Advice {
            command: Some("kill 452".into()),
            why: "end the copy and give back 5738 MiB".into(),
            disturbs: "PID 452 (python train.py)".into(),
        },
        Advice { command: None, why: "next time: start workers before CUDA".into(), disturbs: "nobody".into() },
    ];
    assert_eq!(
        checked(&dirty, NARROW),
        "\
gpuresid: residue: 5738 MiB of GPU memory did not come back (GPU 0; limit 16
  MiB)
  command: python train.py (exited with 0, ran 12.3 s, waited 12.0 s: what is
           left no longer changes)

DEVICE  NAME         BEFORE      PEAK       NOW   CHARGED  VERDICT
GPU 0   NVIDIA H200     0 B  10.5 GiB  5738 MiB  5738 MiB  residue

Left by the command
PID  USER     AGE  STATE       MEMORY  CAUSE        COMMAND
452  alice  2 min  sleeping  5738 MiB  forked copy  python train.py --epochs 3

PID 452, PID 7 inside its container: forked copy
  command: /usr/bin/python train.py --epochs 3
  - it is not listed itself, has 23 open files on the GPU, and NVML still lists
    PID 427, which is gone: it keeps that process's memory

Others on these GPUs, not charged
PID  USER     AGE  STATE      MEMORY  CAUSE   COMMAND
 99  alice  2 min  sleeping  518 MiB  in use  python train.py --epochs 3

Ended processes that the driver still lists
- PID 427 on GPU 0: 5738 MiB, it was `python train.py`. Its memory is kept by
  PID 452.

Also found
- 1 process of the command still runs (PID 452).

Not seen
- process 88: its files may not be read

What to do
 1. kill 452
    end the copy and give back 5738 MiB
    Disturbs: PID 452 (python train.py)
 2. next time: start workers before CUDA
    Disturbs: nobody

gpuresid: residue, 5738 MiB, 1 process, exit code 0 (with -v: more)
"
    );
}

#[test]
fn what_a_clean_up_got_back_stands_in_the_first_line() {
    let mut dirty = report(Verdict::Residue, vec![device(0, Verdict::Residue, 5738, Some(5738))]);
    let head = |report: &Report| checked(report, PLAIN).lines().next().unwrap().to_owned();
    let residue = "gpuresid: residue: 5738 MiB of GPU memory did not come back (GPU 0; limit 16 MiB)";
    for (after, ended, more) in [
        (Some(0), true, "; --cleanup got it back"),
        (Some(15), true, "; --cleanup got it back"),
        (Some(1000), true, "; --cleanup got 4738 MiB of it back"),
        (Some(5738), true, ""),
        (None, true, ""),
        (Some(0), false, ""),
    ] {
        let one = Ended { pid: 452, start_ticks: 1, command: "python".into(), sent: vec!["TERM".into()] };
        dirty.cleanup = Some(Cleanup {
            ended: if ended { vec![one] } else { Vec::new() },
            left_alone: Vec::new(),
            nothing_lives: true,
            seconds: 0.1,
            devices: vec![CleanedDevice {
                uuid: gpu(0),
                used_before_bytes: Some(Bytes::mib(5738)),
                used_after_bytes: after.map(Bytes::mib),
            }],
        });
        assert_eq!(head(&dirty), format!("{residue}{more}"), "{after:?} {ended}");
    }
}

#[test]
fn the_first_line_of_check_and_the_devices_keep_to_the_terminals_width() {
    let dirty = report(Verdict::Residue, vec![device(0, Verdict::Residue, 518, Some(518))]);
    for columns in [60, 80] {
        let style = Style { width: Some(columns), color: true, ..PLAIN };
        let text = checked(&dirty, style);
        assert!(text.starts_with("gpuresid: \u{1b}[1m\u{1b}[31mresidue\u{1b}[0m: 518 MiB"), "{text}");
        let plain = checked(&dirty, Style { color: false, ..style });
        let wide: Vec<_> = plain.lines().filter(|line| text::width(line) > usize::from(columns)).collect();
        assert!(wide.is_empty(), "{columns}: {wide:#?}");
    }
}

#[test]
fn inconclusive_says_between_what_and_why() {
    let mut open = device(0, Verdict::Inconclusive, 0, Some(5738));
    open.because = vec![Doubt::CommandStillRuns].into();
    let mut blind = device(1, Verdict::Inconclusive, 0, None);
    blind.used_after_bytes = None;
    blind.because = vec![Doubt::MemoryUnread { compares: false }].into();
    let text = checked(&report(Verdict::Inconclusive, vec![open, blind]), NARROW);
    assert_eq!(
        text,
        "\
gpuresid: inconclusive: cannot tell whether all GPU memory came back (GPU 0: 0
  B to 5738 MiB, GPU 1 cannot be read)
  command: python train.py (exited with 0, ran 12.3 s, waited 12.0 s: what is
           left no longer changes)

DEVICE  NAME         BEFORE      PEAK  NOW          CHARGED  VERDICT
GPU 0   NVIDIA H200     0 B  10.5 GiB  0 B  0 B to 5738 MiB  inconclusive
GPU 1   NVIDIA H200     0 B  10.5 GiB    ?      0 B or more  inconclusive
- GPU 0: processes of the command still run
- GPU 1: its memory could not be read after the command

gpuresid: inconclusive, exit code 0
"
    );
}

#[test]
fn a_comparison_speaks_of_before() {
    let mut more = report(Verdict::Residue, vec![device(0, Verdict::Residue, 518, Some(600))]);
    more.command = None;
    more.settled_seconds = None;
    assert_eq!(
        checked(&more, NARROW),
        "\
gpuresid: residue: at least 518 MiB of GPU memory is held that was not held
  before (GPU 0; limit 16 MiB)

DEVICE  NAME         BEFORE      NOW             CHARGED  VERDICT
GPU 0   NVIDIA H200     0 B  518 MiB  518 MiB to 600 MiB  residue

gpuresid: residue, 518 MiB, exit code 0
"
    );
    let mut same = report(Verdict::Clean, vec![device(0, Verdict::Clean, 0, Some(0))]);
    same.command = None;
    same.scope = Scope::New;
    same.devices[0].command_peak_bytes = None;
    assert_eq!(checked(&same, NARROW), "gpuresid: clean: no GPU memory is held that was not held before\n");
}

#[test]
fn a_clean_sentence_says_no_more_than_is_known() {
    let clean = report(Verdict::Clean, vec![device(0, Verdict::Clean, 0, Some(0))]);
    let sentence = |change: &dyn Fn(&mut Report)| {
        let mut report = clean.clone();
        report.devices[0].command_peak_bytes = None;
        change(&mut report);
        checked(&report, PLAIN).lines().next().unwrap().strip_prefix("gpuresid: clean: ").unwrap().to_owned()
    };
    let swelled = |mib| {
        let grown = Held { grown_bytes: Some(Bytes::mib(mib)), ..held(0, Some(5000)) };
        vec![holder(70, Cause::GrownNeighbour, Lineage::Foreign, vec![grown])]
    };
    let diff = |report: &mut Report, scope| (report.command, report.scope) = (None, scope);
    assert_eq!(sentence(&|r| r.holders = swelled(4096)), "all of the command's GPU memory came back");
    assert_eq!(sentence(&|r| r.holders = swelled(16)), "all GPU memory came back");
    assert_eq!(
        sentence(&|r| {
            diff(r, Scope::New);
            r.holders = swelled(4096);
        }),
        "no new process holds GPU memory; those that were there before have 4096 MiB more"
    );
    assert_eq!(sentence(&|r| diff(r, Scope::Run)), "nothing with the snapshot's marker holds GPU memory");
    // Of the GPUs that nobody looked at nothing is known.
    let others = |n: u32| (1..=n).map(gpu).collect::<Vec<_>>();
    assert_eq!(sentence(&|r| r.left_out = others(1)), "all GPU memory came back on GPU 0");
    assert_eq!(
        sentence(&|r| {
            r.devices = (0..6)
                .map(|n| DeviceReport { command_peak_bytes: None, ..device(n, Verdict::Clean, 0, Some(0)) })
                .collect();
            r.left_out = others(2);
        }),
        "all GPU memory came back on 6 of 8 GPUs"
    );
}

#[test]
fn how_the_command_died_is_said_once() {
    let mut killed = report(Verdict::Clean, vec![device(0, Verdict::Clean, 0, Some(0))]);
    let command = killed.command.as_mut().unwrap();
    (command.exit_code, command.signal) = (None, Some(9));
    assert_eq!(
        checked(&killed, NARROW),
        "gpuresid: clean: all GPU memory came back (the command's peak: 10.5 GiB); the\n  command was ended by SIGKILL (9)\n"
    );
    killed.findings = vec![Finding::new(
        None,
        None,
        FindingData::Died { death: Some(Death::Signal { number: 9, core_dumped: false }), oom_kills: None },
    )];
    assert_eq!(
        checked(&killed, NARROW),
        "gpuresid: clean: all GPU memory came back (the command's peak: 10.5 GiB)\n  \
         note: The command was ended by signal 9 (SIGKILL: killed from outside, or by\n        the kernel when memory ran out).\n"
    );
}

fn status_device(index: u32, used: Option<u64>, listed: Option<u64>) -> DeviceStatus {
    DeviceStatus {
        index,
        uuid: gpu(index),
        mig: None,
        name: Some("NVIDIA H200".into()),
        pci: None,
        total_bytes: used.map(|_| Bytes::mib(143_771)),
        reserved_bytes: used.map(|_| Bytes::mib(615)),
        used_bytes: used.map(Bytes::mib),
        free_bytes: used.map(|used| Bytes::mib(143_156 - used)),
        listed_bytes: listed.map(Bytes::mib),
        unaccounted_bytes: used.zip(listed).map(|(u, l)| (i64::try_from(u).unwrap() - i64::try_from(l).unwrap()) << 20),
        context_cost_bytes: Bytes::ZERO,
        utilization_percent: None,
        bar1_total_bytes: None,
        bar1_used_bytes: None,
    }
}

fn status_report(devices: Vec<DeviceStatus>, holders: Vec<Holder>) -> StatusReport {
    StatusReport {
        schema: schema::STATUS.into(),
        tool_version: "0.1.0".into(),
        taken_at: "2026-11-30T02:00:00Z".into(),
        boot_id: BootId("0d5c1c2a".into()),
        host: None,
        simulated: false,
        driver_version: Some("580.159.04".into()),
        cuda_version: Some("13.0".into()),
        broken_rules: Vec::new(),
        failure: None,
        devices,
        holders,
        open_only: Vec::new(),
        ghosts: Vec::new(),
        findings: Vec::new(),
        advice: Vec::new(),
        gaps: Vec::new(),
    }
}

#[test]
fn status_of_a_quiet_machine() {
    let mut quiet = status_report(vec![status_device(0, Some(0), Some(0))], Vec::new());
    assert_eq!(
        seen(&quiet, NARROW),
        "\
GPU memory: 0 B of 140.4 GiB in use on 1 GPU (driver 580.159.04, CUDA 13.0)
Nothing stands out.

DEVICE  NAME             TOTAL       FREE  USED =  LISTED +  UNACCOUNTED
GPU 0   NVIDIA H200  140.4 GiB  139.8 GiB     0 B       0 B          0 B
"
    );
    quiet.simulated = true;
    assert!(seen(&quiet, NARROW).starts_with("Simulated GPU, not a real one: 0 B of 140.4 GiB in use on 1 GPU ("));
    // What was not seen may be anything, so nothing is said about it.
    quiet.gaps = vec![Gap::new("/proc", "hidden")];
    assert!(!seen(&quiet, NARROW).contains("stands out"));
}

#[test]
fn the_first_lines_of_status_keep_to_the_terminals_width() {
    let stopped = |pid| holder(pid, Cause::Stopped, Lineage::Unknown, vec![held(0, Some(2048))]);
    let mut report = status_report(vec![status_device(0, Some(2100), Some(2048))], vec![stopped(678), stopped(679)]);
    report.simulated = true;
    for (columns, head) in [
        (50, "Simulated GPU, not a real one: 2100 MiB of 140.4\nGiB in use on 1 GPU (driver 580.159.04, CUDA 13.0)\n"),
        (80, "Simulated GPU, not a real one: 2100 MiB of 140.4 GiB in use on 1 GPU (driver\n580.159.04, CUDA 13.0)\n"),
        (200, "Simulated GPU, not a real one: 2100 MiB of 140.4 GiB in use on 1 GPU (driver 580.159.04, CUDA 13.0)\n"),
    ] {
        let text = seen(&report, Style { width: Some(columns), ..PLAIN });
        assert!(text.starts_with(head), "{columns}: {text}");
        let top: Vec<_> = text.lines().take_while(|l| !l.is_empty()).collect();
        assert!(top.iter().all(|l| text::width(l) <= usize::from(columns)), "{columns}: {top:#?}");
        assert!(top.join(" ").contains("Look at PID 678"), "{top:#?}");
    }
}

#[test]
fn status_names_holders_on_the_devices_where_they_hold() {
    let stopped = holder(678, Cause::Stopped, Lineage::Unknown, vec![held(0, Some(2048)), held(1, Some(518))]);
    let elsewhere = holder(700, Cause::InUse, Lineage::Unknown, vec![held(0, None), held(1, Some(1024))]);
    let unclear = holder(701, Cause::ExportedHandle, Lineage::Unknown, vec![held(0, None), held(1, None)]);
    let two = status_report(
        vec![status_device(0, Some(2100), Some(2048)), status_device(1, None, None)],
        vec![stopped, elsewhere, unclear],
    );
    assert_eq!(
        seen(&two, PLAIN),
        "\
GPU memory: what is in use on 2 GPUs could not be read in full (driver 580.159.04, CUDA 13.0)
Look at PID 678 (stopped, 2566 MiB) and PID 701 (exported handle).

DEVICE  NAME             TOTAL       FREE    USED =  LISTED +  UNACCOUNTED
GPU 0   NVIDIA H200  140.4 GiB  137.8 GiB  2100 MiB  2048 MiB       52 MiB
GPU 1   NVIDIA H200          ?          ?         ?         ?            ?

Who holds it
PID  USER     AGE  STATE     ON              MEMORY  CAUSE            COMMAND
678  alice  2 min  sleeping  GPU 0         2048 MiB  stopped          python train.py --epochs 3
                             GPU 1          518 MiB
700  alice  2 min  sleeping  GPU 1         1024 MiB  in use           python train.py --epochs 3
701  alice  2 min  sleeping  GPU 0, GPU 1         ?  exported handle  python train.py --epochs 3

The evidence for each cause, and whole command lines: gpuresid -v
"
    );
    // All of it, also of who is only in use.
    let all = seen(&two, VERBOSE);
    assert!(
        all.ends_with(
            "\
701  alice  2 min  sleeping  GPU 0, GPU 1         ?  exported handle  python train.py --epochs 3

PID 678: stopped
  command: /usr/bin/python train.py --epochs 3
  - it is stopped (Ctrl-Z or SIGSTOP), and keeps its memory until it goes on or is killed

PID 700: in use
  command: /usr/bin/python train.py --epochs 3
  - it is running and nothing about it stands out

PID 701: exported handle
  command: /usr/bin/python train.py --epochs 3
  - it keeps a handle to memory that another process allocated and shared
"
        ),
        "{all}"
    );
}

#[test]
fn a_strangers_words_never_act() {
    let mut evil = holder(1, Cause::Stopped, Lineage::Unknown, vec![held(0, Some(1))]);
    evil.command = "x\u{1b}[2J\ny".into();
    evil.name = Some(evil.command.clone());
    evil.user = Some("a\tb".into());
    evil.state = Some("s\u{7}".into());
    evil.launcher = Some("l\u{9b}31m (4)".into());
    evil.why = vec![Evidence::SlurmStepEnded { job: "w\r".into() }].into();
    let mut report = status_report(vec![status_device(0, Some(1), Some(1))], vec![evil]);
    report.driver_version = Some("1\u{1b}]0;t\u{7}".into());
    report.devices[0].name = Some("n\u{202e}".into());
    report.ghosts = vec![Ghost {
        pid: 2,
        device_uuid: Uuid("GPU-\u{1b}".into()),
        bytes: None,
        lineage: Lineage::Unknown,
        command: Some("g\u{1b}".into()),
        impostor: Some("i\u{1b}".into()),
        candidates: vec![],
    }];
    report.advice =
        vec![Advice { command: Some("kill 1\u{1b}\n".into()), why: "y\u{1b}".into(), disturbs: "d\u{1b}".into() }];
    report.gaps = vec![Gap::new("a\u{1b}", "r\u{1b}")];
    report.findings = vec![Finding::new(None, None, FindingData::NotStarted { why: "f\u{1b}".into() })];
    for style in [PLAIN, NARROW] {
        let text = seen(&report, style);
        assert!(!text.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{text:?}");
        assert!(text.contains("x\\x1b[2J\\ny"), "{text}");
    }
}

#[test]
fn one_gpu_in_the_name_of_another_is_not_taken_for_it() {
    let mut report = status_report(vec![status_device(1, Some(1), Some(1))], Vec::new());
    report.findings =
        vec![Finding::new(Some(&gpu(1)), None, FindingData::NotStarted { why: "GPU 10 is full.".into() })];
    assert!(seen(&report, PLAIN).contains("\n- GPU 1: not started: GPU 10 is full.\n"), "{}", seen(&report, PLAIN));
    // A clean check says it in the same words.
    let mut clean = self::report(Verdict::Clean, vec![device(1, Verdict::Clean, 0, Some(0))]);
    clean.findings = report.findings;
    assert!(checked(&clean, PLAIN).contains("\n  note: GPU 1: not started: GPU 10 is full.\n"));
}

#[test]
fn an_instance_has_one_name_everywhere() {
    // Old drivers name instances so that they differ only at the end.
    let instance = |gi: u32| {
        let mut made = device(0, Verdict::Residue, 512, Some(512));
        made.uuid = Uuid(format!("MIG-GPU-0d5c1c2a-1111-2222-3333-444455556666/{gi}/0"));
        made.mig = Some(MigIdentity { parent: gpu(0), gi: Some(gi), ci: Some(0) });
        made
    };
    let mut two = report(Verdict::Residue, vec![instance(7), instance(8)]);
    let on = |gi: u32| Held { uuid: instance(gi).uuid, ..held(0, Some(512)) };
    two.holders = vec![holder(70, Cause::Orphan, Lineage::Own, vec![on(7)])];
    two.findings =
        vec![Finding::new(Some(&instance(8).uuid), None, FindingData::DriverError { xid: 31, times: 1, placed: true })];
    let text = checked(&two, PLAIN);
    for part in [
        "512 MiB on MIG 0/7/0, 512 MiB on MIG 0/8/0",
        "\nMIG 0/7/0  NVIDIA H200",
        "\nMIG 0/8/0  NVIDIA H200",
        "  MIG 0/7/0  512 MiB  orphan",
        "\n- MIG 0/8/0: the driver reported error Xid 31 during the run",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("MIG-"), "{text}");
    // A report of an older version does not have the numbers: then the whole name tells them apart.
    two.devices.iter_mut().for_each(|d| d.mig = None);
    assert!(checked(&two, PLAIN).contains("\nMIG-GPU-0d5c1c2a-1111-2222-3333-444455556666/8/0  NVIDIA"));
}

#[test]
fn where_a_holder_belongs_is_shown_and_the_state_gives_way_first() {
    let mut holders: Vec<Holder> =
        (1..=3).map(|n| holder(n * 11, Cause::InUse, Lineage::Unknown, vec![held(0, Some(2048))])).collect();
    let in_container =
        Place { container: Some(Container { id: "web-7".into(), runtime: Some("lxc".into()) }), ..Place::default() };
    holders[0].place = Some(in_container);
    holders[1].launcher = Some("torchrun (9)".into());
    let report = status_report(vec![status_device(0, Some(6200), Some(6144))], holders);
    let rows = |style| {
        let text = seen(&report, style);
        text.lines().skip_while(|l| !l.starts_with("PID")).take(4).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        rows(PLAIN),
        [
            "PID  USER     AGE  STATE       MEMORY  CAUSE   WHERE               COMMAND",
            " 11  alice  2 min  sleeping  2048 MiB  in use  container web-7     python train.py --epochs 3",
            " 22  alice  2 min  sleeping  2048 MiB  in use  below torchrun (9)  python train.py --epochs 3",
            " 33  alice  2 min  sleeping  2048 MiB  in use                      python train.py --epochs 3",
        ]
    );
    assert_eq!(rows(NARROW)[1], " 11  alice  2 min  2048 MiB  in use  container web-7     python train.py --epoc…");
    let narrow = rows(Style { width: Some(60), ..PLAIN });
    assert_eq!(narrow[1], " 11  alice  2 min  2048 MiB  in use  python train.py --epoc…");
}

#[test]
fn how_busy_each_gpu_is_stands_in_a_column_where_it_was_asked_for() {
    let mut report =
        status_report(vec![status_device(0, Some(0), Some(0)), status_device(1, Some(9), Some(9))], vec![]);
    assert!(!seen(&report, PLAIN).contains("BUSY"));
    report.devices[0].utilization_percent = Some(57);
    let text = seen(&report, PLAIN);
    let column: Vec<_> = text.lines().filter(|l| l.starts_with(['D', 'G']) && !l.starts_with("GPU m")).collect();
    let last = |line: &&str| line.split_whitespace().next_back().unwrap_or_default().to_owned();
    assert_eq!(column.iter().map(last).collect::<Vec<_>>(), ["BUSY", "57%", "?"], "{text}");
}

/// Ranks of one launcher that died: three on each of eight GPUs.
fn ranks() -> Vec<Holder> {
    let rank = |n: u32| {
        let mut rank = holder(26_850 + n, Cause::Orphan, Lineage::Own, vec![held(n / 3, Some(8900))]);
        rank.command = format!("/usr/bin/python3 rank.py --rank {n}");
        rank.name = Some(format!("python3 rank.py --rank {n}"));
        rank.started_by = Some(26_721);
        rank.age_seconds = Some(8040 + u64::from(n));
        let launcher = Starter::Process(Named { pid: 26_721, name: "python3".into() });
        rank.why = vec![
            Evidence::StarterEnded { by: Some(launcher) },
            Evidence::Listed { bytes: None, device: format!("GPU {}", n / 3) },
        ]
        .into();
        rank
    };
    (0..24).map(rank).collect()
}

#[test]
fn twenty_four_leftovers_of_one_launcher_fit_a_screen() {
    let devices = (0..8).map(|n| device(n, Verdict::Residue, 26_700, Some(26_700))).collect();
    let mut dirty = report(Verdict::Residue, devices);
    dirty.holders = ranks();
    dirty.exit_code = 121;
    let text = checked(&dirty, Style { width: Some(100), ..PLAIN });
    assert!(text.lines().count() <= 40, "{text}");
    for part in [
        "\nLeft by the command\n",
        "\n24 ×  alice  2 h 14 min  sleeping  GPU 0 to GPU 7  208.6 GiB  orphan  python3 rank.py\n",
        "\n24 × python3 rank.py: orphan\n  PID 26850-26873\n  - what started it has ended: python3 (26721)\n",
        "\n\ngpuresid: residue, 208.6 GiB, 24 processes, exit code 121 (with -v: more)\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.starts_with("gpuresid: residue: 208.6 GiB") && !text.contains("--rank"), "{text}");
    // One by one where that is asked for.
    let all = checked(&dirty, VERBOSE);
    for (number, rank) in dirty.holders.iter().enumerate() {
        let evidence =
            format!("\n\nPID {}: orphan\n  command: /usr/bin/python3 rank.py --rank {number}\n  - ", rank.pid);
        assert!(all.contains(&evidence), "{evidence}: {all}");
    }
    assert!(all.ends_with("\ngpuresid: residue, 208.6 GiB, 24 processes, exit code 121\n"), "{all}");
    let mut status = status_report((0..8).map(|n| status_device(n, Some(26_700), Some(26_700))).collect(), ranks());
    let text = seen(&status, PLAIN);
    assert!(text.contains("\nLook at 24 × python3 rank.py (orphan, 208.6 GiB).\n"), "{text}");
    assert!(text.lines().count() < 24, "{text}");
    // Three stand one by one, and so does who is of another launcher.
    status.holders.truncate(3);
    assert!(seen(&status, PLAIN).contains("Look at PID 26850 (orphan, 8900 MiB), PID 26851 "));
    let mut mixed = ranks();
    mixed[7].started_by = Some(1);
    status.holders = mixed;
    let text = seen(&status, PLAIN);
    assert!(
        text.contains("Look at 23 × python3 rank.py (orphan, 199.9 GiB) and PID 26857 (orphan, 8900 MiB)."),
        "{text}"
    );
    assert!(text.contains("\n 23 ×  alice") && text.contains("\n26857  alice"), "{text}");
}
