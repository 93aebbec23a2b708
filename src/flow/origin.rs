//! One source of records and its receive queue: where bytes are the limit.
//!
//! Owns: records that were received and not yet claimed, the charge of the one record that is still
//! being received, and whether the source is parked. The accounting of a record begins when its
//! length is known and ends with [`Origin::claim`].
//!
//! ```text
//!   outstanding = complete + in assembly <= mark
//!              or one record larger than the mark, beside no complete one
//! ```
//!
//! When full, [`Origin::admits`] says no: the record stays where it is (undecoded, in the kernel, at
//! the sender) and the source parks, until a claim brings the queue down to the low mark or empties
//! it. Complete records lie in a [`Backlog`].

use super::backlog::{Backlog, ChunkPool, Head, Popped};
use crate::base::record::Record;
use crate::base::time::Instant;

/// Whether a record of some charge may be taken in now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// Within the mark.
    Yes,
    /// Larger than the mark, and the queue may take one such record now. What exceeds the mark has
    /// to be drawn from the host's budget for it first; see [`Origin::excess`] and [`Origin::draw`].
    Oversize,
    /// Not now. [`Origin::park`] the source.
    No,
}

/// A record that left its queue.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The record, its charge, and as its stamp when it was complete in the queue; no queue accounts for it
    /// any more.
    pub popped: Popped,
    /// Bytes to be given back to the host's oversize budget.
    pub drawn: u64,
    /// The source was parked and is to be told to go on. Said once per parking.
    pub resume: bool,
}

/// What [`Origin::drain`] found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Drained {
    /// Complete records.
    pub records: u64,
    /// Their charges; the record in assembly is not among them.
    pub bytes: u64,
    /// Bytes to be given back to the host's oversize budget.
    pub drawn: u64,
}

/// The receive queue of one source.
#[derive(Debug)]
pub struct Origin {
    queue: Backlog,
    /// 0: unlimited.
    mark: u64,
    complete: u64,
    assembly: Option<Assembly>,
    /// The front record is larger than the mark it met, and this much was drawn for it.
    oversize: Option<u64>,
    parked: bool,
    peak: u64,
}

#[derive(Clone, Copy, Debug)]
struct Assembly {
    charge: u64,
    arrived: u64,
    /// The mark that it exceeds; `None` for a record within it.
    exceeds: Option<u64>,
}

impl Assembly {
    fn drawn_at(&self, arrived: u64) -> u64 {
        self.exceeds.map_or(0, |mark| arrived.min(self.charge).saturating_sub(mark))
    }
}

impl Origin {
    /// An empty queue with the given high-water mark in bytes of charge; 0 means unlimited.
    pub fn new(mark: u64) -> Self {
        Origin { queue: Backlog::new(), mark, complete: 0, assembly: None, oversize: None, parked: false, peak: 0 }
    }

    /// Whether a record of `charge` may be taken in now. Changes nothing.
    pub fn admits(&self, charge: u64) -> Admit {
        if self.mark == 0 || self.outstanding().checked_add(charge).is_some_and(|sum| sum <= self.mark) {
            return Admit::Yes;
        }
        let alone = (self.queue.is_empty() || cfg!(afflux_mutation = "origin_oversize_twice"))
            && self.assembly.is_none_or(|assembly| assembly.exceeds.is_none());
        if charge > self.mark && alone { Admit::Oversize } else { Admit::No }
    }

    /// How far a record of `charge` exceeds the mark: what has to be drawn for one that is offered
    /// in one piece.
    pub fn excess(&self, charge: u64) -> u64 {
        if self.mark == 0 { 0 } else { charge.saturating_sub(self.mark) }
    }

    /// Begins the assembly of an admitted record that will come in pieces: all of its charge is
    /// outstanding from now on. A source is one stream, so it has one record in assembly at a time,
    /// and the next record offered is that one.
    pub fn reserve(&mut self, charge: u64) {
        debug_assert!(self.assembly.is_none(), "one record in assembly at a time");
        debug_assert_ne!(self.admits(charge), Admit::No);
        let exceeds = (self.admits(charge) == Admit::Oversize).then_some(self.mark);
        self.assembly = Some(Assembly { charge, arrived: 0, exceeds });
        self.note_peak();
    }

    /// How much of the next `bytes` of the record in assembly has to be drawn from the oversize
    /// budget before they may be read.
    pub fn draw(&self, bytes: u64) -> u64 {
        self.assembly.map_or(0, |assembly| {
            assembly.drawn_at(assembly.arrived.saturating_add(bytes)) - assembly.drawn_at(assembly.arrived)
        })
    }

