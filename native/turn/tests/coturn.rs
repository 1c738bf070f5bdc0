//! Gathering and relaying at a real coturn, on loopback. Without the program `turnserver` these
//! tests say so and pass.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fairlead_turn::{GatherEvent, Gatherer, Relay, RelayEvent, RelayTransport, TurnServer};

const PATIENCE: Duration = Duration::from_secs(60);
const STEPS: usize = 40;
const TICK: Duration = Duration::from_millis(5);

/// A server of one test, which is killed at its end.
struct Coturn {
    process: Child,
    address: SocketAddr,
}

impl Coturn {
    /// Start a server, or say that there is none.
    fn start(options: &[&str]) -> Option<Self> {
        let address = free_address();
        let directory = std::env::temp_dir().join(format!("fairlead-turn-{}", address.port()));
        std::fs::create_dir_all(&directory).unwrap();
        let started = Command::new("turnserver")
            .args(["-n", "--no-cli", "--no-tls", "--no-dtls", "--fingerprint"])
            .args(["--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1"])
            .arg(format!("--listening-port={}", address.port()))
            .args(["--allow-loopback-peers", "--lt-cred-mech"])
            .args(["--user=somebody:right", "--realm=relay.test"])
            .args(["--relay-threads=1", "--log-file=stdout"])
            .arg(format!("--pidfile={}", directory.join("pid").display()))
            .arg(format!("--userdb={}", directory.join("users").display()))
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("skipped: needs coturn, the program turnserver is not on the path");
                return None;
            }
            started => started.unwrap(),
        };
        let server = Coturn { process, address };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "coturn did not start");
            std::thread::sleep(TICK);
        }
        Some(server)
    }

    fn named(&self, credential: &str) -> TurnServer {
        TurnServer {
            address: self.address,
            username: "somebody".into(),
            credential: credential.into(),
        }
    }
}

impl Drop for Coturn {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let port = self.address.port();
        let directory = std::env::temp_dir().join(format!("fairlead-turn-{port}"));
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// Return an address that is free over UDP and TCP.
fn free_address() -> SocketAddr {
    loop {
        let stream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = stream.local_addr().unwrap();
        if UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

fn peer() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(TICK)).unwrap();
    socket
}

/// A gatherer with its socket.
struct Client {
    socket: UdpSocket,
    gatherer: Gatherer,
    /// How far its clock is before the server's.
    ahead: Duration,
    found: Vec<GatherEvent>,
    arrived: Vec<(SocketAddr, Vec<u8>)>,
}

impl Client {
    fn new(server: &Coturn, credential: &str) -> Self {
        let socket = peer();
        let local = socket.local_addr().unwrap();
        let turn = [server.named(credential)];
        let gatherer = Gatherer::new(local, &[server.address], &turn, Instant::now());
        Client {
            socket,
            gatherer,
            ahead: Duration::ZERO,
            found: Vec::new(),
            arrived: Vec::new(),
        }
    }

    fn turn(&mut self) {
        let now = Instant::now() + self.ahead;
        self.gatherer.advance(now);
        while let Some(datagram) = self.gatherer.poll_transmit(now) {
            self.socket
                .send_to(&datagram.content, datagram.destination)
                .unwrap();
        }
        let mut buffer = [0; 65536];
        if let Ok((length, source)) = self.socket.recv_from(&mut buffer) {
            let arrived = &mut self.arrived;
            self.gatherer
                .receive(source, &buffer[..length], now, |_, peer, bytes| {
                    arrived.push((peer, bytes.to_vec()));
                });
        }
        while let Some(event) = self.gatherer.poll_event() {
            self.found.push(event);
        }
    }

    fn until(&mut self, is_there: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_there(self) {
            assert!(Instant::now() < until, "{:?}", self.found);
            self.turn();
        }
    }

    fn relayed(&mut self) -> SocketAddr {
        self.until(|client| client.found.contains(&GatherEvent::Ended));
        let relayed = self.found.iter().find_map(|event| match event {
            GatherEvent::Relayed(address) => Some(*address),
            _ => None,
        });
        relayed.unwrap_or_else(|| panic!("{:?}", self.found))
    }
}

#[test]
fn datagrams_of_all_lengths_pass_both_ways() {
    let Some(server) = Coturn::start(&[]) else {
        return;
    };
    let mut client = Client::new(&server, "right");
    let relayed = client.relayed();
    let other = peer();
    let address = other.local_addr().unwrap();
    let mut buffer = [0; 65536];
    for length in (1..40).chain([1200, 1471]) {
        let content = vec![length as u8; length];
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until);
            let now = Instant::now();
            assert!(client.gatherer.send(relayed, address, &content, now));
            client.turn();
            if let Ok((found, source)) = other.recv_from(&mut buffer)
                && buffer[..found] == content
            {
                assert_eq!(source, relayed);
                break;
            }
        }
        other.send_to(&content, relayed).unwrap();
        let expected = (address, content);
        client.until(|client| client.arrived.contains(&expected));
    }
}

