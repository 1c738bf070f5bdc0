//! Relaying over TCP against a TURN server without I/O: the stream comes in any pieces.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fairlead_turn::{Relay, RelayEvent, RelayTransport, TurnServer};
use turn_client_proto::stun::agent::Transmit;
use turn_client_proto::stun::types::TransportType;
use turn_client_proto::types::prelude::DelayedTransmitBuild;
use turn_server_proto::api::{TurnServerApi, TurnServerPollRet};
use turn_server_proto::server;

const LOCAL: &str = "192.168.0.2:5000";
const SERVER: &str = "198.51.100.1:3478";
const RELAYED: &str = "198.51.100.1:49152";
const PEER: &str = "192.0.2.7:7000";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn over_tcp_the_stream_comes_in_any_pieces() {
    let start = Instant::now();
    let counted = |now: Instant| {
        let passed = now.duration_since(start).as_nanos();
        turn_client_proto::types::Instant::from_nanos(passed as i64)
    };
    let mut server =
        server::TurnServer::new(TransportType::Tcp, at(SERVER), "relay.test".to_string());
    server.add_user("1795333512:ses_a".into(), "right".into());
    let mut now = start;
    let named = TurnServer {
        address: at(SERVER),
        username: "1795333512:ses_a".into(),
        credential: "right".into(),
    };
    let mut relay = Relay::new(at(LOCAL), &named, RelayTransport::Tcp, now);
    let mut events = Vec::new();
    let (mut at_peer, mut arrived) = (Vec::new(), Vec::new());
    for round in 0..200usize {
        if round >= 20 && relay.relayed().is_some() {
            relay.send(at(PEER), &vec![1; round], now);
            let back = vec![2; round];
            let transmit = Transmit::new(&back, TransportType::Udp, at(PEER), at(RELAYED));
            let mut stream = Vec::new();
            if let Some(answer) = server.recv(transmit, counted(now)) {
                stream = answer.data.build();
            }
            for piece in stream.chunks(round % 7 + 1) {
                relay.receive(piece, now, |peer, bytes| {
                    arrived.push((peer, bytes.to_vec()));
                });
            }
        }
        let mut stream = Vec::new();
        while let Some(piece) = relay.poll_transmit() {
            for byte in piece {
                let transmit = Transmit::new([byte], TransportType::Tcp, at(LOCAL), at(SERVER));
                if let Some(answer) = server.recv(transmit, counted(now)) {
                    if answer.to == at(LOCAL) {
                        stream.extend(answer.data.build());
                    } else {
                        at_peer.push(answer.data.build());
                    }
                }
            }
        }
        if let TurnServerPollRet::AllocateSocket {
            transport,
            listen_addr,
            client_addr,
            allocation_transport,
            family,
        } = server.poll(counted(now))
        {
            server.allocated_socket(
                transport,
                listen_addr,
                client_addr,
                allocation_transport,
                family,
                Ok(at(RELAYED)),
                counted(now),
            );
        }
        while let Some(transmit) = server.poll_transmit(counted(now)) {
            stream.extend(transmit.data);
        }
        for piece in stream.chunks(round % 5 + 1) {
            relay.receive(piece, now, |peer, bytes| {
                arrived.push((peer, bytes.to_vec()));
            });
        }
        while let Some(event) = relay.poll_event() {
            events.push(event);
        }
        now += Duration::from_millis(100);
        relay.advance(now);
    }
    assert_eq!(events, [RelayEvent::Allocated(at(RELAYED))]);
    assert!(at_peer.len() > 150, "{}", at_peer.len());
    assert!(
        at_peer
            .iter()
            .all(|bytes| bytes.iter().all(|&byte| byte == 1))
    );
    assert!(arrived.len() > 150, "{}", arrived.len());
    assert!(
        arrived
            .iter()
            .all(|(_, bytes)| bytes.iter().all(|&byte| byte == 2))
    );
    relay.disconnected();
    assert_eq!(relay.poll_event(), Some(RelayEvent::Lost));
    assert!(relay.is_over());
}
