//! How a thread goes to sleep without missing anything, and how others wake it without a system
//! call when it is not asleep.
//!
//! ```text
//!            prepare_sleep              wake (calls the waker)
//!    Awake ────────────────▶ Sleeping ─────────────────────────▶ Notified
//!      ▲                        │                                    │
//!      └──────── awake ─────────┴────────────── awake ───────────────┘
//! ```
//!
//! The sleeper announces, *then* looks at everything that could hold work, then sleeps. A producer
//! leaves its work, *then* looks at the state. A full fence stands between the two steps on either
//! side, so at least one of them sees what the other did: the sleeper the work, or the producer
//! the announcement. Whatever the producer leaves must be left by an atomic store that the sleeper's
//! look loads.
//!
//! Full: there is nothing to fill; any number of wakes before the next sleep are one.

use std::fmt;

use crossbeam_utils::CachePadded;

use super::primitive::{AtomicU8, AtomicU64, Ordering, fence};

const AWAKE: u8 = 0;
const SLEEPING: u8 = 1;
const NOTIFIED: u8 = 2;

/// The sleep of one thread. All methods but [`WakeCell::wake`], [`WakeCell::is_asleep`] and
/// [`WakeCell::wakes`] are for that thread alone.
pub struct WakeCell {
    state: CachePadded<AtomicU8>,
    wakes: AtomicU64,
    waker: Box<dyn Fn() + Send + Sync>,
}

impl WakeCell {
    /// For a thread that is awake. `waker` must be remembered by the sleep it ends, even if it is
    /// called before that sleep has begun: an eventfd or an unpark, not a condition variable.
    pub fn new(waker: impl Fn() + Send + Sync + 'static) -> Self {
        WakeCell { state: CachePadded::new(AtomicU8::new(AWAKE)), wakes: AtomicU64::new(0), waker: Box::new(waker) }
    }

    /// Called after work was left. `true`: the thread was asleep or about to be, and this call woke
    /// it. `false`: it will look without being told.
    #[inline]
    pub fn wake(&self) -> bool {
        // The work is left before the state is looked at; the partner is the fence in
        // `prepare_sleep`.
        fence(Ordering::SeqCst);
        self.state.load(Ordering::Relaxed) == SLEEPING && self.wake_sleeper()
    }

    #[cold]
    fn wake_sleeper(&self) -> bool {
        // Relaxed: the fences order everything; of several wakers one wins and calls.
        let won = self.state.compare_exchange(SLEEPING, NOTIFIED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            (self.waker)();
        }
        won
    }

    /// Announces the sleep. Look at every queue after this, then [`WakeCell::sleep_or_abort`], or
    /// [`WakeCell::awake`] if there is something to do.
    #[inline]
    pub fn prepare_sleep(&self) {
        self.state.store(SLEEPING, Ordering::Relaxed);
        if cfg!(afflux_mutation = "lazy_wake") {
            return;
        }
        // Announced before the queues are looked at; the partner is the fence in `wake`.
        fence(Ordering::SeqCst);
    }

    /// Whether to sleep now. `false`: somebody has woken the thread already, and it is awake again.
    #[inline]
    pub fn sleep_or_abort(&self) -> bool {
        let sleep = self.state.load(Ordering::Relaxed) == SLEEPING;
        if !sleep {
            self.awake();
        }
        sleep
    }

    /// Says that the thread is up again, for whatever reason. Until the next announcement, work is
    /// left without a wake: so look at every queue at least once before sleeping again.
    #[inline]
    pub fn awake(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the thread sleeps or has announced that it will. For other threads, and only to tell one that has
    /// nothing to do from one that does not come back: it may be otherwise at once.
    pub fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Relaxed) == SLEEPING
    }

    /// How often the waker was really called.
    pub fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for WakeCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeCell").field("state", &self.state).field("wakes", &self.wakes).finish_non_exhaustive()
    }
}
