//! The STUN and TURN servers of one UDP socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use crate::binding::Binding;
use crate::relay::{Relay, RelayEvent, RelayTransport, TurnServer};

/// A datagram for the socket to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    pub destination: SocketAddr,
    pub content: Vec<u8>,
}

/// What gathering has found (RFC 8445, section 5.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatherEvent {
    /// A NAT gives the socket this address: a server-reflexive candidate, once for each address.
    Reflexive(SocketAddr),
    /// A server relays at this address: a relayed candidate.
    Relayed(SocketAddr),
    /// The relayed candidate at this address works no more.
    RelayLost(SocketAddr),
    /// A server gave nothing: its last error, or no answer.
    ServerFailed(SocketAddr, Option<u16>),
    /// Every server has given something, or nothing; once.
    Ended,
}

/// The servers that are asked from one UDP socket, and the relays among them.
#[derive(Debug)]
pub struct Gatherer {
    local: SocketAddr,
    bindings: Vec<(Binding, bool)>,
    relays: Vec<(Relay, Option<SocketAddr>)>,
    reflexive: Vec<SocketAddr>,
    events: VecDeque<GatherEvent>,
    has_ended: bool,
}

impl Gatherer {
    /// Gather for the socket that is bound to `local`: servers of another address family are left
    /// out.
    pub fn new(
        local: SocketAddr,
        stun_servers: &[SocketAddr],
        turn_servers: &[TurnServer],
        now: Instant,
    ) -> Self {
        let is_reached = |server: &SocketAddr| server.is_ipv4() == local.is_ipv4();
        let mut gatherer = Gatherer {
            local,
            bindings: stun_servers
                .iter()
                .filter(|server| is_reached(server))
                .map(|&server| (Binding::new(local, server, now), false))
                .collect(),
            relays: turn_servers
                .iter()
                .filter(|server| is_reached(&server.address))
                .map(|server| (Relay::new(local, server, RelayTransport::Udp, now), None))
                .collect(),
            reflexive: Vec::new(),
            events: VecDeque::new(),
            has_ended: false,
        };
        gatherer.look();
        gatherer
    }

    /// Return when `advance` is due, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        let bindings = self.bindings.iter().map(|(binding, _)| binding.deadline());
        let relays = self.relays.iter().map(|(relay, _)| relay.deadline());
        bindings.chain(relays).min()
    }

    /// Take a datagram that the socket received; say whether it was from one of the servers, and
    /// for this. `arrived` gets where it was relayed, who sent it, and what.
    pub fn receive(
        &mut self,
        source: SocketAddr,
        content: &[u8],
        now: Instant,
        mut arrived: impl FnMut(SocketAddr, SocketAddr, &[u8]),
    ) -> bool {
        let mut was_ours = false;
        for (relay, _) in &mut self.relays {
            if !was_ours && relay.server() == source {
                let relayed = relay.relayed();
                was_ours = relay.receive(content, now, |peer, bytes| {
                    if let Some(relayed) = relayed {
                        arrived(relayed, peer, bytes);
                    }
                });
            }
        }
        for (binding, _) in &mut self.bindings {
            was_ours = was_ours || binding.server() == source && binding.receive(content, now);
        }
        if was_ours {
            self.look();
        }
        was_ours
    }

    /// Say whether `server` relays for this socket, or is being asked to by this name.
    pub fn is_relaying(&self, server: &TurnServer) -> bool {
        let mut relays = self.relays.iter().map(|(relay, _)| relay);
        relays.any(|relay| {
            let is_asked = !relay.is_over() && relay.is_of(&server.username);
            relay.server() == server.address && (is_asked || relay.relayed().is_some())
        })
    }

    /// Say whether any server relays for this socket.
    pub fn has_relay(&self) -> bool {
        let mut relays = self.relays.iter();
        relays.any(|(relay, _)| relay.relayed().is_some())
    }

    /// Send a datagram from a relayed candidate; say whether `relayed` is one.
    pub fn send(
        &mut self,
        relayed: SocketAddr,
        peer: SocketAddr,
        content: &[u8],
        now: Instant,
    ) -> bool {
        let found = self
            .relays
            .iter_mut()
            .find(|(relay, _)| relay.relayed() == Some(relayed));
        if let Some((relay, _)) = found {
            relay.send(peer, content, now);
            return true;
        }
        false
    }

    /// Return the next datagram to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        for (relay, _) in &mut self.relays {
            if let Some(content) = relay.poll_transmit() {
                let destination = relay.server();
                return Some(Transmit {
                    destination,
                    content,
                });
            }
        }
        for (binding, _) in &mut self.bindings {
            if let Some(content) = binding.poll_transmit(now) {
                let destination = binding.server();
                return Some(Transmit {
                    destination,
                    content,
                });
            }
        }
        None
    }

    /// Return what has been found since.
    pub fn poll_event(&mut self) -> Option<GatherEvent> {
        self.events.pop_front()
    }

    /// Do what is due.
    pub fn advance(&mut self, now: Instant) {
        for (binding, _) in &mut self.bindings {
            if binding.deadline() <= now {
                binding.advance(now);
            }
        }
        for (relay, _) in &mut self.relays {
            if relay.deadline() <= now {
                relay.advance(now);
            }
        }
        self.look();
    }

    /// Give the allocations back and ask no server any more.
    pub fn close(&mut self, now: Instant) {
        self.bindings.clear();
        for (relay, _) in &mut self.relays {
            relay.close(now);
        }
    }

    /// Note what the servers have said.
    fn look(&mut self) {
        for (binding, is_known) in &mut self.bindings {
            if let Some(mapped) = binding.mapped() {
                *is_known = true;
                // Without a NAT it is the host candidate once more (RFC 8445, section 5.1.3).
                if mapped != self.local && !self.reflexive.contains(&mapped) {
                    self.reflexive.push(mapped);
                    self.events.push_back(GatherEvent::Reflexive(mapped));
                }
            } else if binding.has_failed() && !*is_known {
                *is_known = true;
                self.events
                    .push_back(GatherEvent::ServerFailed(binding.server(), None));
            }
        }
        for (relay, address) in &mut self.relays {
            while let Some(event) = relay.poll_event() {
                self.events.push_back(match event {
                    RelayEvent::Allocated(relayed) => {
                        *address = Some(relayed);
                        GatherEvent::Relayed(relayed)
                    }
                    RelayEvent::Failed(error) => GatherEvent::ServerFailed(relay.server(), error),
                    RelayEvent::Lost => {
                        GatherEvent::RelayLost(address.take().unwrap_or(relay.server()))
                    }
                });
            }
        }
        self.relays
            .retain(|(relay, _)| !(relay.is_over() && relay.is_quiet()));
        let is_waiting = self.bindings.iter().any(|(_, is_known)| !is_known)
            || self.relays.iter().any(|(relay, _)| relay.is_asking());
        if !is_waiting && !self.has_ended {
            self.has_ended = true;
            self.events.push_back(GatherEvent::Ended);
        }
    }
}
