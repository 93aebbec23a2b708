//! A bounded queue between exactly two threads: every hand-over of the data path is one of these.
//!
//! Owns a power-of-two array of slots and two counters that only ever grow (and wrap):
//!
//! ```text
//!   head <= tail <= head + capacity
//!   [head, tail)             filled: written by the producer, not yet taken by the consumer
//!   [tail, head + capacity)  empty: nobody looks at what they hold
//! ```
//!
//! `head` is stored by the consumer alone, `tail` by the producer alone. Each side works on a
//! private copy of its own counter and a remembered one of the other's, and reads the other's
//! cache line only when the remembered value no longer lets it go on.
//!
//! Full: [`Producer::push`] gives the item back at once; nothing waits here. The halves are freed
//! by whichever goes last, together with what nobody took.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;

use super::primitive::{AtomicBool, AtomicUsize, Ordering, UnsafeCell};

/// Makes a ring for at least `capacity_min` items (rounded up to a power of two, at least one) and
/// returns its two ends.
pub fn ring<T: Send>(capacity_min: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity_min.max(1).next_power_of_two();
    let shared = Box::new(Shared {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        half_gone: AtomicBool::new(false),
        slots: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    let shared = NonNull::from(Box::leak(shared));
    (Producer { ring: Half(shared), tail: 0, head_seen: 0 }, Consumer { ring: Half(shared), head: 0, tail_seen: 0 })
}

struct Shared<T> {
    /// The next slot to take.
    head: CachePadded<AtomicUsize>,
    /// The next slot to fill.
    tail: CachePadded<AtomicUsize>,
    /// One of the two halves was dropped; the other frees the ring.
    half_gone: AtomicBool,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

impl<T> Shared<T> {
    #[inline(always)]
    fn slot(&self, counter: usize) -> &UnsafeCell<MaybeUninit<T>> {
        let index = counter & (self.slots.len() - 1);
        // SAFETY: the length is a power of two, so the masked index is below it.
        unsafe { self.slots.get_unchecked(index) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: slots in [head, tail) are filled, and with `&mut self` nobody else is left.
            self.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// One of the two owners of a ring. The last one to go frees it.
struct Half<T>(NonNull<Shared<T>>);

// SAFETY: a half reaches items only through the protocol of its end, which hands each item from
// one thread to one other; that asks for `T: Send` and no more.
unsafe impl<T: Send> Send for Half<T> {}

impl<T> Deref for Half<T> {
    type Target = Shared<T>;

    #[inline(always)]
    fn deref(&self) -> &Shared<T> {
        // SAFETY: the ring lives until both halves are dropped, and this one is not.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Half<T> {
    fn drop(&mut self) {
        // Release: what this half did to the slots is over. Acquire: so is what the other did; the
        // partner is the other half's swap.
        if self.half_gone.swap(true, Ordering::AcqRel) {
            // SAFETY: made by `Box::leak` in `ring`; the other half is gone and this one is going,
            // and only the second of the two swaps sees `true`.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// The end that fills a ring.
pub struct Producer<T> {
    ring: Half<T>,
    tail: usize,
    head_seen: usize,
}

impl<T> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

impl<T> Producer<T> {
    /// Appends `item`, or gives it back if the ring is full. A ring whose consumer is gone still
    /// takes items until it is full; they are dropped with it, so whoever must not lose one looks
    /// at [`Producer::is_abandoned`] too.
    #[inline(always)]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.filled() == self.ring.slots.len() && self.free() == 0 {
            return Err(item);
        }
        // SAFETY: `filled() < capacity`, so the slot at `tail` is empty, and nobody but this end
        // touches an empty slot.
        self.ring.slot(self.tail).with_mut(|slot| unsafe { (*slot).write(item) });
        self.tail = self.tail.wrapping_add(1);
        let publish = match cfg!(afflux_mutation = "ring_relaxed_publish") {
            true => Ordering::Relaxed,
            // The item is written before it is seen; the partner is the consumer's load of `tail`.
            false => Ordering::Release,
        };
        self.ring.tail.store(self.tail, publish);
        Ok(())
    }

    /// How many pushes will surely succeed now; only this end can make it fewer.
    #[inline]
    pub fn free(&mut self) -> usize {
        // The slot is read out before it is filled again; the partner is the consumer's store.
        self.head_seen = self.ring.head.load(Ordering::Acquire);
        self.ring.slots.len() - self.filled()
    }

    /// How many items the ring can hold.
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }

    /// Whether the consumer is gone: what is pushed now will never be seen.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        // Acquire: also sees the last `head` of the consumer; the partner is its drop.
        self.ring.half_gone.load(Ordering::Acquire)
    }

    /// At most this many slots are filled.
    #[inline(always)]
    fn filled(&self) -> usize {
        self.tail.wrapping_sub(self.head_seen)
    }
}

/// The end that empties a ring.
pub struct Consumer<T> {
    ring: Half<T>,
    head: usize,
    tail_seen: usize,
}

impl<T> Consumer<T> {
    /// Takes the oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if !self.has_item() {
            return None;
        }
        let item = self.take();
        // The slot is read out before it counts as empty; the partner is the producer's load.
        self.ring.head.store(self.head, Ordering::Release);
        Some(item)
    }

    /// Takes up to `limit` items that are there now, oldest first, and returns how many. The
    /// producer gets all their slots back at once, at the end.
    #[inline]
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(T)) -> usize {
        let count = self.len().min(limit);
        let mut batch = self.batch();
        for _ in 0..count {
            if let Some(item) = batch.next() {
                each(item);
            }
        }
        count
    }

    /// Items to be taken one by one; the producer gets their slots back at once, when the batch is dropped.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch(self)
    }

    /// How many items are there; only this end can make it fewer.
    #[inline]
    pub fn len(&self) -> usize {
        // As in `has_item`.
        self.ring.tail.load(Ordering::Acquire).wrapping_sub(self.head)
    }

    /// Whether there is nothing to take now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail_seen == self.head && self.len() == 0
    }

    /// Whether the producer is gone and everything it had pushed was taken: nothing will ever come.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        // First the flag, then the items. Acquire: the producer's last push is seen; the partner
        // is its drop.
        self.ring.half_gone.load(Ordering::Acquire) && self.is_empty()
    }

    /// Whether there is an item to take; looks again only if none was left.
    #[inline(always)]
    fn has_item(&mut self) -> bool {
        if self.tail_seen == self.head {
            // The items below the new `tail` are written; the partner is the store in `push`.
            self.tail_seen = self.ring.tail.load(Ordering::Acquire);
        }
        self.tail_seen != self.head
    }

    /// Moves out the item at `head`, which must be below `tail_seen`, without telling the producer.
    #[inline(always)]
    fn take(&mut self) -> T {
        debug_assert_ne!(self.head, self.tail_seen);
        // SAFETY: slots in [head, tail_seen) are filled, and `head` moves on, so each is read once.
        let item = self.ring.slot(self.head).with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        item
    }
}

