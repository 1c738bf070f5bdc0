//! How the targets of a gateway's channels are connected.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::{Happening, Lane};
use crate::pump::dials::Patience;
use crate::pump::port::Plug;
use crate::pump::{Role, Surroundings};

/// A dial that took so long is told of though it went well.
const SLOW: Duration = Duration::from_millis(50);

/// Has TCP notice a peer that vanished, as `fairlead_tunnel.silence` has it.
fn notice_silence(socket: &Socket) -> io::Result<()> {
    let options = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    socket.set_tcp_keepalive(&options)
}

impl Lane {
    /// Connect a channel's target at the first of its addresses that answers; `Dialled` follows when
    /// none does, or when it took long.
    pub fn dial(
        &mut self,
        channel: u32,
        addresses: Vec<SocketAddr>,
        patience: Patience,
        around: &mut Surroundings,
    ) {
        if let Some(port) = self.ports.get(&channel)
            && matches!(port.plug, Plug::Missing)
        {
            self.dials.add(channel, addresses, patience, Instant::now());
            self.dial_next(channel, libc::EADDRNOTAVAIL, around);
        }
    }

    /// Try addresses until one may answer; `error` says why none was reached so far.
    fn dial_next(&mut self, channel: u32, mut error: i32, around: &mut Surroundings) {
        while let Some(address) = self.dials.next(channel, Instant::now()) {
            match self.begin(channel, address, around) {
                Ok(()) => return,
                Err(fault) => error = fault.raw_os_error().unwrap_or(libc::EIO),
            }
        }
        self.dialled(channel, error);
    }

    fn begin(
        &mut self,
        channel: u32,
        address: SocketAddr,
        around: &mut Surroundings,
    ) -> io::Result<()> {
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        notice_silence(&socket)?;
        let begun = socket.connect(&address.into());
        match &begun {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return begun,
            _ => {}
        }
        // Watched from here on: one that is not being connected looks like one that has ended.
        let token = around.watch(&socket, self.id, Role::Port(channel))?;
        if begun.is_ok() {
            self.dialled(channel, 0);
            self.connected(channel, socket, token, Bytes::new(), None, around);
        } else if let Some(port) = self.ports.get_mut(&channel) {
            port.is_closing = false; // what was told of another address
            port.plug = Plug::Connecting(socket, token);
        }
        Ok(())
    }

    /// Go on with a connection that is made, or is not.
    pub(super) fn settle_dial(&mut self, channel: u32, around: &mut Surroundings) {
        let Some(port) = self.ports.get_mut(&channel) else {
            return;
        };
        let Plug::Connecting(socket, token) = std::mem::replace(&mut port.plug, Plug::Missing)
        else {
            return;
        };
        match socket.take_error() {
            Ok(None) => {
                self.dialled(channel, 0);
                self.connected(channel, socket, token, Bytes::new(), None, around);
            }
            Ok(Some(error)) | Err(error) => {
                around.forget(&socket, token);
                let number = error.raw_os_error().unwrap_or(libc::EIO);
                self.dial_next(channel, number, around);
            }
        }
    }

    /// Leave addresses that have not answered in their time.
    pub(super) fn give_up_dials(&mut self, now: Instant, around: &mut Surroundings) {
        while let Some(channel) = self.dials.overdue(now) {
            if let Some(port) = self.ports.get_mut(&channel)
                && let Plug::Connecting(socket, token) =
                    std::mem::replace(&mut port.plug, Plug::Missing)
            {
                around.forget(&socket, token);
            }
            self.dial_next(channel, libc::ETIMEDOUT, around);
        }
    }

    /// Tell how a dial went, with 0 for no error, if that is worth it.
    fn dialled(&mut self, channel: u32, error: i32) {
        let Some(began) = self.dials.remove(channel) else {
            return;
        };
        let took = began.elapsed();
        if error != 0 || took >= SLOW {
            let target = self.tunnel.target(channel).unwrap_or_default().to_owned();
            let told = Happening::Dialled(channel, target, error, took.as_secs_f64());
            self.happenings.push(told);
        }
    }
}
