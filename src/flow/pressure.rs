//! What peers tell each other about their job queues: hold back, or send on.
//!
//! The state is told absolutely and by level: what counts is where it is, not how often it crossed.
//! [`Told`] is the telling side of one link, [`Heard`] the listening side. Neither looks at
//! readiness or liveness, which pressure never changes. Nothing queues here, so nothing can be
//! full: a state that could not be told now is told later, and then it is the state of then.

use std::time::Duration;

use crate::base::time::Instant;

/// A link is told no more often than this: a job queue that swings around its threshold must not
/// fill the completion lane.
pub const TELL_INTERVAL: Duration = Duration::from_millis(1);

/// What is to be done for one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tell {
    /// The peer knows.
    Nothing,
    /// Tell it the present state and epoch now; it counts as told.
    Now,
    /// It was told another state too short a time ago: look again then.
    At(Instant),
}

/// What the peer of one link was told last. A new link begins with a new one, so that its peer is
/// told the present state whatever it is.
#[derive(Clone, Debug, Default)]
pub struct Told {
    last: Option<(bool, Instant)>,
}

impl Told {
    /// Compares the state with what the peer knows.
    pub fn poll(&mut self, paused: bool, now: Instant) -> Tell {
        match self.last {
            Some((told, _)) if told == paused => Tell::Nothing,
            None if !paused && cfg!(afflux_mutation = "new_link_untold") => Tell::Nothing,
            Some((_, at)) if now.since(at) < TELL_INTERVAL => Tell::At(at.after(TELL_INTERVAL)),
            _ => {
                self.last = Some((paused, now));
                Tell::Now
            }
        }
    }
}

/// What came of a state that the peer told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hearing {
    /// The peer is paused from now on.
    Paused,
    /// The peer takes more from now on.
    Resumed,
    /// A newer epoch of the same state.
    Unchanged,
    /// An epoch that is not newer than what was heard before; it changes nothing and is counted.
    Stale,
}

/// What the peer of one link told about itself. A new link begins with a new one: running.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    epoch: Option<u64>,
    paused_since: Option<Instant>,
    pauses: u64,
    stale: u64,
    paused_total: Duration,
}

impl Heard {
    /// The peer told a state. Of two that arrive in the wrong order, or twice, the newer epoch wins.
    pub fn on_told(&mut self, paused: bool, epoch: u64, now: Instant) -> Hearing {
        if self.epoch.is_some_and(|heard| epoch <= heard) && !cfg!(afflux_mutation = "stale_pause_heard") {
            self.stale += 1;
            return Hearing::Stale;
        }
        self.epoch = Some(epoch);
        match (self.paused_since, paused) {
            (None, true) => {
                self.paused_since = Some(now);
                self.pauses += 1;
                Hearing::Paused
            }
            (Some(since), false) => {
                self.paused_since = None;
                self.paused_total += now.since(since);
                Hearing::Resumed
            }
            _ => Hearing::Unchanged,
        }
    }

    /// Since when the peer is paused.
    pub fn paused_since(&self) -> Option<Instant> {
        self.paused_since
    }

    /// Time paused on this link, the present pause included.
    pub fn paused_total(&self, now: Instant) -> Duration {
        self.paused_total + self.paused_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Changes to paused.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// States that came too late or twice.
    pub fn stale(&self) -> u64 {
        self.stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_new_link_is_told_even_that_all_is_well() {
        let mut told = Told::default();
        assert_eq!(told.poll(false, Instant(5)), Tell::Now);
        assert_eq!(told.poll(false, Instant(6)), Tell::Nothing);
        assert_eq!(Told::default().poll(true, Instant(6)), Tell::Now);
    }

    #[test]
    fn swings_within_a_millisecond_are_told_as_where_they_ended() {
        let mut told = Told::default();
        assert_eq!(told.poll(true, Instant(0)), Tell::Now);
        assert_eq!(told.poll(false, Instant(10)), Tell::At(Instant(MS)));
        assert_eq!(told.poll(true, Instant(20)), Tell::Nothing, "it is back where the peer thinks it is");
        assert_eq!(told.poll(false, Instant(30)), Tell::At(Instant(MS)));
        assert_eq!(told.poll(false, Instant(MS)), Tell::Now);
        assert_eq!(told.poll(true, Instant(2 * MS - 1)), Tell::At(Instant(2 * MS)));
    }

    #[test]
    fn a_stale_epoch_cannot_overwrite_a_newer_one() {
        let mut heard = Heard::default();
        assert_eq!(heard.on_told(false, 0, Instant(1)), Hearing::Unchanged);
        assert_eq!(heard.on_told(true, 3, Instant(10)), Hearing::Paused);
        for (paused, epoch) in [(false, 2), (false, 3), (true, 3), (false, 0)] {
            assert_eq!(heard.on_told(paused, epoch, Instant(20)), Hearing::Stale);
        }
        assert_eq!((heard.paused_since(), heard.stale()), (Some(Instant(10)), 4));
        assert_eq!(heard.on_told(true, 5, Instant(30)), Hearing::Unchanged);
        assert_eq!(heard.paused_since(), Some(Instant(10)), "one pause, told twice");
        assert_eq!(heard.paused_total(Instant(35)), Duration::from_nanos(25));
        assert_eq!(heard.on_told(false, 6, Instant(40)), Hearing::Resumed);
        assert_eq!(heard.paused_since(), None);
        assert_eq!((heard.paused_total(Instant(99)), heard.pauses()), (Duration::from_nanos(30), 1));
    }
}
