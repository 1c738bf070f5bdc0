//! The time of `turn-client-proto`, which counts from any moment that its caller likes.

use std::time::{Duration, Instant};

use turn_client_proto::types::Instant as Counted;

/// Moments as distances from the first one.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Count from `start`.
    pub fn new(start: Instant) -> Self {
        Clock { start }
    }

    /// Return how `now` is counted; what was before the start is the start.
    pub fn count(&self, now: Instant) -> Counted {
        let passed = now.saturating_duration_since(self.start).as_nanos();
        Counted::from_nanos(i64::try_from(passed).unwrap_or(i64::MAX))
    }

    /// Return the moment that was counted so.
    pub fn moment(&self, counted: Counted) -> Instant {
        let passed = u64::try_from(counted.as_nanos()).unwrap_or(0);
        self.start + Duration::from_nanos(passed)
    }
}
