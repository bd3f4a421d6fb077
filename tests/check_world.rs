//! `check` in the world: exit codes, signals, terminals, process trees, and a driver that does not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use support::Rig;

#[test]
fn smoke() {
    let rig = Rig::new();
    let report = rig.path("r.json");
    let end = rig.launch(rig.check_of(&format!("--report {}", report.display()), &["true".into()])).wait();
    eprintln!("{end:?}");
    end.expect_code(0);
    let end = rig.check("--settle 3s", "alloc 0 2GiB spawn-session { alloc 0 1GiB hold }");
    eprintln!("{end:?}");
    eprintln!("{}", end.stderr);
    end.expect_code(121);
}
