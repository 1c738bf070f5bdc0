//! The face to Python: calls go to the I/O thread, and events come from it when asked for.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairlead_turn::TurnServer;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use pyo3::{create_exception, intern};

use crate::channels::{Content, LONGEST, Outlet};
use crate::connection::Connection;
use crate::engine::{Command, Engine, Outside};
use crate::events::{Event, note_read};
use crate::negotiation::Refused;
use crate::pump_python::{PumpCore, TunnelCounts};
use crate::servers::Servers;
use crate::socks_python::serve_socks5;

create_exception!(fairlead_native, DescriptionInvalid, PyValueError);
create_exception!(fairlead_native, NegotiationRefused, PyRuntimeError);
create_exception!(fairlead_native, ConnectionOver, PyRuntimeError);

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> PyErr {
        match refused {
            Refused::Invalid(why) => DescriptionInvalid::new_err(why),
            Refused::OutOfPlace(why) => NegotiationRefused::new_err(why),
        }
    }
}

/// One I/O thread and its connections.
#[pyclass(frozen, module = "fairlead_native")]
struct Core {
    engine: Mutex<Engine>,
    next: AtomicU32,
    silence: Duration,
}

#[pymethods]
impl Core {
    #[new]
    fn new(addresses: Option<Vec<String>>, silence: f64) -> PyResult<Self> {
        if !(1.0..=3600.0).contains(&silence) {
            return Err(PyValueError::new_err("silence is 1 to 3600 seconds"));
        }
        let addresses = addresses
            .map(|texts| texts.iter().map(|text| text.parse::<IpAddr>()).collect())
            .transpose()
            .map_err(|_| PyValueError::new_err("an address is IPv4 or IPv6"))?;
        Ok(Core {
            engine: Mutex::new(Engine::start(addresses).map_err(PyOSError::new_err)?),
            next: AtomicU32::new(0),
            silence: Duration::from_secs_f64(silence),
        })
    }

    fn fileno(&self) -> i32 {
        self.locked(|engine| engine.events.descriptor())
    }

    fn connect(&self, py: Python<'_>, relay_only: bool) -> u32 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mailbox = self.locked(|engine| engine.mailbox.clone());
        let made = mailbox.clone();
        let connection = py.detach(|| {
            Arc::new_cyclic(|home| {
                let (home, now) = (home.clone(), Instant::now());
                let connection = Connection::new(id, made, home, self.silence, relay_only, now);
                Mutex::new(connection)
            })
        });
        mailbox.send(Command::Add(id, connection));
        id
    }

    fn use_servers(
        &self,
        connection: u32,
        stun: Vec<(String, u16)>,
        turn: Vec<(String, u16, String, String)>,
    ) -> PyResult<()> {
        let stun = stun.iter().map(|(host, port)| server_address(host, *port));
        let turn = turn.into_iter().map(|(host, port, username, credential)| {
            server_address(&host, port).map(|address| TurnServer {
                address,
                username,
                credential,
            })
        });
        let servers = Servers {
            stun: stun.collect::<PyResult<_>>()?,
            turn: turn.collect::<PyResult<_>>()?,
        };
        self.tell(connection, move |found| found.gathering.give(servers));
        Ok(())
    }

    fn offer(&self, py: Python<'_>, connection: u32) -> PyResult<String> {
        self.step(py, connection, Connection::offer)
    }

    fn answer(&self, py: Python<'_>, connection: u32, offer: String) -> PyResult<String> {
        self.step(py, connection, move |found, outside| {
            found.answer(&offer, outside)
        })
    }

    fn accept_answer(&self, py: Python<'_>, connection: u32, answer: String) -> PyResult<bool> {
        self.step(py, connection, move |found, _| found.accept_answer(&answer))
    }

    fn restart(&self, py: Python<'_>, connection: u32) -> PyResult<String> {
        self.step(py, connection, Connection::restart)
    }

    fn description(&self, py: Python<'_>, connection: u32) -> PyResult<String> {
        self.step(py, connection, |found, _| Ok(found.description()))
    }

    fn open_channel(
        &self,
        py: Python<'_>,
        connection: u32,
        label: String,
        protocol: String,
    ) -> PyResult<Door> {
        if label.len() > 256 || protocol.len() > 256 {
            return Err(PyValueError::new_err(
                "a label and a protocol have at most 256 bytes",
            ));
        }
        self.step(py, connection, move |found, _| {
            let outlet = found.channels.open(&mut found.rtc, label, protocol);
            Ok(Door(outlet))
        })
    }

    fn add_candidate(&self, connection: u32, line: String) {
        self.tell(connection, move |found| found.add_candidate(&line));
    }

    fn end_of_candidates(&self, connection: u32) {
        self.tell(connection, Connection::end_of_candidates);
    }

