//! Connections whose clients have not said yet where they want to: SOCKS5 (RFC 1928).

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::time::Instant;

use fairlead_tunnel::socks5::{Outcome, Socks5Server};
use mio::Token;
use socket2::Socket;

use super::buffers::{Buffers, READ_BYTES};

/// One of them, with the listener that it was made to; it is dropped when `until` has passed.
pub struct SocksClient {
    pub socket: Socket,
    pub token: Token,
    pub listener: u32,
    pub server: Socks5Server,
    pub until: Instant,
    /// Whether the kernel has told of the end behind what is to be read.
    pub is_closing: bool,
}

impl SocksClient {
    /// Read and answer what has come; None: more has to come. An end before that is an error.
    fn read(&mut self, buffers: &mut Buffers) -> io::Result<Option<Outcome>> {
        loop {
            let buffer = buffers.next();
            let count = match self
                .socket
                .recv(&mut buffer.spare_capacity_mut()[..READ_BYTES])
            {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            // SAFETY: so many bytes of the spare capacity were just written.
            unsafe { buffer.set_len(count) };
            let outcome = self.server.receive(buffer);
            let outgoing = self.server.take_outgoing();
            // So few bytes fit where nothing was written before, unless nobody reads them.
            if !outgoing.is_empty() && (&self.socket).write(&outgoing)? < outgoing.len() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // What comes later is told anew; an end that was told already is not.
            if outcome.is_some() || (count < READ_BYTES && !self.is_closing) {
                return Ok(outcome);
            }
        }
    }
}

/// All of a tunnel, by numbers of their own.
#[derive(Default)]
pub struct SocksClients {
    all: HashMap<u32, SocksClient>,
    due: BTreeSet<(Instant, u32)>,
    readable: Vec<u32>,
    next: u32,
}

impl SocksClients {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Return the number of the one that comes next.
    pub fn next(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// Have one, which is read soon.
    pub fn add(&mut self, number: u32, client: SocksClient) {
        self.due.insert((client.until, number));
        self.all.insert(number, client);
        self.readable.push(number);
    }

    /// Have one no more.
    pub fn remove(&mut self, number: u32) -> Option<SocksClient> {
        let client = self.all.remove(&number)?;
        self.due.remove(&(client.until, number));
        Some(client)
    }

    /// Note what the kernel says of a connection.
    pub fn is_ready(&mut self, number: u32, is_readable: bool, is_closing: bool) {
        if let Some(client) = self.all.get_mut(&number) {
            client.is_closing |= is_closing;
            if is_readable {
                self.readable.push(number);
            }
        }
    }

    /// Read what has come; returns whose handshakes have ended, an error as much as an outcome.
    pub fn read(&mut self, buffers: &mut Buffers) -> Vec<(u32, io::Result<Outcome>)> {
        let mut ended = Vec::new();
        for number in std::mem::take(&mut self.readable) {
            if let Some(client) = self.all.get_mut(&number)
                && let Some(outcome) = client.read(buffers).transpose()
            {
                ended.push((number, outcome));
            }
        }
        ended
    }

    /// Return those that were made to a listener, or all.
    pub fn made_to(&self, listener: Option<u32>) -> Vec<u32> {
        let is_meant = |client: &SocksClient| listener.is_none_or(|it| it == client.listener);
        let meant = self.all.iter().filter(|(_, client)| is_meant(client));
        meant.map(|(number, _)| *number).collect()
    }

    /// Return when the first of them is dropped.
    pub fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Return one that has taken too long.
    pub fn overdue(&self, now: Instant) -> Option<u32> {
        let (until, number) = *self.due.first()?;
        (until <= now).then_some(number)
    }
}
