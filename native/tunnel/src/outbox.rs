//! What is to be sent next in a tunnel: whose turn it is, and what was lost before.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::channel::{Channel, Item, Part, ROOM_FOR_CONTROL};
use crate::flights::{Arrivals, Departures};
use crate::frames::{BATCH_HEADER_BYTES, Frame, batch_header};
use crate::shared_window::SharedWindow;

/// Smallest `most` of a batch.
pub const SMALLEST_BATCH: usize = 4096;
/// So many bytes of a channel go into a batch when others wait too. Loopback's segments hold 65463
/// bytes or more: two shares with what goes around them fill two, and each share fits into one.
pub const SHARE: usize = 65_400;
/// ACK and ALIVE fit into this.
const ROOM_FOR_NEWS: usize = 4 + 64 * (16 + 8);
/// Bytes of `most` that a batch of one or two channels does not use: its header, the room that is
/// left for news, and for a FIN behind the segments of the first channel.
pub const SPARE: usize = BATCH_HEADER_BYTES + ROOM_FOR_NEWS + ROOM_FOR_FIN;
/// A FIN fits into this.
const ROOM_FOR_FIN: usize = 16;

/// What a batch is asked for: by which carrier, how long it may be, and when.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub carrier: u32,
    pub most: usize,
    pub now: Instant,
    /// Whether it acknowledges without delay.
    pub answers: bool,
    /// The carriers that the client has, or none.
    pub alive: &'a [(u64, u64)],
    /// Whether it may tell of channels that were told of before by none.
    pub opens: bool,
}

/// Fills batches from channels that want to send, each in its turn.
pub struct Outbox {
    pub arrivals: Arrivals,
    pub window: SharedWindow,
    pub ping_due: bool,
    /// The carriers that the client has, which the next batch says; or none.
    pub alive: Vec<(u64, u64)>,
    departures: Departures,
    ready: VecDeque<u32>,
    held: HashMap<u32, Instant>,
    /// The newest batch with an ACK, and its carrier.
    told: Option<(u64, u32)>,
    /// Whether the newest ACK may be lost, and the peer waits for the next.
    ack_lost: bool,
}

impl Outbox {
    pub fn new(window: u64) -> Self {
        Outbox {
            arrivals: Arrivals::new(),
            window: SharedWindow::new(window),
            ping_due: false,
            alive: Vec::new(),
            departures: Departures::new(),
            ready: VecDeque::new(),
            held: HashMap::new(),
            told: None,
            ack_lost: false,
        }
    }

    /// Have a channel asked for what it has to send; a held one is held no more.
    pub fn want(&mut self, channel: &mut Channel) {
        if !self.held.is_empty() {
            self.held.remove(&channel.id);
        }
        if !channel.is_queued {
            channel.is_queued = true;
            self.ready.push_back(channel.id);
        }
    }

    /// Have a channel asked at that time, unless it wants to be before.
    pub fn hold(&mut self, channel: u32, until: Instant) {
        self.held.insert(channel, until);
    }

