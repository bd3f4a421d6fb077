//! `gen systemd-timer`: the units as systemd reads them, and what they run with no more rights than they have.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test says what broke by breaking")]

mod support;

use gpuresid::r#gen::{Recipe, Wanted};
use std::{ffi::OsString, fs, os::unix::process::CommandExt as _, path::Path, process::Command};
use support::{Records, Rig, alive};

/// What it makes for the binary under test, which may lie where a user can write.
fn wanted(gpus: &[String]) -> Wanted<'_> {
    Wanted { binary: Path::new(env!("CARGO_BIN_EXE_gpuresid")), gpus, act: true, idle: None }
}

fn recipe() -> &'static Recipe {
    gpuresid::r#gen::recipe("systemd-timer").unwrap()
}

#[test]
fn what_users_can_overwrite_is_printed_with_a_warning_and_not_installed() {
    let rig = Rig::new();
    let copy = rig.path("gpu resid");
    fs::copy(env!("CARGO_BIN_EXE_gpuresid"), &copy).unwrap();
    let units = rig.path("units");
    fs::create_dir(&units).unwrap();
    let mut command = Command::new(&copy);
    command.args(["gen", "-i", "0", "systemd-timer", "-o"]).arg(&units).env_remove("SUDO_UID");
    let end = rig.launch(command).wait();
    end.expect_code(125);
    let install = format!("\n  sudo install -m 755 '{}' /usr/local/bin/gpuresid\n", copy.display());
    let again = format!("\n  /usr/local/bin/gpuresid gen -i 0 systemd-timer -o {}\n", units.display());
    assert!(end.stderr.contains(&install) && end.stderr.contains(&again), "{}", end.stderr);
    assert_eq!((end.stdout.as_str(), fs::read_dir(&units).unwrap().count()), ("", 0));
    // To read it does no harm.
    let mut command = Command::new(&copy);
    command.args(["gen", "systemd-timer"]).env_remove("SUDO_UID");
    let end = rig.launch(command).wait();
    end.expect_code(0);
    let warning = format!("warning: root must not run {} every few minutes: ", copy.display());
    assert!(end.stderr.starts_with(&warning), "{}", end.stderr);
    assert!(end.stderr.contains(&install), "{}", end.stderr);
    assert!(end.stdout.contains("\n# ---- gpuresid-reclaim.timer ----\n"), "{}", end.stdout);
    assert!(end.stdout.contains("\nExecStart="), "{}", end.stdout);
}

#[test]
fn it_prints_both_units_and_how_to_use_them() {
    let rig = Rig::new();
    let end = rig.run("gen nonsense");
    assert!(end.expect_code(125).stderr.contains("systemd-timer"), "{}", end.stderr);
    let end = rig.run("gen systemd-timer --visible");
    assert!(end.expect_code(125).stderr.contains("-i GPU"), "{}", end.stderr);
    // From where root installs programs; the mount is of this test alone.
    let script = format!(
        "mount -t tmpfs -o mode=755 none /usr/local/bin && install -m 755 '{}' /usr/local/bin/gpuresid && \
         exec /usr/local/bin/gpuresid -i 0 gen systemd-timer",
        env!("CARGO_BIN_EXE_gpuresid")
    );
    let unshare = |script: &str| rig.start_of(&["unshare", "-m", "sh", "-c", script].map(OsString::from)).wait();
    if !rustix::process::geteuid().is_root() || unshare("mount -t tmpfs none /mnt").code != Some(0) {
        support::skipped("this needs root, and mounts");
        return;
    }
    let end = unshare(&script);
    end.expect_code(0);
    for words in [
        "# sudo /usr/local/bin/gpuresid -i 0 gen systemd-timer -o /etc/systemd/system\n",
        "# ---- gpuresid-reclaim.service ----\n",
        "# ---- gpuresid-reclaim.timer ----\n",
        "# echo 'd /run/gpuresid/records 1733 root root -' | sudo tee /etc/tmpfiles.d/gpuresid.conf\n",
        "# */5 * * * * /usr/local/bin/gpuresid -i 0 reclaim --unattended --all-users\n",
        "ExecStart=/usr/local/bin/gpuresid -i 0 reclaim --unattended --all-users\n",
    ] {
        assert!(end.stdout.contains(words), "{words} is not in {}", end.stdout);
    }
}

