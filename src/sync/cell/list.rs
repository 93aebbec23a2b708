//! Lists that run through the pool itself: one `next` index per cell and kind of list, so that a
//! list can never be full and pushing never allocates.
//!
//! A [`CellList`] has any number of pushers (one swap each) and one side that takes out, guarded
//! by an uncontended lock: what was pushed is turned round into a chain in the order of arrival,
//! and the chain is the taker's. A place that stands in a list is not used again until it was
//! taken out; the link flags of the cell's word say so.

use super::word::{IN_DONE, IN_INBOX};
use crate::sync::primitive::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crossbeam_utils::CachePadded;

const NIL: u32 = u32::MAX;

/// Which of a cell's two links a list uses. A cell may stand in one list of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    Inbox,
    Done,
}

impl Link {
    pub(super) fn flag(self) -> u64 {
        match self {
            Link::Inbox => IN_INBOX,
            Link::Done => IN_DONE,
        }
    }
}

/// A cell's places in lists.
pub(super) struct Links {
    inbox: AtomicU32,
    /// Also the link of the free list: a vacant place stands in no other.
    done: AtomicU32,
}

impl Links {
    pub(super) fn new() -> Self {
        Links { inbox: AtomicU32::new(NIL), done: AtomicU32::new(NIL) }
    }

    fn of(&self, link: Link) -> &AtomicU32 {
        match link {
            Link::Inbox => &self.inbox,
            Link::Done => &self.done,
        }
    }
}

/// Gives the links of the place at an index.
pub(super) trait Linked {
    fn links(&self, index: u32) -> &Links;
}

/// Cells on their way to one owner, in the order of arrival. Any thread pushes, the owner pops;
/// never full. A list works with one pool only: create it, keep it beside the pool.
pub struct CellList {
    /// Last pushed first.
    pushed: CachePadded<AtomicU32>,
    /// Oldest first.
    taken: Mutex<Chain>,
    /// Something is in the chain, or on its way there. Written under the lock.
    some: AtomicBool,
    link: Link,
}

#[derive(Debug)]
struct Chain {
    first: u32,
    last: u32,
}

impl CellList {
    /// An inbox: the way of waiting operations to the owner of their target.
    pub fn inbox() -> Self {
        CellList::new(Link::Inbox)
    }

