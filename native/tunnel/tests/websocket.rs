//! Frames of WebSockets as tests/vectors/websocket.json has them, however they are cut.

use fairlead_tunnel::websocket::{Found, Kind, Reader, frame, reserved_bytes};
use serde_json::Value;

fn vectors(name: &str) -> Vec<Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/websocket.json"
    );
    let found: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let found = found[name].as_array().unwrap().clone();
    assert!(!found.is_empty());
    found
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(&text[place..place + 2], 16).unwrap())
        .collect()
}

/// Return the bytes of pairs: some, and how often they come.
fn bytes(pairs: &Value) -> Vec<u8> {
    let pairs = pairs.as_array().unwrap().iter();
    pairs
        .flat_map(|pair| {
            let count = usize::try_from(pair[1].as_u64().unwrap()).unwrap();
            from_hex(pair[0].as_str().unwrap()).repeat(count)
        })
        .collect()
}

#[derive(Debug, PartialEq)]
enum Said {
    Message(Vec<u8>),
    Ping(Vec<u8>),
    Closed(u16),
}

fn expected(vector: &Value) -> (Vec<Said>, Option<u16>) {
    let code = |value: &Value| u16::try_from(value.as_u64().unwrap()).unwrap();
    let found = vector["found"].as_array().unwrap().iter();
    let found = found.map(|each| match each.as_object().unwrap().iter().next() {
        Some((name, content)) if name == "message" => Said::Message(bytes(content)),
        Some((name, content)) if name == "ping" => Said::Ping(bytes(content)),
        found => Said::Closed(code(found.unwrap().1)),
    });
    let refused = &vector["refused"];
    (found.collect(), (!refused.is_null()).then(|| code(refused)))
}

/// Read the pieces; returns what they say, and the code of the refusal that ends them.
fn read<'a>(
    reader: &mut Reader,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Said>, Option<u16>) {
    let (mut received, mut said) = (Vec::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        loop {
            let (end, found) = match reader.next(&mut received) {
                Ok(None) => break,
                Ok(Some(found)) => found,
                Err(violation) => return (said, Some(violation.code)),
            };
            match found {
                Found::Nothing => {}
                Found::Message(place) => said.push(Said::Message(received[place].to_vec())),
                Found::Parts => said.push(Said::Message(reader.parts().to_vec())),
                Found::Ping(place) => said.push(Said::Ping(received[place].to_vec())),
                Found::Closed(code) => said.push(Said::Closed(code)),
            }
            received.drain(..end);
        }
    }
    (said, None)
}

fn reader(vector: &Value) -> Reader {
    let most = usize::try_from(vector["most"].as_u64().unwrap()).unwrap();
    Reader::new(vector["of_client"].as_bool().unwrap(), most)
}

#[test]
fn frames_are_read_or_refused() {
    for vector in vectors("readers") {
        let content = bytes(&vector["bytes"]);
        let found = read(&mut reader(&vector), [&content[..]]);
        assert_eq!(found, expected(&vector), "{}", vector["name"]);
    }
}

#[test]
fn frames_are_read_however_they_are_cut() {
    for vector in vectors("readers") {
        let content = bytes(&vector["bytes"]);
        let expected = expected(&vector);
        let cuts = (0..content.len()).filter(|cut| cut % (1 + content.len() / 500) == 0);
        for cut in cuts.chain([content.len()]) {
            let (head, rest) = content.split_at(cut);
            let found = read(&mut reader(&vector), [head, rest]);
            assert_eq!(found, expected, "{} cut at {cut}", vector["name"]);
        }
        if content.len() < 1000 {
            let found = read(&mut reader(&vector), content.chunks(1));
            assert_eq!(found, expected, "{}", vector["name"]);
        }
    }
}

#[test]
fn a_refusal_needs_no_byte_more_than_shows_it() {
    let mut reader = Reader::new(false, 5);
    assert_eq!(reader.next(&mut [0x82, 6]).unwrap_err().code, 1009);
}

#[test]
fn frames_are_written_behind_what_is_unsent() {
    for vector in vectors("writers") {
        let kind = match vector["kind"].as_str().unwrap() {
            "binary" => Kind::Binary,
            "close" => Kind::Close,
            "ping" => Kind::Ping,
            name => {
                assert_eq!(name, "pong");
                Kind::Pong
            }
        };
        let mask = vector["mask"].as_str();
        let mask = mask.map(|text| from_hex(text).try_into().unwrap());
        let mut out = b"unsent".to_vec();
        out.resize(6 + reserved_bytes(mask.is_some()), 0);
        out.extend(bytes(&vector["content"]));
        frame(&mut out, 6, kind, mask);
        assert_eq!(&out[..6], b"unsent");
        assert!(out[6..] == bytes(&vector["frame"]), "{vector}");
    }
}

#[test]
fn any_bytes_are_read_or_refused_alike_however_they_are_cut() {
    let mut random = fastrand::Rng::with_seed(6455);
    for _ in 0..20_000 {
        let of_client = random.bool();
        let mut content: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
        // Most begin as a frame does.
        if let [first, second, ..] = &mut content[..] {
            *first = [0x82, 0x02, 0x80, 0x00, 0x89, 0x88, *first][random.usize(..7)];
            *second = u8::from(of_client) << 7 | random.u8(..12);
        }
        let whole = read(&mut Reader::new(of_client, 64), [&content[..]]);
        let apart = read(&mut Reader::new(of_client, 64), content.chunks(1));
        assert_eq!(whole, apart, "{content:02x?}");
    }
}
