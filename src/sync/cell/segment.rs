//! When the pool must be looked at next, and how many cells are where, without walking the cells.
//!
//! 256 neighbouring cells form a segment with a lower bound of the times at which one of them is
//! due; `earliest` is a lower bound of those. A bound may be too early (an operation that ended
//! in time leaves it behind), never too late: at worst a sweep looks in vain, once.
//!
//! A publisher makes its cell visible, then looks at the bound; a sweep lifts the bound, then looks
//! at the cells. With a full fence between the two steps on both sides one of them sees the other,
//! so no cell is left without a bound. The same holds one level up. A publisher that finds the
//! bound early enough writes nothing, which is the rule: deadlines mostly come in their order.

use super::word::State;
use crate::base::time::Instant;
use crate::sync::primitive::{AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;

pub(super) const SEGMENT: usize = 256;

const NEVER: u64 = Instant::NEVER.0;

#[derive(Debug)]
struct Segment {
    /// Nothing in here is due before this.
    bound: AtomicU64,
    /// Waiting, claimed and done cells, 16 bits each. Changed only by the one inside a cell or its
    /// private owner, so a cell's steps come in their order and no part ever borrows.
    gauge: AtomicU64,
}

/// Bounds and gauges of all segments.
#[derive(Debug)]
pub(super) struct Segments {
    earliest: CachePadded<AtomicU64>,
    all: Box<[CachePadded<Segment>]>,
}

/// How many cells are in each of the published states, at about the same moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CellCounts {
    /// Waiting for room.
    pub waiting: u32,
    /// On the wire, or being written.
    pub claimed: u32,
    /// Ended, the outcome not taken yet.
    pub done: u32,
}

fn unit(state: State) -> u64 {
    match state {
        State::Waiting => 1,
        State::Claimed => 1 << 16,
        State::Done => 1 << 32,
        State::Vacant | State::Private | State::Spent => 0,
    }
}

impl Segments {
    pub(super) fn new(capacity: usize) -> Self {
        let segment = || Segment { bound: AtomicU64::new(NEVER), gauge: AtomicU64::new(0) };
        Segments {
            earliest: CachePadded::new(AtomicU64::new(NEVER)),
            all: (0..capacity.div_ceil(SEGMENT)).map(|_| CachePadded::new(segment())).collect(),
        }
    }

    /// The place at `index` goes from one state to another.
    pub(super) fn moved(&self, index: u32, from: State, to: State) {
        let step = unit(to).wrapping_sub(unit(from));
        if step != 0 {
            self.all[index as usize / SEGMENT].gauge.fetch_add(step, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> CellCounts {
        let mut sum = CellCounts::default();
        for segment in &self.all {
            let gauge = segment.gauge.load(Ordering::Relaxed);
            sum.waiting += (gauge & 0xFFFF) as u32;
            sum.claimed += (gauge >> 16 & 0xFFFF) as u32;
            sum.done += (gauge >> 32 & 0xFFFF) as u32;
        }
        sum
    }

    /// Nothing is due before this.
    pub(super) fn earliest(&self) -> Instant {
        // Acquire: pairs with the AcqRel of `lower`; a caller that was woken finds the cell.
        Instant(self.earliest.load(Ordering::Acquire))
    }

    /// The cell at `index` has just become visible. True if it is due before everything else.
    pub(super) fn lower(&self, index: u32, due: Instant) -> bool {
        let bound = &self.all[index as usize / SEGMENT].bound;
        if !cfg!(afflux_mutation = "cell_unfenced") {
            // Pairs with the fence in `lift` of this bound: the sweep sees the cell, or we see NEVER.
            fence(Ordering::SeqCst);
        }
        if bound.load(Ordering::Relaxed) <= due.0 {
            return false;
        }
        bound.fetch_min(due.0, Ordering::AcqRel);
        // Pairs with the fence in `lift` of `earliest`.
        fence(Ordering::SeqCst);
        self.earliest.load(Ordering::Relaxed) > due.0 && self.earliest.fetch_min(due.0, Ordering::AcqRel) > due.0
    }

    /// Calls `look` for every segment in which something may be due at `now`; it returns the new
    /// lower bound of what is left in there. Several threads may sweep at once: each puts back
    /// the bounds that it lifted.
    pub(super) fn sweep(&self, now: Instant, mut look: impl FnMut(std::ops::Range<usize>) -> Instant) {
        if self.earliest() > now {
            return;
        }
        Segments::lift(&self.earliest);
        let mut next = NEVER;
        for (i, segment) in self.all.iter().enumerate() {
            let mut bound = segment.bound.load(Ordering::Relaxed);
            if bound <= now.0 {
                Segments::lift(&segment.bound);
                bound = look(i * SEGMENT..(i + 1) * SEGMENT).0;
                segment.bound.fetch_min(bound, Ordering::AcqRel);
            }
            next = next.min(bound);
        }
        self.earliest.fetch_min(next, Ordering::AcqRel);
    }

    fn lift(bound: &AtomicU64) {
        // AcqRel: a publisher that lowered it before is seen with its cell. The fence is for the one
        // that found it low enough and wrote nothing; it pairs with the fences in `lower`.
        bound.swap(NEVER, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }
}
