//! The face of the pump to Python: steps go to its thread, and what happens is told when asked for.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use fairlead_tunnel::records::Suite;
use fairlead_tunnel::{Limits, Side};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyBytes;
use socket2::Socket;

use crate::checks::{self, check_most, check_reason, check_target, seconds};
use crate::pump::{Counts, Given, Keys, Lane, Leads, PumpThread, Surroundings};
use crate::socks_python::checked;
use crate::telling::tell;

/// One thread and its tunnels.
#[pyclass(frozen, module = "fairlead_native")]
pub struct PumpCore {
    thread: Mutex<PumpThread>,
    next: AtomicU32,
}

#[pymethods]
impl PumpCore {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(PumpCore {
            thread: Mutex::new(PumpThread::start().map_err(PyOSError::new_err)?),
            next: AtomicU32::new(0),
        })
    }

    fn fileno(&self) -> i32 {
        self.locked(|thread| thread.events.descriptor())
    }

    fn tunnel(&self, is_client: bool, most_channels: usize) -> PyResult<TunnelCounts> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let side = if is_client {
            Side::Client
        } else {
            Side::Gateway
        };
        let counts = Arc::new(Counts::default());
        let limits = Limits {
            most_channels,
            ..Limits::default()
        };
        let lane = Lane::new(id, side, limits, counts.clone());
        self.locked(|thread| {
            if thread.has_failed() {
                return Err(failed());
            }
            thread.send(Box::new(move |pump| pump.add(lane)));
            Ok(TunnelCounts { id, counts })
        })
    }

    fn take(&self, tunnel: u32, batch: &[u8]) {
        let batch = batch.to_vec();
        self.tell(tunnel, move |lane, around| {
            lane.take(&batch, Instant::now(), around);
        });
    }

    fn first_batch<'py>(
        &self,
        py: Python<'py>,
        tunnel: u32,
        carrier: u32,
        most: usize,
        restates: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        check_most(most)?;
        let batch = self.ask(py, tunnel, move |lane, around| {
            lane.first_batch(carrier, most, restates, Instant::now(), around)
        })?;
        Ok(PyBytes::new(py, &batch.unwrap_or_default()))
    }

    fn attach_foreign(&self, tunnel: u32, carrier: u32) {
        self.tell(tunnel, move |lane, _| lane.attach_foreign(carrier));
    }

    fn take_batch<'py>(
        &self,
        py: Python<'py>,
        tunnel: u32,
        carrier: u32,
        most: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        check_most(most)?;
        let batch = self.ask(py, tunnel, move |lane, around| {
            lane.take_batch(carrier, most, Instant::now(), around)
        })?;
        Ok(batch.flatten().map(|batch| PyBytes::new(py, &batch)))
    }

    #[expect(clippy::too_many_arguments, reason = "it is what a carrier is made of")]
    fn attach(
        &self,
        tunnel: u32,
        carrier: u32,
        descriptor: i32,
        suite: u8,
        send: [u8; 32],
        receive: [u8; 32],
        received: Vec<u8>,
        unsent: Vec<u8>,
        is_websocket: bool,
    ) -> PyResult<()> {
        let socket = taken(descriptor);
        let suite =
            Suite::from_number(suite).ok_or_else(|| PyValueError::new_err("a suite is 1 or 2"))?;
        let given = Given {
            socket,
            keys: Keys {
                suite,
                send,
                receive,
            },
            received,
            unsent,
            is_websocket,
        };
        self.tell(tunnel, move |lane, around| {
            lane.attach(carrier, given, around);
        });
        Ok(())
    }

    fn retire(&self, tunnel: u32, carrier: u32) {
        self.tell(tunnel, move |lane, _| lane.retire(carrier));
    }

    fn detach(&self, tunnel: u32, carrier: u32, heard: bool, reached: bool) {
        self.tell(tunnel, move |lane, around| {
            lane.detach(carrier, heard, reached, around);
        });
    }

    fn listen(
        &self,
        tunnel: u32,
        listener: u32,
        descriptor: i32,
        target: String,
        hold: f64,
    ) -> PyResult<()> {
        let socket = taken(descriptor);
        check_target(&target)?;
        let leads = Leads::To(target, seconds(hold)?);
        self.tell(tunnel, move |lane, around| {
            lane.listen(listener, socket, leads, around);
        });
        Ok(())
    }

    fn listen_socks(
        &self,
        tunnel: u32,
        listener: u32,
        descriptor: i32,
        credentials: Option<(Vec<u8>, Vec<u8>)>,
        patience: f64,
    ) -> PyResult<()> {
        let socket = taken(descriptor);
        let leads = Leads::Asked(checked(credentials)?, seconds(patience)?);
        self.tell(tunnel, move |lane, around| {
            lane.listen(listener, socket, leads, around);
        });
        Ok(())
    }

    fn stop_listening(&self, py: Python<'_>, tunnel: u32, listener: u32) -> PyResult<()> {
        self.ask(py, tunnel, move |lane, around| {
            lane.stop_listening(listener, around);
        })
        .map(drop)
    }

    fn open(
        &self,
        py: Python<'_>,
        tunnel: u32,
        target: String,
        hold: f64,
    ) -> PyResult<Option<u32>> {
        check_target(&target)?;
        let hold = seconds(hold)?;
        let opened = self.ask(py, tunnel, move |lane, _| {
            let until = (!hold.is_zero()).then(|| Instant::now() + hold);
            lane.open(&target, until)
        })?;
        Ok(opened.flatten())
    }

    fn connect(&self, tunnel: u32, channel: u32, descriptor: i32, early: &[u8], reply: &[u8]) {
        let socket = taken(descriptor);
        let early = Bytes::copy_from_slice(early);
        let reply = (!reply.is_empty()).then(|| Bytes::copy_from_slice(reply));
        self.tell(tunnel, move |lane, around| {
            lane.connect(channel, socket, early, reply, around);
        });
    }

    fn dial(
        &self,
        tunnel: u32,
        channel: u32,
        addresses: Vec<PyBackedStr>,
        port: u16,
        patience: f64,
        spent: f64,
    ) -> PyResult<()> {
        let addresses = checks::addresses(&addresses, port)?;
        let patience = checks::patience(patience, spent)?;
        self.tell(tunnel, move |lane, around| {
            lane.dial(channel, addresses, patience, around);
        });
        Ok(())
    }

    fn refuse(&self, tunnel: u32, channel: u32, reason: String, message: String) -> PyResult<()> {
        check_reason(&reason)?;
        self.tell(tunnel, move |lane, around| {
            lane.refuse(channel, &reason, &message, around);
        });
        Ok(())
    }

    fn look(&self, py: Python<'_>, tunnel: u32, carrier: u32) -> PyResult<Option<(u64, u64)>> {
        let found = self.ask(py, tunnel, move |lane, _| lane.look(carrier))?;
        Ok(found.flatten())
    }

    fn ping(&self, tunnel: u32) {
        self.tell(tunnel, |lane, _| lane.ping());
    }

    fn recall(&self, tunnel: u32) {
        self.tell(tunnel, Lane::recall);
    }

    fn close(&self, tunnel: u32, reason: String, message: String) -> PyResult<()> {
        check_reason(&reason)?;
        self.tell(tunnel, move |lane, around| {
            lane.close(&reason, &message, around);
        });
        Ok(())
    }

    /// Return the batch that ends a tunnel, empty when it has left.
    fn last_batch<'py>(&self, py: Python<'py>, tunnel: u32) -> PyResult<Bound<'py, PyBytes>> {
        let batch = self.ask(py, tunnel, |lane, _| lane.last_batch(Instant::now()))?;
        Ok(PyBytes::new(py, &batch.unwrap_or_default()))
    }

    /// Have a tunnel no more of which `gone` was told; `forgotten` follows.
    fn forget(&self, tunnel: u32) {
        self.locked(|thread| thread.send(Box::new(move |pump| pump.forget(tunnel))));
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.locked(PumpThread::stop));
    }

    /// Tell `sink` everything that has happened, oldest first; what it raises it is told too, and
    /// the rest is told.
    fn dispatch(&self, py: Python<'_>, sink: &Bound<'_, PyAny>) -> PyResult<()> {
        let events = self.locked(|thread| thread.events.clone());
        for (tunnel, happening) in events.take() {
            if let Err(error) = tell(py, sink, tunnel, happening) {
                sink.call_method1(intern!(py, "failed"), (error.into_value(py),))?;
            }
        }
        Ok(())
    }
}

