//! Admit, wait or shed: the decision at the last point where all three are still open.
//!
//! It is taken before anything is accepted, and the types hold that: only an [`Unaccepted`] can be
//! shed. Once [`Accepted`], an item has an owner who must finish it or say why not; there is no
//! way back.
//!
//! ```compile_fail
//! use afflux::policy::overload::{Refusal, Unaccepted};
//! let accepted = Unaccepted::new("order").accept();
//! accepted.shed(Refusal::Full); // no such method: that would be loss
//! ```

use std::time::Duration;

/// How important an item is to the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// May be made again at no cost: refused first.
    Bulk,
    /// Everything else.
    Normal,
    /// Finishes or frees something, or keeps the host governable: may use the reserve.
    Control,
}

/// What is known when an item comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Taken of the limit, in the limit's unit.
    pub occupied: u64,
    /// The limit.
    pub capacity: u64,
    /// What the item would take of it.
    pub requested: u64,
    /// How long the oldest item that waits has waited: what this one has to expect.
    pub queue_age: Duration,
    /// How much time the item has left altogether; `None`: as much as it takes.
    pub remaining: Option<Duration>,
}

/// Why an item was shed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// No room, and the item may not or need not wait.
    Full,
    /// It would be admitted too late to be of use.
    TooLate,
    /// It is larger than the whole limit.
    TooLarge,
}

/// What to do with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Take it now.
    Admit,
    /// Let its producer wait, no longer than the item has time for: the wait needs a deadline.
    Wait,
    /// Refuse it now, while its producer can still do something else.
    Shed(Refusal),
}

/// The rules of one boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverloadPolicy {
    /// The part of the limit that only [`Class::Control`] may use, in percent.
    pub reserve_percent: u8,
    /// The part of the limit from which on bulk is refused, in percent.
    pub bulk_percent: u8,
    /// Whether producers here can wait. Who cannot push back (datagrams, a crowd of callers that each
    /// retain a large body) sheds instead.
    pub may_wait: bool,
    /// The time that the work itself needs once it is admitted.
    pub service: Duration,
}

impl OverloadPolicy {
    /// Decides for one item. Looks at no queue and keeps no state, so equal loads get equal answers.
    pub fn decide(&self, class: Class, load: Load) -> Verdict {
        let part = |percent: u8| (u128::from(load.capacity) * u128::from(percent.min(100)) / 100) as u64;
        if load.requested > load.capacity {
            return Verdict::Shed(Refusal::TooLarge);
        }
        if load.remaining.is_some_and(|remaining| remaining < self.service) {
            return Verdict::Shed(Refusal::TooLate);
        }
        let ceiling = match class {
            Class::Control => load.capacity,
            Class::Normal => load.capacity - part(self.reserve_percent),
            Class::Bulk => (load.capacity - part(self.reserve_percent)).min(part(self.bulk_percent)),
        };
        if load.occupied.saturating_add(load.requested) <= ceiling {
            return Verdict::Admit;
        }
        if !self.may_wait || class == Class::Bulk || load.requested > ceiling {
            return Verdict::Shed(Refusal::Full);
        }
        let needed = load.queue_age.saturating_add(self.service);
        if load.remaining.is_some_and(|remaining| remaining < needed) {
            return Verdict::Shed(Refusal::TooLate);
        }
        Verdict::Wait
    }

    /// Decides and changes the item's type accordingly.
    pub fn apply<T>(&self, item: Unaccepted<T>, class: Class, load: Load) -> Decision<T> {
        match self.decide(class, load) {
            Verdict::Admit => Decision::Admitted(item.accept()),
            Verdict::Wait => Decision::Waiting(item),
            Verdict::Shed(refusal) => Decision::Shed(item.shed(refusal)),
        }
    }
}

/// An item for which nobody has taken responsibility yet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "neither accepted nor shed: its producer hears nothing"]
pub struct Unaccepted<T>(T);

impl<T> Unaccepted<T> {
    /// An item that has just come.
    pub fn new(item: T) -> Self {
        Unaccepted(item)
    }

