//! When the pool must be looked at next, without walking the cells.
//!
//! 256 neighbouring cells form a segment with a lower bound of the times at which one of them is
//! due; `earliest` is a lower bound of those. A bound may be too early (an operation that ended
//! in time leaves it behind), never too late: at worst a sweep looks in vain, once.
//!
//! A publisher makes its cell visible, then looks at the bound; a sweep lifts the bound, then looks
//! at the cells. With a full fence between the two steps on both sides one of them sees the other,
//! so no cell is left without a bound. The same holds one level up. A publisher that finds the
//! bound early enough writes nothing, which is the rule: deadlines mostly come in their order.

use crate::base::time::Instant;
use crate::sync::primitive::{AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;

pub(super) const SEGMENT: usize = 256;

const NEVER: u64 = Instant::NEVER.0;

/// The bounds of all segments: nothing in one of them is due before its own.
#[derive(Debug)]
pub(super) struct Segments {
    earliest: CachePadded<AtomicU64>,
    all: Box<[CachePadded<AtomicU64>]>,
}

impl Segments {
    pub(super) fn new(capacity: usize) -> Self {
        let never = || CachePadded::new(AtomicU64::new(NEVER));
        Segments { earliest: never(), all: (0..capacity.div_ceil(SEGMENT)).map(|_| never()).collect() }
    }

    /// Nothing is due before this.
    pub(super) fn earliest(&self) -> Instant {
        // Acquire: pairs with the AcqRel of `lower`; a caller that was woken finds the cell.
        Instant(self.earliest.load(Ordering::Acquire))
    }

    /// The cell at `index` has just become visible. True if it is due before everything else.
    pub(super) fn lower(&self, index: u32, due: Instant) -> bool {
        let bound = &self.all[index as usize / SEGMENT];
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
            let mut bound = segment.load(Ordering::Relaxed);
            if bound <= now.0 {
                Segments::lift(segment);
                bound = look(i * SEGMENT..(i + 1) * SEGMENT).0;
                segment.fetch_min(bound, Ordering::AcqRel);
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
