//! The patched sctp-proto over links of any length, rate and loss, in virtual time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sctp_proto::{
    Association, AssociationHandle, ClientConfig, DatagramEvent, Endpoint, EndpointConfig, Event,
    Payload, PayloadProtocolIdentifier, ServerConfig, StreamEvent, TransportConfig,
};

/// Bytes that str0m leaves unsent before it takes no more.
const UNSENT: usize = 128 * 1024;
const MESSAGE: usize = 16 * 1024;
/// What IP, UDP and DTLS add to a packet.
const OVERHEAD: usize = 65;

/// One direction of a link.
struct Link {
    delay: Duration,
    /// Bytes a second.
    rate: f64,
    /// Most bytes that wait for their turn; more are lost.
    queue: f64,
    /// How many of a thousand datagrams are lost besides.
    loss: u64,
    free: Instant,
    seed: u64,
    on_the_way: VecDeque<(Instant, Vec<u8>)>,
    lost: u32,
}

impl Link {
    fn carry(&mut self, content: Vec<u8>, now: Instant) {
        // xorshift64, https://www.jstatsoft.org/article/view/v008i14
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let begins = self.free.max(now);
        let waiting = (begins - now).as_secs_f64() * self.rate;
        if self.seed % 1000 < self.loss || waiting > self.queue {
            self.lost += 1;
            return;
        }
        let size = (content.len() + OVERHEAD) as f64;
        self.free = begins + Duration::from_secs_f64(size / self.rate);
        self.on_the_way.push_back((self.free + self.delay, content));
    }

    fn arrived(&mut self, now: Instant) -> Option<Vec<u8>> {
        let first = self.on_the_way.front()?;
        (first.0 <= now).then(|| self.on_the_way.pop_front().expect("seen above").1)
    }
}

struct Peer {
    endpoint: Endpoint,
    association: Option<(AssociationHandle, Association)>,
    out: Link,
}

impl Peer {
    fn association(&mut self) -> &mut Association {
        &mut self.association.as_mut().expect("connected").1
    }

    fn receive(&mut self, now: Instant, from: SocketAddr, content: Vec<u8>) {
        match self.endpoint.handle(now, from, None, None, content.into()) {
            Some((handle, DatagramEvent::NewAssociation(association))) => {
                self.association = Some((handle, association));
            }
            Some((_, DatagramEvent::AssociationEvent(event))) => {
                self.association().handle_event(event);
            }
            None => {}
        }
    }

    fn transmit(&mut self, now: Instant) {
        while let Some(found) = self.endpoint.poll_transmit() {
            self.carry(found.payload, now);
        }
        while let Some((handle, association)) = &mut self.association {
            if let Some(event) = association.poll_endpoint_event() {
                if let Some(back) = self.endpoint.handle_event(*handle, event) {
                    association.handle_event(back);
                }
                continue;
            }
            let Some(found) = association.poll_transmit(now) else {
                return;
            };
            self.carry(found.payload, now);
        }
    }

