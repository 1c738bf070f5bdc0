//! WebRTC data channels for Python, on a thread of their own: see README.md.

// Without Python nobody but the tests calls.
#![cfg_attr(not(feature = "python"), allow(dead_code))]

mod channels;
mod connection;
mod description;
mod engine;
mod events;
mod gathering;
mod negotiation;
#[cfg(feature = "python")]
mod python;
mod servers;
mod sockets;
