//! One channel of a tunnel at one side: its two directions, and what has to be said about it.

use std::borrow::Cow;

use crate::frames::{
    Frame, MAX_MESSAGE_BYTES, MAX_REASON_BYTES, MAX_TARGET_BYTES, SEGMENT_HEADER_BYTES,
    encode_segment_header,
};
use crate::inbound::Inbound;
use crate::outbound::Outbound;
use crate::{Event, Fault};

/// All frames but SEGMENT that a channel may have to say at once fit into this.
pub const ROOM_FOR_CONTROL: usize = 96 + MAX_TARGET_BYTES + MAX_REASON_BYTES + MAX_MESSAGE_BYTES;

/// What a batch can carry, to be said again when the batch is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Open,
    Accepted,
    Segment,
    Fin,
    Reset,
    Window,
    Ping,
}

/// One thing that is under way: `start` and `end` are offsets of a segment, else 0.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub channel: u32,
    pub item: Item,
    pub start: u64,
    pub end: u64,
}

impl Part {
    pub fn new(channel: u32, item: Item) -> Self {
        Part {
            channel,
            item,
            start: 0,
            end: 0,
        }
    }
}

/// The items that are due, of those that are said once.
#[derive(Default)]
struct Due(u8);

impl Due {
    fn add(&mut self, item: Item) {
        self.0 |= 1 << item as u8;
    }

    fn remove(&mut self, item: Item) -> bool {
        let was = self.0 & 1 << item as u8 != 0;
        self.0 &= !(1 << item as u8);
        was
    }
}

/// The state of a channel at one side; `target` is what the client asked for.
pub struct Channel {
    pub id: u32,
    pub target: String,
    pub inbound: Inbound,
    pub outbound: Outbound,
    pub is_accepted: bool,
    pub reset: Option<(String, String)>,
    /// Whether a batch will ask it for frames.
    pub is_queued: bool,
    /// How many batches with its OPEN may have reached the peer.
    departures: u32,
    opens: bool,
    open_acked: bool,
    open_lost: bool,
    peer_reset: bool,
    reset_acked: bool,
    due: Due,
}

impl Channel {
    pub fn new(id: u32, target: &str, window: u64, opens: bool) -> Self {
        let mut due = Due::default();
        if opens {
            due.add(Item::Open);
        }
        Channel {
            id,
            target: target.into(),
            inbound: Inbound::new(window),
            outbound: Outbound::new(window),
            is_accepted: false,
            reset: None,
            is_queued: false,
            departures: 0,
            opens,
            open_acked: !opens,
            open_lost: false,
            peer_reset: false,
            reset_acked: false,
            due,
        }
    }

    /// Say whether it was given up by either side.
    pub fn has_ended(&self) -> bool {
        self.reset.is_some() || self.peer_reset
    }

    /// Say whether neither side has anything left to say about it.
    pub fn is_forgettable(&self) -> bool {
        let inbound = &self.inbound;
        let sent = self.reset_acked || (self.reset.is_none() && self.outbound.is_settled());
        let heard = inbound.is_complete() && inbound.length == Some(inbound.consumed);
        sent && (self.peer_reset || heard || (self.reset.is_some() && inbound.length.is_some()))
    }

    /// Say whether a batch should ask it for frames.
    pub fn has_to_say(&self) -> bool {
        self.due.0 != 0 || self.outbound.repeats() || self.has_unsent()
    }

    /// Say whether bytes wait that were never sent and that the peer takes.
    pub fn has_unsent(&self) -> bool {
        self.outbound.sent < self.outbound.written.min(self.outbound.limit)
    }

    /// Say whether the peer cannot know it: its OPEN never left, or no OPEN was lost and the peer,
    /// which has `told` all that came, has got none.
    pub fn is_unheard(&self, told: bool) -> bool {
        self.departures == 0 || (told && !self.open_acked && !self.open_lost)
    }

    /// Note that something has to be said.
    pub fn say(&mut self, item: Item) {
        self.due.add(item);
    }

    /// Reset this channel and send nothing else in it.
    pub fn give_up(&mut self, reason: &str, message: &str) {
        self.reset = Some((reason.into(), message.into()));
        self.outbound.abandon();
        self.due.remove(Item::Window);
        self.due.add(Item::Reset);
    }

