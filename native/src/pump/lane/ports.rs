//! The connections of a tunnel's channels: how they begin, and how they end.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use fairlead_tunnel::Event;
use mio::Token;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Happening, LINGER, Lane, queue};
use crate::pump::port::{Plug, Port};
use crate::pump::{Role, Surroundings};

impl Lane {
    /// Open a channel and return its number; None: no more channels now.
    pub fn open(&mut self, target: &str, hold_until: Option<Instant>) -> Option<u32> {
        let channel = self.tunnel.open(target, hold_until)?;
        self.add_port(channel, true);
        Some(channel)
    }

    /// Lead a channel to a connection that is there, which accepts it at a gateway.
    pub fn connect(&mut self, channel: u32, socket: Socket, around: &mut Surroundings) {
        if !self.ports.contains_key(&channel) {
            return;
        }
        match around.watch(&socket, self.id, Role::Port(channel)) {
            Ok(token) => self.connected(channel, socket, token, around),
            Err(_) => self.break_off(channel, around),
        }
    }

    /// Connect a channel's target; `DialFailed` follows when it cannot be reached.
    pub fn dial(&mut self, channel: u32, address: SocketAddr, around: &mut Surroundings) {
        let Some(port) = self.ports.get_mut(&channel) else {
            return;
        };
        let made = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        );
        let begun = made.and_then(|socket| {
            let token = around.watch(&socket, self.id, Role::Port(channel))?;
            match socket.connect(&address.into()) {
                Ok(()) => Ok((socket, token, true)),
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                    Ok((socket, token, false))
                }
                Err(error) => {
                    around.forget(&socket, token);
                    Err(error)
                }
            }
        });
        match begun {
            Ok((socket, token, true)) => self.connected(channel, socket, token, around),
            Ok((socket, token, false)) => port.plug = Plug::Connecting(socket, token),
            Err(error) => self.dial_failed(channel, &error),
        }
    }

    /// Give a channel up and drop its connection.
    pub fn refuse(&mut self, channel: u32, reason: &str, message: &str, around: &mut Surroundings) {
        self.tunnel.reset(channel, reason, message);
        self.end(channel, reason, message, around);
    }

    pub(super) fn on(&mut self, event: Event<'_>, around: &mut Surroundings) {
        match event {
            Event::Received(channel, content) => self.deliver(channel, &content, around),
            Event::Wanted(channel, target) => {
                self.add_port(channel, true);
                self.happenings.push(Happening::Wanted(channel, target));
            }
            Event::Accepted(channel) => {
                if self.ports.get(&channel).is_some_and(|port| port.is_told) {
                    self.happenings.push(Happening::Accepted(channel));
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
            Event::Reset(channel, reason, message) => self.end(channel, &reason, &message, around),
            Event::Named(alive) => {
                let newest = alive.last().map_or(0, |range| range.1);
                let numbers = self.carriers.keys().copied();
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
        let Some(port) = self.ports.get_mut(&channel) else {
            return;
        };
        if !matches!(port.plug, Plug::Connecting(..)) {
            return self.drain(channel, around);
        }
        let Plug::Connecting(socket, token) = std::mem::replace(&mut port.plug, Plug::Missing)
        else {
            return;
        };
        match socket.take_error() {
            Ok(None) => self.connected(channel, socket, token, around),
            Ok(Some(error)) | Err(error) => {
                around.forget(&socket, token);
                self.dial_failed(channel, &error);
            }
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

    fn add_port(&mut self, channel: u32, is_told: bool) {
        self.counts.channels.fetch_add(1, Ordering::Relaxed);
        self.ports.insert(channel, Port::new(is_told));
    }

    fn connected(&mut self, channel: u32, socket: Socket, token: Token, around: &mut Surroundings) {
        if let Some(port) = self.ports.get_mut(&channel) {
            port.connect(socket, token);
            queue(channel, port, &mut self.readable);
            self.tunnel.accept(channel);
            self.drain(channel, around);
        }
    }

    fn dial_failed(&mut self, channel: u32, error: &io::Error) {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        self.happenings.push(Happening::DialFailed(channel, number));
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

    pub(super) fn end_if_done(&mut self, channel: u32, around: &mut Surroundings) {
        if self.ports.get(&channel).is_some_and(Port::is_done) {
            self.remove_port(channel, around);
        }
    }

    fn end(&mut self, channel: u32, reason: &str, message: &str, around: &mut Surroundings) {
        if let Some(port) = self.ports.get(&channel) {
            port.abort();
            self.remove_port(channel, around);
            self.happenings
                .push(Happening::Ended(channel, reason.into(), message.into()));
        }
    }

    pub(super) fn remove_port(&mut self, channel: u32, around: &mut Surroundings) {
        let Some(port) = self.ports.remove(&channel) else {
            return;
        };
        self.counts.channels.fetch_sub(1, Ordering::Relaxed);
        if port.is_done() && port.is_told {
            let ended = Happening::Ended(channel, String::new(), String::new());
            self.happenings.push(ended);
        }
        match port.plug {
            Plug::Connecting(socket, token) | Plug::Connected(socket, token) => {
                around.forget(&socket, token);
            }
            Plug::Missing => {}
        }
    }

    pub(super) fn over(&mut self, reason: &str, message: &str, around: &mut Surroundings) {
        let channels: Vec<u32> = self.ports.keys().copied().collect();
        for channel in channels {
            self.end(channel, reason, message, around);
        }
        for (_, listener) in std::mem::take(&mut self.listeners) {
            around.forget(&listener.socket, listener.token);
        }
        self.happenings
            .push(Happening::Over(reason.into(), message.into()));
        self.ends_at = Some(Instant::now() + LINGER);
    }
}
