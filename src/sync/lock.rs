//! A plain lock, for the places where waiting a moment is right: a handle used by two threads at
//! once, a list that is touched once per turn. Never held across a system call that can block,
//! a user's code, or another lock.

use std::ops::DerefMut;

use super::primitive::Mutex;

/// A value behind a lock. A panic of a holder does not poison it.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// Guards `value`.
    pub fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> impl DerefMut<Target = T> + '_ {
        self.0.lock()
    }
}
