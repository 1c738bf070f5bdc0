//! One TCP connection that carries records of a tunnel, once its keys are known.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::time::Instant;

use fairlead_tunnel::records::{LENGTH_BYTES, MAX_BATCH_BYTES, Opener, Sealer, Suite, TAG_BYTES};
use fairlead_tunnel::{SHARE, SPARE, Tunnel};
use mio::Token;
use socket2::Socket;

const LARGEST_RECORD: usize = LENGTH_BYTES + MAX_BATCH_BYTES + TAG_BYTES;
const INPUT_BYTES: usize = 2 * LARGEST_RECORD;
/// What a carrier without bulk has to read to.
const SMALL_INPUT_BYTES: usize = 4096;
/// With so many bytes that the kernel has not taken, a carrier takes no further batch.
const MOST_UNSENT: usize = 64 * 1024;
/// The kernel says that there is room while it has fewer bytes that were not sent (tcp(7)).
const MOST_NOT_SENT: u32 = 128 * 1024;
/// So long is a batch at most: what is read, sealed and written meanwhile stays in the cache, and
/// no short segment trails behind the two of loopback that it fills.
const BATCH_BYTES: usize = 2 * SHARE + SPARE;

/// What a handshake makes, as this side uses it.
pub struct Keys {
    pub suite: Suite,
    pub send: [u8; 32],
    pub receive: [u8; 32],
}

/// The connection, what waits to be sent over it, and what came and is no whole record yet.
pub struct Carrier {
    pub socket: Socket,
    pub token: Token,
    pub is_readable: bool,
    pub is_writable: bool,
    pub is_closing: bool,
    is_finished: bool,
    /// How many bytes have come.
    pub received: u64,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// How long the last record was, at first the longest.
    record: usize,
    sealer: Sealer,
    opener: Opener,
}

impl Carrier {
    /// Make it; `received` is what came behind the handshake.
    pub fn new(socket: Socket, token: Token, keys: Keys, received: &[u8]) -> Self {
        // Best effort: a Unix socket has neither.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_tcp_notsent_lowat(MOST_NOT_SENT);
        let mut input = vec![0; SMALL_INPUT_BYTES.max(received.len())];
        input[..received.len()].copy_from_slice(received);
        Carrier {
            socket,
            token,
            is_readable: true,
            is_writable: true,
            is_closing: false,
            is_finished: false,
            received: 0,
            out: Vec::new(),
            sent: 0,
            input,
            start: 0,
            end: received.len(),
            record: LARGEST_RECORD,
            sealer: Sealer::new(keys.suite, keys.send),
            opener: Opener::new(keys.suite, keys.receive),
        }
    }

    /// Say whether it takes a batch.
    pub fn has_room(&self) -> bool {
        self.is_writable && self.unsent() < MOST_UNSENT
    }

    /// Return how many bytes wait for the kernel.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Return how many bytes have not arrived, as far as it is known here.
    pub fn unacknowledged(&self) -> u64 {
        let mut queued: libc::c_int = 0;
        // SAFETY: SIOCOUTQ (tcp(7)) writes one int; where it fails, as for a Unix socket, none.
        unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &mut queued) };
        self.unsent() as u64 + u64::try_from(queued).unwrap_or(0)
    }

    /// Seal what the tunnel has to send, as one record; say whether it had anything.
    pub fn fill(&mut self, number: u32, tunnel: &mut Tunnel, now: Instant) -> io::Result<bool> {
        if self.sent > 0 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        let start = self.out.len();
        self.out.extend_from_slice(&[0; LENGTH_BYTES]);
        if !tunnel.take_batch(number, BATCH_BYTES, now, &mut self.out) {
            self.out.truncate(start);
            return Ok(false);
        }
        self.sealer
            .seal(&mut self.out, start)
            .map_err(io::Error::other)?;
        Ok(true)
    }

    /// Give the kernel what it takes.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.is_writable && self.unsent() > 0 {
            match (&self.socket).write(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.unsent() == 0 {
            self.out.clear();
            self.sent = 0;
        }
        Ok(())
    }

    /// End this direction once everything has left. The peer ends the other one: a connection that
    /// is closed under what its peer still sends is reset, and what was sent before may be lost.
    pub fn finish(&mut self) {
        if self.unsent() == 0 && !self.is_finished {
            self.is_finished = true;
            let _ = self.socket.shutdown(Shutdown::Write); // one that was reset is about to be read
        }
    }

    /// Read once; the connection's end is an error.
    pub fn read(&mut self) -> io::Result<()> {
        if self.start > 0 && self.input.len() - self.end < LARGEST_RECORD {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let mut room = self.input.len() - self.end;
        if room == 0 {
            let most = INPUT_BYTES.max(self.end + LARGEST_RECORD); // a record is never longer
            self.input.resize(most, 0);
            room = most - self.end;
        }
        // Bulk has records of one length: of whole ones nothing has to be moved to the front.
        let whole = LARGEST_RECORD / self.record * self.record;
        room = room.min(whole - (self.end - self.start) % self.record);
        match (&self.socket).read(&mut self.input[self.end..self.end + room]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.end += count;
                self.received += count as u64;
                // What comes later is told anew; an end that was told already is not.
                self.is_readable = count == room || self.is_closing;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Return the batch of the next record that is whole.
    pub fn next_batch(&mut self) -> io::Result<Option<&[u8]>> {
        let received = &self.input[self.start..self.end];
        let Some(length) = Opener::whole(received).map_err(io::Error::other)? else {
            if self.start == self.end {
                self.start = 0;
                self.end = 0;
            }
            return Ok(None);
        };
        let record = &mut self.input[self.start..self.start + length];
        self.start += length;
        self.record = length;
        let batch = self.opener.open(record).map_err(io::Error::other)?;
        Ok(Some(batch))
    }
}
