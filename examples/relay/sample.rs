//! Samples: what happened between two looks, kept for the report and the chart.
//!
//! At most [`SAMPLES_MAX`] are kept: a longer run is kept more coarsely, two samples as one.

use afflux::policy::ledger::{Reservation, WhenFull};

/// Samples that are kept.
const SAMPLES_MAX: usize = 3600;

/// What happened between two looks.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sample {
    /// When it ended, in seconds since the watch began.
    pub at: f64,
    /// Its length in seconds.
    pub length: f64,
    /// Requests that were meant to be made.
    pub offered: u64,
    /// Requests that were made.
    pub submitted: u64,
    /// Requests answered with success.
    pub replies: u64,
    /// Records committed.
    pub commits: u64,
    /// Operations that had to wait for room or found none.
    pub blocked: u64,
    /// Origins that had to wait for a permit.
    pub permit_waits: u64,
    /// Of its length, how much peers were told to pause, in seconds.
    pub paused: f64,
    /// Request latencies, in ms.
    pub p50: f64,
    /// See `p50`.
    pub p99: f64,
    /// Resident bytes at its end.
    pub resident: u64,
    /// Allocated bytes at its end.
    pub allocated: u64,
}

impl Sample {
    /// Both as one; the quantiles are the worse ones.
    fn with(self, next: Sample) -> Sample {
        Sample {
            at: next.at,
            length: self.length + next.length,
            offered: self.offered + next.offered,
            submitted: self.submitted + next.submitted,
            replies: self.replies + next.replies,
            commits: self.commits + next.commits,
            blocked: self.blocked + next.blocked,
            permit_waits: self.permit_waits + next.permit_waits,
            paused: self.paused + next.paused,
            p50: self.p50.max(next.p50),
            p99: self.p99.max(next.p99),
            resident: self.resident.max(next.resident),
            allocated: self.allocated.max(next.allocated),
        }
    }
}

/// All samples of a run, in the order of time.
pub struct Samples {
    kept: Vec<Sample>,
    /// Looks so far, and how many make one sample.
    looks: usize,
    step: usize,
}

impl Samples {
    /// None yet.
    pub fn new() -> Samples {
        Samples { kept: Vec::new(), looks: 0, step: 1 }
    }

    /// Keeps a look: as a sample of its own, or with the one before.
    pub fn keep(&mut self, sample: Sample) {
        match self.kept.last_mut() {
            Some(last) if !self.looks.is_multiple_of(self.step) => *last = last.with(sample),
            _ => self.kept.push(sample),
        }
        self.looks += 1;
        if self.kept.len() >= SAMPLES_MAX {
            let of = |two: &[Sample]| two.iter().copied().reduce(Sample::with).unwrap_or_default();
            self.kept = self.kept.chunks(2).map(of).collect();
            self.step *= 2;
        }
    }

    /// What was kept.
    pub fn kept(&self) -> &[Sample] {
        &self.kept
    }

    /// What they take, for the ledger.
    pub fn reservation() -> Reservation {
        Reservation::overhead("samples", SAMPLES_MAX as u64, size_of::<Sample>() as u64, "the end", WhenFull::Never)
    }
}
