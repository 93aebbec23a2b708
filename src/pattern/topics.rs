//! Who subscribed to what: a table of prefixes, looked into once for each length that a prefix has.
//!
//! ```text
//!   lengths   0   4   7              topic  e u r / u s d . b i d
//!   prefixes  ""      {b}                  ^       ^     ^
//!             "eur/"  {a, c}               four    three more: one look into the table each,
//!             "eur/usd" {a}                however many other prefixes there are
//! ```
//!
//! The hash of a topic is computed as the walk goes on, so a publication costs its topic's length, a look
//! per length that some prefix has, and its matches. How many subscriptions there are costs nothing but the
//! processor's caches. The hash is keyed at random, and equal hashes are told apart by their bytes.
//!
//! Invariants: a prefix is in the table while it has a subscriber; its subscribers are sorted, each once, so
//! it is a member of a set however often it is subscribed to; `lengths` counts the prefixes of each length.
//!
//! The table has no limit of its own: who subscribes is charged by [`Topics::cost`], and refused by the
//! owner of the table before it grows.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

/// A subscriber, as its owner numbers it. Numbers are used again, so they stay small.
pub type SubscriberId = u32;

#[derive(Debug)]
struct Entry {
    prefix: Box<[u8]>,
    subscribers: Vec<SubscriberId>,
    /// Another prefix of the same hash.
    next: Option<Box<Entry>>,
}

impl Entry {
    fn chain(&self) -> impl Iterator<Item = &Entry> {
        std::iter::successors(Some(self), |entry| entry.next.as_deref())
    }
}

/// What one subscriber has.
#[derive(Debug, Default)]
struct Own {
    /// Of its prefixes.
    hashes: HashSet<u64, Known>,
    prefixes: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Topics {
    entries: HashMap<u64, Entry, Known>,
    /// How many prefixes have each length, shortest first.
    lengths: Vec<(usize, u64)>,
    keys: Keys,
    own: Vec<Own>,
    /// The walk that met each subscriber last.
    met: Vec<u64>,
    walk: u64,
    subscriptions: u64,
}

impl Default for Topics {
    fn default() -> Self {
        Self::new()
    }
}

impl Topics {
    /// Nobody subscribed to anything.
    pub fn new() -> Self {
        Self::with_hash_bits(u64::MAX)
    }

    /// With a hash of these bits only, so that many prefixes share one: for checks.
    pub fn with_hash_bits(mask: u64) -> Self {
        Topics {
            entries: HashMap::default(),
            lengths: Vec::new(),
            keys: Keys::random(mask),
            own: Vec::new(),
            met: Vec::new(),
            walk: 0,
            subscriptions: 0,
        }
    }

    /// What one subscription to `prefix` takes of memory at the most: its own place in the table, which may
    /// have grown to twice what it holds, and its member in two sets.
    pub fn cost(prefix: &[u8]) -> u64 {
        crate::plan::SUBSCRIPTION_BYTES + prefix.len() as u64
    }

    /// Pairs of a subscriber and a prefix.
    pub fn len(&self) -> u64 {
        self.subscriptions
    }

    /// Nobody subscribed to anything.
    pub fn is_empty(&self) -> bool {
        self.subscriptions == 0
    }

    /// Prefixes of one subscriber.
    pub fn len_of(&self, who: SubscriberId) -> usize {
        self.own.get(who as usize).map_or(0, |own| own.prefixes)
    }

    /// Prefixes that anybody asked for.
    pub fn prefixes(&self) -> usize {
        self.entries.values().map(|entry| entry.chain().count()).sum()
    }

    /// Whether `who` subscribed to exactly this prefix.
    pub fn contains(&self, who: SubscriberId, prefix: &[u8]) -> bool {
        let entry = self.entries.get(&self.keys.hash(prefix));
        let entry = entry.and_then(|first| first.chain().find(|entry| *entry.prefix == *prefix));
        entry.is_some_and(|entry| entry.subscribers.binary_search(&who).is_ok())
    }

