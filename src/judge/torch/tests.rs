use super::*;

const MIB: u64 = 1 << 20;

fn curve(points: &[(u64, u64)]) -> ProcessCurve {
    let points = points.iter().map(|(at, mib)| (*at, Bytes::mib(*mib))).collect();
    ProcessCurve { id: ProcId { pid: 7, start_ticks: 70 }, points }
}

fn samples(points: &[(u64, u64)]) -> Vec<TorchPoint> {
    let point = |(at_ms, mib): &(u64, u64)| TorchPoint {
        at_ms: *at_ms,
        allocated_bytes: Bytes(MIB),
        reserved_bytes: Bytes::mib(*mib),
    };
    points.iter().map(point).collect()
}

#[test]
fn only_readings_that_stood_still_are_matched() {
    // The driver's reading changed 100 ms before and after this sample.
    let moving = curve(&[(0, 518), (900, 1000), (1100, 2000)]);
    assert_eq!(matched(&moving, &samples(&[(1000, 482)]), u64::MAX), None);
    let steady = curve(&[(0, 518), (500, 1000), (1500, 2000)]);
    assert_eq!(matched(&steady, &samples(&[(1000, 482)]), u64::MAX), Some(Bytes::mib(518)));
    // The last one that counts; the sample beside the change does not.
    let later = curve(&[(0, 518), (500, 1000), (1500, 2000)]);
    assert_eq!(matched(&later, &samples(&[(1000, 482), (1600, 99), (3000, 1400)]), u64::MAX), Some(Bytes::mib(600)));
    assert_eq!(matched(&later, &samples(&[(1000, 482), (1600, 99)]), u64::MAX), Some(Bytes::mib(518)));
    // More reserved than listed: not of the same moment.
    assert_eq!(matched(&steady, &samples(&[(1000, 1001)]), u64::MAX), None);
    assert_eq!(matched(&curve(&[]), &samples(&[(1000, 1)]), u64::MAX), None);
}

#[test]
fn the_last_moment_of_a_process_has_no_look_after_it() {
    // It gave its cache back and ended before the next look: the old reading is not its context.
    let stale = curve(&[(0, 518), (500, 4614)]);
    assert_eq!(matched(&stale, &samples(&[(1100, 0)]), 1100), None);
    assert_eq!(matched(&stale, &samples(&[(1100, 0)]), 1399), None);
    assert_eq!(matched(&stale, &samples(&[(1000, 4096), (1390, 0)]), 1400), Some(Bytes::mib(518)));
}

#[test]
fn a_negative_difference_is_unknown() {
    assert_eq!(less(Some(Bytes(5)), Some(Bytes(7))), None);
    assert_eq!(less(Some(Bytes(7)), Some(Bytes(5))), Some(Bytes(2)));
    assert_eq!(less(None, Some(Bytes(5))), None);
}
