//! What one subscriber has not taken yet, and what is dropped when that is too much.
//!
//! ```text
//!   publish ──▶ waiting ─────stage──▶ the writer's egress ──▶ socket
//!               DropOldest takes      ≤ a quarter of the mark,
//!               from its front        never taken back
//!               └────────── outstanding ≤ mark ─────────┘
//! ```
//!
//! Shared by the publishing threads and by whoever holds the write half of the lane; the lock is held for
//! the copying of what is queued or staged, never for a system call. Bytes are charged as everywhere:
//! topic, payload, one overhead for the record and one for its second frame.
//!
//! Invariants: `outstanding = waiting + staged + reserved`; above the mark lies at most one record that
//! found nothing outstanding (with `DropOldest`: nothing waiting), so a record of any size reaches a
//! subscriber that keeps up; everything pushed is written, dropped and counted, or still here. Full: see
//! [`SlowSubscriber`].

use bytes::Bytes;

use super::backlog::{Backlog, ChunkPool, Head, INLINE_PAYLOAD_MAX, Taken};
use super::egress::{BatchLimit, Egress};
use crate::base::record::{Kind, Record};
use crate::base::time::Instant;
use crate::plan::SlowSubscriber;
use crate::sync::lock::Lock;
use crate::sync::word::{Gauge, Latch};

/// What is staged at a time at most. Staged records are out of reach for `DropOldest`.
const STAGE: BatchLimit = BatchLimit { items: 256, bytes: 64 << 10 };

/// One publication, encoded once for all its subscribers.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Of a small one all of its frames, else everything in front of the payload.
    pub head: Box<[u8]>,
    /// Of a large one the payload, as the publisher gave it; else empty.
    pub payload: Bytes,
    /// With what each queue is charged.
    pub charge: u64,
}

/// Records and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// How many.
    pub records: u64,
    /// Charged bytes.
    pub bytes: u64,
}

impl Amount {
    /// One more of so many bytes.
    pub fn add(&mut self, bytes: u64) {
        self.records += 1;
        self.bytes += bytes;
    }
}

/// Why a publication did not reach a subscriber.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// The subscriber's queue was at its mark: the publication itself was dropped.
    Newest,
    /// It was dropped from the front of the queue, for a newer one.
    Oldest,
    /// It was queued, or about to be, when the subscriber's connection ended.
    Disconnected,
    /// It was queued when the publisher's host ended, after the linger.
    Shutdown,
}

impl DropReason {
    /// All of them.
    pub const ALL: [DropReason; 4] =
        [DropReason::Newest, DropReason::Oldest, DropReason::Disconnected, DropReason::Shutdown];
}

/// What was dropped, by reason.
#[derive(Debug, Default)]
pub struct Drops([[Gauge; 2]; 4]);

impl Drops {
    /// Counts a drop.
    pub fn add(&self, reason: DropReason, amount: Amount) {
        let [records, bytes] = &self.0[reason as usize];
        records.add(amount.records);
        bytes.add(amount.bytes);
    }

    /// What was dropped for that reason.
    pub fn get(&self, reason: DropReason) -> Amount {
        let [records, bytes] = &self.0[reason as usize];
        Amount { records: records.get(), bytes: bytes.get() }
    }
}

/// What became of a publication at one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// It is queued. `first`: nothing was outstanding. `oldest`: what was dropped for it.
    Queued {
        /// Nothing was outstanding before.
        first: bool,
        /// Dropped from the front.
        oldest: Amount,
    },
    /// It is dropped. `stalled`: and the subscriber has not moved for as long as it may.
    Dropped {
        /// The subscriber is to be disconnected.
        stalled: bool,
    },
    /// The connection has ended.
    Closed,
}

#[derive(Debug)]
struct Queue {
    waiting: Backlog,
    chunks: ChunkPool,
    waiting_bytes: u64,
    staged: Amount,
    reserved: u64,
    /// Since when nothing was written although something was dropped.
    stuck_since: Option<Instant>,
    closed: bool,
}

impl Queue {
    fn outstanding(&self) -> u64 {
        self.waiting_bytes + self.staged.bytes + self.reserved
    }
}

