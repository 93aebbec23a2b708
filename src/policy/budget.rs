//! The automatic budget: what is known about memory, then the profile's share of it, then the queues
//! that exist, then a mark for each of them. Pure arithmetic; nothing of it is on the hot path, where a
//! queue looks at its own mark alone.
//!
//! ```text
//! limit   = the strongest statement                      budget | option | hint, hard | hard | physical
//! budget  = min(limit x percent, max(cap, queues x min)) a stated budget is used as it is
//! mark    = min(queue.min + raise, queue.max)            one raise for all; left-over bytes in id order
//! minima stay, whatever the budget: insufficient is a flag, not a refusal
//! ```

use std::time::Duration;

use crate::base::time::Instant;
use crate::plan::{Hwm, HwmPlan, HwmProfile, LimitSource, QueueBounds};

/// How long after the last queue went the marks of the others are raised. More queues lower them at
/// once: memory is bounded first, used well second.
pub const RAISE_AFTER: Duration = Duration::from_secs(3);

/// What is known about memory, bytes; `None` is "not stated", never "unlimited".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// A budget stated by the user.
    pub budget: Option<u64>,
    /// A memory limit stated by the user.
    pub option: Option<u64>,
    /// A limit that the embedding program has for itself, a managed heap for example.
    pub hint: Option<u64>,
    /// The control group's limit.
    pub hard: Option<u64>,
    /// The machine's memory.
    pub physical: Option<u64>,
}

impl Memory {
    /// The statement that wins and whose it is. A user's own value above the hard limit is not judged
    /// here: it is refused at start.
    pub fn strongest(&self) -> (LimitSource, u64) {
        let stated = |n: Option<u64>| n.filter(|n| *n > 0);
        if let Some(n) = stated(self.budget) {
            (LimitSource::Budget, n)
        } else if let Some(n) = stated(self.option) {
            (LimitSource::Option, n)
        } else if let Some(n) = stated(self.hint) {
            (LimitSource::Hint, n.min(stated(self.hard).unwrap_or(u64::MAX)))
        } else if let Some(n) = stated(self.hard) {
            (LimitSource::Hard, n)
        } else if let Some(n) = stated(self.physical) {
            (LimitSource::Physical, n)
        } else {
            (LimitSource::Unknown, 0)
        }
    }
}

/// `limit` x `percent` / 100, rounded down, exact for every `u64`.
pub fn share(limit: u64, percent: u64) -> u64 {
    (u128::from(limit) * u128::from(percent) / 100).min(u128::from(u64::MAX)) as u64
}

/// The budget that `queues` directional queues share.
pub fn effective(profile: HwmProfile, source: LimitSource, limit: u64, queues: u64) -> u64 {
    let cap = profile.cap().max(queues.saturating_mul(profile.general().min));
    match source {
        LimitSource::Budget => limit,
        LimitSource::Unknown => cap,
        _ => share(limit, profile.percent()).min(cap),
    }
}

/// One directional queue of the census.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Stable for as long as the queue lives; decides who gets the left-over bytes.
    pub id: u64,
    /// What the queue's role allows.
    pub bounds: QueueBounds,
    /// As the user stated it.
    pub hwm: Hwm,
}

/// A mark for every queue of a census.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Division {
    /// The mark that admission uses, in the order of the census; 0 = unlimited.
    pub marks: Vec<u64>,
    /// What the marks reserve together, bytes. An unlimited queue reserves its role's maximum.
    pub planned: u64,
    /// The part of `planned` that manual marks reserve.
    pub manual: u64,
    /// Minima and manual marks alone need more than the budget.
    pub insufficient: bool,
    /// No queue is unlimited, so `planned` is a bound.
    pub bounded: bool,
}

