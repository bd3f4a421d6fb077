//! `snapshot` and `diff` against a fake machine: the same in two steps as `check` in one.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod support;

use serde_json::{Value, json};
use std::fs;
use support::{Allocation, Judged, Rig};

/// Takes a snapshot into a file of the rig.
fn snapshot(rig: &Rig, name: &str) -> String {
    let path = rig.path(name).display().to_string();
    rig.run(&format!("snapshot -o {path}")).expect_code(0);
    path
}

/// Changes a stored snapshot.
fn edit(path: &str, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn nothing_new_is_clean_and_a_new_holder_is_residue() {
    let rig = Rig::new();
    let _old = rig.start("alloc 0 1GiB ready old hold");
    rig.wait_for("old");
    let before = snapshot(&rig, "before.json");
    let clean = rig.run(&format!("diff {before}"));
    assert_eq!(clean.expect_code(0).stdout, "gpuresid: clean: no GPU memory is held that was not held before\n");

    let new = rig.start("alloc 0 2GiB ready new hold");
    let pid = rig.wait_for("new");
    let dirty = rig.run(&format!("diff {before}"));
    dirty.expect_code(121);
    assert!(
        dirty.stdout.starts_with(
            "gpuresid: residue: 2566 MiB of GPU memory is held that was not held before (GPU 0; limit 16 MiB)\n"
        ),
        "{}",
        dirty.stdout
    );
    let report = rig.run(&format!("diff {before} --json")).json();
    assert_eq!(report["schema"], "gpuresid.report/1");
    assert_eq!(report["scope"], "new");
    assert_eq!(report["command"], Value::Null);
    assert_eq!(report["exit_code"], 121);
    assert_eq!(report["devices"][0]["charged_residue_bytes"], 2566_u64 << 20);
    assert_eq!(report["holders"][0]["pid"], pid);
    assert_eq!(report["holders"][0]["lineage"], "own");

    // The limits are those of a check.
    rig.run(&format!("diff {before} --max-residue 3GiB")).expect_code(0);
    rig.run(&format!("diff {before} --warn-only")).expect_code(0);

    // Two stored snapshots say the same as the first and now.
    let after = snapshot(&rig, "after.json");
    let stored = rig.run(&format!("diff {before} {after} --json")).json();
    assert_eq!(stored["devices"][0]["charged_residue_bytes"], report["devices"][0]["charged_residue_bytes"]);
    assert_eq!(stored["holders"], later(report["holders"].clone(), &stored["holders"]));

    // The negative control.
    new.kill();
    rig.run(&format!("diff {before}")).expect_code(0);
}

/// The holders with the ages of others, which grow meanwhile.
fn later(mut holders: Value, others: &Value) -> Value {
    for (holder, other) in holders.as_array_mut().unwrap().iter_mut().zip(others.as_array().unwrap()) {
        // A program that waits wakes now and then, so its state may be another one in the next look.
        for changing in ["age_seconds", "state"] {
            holder[changing] = other[changing].clone();
        }
    }
    holders
}

#[test]
fn the_marker_of_a_snapshot_tells_own_from_others() {
    let rig = Rig::new();
    let before = rig.path("before.json").display().to_string();
    let marker = rig.marking_snapshot(&before);
    let _own = rig.start_marked(&rig.program("alloc 0 1GiB ready own hold"), &marker);
    let own = rig.wait_for("own");
    let _other = rig.start("alloc 0 4GiB ready other hold");
    rig.wait_for("other");
    let report = rig.run(&format!("diff {before} --json")).json();
    assert_eq!(report["scope"], "run");
    assert_eq!(report["devices"][0]["charged_residue_bytes"], (1024_u64 + 518) << 20);
    let lineage = |pid: u32| {
        let holders = report["holders"].as_array().unwrap();
        holders.iter().find(|h| h["pid"] == pid).map(|h| h["lineage"].clone())
    };
    assert_eq!(lineage(own), Some(json!("own")));
    let steps: Vec<&str> = report["advice"].as_array().unwrap().iter().filter_map(|a| a["command"].as_str()).collect();
    assert_eq!(steps, [format!("kill {own}")]);
    // Asked for, everything new counts.
    let all = rig.run(&format!("diff {before} --json --scope new")).json();
    assert_eq!(all["devices"][0]["charged_residue_bytes"], (1024_u64 + 518 + 4096 + 518) << 20);
}

#[test]
fn a_marker_that_nobody_has_is_missed() {
    let rig = Rig::new();
    let before = rig.path("before.json").display().to_string();
    let marker = rig.marking_snapshot(&before);
    let _other = rig.start("alloc 0 4GiB ready other hold");
    rig.wait_for("other");
    let end = rig.run(&format!("diff {before}"));
    let said = format!(
        "gpuresid: neither this shell nor any process has the snapshot's marker, so every new process is charged; to charge \
         only what has it: gpuresid diff --scope run {before}\n"
    );
    assert_eq!(end.expect_code(121).stderr, said);
    // Asked for, nothing is missed; in the marked shell neither; nor where no marker was made.
    assert_eq!(rig.run(&format!("diff {before} --scope run")).expect_code(122).stderr, "");
    assert_eq!(rig.run(&format!("diff {before} --scope new")).expect_code(121).stderr, "");
    let mut shell = rig.gpuresid(["diff", &before]);
    shell.env("GPURESID_RUN_ID", marker);
    let marked = rig.launch(shell).wait();
    assert_eq!(marked.expect_code(122).stderr, "");
    // No word of a command where there is none.
    for words in
        ["belong to new processes that do not show the snapshot's marker", "it started after the earlier snapshot"]
    {
        assert!(marked.stdout.contains(words) && !marked.stdout.contains("the command"), "{words}: {}", marked.stdout);
    }
    let plain = snapshot(&rig, "plain.json");
    assert_eq!(rig.run(&format!("diff {plain}")).expect_code(0).stderr, "");
}

#[test]
fn a_marked_process_without_a_parent_is_shown_what_its_end_gives_back() {
    let rig = Rig::new();
    let before = rig.path("before.json").display().to_string();
    let marker = rig.marking_snapshot(&before);
    let left = rig.program("daemonize-twice { alloc 0 1GiB ready left hold }");
    rig.start_marked(&left, &marker).wait().expect_code(0);
    let left = rig.wait_for("left");
    let report = rig.run(&format!("diff {before} --json")).expect_code(121).json();
    assert_eq!(report["holders"][0]["cause"], "detached", "{report:#}");
    assert_eq!(report["advice"][0]["command"], format!("gpuresid reclaim --pid {left}"), "{report:#}");
}

#[test]
fn what_does_not_compare_is_refused() {
    let rig = Rig::new();
    let refused = |change: fn(&mut Value), words: &str| {
        let before = snapshot(&rig, "before.json");
        edit(&before, change);
        let end = rig.run(&format!("diff {before}"));
        end.expect_code(125);
        assert!(end.stderr.starts_with(&format!("error: {words}")), "{}", end.stderr);
        assert!(end.stderr.contains("\n\nhint: "), "{}", end.stderr);
        assert_eq!(end.stdout, "");
    };
    refused(
        |s| s["boot_id"] = json!("00000000-0000-0000-0000-000000000000"),
        "the snapshots do not compare: the machine was started anew between them\n",
    );
    refused(
        |s| s["host"] = json!("elsewhere.example"),
        "the snapshots do not compare: the first is of the machine elsewhere.example, the second of ",
    );
    refused(
        |s| s["devices"][0]["look"]["memory"]["api"] = json!("v1"),
        "the snapshots do not compare: the driver counted the memory of GPU 0 differently in the two",
    );
    refused(
        |s| s["driver"]["source"] = json!("simulated"),
        "the snapshots do not compare: one is of a simulated GPU, the other of a real one\n",
    );
}

#[test]
fn which_came_first_is_not_a_matter_of_the_clock() {
    let rig = Rig::new();
    let (first, second) = (snapshot(&rig, "first.json"), snapshot(&rig, "second.json"));
    rig.run(&format!("diff {first} {second}")).expect_code(0);
    let swapped = rig.run(&format!("diff {second} {first}"));
    swapped.expect_code(125);
    assert!(swapped.stderr.starts_with("error: the first snapshot was taken after the second\n"), "{}", swapped.stderr);
    // The clock was set back by years after the first one.
    edit(&first, |s| s["taken_at"] = json!("2999-01-01T00:00:00Z"));
    rig.run(&format!("diff {first} {second}")).expect_code(0);
    rig.run(&format!("diff {first}")).expect_code(0);
}

/// Takes the last GPU away from the machine, as when it falls off the bus or goes to a virtual machine.
fn take_last_gpu(rig: &Rig) -> Value {
    let mut taken = Value::Null;
    rig.edit_machine(|machine| taken = machine["devices"].as_array_mut().unwrap().pop().unwrap());
    taken
}

#[test]
fn a_gpu_that_is_gone_is_named_and_nothing_is_said_to_be_clean() {
    let rig = Rig::with_gpus(2);
    let _held = rig.start("alloc 1 1GiB ready held hold");
    rig.wait_for("held");
    let (before, one) = (snapshot(&rig, "before.json"), rig.path("one.json").display().to_string());
    rig.run(&format!("snapshot -i 1 -o {one}")).expect_code(0);
    let uuid = take_last_gpu(&rig)["uuid"].as_str().unwrap().to_owned();
    let after = snapshot(&rig, "after.json");
    for line in [format!("diff {before}"), format!("diff {before} {after}"), format!("diff {one}")] {
        let end = rig.run(&line);
        let shown = end.expect_code(122).stdout.clone();
        assert!(shown.contains("cannot tell whether the same GPU memory is held as before (GPU 1"), "{shown}");
        assert!(shown.contains("it is not there any more"), "{shown}");
        assert!(shown.contains("nvidia-smi -L") && shown.contains(&uuid), "{shown}");
        assert!(!shown.contains("--scope new"), "{shown}");
    }
    let report = rig.run(&format!("diff {before} --json")).json();
    assert_eq!(
        (&report["devices"][0]["verdict"], &report["devices"][1]["verdict"]),
        (&json!("clean"), &json!("inconclusive"))
    );
    // Nobody asked for it.
    rig.run(&format!("diff {before} -i 0")).expect_code(0);
    rig.run(&format!("diff {before} {after} -i 0")).expect_code(0);
    // One whose handle is refused is not gone: it is lost.
    let other = Rig::with_gpus(2);
    let before = snapshot(&other, "before.json");
    other.lose_gpu(0);
    let lost = other.run(&format!("diff {before}"));
    assert!(lost.expect_code(122).stdout.contains("GPU 0: opening the device: the GPU is lost"), "{}", lost.stdout);
    assert!(lost.stdout.contains("--gpu-reset -i 0") && lost.stdout.contains("gpuresid -i 1"), "{}", lost.stdout);
}

#[test]
fn a_gpu_that_is_new_is_mentioned_and_one_that_was_not_looked_at_is_not() {
    let rig = Rig::with_gpus(2);
    let second = take_last_gpu(&rig);
    let before = snapshot(&rig, "before.json");
    rig.edit_machine(|machine| machine["devices"].as_array_mut().unwrap().push(second));
    let after = snapshot(&rig, "after.json");
    for line in [format!("diff {before}"), format!("diff {before} {after}")] {
        let end = rig.run(&line);
        let note = "note: GPU 1 was not there before, so nothing can be said about its memory.";
        assert!(end.expect_code(0).stdout.contains(note), "{}", end.stdout);
    }
    rig.run(&format!("snapshot -i 0 -o {before}")).expect_code(0);
    for line in [format!("diff {before}"), format!("diff {before} {}", snapshot(&rig, "later.json"))] {
        assert!(!rig.run(&line).expect_code(0).stdout.contains("GPU 1"), "{line}");
    }
    // A file of an earlier version does not tell which were there.
    edit(&before, |s| drop(s.as_object_mut().unwrap().remove("unselected")));
    assert!(!rig.run(&format!("diff {before}")).expect_code(0).stdout.contains("GPU 1"));
}

#[test]
fn a_number_in_a_file_that_cannot_be_is_no_reading() {
    let rig = Rig::new();
    let (before, after) = (snapshot(&rig, "before.json"), snapshot(&rig, "after.json"));
    edit(&after, |s| s["devices"][0]["look"]["memory"]["used"] = json!(u64::MAX));
    let end = rig.run(&format!("diff {before} {after}"));
    end.expect_code(122);
    assert!(end.stdout.contains("in use and ") && end.stdout.contains("that is no reading"), "{}", end.stdout);
}

#[test]
fn a_snapshot_is_put_in_place_at_once_and_only_when_it_is_whole() {
    let rig = Rig::new();
    let path = snapshot(&rig, "s.json");
    let old = fs::read(&path).unwrap();
    rig.init_answers(9);
    rig.run(&format!("snapshot -o {path}")).expect_code(125);
    assert_eq!(fs::read(&path).unwrap(), old, "a failure leaves the old one");
    rig.clear_faults();
    let printed = rig.run("snapshot").json();
    assert_eq!(printed["schema"], "gpuresid.snapshot/1");
    rig.run("snapshot --env").expect_code(125);
}

#[test]
fn only_the_chosen_gpu_is_compared() {
    let rig = Rig::with_gpus(2);
    let before = snapshot(&rig, "before.json");
    let _new = rig.start("alloc 1 1GiB ready up hold");
    rig.wait_for("up");
    let after = snapshot(&rig, "after.json");
    for now in ["", after.as_str()] {
        let devices = |selection: &str| {
            let end = rig.run(&format!("diff {before} {now} --json {selection}"));
            let all = end.json()["devices"].as_array().unwrap().clone();
            (end.code.unwrap(), all.iter().map(|d| d["index"].as_u64().unwrap()).collect::<Vec<_>>())
        };
        assert_eq!(devices(""), (121, vec![0, 1]));
        assert_eq!(devices("-i 1"), (121, vec![1]));
        assert_eq!(devices("-i 0"), (0, vec![0]));
    }
}

#[test]
fn a_neighbour_that_grew_is_named_and_nobody_is_charged() {
    let rig = Rig::new();
    let shell = rig.start("rename gnome-shell alloc 0 256MiB ready there wait-file grow alloc 0 4GiB ready grown hold");
    rig.wait_for("there");
    let before = snapshot(&rig, "before.json");
    rig.mark("grow");
    rig.wait_for("grown");
    let clean = rig.run(&format!("diff {before}"));
    assert_eq!(
        clean.expect_code(0).stdout,
        format!(
            "gpuresid: clean: no new process holds GPU memory; those that were there before have 4096 MiB more\n  note: \
             GPU 0: PID {} (gnome-shell), which was there before, has 4096 MiB more. It is not charged.\n",
            shell.pid()
        )
    );
    let report = Judged(rig.run(&format!("diff {before} --json")).json());
    report.expect("clean").expect_charged(0);
    let holder = report.expect_holder(shell.pid(), "grown_neighbour", "foreign");
    assert_eq!(holder["devices"][0]["grown_bytes"], 4_u64 << 30, "{:#}", report.0);
    assert_eq!(report.finding("grown").unwrap()["bytes"], 4_u64 << 30);

    // Where all growth counts it is who is charged, and not to be ended.
    let dirty = rig.run(&format!("diff {before} --scope device"));
    let text = &dirty.expect_code(121).stdout;
    assert!(!text.contains("not charged"), "{text}");
    let charged = text.split_once("There before and grown since: charged, because all growth is\n").unwrap().1;
    assert!(charged.lines().nth(1).unwrap().starts_with(&shell.pid().to_string()), "{text}");
    assert!(!text.contains("kill"), "{text}");
    assert!(text.contains("see who has more than before"), "{text}");
}

#[test]
fn little_growth_is_no_news() {
    let rig = Rig::new();
    let _neighbour = rig.start("alloc 0 1GiB ready there wait-file grow alloc 0 100MiB ready grown hold");
    rig.wait_for("there");
    let before = snapshot(&rig, "before.json");
    rig.mark("grow");
    rig.wait_for("grown");
    assert_eq!(
        rig.run(&format!("diff {before}")).expect_code(0).stdout,
        "gpuresid: clean: no new process holds GPU memory; those that were there before have 100 MiB more\n"
    );
    // Who wants to know more of it sets the limit lower.
    let told = rig.run(&format!("diff {before} --max-unattributed 64MiB"));
    assert!(told.expect_code(0).stdout.contains(" (python3), which was there before, has 100 MiB more"), "{told:?}");
}

#[test]
fn a_process_that_is_older_than_the_snapshot_is_not_new() {
    let rig = Rig::new();
    let old = rig.start("ready there wait-file begin alloc 0 2GiB ready up hold");
    rig.wait_for("there");
    // It has to be older by a tick of the kernel's clock.
    let before = wait_for_older(&rig, old.pid());
    rig.mark("begin");
    rig.wait_for("up");
    let report = Judged(rig.run(&format!("diff {before} --json")).expect_code(0).json());
    report.expect("clean").expect_charged(0);
    report.expect_holder(old.pid(), "grown_neighbour", "foreign");
    assert!(report.why(old.pid()).contains("it started before the earlier snapshot was taken"), "{:#}", report.0);
    assert_eq!(report.commands(), [""; 0]);
    assert!(report.finding_text("grown").contains("has 2566 MiB more"), "{:#}", report.0);

    // Beside it one that is younger is new.
    let new = rig.start("alloc 0 1GiB ready new hold");
    rig.wait_for("new");
    let report = Judged(rig.run(&format!("diff {before} --json")).expect_code(121).json());
    report.expect("residue").expect_charged((1024 + 518) << 20);
    assert_eq!(report.expect_holder(new.pid(), "still_running", "own")["devices"][0].get("grown_bytes"), None);
    assert_eq!(report.commands(), [format!("kill {}", new.pid())]);
}

/// A snapshot whose gpuresid started later than this process by the kernel's clock.
fn wait_for_older(rig: &Rig, pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let ticks: u64 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    let mut path = String::new();
    support::wait_until("a later snapshot", || {
        path = snapshot(rig, "before.json");
        let value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        value["observer"]["id"]["start_ticks"].as_u64().unwrap() > ticks
    });
    path
}

#[test]
fn who_uses_a_gpu_that_is_not_looked_at_has_nothing_to_do_with_it() {
    let rig = Rig::with_gpus(2);
    let before = rig.path("before.json").display().to_string();
    rig.run(&format!("snapshot -i 0 -o {before}")).expect_code(0);
    // The job beside us sees its own GPU alone, and something on ours is on no list.
    let other = rig.start("context 1 close-files open nvidia1 23 open nvidiactl 2 open nvidia-uvm 4 ready other hold");
    rig.wait_for("other");
    rig.add("unlisted", Allocation { unlisted_bytes: 700 << 20, ..Allocation::default() });
    for line in [format!("diff {before} --json"), "status -i 0 --json".into(), "status -i 0 --all --json".into()] {
        let report = Judged(rig.run(&line).json());
        assert!(!report.0.to_string().contains(&format!("{}", other.pid())), "{line}: {:#}", report.0);
        assert!(!report.advice().contains("kill"), "{line}: {:#}", report.0);
    }
    // One with a file of ours, or with the control file alone, can keep it.
    let here = rig.start("open nvidia0 7 open nvidiactl 2 open nvidia-uvm 4 ready here hold");
    let bare = rig.start("open nvidiactl 1 ready bare hold");
    rig.wait_for("here");
    rig.wait_for("bare");
    let report = Judged(rig.run(&format!("diff {before} --json")).json());
    let mut pids = report.pids();
    pids.sort_unstable();
    let mut wanted = [u64::from(here.pid()), u64::from(bare.pid())];
    wanted.sort_unstable();
    assert_eq!(pids, wanted, "{:#}", report.0);
}

#[test]
fn a_monitor_is_nothing_new() {
    let rig = Rig::new();
    let before = snapshot(&rig, "before.json");
    let monitor = rig.start("nvml ready monitor hold");
    rig.wait_for("monitor");
    let clean = rig.run(&format!("diff {before}"));
    assert_eq!(clean.expect_code(0).stdout, "gpuresid: clean: no GPU memory is held that was not held before\n");
    let new = rig.start("alloc 0 1GiB ready new hold");
    rig.wait_for("new");
    let report = Judged(rig.run(&format!("diff {before} --json")).expect_code(121).json());
    assert_eq!(report.pids(), [u64::from(new.pid())], "{:#}", report.0);
    assert!(!report.0.to_string().contains(&monitor.pid().to_string()), "{:#}", report.0);
}
