//! `status` against a fake machine.

mod support;
use support::Rig;

#[test]
fn explore() {
    let rig = Rig::with_gpus(2);
    let _a = rig.start("alloc 0 1GiB ready up hold");
    rig.wait_for("up");
    let _b = rig.start("alloc 0 2GiB alloc 1 1GiB fork-and-exit ready up2 hold");
    rig.wait_for("up2");
    let _c = rig.start("alloc 0 2GiB ready up3 stop-self");
    rig.wait_for("up3");
    let _d = rig.start("spawn-session { alloc 0 1GiB ready up4 hold }");
    rig.wait_for("up4");
    let before = rig.path("before.json");
    let end = rig.run(["snapshot", "-o", before.to_str().unwrap(), "--env"]);
    println!("{:?} {}\n---\n{}", end.code, end.stdout, end.stderr);
    let _e = rig.start("alloc 0 1GiB ready up5 hold");
    rig.wait_for("up5");
    let end = rig.run(["diff", before.to_str().unwrap()]);
    println!("{:?} {}\n---\n{}", end.code, end.stdout, end.stderr);
    let end = rig.run(["status"]);
    println!("{:?} {}\n---\n{}", end.code, end.stdout, end.stderr);
}
