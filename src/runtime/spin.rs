//! How a shard passes the time in which it has nothing to do: looking for work, or asleep.
//!
//! Looking pays only where somebody else can bring work meanwhile. A thread that shares the processor cannot: what
//! it would have brought comes after the time is up, or not at all. So what was in vain is tried again ever more
//! rarely, and a shard that has no processor of its own soon behaves as if it parked.

use crate::base::time::Instant;
use crate::plan::Idle;
use crate::sync::word::Luck;

/// One shard's spinning.
#[derive(Debug, Default)]
pub struct Spin {
    since: Option<Instant>,
    luck: Luck,
}

impl Spin {
    /// Tells that there was work at `now`.
    pub fn found(&mut self, idle: Idle, now: Instant) {
        if let (Idle::SpinThenPark(time), Some(since)) = (idle, self.since.take()) {
            self.luck.note(now.since(since) < time);
        }
    }

    /// Whether the time is not up that [`Spin::goes_on`] has begun.
    pub fn lasts(&self, idle: Idle, now: Instant) -> bool {
        match idle {
            Idle::Park => false,
            Idle::Spin => true,
            Idle::SpinThenPark(time) => self.since.is_some_and(|since| now.since(since) < time),
        }
    }

    /// Whether to look again rather than to sleep. Asked at `now`, with nothing to do.
    pub fn goes_on(&mut self, idle: Idle, now: Instant) -> bool {
        if !matches!(idle, Idle::SpinThenPark(_)) {
            return idle == Idle::Spin;
        }
        if self.since.is_none() {
            let tries = self.luck.is_worth_it();
            self.since = tries.then_some(now);
            return tries;
        }
        let lasts = self.lasts(idle, now);
        if !lasts {
            self.since = None;
            self.luck.note(false);
        }
        lasts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TIME: Duration = Duration::from_micros(50);
    const IDLE: Idle = Idle::SpinThenPark(TIME);

    fn at(us: u64) -> Instant {
        Instant(us * 1000)
    }

    /// Bursts of work `apart` microseconds apart, each followed by looks every 10 us; the looks between the last two.
    fn looks(apart: u64, bursts: u64) -> u64 {
        let mut spin = Spin::default();
        let mut last = 0;
        for burst in 0..bursts {
            spin.found(IDLE, at(burst * apart));
            last = (0..apart / 10).take_while(|look| spin.goes_on(IDLE, at(burst * apart + 10 * look))).count() as u64;
        }
        last
    }

    #[test]
    fn looks_until_work_comes_or_the_time_is_up() {
        assert_eq!(looks(40, 1000), 4, "work comes before the time is up, every time");
        assert_eq!(looks(1000, 1), 5, "at first nothing is known");
    }

    #[test]
    fn what_never_pays_is_hardly_ever_tried() {
        let tried = (1..1000).filter(|bursts| looks(1000, *bursts) > 0).count();
        assert!((5..=6 + 1000 / Luck::MOST as usize).contains(&tried), "{tried}");
    }

    #[test]
    fn work_that_comes_too_late_is_no_find() {
        let mut spin = Spin::default();
        assert!(spin.goes_on(IDLE, at(0)));
        // Another thread had the processor until now.
        spin.found(IDLE, at(51));
        assert!(!spin.goes_on(IDLE, at(60)), "one is left out");
        assert!(spin.goes_on(IDLE, at(70)) && spin.goes_on(IDLE, at(119)) && !spin.goes_on(IDLE, at(120)));
    }

    #[test]
    fn the_other_policies_do_not_learn() {
        let mut spin = Spin::default();
        for n in 0..1000 {
            assert!(spin.goes_on(Idle::Spin, at(n * 1000)) && !spin.goes_on(Idle::Park, at(n * 1000)));
        }
    }
}
