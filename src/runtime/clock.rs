//! The system's monotonic clock: the only place that reads it.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::base::time::{Clock, Instant};

/// Nanoseconds since it was made, which is when its host started.
#[derive(Debug)]
pub struct SystemClock {
    start: u64,
    started_at: SystemTime,
}

impl SystemClock {
    /// Starts at zero, now.
    pub fn start() -> Self {
        SystemClock { start: nanos(), started_at: SystemTime::now() }
    }

    /// When it started, in seconds of civil time since 1970: for files that people read.
    pub fn started_at(&self) -> f64 {
        self.started_at.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant(nanos() - self.start)
    }
}

/// Of the standard library's instants only differences can be had, which cost more than the reading.
#[inline]
fn nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
