//! Gathering and relaying against a TURN server without I/O, in virtual time: hours take no time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fairlead_turn::{GatherEvent, Gatherer, TurnServer};
use turn_client_proto::stun::agent::Transmit;
use turn_client_proto::stun::types::TransportType;
use turn_client_proto::types::prelude::DelayedTransmitBuild;
use turn_server_proto::api::{SocketAllocateError, TurnServerApi, TurnServerPollRet};
use turn_server_proto::server;

const LOCAL: &str = "192.168.0.2:5000";
const OUTSIDE: &str = "203.0.113.9:6000";
const SERVER: &str = "198.51.100.1:3478";
const RELAYED: &str = "198.51.100.1:49152";
const PEER: &str = "192.0.2.7:7000";
const MINUTE: Duration = Duration::from_secs(60);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn named(credential: &str) -> TurnServer {
    TurnServer {
        address: at(SERVER),
        username: "1795333512:ses_a".into(),
        credential: credential.into(),
    }
}

/// A client behind a NAT, a server, and what came out at either end.
struct Network {
    start: Instant,
    now: Instant,
    server: server::TurnServer,
    client: Gatherer,
    /// Which datagrams of the client are lost, by their number.
    drops: fn(usize) -> bool,
    has_room: bool,
    comes_twice: bool,
    passed: usize,
    found: Vec<GatherEvent>,
    at_peer: Vec<(SocketAddr, Vec<u8>)>,
    at_client: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    longest: usize,
}

impl Network {
    fn new(turn: &[TurnServer], drops: fn(usize) -> bool) -> Self {
        let start = Instant::now();
        let mut network = Network {
            start,
            now: start,
            server: fresh_server(),
            client: Gatherer::new(at(LOCAL), &[at(SERVER)], turn, start),
            drops,
            has_room: true,
            comes_twice: false,
            passed: 0,
            found: Vec::new(),
            at_peer: Vec::new(),
            at_client: Vec::new(),
            longest: 0,
        };
        network.settle();
        network
    }

    fn counted(&self) -> turn_client_proto::types::Instant {
        let passed = self.now.duration_since(self.start).as_nanos();
        turn_client_proto::types::Instant::from_nanos(passed as i64)
    }

    /// Carry datagrams until nobody has anything to say.
    fn settle(&mut self) {
        loop {
            let mut was_quiet = true;
            while let Some(datagram) = self.client.poll_transmit(self.now) {
                was_quiet = false;
                assert_eq!(datagram.destination, at(SERVER));
                self.longest = self.longest.max(datagram.content.len());
                self.passed += 1;
                if !(self.drops)(self.passed) {
                    self.deliver(at(OUTSIDE), at(SERVER), &datagram.content);
                }
            }
            let counted = self.counted();
            if let TurnServerPollRet::AllocateSocket {
                transport,
                listen_addr,
                client_addr,
                allocation_transport,
                family,
            } = self.server.poll(counted)
            {
                was_quiet = false;
                let room = if self.has_room {
                    Ok(at(RELAYED))
                } else {
                    Err(SocketAllocateError::InsufficientCapacity)
                };
                self.server.allocated_socket(
                    transport,
                    listen_addr,
                    client_addr,
                    allocation_transport,
                    family,
                    room,
                    counted,
                );
            }
            while let Some(transmit) = self.server.poll_transmit(counted) {
                was_quiet = false;
                self.answer(transmit.to, transmit.from, &transmit.data);
            }
            while let Some(event) = self.client.poll_event() {
                self.found.push(event);
            }
            if was_quiet {
                return;
            }
        }
    }

    fn deliver(&mut self, from: SocketAddr, to: SocketAddr, content: &[u8]) {
        let counted = self.counted();
        let transmit = Transmit::new(content, TransportType::Udp, from, to);
        if let Some(answer) = self.server.recv(transmit, counted) {
            let (from, to) = (answer.from, answer.to);
            self.answer(to, from, &answer.data.build());
        }
    }

