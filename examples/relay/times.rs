//! How long things took in the relay itself: what the hosts' own histograms cannot know. Recorded by whoever
//! knows it, handed over once a second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use afflux::meter::latency::{LONGEST, empty};
use afflux::{Latency, LatencySet};
use hdrhistogram::Histogram;

/// One of the times that are kept apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// From the moment a request was meant to be made to its reply.
    Request,
    /// Of the load's operations for room; the client host's.
    SendWait,
    /// Of origins for permits; the service host's.
    PermitWait,
    /// In receive queues; the service host's.
    QueueAge,
    /// Of a batch's first record, when the batch was closed.
    BatchAge,
    /// Of a batch for a permit of the bridge.
    BridgePermitWait,
    /// Of a batch with its permit for the store's thread.
    BridgeQueueWait,
    /// Of one commit with its fsync.
    StoreCommit,
    /// Of a commit's result for the thread that answers.
    BridgeResultWait,
}

/// Every time, with its tag in the log.
pub const TIMES: [(Time, &str); 9] = [
    (Time::Request, "request"),
    (Time::SendWait, "send_wait"),
    (Time::PermitWait, "permit_wait"),
    (Time::QueueAge, "queue_age"),
    (Time::BatchAge, "batch_age"),
    (Time::BridgePermitWait, "bridge_permit_wait"),
    (Time::BridgeQueueWait, "bridge_queue_wait"),
    (Time::StoreCommit, "store_commit"),
    (Time::BridgeResultWait, "bridge_result_wait"),
];

/// One histogram of each time, in nanoseconds.
pub struct Set([Histogram<u64>; TIMES.len()]);

impl Set {
    /// Nothing yet.
    pub fn new() -> Set {
        Set(TIMES.map(|_| empty()))
    }

    /// The histogram of one time.
    pub fn get(&self, time: Time) -> &Histogram<u64> {
        &self.0[time as usize]
    }

    /// Adds what a host has recorded of one time.
    pub fn absorb(&mut self, time: Time, of: Latency, set: &LatencySet) {
        self.add(time, set.get(of));
    }

    /// Adds another set.
    pub fn merge(&mut self, other: &Set) {
        TIMES.iter().for_each(|(time, _)| self.add(*time, other.get(*time)));
    }

    fn add(&mut self, time: Time, other: &Histogram<u64>) {
        // All have the bounds of `empty`, so none can be too small for another.
        let _ = self.0[time as usize].add(other);
    }

    /// A quantile in milliseconds; 0 if nothing was recorded.
    pub fn ms(&self, time: Time, quantile: f64) -> f64 {
        self.get(time).value_at_quantile(quantile) as f64 / 1e6
    }

    /// Bytes of one set.
    pub fn bytes() -> u64 {
        (empty().distinct_values() * size_of::<u64>() * TIMES.len()) as u64
    }
}

/// What is being recorded. One lock per time: each has one writer or two, and a reader once a second.
pub struct Times([Mutex<Histogram<u64>>; TIMES.len()]);

impl Times {
    /// Nothing yet.
    pub fn new() -> Times {
        Times(TIMES.map(|_| Mutex::new(empty())))
    }

    /// It took so long; what is longer than an hour is an hour.
    pub fn record(&self, time: Time, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).min(LONGEST);
        self.0[time as usize].lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos);
    }

    /// What was recorded since the last time.
    pub fn take(&self) -> Set {
        let mut set = Set::new();
        for (mine, theirs) in set.0.iter_mut().zip(&self.0) {
            std::mem::swap(mine, &mut *theirs.lock().unwrap_or_else(PoisonError::into_inner));
        }
        set
    }
}
