//! Failed proofs are answered later and later, per address; those that succeed are not.
//!
//! Two maps with a limit each take turns, so that memory is bounded and an address that stops is
//! forgotten. Addresses of one IPv6 network count as one: a client has all of them to itself.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Failures of an address that are answered at once.
const FREE: u32 = 3;
/// The first delay; each further failure doubles it.
const FIRST: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(3);
/// Addresses in one of the two maps, at most.
const ADDRESSES_MAX: usize = 10_000;
/// How long a map is filled before the older one is dropped.
const TURN: Duration = Duration::from_secs(60);

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    newer: HashMap<IpAddr, u32>,
    older: HashMap<IpAddr, u32>,
    turned: Duration,
}

impl Throttle {
    /// Counts a failure; returns how long its answer waits. `now` never goes back.
    pub(crate) fn failed(&mut self, address: IpAddr, now: Duration) -> Duration {
        if now.saturating_sub(self.turned) >= TURN || self.newer.len() >= ADDRESSES_MAX {
            self.older = std::mem::take(&mut self.newer);
            self.turned = now;
        }
        let address = network(address);
        let before = self.older.get(&address).copied().unwrap_or(0);
        let count = self.newer.entry(address).or_insert(before);
        *count = count.saturating_add(1);
        match count.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doubled) => FIRST.saturating_mul(1 << doubled.min(16)).min(LONGEST),
        }
    }
}

/// What counts as one address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_answered_later_and_later_and_others_are_not() {
        let mut throttle = Throttle::default();
        let (bad, good) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let delays: Vec<u64> =
            (0..10).map(|_| throttle.failed(bad, Duration::ZERO).as_millis() as u64).collect();
        assert_eq!(delays, [0, 0, 0, 100, 200, 400, 800, 1600, 3000, 3000]);
        assert_eq!(throttle.failed(good, Duration::ZERO), Duration::ZERO);
        // It is remembered over one turn, and forgotten after two without failures.
        assert_eq!(throttle.failed(bad, TURN), LONGEST);
        throttle.failed(good, 2 * TURN);
        throttle.failed(good, 3 * TURN);
        assert_eq!(throttle.failed(bad, 3 * TURN), Duration::ZERO);
    }

    #[test]
    fn memory_is_bounded_and_an_ipv6_network_is_one_address() {
        let mut throttle = Throttle::default();
        for each in 0..5 * ADDRESSES_MAX as u32 {
            throttle.failed(IpAddr::V4(each.into()), Duration::ZERO);
        }
        assert!(throttle.newer.len() <= ADDRESSES_MAX && throttle.older.len() <= ADDRESSES_MAX);
        let mut throttle = Throttle::default();
        let delay = (1..=4_u16).map(|each| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, each, 0, 0, each);
            throttle.failed(address.into(), Duration::ZERO)
        });
        assert_eq!(delay.last(), Some(FIRST));
    }
}