/// Items being taken from a ring; see [`Consumer::batch`].
pub struct Batch<'a, T>(&'a mut Consumer<T>);

impl<T> std::fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl<T> Batch<'_, T> {
    /// The oldest item, still in the ring.
    #[inline]
    pub fn front(&mut self) -> Option<&T> {
        if !self.0.has_item() {
            return None;
        }
        // SAFETY: slots in [head, tail_seen) are filled, and only this end empties one; the borrow of
        // `self` keeps it from doing so.
        self.0.ring.slot(self.0.head).with(|slot| Some(unsafe { (*slot).assume_init_ref() }))
    }

    /// Takes the oldest items, at most `limit`, as long as `take` says so of each; they are dropped where they are.
    /// How many those were.
    #[inline(always)]
    pub fn take_while(&mut self, limit: usize, mut take: impl FnMut(&T) -> bool) -> usize {
        let mut taken = 0;
        while taken < limit && self.0.has_item() {
            let slot = self.0.ring.slot(self.0.head);
            // SAFETY: slots in [head, tail_seen) are filled, and only this end empties one.
            if !slot.with(|slot| take(unsafe { (*slot).assume_init_ref() })) {
                break;
            }
            // First counted as taken, so that a drop that unwinds is not repeated.
            self.0.head = self.0.head.wrapping_add(1);
            // SAFETY: the slot was in [head, tail_seen), so it is filled, and it counts as taken now, but is not
            // given back to the producer before this batch is dropped.
            slot.with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            taken += 1;
        }
        taken
    }
}

impl<T> Iterator for Batch<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.0.has_item().then(|| self.0.take())
    }
}

impl<T> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        // As in `pop`. Also when its user unwinds: a taken item must never be taken again.
        self.0.ring.head.store(self.0.head, Ordering::Release);
    }
}
