//! What the service counts: every record, by its one end, and its batches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use afflux::policy::batch::ClosedBy;

use crate::tenants::Tenants;
use crate::times::Times;

/// What the service did. `received` is the sum of the four ends and what is held.
#[derive(Clone, Copy, Default, Debug)]
pub struct Served {
    /// Records whose handler ran.
    pub received: u64,
    /// Records stored and answered with their sequence.
    pub stored: u64,
    /// Records that were there before, answered with their earlier sequence.
    pub recognised: u64,
    /// Requests that are no record, or one whose id has another line.
    pub refused: u64,
    /// Records whose commit failed.
    pub failed: u64,
    /// Payload bytes of what was received.
    pub bytes: u64,
    /// Commits with an fsync.
    pub commits: u64,
    /// Commits that failed.
    pub failed_commits: u64,
    /// Batches by what closed them, in the order of [`CLOSED_BY`].
    pub closed_by: [u64; 5],
    /// What is in the batch now, and the most at once.
    pub batch: Filling,
    /// Batches closed so far.
    pub batches: u64,
}

/// The batch that is being filled.
#[derive(Clone, Copy, Default, Debug)]
pub struct Filling {
    /// Items.
    pub items: u64,
    /// Bytes after expansion.
    pub bytes: u64,
    /// The most bytes at once.
    pub bytes_peak: u64,
    /// When its first item came.
    pub since: Option<Instant>,
}

impl Served {
    /// Received and not ended.
    pub fn held(&self) -> u64 {
        self.received - self.stored - self.recognised - self.refused - self.failed
    }
}

/// The names of what closes a batch.
pub const CLOSED_BY: [(ClosedBy, &str); 5] = [
    (ClosedBy::Items, "items"),
    (ClosedBy::Bytes, "bytes"),
    (ClosedBy::Age, "age"),
    (ClosedBy::Deadline, "deadline"),
    (ClosedBy::Flush, "flush"),
];

/// What the stages share with whoever looks at them.
pub struct Flow {
    counts: Mutex<Served>,
    /// Per tenant.
    pub tenants: Tenants,
    /// How long things took.
    pub times: Arc<Times>,
}

impl Flow {
    /// Nothing done yet.
    pub fn new(tenants: Tenants, times: Arc<Times>) -> Flow {
        Flow { counts: Mutex::default(), tenants, times }
    }

    /// The counts as they are, all of one moment.
    pub fn served(&self) -> Served {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes them.
    pub fn count(&self, change: impl FnOnce(&mut Served)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
