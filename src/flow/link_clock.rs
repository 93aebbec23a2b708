//! What time it is at the peer: expiry travels on its sender's clock, because the time that a
//! request spent in kernel buffers can be seen no other way.
//!
//! Owns the last eight readings of the peer's clock and the last eight round trips. A reading is
//! too old by the time it travelled, never too new, so the one that shows the peer furthest ahead
//! travelled least; half of the smallest round trip is added for what it did travel. The estimate
//! is off by at most that half. Clocks are milliseconds in 32 bits and wrap every 49 days;
//! differences are taken around the wrap, so no two times may be further apart than 24 days.

use std::time::Duration;

use crate::base::time::Instant;

/// This host's own link clock.
pub fn clock_ms(now: Instant) -> u32 {
    (now.0 / 1_000_000) as u32
}

/// The clock of the peer of one link.
#[derive(Clone, Debug)]
pub struct LinkClock {
    /// Peer's clock minus ours, as read.
    ahead: Last,
    round_trips: Last,
}

impl LinkClock {
    /// A link whose peer showed its clock in the handshake, which was read at `now`.
    pub fn new(peer_clock_ms: u32, now: Instant) -> Self {
        let mut clock = LinkClock { ahead: Last::default(), round_trips: Last::default() };
        clock.on_reading(peer_clock_ms, now);
        clock
    }

    /// A PING of the peer brought its clock.
    pub fn on_reading(&mut self, peer_clock_ms: u32, now: Instant) {
        self.ahead.push(peer_clock_ms.wrapping_sub(clock_ms(now)));
    }

    /// A PONG brought our own clock back, as it was when we asked.
    pub fn on_echo(&mut self, own_clock_ms: u32, now: Instant) {
        let round_trip = clock_ms(now).wrapping_sub(own_clock_ms);
        // From the future, or older than any link would live: not an echo of ours.
        if round_trip <= i32::MAX as u32 {
            self.round_trips.push(round_trip);
        }
    }

    /// The peer's clock now, as well as it can be known.
    pub fn peer_ms(&self, now: Instant) -> u32 {
        let base = self.ahead.values[0];
        let furthest = self.ahead.iter().map(|ahead| ahead.wrapping_sub(base) as i32).max().unwrap_or(0);
        let half = self.round_trips.iter().min().unwrap_or(0) / 2;
        clock_ms(now).wrapping_add(base).wrapping_add(furthest as u32).wrapping_add(half)
    }

    /// How much time a request has left that expires at `expiry_ms` on the peer's clock: zero if it
    /// is expired, `None` if it never expires.
    pub fn remaining(&self, expiry_ms: u32, now: Instant) -> Option<Duration> {
        if expiry_ms == 0 {
            return None;
        }
        let left = expiry_ms.wrapping_sub(self.peer_ms(now)) as i32;
        Some(Duration::from_millis(left.max(0) as u64))
    }

    /// The smallest of the last round trips.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trips.iter().min().map(|ms| Duration::from_millis(u64::from(ms)))
    }
}

#[derive(Clone, Debug, Default)]
struct Last {
    values: [u32; 8],
    pushed: usize,
}

impl Last {
    fn push(&mut self, value: u32) {
        self.values[self.pushed % 8] = value;
        self.pushed += 1;
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        self.values[..self.pushed.min(8)].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn the_least_delayed_reading_counts() {
        // The peer is 1000 ms ahead; readings take 40, 3 and 90 ms.
        let mut clock = LinkClock::new(1000, at(40));
        clock.on_reading(2000, at(1003));
        clock.on_reading(3000, at(2090));
        assert_eq!(clock.peer_ms(at(3000)), 3997);
        clock.on_echo(clock_ms(at(3000)), at(3050));
        clock.on_echo(clock_ms(at(4000)), at(4006));
        assert_eq!(clock.peer_ms(at(5000)), 6000);
        assert_eq!(clock.round_trip(), Some(Duration::from_millis(6)));
    }

    #[test]
    fn old_readings_are_forgotten_so_that_drift_is_followed() {
        let mut clock = LinkClock::new(500, at(0));
        for n in 1..=8 {
            clock.on_reading(n * 1000 + 400, at(u64::from(n) * 1000));
        }
        assert_eq!(clock.peer_ms(at(9000)), 9400);
    }

    #[test]
    fn clocks_wrap_and_run_behind() {
        let behind = LinkClock::new(10, at(1000));
        assert_eq!(behind.peer_ms(at(2000)), 1010);
        assert_eq!(behind.remaining(1500, at(2000)), Some(Duration::from_millis(490)));
        assert_eq!(behind.remaining(1010, at(2000)), Some(Duration::ZERO));
        assert_eq!(behind.remaining(900, at(2000)), Some(Duration::ZERO));
        assert_eq!(behind.remaining(0, at(2000)), None);
        let mut wrapping = LinkClock::new(u32::MAX - 5, at(0));
        wrapping.on_reading(3, at(10));
        assert_eq!(wrapping.peer_ms(at(20)), 14);
        assert_eq!(wrapping.remaining(114, at(20)), Some(Duration::from_millis(100)));
    }

    #[test]
    fn an_echo_from_the_future_is_none_of_ours() {
        let mut clock = LinkClock::new(0, at(0));
        clock.on_echo(5000, at(1000));
        assert_eq!(clock.round_trip(), None);
    }
}
