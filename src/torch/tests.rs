use super::*;
use std::os::unix::fs::symlink;

fn told(files: &[(&str, &str)]) -> TorchView {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    symlink("/etc/passwd", directory.path().join("9-9.json")).unwrap();
    read(directory.path(), 1000)
}

const RECORD: &str = r#"{"schema": "gpuresid.torch/1", "pid": 7, "start_ticks": 70, "at_ms": 1500, "stage": "exit",
    "timeline": [[900, 0, 1, 2], [1200, 0, 3, null]],
    "devices": [{"index": 0, "allocated_bytes": 5, "reserved_bytes": null, "peak_allocated_bytes": 6,
                 "peak_reserved_bytes": 7}]}"#;

#[test]
fn records_are_read_and_their_clock_is_the_observations() {
    let view = told(&[("7-70.json", RECORD), (STARTED, "7 70 0\n8 80 7\nbroken\n")]);
    let record = &view.records[0];
    assert_eq!((record.pid, record.at_ms, record.timeline.len()), (7, Some(500), 1));
    assert_eq!(record.devices[0].reserved_bytes, None);
    assert_eq!(view.started.iter().map(|s| (s.id.pid, s.forked_from)).collect::<Vec<_>>(), [(7, None), (8, Some(7))]);
    // The link was not followed.
    assert_eq!(view.gaps.len(), 1, "{:?}", view.gaps);
}

#[test]
fn what_cannot_be_read_is_a_gap_and_the_rest_counts() {
    let long = " ".repeat(usize::try_from(LARGEST).unwrap() + 1);
    let view = told(&[
        ("1-1.json", "{"),
        ("2-2.json", "{\"schema\": \"other\"}"),
        ("3-3.json", &long),
        ("\u{1b}[2J-4.json", "[]"),
        ("7-70.json", RECORD),
    ]);
    assert_eq!(view.records.len(), 1);
    let reasons: Vec<&str> = view.gaps.iter().map(|g| g.reason.as_str()).collect();
    assert_eq!(view.gaps.len(), 5, "{reasons:?}");
    assert!(reasons.iter().all(|r| !r.contains('\u{1b}')), "{reasons:?}");
    for word in ["damaged", "another form", "too large"] {
        assert!(reasons.iter().any(|r| r.contains(word)), "{word}: {reasons:?}");
    }
}

#[test]
fn the_directory_is_private_and_goes() {
    let probe = Probe::prepare(None).unwrap();
    let path = probe.directory.clone();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let environment = probe.environment();
    assert_eq!(environment[0].0, "PYTHONPATH");
    assert!(environment[0].1.as_bytes().starts_with(path.as_os_str().as_bytes()));
    probe.collect(Instant::now());
    assert!(!path.exists());
}
