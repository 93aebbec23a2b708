//! The right to do something now, without anybody ever waiting for it: to write a lane, to read
//! it. Who gets the baton does the work; who does not leaves the work where the holder will look,
//! asks, and goes.
//!
//! ```text
//!            try_take                  ask
//!    Free ──────────────▶ Held ──────────────▶ Held, more
//!     ▲                    │                        │
//!     ├──── release: Clean ┘                        │
//!     └──── release: MoreWork ──────────────────────┘   the holder looks again, or tells who will
//! ```
//!
//! The promise: work that was left *before* an `ask` that answered [`Asked::Busy`] is visible to the
//! holder *after* its release, and the release says that there is some. An `ask` that answered
//! [`Asked::Free`] promises nothing: the caller tries to take the baton itself.
//!
//! *Retired* is a bit beside the state: what the baton stands for is over. It can still be taken,
//! because only a holder may take apart what it guards; a holder looks at [`Baton::is_retired`]
//! before it does anything else.
//!
//! Full: a baton holds nothing. What [`PostBaton::post`] leaves is bounded by whoever posts.

use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};

use super::primitive::{AtomicU8, Mutex, Ordering, UnsafeCell};

const HELD: u8 = 1;
const MORE: u8 = 2;
const RETIRED: u8 = 4;

/// The answer to [`Baton::ask`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "of a free baton nobody will look"]
pub enum Asked {
    /// Nobody holds it, and nothing was noted. Try to take it.
    Free,
    /// The holder's release will say that there is more work.
    Busy,
}

/// The answer to [`Held::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "more work would be left undone"]
pub enum Released {
    /// Nobody asked in the meantime.
    Clean,
    /// Somebody left work while the baton was held. It is free again now and the note is gone:
    /// take it again and look, or wake somebody who will. If it cannot be taken again, another holder
    /// has come in between; ask that one.
    MoreWork,
}

/// A value for one holder at a time.
#[derive(Debug)]
pub struct Baton<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a `Held` only, of which there is one at a time, made on
// whichever thread takes the baton: it moves between threads and is never shared, so `T: Send` is
// all that is needed.
unsafe impl<T: Send> Sync for Baton<T> {}

impl<T> Baton<T> {
    /// A free baton.
    pub fn new(value: T) -> Self {
        Baton { state: AtomicU8::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the baton, if nobody has it.
    #[inline]
    pub fn try_take(&self) -> Option<Held<'_, T>> {
        // A look first: a held baton's line is not torn from its holder.
        if self.state.load(Ordering::Relaxed) & HELD != 0 {
            return None;
        }
        // Acquire: sees what earlier holders did; the partner is their release.
        let before = self.state.fetch_or(HELD, Ordering::Acquire);
        (before & HELD == 0).then(|| Held { baton: self, not_shared: PhantomData })
    }

    /// Notes that there is more work, if somebody holds the baton. Leave the work first.
    #[inline]
    pub fn ask(&self) -> Asked {
        if cfg!(afflux_mutation = "baton_forgets_flag") {
            return match self.state.load(Ordering::Relaxed) & HELD {
                0 => Asked::Free,
                _ => Asked::Busy,
            };
        }
        self.note(0, MORE)
    }

    /// Says that what the baton stands for is over. [`Asked::Busy`]: the holder will be told to look
    /// again; [`Asked::Free`]: the caller takes the baton and clears away, unless another is quicker.
    pub fn retire(&self) -> Asked {
        self.note(RETIRED, MORE | RETIRED)
    }

    /// Whether it was retired. Of use to a holder; to others it may be true a moment later.
    #[inline]
    pub fn is_retired(&self) -> bool {
        // Acquire: sees what came before the retirement; the partner is in `note`.
        self.state.load(Ordering::Acquire) & RETIRED != 0
    }

    /// Sets the one or the other bits. A swap even if they are set already: only so is *this*
    /// caller's work ordered before the holder's release.
    fn note(&self, if_free: u8, if_held: u8) -> Asked {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (bits, answer) = match state & HELD {
                0 => (if_free, Asked::Free),
                _ => (if_held, Asked::Busy),
            };
            // Release: the work that was left is seen by who sees the bits; the partners are the
            // holder's release and `is_retired`.
            match self.state.compare_exchange_weak(state, state | bits, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return answer,
                Err(changed) => state = changed,
            }
        }
    }
}

/// The baton, held. Ends by [`Held::release`], whose answer matters. Dropping it instead, which
/// unwinding does, frees the baton too and keeps the note for the next holder: work that was left may
/// then be late, but it is not forgotten.
pub struct Held<'a, T> {
    baton: &'a Baton<T>,
    /// Shared between threads only if `T` may be.
    not_shared: PhantomData<&'a mut T>,
}

