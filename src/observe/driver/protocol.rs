//! The words between the client and its helper: one JSON line each way. Apart from both, because both sides and the
//! stand-in helpers of the tests must agree on it.

use super::{Extras, Failure, Inventory, Source};
use crate::model::{DeviceEvent, DriverFacts, Look, Uuid};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};

/// What the client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// Never used twice by one client, so that a late answer is known as such.
    pub(super) id: u64,
    /// The question.
    pub(super) ask: Ask,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// The first one to every helper.
    Open {
        /// Where readings come from.
        source: Source,
        /// Watch for Xid events.
        events: bool,
        /// After so many milliseconds a device that hangs is left behind if another answers.
        patience_ms: u64,
    },
    /// One look.
    Look {
        /// Empty: all.
        devices: Vec<Uuid>,
        /// What is read beside memory and lists.
        extras: Extras,
        /// As above.
        patience_ms: u64,
    },
    /// How the devices are set up.
    Facts,
}

/// What the helper says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The request's; 0 for what nobody asked for.
    pub(super) id: u64,
    /// The answer.
    pub(super) say: Say,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Say {
    /// To [`Ask::Open`].
    Opened(Result<Inventory, Failure>),
    /// To [`Ask::Look`].
    Look(Result<Look, Failure>),
    /// To [`Ask::Facts`].
    Facts(Result<DriverFacts, Failure>),
    /// Unasked, before the answer to a look.
    Events(Vec<DeviceEvent>),
}

/// One value as a line, line end included.
pub(super) fn line(value: &impl Serialize) -> io::Result<String> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    Ok(text)
}

/// No message is longer: 16 GPUs with thousands of entries each stay far below.
const LONGEST_LINE: u64 = 32 << 20;

/// The next line without its end; `None` at the end of the stream.
///
/// # Errors
/// If reading fails or the line is longer than any message: then the other side is not one of us.
pub(super) fn next_line(from: &mut impl BufRead, into: &mut String) -> io::Result<Option<()>> {
    into.clear();
    let mut bytes = std::mem::take(into).into_bytes();
    let n = io::Read::take(&mut *from, LONGEST_LINE).read_until(b'\n', &mut bytes)?;
    if n == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if n as u64 >= LONGEST_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "line too long"));
    }
    *into = String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))?;
    Ok(Some(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, DeviceFacts, DeviceLook, Entry, Gap, ListKind, Memory, MemoryApi, RemappedRows};
    use crate::observe::driver::FailureKind;

    fn round_trip<T: Serialize + for<'a> Deserialize<'a> + PartialEq + std::fmt::Debug>(value: &T) {
        let text = line(value).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "one line: {text:?}");
        assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *value);
    }

    #[test]
    fn messages_survive_the_pipe() {
        round_trip(&Request {
            id: 1,
            ask: Ask::Open { source: Source::Nvml { library: None }, events: true, patience_ms: 1 },
        });
        round_trip(&Request {
            id: 2,
            ask: Ask::Look {
                devices: vec![Uuid("GPU-1\n\"".into())],
                extras: Extras { bar1: true, utilization: false },
                patience_ms: 1,
            },
        });
        let look = DeviceLook {
            uuid: Uuid("GPU-1".into()),
            memory: Some(Memory {
                total: Bytes(u64::MAX),
                reserved: None,
                used: Bytes(1),
                free: Bytes(2),
                api: MemoryApi::V1,
            }),
            entries: Some(vec![Entry { pid: 7, bytes: None, gi: Some(1), ci: None, lists: vec![ListKind::Mps] }]),
            list_api: None,
            torn: Bytes::ZERO,
            utilization_percent: None,
            bar1: None,
            gaps: vec![Gap::new("GPU 0", "line\nbreak")],
        };
        round_trip(&Answer { id: 3, say: Say::Look(Ok(Look { at_ms: 0, devices: vec![look] })) });
        let failure = Failure::new(FailureKind::NoDriver, "no").hint("load it");
        round_trip(&Answer { id: 4, say: Say::Opened(Err(failure)) });
        round_trip(&Request { id: 5, ask: Ask::Facts });
        let rows = RemappedRows { correctable: 1, uncorrectable: 0, pending: true, failed: false };
        let device = DeviceFacts { remapped_rows: Some(rows), ..DeviceFacts::unknown(Uuid("GPU-1".into()), 0) };
        let facts = DriverFacts { mapped: Some(vec!["/lib/x.so".into()]), conf_compute: None, devices: vec![device] };
        round_trip(&Answer { id: 5, say: Say::Facts(Ok(facts)) });
        let event = DeviceEvent { at_ms: 0, uuid: None, xid: 43 };
        round_trip(&Answer { id: 0, say: Say::Events(vec![event]) });
    }

    #[test]
    fn lines_end_where_they_end() {
        let mut from = io::Cursor::new("one\n\ntwo");
        let mut text = String::new();
        let mut seen = Vec::new();
        while next_line(&mut from, &mut text).unwrap().is_some() {
            seen.push(text.clone());
        }
        assert_eq!(seen, ["one", "", "two"]);
        assert!(next_line(&mut io::Cursor::new([0xff, b'\n']), &mut text).is_err());
    }
}
