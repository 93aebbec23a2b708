//! The operations that wait for room at one target, in the order in which they came.
//!
//! Owns their cells' ids, nothing else: the cell belongs to its holder and may end at any time by
//! its deadline or by cancellation, on any thread. Its id then stays here as a stale entry until it
//! comes to the front or is pruned; whether one is live, the pool says by its generation.
//!
//! Invariants: live entries are in the order of arrival; `len <= prune_at <= 2 x live_max`, where
//! `prune_at` is at least twice what the last pruning left, so that pruning costs a constant per
//! push. Whoever counts the room lets at most `live_max` operations wait at a time and is never
//! refused here; a push beyond that is given back at the latest when memory for twice as many is
//! used up. Empty, it owns no memory.

use std::collections::VecDeque;

use crate::base::id::CellId;

/// Below this many entries nothing is pruned.
const PRUNE_MIN: usize = 16;

/// The waiting operations of one target.
#[derive(Debug)]
pub struct Waiters {
    queue: VecDeque<CellId>,
    live_max: usize,
    prune_at: usize,
}

impl Waiters {
    /// For up to `live_max` operations at a time (at least 1) that are not over.
    pub fn new(live_max: usize) -> Self {
        let live_max = live_max.max(1);
        Waiters { queue: VecDeque::new(), live_max, prune_at: PRUNE_MIN.min(2 * live_max) }
    }

    /// Puts an operation behind all others. An error gives it back: at least `live_max` live ones
    /// wait already.
    pub fn push(&mut self, id: CellId, is_live: impl Fn(CellId) -> bool) -> Result<(), CellId> {
        if self.queue.len() >= self.prune_at {
            self.queue.retain(|id| is_live(*id) || cfg!(afflux_mutation = "stale_waiters_kept"));
            self.prune_at = (2 * self.queue.len()).max(PRUNE_MIN).min(2 * self.live_max);
            if self.queue.len() >= self.live_max {
                return Err(id);
            }
        }
        self.queue.push_back(id);
        Ok(())
    }

    /// The operation that is next; stale ones in front of it are forgotten.
    pub fn front(&mut self, is_live: impl Fn(CellId) -> bool) -> Option<CellId> {
        while let Some(id) = self.queue.front() {
            if is_live(*id) {
                return Some(*id);
            }
            self.queue.pop_front();
        }
        self.rest();
        None
    }

    /// Takes out what [`Waiters::front`] showed.
    pub fn pop(&mut self) -> Option<CellId> {
        let id = self.queue.pop_front();
        if self.queue.is_empty() {
            self.rest();
        }
        id
    }

    /// Takes all out, in order, stale ones included: the target is gone.
    pub fn drain(&mut self) -> impl Iterator<Item = CellId> + use<> {
        let queue = std::mem::take(&mut self.queue);
        self.rest();
        queue.into_iter()
    }

    /// Entries, stale ones included: at least as many as there are live operations.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// No entry at all.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn rest(&mut self) {
        self.queue = VecDeque::new();
        self.prune_at = PRUNE_MIN.min(2 * self.live_max);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn id(index: u32) -> CellId {
        CellId { index, generation: 1 }
    }

    #[test]
    fn stale_entries_are_passed_over_in_order() {
        let mut waiters = Waiters::new(8);
        let odd = |id: CellId| id.index % 2 == 1;
        for n in 0..6 {
            waiters.push(id(n), odd).unwrap();
        }
        assert_eq!(waiters.front(odd), Some(id(1)));
        assert_eq!(waiters.pop(), Some(id(1)));
        assert_eq!(waiters.front(odd), Some(id(3)));
        assert_eq!(waiters.front(|id| id.index > 4), Some(id(5)));
        assert_eq!(waiters.front(|_| false), None);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_full_room_of_live_operations_gives_back() {
        let mut waiters = Waiters::new(3);
        let mut taken = 0;
        while waiters.push(id(taken), |_| true).is_ok() {
            taken += 1;
            assert!(taken <= 6, "twice the maximum is the bound of memory");
        }
        assert!(taken >= 3);
        assert_eq!(waiters.push(id(9), |_| true), Err(id(9)));
        assert_eq!(waiters.push(id(9), |id| id.index < 2), Ok(()));
        assert_eq!(waiters.drain().collect::<Vec<_>>(), [id(0), id(1), id(9)]);
        assert_eq!(waiters.queue.capacity(), 0);
    }

    #[test]
    fn pruning_costs_a_constant_per_push_at_any_share_of_stale_ones() {
        for (live, max) in [(1, 1000), (100, 1000), (999, 1000), (3, 4)] {
            let mut waiters = Waiters::new(max);
            let looks = Cell::new(0u32);
            let pushes = 100_000u32;
            for n in 0..pushes {
                // The last `live` of them are live, all others are over.
                let is_live = |id: CellId| {
                    looks.set(looks.get() + 1);
                    id.index + live >= n
                };
                waiters.push(id(n), is_live).unwrap();
                assert!(waiters.len() <= 2 * max);
            }
            assert!(looks.get() <= 3 * pushes, "{} looks with {live} live of {max}", looks.get());
        }
    }
}