impl PumpCore {
    fn locked<T>(&self, look: impl FnOnce(&mut PumpThread) -> T) -> T {
        look(&mut self.thread.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self, tunnel: u32, take: impl FnOnce(&mut Lane, &mut Surroundings) + Send + 'static) {
        self.locked(|thread| {
            thread.send(Box::new(move |pump| {
                if let Some((lane, around)) = pump.lane(tunnel) {
                    take(lane, around);
                }
            }));
        });
    }

    /// Take a step and wait for its result, without the interpreter's lock; None: the tunnel or
    /// the thread has ended as it should.
    fn ask<T: Send + 'static>(
        &self,
        py: Python<'_>,
        tunnel: u32,
        take: impl FnOnce(&mut Lane, &mut Surroundings) -> T + Send + 'static,
    ) -> PyResult<Option<T>> {
        let (reply, result) = channel();
        self.tell(tunnel, move |lane, around| {
            // Nobody waits any more only when the interpreter ends.
            let _ = reply.send(take(lane, around));
        });
        let found = py.detach(move || result.recv().ok());
        if found.is_none() && self.locked(|thread| thread.has_failed()) {
            return Err(failed());
        }
        Ok(found)
    }
}

impl Drop for PumpCore {
    fn drop(&mut self) {
        self.locked(PumpThread::stop);
    }
}

/// A tunnel's number, and what it has moved so far.
#[pyclass(frozen, module = "fairlead_native")]
pub struct TunnelCounts {
    #[pyo3(get)]
    id: u32,
    counts: Arc<Counts>,
}

#[pymethods]
impl TunnelCounts {
    #[getter]
    fn read(&self) -> u64 {
        self.counts.read.load(Ordering::Relaxed)
    }

    #[getter]
    fn written(&self) -> u64 {
        self.counts.written.load(Ordering::Relaxed)
    }

    #[getter]
    fn channels(&self) -> u64 {
        self.counts.channels.load(Ordering::Relaxed)
    }
}

fn failed() -> PyErr {
    PyRuntimeError::new_err("the pump has ended by a fault of its own")
}

/// Own a descriptor that Python has given away.
fn taken(descriptor: i32) -> Socket {
    // SAFETY: the caller has detached it from its socket object, so that nobody else closes it.
    Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
