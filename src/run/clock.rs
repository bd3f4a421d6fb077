//! Time in which we could watch. A stop (Ctrl-Z) or a sleeping laptop must not use up the time that memory is given to
//! come back.

use std::time::{Duration, Instant};

/// The longest step that counts: the wait loop wakes up far more often.
const STEP: Duration = Duration::from_secs(2);

/// Counts the time that the loop was awake.
#[derive(Debug)]
pub(super) struct Watched {
    last: Instant,
    total: Duration,
}

impl Watched {
    /// From now on.
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now, total: Duration::ZERO }
    }

    /// The watched time up to now.
    pub(super) fn tick(&mut self, now: Instant) -> Duration {
        self.total += now.saturating_duration_since(self.last).min(STEP);
        self.last = now;
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_of_an_hour_counts_as_one_step() {
        let start = Instant::now();
        let mut watched = Watched::new(start);
        assert_eq!(watched.tick(start + Duration::from_secs(1)), Duration::from_secs(1));
        assert_eq!(watched.tick(start + Duration::from_secs(3601)), Duration::from_secs(3));
        assert_eq!(watched.tick(start + Duration::from_secs(3602)), Duration::from_secs(4));
    }
}