/// See the module.
#[derive(Debug)]
pub struct Publications {
    mark: u64,
    slow: SlowSubscriber,
    queue: Lock<Queue>,
    /// Written whole: records.
    pub written: Gauge,
    /// Written whole: charged bytes.
    pub written_bytes: Gauge,
    /// What this subscriber did not get.
    pub drops: Drops,
    /// It is being disconnected.
    pub ousted: Latch,
}

impl Publications {
    /// An empty queue with that mark, which is not 0.
    pub fn new(mark: u64, slow: SlowSubscriber) -> Self {
        debug_assert!(mark > 0);
        Publications {
            mark,
            slow,
            queue: Lock::new(Queue {
                waiting: Backlog::new(),
                chunks: ChunkPool::new(0),
                waiting_bytes: 0,
                staged: Amount::default(),
                reserved: 0,
                stuck_since: None,
                closed: false,
            }),
            written: Gauge::default(),
            written_bytes: Gauge::default(),
            drops: Drops::default(),
            ousted: Latch::new(),
        }
    }

    /// The mark.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Records and bytes that the subscriber has not taken.
    pub fn outstanding(&self) -> Amount {
        let queue = self.queue.lock();
        Amount { records: queue.waiting.len() as u64 + queue.staged.records, bytes: queue.outstanding() }
    }

    /// Queues a publication, or drops it or others, as the policy says. With [`SlowSubscriber::Wait`] the
    /// room has to be reserved before.
    pub fn push(&self, publication: &Publication, now: Instant) -> Pushed {
        let mut guard = self.queue.lock();
        let queue = &mut *guard;
        if queue.closed {
            return Pushed::Closed;
        }
        let charge = publication.charge;
        let first = queue.waiting.is_empty() && queue.staged.records == 0;
        let mut oldest = Amount::default();
        match self.slow {
            SlowSubscriber::Wait => {
                debug_assert!(queue.reserved >= charge, "reserved before");
                queue.reserved -= charge.min(queue.reserved);
            }
            SlowSubscriber::DropOldest => {
                while queue.outstanding() + charge > self.mark
                    && let Some(bytes) = queue.waiting.take(&mut queue.chunks, |head, _| head.charge)
                {
                    queue.waiting_bytes -= bytes;
                    if !cfg!(afflux_mutation = "publications_drop_uncounted") {
                        oldest.add(bytes);
                    }
                }
            }
            SlowSubscriber::DropNewest | SlowSubscriber::Disconnect(_) => {
                if (!first || cfg!(afflux_mutation = "first_publication_dropped"))
                    && queue.outstanding() + charge > self.mark
                {
                    let since = *queue.stuck_since.get_or_insert(now);
                    let stalled = matches!(self.slow, SlowSubscriber::Disconnect(t) if now.since(since) >= t);
                    return Pushed::Dropped { stalled };
                }
            }
        }
        enqueue(queue, publication);
        Pushed::Queued { first, oldest }
    }

    /// Takes room for a publication that is to be queued a moment later. True for a closed queue too:
    /// nobody waits for that.
    pub fn reserve(&self, charge: u64) -> bool {
        let mut queue = self.queue.lock();
        let fits = queue.closed || queue.outstanding() == 0 || queue.outstanding() + charge <= self.mark;
        if fits && !queue.closed {
            queue.reserved += charge;
        }
        fits
    }

    /// Gives room back that was reserved and is not used.
    pub fn unreserve(&self, charge: u64) {
        let mut queue = self.queue.lock();
        queue.reserved -= charge.min(queue.reserved);
    }

    /// Hands records to the writer, oldest first. False: none waited, or the writer has enough.
    pub fn stage(&self, egress: &mut Egress<()>) -> bool {
        let limit = BatchLimit { bytes: STAGE.bytes.min((self.mark / 4) as usize), ..STAGE };
        let mut guard = self.queue.lock();
        let queue = &mut *guard;
        let mut any = false;
        // One at least, whatever its size.
        while (egress.is_empty() || egress.room(limit)) && !queue.waiting.is_empty() {
            let staged = queue.waiting.take(&mut queue.chunks, |head, taken| {
                stage(egress, head.charge, taken);
                head.charge
            });
            let Some(bytes) = staged else { break };
            queue.waiting_bytes -= bytes;
            queue.staged.add(bytes);
            any = true;
        }
        any
    }

