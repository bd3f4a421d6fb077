//! Xid lines of the kernel's log, from `/dev/kmsg` without waiting for new ones. Each read of the device gives one
//! record, `PRIORITY,NUMBER,MICROSECONDS,…;TEXT`; an ordinary file with such lines reads the same.

use crate::doctor::facts::{Seen, Xid};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    time::{ClockId, clock_gettime},
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// A record is never longer; a shorter buffer is refused.
const RECORD: usize = 16 << 10;
/// The log is a ring of a few megabytes. More is no log.
const MOST: usize = 64 << 20;
/// A log that is written faster than we read would never end.
const LONGEST: Duration = Duration::from_secs(2);

/// The Xid lines that can still be read.
pub(super) fn look(path: &Path) -> Seen<Vec<Xid>> {
    match read(path) {
        Ok(text) => {
            let now = clock_gettime(ClockId::Monotonic);
            let now = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0));
            Seen::As(String::from_utf8_lossy(&text).lines().filter_map(|line| parse(line, now)).collect())
        }
        Err(Errno::PERM | Errno::ACCESS) => Seen::Hidden(format!("{} may be read by root only", path.display())),
        Err(error) => Seen::Hidden(format!("{}: {error}", path.display())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Errno> {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let (mut all, mut record) = (Vec::new(), vec![0; RECORD]);
    let until = Instant::now() + LONGEST;
    while all.len() < MOST && Instant::now() < until {
        match rustix::io::read(&file, &mut record[..]) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(n) => all.extend(record.iter().take(n)),
            // The record that would have been next was overwritten; the following read gives the oldest that is there.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// `6,1234,5678901,-;NVRM: Xid (PCI:0000:0a:00): 79, pid=4711, name=python, GPU has fallen off the bus.`
fn parse(line: &str, now: Duration) -> Option<Xid> {
    let (head, text) = line.split_once(';').unwrap_or(("", line));
    let (_, rest) = text.split_once("NVRM: Xid (")?;
    let (place, rest) = rest.split_once("): ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let at = head.split(',').nth(2).and_then(|us| us.parse().ok()).map(Duration::from_micros);
    Some(Xid {
        number: rest.get(..digits)?.parse().ok()?,
        pci: place.strip_prefix("PCI:").map(Into::into),
        ago: at.map(|at| now.saturating_sub(at)),
        text: text.trim_start().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::mangled::mangled;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_line_holds_it_is_an_xid_or_none(text in mangled(&[
            "4,1234,5678901,-;NVRM: Xid (PCI:0000:0a:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n",
            "6,1,99999999999,-;NVRM: Xid (PCI:0000:c1:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008\n",
        ])) {
            for line in String::from_utf8_lossy(&text).lines() {
                if let Some(xid) = parse(line, Duration::from_secs(60)) {
                    prop_assert!(line.contains("NVRM: Xid (") && xid.text.len() <= line.len());
                    prop_assert!(xid.ago.is_none_or(|ago| ago <= Duration::from_secs(60)));
                }
            }
        }
    }

    #[test]
    fn xid_lines_are_taken_apart() {
        let now = Duration::from_secs(100);
        let line = "6,12,40000000,-;NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', GPU has fallen off the bus.";
        let xid = parse(line, now).unwrap();
        assert_eq!((xid.number, xid.pci.as_deref()), (79, Some("0000:0a:00")));
        assert_eq!(xid.ago, Some(Duration::from_secs(60)));
        assert!(xid.text.starts_with("NVRM: Xid"), "{}", xid.text);
        assert_eq!(parse("NVRM: Xid (PCI:0000:0a:00): 43, pid=1", now).unwrap().ago, None);
        for line in ["", "6,1,2,-;nvidia: module loaded", "6,1,2,-;NVRM: Xid (PCI", "6,1,2,-;NVRM: Xid (PCI:0): x"] {
            assert_eq!(parse(line, now), None, "{line}");
        }
    }

    #[test]
    fn a_file_of_records_is_read_and_a_missing_one_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kmsg");
        assert!(matches!(look(&path), Seen::Hidden(_)));
        let noise = "6,1,2,-;usb 1-1: new device\n".repeat(3000);
        std::fs::write(&path, format!("{noise}6,2,3,-;NVRM: Xid (PCI:0000:0a:00): 31, pid=7\n")).unwrap();
        let Seen::As(found) = look(&path) else { panic!("not read") };
        assert_eq!(found.iter().map(|x| x.number).collect::<Vec<_>>(), [31]);
    }
}
