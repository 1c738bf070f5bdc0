//! What a carrier over a WebSocket (RFC 6455) has beside its records: headers, pongs, pings, an end.

use std::io;
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use fairlead_tunnel::websocket::{
    Found, Kind, MAX_HEADER_BYTES, NO_CODE, Reader, frame, reserved_bytes,
};

/// So often a gateway pings, and for so long it waits for a byte of the client's.
const PING: Duration = Duration::from_secs(20);
const NORMAL: u16 = 1000;
const UNANSWERED: u16 = 1011;

/// One end of a WebSocket that is open.
pub struct WebSocket {
    pub reader: Reader,
    /// What its end says to the peer.
    code: u16,
    is_client: bool,
    /// What a ping had that was not answered yet; who pings again hears of the last one.
    ping: Option<Vec<u8>>,
    /// When the next ping of a gateway is due.
    due: Option<Instant>,
    /// How many bytes had come when the last one was sent.
    heard: Option<u64>,
}

impl WebSocket {
    /// Make it behind its handshake, for messages of at most `most` bytes.
    pub fn new(is_client: bool, most: usize, now: Instant) -> Self {
        WebSocket {
            reader: Reader::new(!is_client, most),
            code: NORMAL,
            is_client,
            ping: None,
            due: (!is_client).then(|| now + PING),
            heard: None,
        }
    }

    /// Return when something is to be done, if nothing happens.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Read a frame, as `Reader` does; what ends the connection, which the peer may do, is an error.
    pub fn next(&mut self, received: &mut [u8]) -> io::Result<Option<(usize, Found)>> {
        let found = self.reader.next(received).map_err(|violation| {
            self.code = violation.code;
            io::Error::other(violation.sentence)
        })?;
        match &found {
            Some((_, Found::Ping(place))) => self.ping = Some(received[place.clone()].to_vec()),
            Some((_, Found::Closed(code))) => {
                self.code = if *code == NO_CODE { NORMAL } else { *code };
                let ended = format!("the peer ended the WebSocket ({code})");
                return Err(io::Error::other(ended));
            }
            _ => {}
        }
        Ok(found)
    }

    /// Append what was asked for since.
    pub fn answer(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match self.ping.take() {
            Some(content) => self.say(out, Kind::Pong, &content),
            None => Ok(()),
        }
    }

    /// Append a ping when one is due; an error if nothing has come since the last one.
    pub fn keep_alive(&mut self, now: Instant, came: u64, out: &mut Vec<u8>) -> io::Result<()> {
        if self.due.is_none_or(|due| now < due) {
            return Ok(());
        }
        if self.heard == Some(came) {
            self.code = UNANSWERED;
            return Err(io::Error::other("a ping was not answered"));
        }
        self.heard = Some(came);
        self.due = Some(now + PING);
        self.say(out, Kind::Ping, &[])
    }

    /// Append the end.
    pub fn close(&self, out: &mut Vec<u8>) -> io::Result<()> {
        self.say(out, Kind::Close, &self.code.to_be_bytes())
    }

    /// Return how many bytes `frame` wants in front of a message.
    pub fn reserved_bytes(&self) -> usize {
        reserved_bytes(self.is_client)
    }

    /// Make a message of what stands in `out` behind `start` and its `reserved_bytes`.
    pub fn frame(&self, out: &mut Vec<u8>, start: usize) -> io::Result<()> {
        frame(out, start, Kind::Binary, self.mask()?);
        Ok(())
    }

    fn say(&self, out: &mut Vec<u8>, kind: Kind, content: &[u8]) -> io::Result<()> {
        let start = out.len();
        out.extend_from_slice(&[0; MAX_HEADER_BYTES][..self.reserved_bytes()]);
        out.extend_from_slice(content);
        frame(out, start, kind, self.mask()?);
        Ok(())
    }

    /// Return what hides one frame of a client from who could have chosen it (section 10.3).
    fn mask(&self) -> io::Result<Option<[u8; 4]>> {
        if !self.is_client {
            return Ok(None);
        }
        let mut mask = [0; 4];
        rand::fill(&mut mask).map_err(|_| io::Error::other("the system has no randomness"))?;
        Ok(Some(mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_pings_and_gives_up_who_is_silent() {
        let (mut now, mut out) = (Instant::now(), Vec::new());
        let mut gateway = WebSocket::new(false, 5, now);
        for came in [7, 9] {
            assert_eq!(gateway.due(), Some(now + PING));
            gateway.keep_alive(now, came, &mut out).unwrap();
            assert!(out.is_empty());
            now += PING;
            gateway.keep_alive(now, came, &mut out).unwrap();
            assert_eq!(std::mem::take(&mut out), [0x89, 0]);
        }
        assert!(gateway.keep_alive(now + PING, 9, &mut out).is_err());
        gateway.close(&mut out).unwrap();
        assert_eq!(out, [0x88, 2, 0x03, 0xF3]);
    }

    #[test]
    fn an_end_is_answered_with_its_code_and_a_violation_with_its_own() {
        for (said, answer) in [
            (&b"\x88\x02\x03\xE9"[..], 1001_u16),
            (b"\x88\x00", 1000),
            (b"\x81\x01a", 1003),
            (b"\x82\x06", 1009),
            (b"\x83\x00", 1002),
        ] {
            let mut client = WebSocket::new(true, 5, Instant::now());
            client.next(&mut said.to_vec()).unwrap_err();
            let mut out = Vec::new();
            client.close(&mut out).unwrap();
            let (_, found) = Reader::new(true, 5).next(&mut out).unwrap().unwrap();
            assert_eq!(found, Found::Closed(answer));
        }
    }

    #[test]
    fn a_client_answers_the_last_ping_under_other_masks_each_time() {
        let (now, mut out) = (Instant::now(), Vec::new());
        let mut client = WebSocket::new(true, 5, now);
        client.keep_alive(now + PING, 0, &mut out).unwrap();
        assert!(out.is_empty() && client.due().is_none());
        let mut masks = Vec::new();
        for _ in 0..4 {
            for ping in [&b"\x89\x02no"[..], b"\x89\x05again"] {
                client.next(&mut ping.to_vec()).unwrap();
            }
            client.answer(&mut out).unwrap();
            assert_eq!(out[..2], [0x8A, 0x85]);
            masks.push(out[2..6].to_vec());
            assert_eq!(
                Reader::new(true, 5).next(&mut out),
                Ok(Some((11, Found::Nothing)))
            );
            assert_eq!(&out[6..], b"again");
            out.clear();
        }
        client.answer(&mut out).unwrap();
        assert!(out.is_empty());
        masks.dedup();
        assert!(masks.len() > 1);
    }
}
