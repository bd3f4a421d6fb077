//! Process records as drivers write them: 16 bytes (before R450), 24 bytes, or 32 bytes, which R535.43 to 535.86 wrote
//! through the 24-byte call. Only the buffer can tell, so it is filled with a mark before the call and measured after
//! it. Pure arithmetic on words, apart from the call itself.

use crate::model::{Bytes, Entry, ListKind};

/// No driver writes this: as a PID, an instance id or an amount of memory it is far out of range.
const MARK: u64 = 0xA5A5_5A5A_A5A5_5A5A;

/// Words of the largest record that any driver is known to write.
pub(super) const LARGEST_RECORD: usize = 4;

/// A buffer for one list call.
#[derive(Debug, Default)]
pub(super) struct Records {
    words: Vec<u64>,
}

/// The records do not add up: of no known size, or more than there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnknownLayout;

impl std::fmt::Display for UnknownLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the driver wrote process records of an unknown size")
    }
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) pid: u32,
    /// `None`: the driver says "not available".
    pub(super) bytes: Option<Bytes>,
    pub(super) gi: Option<u32>,
    pub(super) ci: Option<u32>,
}

impl Records {
    /// Makes room for `records` of any known size and marks all of it as unwritten.
    pub(super) fn prepare(&mut self, records: usize) -> &mut [u64] {
        self.words.clear();
        self.words.resize(records * LARGEST_RECORD, MARK);
        &mut self.words
    }

    /// The `count` records that the call says it wrote.
    pub(super) fn read(&self, count: usize) -> Result<Vec<Record>, UnknownLayout> {
        if count == 0 {
            return Ok(Vec::new());
        }
        // The last word of a record (memory, instance ids, protected memory) is always written whole.
        let written = self.words.iter().rposition(|w| *w != MARK).map_or(0, |last| last + 1);
        let stride = (2..=LARGEST_RECORD).find(|stride| stride * count == written).ok_or(UnknownLayout)?;
        Ok(self.words[..written].chunks_exact(stride).map(record).collect())
    }
}

fn record(words: &[u64]) -> Record {
    let (pid, _) = halves(words[0]);
    let instances = words.get(2).map(|w| halves(*w));
    let id = |n: u32| (n != u32::MAX).then_some(n);
    Record {
        pid,
        bytes: (words[1] != u64::MAX).then_some(Bytes(words[1])),
        gi: instances.and_then(|(gi, _)| id(gi)),
        ci: instances.and_then(|(_, ci)| id(ci)),
    }
}

/// The two 32-bit numbers of a word in the order of memory.
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// Adds a list's records: each (pid, gi, ci) once with its largest value, because an MPS client stands in two lists.
pub(super) fn merge(into: &mut Vec<Entry>, list: ListKind, records: &[Record]) {
    for r in records {
        match into.iter_mut().find(|e| (e.pid, e.gi, e.ci) == (r.pid, r.gi, r.ci)) {
            Some(entry) => {
                entry.bytes = entry.bytes.max(r.bytes);
                if !entry.lists.contains(&list) {
                    entry.lists.push(list);
                }
            }
            None => into.push(Entry { pid: r.pid, bytes: r.bytes, gi: r.gi, ci: r.ci, lists: vec![list] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(low: u32, high: u32) -> u64 {
        let (a, b) = (low.to_ne_bytes(), high.to_ne_bytes());
        u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
    }

    /// Writes as a driver would: the padding after the PID keeps the mark.
    fn write(records: &mut Records, room: usize, stride: usize, written: &[(u32, u64, u32, u32)]) {
        let words = records.prepare(room);
        for (i, (pid, bytes, gi, ci)) in written.iter().enumerate() {
            let at = i * stride;
            words[at] = word(*pid, halves(MARK).1);
            words[at + 1] = *bytes;
            if stride > 2 {
                words[at + 2] = word(*gi, *ci);
            }
            if stride > 3 {
                words[at + 3] = 0;
            }
        }
    }

    fn expect(stride: usize, (pid, bytes, gi, ci): (u32, u64, u32, u32)) -> Record {
        let instance = |n: u32| (stride > 2 && n != u32::MAX).then_some(n);
        Record { pid, bytes: (bytes != u64::MAX).then_some(Bytes(bytes)), gi: instance(gi), ci: instance(ci) }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_stride_is_recognised(
            stride in 2usize..=4,
            spare in 0usize..3,
            written in prop::collection::vec(
                (1u32..5_000_000, prop_oneof![Just(0), Just(u64::MAX), 0u64..1 << 40],
                 prop_oneof![Just(u32::MAX), 0u32..16], prop_oneof![Just(u32::MAX), 0u32..16]), 1..40),
        ) {
            let mut records = Records::default();
            write(&mut records, written.len() + spare, stride, &written);
            let read = records.read(written.len()).unwrap();
            let expected: Vec<_> = written.iter().map(|w| expect(stride, *w)).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn garbage_never_panics(words in prop::collection::vec(any::<u64>(), 0..64), count in 0usize..100) {
            let _ = Records { words }.read(count);
        }
    }

    #[test]
    fn a_full_buffer_of_the_largest_records_is_read() {
        let mut records = Records::default();
        write(&mut records, 3, 4, &[(1, 10, 0, 0), (2, 20, 0, 0), (3, 30, 0, 0)]);
        let pids: Vec<_> = records.read(3).unwrap().iter().map(|r| r.pid).collect();
        assert_eq!(pids, [1, 2, 3]);
    }

    #[test]
    fn a_count_that_does_not_fit_what_was_written_is_no_reading() {
        let mut records = Records::default();
        write(&mut records, 8, 3, &[(1, 10, 0, 0), (2, 20, 0, 0)]);
        assert_eq!(records.read(5), Err(UnknownLayout));
        records.prepare(8);
        assert_eq!(records.read(1), Err(UnknownLayout), "nothing was written");
        assert_eq!(records.read(9), Err(UnknownLayout), "more than there is room for");
        assert_eq!(records.read(0), Ok(Vec::new()));
    }

    #[test]
    fn an_mps_client_counts_once_with_its_largest_value() {
        let record = |pid, bytes: Option<u64>| Record { pid, bytes: bytes.map(Bytes), gi: None, ci: None };
        let mut entries = Vec::new();
        merge(&mut entries, ListKind::Compute, &[record(1, Some(10)), record(2, None)]);
        merge(&mut entries, ListKind::Mps, &[record(1, Some(12)), record(2, Some(5)), record(3, None)]);
        let seen: Vec<_> = entries.iter().map(|e| (e.pid, e.bytes.map(|b| b.0), e.lists.len())).collect();
        assert_eq!(seen, [(1, Some(12), 2), (2, Some(5), 2), (3, None, 1)]);
        let instance = Record { pid: 1, bytes: None, gi: Some(1), ci: Some(0) };
        merge(&mut entries, ListKind::Compute, &[instance]);
        assert_eq!(entries.len(), 4, "another instance is another entry");
    }
}