    /// The writer has written so much whole.
    pub fn note_written(&self, amount: Amount) {
        if amount.records > 0 {
            let mut queue = self.queue.lock();
            queue.staged.records -= amount.records;
            queue.staged.bytes -= amount.bytes;
            queue.stuck_since = None;
            drop(queue);
            self.written.add(amount.records);
            self.written_bytes.add(amount.bytes);
        }
    }

    /// The connection has ended: says what it did not take. Nothing is queued afterwards.
    pub fn close(&self) -> Amount {
        let mut guard = self.queue.lock();
        let queue = &mut *guard;
        queue.closed = true;
        let mut left = std::mem::take(&mut queue.staged);
        while let Some(bytes) = queue.waiting.take(&mut queue.chunks, |head, _| head.charge) {
            left.add(bytes);
        }
        (queue.waiting_bytes, queue.reserved) = (0, 0);
        left
    }
}

/// A small one as the bytes of its frames, in a chunk of the queue; a large one as a value that shares
/// its payload with all other queues.
fn enqueue(queue: &mut Queue, publication: &Publication) {
    let Publication { head, payload, charge } = publication;
    queue.waiting_bytes += charge;
    if payload.is_empty() && head.len() <= INLINE_PAYLOAD_MAX {
        let entry =
            Head { kind: Kind::Message, depth: 0, channel: 0, correlation: 0, expiry_ms: 0, charge: *charge, stamp: 0 };
        queue.waiting.push_bytes(&mut queue.chunks, &entry, 0, head);
    } else {
        let record = Record { envelope: Some(head.clone()), payload: payload.clone(), ..Record::empty() };
        queue.waiting.push(&mut queue.chunks, record, *charge, 0);
    }
}

