//! Frames of a WebSocket (RFC 6455) that carries binary messages and has no extensions.

use std::ops::Range;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const CONTROL: u8 = 0x8;
/// Lengths of two bytes and of eight (section 5.2).
const SHORT: u8 = 126;
const LONG: u8 = 127;
const MAX_CONTROL_BYTES: u64 = 125;
const MASK_BYTES: usize = 4;

const PROTOCOL_ERROR: u16 = 1002;
const UNSUPPORTED: u16 = 1003;
const INVALID_TEXT: u16 = 1007;
const TOO_BIG: u16 = 1009;
/// Stands for the code of an end that has none; nobody sends it.
pub const NO_CODE: u16 = 1005;

/// Longest header of a frame.
pub const MAX_HEADER_BYTES: usize = 14;

/// What a frame is that is sent; messages are sent whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Binary = 0x2,
    Close = 0x8,
    Ping = 0x9,
    Pong = 0xA,
}

/// Why what came ends the connection, with the code to close it with (section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub code: u16,
    pub sentence: &'static str,
}

const fn violation(code: u16, sentence: &'static str) -> Violation {
    Violation { code, sentence }
}

/// What a frame that came has, by its place in what was received.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing yet, or nothing to be done about.
    Nothing,
    /// A whole message, which came in one frame.
    Message(Range<usize>),
    /// A whole message that came in several; `parts` has it.
    Parts,
    /// What a Pong has to repeat.
    Ping(Range<usize>),
    /// The peer's end, with its code, 1005 where it gave none.
    Closed(u16),
}

/// Reads the frames of one peer.
pub struct Reader {
    of_client: bool,
    most: usize,
    parts: Vec<u8>,
    is_within: bool,
}

struct Header {
    start: usize,
    length: u64,
    mask: Option<[u8; MASK_BYTES]>,
}

impl Reader {
    /// Read a client's frames, which are masked, or a server's; a message has at most `most` bytes.
    pub fn new(of_client: bool, most: usize) -> Self {
        Reader {
            of_client,
            most,
            parts: Vec::new(),
            is_within: false,
        }
    }

    /// Read the frame at the start of `received`, in place; returns where it ends and what it has,
    /// None while it is not whole.
    ///
    /// What cannot be right is refused as soon as that shows. Nothing is read behind a refusal or
    /// the peer's end.
    pub fn next(&mut self, received: &mut [u8]) -> Result<Option<(usize, Found)>, Violation> {
        let Some(&[first, second]) = received.first_chunk::<2>() else {
            return Ok(None);
        };
        self.check(first, second)?;
        let Some(header) = read_header(second, received)? else {
            return Ok(None);
        };
        let opcode = first & 0x0F;
        let before = if self.is_within { self.parts.len() } else { 0 };
        if opcode < CONTROL && header.length > (self.most - before) as u64 {
            return Err(violation(TOO_BIG, "a message is longer than any"));
        }
        let end = header.start + header.length as usize;
        if received.len() < end {
            return Ok(None);
        }
        let content = &mut received[header.start..end];
        if let Some(mask) = header.mask {
            mask_over(mask, content);
        }
        let place = header.start..end;
        let found = match opcode {
            0x8 => Found::Closed(code_of(content)?),
            0x9 => Found::Ping(place),
            0xA => Found::Nothing,
            _ if first & FIN != 0 && !self.is_within => Found::Message(place),
            _ => {
                if !self.is_within {
                    self.parts.clear();
                }
                self.is_within = first & FIN == 0;
                self.parts.extend_from_slice(content);
                if self.is_within {
                    Found::Nothing
                } else {
                    Found::Parts
                }
            }
        };
        Ok(Some((end, found)))
    }

    /// Return the message of `Parts`, until the next one begins.
    pub fn parts(&mut self) -> &mut [u8] {
        &mut self.parts
    }

    fn check(&self, first: u8, second: u8) -> Result<(), Violation> {
        let opcode = first & 0x0F;
        let fault = if first & RESERVED != 0 {
            "a reserved bit is set"
        } else if (second & MASKED != 0) != self.of_client {
            "a client masks what it sends, and a server does not"
        } else {
            match opcode {
                TEXT => return Err(violation(UNSUPPORTED, "a carrier has no text")),
                CONTINUATION if !self.is_within => "nothing is to be continued",
                0x2 if self.is_within => "a message begins within another one",
                CONTINUATION | 0x2 => return Ok(()),
                0x8..=0xA if first & FIN == 0 => "a control frame has parts",
                0x8..=0xA if u64::from(second & !MASKED) > MAX_CONTROL_BYTES => {
                    "a control frame is longer than any"
                }
                0x8..=0xA => return Ok(()),
                _ => "there is no such frame",
            }
        };
        Err(violation(PROTOCOL_ERROR, fault))
    }
}