    /// From now on `who` is told of topics that begin with `prefix`. False: it was before.
    pub fn subscribe(&mut self, who: SubscriberId, prefix: &[u8]) -> bool {
        if self.contains(who, prefix) {
            return false;
        }
        let n = who as usize + 1;
        if self.own.len() < n {
            self.own.resize_with(n, Own::default);
            self.met.resize(n, 0);
        }
        let hash = self.keys.hash(prefix);
        let own = &mut self.own[who as usize];
        own.hashes.insert(hash);
        own.prefixes += 1;
        self.subscriptions += 1;
        if let Some(first) = self.entries.get_mut(&hash)
            && let Some(entry) = find(first, prefix)
        {
            if let Err(at) = entry.subscribers.binary_search(&who) {
                entry.subscribers.insert(at, who);
            }
            return true;
        }
        let next = self.entries.remove(&hash).map(Box::new);
        self.entries.insert(hash, Entry { prefix: prefix.into(), subscribers: vec![who], next });
        match self.lengths.binary_search_by_key(&prefix.len(), |(len, _)| *len) {
            Ok(at) => self.lengths[at].1 += 1,
            Err(at) => self.lengths.insert(at, (prefix.len(), 1)),
        }
        true
    }

    /// No longer. False: it was not subscribed to exactly this prefix.
    pub fn cancel(&mut self, who: SubscriberId, prefix: &[u8]) -> bool {
        let subscribed = self.contains(who, prefix);
        if subscribed {
            let hash = self.keys.hash(prefix);
            self.remove(who, hash, |entry| *entry.prefix == *prefix);
            let others = self.entries.get(&hash).is_some_and(|first| first.chain().any(|entry| has(entry, who)));
            if !others {
                self.own[who as usize].hashes.remove(&hash);
            }
        }
        subscribed
    }

    /// Forgets everything that `who` subscribed to.
    pub fn leave(&mut self, who: SubscriberId) {
        let Some(own) = self.own.get_mut(who as usize) else { return };
        for hash in std::mem::take(&mut own.hashes) {
            self.remove(who, hash, |entry| has(entry, who));
        }
    }

    /// Tells `each` every subscriber with a prefix of `topic`, once.
    pub fn matches(&mut self, topic: &[u8], mut each: impl FnMut(SubscriberId)) {
        self.walk += 1;
        let mut walk = Walk::new(&self.keys);
        for (len, _) in &self.lengths {
            let Some(prefix) = topic.get(..*len) else { return };
            let Some(first) = self.entries.get(&walk.hash(&self.keys, prefix)) else { continue };
            let Some(entry) = first.chain().find(|entry| *entry.prefix == *prefix) else { continue };
            for who in &entry.subscribers {
                let met = &mut self.met[*who as usize];
                if *met != self.walk {
                    *met = self.walk;
                    each(*who);
                }
            }
        }
    }

    /// Takes `who` out of the entries of that hash that `which` picks, and entries without a subscriber out
    /// of the table.
    fn remove(&mut self, who: SubscriberId, hash: u64, which: impl Fn(&Entry) -> bool) {
        let mut rest = self.entries.remove(&hash);
        while let Some(mut entry) = rest.take() {
            rest = entry.next.take().map(|next| *next);
            if which(&entry)
                && let Ok(at) = entry.subscribers.binary_search(&who)
            {
                entry.subscribers.remove(at);
                self.own[who as usize].prefixes -= 1;
                self.subscriptions -= 1;
            }
            if entry.subscribers.is_empty() {
                self.forget_length(entry.prefix.len());
            } else {
                entry.next = self.entries.remove(&hash).map(Box::new);
                self.entries.insert(hash, entry);
            }
        }
    }

    fn forget_length(&mut self, len: usize) {
        if let Ok(at) = self.lengths.binary_search_by_key(&len, |(len, _)| *len) {
            self.lengths[at].1 -= 1;
            if self.lengths[at].1 == 0 || cfg!(afflux_mutation = "topics_forget_length") {
                self.lengths.remove(at);
            }
        }
    }
}

fn has(entry: &Entry, who: SubscriberId) -> bool {
    entry.subscribers.binary_search(&who).is_ok()
}

fn find<'a>(first: &'a mut Entry, prefix: &[u8]) -> Option<&'a mut Entry> {
    let mut at = Some(first);
    while let Some(entry) = at {
        if *entry.prefix == *prefix {
            return Some(entry);
        }
        at = entry.next.as_deref_mut();
    }
    None
}

