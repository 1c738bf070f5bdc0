//! SOCKS5's credentials as Python gives them, and its server for tests that compare.

use std::borrow::Cow;

use fairlead_tunnel::socks5::{Credentials, Outcome, Socks5Server};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

type Pair = Option<(Vec<u8>, Vec<u8>)>;
/// The answers, the target that is asked for, why the client is refused, and its early bytes.
type Answered = (Cow<'static, [u8]>, String, String, Cow<'static, [u8]>);

/// Return the credentials; ValueError: one has not 1 to 255 bytes.
pub fn checked(pair: Pair) -> PyResult<Option<Credentials>> {
    let Some((user, password)) = pair else {
        return Ok(None);
    };
    let made = Credentials::new(user, password)
        .ok_or_else(|| PyValueError::new_err("a name and a password have 1 to 255 bytes"))?;
    Ok(Some(made))
}

/// Serve a client that says these pieces; returns what it is answered, the target that it asks for,
/// why it is refused, and its early bytes, each empty where there is none.
#[pyfunction]
pub fn serve_socks5(pieces: Vec<Vec<u8>>, credentials: Pair) -> PyResult<Answered> {
    let mut server = Socks5Server::new(checked(credentials)?);
    let mut outgoing = Vec::new();
    let mut pieces = pieces.into_iter();
    let found = pieces.find_map(|piece| {
        let found = server.receive(&piece);
        outgoing.extend(server.take_outgoing());
        found
    });
    let (target, message) = match found {
        Some(Outcome::Asked(target)) => (target, String::new()),
        Some(Outcome::Refused(message)) => (String::new(), message),
        None => (String::new(), String::new()),
    };
    let mut early = Vec::new();
    if !target.is_empty() {
        early = server.into_received().1;
        early.extend(pieces.flatten());
    }
    Ok((outgoing.into(), target, message, early.into()))
}
