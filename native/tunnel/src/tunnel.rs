//! One side of a tunnel; the table of what is received is in `fairlead_tunnel.tunnel`.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use bytes::Bytes;

use crate::channel::{Channel, Item};
use crate::frames::{MAX_RANGES, MAX_TARGET_BYTES, is_reason};
use crate::outbox::{Outbox, SMALLEST_BATCH, Turn};
use crate::ranges::RangeSet;

/// The number of the carrier that a ticket attaches.
const TICKET_CARRIER: u32 = 1;

mod receiving;

/// Which end of the tunnel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Gateway,
}

/// How much of each a tunnel has; windows are in bytes, and both sides have the same.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub channel_window: u64,
    pub tunnel_window: u64,
    pub most_channels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            channel_window: 8 * 1024 * 1024,
            tunnel_window: 64 * 1024 * 1024,
            most_channels: 4096,
        }
    }
}

/// Why a tunnel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    pub reason: String,
    pub message: String,
}

/// What a tunnel tells the side that uses it, each with its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The client opened a channel: connect the target, then `accept` or `reset`; gateway only.
    Wanted(u32, String),
    /// The gateway has connected the target; client only.
    Accepted(u32),
    /// The next bytes of a channel; say `consumed` when they have left.
    Received(u32, Cow<'a, [u8]>),
    /// The peer sends no more bytes in this channel.
    Finished(u32),
    /// The peer gave the channel up, with reason and message; no event of it follows.
    Reset(u32, String, String),
    /// There is room to write again, after `writable` said that there was none.
    Drained(u32),
    /// The client has only these carriers, ranges with both ends, and maybe newer ones; gateway only.
    /// What others had under way is sent again already.
    Named(Vec<(u64, u64)>),
    /// The tunnel ended with all of its channels; no event follows.
    Over(Over),
}

/// The state of a tunnel at one side.
pub struct Tunnel {
    side: Side,
    limits: Limits,
    channels: HashMap<u32, Channel>,
    next_channel: u32,
    forgotten: RangeSet,
    outbox: Outbox,
    buffered: u64,
    early: usize,
    starved: BTreeSet<u32>,
    ack_said: u64,
    /// The newest batch that told all that had come.
    all_said: u64,
    alive_said: u64,
    over: Option<Over>,
    /// The client's channels of which nothing had left when the tunnel ended.
    unheard: HashSet<u32>,
    close_due: bool,
}

impl Tunnel {
    /// Make one without channels.
    pub fn new(side: Side, limits: Limits) -> Self {
        Tunnel {
            side,
            limits,
            channels: HashMap::new(),
            next_channel: 1,
            forgotten: RangeSet::default(),
            outbox: Outbox::new(limits.tunnel_window),
            buffered: 0,
            early: 0,
            starved: BTreeSet::new(),
            ack_said: 0,
            all_said: 0,
            alive_said: 0,
            over: None,
            unheard: HashSet::new(),
            close_due: false,
        }
    }

    /// Return why the tunnel ended, if it has.
    pub fn over(&self) -> Option<&Over> {
        self.over.as_ref()
    }

    /// Say whether the tunnel ended before the gateway could hear of this channel: its OPEN was in
    /// no batch, or the gateway's last one says that it has not come.
    pub fn is_unheard(&self, id: u32) -> bool {
        self.unheard.contains(&id)
    }

    /// Return the channels of a client whose OPEN was in no batch so far.
    pub fn unsent(&self) -> Vec<u32> {
        let live = self.channels.values().filter(|each| !each.has_ended());
        let unsent = live.filter(|each| each.is_unheard(false));
        unsent.map(|channel| channel.id).collect()
    }

    /// Return what a channel leads to, until it is forgotten.
    pub fn target(&self, id: u32) -> Option<&str> {
        self.channels
            .get(&id)
            .map(|channel| channel.target.as_str())
    }

