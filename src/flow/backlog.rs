//! A queue of records as bytes: what waits before a lane and what waits for its job.
//!
//! Owns: the bytes of small records, laid one behind the other into chunks, and large records as they
//! are. A small record is an entry of exactly [`RECORD_OVERHEAD`] bytes and its own bytes behind it, so
//! what a queue is charged with and what it holds in memory are the same number.
//!
//! ```text
//!   chunk    | entry · method envelope payload | entry · method envelo|      | entry · …
//!   chunk    |pe payload | entry · …                                  an entry lies in one chunk,
//!                                                                     its bytes may go on in the next
//! ```
//!
//! Invariants: chunks in front of the tail are full but for less than an entry; `kept` has one record
//! for each entry that says so, in order; the front entry begins at `read` of `front`, or of `tail` if that
//! is the only chunk. It has no limit of
//! its own: what may be added is decided by a mark before. Empty, it owns no memory: its chunks lie in
//! the [`ChunkPool`] of its shard.

use std::collections::VecDeque;

use bytes::Bytes;

use super::payload::counted;
use crate::base::record::{Kind, Record};
use crate::base::unit::{METHOD_LEN_MAX, RECORD_OVERHEAD};
use crate::plan::{INLINE_RECORD_MIN, QUEUE_CHUNK_BYTES};

/// Bytes of one chunk: 32 records of 64 bytes, so that a queue that holds one record costs little, and
/// a long one few allocations.
pub const CHUNK: usize = QUEUE_CHUNK_BYTES as usize;

/// What precedes the bytes of a record.
const ENTRY: usize = RECORD_OVERHEAD as usize;

/// Payloads up to this size are kept as bytes in a chunk.
pub const INLINE_PAYLOAD_MAX: usize = 2 << 10;

/// Envelopes up to this size, likewise.
const INLINE_ENVELOPE_MAX: usize = INLINE_RECORD_MIN as usize;

/// The bytes of one record lie in two chunks at most.
const _: () = assert!(INLINE_PAYLOAD_MAX + INLINE_ENVELOPE_MAX + METHOD_LEN_MAX + ENTRY < CHUNK);

const NO_ENVELOPE: u32 = u32::MAX;

/// Never grows: it has the capacity of a chunk from the pool until it returns.
type Chunk = Vec<u8>;

/// The chunks of one shard's queues.
#[derive(Debug)]
pub struct ChunkPool {
    free: Vec<Chunk>,
    retain: usize,
    in_use: usize,
}

impl ChunkPool {
    /// Keeps at most `retain` chunks that nobody uses; more are given back to the allocator. How many
    /// are in use is bounded by the marks: a chunk in use holds at least a part of a record.
    pub fn new(retain: usize) -> Self {
        ChunkPool { free: Vec::new(), retain, in_use: 0 }
    }

    fn take(&mut self) -> Chunk {
        self.in_use += 1;
        self.free.pop().unwrap_or_else(|| Chunk::with_capacity(CHUNK))
    }

    fn give(&mut self, mut chunk: Chunk) {
        if chunk.capacity() > 0 {
            self.in_use -= 1;
            if self.free.len() < self.retain || cfg!(afflux_mutation = "chunks_never_freed") {
                chunk.clear();
                self.free.push(chunk);
            }
        }
    }

    /// Chunks that hold records.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Chunks kept for reuse.
    pub fn kept(&self) -> usize {
        self.free.len()
    }
}

/// What an entry says of its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// How many handlers stand above the call.
    pub depth: u8,
    /// See [`Record::channel`].
    pub channel: u16,
    /// See [`Record::correlation`].
    pub correlation: u64,
    /// See [`Record::expiry_ms`].
    pub expiry_ms: u32,
    /// With what it is accounted.
    pub charge: u64,
    /// What the pusher wanted to remember: an instant, mostly.
    pub stamp: u64,
}

impl Head {
    /// Of `record`.
    #[inline]
    pub fn of(record: &Record, charge: u64, stamp: u64) -> Head {
        Head {
            kind: record.kind,
            depth: record.depth,
            channel: record.channel,
            correlation: record.correlation,
            expiry_ms: record.expiry_ms,
            charge,
            stamp,
        }
    }
}

impl Head {
    /// The record of this head, from what was taken.
    pub fn record(&self, first: &[u8], rest: &[u8], method_len: usize) -> Record {
        let shape = Shape { kept: false, method: method_len as u8, envelope: NO_ENVELOPE, payload: 0 };
        let mut record = Record::empty();
        fill(&mut record, self, shape, method_len, first, rest);
        record
    }
}

