//! The files that reports go to: found out before the command starts, and nothing stray beside them however it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use rustix::{
    fs::{CWD, FileType, Mode},
    process::Signal,
};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use support::{Finished, Rig, skipped, wait_until};

/// The names in a directory that was made for reports.
fn names(rig: &Rig) -> Vec<String> {
    let entries = fs::read_dir(rig.path("out")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn reporting(rig: &Rig) -> String {
    fs::create_dir_all(rig.path("out")).unwrap();
    format!("--report {0}/r.json --report observation:{0}/o.json", rig.path("out").display())
}

#[test]
fn a_signal_in_the_first_moments_leaves_no_file() {
    let rig = Rig::new();
    let options = reporting(&rig);
    // Never answered, so that the command does not start however slow the signal is.
    rig.hangs("nvmlInit*", "stuck");
    for (number, signal) in
        (0..).zip([Signal::TERM, Signal::INT, Signal::TERM, Signal::INT, Signal::TERM, Signal::TERM])
    {
        let run = rig.spawn_check(&options, "alloc 0 1GiB");
        std::thread::sleep(Duration::from_millis(number * 4));
        run.signal(signal);
        run.wait().expect_signal(signal);
        assert_eq!(names(&rig), [""; 0], "after {number} × 4 ms");
    }
    rig.let_go("stuck");
}

#[test]
fn being_killed_leaves_no_file() {
    let rig = Rig::new();
    let run = rig.spawn_check(&reporting(&rig), "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    run.kill();
    rig.mark("go");
    let left = names(&rig);
    if left.iter().all(|name| name.ends_with(".tmp")) && !left.is_empty() {
        return skipped("the file system of temporary files has none without a name");
    }
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_place_that_is_taken_meanwhile_costs_no_report() {
    let rig = Rig::new();
    let run = rig.spawn_check(&reporting(&rig), "alloc 0 1GiB ready up wait-file go");
    rig.wait_for("up");
    fs::create_dir(rig.path("out/r.json")).unwrap();
    rig.mark("go");
    let end = run.wait();
    // The command was fine and the report is not where it was wanted.
    end.expect_code(122);
    let line = end.stderr.lines().find_map(|line| line.strip_prefix("hint: move it to a place: ")).unwrap();
    assert!(std::process::Command::new("sh").args(["-c", line]).status().unwrap().success(), "{line}");
    assert_eq!(rig.report("out/r.json/report.json")["verdict"], "clean");
    assert_eq!(rig.report("out/o.json")["schema"], "gpuresid.observation/1");
    assert_eq!(names(&rig).len(), 2);
}

// ---- what others prepared -------------------------------------------------------------------------------------------

/// A user who is not the one that runs the tool.
const OTHER: u32 = 65_534;

/// A directory for reports in which everybody may make files, as in `/tmp`.
fn shared(rig: &Rig, mode: u32) -> PathBuf {
    let shared = rig.path("out");
    fs::create_dir_all(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
    shared
}

/// What stands there, links not followed: name, owner, mode, text or target.
fn picture(directory: &Path) -> Vec<(String, u32, u32, String)> {
    let mut all: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let (path, found) = entry.map(|e| (e.path(), e.metadata().unwrap())).unwrap();
            let text = match found.file_type() {
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                kind if kind.is_file() => fs::read_to_string(&path).unwrap(),
                _ => String::new(),
            };
            (path.file_name().unwrap().to_str().unwrap().to_owned(), found.uid(), found.mode(), text)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn what_another_user_prepared_is_neither_followed_nor_replaced() {
    if !rustix::process::geteuid().is_root() {
        return skipped("this needs root");
    }
    for mode in [0o1777, 0o777] {
        let rig = Rig::new();
        let out = shared(&rig, mode);
        let safe = rig.path("safe");
        fs::create_dir(&safe).unwrap();
        fs::write(safe.join("precious"), "precious").unwrap();
        let theirs = |path: &Path| lchown(path, Some(OTHER), Some(OTHER)).unwrap();
        symlink(safe.join("precious"), out.join("link.json")).unwrap();
        symlink(safe.join("new"), out.join("dangling.json")).unwrap();
        symlink(&safe, out.join("sub")).unwrap();
        fs::write(out.join("file.json"), "theirs").unwrap();
        fs::set_permissions(out.join("file.json"), fs::Permissions::from_mode(0o666)).unwrap();
        rustix::fs::mknodat(CWD, out.join("fifo.json"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        for name in ["link.json", "dangling.json", "sub", "file.json", "fifo.json"] {
            theirs(&out.join(name));
        }
        // A second name of a link of root's can be made by others where `fs.protected_hardlinks` is off.
        symlink(safe.join("precious"), safe.join("roots")).unwrap();
        fs::hard_link(safe.join("roots"), out.join("roots.json")).unwrap();
        let before = (picture(&out), picture(&safe));
        for (name, why) in [
            ("link.json", "/link.json is a link that another user made (user id 65534); it is not followed"),
            ("dangling.json", "/dangling.json is a link that another user made (user id 65534); it is not followed"),
            ("sub/precious", "/sub is a link that another user made (user id 65534); it is not followed"),
            ("sub/new.json", "/sub is a link that another user made (user id 65534); it is not followed"),
            ("roots.json", "/roots.json is a link in a directory that others may write to; it is not followed"),
            ("file.json", "/file.json: it belongs to another user (user id 65534)"),
            ("fifo.json", "/fifo.json: it belongs to another user (user id 65534)"),
        ] {
            let (path, ran) = (out.join(name), rig.path("ran"));
            let report = format!("--report json:{}", path.display());
            let end = rig.launch(rig.check_of(&report, &["touch".into(), ran.clone().into()])).wait();
            end.expect_code(125);
            assert!(end.stderr.contains(why) && !ran.exists(), "{name}: {}", end.stderr);
            let end = rig.run(&format!("snapshot -o {}", path.display()));
            end.expect_code(125);
            assert!(end.stderr.contains(why), "{name}: {}", end.stderr);
        }
        assert_eq!((picture(&out), picture(&safe)), before, "{mode:o}");
    }
}

#[test]
fn a_report_of_ours_in_a_shared_directory_is_replaced_and_its_other_name_is_not() {
    let rig = Rig::new();
    let out = shared(&rig, 0o1777);
    fs::write(rig.path("own"), "own").unwrap();
    fs::hard_link(rig.path("own"), out.join("r.json")).unwrap();
    rig.run(&format!("snapshot -o {}", out.join("r.json").display())).expect_code(0);
    assert_eq!(fs::read_to_string(rig.path("own")).unwrap(), "own");
    assert_eq!(rig.report("out/r.json")["schema"], "gpuresid.snapshot/1");
    assert_eq!(names(&rig), ["r.json"]);
    // A link of one's own, where nobody else can have put it.
    fs::create_dir(rig.path("mine")).unwrap();
    fs::set_permissions(rig.path("mine"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink(out.join("far.json"), rig.path("mine/near.json")).unwrap();
    rig.run(&format!("snapshot -o {}", rig.path("mine/near.json").display())).expect_code(0);
    assert_eq!(rig.report("out/far.json")["schema"], "gpuresid.snapshot/1");
}

#[test]
fn who_is_not_root_leaves_roots_files_alone_too() {
    if !rustix::process::geteuid().is_root() {
        return skipped("this needs root");
    }
    let rig = Rig::new();
    let out = shared(&rig, 0o777);
    let reports = reporting(&rig);
    fs::write(out.join("r.json"), "old").unwrap();
    let ran = rig.path("ran");
    let command = rig.check_of(&reports, &["touch".into(), ran.clone().into_os_string()]);
    let mut line: Vec<OsString> =
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"].map(Into::into).to_vec();
    line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    let end = rig.start_of(&line).wait();
    if end.stderr.contains("setpriv") {
        return skipped("the binary cannot be reached by another user here");
    }
    end.expect_code(125);
    assert!(end.stderr.contains("it belongs to another user (user id 0)"), "{}", end.stderr);
    assert!(!ran.exists() && fs::read_to_string(out.join("r.json")).unwrap() == "old");
    wait_until("nothing stray", || names(&rig) == ["r.json"]);
}

// ---- where a file cannot be replaced, or not be written -------------------------------------------------------------

/// `script` in a mount namespace of its own, with the tool as `"$@"`.
fn in_own_mounts(rig: &Rig, script: &str, command: &Command) -> Option<Finished> {
    let mut line: Vec<OsString> = ["unshare", "-m", "sh", "-c", script, "sh"].map(Into::into).to_vec();
    line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
    let end = rig.start_of(&line).wait();
    if end.stderr.contains("unshare: ") || end.stderr.contains("mount: ") {
        skipped(&format!("nothing can be mounted here: {}", end.stderr));
        return None;
    }
    Some(end)
}

#[test]
fn a_file_on_which_something_is_mounted_is_written_in_place() {
    let rig = Rig::new();
    let out = shared(&rig, 0o755);
    fs::write(rig.path("host.json"), format!("long{}", " ".repeat(1 << 20))).unwrap();
    fs::write(out.join("r.json"), "").unwrap();
    let (host, path) = (rig.path("host.json"), out.join("r.json"));
    let inode = fs::metadata(&host).unwrap().ino();
    let script = format!("mount --bind {} {} && exec \"$@\"", host.display(), path.display());
    let command = rig.gpuresid(["snapshot", "-o", path.to_str().unwrap()]);
    let Some(end) = in_own_mounts(&rig, &script, &command) else { return };
    end.expect_code(0);
    assert_eq!(rig.report("host.json")["schema"], "gpuresid.snapshot/1");
    assert_eq!(fs::metadata(&host).unwrap().ino(), inode);
    assert_eq!(names(&rig), ["r.json"]);
}

#[test]
fn a_full_disk_is_said_and_the_old_report_stays() {
    let rig = Rig::new();
    let out = shared(&rig, 0o755);
    let path = out.join("r.json");
    let command = rig.check_of(&format!("--report {}", path.display()), &["true".into()]);
    let script = format!(
        "mount -t tmpfs -o size=16k none {0} && echo old >{1} && head -c 12k /dev/zero >{0}/full && \"$@\"; code=$?; \
         cat {1}; ls -A {0} | wc -l; exit $code",
        out.display(),
        path.display()
    );
    let Some(end) = in_own_mounts(&rig, &script, &command) else { return };
    end.expect_code(122);
    assert!(
        end.stderr.contains(&format!("cannot write {}: No space left on device", path.display())),
        "{}",
        end.stderr
    );
    assert_eq!(end.stdout, "old\n2\n");
}

#[test]
fn a_limit_on_the_size_of_files_is_a_write_error_and_the_commands_own_matter() {
    let rig = Rig::new();
    let reports = reporting(&rig);
    fs::write(rig.path("out/r.json"), "old").unwrap();
    let seen = rig.path("seen");
    let look = format!("grep -E 'Sig(Ign|Cgt)' /proc/self/status >{}", seen.display());
    let command = rig.check_of(&reports, &["sh".into(), "-c".into(), look.into()]);
    for (start, ignored) in [("", "0"), ("trap '' XFSZ; ", "1")] {
        let mut line: Vec<OsString> =
            vec!["sh".into(), "-c".into(), format!("{start}ulimit -f 1; exec \"$@\"").into(), "sh".into()];
        line.extend(std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into));
        let end = rig.launch(rig.beside(&line)).wait();
        end.expect_code(122);
        assert!(end.stderr.contains("out/r.json: File too large (os error 27)"), "{}", end.stderr);
        assert!(end.stderr.contains("hint: it is larger than files may be here: ulimit -f"), "{}", end.stderr);
        assert!(end.stderr.contains("clean"), "the verdict is still given: {}", end.stderr);
        assert_eq!(fs::read_to_string(rig.path("out/r.json")).unwrap(), "old");
        let masks = fs::read_to_string(&seen).unwrap();
        let bit = |name: &str| {
            let mask = masks.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim_start_matches(':').trim();
            (u64::from_str_radix(mask, 16).unwrap() >> (Signal::XFSZ.as_raw() - 1) & 1).to_string()
        };
        assert_eq!((bit("SigCgt"), bit("SigIgn").as_str()), ("0".into(), ignored), "{masks}");
    }
}

#[test]
fn a_descriptor_is_written_as_it_is() {
    let rig = Rig::new();
    let file = rig.path("all");
    for name in ["/dev/fd/3", "/proc/self/fd/3", "/proc/thread-self/fd/3"] {
        let tool = rig.gpuresid(["snapshot", "-o", name]);
        let script = format!("{{ echo head >&3; \"$@\"; echo tail >&3; }} 3>{}", file.display());
        let mut line: Vec<OsString> = vec!["sh".into(), "-c".into(), script.into(), "sh".into()];
        line.extend(std::iter::once(tool.get_program()).chain(tool.get_args()).map(Into::into));
        rig.start_of(&line).wait().expect_code(0);
        // The shell writes on where the tool ended: the place in the file is one.
        let text = fs::read_to_string(&file).unwrap();
        let json = text
            .strip_prefix("head\n")
            .and_then(|rest| rest.strip_suffix("tail\n"))
            .unwrap_or_else(|| panic!("{text}"));
        assert!(serde_json::from_str::<serde_json::Value>(json).is_ok(), "{name}: {json}");
    }
    let end = rig.run("snapshot -o /dev/stdout");
    assert_eq!(end.json()["schema"], "gpuresid.snapshot/1");
}