/// Hashes here are good already.
type Known = std::hash::BuildHasherDefault<AsItIs>;

#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "only numbers are hashed");
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

/// Keys of a hash that can be continued: words of eight bytes, then what is left with the length.
#[derive(Debug)]
struct Keys {
    start: u64,
    word: u64,
    end: u64,
    mask: u64,
}

impl Keys {
    /// Nobody who subscribes can know them.
    fn random(mask: u64) -> Self {
        let number = || RandomState::new().hash_one(0_u64) | 1;
        Keys { start: number(), word: number(), end: number(), mask }
    }

    fn hash(&self, prefix: &[u8]) -> u64 {
        Walk::new(self).hash(self, prefix)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The hash of longer and longer prefixes of one topic.
struct Walk {
    state: u64,
    /// Whole words that are in it.
    words: usize,
}

impl Walk {
    fn new(keys: &Keys) -> Self {
        Walk { state: keys.start, words: 0 }
    }

    /// Of `prefix`, which goes on where the one before ended.
    #[inline]
    fn hash(&mut self, keys: &Keys, prefix: &[u8]) -> u64 {
        while let Some(word) = prefix[8 * self.words..].first_chunk() {
            self.state = fold(self.state ^ u64::from_le_bytes(*word), keys.word);
            self.words += 1;
        }
        let mut tail = [0; 8];
        let rest = &prefix[8 * self.words..];
        tail[..rest.len()].copy_from_slice(rest);
        let state = fold(self.state ^ u64::from_le_bytes(tail), keys.end);
        fold(state ^ prefix.len() as u64, keys.start) & keys.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(topics: &mut Topics, topic: &str) -> Vec<SubscriberId> {
        let mut found = Vec::new();
        topics.matches(topic.as_bytes(), |who| found.push(who));
        found.sort_unstable();
        found
    }

    #[test]
    fn a_prefix_is_a_member_of_a_set() {
        let mut topics = Topics::new();
        assert!(topics.subscribe(7, b"eur/"));
        assert!(!topics.subscribe(7, b"eur/"));
        assert_eq!((topics.len(), topics.len_of(7)), (1, 1));
        assert!(topics.cancel(7, b"eur/"));
        assert!(!topics.cancel(7, b"eur/"));
        assert!(matched(&mut topics, "eur/usd").is_empty());
        assert_eq!((topics.prefixes(), topics.lengths.len()), (0, 0));
    }

    #[test]
    fn each_is_told_once_and_the_empty_prefix_is_everything() {
        let mut topics = Topics::new();
        for (who, prefix) in [(0, ""), (1, "eur/"), (2, "eur/usd"), (0, "eur/usd"), (3, "eur/gbp"), (4, "log.")] {
            assert!(topics.subscribe(who, prefix.as_bytes()));
        }
        assert_eq!(matched(&mut topics, "eur/usd"), [0, 1, 2]);
        assert_eq!(matched(&mut topics, "eur/us"), [0, 1]);
        assert_eq!(matched(&mut topics, ""), [0]);
        assert_eq!(matched(&mut topics, "log"), [0]);
        assert_eq!(matched(&mut topics, "log.err"), [0, 4]);
    }

    #[test]
    fn whoever_leaves_takes_everything_along() {
        let mut topics = Topics::new();
        for who in 0..3 {
            for prefix in ["a", "ab", "abc", "abd", "b"] {
                topics.subscribe(who, prefix.as_bytes());
            }
        }
        topics.leave(1);
        topics.leave(1);
        assert_eq!((topics.len(), topics.len_of(1)), (10, 0));
        assert_eq!(matched(&mut topics, "abcd"), [0, 2]);
        topics.leave(0);
        topics.leave(2);
        assert_eq!((topics.len(), topics.prefixes(), topics.lengths.len()), (0, 0, 0));
    }
}