    /// Return how many channels are not forgotten.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Return how many bytes may be written now; after 0 a `Drained` follows.
    pub fn writable(&mut self, id: u32) -> u64 {
        let Some(channel) = self.channels.get(&id) else {
            return 0;
        };
        if channel.has_ended() || channel.outbound.is_finished {
            return 0;
        }
        let of_channel = self.limits.channel_window - channel.outbound.buffered();
        let room = of_channel.min(self.limits.tunnel_window - self.buffered);
        if room == 0 {
            self.starved.insert(id);
        }
        room
    }

    // What this side does

    /// Open a channel and return its number; client only. None: no more channels now.
    ///
    /// With `hold_until` the OPEN waits for the first `write`, `finish` or `reset`, or for that
    /// time, so that it leaves with its first bytes. A target has 1 to 255 bytes.
    pub fn open(&mut self, target: &str, hold_until: Option<Instant>) -> Option<u32> {
        assert!(self.side == Side::Client && (1..=MAX_TARGET_BYTES).contains(&target.len()));
        if self.over.is_some()
            || self.channels.len() >= self.limits.most_channels
            || self.next_channel == u32::MAX
        {
            return None;
        }
        let id = self.next_channel;
        self.next_channel += 1;
        let channel = Channel::new(id, target, self.limits.channel_window, true);
        let channel = self.channels.entry(id).or_insert(channel);
        match hold_until {
            Some(until) => self.outbox.hold(id, until),
            None => self.outbox.want(channel),
        }
        Some(id)
    }

    /// Say that the target is connected; gateway only, nothing once the channel has ended.
    pub fn accept(&mut self, id: u32) {
        if let Some(channel) = live(&mut self.channels, id)
            && !channel.is_accepted
            && self.side == Side::Gateway
        {
            channel.is_accepted = true;
            channel.say(Item::Accepted);
            self.outbox.want(channel);
        }
    }

    /// Send bytes, at most `writable`; nothing happens once the channel has ended.
    pub fn write(&mut self, id: u32, content: Bytes) {
        let Some(channel) = live(&mut self.channels, id) else {
            return;
        };
        let length = content.len() as u64;
        assert!(!channel.outbound.is_finished && length > 0);
        channel.outbound.write(content);
        self.buffered += length;
        assert!(channel.outbound.buffered() <= self.limits.channel_window);
        self.outbox.want(channel);
    }

    /// Send no more bytes in a channel; the other direction goes on.
    pub fn finish(&mut self, id: u32) {
        if let Some(channel) = live(&mut self.channels, id)
            && !channel.outbound.is_finished
        {
            channel.outbound.finish();
            self.outbox.want(channel);
        }
    }

    /// Note that `count` received bytes of a channel have left this process.
    pub fn consumed(&mut self, id: u32, count: u64) {
        let Some(channel) = live(&mut self.channels, id) else {
            return;
        };
        let moved = channel.inbound.consume(count);
        self.outbox.window.consume(count);
        if moved {
            channel.say(Item::Window);
            self.outbox.want(channel);
        }
        self.settle(id);
    }

    /// Give a channel up in both directions; no event of it follows. A reason is lower snake case.
    pub fn reset(&mut self, id: u32, reason: &str, message: &str) {
        assert!(is_reason(reason));
        if live(&mut self.channels, id).is_some() {
            self.give_up(id, reason, message);
        }
    }

    /// Ask the peer for a sign of life with the next batch; a client's names the carriers that it
    /// has, at most `MAX_RANGES` with both ends.
    pub fn ping(&mut self, alive: Vec<(u64, u64)>) {
        assert!(alive.is_empty() || self.side == Side::Client && alive.len() <= MAX_RANGES);
        self.outbox.ping_due = true;
        self.outbox.alive = alive;
    }

    /// End the tunnel; the next batch, the last one, says so, and all that has come. Once.
    pub fn close(&mut self, reason: &str, message: &str) {
        assert!(is_reason(reason));
        if self.over.is_none() {
            self.end(reason, message, false);
            self.close_due = true;
        }
    }

