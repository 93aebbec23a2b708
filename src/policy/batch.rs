//! When a batch is full: three bounds that one number cannot stand for.
//!
//! Items bound the fixed work of a batch of tiny things, bytes (as they are *after* decoding,
//! copying, or whatever makes them larger) bound the memory, age bounds how long the first item
//! waits while nothing more comes. A deadline among the items closes it earlier, while there is
//! still time to do the work. What is in a batch is retained: give it a row in the ledger.

use std::ops::Range;
use std::time::Duration;

use crate::base::time::Instant;

/// The bounds of one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimits {
    /// At most so many items; at least 1.
    pub items: usize,
    /// At most so many bytes after expansion; a single larger item makes a batch of its own.
    pub bytes: u64,
    /// The first item waits no longer than this for company.
    pub age: Duration,
    /// The time that the work of a batch needs: it closes so long before the earliest deadline in it.
    pub reserve: Duration,
}

/// Which bound closed a batch. If nearly all are closed by age, batching gains nothing; if nearly
/// all by bytes, the item bound is not the one to tune.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClosedBy {
    /// As many items as it may have.
    Items,
    /// The next item would not have fitted, or none ever would.
    Bytes,
    /// Its first item had waited long enough.
    Age,
    /// One of its items had no more time to wait.
    Deadline,
    /// Its owner wanted it so: drain, or nothing better to do.
    Flush,
}

/// What came of an item offered to a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joined {
    /// It is in, and there is room for more.
    Open,
    /// It is in, and the batch is closed: run it.
    Closed(ClosedBy),
    /// It is not in: the batch is closed. Run it, and offer the item to the next.
    Refused(ClosedBy),
}

/// The batch being filled, in numbers. The items stay with its owner.
#[derive(Clone, Debug)]
pub struct Batch {
    limits: BatchLimits,
    items: usize,
    bytes: u64,
    /// When to close it if nothing else does, and why.
    due: Option<(Instant, ClosedBy)>,
}

impl Batch {
    /// An empty batch.
    pub fn new(limits: BatchLimits) -> Self {
        Batch { limits, items: 0, bytes: 0, due: None }
    }

    /// Offers an item of `bytes` after expansion, which must be finished by `deadline`
    /// ([`Instant::NEVER`] if it need not).
    pub fn offer(&mut self, bytes: u64, deadline: Instant, now: Instant) -> Joined {
        let sum = self.bytes.saturating_add(bytes);
        if self.items > 0 && sum > self.limits.bytes {
            self.clear();
            return Joined::Refused(ClosedBy::Bytes);
        }
        if let Some(by) = self.poll(now) {
            return Joined::Refused(by);
        }
        self.items += 1;
        self.bytes = sum;
        let age = now.after(self.limits.age);
        let (due, by) = self.due.unwrap_or((age, ClosedBy::Age));
        let latest = Instant(deadline.0.saturating_sub(self.limits.reserve.as_nanos().min(u64::MAX.into()) as u64));
        self.due =
            Some(if deadline < Instant::NEVER && latest < due { (latest, ClosedBy::Deadline) } else { (due, by) });
        let closed = if self.items >= self.limits.items {
            Some(ClosedBy::Items)
        } else if self.bytes >= self.limits.bytes {
            Some(ClosedBy::Bytes)
        } else {
            return self.poll(now).map_or(Joined::Open, Joined::Closed);
        };
        self.clear();
        closed.map_or(Joined::Open, Joined::Closed)
    }

    /// Closes the batch if its time has come. It is empty afterwards.
    pub fn poll(&mut self, now: Instant) -> Option<ClosedBy> {
        let (_, by) = self.due.filter(|(due, _)| *due <= now)?;
        self.clear();
        Some(by)
    }

    /// Closes the batch now, unless it is empty.
    pub fn flush(&mut self) -> Option<ClosedBy> {
        (self.items > 0).then(|| {
            self.clear();
            ClosedBy::Flush
        })
    }

    /// When to poll; `None` while it is empty.
    pub fn due(&self) -> Option<Instant> {
        self.due.map(|(due, _)| due)
    }

    /// Items in it.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Bytes in it, after expansion.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn clear(&mut self) {
        *self = Batch::new(self.limits);
    }
}

/// How the work on a batch ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// Every item is done.
    Completed,
    /// Somebody stopped it.
    Cancelled,
    /// An item could not be done.
    Failed,
    /// Its time was up.
    TimedOut,
}

/// How far the work on a batch came. Items are done in order, so the completed ones are a prefix;
/// behind it there may be one whose effect nobody knows, and the others were not touched. Only the
/// last may be done again without asking whoever keeps the effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "items that were not done have to be done again or answered"]
pub struct BatchOutcome {
    total: usize,
    committed: usize,
    in_doubt: usize,
    ended: Ended,
}

impl BatchOutcome {
    /// All `total` items are done.
    pub fn completed(total: usize) -> Self {
        BatchOutcome { total, committed: total, in_doubt: 0, ended: Ended::Completed }
    }

