//! The data channels of one connection: what waits to be sent on each, outside of str0m.
//!
//! str0m's own buffer is shared by all channels, so it holds no more than 128 KiB that are not sent,
//! and each channel has a queue of its own here, of which one message at a time goes in.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use str0m::Rtc;
use str0m::channel::{ChannelConfig, ChannelId, Reliability};

use crate::connection::Connection;
use crate::engine::{Command, Mailbox};
use crate::events::{Event, PeerChannel};

/// Longest message in bytes: what a peer takes that does not say more (RFC 8841, section 6.1).
pub const LONGEST: usize = 65536;
/// Bytes that a channel has queued at or below which it says that there is room.
pub const LOW_WATER: usize = 128 * 1024;
/// Most bytes of a message that leaves on the thread that sends it: more is better done beside it.
const MOST_DIRECT: usize = 1024;
/// The stream of the channel that puts the data section into an offer; it carries nothing.
const KEEPER_STREAM: u16 = 65534;

/// A message of either kind.
pub enum Content {
    Binary(Vec<u8>),
    Text(String),
}

impl Content {
    /// Return the bytes of it, and whether they are binary.
    pub fn bytes(&self) -> (&[u8], bool) {
        match self {
            Content::Binary(content) => (content, true),
            Content::Text(text) => (text.as_bytes(), false),
        }
    }

    /// Return how many bytes it has.
    pub fn size(&self) -> usize {
        self.bytes().0.len()
    }
}

/// A connection, of which the I/O thread takes turns and others take what does not wait for it.
pub type Home = Weak<Mutex<Connection>>;

/// The end of a channel at which another thread puts messages in.
#[derive(Clone)]
pub struct Outlet {
    pub connection: u32,
    pub channel: u32,
    pub queued: Arc<AtomicUsize>,
    pub mailbox: Mailbox,
    home: Home,
}

impl Outlet {
    /// Queue a message; a short one leaves at once, on this thread, where nothing else is under way.
    pub fn send(&self, content: Content) {
        let size = content.size();
        let is_first = self.queued.fetch_add(size, Ordering::AcqRel) == 0;
        if is_first
            && size <= MOST_DIRECT
            && let Some(home) = self.home.upgrade()
            && let Ok(mut connection) = home.try_lock()
            && connection.is_idle()
        {
            connection.channels.queue(self.channel, content);
            if connection.advance(Instant::now()) {
                self.mailbox.send(Command::Resume(self.connection));
            }
            return;
        }
        self.mailbox
            .send(Command::Send(self.connection, self.channel, content));
    }

    /// Close the channel after what is queued.
    pub fn close(&self) {
        self.mailbox
            .send(Command::CloseChannel(self.connection, self.channel));
    }
}

struct Channel {
    id: ChannelId,
    waiting: VecDeque<Content>,
    queued: Arc<AtomicUsize>,
    is_open: bool,
    is_closing: bool,
}

/// All channels of a connection.
pub struct Channels {
    connection: u32,
    mailbox: Mailbox,
    home: Home,
    next: u32,
    entries: HashMap<u32, Channel>,
    numbers: HashMap<ChannelId, u32>,
    /// Those that are open and have something to send, in the order of their turns.
    turns: VecDeque<u32>,
    unread: Arc<AtomicUsize>,
}

impl Channels {
    /// Make it with no channel.
    pub fn new(connection: u32, mailbox: Mailbox, home: Home, unread: Arc<AtomicUsize>) -> Self {
        Channels {
            connection,
            mailbox,
            home,
            next: 0,
            entries: HashMap::new(),
            numbers: HashMap::new(),
            turns: VecDeque::new(),
            unread,
        }
    }

    /// Say whether no channel has anything to send or to end.
    pub fn are_idle(&self) -> bool {
        self.turns.is_empty()
    }

    /// Return the configuration of the channel that stands for the data section in an offer.
    pub fn keeper() -> ChannelConfig {
        ChannelConfig {
            label: "keeper".into(),
            negotiated: Some(KEEPER_STREAM),
            ..Default::default()
        }
    }

    /// Open an ordered, reliable channel, now or as soon as the association is there.
    pub fn open(&mut self, rtc: &mut Rtc, label: String, protocol: String) -> Outlet {
        let id = rtc.direct_api().create_data_channel(ChannelConfig {
            label,
            protocol,
            ..Default::default()
        });
        self.add(id, false)
    }