/// How a record lies in its entry.
#[derive(Clone, Copy)]
struct Shape {
    kept: bool,
    method: u8,
    envelope: u32,
    payload: u32,
}

impl Shape {
    #[inline(always)]
    fn len(self) -> usize {
        let envelope = if self.envelope == NO_ENVELOPE { 0 } else { self.envelope as usize };
        self.method as usize + envelope + self.payload as usize
    }
}

#[inline(always)]
fn write_entry(head: &Head, shape: Shape) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[0..8].copy_from_slice(&head.stamp.to_ne_bytes());
    out[8..16].copy_from_slice(&head.correlation.to_ne_bytes());
    out[16..24].copy_from_slice(&head.charge.to_ne_bytes());
    out[24..28].copy_from_slice(&head.expiry_ms.to_ne_bytes());
    out[28..32].copy_from_slice(&shape.payload.to_ne_bytes());
    out[32..36].copy_from_slice(&shape.envelope.to_ne_bytes());
    out[36..38].copy_from_slice(&head.channel.to_ne_bytes());
    out[38] = head.kind as u8;
    out[39] = head.depth;
    out[40] = shape.method;
    out[41] = shape.kept as u8;
    out
}

#[inline(always)]
fn read_entry(entry: &[u8; ENTRY]) -> (Head, Shape) {
    let u64_at = |at: usize| u64::from_ne_bytes(*entry[at..].first_chunk().expect("within the entry"));
    let u32_at = |at: usize| u32::from_ne_bytes(*entry[at..].first_chunk().expect("within the entry"));
    let head = Head {
        kind: Kind::from_wire(entry[38]).unwrap_or(Kind::Message),
        depth: entry[39],
        channel: u16::from_ne_bytes([entry[36], entry[37]]),
        correlation: u64_at(8),
        expiry_ms: u32_at(24),
        charge: u64_at(16),
        stamp: u64_at(0),
    };
    (head, Shape { kept: entry[41] != 0, method: entry[40], envelope: u32_at(32), payload: u32_at(28) })
}

/// A record taken out of the queue without making one of it.
#[derive(Debug)]
pub enum Taken<'a> {
    /// Method and payload, one behind the other in two pieces, and how long the method is.
    Bytes {
        /// The first piece, or all.
        first: &'a [u8],
        /// The rest.
        rest: &'a [u8],
        /// The length of the method.
        method_len: usize,
    },
    /// A large record, or one with an envelope.
    Record(Record),
}

/// A record that left its queue.
#[derive(Debug)]
pub struct Popped {
    /// The record.
    pub record: Record,
    /// With what it was accounted.
    pub charge: u64,
    /// What was remembered with it.
    pub stamp: u64,
}

