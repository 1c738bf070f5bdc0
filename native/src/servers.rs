//! The STUN and TURN servers of one connection: which are asked from which socket, and when that
//! has ended.
//!
//! An allocation belongs to a socket and a server (RFC 8656, section 3.3), so that a relay that
//! works stays when servers are given anew. What gave nothing or was lost is asked again from a
//! fresh socket: coturn holds a socket to the first name that it gave.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use fairlead_turn::{GatherEvent, Gatherer, TurnServer};
use str0m::Candidate;

use crate::sockets::Socket;

/// How long gathering takes at most; what is found later belongs to the next description.
const PATIENCE: Duration = Duration::from_secs(4);

/// Servers, with addresses that are known.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    pub stun: Vec<SocketAddr>,
    pub turn: Vec<TurnServer>,
}

/// What servers say to the sockets of a connection.
#[derive(Default)]
pub struct Gathering {
    servers: Servers,
    is_new: bool,
    asked: Vec<Asked>,
    until: Option<Instant>,
}

struct Asked {
    socket: usize,
    gatherer: Gatherer,
    has_ended: bool,
}

/// A datagram that came through a relay: where it was relayed, who sent it, and what.
pub type Relayed = (SocketAddr, SocketAddr, Vec<u8>);

impl Gathering {
    /// Ask these servers when candidates are gathered next.
    pub fn give(&mut self, servers: Servers) {
        self.servers = servers;
        self.is_new = true;
    }

    /// Say whether an address needs a fresh socket to ask the servers that were given since.
    pub fn is_stale(&self, address: IpAddr, sockets: &[Socket]) -> bool {
        self.is_new
            && !self.missing(address, sockets).is_empty()
            && (0..sockets.len())
                .filter(|&index| sockets[index].address.ip() == address)
                .all(|index| self.was_asked(index))
    }

    /// Give up a socket that was bound to ask servers, which gave nothing, and return its index.
    pub fn take_idle(&mut self, address: IpAddr, sockets: &[Socket]) -> Option<usize> {
        let of_address = (0..sockets.len()).filter(|&i| sockets[i].address.ip() == address);
        let idle = of_address.skip(1).find(|&index| {
            let mut asked = self.asked.iter().filter(|asked| asked.socket == index);
            !asked.any(|asked| {
                let mut turn = self.servers.turn.iter();
                asked.gatherer.has_relay() || turn.any(|each| asked.gatherer.is_relaying(each))
            })
        })?;
        self.asked.retain(|asked| asked.socket != idle);
        Some(idle)
    }

    fn was_asked(&self, index: usize) -> bool {
        self.asked.iter().any(|asked| asked.socket == index)
    }

    /// Return the servers that do not relay for any socket of an address.
    fn missing(&self, address: IpAddr, sockets: &[Socket]) -> Vec<TurnServer> {
        let mut turn = self.servers.turn.clone();
        turn.retain(|server| {
            let mut here = self
                .asked
                .iter()
                .filter(|asked| sockets[asked.socket].address.ip() == address);
            server.address.is_ipv4() == address.is_ipv4()
                && !here.any(|asked| asked.gatherer.is_relaying(server))
        });
        turn
    }

    /// Ask the servers that were given since the last time, from each socket.
    pub fn ask(&mut self, sockets: &[Socket], now: Instant) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        for (index, socket) in sockets.iter().enumerate() {
            let ip = socket.address.ip();
            let turn = match self.was_asked(index) {
                true => Vec::new(),
                false => self.missing(ip, sockets),
            };
            let is_first = sockets[..index].iter().all(|each| each.address.ip() != ip);
            let stun: &[SocketAddr] = if is_first { &self.servers.stun } else { &[] };
            let gatherer = Gatherer::new(socket.address, stun, &turn, now);
            self.asked.push(Asked {
                socket: index,
                gatherer,
                has_ended: false,
            });
        }
        self.until = Some(now + PATIENCE);
    }

    /// Say whether every server has given something or nothing, or had its time.
    pub fn has_ended(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now) || self.asked.iter().all(|each| each.has_ended)
    }

    /// Return when `advance` is due, if ever.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let waits = self.until.filter(|_| !self.has_ended(now));
        let each = self
            .asked
            .iter()
            .filter_map(|each| each.gatherer.deadline());
        each.chain(waits).min()
    }

    /// Take what socket `index` received; say whether it was from a server, and for this.
    pub fn receive(
        &mut self,
        index: usize,
        source: SocketAddr,
        datagram: &[u8],
        now: Instant,
        arrived: &mut Vec<Relayed>,
    ) -> bool {
        let mut of_socket = self.asked.iter_mut().filter(|asked| asked.socket == index);
        of_socket.any(|asked| {
            asked
                .gatherer
                .receive(source, datagram, now, |relayed, peer, bytes| {
                    arrived.push((relayed, peer, bytes.to_vec()));
                })
        })
    }

    /// Send a datagram from the relayed candidate at `relayed`; where it is lost by now, so is this.
    pub fn send(
        &mut self,
        sockets: &mut [Socket],
        relayed: SocketAddr,
        peer: SocketAddr,
        content: &[u8],
        now: Instant,
    ) {
        for asked in &mut self.asked {
            if asked.gatherer.send(relayed, peer, content, now) {
                asked.transmit(sockets, now);
                return;
            }
        }
    }

    /// Do what is due, and return the candidates that were found and the relays that were lost.
    pub fn advance(
        &mut self,
        sockets: &mut [Socket],
        now: Instant,
    ) -> (Vec<Candidate>, Vec<SocketAddr>) {
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        for asked in &mut self.asked {
            if asked.gatherer.deadline().is_some_and(|due| due <= now) {
                asked.gatherer.advance(now);
            }
            asked.transmit(sockets, now);
            let base = sockets[asked.socket].address;
            while let Some(event) = asked.gatherer.poll_event() {
                match event {
                    GatherEvent::Reflexive(address) => {
                        found.extend(Candidate::server_reflexive(address, base, "udp").ok());
                    }
                    GatherEvent::Relayed(address) => {
                        found.extend(Candidate::relayed(address, base, "udp").ok());
                    }
                    GatherEvent::RelayLost(address) => lost.push(address),
                    GatherEvent::ServerFailed(..) => {}
                    GatherEvent::Ended => asked.has_ended = true,
                }
            }
        }
        (found, lost)
    }

    /// Give the allocations back.
    pub fn close(&mut self, sockets: &mut [Socket], now: Instant) {
        for asked in &mut self.asked {
            asked.gatherer.close(now);
            asked.transmit(sockets, now);
        }
        self.asked.clear();
    }
}

impl Asked {
    fn transmit(&mut self, sockets: &mut [Socket], now: Instant) {
        while let Some(transmit) = self.gatherer.poll_transmit(now) {
            sockets[self.socket].send(transmit.destination, &transmit.content);
        }
    }
}
