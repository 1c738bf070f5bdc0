//! The bytes of the protocol, as tests/vectors/tunnel.json has them for every implementation.

use fairlead_tunnel::frames::{Frame, batch_header, decode};
use fairlead_tunnel::records::{LENGTH_BYTES, Opener, Sealer, Suite};
use serde_json::Value;

fn vectors() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/tunnel.json"
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list<'a>(vectors: &'a Value, name: &str) -> &'a Vec<Value> {
    let found = vectors[name].as_array().unwrap();
    assert!(!found.is_empty());
    found
}

fn bytes(vector: &Value, name: &str) -> Vec<u8> {
    let text = vector[name].as_str().unwrap().as_bytes();
    let digits = text
        .chunks(2)
        .map(|each| std::str::from_utf8(each).unwrap());
    digits
        .map(|each| u8::from_str_radix(each, 16).unwrap())
        .collect()
}

fn key(vector: &Value, name: &str) -> [u8; 32] {
    bytes(vector, name).try_into().unwrap()
}

fn suite(vector: &Value) -> Suite {
    match vector["suite"].as_str().unwrap() {
        "AES_256_GCM" => Suite::Aes256Gcm,
        name => {
            assert_eq!(name, "CHACHA20_POLY1305");
            Suite::ChaCha20Poly1305
        }
    }
}

/// Return the frame of a vector; `content` is where its bytes are.
fn frame<'a>(vector: &'a Value, content: &'a [u8]) -> Frame<'a> {
    let number = |name: &str| vector[name].as_u64().unwrap();
    let text = |name: &str| vector[name].as_str().unwrap();
    let channel = || u32::try_from(number("channel")).unwrap();
    let ranges = || {
        let pairs = vector["ranges"].as_array().unwrap().iter();
        pairs
            .map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap()))
            .collect()
    };
    match text("type") {
        "OPEN" => Frame::Open(channel(), text("target")),
        "ACCEPTED" => Frame::Accepted(channel()),
        "SEGMENT" => Frame::Segment(channel(), number("offset"), content),
        "FIN" => Frame::Fin(channel(), number("length")),
        "RESET" => Frame::Reset(channel(), number("length"), text("reason"), text("message")),
        "WINDOW" => Frame::Window(channel(), number("limit")),
        "ACK" => Frame::Ack(ranges()),
        "ALIVE" => Frame::Alive(ranges()),
        "CLOSE" => Frame::Close(text("reason"), text("message")),
        name => {
            assert_eq!(name, "PING");
            Frame::Ping
        }
    }
}

#[test]
fn frames_have_their_bytes_both_ways() {
    for vector in list(&vectors(), "frames") {
        let said = &vector["frame"];
        let content = said["content"].is_string().then(|| bytes(said, "content"));
        let content = content.unwrap_or_default();
        let frame = frame(said, &content);
        let mut batch = batch_header(3, 2).to_vec();
        frame.encode(&mut batch);
        assert_eq!(batch[16..], bytes(vector, "bytes"), "{vector}");
        assert_eq!(decode(&batch).unwrap(), (3, 2, vec![frame]), "{vector}");
    }
}

#[test]
fn what_is_no_batch_is_refused() {
    for vector in list(&vectors(), "no_batches") {
        assert!(decode(&bytes(vector, "bytes")).is_err(), "{vector}");
    }
}

#[test]
fn records_have_their_bytes_both_ways() {
    for vector in list(&vectors(), "records") {
        let (suite, key) = (suite(vector), key(vector, "key"));
        let (batch, sealed) = (bytes(vector, "batch"), bytes(vector, "sealed"));
        let (mut sealer, mut opener) = (Sealer::new(suite, key), Opener::new(suite, key));
        for number in 0..=vector["number"].as_u64().unwrap() {
            let is_last = number == vector["number"].as_u64().unwrap();
            let mut record = vec![0; LENGTH_BYTES];
            record.extend_from_slice(if is_last { &batch } else { b"" });
            sealer.seal(&mut record, 0).unwrap();
            assert_eq!(Opener::whole(&record), Ok(Some(record.len())));
            if is_last {
                assert_eq!(record[LENGTH_BYTES..], sealed, "{vector}");
                assert_eq!(
                    opener.open(&mut record[LENGTH_BYTES..]).unwrap(),
                    batch,
                    "{vector}"
                );
            } else {
                opener.open(&mut record[LENGTH_BYTES..]).unwrap();
            }
        }
    }
}