impl Default for Popped {
    fn default() -> Self {
        Popped { record: Record::empty(), charge: 0, stamp: 0 }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Backlog {
    /// The oldest chunk, if there is one besides `tail`.
    front: Chunk,
    /// Between `front` and `tail`.
    full: VecDeque<Chunk>,
    tail: Chunk,
    /// Where the front entry begins, in the oldest chunk.
    read: usize,
    kept: VecDeque<Record>,
    len: usize,
}

impl Backlog {
    /// An empty queue; allocates nothing.
    pub fn new() -> Self {
        Backlog::default()
    }

    /// Records.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No record.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a record. A small payload is copied and its storage let go.
    pub fn push(&mut self, pool: &mut ChunkPool, record: Record, charge: u64, stamp: u64) {
        if !self.push_small(pool, &record, charge, stamp) {
            self.room(pool);
            let shape = Shape { kept: true, method: 0, envelope: NO_ENVELOPE, payload: 0 };
            self.tail.extend_from_slice(&write_entry(&Head::of(&record, charge, stamp), shape));
            self.kept.push_back(record);
            self.len += 1;
        }
    }

    /// Adds a copy of a record that is small. False, and nothing done, if it is not.
    #[inline]
    pub fn push_small(&mut self, pool: &mut ChunkPool, record: &Record, charge: u64, stamp: u64) -> bool {
        let (method, envelope) = (record.method.as_bytes(), record.envelope.as_deref());
        if record.payload.len() > INLINE_PAYLOAD_MAX || envelope.is_some_and(|e| e.len() > INLINE_ENVELOPE_MAX) {
            return false;
        }
        let shape = Shape {
            kept: false,
            method: method.len() as u8,
            envelope: envelope.map_or(NO_ENVELOPE, |e| e.len() as u32),
            payload: record.payload.len() as u32,
        };
        self.begin(pool, &Head::of(record, charge, stamp), shape);
        if !method.is_empty() {
            self.append(pool, method);
        }
        if let Some(envelope) = envelope {
            self.append(pool, envelope);
        }
        self.append(pool, &record.payload);
        true
    }

    /// Adds a small record from its parts: `bytes` are the method and, behind its `method_len` bytes, a payload
    /// of at most [`INLINE_PAYLOAD_MAX`].
    #[inline]
    pub fn push_bytes(&mut self, pool: &mut ChunkPool, head: &Head, method_len: u8, bytes: &[u8]) {
        debug_assert!(bytes.len() <= INLINE_PAYLOAD_MAX + method_len as usize);
        let payload = (bytes.len() - method_len as usize) as u32;
        self.begin(pool, head, Shape { kept: false, method: method_len, envelope: NO_ENVELOPE, payload });
        self.append(pool, bytes);
    }

    /// What the oldest record is.
    #[inline]
    pub fn front(&self) -> Option<Head> {
        if self.len == 0 {
            return None;
        }
        self.oldest()[self.read..].first_chunk().map(|entry| read_entry(entry).0)
    }

    /// Takes the oldest record out.
    pub fn pop(&mut self, pool: &mut ChunkPool) -> Option<Popped> {
        let mut popped = Popped::default();
        self.pop_into(pool, &mut popped).then_some(popped)
    }

    /// Takes the oldest record out, into a place that is used again and again: a record is too large to
    /// be moved about. False, and nothing done, if there is none.
    #[inline(never)]
    pub fn pop_into(&mut self, pool: &mut ChunkPool, into: &mut Popped) -> bool {
        let popped = self.pop_with(pool, |head, shape, taken| {
            (into.charge, into.stamp) = (head.charge, head.stamp);
            match taken {
                Taken::Record(record) => into.record = record,
                Taken::Bytes { first, rest, method_len } => {
                    fill(&mut into.record, head, shape, method_len, first, rest);
                }
            }
        });
        popped.is_some()
    }

    /// Takes the oldest record out, to be written somewhere else at once.
    #[inline]
    pub fn take<R>(&mut self, pool: &mut ChunkPool, then: impl FnOnce(&Head, Taken<'_>) -> R) -> Option<R> {
        self.pop_with(pool, |head, shape, taken| match taken {
            Taken::Bytes { first, rest, method_len } if shape.envelope != NO_ENVELOPE => {
                let mut record = Record::empty();
                fill(&mut record, head, shape, method_len, first, rest);
                then(head, Taken::Record(record))
            }
            taken => then(head, taken),
        })
    }

    #[inline(always)]
    fn pop_with<R>(&mut self, pool: &mut ChunkPool, then: impl FnOnce(&Head, Shape, Taken<'_>) -> R) -> Option<R> {
        if self.len == 0 {
            return None;
        }
        let chunk = if self.front.is_empty() { &self.tail } else { &self.front };
        let (head, shape) = read_entry(chunk[self.read..].first_chunk()?);
        self.len -= 1;
        let begin = self.read + ENTRY;
        let end = if shape.kept { begin } else { begin + shape.len() };
        let over = end.saturating_sub(chunk.len());
        let taken = if shape.kept {
            Taken::Record(self.kept.pop_front()?)
        } else {
            let next = if over == 0 { &[][..] } else { self.full.front().unwrap_or(&self.tail) };
            let (first, rest) = (&chunk[begin..end - over], &next[..over]);
            Taken::Bytes { first, rest, method_len: shape.method as usize }
        };
        let result = then(&head, shape, taken);
        self.read = end;
        if over > 0 {
            self.drop_front(pool);
            self.read = over;
        }
        if self.len == 0 {
            self.rest(pool);
        } else if !self.front.is_empty() && self.front.len() - self.read < ENTRY {
            // It has no room for another entry.
            self.drop_front(pool);
        }
        Some(result)
    }

    /// Everything is out: gives the memory back.
    #[inline(always)]
    fn rest(&mut self, pool: &mut ChunkPool) {
        pool.give(std::mem::take(&mut self.tail));
        self.read = 0;
        if self.front.capacity() + self.full.capacity() + self.kept.capacity() > 0 {
            self.rest_of_many(pool);
        }
    }

    #[cold]
    fn rest_of_many(&mut self, pool: &mut ChunkPool) {
        pool.give(std::mem::take(&mut self.front));
        for chunk in std::mem::take(&mut self.full) {
            pool.give(chunk);
        }
        self.kept = VecDeque::new();
    }

    #[inline(never)]
    fn drop_front(&mut self, pool: &mut ChunkPool) {
        let next = self.full.pop_front().unwrap_or_default();
        pool.give(std::mem::replace(&mut self.front, next));
        self.read = 0;
    }

    #[inline(always)]
    fn oldest(&self) -> &Chunk {
        if self.front.is_empty() { &self.tail } else { &self.front }
    }

    #[inline(always)]
    fn begin(&mut self, pool: &mut ChunkPool, head: &Head, shape: Shape) {
        self.room(pool);
        self.tail.extend_from_slice(&write_entry(head, shape));
        self.len += 1;
    }

    /// Room for an entry in the tail.
    #[inline(always)]
    fn room(&mut self, pool: &mut ChunkPool) {
        if self.tail.capacity() - self.tail.len() < ENTRY {
            self.next_chunk(pool);
        }
    }

    #[inline(always)]
    fn append(&mut self, pool: &mut ChunkPool, bytes: &[u8]) {
        let space = self.tail.capacity() - self.tail.len();
        if bytes.len() <= space {
            self.tail.extend_from_slice(bytes);
        } else {
            self.append_split(pool, bytes, space);
        }
    }

    #[inline(never)]
    fn append_split(&mut self, pool: &mut ChunkPool, bytes: &[u8], space: usize) {
        let (here, there) = bytes.split_at(space);
        self.tail.extend_from_slice(here);
        self.next_chunk(pool);
        self.tail.extend_from_slice(there);
    }

    #[inline(never)]
    fn next_chunk(&mut self, pool: &mut ChunkPool) {
        let filled = std::mem::replace(&mut self.tail, pool.take());
        if filled.capacity() > 0 && self.front.is_empty() {
            self.front = filled;
        } else if filled.capacity() > 0 {
            self.full.push_back(filled);
        }
    }
}

/// Makes a record of an entry and its bytes, in its place.
#[inline(always)]
fn fill(record: &mut Record, head: &Head, shape: Shape, method_len: usize, first: &[u8], rest: &[u8]) {
    if !rest.is_empty() {
        return fill_joined(record, head, shape, method_len, first, rest);
    }
    let bytes = &first[method_len..];
    let (envelope, payload) = match shape.envelope {
        NO_ENVELOPE => (None, bytes),
        len => {
            let (envelope, payload) = bytes.split_at(len as usize);
            (Some(envelope.into()), payload)
        }
    };
    (record.kind, record.depth, record.channel) = (head.kind, head.depth, head.channel);
    (record.correlation, record.expiry_ms) = (head.correlation, head.expiry_ms);
    record.method.set_bytes(first, method_len);
    record.payload = match head.kind {
        // Of a request it is shared more often than not: with its answer, with what it leads to.
        Kind::Request => counted(payload),
        _ => Bytes::copy_from_slice(payload),
    };
    record.envelope = envelope;
}

/// Of one whose bytes lie in two chunks.
#[cold]
fn fill_joined(record: &mut Record, head: &Head, shape: Shape, method_len: usize, first: &[u8], rest: &[u8]) {
    fill(record, head, shape, method_len, &[first, rest].concat(), &[]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::record::Method;

    fn record(n: usize, payload: usize, envelope: Option<usize>) -> Record {
        Record {
            kind: Kind::Request,
            depth: 3,
            channel: n as u16,
            correlation: n as u64,
            expiry_ms: 77,
            method: Method::new(&"m".repeat(n % 40)).unwrap(),
            payload: Bytes::from(vec![n as u8; payload]),
            envelope: envelope.map(|len| vec![n as u8 ^ 0xFF; len].into()),
        }
    }

    fn same(a: &Record, b: &Record) -> bool {
        (a.kind, a.depth, a.channel, a.correlation, a.expiry_ms)
            == (b.kind, b.depth, b.channel, b.correlation, b.expiry_ms)
            && a.method.as_str() == b.method.as_str()
            && a.payload == b.payload
            && a.envelope == b.envelope
    }

    /// Sizes around every edge: an entry, a chunk, what is kept inline.
    #[test]
    fn records_come_out_as_they_went_in_at_every_edge() {
        let mut pool = ChunkPool::new(2);
        for filled in [0, 1, CHUNK - 2 * ENTRY - 1, CHUNK - 2 * ENTRY, CHUNK - 2 * ENTRY + 1, CHUNK - ENTRY] {
            for payload in [0, 1, 63, 64, 65, INLINE_PAYLOAD_MAX, INLINE_PAYLOAD_MAX + 1] {
                for envelope in [None, Some(0), Some(INLINE_ENVELOPE_MAX), Some(INLINE_ENVELOPE_MAX + 1)] {
                    let mut queue = Backlog::new();
                    let mut sizes: Vec<usize> = vec![0; filled / INLINE_PAYLOAD_MAX];
                    sizes.iter_mut().for_each(|s| *s = INLINE_PAYLOAD_MAX - ENTRY);
                    sizes.push(filled % INLINE_PAYLOAD_MAX);
                    for (n, size) in sizes.iter().enumerate() {
                        queue.push(&mut pool, record(n * 40, *size, None), 1, 2);
                    }
                    let last = record(39, payload, envelope);
                    queue.push(&mut pool, last.clone(), 5, 6);
                    queue.push(&mut pool, record(7, 9, Some(3)), 8, 9);
                    for (n, size) in sizes.iter().enumerate() {
                        assert!(same(&queue.pop(&mut pool).unwrap().record, &record(n * 40, *size, None)));
                    }
                    let head = queue.front().unwrap();
                    assert_eq!((head.charge, head.stamp, head.correlation, queue.len()), (5, 6, 39, 2));
                    assert!(same(&queue.pop(&mut pool).unwrap().record, &last));
                    assert!(same(&queue.pop(&mut pool).unwrap().record, &record(7, 9, Some(3))));
                    assert!(queue.pop(&mut pool).is_none() && queue.front().is_none());
                    assert_eq!(pool.in_use(), 0);
                }
            }
        }
    }

    #[test]
    fn bytes_are_taken_in_pieces_without_making_a_record() {
        let (mut queue, mut pool) = (Backlog::new(), ChunkPool::new(0));
        for n in 0..100 {
            let all = record(n, 100, None);
            let bytes = [all.method.as_bytes(), &all.payload].concat();
            queue.push_bytes(&mut pool, &Head::of(&all, 1, 0), all.method.as_bytes().len() as u8, &bytes);
        }
        let mut split = 0;
        for n in 0..100 {
            let expected = record(n, 100, None);
            let same = queue.take(&mut pool, |head, taken| match taken {
                Taken::Bytes { first, rest, method_len } => {
                    split += usize::from(!rest.is_empty());
                    let bytes = [first, rest].concat();
                    head.correlation == n as u64
                        && bytes[..method_len] == *expected.method.as_bytes()
                        && bytes[method_len..] == expected.payload
                }
                Taken::Record(_) => false,
            });
            assert_eq!(same, Some(true), "record {n}");
        }
        assert!(split > 0, "some lie in two chunks");
    }

    /// What is charged is what is held.
    #[test]
    fn memory_is_the_sum_of_the_charges() {
        for payload in [0, 1, 100, 1000, INLINE_PAYLOAD_MAX] {
            let (mut queue, mut pool) = (Backlog::new(), ChunkPool::new(0));
            let mut charged = 0;
            while charged < 1 << 20 {
                let mut record = record(0, payload, None);
                record.method = Method::default();
                charged += record.charge();
                queue.push(&mut pool, record, 1, 0);
            }
            let held = pool.in_use() as u64 * CHUNK as u64;
            assert!(
                held >= charged && held <= charged + charged / 50 + CHUNK as u64,
                "{payload}: {held} for {charged}"
            );
        }
    }

    #[test]
    fn only_some_chunks_are_kept_and_an_empty_queue_holds_none() {
        let (mut queue, mut pool) = (Backlog::new(), ChunkPool::new(2));
        for n in 0..200 {
            queue.push(&mut pool, record(n, 64, None), 1, 0);
        }
        assert!(pool.in_use() > 5);
        while queue.pop(&mut pool).is_some() {}
        assert_eq!((pool.in_use(), pool.kept()), (0, 2));
        assert_eq!((queue.full.capacity(), queue.kept.capacity()), (0, 0));
        assert_eq!((queue.front.capacity(), queue.tail.capacity()), (0, 0));
    }
}
