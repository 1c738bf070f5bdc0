//! The connections of a tunnel's channels: how they begin, and how they end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlead_tunnel::Event;
use mio::Token;
use socket2::Socket;

use super::{Happening, LINGER, Lane, queue};
use crate::pump::port::{Plug, Port};
use crate::pump::{Role, Surroundings};

/// The reason for which a gateway that is about to stop refuses a channel.
const DRAINING: &str = "gateway_draining";
/// The reason of a channel whose tunnel ended before the gateway has heard of it.
pub(super) const UNSENT: &str = "open_unsent";
const AWAY: &str = "The gateway is away.";
/// The ends of so many channels are kept for connections that may be on their way to them.
const MOST_UNLED: usize = 1024;

/// How a channel ended; `gives_back`: nothing of it was done, so that another tunnel may do it.
#[derive(Clone)]
pub(super) struct Ending {
    reason: String,
    message: String,
    gives_back: bool,
}

impl Ending {
    fn new(reason: &str, message: &str, gives_back: bool) -> Self {
        Ending {
            reason: reason.into(),
            message: message.into(),
            gives_back,
        }
    }
}

impl Lane {
    /// Open a channel and return its number; None: no more channels now.
    pub fn open(&mut self, target: &str, hold_until: Option<Instant>) -> Option<u32> {
        let channel = self.tunnel.open(target, hold_until)?;
        self.add_port(channel);
        Some(channel)
    }

    /// Lead a channel to a connection that is there, which accepts it at a gateway; `early` was
    /// read of it. One with a `reply` is told that when its channel is accepted, and else given
    /// back.
    pub fn connect(
        &mut self,
        channel: u32,
        socket: Socket,
        early: Bytes,
        reply: Option<Bytes>,
        around: &mut Surroundings,
    ) {
        if !self.ports.contains_key(&channel) {
            return self.too_late(channel, socket, &early, reply.is_some());
        }
        match around.watch(&socket, self.id, Role::Port(channel)) {
            Ok(token) => self.connected(channel, socket, token, early, reply, around),
            Err(_) => self.break_off(channel, around),
        }
    }

    /// Say what comes of a connection whose channel ended while it was on its way here.
    fn too_late(&mut self, channel: u32, socket: Socket, early: &[u8], is_unanswered: bool) {
        let Some(ending) = self.unled.remove(&channel) else {
            return; // a gateway's: who wanted it has given it up
        };
        let (reason, message) = (ending.reason, ending.message);
        self.happenings.push(if ending.gives_back || is_unanswered {
            Happening::GivenBack(channel, socket, early.to_vec(), reason, message)
        } else {
            let _ = socket.set_linger(Some(Duration::ZERO));
            Happening::Ended(channel, reason, message)
        });
    }

    /// Give a channel up and drop its connection.
    pub fn refuse(&mut self, channel: u32, reason: &str, message: &str, around: &mut Surroundings) {
        self.tunnel.reset(channel, reason, message);
        self.unled.remove(&channel);
        self.end(channel, Ending::new(reason, message, false), around);
    }

    /// Give up what the gateway cannot have heard of, and give its connections back.
    pub fn recall(&mut self, around: &mut Surroundings) {
        for channel in self.tunnel.unsent() {
            self.tunnel.reset(channel, UNSENT, AWAY);
            self.end(channel, Ending::new(UNSENT, AWAY, true), around);
        }
    }

    pub(super) fn on(&mut self, event: Event<'_>, around: &mut Surroundings) {
        match event {
            Event::Received(channel, content) => self.deliver(channel, &content, around),
            Event::Wanted(channel, target) => {
                self.add_port(channel);
                self.happenings.push(Happening::Wanted(channel, target));
            }
            Event::Accepted(channel) => {
                if let Some(port) = self.ports.get_mut(&channel) {
                    if port.is_told {
                        self.happenings.push(Happening::Accepted(channel));
                    }
                    match port.accepted() {
                        Ok(()) => {
                            queue(channel, port, &mut self.readable);
                            self.drain(channel, around);
                        }
                        Err(_) => self.break_off(channel, around),
                    }
                }
            }
            Event::Finished(channel) => {
                if let Some(port) = self.ports.get_mut(&channel) {
                    port.peer_finished = true;
                    self.drain(channel, around);
                }
            }
            Event::Drained(channel) => {
                if let Some(port) = self.ports.get_mut(&channel) {
                    port.waits = false;
                    queue(channel, port, &mut self.readable);
                }
            }
            Event::Reset(channel, reason, message) => {
                let gives_back = reason == DRAINING;
                self.end(channel, Ending::new(&reason, &message, gives_back), around);
            }
            Event::Named(alive) => {
                let newest = alive.last().map_or(0, |range| range.1);
                let numbers = self.carriers.keys().chain(&self.foreign).copied();
                self.dead.extend(numbers.filter(|&number| {
                    let number = u64::from(number);
                    let is_alive = alive.iter().any(|it| it.0 <= number && number <= it.1);
                    number < newest && !is_alive
                }));
            }
            Event::Over(over) => self.over(&over.reason, &over.message, around),
        }
    }

