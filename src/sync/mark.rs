//! The high-water mark of one target's queue, as one word: whether a send is accepted is decided
//! on the sender's own thread by one compare-and-swap, and nobody overtakes a waiter, because the
//! waiters are counted in the same word as the bytes.
//!
//! ```text
//!   63 ........ 57 | 56      | 55 ..... 36 | 35 ..... 0
//!   limit version  | blocked | waiters     | bytes outstanding
//! ```
//!
//! Admitted iff nobody waits, the target is not blocked, and `bytes + charge <= limit` or `bytes = 0`:
//! an empty queue takes one record of any size, so two records larger than the mark never coexist.
//!
//! The limit lies beside the word. Its owner stores the new limit and then bumps the version, so a
//! swap that was computed from the old limit fails and is computed again. (The version has 7 bits:
//! a sender would have to sleep through exactly 128 changes within one swap.)
//!
//! Full: the sender is refused, and in the same swap counted as a waiter if it wants to be. A
//! waiter that was counted is seen by every later [`Mark::release`], by the [`Mark::set_blocked`] that
//! unblocks and by [`Mark::set_limit`]; each of them reports it, and the reporter has to tell the
//! owner of the waiters.

use super::primitive::{AtomicU64, Ordering};

const WAITER: u64 = 1 << 36;
const BLOCKED: u64 = 1 << 56;
const VERSION: u64 = 1 << 57;

/// The most bytes that can be outstanding, under whatever limit: 64 GiB less one.
pub const BYTES_MAX: u64 = WAITER - 1;

/// The most waiters that can be counted. The number of cells must not be larger.
pub const WAITERS_MAX: u32 = ((BLOCKED / WAITER) - 1) as u32;

/// What a send that was accepted was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// Nothing was outstanding and nobody (else) waits: the sender may try to write it itself.
    pub alone: bool,
}

/// What a send that was not accepted was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Bytes that were outstanding.
    pub used: u64,
    /// The limit at that moment; 0 = unlimited.
    pub limit: u64,
    /// How many waited before this one.
    pub waiters: u32,
    /// Whether the target itself had been stopped.
    pub blocked: bool,
}

/// What is left after a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// Bytes still outstanding.
    pub bytes: u64,
    /// Waiters; if there are any, their owner has to look whether the head fits now.
    pub waiters: u32,
}

/// The mark of one queue, on a cache line of its own. See the module's text.
#[derive(Debug)]
#[repr(align(64))]
pub struct Mark {
    word: AtomicU64,
    limit: AtomicU64,
}

/// A value of the word.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    #[inline(always)]
    fn bytes(self) -> u64 {
        self.0 & BYTES_MAX
    }

    #[inline(always)]
    fn waiters(self) -> u32 {
        (self.0 / WAITER) as u32 & WAITERS_MAX
    }

    #[inline(always)]
    fn blocked(self) -> bool {
        self.0 & BLOCKED != 0
    }

    /// Whether a charge fits and nobody waits: the rule, in one comparison. Waiters and the block are above the
    /// bytes, so that with any of them the sum is above every limit.
    #[inline(always)]
    fn has_free_room(self, charge: u64, limit: u64) -> bool {
        (self.0 & (VERSION - 1)).saturating_add(charge) <= cap(limit)
            || (self.waiters() == 0 && self.has_room(charge, limit))
    }

    /// Whether a charge fits, whoever waits.
    #[inline(always)]
    fn has_room(self, charge: u64, limit: u64) -> bool {
        let sum = self.bytes().saturating_add(charge);
        (!self.blocked() || cfg!(afflux_mutation = "block_unheeded"))
            && (sum <= cap(limit) || (self.bytes() == 0 && charge <= BYTES_MAX))
    }

    fn refused(self, limit: u64) -> Refused {
        Refused { used: self.bytes(), limit, waiters: self.waiters(), blocked: self.blocked() }
    }
}

/// What a limit allows; none, which is 0, as much as the word can count.
#[inline(always)]
fn cap(limit: u64) -> u64 {
    limit.wrapping_sub(1).min(BYTES_MAX - 1) + 1
}

impl Mark {
    /// A mark with nothing outstanding. `limit` 0 means unlimited.
    pub fn new(limit: u64) -> Self {
        Mark { word: AtomicU64::new(0), limit: AtomicU64::new(limit) }
    }

    /// Accepts a record now, or says why not. Never overtakes a waiter and never becomes one.
    #[inline]
    pub fn try_admit(&self, charge: u64) -> Result<Admitted, Refused> {
        let overtakes = cfg!(afflux_mutation = "waiters_overtaken");
        self.decide(|word, limit| {
            match word.has_free_room(charge, limit) || (overtakes && word.has_room(charge, limit)) {
                true => (word.0 + charge, Ok(Admitted { alone: word.bytes() == 0 })),
                false => (word.0, Err(word.refused(limit))),
            }
        })
    }

