//! What one side sends of a channel: kept until it is acknowledged, sent again when it was lost.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::ranges::RangeSet;

/// Writes below this many bytes are joined while none of them has left, so that many small ones
/// cost neither a chunk nor a frame each.
const SMALL: usize = 4096;

/// The bytes of one direction by offset, from the first unacknowledged one on, and their end.
pub struct Outbound {
    /// The offset up to which the receiver takes bytes.
    pub limit: u64,
    pub acked: u64,
    pub sent: u64,
    pub written: u64,
    chunks: VecDeque<(u64, Bytes)>,
    /// Small writes at the end, which have not left.
    joined: BytesMut,
    arrived: RangeSet,
    lost: RangeSet,
    pub is_finished: bool,
    fin_due: bool,
    fin_acked: bool,
}

impl Outbound {
    pub fn new(limit: u64) -> Self {
        Outbound {
            limit,
            acked: 0,
            sent: 0,
            written: 0,
            chunks: VecDeque::new(),
            joined: BytesMut::new(),
            arrived: RangeSet::default(),
            lost: RangeSet::default(),
            is_finished: false,
            fin_due: false,
            fin_acked: false,
        }
    }

    /// Return how many bytes are kept: unsent, or sent and not acknowledged.
    pub fn buffered(&self) -> u64 {
        self.written - self.acked
    }

    /// Say whether the peer has everything, the end included.
    pub fn is_settled(&self) -> bool {
        self.fin_acked && self.acked == self.written
    }

    /// Say whether something that was sent before, or the end, waits to be sent now.
    pub fn repeats(&self) -> bool {
        !self.lost.is_empty() || (self.fin_due && self.sent == self.written)
    }

    /// Append bytes; they are kept, not copied, unless they are few.
    pub fn write(&mut self, content: Bytes) {
        let length = content.len();
        if length < SMALL {
            if self.joined.len() >= SMALL {
                self.freeze();
            }
            self.joined.extend_from_slice(&content);
        } else {
            self.freeze();
            self.chunks.push_back((self.written, content));
        }
        self.written += length as u64;
    }

    fn freeze(&mut self) {
        if !self.joined.is_empty() {
            let start = self.written - self.joined.len() as u64;
            self.chunks.push_back((start, self.joined.split().freeze()));
        }
    }

    /// End the direction after what was written.
    pub fn finish(&mut self) {
        self.is_finished = true;
        self.fin_due = true;
    }

    /// Return where at most `most` bytes start and end that were lost.
    pub fn take_repeat(&mut self, most: usize) -> Option<(u64, u64)> {
        let (start, end) = self.lost.first()?;
        let end = end.min(start + most as u64);
        if end == start {
            return None;
        }
        self.lost.discard(start, end);
        Some((start, end))
    }

    /// Return where at most `most` bytes start and end that were not sent before.
    pub fn take_unsent(&mut self, most: u64) -> Option<(u64, u64)> {
        let start = self.sent;
        let end = self.written.min(self.limit).min(start + most);
        if end <= start {
            return None;
        }
        self.sent = end;
        self.freeze(); // what leaves grows no more
        Some((start, end))
    }

    /// Append the bytes from `start` to `end`, which are all kept.
    pub fn copy(&self, mut start: u64, end: u64, out: &mut Vec<u8>) {
        let mut place = self.chunks.partition_point(|each| each.0 <= start) - 1;
        while start < end {
            let (first, chunk) = &self.chunks[place];
            let until = chunk.len().min((end - first) as usize);
            out.extend_from_slice(&chunk[(start - first) as usize..until]);
            start = first + until as u64;
            place += 1;
        }
    }

    /// Return the length of the direction if its end is to be said now.
    pub fn take_fin(&mut self) -> Option<u64> {
        if !self.fin_due || self.sent < self.written {
            return None;
        }
        self.fin_due = false;
        Some(self.written)
    }

    /// Note that bytes have arrived; what is complete from the first byte on is forgotten.
    pub fn on_acked(&mut self, start: u64, end: u64) {
        self.lost.discard(start, end);
        if start > self.acked {
            self.arrived.add(start, end);
            return;
        }
        self.acked = self.acked.max(end);
        if !self.arrived.is_empty() {
            self.arrived.add(0, self.acked);
            self.acked = self.arrived.first().map_or(self.acked, |first| first.1);
            self.arrived.discard(0, self.acked);
        }
        while let Some((first, chunk)) = self.chunks.front()
            && first + chunk.len() as u64 <= self.acked
        {
            self.chunks.pop_front();
        }
    }

    /// Note that bytes were lost on the way, unless they have arrived otherwise.
    pub fn on_lost(&mut self, start: u64, end: u64) {
        for (first, last) in self.arrived.missing(start.max(self.acked), end) {
            self.lost.add(first, last);
        }
    }

    /// Note that the end has arrived.
    pub fn on_fin_acked(&mut self) {
        self.fin_acked = true;
        self.fin_due = false;
    }

    /// Note that the end was lost on the way.
    pub fn on_fin_lost(&mut self) {
        self.fin_due = !self.fin_acked;
    }

    /// Forget all bytes: the channel is given up, and none is sent any more.
    pub fn abandon(&mut self) {
        self.chunks = VecDeque::new();
        self.joined = BytesMut::new();
        self.lost = RangeSet::default();
        self.written = self.sent;
        self.acked = self.sent;
        self.is_finished = true;
        self.fin_due = false;
    }
}
