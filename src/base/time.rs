//! Time as a value. Machines never read a clock: they are told `now`, so that they can be driven
//! by a virtual one.

use std::fmt;
use std::time::Duration;

/// A point in time: nanoseconds since the host started. Monotonic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Instant(pub u64);

impl Instant {
    /// Later than any point that can be reached.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// This point plus `d`; saturates at [`Instant::NEVER`].
    pub fn after(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this point is; zero if it is not after it.
    pub fn since(self, earlier: Instant) -> Duration {
        if cfg!(afflux_mutation = "since_goes_back") {
            return Duration::from_nanos(self.0.wrapping_sub(earlier.0));
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Where `now` comes from: the system's monotonic clock in the product, a number in a simulation.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The present. Never goes back.
    fn now(&self) -> Instant;
}

/// The longest deadline that an operation may have: `i32::MAX` milliseconds.
pub const TIMEOUT_MS_MAX: u64 = i32::MAX as u64;

/// Rounds a timeout up to whole milliseconds. `None` if it is zero or too long to be kept: such a
/// value is refused, never replaced by a default.
pub fn whole_millis(d: Duration) -> Option<Duration> {
    let ms = d.as_secs().checked_mul(1000)?.checked_add(u64::from(if cfg!(afflux_mutation = "millis_round_down") {
        d.subsec_millis()
    } else {
        d.subsec_nanos().div_ceil(1_000_000)
    }))?;
    (1..=TIMEOUT_MS_MAX).contains(&ms).then(|| Duration::from_millis(ms))
}

/// Whether [`whole_millis`] takes `d` as a timeout.
#[inline]
pub fn is_timeout(d: Duration) -> bool {
    !d.is_zero() && d <= Duration::from_millis(TIMEOUT_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_up_and_the_ends_are_refused() {
        assert_eq!(whole_millis(Duration::from_nanos(1)), Some(Duration::from_millis(1)));
        assert_eq!(whole_millis(Duration::from_micros(1001)), Some(Duration::from_millis(2)));
        let longest = Duration::from_millis(TIMEOUT_MS_MAX);
        for d in [Duration::ZERO, Duration::from_nanos(1), longest, longest + Duration::from_nanos(1), Duration::MAX] {
            assert_eq!(is_timeout(d), whole_millis(d).is_some(), "{d:?}");
        }
        assert_eq!(whole_millis(Duration::from_millis(5)), Some(Duration::from_millis(5)));
        assert_eq!(whole_millis(Duration::ZERO), None);
        assert_eq!(whole_millis(Duration::from_millis(TIMEOUT_MS_MAX)), Some(Duration::from_millis(TIMEOUT_MS_MAX)));
        assert_eq!(whole_millis(Duration::from_millis(TIMEOUT_MS_MAX + 1)), None);
        assert_eq!(whole_millis(Duration::MAX), None);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant(5).since(Instant(9)), Duration::ZERO);
        assert_eq!(Instant(1).after(Duration::MAX), Instant::NEVER);
    }
}
