//! Counts that the load and the store write and the progress line reads while they run.

use std::sync::atomic::{AtomicU64, Ordering};

/// One count. Nothing is ordered by it.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// So far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How every record ended, and what the store did.
#[derive(Debug, Default)]
pub struct Tally {
    /// Records of which a request was made.
    pub sent: Count,
    /// Records that never left the client's host: refused, or given back.
    pub returned: Count,
    /// Records answered with success.
    pub replies: Count,
    /// Records that ended in an error.
    pub errors: Count,
    /// Requests made again because nobody knew whether the first had run.
    pub retries: Count,
    /// Records that the store recognised and answered with their earlier sequence.
    pub recognised: Count,
    /// Commits with an fsync.
    pub commits: Count,
}
