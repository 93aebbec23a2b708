//! Blocking a thread of the user's until an operation has ended: one waker per thread, made once, that wakes
//! it however it sleeps.
//!
//! A thread sits down, *then* looks whether its operation has ended, then sleeps; whoever ends the operation
//! does so and *then* wakes. Where the thread sits is behind a lock: whoever wakes it there, or does not,
//! comes after or before the sitting down, and in the latter case the look finds the end.

use std::cell::{Cell, OnceCell};
use std::mem::{replace, take};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use super::lock::Lock;
use super::wake::WakeCell;

struct Sleeper {
    thread: Thread,
    /// How it is woken, unless by unparking.
    seat: Lock<Option<Arc<WakeCell>>>,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Not under the lock: its first act may be to stand up.
        let seat = self.seat.lock().clone();
        match seat {
            Some(seat) => {
                seat.wake();
            }
            None => self.thread.unpark(),
        }
    }
}

thread_local! {
    static SLEEPER: OnceCell<Arc<Sleeper>> = const { OnceCell::new() };
    /// Whether the thread sits: known to itself without the lock.
    static SITS: Cell<bool> = const { Cell::new(false) };
}

fn with_sleeper<R>(use_it: impl FnOnce(&Arc<Sleeper>) -> R) -> R {
    let make = || Arc::new(Sleeper { thread: thread::current(), seat: Lock::new(None) });
    SLEEPER.with(|sleeper| use_it(sleeper.get_or_init(make)))
}

/// A waker that wakes the calling thread, where it sits or parks.
pub fn thread_waker() -> Waker {
    with_sleeper(|sleeper| Waker::from(sleeper.clone()))
}

/// The calling thread, for as long as it does not park but sleeps by a cell. Dropped, it sits where it sat before.
pub struct Sitting(Option<Arc<WakeCell>>);

/// From now on the thread's waker wakes by `seat`.
pub fn sit(seat: &Arc<WakeCell>) -> Sitting {
    take_seat(Some(seat.clone()))
}

/// The calling thread, for as long as it sleeps by parking. It may have been called by one who sits.
pub struct Standing(Option<Sitting>);

/// From now on the thread's waker unparks it. To be done before it looks whether to sleep.
pub fn stand() -> Standing {
    Standing((SITS.get() && !cfg!(afflux_mutation = "parks_seated")).then(|| take_seat(None)))
}

impl Standing {
    /// Sleeps until the thread's waker is woken, or `timeout` has passed, or for no reason at all: the
    /// caller looks again.
    pub fn park(&self, timeout: Duration) {
        debug_assert!(self.0.is_none() || !SITS.get(), "woken elsewhere");
        thread::park_timeout(timeout);
    }
}

fn take_seat(seat: Option<Arc<WakeCell>>) -> Sitting {
    SITS.set(seat.is_some());
    Sitting(with_sleeper(|sleeper| replace(&mut *sleeper.seat.lock(), seat)))
}

impl Drop for Sitting {
    fn drop(&mut self) {
        SITS.set(self.0.is_some());
        with_sleeper(|sleeper| *sleeper.seat.lock() = take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use crate::sync::primitive::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_thread_is_woken_where_it_sits() {
        let seat = || {
            let rung = Arc::new(AtomicU32::new(0));
            let bell = rung.clone();
            let cell = Arc::new(WakeCell::new(move || {
                bell.fetch_add(1, Ordering::Relaxed);
            }));
            cell.prepare_sleep();
            (cell, rung)
        };
        let ((outer, rung), (inner, rung_within)) = (seat(), seat());
        let waker = thread_waker();
        let sits = sit(&outer);
        let sits_within = sit(&inner);
        waker.wake_by_ref();
        assert_eq!((rung.load(Ordering::Relaxed), rung_within.load(Ordering::Relaxed)), (0, 1));
        drop(sits_within);
        waker.wake_by_ref();
        assert_eq!((rung.load(Ordering::Relaxed), rung_within.load(Ordering::Relaxed)), (1, 1));
        drop(sits);
        waker.wake_by_ref();
        assert_eq!((rung.load(Ordering::Relaxed), rung_within.load(Ordering::Relaxed)), (1, 1));
        // A watchdog, if the wake did not unpark.
        stand().park(Duration::from_secs(60));
    }

    /// A waker that a leader calls may be the user's, and wait for something itself.
    #[test]
    fn who_parks_within_stands_up() {
        let seat = Arc::new(WakeCell::new(|| panic!("the thread is not there")));
        seat.prepare_sleep();
        let sits = sit(&seat);
        let stands = stand();
        thread_waker().wake();
        // A watchdog, if the wake did not unpark.
        stands.park(Duration::from_secs(60));
        drop(stands);
        assert!(SITS.get(), "it sits again");
        drop(sits);
        assert!(!SITS.get());
    }
}