    // What carriers do

    /// Return when `take_batch` has something to send at the latest, if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.outbox.deadline()
    }

    /// Append what is to be sent over a carrier now, at most `most` bytes (4096 or more); say
    /// whether there was anything.
    pub fn take_batch(
        &mut self,
        carrier: u32,
        most: usize,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> bool {
        let turn = Turn {
            carrier,
            most,
            now,
            answers: false,
            alive: &[],
            opens: true,
        };
        self.take_turn(turn, out)
    }

    /// Append what goes with a carrier's handshake, as `take_batch`, with an acknowledgement that is
    /// owed, and with the carriers that a client has, this one included: ranges with both ends. The
    /// hello of a later carrier than the first tells of no other channels: its refusal may come from
    /// anybody on the way.
    pub fn first_batch(
        &mut self,
        carrier: u32,
        most: usize,
        now: Instant,
        alive: &[(u64, u64)],
        out: &mut Vec<u8>,
    ) -> bool {
        let turn = Turn {
            carrier,
            most,
            now,
            answers: true,
            alive,
            opens: self.side == Side::Gateway || carrier == TICKET_CARRIER,
        };
        self.take_turn(turn, out)
    }

    fn take_turn(&mut self, turn: Turn<'_>, out: &mut Vec<u8>) -> bool {
        assert!(turn.most >= SMALLEST_BATCH && turn.alive.len() <= MAX_RANGES);
        let Some(over) = &self.over else {
            return self.outbox.take_batch(&mut self.channels, turn, out);
        };
        if self.close_due {
            self.outbox.last(&over.reason, &over.message, out);
        }
        std::mem::take(&mut self.close_due)
    }

    /// Say whether `take_batch` has something to send now.
    pub fn has_to_send(&self, now: Instant) -> bool {
        match self.over {
            Some(_) => self.close_due,
            None => self.outbox.has_to_send(now),
        }
    }

    /// Say again with the next `first_batch` what has come: who waits for it may not be told
    /// otherwise. What another carrier tells may come later, or not at all.
    pub fn restate(&mut self, now: Instant) {
        self.outbox.arrivals.owe(now);
    }

    /// Send again what this carrier had under way; of a poll that was `heard`, only the rest: its
    /// answer acknowledges what came with it. None of it counts as sent unless it may have `reached`
    /// the peer.
    pub fn carrier_lost(&mut self, carrier: u32, heard: bool, reached: bool) {
        self.outbox
            .lose(&mut self.channels, |each| each == carrier, heard, reached);
    }

    // What both need

    fn give_up(&mut self, id: u32, reason: &str, message: &str) {
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        self.buffered -= channel.outbound.buffered();
        self.early -= channel.inbound.early();
        channel.give_up(reason, message);
        self.outbox.window.consume(channel.inbound.abandon());
        self.starved.remove(&id);
        self.outbox.want(channel);
    }

    /// Forget a channel about which nothing is left to say.
    fn settle(&mut self, id: u32) {
        if self.channels.get(&id).is_some_and(Channel::is_forgettable) {
            self.channels.remove(&id);
            self.forgotten.add(id.into(), u64::from(id) + 1);
            self.starved.remove(&id);
        }
    }

    fn end(&mut self, reason: &str, message: &str, told: bool) {
        self.over = Some(Over {
            reason: reason.into(),
            message: message.into(),
        });
        if self.side == Side::Client {
            let unheard = self.channels.values().filter(|each| each.is_unheard(told));
            self.unheard = unheard.map(|channel| channel.id).collect();
        }
        self.channels.clear();
        self.outbox.clear();
        self.starved.clear();
        self.buffered = 0;
    }
}

/// Return a channel that neither side has given up.
fn live(channels: &mut HashMap<u32, Channel>, id: u32) -> Option<&mut Channel> {
    channels.get_mut(&id).filter(|channel| !channel.has_ended())
}
