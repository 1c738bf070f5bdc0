//! The connection at the end of a channel.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::Shutdown;
use std::time::Duration;

use bytes::Bytes;
use mio::Token;
use socket2::Socket;

use super::buffers::{Buffers, READ_BYTES};

/// So much of what waits for the connection is joined.
const JOINED: usize = 64 * 1024;
/// How far a connection is.
pub enum Plug {
    /// The target is being connected by others.
    Missing,
    /// It is being connected here.
    Connecting(Socket, Token),
    Connected(Socket, Token),
}

/// The connection, and what came for it and was not written.
pub struct Port {
    pub plug: Plug,
    pub is_readable: bool,
    pub is_writable: bool,
    /// Whether the kernel has told of the end behind what is to be read.
    pub is_closing: bool,
    /// Whether it stands in the queue of those to be read.
    pub is_queued: bool,
    /// Whether the channel takes no more for now.
    pub waits: bool,
    /// Whether the connection has ended its direction.
    pub has_finished: bool,
    /// Whether the peer has ended its own, and the connection was told.
    pub peer_finished: bool,
    is_shut: bool,
    /// Whether Python is told when it is accepted and when it has ended as it should.
    pub is_told: bool,
    /// What others have read of the connection, which counts as if it were still to be read.
    early: Bytes,
    /// What was read while the channel was not accepted, as much as its windows let through; None:
    /// the connection stays here.
    kept: Option<Vec<Bytes>>,
    /// What the connection is told when its channel is accepted, before anything of that.
    reply: Option<Bytes>,
    unwritten: VecDeque<Vec<u8>>,
    /// How much of the first of them was written.
    written: usize,
}

impl Port {
    /// Make it without a connection; a client's may be given back until its channel is accepted.
    pub fn new(is_told: bool, is_client: bool) -> Self {
        Port {
            plug: Plug::Missing,
            is_readable: false,
            is_writable: false,
            is_closing: false,
            is_queued: false,
            waits: false,
            has_finished: false,
            peer_finished: false,
            is_shut: false,
            is_told,
            early: Bytes::new(),
            kept: is_client.then(Vec::new),
            reply: None,
            unwritten: VecDeque::new(),
            written: 0,
        }
    }

    /// Use a connection from now on, of which `early` was read before.
    pub fn connect(&mut self, socket: Socket, token: Token, early: Bytes, reply: Option<Bytes>) {
        let _ = socket.set_tcp_nodelay(true); // a Unix socket has no such delay
        self.plug = Plug::Connected(socket, token);
        self.early = early;
        self.reply = reply;
        self.is_readable = true;
        self.is_writable = true;
    }

    /// Note what was said before the early bytes: it comes first in what is given back.
    pub fn heard(&mut self, content: Bytes) {
        if let Some(kept) = &mut self.kept {
            kept.insert(0, content);
        }
    }

    /// Say whether it may be read now.
    pub fn can_read(&self) -> bool {
        self.is_readable
            && !self.waits
            && !self.has_finished
            && matches!(self.plug, Plug::Connected(..))
    }

    /// Say whether it waits for the kernel to take more, or to connect it.
    pub fn wants_to_write(&self) -> bool {
        !self.unwritten.is_empty() || matches!(self.plug, Plug::Connecting(..))
    }

    /// Say whether both directions have ended, whatever is still to be written.
    pub fn has_ended(&self) -> bool {
        self.has_finished && self.peer_finished
    }

    /// Say whether both directions have ended and all was written.
    pub fn is_done(&self) -> bool {
        self.has_finished && self.is_shut
    }

    /// Note that the channel was accepted: the connection stays here, and is told.
    pub fn accepted(&mut self) -> io::Result<()> {
        self.kept = None;
        self.answer()
    }

    /// Tell the connection that its channel is accepted, if it was.
    pub fn answer(&mut self) -> io::Result<()> {
        if self.kept.is_none()
            && let Plug::Connected(socket, _) = &self.plug
            && let Some(reply) = self.reply.take()
            && put(socket, &reply, &mut self.is_writable)? < reply.len()
        {
            return Err(io::ErrorKind::WouldBlock.into()); // it reads nothing
        }
        Ok(())
    }

