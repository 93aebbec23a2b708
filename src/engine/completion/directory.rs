//! The directory: which nodes serve which channels with which weight, reachable or not, and the numbers that
//! the names have on this host. Routes are made of it and of the links that are up.
//!
//! A number is for good, because records that wait carry it. Full: a name beyond [`NAMES_MAX`] gets none and is
//! served by nobody; of one node [`CHANNELS_MAX`] channels are remembered, those that it announced last, and of
//! all nodes [`KNOWN_MAX`]; whoever is away longest is forgotten first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::base::id::ChannelId;
use crate::flow::target::{NO_CHANNEL, Target};
use crate::pattern::route::{Channel, Member};
use crate::plan::CHANNELS_MAX;

/// Names of channels that one host gives numbers to.
const NAMES_MAX: usize = 4096;

/// Channels of nodes that are remembered, reachable or not.
const KNOWN_MAX: usize = 4 * NAMES_MAX;

/// Names and weights as a node announces them.
type List = [(Arc<str>, u32)];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Directory {
    names: HashMap<Arc<str>, ChannelId>,
    nodes: BTreeMap<Arc<str>, Node>,
    /// Of all nodes.
    known: usize,
    /// Lists that were heard.
    lists: u64,
}

#[derive(Debug, Default)]
struct Node {
    channels: BTreeMap<Arc<str>, Announced>,
    /// With which list.
    heard: u64,
}

#[derive(Debug)]
struct Announced {
    weight: u32,
    heard: u64,
}

impl Directory {
    /// Of a host that serves `own` itself: those have the first numbers, in their order.
    pub(super) fn new(own: &List) -> Directory {
        let mut directory = Directory::default();
        for (name, _) in own {
            let _ = directory.number(name);
        }
        directory
    }

    /// Entries that routes are made of: what making them costs.
    pub(super) fn len(&self) -> usize {
        self.known
    }

    /// The number of a name, now if it has none yet; `None` if there are too many names.
    pub(super) fn number(&mut self, name: &Arc<str>) -> Option<ChannelId> {
        if let Some(id) = self.names.get(name) {
            return Some(*id);
        }
        if self.names.len() >= NAMES_MAX {
            return None;
        }
        let id = ChannelId(self.names.len() as u16);
        self.names.insert(name.clone(), id);
        Some(id)
    }

    /// `node` announces these. The first name that gets no number, if there is one. Whoever is `up` is not
    /// forgotten.
    pub(super) fn hear(&mut self, node: &Arc<str>, list: &List, up: impl Fn(&str) -> bool) -> Option<Arc<str>> {
        self.lists += 1;
        let heard = self.lists;
        let mut unnumbered = None;
        let numbered: Vec<_> = list.iter().filter(|(name, _)| self.number(name).is_some()).collect();
        if numbered.len() < list.len() {
            unnumbered = list.iter().map(|(name, _)| name).find(|name| !self.names.contains_key(*name)).cloned();
        }
        let known = self.nodes.entry(node.clone()).or_default();
        let before = known.channels.len();
        known.heard = heard;
        for (name, weight) in numbered {
            known.channels.insert(name.clone(), Announced { weight: *weight, heard });
        }
        while known.channels.len() > CHANNELS_MAX {
            let oldest = known.channels.iter().min_by_key(|(_, announced)| announced.heard);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { break };
            known.channels.remove(&name);
        }
        self.known = self.known + known.channels.len() - before;
        while self.known > KNOWN_MAX {
            let away = self.nodes.iter().filter(|(name, _)| *name != node && !up(name));
            let Some(name) = away.min_by_key(|(_, node)| node.heard).map(|(name, _)| name.clone()) else { break };
            self.known -= self.nodes.remove(&name).map_or(0, |node| node.channels.len());
        }
        unnumbered
    }

    /// This host's number of each channel to the peer's number, which is its position in the peer's list.
    pub(super) fn table(&self, list: &List) -> Vec<u16> {
        let ids: Vec<_> = list.iter().map(|(name, _)| self.names.get(name).map(|id| usize::from(id.0))).collect();
        let len = ids.iter().flatten().max().map_or(0, |id| id + 1);
        let mut table = vec![NO_CHANNEL; len];
        for (at, id) in ids.into_iter().enumerate().filter_map(|(at, id)| Some((at, id?))) {
            table[id] = at as u16;
        }
        table
    }

