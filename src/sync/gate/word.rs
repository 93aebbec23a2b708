//! The gate's word: how many permits are out, and what stands in the way of the short path.
//!
//! ```text
//!  63                    34   33       32       31      30            0
//! +------------------------+--------+--------+---------+---------------+
//! | changes                | STOPPED| PAUSED | TICKETS | in use        |
//! +------------------------+--------+--------+---------+---------------+
//! ```
//!
//! `changes` counts returns and hand-overs. A swap that was worked out from the shards' holdings
//! fails if a permit went back meanwhile, even if another was taken and the number is the same.

/// Somebody has a ticket: a return must look for it, and nobody takes more than its share.
pub(super) const TICKETS: u64 = 1 << 31;
/// The last crossing was the one of the pause threshold.
pub(super) const PAUSED: u64 = 1 << 32;
/// No permit is given any more.
pub(super) const STOPPED: u64 = 1 << 33;

const CHANGE: u64 = 1 << 34;
const IN_USE: u64 = TICKETS - 1;

/// A value of the word, read at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) fn in_use(self) -> u32 {
        (self.0 & IN_USE) as u32
    }

    pub(super) fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn with_in_use(self, in_use: u32) -> Self {
        Word(self.0 & !IN_USE | u64::from(in_use))
    }

    pub(super) fn with(self, flag: u64, on: bool) -> Self {
        Word(if on { self.0 | flag } else { self.0 & !flag })
    }

    /// One more return or hand-over.
    pub(super) fn changed(self) -> Self {
        if cfg!(afflux_mutation = "gate_unversioned") { self } else { Word(self.0.wrapping_add(CHANGE)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_touch_each_other() {
        let most = i32::MAX as u32;
        let full = Word(0).with_in_use(most).with(TICKETS, true).with(PAUSED, true).with(STOPPED, true);
        assert_eq!(full.in_use(), most);
        assert_eq!(Word(u64::MAX).changed(), full, "the count of changes wraps around and out");
        let bare = full.with(TICKETS, false).with(PAUSED, false).with(STOPPED, false).with_in_use(0);
        assert_eq!(bare, Word(0));
    }
}
