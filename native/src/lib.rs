//! WebRTC data channels and tunnels for Python, on threads of their own: see README.md.

// Without Python nobody but the tests calls.
#![cfg_attr(not(feature = "python"), allow(dead_code, unused_imports))]

mod channels;
#[cfg(feature = "python")]
mod checks;
mod connection;
mod description;
mod engine;
mod events;
mod gathering;
mod negotiation;
mod pump;
#[cfg(feature = "python")]
mod pump_python;
#[cfg(feature = "python")]
mod python;
mod servers;
mod sockets;
#[cfg(feature = "python")]
mod socks_python;
#[cfg(feature = "python")]
mod telling;