#[test]
fn a_wrong_credential_is_known_at_once() {
    let Some(server) = Coturn::start(&[]) else {
        return;
    };
    let mut client = Client::new(&server, "wrong");
    let began = Instant::now();
    client.until(|client| client.found.contains(&GatherEvent::Ended));
    let failed = GatherEvent::ServerFailed(server.address, Some(401));
    assert!(client.found.contains(&failed), "{:?}", client.found);
    assert!(began.elapsed() < PATIENCE / 2, "it was not waited for");
}

#[test]
fn a_full_relay_says_so() {
    let Some(server) = Coturn::start(&["--user-quota=1"]) else {
        return;
    };
    let mut first = Client::new(&server, "right");
    first.relayed();
    let mut second = Client::new(&server, "right");
    second.until(|client| client.found.contains(&GatherEvent::Ended));
    let failed = GatherEvent::ServerFailed(server.address, Some(486));
    assert!(second.found.contains(&failed), "{:?}", second.found);
    // What is given back can be had again.
    first.gatherer.close(Instant::now());
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until);
        first.turn();
        let mut third = Client::new(&server, "right");
        third.until(|client| client.found.contains(&GatherEvent::Ended));
        if !third.found.contains(&failed) {
            return;
        }
    }
}

#[test]
fn all_is_refreshed_before_it_ends_over_stale_nonces() {
    let Some(server) = Coturn::start(&["--max-allocate-lifetime=600", "--stale-nonce=1"]) else {
        return;
    };
    let mut client = Client::new(&server, "right");
    let relayed = client.relayed();
    let other = peer();
    let address = other.local_addr().unwrap();
    // Half an hour passes for the client, and a few seconds for the server.
    for _ in 0..STEPS {
        client.ahead += Duration::from_secs(45);
        let until = Instant::now() + Duration::from_millis(120);
        client.until(|_| Instant::now() > until);
        let now = Instant::now() + client.ahead;
        assert!(client.gatherer.send(relayed, address, b"still", now));
    }
    let mut buffer = [0; 2048];
    let mut count = 0;
    while other.recv_from(&mut buffer).is_ok() {
        count += 1;
    }
    assert!(count >= STEPS - 2, "{count} of {STEPS}");
    other.send_to(b"there", relayed).unwrap();
    client.until(|client| client.arrived.contains(&(address, b"there".to_vec())));
}

#[test]
fn over_tcp_datagrams_of_all_lengths_pass_both_ways() {
    let Some(server) = Coturn::start(&[]) else {
        return;
    };
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(TICK)).unwrap();
    let local = stream.local_addr().unwrap();
    let named = server.named("right");
    let mut relay = Relay::new(local, &named, RelayTransport::Tcp, Instant::now());
    let other = peer();
    let address = other.local_addr().unwrap();
    let mut arrived = Vec::new();
    let mut turn = |relay: &mut Relay, arrived: &mut Vec<Vec<u8>>| {
        relay.advance(Instant::now());
        while let Some(piece) = relay.poll_transmit() {
            stream.write_all(&piece).unwrap();
        }
        let mut buffer = [0; 700];
        if let Ok(length) = stream.read(&mut buffer) {
            assert!(length > 0, "coturn hung up");
            relay.receive(&buffer[..length], Instant::now(), |peer, bytes| {
                assert_eq!(peer, address);
                arrived.push(bytes.to_vec());
            });
        }
    };
    let until = Instant::now() + PATIENCE;
    while relay.relayed().is_none() {
        assert!(Instant::now() < until);
        turn(&mut relay, &mut arrived);
    }
    let relayed = relay.relayed().unwrap();
    assert_eq!(relay.poll_event(), Some(RelayEvent::Allocated(relayed)));
    let mut buffer = [0; 65536];
    for length in (1..40).chain([1200, 1471]) {
        let content = vec![length as u8; length];
        while !other
            .recv(&mut buffer)
            .is_ok_and(|found| buffer[..found] == content)
        {
            assert!(Instant::now() < until);
            relay.send(address, &content, Instant::now());
            turn(&mut relay, &mut arrived);
        }
        while !arrived.contains(&content) {
            assert!(Instant::now() < until);
            other.send_to(&content, relayed).unwrap();
            turn(&mut relay, &mut arrived);
        }
    }
}
