//! Whether a peer is alive. Any byte on either lane is life; a peer that brings none for too long,
//! although it was asked, is dead. Pressure is not an input: a paused peer answers on its
//! completion lane, so it is never dead for being paused, and one that dies while paused is noticed.
//!
//! A stock peer has one lane. While we do not read it, because its queue is full or its shard is stuck in user code,
//! its silence says nothing and does not count; and since its own heartbeats go unread, it is sent a sign of life in their place.
//!
//! ```text
//!   native, or stock that is read and knows PING    a PING per interval, dead after too long without a byte
//!   stock that is not read                          a PONG per interval, never dead
//!   stock that is read and has no PING (ZMTP 3.0)   nothing; its end is the connection's end
//! ```
//!
//! Time only matters in [`Liveness::poll`]: what was read is told first, so that a thread that
//! overslept does not take its own absence for the peer's.

use std::time::Duration;

use crate::base::record::Lane;
use crate::base::time::Instant;

/// What kind of peer it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Two lanes, of which the completion lane is always read.
    Native,
    /// One lane. `pings`: it speaks ZMTP 3.1 and answers a PING.
    Stock {
        /// Whether it may be asked.
        pings: bool,
    },
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask the peer for a sign of life, on its completion lane if it has one.
    SendPing,
    /// Send a sign of life that nobody asked for, with an empty context.
    SendPong,
    /// Retire the link. Said once.
    Dead,
}

/// The heartbeat and the death of one link.
#[derive(Clone, Debug)]
pub struct Liveness {
    peer: Peer,
    interval: Duration,
    dead_after: Duration,
    /// The last byte, by lane: application, completion.
    heard: [Instant; 2],
    /// Silence counts from here at the earliest.
    counted_from: Instant,
    beat: Instant,
    reading: bool,
    dead: bool,
    decoded: u64,
}

impl Liveness {
    /// A link that is up since `now`. `dead_after` should be a few times `interval`, so that one
    /// lost answer is not a death.
    pub fn new(peer: Peer, interval: Duration, dead_after: Duration, now: Instant) -> Self {
        Liveness {
            peer,
            interval,
            dead_after,
            heard: [now; 2],
            counted_from: now,
            beat: now.after(interval),
            reading: true,
            dead: false,
            decoded: 0,
        }
    }

    /// Bytes came in at `at`. Another thread may tell it late: an older time changes nothing.
    pub fn on_bytes(&mut self, lane: Lane, at: Instant) {
        let heard = &mut self.heard[lane as usize];
        *heard = at.max(*heard);
    }

    /// A stock peer's only lane is read again, or is not. Without meaning for a native peer.
    pub fn set_reading(&mut self, reading: bool, now: Instant) {
        if self.peer == Peer::Native {
            return;
        }
        if reading && !self.reading {
            self.counted_from = now;
        }
        self.reading = reading;
    }

    /// The peer told how many application records of this link it has decoded. False: fewer than
    /// it told before, which cannot be; the number is ignored.
    pub fn on_decoded(&mut self, records: u64) -> bool {
        let grew = records >= self.decoded;
        self.decoded = self.decoded.max(records);
        grew
    }

    /// Of `written` records that went out whole on this link, those of which the peer has not said
    /// that it decoded them: if the link is lost now, nobody knows about these.
    pub fn in_doubt(&self, written: u64) -> u64 {
        written.saturating_sub(self.decoded)
    }

