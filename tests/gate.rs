//! `status --fail-on`: one line that an epilog or a CI runner needs before a GPU is handed on. What must not be so, who it
//! is, and 121.
#![allow(clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use serde_json::{Value, json};
use support::{Allocation, Fault, Finished, Instance, Machine, Rig, skipped};

/// The rules that were broken, each with its words.
fn broken(end: &Finished) -> Vec<(String, String)> {
    let all = end.json()["broken_rules"].as_array().cloned().unwrap_or_default();
    let words = |rule: &Value, name: &str| rule[name].as_str().unwrap_or_default().to_owned();
    all.iter().map(|rule| (words(rule, "rule"), words(rule, "text"))).collect()
}

#[test]
fn a_gpu_that_cannot_be_used_is_lost() {
    let rig = Rig::with_gpus(2);
    assert_eq!(broken(rig.run("--json --fail-on lost --expect 2").expect_code(0)), []);
    let on_one = |function: &str, code| Fault {
        function: function.into(),
        device: Some(1),
        code: Some(code),
        ..Fault::default()
    };
    for (fault, words) in [
        // Its handle, its memory, its list of processes.
        (on_one("nvmlDevice*", 15), "GPU 1: opening the device: the GPU is lost"),
        (on_one("nvmlDeviceGetMemoryInfo*", 999), "GPU 1: reading the memory: unknown error"),
        (
            on_one("nvmlDeviceGetComputeRunningProcesses*", 999),
            "GPU 1: reading the compute process list: unknown error",
        ),
        // What still answers for a part is as lost.
        (
            on_one("nvmlDeviceGetGraphicsRunningProcesses*", 16),
            "GPU 1: reading the graphics process list: the GPU must be reset",
        ),
    ] {
        rig.fault(fault);
        let end = rig.run("--json --fail-on lost");
        let said = broken(end.expect_code(121));
        assert!(matches!(&said[..], [(rule, text)] if rule == "lost" && text.starts_with(words)), "{words}: {said:?}");
        let text = rig.run("--fail-on lost").expect_code(121).stdout.clone();
        assert!(text.contains(&format!("\n--fail-on (exit code 121)\n- lost: {words}")), "{text}");
        // The healthy one alone is fine, and so is who did not ask.
        rig.run("--fail-on lost -i 0").expect_code(0);
        rig.run("--fail-on orphan").expect_code(0);
        rig.clear_faults();
    }
}

#[test]
fn a_gpu_without_amounts_of_its_own_is_not_lost() {
    let rig = Rig::new();
    rig.answers("nvmlDeviceGetMemoryInfo*", 3);
    assert_eq!(broken(rig.run("--json --fail-on lost").expect_code(0)), []);
}

#[test]
fn a_gpu_that_hangs_beside_one_that_answers_is_lost() {
    let rig = Rig::with_gpus(2);
    let hang = Fault {
        function: "nvmlDeviceGetMemoryInfo*".into(),
        device: Some(1),
        hang_while: Some("stuck".into()),
        ..Fault::default()
    };
    std::fs::write(rig.ledger.directory().join("stuck"), "").unwrap_or_else(|e| panic!("{e}"));
    rig.fault(hang);
    let end = rig.run("--json --fail-on lost --nvml-timeout 1s");
    let said = broken(end.expect_code(121));
    assert!(matches!(&said[..], [(rule, text)] if rule == "lost" && text.starts_with("GPU 1: ")), "{said:?}");
    rig.let_go("stuck");
}

#[test]
fn so_many_gpus_must_be_there_whole_or_in_parts() {
    let rig = Rig::with_gpus(2);
    let lost = [("lost".to_owned(), "only 2 of 8 GPUs are there".to_owned())];
    assert_eq!(broken(rig.run("--json --fail-on lost --expect 8").expect_code(121)), lost);
    // It is about the machine, whichever GPUs are looked at.
    assert_eq!(broken(rig.run("--json --fail-on lost --expect 8 -i 0").expect_code(121)), lost);
    rig.run("--fail-on lost --expect 2 -i 0").expect_code(0);
    let mut machine = Machine::h200(2);
    let part = |number: u32| Instance { uuid: format!("MIG-{number}"), gi: number, ci: 0, total: 1 << 34, reserved: 0 };
    machine.devices[1].mig = vec![part(1), part(2)];
    let rig = Rig::with_machine(&machine);
    rig.run("--fail-on lost --expect 2").expect_code(0);
    rig.run("--fail-on lost --expect 3").expect_code(121);
    // Two parts of one GPU are one GPU.
    rig.run("--fail-on lost --expect 3 -i MIG-1,MIG-2").expect_code(121);
    // A driver that does not answer is an error as ever, and the rule is named.
    rig.init_answers(999);
    let end = rig.run("--json --fail-on lost,orphan --expect 2");
    assert_eq!(broken(end.expect_code(125)), [("lost".to_owned(), "the driver does not answer".to_owned())]);
}

