//! The limit on all channels of a tunnel together, in both directions.

use crate::Fault;

/// How many bytes may be sent in all channels together, and how many are taken.
pub struct SharedWindow {
    window: u64,
    /// How many new bytes this side may send.
    pub credit: u64,
    credit_limit: u64,
    /// The offset that the peer is told.
    pub limit: u64,
    received: u64,
    consumed: u64,
    /// Whether the limit is to be told.
    pub due: bool,
}

impl SharedWindow {
    pub fn new(window: u64) -> Self {
        SharedWindow {
            window,
            credit: window,
            credit_limit: window,
            limit: window,
            received: 0,
            consumed: 0,
            due: false,
        }
    }

    /// Take a limit of the peer; say whether it is a higher one.
    pub fn widen(&mut self, limit: u64) -> bool {
        if limit <= self.credit_limit {
            return false;
        }
        self.credit += limit - self.credit_limit;
        self.credit_limit = limit;
        true
    }

    /// Note that the peer sent `count` more bytes.
    pub fn receive(&mut self, count: u64) -> Result<(), Fault> {
        self.received += count;
        if self.received > self.limit {
            return Err(Fault("more was sent than the tunnel takes"));
        }
        self.shift();
        Ok(())
    }

    /// Note that `count` bytes have left.
    pub fn consume(&mut self, count: u64) {
        self.consumed += count;
        self.shift();
    }

    /// Have a limit told that is higher by a quarter, or by what the peer has left if less, so that
    /// what slow readers leave for long stops no other channel while there is any room.
    fn shift(&mut self) {
        let more = self.consumed + self.window - self.limit;
        if more >= (self.window / 4).min(self.limit - self.received).max(1) {
            self.limit += more;
            self.due = true;
        }
    }
}
