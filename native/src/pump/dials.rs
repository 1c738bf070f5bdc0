//! Connections that are being made to the targets of channels, to one address after the other.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::CString;
use std::net::{SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

/// How long a dial may take, with the time that was spent on its name before.
#[derive(Clone, Copy)]
pub struct Patience {
    pub began: Instant,
    pub until: Instant,
}

/// What is left to try for one channel.
struct Dial {
    addresses: VecDeque<SocketAddr>,
    began: Instant,
    /// So long each address has to answer.
    share: Duration,
    until: Instant,
}

/// All of a tunnel, by channel.
#[derive(Default)]
pub struct Dials {
    all: HashMap<u32, Dial>,
    due: BTreeSet<(Instant, u32)>,
}

impl Dials {
    /// Have one, of which nothing is tried yet.
    pub fn add(
        &mut self,
        channel: u32,
        addresses: Vec<SocketAddr>,
        patience: Patience,
        now: Instant,
    ) {
        let left = patience.until.saturating_duration_since(now);
        let dial = Dial {
            share: left / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX),
            addresses: addresses.into(),
            began: patience.began,
            until: now,
        };
        self.all.insert(channel, dial);
    }

    /// Return the next address of a channel, whose time begins.
    pub fn next(&mut self, channel: u32, now: Instant) -> Option<SocketAddr> {
        let dial = self.all.get_mut(&channel)?;
        let address = dial.addresses.pop_front()?;
        self.due.remove(&(dial.until, channel));
        dial.until = now + dial.share;
        self.due.insert((dial.until, channel));
        Some(address)
    }

    /// Have one no more; returns when it began.
    pub fn remove(&mut self, channel: u32) -> Option<Instant> {
        let dial = self.all.remove(&channel)?;
        self.due.remove(&(dial.until, channel));
        Some(dial.began)
    }

    /// Return when the first address has taken too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Return a channel whose address has taken too long.
    pub fn overdue(&self, now: Instant) -> Option<u32> {
        let (until, channel) = *self.due.first()?;
        (until <= now).then_some(channel)
    }
}

/// Read an IP address, with its zone behind `%` where it has one (RFC 4007, section 11).
pub fn address_of(text: &str, port: u16) -> Option<SocketAddr> {
    let Some((host, zone)) = text.split_once('%') else {
        return Some(SocketAddr::new(text.parse().ok()?, port));
    };
    let scope = match zone.parse() {
        Ok(number) => number,
        Err(_) => {
            let name = CString::new(zone).ok()?;
            // SAFETY: if_nametoindex(3) reads a string that ends, and gives 0 for what it does not know.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        }
    };
    Some(SocketAddrV6::new(host.parse().ok()?, port, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_address_has_its_share_of_the_time_that_is_left() {
        let now = Instant::now();
        let patience = Patience {
            began: now - SECOND,
            until: now + 6 * SECOND,
        };
        let addresses = ["127.0.0.1:1", "[::1]:2"].map(|each| each.parse().unwrap());
        let mut dials = Dials::default();
        dials.add(7, addresses.to_vec(), patience, now);
        assert_eq!(dials.deadline(), None);
        assert_eq!(dials.next(7, now), Some(addresses[0]));
        assert_eq!(dials.overdue(now + 2 * SECOND), None);
        assert_eq!(dials.overdue(now + 3 * SECOND), Some(7));
        assert_eq!(dials.next(7, now + 3 * SECOND), Some(addresses[1]));
        assert_eq!(dials.deadline(), Some(now + 6 * SECOND));
        assert_eq!(dials.next(7, now + 6 * SECOND), None);
        assert_eq!(dials.remove(7), Some(now - SECOND));
        assert_eq!((dials.deadline(), dials.remove(7)), (None, None));
    }

    #[test]
    fn an_address_may_have_a_zone() {
        let scope = |text| match address_of(text, 80) {
            Some(SocketAddr::V6(found)) => Some(found.scope_id()),
            _ => None,
        };
        assert_eq!(scope("fe80::1%lo"), Some(1));
        assert_eq!(scope("fe80::1%3"), Some(3));
        assert_eq!(scope("::1"), Some(0));
        assert_eq!(address_of("127.0.0.1%lo", 80), None);
        assert_eq!(address_of("host", 80), None);
    }
}
