//! Who has NVIDIA's device files open, where the driver does not answer: no amounts, but who, since when and where. That
//! is the moment in which the driver's own tools say nothing at all.

use super::{
    grid::{Column, Grid},
    parts::Page,
};
use crate::{
    model::{FailureKind, Holder, StatusReport},
    report::{Style, words},
};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// Writes them. Why the driver does not answer is the error that follows.
///
/// # Errors
/// If the writer fails.
pub fn files(report: &StatusReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    // Without a driver there are no files that somebody could have open.
    let no_driver = report.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::NoDriver);
    if no_driver && report.holders.is_empty() {
        return Ok(());
    }
    let mut page = Page { style, out, devices: Vec::new() };
    page.paragraph("", "The NVIDIA driver does not answer, so how much memory is in use is not known.")?;
    page.files(&report.holders)?;
    // The first is the driver's, which the error says.
    page.gaps(report.gaps.get(1..).unwrap_or_default())?;
    page.line("")
}

impl Page<'_> {
    /// Who has which files open.
    pub(super) fn files(&mut self, holders: &[Holder]) -> io::Result<()> {
        if holders.is_empty() {
            self.line("")?;
            return self.paragraph("", "Nobody who can be seen from here has NVIDIA's device files open.");
        }
        self.heading("Who has NVIDIA's device files open")?;
        let places = holders.iter().any(|holder| place(holder).is_some());
        let mut columns = vec![Column::right("PID"), Column::left("USER"), Column::right("AGE"), Column::left("CAUSE")];
        columns.extend(places.then_some(Column::left("WHERE")));
        columns.extend([Column::left("FILES"), Column::flexible("COMMAND")]);
        let mut grid = Grid::new(columns);
        for holder in holders {
            let mut row = vec![
                holder.pid.to_string(),
                holder.user.clone().unwrap_or_else(|| "?".into()),
                holder.age_seconds.map_or_else(|| "?".into(), words::age),
                words::cause(holder.cause).into(),
            ];
            row.extend(places.then(|| place(holder).unwrap_or_default()));
            row.extend([nodes(&holder.open_files), holder.name().to_owned()]);
            grid.row(row);
        }
        grid.write(self.style, self.out)?;
        let odd: Vec<&Holder> = holders.iter().filter(|holder| words::stands_out(holder.cause)).collect();
        self.why(&odd)
    }
}

/// Where it belongs, by the name under which it is found there.
fn place(holder: &Holder) -> Option<String> {
    let place = holder.place.clone().unwrap_or_default();
    let pod = place.pod_uid.map(|uid| format!("pod {uid}"));
    let job = || place.slurm.map(|slurm| format!("job {}", slurm.job));
    let container = || place.container.map(|container| format!("container {}", container.short()));
    let unit = || place.unit.map(|unit| unit.name);
    let session = || Some(format!("session {}", session(holder.cgroup.as_deref()?)?));
    pod.or_else(job).or_else(container).or_else(unit).or_else(session)
}

/// The number of the login session, as `loginctl` has it.
fn session(cgroup: &str) -> Option<&str> {
    cgroup.split('/').find_map(|segment| segment.strip_prefix("session-")?.strip_suffix(".scope"))
}

/// `nvidia0-7, nvidiactl, nvidia-uvm`: the GPUs' own nodes as a range, then the others.
fn nodes(open: &BTreeMap<String, u32>) -> String {
    let number = |node: &String| node.strip_prefix("nvidia")?.parse::<u32>().ok();
    let mut gpus: Vec<u32> = open.keys().filter_map(number).collect();
    gpus.sort_unstable();
    let mut named: Vec<String> = Vec::new();
    for range in gpus.chunk_by(|one, next| one + 1 == *next) {
        named.extend(match range {
            [only] => Some(format!("nvidia{only}")),
            [first, .., last] => Some(format!("nvidia{first}-{last}")),
            [] => None,
        });
    }
    // Capabilities of MIG instances are many, and tell nobody anything here.
    named.extend(open.keys().filter(|node| number(node).is_none() && !node.starts_with("nvidia-caps/")).cloned());
    if named.is_empty() { "nvidia-caps".into() } else { named.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_many_gpus_are_a_range() {
        let shown = |names: &[&str]| nodes(&names.iter().map(|name| ((*name).to_owned(), 1)).collect());
        assert_eq!(shown(&["nvidia0", "nvidia-uvm", "nvidiactl"]), "nvidia0, nvidia-uvm, nvidiactl");
        assert_eq!(shown(&["nvidia10", "nvidia9", "nvidia2", "nvidia0", "nvidia8"]), "nvidia0, nvidia2, nvidia8-10");
        assert_eq!(shown(&["nvidia-caps/nvidia-cap1", "dri/card1"]), "dri/card1");
        assert_eq!(shown(&["nvidia-caps/nvidia-cap1"]), "nvidia-caps");
    }

    fn holder(fields: serde_json::Value) -> Holder {
        let mut holder = serde_json::json!({
            "pid": 1, "command": "x", "cause": "open_only", "lineage": "unknown", "why": [], "devices": [],
        });
        if let (Some(all), serde_json::Value::Object(more)) = (holder.as_object_mut(), fields) {
            all.extend(more);
        }
        serde_json::from_value(holder).unwrap()
    }

    #[test]
    fn where_it_belongs_is_the_name_that_finds_it() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let container = serde_json::json!({ "id": id, "runtime": "docker" });
        let slurm = serde_json::json!({ "job": "104", "step": "0", "by_environment": false });
        let unit = serde_json::json!({ "name": "triton.service", "of_user": false });
        for (fields, words) in [
            (serde_json::json!({}), None),
            (serde_json::json!({ "place": { "container": container, "pod_uid": "1b2c" } }), Some("pod 1b2c")),
            (serde_json::json!({ "place": { "container": container } }), Some("container 0123456789ab")),
            (serde_json::json!({ "place": { "slurm": slurm } }), Some("job 104")),
            (serde_json::json!({ "place": { "unit": unit } }), Some("triton.service")),
            (serde_json::json!({ "cgroup": "/user.slice/user-7.slice/session-3.scope" }), Some("session 3")),
        ] {
            assert_eq!(place(&holder(fields)).as_deref(), words);
        }
    }

    #[test]
    fn a_login_session_has_a_number() {
        assert_eq!(session("/user.slice/user-1000.slice/session-3.scope"), Some("3"));
        assert_eq!(session("/user.slice/user-1000.slice/session-c2.scope"), Some("c2"));
        assert_eq!(session("/system.slice/session.service"), None);
    }
}
