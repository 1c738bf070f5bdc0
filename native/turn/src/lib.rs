//! Candidates from STUN and TURN servers, and datagrams through relays, without I/O.
//!
//! A [`Gatherer`] belongs to one UDP socket: it is given what the socket receives, and says what
//! the socket is to send. A [`Relay`] is one allocation on a TURN server; over TCP it has a stream
//! of its own, over UDP the gatherer drives it.
//!
//! After each call that changes something, take `poll_transmit` until there is none, then
//! `poll_event` until there is none, and come back with `advance` at `deadline`. Calls that change
//! something are all that take `now`.
//!
//! The protocols are those of the crate `turn-client-proto`: retransmissions, nonces that went
//! stale, and the refreshing of allocations, permissions and channels are its work.

mod binding;
mod clock;
mod gatherer;
mod relay;

pub use binding::Binding;
pub use gatherer::{GatherEvent, Gatherer, Transmit};
pub use relay::{Relay, RelayEvent, RelayTransport, TurnServer};
