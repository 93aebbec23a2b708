//! Small shared values with their ordering written down once, so that the floors above need no
//! atomics of their own.

use super::primitive::{AtomicBool, AtomicU64, Ordering};

/// A number that anybody may read at any time and that nobody draws conclusions from: statistics.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Starts at `n`.
    pub fn new(n: u64) -> Self {
        Gauge(AtomicU64::new(n))
    }

    /// The present value.
    #[inline]
    pub fn get(&self) -> u64 {
        // Relaxed: a statistic orders nothing.
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces the value.
    #[inline]
    pub fn set(&self, n: u64) {
        // Relaxed: as above.
        self.0.store(n, Ordering::Relaxed);
    }

    /// Adds from any thread; returns the value before.
    #[inline]
    pub fn add(&self, n: u64) -> u64 {
        // Relaxed: only the sum matters.
        self.0.fetch_add(n, Ordering::Relaxed)
    }

    /// Subtracts from any thread. The caller must have added it before.
    #[inline]
    pub fn sub(&self, n: u64) {
        // Relaxed: only the sum matters.
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Raises the value to `n` if it is lower.
    pub fn raise(&self, n: u64) {
        // Relaxed: as above.
        self.0.fetch_max(n, Ordering::Relaxed);
    }
}

/// An amount that threads add to and take from in portions, and the most that it ever was.
#[derive(Debug, Default)]
pub struct Level {
    amount: AtomicU64,
    peak: AtomicU64,
}

impl Level {
    /// The present amount.
    #[inline]
    pub fn get(&self) -> u64 {
        // Relaxed: an amount; nothing is handed over by it.
        self.amount.load(Ordering::Relaxed)
    }

    /// The most that it was.
    pub fn peak(&self) -> u64 {
        // Relaxed: as above.
        self.peak.load(Ordering::Relaxed)
    }

    /// Adds.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: as above.
        let now = self.amount.fetch_add(n, Ordering::Relaxed) + n;
        // A look first: in the long run a peak is rarely passed.
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Takes what was added before.
    #[inline]
    pub fn take(&self, n: u64) {
        // Relaxed: as above.
        let before = self.amount.fetch_sub(n, Ordering::Relaxed);
        debug_assert!(before >= n, "takes more than was added");
    }
}

/// A flag that hands over what was written before it was raised.
#[derive(Debug, Default)]
pub struct Latch(AtomicBool);

impl Latch {
    /// Starts lowered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises it; true if it was lowered before. Pairs with [`Latch::lower`] and
    /// [`Latch::is_raised`].
    #[inline]
    pub fn raise(&self) -> bool {
        // AcqRel: publishes what the raiser wrote; partner: the Acquire in `lower` and `is_raised`.
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Lowers it; true if it was raised.
    #[inline]
    pub fn lower(&self) -> bool {
        // AcqRel: partner: the swap in `raise`.
        self.0.swap(false, Ordering::AcqRel)
    }

    /// Whether it is raised now.
    #[inline]
    pub fn is_raised(&self) -> bool {
        // Acquire: partner: the swap in `raise`.
        self.0.load(Ordering::Acquire)
    }
}

/// Whether an attempt that may be in vain is worth making again: after each in a row that was, twice as many
/// are left out as before, up to [`Luck::MOST`]. Used by several threads at once it is about right.
#[derive(Debug, Default)]
pub struct Luck {
    left_out: AtomicU64,
    to_leave_out: AtomicU64,
}

impl Luck {
    /// The most that are left out in a row.
    pub const MOST: u64 = 64;

    /// Whether to make the attempt now.
    #[inline]
    pub fn is_worth_it(&self) -> bool {
        // Relaxed, here and below: an estimate orders nothing.
        let left = self.to_leave_out.load(Ordering::Relaxed);
        if left > 0 {
            self.to_leave_out.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// How an attempt has come out.
    #[inline]
    pub fn note(&self, paid: bool) {
        let before = self.left_out.load(Ordering::Relaxed);
        let next = if paid { 0 } else { (2 * before + 1).min(Self::MOST) };
        if next != before {
            self.left_out.store(next, Ordering::Relaxed);
        }
        self.to_leave_out.store(next, Ordering::Relaxed);
    }
}

/// A number whose readers rely on what its writer wrote before it: an epoch, a state.
#[derive(Debug, Default)]
pub struct Epoch(AtomicU64);

impl Epoch {
    /// Starts at `n`.
    pub fn new(n: u64) -> Self {
        Epoch(AtomicU64::new(n))
    }

    /// The present value, with everything its writer wrote before.
    #[inline]
    pub fn get(&self) -> u64 {
        // Acquire: partner: the Release in `set` and the AcqRel in `advance`.
        self.0.load(Ordering::Acquire)
    }

    /// Publishes `n`.
    #[inline]
    pub fn set(&self, n: u64) {
        // Release: partner: the Acquire in `get`.
        self.0.store(n, Ordering::Release);
    }

    /// Counts one further; returns the new value.
    pub fn advance(&self) -> u64 {
        // AcqRel: partner: the Acquire in `get`.
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

#[cfg(all(test, not(afflux_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_ever_more_rarely_and_what_pays_at_once() {
        let luck = Luck::default();
        let mut left_out = Vec::new();
        for _ in 0..9 {
            left_out.push((0..).take_while(|_| !luck.is_worth_it()).count());
            luck.note(false);
        }
        assert_eq!(left_out, [0, 1, 3, 7, 15, 31, 63, 64, 64]);
        while !luck.is_worth_it() {}
        luck.note(true);
        assert!(luck.is_worth_it() && luck.is_worth_it());
    }
}
