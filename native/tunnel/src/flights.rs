//! Which batches are under way, and which have arrived: numbers for exactly-once delivery.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::channel::Part;
use crate::frames::MAX_RANGES;
use crate::ranges::RangeSet;

/// So many batches may be under way.
pub const MOST_UNDER_WAY: usize = 4096;
/// So many parts of all batches may be under way.
const MOST_PARTS: usize = 256 * 1024;
const ACK_BYTES: usize = 256 * 1024;
const ACK_DELAY: Duration = Duration::from_millis(25);

struct Flight {
    carrier: u32,
    parts: Vec<Part>,
}

/// The batches that this side sent and of which it does not know whether they arrived.
pub struct Departures {
    next: u64,
    flights: BTreeMap<u64, Flight>,
    parts: usize,
}

impl Departures {
    pub fn new() -> Self {
        Departures {
            next: 1,
            flights: BTreeMap::new(),
            parts: 0,
        }
    }

    /// Say whether so many are under way that no more may leave.
    pub fn are_full(&self) -> bool {
        self.flights.len() >= MOST_UNDER_WAY || self.parts >= MOST_PARTS
    }

    /// Number a batch; returns its id and the `lowest` that it states.
    pub fn depart(&mut self, carrier: u32, parts: Vec<Part>) -> (u64, u64) {
        let id = self.next;
        if !parts.is_empty() {
            self.parts += parts.len();
            self.flights.insert(id, Flight { carrier, parts });
        }
        self.next += 1;
        (
            id,
            self.flights.first_key_value().map_or(id, |first| *first.0),
        )
    }

    /// Settle what has arrived and return what that carried; None: one was never sent.
    pub fn acked(&mut self, ranges: &[(u64, u64)]) -> Option<Vec<Part>> {
        if ranges.iter().any(|range| range.1 >= self.next) {
            return None;
        }
        let mut found = Vec::new();
        for &(first, last) in ranges {
            while let Some((&id, _)) = self.flights.range(first..=last).next() {
                found.extend(self.flights.remove(&id).map_or(Vec::new(), |it| it.parts));
            }
        }
        self.parts -= found.len();
        Some(found)
    }

    /// Settle what went over these carriers, and return what has to be sent again.
    pub fn lost(&mut self, is_gone: impl Fn(u32) -> bool) -> Vec<Part> {
        let mut found = Vec::new();
        self.flights.retain(|_, flight| {
            let is_kept = !is_gone(flight.carrier);
            if !is_kept {
                found.append(&mut flight.parts);
            }
            is_kept
        });
        self.parts -= found.len();
        found
    }
}

/// The batches that came, each taken once, and when that has to be told to the other side.
pub struct Arrivals {
    floor: u64,
    arrived: RangeSet,
    bytes: usize,
    pub due: Option<Instant>,
}

impl Arrivals {
    pub fn new() -> Self {
        Arrivals {
            floor: 1,
            arrived: RangeSet::default(),
            bytes: 0,
            due: None,
        }
    }

    /// Note a batch; say whether it is the first time, and its sender still counts on it.
    pub fn take(&mut self, id: u64, lowest: u64, size: usize) -> bool {
        let is_first = id >= self.floor && !self.arrived.contains(id);
        if is_first {
            self.arrived.add(id, id + 1);
            self.bytes += size;
        }
        if lowest > self.floor {
            self.floor = lowest;
            self.arrived.discard(0, lowest);
        }
        is_first
    }

    /// Say whether more is missing in between than a sender may have under way.
    pub fn are_scattered(&self) -> bool {
        self.arrived.len() > MOST_UNDER_WAY
    }

    /// Have what came told soon: within 25 ms, or with whatever is sent before.
    pub fn owe(&mut self, now: Instant) {
        self.due.get_or_insert(now + ACK_DELAY);
    }

    /// Say whether it has to be told now, with nothing else to send.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due
            .is_some_and(|due| self.bytes >= ACK_BYTES || due <= now)
    }

    /// Return what an ACK says: the lowest ranges with both ends.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let ranges = self.arrived.iter().take(MAX_RANGES);
        ranges.map(|(start, end)| (start, end - 1)).collect()
    }

    /// Note that it was told.
    pub fn told(&mut self) {
        self.due = None;
        self.bytes = 0;
    }
}
