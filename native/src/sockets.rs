//! One UDP socket of a connection, with segmentation and coalescing by the kernel (GSO, GRO).

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};

/// Buffers for one system call that receives: each may hold as many datagrams as the kernel
/// coalesces.
const RECEIVE_BUFFERS: usize = 8;
const RECEIVE_BYTES: usize = 65536;
/// Most bytes of one batch: what one UDP length field counts.
const MOST_BATCH: usize = 65000;
/// Batches that wait for a socket that takes no more; later ones are dropped, as a network would.
const MOST_WAITING: usize = 64;
const SOCKET_BUFFER: usize = 2 * 1024 * 1024;

/// Where datagrams are received into; one for each I/O thread.
pub struct Scratch {
    buffers: Vec<Vec<u8>>,
    metas: [RecvMeta; RECEIVE_BUFFERS],
}

impl Scratch {
    /// Make the buffers.
    pub fn new() -> Self {
        Scratch {
            buffers: vec![vec![0; RECEIVE_BYTES]; RECEIVE_BUFFERS],
            metas: [RecvMeta::default(); RECEIVE_BUFFERS],
        }
    }

    /// Return the datagrams of buffer `index`, which holds what one call received, and whence.
    pub fn datagrams(&self, index: usize) -> (SocketAddr, impl Iterator<Item = &[u8]>) {
        let meta = &self.metas[index];
        let datagrams = self.buffers[index][..meta.len].chunks(meta.stride.max(1));
        (meta.addr, datagrams)
    }
}

/// Datagrams of one size to one destination; the last may be shorter.
struct Batch {
    destination: SocketAddr,
    segment: usize,
    content: Vec<u8>,
    is_full: bool,
}

/// A socket that is bound to one local address.
pub struct Socket {
    pub address: SocketAddr,
    pub is_readable: bool,
    socket: UdpSocket,
    state: UdpSocketState,
    batch: Batch,
    waiting: VecDeque<Batch>,
    spare: Vec<Vec<u8>>,
}

impl Socket {
    /// Bind a port of `address` and have `registry` watch it as `token`.
    pub fn bind(address: IpAddr, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut socket = UdpSocket::bind(SocketAddr::new(address, 0))?;
        let state = UdpSocketState::new((&socket).into())?;
        // Best effort: the kernel cuts what is more than an administrator allows.
        let _ = state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER);
        let _ = state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER);
        // Of room for more the kernel tells after every datagram: who waits for it looks again.
        registry.register(&mut socket, token, Interest::READABLE)?;
        let address = socket.local_addr()?;
        Ok(Socket {
            address,
            is_readable: false,
            socket,
            state,
            batch: Batch {
                destination: address,
                segment: 0,
                content: Vec::new(),
                is_full: false,
            },
            waiting: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    /// Receive into `scratch` and return how many of its buffers are filled; 0 when there is
    /// nothing more.
    pub fn receive(&mut self, scratch: &mut Scratch) -> usize {
        let Scratch { buffers, metas } = scratch;
        let mut slices = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut slices: [IoSliceMut<'_>; RECEIVE_BUFFERS] =
            std::array::from_fn(|_| slices.next().expect("as many buffers"));
        match self.state.recv((&self.socket).into(), &mut slices, metas) {
            Ok(count) => {
                // A call that leaves buffers empty has seen that there is nothing more.
                self.is_readable = count == RECEIVE_BUFFERS;
                count
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => {
                self.is_readable = false;
                0
            }
        }
    }

    /// Say whether the kernel took less than there is; `flush` tries again.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Send a datagram with the next `flush`.
    pub fn send(&mut self, destination: SocketAddr, content: &[u8]) {
        let batch = &mut self.batch;
        let fits = !batch.content.is_empty()
            && !batch.is_full
            && batch.destination == destination
            && content.len() <= batch.segment
            && batch.content.len() + content.len() <= MOST_BATCH
            && batch.content.len() / batch.segment < self.state.max_gso_segments();
        if !fits {
            self.flush();
            self.batch.destination = destination;
            self.batch.segment = content.len();
            self.batch.is_full = false;
        }
        self.batch.content.extend_from_slice(content);
        self.batch.is_full |= content.len() < self.batch.segment;
    }

    /// Give the kernel what is to be sent.
    pub fn flush(&mut self) {
        if !self.batch.content.is_empty() {
            let next = Batch {
                content: self.spare.pop().unwrap_or_default(),
                ..self.batch
            };
            let batch = std::mem::replace(&mut self.batch, next);
            if self.waiting.len() < MOST_WAITING {
                self.waiting.push_back(batch);
            }
        }
        self.flush_waiting();
    }

    fn flush_waiting(&mut self) {
        while let Some(batch) = self.waiting.front() {
            let transmit = Transmit {
                destination: batch.destination,
                ecn: None,
                contents: &batch.content,
                segment_size: Some(batch.segment),
                src_ip: None,
            };
            match self.state.try_send((&self.socket).into(), &transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Any other error is a lost datagram: ICE and SCTP send again.
                _ => {
                    let mut content = self.waiting.pop_front().expect("seen above").content;
                    content.clear();
                    self.spare.push(content);
                }
            }
        }
    }
}
