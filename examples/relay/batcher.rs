//! The batch: records from the hand-over, put together until one of three bounds says that it is enough.
//!
//! A batch has its permit of the bridge before it is filled: what comes while the store is busy joins it,
//! instead of queueing behind it as one more small batch.

use std::sync::Arc;
use std::time::{Duration, Instant as SystemInstant};

use afflux::policy::Instant;
use afflux::policy::batch::{Batch, ClosedBy, Joined};
use afflux::{Bridge, BridgePermit, BridgeTask, RemoteResponder};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::answers::{Awaited, code, fail};
use crate::served::{CLOSED_BY, Filling, Flow};
use crate::sizes::{BATCH, PATIENCE};
use crate::store::{Item, Stored};
use crate::tenants::TenantId;
use crate::times::Time;

/// A batch of items goes in, what became of each comes out, or why the commit failed.
pub type StoreBridge = Bridge<Vec<Item>, Result<Vec<Stored>, String>>;
/// The right to submit one batch.
type StorePermit = BridgePermit<Vec<Item>, Result<Vec<Stored>, String>>;
/// A batch that was submitted.
pub type Commit = BridgeTask<Vec<Item>, Result<Vec<Stored>, String>>;

/// One record on its way to the store, and the duty to answer for it.
pub struct Job {
    /// What to store.
    pub item: Item,
    /// For whom.
    pub owed: Owed,
}

/// An answer that is owed.
pub struct Owed {
    /// To whom.
    pub responder: RemoteResponder,
    /// `None`: no record.
    pub tenant: Option<TenantId>,
}

/// Fills batches and submits them.
pub struct Batcher {
    /// From the handlers.
    pub jobs: Receiver<Job>,
    /// To the store.
    pub bridge: Arc<StoreBridge>,
    /// To the answers.
    pub commits: Sender<Awaited>,
    /// What is counted.
    pub flow: Arc<Flow>,
    /// What batches count their time from.
    pub begin: SystemInstant,
}

impl Batcher {
    /// Ends when every handler is gone.
    pub fn run(self) {
        let mut next = None;
        while let Some(first) = next.take().or_else(|| self.jobs.recv().ok()) {
            let since = SystemInstant::now();
            // No item is larger than a batch may be.
            match self.bridge.permit(BATCH.bytes, PATIENCE) {
                Ok(permit) => {
                    let jobs = self.gather(first, since, &mut next);
                    self.submit(permit, jobs);
                }
                Err(e) => {
                    let late = std::iter::once(first).chain(self.jobs.try_iter()).map(|job| job.owed).collect();
                    fail(&self.flow, late, code::FULL, &format!("the store takes no more: {e}"));
                }
            }
        }
    }

    /// Jobs until one of the bounds says that it is enough. A job that does not fit is left in `next`.
    fn gather(&self, first: Job, since: SystemInstant, next: &mut Option<Job>) -> Vec<Job> {
        let mut batch = Batch::new(BATCH);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        let mut job = first;
        let by = loop {
            let size = job.item.expanded();
            match batch.offer(size, Instant::NEVER, self.now()) {
                Joined::Open => jobs.push(job),
                Joined::Closed(by) => {
                    bytes += size;
                    jobs.push(job);
                    break by;
                }
                Joined::Refused(by) => {
                    *next = Some(job);
                    break by;
                }
            }
            bytes += size;
            self.flow.count(|n| {
                let bytes_peak = n.batch.bytes_peak.max(bytes);
                n.batch = Filling { items: jobs.len() as u64, bytes, bytes_peak, since: Some(since) };
            });
            let left = batch.due().map_or(Duration::ZERO, |due| due.since(self.now()));
            job = match self.jobs.recv_timeout(left) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => break ClosedBy::Age,
                Err(RecvTimeoutError::Disconnected) => break ClosedBy::Flush,
            };
        };
        self.flow.times.record(Time::BatchAge, since.elapsed());
        self.flow.count(|n| {
            n.batches += 1;
            n.closed_by[CLOSED_BY.iter().position(|(closed, _)| *closed == by).unwrap_or(0)] += 1;
            n.batch = Filling { bytes_peak: n.batch.bytes_peak.max(bytes), ..Filling::default() };
        });
        jobs
    }

    fn submit(&self, permit: StorePermit, jobs: Vec<Job>) {
        let (items, owed): (Vec<Item>, Vec<Owed>) = jobs.into_iter().map(|job| (job.item, job.owed)).unzip();
        let awaited = Awaited { commit: permit.submit(items), owed };
        // As many places as permits: never full. Gone: the answers' thread has panicked.
        if let Err(refused) = self.commits.send(awaited) {
            fail(&self.flow, refused.into_inner().owed, code::FULL, "the answers' thread has ended");
        }
    }

    fn now(&self) -> Instant {
        Instant(self.begin.elapsed().as_nanos() as u64)
    }
}
