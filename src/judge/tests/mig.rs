//! GPUs that are split.

use super::{
    build::{look, snapshot},
    causes::{cuda, listed, shell},
};
use crate::{
    judge::status_of_all,
    model::{Capability, Device, MigIdentity, Process, Uuid},
};

#[test]
fn which_instance_a_capability_file_keeps_busy_is_said_by_its_one_name() {
    let with = |node: &str| {
        let mut process = cuda(70, shell());
        process.files.as_mut().unwrap().nodes.insert(node.into(), 1);
        process
    };
    let why = |process: Process| {
        let mut snapshot = snapshot(listed(&[]), vec![process]);
        snapshot.devices[0].identity.mig_parent = true;
        let parent = snapshot.devices[0].identity.uuid.clone();
        for gi in [7, 8] {
            let mut identity = snapshot.devices[0].identity.clone();
            identity.uuid = Uuid(format!("MIG-{gi}"));
            identity.mig = Some(MigIdentity { parent: parent.clone(), gi: Some(gi), ci: Some(0) });
            (identity.mig_parent, identity.minor) = (false, None);
            snapshot.devices.push(Device { identity, look: look(0, Vec::new()) });
        }
        let capability = |node: &str, gi, ci| (format!("nvidia-caps/{node}"), Capability { minor: 0, gi, ci });
        snapshot.observer.capabilities =
            [capability("nvidia-cap66", 7, None), capability("nvidia-cap85", 8, Some(0))].into();
        let report = status_of_all(&snapshot);
        let holder = report.holders.iter().chain(&report.open_only).find(|h| h.pid == 70).unwrap().clone();
        holder.why.sentences().join("\n")
    };
    assert!(why(with("nvidia-caps/nvidia-cap66")).contains("the capability file of MIG 0/7/0 open"));
    assert!(why(with("nvidia-caps/nvidia-cap85")).contains("the capability file of MIG 0/8/0 open"));
    assert!(!why(with("nvidia-caps/nvidia-cap1")).contains("capability"), "that is another permission");
    assert!(!why(cuda(70, shell())).contains("capability"));
}
