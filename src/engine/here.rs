//! Which thread this is: the one thing that a thread must know of itself, because a thread of the
//! runtime may not block.

use std::cell::Cell;

thread_local! {
    static RUNTIME: Cell<bool> = const { Cell::new(false) };
}

/// Says that the calling thread belongs to a runtime from now on.
pub fn enter_runtime() {
    RUNTIME.set(true);
}

/// Whether the calling thread is one of a runtime's.
#[inline]
pub fn is_runtime_thread() -> bool {
    RUNTIME.get() && !cfg!(afflux_mutation = "shards_may_block")
}
