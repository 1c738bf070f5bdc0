//! SOCKS5 as tests/vectors/socks5.json has it for every implementation, however it is cut.

use fairlead_tunnel::socks5::{Credentials, Outcome, Socks5Server};
use serde_json::Value;

fn bytes(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap().as_bytes();
    let digits = text
        .chunks(2)
        .map(|each| std::str::from_utf8(each).unwrap());
    digits
        .map(|each| u8::from_str_radix(each, 16).unwrap())
        .collect()
}

fn vectors() -> Vec<Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/socks5.json"
    );
    let found: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    found["servers"].as_array().unwrap().clone()
}

fn server(vector: &Value) -> Socks5Server {
    let credentials = &vector["credentials"];
    let text = |place: usize| bytes(&credentials[place]);
    Socks5Server::new(
        credentials
            .is_array()
            .then(|| Credentials::new(text(0), text(1)).unwrap()),
    )
}

/// Serve the pieces; returns the answers, the outcome, and the early bytes behind a request.
fn served<'a>(
    mut server: Socks5Server,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<u8>, Option<Outcome>, Vec<u8>) {
    let (mut answered, mut found, mut late) = (Vec::new(), None, Vec::new());
    for piece in pieces {
        if found.is_some() {
            assert_eq!(server.receive(piece), None);
            late.extend_from_slice(piece);
        } else {
            found = server.receive(piece);
        }
        answered.extend(server.take_outgoing());
    }
    let mut early = server.into_received().1;
    early.extend(late);
    (answered, found, early)
}

fn check(vector: &Value, found: (Vec<u8>, Option<Outcome>, Vec<u8>)) {
    let (answered, outcome, early) = found;
    assert_eq!(answered, bytes(&vector["answered"]), "{vector}");
    let text = |name: &str| vector[name].as_str().unwrap().to_string();
    match outcome {
        Some(Outcome::Asked(target)) => {
            assert_eq!(target, text("target"), "{vector}");
            assert_eq!(early, bytes(&vector["early"]), "{vector}");
        }
        Some(Outcome::Refused(message)) => assert_eq!(message, text("refused"), "{vector}"),
        None => assert_eq!(text("target") + &text("refused"), "", "{vector}"),
    }
}

#[test]
fn clients_are_answered_as_the_vectors_say_wherever_they_are_cut() {
    for vector in vectors() {
        let said = bytes(&vector["said"]);
        check(&vector, served(server(&vector), said.chunks(1)));
        for cut in 0..=said.len() {
            let pieces = [&said[..cut], &said[cut..]];
            check(&vector, served(server(&vector), pieces));
        }
    }
}

#[test]
fn whatever_comes_is_judged_once_and_bounded() {
    let mut random = fastrand::Rng::with_seed(9);
    let all = vectors();
    for _ in 0..20_000 {
        let vector = random.choice(&all).unwrap();
        let mut said = bytes(&vector["said"]);
        for _ in 0..random.usize(..4) {
            if let Some(place) = random.choice(0..said.len()) {
                said[place] = random.u8(..);
            }
        }
        let pieces = said.chunks(random.usize(1..=600));
        let (answered, outcome, _) = served(server(vector), pieces);
        assert!(answered.len() <= 2 + 2 + 10);
        if let Some(Outcome::Asked(target)) = outcome {
            assert!(
                target.starts_with("tcp:") && target.len() <= 255,
                "{target}"
            );
        }
    }
}

#[test]
fn what_was_heard_is_the_same_again() {
    for vector in vectors() {
        let said = bytes(&vector["said"]);
        let mut first = server(&vector);
        if let Some(Outcome::Refused(_)) = first.receive(&said) {
            continue; // it is closed
        }
        let (mut heard, rest) = first.into_received();
        heard.extend(rest);
        assert_eq!(heard, said);
        check(&vector, served(server(&vector), [&heard[..]]));
    }
}

#[test]
fn a_name_and_a_password_have_1_to_255_bytes() {
    let made = |user: usize, password: usize| {
        Credentials::new(vec![b'a'; user], vec![b'b'; password]).is_some()
    };
    assert!(made(1, 255) && made(255, 1));
    assert!(!made(0, 1) && !made(1, 0) && !made(256, 1) && !made(1, 256));
}
