//! Things that any thread leaves for one owner, who looks every turn and mostly finds nothing: a look at
//! an empty tray is one load.
//!
//! Whether something lies there is written under the lock that guards it, so an owner who sees that it is
//! empty has everything that was left before what he has seen. It may stand behind the fences of
//! [`super::wake`]: who leaves something and *then* wakes is seen by who announces his sleep and *then* looks.
//!
//! Full: a tray grows; what may lie in it is bounded by whoever leaves it.

use std::fmt;
use std::mem::swap;
use std::ops::Deref;

use super::primitive::{AtomicBool, Mutex, Ordering};

/// See the module.
pub struct Tray<T> {
    /// Something lies there. Written under the lock.
    some: AtomicBool,
    things: Mutex<Vec<T>>,
}

impl<T> Default for Tray<T> {
    fn default() -> Self {
        Tray { some: AtomicBool::new(false), things: Mutex::new(Vec::new()) }
    }
}

impl<T> fmt::Debug for Tray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tray").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

impl<T> Tray<T> {
    /// Leaves `thing` behind what lies there.
    pub fn leave(&self, thing: T) {
        self.leave_unless(thing, |_, _| false);
    }

    /// The same, unless one that `same` calls equal lies there already.
    pub fn leave_unless(&self, thing: T, same: impl Fn(&T, &T) -> bool) {
        let mut things = self.things.lock();
        if !things.iter().any(|there| same(there, &thing)) {
            things.push(thing);
        }
        if !cfg!(afflux_mutation = "tray_left_unseen") {
            // Release: what was written before is there for who sees it; the partner is in `is_empty`.
            self.some.store(true, Ordering::Release);
        }
    }

    /// Whether nothing lies there.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire: the partner is in `leave_unless`.
        !self.some.load(Ordering::Acquire)
    }

    /// Takes everything, in the order in which it was left.
    #[inline]
    pub fn take(&self) -> Vec<T> {
        let mut all = Vec::new();
        self.swap(&mut all);
        all
    }

    /// The same, for an owner who brings an empty list and keeps its memory.
    #[inline]
    pub fn swap(&self, empty: &mut Vec<T>) {
        debug_assert!(empty.is_empty(), "what lies in it would be taken for unseen");
        if !self.is_empty() {
            self.swap_all(empty);
        }
    }

    #[cold]
    fn swap_all(&self, empty: &mut Vec<T>) {
        let mut things = self.things.lock();
        // Relaxed: under the lock, and of nothing there is nothing to see.
        self.some.store(false, Ordering::Relaxed);
        swap(&mut *things, empty);
    }

    /// What lies there, to be looked at; nobody leaves or takes anything meanwhile.
    pub fn lock(&self) -> impl Deref<Target = Vec<T>> + '_ {
        self.things.lock()
    }
}
