//! Lanes that callers lead. While a leader reads, the poller is not to wake this thread for every reply; it
//! looks after the leader once, a grace later. A lane that was left warm is taken back when no other leader
//! came for a while.

use std::sync::Arc;
use std::time::Duration;

use super::CompletionEngine;
use crate::base::id::TargetId;
use crate::base::time::Instant;
use crate::engine::lead;
use crate::flow::target::{Left, Target};
use crate::sync::lead::{Seen, Ticket};

/// How long a leader may leave something unread.
const GRACE: Duration = Duration::from_millis(1);

/// How often warm lanes are looked at.
const COOL: Duration = Duration::from_millis(20);

/// A leader that will be looked at.
struct Grace {
    id: TargetId,
    ticket: Ticket,
    lease: u32,
    until: Instant,
}

/// Bounded: a lane is in either once.
#[derive(Default)]
pub(super) struct Leads {
    graces: Vec<Grace>,
    /// Lanes that were left warm, and how far their leaders had come at the last look.
    warm: Vec<(Arc<Target>, u32)>,
    /// The next look.
    cool_at: Instant,
}

impl CompletionEngine {
    /// The poller saw something to read on a completion lane.
    pub(super) fn lane_readable(&mut self, id: TargetId) {
        let Some(target) = self.ups.get(&id).map(|up| up.target.clone()) else { return };
        match target.lead.seen(|on| lead::watch(&target, on)) {
            Seen::Read => {
                self.read_lane(id);
            }
            Seen::Led(ticket, lease) => {
                if !self.leads.graces.iter().any(|grace| grace.id == id && grace.ticket == ticket) {
                    let until = self.shared.clock.now().after(GRACE);
                    self.leads.graces.retain(|grace| grace.id != id);
                    self.leads.graces.push(Grace { id, ticket, lease, until });
                }
            }
        }
    }

    /// Looks after leaders and warm lanes; says when to come back.
    pub(super) fn see_to_leads(&mut self, now: Instant) -> Instant {
        let mut next = Instant::NEVER;
        let mut at = 0;
        while let Some(grace) = self.leads.graces.get(at) {
            if grace.until <= now {
                let grace = self.leads.graces.swap_remove(at);
                self.judge(&grace);
            } else {
                next = next.min(grace.until);
                at += 1;
            }
        }
        next.min(self.cool(now))
    }

    /// The grace of a leader is over.
    fn judge(&mut self, grace: &Grace) {
        let Some(target) = self.ups.get(&grace.id).map(|up| up.target.clone()) else { return };
        if cfg!(afflux_mutation = "lead_unjudged") {
            return;
        }
        if target.lead.is_still(grace.ticket, grace.lease) && self.read_lane(grace.id) {
            target.lead.revoke(grace.ticket, |on| lead::watch(&target, on));
        }
        if target.in_flight.ops() > 0 {
            lead::expect(&target);
        }
    }

    /// Takes lanes back that nobody has led since the last look.
    fn cool(&mut self, now: Instant) -> Instant {
        let came = self.shared.completion.warm.take();
        if self.leads.warm.is_empty() && !came.is_empty() {
            self.leads.cool_at = now.after(COOL);
        }
        let first = came.into_iter().map(|target| {
            let lease = target.lead.lease();
            (target, lease)
        });
        self.leads.warm.extend(first);
        if self.leads.warm.is_empty() {
            return Instant::NEVER;
        }
        if now < self.leads.cool_at {
            return self.leads.cool_at;
        }
        for (target, lease) in std::mem::take(&mut self.leads.warm) {
            let moved = target.lead.lease();
            if moved != lease {
                self.leads.warm.push((target, moved));
                continue;
            }
            // Lowered before the look: who leaves it warm from here on tells so again.
            target.warmed.lower();
            if target.lead.cool(|on| lead::watch(&target, on)) {
                self.read_lane(target.id);
            }
        }
        self.leads.cool_at = now.after(COOL);
        if self.leads.warm.is_empty() { Instant::NEVER } else { self.leads.cool_at }
    }

    /// What leaders have left.
    pub(super) fn take_all_left(&mut self, now: Instant) {
        for target in self.shared.completion.left.take() {
            let left = target.left.take();
            let link = self.ups.get(&target.id).map_or(0, |up| up.link);
            self.take_left(target.id, link, left, now);
        }
    }

    /// What leaders have left of one lane, in the order in which it came.
    pub(super) fn take_left(&mut self, id: TargetId, link: u64, left: Vec<Left>, now: Instant) {
        for left in left.into_iter().filter(|left| left.link == link && !cfg!(afflux_mutation = "lead_word_lost")) {
            if let Some(why) = left.over.or(self.hear_all(id, left.commands, now)) {
                self.retire(id, link, &why);
            }
        }
    }
}
