//! Two ends of a tunnel over carriers that are cut and replaced, with resets and slow readers.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlead_tunnel::{Event, Limits, Side, Tunnel};
use fastrand::Rng;

const LIMITS: Limits = Limits {
    channel_window: 30_000,
    tunnel_window: 70_000,
    most_channels: 24,
};

/// What one side writes in a channel, and what it has of the other.
#[derive(Default)]
struct Stream {
    written: Vec<u8>,
    received: Vec<u8>,
    unread: u64,
    waits: bool,
    has_finished: bool,
    peer_finished: bool,
    was_reset: bool,
}

struct End {
    tunnel: Tunnel,
    streams: BTreeMap<u32, Stream>,
}

impl End {
    fn new(side: Side) -> Self {
        End {
            tunnel: Tunnel::new(side, LIMITS),
            streams: BTreeMap::new(),
        }
    }

    fn take(&mut self, batch: &[u8], now: Instant, random: &mut Rng) {
        let mut accepts = Vec::new();
        for event in self.tunnel.receive(batch, now) {
            let channel = match &event {
                Event::Over(over) => panic!("{over:?}"),
                Event::Named(_) => continue,
                Event::Wanted(channel, target) => {
                    assert_eq!(target, &format!("target {channel}"));
                    let new = self.streams.insert(*channel, Stream::default()).is_none();
                    assert!(new, "a channel is wanted once");
                    accepts.push(*channel);
                    *channel
                }
                Event::Accepted(channel)
                | Event::Received(channel, _)
                | Event::Finished(channel)
                | Event::Reset(channel, ..)
                | Event::Drained(channel) => *channel,
            };
            let stream = self.streams.get_mut(&channel).unwrap();
            assert!(!stream.was_reset, "no event follows a reset");
            match event {
                Event::Received(_, content) => {
                    assert!(!stream.peer_finished);
                    stream.received.extend_from_slice(&content);
                    stream.unread += content.len() as u64;
                    assert!(stream.unread <= LIMITS.channel_window);
                }
                Event::Finished(_) => stream.peer_finished = true,
                Event::Reset(..) => stream.was_reset = true,
                Event::Drained(_) => assert!(std::mem::take(&mut stream.waits)),
                _ => {}
            }
        }
        for channel in accepts {
            if random.u8(0..10) > 0 {
                self.tunnel.accept(channel);
            }
        }
    }

    /// Write, read, end or give up, as it comes.
    fn act(&mut self, random: &mut Rng, may_reset: bool) {
        let Some(channel) = random.choice(self.streams.keys().copied()) else {
            return;
        };
        let stream = self.streams.get_mut(&channel).unwrap();
        if stream.was_reset {
            return;
        }
        match random.u8(0..20) {
            0 => {
                stream.has_finished = true;
                self.tunnel.finish(channel);
            }
            1 if may_reset && random.u8(0..4) == 0 => {
                stream.was_reset = true;
                self.tunnel
                    .reset(channel, "given_up", "The test has had enough.");
            }
            2..12 if !stream.has_finished && !stream.waits => {
                let room = self.tunnel.writable(channel) as usize;
                stream.waits = room == 0;
                let most = if random.bool() { 300 } else { 20_000 };
                let count = random.usize(0..most).min(room);
                if count > 0 {
                    let content: Vec<u8> = (0..count).map(|_| random.u8(..)).collect();
                    stream.written.extend_from_slice(&content);
                    self.tunnel.write(channel, Bytes::from(content));
                }
            }
            _ => {
                let count = random.u64(0..=stream.unread);
                stream.unread -= count;
                self.tunnel.consumed(channel, count);
            }
        }
    }
}

/// One carrier: batches under way to the gateway, and to the client.
struct Carrier {
    number: u32,
    under_way: [VecDeque<Vec<u8>>; 2],
}

struct World {
    ends: [End; 2],
    carriers: Vec<Carrier>,
    next_carrier: u32,
    now: Instant,
    random: Rng,
}

impl World {
    fn send(&mut self) {
        for (side, end) in self.ends.iter_mut().enumerate() {
            for carrier in &mut self.carriers {
                let most = self.random.usize(4096..20_000);
                let mut batch = Vec::new();
                let number = carrier.number;
                if end.tunnel.take_batch(number, most, self.now, &mut batch) {
                    assert!(batch.len() <= most);
                    carrier.under_way[1 - side].push_back(batch);
                } else {
                    assert!(batch.is_empty());
                }
            }
        }
    }