    /// `bytes` more of the record in assembly are here; says what was drawn for them.
    pub fn grow(&mut self, bytes: u64) -> u64 {
        let drawn = self.draw(bytes);
        if let Some(assembly) = &mut self.assembly {
            assembly.arrived = assembly.arrived.saturating_add(bytes);
        }
        drawn
    }

    /// Takes in a complete record that was admitted, with the charge it was admitted with. If one
    /// was in assembly, it is this one.
    pub fn offer(&mut self, pool: &mut ChunkPool, record: Record, charge: u64, now: Instant) {
        let charge =
            if cfg!(afflux_mutation = "origin_charge_payload_only") { record.payload.len() as u64 } else { charge };
        self.account(charge);
        self.queue.push(pool, record, charge, now.0);
    }

    /// As [`Origin::offer`], of a small record that lies in a block that was read: its bytes are the method and
    /// behind its `method_len` bytes the payload; `head` has its charge and the present.
    #[inline(always)]
    pub fn offer_bytes(&mut self, pool: &mut ChunkPool, head: &Head, method_len: u8, bytes: &[u8]) {
        let small = Head { charge: bytes.len() as u64, ..*head };
        let head = if cfg!(afflux_mutation = "origin_charge_payload_only") { &small } else { head };
        self.account(head.charge);
        self.queue.push_bytes(pool, head, method_len, bytes);
    }

    #[inline(always)]
    fn account(&mut self, charge: u64) {
        match self.assembly {
            Some(assembly) => {
                self.assembly = None;
                if assembly.exceeds.is_some() {
                    self.oversize = Some(assembly.drawn_at(assembly.arrived));
                }
            }
            None => {
                debug_assert_ne!(self.admits(charge), Admit::No);
                let excess = self.excess(charge);
                if excess > 0 {
                    self.oversize = Some(excess);
                }
            }
        }
        self.complete += charge;
        self.note_peak();
    }

    /// Takes the oldest complete record out, which ends its accounting.
    pub fn claim(&mut self, pool: &mut ChunkPool) -> Option<Claimed> {
        let mut claimed = Claimed::default();
        self.claim_into(pool, &mut claimed).then_some(claimed)
    }

    /// The same, into a place that is used again and again. False, and nothing done, if there is none.
    #[inline]
    pub fn claim_into(&mut self, pool: &mut ChunkPool, into: &mut Claimed) -> bool {
        if !self.queue.pop_into(pool, &mut into.popped) {
            return false;
        }
        self.complete -= into.popped.charge;
        into.drawn = self.oversize.take().unwrap_or(0);
        let emptied = self.queue.is_empty() && !cfg!(afflux_mutation = "parked_at_low_mark_only");
        into.resume = self.parked && (emptied || self.outstanding() <= self.low_mark());
        self.parked &= !into.resume;
        true
    }

    /// What the oldest complete record is, to see whether it may be claimed now.
    #[inline]
    pub fn head(&self) -> Option<Head> {
        self.queue.front()
    }

    /// When the oldest complete record came, to the instant that [`Origin::offer`] was told: the
    /// engine reads its clock once per turn, so records of one turn have the same age.
    pub fn oldest(&self) -> Option<Instant> {
        self.queue.front().map(|head| Instant(head.stamp))
    }

    /// The source stops because its next record is not admitted; a later claim or a raised mark
    /// tells it to go on. False: the queue is empty, so no claim would ever do so, and the source
    /// must not stop on this queue's account.
    #[must_use = "a source that parks on an empty queue is never woken"]
    pub fn park(&mut self) -> bool {
        self.parked = !self.queue.is_empty();
        self.parked
    }

    /// The source waits to be told to go on.
    pub fn is_parked(&self) -> bool {
        self.parked
    }

    /// Moves the mark. Nothing that is in the queue is evicted: above a lowered mark nothing more
    /// is admitted until it has drained. True: a parked source is to be told to go on.
    pub fn set_mark(&mut self, mark: u64) -> bool {
        let raised = mark == 0 || (self.mark != 0 && mark > self.mark);
        self.mark = mark;
        let resume = self.parked && raised;
        self.parked &= !raised;
        resume
    }

    /// The connection of the record in assembly is gone: it will never be whole. Complete records stay.
    /// Says how much is to be given back to the oversize budget.
    pub fn abandon(&mut self) -> u64 {
        self.assembly.take().map_or(0, |assembly| assembly.drawn_at(assembly.arrived))
    }

