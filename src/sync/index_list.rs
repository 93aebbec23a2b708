//! `IndexList`: a list of small numbers that any thread may push to and one thread takes whole.
//! It lives in an array with one link per number, so it needs no memory per push and cannot be
//! full: each number is in the list at most once.
//!
//! ```text
//!   head ──▶ newest ──▶ .. ──▶ oldest ──▶ END        take: swap(head, END), reverse
//! ```

use crossbeam_utils::CachePadded;

use super::primitive::{AtomicU32, Ordering};

const END: u32 = u32::MAX;

/// Numbers on their way from many threads to one.
#[derive(Debug)]
pub struct IndexList {
    head: CachePadded<AtomicU32>,
    next: Box<[AtomicU32]>,
}

impl IndexList {
    /// For numbers below `size`.
    pub fn new(size: u32) -> Self {
        assert!(size < END, "an index list has room for fewer than {END} numbers");
        IndexList {
            head: CachePadded::new(AtomicU32::new(END)),
            next: (0..size).map(|_| AtomicU32::new(END)).collect(),
        }
    }

    /// Puts `index` in. It must not be in the list. True if the list was empty.
    pub fn push(&self, index: u32) -> bool {
        // Relaxed: the exchange below publishes the link, or is tried again with the newer head.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the Release of the exchange.
            self.next[index as usize].store(head, Ordering::Relaxed);
            // Release: the link and what the pusher wrote before; partner: the Acquire swap in `take`.
            match self.head.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return head == END,
                Err(now) => head = now,
            }
        }
    }

    /// Whether there is nothing to take. A push may be under way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire: as the swap in `take`, for a sleeper's last look.
        self.head.load(Ordering::Acquire) == END
    }

    /// Takes all, oldest first. Only the one taking thread may call it. A number may be pushed
    /// again as soon as it was handed to `f`.
    pub fn take(&self, mut f: impl FnMut(u32)) {
        if self.is_empty() {
            return;
        }
        // Acquire: partner: the Release in `push`.
        let mut at = self.head.swap(END, Ordering::Acquire);
        let mut oldest = END;
        while at != END {
            // Relaxed: the links are ours since the swap.
            let older = self.next[at as usize].load(Ordering::Relaxed);
            self.next[at as usize].store(oldest, Ordering::Relaxed);
            oldest = at;
            at = older;
        }
        while oldest != END {
            // Relaxed: read before `f` may let it be pushed again.
            let newer = self.next[oldest as usize].load(Ordering::Relaxed);
            f(oldest);
            oldest = newer;
        }
    }
}

#[cfg(all(test, not(afflux_loom)))]
mod tests {
    use super::*;

    fn all(list: &IndexList) -> Vec<u32> {
        let mut out = Vec::new();
        list.take(|i| out.push(i));
        out
    }

    #[test]
    fn comes_out_in_the_order_it_went_in() {
        let list = IndexList::new(8);
        assert!(list.push(3));
        assert!(!list.push(0));
        assert!(!list.push(7));
        assert_eq!(all(&list), [3, 0, 7]);
        assert!(list.is_empty());
        assert!(list.push(0));
        assert_eq!(all(&list), [0]);
    }

    #[test]
    fn many_threads_lose_nothing() {
        let list = IndexList::new(4000);
        let mut seen = vec![false; 4000];
        std::thread::scope(|s| {
            for t in 0..4 {
                let list = &list;
                s.spawn(move || (0..1000).for_each(|i| drop(list.push(t * 1000 + i))));
            }
            let mut n = 0;
            while n < 4000 {
                list.take(|i| {
                    assert!(!std::mem::replace(&mut seen[i as usize], true));
                    n += 1;
                });
            }
        });
    }
}