    fn answer(&mut self, to: SocketAddr, from: SocketAddr, content: &[u8]) {
        if to == at(PEER) {
            self.at_peer.push((from, content.to_vec()));
        } else {
            for _ in 0..=usize::from(self.comes_twice) {
                let arrived = &mut self.at_client;
                self.client
                    .receive(from, content, self.now, |relayed, peer, bytes| {
                        arrived.push((relayed, peer, bytes.to_vec()));
                    });
            }
        }
    }

    /// Let time pass, and everybody do what is due.
    fn pass(&mut self, duration: Duration) {
        let until = self.now + duration;
        while let Some(due) = self.client.deadline() {
            if due > until {
                break;
            }
            self.now = self.now.max(due);
            self.client.advance(self.now);
            self.settle();
        }
        self.now = until;
        self.settle();
    }

    fn send(&mut self, content: &[u8]) {
        assert!(self.client.send(at(RELAYED), at(PEER), content, self.now));
        self.settle();
    }
}

fn fresh_server() -> server::TurnServer {
    let mut made =
        server::TurnServer::new(TransportType::Udp, at(SERVER), "relay.test".to_string());
    made.add_user("1795333512:ses_a".into(), "right".into());
    made.set_nonce_expiry_duration(10 * MINUTE);
    made
}

#[test]
fn both_candidates_are_found_and_gathering_ends() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    network.found.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(
        network.found,
        [
            GatherEvent::Ended,
            GatherEvent::Reflexive(at(OUTSIDE)),
            GatherEvent::Relayed(at(RELAYED)),
        ]
    );
}

#[test]
fn lost_datagrams_are_sent_again() {
    let mut network = Network::new(&[named("right")], |number| number * 7 % 5 < 2);
    network.pass(MINUTE);
    assert!(network.found.contains(&GatherEvent::Relayed(at(RELAYED))));
    assert!(network.found.contains(&GatherEvent::Reflexive(at(OUTSIDE))));
    assert_eq!(network.found.last(), Some(&GatherEvent::Ended));
}

#[test]
fn an_answer_that_comes_twice_is_taken_once() {
    let mut network = Network::new(&[], |_| false);
    network.comes_twice = true;
    network.found.clear();
    network.client = Gatherer::new(at(LOCAL), &[at(SERVER)], &[named("right")], network.now);
    network.pass(60 * MINUTE);
    network.found.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(
        network.found,
        [
            GatherEvent::Ended,
            GatherEvent::Reflexive(at(OUTSIDE)),
            GatherEvent::Relayed(at(RELAYED)),
        ]
    );
}

#[test]
fn a_wrong_credential_is_said_to_be_one() {
    let mut network = Network::new(&[named("wrong")], |_| false);
    network.pass(MINUTE);
    let failed = GatherEvent::ServerFailed(at(SERVER), Some(401));
    assert!(network.found.contains(&failed), "{:?}", network.found);
    assert_eq!(network.found.last(), Some(&GatherEvent::Ended));
}

#[test]
fn a_server_without_room_says_so() {
    let mut network = Network::new(&[], |_| false);
    network.has_room = false;
    network.client = Gatherer::new(at(LOCAL), &[], &[named("right")], network.now);
    network.pass(MINUTE);
    let failed = GatherEvent::ServerFailed(at(SERVER), Some(508));
    assert!(network.found.contains(&failed), "{:?}", network.found);
}

#[test]
fn a_silent_server_is_given_up() {
    let mut network = Network::new(&[named("right")], |_| true);
    network.pass(MINUTE);
    let failed = GatherEvent::ServerFailed(at(SERVER), None);
    assert_eq!(network.found, [failed, failed, GatherEvent::Ended]);
}

