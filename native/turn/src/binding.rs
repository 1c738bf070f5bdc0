//! One's own address, as a STUN server sees it (RFC 8489).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use turn_client_proto::stun::agent::{StunAgent, StunAgentPollRet};
use turn_client_proto::stun::types::TransportType;
use turn_client_proto::stun::types::attribute::XorMappedAddress;
use turn_client_proto::stun::types::message::{
    BINDING, Message, MessageClass, MessageWrite, MessageWriteVec, TransactionId,
};
use turn_client_proto::stun::types::prelude::*;

use crate::clock::Clock;

/// How often the server is asked again, so that a NAT keeps the mapping (RFC 8445, section 11).
const KEPT_FOR: Duration = Duration::from_secs(15);

/// A server that is asked from one UDP socket.
#[derive(Debug)]
pub struct Binding {
    agent: StunAgent,
    server: SocketAddr,
    clock: Clock,
    pending: Option<TransactionId>,
    outgoing: Option<Vec<u8>>,
    mapped: Option<SocketAddr>,
    has_failed: bool,
    due: Instant,
}

impl Binding {
    /// Ask `server` from the socket that is bound to `local`.
    pub fn new(local: SocketAddr, server: SocketAddr, now: Instant) -> Self {
        let mut binding = Binding {
            agent: StunAgent::builder(TransportType::Udp, local)
                .remote_addr(server)
                .build(),
            server,
            clock: Clock::new(now),
            pending: None,
            outgoing: None,
            mapped: None,
            has_failed: false,
            due: now,
        };
        binding.advance(now);
        binding
    }

    /// Return the server.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Return what the server saw last.
    pub fn mapped(&self) -> Option<SocketAddr> {
        self.mapped
    }

    /// Say whether a request has been given up, after 40 seconds without an answer, or refused.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Return when `advance` is due.
    pub fn deadline(&self) -> Instant {
        self.due
    }

    /// Take what the socket received from the server; say whether it was an answer to this.
    pub fn receive(&mut self, content: &[u8], now: Instant) -> bool {
        let Ok(message) = Message::from_bytes(content) else {
            return false;
        };
        let counted = self.clock.count(now);
        if Some(message.transaction_id()) != self.pending
            || !self
                .agent
                .handle_stun_message_with_time(&message, self.server, counted)
        {
            return false;
        }
        self.pending = None;
        self.due = now + KEPT_FOR;
        match message.attribute::<XorMappedAddress>() {
            Ok(mapped) if message.has_class(MessageClass::Success) => {
                self.mapped = Some(mapped.addr(message.transaction_id()));
            }
            _ => self.has_failed = true,
        }
        true
    }

    /// Return the next datagram for the server.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let counted = self.clock.count(now);
        self.outgoing.take().or_else(|| {
            let again = self.agent.poll_transmit(counted)?;
            Some(again.data.to_vec())
        })
    }

    /// Do what is due.
    pub fn advance(&mut self, now: Instant) {
        let counted = self.clock.count(now);
        if self.pending.is_none() && self.due <= now {
            let request = Message::builder_request(BINDING, MessageWriteVec::new());
            self.pending = Some(request.transaction_id());
            let request = request.finish();
            if let Ok(first) = self.agent.send_request(&request, self.server, counted) {
                self.outgoing = Some(first.data.to_vec());
            }
        }
        if self.pending.is_none() {
            return;
        }
        match self.agent.poll(counted) {
            StunAgentPollRet::WaitUntil(counted) => self.due = self.clock.moment(counted),
            _ => {
                self.pending = None;
                self.has_failed = true;
                self.due = now + KEPT_FOR;
            }
        }
    }
}