    /// What is due at `now`; call again until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.dead {
            return None;
        }
        if self.death().is_some_and(|death| now >= death) {
            self.dead = true;
            return Some(Action::Dead);
        }
        if now < self.beat {
            return None;
        }
        self.beat = now.after(self.interval);
        match self.peer {
            Peer::Native => Some(Action::SendPing),
            Peer::Stock { .. } if !self.reading => Some(Action::SendPong),
            Peer::Stock { pings } => pings.then_some(Action::SendPing),
        }
    }

    /// When to poll next.
    pub fn next(&self) -> Instant {
        if self.dead {
            return Instant::NEVER;
        }
        self.death().map_or(self.beat, |death| death.min(self.beat))
    }

    /// When the last byte came, on whichever lane.
    pub fn last_byte(&self) -> Instant {
        self.heard[0].max(self.heard[1])
    }

    /// When the last byte came on this lane.
    pub fn last_byte_on(&self, lane: Lane) -> Instant {
        self.heard[lane as usize]
    }

    /// When it is dead if nothing comes; `None` while its silence does not count.
    fn death(&self) -> Option<Instant> {
        let counts = match self.peer {
            Peer::Native => true,
            Peer::Stock { pings } => pings && self.reading,
        };
        counts.then(|| self.last_byte().max(self.counted_from).after(self.dead_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn liveness(peer: Peer) -> Liveness {
        Liveness::new(peer, Duration::from_secs(5), Duration::from_secs(15), Instant(0))
    }

    /// Polls exactly when asked to, up to `until`.
    fn run(liveness: &mut Liveness, until: u64) -> Vec<(u64, Action)> {
        let mut out = Vec::new();
        while liveness.next().0 <= until {
            let at = liveness.next();
            while let Some(action) = liveness.poll(at) {
                out.push((at.0 / S, action));
            }
        }
        out
    }

    #[test]
    fn a_silent_peer_is_asked_twice_and_dead_once() {
        let mut l = liveness(Peer::Native);
        let expected = [(5, Action::SendPing), (10, Action::SendPing), (15, Action::Dead)];
        assert_eq!(run(&mut l, 100 * S), expected);
        assert_eq!((l.poll(Instant(200 * S)), l.next()), (None, Instant::NEVER));
    }

    #[test]
    fn a_byte_on_either_lane_is_life_to_the_nanosecond() {
        for lane in [Lane::Application, Lane::Completion] {
            let mut l = liveness(Peer::Native);
            l.on_bytes(lane, Instant(7 * S));
            l.on_bytes(lane, Instant(3 * S));
            assert_eq!(l.last_byte(), Instant(7 * S));
            while l.poll(Instant(22 * S - 1)).is_some() {}
            assert_eq!(l.next(), Instant(22 * S));
            assert_eq!(l.poll(Instant(22 * S)), Some(Action::Dead));
        }
    }

    #[test]
    fn what_was_read_after_a_long_sleep_is_told_first() {
        let mut l = liveness(Peer::Native);
        l.on_bytes(Lane::Completion, Instant(60 * S));
        assert_eq!(l.poll(Instant(60 * S)), Some(Action::SendPing), "one, not eleven");
        assert_eq!(l.poll(Instant(60 * S)), None);
    }

    #[test]
    fn a_stock_peer_that_we_do_not_read_gets_signs_of_life_and_cannot_die() {
        let mut l = liveness(Peer::Stock { pings: true });
        l.set_reading(false, Instant(S));
        let pongs = run(&mut l, 60 * S);
        assert_eq!(pongs.len(), 12);
        assert!(pongs.iter().all(|(_, action)| *action == Action::SendPong));
        l.set_reading(true, Instant(61 * S));
        l.set_reading(true, Instant(70 * S));
        let expected = [(65, Action::SendPing), (70, Action::SendPing), (75, Action::SendPing), (76, Action::Dead)];
        assert_eq!(run(&mut l, 100 * S), expected, "from when it is read again, it has its whole time");
    }

    #[test]
    fn a_stock_peer_without_heartbeats_is_left_alone() {
        let mut l = liveness(Peer::Stock { pings: false });
        assert_eq!(run(&mut l, 60 * S), []);
        l.set_reading(false, Instant(61 * S));
        assert_eq!(run(&mut l, 65 * S), [(65, Action::SendPong)]);
    }

    #[test]
    fn pausing_a_native_peer_gives_it_no_time() {
        let mut l = liveness(Peer::Native);
        l.set_reading(false, Instant(S));
        l.set_reading(true, Instant(14 * S));
        assert_eq!(run(&mut l, 100 * S).last(), Some(&(15, Action::Dead)));
    }

    #[test]
    fn records_are_in_doubt_until_the_peer_told() {
        let mut l = liveness(Peer::Native);
        assert_eq!(l.in_doubt(10), 10);
        assert!(l.on_decoded(7));
        assert!(!l.on_decoded(6));
        assert_eq!(l.in_doubt(10), 3);
        assert_eq!(l.in_doubt(5), 0);
    }
}