impl<T> Held<'_, T> {
    /// Gives the baton back and says whether somebody asked meanwhile.
    #[inline]
    pub fn release(self) -> Released {
        let held = ManuallyDrop::new(self);
        // Release: the next holder sees what this one did; the partner is `try_take`. Acquire: the
        // work of who asked is seen; the partner is `note`.
        let before = held.baton.state.fetch_and(!(HELD | MORE), Ordering::AcqRel);
        if before & MORE == 0 { Released::Clean } else { Released::MoreWork }
    }

    /// Gives the baton back only if nobody asked; otherwise clears the note and goes on holding.
    fn release_if_clean(self) -> Option<Self> {
        let state = &self.baton.state;
        // Release as above; only bits beside HELD can be set by others, so this loops rarely.
        let mut before = state.load(Ordering::Relaxed);
        while before & MORE == 0 {
            match state.compare_exchange_weak(before, before & !HELD, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    mem::forget(self);
                    return None;
                }
                Err(changed) => before = changed,
            }
        }
        // Acquire: the work of who asked is seen; the partner is `note`.
        state.fetch_and(!MORE, Ordering::Acquire);
        Some(self)
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        // Release: as in `release`. MORE stays.
        self.baton.state.fetch_and(!HELD, Ordering::Release);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: HELD is set by this holder, so nobody else has access; the borrow is bound to
        // `self`, which excludes `deref_mut`.
        self.baton.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the borrow is exclusive because that of `self` is.
        self.baton.value.with_mut(|value| unsafe { &mut *value })
    }
}

/// A baton with an inbox in front of it, for a lane whose left-over records any holder may write.
///
/// A posted record is either with the poster, who got the baton, or is seen by the present holder
/// before it lets go. Nobody has to come by later.
pub struct PostBaton<T, R> {
    baton: Baton<T>,
    posts: Mutex<Vec<R>>,
}

impl<T, R> std::fmt::Debug for PostBaton<T, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostBaton").finish_non_exhaustive()
    }
}

impl<T, R> PostBaton<T, R> {
    /// A free baton with an empty inbox.
    pub fn new(value: T) -> Self {
        PostBaton { baton: Baton::new(value), posts: Mutex::new(Vec::new()) }
    }

    /// Takes the baton, if nobody has it. What was posted before comes after what the holder writes of its own
    /// accord; see [`PostBaton::is_asked`].
    #[inline]
    pub fn try_take(&self) -> Option<PostHeld<'_, T, R>> {
        self.baton.try_take().map(|held| PostHeld { held, posts: &self.posts })
    }

    /// Whether something that was posted waits for the next holder: who would keep the order posts too.
    #[inline]
    pub fn is_asked(&self) -> bool {
        // Relaxed: a thread sees what it posted itself, and of others' posts there is no order.
        self.baton.state.load(Ordering::Relaxed) & MORE != 0
    }

    /// Leaves a record. `None`: the present holder will write it. `Some`: there is no holder, the
    /// caller is it now, and its record is in the inbox.
    #[must_use = "the record is for the new holder to write"]
    pub fn post(&self, record: R) -> Option<PostHeld<'_, T, R>> {
        self.leave(record);
        self.come_by()
    }

    /// Leaves a record for whoever comes by. The caller sees to it that somebody does, by
    /// [`PostBaton::come_by`], himself or another.
    pub fn leave(&self, record: R) {
        self.posts.lock().push(record);
    }

    /// Sees to what was left. `None`: the present holder does; `Some`: the caller is the holder now.
    #[must_use = "what was left is for the new holder to write"]
    pub fn come_by(&self) -> Option<PostHeld<'_, T, R>> {
        loop {
            match self.baton.ask() {
                Asked::Busy => return None,
                Asked::Free => {
                    if let Some(held) = self.try_take() {
                        return Some(held);
                    }
                }
            }
        }
    }

    /// See [`Baton::retire`]. What is in the inbox stays there for the holder to clear away.
    pub fn retire(&self) -> Asked {
        self.baton.retire()
    }

    /// See [`Baton::is_retired`].
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.baton.is_retired()
    }
}

/// A [`PostBaton`], held. To be let go by [`PostHeld::release`]; dropped, it leaves what was posted
/// meanwhile to the next holder, as [`Held`] does.
pub struct PostHeld<'a, T, R> {
    held: Held<'a, T>,
    posts: &'a Mutex<Vec<R>>,
}

impl<T, R> PostHeld<'_, T, R> {
    /// Empties the inbox, oldest first, and returns how many records there were. `each` gets the
    /// guarded value too, and runs outside the lock.
    pub fn drain_posts(&mut self, mut each: impl FnMut(&mut T, R)) -> usize {
        let posts = mem::take(&mut *self.posts.lock());
        let count = posts.len();
        for record in posts {
            each(&mut self.held, record);
        }
        count
    }

    /// Gives the baton back, unless something was posted or asked since the last look: then it is
    /// still held, and the holder drains, writes and releases once more.
    #[inline]
    #[must_use = "still held: there is more to drain"]
    pub fn release(self) -> Option<Self> {
        let posts = self.posts;
        self.held.release_if_clean().map(|held| PostHeld { held, posts })
    }
}

impl<T, R> Deref for PostHeld<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T, R> DerefMut for PostHeld<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}