    fn add(&mut self, id: ChannelId, is_open: bool) -> Outlet {
        let number = self.next;
        self.next += 1;
        let queued = Arc::new(AtomicUsize::new(0));
        self.numbers.insert(id, number);
        self.entries.insert(
            number,
            Channel {
                id,
                waiting: VecDeque::new(),
                queued: queued.clone(),
                is_open,
                is_closing: false,
            },
        );
        Outlet {
            connection: self.connection,
            channel: number,
            queued,
            mailbox: self.mailbox.clone(),
            home: self.home.clone(),
        }
    }

    /// Take note of a channel that str0m says is open: one of ours, or the peer's.
    pub fn opened(&mut self, rtc: &mut Rtc, id: ChannelId, events: &mut Vec<Event>) {
        if let Some(&number) = self.numbers.get(&id) {
            let channel = self.entries.get_mut(&number).expect("both maps agree");
            channel.is_open = true;
            self.turns.push_back(number);
            events.push(Event::Opened(number));
            return;
        }
        let Some(config) = rtc.channel(id).and_then(|found| found.config().cloned()) else {
            return;
        };
        if config.negotiated == Some(KEEPER_STREAM) {
            return;
        }
        events.push(Event::Channel(Box::new(PeerChannel {
            outlet: self.add(id, true),
            label: config.label,
            protocol: config.protocol,
            ordered: config.ordered,
            reliable: config.reliability == Reliability::Reliable,
        })));
    }

    /// Take a message of the peer.
    pub fn received(
        &mut self,
        id: ChannelId,
        is_binary: bool,
        content: Vec<u8>,
        events: &mut Vec<Event>,
    ) {
        let Some(&number) = self.numbers.get(&id) else {
            return;
        };
        let content = if is_binary {
            Content::Binary(content)
        } else {
            Content::Text(String::from_utf8_lossy(&content).into_owned())
        };
        self.unread.fetch_add(content.size(), Ordering::AcqRel);
        events.push(Event::Message(number, content, self.unread.clone()));
    }

    /// Forget a channel that str0m says is closed.
    pub fn closed(&mut self, id: ChannelId, events: &mut Vec<Event>) {
        if let Some(number) = self.numbers.remove(&id) {
            self.entries.remove(&number);
            events.push(Event::Closed(number));
        }
    }

    /// Forget all channels: the connection is over.
    pub fn close_all(&mut self, events: &mut Vec<Event>) {
        let mut numbers: Vec<u32> = self.entries.drain().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        events.extend(numbers.into_iter().map(Event::Closed));
        self.numbers.clear();
        self.turns.clear();
    }

    /// Queue a message; dropped when the channel is closed.
    pub fn queue(&mut self, number: u32, content: Content) {
        let Some(channel) = self.entries.get_mut(&number) else {
            return;
        };
        if channel.is_closing {
            return;
        }
        if channel.is_open && channel.waiting.is_empty() {
            self.turns.push_back(number);
        }
        channel.waiting.push_back(content);
    }

    /// Close a channel once what it has queued is with str0m, which sends that first.
    pub fn close(&mut self, number: u32) {
        if let Some(channel) = self.entries.get_mut(&number) {
            channel.is_closing = true;
            if channel.is_open {
                self.turns.push_back(number);
            }
        }
    }

    /// Hand messages to str0m while it takes them, one of each channel in turn; say whether any
    /// was.
    pub fn fill(&mut self, rtc: &mut Rtc, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        while let Some(&number) = self.turns.front() {
            let Some(channel) = self.entries.get_mut(&number) else {
                self.turns.pop_front();
                continue;
            };
            let Some(content) = channel.waiting.front() else {
                self.turns.pop_front();
                if channel.is_closing {
                    rtc.direct_api().close_data_channel(channel.id);
                    moved = true;
                }
                continue;
            };
            let (bytes, is_binary) = content.bytes();
            let taken = rtc
                .channel(channel.id)
                .is_some_and(|mut found| found.write(is_binary, bytes).unwrap_or(false));
            if !taken {
                break;
            }
            let size = bytes.len();
            channel.waiting.pop_front();
            let before = channel.queued.fetch_sub(size, Ordering::AcqRel);
            if before > LOW_WATER && before - size <= LOW_WATER {
                events.push(Event::Low(number));
            }
            moved = true;
            self.turns.pop_front();
            if !channel.waiting.is_empty() || channel.is_closing {
                self.turns.push_back(number);
            }
        }
        moved
    }
}