#[test]
fn another_users_memory_is_foreign() {
    if !rustix::process::geteuid().is_root() {
        return skipped("another user takes root");
    }
    let rig = Rig::with_gpus(2);
    let _mine = rig.start("alloc 0 1GiB ready mine hold");
    rig.wait_for("mine");
    let gate = |arguments: &str| {
        let mut command = rig.gpuresid(arguments.split_whitespace());
        command.env_remove("SUDO_UID");
        rig.launch(command).wait()
    };
    gate("--fail-on foreign").expect_code(0);
    let _theirs = rig.start("setuid 65534 alloc 1 1GiB ready theirs hold");
    let pid = rig.wait_for("theirs");
    let end = gate("--json --fail-on foreign,orphan");
    let report = end.expect_code(121).json();
    assert_eq!(report["broken_rules"][0]["pids"], json!([pid]));
    let said = broken(&end);
    let words = format!("not yours: PID {pid} of ");
    assert!(
        matches!(&said[..], [(rule, text)] if rule == "foreign" && text.starts_with(&words) && text.ends_with(" (1542 MiB)")),
        "{said:?}"
    );
    // Not on a GPU that was not asked about.
    gate("--fail-on foreign -i 0").expect_code(0);
    // Who comes by sudo is who typed it.
    let mut sudo = rig.gpuresid(["--json", "--fail-on", "foreign", "-i", "1"]);
    sudo.env("SUDO_UID", "65534");
    rig.launch(sudo).wait().expect_code(0);
    let hidden = gate("--fail-on foreign --redact").stdout;
    assert!(hidden.contains(&format!("- foreign: not yours: PID {pid} of *** (1542 MiB)\n")), "{hidden}");
}

#[test]
fn another_jobs_memory_is_foreign_to_a_job() {
    let rig = Rig::with_gpus(2);
    let start = |job: &str, gpu: u32| {
        let name = format!("job-{job}");
        let mut command = rig.beside(&rig.program(&format!("alloc {gpu} 1GiB ready {name} hold")));
        command.env("SLURM_JOB_ID", job);
        let running = rig.launch(command);
        (rig.wait_for(&name), running)
    };
    let gate = |job: &str, more: &str| {
        let mut command = rig.gpuresid("--json --fail-on foreign --mine job".split(' ').chain(more.split_whitespace()));
        command.env("SLURM_JOB_ID", job);
        rig.launch(command).wait()
    };
    let (_, _ours) = start("104", 0);
    gate("104", "").expect_code(0);
    let (theirs, _theirs) = start("1045", 1);
    assert_eq!(
        broken(gate("104", "").expect_code(121)),
        [("foreign".to_owned(), format!("not of job 104: PID {theirs} of {} (1542 MiB)", user(&rig, theirs)))]
    );
    gate("104", "-i 0").expect_code(0);
    gate("10", "-i 0").expect_code(121);
}

/// The user of a holder, as status shows it.
fn user(rig: &Rig, pid: u32) -> String {
    let status = rig.run("--json").json();
    let holder = status["holders"].as_array().and_then(|all| all.iter().find(|holder| holder["pid"] == pid).cloned());
    holder
        .and_then(|holder| holder["user"].as_str().map(str::to_owned))
        .unwrap_or_else(|| panic!("no {pid} in {status:#}"))
}

#[test]
fn memory_that_nobody_visible_holds_is_foreign() {
    let rig = Rig::new();
    rig.add("hidden", Allocation { device: 0, bytes: 3 << 30, ..Allocation::default() });
    let end = rig.run("--json --fail-on foreign");
    let said = broken(end.expect_code(121));
    assert!(
        matches!(&said[..], [(_, text)] if text.ends_with("on GPU 0, held by nobody who can be seen from here")),
        "{said:?}"
    );
    rig.remove("hidden");
    rig.run("--fail-on foreign").expect_code(0);
    // My own unlisted memory is mine.
    let _managed = rig.start("managed 0 4GiB ready up hold");
    rig.wait_for("up");
    let mut command = rig.gpuresid(["--json", "--fail-on", "foreign"]);
    command.env_remove("SUDO_UID");
    assert_eq!(broken(rig.launch(command).wait().expect_code(0)), []);
}

#[test]
fn a_rule_that_was_not_asked_for_has_no_options() {
    let rig = Rig::new();
    for (arguments, words) in [
        (
            "--fail-on orphan --expect 8",
            "error: --expect says how many GPUs `--fail-on lost` looks for\n\nhint: write --fail-on lost --expect N\n",
        ),
        (
            "--fail-on lost --mine job",
            "error: --mine says who does not count as somebody else for `--fail-on foreign`\n\nhint: write --fail-on foreign --mine user, or --mine job\n",
        ),
    ] {
        assert_eq!(rig.run(arguments).expect_code(125).stderr, words);
    }
    let mut command = rig.gpuresid("--fail-on foreign --mine job".split(' '));
    command.env_remove("SLURM_JOB_ID");
    let end = rig.launch(command).wait();
    assert!(end.expect_code(125).stderr.starts_with("error: --mine job needs the number of the job"), "{}", end.stderr);
    for arguments in ["--expect 2", "--mine user", "--fail-on lost --expect 0", "--fail-on foreign --mine them"] {
        rig.run(arguments).expect_code(125);
    }
    let end = rig.run("--fail-on lost --expect many");
    let words = "error: invalid value 'many' for '--expect <N>': write a number of GPUs, such as 8\n";
    assert!(end.expect_code(125).stderr.starts_with(words), "{}", end.stderr);
    assert!(rig.calls().is_empty(), "no driver was asked");
}