    /// Take a frame of the peer and append what it means to this side.
    pub fn receive<'a>(
        &mut self,
        frame: &Frame<'a>,
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), Fault> {
        let was_complete = self.inbound.is_complete();
        let mut contents = Vec::new();
        match *frame {
            Frame::Segment(_, offset, content) => {
                self.inbound.take(offset, content, &mut contents)?;
            }
            Frame::Fin(_, length) => self.inbound.finish(length)?,
            Frame::Reset(_, length, reason, message) => {
                self.inbound.finish(length)?;
                self.reset_by_peer(reason, message, events);
                return Ok(());
            }
            Frame::Window(_, limit) => {
                self.outbound.limit = self.outbound.limit.max(limit);
                return Ok(());
            }
            Frame::Accepted(_) if self.opens => {}
            Frame::Open(_, target) if !self.opens && target == self.target => return Ok(()),
            _ => {
                return Err(Fault("a channel was opened twice, or by the wrong side"));
            }
        }
        if self.has_ended() {
            return Ok(());
        }
        if self.opens && !self.is_accepted {
            self.is_accepted = true; // what it sent says so too, and may overtake ACCEPTED
            events.push(Event::Accepted(self.id));
        }
        let found = contents.into_iter();
        events.extend(found.map(|content: Cow<'a, [u8]>| Event::Received(self.id, content)));
        if self.inbound.is_complete() && !was_complete {
            events.push(Event::Finished(self.id));
        }
        Ok(())
    }

    fn reset_by_peer(&mut self, reason: &str, message: &str, events: &mut Vec<Event<'_>>) {
        if self.peer_reset {
            return;
        }
        self.peer_reset = true;
        if self.reset.is_some() {
            return;
        }
        if !self.outbound.is_settled() {
            self.give_up(reason, message); // tells the peer how much this side had sent
        }
        events.push(Event::Reset(self.id, reason.into(), message.into()));
    }

    /// Append the frames that are due, but for SEGMENT and FIN.
    pub fn take_control(&mut self, out: &mut Vec<u8>, parts: &mut Vec<Part>) {
        if !self.open_acked && self.has_to_say() {
            self.due.add(Item::Open); // so that no frame of it can arrive before its OPEN
        }
        let mut say = |item: Item, frame: Frame<'_>| {
            frame.encode(out);
            parts.push(Part::new(self.id, item));
        };
        if self.due.remove(Item::Open) && !self.open_acked {
            self.departures += 1;
            say(Item::Open, Frame::Open(self.id, &self.target));
        }
        if self.due.remove(Item::Accepted) && self.reset.is_none() {
            say(Item::Accepted, Frame::Accepted(self.id));
        }
        if self.due.remove(Item::Window) {
            say(Item::Window, Frame::Window(self.id, self.inbound.limit));
        }
        if self.due.remove(Item::Reset)
            && let Some((reason, message)) = &self.reset
        {
            let frame = Frame::Reset(self.id, self.outbound.sent, reason, message);
            say(Item::Reset, frame);
        }
    }

    /// Append SEGMENT and FIN frames of at most `most` bytes with `credit` new bytes in them;
    /// returns how many new ones are in them.
    pub fn take_segments(
        &mut self,
        out: &mut Vec<u8>,
        parts: &mut Vec<Part>,
        most: usize,
        credit: u64,
    ) -> u64 {
        let before = out.len();
        let room = |out: &Vec<u8>| most.saturating_sub(out.len() - before + SEGMENT_HEADER_BYTES);
        while let Some((start, end)) = self.outbound.take_repeat(room(out)) {
            self.put(start, end, out, parts);
        }
        let mut fresh = 0;
        if let Some((start, end)) = self.outbound.take_unsent(credit.min(room(out) as u64)) {
            self.put(start, end, out, parts);
            fresh = end - start;
        }
        if let Some(length) = self.outbound.take_fin() {
            Frame::Fin(self.id, length).encode(out);
            parts.push(Part::new(self.id, Item::Fin));
        }
        fresh
    }

    fn put(&self, start: u64, end: u64, out: &mut Vec<u8>, parts: &mut Vec<Part>) {
        encode_segment_header(self.id, start, (end - start) as usize, out);
        self.outbound.copy(start, end, out);
        parts.push(Part {
            channel: self.id,
            item: Item::Segment,
            start,
            end,
        });
    }

    /// Note that something has arrived.
    pub fn on_acked(&mut self, part: &Part) {
        match part.item {
            // Of a channel that was given up nothing is kept.
            Item::Segment if self.reset.is_none() => self.outbound.on_acked(part.start, part.end),
            Item::Fin => self.outbound.on_fin_acked(),
            Item::Open => self.open_acked = true,
            Item::Reset => self.reset_acked = true,
            _ => {}
        }
    }

    /// Say again what was lost on the way, as far as it still matters.
    pub fn on_lost(&mut self, part: &Part, reached: bool) {
        if part.item == Item::Open && !reached && !self.open_acked {
            self.departures -= 1;
        }
        match part.item {
            Item::Segment if self.reset.is_none() => self.outbound.on_lost(part.start, part.end),
            Item::Fin if self.reset.is_none() => self.outbound.on_fin_lost(),
            Item::Segment | Item::Fin => {}
            Item::Window if self.has_ended() || self.inbound.length.is_some() => {}
            Item::Reset if self.reset_acked => {}
            item => {
                self.open_lost |= item == Item::Open && reached;
                self.due.add(item);
            }
        }
    }
}