/// Divides `budget` among `queues`. Manual marks come first and are never changed; the others start
/// at their minima and are raised alike until the budget or their maximum is reached.
pub fn divide(budget: u64, queues: &[Queue]) -> Division {
    let mut marks = vec![0; queues.len()];
    let mut automatic: Vec<usize> = Vec::with_capacity(queues.len());
    let (mut manual, mut bounded) = (0_u64, true);
    for (i, queue) in queues.iter().enumerate() {
        match queue.hwm {
            Hwm::Auto => automatic.push(i),
            Hwm::Bytes(n) => {
                marks[i] = n.get();
                manual = manual.saturating_add(n.get());
            }
            Hwm::Unlimited => {
                bounded = false;
                manual = manual.saturating_add(queue.bounds.max);
            }
        }
    }
    let raised = |queue: &Queue, raise: u64| queue.bounds.min.saturating_add(raise).min(queue.bounds.max);
    let sum = |raise: u64| automatic.iter().fold(manual, |sum: u64, i| sum.saturating_add(raised(&queues[*i], raise)));

    // The largest raise that fits: `low` always fits, `high` never does. No raise is larger than the
    // longest way from a minimum to its maximum.
    let insufficient = sum(0) > budget;
    let longest = automatic.iter().map(|i| queues[*i].bounds.max.saturating_sub(queues[*i].bounds.min)).max();
    let (mut low, mut high) = (0, longest.unwrap_or(0).saturating_add(1));
    while !insufficient && high - low > 1 {
        let middle = low + (high - low) / 2;
        if sum(middle) <= budget { low = middle } else { high = middle }
    }
    let mut planned = manual;
    for &i in &automatic {
        marks[i] = raised(&queues[i], low);
        planned = planned.saturating_add(marks[i]);
    }

    // What is left is less than one byte for each queue below its maximum.
    let mut left = budget.saturating_sub(planned);
    if cfg!(afflux_mutation = "left_over_kept") {
        left = 0;
    }
    automatic.retain(|i| marks[*i] < queues[*i].bounds.max);
    automatic.sort_by_key(|i| queues[*i].id);
    for i in automatic {
        if left == 0 {
            break;
        }
        marks[i] += 1;
        planned += 1;
        left -= 1;
    }
    Division { marks, planned, manual, insufficient, bounded }
}

/// The census of `links` links: a send and a receive queue each, ids in that order.
pub fn link_queues(hwm: &HwmPlan, links: u32) -> Vec<Queue> {
    let bounds = hwm.profile.general();
    (0..2 * u64::from(links))
        .map(|id| Queue { id, bounds, hwm: if id % 2 == 0 { hwm.send } else { hwm.receive } })
        .collect()
}

/// The marks of a census of equal links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkMarks {
    /// Mark of every send queue, bytes; 0 = unlimited.
    pub send: u64,
    /// Mark of every receive queue, bytes; 0 = unlimited.
    pub receive: u64,
    /// The budget that was divided.
    pub budget: u64,
    /// Minima and manual marks alone need more than the budget.
    pub insufficient: bool,
}

/// What [`divide`] gives to [`link_queues`], without a table and without the left-over bytes (fewer
/// than one per queue): every link has the same marks, so a link can be told its own without knowing
/// its rank.
pub fn link_marks(hwm: &HwmPlan, links: u32) -> LinkMarks {
    let bounds = hwm.profile.general();
    let links = u64::from(links.max(1));
    let budget = effective(hwm.profile, hwm.source, hwm.limit, 2 * links);
    let reserved = |stated| match stated {
        Hwm::Auto => 0,
        Hwm::Bytes(n) => n.get(),
        Hwm::Unlimited => bounds.max,
    };
    let manual = links.saturating_mul(reserved(hwm.send).saturating_add(reserved(hwm.receive)));
    let automatic = links * [hwm.send, hwm.receive].iter().filter(|stated| **stated == Hwm::Auto).count() as u64;
    let least = manual.saturating_add(automatic.saturating_mul(bounds.min));
    let each = budget.saturating_sub(manual).checked_div(automatic).unwrap_or(0).clamp(bounds.min, bounds.max);
    let mark = |stated| match stated {
        Hwm::Auto => each,
        Hwm::Bytes(n) => n.get(),
        Hwm::Unlimited => 0,
    };
    LinkMarks { send: mark(hwm.send), receive: mark(hwm.receive), budget, insufficient: least > budget }
}

