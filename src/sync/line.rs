//! Who is first in line for a bounded space that is handed out first come, first served. Small ones find their
//! rest again and again; a large one would wait for ever for all of it at once. Whoever does not fit stands in
//! line, and what the first of it wants is kept free by all others until it has it.
//!
//! Full: as many may stand there as there are links, each once; nobody waits here, and nobody is told.

use std::collections::VecDeque;

use super::primitive::{AtomicU64, Mutex, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct Line {
    standing: Mutex<VecDeque<(u64, u64)>>,
    /// The first one's name, 0 if nobody stands there, and what it wants. Changed under the lock only.
    first: AtomicU64,
    wanted: AtomicU64,
}

impl Line {
    /// `who`, not 0, wants `bytes` at once. Standing there already, it keeps its place.
    pub fn stand(&self, who: u64, bytes: u64) {
        let mut standing = self.standing.lock();
        match standing.iter_mut().find(|(known, _)| *known == who) {
            Some(place) => place.1 = bytes,
            None => standing.push_back((who, bytes)),
        }
        self.show(&standing);
    }

    /// `who` has what it wanted, or wants it no more. True if it was first: others may fit now.
    #[inline]
    pub fn leave(&self, who: u64) -> bool {
        // Relaxed: whoever stands there knows it of itself.
        self.first.load(Ordering::Relaxed) != 0 && self.leave_slowly(who)
    }

    #[cold]
    fn leave_slowly(&self, who: u64) -> bool {
        let mut standing = self.standing.lock();
        let was_first = standing.front().is_some_and(|(first, _)| *first == who);
        standing.retain(|(known, _)| *known != who);
        self.show(&standing);
        was_first
    }

    /// What everybody but the first leaves free: 0 for the first, and where nobody stands.
    #[inline]
    pub fn kept_from(&self, who: u64) -> u64 {
        // Relaxed: a look that is a moment old lets one more pass, or holds it up until the next look.
        let first = self.first.load(Ordering::Relaxed);
        if first == 0 || first == who || cfg!(afflux_mutation = "line_unheeded") {
            0
        } else {
            self.wanted.load(Ordering::Relaxed)
        }
    }

    fn show(&self, standing: &VecDeque<(u64, u64)>) {
        let (first, wanted) = standing.front().copied().unwrap_or_default();
        // Relaxed: as in `kept_from`.
        self.wanted.store(wanted, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
    }
}