    fn deliver(&mut self, channel: u32, content: &[u8], around: &mut Surroundings) {
        let Some(port) = self.ports.get_mut(&channel) else {
            return;
        };
        match port.write(content) {
            Ok(left) => self.left(channel, left),
            Err(_) => self.break_off(channel, around),
        }
    }

    /// Go on with a connection that the kernel has news of.
    pub(super) fn go_on(&mut self, channel: u32, around: &mut Surroundings) {
        let Some(port) = self.ports.get(&channel) else {
            return;
        };
        if matches!(port.plug, Plug::Connecting(..)) {
            self.settle_dial(channel, around);
        } else {
            self.drain(channel, around);
        }
    }

    /// Write what waits for a connection.
    fn drain(&mut self, channel: u32, around: &mut Surroundings) {
        let Some(port) = self.ports.get_mut(&channel) else {
            return;
        };
        match port.flush() {
            Ok(left) => {
                self.left(channel, left);
                self.end_if_done(channel, around);
            }
            Err(_) => self.break_off(channel, around),
        }
    }

    fn left(&mut self, channel: u32, count: usize) {
        if count > 0 {
            self.tunnel.consumed(channel, count as u64);
            self.counts
                .written
                .fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    fn add_port(&mut self, channel: u32) {
        self.counts.channels.fetch_add(1, Ordering::Relaxed);
        let port = Port::new(true, self.is_client);
        self.ports.insert(channel, port);
    }

    pub(super) fn connected(
        &mut self,
        channel: u32,
        socket: Socket,
        token: Token,
        early: Bytes,
        reply: Option<Bytes>,
        around: &mut Surroundings,
    ) {
        if let Some(port) = self.ports.get_mut(&channel) {
            port.connect(socket, token, early, reply);
            if port.answer().is_err() {
                return self.break_off(channel, around);
            }
            queue(channel, port, &mut self.readable);
            self.tunnel.accept(channel);
            self.drain(channel, around);
        }
    }

    /// Give a channel up whose connection is gone before it was done.
    pub(super) fn break_off(&mut self, channel: u32, around: &mut Surroundings) {
        self.refuse(
            channel,
            "connection_reset",
            "The TCP connection was lost.",
            around,
        );
    }

    fn end(&mut self, channel: u32, ending: Ending, around: &mut Surroundings) {
        let Some(mut port) = self.take_port(channel, around) else {
            return;
        };
        let Ending {
            reason,
            message,
            gives_back,
        } = ending.clone();
        if self.is_client && matches!(port.plug, Plug::Missing) {
            self.unled.insert(channel, ending);
            if self.unled.len() > MOST_UNLED {
                self.unled.pop_first();
            }
            let ended = Happening::Unled(channel, reason, message);
            self.happenings.push(ended);
            return;
        }
        if (gives_back || port.is_unanswered())
            && let Some((socket, kept)) = port.give_back()
        {
            let ended = Happening::GivenBack(channel, socket, kept, reason, message);
            self.happenings.push(ended);
            return;
        }
        port.abort();
        self.happenings
            .push(Happening::Ended(channel, reason, message));
    }

    pub(super) fn end_if_done(&mut self, channel: u32, around: &mut Surroundings) {
        if !self.ports.get(&channel).is_some_and(Port::is_done) {
            return;
        }
        let port = self.take_port(channel, around);
        if port.is_some_and(|port| port.is_told) {
            let ended = Happening::Ended(channel, String::new(), String::new());
            self.happenings.push(ended);
        }
    }

    /// Have a port no more, and its connection not watched.
    fn take_port(&mut self, channel: u32, around: &mut Surroundings) -> Option<Port> {
        let port = self.ports.remove(&channel)?;
        self.counts.channels.fetch_sub(1, Ordering::Relaxed);
        if let Plug::Connecting(socket, token) | Plug::Connected(socket, token) = &port.plug {
            around.forget(socket, *token);
        }
        if matches!(port.plug, Plug::Connecting(..)) {
            self.dials.remove(channel);
        }
        Some(port)
    }

    pub(super) fn over(&mut self, reason: &str, message: &str, around: &mut Surroundings) {
        // What came whole is passed on: nothing else is left to do in its channel.
        let cut = self.ports.iter().filter(|(_, port)| !port.has_ended());
        let channels: Vec<u32> = cut.map(|(channel, _)| *channel).collect();
        for channel in channels {
            let is_unsent = self.tunnel.is_unheard(channel);
            let reason = if is_unsent { UNSENT } else { reason };
            self.end(channel, Ending::new(reason, message, is_unsent), around);
        }
        for (_, listener) in std::mem::take(&mut self.listeners) {
            around.forget(&listener.socket, listener.token);
        }
        self.give_back_socks(None, around);
        self.happenings
            .push(Happening::Over(reason.into(), message.into()));
        self.ends_at = Some(Instant::now() + LINGER);
    }
}
