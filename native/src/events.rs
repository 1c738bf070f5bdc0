//! What the I/O thread tells Python: a queue, and one eventfd that is readable while it holds any.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channels::{Content, Outlet};

/// Bytes of one connection that wait for Python above which its sockets are not read.
pub const MOST_UNREAD: usize = 8 * 1024 * 1024;

/// One thing that happened to a connection or to one of its channels.
pub enum Event {
    /// A local candidate, as the value of an `a=candidate` line.
    Candidate(String),
    /// There are no more local candidates.
    Gathered,
    /// The connection's state, and why.
    State(State, Reason),
    /// The peer opened a channel.
    Channel(Box<PeerChannel>),
    /// A channel of ours is open at the peer as well.
    Opened(u32),
    /// A message of the peer.
    Message(u32, Content, Arc<AtomicUsize>),
    /// What a channel has queued fell below its low-water mark.
    Low(u32),
    /// A channel is closed, whoever closed it.
    Closed(u32),
}

/// A channel that the peer opened.
pub struct PeerChannel {
    pub outlet: Outlet,
    pub label: String,
    pub protocol: String,
    pub ordered: bool,
    pub reliable: bool,
}

/// The states of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Connecting,
    Connected,
    Disconnected,
    Failed,
    Closed,
}

impl State {
    /// Return the name that Python knows.
    pub fn name(self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::Connected => "connected",
            State::Disconnected => "disconnected",
            State::Failed => "failed",
            State::Closed => "closed",
        }
    }
}

/// Why a connection is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It goes as it should.
    None,
    /// Nothing has come from the peer (RFC 7675), or no pair of candidates works any more.
    Silent,
    /// No pair of candidates ever worked.
    Unreachable,
    /// The peer said goodbye (DTLS close_notify, SCTP ABORT).
    Peer,
    /// This side closed it.
    Local,
    /// The peer broke a protocol, or is not who its description says.
    Protocol,
}

impl Reason {
    /// Return the name that Python knows.
    pub fn name(self) -> &'static str {
        match self {
            Reason::None => "",
            Reason::Silent => "silent",
            Reason::Unreachable => "unreachable",
            Reason::Peer => "peer",
            Reason::Local => "local",
            Reason::Protocol => "protocol",
        }
    }
}

/// The queue; `push` is for the I/O thread, `take` for Python's.
pub struct Events<E = Event> {
    inside: Mutex<Inside<E>>,
}

struct Inside<E> {
    queue: Vec<(u32, E)>,
    signal: Option<Arc<OwnedFd>>,
}

impl<E> Events<E> {
    /// Make the queue and its eventfd.
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd(2) takes no pointers, and its result is checked before it is owned.
        let signal = unsafe {
            let found = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if found < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(found)
        };
        Ok(Events {
            inside: Mutex::new(Inside {
                queue: Vec::new(),
                signal: Some(Arc::new(signal)),
            }),
        })
    }

    /// Return the descriptor that a loop waits on, or -1 once it is freed.
    pub fn descriptor(&self) -> i32 {
        self.inside()
            .signal
            .as_ref()
            .map_or(-1, |signal| signal.as_raw_fd())
    }

    /// Free the descriptor; what is queued can still be taken.
    pub fn close(&self) {
        self.inside().signal = None;
    }

    /// Add what a connection has said, in order, and wake the reader if the queue was empty.
    pub fn push(&self, connection: u32, events: &mut Vec<E>) {
        if events.is_empty() {
            return;
        }
        let signal = {
            let mut inside = self.inside();
            let was_empty = inside.queue.is_empty();
            inside
                .queue
                .extend(events.drain(..).map(|event| (connection, event)));
            inside.signal.clone().filter(|_| was_empty)
        };
        // Whom this wakes takes the queue at once: it does not find it locked.
        if let Some(signal) = signal {
            let one = 1u64;
            // SAFETY: eight bytes of a live value, as eventfd(2) asks.
            unsafe { libc::write(signal.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Take all events, oldest first; the descriptor is not readable afterwards, but for those that
    /// are just being pushed.
    pub fn take(&self) -> Vec<(u32, E)> {
        let mut inside = self.inside();
        if let Some(signal) = &inside.signal {
            let mut count = 0u64;
            // SAFETY: eight bytes of a live value, as eventfd(2) asks.
            unsafe { libc::read(signal.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
        std::mem::take(&mut inside.queue)
    }

    fn inside(&self) -> MutexGuard<'_, Inside<E>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Note that Python has a message; say whether the sockets may be read again because of it.
pub fn note_read(unread: &AtomicUsize, size: usize) -> bool {
    let before = unread.fetch_sub(size, Ordering::AcqRel);
    before > MOST_UNREAD / 2 && before - size <= MOST_UNREAD / 2
}
