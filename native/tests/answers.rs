//! The patched sctp-proto where each message is answered: what is acknowledged goes along with the
//! answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sctp_proto::{
    Association, AssociationHandle, ClientConfig, DatagramEvent, Endpoint, EndpointConfig, Payload,
    PayloadProtocolIdentifier, ServerConfig, TransportConfig,
};

const MOST_PAYLOAD: u32 = 1072;
/// Common header and the header of a DATA chunk.
const HEADERS: usize = 28;
const STREAM: u16 = 0;

struct Peer {
    endpoint: Endpoint,
    association: Option<(AssociationHandle, Association)>,
    /// Sizes of the packets that were sent.
    sent: Vec<usize>,
}

impl Peer {
    fn new(server: Option<Arc<ServerConfig>>) -> Self {
        let mut config = EndpointConfig::default();
        config.max_payload_size(MOST_PAYLOAD);
        Peer {
            endpoint: Endpoint::new(Arc::new(config), server),
            association: None,
            sent: Vec::new(),
        }
    }

    fn association(&mut self) -> &mut Association {
        &mut self.association.as_mut().expect("connected").1
    }

    /// Send what there is to the other one; say whether there was anything.
    fn pass(&mut self, other: &mut Peer, from: SocketAddr, now: Instant) -> bool {
        let before = self.sent.len();
        let mut packets = Vec::new();
        while let Some(found) = self.endpoint.poll_transmit() {
            packets.push(found.payload);
        }
        if let Some((handle, association)) = &mut self.association {
            while let Some(event) = association.poll_endpoint_event() {
                if let Some(back) = self.endpoint.handle_event(*handle, event) {
                    association.handle_event(back);
                }
            }
            while let Some(found) = association.poll_transmit(now) {
                packets.push(found.payload);
            }
        }
        for payload in packets {
            if let Payload::RawEncode(contents) = payload {
                for content in contents {
                    self.sent.push(content.len());
                    other.receive(now, from, &content);
                }
            }
        }
        self.sent.len() > before
    }

    fn receive(&mut self, now: Instant, from: SocketAddr, content: &[u8]) {
        let content = content.to_vec().into();
        match self.endpoint.handle(now, from, None, None, content) {
            Some((handle, DatagramEvent::NewAssociation(association))) => {
                self.association = Some((handle, association));
            }
            Some((_, DatagramEvent::AssociationEvent(event))) => {
                self.association().handle_event(event);
            }
            None => {}
        }
    }

    fn write(&mut self, content: &[u8]) {
        let mut stream = self.association().stream(STREAM).unwrap();
        let kind = PayloadProtocolIdentifier::Binary;
        stream.write_with_ppi(content, kind).unwrap();
    }

    fn read(&mut self) -> Vec<u8> {
        let mut stream = self.association().stream(STREAM).unwrap();
        let message = stream.read().unwrap().expect("a message");
        let mut content = vec![0; message.len()];
        message.read(&mut content).unwrap();
        content
    }
}

/// Have 100 messages answered; return the sizes of the packets that either end sent for that.
fn answered(size: usize) -> (Vec<usize>, Vec<usize>) {
    let address: SocketAddr = "192.0.2.1:5000".parse().unwrap();
    let mut now = Instant::now();
    let mut server = ServerConfig::default();
    server.transport = Arc::new(TransportConfig::default());
    let mut there = Peer::new(Some(Arc::new(server)));
    let mut here = Peer::new(None);
    let connected = here.endpoint.connect(ClientConfig::new(), address);
    here.association = Some(connected.unwrap());
    while here.pass(&mut there, address, now) || there.pass(&mut here, address, now) {}
    let kind = PayloadProtocolIdentifier::Binary;
    here.association().open_stream(STREAM, kind).unwrap();
    here.sent.clear();
    there.sent.clear();
    for round in 0..100 {
        let content = vec![round; size];
        now += Duration::from_millis(1);
        here.write(&content);
        while here.pass(&mut there, address, now) {}
        assert_eq!(there.read(), content);
        there.write(&content);
        while there.pass(&mut here, address, now) {}
        assert_eq!(here.read(), content);
    }
    (here.sent, there.sent)
}

#[test]
fn an_answer_acknowledges_what_it_answers() {
    let (here, there) = answered(64);
    assert_eq!((here.len(), there.len()), (100, 100));
}

#[test]
fn no_packet_is_too_long_for_that() {
    for size in (MOST_PAYLOAD as usize - 60)..=MOST_PAYLOAD as usize {
        let (here, there) = answered(size);
        for sent in here.iter().chain(&there) {
            assert!(*sent <= MOST_PAYLOAD as usize + HEADERS, "{size}: {sent}");
        }
    }
}
