//! A value that is read all the time and replaced seldom, always as a whole: routes, peers' lists.
//!
//! A reader keeps its own [`Cached`] copy of the pointer and compares one version word per use; only
//! when that has moved does it lock, for as long as it takes to clone an `Arc`. A value lives until
//! its last reader has refreshed or is gone.
//!
//! Full: there is always exactly one current value.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::primitive::{AtomicU64, Mutex, Ordering};

/// The place where the current value is published.
pub struct Published<T> {
    /// Counts the stores. Changed under the lock only, so with it held version and value agree.
    version: AtomicU64,
    current: Mutex<Arc<T>>,
}

/// A reader's copy. It stays as it is until [`Published::refresh`].
#[derive(Debug)]
pub struct Cached<T> {
    version: u64,
    value: Arc<T>,
}

impl<T> Published<T> {
    /// Publishes the first value.
    pub fn new(value: Arc<T>) -> Self {
        Published { version: AtomicU64::new(0), current: Mutex::new(value) }
    }

    /// How often the value was replaced.
    #[inline]
    pub fn version(&self) -> u64 {
        // Relaxed: it only says whether to lock, and the lock orders the rest.
        self.version.load(Ordering::Relaxed)
    }

    /// The current value. Locks; who asks often keeps a [`Published::cached`] copy.
    pub fn load(&self) -> Arc<T> {
        self.current.lock().clone()
    }

    /// Replaces the value. Readers have it at their next [`Published::refresh`].
    pub fn store(&self, value: Arc<T>) {
        let early = cfg!(afflux_mutation = "published_early_version");
        if early {
            self.version.fetch_add(1, Ordering::Relaxed);
        }
        let mut current = self.current.lock();
        if !early {
            self.version.fetch_add(1, Ordering::Relaxed);
        }
        let replaced = std::mem::replace(&mut *current, value);
        drop(current);
        // The old value may be large: it is dropped outside the lock.
        drop(replaced);
    }

    /// A copy for a reader to keep.
    pub fn cached(&self) -> Cached<T> {
        let current = self.current.lock();
        Cached { version: self.version(), value: current.clone() }
    }

    /// Brings a reader's copy up to date and returns whether it had to.
    #[inline]
    pub fn refresh(&self, copy: &mut Cached<T>) -> bool {
        let stale = self.version() != copy.version;
        if stale {
            *copy = self.cached();
        }
        stale
    }
}

impl<T> Cached<T> {
    /// The version of this copy.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The value itself, to be kept beyond the next refresh.
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Deref for Cached<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Self {
        Cached { version: self.version, value: self.value.clone() }
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("version", &self.version).finish_non_exhaustive()
    }
}
