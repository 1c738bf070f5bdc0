//! What one side receives of a channel: put in order by offset, in bounded memory.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::Fault;
use crate::ranges::RangeSet;

/// More than a sender has batches under way, which may all wait for the first one.
const MOST_PIECES: usize = 8192;

/// The bytes of one direction; at most `window` are here and not consumed.
pub struct Inbound {
    window: u64,
    /// What the peer was told that it may send to.
    pub limit: u64,
    /// One past the last byte that the peer is known to have sent.
    pub highest: u64,
    /// One past the last byte that is here with all before it.
    pub received: u64,
    pub consumed: u64,
    pub length: Option<u64>,
    here: RangeSet,
    early: HashMap<u64, Vec<u8>>,
}

impl Inbound {
    pub fn new(window: u64) -> Self {
        Inbound {
            window,
            limit: window,
            highest: 0,
            received: 0,
            consumed: 0,
            length: None,
            here: RangeSet::default(),
            early: HashMap::new(),
        }
    }

    /// Return how many pieces wait for others before them.
    pub fn early(&self) -> usize {
        self.early.len()
    }

    /// Say whether the end is known and every byte before it is here.
    pub fn is_complete(&self) -> bool {
        self.length == Some(self.received)
    }

    /// Note bytes that came, in any order and as often as they like; append what is in order.
    pub fn take<'a>(
        &mut self,
        offset: u64,
        content: &'a [u8],
        found: &mut Vec<Cow<'a, [u8]>>,
    ) -> Result<(), Fault> {
        let end = offset + content.len() as u64;
        if end > self.limit || self.length.is_some_and(|length| end > length) {
            return Err(Fault("bytes were sent past the limit or the end"));
        }
        self.highest = self.highest.max(end);
        if end <= self.received {
            return Ok(());
        }
        if offset <= self.received && self.here.is_empty() {
            found.push(Cow::Borrowed(&content[(self.received - offset) as usize..]));
            self.received = end;
            return Ok(());
        }
        let start = offset.max(self.received);
        for (first, last) in self.here.missing(start, end) {
            let piece = &content[(first - offset) as usize..(last - offset) as usize];
            self.early.insert(first, piece.to_vec());
        }
        self.here.add(start, end);
        if offset > self.received {
            if self.early.len() > MOST_PIECES {
                return Err(Fault("bytes were sent in more pieces than are kept"));
            }
            return Ok(());
        }
        while let Some(piece) = self.early.remove(&self.received) {
            self.received += piece.len() as u64;
            found.push(Cow::Owned(piece));
        }
        self.here.discard(0, self.received);
        Ok(())
    }

    /// Note where the peer's bytes end.
    pub fn finish(&mut self, length: u64) -> Result<(), Fault> {
        if length < self.highest
            || length > self.limit
            || self.length.is_some_and(|known| known != length)
        {
            return Err(Fault(
                "the end is before bytes that came, or was another one",
            ));
        }
        self.length = Some(length);
        self.highest = length;
        Ok(())
    }

    /// Note that `count` bytes have left; say whether the limit has moved enough to be told.
    pub fn consume(&mut self, count: u64) -> bool {
        self.consumed += count;
        assert!(
            self.consumed <= self.received,
            "more was consumed than received"
        );
        if self.length.is_some() || self.limit - self.consumed > self.window * 3 / 4 {
            return false;
        }
        self.limit = self.consumed + self.window;
        true
    }

    /// Forget what is here; returns how many bytes were sent and not consumed.
    pub fn abandon(&mut self) -> u64 {
        let left = self.highest - self.consumed;
        self.consumed = self.highest;
        self.received = self.highest;
        self.early = HashMap::new();
        self.here = RangeSet::default();
        left
    }
}
