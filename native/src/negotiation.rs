//! Offers, answers, restarts and candidates of one connection.
//!
//! Candidates of the peer may come before the description that they belong to, after it, twice,
//! and after a restart that makes them void: each is kept until its generation is known, by its
//! username fragment (RFC 8838, RFC 8839).

use std::net::SocketAddr;
use std::time::Instant;

use str0m::change::{SdpAnswer, SdpOffer, SdpPendingOffer};
use str0m::{Candidate, CandidateKind};

use crate::channels::Channels;
use crate::connection::Connection;
use crate::description::{
    candidate_of, candidate_ufrag, candidate_value, parts, ufrag, with_candidates,
};
use crate::engine::Outside;
use crate::events::{Event, State};
use crate::gathering::host_addresses;
use crate::sockets::Socket;

/// Candidates of the peer that are kept until their description comes; later ones are dropped.
/// RFC 8445, section 6.1.2.5: a checklist of 100 pairs is what an agent need take.
const MOST_EARLY: usize = 100;

/// Why a step of the negotiation was not taken; the connection is as it was.
#[derive(Debug)]
pub enum Refused {
    /// The description or candidate is not understood.
    Invalid(String),
    /// It cannot be done now.
    OutOfPlace(&'static str),
}

/// What a connection remembers of its negotiation.
#[derive(Default)]
pub struct Negotiation {
    pending: Option<SdpPendingOffer>,
    /// The last description of this side, without candidates.
    local: String,
    /// The lines of this side's candidates, without a username fragment.
    candidates: Vec<String>,
    has_gathered: bool,
    remote_ufrag: Option<String>,
    early: Vec<String>,
    pub peer_has_ended: bool,
    pub peer_has_candidates: bool,
}

impl Connection {
    /// Return the first offer, without candidates: they follow as events.
    pub fn offer(&mut self, outside: &mut Outside<'_>) -> Result<String, Refused> {
        if !self.negotiation.local.is_empty() {
            return Err(Refused::OutOfPlace(
                "An offer or an answer was made before.",
            ));
        }
        let mut changes = self.rtc.sdp_api();
        changes.add_channel_with_config(Channels::keeper());
        let (offer, pending) = changes.apply().expect("a channel is a change");
        Ok(self.offered(offer, pending, outside))
    }

    /// Return an offer that restarts ICE; a working path is used until the next one works.
    pub fn restart(&mut self, outside: &mut Outside<'_>) -> Result<String, Refused> {
        if self.negotiation.remote_ufrag.is_none() {
            return Err(Refused::OutOfPlace("Nothing has been negotiated yet."));
        }
        let mut changes = self.rtc.sdp_api();
        changes.ice_restart(true);
        let (offer, pending) = changes.apply().expect("a restart is a change");
        Ok(self.offered(offer, pending, outside))
    }

    fn offered(
        &mut self,
        offer: SdpOffer,
        pending: SdpPendingOffer,
        outside: &mut Outside<'_>,
    ) -> String {
        self.negotiation.pending = Some(pending);
        self.described(&offer.to_sdp_string(), outside)
    }

    /// Return the answer to an offer, the first or one that restarts ICE.
    ///
    /// An offer of this side that waits for its answer is taken back.
    pub fn answer(&mut self, offer: &str, outside: &mut Outside<'_>) -> Result<String, Refused> {
        let found = parts(offer);
        let parsed = SdpOffer::from_sdp_string(&found.sdp)
            .map_err(|error| Refused::Invalid(error.to_string()))?;
        let answer = self
            .rtc
            .sdp_api()
            .accept_offer(parsed)
            .map_err(|error| Refused::Invalid(error.to_string()))?;
        self.negotiation.pending = None;
        self.take_remote(offer, found.candidates, found.is_complete);
        Ok(self.described(&answer.to_sdp_string(), outside))
    }

    /// Take the answer to this side's last offer; say whether one was waited for.
    pub fn accept_answer(&mut self, answer: &str) -> Result<bool, Refused> {
        if self.negotiation.pending.is_none() {
            return Ok(false);
        }
        let found = parts(answer);
        let parsed = SdpAnswer::from_sdp_string(&found.sdp)
            .map_err(|error| Refused::Invalid(error.to_string()))?;
        let pending = self.negotiation.pending.take().expect("seen above");
        self.rtc
            .sdp_api()
            .accept_answer(pending, parsed)
            .map_err(|error| Refused::Invalid(error.to_string()))?;
        self.take_remote(answer, found.candidates, found.is_complete);
        Ok(true)
    }

    /// Take a candidate of the peer, at any time; again changes nothing.
    pub fn add_candidate(&mut self, line: &str) {
        let line = candidate_value(line);
        let negotiation = &mut self.negotiation;
        let is_known = match candidate_ufrag(line) {
            Some(found) => negotiation.remote_ufrag.as_deref() == Some(found),
            None => negotiation.remote_ufrag.is_some(),
        };
        let may_be_next = candidate_ufrag(line).is_none() && negotiation.pending.is_some();
        if (!is_known || may_be_next) && negotiation.early.len() < MOST_EARLY {
            negotiation.early.push(line.to_owned());
        }
        if is_known {
            self.add_known_candidate(line);
        }
    }

