//! What the load counts: every record, by its one end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use afflux::Detail;

use crate::tenants::Tenants;
use crate::times::Times;

/// How the ends are told apart: by kind and detail.
pub type End = (&'static str, Detail);

/// Errors of one kind and detail.
#[derive(Clone, Debug)]
pub struct Errors {
    /// Which.
    pub end: End,
    /// How many.
    pub count: u64,
    /// What the first one said.
    pub first: Arc<str>,
}

/// How every record ended. At every moment `submitted = replies + errors + outstanding`.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    /// Records of which a request was made.
    pub submitted: u64,
    /// Records answered with success.
    pub replies: u64,
    /// Records that ended in an error.
    pub errors: Vec<Errors>,
    /// Records that never left the client's host: refused, or given back.
    pub returned: u64,
    /// Requests made again because nobody knew whether the first had run.
    pub retries: u64,
    /// Records in slots.
    pub outstanding: u64,
    /// Bytes of these, and the most at once.
    pub bytes: u64,
    /// See `bytes`.
    pub bytes_peak: u64,
    /// Requests that should have been made by now, in an open loop.
    pub intended: u64,
    /// How late the open loop was at most with a request.
    pub late_max: Duration,
}

impl Counts {
    /// One more error; only the first of its kind and detail is asked for its words.
    pub fn fail(&mut self, end: End, said: impl FnOnce() -> String) {
        match self.errors.iter_mut().find(|errors| errors.end == end) {
            Some(errors) => errors.count += 1,
            None => self.errors.push(Errors { end, count: 1, first: said().into() }),
        }
    }

    /// Errors of all kinds.
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|errors| errors.count).sum()
    }
}

/// What the load shares with whoever looks at it.
pub struct Shared {
    counts: Mutex<Counts>,
    /// Per tenant, where the service's own are in another process.
    pub tenants: Tenants,
    /// How long requests took.
    pub times: Arc<Times>,
}

impl Shared {
    /// Nothing done yet.
    pub fn new(tenants: Tenants, times: Arc<Times>) -> Shared {
        Shared { counts: Mutex::default(), tenants, times }
    }

    /// Makes these the counts that others see.
    pub fn publish(&self, counts: &Counts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts.clone();
    }

    /// The counts, all of one moment.
    pub fn counts(&self) -> Counts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