    /// Accepts a record now, or counts the caller as a waiter: after an `Err` it *is* one, and must
    /// get to the owner of the waiters, or leave by [`Mark::forget_waiter`].
    #[inline]
    pub fn admit_or_wait(&self, charge: u64) -> Result<Admitted, Refused> {
        if cfg!(afflux_mutation = "mark_forgets_waiter") {
            return self.try_admit(charge).inspect_err(|_| self.add_waiter());
        }
        self.decide(|word, limit| match word.has_free_room(charge, limit) {
            true => (word.0 + charge, Ok(Admitted { alone: word.bytes() == 0 })),
            false => (word.plus_waiter(), Err(word.refused(limit))),
        })
    }

    /// Accepts the record of a counted waiter, which then is none any more. Only for the owner of the
    /// waiters and only for their head: this is what keeps the order.
    #[inline]
    pub fn admit_waiter(&self, charge: u64) -> Result<Admitted, Refused> {
        self.decide(|word, limit| match word.has_room(charge, limit) {
            true => {
                debug_assert!(word.waiters() > 0, "admits a waiter that was never counted");
                (word.0 - WAITER + charge, Ok(Admitted { alone: word.bytes() == 0 && word.waiters() == 1 }))
            }
            false => (word.0, Err(word.refused(limit))),
        })
    }

    /// Whether [`Mark::admit_waiter`] would accept it now: a look, before something else is taken for it.
    pub fn has_room(&self, charge: u64) -> bool {
        self.decide(|word, limit| (word.0, word.has_room(charge, limit)))
    }

    /// Counts one more waiter, whatever room there is: for an operation that joins the waiters'
    /// queue from elsewhere.
    pub fn add_waiter(&self) {
        self.decide(|word, _| (word.plus_waiter(), ()));
    }

    /// A counted waiter gives up. If it was the head, the next one may fit now: its owner looks.
    pub fn forget_waiter(&self) {
        // Relaxed here and below: the word orders itself, and carries no other memory with it but
        // the limit.
        let before = Word(self.word.fetch_sub(WAITER, Ordering::Relaxed));
        debug_assert!(before.waiters() > 0, "forgets a waiter that was never counted");
    }

    /// Takes back what was admitted, once the record has left the queue, by being written or by
    /// being dropped. To be given exactly the charge of the admission, exactly once.
    #[inline]
    #[must_use = "waiters are to be told"]
    pub fn release(&self, charge: u64) -> Released {
        let before = Word(self.word.fetch_sub(charge, Ordering::Relaxed));
        debug_assert!(before.bytes() >= charge, "releases more than was admitted");
        Released { bytes: before.bytes() - charge, waiters: before.waiters() }
    }

    /// Stops or resumes admission, whatever room there is. `true`: it was unblocked by this call
    /// and there are waiters; their owner has to be woken.
    #[must_use = "waiters are to be told"]
    pub fn set_blocked(&self, blocked: bool) -> bool {
        if blocked {
            self.word.fetch_or(BLOCKED, Ordering::Relaxed);
            return false;
        }
        let before = Word(self.word.fetch_and(!BLOCKED, Ordering::Relaxed));
        before.blocked() && before.waiters() > 0
    }

    /// Moves the limit; 0 = unlimited. Only for the mark's one owner, who after a raise looks at
    /// its waiters: their number is returned. After this returned nothing is admitted above the new
    /// limit; what is outstanding already stays, even if it is more.
    pub fn set_limit(&self, limit: u64) -> u32 {
        self.limit.store(limit, Ordering::Relaxed);
        let bump = if cfg!(afflux_mutation = "mark_keeps_version") { 0 } else { VERSION };
        // Release: whoever sees the new version sees the new limit; the partners are the loads of
        // the word in `decide`. The version is the topmost field, so it wraps into nothing.
        Word(self.word.fetch_add(bump, Ordering::Release)).waiters()
    }

    /// Bytes outstanding now.
    #[inline]
    pub fn bytes(&self) -> u64 {
        Word(self.word.load(Ordering::Relaxed)).bytes()
    }

    /// Waiters now.
    #[inline]
    pub fn waiters(&self) -> u32 {
        Word(self.word.load(Ordering::Relaxed)).waiters()
    }

    /// Whether admission is stopped.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        Word(self.word.load(Ordering::Relaxed)).blocked()
    }

    /// The limit now; 0 = unlimited.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Turns the word into what `step` makes of it, together with the limit that belongs to it, in
    /// one swap; none if `step` changes nothing.
    #[inline(always)]
    fn decide<R>(&self, step: impl Fn(Word, u64) -> (u64, R)) -> R {
        // Acquire, here and at a failed swap: the limit is at least as new as the version in the
        // word; the partner is the bump in `set_limit`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let (next, result) = step(Word(word), self.limit.load(Ordering::Relaxed));
            if next == word {
                return result;
            }
            match self.word.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => return result,
                Err(changed) => word = changed,
            }
        }
    }
}

impl Word {
    #[inline(always)]
    fn plus_waiter(self) -> u64 {
        assert!(self.waiters() < WAITERS_MAX, "more waiters than cells");
        self.0 + WAITER
    }
}
