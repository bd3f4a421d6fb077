//! The arithmetic of one device: the cost of contexts, the excess, and the interval of what a run is charged with.
//!
//! **Excess** is used − Σ listed − context cost: memory that is in use, that no list names, and that the listed
//! contexts do not explain. Its growth is what an exported handle, a managed allocation or somebody out of sight
//! leaves.

use crate::model::{Bytes, DeviceLook};

/// What a device costs as soon as one context is on it (3.25 MiB, measured on H200, driver 580).
const DEVICE_IN_USE: i128 = 13 << 18;
/// What each listed context costs beside its listed memory (5.6 MiB, measured on H200, driver 580: one context 8.8,
/// two 14.4, three 20.0 with the device's own cost).
const CONTEXT: i128 = (56 << 20) / 10;

/// Memory that the listed contexts cost beside their listed memory, in bytes; 0 while nothing is listed.
pub(crate) fn context_cost(entries: usize) -> i128 {
    if entries == 0 { 0 } else { DEVICE_IN_USE + CONTEXT * i128::try_from(entries).unwrap_or(0) }
}

/// Used − Σ listed − context cost in bytes, signed; `None` if a part is unknown, or they are not of one moment.
pub(crate) fn excess(look: &DeviceLook) -> Option<i128> {
    if !look.agrees() {
        return None;
    }
    Some(look.unaccounted()? - context_cost(look.entries.as_ref()?.len()))
}

/// What a run is charged with on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    /// For certain.
    pub(crate) low: Bytes,
    /// At most; `None`: unknown.
    pub(crate) high: Option<Bytes>,
}

/// What of some memory is the run's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// For certain.
    pub(crate) certain: Bytes,
    /// Beyond that, perhaps.
    pub(crate) possible: Bytes,
}

/// The facts that the interval is made of. Everything is already attributed; only sums remain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Listed memory of own processes and own ghosts.
    pub(crate) own_listed: Bytes,
    /// Listed memory of unknown processes and ghosts that was not there before.
    pub(crate) unknown_listed: Bytes,
    /// Growth of the excess, the smallest of the settling looks, never below 0; `None`: unknown.
    pub(crate) excess_growth: Option<Bytes>,
    /// What of the memory that no list names is the run's, or may be though nothing of it lives.
    pub(crate) unlisted: Share,
    /// The excess now; `None`: unknown.
    pub(crate) excess_now: Option<i128>,
    /// Sum of the rises of the excess from look to look.
    pub(crate) excess_rises: Bytes,
    /// An own or unknown process lives and has an NVIDIA file open, so that it may hold memory that no list names.
    pub(crate) hider: bool,
    /// Such a one that has nothing open but what keeps an exported handle: if it is none, nothing else explains why.
    pub(crate) keeper_of_a_handle: bool,
    /// What of the memory that is listed with processes of others is the run's, or may be.
    pub(crate) listed_elsewhere: Share,
    /// Somebody may be out of sight.
    pub(crate) out_of_sight: bool,
    /// The bytes of an own process are not available.
    pub(crate) own_bytes_unavailable: bool,
    /// Somebody else is or was listed on the device.
    pub(crate) others_listed: bool,
    /// Growth of used memory in bytes, less the growth of the context cost; `None`: a reading is missing.
    pub(crate) used_growth: Option<i128>,
}

impl Parts {
    /// The interval, bottom-up, so that neighbours can neither raise nor hide it.
    pub(crate) fn interval(&self) -> Interval {
        let low = self.own_listed + self.unlisted.certain + self.listed_elsewhere.certain;
        let Some(used_growth) = self.used_growth else {
            return Interval { low, high: None };
        };
        // What a neighbour gave back meanwhile would hide what the run holds.
        if self.own_bytes_unavailable && self.others_listed {
            return Interval { low, high: None };
        }
        // What a living process of the run hides and what nobody of it keeps any more is the same memory.
        let unlisted = self.hidden(low, used_growth).max(self.unlisted.possible);
        let mut high = low + self.unknown_listed + unlisted + self.listed_elsewhere.possible;
        if self.out_of_sight || self.own_bytes_unavailable {
            high = high + Bytes::at_least_zero(used_growth - i128::from(high.0));
        }
        Interval { low, high: Some(high) }
    }

    /// As in the interval, for the sentence that explains it.
    pub(crate) fn hidden_now(&self) -> Bytes {
        self.hidden(self.own_listed + self.unlisted.certain, self.used_growth.unwrap_or(0))
    }

    /// Memory that a living process of the run may hold without being listed.
    fn hidden(&self, low: Bytes, used_growth: i128) -> Bytes {
        if !self.hider {
            return Bytes::ZERO;
        }
        match self.excess_now {
            Some(now) => {
                let unnamed = Bytes::at_least_zero(now - i128::from(self.unlisted.certain.0));
                // What others gave back between the same two looks hides a rise.
                if self.keeper_of_a_handle { unnamed } else { unnamed.min(self.excess_rises) }
            }
            None => Bytes::at_least_zero(used_growth - i128::from(low.0)),
        }
    }
}