fn stage(egress: &mut Egress<()>, charge: u64, taken: Taken<'_>) {
    match taken {
        Taken::Bytes { first, rest, .. } => egress.push_copied((), charge, |_: &mut Vec<u8>| {}, first, rest),
        Taken::Record(record) => {
            let head = record.envelope.as_deref().unwrap_or_default();
            egress.push((), charge, |out: &mut Vec<u8>| out.extend_from_slice(head), &record.payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn publication(byte: u8, len: usize) -> Publication {
        Publication { head: vec![byte; len].into(), payload: Bytes::new(), charge: len as u64 + 96 }
    }

    fn bytes(egress: &Egress<()>) -> Vec<u8> {
        let mut out = vec![std::io::IoSlice::new(&[]); 64];
        let n = egress.slices(&mut out);
        out[..n].iter().flat_map(|s| s.to_vec()).collect()
    }

    /// What the subscriber gets, in the end.
    fn drain(queue: &Publications) -> Vec<u8> {
        let (mut egress, mut all) = (Egress::new(), Vec::new());
        while queue.stage(&mut egress) {
            let part = bytes(&egress);
            let mut written = Amount::default();
            egress.written(part.len(), |(), charge, records| (0..records).for_each(|_| written.add(charge)));
            queue.note_written(written);
            all.extend(part);
        }
        all
    }

    const QUEUED: Pushed = Pushed::Queued { first: false, oldest: Amount { records: 0, bytes: 0 } };

    #[test]
    fn at_the_mark_the_newest_is_dropped() {
        let queue = Publications::new(400, SlowSubscriber::DropNewest);
        assert_eq!(
            queue.push(&publication(0, 104), Instant(0)),
            Pushed::Queued { first: true, oldest: Amount::default() }
        );
        assert_eq!(queue.push(&publication(1, 104), Instant(0)), QUEUED);
        assert_eq!(queue.push(&publication(2, 104), Instant(0)), Pushed::Dropped { stalled: false });
        assert_eq!(queue.outstanding(), Amount { records: 2, bytes: 400 });
        let got = drain(&queue);
        assert_eq!((got.len(), got[0], got[207]), (208, 0, 1));
        assert_eq!((queue.outstanding(), queue.written.get()), (Amount::default(), 2));
    }

    #[test]
    fn at_the_mark_the_oldest_are_dropped_but_not_what_is_staged() {
        let queue = Publications::new(400, SlowSubscriber::DropOldest);
        let mut egress = Egress::new();
        queue.push(&publication(0, 4), Instant(0));
        assert!(queue.stage(&mut egress));
        queue.push(&publication(1, 4), Instant(0));
        queue.push(&publication(2, 4), Instant(0));
        let pushed = queue.push(&publication(3, 54), Instant(0));
        assert_eq!(pushed, Pushed::Queued { first: false, oldest: Amount { records: 1, bytes: 100 } });
        assert_eq!(queue.outstanding(), Amount { records: 3, bytes: 350 });
        // Larger than everything: the newest stays all the same.
        let pushed = queue.push(&publication(4, 1000), Instant(0));
        assert_eq!(pushed, Pushed::Queued { first: false, oldest: Amount { records: 2, bytes: 250 } });
        assert_eq!(bytes(&egress), [0; 4]);
    }

    #[test]
    fn an_empty_queue_takes_one_of_any_size() {
        for slow in [SlowSubscriber::DropNewest, SlowSubscriber::DropOldest] {
            let queue = Publications::new(100, slow);
            let pushed = queue.push(&publication(0, 5000), Instant(0));
            assert_eq!(pushed, Pushed::Queued { first: true, oldest: Amount::default() });
            assert_eq!(drain(&queue).len(), 5000);
        }
    }

    #[test]
    fn a_large_payload_is_shared_and_written_behind_its_head() {
        let queue = Publications::new(1 << 20, SlowSubscriber::DropNewest);
        let payload = Bytes::from(vec![7; 50_000]);
        let large = Publication { head: Box::from(*b"head"), payload: payload.clone(), charge: 50_100 };
        queue.push(&large, Instant(0));
        queue.push(&publication(1, 2), Instant(0));
        let got = drain(&queue);
        assert_eq!((got.len(), &got[..5], &got[50_003..]), (50_006, &b"head\x07"[..], &[7, 1, 1][..]));
    }

    #[test]
    fn a_subscriber_that_moves_is_not_stalled() {
        let queue = Publications::new(100, SlowSubscriber::Disconnect(Duration::from_secs(5)));
        let at = |secs: u64| Instant(secs * 1_000_000_000);
        queue.push(&publication(0, 4), at(0));
        assert_eq!(queue.push(&publication(1, 4), at(10)), Pushed::Dropped { stalled: false });
        assert_eq!(queue.push(&publication(1, 4), at(14)), Pushed::Dropped { stalled: false });
        drain(&queue);
        queue.push(&publication(2, 4), at(15));
        assert_eq!(queue.push(&publication(3, 4), at(16)), Pushed::Dropped { stalled: false });
        assert_eq!(queue.push(&publication(3, 4), at(21)), Pushed::Dropped { stalled: true });
    }

    #[test]
    fn closing_tells_what_was_left_and_ends_it() {
        let queue = Publications::new(1000, SlowSubscriber::DropNewest);
        let mut egress = Egress::new();
        queue.push(&publication(0, 4), Instant(0));
        queue.stage(&mut egress);
        queue.push(&publication(1, 4), Instant(0));
        assert_eq!(queue.close(), Amount { records: 2, bytes: 200 });
        assert_eq!(queue.push(&publication(2, 4), Instant(0)), Pushed::Closed);
        assert_eq!((queue.close(), queue.outstanding()), (Amount::default(), Amount::default()));
    }

    #[test]
    fn reserved_room_is_room_taken() {
        let queue = Publications::new(200, SlowSubscriber::Wait);
        assert!(queue.reserve(100) && queue.reserve(100) && !queue.reserve(100));
        queue.unreserve(100);
        assert!(queue.reserve(100));
        let pushed = queue.push(&publication(0, 4), Instant(0));
        assert_eq!(pushed, Pushed::Queued { first: true, oldest: Amount::default() }, "reserved is not queued");
        assert_eq!(queue.outstanding(), Amount { records: 1, bytes: 200 });
        queue.close();
        assert!(queue.reserve(100), "nobody waits for one that is gone");
    }
}