    /// Takes everything out, for a source that is gone; also forgets the record in assembly.
    pub fn drain(&mut self, pool: &mut ChunkPool, mut each: impl FnMut(Record)) -> Drained {
        self.parked = false;
        let mut drained = Drained { drawn: self.abandon(), ..Drained::default() };
        while let Some(claimed) = self.claim(pool) {
            drained.records += 1;
            drained.bytes += claimed.popped.charge;
            drained.drawn += claimed.drawn;
            each(claimed.popped.record);
        }
        drained
    }

    /// Complete records.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// No complete record.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of charge, complete and in assembly: what the mark is compared with.
    pub fn outstanding(&self) -> u64 {
        self.complete + self.in_assembly()
    }

    /// A complete record is in the queue for which something was drawn.
    pub fn holds_oversize(&self) -> bool {
        self.oversize.is_some()
    }

    /// The charge of the record in assembly.
    pub fn in_assembly(&self) -> u64 {
        self.assembly.map_or(0, |assembly| assembly.charge)
    }

    /// The high-water mark; 0 means unlimited.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Half the mark, rounded up: where a parked source is told to go on.
    pub fn low_mark(&self) -> u64 {
        self.mark.div_ceil(2)
    }

    /// The most bytes that were outstanding since the last reset.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// The peak begins anew at what is outstanding now.
    pub fn reset_peak(&mut self) {
        self.peak = self.outstanding();
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.outstanding());
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::base::record::{Kind, Method};

    fn record(payload: usize) -> Record {
        Record {
            kind: Kind::Message,
            depth: 0,
            channel: 0,
            correlation: payload as u64,
            expiry_ms: 0,
            method: Method::default(),
            payload: Bytes::from(vec![0; payload]),
            envelope: None,
        }
    }

    fn offer(origin: &mut Origin, pool: &mut ChunkPool, payload: usize) {
        let record = record(payload);
        let charge = record.charge();
        origin.offer(pool, record, charge, Instant(payload as u64));
    }

    #[test]
    fn empty_records_are_bounded_by_their_overhead() {
        let (mut origin, mut pool) = (Origin::new(640), ChunkPool::new(1));
        for _ in 0..10 {
            assert_eq!(origin.admits(64), Admit::Yes);
            offer(&mut origin, &mut pool, 0);
        }
        assert_eq!(origin.admits(64), Admit::No);
        assert_eq!((origin.outstanding(), origin.peak(), origin.len()), (640, 640, 10));
    }

    #[test]
    fn exactly_one_record_larger_than_the_mark_and_none_beside_it() {
        let (mut origin, mut pool) = (Origin::new(1000), ChunkPool::new(1));
        assert_eq!(origin.admits(5064), Admit::Oversize);
        assert_eq!(origin.excess(5064), 4064);
        offer(&mut origin, &mut pool, 5000);
        assert_eq!(origin.admits(5064), Admit::No);
        assert_eq!(origin.admits(64), Admit::No);
        let claimed = origin.claim(&mut pool).unwrap();
        assert_eq!((claimed.drawn, claimed.popped.charge), (4064, 5064));
        assert_eq!(origin.admits(5064), Admit::Oversize);
        offer(&mut origin, &mut pool, 0);
        assert_eq!(origin.admits(5064), Admit::No, "a complete record is there");
        assert_eq!(origin.admits(936), Admit::Yes);
        assert_eq!(origin.admits(937), Admit::No);
        assert_eq!(origin.admits(u64::MAX), Admit::No);
        assert_eq!(origin.claim(&mut pool).unwrap().drawn, 0);
    }

    #[test]
    fn a_large_record_is_drawn_as_it_arrives() {
        let (mut origin, mut pool) = (Origin::new(1000), ChunkPool::new(1));
        assert_eq!(origin.draw(100), 0);
        origin.reserve(5064);
        assert_eq!(origin.outstanding(), 5064);
        assert_eq!(origin.admits(2000), Admit::No, "no second one while it is in assembly");
        assert_eq!(origin.grow(900), 0);
        assert_eq!(origin.draw(200), 100);
        assert_eq!(origin.grow(200), 100);
        assert_eq!(origin.grow(3900), 3900);
        offer(&mut origin, &mut pool, 5000);
        assert_eq!((origin.outstanding(), origin.in_assembly(), origin.peak()), (5064, 0, 5064));
        assert_eq!(origin.claim(&mut pool).unwrap().drawn, 4000);
        assert_eq!(origin.outstanding(), 0);
    }

