//! The tunnel protocol `fairlead.tunnel.v1` without I/O: docs/protocol.md, "A tunnel".
//!
//! The wire, the rules and the names are those of `fairlead_tunnel`, the reference in Python.

mod channel;
mod fault;
mod flights;
pub mod frames;
mod inbound;
mod outbound;
mod outbox;
pub mod ranges;
pub mod records;
mod shared_window;
pub mod socks5;
mod tunnel;
pub mod websocket;

pub use fault::Fault;
pub use outbox::{SHARE, SPARE};
pub use tunnel::{Event, Limits, Over, Side, Tunnel};