    /// Say whether the connection waits to be told what comes of its channel.
    pub fn is_unanswered(&self) -> bool {
        self.reply.is_some()
    }

    /// Return the connection and what was read of it, if nothing has come of it yet; only then it
    /// is not here any more.
    pub fn give_back(&mut self) -> Option<(Socket, Vec<u8>)> {
        let mut kept = self.kept.take()?.concat();
        match std::mem::replace(&mut self.plug, Plug::Missing) {
            Plug::Connected(socket, _) => {
                kept.extend_from_slice(&self.early);
                Some((socket, kept))
            }
            plug => {
                self.plug = plug;
                None
            }
        }
    }

    /// Read at most `most` bytes; None: there are none now. Empty: the end.
    pub fn read(&mut self, most: usize, buffers: &mut Buffers) -> io::Result<Option<Bytes>> {
        let found = if self.early.is_empty() {
            self.receive(most, buffers)?
        } else {
            Some(self.early.split_to(most.min(self.early.len())))
        };
        if let (Some(content), Some(kept)) = (&found, &mut self.kept) {
            kept.push(content.clone());
        }
        Ok(found)
    }

    fn receive(&mut self, most: usize, buffers: &mut Buffers) -> io::Result<Option<Bytes>> {
        let Plug::Connected(socket, _) = &self.plug else {
            return Ok(None);
        };
        let most = most.min(READ_BYTES);
        let buffer = buffers.next();
        let count = match socket.recv(&mut buffer.spare_capacity_mut()[..most]) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        };
        // SAFETY: so many bytes of the spare capacity were just written.
        unsafe { buffer.set_len(count) };
        // What comes later is told anew; an end that was told already is not.
        self.is_readable = count == most || self.is_closing;
        Ok(Some(buffers.take()))
    }

    /// Write bytes of the peer, or keep what the connection does not take; returns how many left.
    pub fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        let mut left = 0;
        if self.unwritten.is_empty()
            && !self.is_unanswered()
            && let Plug::Connected(socket, _) = &self.plug
        {
            left = put(socket, content, &mut self.is_writable)?;
        }
        let rest = &content[left..];
        if !rest.is_empty() {
            match self.unwritten.back_mut() {
                Some(last) if last.len() < JOINED => last.extend_from_slice(rest),
                _ => self.unwritten.push_back(rest.to_vec()),
            }
        }
        Ok(left)
    }

    /// Write what was kept, and end the direction behind it if the peer has; returns how many
    /// bytes left.
    pub fn flush(&mut self) -> io::Result<usize> {
        let Plug::Connected(socket, _) = &self.plug else {
            return Ok(0);
        };
        if self.is_unanswered() {
            return Ok(0);
        }
        let mut left = 0;
        while let Some(first) = self.unwritten.front()
            && self.is_writable
        {
            let count = put(socket, &first[self.written..], &mut self.is_writable)?;
            left += count;
            self.written += count;
            if self.written == first.len() {
                self.unwritten.pop_front();
                self.written = 0;
            }
        }
        if self.peer_finished && self.unwritten.is_empty() && !self.is_shut {
            self.is_shut = true;
            // It fails where the connection has been reset, which reading tells.
            let _ = socket.shutdown(Shutdown::Write);
        }
        Ok(left)
    }

    /// Have the connection dropped with RST when it is closed, not with an end of file.
    pub fn abort(&self) {
        if let Plug::Connected(socket, _) = &self.plug {
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    }
}

/// Write what the kernel takes.
fn put(socket: &Socket, content: &[u8], is_writable: &mut bool) -> io::Result<usize> {
    let mut left = 0;
    while *is_writable && left < content.len() {
        match (&*socket).write(&content[left..]) {
            Ok(count) => left += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => *is_writable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(left)
}