    #[test]
    fn a_record_in_assembly_counts_whole() {
        let (mut origin, mut pool) = (Origin::new(1000), ChunkPool::new(1));
        origin.reserve(800);
        assert_eq!(origin.admits(201), Admit::No);
        assert_eq!(origin.admits(200), Admit::Yes);
        assert_eq!(origin.grow(100), 0);
        offer(&mut origin, &mut pool, 736);
        assert_eq!(origin.outstanding(), 800);
    }

    #[test]
    fn a_parked_source_is_told_once_at_the_low_mark() {
        let (mut origin, mut pool) = (Origin::new(641), ChunkPool::new(1));
        for _ in 0..10 {
            offer(&mut origin, &mut pool, 0);
        }
        assert_eq!(origin.low_mark(), 321);
        assert!(origin.park());
        let told: Vec<bool> = std::iter::from_fn(|| origin.claim(&mut pool)).map(|c| c.resume).collect();
        assert_eq!(told.iter().position(|r| *r), Some(4), "320 bytes are left");
        assert_eq!(told.iter().filter(|r| **r).count(), 1);
    }

    #[test]
    fn a_parked_source_is_told_when_the_queue_is_empty_whatever_is_in_assembly() {
        let (mut origin, mut pool) = (Origin::new(1000), ChunkPool::new(1));
        offer(&mut origin, &mut pool, 100);
        origin.reserve(800);
        assert!(origin.park());
        assert!(origin.claim(&mut pool).unwrap().resume);
        assert!(!origin.park(), "an empty queue wakes nobody");
        assert!(!origin.is_parked());
    }

    #[test]
    fn moving_the_mark_evicts_nothing_and_a_raise_wakes() {
        let (mut origin, mut pool) = (Origin::new(640), ChunkPool::new(1));
        for _ in 0..10 {
            offer(&mut origin, &mut pool, 0);
        }
        assert!(origin.park());
        assert!(!origin.set_mark(100));
        assert!(origin.is_parked());
        assert_eq!(origin.len(), 10);
        assert_eq!(origin.admits(64), Admit::No);
        assert!(origin.set_mark(700));
        assert!(!origin.is_parked());
        assert!(!origin.set_mark(0), "nobody waits");
        assert_eq!(origin.admits(1 << 60), Admit::Yes);
        assert_eq!(origin.excess(1 << 60), 0);
    }

    #[test]
    fn records_keep_their_order_and_their_instants() {
        let (mut origin, mut pool) = (Origin::new(0), ChunkPool::new(2));
        for payload in 0..300 {
            offer(&mut origin, &mut pool, payload);
        }
        for payload in 0..300 {
            assert_eq!(origin.oldest(), Some(Instant(payload as u64)));
            assert_eq!(origin.claim(&mut pool).unwrap().popped.record.payload.len(), payload);
        }
        assert!(origin.claim(&mut pool).is_none());
    }

    #[test]
    fn a_record_that_will_never_be_whole_is_forgotten_alone() {
        let (mut origin, mut pool) = (Origin::new(1000), ChunkPool::new(0));
        offer(&mut origin, &mut pool, 100);
        origin.reserve(500);
        assert_eq!(origin.abandon(), 0);
        assert_eq!((origin.outstanding(), origin.len()), (164, 1));
        origin.claim(&mut pool);
        origin.reserve(2000);
        assert_eq!(origin.grow(1200), 200);
        assert!(!origin.holds_oversize(), "it is not complete");
        assert_eq!(origin.abandon(), 200);
        assert_eq!(origin.abandon(), 0);
        offer(&mut origin, &mut pool, 100);
        let claimed = origin.claim(&mut pool).unwrap();
        assert_eq!((claimed.popped.charge, claimed.drawn), (164, 0), "the next record is none of its kin");
    }

    #[test]
    fn drain_gives_back_what_was_drawn_and_held() {
        let (mut origin, mut pool) = (Origin::new(1000), ChunkPool::new(0));
        offer(&mut origin, &mut pool, 3000);
        let mut seen = 0;
        assert_eq!(origin.drain(&mut pool, |_| seen += 1), Drained { records: 1, bytes: 3064, drawn: 2064 });
        assert_eq!((seen, origin.outstanding(), pool.in_use(), pool.kept()), (1, 0, 0, 0));
        origin.reserve(2000);
        assert_eq!(origin.grow(1500), 500);
        assert_eq!(origin.drain(&mut pool, |_| ()), Drained { records: 0, bytes: 0, drawn: 500 });
        assert_eq!(origin.outstanding(), 0);
    }
}
