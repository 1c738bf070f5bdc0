//! How long the batches of bulk are.

use std::time::{Duration, Instant};

use fairlead_tunnel::frames::SEGMENT_HEADER_BYTES;
use fairlead_tunnel::records::{LENGTH_BYTES, TAG_BYTES};
use fairlead_tunnel::{Limits, SHARE, SPARE, Side, Tunnel};

/// What two segments of TCP hold on a loopback of IPv6, with timestamps.
const TWO_SEGMENTS: usize = 2 * 65_463;

/// Return the lengths of the records that a tunnel makes of what was written into its channels,
/// with an acknowledgement in each.
fn records(writes: &[usize]) -> Vec<usize> {
    let now = Instant::now();
    let mut client = Tunnel::new(Side::Client, Limits::default());
    let mut gateway = Tunnel::new(Side::Gateway, Limits::default());
    let mut batch = Vec::new();
    for id in 1..=writes.len() as u32 {
        client.open("tcp:1", None).unwrap();
        batch.clear();
        assert!(client.take_batch(1, 4096, now, &mut batch));
        gateway.receive(&batch, now);
        gateway.accept(id);
    }
    batch.clear();
    assert!(gateway.take_batch(1, 4096, now, &mut batch));
    client.receive(&batch, now);
    batch.clear();
    assert!(client.take_batch(1, 4096, now + Duration::from_secs(1), &mut batch)); // acknowledges
    for (id, count) in (1..).zip(writes) {
        client.write(id, vec![1; *count].into());
    }
    let mut found = Vec::new();
    loop {
        batch.clear();
        if !client.take_batch(1, 2 * SHARE + SPARE, now, &mut batch) {
            return found;
        }
        found.push(LENGTH_BYTES + batch.len() + TAG_BYTES);
    }
}

#[test]
fn a_record_of_bulk_fills_two_segments_of_loopback_and_no_third() {
    let most = 2 * SHARE - SEGMENT_HEADER_BYTES;
    for writes in [&[2 * most][..], &[SHARE - SEGMENT_HEADER_BYTES; 4]] {
        let found = records(writes);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|each| *each <= TWO_SEGMENTS));
        assert!(found.iter().all(|each| *each > TWO_SEGMENTS - 256));
    }
}
