//! How bytes move between the carriers of a tunnel and the connections of its channels.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Happening, Lane, queue};
use crate::pump::Surroundings;
use crate::pump::buffers::READ_BYTES;
use crate::pump::carrier::Carrier;

/// So many bytes of connections are read before batches are made of them.
const READ_AHEAD: usize = READ_BYTES;

impl Lane {
    /// Read each carrier once and take its batches; say whether anything came.
    pub(super) fn receive(&mut self, now: Instant, around: &mut Surroundings) -> bool {
        let mut came = false;
        let numbers: Vec<u32> = self.carriers.keys().copied().collect();
        for number in numbers {
            let Some(mut carrier) = self.carriers.remove(&number) else {
                continue;
            };
            let mut fault = None;
            if carrier.is_readable {
                came = true;
                fault = carrier.read().err();
            }
            // Also what came before an end counts.
            loop {
                match carrier.next_batch() {
                    Ok(Some(batch)) => {
                        for event in self.tunnel.receive(batch, now) {
                            self.on(event, around);
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        fault = Some(error);
                        break;
                    }
                }
            }
            match fault {
                Some(error) => {
                    carrier.part();
                    around.forget(&carrier.socket, carrier.token);
                    self.lose(number, &error);
                }
                None => {
                    self.carriers.insert(number, carrier);
                }
            }
        }
        for number in std::mem::take(&mut self.dead) {
            self.drop_carrier(number, "The client has lost it.", around);
        }
        came
    }

    /// Read connections while carriers take what they send; say whether anything came.
    pub(super) fn read_ports(&mut self, around: &mut Surroundings) -> bool {
        let has_carriers = !self.carriers.is_empty() || !self.foreign.is_empty();
        if has_carriers && !self.has_room() {
            return false;
        }
        self.read_ahead(around)
    }

    /// Say whether a carrier takes something now.
    pub(super) fn has_room(&self) -> bool {
        let foreign = self.is_armed && !self.foreign.is_empty();
        foreign || self.carriers.values().any(Carrier::has_room)
    }

    pub(super) fn read_ahead(&mut self, around: &mut Surroundings) -> bool {
        let mut total = 0;
        for _ in 0..self.readable.len() {
            if total >= READ_AHEAD {
                break;
            }
            let Some(channel) = self.readable.pop_front() else {
                break;
            };
            let Some(port) = self.ports.get_mut(&channel) else {
                continue;
            };
            port.is_queued = false;
            if !port.can_read() {
                continue;
            }
            let room = self.tunnel.writable(channel) as usize;
            if room == 0 {
                port.waits = true;
                continue;
            }
            match port.read(room, &mut around.buffers) {
                Ok(None) => {}
                Ok(Some(content)) if content.is_empty() => {
                    port.has_finished = true;
                    self.tunnel.finish(channel);
                    total += 1;
                    self.end_if_done(channel, around);
                }
                Ok(Some(content)) => {
                    total += content.len();
                    self.counts
                        .read
                        .fetch_add(content.len() as u64, Ordering::Relaxed);
                    self.tunnel.write(channel, content);
                    queue(channel, port, &mut self.readable);
                }
                Err(_) => {
                    total += 1;
                    self.break_off(channel, around);
                }
            }
        }
        total > 0
    }

    /// Write what channels have for their connections, and send what there is.
    pub(super) fn send(&mut self, now: Instant, around: &mut Surroundings) {
        let mut lost = Vec::new();
        for (&number, carrier) in &mut self.carriers {
            if let Err(error) = carrier.keep_alive(now).and_then(|()| carrier.flush()) {
                lost.push((number, error));
            }
        }
        let mut has_more = true;
        while has_more && lost.is_empty() {
            has_more = false;
            for (&number, carrier) in &mut self.carriers {
                if !carrier.has_room() {
                    continue;
                }
                let filled = carrier.fill(number, &mut self.tunnel, now);
                match filled.and_then(|filled| carrier.flush().map(|()| filled)) {
                    Ok(filled) => has_more |= filled,
                    Err(error) => lost.push((number, error)),
                }
            }
        }
        if self.tunnel.over().is_some() && !self.tunnel.has_to_send(now) {
            self.carriers.values_mut().for_each(Carrier::finish);
        }
        for (number, error) in lost {
            self.tunnel.carrier_lost(number, false, true);
            self.drop_carrier(number, &error.to_string(), around);
        }
    }

    pub(super) fn lose(&mut self, number: u32, error: &io::Error) {
        self.tunnel.carrier_lost(number, false, true);
        self.happenings
            .push(Happening::CarrierLost(number, error.to_string()));
    }
}
