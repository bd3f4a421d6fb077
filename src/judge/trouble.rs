//! Devices that cannot be read because something is wrong with them: how to see what, and what cures it. In one place,
//! because a run, a look and `doctor` say the same.

use crate::model::{Advice, Device, DeviceIdentity, Trouble};

/// The steps for the devices of a look, and how to go on without them: with the command of ours that is `next`, or with
/// any.
pub(crate) fn steps(devices: &[Device], next: Option<&str>) -> Vec<Advice> {
    let whole = || devices.iter().filter(|d| d.identity.mig.is_none());
    let ill: Vec<_> = whole().filter_map(|d| Some((&d.identity, d.look.trouble()?.1))).collect();
    let well: Vec<_> = whole().filter(|d| d.look.trouble().is_none()).map(|d| d.identity.index.to_string()).collect();
    let mut steps: Vec<_> = ill.iter().map(|(device, trouble)| step(device, *trouble)).collect();
    if !ill.is_empty() && !well.is_empty() {
        let (all, without) = (well.join(","), if ill.len() == 1 { "it" } else { "them" });
        let next = next.map(|next| format!(" {next}")).unwrap_or_default();
        steps.push(Advice {
            command: Some(format!("gpuresid -i {all}{next}")),
            why: format!("go on without {without}: every command leaves {without} out with `-i {all}`"),
            disturbs: "nobody".into(),
        });
    }
    steps
}

/// What to do about one device.
pub(crate) fn step(device: &DeviceIdentity, trouble: Trouble) -> Advice {
    const LOG: &str = "sudo dmesg | grep -i -e nvrm -e xid";
    let (gpu, n) = (device.label(), device.index);
    let reset = format!("sudo nvidia-smi --gpu-reset -i {n}");
    let advice = |command: String, why: String, disturbs: String| Advice { command: Some(command), why, disturbs };
    match trouble {
        Trouble::ResetRequired => advice(
            format!("gpuresid -i {n} && {reset}"),
            format!(
                "reset {gpu}, as the driver asks for. That is refused while anybody has it open, so whoever has is shown \
                 first; where it fails, only a restart of the machine is left"
            ),
            format!("whoever uses {gpu}"),
        ),
        Trouble::Lost | Trouble::Failing | Trouble::Hanging => advice(
            LOG.into(),
            format!(
                "see what the kernel says of {gpu}: nothing is known of its memory until it answers again. A reset may do \
                 (`{reset}`, refused while anybody has it open), else only a restart of the machine"
            ),
            "nobody".into(),
        ),
        Trouble::Gone => advice(
            "nvidia-smi -L".into(),
            format!(
                "see which GPUs the driver has. {gpu} ({}) was given to somebody else, such as a virtual machine, or fell \
                 off the bus: then the kernel says so (`{LOG}`), and only a restart of the machine brings it back",
                device.uuid
            ),
            "nobody".into(),
        ),
    }
}
