//! One allocation on a TURN server (RFC 8656), and the datagrams through it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use turn_client_proto::api::{TurnClientApi, TurnConfig, TurnEvent, TurnPollRet, TurnRecvRet};
use turn_client_proto::client::TurnClient;
use turn_client_proto::stun::agent::Transmit;
use turn_client_proto::stun::types::TransportType;
use turn_client_proto::stun::types::attribute::ErrorCode;
use turn_client_proto::stun::types::message::{Message, MessageClass, TransactionId};
use turn_client_proto::tcp::TurnClientTcp;
use turn_client_proto::types::prelude::DelayedTransmitBuild;
use turn_client_proto::types::{AddressFamily, TurnCredentials};
use turn_client_proto::udp::TurnClientUdp;

use crate::clock::Clock;

/// Datagrams that wait until their peer is permitted; later ones are dropped, as a network would.
const MOST_HELD: usize = 32;
/// Peers that get so many datagrams get a channel, whose header is 4 bytes and not 36; checks of
/// connectivity alone do not make as many.
const CHANNEL_AFTER: u32 = 8;
/// Turns of one `advance`: what is due at once is done at once.
const MOST_TURNS: usize = 8;

/// A TURN server, with a credential for one allocation.
#[derive(Debug, Clone)]
pub struct TurnServer {
    pub address: SocketAddr,
    pub username: String,
    pub credential: String,
}

/// How the server is reached; what it relays are datagrams either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayTransport {
    Udp,
    Tcp,
}

/// What became of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayEvent {
    /// The server relays at this address.
    Allocated(SocketAddr),
    /// There will be no allocation: the server's last error (401, 486, 508, …), or no answer.
    Failed(Option<u16>),
    /// The allocation has ended without having been given back.
    Lost,
}

/// An allocation: it is refreshed until it is given back, also with a credential that has ended.
#[derive(Debug)]
pub struct Relay {
    client: TurnClient,
    username: String,
    clock: Clock,
    relayed: Option<SocketAddr>,
    error: Option<u16>,
    challenge: Option<TransactionId>,
    outgoing: VecDeque<Vec<u8>>,
    events: VecDeque<RelayEvent>,
    held: VecDeque<(SocketAddr, Vec<u8>)>,
    sent: HashMap<SocketAddr, u32>,
    forbidden: HashSet<IpAddr>,
    due: Instant,
    is_given_back: bool,
    is_over: bool,
}

impl Relay {
    /// Ask `server` for an allocation of its own address family, from the socket or connection
    /// whose address is `local`.
    pub fn new(
        local: SocketAddr,
        server: &TurnServer,
        transport: RelayTransport,
        now: Instant,
    ) -> Self {
        let credentials = TurnCredentials::new(&server.username, &server.credential);
        let mut config = TurnConfig::new(credentials);
        config.set_address_family(match server.address {
            SocketAddr::V4(_) => AddressFamily::IPV4,
            SocketAddr::V6(_) => AddressFamily::IPV6,
        });
        let client = match transport {
            RelayTransport::Udp => TurnClientUdp::allocate(local, server.address, config).into(),
            RelayTransport::Tcp => TurnClientTcp::allocate(local, server.address, config).into(),
        };
        let mut relay = Relay {
            client,
            username: server.username.clone(),
            clock: Clock::new(now),
            relayed: None,
            error: None,
            challenge: None,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            held: VecDeque::new(),
            sent: HashMap::new(),
            forbidden: HashSet::new(),
            due: now,
            is_given_back: false,
            is_over: false,
        };
        relay.advance(now);
        relay
    }

