//! Units: what a record costs, and sizes that people write.

use std::fmt;

/// Added to every record's charge for the memory around its bytes: the queue entry, the header,
/// the payload's own bookkeeping. Without it a byte mark would admit empty records for ever.
pub const RECORD_OVERHEAD: u64 = 64;

/// Added for every frame of a ZMTP message after the first.
pub const FRAME_OVERHEAD: u64 = 32;

/// The most frames that one message of a stock peer may have.
pub const FRAMES_MAX: usize = 64;

/// Length of the header of a native record on the wire.
pub const HEADER_LEN: usize = 24;

/// The longest method name of a record.
pub const METHOD_LEN_MAX: usize = 255;

/// The longest channel or node name.
pub const NAME_LEN_MAX: usize = 64;

/// What a record of `payload` bytes with `envelope` bytes around it (method, stock frames) is
/// accounted with, in every queue it passes.
#[inline]
pub fn charge(payload: usize, envelope: usize) -> u64 {
    payload as u64 + envelope as u64 + RECORD_OVERHEAD
}

/// A number of bytes, as people write it: `ByteSize::mib(64)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// `n` bytes.
    pub const fn bytes(n: u64) -> Self {
        ByteSize(n)
    }
    /// `n` x 1,024 bytes; saturates.
    pub const fn kib(n: u64) -> Self {
        ByteSize(n.saturating_mul(1 << 10))
    }
    /// `n` x 1,048,576 bytes; saturates.
    pub const fn mib(n: u64) -> Self {
        ByteSize(n.saturating_mul(1 << 20))
    }
    /// `n` x 1,073,741,824 bytes; saturates.
    pub const fn gib(n: u64) -> Self {
        ByteSize(n.saturating_mul(1 << 30))
    }
    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            n if n >= 1 << 30 && n % (1 << 30) == 0 => (n >> 30, "GiB"),
            n if n >= 1 << 20 && n % (1 << 20) == 0 => (n >> 20, "MiB"),
            n if n >= 1 << 10 && n % (1 << 10) == 0 => (n >> 10, "KiB"),
            n => (n, "B"),
        };
        write!(f, "{value} {unit}")
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A count with thousands separated by commas, for sentences that people read.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_record_costs_its_overhead() {
        assert_eq!(charge(0, 0), 64);
        assert_eq!(charge(100, 7), 171);
    }

    #[test]
    fn sizes_print_in_their_largest_whole_unit() {
        assert_eq!(ByteSize::kib(512).to_string(), "512 KiB");
        assert_eq!(ByteSize::kib(1024).to_string(), "1 MiB");
        assert_eq!(ByteSize::bytes(1025).to_string(), "1025 B");
        assert_eq!(ByteSize::gib(u64::MAX).get(), u64::MAX);
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(524_288), "524,288");
        assert_eq!(grouped(1_000_000), "1,000,000");
    }
}
