//! A local socket whose connections lead to one target each.

use std::io;
use std::time::Duration;

use fairlead_tunnel::socks5::Credentials;
use mio::Token;
use socket2::Socket;

/// Where connections lead.
pub enum Leads {
    /// To one target; the OPEN of a connection waits so long for its first bytes.
    To(String, Duration),
    /// To where each client asks by SOCKS5, after it has shown these and within this time.
    Asked(Option<Credentials>, Duration),
}

/// The socket; `is_stalled` while connections wait that the machine has no descriptors for.
pub struct Listener {
    pub socket: Socket,
    pub token: Token,
    pub leads: Leads,
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
