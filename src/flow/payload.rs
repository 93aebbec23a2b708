//! Payloads that will be cloned: each has storage of its own, for nobody knows how long it is kept, and the rest of a
//! block or a chunk must not be kept with it.
//!
//! A small one has its count in one piece with its bytes from the beginning. The storage that `Bytes` makes of a slice
//! has none: it costs nothing to let go, and another allocation at the first clone.

use bytes::Bytes;

/// Above this, a copy costs more than an allocation.
const COUNTED_MAX: usize = 128;

/// A payload of at most `N` bytes. With what is unused of it, it is smaller than what its record was charged with.
struct Counted<const N: usize> {
    len: usize,
    bytes: [u8; N],
}

impl<const N: usize> AsRef<[u8]> for Counted<N> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> Counted<N> {
    #[inline]
    fn of(payload: &[u8]) -> Bytes {
        let mut counted = Counted { len: payload.len(), bytes: [0; N] };
        counted.bytes[..payload.len()].copy_from_slice(payload);
        Bytes::from_owner(counted)
    }
}

/// A copy of `payload` that is cheap to clone.
#[inline]
pub fn counted(payload: &[u8]) -> Bytes {
    match payload.len() {
        0 => Bytes::new(),
        1..=32 => Counted::<32>::of(payload),
        33..=64 => Counted::<64>::of(payload),
        65..=96 => Counted::<96>::of(payload),
        97..=COUNTED_MAX => Counted::<COUNTED_MAX>::of(payload),
        _ => Bytes::copy_from_slice(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::unit::charge;

    #[test]
    fn a_payload_is_its_bytes_at_every_edge() {
        for len in (0..=COUNTED_MAX + 1).chain([2048]) {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let payload = counted(&bytes);
            assert!(payload == bytes && payload.clone() == bytes, "{len}");
        }
    }

    /// Its count and its length are there too.
    #[test]
    fn what_it_takes_is_within_the_charge() {
        for (least, size) in [(1, size_of::<Counted<32>>()), (33, size_of::<Counted<64>>())]
            .into_iter()
            .chain([(65, size_of::<Counted<96>>()), (97, size_of::<Counted<COUNTED_MAX>>())])
        {
            assert!((size + size_of::<usize>()) as u64 <= charge(least, 0), "{least}");
        }
    }
}
