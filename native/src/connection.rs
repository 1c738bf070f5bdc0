//! One connection: str0m without I/O, its sockets, and what becomes of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use str0m::net::{Protocol, Receive};
use str0m::{Event as Happening, IceConnectionState, Input, Output, Rtc, RtcError};

use crate::channels::{Channels, Home};
use crate::engine::Mailbox;
use crate::events::{Event, MOST_UNREAD, Reason, State};
use crate::negotiation::Negotiation;
use crate::servers::Gathering;
use crate::sockets::{Scratch, Socket};

/// System calls that receive in one turn, so that one connection does not starve the others.
const RECEIVES_PER_TURN: usize = 4;
/// How long a socket whose buffer is full is left alone.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// A connection, on the I/O thread.
pub struct Connection {
    pub id: u32,
    pub rtc: Rtc,
    pub sockets: Vec<Socket>,
    pub channels: Channels,
    pub negotiation: Negotiation,
    pub gathering: Gathering,
    /// Whether only relayed candidates are offered and used.
    pub is_relay_only: bool,
    pub state: State,
    /// What Python is to be told.
    pub events: Vec<Event>,
    /// The deadline that the I/O thread keeps for it.
    pub scheduled: Option<Instant>,
    unread: Arc<AtomicUsize>,
    silence: Duration,
    heard: Instant,
    has_path: bool,
    is_secured: bool,
    /// When no pair of candidates worked any more.
    lost: Option<Instant>,
    due: Instant,
    is_over: bool,
}

impl Connection {
    /// Make a connection; nothing is bound and nothing sent before an offer or an answer.
    ///
    /// It fails `silence` after the peer was last heard (RFC 7675: 30 seconds), and is
    /// disconnected after half of that.
    pub fn new(
        id: u32,
        mailbox: Mailbox,
        home: Home,
        silence: Duration,
        is_relay_only: bool,
        now: Instant,
    ) -> Self {
        let mut config = Rtc::builder().clear_codecs().set_snap_enabled(true);
        // How often a path that works is asked for consent: ten times, of which one must succeed.
        config.set_max_stun_rto((silence / 10).min(Duration::from_secs(3)));
        let unread = Arc::new(AtomicUsize::new(0));
        Connection {
            id,
            rtc: config.build(now),
            sockets: Vec::new(),
            channels: Channels::new(id, mailbox, home, unread.clone()),
            negotiation: Negotiation::default(),
            gathering: Gathering::default(),
            is_relay_only,
            state: State::Connecting,
            events: Vec::new(),
            scheduled: None,
            unread,
            silence,
            heard: now,
            has_path: false,
            is_secured: false,
            lost: None,
            due: now,
            is_over: false,
        }
    }

    /// Say whether nothing is left to do for it: its sockets may be freed.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Return when its next turn is due at the latest.
    pub fn deadline(&self) -> Instant {
        let now = Instant::now();
        let is_full = self.sockets.iter().any(Socket::is_full);
        let again = is_full.then_some(now + FULL_PAUSE);
        [self.silence_ends(), self.gathering.deadline(now), again]
            .into_iter()
            .flatten()
            .fold(self.due, Instant::min)
    }

