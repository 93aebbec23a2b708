//! The system's monotonic clock: the only place that reads it.

use std::time::{Instant as SystemInstant, SystemTime, UNIX_EPOCH};

use crate::base::time::{Clock, Instant};

/// Nanoseconds since it was made, which is when its host started.
#[derive(Debug)]
pub struct SystemClock {
    start: SystemInstant,
    started_at: SystemTime,
}

impl SystemClock {
    /// Starts at zero, now.
    pub fn start() -> Self {
        SystemClock { start: SystemInstant::now(), started_at: SystemTime::now() }
    }

    /// When it started, in seconds of civil time since 1970: for files that people read.
    pub fn started_at(&self) -> f64 {
        self.started_at.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        let d = self.start.elapsed();
        Instant(d.as_secs() * 1_000_000_000 + u64::from(d.subsec_nanos()))
    }
}
