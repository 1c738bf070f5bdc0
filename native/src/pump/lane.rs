//! One tunnel with its carriers, the connections of its channels, and its listeners.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlead_tunnel::frames::MAX_RANGES;
use fairlead_tunnel::ranges::RangeSet;
use fairlead_tunnel::{Limits, Side, Tunnel};
use mio::event::Event as Readiness;
use socket2::Socket;

use super::carrier::{Carrier, Given};
use super::dials::Dials;
use super::listener::Listener;
use super::port::Port;
use super::socks::SocksClients;
use super::{Role, Surroundings};

mod dialling;
mod listening;
mod moving;
mod ports;

use ports::Ending;

/// A lane takes so many rounds before others on the thread have their turn.
const MOST_ROUNDS: usize = 8;
/// How long the last batch of a tunnel may take to leave, and to be answered by the end of a carrier.
const LINGER: Duration = Duration::from_secs(2);
/// The last batch is never longer.
const SMALLEST: usize = 4096;
const STALL: Duration = Duration::from_millis(100);

/// What Python is told of a tunnel.
pub enum Happening {
    /// The peer wants a channel to a target.
    Wanted(u32, String),
    /// The target of a channel is connected.
    Accepted(u32),
    /// How a dial went that failed or was slow: the channel and its target, the error's number or 0,
    /// and how many seconds it took.
    Dialled(u32, String, i32, f64),
    /// A channel has ended; the reason is empty when both directions did as they should.
    Ended(u32, String, String),
    /// A client's channel has ended before a connection was led to it.
    Unled(u32, String, String),
    /// A channel has ended of which the target knows nothing: its connection, and what was read.
    GivenBack(u32, Socket, Vec<u8>, String, String),
    /// There is something to send over a carrier of Python's; told once for each empty batch.
    Sendable,
    /// A carrier has ended, with what the kernel or the protocol says.
    CarrierLost(u32, String),
    /// The tunnel has ended with all of its channels.
    Over(String, String),
    /// All carriers have ended too.
    Gone,
    /// Nothing more is told: Python has heard that, and asked to have it forgotten.
    Forgotten,
    /// The thread has ended by a fault of its own, and every tunnel with it.
    Failed(String),
}

/// Bytes and channels of one tunnel, for whoever asks at any time.
#[derive(Default)]
pub struct Counts {
    pub read: AtomicU64,
    pub written: AtomicU64,
    pub channels: AtomicU64,
}

/// The tunnel of one side, and every socket of it.
pub struct Lane {
    pub id: u32,
    pub happenings: Vec<Happening>,
    pub scheduled: Option<Instant>,
    counts: Arc<Counts>,
    tunnel: Tunnel,
    is_client: bool,
    /// Carriers whose handshakes are under way.
    greeting: BTreeSet<u32>,
    /// Carriers that the client has lost.
    dead: Vec<u32>,
    carriers: BTreeMap<u32, Carrier>,
    /// Carriers that Python has.
    foreign: BTreeSet<u32>,
    /// Whether the last batch that Python asked for was empty.
    is_armed: bool,
    ports: HashMap<u32, Port>,
    /// How a client's channels ended whose connections may be on their way here.
    unled: BTreeMap<u32, Ending>,
    /// Channels whose connections may have something to read.
    readable: VecDeque<u32>,
    /// Channels whose connections take more, or are connected, or not.
    writable: Vec<u32>,
    dials: Dials,
    listeners: HashMap<u32, Listener>,
    /// Connections of listeners whose clients have not asked yet.
    socks: SocksClients,
    most_channels: usize,
    ends_at: Option<Instant>,
    /// Whether the tunnel is over, and its carriers have ended.
    is_closed: bool,
    /// Whether the connections that were done have been told everything, too.
    is_gone: bool,
}

impl Lane {
    /// Make it without carriers.
    pub fn new(id: u32, side: Side, limits: Limits, counts: Arc<Counts>) -> Self {
        Lane {
            id,
            happenings: Vec::new(),
            scheduled: None,
            counts,
            tunnel: Tunnel::new(side, limits),
            is_client: side == Side::Client,
            greeting: BTreeSet::new(),
            dead: Vec::new(),
            carriers: BTreeMap::new(),
            foreign: BTreeSet::new(),
            is_armed: false,
            ports: HashMap::new(),
            unled: BTreeMap::new(),
            readable: VecDeque::new(),
            writable: Vec::new(),
            dials: Dials::default(),
            listeners: HashMap::new(),
            socks: SocksClients::default(),
            most_channels: limits.most_channels,
            ends_at: None,
            is_closed: false,
            is_gone: false,
        }
    }