    fn close(&self, connection: u32) {
        self.locked(|engine| engine.mailbox.send(Command::Close(connection)));
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.locked(Engine::stop));
    }

    /// Tell `sink` everything that has happened, oldest first; what it raises it is told too, and
    /// the rest is told.
    fn dispatch(&self, py: Python<'_>, sink: &Bound<'_, PyAny>) -> PyResult<()> {
        let (events, mailbox) =
            self.locked(|engine| (engine.events.clone(), engine.mailbox.clone()));
        for (connection, event) in events.take() {
            if let Event::Message(_, content, unread) = &event
                && note_read(unread, content.size())
            {
                mailbox.send(Command::Resume(connection));
            }
            if let Err(error) = tell(py, sink, connection, event) {
                sink.call_method1(intern!(py, "failed"), (error.into_value(py),))?;
            }
        }
        Ok(())
    }
}

fn server_address(host: &str, port: u16) -> PyResult<SocketAddr> {
    let host: IpAddr = host
        .parse()
        .map_err(|_| PyValueError::new_err("the address of a server is IPv4 or IPv6"))?;
    Ok(SocketAddr::new(host, port))
}

impl Core {
    fn locked<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> T {
        look(&mut self.engine.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Take a step on the I/O thread and wait for its result, without the interpreter's lock.
    fn step<T: Send + 'static>(
        &self,
        py: Python<'_>,
        connection: u32,
        take: impl FnOnce(&mut Connection, &mut Outside<'_>) -> Result<T, Refused> + Send + 'static,
    ) -> PyResult<T> {
        let (reply, result) = channel();
        let step = Box::new(
            move |found: Option<&mut Connection>, outside: &mut Outside<'_>| {
                // Nobody waits any more only when the interpreter ends.
                let _ = reply.send(found.map(|found| take(found, outside)));
            },
        );
        self.locked(|engine| engine.mailbox.send(Command::Step(connection, step)));
        match py.detach(move || result.recv()) {
            Ok(Some(taken)) => Ok(taken?),
            _ => Err(ConnectionOver::new_err("The connection is over.")),
        }
    }

    fn tell(&self, connection: u32, take: impl FnOnce(&mut Connection) + Send + 'static) {
        let step = Box::new(move |found: Option<&mut Connection>, _: &mut Outside<'_>| {
            if let Some(found) = found {
                take(found);
            }
        });
        self.locked(|engine| engine.mailbox.send(Command::Step(connection, step)));
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.locked(Engine::stop);
    }
}

/// Where messages of one channel are put in.
#[pyclass(frozen, name = "Outlet", module = "fairlead_native")]
struct Door(Outlet);

#[pymethods]
impl Door {
    #[getter]
    fn number(&self) -> u32 {
        self.0.channel
    }

    #[getter]
    fn queued(&self) -> usize {
        self.0.queued.load(Ordering::Acquire)
    }

    fn send(&self, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let content = match message.cast::<PyBytes>() {
            Ok(content) => Content::Binary(content.as_bytes().to_vec()),
            Err(_) => Content::Text(message.extract()?),
        };
        // str0m sends nothing for an empty message (RFC 8831, section 6.6, has a form for it).
        if !(1..=LONGEST).contains(&content.size()) {
            return Err(PyValueError::new_err("a message has 1 to 65536 bytes"));
        }
        self.0.send(content);
        Ok(())
    }

    fn close(&self) {
        self.0.close();
    }
}

fn tell(py: Python<'_>, sink: &Bound<'_, PyAny>, connection: u32, event: Event) -> PyResult<()> {
    match event {
        Event::Message(channel, Content::Binary(content), _) => {
            let content = PyBytes::new(py, &content);
            sink.call_method1(intern!(py, "message"), (connection, channel, content))
        }
        Event::Message(channel, Content::Text(text), _) => {
            let text = PyString::new(py, &text);
            sink.call_method1(intern!(py, "message"), (connection, channel, text))
        }
        Event::Low(channel) => sink.call_method1(intern!(py, "low"), (connection, channel)),
        Event::Opened(channel) => sink.call_method1(intern!(py, "opened"), (connection, channel)),
        Event::Closed(channel) => sink.call_method1(intern!(py, "closed"), (connection, channel)),
        Event::Candidate(line) => sink.call_method1(intern!(py, "candidate"), (connection, line)),
        Event::Gathered => sink.call_method1(intern!(py, "gathered"), (connection,)),
        Event::State(state, reason) => {
            let arguments = (connection, state.name(), reason.name());
            sink.call_method1(intern!(py, "state"), arguments)
        }
        Event::Channel(found) => {
            let arguments = (
                connection,
                Door(found.outlet),
                found.label,
                found.protocol,
                found.ordered,
                found.reliable,
            );
            sink.call_method1(intern!(py, "channel"), arguments)
        }
    }
    .map(drop)
}

/// The compiled part of `fairlead_native`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("DescriptionInvalid", py.get_type::<DescriptionInvalid>())?;
    module.add("NegotiationRefused", py.get_type::<NegotiationRefused>())?;
    module.add("ConnectionOver", py.get_type::<ConnectionOver>())?;
    module.add_class::<Core>()?;
    module.add_class::<PumpCore>()?;
    module.add_class::<TunnelCounts>()?;
    module.add_function(wrap_pyfunction!(serve_socks5, module)?)?;
    module.add_class::<Door>()
}
