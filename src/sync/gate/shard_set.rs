//! Which shards have something to look at.

use crate::base::id::ShardId;
use std::fmt;

const WORDS: usize = 8;

/// The most shards that a host can have.
pub const SHARDS_MAX: u16 = (WORDS * 64) as u16;

/// A set of shards, small enough to be returned by value.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardSet([u64; WORDS]);

impl ShardSet {
    /// Adds a shard.
    pub fn insert(&mut self, shard: ShardId) {
        self.0[shard.index() / 64] |= 1 << (shard.index() % 64);
    }

    /// True if the shard is in the set.
    pub fn contains(&self, shard: ShardId) -> bool {
        self.0[shard.index() / 64] >> (shard.index() % 64) & 1 == 1
    }

    /// True if no shard is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The shards, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.0.iter().enumerate().flat_map(|(i, word)| {
            let rest = std::iter::successors(Some(*word), |word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|word| *word != 0).map(move |word| ShardId((i * 64) as u16 + word.trailing_zeros() as u16))
        })
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|shard| shard.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lists_what_was_put_in() {
        let mut set = ShardSet::default();
        assert!(set.is_empty() && set.iter().next().is_none());
        let shards = [0, 1, 63, 64, 200, SHARDS_MAX - 1].map(ShardId);
        for shard in shards.into_iter().rev() {
            assert!(!set.contains(shard));
            set.insert(shard);
            assert!(set.contains(shard));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), shards);
    }
}