    // What Python asks for

    /// Take a batch that came with a handshake.
    pub fn take(&mut self, batch: &[u8], now: Instant, around: &mut Surroundings) {
        let events = self.tunnel.receive(batch, now);
        for event in events {
            self.on(event, around);
        }
    }

    /// Return what goes with a carrier's handshake, empty when there is nothing; that of a client
    /// names the carriers that it has. `attach` or `detach` follows. With `restates` it says what has
    /// come though another carrier is about to tell it too.
    pub fn first_batch(
        &mut self,
        number: u32,
        most: usize,
        restates: bool,
        now: Instant,
        around: &mut Surroundings,
    ) -> Vec<u8> {
        self.accept_all(now, around);
        self.read_ports(around);
        if self.is_client {
            self.greeting.insert(number);
        }
        let alive = self.alive();
        if restates {
            self.tunnel.restate(now);
        }
        let mut batch = Vec::new();
        self.tunnel
            .first_batch(number, most, now, &alive, &mut batch);
        batch
    }

    /// Use a carrier from now on.
    pub fn attach(&mut self, number: u32, given: Given, around: &mut Surroundings) {
        self.greeting.remove(&number);
        if self.is_closed {
            let ended = Happening::CarrierLost(number, "The tunnel is over.".into());
            return self.happenings.push(ended);
        }
        match around.watch(&given.socket, self.id, Role::Carrier(number)) {
            Ok(token) => {
                let carrier = Carrier::new(given, token, self.is_client);
                self.carriers.insert(number, carrier);
            }
            Err(error) => self.lose(number, &error),
        }
    }

    /// Drop a carrier, also one that ended in its handshake: what it had under way goes over others,
    /// but for what was `heard` and answered, and counts as never sent where nothing can have
    /// `reached` the peer. What ends the tunnel may still leave.
    pub fn detach(&mut self, number: u32, heard: bool, reached: bool, around: &mut Surroundings) {
        self.greeting.remove(&number);
        self.foreign.remove(&number);
        self.tunnel.carrier_lost(number, heard, reached);
        if self.ends_at.is_none() {
            self.drop_carrier(number, "It was dropped.", around);
        }
    }

    /// Send nothing more over a carrier: another one has taken its place.
    pub fn retire(&mut self, number: u32) {
        if let Some(carrier) = self.carriers.get_mut(&number) {
            carrier.is_retired = true;
        }
    }

    // Carriers of Python's

    /// Make batches for a carrier that Python has, from now on.
    pub fn attach_foreign(&mut self, number: u32) {
        self.greeting.remove(&number);
        self.foreign.insert(number);
    }

    /// Return what is to be sent over such a carrier now; empty: nothing, and `Sendable` is told
    /// when there is. None: the client has lost it.
    pub fn take_batch(
        &mut self,
        number: u32,
        most: usize,
        now: Instant,
        around: &mut Surroundings,
    ) -> Option<Vec<u8>> {
        if !self.foreign.contains(&number) {
            return None;
        }
        self.accept_all(now, around);
        self.read_ahead(around);
        let mut batch = Vec::new();
        self.is_armed = !self.tunnel.take_batch(number, most, now, &mut batch);
        Some(batch)
    }

    fn tell_sendable(&mut self, now: Instant) {
        if self.is_armed && !self.foreign.is_empty() && self.tunnel.has_to_send(now) {
            self.is_armed = false;
            self.happenings.push(Happening::Sendable);
        }
    }

    /// Return how many bytes have come over a carrier, and how many have not arrived.
    pub fn look(&self, number: u32) -> Option<(u64, u64)> {
        let carrier = self.carriers.get(&number)?;
        Some((carrier.received, carrier.unacknowledged()))
    }

    /// Ask the peer for a sign of life, and tell it which carriers a client has.
    pub fn ping(&mut self) {
        self.tunnel.ping(self.alive());
    }

    fn alive(&self) -> Vec<(u64, u64)> {
        let mut known = RangeSet::default();
        if self.is_client {
            let attached = self.carriers.keys().chain(&self.foreign);
            for number in attached.chain(&self.greeting) {
                known.add(u64::from(*number), u64::from(*number) + 1);
            }
        }
        let mut alive: Vec<_> = known.iter().map(|(start, end)| (start, end - 1)).collect();
        // The oldest of so many are taken as lost by the gateway, which sends again.
        alive.drain(..alive.len().saturating_sub(MAX_RANGES));
        alive
    }

