//! One TCP connection that carries records of a tunnel, or a WebSocket's messages, once its keys are
//! known.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Instant;

use fairlead_tunnel::records::{LENGTH_BYTES, MAX_BATCH_BYTES, Opener, Sealer, Suite, TAG_BYTES};
use fairlead_tunnel::websocket::{Found, MAX_HEADER_BYTES};
use fairlead_tunnel::{SHARE, SPARE, Tunnel};
use mio::Token;
use socket2::Socket;

use super::websocket::WebSocket;

const LARGEST_MESSAGE: usize = MAX_BATCH_BYTES + TAG_BYTES;
/// With what goes before it, which is more in a WebSocket.
const LARGEST_RECORD: usize = MAX_HEADER_BYTES + LARGEST_MESSAGE;
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

/// A TCP connection that becomes a carrier, or that of a WebSocket.
pub struct Given {
    pub socket: Socket,
    pub keys: Keys,
    /// What came behind the handshake.
    pub received: Vec<u8>,
    /// What of the handshake has not left.
    pub unsent: Vec<u8>,
    pub is_websocket: bool,
}

/// Where a record is that came.
enum Sealed {
    Here(Range<usize>),
    InParts,
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
    /// Whether nothing more is to be sent: another carrier has taken its place.
    pub is_retired: bool,
    websocket: Option<WebSocket>,
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
    /// Make it, of which a token stands for the socket.
    pub fn new(given: Given, token: Token, is_client: bool) -> Self {
        let (socket, received) = (given.socket, given.received);
        // Best effort: a Unix socket has neither.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_tcp_notsent_lowat(MOST_NOT_SENT);
        let mut input = vec![0; SMALL_INPUT_BYTES.max(received.len())];
        input[..received.len()].copy_from_slice(&received);
        let websocket = given
            .is_websocket
            .then(|| WebSocket::new(is_client, LARGEST_MESSAGE, Instant::now()));
        Carrier {
            socket,
            token,
            is_readable: true,
            is_writable: true,
            is_closing: false,
            is_finished: false,
            received: 0,
            is_retired: false,
            websocket,
            out: given.unsent,
            sent: 0,
            input,
            start: 0,
            end: received.len(),
            record: LARGEST_RECORD,
            sealer: Sealer::new(given.keys.suite, given.keys.send),
            opener: Opener::new(given.keys.suite, given.keys.receive),
        }
    }

    /// Say whether it takes a batch.
    pub fn has_room(&self) -> bool {
        self.is_writable && !self.is_retired && self.unsent() < MOST_UNSENT
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

    /// Return when `keep_alive` wants to be called, if nothing happens.
    pub fn due(&self) -> Option<Instant> {
        self.websocket.as_ref().and_then(WebSocket::due)
    }

    /// Ask a client for a sign of life when that is due; an error if the last one did not come.
    pub fn keep_alive(&mut self, now: Instant) -> io::Result<()> {
        match &mut self.websocket {
            Some(websocket) => websocket.keep_alive(now, self.received, &mut self.out),
            None => Ok(()),
        }
    }

    /// Tell the peer that this is the end, as far as that goes at once.
    pub fn part(&mut self) {
        // Behind a part of a frame it would be none.
        let is_told = self.websocket.is_none() || self.is_finished;
        if is_told || self.flush().is_err() || self.unsent() > 0 {
            return;
        }
        if let Some(websocket) = &self.websocket
            && websocket.close(&mut self.out).is_ok()
        {
            let _ = self.flush();
        }
    }

    /// Seal what the tunnel has to send, as one record; say whether it had anything.
    pub fn fill(&mut self, number: u32, tunnel: &mut Tunnel, now: Instant) -> io::Result<bool> {
        if self.sent > 0 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        let start = self.out.len();
        let head = match &self.websocket {
            Some(websocket) => websocket.reserved_bytes(),
            None => LENGTH_BYTES,
        };
        self.out.extend_from_slice(&[0; MAX_HEADER_BYTES][..head]);
        if !tunnel.take_batch(number, BATCH_BYTES, now, &mut self.out) {
            self.out.truncate(start);
            return Ok(false);
        }
        self.sealer
            .seal(&mut self.out, start + head - LENGTH_BYTES)
            .map_err(io::Error::other)?;
        if let Some(websocket) = &self.websocket {
            websocket.frame(&mut self.out, start)?;
        }
        Ok(true)
    }

    /// Give the kernel what it takes.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.unsent() < MOST_UNSENT
            && let Some(websocket) = &mut self.websocket
        {
            websocket.answer(&mut self.out)?;
        }
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
            self.part();
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
        let sealed = match (self.next_sealed()?, &mut self.websocket) {
            (Some(Sealed::Here(place)), _) => &mut self.input[place],
            (Some(Sealed::InParts), Some(websocket)) => websocket.reader.parts(),
            _ => {
                if self.start == self.end {
                    self.start = 0;
                    self.end = 0;
                }
                return Ok(None);
            }
        };
        let batch = self.opener.open(sealed).map_err(io::Error::other)?;
        Ok(Some(batch))
    }

    /// Find what was sealed and is whole, past all else that comes over a WebSocket.
    fn next_sealed(&mut self) -> io::Result<Option<Sealed>> {
        let Some(websocket) = &mut self.websocket else {
            let received = &self.input[self.start..self.end];
            let length = Opener::whole(received).map_err(io::Error::other)?;
            return Ok(length.map(|length| {
                self.record = length;
                self.start += length;
                Sealed::Here(self.start - length + LENGTH_BYTES..self.start)
            }));
        };
        loop {
            let start = self.start;
            let received = &mut self.input[start..self.end];
            let Some((length, found)) = websocket.next(received)? else {
                return Ok(None);
            };
            self.start += length;
            match found {
                Found::Message(place) => {
                    self.record = length;
                    return Ok(Some(Sealed::Here(start + place.start..start + place.end)));
                }
                Found::Parts => return Ok(Some(Sealed::InParts)),
                Found::Nothing | Found::Ping(_) | Found::Closed(_) => {}
            }
        }
    }
}
