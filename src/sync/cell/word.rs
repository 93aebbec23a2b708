//! The one word that decides everything about a cell, and who may change which part of it.
//!
//! ```text
//!  63            32 31                    16 15 .. 8                     7 .. 0
//! +----------------+------------------------+---------------------------+-------+
//! |   generation   |           0            | flags                     | state |
//! +----------------+------------------------+---------------------------+-------+
//! ```
//!
//! State, the generation and every flag but the two link flags change only in a swap that sets or
//! clears [`BUSY`]; whoever set it owns the cell's insides until it clears it. The link flags are
//! cleared by whoever takes the cell out of that list, at any moment, also under somebody's
//! `BUSY`: so whoever clears `BUSY` swaps in a loop.

/// Where a place in the pool is in its life. `Spent`: the outcome is gone, but the place still
/// stands in a list, so nobody may have it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum State {
    Vacant = 0,
    Private = 1,
    Waiting = 2,
    Claimed = 3,
    Done = 4,
    Spent = 5,
}

/// Somebody is inside the cell, for a few instructions.
pub(super) const BUSY: u64 = 1 << 8;
/// A holder exists who will take the outcome.
pub(super) const HELD: u64 = 1 << 9;
/// The holder watches the deadline itself; a sweep leaves it a grace.
pub(super) const SELF_TIMED: u64 = 1 << 10;
/// Done, and its outcome was cut down because nobody took it in time.
pub(super) const LAPSED: u64 = 1 << 11;
/// Stands in an inbox list.
pub(super) const IN_INBOX: u64 = 1 << 12;
/// Stands in a done list.
pub(super) const IN_DONE: u64 = 1 << 13;
/// The reasons for which a spent place is not vacant yet.
pub(super) const LINKS: u64 = IN_INBOX | IN_DONE;

/// A value of the word, read at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) fn new(generation: u32, state: State, flags: u64) -> Self {
        Word((u64::from(generation) << 32) | flags | state as u64)
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn state(self) -> State {
        match self.0 as u8 {
            0 => State::Vacant,
            1 => State::Private,
            2 => State::Waiting,
            3 => State::Claimed,
            4 => State::Done,
            _ => State::Spent,
        }
    }

    #[inline(always)]
    pub(super) fn is(self, state: State) -> bool {
        self.0 as u8 == state as u8
    }

    /// The same with another state.
    #[inline(always)]
    pub(super) fn to(self, state: State) -> Self {
        Word(self.0 & !0xFF | state as u64)
    }

    pub(super) fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn with(self, flag: u64) -> Self {
        Word(self.0 | flag)
    }

    pub(super) fn without(self, flag: u64) -> Self {
        Word(self.0 & !flag)
    }

    /// What this word becomes when only `flag` goes: a spent place that nothing holds back any
    /// more becomes vacant, under the next generation.
    pub(super) fn settled(self) -> Self {
        if self.is(State::Spent) && !self.has(BUSY | LINKS) {
            Word::new(self.generation().wrapping_add(1), State::Vacant, 0)
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_touch_each_other() {
        for state in [State::Vacant, State::Private, State::Waiting, State::Claimed, State::Done, State::Spent] {
            for flags in [0, HELD, BUSY | HELD, LINKS | LAPSED, SELF_TIMED] {
                for generation in [0, 1, u32::MAX] {
                    let word = Word::new(generation, state, flags);
                    assert_eq!((word.generation(), word.state(), word.0 & 0xFF00), (generation, state, flags));
                    assert!(word.is(state) && word.to(State::Spent) == Word::new(generation, State::Spent, flags));
                }
            }
        }
    }

    #[test]
    fn only_the_last_reason_makes_a_spent_place_vacant() {
        let spent = |flags| Word::new(u32::MAX, State::Spent, flags).settled();
        assert_eq!(spent(0), Word::new(0, State::Vacant, 0));
        for reason in [BUSY, IN_INBOX, IN_DONE, LINKS] {
            assert_eq!(spent(reason).state(), State::Spent);
        }
        assert_eq!(Word::new(3, State::Done, 0).settled().state(), State::Done);
    }
}
