//! The thread that pumps tunnels between their carriers and the connections at the ends of their
//! channels, and never holds the interpreter's lock.

mod buffers;
mod carrier;
mod dials;
mod lane;
mod listener;
mod port;
mod socks;
mod websocket;

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events as Polled, Interest, Poll, Registry, Token, Waker};
use socket2::Socket;

use crate::events::Events;
use buffers::Buffers;
pub use carrier::{Given, Keys};
pub use dials::{Patience, address_of};
pub use lane::{Counts, Happening, Lane};
pub use listener::Leads;

const WAKER: Token = Token(0);
/// Stands for all tunnels, in what happens to all of them.
const ALL: u32 = u32::MAX;

/// A step of another thread, which is taken between two turns.
pub type Step = Box<dyn FnOnce(&mut Pump) + Send>;

/// Which socket of a tunnel a token of the poll stands for, by carrier, channel or listener, or the number of
/// a client of SOCKS.
#[derive(Clone, Copy)]
pub enum Role {
    Carrier(u32),
    Port(u32),
    Socks(u32),
    Listener(u32),
}

/// What a lane needs of the thread that drives it.
pub struct Surroundings {
    registry: Registry,
    next: usize,
    owners: HashMap<usize, (u32, Role)>,
    buffers: Buffers,
}

impl Surroundings {
    /// Watch a socket, which is not blocking from now on.
    fn watch(&mut self, socket: &Socket, lane: u32, role: Role) -> io::Result<Token> {
        socket.set_nonblocking(true)?;
        let token = Token(self.next + 1);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry
            .register(&mut SourceFd(&socket.as_raw_fd()), token, interest)?;
        self.next += 1;
        self.owners.insert(self.next, (lane, role));
        Ok(token)
    }

    /// Have a socket that is watched stand for something else from now on.
    fn turn_into(&mut self, token: Token, lane: u32, role: Role) {
        self.owners.insert(token.0, (lane, role));
    }

    /// Watch a socket no more, which another process or the interpreter may still hold.
    fn forget(&mut self, socket: &Socket, token: Token) {
        self.owners.remove(&token.0);
        // It was registered: what fails here is a descriptor that is gone anyhow.
        let _ = self.registry.deregister(&mut SourceFd(&socket.as_raw_fd()));
    }
}

/// The thread, as others see it.
pub struct PumpThread {
    pub events: Arc<Events<Happening>>,
    steps: Sender<Step>,
    waker: Option<Waker>,
    is_awake: Arc<AtomicBool>,
    has_failed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PumpThread {
    /// Start it.
    pub fn start() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let registry = poll.registry().try_clone()?;
        let (sender, steps) = channel();
        let is_awake = Arc::new(AtomicBool::new(false));
        let events = Arc::new(Events::new()?);
        let has_failed = Arc::new(AtomicBool::new(false));
        let mut pump = Pump {
            poll,
            steps,
            is_awake: is_awake.clone(),
            events: events.clone(),
            lanes: HashMap::new(),
            around: Surroundings {
                registry,
                next: 0,
                owners: HashMap::new(),
                buffers: Buffers::default(),
            },
            deadlines: BTreeSet::new(),
            ready: BTreeSet::new(),
            is_stopped: false,
        };
        let failed = has_failed.clone();
        let thread = std::thread::Builder::new()
            .name("fairlead-pump".into())
            .spawn(move || {
                // Nobody looks at what it has again: it is dropped, and every connection with it.
                let run = catch_unwind(AssertUnwindSafe(|| pump.run()));
                if let Err(panic) = run {
                    failed.store(true, Ordering::Release);
                    let mut happenings = vec![Happening::Failed(what_it_says(&*panic))];
                    pump.events.push(ALL, &mut happenings);
                }
            })?;
        Ok(PumpThread {
            events,
            steps: sender,
            waker: Some(waker),
            is_awake,
            has_failed,
            thread: Some(thread),
        })
    }

    /// Say whether it has ended by a fault of its own: nothing is done any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Have a step taken; nothing happens once the thread has ended.
    pub fn send(&self, step: Step) {
        if self.steps.send(step).is_ok()
            && !self.is_awake.swap(true, Ordering::AcqRel)
            && let Some(waker) = &self.waker
        {
            // It fails only for want of a count, and then the thread is awake anyhow.
            let _ = waker.wake();
        }
    }

