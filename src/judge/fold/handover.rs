//! Sums what may be a hand-over on one device as the looks come in, in a room that does not grow with time. What the
//! sums say is weighed in [`crate::judge::handover`].

use crate::{
    judge::handover::QUIET_TIMES,
    model::{Bytes, Entry, EntryKey, Grower, Handover},
};
use std::collections::BTreeMap;

/// Unlisted memory has moved when it is so far away from its level …
const MOVED: i128 = 64 << 20;
/// … in two looks that are so far apart: a process that is going is off the list one look before its memory is off the
/// device.
const STAYED_MS: u64 = 90;
/// Memory may come back late; where the ending looks were short, a hundred times their time would be too.
const SLOW_RETURN_MS: u64 = 1000;
/// The longest that a doubt is looked at after the end, as in settling.
const LOOK_ON_MS: u64 = 12_000;

/// The looks of one device, as they come in.
#[derive(Debug)]
pub(super) struct Looks {
    last_ms: u64,
    /// The sums so far, without who grew.
    totals: Handover,
    entries: BTreeMap<EntryKey, Growth>,
    level: Option<i128>,
    away: Option<Away>,
    /// What had gone when the last good look of unlisted memory was, and since.
    gone_unread: Option<Bytes>,
    /// Unlisted growth below this is noise.
    noise: Bytes,
    /// Since then, in milliseconds watched, memory on no list that came in ending looks is there that chance does not
    /// explain, or did not when it came.
    doubted_since: Option<u64>,
}

/// One entry of others.
#[derive(Debug)]
struct Growth {
    bytes: Option<Bytes>,
    since_ms: u64,
    ending_before_ms: u64,
    grown: Bytes,
    grown_then: Bytes,
}

/// Unlisted memory is away from its level since this look.
#[derive(Debug, Clone, Copy)]
struct Away {
    since_ms: u64,
    in_ending_look: bool,
    /// There was an ending look since.
    ended: bool,
    nearest: i128,
}

impl Away {
    const fn since(since_ms: u64, in_ending_look: bool, nearest: i128) -> Self {
        Self { since_ms, in_ending_look, ended: in_ending_look, nearest }
    }
}

impl Looks {
    /// Starts at the before-look, all of whose entries are others'. `unlisted`: used, less what is listed, less the cost
    /// of contexts; `None`: not known. `noise`: growth of it below this says nothing.
    pub(super) fn new(entries: &[Entry], unlisted: Option<i128>, noise: Bytes) -> Self {
        let mut looks = Self {
            last_ms: 0,
            totals: Handover::default(),
            entries: BTreeMap::new(),
            level: unlisted,
            away: None,
            gone_unread: None,
            noise,
            doubted_since: None,
        };
        looks.grow(entries.iter().map(|e| (e.into(), e.bytes)), None);
        looks
    }

    /// Takes a good look. `gone`: what processes of the run had that are listed no more; `None`: no such process is gone.
    pub(super) fn look(
        &mut self,
        at_ms: u64,
        gone: Option<Bytes>,
        others: impl Iterator<Item = (EntryKey, Option<Bytes>)>,
        unlisted: Option<i128>,
    ) {
        let span = at_ms.saturating_sub(self.last_ms);
        self.last_ms = self.last_ms.max(at_ms);
        self.totals.watched_ms += span;
        // Behind a look whose memory and lists are not of one moment stands what became of those who were gone in it.
        let gone = gone.into_iter().chain(self.gone_unread.take()).reduce(|a, b| a + b);
        if gone.is_some() {
            self.totals.ending_ms += span;
        }
        self.grow(others, gone);
        if let Some(unlisted) = unlisted {
            self.level(at_ms, gone.is_some(), unlisted);
        } else {
            self.gone_unread = gone;
        }
        // Once there is a doubt it is looked at to its end: what others take meanwhile may still explain it.
        let doubtful = self.totals.others_listed
            && self.totals.unlisted_then >= self.noise
            && (self.doubted_since.is_some() || self.totals.unlisted_doubt(self.noise).0 > 0);
        self.doubted_since = doubtful.then_some(self.doubted_since.unwrap_or(self.totals.watched_ms));
    }