/// The mark of each of an end client's two queues, if there are at most `clients` of them: an equal part of
/// the budget, within the profile's bounds for such queues. It does not move when clients come and go.
pub fn stream_mark(hwm: &HwmPlan, clients: u64) -> u64 {
    let bounds = hwm.profile.stream();
    let queues = clients.max(1).saturating_mul(2);
    (effective(hwm.profile, hwm.source, hwm.limit, queues) / queues).clamp(bounds.min, bounds.max)
}

/// When marks are computed anew. For more queues than they were computed for: at once, because they
/// fall. For fewer: when no queue has come or gone for [`RAISE_AFTER`], so that a peer that flaps does
/// not make everybody's marks flap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replan {
    applied: u64,
    present: u64,
    raise_at: Instant,
}

impl Replan {
    /// The marks were computed for `queues` queues.
    pub fn new(queues: u64) -> Self {
        Replan { applied: queues, present: queues, raise_at: Instant::NEVER }
    }

    /// There are `queues` queues now. `true`: divide and apply now.
    pub fn on_census(&mut self, queues: u64, now: Instant) -> bool {
        self.present = queues;
        self.raise_at = if queues < self.applied { now.after(RAISE_AFTER) } else { Instant::NEVER };
        let more = queues > self.applied;
        if more {
            self.applied = queues;
        }
        more
    }