#[test]
fn a_record_that_was_changed_doubled_left_out_or_cut_is_refused() {
    let made = |count: usize| {
        let mut sealer = Sealer::new(Suite::Aes256Gcm, [7; 32]);
        let mut found = Vec::new();
        for number in 0..count {
            let mut record = vec![0; LENGTH_BYTES];
            record.extend_from_slice(format!("batch {number}").as_bytes());
            sealer.seal(&mut record, 0).unwrap();
            found.push(record);
        }
        found
    };
    let records = made(2);
    for place in LENGTH_BYTES..records[0].len() {
        let mut changed = records[0].clone();
        changed[place] ^= 1;
        let mut opener = Opener::new(Suite::Aes256Gcm, [7; 32]);
        assert!(opener.open(&mut changed[LENGTH_BYTES..]).is_err());
    }
    let mut opener = Opener::new(Suite::Aes256Gcm, [7; 32]);
    opener
        .open(&mut records[0].clone()[LENGTH_BYTES..])
        .unwrap();
    assert!(
        opener
            .open(&mut records[0].clone()[LENGTH_BYTES..])
            .is_err()
    );
    let mut opener = Opener::new(Suite::Aes256Gcm, [7; 32]);
    assert!(
        opener
            .open(&mut records[1].clone()[LENGTH_BYTES..])
            .is_err()
    );
    let cut = &records[0][..records[0].len() - 1];
    assert_eq!(Opener::whole(cut), Ok(None));
    assert!(Opener::whole(&[0, 0, 0, 15]).is_err());
    assert!(Opener::whole(&[0, 4, 0, 17]).is_err());
}

#[test]
fn handshakes_are_those_of_another_implementation_of_noise() {
    for vector in list(&vectors(), "handshakes") {
        let (name, number) = match suite(vector) {
            Suite::Aes256Gcm => ("Noise_NKpsk0_25519_AESGCM_SHA256", 1),
            Suite::ChaCha20Poly1305 => ("Noise_NKpsk0_25519_ChaChaPoly_SHA256", 2),
        };
        let kind = if vector["kind"] == "TICKET" { 1 } else { 2 };
        let token = bytes(vector, "token");
        let mut prologue = vec![b'F', b'L', b'T', 1, number, kind, 0, token.len() as u8];
        prologue.extend_from_slice(&token);
        let (psk, private) = (key(vector, "psk"), key(vector, "gateway_private"));
        let builder = || {
            let made = snow::Builder::new(name.parse().unwrap())
                .psk(0, &psk)
                .unwrap();
            made.prologue(&prologue).unwrap()
        };
        let hello = bytes(vector, "hello");
        let answer = bytes(vector, "answer");
        assert_eq!(hello[..prologue.len()], prologue);
        let mut buffer = [0; 1024];

        let ephemeral = key(vector, "gateway_ephemeral");
        let mut gateway = builder()
            .local_private_key(&private)
            .unwrap()
            .fixed_ephemeral_key_for_testing_only(&ephemeral)
            .build_responder()
            .unwrap();
        let message = &hello[prologue.len() + 2..];
        let length = gateway.read_message(message, &mut buffer).unwrap();
        assert_eq!(buffer[..length], bytes(vector, "early"));
        let mut payload = bytes(vector, "secret");
        payload.extend_from_slice(&bytes(vector, "reply"));
        let length = gateway.write_message(&payload, &mut buffer).unwrap();
        assert_eq!(buffer[..length], answer[3..]);
        assert_eq!(answer[..3], [0, (length >> 8) as u8, length as u8]);
        let keys = (key(vector, "client_key"), key(vector, "gateway_key"));
        assert_eq!(gateway.dangerously_get_raw_split(), keys);
    }
}
