//! The frames of a tunnel and their bytes; the table of them is in `fairlead_tunnel.frames`.

use crate::Fault;

/// Bytes in front of a batch's frames.
pub const BATCH_HEADER_BYTES: usize = 16;
/// Bytes of a SEGMENT in front of its content.
pub const SEGMENT_HEADER_BYTES: usize = 17;
/// Longest target of an OPEN.
pub const MAX_TARGET_BYTES: usize = 255;
/// Longest reason of a RESET or CLOSE.
pub const MAX_REASON_BYTES: usize = 64;
/// Longest message of a RESET or CLOSE.
pub const MAX_MESSAGE_BYTES: usize = 1024;
/// Most ranges of an ACK or ALIVE.
pub const MAX_RANGES: usize = 64;
/// Highest offset, length and limit.
pub const MAX_OFFSET: u64 = (1 << 63) - 1;

const NOT_AS_SAID: Fault = Fault("a frame is not as the protocol says");
const CUT: Fault = Fault("the batch is cut short or not text where it should be");

/// One frame; what it holds is borrowed from its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The client wants a channel to a target.
    Open(u32, &'a str),
    /// The target is connected.
    Accepted(u32),
    /// Bytes of a channel from an offset on; at least one.
    Segment(u32, u64, &'a [u8]),
    /// The sender's bytes end at this length; the other direction goes on.
    Fin(u32, u64),
    /// The sender gave the channel up after so many bytes of its own: reason and message.
    Reset(u32, u64, &'a str, &'a str),
    /// The sender takes bytes up to a limit in this channel, or, channel 0, in all of them.
    Window(u32, u64),
    /// Batches that have arrived, as ranges with both ends, lowest first.
    Ack(Vec<(u64, u64)>),
    /// Carriers that the client still waits for; what older ones had under way is lost.
    Alive(Vec<(u64, u64)>),
    /// The sender has ended the tunnel: reason and message.
    Close(&'a str, &'a str),
    /// Asks for an acknowledgement and says nothing else.
    Ping,
}

impl Frame<'_> {
    /// Append the bytes of this frame; a message that is too long is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Open(channel, target) => {
                out.push(1);
                out.extend_from_slice(&channel.to_be_bytes());
                out.push(u8::try_from(target.len()).expect("checked where the channel is opened"));
                out.extend_from_slice(target.as_bytes());
            }
            Frame::Accepted(channel) => {
                out.push(2);
                out.extend_from_slice(&channel.to_be_bytes());
            }
            Frame::Segment(channel, offset, content) => {
                encode_segment_header(*channel, *offset, content.len(), out);
                out.extend_from_slice(content);
            }
            Frame::Fin(channel, length) => encode_counted(4, *channel, *length, out),
            Frame::Reset(channel, length, reason, message) => {
                encode_counted(5, *channel, *length, out);
                encode_sentence(reason, message, out);
            }
            Frame::Window(channel, limit) => encode_counted(6, *channel, *limit, out),
            Frame::Ack(ranges) => {
                out.extend_from_slice(&[7, ranges.len() as u8]);
                for (first, last) in ranges {
                    out.extend_from_slice(&first.to_be_bytes());
                    out.extend_from_slice(&last.to_be_bytes());
                }
            }
            Frame::Alive(ranges) => {
                out.extend_from_slice(&[8, ranges.len() as u8]);
                for (first, last) in ranges {
                    out.extend_from_slice(&(*first as u32).to_be_bytes());
                    out.extend_from_slice(&(*last as u32).to_be_bytes());
                }
            }
            Frame::Close(reason, message) => {
                out.push(9);
                encode_sentence(reason, message, out);
            }
            Frame::Ping => out.push(10),
        }
    }
}

/// Return the 16 bytes in front of a batch's frames.
pub fn batch_header(id: u64, lowest: u64) -> [u8; BATCH_HEADER_BYTES] {
    ((u128::from(id) << 64) | u128::from(lowest)).to_be_bytes()
}

