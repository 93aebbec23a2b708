//! The standard library's primitives, or loom's under `cfg(afflux_loom)`. The only place in the
//! crate that names either. The cfg has the crate's own name, so that dependencies are not
//! switched along.

#[cfg(not(afflux_loom))]
mod chosen {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    /// [`std::cell::UnsafeCell`] with loom's interface.
    #[derive(Debug, Default)]
    pub(crate) struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        /// Shared access; the caller's protocol must rule out a writer.
        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Exclusive access; the caller's protocol must rule out anybody else.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// A lock whose holder's panic does not poison it: what it guards is always left whole.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(std::sync::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    /// Waits a moment for a thread that is inside a few instructions: at first by spinning, then by
    /// giving the core away, because that thread may have been interrupted there.
    pub(crate) fn relax(round: u32) {
        if round < 32 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

#[cfg(afflux_loom)]
mod chosen {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// Two threads that wait for a third can take turns for ever: what comes after the second round is
    /// played to its end, but its variants are not explored.
    pub(crate) fn relax(round: u32) {
        if round >= 2 {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
}

pub(crate) use chosen::*;
