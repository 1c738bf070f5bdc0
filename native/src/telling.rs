//! How the pump's events become calls of Python's.

use std::os::fd::IntoRawFd;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::pump::Happening;

/// Tell `sink` one thing that has happened.
pub fn tell(
    py: Python<'_>,
    sink: &Bound<'_, PyAny>,
    tunnel: u32,
    happening: Happening,
) -> PyResult<()> {
    match happening {
        Happening::Wanted(channel, target) => {
            sink.call_method1(intern!(py, "wanted"), (tunnel, channel, target))
        }
        Happening::Accepted(channel) => {
            sink.call_method1(intern!(py, "accepted"), (tunnel, channel))
        }
        Happening::Dialled(channel, target, error, seconds) => {
            let arguments = (tunnel, channel, target, error, seconds);
            sink.call_method1(intern!(py, "dialled"), arguments)
        }
        Happening::Ended(channel, reason, message) => {
            sink.call_method1(intern!(py, "ended"), (tunnel, channel, reason, message))
        }
        Happening::Unled(channel, reason, message) => {
            sink.call_method1(intern!(py, "unled"), (tunnel, channel, reason, message))
        }
        Happening::GivenBack(channel, socket, early, reason, message) => {
            let early = PyBytes::new(py, &early);
            let arguments = (
                tunnel,
                channel,
                socket.into_raw_fd(),
                early,
                reason,
                message,
            );
            sink.call_method1(intern!(py, "given_back"), arguments)
        }
        Happening::Sendable => sink.call_method1(intern!(py, "sendable"), (tunnel,)),
        Happening::CarrierLost(carrier, why) => {
            sink.call_method1(intern!(py, "carrier_lost"), (tunnel, carrier, why))
        }
        Happening::Over(reason, message) => {
            sink.call_method1(intern!(py, "over"), (tunnel, reason, message))
        }
        Happening::Gone => sink.call_method1(intern!(py, "gone"), (tunnel,)),
        Happening::Forgotten => sink.call_method1(intern!(py, "forgotten"), (tunnel,)),
        Happening::Failed(message) => sink.call_method1(intern!(py, "ended_all"), (message,)),
    }
    .map(drop)
}
