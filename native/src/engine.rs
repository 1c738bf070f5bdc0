//! The I/O thread: it drives all connections of an engine, and never holds the interpreter's lock.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events as Polled, Poll, Registry, Token, Waker};

use crate::channels::Content;
use crate::connection::Connection;
use crate::events::Events;
use crate::sockets::Scratch;

const WAKER: Token = Token(0);

/// A step of another thread, which is taken between two turns of the I/O thread.
pub type Step = Box<dyn FnOnce(Option<&mut Connection>, &mut Outside<'_>) + Send>;

/// What other threads ask of the I/O thread.
pub enum Command {
    /// Drive a connection from now on.
    Add(u32, Arc<Mutex<Connection>>),
    /// Take a step with a connection, or without when it is over.
    Step(u32, Step),
    /// Queue a message on a channel.
    Send(u32, u32, Content),
    /// Close a channel after what is queued.
    CloseChannel(u32, u32),
    /// Read a connection's sockets again: Python has caught up.
    Resume(u32),
    /// Say goodbye on a connection and free it.
    Close(u32),
    /// End the thread; all connections are closed.
    Stop,
}

/// Where commands are put; the thread is woken once for as many as come before it looks.
#[derive(Clone)]
pub struct Mailbox {
    sender: Sender<Command>,
    waker: Arc<Mutex<Option<Waker>>>,
    is_awake: Arc<AtomicBool>,
}

impl Mailbox {
    /// Put a command; nothing happens once the thread has ended.
    pub fn send(&self, command: Command) {
        if self.sender.send(command).is_ok()
            && !self.is_awake.swap(true, Ordering::AcqRel)
            && let Some(waker) = &*self.waker()
        {
            // It fails only for want of a count, and then the thread is awake anyhow.
            let _ = waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a connection needs of the thread that drives it.
pub struct Outside<'a> {
    pub registry: &'a Registry,
    pub tokens: &'a mut Tokens,
    pub addresses: Option<&'a [IpAddr]>,
}

/// Which socket of which connection a token of the poll stands for.
#[derive(Default)]
pub struct Tokens {
    next: usize,
    owners: HashMap<usize, (u32, usize)>,
}

impl Tokens {
    /// Return a token for socket `index` of a connection.
    pub fn assign(&mut self, connection: u32, index: usize) -> Token {
        self.next += 1;
        self.owners.insert(self.next, (connection, index));
        Token(self.next)
    }

    fn forget(&mut self, connection: u32) {
        self.owners.retain(|_, owner| owner.0 != connection);
    }
}

/// The thread, as others see it.
pub struct Engine {
    pub mailbox: Mailbox,
    pub events: Arc<Events>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Start the thread; without `addresses`, each gathering looks for the machine's.
    pub fn start(addresses: Option<Vec<IpAddr>>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let (sender, commands) = channel();
        let mailbox = Mailbox {
            sender,
            waker: Arc::new(Mutex::new(Some(Waker::new(poll.registry(), WAKER)?))),
            is_awake: Arc::new(AtomicBool::new(false)),
        };
        let events = Arc::new(Events::new()?);
        let driver = Driver {
            poll,
            commands,
            is_awake: mailbox.is_awake.clone(),
            events: events.clone(),
            addresses,
            connections: HashMap::new(),
            tokens: Tokens::default(),
            deadlines: BTreeSet::new(),
            ready: BTreeSet::new(),
        };
        let thread = std::thread::Builder::new()
            .name("fairlead-native".into())
            .spawn(move || driver.run())?;
        Ok(Engine {
            mailbox,
            events,
            thread: Some(thread),
        })
    }

    /// Close all connections, wait until the thread has ended and free every descriptor; again
    /// changes nothing.
    pub fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.mailbox.send(Command::Stop);
            let _ = thread.join();
            self.mailbox.waker().take();
            self.events.close();
        }
    }
}

struct Driver {
    poll: Poll,
    commands: Receiver<Command>,
    is_awake: Arc<AtomicBool>,
    events: Arc<Events>,
    addresses: Option<Vec<IpAddr>>,
    connections: HashMap<u32, Arc<Mutex<Connection>>>,
    tokens: Tokens,
    deadlines: BTreeSet<(Instant, u32)>,
    /// Connections that have something to do now.
    ready: BTreeSet<u32>,
}

impl Driver {
    fn run(mut self) {
        let mut polled = Polled::with_capacity(256);
        let mut scratch = Scratch::new();
        loop {
            if let Err(error) = self.poll.poll(&mut polled, self.patience())
                && error.kind() != io::ErrorKind::Interrupted
            {
                break;
            }
            for event in &polled {
                if let Some(&(id, index)) = self.tokens.owners.get(&event.token().0)
                    && let Some(connection) = self.connections.get(&id)
                {
                    locked(connection).socket_is_ready(index, event.is_readable());
                    self.ready.insert(id);
                }
            }
            self.is_awake.store(false, Ordering::Release);
            if self.take_commands() {
                break;
            }
            let now = Instant::now();
            while let Some(&(due, id)) = self.deadlines.first()
                && due <= now
            {
                self.deadlines.pop_first();
                self.ready.insert(id);
            }
            for id in std::mem::take(&mut self.ready) {
                self.turn(id, now, &mut scratch);
            }
        }
        let ids: Vec<u32> = self.connections.keys().copied().collect();
        for id in ids {
            self.close(id);
        }
    }

    fn patience(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let (due, _) = self.deadlines.first()?;
        // The kernel counts milliseconds: rounding down would make it spin.
        Some(due.saturating_duration_since(Instant::now()) + Duration::from_micros(999))
    }

    /// Take what other threads have asked for; say whether the thread is to end.
    fn take_commands(&mut self) -> bool {
        loop {
            let id = match self.commands.try_recv() {
                Ok(Command::Add(id, connection)) => {
                    self.connections.insert(id, connection);
                    id
                }
                Ok(Command::Step(id, step)) => {
                    let mut outside = Outside {
                        registry: self.poll.registry(),
                        tokens: &mut self.tokens,
                        addresses: self.addresses.as_deref(),
                    };
                    let mut found = self.connections.get(&id).map(locked);
                    step(found.as_deref_mut(), &mut outside);
                    id
                }
                Ok(Command::Send(id, channel, content)) => {
                    if let Some(connection) = self.connections.get(&id) {
                        locked(connection).channels.queue(channel, content);
                    }
                    id
                }
                Ok(Command::CloseChannel(id, channel)) => {
                    if let Some(connection) = self.connections.get(&id) {
                        locked(connection).channels.close(channel);
                    }
                    id
                }
                Ok(Command::Resume(id)) => id,
                Ok(Command::Close(id)) => {
                    self.close(id);
                    continue;
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            };
            self.ready.insert(id);
        }
    }

    fn turn(&mut self, id: u32, now: Instant, scratch: &mut Scratch) {
        let Some(connection) = self.connections.get(&id).cloned() else {
            return;
        };
        let mut connection = locked(&connection);
        if let Some(due) = connection.scheduled.take() {
            self.deadlines.remove(&(due, id));
        }
        let has_more = !connection.is_over() && connection.turn(now, scratch);
        self.events.push(id, &mut connection.events);
        if connection.is_over() {
            self.forget(id, None);
            return;
        }
        if has_more {
            self.ready.insert(id);
        }
        let due = connection.deadline();
        connection.scheduled = Some(due);
        self.deadlines.insert((due, id));
    }

    fn close(&mut self, id: u32) {
        if let Some(connection) = self.connections.get(&id).cloned() {
            let mut connection = locked(&connection);
            connection.close();
            self.events.push(id, &mut connection.events);
            self.forget(id, connection.scheduled.take());
        }
    }

    fn forget(&mut self, id: u32, scheduled: Option<Instant>) {
        self.connections.remove(&id);
        if let Some(due) = scheduled {
            self.deadlines.remove(&(due, id));
        }
        self.ready.remove(&id);
        self.tokens.forget(id);
    }
}

/// Wait for another thread that sends a message of the connection.
fn locked(connection: &Arc<Mutex<Connection>>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}
