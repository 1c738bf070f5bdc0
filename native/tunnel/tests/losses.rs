//! What is lost with a carrier and told again.

use std::time::{Duration, Instant};

use fairlead_tunnel::{Event, Limits, Side, Tunnel};

fn sent(tunnel: &mut Tunnel, carrier: u32, now: Instant) -> Option<Vec<u8>> {
    let mut batch = Vec::new();
    let was_any = tunnel.take_batch(carrier, 4096, now, &mut batch);
    was_any.then_some(batch)
}

/// Return both ends with a channel that is accepted, and nothing to say for either.
fn pair(now: Instant) -> (Tunnel, Tunnel) {
    let mut client = Tunnel::new(Side::Client, Limits::default());
    let mut gateway = Tunnel::new(Side::Gateway, Limits::default());
    client.open("tcp:1", None).unwrap();
    gateway.receive(&sent(&mut client, 1, now).unwrap(), now);
    gateway.accept(1);
    client.receive(&sent(&mut gateway, 1, now).unwrap(), now);
    let later = now + Duration::from_millis(25);
    gateway.receive(&sent(&mut client, 1, later).unwrap(), later);
    assert_eq!(sent(&mut gateway, 1, later), None);
    (client, gateway)
}

#[test]
fn an_acknowledgement_that_was_lost_with_its_carrier_is_said_again() {
    let mut now = Instant::now();
    let (mut client, mut gateway) = pair(now);
    now += Duration::from_secs(1);
    client.write(1, b"hello".as_slice().into());
    gateway.receive(&sent(&mut client, 2, now).unwrap(), now);
    now += Duration::from_millis(25);
    let lost = sent(&mut gateway, 1, now);
    assert!(lost.is_some());
    assert_eq!(sent(&mut gateway, 2, now), None);
    gateway.carrier_lost(1, false, true);
    let again = sent(&mut gateway, 2, now).unwrap();
    assert_eq!(again[16..], lost.unwrap()[16..]);
}

#[test]
fn a_client_that_names_its_carriers_gets_at_once_what_others_had_under_way() {
    let now = Instant::now() + Duration::from_secs(1);
    let (mut client, mut gateway) = pair(now);
    gateway.write(1, b"hello".as_slice().into());
    assert!(sent(&mut gateway, 1, now).is_some());
    let mut hello = Vec::new();
    assert!(client.first_batch(2, 4096, now, &[(2, 2)], &mut hello));
    let events = gateway.receive(&hello, now);
    assert_eq!(events, [Event::Named(vec![(2, 2)])]);
    let batch = sent(&mut gateway, 2, now).unwrap();
    let events = client.receive(&batch, now);
    assert_eq!(events, [Event::Received(1, b"hello".as_slice().into())]);
}

#[test]
fn what_a_poll_was_answered_with_is_not_said_again_unless_it_is_restated() {
    let mut now = Instant::now();
    let (mut client, mut gateway) = pair(now);
    now += Duration::from_secs(1);
    client.write(1, b"hello".as_slice().into());
    gateway.receive(&sent(&mut client, 2, now).unwrap(), now);
    now += Duration::from_millis(25);
    assert!(sent(&mut gateway, 1, now).is_some());
    gateway.carrier_lost(1, true, true);
    assert!(!gateway.has_to_send(now));
    let mut answer = Vec::new();
    assert!(!gateway.first_batch(3, 4096, now, &[], &mut answer));
    gateway.restate(now);
    assert!(gateway.first_batch(3, 4096, now, &[], &mut answer));
}

#[test]
fn a_tunnel_says_when_a_batch_would_have_something_in_it() {
    let mut now = Instant::now();
    let mut client = Tunnel::new(Side::Client, Limits::default());
    assert!(!client.has_to_send(now));
    client.open("tcp:1", Some(now + Duration::from_millis(1)));
    assert!(!client.has_to_send(now));
    now += Duration::from_millis(1);
    assert!(client.has_to_send(now));
    assert!(sent(&mut client, 1, now).is_some());
    assert!(!client.has_to_send(now));
    client.open("tcp:2", None);
    client.close("closed", "Enough.");
    assert!(!client.is_unheard(1) && client.is_unheard(2));
    assert!(client.has_to_send(now));
    assert!(sent(&mut client, 1, now).is_some());
    assert!(!client.has_to_send(now));
}

#[test]
fn the_last_batch_of_a_gateway_says_which_channels_it_has_not_heard_of() {
    let now = Instant::now() + Duration::from_secs(1);
    let (mut client, mut gateway) = pair(now);
    client.open("tcp:2", None).unwrap();
    assert!(sent(&mut client, 1, now).is_some()); // it crosses the end
    client.open("tcp:3", None).unwrap();
    assert!(sent(&mut client, 2, now).is_some());
    client.carrier_lost(2, false, true); // it may have come before
    assert!(sent(&mut client, 3, now).is_some());
    gateway.close("drained", "The gateway stops.");
    client.receive(&sent(&mut gateway, 1, now).unwrap(), now);
    assert_eq!(
        [1, 2, 3].map(|id| client.is_unheard(id)),
        [false, true, false]
    );
}

#[test]
fn a_later_hello_tells_of_no_channel() {
    let now = Instant::now() + Duration::from_secs(1);
    let (mut client, _) = pair(now);
    client.open("tcp:2", None).unwrap();
    let mut hello = Vec::new();
    assert!(client.first_batch(2, 4096, now, &[(2, 2)], &mut hello));
    assert_eq!(client.unsent(), [2]);
    assert!(sent(&mut client, 2, now).is_some());
    assert_eq!(client.unsent(), [] as [u32; 0]);
}