    fn deliver(&mut self) {
        if self.carriers.is_empty() {
            return;
        }
        let place = self.random.usize(..self.carriers.len());
        let side = self.random.usize(..2);
        if let Some(batch) = self.carriers[place].under_way[side].pop_front() {
            self.ends[side].take(&batch, self.now, &mut self.random);
        }
    }

    /// Lose what a carrier has under way; either end notices first, and the other still gets some.
    fn cut(&mut self) {
        if self.carriers.is_empty() {
            return;
        }
        let place = self.random.usize(..self.carriers.len());
        let mut carrier = self.carriers.remove(place);
        let first = self.random.usize(..2);
        self.ends[first]
            .tunnel
            .carrier_lost(carrier.number, false, true);
        for _ in 0..self.random.usize(..4) {
            if let Some(batch) = carrier.under_way[1 - first].pop_front() {
                self.ends[1 - first].take(&batch, self.now, &mut self.random);
            }
        }
        self.ends[1 - first]
            .tunnel
            .carrier_lost(carrier.number, false, true);
    }

    /// Attach one more carrier, whose first batch names those that the client has.
    fn attach(&mut self) {
        self.next_carrier += 1;
        let number = self.next_carrier;
        self.carriers.push(Carrier {
            number,
            under_way: Default::default(),
        });
        let numbers = self.carriers.iter().map(|each| u64::from(each.number));
        let alive: Vec<_> = numbers.map(|number| (number, number)).collect();
        let mut batch = Vec::new();
        let client = &mut self.ends[0].tunnel;
        assert!(client.first_batch(number, 8_000, self.now, &alive, &mut batch));
        let carrier = self.carriers.last_mut().unwrap();
        carrier.under_way[1].push_back(batch);
    }

    fn open(&mut self) {
        let hold = self.random.bool();
        let until = hold.then(|| self.now + Duration::from_millis(1));
        let client = &mut self.ends[0];
        let next = client.streams.len() as u32 + 1;
        if let Some(channel) = client.tunnel.open(&format!("target {next}"), until) {
            assert_eq!(channel, next);
            client.streams.insert(channel, Stream::default());
        }
    }

    /// Do what is left without losses until nothing is.
    fn settle(&mut self) {
        self.attach();
        for _ in 0..20_000 {
            self.now += Duration::from_millis(1);
            self.send();
            for _ in 0..8 {
                self.deliver();
            }
            for end in &mut self.ends {
                for (&channel, stream) in &mut end.streams {
                    if stream.was_reset {
                        continue;
                    }
                    end.tunnel
                        .consumed(channel, std::mem::take(&mut stream.unread));
                    stream.has_finished = true;
                    end.tunnel.finish(channel);
                }
            }
            if self.ends.iter().all(|end| end.tunnel.channels() == 0) {
                return;
            }
        }
        panic!(
            "channels are left: {:?}",
            self.ends.each_ref().map(|end| end.tunnel.channels())
        );
    }
}

#[test]
fn whatever_is_cut_each_byte_arrives_once_and_in_order() {
    for seed in 0..150 {
        let mut world = World {
            ends: [End::new(Side::Client), End::new(Side::Gateway)],
            carriers: Vec::new(),
            next_carrier: 0,
            now: Instant::now(),
            random: Rng::with_seed(seed),
        };
        for _ in 0..3_000 {
            match world.random.u8(0..40) {
                0 => world.open(),
                1 if world.random.u8(0..3) == 0 => world.cut(),
                2 if world.carriers.len() < 3 => world.attach(),
                3 => world.now += Duration::from_millis(world.random.u64(0..30)),
                4..16 => world.send(),
                16..30 => world.deliver(),
                other => {
                    let World { ends, random, .. } = &mut world;
                    ends[usize::from(other % 2)].act(random, seed % 3 > 0);
                }
            }
        }
        world.settle();
        let [client, gateway] = &world.ends;
        for (channel, ours) in &client.streams {
            let theirs = gateway.streams.get(channel);
            if ours.was_reset || theirs.is_none_or(|it| it.was_reset) {
                let received = theirs.map_or(&[][..], |it| &it.received);
                assert!(ours.written.starts_with(received), "seed {seed}");
                continue;
            }
            let theirs = theirs.unwrap();
            assert!(ours.peer_finished && theirs.peer_finished, "seed {seed}");
            assert!(ours.written == theirs.received, "seed {seed}");
            assert!(theirs.written == ours.received, "seed {seed}");
        }
    }
}
