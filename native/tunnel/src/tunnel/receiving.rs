//! What a batch of the peer means to this side of a tunnel.

use std::time::Instant;

use super::{Event, Limits, Side, Tunnel};
use crate::Fault;
use crate::channel::Channel;
use crate::frames::{Frame, MAX_RANGES, decode};

/// So many pieces of all channels may wait for others before them.
const MOST_EARLY: usize = 256 * 1024;

impl Tunnel {
    /// Take a batch of the peer, as it was opened, and return what it means to this side.
    pub fn receive<'a>(&mut self, batch: &'a [u8], now: Instant) -> Vec<Event<'a>> {
        let mut events = Vec::new();
        if self.over.is_none()
            && let Err(fault) = self.take(batch, now, &mut events)
        {
            self.close("protocol_error", fault.0);
            events.extend(self.over.clone().map(Event::Over));
        }
        events
    }

    fn take<'a>(
        &mut self,
        batch: &'a [u8],
        now: Instant,
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), Fault> {
        let (id, lowest, frames) = decode(batch)?;
        if !self.outbox.arrivals.take(id, lowest, batch.len()) {
            self.outbox.arrivals.owe(now);
            return Ok(());
        }
        for frame in &frames {
            self.take_frame(frame, id, now, events)?;
            if self.over.is_some() {
                return Ok(());
            }
        }
        if self.outbox.arrivals.are_scattered() {
            return Err(Fault("more batches are missing than may be under way"));
        }
        Ok(())
    }

    fn take_frame<'a>(
        &mut self,
        frame: &Frame<'a>,
        batch: u64,
        now: Instant,
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), Fault> {
        match *frame {
            Frame::Ack(ref ranges) => {
                if std::mem::replace(&mut self.ack_said, batch) == batch {
                    return Err(Fault("a batch acknowledges twice"));
                }
                self.all_said = if ranges.len() < MAX_RANGES { batch } else { 0 };
                return self.on_acked(ranges, events);
            }
            Frame::Alive(ref ranges) => return self.on_alive(ranges, batch, events),
            Frame::Close(reason, message) => {
                self.end(reason, message, self.all_said == batch);
                events.extend(self.over.clone().map(Event::Over));
                return Ok(());
            }
            _ => self.outbox.arrivals.owe(now),
        }
        match *frame {
            Frame::Window(0, limit) => self.widen(limit),
            Frame::Open(channel, _)
            | Frame::Accepted(channel)
            | Frame::Segment(channel, ..)
            | Frame::Fin(channel, _)
            | Frame::Reset(channel, ..)
            | Frame::Window(channel, _)
                if !self.forgotten.contains(channel.into()) =>
            {
                if !self.channels.contains_key(&channel) {
                    self.opened(frame, events)?;
                }
                self.take_for(channel, frame, events)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn take_for<'a>(
        &mut self,
        id: u32,
        frame: &Frame<'a>,
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(&id) else {
            return Ok(());
        };
        let highest = channel.inbound.highest;
        let (buffered, early) = (channel.outbound.buffered(), channel.inbound.early());
        let taken = channel.receive(frame, events);
        self.buffered -= buffered - channel.outbound.buffered();
        taken?;
        let window = &mut self.outbox.window;
        window.receive(channel.inbound.highest - highest)?;
        if channel.has_ended() {
            window.consume(channel.inbound.abandon());
            self.starved.remove(&id);
        }
        self.early = self.early + channel.inbound.early() - early;
        if self.early > MOST_EARLY {
            return Err(Fault("bytes were sent in more pieces than are kept"));
        }
        if channel.has_to_say() {
            self.outbox.want(channel);
        }
        self.settle(id);
        Ok(())
    }

    /// Make the channel of an OPEN; any other frame is a fault.
    fn opened(&mut self, frame: &Frame<'_>, events: &mut Vec<Event<'_>>) -> Result<(), Fault> {
        let most = self.limits.most_channels;
        let (id, target) = match *frame {
            Frame::Open(id, target) if self.side == Side::Gateway && !target.is_empty() => {
                (id, target)
            }
            _ => {
                return Err(Fault("a frame is about a channel that was not opened"));
            }
        };
        if self.channels.len() >= 2 * most {
            return Err(Fault("channels are opened in spite of refusals"));
        }
        if self.forgotten.len() > 4 * Limits::default().most_channels {
            return Err(Fault("channels are not numbered one after the other"));
        }
        let channel = Channel::new(id, target, self.limits.channel_window, false);
        self.channels.insert(id, channel);
        if self.channels.len() > most {
            let message = format!("The tunnel has {most} channels already.");
            self.give_up(id, "channel_limit", &message);
        } else {
            events.push(Event::Wanted(id, target.into()));
        }
        Ok(())
    }

    fn on_acked(
        &mut self,
        ranges: &[(u64, u64)],
        events: &mut Vec<Event<'_>>,
    ) -> Result<(), Fault> {
        let Some(parts) = self.outbox.acked(ranges) else {
            return Err(Fault("a batch was acknowledged that was never sent"));
        };
        for part in &parts {
            if let Some(channel) = self.channels.get_mut(&part.channel) {
                let before = channel.outbound.buffered();
                channel.on_acked(part);
                self.buffered -= before - channel.outbound.buffered();
                self.settle(part.channel);
            }
        }
        if !parts.is_empty() {
            self.tell_drained(events);
            if ranges.len() == MAX_RANGES {
                self.outbox.ping_due = true; // more may have arrived: a higher `lowest` makes room
            }
        }
        Ok(())
    }

    fn tell_drained(&mut self, events: &mut Vec<Event<'_>>) {
        if self.starved.is_empty() || self.buffered > self.limits.tunnel_window / 16 * 15 {
            return; // what slow readers leave must not keep the others waiting
        }
        let most = self.limits.channel_window / 2;
        let channels = &self.channels;
        self.starved.retain(|id| {
            let waits = channels
                .get(id)
                .is_some_and(|channel| channel.outbound.buffered() > most);
            if !waits {
                events.push(Event::Drained(*id));
            }
            waits
        });
    }

    /// Take what older carriers had under way as lost, unless newer news came already.
    fn on_alive(
        &mut self,
        ranges: &[(u64, u64)],
        batch: u64,
        events: &mut Vec<Event<'_>>,
    ) -> Result<(), Fault> {
        if self.side == Side::Client {
            return Err(Fault("only a client says which carriers are alive"));
        }
        if batch == self.alive_said {
            return Err(Fault("a batch says twice which carriers are alive"));
        }
        let Some(newest) = ranges.last().filter(|_| batch > self.alive_said) else {
            return Ok(());
        };
        self.alive_said = batch;
        let is_gone = |carrier| {
            let carrier = u64::from(carrier);
            let is_alive = ranges.iter().any(|it| it.0 <= carrier && carrier <= it.1);
            carrier <= newest.1 && !is_alive
        };
        self.outbox.lose(&mut self.channels, is_gone, false, true);
        events.push(Event::Named(ranges.to_vec()));
        Ok(())
    }

    fn widen(&mut self, limit: u64) {
        let had_credit = self.outbox.window.credit > 0;
        if !self.outbox.window.widen(limit) || had_credit {
            return; // nobody waits for credit while there is some
        }
        for channel in self.channels.values_mut() {
            if channel.has_unsent() {
                self.outbox.want(channel);
            }
        }
    }
}
