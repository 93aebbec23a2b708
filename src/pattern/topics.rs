//! Who subscribed to what: a tree of prefixes, walked along a topic.
//!
//! ```text
//!   ""            {b}             topic eur/usd: visits "", "eur/", "eur/usd" and nothing beside them,
//!    ├─ "eur/"    {a, c}          however many other prefixes there are
//!    │   ├─ "gbp" {d}
//!    │   └─ "usd" {a}             a subscriber that is met twice is told once
//!    └─ "log."    {}              nobody asked for "log." itself: it stands where two prefixes part
//! ```
//!
//! Invariants: a node without subscribers has two children at least, the root excepted; children of one
//! node begin with different bytes and are sorted by them; a node's subscribers are sorted, each once,
//! so a prefix is a member of a set however often it is subscribed to; a node that has subscribers keeps
//! its place until the last one cancels.
//!
//! The tree has no limit of its own: who subscribes is charged by [`Topics::cost`], and refused by the
//! owner of the tree before it grows.

use std::collections::HashSet;

/// A subscriber, as its owner numbers it. Numbers are used again, so they stay small.
pub type SubscriberId = u32;

const ROOT: u32 = 0;

#[derive(Debug, Default)]
struct Node {
    /// What stands between the parent's prefix and this one's.
    label: Box<[u8]>,
    parent: u32,
    /// First byte and place of each child.
    children: Vec<(u8, u32)>,
    subscribers: Vec<SubscriberId>,
}

