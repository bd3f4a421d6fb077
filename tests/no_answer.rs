//! Where the driver does not answer, `status` and `doctor` still say who has its device files open: that is when
//! nvidia-smi says nothing, and when somebody has to know whose work stands in the way.
#![allow(clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Rig, state, wait_until};

/// Who is named, by PID.
#[track_caller]
fn named(report: &Value) -> Vec<u64> {
    let holders = report["holders"].as_array().unwrap_or_else(|| panic!("no holders in {report:#}"));
    holders.iter().map(|holder| holder["pid"].as_u64().unwrap_or_default()).collect()
}

#[test]
fn whoever_has_a_file_open_is_named_whatever_the_driver_answers() {
    for (code, kind, words) in [
        (18, "version_mismatch", "does not fit"),
        (999, "other", "unknown error in the driver (NVML code 999)"),
        (15, "other", "the GPU is lost"),
        (9, "no_driver", "no NVIDIA driver is loaded"),
        (4, "no_permission", "no permission"),
        (28, "no_gpu", "shows no GPU"),
    ] {
        let rig = Rig::with_gpus(2);
        let _neighbour = rig.start("alloc 1 1GiB ready up hold");
        let pid = rig.wait_for("up");
        // Lookalikes: one without a file, and one whose file has only the name.
        let _idle = rig.start("ready idle hold");
        rig.wait_for("idle");
        std::fs::write(rig.path("nvidia0"), "").unwrap_or_else(|e| panic!("{e}"));
        let script = format!(
            "exec 3< {}; echo $$ > {}; exec sleep 60",
            rig.path("nvidia0").display(),
            rig.path("other").display()
        );
        let _other = rig.start_of(&["sh", "-c", &script].map(Into::into));
        wait_until("the other to be there", || rig.path("other").exists());

        rig.init_answers(code);
        let end = rig.run("--json");
        let report = end.expect_code(125).json();
        assert_eq!(named(&report), [u64::from(pid)], "{report:#}");
        let holder = &report["holders"][0];
        assert_eq!(holder["cause"], "open_only");
        assert!(holder["open_files"]["nvidia1"].as_u64() > Some(0), "{holder:#}");
        assert!(holder["user"].is_string() && holder["age_seconds"].is_u64(), "{holder:#}");
        assert!(holder["command"].as_str().is_some_and(|line| line.contains("cuda.py")), "{holder:#}");
        // Nothing is known of the devices, and that is said and not left to an empty list.
        assert_eq!((&report["schema"], &report["devices"]), (&json!("gpuresid.status/1"), &json!([])));
        assert_eq!(report["failure"]["kind"], kind);
        let message = report["failure"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(words), "{message}");
        assert_eq!(report["gaps"][0], json!({ "about": "NVML", "reason": message }));
        assert!(end.stderr.starts_with(&format!("error: {message}\n\nhint: ")), "{}", end.stderr);

        let end = rig.run("");
        end.expect_code(125);
        let (before, table) = end.stdout.split_once("Who has NVIDIA's device files open\n").unwrap_or_default();
        assert!(before.contains("so how much memory is in use is not known"), "{}", end.stdout);
        assert!(
            table.lines().any(|line| line.trim_start().starts_with(&format!("{pid} "))
                && line.contains("nvidia0-1, nvidia-uvm, nvidiactl")),
            "{table}"
        );
        assert!(!table.contains("sleep 60") && !table.contains("idle"), "{table}");
        assert!(!end.stderr.contains("end everything"), "{}", end.stderr);
    }
}

#[test]
fn a_driver_that_hangs_or_stops_answering_hides_nobody_and_our_own_helper_is_nobody() {
    for function in ["nvmlInit*", "nvmlDeviceGetMemoryInfo*"] {
        let rig = Rig::new();
        let _neighbour = rig.start("alloc 0 1GiB ready up hold");
        let pid = rig.wait_for("up");
        rig.hangs(function, "hang");
        let report = rig.run("--json --nvml-timeout 300ms").expect_code(125).json();
        assert_eq!(named(&report), [u64::from(pid)], "{function}: {report:#}");
        assert_eq!(report["failure"]["kind"], "timeout");
        if function == "nvmlInit*" {
            let end = rig.run("--nvml-timeout 3500ms");
            let word = "waiting for the NVIDIA driver to answer, at most 3s 500ms (--nvml-timeout); if it does not, whoever has its \
                        device files open is shown\n";
            assert!(end.expect_code(125).stderr.contains(word), "{}", end.stderr);
        }
        rig.let_go("hang");
        // The negative control: with the driver there are devices, and no failure.
        let report = rig.run("--json").expect_code(0).json();
        assert_eq!((report.get("failure"), report["devices"].as_array().map(Vec::len)), (None, Some(1)));
    }
}

#[test]
fn what_can_be_told_of_a_process_without_the_driver_is_told() {
    let rig = Rig::new();
    let stopped = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    stopped.signal(Signal::STOP);
    wait_until("it to stop", || state(pid) == Some('T'));
    let _half = rig.start("alloc 0 1GiB exit-main-thread ready half hold");
    let half = rig.wait_for("half");
    rig.init_answers(999);
    let text = rig.run("").stdout;
    for (pid, cause) in [(pid, "stopped"), (half, "half dead")] {
        assert!(text.contains(&format!("\nPID {pid}: {cause}\n")), "{text}");
    }
    stopped.signal(Signal::CONT);
}

#[test]
fn nobody_is_said_and_without_a_driver_nothing() {
    let rig = Rig::new();
    rig.init_answers(18);
    let end = rig.run("");
    assert!(
        end.expect_code(125).stdout.contains("\nNobody who can be seen from here has NVIDIA's device files open.\n"),
        "{}",
        end.stdout
    );
    assert!(end.stderr.contains("once nobody has its device files open (gpuresid lists who has)\n"), "{}", end.stderr);
    rig.clear_faults();
    rig.init_answers(9);
    assert_eq!(rig.run("").expect_code(125).stdout, "", "what is not loaded has no open files");
}

#[test]
fn doctor_names_them_too() {
    let rig = Rig::new();
    let _neighbour = rig.start("alloc 0 1GiB ready up hold");
    let pid = rig.wait_for("up");
    let report = rig.run("doctor --json").json();
    assert_eq!(report.get("holders"), None, "a driver that answers is asked by status");
    rig.init_answers(18);
    let end = rig.run("doctor --json");
    let report = end.expect_code(1).json();
    assert_eq!(named(&report), [u64::from(pid)]);
    let line = report["lines"].as_array().and_then(|lines| lines.iter().find(|line| line["check"] == "driver.files"));
    assert_eq!(
        line.map(|line| &line["text"]),
        Some(&json!("one process has its device files open; it is listed at the end"))
    );
    let text = rig.run("doctor").stdout;
    let table = text.split_once("\nWho has NVIDIA's device files open\n").map(|(_, table)| table).unwrap_or_default();
    assert!(table.contains(&format!("{pid} ")), "{text}");
    let hidden = rig.run("doctor --redact").stdout;
    let table = hidden.split_once("\nWho has NVIDIA's device files open\n").map(|(_, table)| table).unwrap_or_default();
    assert!(table.contains("***") && !table.contains("cuda.py"), "{hidden}");
    let hidden = rig.run("--redact").stdout;
    assert!(hidden.contains("python3 ***") && !hidden.contains("cuda.py"), "{hidden}");
}
