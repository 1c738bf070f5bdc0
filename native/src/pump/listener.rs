//! A local socket whose connections lead to one target.

use std::io;
use std::time::Duration;

use mio::Token;
use socket2::Socket;

/// The socket; `is_stalled` while connections wait that the machine has no descriptors for.
pub struct Listener {
    pub socket: Socket,
    pub token: Token,
    pub target: String,
    /// How long the OPEN of a connection waits for its first bytes.
    pub hold: Duration,
    pub is_readable: bool,
    pub is_stalled: bool,
}

impl Listener {
    /// Return the next connection that waits.
    pub fn accept(&mut self) -> Option<Socket> {
        while self.is_readable {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    self.is_stalled = false;
                    return Some(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_readable = false,
                Err(error) if is_of_one(&error) => {}
                Err(_) => {
                    self.is_stalled = true;
                    return None;
                }
            }
        }
        None
    }
}

/// Say whether an error is about one connection that has ended while it waited.
fn is_of_one(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}
