//! The listeners of a tunnel, and what is made to them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlead_tunnel::socks5::{Outcome, Reply, Socks5Server, encode_reply};
use socket2::Socket;

use super::ports::UNSENT;
use super::{Happening, Lane, queue};
use crate::pump::listener::{Leads, Listener};
use crate::pump::port::Port;
use crate::pump::socks::SocksClient;
use crate::pump::{Role, Surroundings};

const MOST_ACCEPTS: usize = 64;
/// Stands for the channel of a connection that has none.
const NO_CHANNEL: u32 = 0;
/// Why a connection comes to nothing when a tunnel has no channel left for it.
const LIMIT: &str = "channel_limit";
const FULL: &str = "The tunnel has as many channels as it may have.";

impl Lane {
    /// Accept the connections of a socket, and lead them on.
    pub fn listen(&mut self, number: u32, socket: Socket, leads: Leads, around: &mut Surroundings) {
        if self.tunnel.over().is_some() {
            return;
        }
        // A descriptor that cannot be watched is none that accepts: nothing would come of it.
        if let Ok(token) = around.watch(&socket, self.id, Role::Listener(number)) {
            let listener = Listener {
                socket,
                token,
                leads,
                is_readable: true,
                is_stalled: false,
            };
            self.listeners.insert(number, listener);
        }
    }

    /// Accept no more connections of a socket; those that are there stay, but for clients of SOCKS
    /// that have not asked yet, which are given back.
    pub fn stop_listening(&mut self, number: u32, around: &mut Surroundings) {
        if let Some(listener) = self.listeners.remove(&number) {
            around.forget(&listener.socket, listener.token);
        }
        self.give_back_socks(Some(number), around);
    }

    pub(super) fn accept_all(&mut self, now: Instant, around: &mut Surroundings) {
        for (&number, listener) in &mut self.listeners {
            for _ in 0..MOST_ACCEPTS {
                let Some(socket) = listener.accept() else {
                    break;
                };
                let (target, hold) = match &listener.leads {
                    Leads::To(target, hold) => (target, hold),
                    Leads::Asked(credentials, patience) => {
                        let channels = self.ports.len().max(self.tunnel.channels());
                        let client = self.socks.next();
                        if channels + self.socks.len() < self.most_channels
                            && let Ok(token) = around.watch(&socket, self.id, Role::Socks(client))
                        {
                            let made = SocksClient {
                                socket,
                                token,
                                listener: number,
                                server: Socks5Server::new(credentials.clone()),
                                until: now + *patience,
                                is_closing: false,
                            };
                            self.socks.add(client, made);
                        } else {
                            reset_for_want(&socket, &mut self.happenings);
                        }
                        continue;
                    }
                };
                let until = (!hold.is_zero()).then(|| now + *hold);
                let Some(channel) = self.tunnel.open(target, until) else {
                    if self.tunnel.over().is_none() {
                        reset_for_want(&socket, &mut self.happenings);
                    } else {
                        let _ = socket.set_linger(Some(Duration::ZERO));
                    }
                    continue;
                };
                let mut port = Port::new(false, true);
                match around.watch(&socket, self.id, Role::Port(channel)) {
                    Ok(token) => {
                        port.connect(socket, token, Bytes::new(), None);
                        queue(channel, &mut port, &mut self.readable);
                    }
                    Err(_) => self.tunnel.reset(
                        channel,
                        "connection_reset",
                        "The TCP connection was lost.",
                    ),
                }
                self.ports.insert(channel, port);
            }
        }
        self.serve_socks(now, around);
        self.count();
    }

    /// Go on with clients of SOCKS that have said something, and drop who has not in time.
    fn serve_socks(&mut self, now: Instant, around: &mut Surroundings) {
        for (number, outcome) in self.socks.read(&mut around.buffers) {
            let Some(client) = self.socks.remove(number) else {
                continue;
            };
            match outcome {
                Ok(Outcome::Asked(target)) => self.lead(client, &target, around),
                Ok(Outcome::Refused(message)) => {
                    around.forget(&client.socket, client.token);
                    let reason = "client_refused".into();
                    let ended = Happening::Ended(NO_CHANNEL, reason, message);
                    self.happenings.push(ended);
                }
                Err(_) => around.forget(&client.socket, client.token),
            }
        }
        while let Some(number) = self.socks.overdue(now) {
            if let Some(client) = self.socks.remove(number) {
                around.forget(&client.socket, client.token);
            }
        }
    }

    /// Open a channel for a client that has asked, who is told when its target is there.
    fn lead(&mut self, client: SocksClient, target: &str, around: &mut Surroundings) {
        // Who waits for the reply sends nothing before it: its OPEN waits for nothing.
        let Some(channel) = self.tunnel.open(target, None) else {
            return self.give_back_client(client, LIMIT, FULL, around);
        };
        let SocksClient {
            socket,
            token,
            server,
            is_closing,
            ..
        } = client;
        let (heard, early) = server.into_received();
        let reply = Bytes::copy_from_slice(&encode_reply(Reply::Succeeded));
        let mut port = Port::new(false, true);
        port.connect(socket, token, early.into(), Some(reply));
        port.heard(heard.into());
        port.is_closing = is_closing;
        around.turn_into(token, self.id, Role::Port(channel));
        queue(channel, &mut port, &mut self.readable);
        self.ports.insert(channel, port);
    }

    /// Give clients of SOCKS back that have not asked yet: those of a listener, or all.
    pub(super) fn give_back_socks(&mut self, listener: Option<u32>, around: &mut Surroundings) {
        for number in self.socks.made_to(listener) {
            if let Some(client) = self.socks.remove(number) {
                let message = "The client has not asked yet.";
                self.give_back_client(client, UNSENT, message, around);
            }
        }
    }

    fn give_back_client(
        &mut self,
        client: SocksClient,
        reason: &str,
        message: &str,
        around: &mut Surroundings,
    ) {
        around.forget(&client.socket, client.token);
        let (mut kept, rest) = client.server.into_received();
        kept.extend(rest);
        let (reason, message) = (reason.into(), message.into());
        let given = Happening::GivenBack(NO_CHANNEL, client.socket, kept, reason, message);
        self.happenings.push(given);
    }
}

/// Have a connection reset that finds no channel left, and tell of it.
fn reset_for_want(socket: &Socket, happenings: &mut Vec<Happening>) {
    let _ = socket.set_linger(Some(Duration::ZERO));
    let (reason, message) = (LIMIT.to_owned(), FULL.to_owned());
    happenings.push(Happening::Ended(NO_CHANNEL, reason, message));
}