    pub(super) fn new(link: Link) -> Self {
        CellList {
            pushed: CachePadded::new(AtomicU32::new(NIL)),
            taken: Mutex::new(Chain { first: NIL, last: NIL }),
            some: AtomicBool::new(false),
            link,
        }
    }

    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// True if nothing was pushed that has not been popped. The owner asks this after it announced
    /// that it goes to sleep.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire: as in `absorb`, also after the fence of the owner's sleep protocol; and whoever has taken out what
        // was pushed has said before that it is on its way.
        self.pushed.load(Ordering::Acquire) == NIL && !self.some.load(Ordering::Acquire)
    }

    /// Puts `index` last. The caller owns the link flag. True if nothing pushed lay there: the
    /// owner may be asleep.
    pub(super) fn push(&self, cells: &impl Linked, index: u32) -> bool {
        let next = cells.links(index).of(self.link);
        let mut top = self.pushed.load(Ordering::Relaxed);
        loop {
            next.store(top, Ordering::Relaxed);
            // Release: pairs with the Acquire swap in `absorb`, which must see `next` and the cell.
            match self.pushed.compare_exchange_weak(top, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return top == NIL,
                Err(now) => top = now,
            }
        }
    }

    /// Takes the oldest out. The caller clears the link flag.
    #[inline]
    pub(super) fn pop(&self, cells: &impl Linked) -> Option<u32> {
        if self.is_empty() { None } else { self.pop_some(cells) }
    }

    fn pop_some(&self, cells: &impl Linked) -> Option<u32> {
        let mut chain = self.taken.lock();
        if chain.first == NIL {
            self.absorb(cells, &mut chain);
        }
        let index = chain.first;
        if index != NIL {
            chain.first = cells.links(index).of(self.link).load(Ordering::Relaxed);
        }
        self.note(&chain);
        (index != NIL).then_some(index)
    }

    /// The holder of the lock is done with the chain.
    fn note(&self, chain: &Chain) {
        // Release: the partner is in `is_empty`.
        self.some.store(chain.first != NIL, Ordering::Release);
    }

    /// Takes out all that `gone` says yes to; the others keep their order. `gone` must not come
    /// back to this list.
    pub(super) fn remove_if(&self, cells: &impl Linked, mut gone: impl FnMut(u32) -> bool) {
        let mut chain = self.taken.lock();
        self.absorb(cells, &mut chain);
        let (mut index, mut kept) = (chain.first, NIL);
        while index != NIL {
            // Read before `gone`, after which the place may be anybody's.
            let next = cells.links(index).of(self.link).load(Ordering::Relaxed);
            if gone(index) {
                match kept {
                    NIL => chain.first = next,
                    _ => cells.links(kept).of(self.link).store(next, Ordering::Relaxed),
                }
            } else {
                kept = index;
            }
            index = next;
        }
        chain.last = kept;
        self.note(&chain);
    }

    /// Appends what was pushed to the chain, turned round.
    fn absorb(&self, cells: &impl Linked, chain: &mut Chain) {
        if !cfg!(afflux_mutation = "cell_taken_unseen") {
            // Relaxed: seen with what follows.
            self.some.store(true, Ordering::Relaxed);
        }
        // Acquire: pairs with the Release swaps of the pushers. Theirs form one release sequence,
        // so the last one's links are seen as well as the first one's. Release: who sees nothing pushed sees that
        // something is on its way.
        let mut top = self.pushed.swap(NIL, Ordering::AcqRel);
        let (mut first, last) = (NIL, top);
        while top != NIL {
            let next = cells.links(top).of(self.link);
            let below = next.load(Ordering::Relaxed);
            next.store(first, Ordering::Relaxed);
            (first, top) = (top, below);
        }
        if first == NIL {
            return;
        }
        match chain.first {
            NIL => chain.first = first,
            _ => cells.links(chain.last).of(self.link).store(first, Ordering::Relaxed),
        }
        chain.last = last;
    }
}

/// The vacant places: a stack whose top carries a count of its changes, so that a top that left
/// and came back is not taken for the old one.
pub(super) struct FreeList(CachePadded<AtomicU64>);

impl FreeList {
    /// All places of `0..capacity`, the lowest on top.
    pub(super) fn full(cells: &impl Linked, capacity: u32) -> Self {
        for index in 0..capacity {
            let below = if index + 1 < capacity { index + 1 } else { NIL };
            cells.links(index).done.store(below, Ordering::Relaxed);
        }
        FreeList(CachePadded::new(AtomicU64::new(u64::from(if capacity == 0 { NIL } else { 0 }))))
    }

    pub(super) fn pop(&self, cells: &impl Linked) -> Option<u32> {
        // Acquire, here and on failure: pairs with the Release in `push`; `links` must be its.
        let mut top = self.0.load(Ordering::Acquire);
        loop {
            let index = top as u32;
            if index == NIL {
                return None;
            }
            // May be a stale read if somebody else took this place; then the swap fails.
            let below = cells.links(index).done.load(Ordering::Relaxed);
            let new = FreeList::step(top, below);
            match self.0.compare_exchange_weak(top, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
    }

    pub(super) fn push(&self, cells: &impl Linked, index: u32) {
        let mut top = self.0.load(Ordering::Relaxed);
        loop {
            cells.links(index).done.store(top as u32, Ordering::Relaxed);
            let new = FreeList::step(top, index);
            // Release: pairs with the Acquire in `pop`: the next user finds the place as it was left.
            match self.0.compare_exchange_weak(top, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    fn step(top: u64, index: u32) -> u64 {
        if cfg!(afflux_mutation = "cell_untagged") {
            return u64::from(index);
        }
        ((top >> 32).wrapping_add(1) << 32) | u64::from(index)
    }
}
