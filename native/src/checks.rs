//! What Python may ask the pump for; all else is a ValueError, or a RuntimeError.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fairlead_tunnel::frames::{MAX_TARGET_BYTES, is_reason};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::pump::{Patience, address_of};

/// Check how long a batch may be.
pub fn check_most(most: usize) -> PyResult<()> {
    if most >= 4096 {
        return Ok(());
    }
    Err(PyValueError::new_err("a batch has 4096 bytes or more"))
}

/// Return a time.
pub fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number)
        .map_err(|_| PyValueError::new_err("a time is a number of seconds"))
}

/// Return when a dial began that has spent some of its seconds, and when it is over.
pub fn patience(number: f64, spent: f64) -> PyResult<Patience> {
    let (whole, spent) = (seconds(number)?, seconds(spent)?);
    let now = Instant::now();
    let until = now.checked_add(whole.saturating_sub(spent));
    Ok(Patience {
        began: now.checked_sub(spent).unwrap_or(now),
        until: until.ok_or_else(|| PyValueError::new_err("a dial ends one day"))?,
    })
}

/// Return addresses with a port.
pub fn addresses(texts: &[PyBackedStr], port: u16) -> PyResult<Vec<SocketAddr>> {
    let found: Option<Vec<_>> = texts.iter().map(|each| address_of(each, port)).collect();
    found.ok_or_else(|| PyValueError::new_err("an address is IPv4 or IPv6"))
}

/// Check what a channel may lead to.
pub fn check_target(target: &str) -> PyResult<()> {
    if (1..=MAX_TARGET_BYTES).contains(&target.len()) {
        return Ok(());
    }
    Err(PyValueError::new_err("a target has 1 to 255 bytes"))
}

/// Check why a channel or a tunnel may end.
pub fn check_reason(reason: &str) -> PyResult<()> {
    if is_reason(reason) {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "a reason is lower snake case, 1 to 64 characters",
    ))
}
