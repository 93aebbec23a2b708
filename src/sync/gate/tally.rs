//! What the gate counts besides permits: waits and pauses, per measurement epoch. Plain data behind
//! the gate's lock.
//!
//! A reset begins an epoch: counters and durations go to zero; a pause goes on, and only its rest
//! is the new epoch's; a wait that began before is not the new epoch's at all.

use super::tickets::Began;
use crate::base::time::Instant;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Tally {
    era: u32,
    pub(super) waits: u64,
    pub(super) wait_duration: Duration,
    pub(super) pauses: u64,
    pub(super) resumes: u64,
    pub(super) paused_since: Option<Instant>,
    /// Pauses of this epoch that are over.
    paused_before: Duration,
    /// From when on the present pause is this epoch's.
    paused_from: Instant,
}

impl Tally {
    pub(super) fn wait_begins(&mut self, now: Instant) -> Began {
        self.waits += 1;
        Began { at: now, era: self.era }
    }

    pub(super) fn wait_ends(&mut self, began: Began, now: Instant) {
        if began.era == self.era {
            self.wait_duration += now.since(began.at);
        }
    }

    pub(super) fn pause(&mut self, now: Instant) {
        self.pauses += 1;
        self.paused_since = Some(now);
        self.paused_from = now;
    }

    pub(super) fn resume(&mut self, now: Instant) {
        self.paused_before = self.paused_total(now);
        self.resumes += 1;
        self.paused_since = None;
    }

    /// Time paused in this epoch, the present pause included.
    pub(super) fn paused_total(&self, now: Instant) -> Duration {
        self.paused_before + self.paused_since.map_or(Duration::ZERO, |_| now.since(self.paused_from))
    }

    pub(super) fn reset(&mut self, now: Instant) {
        let kept = !cfg!(afflux_mutation = "reset_to_default");
        let (era, paused_since) = if kept { (self.era.wrapping_add(1), self.paused_since) } else { Default::default() };
        *self = Tally { era, paused_since, paused_from: now, ..Tally::default() };
    }
}