    /// Say whether `poll_transmit` has nothing.
    pub fn is_quiet(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Return the server.
    pub fn server(&self) -> SocketAddr {
        self.client.remote_addr()
    }

    /// Say whether it was asked for with this name.
    pub fn is_of(&self, username: &str) -> bool {
        self.username == username
    }

    /// Return where the server relays, while it does.
    pub fn relayed(&self) -> Option<SocketAddr> {
        self.relayed
    }

    /// Say whether the server has neither allocated nor refused yet.
    pub fn is_asking(&self) -> bool {
        self.relayed.is_none() && !self.is_over
    }

    /// Say whether nothing more will come of it.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Return when `advance` is due.
    pub fn deadline(&self) -> Instant {
        self.due
    }

    /// Take what came from the server, over TCP in any pieces; say whether it was for this
    /// allocation. `arrived` gets what peers sent, and who.
    pub fn receive(
        &mut self,
        content: &[u8],
        now: Instant,
        mut arrived: impl FnMut(SocketAddr, &[u8]),
    ) -> bool {
        // To the client the end of a stream is a piece of it without bytes.
        if content.is_empty() {
            return false;
        }
        self.note_error(content);
        let counted = self.clock.count(now);
        let (server, local) = (self.client.remote_addr(), self.client.local_addr());
        let piece = Transmit::new(content, self.client.transport(), server, local);
        match self.client.recv(piece, counted) {
            // The client waits for a signed answer, which a server that does not know the
            // credential cannot give.
            TurnRecvRet::Ignored(_)
                if self.relayed.is_none() && self.error == Some(ErrorCode::UNAUTHORIZED) =>
            {
                self.end(self.error);
            }
            TurnRecvRet::Ignored(_) => return false,
            TurnRecvRet::PeerData(found) => arrived(found.peer, found.data()),
            _ => {}
        }
        while let Some(found) = self.client.poll_recv(counted) {
            arrived(found.peer, found.data());
        }
        self.advance(now);
        true
    }

    /// Send a datagram to `peer` through the relay, once the server permits that; what cannot be
    /// sent is lost.
    pub fn send(&mut self, peer: SocketAddr, content: &[u8], now: Instant) {
        if self.relayed.is_none() || self.forbidden.contains(&peer.ip()) {
            return;
        }
        let counted = self.clock.count(now);
        if !self.client.have_permission(TransportType::Udp, peer.ip()) {
            if self.held.len() < MOST_HELD {
                self.held.push_back((peer, content.to_vec()));
            }
            // An error says that it is being asked for already.
            let _ = self
                .client
                .create_permission(TransportType::Udp, peer.ip(), counted);
            self.advance(now);
            return;
        }
        let sent = self.sent.entry(peer).or_default();
        *sent = sent.saturating_add(1);
        // Over TCP messages of channels are padded (RFC 8656, section 12.5), and the client does not.
        let may_bind = self.client.transport() == TransportType::Udp;
        if may_bind && *sent >= CHANNEL_AFTER && sent.is_power_of_two() {
            // An error says that there is one, or that one has ended lately: indications do.
            let _ = self.client.bind_channel(TransportType::Udp, peer, counted);
            self.advance(now);
        }
        let sending = self
            .client
            .send_to(TransportType::Udp, peer, content, counted);
        if let Ok(Some(transmit)) = sending {
            self.outgoing.push_back(transmit.data.build());
        }
    }

    /// Give the allocation back. The server frees it at the next answer, or when it would have
    /// been refreshed: nobody has to wait for that.
    pub fn close(&mut self, now: Instant) {
        self.is_given_back = true;
        if self.client.delete(self.clock.count(now)).is_err() {
            self.end(None);
        }
        self.advance(now);
    }

    /// Note that the connection to the server has ended.
    pub fn disconnected(&mut self) {
        self.client.protocol_error();
        self.end(None);
    }

    /// Return the next bytes for the server: a datagram, or what goes on in the stream.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }

    /// Return what has become of it since.
    pub fn poll_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    /// Do what is due.
    pub fn advance(&mut self, now: Instant) {
        let counted = self.clock.count(now);
        for _ in 0..MOST_TURNS {
            if self.is_over {
                return;
            }
            let next = self.client.poll(counted);
            while let Some(transmit) = self.client.poll_transmit(counted) {
                self.outgoing.push_back(transmit.data.to_vec());
            }
            while let Some(event) = self.client.poll_event() {
                self.take(event, now);
            }
            match next {
                TurnPollRet::WaitUntil(due) if due > counted => {
                    self.due = self.clock.moment(due);
                    break;
                }
                // Were it due for ever, its driver would spin.
                TurnPollRet::WaitUntil(_) => self.due = now + Duration::from_millis(1),
                TurnPollRet::Closed => self.end(self.error),
                // Those are of allocations that relay TCP, which are not asked for.
                TurnPollRet::AllocateTcpSocket { .. } | TurnPollRet::TcpClose { .. } => {}
            }
        }
        if self.relayed.is_some() && self.client.relayed_addresses().next().is_none() {
            self.end(None);
        }
    }

    fn take(&mut self, event: TurnEvent, now: Instant) {
        match event {
            TurnEvent::AllocationCreated(_, address) => {
                self.relayed = Some(address);
                self.events.push_back(RelayEvent::Allocated(address));
            }
            TurnEvent::AllocationCreateFailed(_) => self.end(self.error),
            TurnEvent::PermissionCreated(_, address) => {
                let held = std::mem::take(&mut self.held);
                for (peer, content) in held {
                    if peer.ip() == address {
                        self.send(peer, &content, now);
                    } else {
                        self.held.push_back((peer, content));
                    }
                }
            }
            TurnEvent::PermissionCreateFailed(_, address) => {
                self.held.retain(|(peer, _)| peer.ip() != address);
                if self.error == Some(ErrorCode::FORBIDDEN) {
                    self.forbidden.insert(address);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, error: Option<u16>) {
        if !self.is_over {
            self.is_over = true;
            self.held.clear();
            let event = match self.relayed.take() {
                Some(_) => RelayEvent::Lost,
                None => RelayEvent::Failed(error),
            };
            if !self.is_given_back {
                self.events.push_back(event);
            }
        }
    }

    /// Remember the error of an answer, which the client does not pass on.
    fn note_error(&mut self, content: &[u8]) {
        if let Ok(message) = Message::from_bytes(content)
            && message.has_class(MessageClass::Error)
            && let Ok(error) = message.attribute::<ErrorCode>()
        {
            self.error = match error.code() {
                // The first request has no credential: its refusal, which may come more than once,
                // brings the realm (RFC 8489, section 9.2.4).
                ErrorCode::UNAUTHORIZED => {
                    let challenge = *self.challenge.get_or_insert(message.transaction_id());
                    (challenge != message.transaction_id()).then_some(error.code())
                }
                ErrorCode::STALE_NONCE => None,
                code => Some(code),
            };
        }
    }
}