    /// Return when something has to be sent at the latest, if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.held.values().copied().chain(self.arrivals.due).min()
    }

    /// Send nothing of any channel any more.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.held.clear();
        self.arrivals.due = None;
        self.ack_lost = false;
    }

    /// Append the batch that ends the tunnel, and says what came before: nothing else did.
    pub fn last(&mut self, reason: &str, message: &str, out: &mut Vec<u8>) {
        let start = begin(out);
        Frame::Ack(self.arrivals.ranges()).encode(out);
        Frame::Close(reason, message).encode(out);
        self.depart(0, Vec::new(), start, out);
    }

    /// Say whether a batch that is asked for now has anything in it.
    pub fn has_to_send(&self, now: Instant) -> bool {
        let has_news = !self.ready.is_empty() || self.window.due || self.ping_due;
        let is_released = self.held.values().any(|until| *until <= now);
        self.ack_lost
            || self.arrivals.is_due(now)
            || ((has_news || is_released) && !self.departures.are_full())
    }

    /// Append what is to be sent now; say whether there was anything.
    pub fn take_batch(
        &mut self,
        channels: &mut HashMap<u32, Channel>,
        turn: Turn<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let (carrier, now) = (turn.carrier, turn.now);
        let mut alive = std::mem::take(&mut self.alive);
        if !turn.alive.is_empty() {
            alive = turn.alive.to_vec();
        }
        self.release(channels, now);
        let answers = turn.answers && self.arrivals.due.is_some();
        let ack_due = self.ack_lost || answers || self.arrivals.is_due(now);
        let has_news = !self.ready.is_empty() || self.window.due || self.ping_due;
        if !has_news && !ack_due && alive.is_empty() {
            return false; // most often: who sends asks until there is nothing
        }
        let start = begin(out);
        let ranges = self.arrivals.ranges();
        let acks = !ranges.is_empty();
        if acks {
            Frame::Ack(ranges).encode(out); // first, so that nothing of it counts as lost
        }
        let tells_alive = !alive.is_empty();
        if tells_alive {
            Frame::Alive(alive).encode(out);
        }
        let before = out.len();
        let mut parts = Vec::new();
        if !self.departures.are_full() {
            let room = turn.most - BATCH_HEADER_BYTES - ROOM_FOR_NEWS;
            self.fill(channels, out, &mut parts, room, turn.opens);
        }
        if out.len() == before && !ack_due && !tells_alive {
            out.truncate(start);
            return false;
        }
        self.arrivals.told();
        self.ack_lost = false;
        let id = self.depart(carrier, parts, start, out);
        if acks {
            self.told = Some((id, carrier));
        }
        true
    }

    /// Return what has arrived with these batches; None when one was never sent.
    pub fn acked(&mut self, ranges: &[(u64, u64)]) -> Option<Vec<Part>> {
        if let Some((told, _)) = self.told
            && ranges
                .iter()
                .any(|range| range.0 <= told && told <= range.1)
        {
            self.told = None;
        }
        self.departures.acked(ranges)
    }

    /// Send again what went over these carriers and is not known to have arrived; `heard`: the peer
    /// has taken what it got of them, the newest ACK too. Not `reached`: it has got nothing of them.
    pub fn lose(
        &mut self,
        channels: &mut HashMap<u32, Channel>,
        is_gone: impl Fn(u32) -> bool,
        heard: bool,
        reached: bool,
    ) {
        if self.told.is_some_and(|told| is_gone(told.1)) {
            self.told = None;
            self.ack_lost |= !heard;
        }
        for part in self.departures.lost(is_gone) {
            if part.item == Item::Ping {
                self.ping_due = true;
            } else if part.channel == 0 {
                self.window.due = true;
            } else if let Some(channel) = channels.get_mut(&part.channel) {
                channel.on_lost(&part, reached);
                self.want(channel);
            }
        }
    }

    fn release(&mut self, channels: &mut HashMap<u32, Channel>, now: Instant) {
        if self.held.is_empty() {
            return;
        }
        let due = self.held.extract_if(|_, until| *until <= now);
        let due: Vec<u32> = due.map(|(channel, _)| channel).collect();
        for id in due {
            if let Some(channel) = channels.get_mut(&id) {
                self.want(channel);
            }
        }
    }

    fn fill(
        &mut self,
        channels: &mut HashMap<u32, Channel>,
        out: &mut Vec<u8>,
        parts: &mut Vec<Part>,
        room: usize,
        opens: bool,
    ) {
        let before = out.len();
        if std::mem::take(&mut self.window.due) {
            Frame::Window(0, self.window.limit).encode(out);
            parts.push(Part::new(0, Item::Window));
        }
        if std::mem::take(&mut self.ping_due) {
            Frame::Ping.encode(out);
            parts.push(Part::new(0, Item::Ping));
        }
        let mut waiting = self.ready.len();
        loop {
            let left = room.saturating_sub(out.len() - before);
            if waiting == 0 || left <= ROOM_FOR_CONTROL {
                return;
            }
            waiting -= 1;
            let Some(id) = self.ready.pop_front() else {
                return;
            };
            let Some(channel) = channels.get_mut(&id) else {
                continue;
            };
            channel.is_queued = false;
            if !opens && channel.is_unheard(false) {
                self.want(channel);
                continue;
            }
            channel.take_control(out, parts);
            let left = room - (out.len() - before) - ROOM_FOR_FIN;
            let share = if self.ready.is_empty() {
                left
            } else {
                left.min(SHARE)
            };
            self.window.credit -= channel.take_segments(out, parts, share, self.window.credit);
            if channel.outbound.repeats() || (channel.has_unsent() && self.window.credit > 0) {
                self.want(channel);
                waiting += 1;
            }
        }
    }

    fn depart(&mut self, carrier: u32, parts: Vec<Part>, start: usize, out: &mut [u8]) -> u64 {
        let (id, lowest) = self.departures.depart(carrier, parts);
        out[start..start + BATCH_HEADER_BYTES].copy_from_slice(&batch_header(id, lowest));
        id
    }
}

/// Leave room for a batch's header and return where it begins.
fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
    start
}