    fn carry(&mut self, payload: Payload, now: Instant) {
        if let Payload::RawEncode(packets) = payload {
            for packet in packets {
                self.out.carry(packet.to_vec(), now);
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        let (_, association) = self.association.as_ref()?;
        association.poll_timeout()
    }
}

/// A link as a test wants it.
#[derive(Clone, Copy)]
struct Road {
    rtt_ms: u64,
    mb_per_s: f64,
    queue_kb: f64,
    loss_per_thousand: u64,
    seed: u64,
}

const LONG: Road = Road {
    rtt_ms: 92,
    mb_per_s: 1000.0,
    queue_kb: 1e6,
    loss_per_thousand: 0,
    seed: 1,
};

struct Outcome {
    mb_per_s: f64,
    lost: u32,
    /// Most bytes on the way at a time.
    flight: usize,
}

/// Carry `size` bytes, check every one of them, and say how fast it was.
fn carried(road: Road, size: usize) -> Outcome {
    let begun = Instant::now();
    let delay = Duration::from_micros(road.rtt_ms * 500);
    let link = |seed| Link {
        delay,
        rate: road.mb_per_s * 1e6,
        queue: road.queue_kb * 1e3,
        loss: road.loss_per_thousand,
        free: begun,
        seed,
        on_the_way: VecDeque::new(),
        lost: 0,
    };
    let mut config = EndpointConfig::default();
    config.max_payload_size(1072);
    let config = Arc::new(config);
    let transport = || {
        Arc::new(
            TransportConfig::default()
                .with_max_init_retransmits(None)
                .with_max_data_retransmits(None)
                .with_max_receive_buffer_size(1024 * 1024)
                .with_max_receive_message_size(256 * 1024),
        )
    };
    let mut server = ServerConfig::default();
    server.transport = transport();
    let address: SocketAddr = "192.0.2.1:5000".parse().unwrap();
    let mut receiver = Peer {
        endpoint: Endpoint::new(config.clone(), Some(Arc::new(server))),
        association: None,
        out: link(road.seed + 1),
    };
    let mut sender = Peer {
        endpoint: Endpoint::new(config, None),
        association: None,
        out: link(road.seed),
    };
    let mut client = ClientConfig::new();
    client.transport = transport();
    sender.association = Some(sender.endpoint.connect(client, address).unwrap());

    let (mut now, mut started) = (begun, None);
    let (mut written, mut arrived, mut flight) = (0usize, 0usize, 0);
    let mut is_open = false;
    while arrived < size {
        let soonest = [&sender.out, &receiver.out]
            .into_iter()
            .filter_map(|out| out.on_the_way.front().map(|first| first.0))
            .chain(sender.due())
            .chain(receiver.due())
            .min();
        now = now.max(soonest.unwrap_or(now));
        assert!(now - begun < Duration::from_secs(600), "it stands still");
        while let Some(content) = sender.out.arrived(now) {
            receiver.receive(now, address, content);
        }
        while let Some(content) = receiver.out.arrived(now) {
            sender.receive(now, address, content);
        }
        if let Some((_, association)) = &mut receiver.association {
            association.handle_timeout(now);
            while association.poll().is_some() {}
            for id in association.stream_ids() {
                let mut stream = association.stream(id).unwrap();
                while let Ok(Some(message)) = stream.read() {
                    let mut content = vec![0; message.len()];
                    message.read(&mut content).unwrap();
                    for byte in content {
                        assert_eq!(byte, pattern(arrived), "byte {arrived}");
                        arrived += 1;
                    }
                }
            }
        }
        let association = sender.association();
        association.handle_timeout(now);
        while let Some(event) = association.poll() {
            if matches!(event, Event::Connected) {
                association
                    .open_stream(0, PayloadProtocolIdentifier::Binary)
                    .unwrap();
                is_open = true;
                started = Some(now);
            }
            assert!(!matches!(
                event,
                Event::Stream(StreamEvent::Finished { .. })
            ));
        }
        receiver.transmit(now);
        loop {
            sender.transmit(now);
            if !is_open || written == size {
                break;
            }
            let mut stream = sender.association().stream(0).unwrap();
            if stream.buffered_amount().unwrap() + MESSAGE > UNSENT {
                break;
            }
            let message: Vec<u8> = (written..size.min(written + MESSAGE))
                .map(pattern)
                .collect();
            written += message.len();
            stream
                .write_with_ppi(&message, PayloadProtocolIdentifier::Binary)
                .unwrap();
        }
        flight = flight.max(sender.out.on_the_way.iter().map(|each| each.1.len()).sum());
    }
    Outcome {
        mb_per_s: size as f64 / 1e6 / (now - started.unwrap()).as_secs_f64(),
        lost: sender.out.lost,
        flight,
    }
}

fn pattern(place: usize) -> u8 {
    (place ^ (place >> 8).wrapping_mul(31) ^ (place >> 16).wrapping_mul(17)) as u8
}

#[test]
fn a_long_link_is_filled() {
    let found = carried(LONG, 6 << 20);
    assert!(found.mb_per_s > 5.0, "{}", found.mb_per_s);
    let longer = carried(LONG, 24 << 20);
    assert!(longer.mb_per_s > 12.0, "{}", longer.mb_per_s);
    assert!(longer.flight < 5 << 20, "{}", longer.flight);
}

#[test]
fn a_short_link_is_not_queued_upon() {
    let road = Road {
        rtt_ms: 0,
        mb_per_s: 100.0,
        ..LONG
    };
    let found = carried(road, 48 << 20);
    assert!(found.mb_per_s > 85.0, "{}", found.mb_per_s);
    assert!(found.flight < 512 * 1024, "{}", found.flight);
}

#[test]
fn a_slow_link_with_a_short_queue_is_used() {
    for (mb_per_s, queue_kb, least) in [(12.5, 256.0, 6.0), (2.5, 256.0, 1.6), (12.5, 60.0, 1.3)] {
        let road = Road {
            mb_per_s,
            queue_kb,
            ..LONG
        };
        let found = carried(road, 24 << 20);
        assert!(found.lost > 0);
        assert!(found.mb_per_s > least, "{mb_per_s}: {}", found.mb_per_s);
    }
}

#[test]
fn loss_slows_down_and_never_stops() {
    for (rtt_ms, loss_per_thousand, least) in [
        (92, 1, 0.8),
        (92, 10, 0.12),
        (92, 50, 0.03),
        (10, 10, 1.0),
        (1, 10, 8.0),
        (1, 100, 0.1),
    ] {
        for seed in 1..=4 {
            let road = Road {
                rtt_ms,
                loss_per_thousand,
                seed,
                ..LONG
            };
            let found = carried(road, 3 << 20);
            assert!(found.lost > 0);
            assert!(
                found.mb_per_s > least,
                "{rtt_ms} ms, {loss_per_thousand}, {seed}: {}",
                found.mb_per_s
            );
        }
    }
}