    /// Takes responsibility. From here on the item is finished, or its failure is reported.
    pub fn accept(self) -> Accepted<T> {
        Accepted(self.0)
    }

    /// Refuses it and gives it back with the reason.
    pub fn shed(self, refusal: Refusal) -> Shed<T> {
        Shed { item: self.0, refusal }
    }

    /// A look, for a decision.
    pub fn get(&self) -> &T {
        &self.0
    }
}

/// An item that somebody is responsible for. It cannot be shed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "an accepted item that is dropped is lost"]
pub struct Accepted<T>(T);

impl<T> Accepted<T> {
    /// The item, to be worked on.
    pub fn into_inner(self) -> T {
        self.0
    }

    /// A look.
    pub fn get(&self) -> &T {
        &self.0
    }
}

/// A refused item, on its way back to its producer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the producer gets its item back and is told why"]
pub struct Shed<T> {
    /// The item, unchanged.
    pub item: T,
    /// Why.
    pub refusal: Refusal,
}

/// What became of an item.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision<T> {
    /// It is ours.
    Admitted(Accepted<T>),
    /// It waits, still its producer's; ask again with a new load.
    Waiting(Unaccepted<T>),
    /// It goes back.
    Shed(Shed<T>),
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn policy() -> OverloadPolicy {
        OverloadPolicy { reserve_percent: 10, bulk_percent: 50, may_wait: true, service: 3 * MS }
    }

    fn load(occupied: u64, requested: u64) -> Load {
        Load { occupied, capacity: 1000, requested, queue_age: Duration::ZERO, remaining: None }
    }

    #[test]
    fn every_class_has_its_own_ceiling() {
        use Class::*;
        let full = Verdict::Shed(Refusal::Full);
        for (class, occupied, expected) in [
            (Bulk, 499, Verdict::Admit),
            (Bulk, 500, full),
            (Normal, 899, Verdict::Admit),
            (Normal, 900, Verdict::Wait),
            (Control, 999, Verdict::Admit),
            (Control, 1000, Verdict::Wait),
        ] {
            assert_eq!(policy().decide(class, load(occupied, 1)), expected, "{class:?} at {occupied}");
        }
        let strict = OverloadPolicy { may_wait: false, ..policy() };
        assert_eq!(strict.decide(Normal, load(900, 1)), full);
    }

    #[test]
    fn what_never_fits_does_not_wait_for_ever() {
        assert_eq!(policy().decide(Class::Control, load(0, 1001)), Verdict::Shed(Refusal::TooLarge));
        assert_eq!(
            policy().decide(Class::Normal, load(0, 950)),
            Verdict::Shed(Refusal::Full),
            "only the reserve has it"
        );
        assert_eq!(policy().decide(Class::Control, load(0, 950)), Verdict::Admit);
        assert_eq!(policy().decide(Class::Control, load(u64::MAX, 1)), Verdict::Wait);
    }

    #[test]
    fn time_spent_waiting_is_part_of_the_budget() {
        let at = |remaining, queue_age, occupied| {
            let load = Load { remaining: Some(remaining), queue_age, ..load(occupied, 1) };
            policy().decide(Class::Normal, load)
        };
        let late = Verdict::Shed(Refusal::TooLate);
        assert_eq!(at(2 * MS, Duration::ZERO, 0), late, "not even with room");
        assert_eq!(at(3 * MS, 500 * MS, 0), Verdict::Admit, "with room nobody waits");
        assert_eq!(at(10 * MS, 7 * MS, 900), Verdict::Wait);
        assert_eq!(at(10 * MS, 8 * MS, 900), late);
    }

    #[test]
    fn the_item_comes_back_whole_or_is_ours() {
        let p = policy();
        assert_eq!(p.apply(Unaccepted::new(7), Class::Normal, load(0, 1)), Decision::Admitted(Accepted(7)));
        assert_eq!(p.apply(Unaccepted::new(7), Class::Normal, load(1000, 1)), Decision::Waiting(Unaccepted(7)));
        let shed = Decision::Shed(Shed { item: 7, refusal: Refusal::Full });
        assert_eq!(p.apply(Unaccepted::new(7), Class::Bulk, load(1000, 1)), shed);
    }
}