/// Append what stands in front of the bytes of a SEGMENT.
pub fn encode_segment_header(channel: u32, offset: u64, length: usize, out: &mut Vec<u8>) {
    encode_counted(3, channel, offset, out);
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

fn encode_counted(kind: u8, channel: u32, count: u64, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
}

fn encode_sentence(reason: &str, message: &str, out: &mut Vec<u8>) {
    let mut end = message.len().min(MAX_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let said = &message[..end];
    out.push(reason.len() as u8);
    out.extend_from_slice(reason.as_bytes());
    out.extend_from_slice(&(said.len() as u16).to_be_bytes());
    out.extend_from_slice(said.as_bytes());
}

/// Say whether a text can be a reason: lower snake case, 1 to 64 characters.
pub fn is_reason(text: &str) -> bool {
    (1..=MAX_REASON_BYTES).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text
            .bytes()
            .all(|each| each.is_ascii_lowercase() || each.is_ascii_digit() || each == b'_')
}

/// Return a batch's id, its `lowest` and its frames; nothing of it counts when any of it is wrong.
pub fn decode(batch: &[u8]) -> Result<(u64, u64, Vec<Frame<'_>>), Fault> {
    let mut reader = Reader { rest: batch };
    let (id, lowest) = (reader.u64()?, reader.u64()?);
    let mut frames = Vec::with_capacity(4);
    while !reader.rest.is_empty() {
        frames.push(reader.frame()?);
    }
    if !(1..=id).contains(&lowest) {
        return Err(Fault("a batch's numbers are in the wrong order"));
    }
    Ok((id, lowest, frames))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        Ok(self.take(N)?.try_into().expect("as many as asked for"))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn byte(&mut self) -> Result<usize, Fault> {
        Ok(usize::from(self.array::<1>()?[0]))
    }

    fn text(&mut self, length: usize) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.take(length)?).map_err(|_| CUT)
    }

    fn channel(&mut self) -> Result<u32, Fault> {
        let channel = self.u32()?;
        require(channel > 0)?;
        Ok(channel)
    }

    fn count(&mut self) -> Result<u64, Fault> {
        let count = self.u64()?;
        require(count <= MAX_OFFSET)?;
        Ok(count)
    }

    fn sentence(&mut self) -> Result<(&'a str, &'a str), Fault> {
        let length = self.byte()?;
        let reason = self.text(length)?;
        require(is_reason(reason))?;
        let length = usize::from(u16::from_be_bytes(self.array()?));
        require(length <= MAX_MESSAGE_BYTES)?;
        Ok((reason, self.text(length)?))
    }

    fn ranges(
        &mut self,
        number: impl Fn(&mut Self) -> Result<u64, Fault>,
    ) -> Result<Vec<(u64, u64)>, Fault> {
        let count = self.byte()?;
        require(count <= MAX_RANGES)?;
        let mut found = Vec::with_capacity(count);
        let mut above = 0;
        for _ in 0..count {
            let (first, last) = (number(self)?, number(self)?);
            require(above < first && first <= last)?;
            above = last;
            found.push((first, last));
        }
        Ok(found)
    }

    fn frame(&mut self) -> Result<Frame<'a>, Fault> {
        Ok(match self.byte()? {
            1 => {
                let channel = self.channel()?;
                let length = self.byte()?;
                Frame::Open(channel, self.text(length)?)
            }
            2 => Frame::Accepted(self.channel()?),
            3 => {
                let (channel, offset) = (self.channel()?, self.u64()?);
                let length = self.u32()? as usize;
                let end = offset.checked_add(length as u64).ok_or(NOT_AS_SAID)?;
                require(length > 0 && end <= MAX_OFFSET)?;
                Frame::Segment(channel, offset, self.take(length)?)
            }
            4 => Frame::Fin(self.channel()?, self.count()?),
            5 => {
                let (channel, length) = (self.channel()?, self.count()?);
                let (reason, message) = self.sentence()?;
                Frame::Reset(channel, length, reason, message)
            }
            6 => Frame::Window(self.u32()?, self.count()?),
            7 => Frame::Ack(self.ranges(Self::u64)?),
            8 => Frame::Alive(self.ranges(|reader| reader.u32().map(u64::from))?),
            9 => {
                let (reason, message) = self.sentence()?;
                Frame::Close(reason, message)
            }
            10 => Frame::Ping,
            _ => return Err(NOT_AS_SAID),
        })
    }
}

fn require(holds: bool) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(NOT_AS_SAID) }
}