    /// Note what the poll said of a socket.
    pub fn socket_is_ready(&mut self, index: usize, is_readable: bool) {
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.is_readable |= is_readable;
        }
    }

    /// Receive, handle what is due, send; say whether there is more to do at once.
    pub fn turn(&mut self, now: Instant, scratch: &mut Scratch) -> bool {
        let received = self.receive(now, scratch);
        self.advance_gathering(now);
        let result = received.and_then(|()| self.drive(now));
        self.settle(result, now);
        self.is_reading() && self.sockets.iter().any(|socket| socket.is_readable)
    }

    /// Say whether a message that is sent now would be the only thing that is done.
    pub fn is_idle(&self) -> bool {
        self.scheduled.is_some() && !self.is_over && self.channels.are_idle()
    }

    /// Do what is due, but receive; say whether the I/O thread has to look at it.
    pub fn advance(&mut self, now: Instant) -> bool {
        let result = self.drive(now);
        self.settle(result, now);
        let is_sooner = self.scheduled.is_none_or(|due| self.deadline() < due);
        is_sooner || self.is_over || !self.events.is_empty()
    }

    fn settle(&mut self, result: Result<(), RtcError>, now: Instant) {
        for socket in &mut self.sockets {
            socket.flush();
        }
        if result.is_err() {
            self.end(State::Failed, Reason::Protocol, now);
        } else if !self.rtc.is_alive() {
            self.end(State::Closed, Reason::Peer, now);
        } else {
            self.watch(now);
        }
    }

    /// Say goodbye to the peer and end.
    pub fn close(&mut self) {
        if self.is_over {
            return;
        }
        let _ = self.rtc.close();
        // What cannot be said any more is not owed: the peer notices the silence.
        let now = Instant::now();
        let _ = self.poll(now);
        self.end(State::Closed, Reason::Local, now);
    }

    /// Try again after it had failed: a restart was negotiated.
    pub fn resume(&mut self) {
        self.lost = None;
        self.heard = self.heard.max(Instant::now());
        self.enter(State::Connecting, Reason::None);
    }

    fn is_reading(&self) -> bool {
        self.unread.load(Ordering::Acquire) <= MOST_UNREAD
    }

    fn receive(&mut self, now: Instant, scratch: &mut Scratch) -> Result<(), RtcError> {
        if !self.is_reading() {
            // Whether the peer is silent cannot be known meanwhile.
            self.heard = now;
        }
        let mut relayed = Vec::new();
        for index in 0..self.sockets.len() {
            for _ in 0..RECEIVES_PER_TURN {
                if !self.sockets[index].is_readable || !self.is_reading() {
                    break;
                }
                let local = self.sockets[index].address;
                let filled = self.sockets[index].receive(scratch);
                for buffer in 0..filled {
                    let (source, datagrams) = scratch.datagrams(buffer);
                    for datagram in datagrams {
                        let gathering = &mut self.gathering;
                        if gathering.receive(index, source, datagram, now, &mut relayed) {
                            for (address, peer, content) in relayed.drain(..) {
                                self.arrived(peer, address, &content, now)?;
                            }
                        } else if !self.is_relay_only {
                            self.arrived(source, local, datagram, now)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn arrived(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        datagram: &[u8],
        now: Instant,
    ) -> Result<(), RtcError> {
        // What is neither STUN nor DTLS is nobody's.
        let Ok(found) = Receive::new(Protocol::Udp, source, destination, datagram) else {
            return Ok(());
        };
        self.heard = now;
        self.rtc.handle_input(Input::Receive(now, found))?;
        self.poll(now)
    }

    fn drive(&mut self, now: Instant) -> Result<(), RtcError> {
        self.rtc.handle_input(Input::Timeout(now))?;
        self.poll(now)?;
        while self.channels.fill(&mut self.rtc, &mut self.events) {
            self.poll(now)?;
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Result<(), RtcError> {
        loop {
            match self.rtc.poll_output()? {
                Output::Timeout(due) => {
                    self.due = due;
                    return Ok(());
                }
                Output::Transmit(datagram) => {
                    let (source, peer) = (datagram.source, datagram.destination);
                    let sockets = &mut self.sockets;
                    match sockets.iter_mut().find(|s| s.address == source) {
                        Some(socket) => socket.send(peer, &datagram.contents),
                        None => {
                            let content = &datagram.contents;
                            self.gathering.send(sockets, source, peer, content, now);
                        }
                    }
                }
                Output::Event(happening) => self.take(happening),
            }
        }
    }

    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::Connected => self.is_secured = true,
            Happening::IceConnectionStateChange(state) => {
                self.has_path = state.is_connected();
                self.lost = (state == IceConnectionState::Disconnected).then_some(self.heard);
            }
            Happening::ChannelOpen(id, _) => {
                self.channels.opened(&mut self.rtc, id, &mut self.events);
            }
            Happening::ChannelData(found) => {
                let (id, is_binary) = (found.id, found.binary);
                self.channels
                    .received(id, is_binary, found.data, &mut self.events);
            }
            Happening::ChannelClose(id) => self.channels.closed(id, &mut self.events),
            Happening::Closed => {
                let _ = self.rtc.close();
            }
            _ => {}
        }
    }

    /// Move on to the state that what is known amounts to.
    fn watch(&mut self, now: Instant) {
        let silent = now.saturating_duration_since(self.heard);
        match self.state {
            State::Connecting | State::Disconnected | State::Failed
                if self.has_path && self.is_secured && silent < self.silence / 2 =>
            {
                self.lost = None;
                self.enter(State::Connected, Reason::None);
            }
            State::Connected if self.lost.is_some() || silent >= self.silence / 2 => {
                self.lost.get_or_insert(self.heard);
                self.enter(State::Disconnected, Reason::Silent);
            }
            State::Disconnected if silent >= self.silence => {
                self.enter(State::Failed, Reason::Silent);
            }
            State::Connecting if self.negotiation.is_without_candidates() => {
                self.enter(State::Failed, Reason::Unreachable);
            }
            State::Connecting if self.has_given_up(now) => {
                let reason = if self.is_secured {
                    Reason::Silent
                } else {
                    Reason::Unreachable
                };
                self.enter(State::Failed, reason);
            }
            _ => {}
        }
    }

    /// Say whether silence decides: no pair works, or the peer is nowhere, which str0m waits out.
    fn is_hopeless(&self) -> bool {
        let negotiation = &self.negotiation;
        negotiation.peer_has_ended && (self.lost.is_some() || !negotiation.peer_has_candidates)
    }

    fn has_given_up(&self, now: Instant) -> bool {
        self.is_hopeless() && now.saturating_duration_since(self.heard) >= self.silence
    }

    /// Return when silence would change the state.
    fn silence_ends(&self) -> Option<Instant> {
        match self.state {
            State::Connected => Some(self.heard + self.silence / 2),
            State::Disconnected => Some(self.heard + self.silence),
            State::Connecting if self.is_hopeless() => Some(self.heard + self.silence),
            _ => None,
        }
    }

    fn enter(&mut self, state: State, reason: Reason) {
        if self.state != state {
            self.state = state;
            self.events.push(Event::State(state, reason));
        }
    }

    fn end(&mut self, state: State, reason: Reason, now: Instant) {
        self.is_over = true;
        self.gathering.close(&mut self.sockets, now);
        for socket in &mut self.sockets {
            socket.flush();
        }
        self.channels.close_all(&mut self.events);
        self.enter(state, reason);
    }
}