    /// When to call [`Replan::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Instant {
        self.raise_at
    }

    /// `true`: the time to raise has come: divide and apply now.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let due = self.raise_at != Instant::NEVER && self.raise_at <= now;
        if due {
            self.raise_at = Instant::NEVER;
            self.applied = self.present;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::unit::ByteSize;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const BALANCED: HwmProfile = HwmProfile::Balanced;

    fn queues(n: u64, bounds: QueueBounds, hwm: Hwm) -> Vec<Queue> {
        (0..n).map(|id| Queue { id, bounds, hwm }).collect()
    }

    fn budget(memory: Memory) -> u64 {
        let (source, limit) = memory.strongest();
        effective(BALANCED, source, limit, 2)
    }

    #[test]
    fn the_strongest_statement_wins() {
        let known = Memory { physical: Some(2000), hard: Some(800), hint: Some(600), ..Memory::default() };
        assert_eq!(known.strongest(), (LimitSource::Hint, 600));
        assert_eq!(budget(known), 30);
        assert_eq!(budget(Memory { option: Some(700), ..known }), 35);
        assert_eq!(budget(Memory { option: Some(700), budget: Some(333), ..known }), 333);
        assert_eq!(Memory { hint: Some(900), ..known }.strongest(), (LimitSource::Hint, 800));
        assert_eq!(Memory { hint: None, ..known }.strongest(), (LimitSource::Hard, 800));
        assert_eq!(Memory { hint: None, hard: None, ..known }.strongest(), (LimitSource::Physical, 2000));
        assert_eq!(Memory { hint: Some(0), hard: Some(0), ..known }.strongest(), (LimitSource::Physical, 2000));
        assert_eq!(budget(Memory::default()), 512 * MIB);
    }

    #[test]
    fn the_cap_gives_way_to_the_minima_of_many_queues() {
        let of = |limit, queues| effective(BALANCED, LimitSource::Hard, limit, queues);
        assert_eq!(of(1000 * MIB, 2), 50 * MIB);
        assert_eq!(of(64 * GIB, 4), 512 * MIB);
        assert_eq!(of(64 * GIB, 16_384), GIB);
        assert_eq!(of(10 * GIB, 16_384), 512 * MIB);
        assert_eq!(effective(BALANCED, LimitSource::Budget, 64 * GIB, 4), 64 * GIB);
        assert_eq!(effective(HwmProfile::Throughput, LimitSource::Hard, u64::MAX, u64::MAX), share(u64::MAX, 8));
        assert_eq!(share(u64::MAX, 100), u64::MAX);
    }

    #[test]
    fn four_directions_share_alike() {
        let mut census = queues(2, BALANCED.general(), Hwm::Auto);
        census.extend((2..4).map(|id| Queue { id, bounds: BALANCED.stream(), hwm: Hwm::Auto }));
        let division = divide(512 << 10, &census);
        assert_eq!(division.marks, [128 << 10; 4]);
        assert_eq!((division.planned, division.insufficient, division.bounded), (512 << 10, false, true));
    }

    #[test]
    fn the_odd_byte_goes_to_the_lower_id() {
        let mut census = queues(2, BALANCED.general(), Hwm::Auto);
        assert_eq!(divide(262_147, &census).marks, [131_074, 131_073]);
        census.reverse();
        assert_eq!(divide(262_147, &census).marks, [131_073, 131_074]);
    }

    #[test]
    fn minima_stay_when_the_budget_is_too_small() {
        let division = divide(64 << 10, &queues(2, BALANCED.general(), Hwm::Auto));
        assert_eq!(division.marks, [64 << 10; 2]);
        assert!(division.insufficient);
        assert_eq!(division.planned, 128 << 10);
    }

    #[test]
    fn a_queue_at_its_maximum_leaves_the_rest_to_the_others() {
        let mut census = queues(1, BALANCED.stream(), Hwm::Auto);
        census.push(Queue { id: 1, bounds: BALANCED.general(), hwm: Hwm::Auto });
        assert_eq!(divide(600 << 10, &census).marks, [128 << 10, 472 << 10]);
        assert_eq!(divide(64 * MIB, &census).marks, [128 << 10, MIB]);
    }

    #[test]
    fn manual_marks_come_first_and_unlimited_reserves_its_maximum() {
        let mut census = queues(3, BALANCED.general(), Hwm::Auto);
        census[0].hwm = Hwm::Bytes(ByteSize::mib(3));
        let division = divide(3 * MIB + 300_000, &census);
        assert_eq!(division.marks, [3 * MIB, 150_000, 150_000]);
        assert_eq!((division.manual, division.bounded), (3 * MIB, true));
        census[1].hwm = Hwm::Unlimited;
        let division = divide(5 * MIB, &census);
        assert_eq!(division.marks, [3 * MIB, 0, MIB]);
        assert_eq!((division.manual, division.planned, division.bounded), (4 * MIB, 5 * MIB, false));
        assert!(divide(4 * MIB, &census).insufficient);
    }

    #[test]
    fn equal_links_need_no_table() {
        let hwm = HwmPlan { source: LimitSource::Budget, limit: 10 * MIB, ..HwmPlan::default() };
        let marks = link_marks(&hwm, 4);
        assert_eq!((marks.send, marks.receive, marks.insufficient), (MIB, MIB, false));
        let marks = link_marks(&hwm, 7);
        assert_eq!((marks.send, marks.receive), (10 * MIB / 14, 10 * MIB / 14));
        let marks = link_marks(&HwmPlan { send: Hwm::Bytes(ByteSize::mib(2)), ..hwm }, 4);
        assert_eq!((marks.send, marks.receive), (2 * MIB, 512 << 10));
        let marks = link_marks(&HwmPlan { send: Hwm::Unlimited, ..hwm }, 16);
        assert_eq!((marks.send, marks.receive, marks.insufficient), (0, 64 << 10, true));
        assert_eq!(link_marks(&hwm, 0), link_marks(&hwm, 1));
    }

    #[test]
    fn an_empty_census_needs_nothing() {
        let division = divide(1, &[]);
        assert_eq!((division.planned, division.insufficient), (0, false));
    }

    #[test]
    fn marks_fall_at_once_and_rise_after_a_quiet_while() {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let mut replan = Replan::new(4);
        assert!(!replan.on_census(4, at(0)));
        assert!(replan.on_census(6, at(0)));
        assert_eq!(replan.poll_timeout(), Instant::NEVER);
        assert!(!replan.on_census(2, at(10)));
        assert_eq!(replan.poll_timeout(), at(3010));
        assert!(!replan.handle_timeout(at(3009)));
        assert!(!replan.on_census(4, at(3009)), "more than before, but fewer than the marks were computed for");
        assert!(!replan.handle_timeout(at(3010)), "a peer that flaps starts the wait again");
        assert!(replan.handle_timeout(at(6009)));
        assert!(!replan.handle_timeout(at(9999)));
        assert!(replan.on_census(5, at(9999)));
        assert!(!replan.on_census(3, at(10_000)));
        assert!(!replan.on_census(5, at(10_001)));
        assert_eq!(replan.poll_timeout(), Instant::NEVER, "back to what the marks were computed for");
    }
}
