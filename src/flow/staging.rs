//! A byte queue in chunks: where heads and small payloads are copied one behind the other, so that
//! a hundred small records leave in one or two slices.
//!
//! Owns: `full` chunks in order, then `tail`, the one being filled; spare chunks for reuse while
//! there is anything to write. Invariant: `read <= length of the front chunk`.
//! Never full by itself: its user bounds what it stages
//! ([`super::egress::BatchLimit`]). Empty and told to [`Staging::rest`], it owns no memory: a thread that is
//! a [keeper](crate::sync::keeper) keeps one chunk of the first size for whichever lane it writes next.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::plan::WRITE_CHUNK_BYTES;
use crate::sync::keeper::is_keeper;

/// The first chunk after a rest. A lane that sends one small record now and then should not pay
/// for a large buffer each time; allocators serve this size from their fastest list.
const FIRST: usize = WRITE_CHUNK_BYTES as usize;

/// Every further chunk: some hundred small records, or several of the largest payloads that are
/// still copied.
const CHUNK: usize = 32 << 10;

/// Written chunks kept for reuse while there is more to write.
const SPARES_MAX: usize = 4;

thread_local! {
    /// A first chunk that nobody uses, of a keeper.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

fn first_chunk() -> Vec<u8> {
    // A thread that ends has none any more.
    match SPARE.try_with(Cell::take) {
        Ok(spare) if spare.capacity() == FIRST => spare,
        _ => Vec::with_capacity(FIRST),
    }
}

#[derive(Debug, Default)]
pub(super) struct Staging {
    full: VecDeque<Vec<u8>>,
    tail: Vec<u8>,
    read: usize,
    spares: Vec<Vec<u8>>,
}

/// A place in the queue, for walking over it without taking anything.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    chunk: usize,
    at: usize,
}

impl Staging {
    pub(super) fn len(&self) -> usize {
        self.full.iter().map(Vec::len).sum::<usize>() + self.tail.len() - self.read
    }

    /// Where to append; contiguous if it stays within `room` bytes.
    #[inline(always)]
    pub(super) fn end(&mut self, room: usize) -> &mut Vec<u8> {
        if self.tail.capacity() - self.tail.len() < room {
            self.next_chunk(room);
        }
        &mut self.tail
    }

    #[cold]
    fn next_chunk(&mut self, room: usize) {
        if self.tail.capacity() == 0 && room <= FIRST {
            self.tail = first_chunk();
            return;
        }
        let next = self.spares.pop().filter(|spare| spare.capacity() >= room);
        let next = next.unwrap_or_else(|| Vec::with_capacity(CHUNK.max(room)));
        let filled = std::mem::replace(&mut self.tail, next);
        if !filled.is_empty() {
            self.full.push_back(filled);
        }
    }

    /// Everything, if it lies in one piece.
    #[inline]
    pub(super) fn only(&self) -> Option<&[u8]> {
        self.full.is_empty().then(|| &self.tail[self.read..])
    }

    /// Where the queue begins.
    pub(super) fn start(&self) -> Cursor {
        Cursor { chunk: 0, at: self.read }
    }

    /// The contiguous bytes from `cursor` on, at most `max`; moves the cursor behind them. Empty at the end.
    pub(super) fn piece(&self, cursor: &mut Cursor, max: usize) -> &[u8] {
        loop {
            let chunk = self.full.get(cursor.chunk).unwrap_or(&self.tail);
            if cursor.at == chunk.len() && cursor.chunk < self.full.len() {
                *cursor = Cursor { chunk: cursor.chunk + 1, at: 0 };
                continue;
            }
            let end = chunk.len().min(cursor.at.saturating_add(max));
            let piece = &chunk[cursor.at..end];
            cursor.at = end;
            return piece;
        }
    }

    /// A copy of the `n` bytes from `cursor` on; moves the cursor behind them.
    pub(super) fn copy(&self, cursor: &mut Cursor, n: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(n);
        while out.len() < n {
            let piece = self.piece(cursor, n - out.len());
            if piece.is_empty() {
                break;
            }
            out.extend_from_slice(piece);
        }
        out
    }

    /// Takes `n` bytes from the front.
    pub(super) fn skip(&mut self, mut n: usize) {
        debug_assert!(n <= self.len());
        while n > 0 {
            let front = self.full.front().unwrap_or(&self.tail).len() - self.read;
            if n < front {
                self.read += n;
                return;
            }
            n -= front;
            self.read = 0;
            match self.full.pop_front() {
                Some(mut chunk) => {
                    if chunk.capacity() == CHUNK && self.spares.len() < SPARES_MAX {
                        chunk.clear();
                        self.spares.push(chunk);
                    }
                }
                None => self.tail.clear(),
            }
        }
    }

    /// Throws away whatever is left and gives all memory back.
    pub(super) fn rest(&mut self) {
        if self.full.capacity() > 0 || self.spares.capacity() > 0 {
            *self = Staging::default();
        }
        let mut tail = std::mem::take(&mut self.tail);
        self.read = 0;
        if tail.capacity() == FIRST && is_keeper() {
            tail.clear();
            // As above: then it goes.
            let _ = SPARE.try_with(|spare| spare.set(tail));
        }
    }

    /// Memory held, filled or not.
    pub(super) fn capacity(&self) -> usize {
        self.full.iter().chain(&self.spares).map(Vec::capacity).sum::<usize>() + self.tail.capacity()
    }
}