    /// Every channel with its members in the order of their names, and the links to them that are up.
    pub(super) fn channels<'a>(
        &self,
        links: impl Iterator<Item = (&'a Arc<str>, &'a Arc<Target>, &'a List)>,
    ) -> HashMap<Arc<str>, Channel> {
        let mut channels = HashMap::new();
        for (node, known) in &self.nodes {
            for (name, announced) in &known.channels {
                if let Some(channel) = self.channel(&mut channels, name) {
                    channel.members.push(Member { node: node.clone(), weight: announced.weight, links: Vec::new() });
                }
            }
        }
        for (node, target, list) in links {
            for (name, _) in list {
                if let Some(channel) = channels.get_mut(name)
                    && let Ok(at) = channel.members.binary_search_by(|member| (*member.node).cmp(node))
                {
                    channel.members[at].links.push(target.clone());
                }
            }
        }
        channels
    }

    /// The channel of that name among those that are being made.
    pub(super) fn channel<'a>(
        &self,
        channels: &'a mut HashMap<Arc<str>, Channel>,
        name: &Arc<str>,
    ) -> Option<&'a mut Channel> {
        let id = *self.names.get(name)?;
        Some(channels.entry(name.clone()).or_insert_with(|| Channel { id, members: Vec::new() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: impl Iterator<Item = String>) -> Vec<(Arc<str>, u32)> {
        names.map(|name| (name.into(), 100)).collect()
    }

    fn known(directory: &Directory, node: &str) -> usize {
        directory.nodes.get(node).map_or(0, |node| node.channels.len())
    }

    #[test]
    fn a_table_has_the_position_in_the_peers_list() {
        let mut directory = Directory::new(&list(["a", "b"].map(String::from).into_iter()));
        let theirs = list(["z", "b"].map(String::from).into_iter());
        assert_eq!(directory.hear(&"peer".into(), &theirs, |_| true), None);
        assert_eq!(directory.table(&theirs), [NO_CHANNEL, 1, 0]);
        assert_eq!(directory.table(&[]), []);
    }

    #[test]
    fn one_node_fills_its_own_places_only() {
        let mut directory = Directory::new(&[]);
        directory.hear(&"steady".into(), &list(["s".to_owned()].into_iter()), |_| true);
        for round in 0..10 {
            let names = (0..CHANNELS_MAX).map(|i| format!("c{round}.{i}"));
            assert_eq!(directory.hear(&"fickle".into(), &list(names), |_| true), None);
        }
        assert_eq!((known(&directory, "fickle"), known(&directory, "steady")), (CHANNELS_MAX, 1));
        assert!(directory.nodes["fickle"].channels.keys().all(|name| name.starts_with("c9.")), "the last are kept");
        assert_eq!(directory.len(), CHANNELS_MAX + 1);
    }

    #[test]
    fn who_is_away_longest_is_forgotten_first_and_a_name_too_many_is_told() {
        let mut directory = Directory::new(&[]);
        let shared = list((0..CHANNELS_MAX).map(|i| format!("c{i}")));
        let nodes = KNOWN_MAX / CHANNELS_MAX + 2;
        for node in 0..nodes {
            let up = |name: &str| name == "node-0";
            assert_eq!(directory.hear(&format!("node-{node}").into(), &shared, up), None);
        }
        let there = |node: usize| known(&directory, &format!("node-{node}")) > 0;
        assert_eq!((there(0), there(1), there(2), there(3)), (true, false, false, true));
        assert_eq!(directory.len(), KNOWN_MAX);
        for i in directory.names.len()..NAMES_MAX {
            assert_eq!(directory.hear(&"other".into(), &list([format!("n{i}")].into_iter()), |_| true), None);
        }
        let late = list(["one".to_owned(), "two".to_owned()].into_iter());
        assert_eq!(directory.hear(&"late".into(), &late, |_| true).as_deref(), Some("one"));
        assert_eq!(directory.table(&late), []);
    }
}