    /// The work stopped after `committed` of `total` items; `in_doubt`: in the middle of the next
    /// one. A count above `total` is cut to it.
    pub fn stopped(total: usize, committed: usize, in_doubt: bool, ended: Ended) -> Self {
        let committed = committed.min(total);
        let in_doubt = usize::from(in_doubt).min(total - committed);
        BatchOutcome { total, committed, in_doubt, ended }
    }

    /// Positions of the items whose effect is there.
    pub fn committed(&self) -> Range<usize> {
        0..self.committed
    }

    /// Position of the item whose effect may be there; empty or one.
    pub fn in_doubt(&self) -> Range<usize> {
        self.committed..self.committed + self.in_doubt
    }

    /// Positions of the items that were not touched.
    pub fn untouched(&self) -> Range<usize> {
        self.committed + self.in_doubt..self.total
    }

    /// How it ended.
    pub fn ended(&self) -> Ended {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Instant = Instant::NEVER;

    fn batch() -> Batch {
        let ns = Duration::from_nanos;
        Batch::new(BatchLimits { items: 3, bytes: 100, age: ns(50), reserve: ns(20) })
    }

    #[test]
    fn each_bound_closes_on_its_own() {
        let mut b = batch();
        assert_eq!(b.offer(1, NEVER, Instant(0)), Joined::Open);
        assert_eq!(b.offer(1, NEVER, Instant(0)), Joined::Open);
        assert_eq!(b.offer(1, NEVER, Instant(0)), Joined::Closed(ClosedBy::Items));
        assert_eq!(b.offer(60, NEVER, Instant(0)), Joined::Open);
        assert_eq!(b.offer(41, NEVER, Instant(0)), Joined::Refused(ClosedBy::Bytes));
        assert_eq!(b.offer(41, NEVER, Instant(10)), Joined::Open);
        assert_eq!(b.offer(59, NEVER, Instant(10)), Joined::Closed(ClosedBy::Bytes));
        assert_eq!(b.offer(1, NEVER, Instant(100)), Joined::Open);
        assert_eq!(b.due(), Some(Instant(150)));
        assert_eq!(b.poll(Instant(149)), None);
        assert_eq!(b.poll(Instant(150)), Some(ClosedBy::Age));
        assert_eq!((b.items(), b.bytes(), b.due()), (0, 0, None));
        assert_eq!(b.flush(), None);
        assert_eq!(b.offer(1, NEVER, Instant(200)), Joined::Open);
        assert_eq!(b.flush(), Some(ClosedBy::Flush));
    }

    #[test]
    fn age_is_that_of_the_first_item() {
        let mut b = batch();
        assert_eq!(b.offer(1, NEVER, Instant(0)), Joined::Open);
        assert_eq!(b.offer(1, NEVER, Instant(49)), Joined::Open);
        assert_eq!(b.due(), Some(Instant(50)));
        assert_eq!(b.offer(1, NEVER, Instant(50)), Joined::Refused(ClosedBy::Age), "overdue: it goes without");
        assert_eq!(b.items(), 0);
    }

    #[test]
    fn a_deadline_leaves_time_for_the_work() {
        let mut b = batch();
        assert_eq!(b.offer(1, NEVER, Instant(0)), Joined::Open);
        assert_eq!(b.offer(1, Instant(45), Instant(10)), Joined::Open);
        assert_eq!(b.due(), Some(Instant(25)));
        assert_eq!(b.poll(Instant(25)), Some(ClosedBy::Deadline));
        assert_eq!(b.offer(1, Instant(45), Instant(30)), Joined::Closed(ClosedBy::Deadline), "no time to wait at all");
    }

    #[test]
    fn an_item_larger_than_the_bound_goes_alone() {
        let mut b = batch();
        assert_eq!(b.offer(5000, NEVER, Instant(0)), Joined::Closed(ClosedBy::Bytes));
        assert_eq!(b.offer(1, NEVER, Instant(0)), Joined::Open);
        assert_eq!(b.offer(5000, NEVER, Instant(0)), Joined::Refused(ClosedBy::Bytes));
        assert_eq!(b.offer(u64::MAX, NEVER, Instant(0)), Joined::Closed(ClosedBy::Bytes));
    }

    #[test]
    fn a_stopped_batch_names_what_is_done_in_doubt_and_untouched() {
        let o = BatchOutcome::stopped(100, 10, true, Ended::Cancelled);
        assert_eq!((o.committed(), o.in_doubt(), o.untouched()), (0..10, 10..11, 11..100));
        assert_eq!(o.ended(), Ended::Cancelled);
        let o = BatchOutcome::completed(3);
        assert_eq!((o.committed(), o.in_doubt(), o.untouched()), (0..3, 3..3, 3..3));
        let o = BatchOutcome::stopped(3, 9, true, Ended::Failed);
        assert_eq!((o.committed(), o.in_doubt(), o.untouched()), (0..3, 3..3, 3..3));
    }
}