fn read_header(second: u8, received: &[u8]) -> Result<Option<Header>, Violation> {
    let rest = &received[2..];
    let (length, least, taken) = match second & !MASKED {
        SHORT => match rest.first_chunk() {
            Some(length) => (u64::from(u16::from_be_bytes(*length)), u64::from(SHORT), 2),
            None => return Ok(None),
        },
        LONG => match rest.first_chunk() {
            Some(length) => (u64::from_be_bytes(*length), 0x1_0000, 8),
            None => return Ok(None),
        },
        length => (u64::from(length), 0, 0),
    };
    if length < least || length >> 63 != 0 {
        return Err(violation(
            PROTOCOL_ERROR,
            "a length is not written as it has to be",
        ));
    }
    let mut start = 2 + taken;
    let mask = if second & MASKED == 0 {
        None
    } else {
        let Some(mask) = received[start..].first_chunk::<MASK_BYTES>() else {
            return Ok(None);
        };
        start += MASK_BYTES;
        Some(*mask)
    };
    Ok(Some(Header {
        start,
        length,
        mask,
    }))
}

/// Return the code of a peer's end (section 7.4).
fn code_of(content: &[u8]) -> Result<u16, Violation> {
    let Some(code) = content.first_chunk::<2>() else {
        return match content {
            [] => Ok(NO_CODE),
            _ => Err(violation(PROTOCOL_ERROR, "half a code is none")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(violation(PROTOCOL_ERROR, "nobody sends this code"));
    }
    match std::str::from_utf8(&content[2..]) {
        Ok(_) => Ok(code),
        Err(_) => Err(violation(INVALID_TEXT, "a reason is no text")),
    }
}

/// Mask what is plain, or the other way round (section 5.3).
fn mask_over(mask: [u8; MASK_BYTES], content: &mut [u8]) {
    const WORD: usize = size_of::<u64>();
    let word = u64::from(u32::from_ne_bytes(mask));
    let word = word << 32 | word;
    let mut words = content.chunks_exact_mut(WORD);
    for each in &mut words {
        let plain = u64::from_ne_bytes(each.try_into().expect("a word has its length"));
        each.copy_from_slice(&(plain ^ word).to_ne_bytes());
    }
    for (byte, key) in words
        .into_remainder()
        .iter_mut()
        .zip(mask.into_iter().cycle())
    {
        *byte ^= key;
    }
}

/// Return how many bytes stand in front of what `frame` is given.
pub fn reserved_bytes(is_masked: bool) -> usize {
    if is_masked {
        MAX_HEADER_BYTES
    } else {
        MAX_HEADER_BYTES - MASK_BYTES
    }
}

/// Make a frame of what stands in `out` behind `start` and its `reserved_bytes`; a client gives a
/// `mask` that nobody can know before, another one for each frame.
pub fn frame(out: &mut Vec<u8>, start: usize, kind: Kind, mask: Option<[u8; MASK_BYTES]>) {
    let content = start + reserved_bytes(mask.is_some());
    let length = out.len() - content;
    if let Some(mask) = mask {
        mask_over(mask, &mut out[content..]);
    }
    let bit = if mask.is_some() { MASKED } else { 0 };
    let mut header = [0; MAX_HEADER_BYTES];
    header[0] = FIN | kind as u8;
    let mut size = 2;
    if length <= MAX_CONTROL_BYTES as usize {
        header[1] = bit | length as u8;
    } else if let Ok(length) = u16::try_from(length) {
        header[1] = bit | SHORT;
        header[2..4].copy_from_slice(&length.to_be_bytes());
        size = 4;
    } else {
        header[1] = bit | LONG;
        header[2..10].copy_from_slice(&(length as u64).to_be_bytes());
        size = 10;
    }
    if let Some(mask) = mask {
        header[size..size + MASK_BYTES].copy_from_slice(&mask);
        size += MASK_BYTES;
    }
    // Bulk fills what is reserved; what is shorter has little to move.
    if start + size < content {
        out.copy_within(content.., start + size);
        out.truncate(start + size + length);
    }
    out[start..start + size].copy_from_slice(&header[..size]);
}
