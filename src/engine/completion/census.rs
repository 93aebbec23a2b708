//! The census of links: how many there are decides the marks of those that have no mark of their own.
//! More links lower the marks at once, because memory is bounded first; fewer raise them when nothing
//! has come or gone for a while, so that a peer that flaps does not make everybody's marks flap.
//!
//! ```text
//!   a link comes ─▶ Replan ─ now ───────────▶ send marks: set here, waiters are the owners' to admit
//!   a link goes  ─▶        ─ after a while ─▶ receive marks: told to the shards, who own those queues
//! ```

use super::{CompletionEngine, Timer};
use crate::base::time::Instant;
use crate::plan::Hwm;
use crate::policy::budget::{LinkMarks, Replan, link_marks};

/// What the present marks were computed from.
pub(super) struct Census {
    replan: Replan,
    pub(super) marks: LinkMarks,
    /// When the timer for a raise is set.
    timer: Instant,
}

impl Census {
    pub(super) fn new(plan: &crate::plan::HostPlan) -> Self {
        let links = plan.links_dialled().max(1);
        Census { replan: Replan::new(2 * u64::from(links)), marks: link_marks(&plan.hwm, links), timer: Instant::NEVER }
    }
}

impl CompletionEngine {
    /// A link came or went.
    pub(super) fn take_census(&mut self) {
        let now = self.shared.clock.now();
        if self.census.replan.on_census(2 * self.targets.len() as u64, now) {
            self.move_marks();
        }
        let due = self.census.replan.poll_timeout();
        if due != Instant::NEVER && self.census.timer == Instant::NEVER {
            self.census.timer = due;
            self.set_timer(due, Timer::Raise);
        }
    }

    /// The time to raise marks may have come.
    pub(super) fn raise_marks(&mut self, now: Instant) {
        self.census.timer = Instant::NEVER;
        if self.census.replan.handle_timeout(now) {
            self.move_marks();
        }
        // Put off meanwhile: another link has gone.
        let due = self.census.replan.poll_timeout();
        if due != Instant::NEVER {
            self.census.timer = due;
            self.set_timer(due, Timer::Raise);
        }
    }

    fn move_marks(&mut self) {
        let hwm = &self.shared.plan.hwm;
        let before = self.census.marks;
        let marks = link_marks(hwm, u32::try_from(self.targets.len()).unwrap_or(u32::MAX));
        self.census.marks = marks;
        self.shared.budget.set(marks.budget);
        if marks.insufficient && self.shared.insufficient.raise() {
            let line = format!(
                "{} links need more than the budget of {} bytes at their least",
                self.targets.len(),
                marks.budget
            );
            self.actions.push_back(super::CompletionAction::Log(super::Line::Warn(line)));
        } else if !marks.insufficient {
            self.shared.insufficient.lower();
        }
        if hwm.send == Hwm::Auto && marks.send != before.send {
            for target in self.targets.values() {
                if target.mark.set_limit(marks.send) > 0 {
                    self.shared.port(target.owner).poke(target);
                }
            }
        }
        if hwm.receive == Hwm::Auto && marks.receive != before.receive {
            self.shared.receive_mark.set(marks.receive);
            for port in &self.shared.shards {
                port.look_again.raise();
                port.wake.wake();
            }
        }
    }
}