#[test]
fn servers_of_another_family_are_not_asked() {
    let mut gatherer = Gatherer::new(at("[2001:db8::2]:5000"), &[at(SERVER)], &[], Instant::now());
    assert_eq!(gatherer.poll_event(), Some(GatherEvent::Ended));
    assert_eq!(gatherer.deadline(), None);
}

#[test]
fn what_is_sent_before_the_peer_is_permitted_arrives_in_order() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    for number in 0..3u8 {
        network
            .client
            .send(at(RELAYED), at(PEER), &[number], network.now);
    }
    network.pass(Duration::from_secs(1));
    let expected: Vec<_> = (0..3u8).map(|number| (at(RELAYED), vec![number])).collect();
    assert_eq!(network.at_peer, expected);
}

#[test]
fn bytes_pass_both_ways_with_little_added() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    for _ in 0..20 {
        network.send(&[7; 1001]);
        network.pass(Duration::from_secs(1));
        network.deliver(at(PEER), at(RELAYED), b"back");
        network.settle();
    }
    assert_eq!(network.at_peer, vec![(at(RELAYED), vec![7; 1001]); 20]);
    let back = (at(RELAYED), at(PEER), b"back".to_vec());
    assert_eq!(network.at_client, vec![back; 20]);
    network.longest = 0;
    network.send(&[7; 1001]);
    assert_eq!(network.longest, 1001 + 4, "the header of a channel");
}

#[test]
fn whom_nobody_permitted_does_not_get_through() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    network.deliver(at(PEER), at(RELAYED), b"hello");
    network.settle();
    assert_eq!(network.at_client, []);
}

#[test]
fn allocation_permission_and_channel_last_for_hours_over_stale_nonces() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    for _ in 0..20 {
        network.send(b"first");
    }
    network.pass(6 * 60 * MINUTE);
    network.at_peer.clear();
    network.send(b"still");
    network.deliver(at(PEER), at(RELAYED), b"there");
    network.settle();
    assert_eq!(network.at_peer, [(at(RELAYED), b"still".to_vec())]);
    let last = (at(RELAYED), at(PEER), b"there".to_vec());
    assert_eq!(network.at_client.last(), Some(&last));
    assert_eq!(network.found.len(), 3, "{:?}", network.found);
}

#[test]
fn a_server_that_forgets_loses_the_relay_and_it_is_said() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    network.server = fresh_server();
    network.pass(3 * 60 * MINUTE);
    assert_eq!(
        network.found.last(),
        Some(&GatherEvent::RelayLost(at(RELAYED)))
    );
    assert!(
        !network
            .client
            .send(at(RELAYED), at(PEER), b"x", network.now)
    );
}

#[test]
fn a_server_that_falls_silent_loses_the_relay_and_it_is_said() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    network.drops = |_| true;
    network.pass(3 * 60 * MINUTE);
    let lost = GatherEvent::RelayLost(at(RELAYED));
    assert!(network.found.contains(&lost), "{:?}", network.found);
}

#[test]
fn what_is_given_back_is_freed_and_no_news() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    network.send(b"permit");
    network.pass(MINUTE);
    network.found.clear();
    network.client.close(network.now);
    network.pass(MINUTE);
    network.at_client.clear();
    network.deliver(at(PEER), at(RELAYED), b"late");
    network.settle();
    assert_eq!(network.at_client, []);
    assert_eq!(network.found, []);
}

#[test]
fn what_no_server_sent_is_not_taken() {
    let mut network = Network::new(&[named("right")], |_| false);
    network.pass(MINUTE);
    let now = network.now;
    let mut take = |source, content: &[u8]| {
        network.client.receive(at(source), content, now, |_, _, _| {
            panic!("nothing arrived")
        })
    };
    assert!(!take(PEER, b"\x40\x00\x00\x01x"));
    assert!(!take(SERVER, b""));
    assert!(!take(SERVER, b"\x16\xfe\xfd\x00"));
    assert!(!take(SERVER, &[0; 40]));
}