/// See the module.
#[derive(Debug)]
pub struct Topics {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// The nodes of each subscriber's prefixes.
    of: Vec<HashSet<u32>>,
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
        Topics {
            nodes: vec![Node::default()],
            free: Vec::new(),
            of: Vec::new(),
            met: Vec::new(),
            walk: 0,
            subscriptions: 0,
        }
    }

    /// What one subscription to `prefix` takes of memory at the most: its own node, the one where it
    /// parts from its neighbour, their places in their parents, and its members in two sets.
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
        self.of.get(who as usize).map_or(0, HashSet::len)
    }

    /// Whether `who` subscribed to exactly this prefix.
    pub fn contains(&self, who: SubscriberId, prefix: &[u8]) -> bool {
        self.find(prefix).is_some_and(|node| self.nodes[node as usize].subscribers.binary_search(&who).is_ok())
    }

    /// From now on `who` is told of topics that begin with `prefix`. False: it was before.
    pub fn subscribe(&mut self, who: SubscriberId, prefix: &[u8]) -> bool {
        let node = self.node_of(prefix);
        let subscribers = &mut self.nodes[node as usize].subscribers;
        let Err(at) = subscribers.binary_search(&who) else { return false };
        subscribers.insert(at, who);
        let n = who as usize + 1;
        if self.of.len() < n {
            self.of.resize_with(n, HashSet::new);
            self.met.resize(n, 0);
        }
        self.of[who as usize].insert(node);
        self.subscriptions += 1;
        true
    }

    /// No longer. False: it was not subscribed to exactly this prefix.
    pub fn cancel(&mut self, who: SubscriberId, prefix: &[u8]) -> bool {
        match self.find(prefix) {
            Some(node) => self.remove(who, node),
            None => false,
        }
    }

    /// Forgets everything that `who` subscribed to.
    pub fn leave(&mut self, who: SubscriberId) {
        let Some(nodes) = self.of.get_mut(who as usize).map(std::mem::take) else { return };
        for node in nodes {
            self.remove(who, node);
        }
    }

    /// Tells `each` every subscriber with a prefix of `topic`, once.
    pub fn matches(&mut self, topic: &[u8], mut each: impl FnMut(SubscriberId)) {
        self.walk += 1;
        let (mut at, mut rest) = (ROOT, topic);
        loop {
            let node = &self.nodes[at as usize];
            for who in &node.subscribers {
                let met = &mut self.met[*who as usize];
                if *met != self.walk {
                    *met = self.walk;
                    each(*who);
                }
            }
            let Some(child) = rest.first().and_then(|byte| child(node, *byte)) else { return };
            let Some(behind) = rest.strip_prefix(&*self.nodes[child as usize].label) else { return };
            (at, rest) = (child, behind);
        }
    }

    /// The node of exactly this prefix.
    fn find(&self, prefix: &[u8]) -> Option<u32> {
        let (mut at, mut rest) = (ROOT, prefix);
        while let Some(byte) = rest.first() {
            at = child(&self.nodes[at as usize], *byte)?;
            rest = rest.strip_prefix(&*self.nodes[at as usize].label)?;
        }
        Some(at)
    }

    /// The node of exactly this prefix, made if need be.
    fn node_of(&mut self, prefix: &[u8]) -> u32 {
        let (mut at, mut rest) = (ROOT, prefix);
        while let Some(byte) = rest.first() {
            let Some(child) = child(&self.nodes[at as usize], *byte) else {
                return self.insert(at, rest);
            };
            let label = &self.nodes[child as usize].label;
            let common = label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            at = if common < label.len() { self.split(child, common) } else { child };
            rest = &rest[common..];
        }
        at
    }

    /// A new node under `parent`, which has no child with this first byte.
    fn insert(&mut self, parent: u32, label: &[u8]) -> u32 {
        let node = Node { label: label.into(), parent, ..Node::default() };
        let at = match self.free.pop() {
            Some(free) => {
                self.nodes[free as usize] = node;
                free
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        let children = &mut self.nodes[parent as usize].children;
        if let Err(place) = children.binary_search_by_key(&label[0], |c| c.0) {
            children.insert(place, (label[0], at));
        }
        at
    }

    /// A new node in the middle of the way to `lower`, which keeps its place in the table.
    fn split(&mut self, lower: u32, len: usize) -> u32 {
        let Node { label, parent, .. } = &mut self.nodes[lower as usize];
        let (label, parent) = (std::mem::take(label), *parent);
        self.children_of(parent).retain(|c| c.1 != lower);
        let upper = self.insert(parent, &label[..len]);
        let node = &mut self.nodes[lower as usize];
        (node.label, node.parent) = (label[len..].into(), upper);
        self.children_of(upper).push((label[len], lower));
        upper
    }

    fn children_of(&mut self, node: u32) -> &mut Vec<(u8, u32)> {
        &mut self.nodes[node as usize].children
    }

    fn remove(&mut self, who: SubscriberId, node: u32) -> bool {
        let subscribers = &mut self.nodes[node as usize].subscribers;
        let Ok(at) = subscribers.binary_search(&who) else { return false };
        subscribers.remove(at);
        if subscribers.is_empty() {
            *subscribers = Vec::new();
        }
        let of = &mut self.of[who as usize];
        of.remove(&node);
        if of.is_empty() {
            *of = HashSet::new();
        }
        self.subscriptions -= 1;
        self.prune(node);
        true
    }

    /// Takes a node out that nobody asks for any more, and the one above it if that is due then.
    fn prune(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        if at == ROOT || !node.subscribers.is_empty() || node.children.len() > 1 {
            return;
        }
        let Node { label, parent, children, .. } = std::mem::take(&mut self.nodes[at as usize]);
        self.free.push(at);
        match children.first() {
            // Its only child takes its place.
            Some((_, below)) => {
                let lower = &mut self.nodes[*below as usize];
                if cfg!(not(afflux_mutation = "topics_lose_label")) {
                    lower.label = [&*label, &*lower.label].concat().into();
                }
                lower.parent = parent;
                if let Some(entry) = self.children_of(parent).iter_mut().find(|c| c.1 == at) {
                    entry.1 = *below;
                }
            }
            None => {
                let above = self.children_of(parent);
                above.retain(|c| c.1 != at);
                if above.is_empty() {
                    *above = Vec::new();
                }
                self.prune(parent);
            }
        }
    }

    /// Nodes in use: for checks.
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
}

fn child(node: &Node, first: u8) -> Option<u32> {
    node.children.binary_search_by_key(&first, |c| c.0).ok().map(|at| node.children[at].1)
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
        assert_eq!(topics.nodes(), 1);
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
        assert_eq!((topics.len(), topics.nodes()), (0, 1));
    }
}
