//! Looks after replies that shards have left for the end of a run of jobs: should a job of the run get
//! stuck, they go out from here.
//!
//! ```text
//!   Still ─ a shard leaves a reply, raises the flag ─▶ Ticks ─ nothing was left for a while ─▶ Still, flag lowered
//! ```
//!
//! A shard leaves first and looks at the flag then; this thread lowers the flag first and looks at what was
//! left then, both under the same lock: so one of them sees the other.

use super::CompletionEngine;
use crate::base::time::Instant;
use crate::engine::lanes;
use std::time::Duration;

/// The longest that a reply lies with its shard.
const EVERY: Duration = Duration::from_millis(1);

/// So many ticks without a batch, and it stops.
const IDLE_TICKS: u32 = 20;

#[derive(Default)]
pub(super) struct Ticker {
    runs: bool,
    next: Instant,
    seen: u64,
    idle: u32,
}

impl Ticker {
    /// Whether it ticks now.
    pub(super) fn runs(&self) -> bool {
        self.runs
    }
}

impl CompletionEngine {
    /// Writes what was left long enough; says when to come back.
    pub(super) fn tick(&mut self, now: Instant) -> Instant {
        if !self.ticker.runs {
            if !self.shared.tick.is_raised() {
                return Instant::NEVER;
            }
            self.ticker = Ticker { runs: true, next: now.after(EVERY), ..Ticker::default() };
        }
        if now < self.ticker.next {
            return self.ticker.next;
        }
        self.ticker.next = now.after(EVERY);
        self.write_left();
        let batches = self.shared.shards.iter().map(|port| port.batches.get()).sum();
        if std::mem::replace(&mut self.ticker.seen, batches) != batches {
            self.ticker.idle = 0;
        }
        self.ticker.idle += 1;
        if self.ticker.idle <= IDLE_TICKS {
            return self.ticker.next;
        }
        self.ticker.runs = false;
        self.shared.tick.lower();
        self.write_left();
        Instant::NEVER
    }

    fn write_left(&self) {
        for port in &self.shared.shards {
            let left = std::mem::take(&mut *port.left.lock());
            if !left.is_empty() {
                port.left_taken.add(1);
            }
            for target in left {
                lanes::drive_completion(&self.shared, &target);
            }
        }
    }
}