    fn grow(&mut self, others: impl Iterator<Item = (EntryKey, Option<Bytes>)>, gone: Option<Bytes>) {
        let mut before = std::mem::take(&mut self.entries);
        for (key, bytes) in others {
            self.totals.others_listed = true;
            let mut growth = before.remove(&key).unwrap_or(Growth {
                bytes,
                since_ms: self.totals.watched_ms,
                ending_before_ms: self.totals.ending_ms,
                grown: Bytes::ZERO,
                grown_then: Bytes::ZERO,
            });
            if let (Some(last), Some(now)) = (growth.bytes, bytes) {
                let more = now.saturating_sub(last);
                growth.grown = growth.grown + more;
                growth.grown_then = growth.grown_then.saturating_sub(last.saturating_sub(now))
                    + gone.map_or(Bytes::ZERO, |gone| more.min(gone));
            }
            growth.bytes = bytes.or(growth.bytes);
            self.entries.insert(key, growth);
        }
    }

    fn level(&mut self, at_ms: u64, ending: bool, unlisted: i128) {
        let Some(level) = self.level else {
            self.level = Some(unlisted);
            return;
        };
        let by = unlisted - level;
        if by.abs() < MOVED {
            self.away = None;
            return;
        }
        let away = match self.away {
            Some(away) if (away.nearest > level) == (by > 0) => {
                let nearest = if by > 0 { away.nearest.min(unlisted) } else { away.nearest.max(unlisted) };
                Away { nearest, ended: away.ended || ending, ..away }
            }
            _ => {
                self.away = Some(Away::since(at_ms, ending, unlisted));
                return;
            }
        };
        if at_ms.saturating_sub(away.since_ms) < STAYED_MS {
            self.away = Some(away);
            return;
        }
        let moved = Bytes::at_least_zero((away.nearest - level).abs());
        match (by > 0, away.in_ending_look) {
            (true, true) => self.totals.unlisted_then = self.totals.unlisted_then + moved,
            (true, false) => self.totals.unlisted_else = self.totals.unlisted_else + moved,
            (false, _) => self.totals.unlisted_then = self.totals.unlisted_then.saturating_sub(moved),
        }
        self.level = Some(away.nearest);
        // What came on top of it meanwhile is a move of its own.
        let more = (unlisted - away.nearest).abs() >= MOVED;
        self.away = more.then(|| Away::since(at_ms, away.ended, unlisted));
    }

    /// Whether more looks may tell a hand-over to no list from chance.
    pub(super) fn is_undecided(&self) -> bool {
        let quiet_ms = self.totals.watched_ms.saturating_sub(self.totals.ending_ms);
        let doubt = self.doubted_since.is_some_and(|since| {
            quiet_ms < QUIET_TIMES * self.totals.ending_ms || self.totals.watched_ms - since < SLOW_RETURN_MS
        });
        // What others took meanwhile explains so much of it that quiet time would not bring the doubt back.
        let later = Handover { watched_ms: self.totals.watched_ms + LOOK_ON_MS, ..self.totals.clone() };
        let doubt = doubt && later.unlisted_doubt(self.noise).0 > 0;
        let rising = self.rising();
        doubt || rising.0 > 0 && rising >= self.noise && self.totals.others_listed
    }

    /// A rise of unlisted memory that began in an ending look and is not yet known to last.
    fn rising(&self) -> Bytes {
        match (self.away, self.level) {
            (Some(away), Some(level)) if away.in_ending_look => Bytes::at_least_zero(away.nearest - level),
            _ => Bytes::ZERO,
        }
    }

    /// Somebody else was listed in some look.
    pub(super) const fn others_listed(&self) -> bool {
        self.totals.others_listed
    }

    /// The sums so far.
    pub(super) fn sums(&self) -> Handover {
        let growers = self.entries.iter().filter(|(_, g)| g.grown.0 > 0);
        Handover {
            growers: growers
                .map(|(entry, g)| Grower {
                    entry: *entry,
                    watched_ms: self.totals.watched_ms.saturating_sub(g.since_ms),
                    ending_ms: self.totals.ending_ms.saturating_sub(g.ending_before_ms),
                    grown: g.grown,
                    grown_then: g.grown_then,
                })
                .collect(),
            ..self.totals.clone()
        }
    }
}