    /// Note that the peer has no more candidates.
    pub fn end_of_candidates(&mut self) {
        self.negotiation.peer_has_ended = true;
    }

    /// Return this side's last description with the candidates that are known; complete once
    /// they all are.
    pub fn description(&self) -> String {
        let negotiation = &self.negotiation;
        let lines = negotiation.own_candidates();
        with_candidates(&negotiation.local, &lines, negotiation.has_gathered)
    }

    fn described(&mut self, sdp: &str, outside: &mut Outside<'_>) -> String {
        self.negotiation.local = parts(sdp).sdp;
        self.gather(outside);
        self.negotiation.local.clone()
    }

    /// Bind a socket for each address that has none yet, ask the servers, and say the candidates
    /// that are known: those of hosts at once, the others as servers answer.
    fn gather(&mut self, outside: &mut Outside<'_>) {
        let found = match outside.addresses {
            Some(addresses) => addresses.to_vec(),
            None => host_addresses().unwrap_or_default(),
        };
        for address in found {
            let mut sockets = self.sockets.iter();
            let has_socket = sockets.any(|socket| socket.address.ip() == address);
            if has_socket && !self.gathering.is_stale(address, &self.sockets) {
                continue;
            }
            let idle = self.gathering.take_idle(address, &self.sockets);
            let index = idle.unwrap_or(self.sockets.len());
            let token = outside.tokens.assign(self.id, index);
            // An address that cannot be bound, such as ::1 without IPv6, is left out.
            let Ok(socket) = Socket::bind(address, outside.registry, token) else {
                continue;
            };
            if !self.is_relay_only
                && !has_socket
                && let Ok(candidate) = Candidate::host(socket.address, "udp")
            {
                self.add_own_candidate(candidate);
            }
            match idle {
                Some(index) => self.sockets[index] = socket,
                None => self.sockets.push(socket),
            }
        }
        self.negotiation.has_gathered = false;
        for line in self.negotiation.own_candidates() {
            self.events.push(Event::Candidate(line));
        }
        let now = Instant::now();
        self.gathering.ask(&self.sockets, now);
        self.advance_gathering(now);
    }

    /// Ask servers what is due, say the candidates that they gave, and when there are no more.
    pub fn advance_gathering(&mut self, now: Instant) {
        let (found, lost) = self.gathering.advance(&mut self.sockets, now);
        for candidate in found {
            let is_relayed = candidate.kind() == CandidateKind::Relayed;
            if (is_relayed || !self.is_relay_only)
                && let Some(line) = self.add_own_candidate(candidate)
                && !self.negotiation.has_gathered
                && let Some(own) = ufrag(&self.negotiation.local)
            {
                self.events.push(Event::Candidate(candidate_of(&line, own)));
            }
        }
        for address in lost {
            self.negotiation.forget(address);
        }
        let negotiation = &mut self.negotiation;
        let is_due = !negotiation.local.is_empty() && !negotiation.has_gathered;
        if is_due && self.gathering.has_ended(now) {
            negotiation.has_gathered = true;
            self.events.push(Event::Gathered);
        }
    }

    fn add_own_candidate(&mut self, candidate: Candidate) -> Option<String> {
        let line = self.rtc.add_local_candidate(candidate)?.to_sdp_string();
        self.negotiation.candidates.push(line.clone());
        Some(line)
    }

    fn take_remote(&mut self, sdp: &str, candidates: Vec<String>, is_complete: bool) {
        let negotiation = &mut self.negotiation;
        let found = ufrag(sdp).map(str::to_owned);
        if negotiation.remote_ufrag != found {
            negotiation.peer_has_ended = false;
            negotiation.peer_has_candidates = false;
        }
        negotiation.remote_ufrag = found;
        negotiation.peer_has_ended |= is_complete;
        let early = std::mem::take(&mut negotiation.early);
        for line in candidates.iter().chain(&early) {
            let belongs = candidate_ufrag(line)
                .is_none_or(|found| self.negotiation.remote_ufrag.as_deref() == Some(found));
            if belongs {
                self.add_known_candidate(line);
            }
        }
        if self.state == State::Failed {
            self.resume();
        }
    }

    /// Give str0m a candidate; one that it does not know or cannot use is skipped.
    fn add_known_candidate(&mut self, line: &str) {
        if let Ok(candidate) = Candidate::from_sdp_string(line)
            && candidate.proto() == str0m::net::Protocol::Udp
        {
            self.negotiation.peer_has_candidates = true;
            self.rtc.add_remote_candidate(candidate);
        }
    }
}

impl Negotiation {
    /// Say whether gathering has ended without any candidate.
    pub fn is_without_candidates(&self) -> bool {
        self.has_gathered && self.candidates.is_empty()
    }

    /// Leave a relayed candidate that works no more out of later descriptions.
    fn forget(&mut self, relayed: SocketAddr) {
        let (ip, port) = (relayed.ip().to_string(), relayed.port().to_string());
        self.candidates.retain(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words.get(4..6) != Some(&[ip.as_str(), port.as_str()])
        });
    }

    fn own_candidates(&self) -> Vec<String> {
        let Some(own) = ufrag(&self.local) else {
            return Vec::new();
        };
        self.candidates
            .iter()
            .map(|line| candidate_of(line, own))
            .collect()
    }
}