    fn drop_carrier(&mut self, number: u32, why: &str, around: &mut Surroundings) {
        let mut carrier = self.carriers.remove(&number);
        if let Some(carrier) = &mut carrier {
            carrier.part();
            around.forget(&carrier.socket, carrier.token);
        }
        if carrier.is_some() || self.foreign.remove(&number) {
            self.happenings
                .push(Happening::CarrierLost(number, why.into()));
        }
    }

    /// End the tunnel with all of its channels, after telling the peer.
    pub fn close(&mut self, reason: &str, message: &str, around: &mut Surroundings) {
        if self.tunnel.over().is_none() {
            self.tunnel.close(reason, message);
            self.over(reason, message, around);
            self.send(Instant::now(), around); // before whoever closes drops its carriers
        }
    }

    // What the thread tells

    /// Note what the kernel says of a socket.
    pub fn socket_is_ready(&mut self, role: Role, event: &Readiness) {
        match role {
            Role::Carrier(number) => {
                if let Some(carrier) = self.carriers.get_mut(&number) {
                    carrier.is_readable |= event.is_readable();
                    carrier.is_writable |= event.is_writable();
                    carrier.is_closing |= event.is_read_closed();
                }
            }
            Role::Port(channel) => {
                if let Some(port) = self.ports.get_mut(&channel) {
                    port.is_readable |= event.is_readable();
                    port.is_writable |= event.is_writable();
                    port.is_closing |= event.is_read_closed();
                    queue(channel, port, &mut self.readable);
                    if event.is_writable() && port.wants_to_write() {
                        self.writable.push(channel);
                    }
                }
            }
            Role::Socks(number) => {
                let (is_readable, is_closing) = (event.is_readable(), event.is_read_closed());
                self.socks.is_ready(number, is_readable, is_closing);
            }
            Role::Listener(number) => {
                if let Some(listener) = self.listeners.get_mut(&number) {
                    listener.is_readable = true;
                }
            }
        }
    }

    /// Move what can be moved; say whether there is more.
    pub fn turn(&mut self, now: Instant, around: &mut Surroundings) -> bool {
        for channel in std::mem::take(&mut self.writable) {
            self.go_on(channel, around);
        }
        self.give_up_dials(now, around);
        self.accept_all(now, around);
        for _ in 0..MOST_ROUNDS {
            let came = self.receive(now, around);
            let read = self.read_ports(around);
            self.send(now, around);
            if !came && !read {
                self.tell_sendable(now);
                return false;
            }
        }
        self.tell_sendable(now);
        true
    }

    /// Say how many channels have not ended at both sides, or have connections here.
    pub fn count(&self) {
        let channels = self.ports.len().max(self.tunnel.channels()) + self.socks.len();
        self.counts
            .channels
            .store(channels as u64, Ordering::Relaxed);
    }

    /// Return when it wants its next turn, if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        let stalled = self.listeners.values().any(|each| each.is_stalled);
        let stalled = stalled.then(|| Instant::now() + STALL);
        let due = self.tunnel.deadline().filter(|_| self.has_room());
        let asked = self.socks.deadline();
        let ping = self.carriers.values().filter_map(Carrier::due).min();
        let dial = self.dials.deadline();
        let all = [stalled, due, asked, dial, ping, self.ends_at];
        all.into_iter().flatten().min()
    }

    /// Return the batch that ends the tunnel, empty when it has left.
    pub fn last_batch(&mut self, now: Instant) -> Vec<u8> {
        let mut batch = Vec::new();
        self.tunnel.take_batch(0, SMALLEST, now, &mut batch);
        batch
    }

    /// Once the tunnel is over, drop carriers that the peer has had the time to end, and say so when
    /// nothing is left here; what still comes is answered.
    pub fn end_if_over(&mut self, now: Instant, around: &mut Surroundings) {
        let is_due = |at: Instant| at <= now || self.carriers.is_empty();
        if !self.is_closed && self.ends_at.is_some_and(is_due) {
            let numbers: Vec<u32> = self.carriers.keys().copied().collect();
            for number in numbers {
                self.drop_carrier(number, "The tunnel is over.", around);
            }
            self.is_closed = true;
        }
        if self.is_closed && !self.is_gone && self.ports.is_empty() {
            self.is_gone = true;
            self.happenings.push(Happening::Gone);
        }
    }
}

/// Have a connection read when carriers take more.
fn queue(channel: u32, port: &mut Port, readable: &mut VecDeque<u32>) {
    if !port.is_queued && port.can_read() {
        port.is_queued = true;
        readable.push_back(channel);
    }
}
