//! A bounded space that things enter and leave: so many operations, so many bytes. The waiting
//! room, one target's quarter of it, replies held, request slots, owned bytes.
//!
//! One word: `operations (24 bits) | bytes (40 bits)`, so that both bounds are judged at the same
//! instant.
//!
//! ```text
//!   operations <= operations_max  and  bytes <= bytes_max      or      operations = 1
//! ```
//!
//! An empty room takes one thing of any size, so that no allowed record is shut out for ever; while
//! it is in there nothing else fits beside it.
//!
//! Full: refused at once with the numbers. Nothing waits here, and nobody is told when something
//! leaves.

use super::primitive::{AtomicU64, Ordering};

const OPERATION: u64 = 1 << 40;

/// The most bytes that a room can hold; as a bound it means "as many as you like".
pub const ROOM_BYTES_MAX: u64 = OPERATION - 1;

/// The most operations that a room can hold; as a bound it means "as many as you like".
pub const ROOM_OPS_MAX: u32 = (1 << 24) - 1;

/// The numbers of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoomFull {
    /// Operations in the room.
    pub ops: u32,
    /// The bound of `ops`.
    pub ops_max: u32,
    /// Bytes in the room.
    pub bytes: u64,
    /// The bound of `bytes`.
    pub bytes_max: u64,
}

/// A bounded space, on a cache line of its own. See the module's text.
#[derive(Debug)]
#[repr(align(64))]
pub struct Room {
    word: AtomicU64,
    ops_peak: AtomicU64,
    bytes_peak: AtomicU64,
    ops_max: u32,
    bytes_max: u64,
}

#[inline(always)]
fn split(word: u64) -> (u32, u64) {
    ((word / OPERATION) as u32, word % OPERATION)
}

impl Room {
    /// An empty room. Bounds above [`ROOM_OPS_MAX`] and [`ROOM_BYTES_MAX`] are cut to them. A bound
    /// of 0 is a bound: such a room holds one thing at a time.
    pub fn new(ops_max: u32, bytes_max: u64) -> Self {
        Room {
            word: AtomicU64::new(0),
            ops_peak: AtomicU64::new(0),
            bytes_peak: AtomicU64::new(0),
            ops_max: ops_max.min(ROOM_OPS_MAX),
            bytes_max: bytes_max.min(ROOM_BYTES_MAX),
        }
    }

    /// Enters with one operation of `bytes`. Whoever entered must [`Room::leave`] with the same
    /// number, exactly once.
    #[inline]
    pub fn enter(&self, bytes: u64) -> Result<(), RoomFull> {
        self.enter_leaving(bytes, 0)
    }

    /// The same, where `free` bytes must stay free beside it: for somebody who needs them all at once. Then an
    /// empty room takes nothing larger either.
    #[inline]
    pub fn enter_leaving(&self, bytes: u64, free: u64) -> Result<(), RoomFull> {
        // Relaxed throughout: the word is a count, and no memory is handed over by it.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (ops, held) = split(word);
            let fits = ops < self.ops_max && held.saturating_add(bytes).saturating_add(free) <= self.bytes_max;
            if !(fits || (ops == 0 && bytes <= ROOM_BYTES_MAX && free == 0)) {
                return Err(RoomFull { ops, ops_max: self.ops_max, bytes: held, bytes_max: self.bytes_max });
            }
            let next = word + OPERATION + bytes;
            if cfg!(afflux_mutation = "room_enters_blindly") {
                self.word.fetch_add(OPERATION + bytes, Ordering::Relaxed);
                return Ok(());
            }
            match self.word.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    raise(&self.ops_peak, u64::from(ops) + 1);
                    raise(&self.bytes_peak, held + bytes);
                    return Ok(());
                }
                Err(changed) => word = changed,
            }
        }
    }

    /// Enters whatever the bounds say: for what is bounded elsewhere, but must be seen here.
    #[inline]
    pub fn force(&self, bytes: u64) {
        // Relaxed: as in `enter`.
        let (ops, held) = split(self.word.fetch_add(OPERATION + bytes, Ordering::Relaxed));
        raise(&self.ops_peak, u64::from(ops) + 1);
        raise(&self.bytes_peak, held + bytes);
    }

    /// Leaves with what was entered with.
    #[inline]
    pub fn leave(&self, bytes: u64) {
        self.leave_many(1, bytes);
    }

    /// So many leave, with the sum of what they entered with.
    #[inline]
    pub fn leave_many(&self, operations: u32, bytes: u64) {
        let (ops, held) = split(self.word.fetch_sub(u64::from(operations) * OPERATION + bytes, Ordering::Relaxed));
        debug_assert!(ops >= operations && held >= bytes, "leaves with more than was brought");
    }

    /// Operations in the room now.
    pub fn ops(&self) -> u32 {
        split(self.word.load(Ordering::Relaxed)).0
    }

    /// Bytes in the room now.
    pub fn bytes(&self) -> u64 {
        split(self.word.load(Ordering::Relaxed)).1
    }

    /// The bound of operations.
    pub fn ops_max(&self) -> u32 {
        self.ops_max
    }

    /// The bound of bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The most operations at any moment since the last reset.
    pub fn ops_peak(&self) -> u32 {
        self.ops_peak.load(Ordering::Relaxed) as u32
    }

    /// The most bytes at any moment since the last reset.
    pub fn bytes_peak(&self) -> u64 {
        self.bytes_peak.load(Ordering::Relaxed)
    }

    /// Peaks become the present values. Something that enters at the same moment may be missing.
    pub fn reset_peaks(&self) {
        let (ops, held) = split(self.word.load(Ordering::Relaxed));
        self.ops_peak.store(u64::from(ops), Ordering::Relaxed);
        self.bytes_peak.store(held, Ordering::Relaxed);
    }
}

/// A look first: in the long run a peak is rarely passed, and then its line stays shared.
#[inline(always)]
fn raise(peak: &AtomicU64, value: u64) {
    if peak.load(Ordering::Relaxed) < value {
        peak.fetch_max(value, Ordering::Relaxed);
    }
}