#[test]
fn systemd_finds_no_fault_with_them() {
    let rig = Rig::new();
    let directory = rig.path("units");
    fs::create_dir(&directory).unwrap();
    let gpus = ["0".to_owned(), "GPU-4f2c".to_owned()];
    let files: Vec<_> = (recipe().files)(&wanted(&gpus))
        .into_iter()
        .map(|file| {
            let path = directory.join(&file.name);
            fs::write(&path, &file.text).unwrap();
            path
        })
        .collect();
    assert_eq!(files.len(), 2);
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        support::skipped("systemd-analyze is not here");
        return;
    }
    let output = Command::new("systemd-analyze").arg("verify").arg("--man=no").args(&files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let about_ours: Vec<&str> = said.lines().filter(|l| l.contains("gpuresid")).collect();
    assert!(about_ours.is_empty(), "{about_ours:?}");
    // The check can fail.
    let broken = directory.join("gpuresid-broken.service");
    fs::write(&broken, "[Service]\nType=oneshot\nExecStart=/no/such/program\n").unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&broken).output().unwrap();
    assert!(!output.status.success() || !output.stderr.is_empty());
}

#[test]
fn the_rights_of_the_service_suffice() {
    let setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    if !rustix::process::geteuid().is_root() || !setpriv {
        support::skipped("this needs root and setpriv");
        return;
    }
    let service = (recipe().files)(&wanted(&[])).remove(0).text;
    let line = |name: &str| {
        service
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .unwrap_or_else(|| panic!("no {name} in {service}"))
            .to_owned()
    };
    let bounds: Vec<String> = line("CapabilityBoundingSet=")
        .split(' ')
        .map(|cap| format!("+{}", cap.strip_prefix("CAP_").unwrap().to_lowercase()))
        .collect();
    let under = |bounds: &[String], rig: &Rig, records: &Records| {
        let exec = line("ExecStart=");
        let option = records.option();
        let gpuresid = rig.gpuresid(exec.split(' ').skip(1).chain(option.split(' ')));
        let mut argv: Vec<OsString> = ["setpriv", "--no-new-privs", "--inh-caps=-all"].map(Into::into).to_vec();
        argv.push(format!("--bounding-set=-all,{}", bounds.join(",")).into());
        argv.push(gpuresid.get_program().into());
        argv.extend(gpuresid.get_args().map(Into::into));
        rig.start_of(&argv).wait()
    };
    let rig = Rig::new();
    let Some((records, left)) = left_by_nobody(&rig) else { return };
    let end = under(&bounds, &rig, &records);
    end.expect_code(0);
    assert!(!alive(left), "{} {}", end.stdout, end.stderr);
    assert_eq!((rig.used(0), records.files().len()), (0, 0));
    // With one right less they do not: none is there for nothing.
    for missing in &bounds {
        let rig = Rig::new();
        let Some((records, left)) = left_by_nobody(&rig) else { return };
        let kept: Vec<String> = bounds.iter().filter(|b| *b != missing).cloned().collect();
        under(&kept, &rig, &records);
        assert!(alive(left), "it works without {missing}");
    }
}

/// Somebody else's leftover of a checked run, for which he gave leave.
fn left_by_nobody(rig: &Rig) -> Option<(Records, u32)> {
    let records = Records::new()?;
    if !Path::new("/usr/bin/python3").exists() {
        support::skipped("there is no Python that every user may run");
        return None;
    }
    rig.open_to_everybody();
    let mut program = rig.program("spawn-session { alloc 0 1GiB ready left hold } wait-file left");
    program[0] = "/usr/bin/python3".into();
    let mut check = rig.check_of(&format!("--settle 1s --leave {}", records.option()), &program);
    // For its owner alone, as with the umask of some.
    check.uid(65534).gid(65534).current_dir("/");
    rig.launch(check).wait().expect_code(121);
    Some((records, rig.wait_for("left")))
}
