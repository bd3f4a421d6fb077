//! Reading a snapshot file back. A file from outside is checked before it is believed: that it is JSON, that it is ours,
//! and that it is not newer than we are.

use crate::{
    error::{damaged, hinted, not_json},
    model::{Snapshot, schema},
};
use std::{fs::File, io::Read, path::Path};

/// Largest file that is read: a snapshot of a large machine is some 100 kB, and a file takes ten times its size to read.
const LARGEST: u64 = 32 << 20;

const TAKE_ONE: &str = "take one with: gpuresid snapshot -o before.json";

/// Reads a snapshot.
///
/// # Errors
/// If the file cannot be read or is no snapshot that this version understands.
pub fn snapshot(path: &Path) -> anyhow::Result<Snapshot> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        if file.metadata()?.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }
        file.take(LARGEST + 1).read_to_end(&mut bytes)
    });
    if let Err(error) = read {
        return Err(match error.kind() {
            std::io::ErrorKind::NotFound => hinted(format!("there is no file {shown}"), TAKE_ONE),
            std::io::ErrorKind::IsADirectory => hinted(format!("cannot read {shown}: it is a directory"), TAKE_ONE),
            _ => anyhow::Error::new(error).context(format!("cannot read {shown}")),
        });
    }
    if bytes.len() as u64 > LARGEST {
        return Err(hinted(format!("{shown} is too large for a snapshot"), TAKE_ONE));
    }
    parse(&bytes, &shown.to_string())
}

fn parse(bytes: &[u8], shown: &str) -> anyhow::Result<Snapshot> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| hinted(not_json(shown, &error), TAKE_ONE))?;
    let found = value.get("schema").and_then(|name| name.as_str()).unwrap_or_default();
    if found != schema::SNAPSHOT {
        return Err(refuse(found, shown));
    }
    let mut snapshot: Snapshot =
        serde_json::from_value(value).map_err(|error| hinted(damaged(shown, "snapshot", &error), TAKE_ONE))?;
    // An earlier version may have written down what it should not have believed.
    for device in &mut snapshot.devices {
        device.look.without_the_impossible(&device.identity.label());
    }
    Ok(snapshot)
}

fn refuse(found: &str, shown: &str) -> anyhow::Error {
    let number =
        |name: &str| name.rsplit_once('/').and_then(|(kind, n)| Some((kind.to_string(), n.parse::<u32>().ok()?)));
    let (Some((kind, theirs)), Some((ours_kind, ours))) = (number(found), number(schema::SNAPSHOT)) else {
        return hinted(format!("{shown} is not a snapshot of gpuresid"), TAKE_ONE);
    };
    if kind == ours_kind && theirs > ours {
        return hinted(
            format!("{shown} was made by a newer gpuresid ({found}; this version reads {})", schema::SNAPSHOT),
            "update gpuresid, or take the snapshot again with this version",
        );
    }
    let what = match kind.as_str() {
        "gpuresid.report" => "a report",
        "gpuresid.status" => "a status",
        "gpuresid.observation" => "an observation",
        _ => return hinted(format!("{shown} is not a snapshot that this version can read ({found})"), TAKE_ONE),
    };
    hinted(format!("{shown} is {what} of gpuresid, not a snapshot"), TAKE_ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        crate::error::display(&parse(text.as_bytes(), "b.json").unwrap_err())
    }

    #[test]
    fn foreign_and_newer_files_are_refused_with_a_hint() {
        let take = format!("\n\nhint: {TAKE_ONE}\n");
        assert_eq!(
            message("{\"schema\": \"gpuresid.snapshot/2\"}"),
            "error: b.json was made by a newer gpuresid (gpuresid.snapshot/2; this version reads \
             gpuresid.snapshot/1)\n\nhint: update gpuresid, or take the snapshot again with this version\n"
        );
        assert_eq!(message("{}"), format!("error: b.json is not a snapshot of gpuresid{take}"));
        assert_eq!(message("[1]"), format!("error: b.json is not a snapshot of gpuresid{take}"));
        assert_eq!(
            message("{\"schema\":\"gpuresid.report/1\"}"),
            format!("error: b.json is a report of gpuresid, not a snapshot{take}")
        );
        assert_eq!(
            message("{\"schema\":\"other.tool/9\"}"),
            format!("error: b.json is not a snapshot that this version can read (other.tool/9){take}")
        );
    }

    #[test]
    fn damage_is_named() {
        assert_eq!(message(""), format!("error: b.json is empty\n\nhint: {TAKE_ONE}\n"));
        assert!(message("{\"schema\":").starts_with("error: b.json is cut off: its JSON ends in the middle\n"));
        assert!(message("{\n  x").starts_with("error: b.json is not JSON (line 2, column 3)\n"));
        assert_eq!(
            message("{\"schema\":\"gpuresid.snapshot/1\"}"),
            format!("error: b.json is a damaged snapshot: it has no `tool_version`\n\nhint: {TAKE_ONE}\n")
        );
    }

    #[test]
    fn missing_files_and_directories() {
        let display = |path: &str| crate::error::display(&snapshot(Path::new(path)).unwrap_err());
        assert_eq!(display("/no/such"), format!("error: there is no file /no/such\n\nhint: {TAKE_ONE}\n"));
        assert_eq!(display("/"), format!("error: cannot read /: it is a directory\n\nhint: {TAKE_ONE}\n"));
    }
}
