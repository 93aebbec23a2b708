//! Blocking a thread of the user's until an operation has ended: one waker per thread, made once.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use super::wake::WakeCell;

/// Wakes whoever sleeps by that cell.
struct Rouse(Arc<WakeCell>);

impl Wake for Rouse {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// A waker that unparks the calling thread.
pub fn thread_waker() -> Waker {
    WAKER.with_borrow_mut(|w| w.get_or_insert_with(|| Waker::from(Arc::new(Unpark(thread::current())))).clone())
}

/// Sleeps until the thread's waker is woken, or `timeout` has passed, or for no reason at all: the
/// caller looks again.
pub fn park(timeout: Duration) {
    thread::park_timeout(timeout);
}

/// A waker that wakes the thread which sleeps by `cell`.
pub fn cell_waker(cell: Arc<WakeCell>) -> Waker {
    Waker::from(Arc::new(Rouse(cell)))
}
