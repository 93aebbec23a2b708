//! Names for things that come and go. An index alone is never enough: whatever can be reused
//! carries a generation beside its index, so that a stale name is recognised and refused.

use std::fmt;

/// A pinned event-loop thread of this host, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The position of this shard in tables that have one entry per shard.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

/// One waiting operation or awaited reply: the place in the cell pool and how often that place
/// has been used before. As a `u64` it is the correlation that travels on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CellId {
    /// Place in the pool.
    pub index: u32,
    /// Use count of the place.
    pub generation: u32,
}

impl CellId {
    /// The correlation that a peer echoes in its reply.
    pub fn correlation(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    /// The inverse of [`CellId::correlation`]. The result may be stale; the pool checks it.
    pub fn from_correlation(correlation: u64) -> Self {
        CellId { index: correlation as u32, generation: (correlation >> 32) as u32 }
    }
}

/// One link of this host, for as long as the host lives: never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TargetId(pub u64);

/// The random name of one connection attempt, the same on both lanes: it pairs them, and it is
/// the pair's generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LinkId(pub u128);

impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl LinkId {
    /// Reads the 32 hexadecimal digits of the wire form.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(LinkId)).flatten()
    }
}

/// A channel name known to this host, as a small number. Local: the number on the wire is the
/// position in the list that the *serving* peer announced on that link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChannelId(pub u16);

impl ChannelId {
    /// The node's own handler: node-direct calls. The same number here and on the wire.
    pub const NODE: ChannelId = ChannelId(0xFFFF);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_round_trips_at_the_edges() {
        for (index, generation) in [(0, 0), (u32::MAX, 0), (0, u32::MAX), (7, 9)] {
            let id = CellId { index, generation };
            assert_eq!(CellId::from_correlation(id.correlation()), id);
        }
    }

    #[test]
    fn link_id_wants_exactly_32_hex_digits() {
        let id = LinkId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(LinkId::parse(&format!("{id:?}")), Some(id));
        assert_eq!(LinkId::parse("12"), None);
        assert_eq!(LinkId::parse(&"g".repeat(32)), None);
    }
}