    /// Drop all connections and carriers, and wait until the thread has ended; again changes
    /// nothing.
    pub fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.send(Box::new(|pump| pump.is_stopped = true));
            let _ = thread.join();
            self.waker = None;
            self.events.close();
        }
    }
}

/// What the thread has.
pub struct Pump {
    poll: Poll,
    steps: Receiver<Step>,
    is_awake: Arc<AtomicBool>,
    events: Arc<Events<Happening>>,
    lanes: HashMap<u32, Lane>,
    around: Surroundings,
    deadlines: BTreeSet<(Instant, u32)>,
    /// Lanes that have something to do now.
    ready: BTreeSet<u32>,
    is_stopped: bool,
}

impl Pump {
    /// Drive a lane from now on.
    pub fn add(&mut self, lane: Lane) {
        self.lanes.insert(lane.id, lane);
    }

    /// Return a lane and what it needs, and have it take a turn.
    pub fn lane(&mut self, id: u32) -> Option<(&mut Lane, &mut Surroundings)> {
        let lane = self.lanes.get_mut(&id)?;
        self.ready.insert(id);
        Some((lane, &mut self.around))
    }

    /// Have a lane no more that Python has heard the end of.
    pub fn forget(&mut self, id: u32) {
        if let Some(mut lane) = self.lanes.remove(&id) {
            self.ready.remove(&id);
            if let Some(due) = lane.scheduled.take() {
                self.deadlines.remove(&(due, id));
            }
            lane.happenings.push(Happening::Forgotten);
            self.events.push(id, &mut lane.happenings);
        }
    }

    fn run(&mut self) {
        let mut polled = Polled::with_capacity(512);
        while !self.is_stopped {
            if let Err(error) = self.poll.poll(&mut polled, self.patience())
                && error.kind() != io::ErrorKind::Interrupted
            {
                break;
            }
            for event in &polled {
                if let Some(&(id, role)) = self.around.owners.get(&event.token().0)
                    && let Some(lane) = self.lanes.get_mut(&id)
                {
                    lane.socket_is_ready(role, event);
                    self.ready.insert(id);
                }
            }
            self.is_awake.store(false, Ordering::Release);
            self.take_steps();
            let now = Instant::now();
            while let Some(&(due, id)) = self.deadlines.first()
                && due <= now
            {
                self.deadlines.pop_first();
                self.ready.insert(id);
            }
            for id in std::mem::take(&mut self.ready) {
                self.turn(id, now);
            }
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

    fn take_steps(&mut self) {
        loop {
            match self.steps.try_recv() {
                Ok(step) => step(self),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_stopped = true;
                    return;
                }
            }
        }
    }

    fn turn(&mut self, id: u32, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if let Some(due) = lane.scheduled.take() {
            self.deadlines.remove(&(due, id));
        }
        if lane.turn(now, &mut self.around) {
            self.ready.insert(id);
        }
        lane.end_if_over(now, &mut self.around);
        lane.count();
        self.events.push(id, &mut lane.happenings);
        if let Some(due) = lane.deadline() {
            lane.scheduled = Some(due);
            self.deadlines.insert((due, id));
        }
    }
}

/// Return a sentence about a panic.
fn what_it_says(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no reason is known");
    format!("The pump ended by a fault of its own: {text}.")
}

#[cfg(test)]
mod tests {
    use fairlead_tunnel::{Limits, Side};

    use super::*;

    #[test]
    fn a_step_that_panics_is_told_and_leaves_nobody_waiting() {
        let mut thread = PumpThread::start().unwrap();
        let counts = Arc::new(Counts::default());
        let lane = Lane::new(1, Side::Client, Limits::default(), counts);
        thread.send(Box::new(move |pump| pump.add(lane)));
        let (reply, result) = channel();
        let (later, never) = channel::<()>();
        thread.send(Box::new(|_| panic!("a fault of the test")));
        thread.send(Box::new(move |_| later.send(()).unwrap()));
        assert!(never.recv().is_err());
        assert!(thread.has_failed());
        thread.send(Box::new(move |_| reply.send(()).unwrap()));
        assert!(result.recv().is_err());
        let told = thread.events.take();
        let [(ALL, Happening::Failed(message))] = &told[..] else {
            panic!("another thing was told");
        };
        assert!(message.ends_with("of its own: a fault of the test."));
        thread.stop();
        assert!(thread.has_failed());
    }
}
