//! Routes: which targets a name stands for now. The snapshot is immutable and replaced whole, by
//! the completion thread alone; a handle keeps one and looks at a version word per operation.
//!
//! A target is fixed once, when an operation starts. Nothing that happens later re-selects it.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::base::error::{Detail, Error, ErrorKind};
use crate::base::id::{ChannelId, TargetId};
use crate::flow::target::Target;

/// One node that serves a channel.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub node: Arc<str>,
    /// 0..=10,000; 0 = announced, but not to be selected.
    pub weight: u32,
    /// Its links that are up. Empty: known, but not reachable now.
    pub links: Vec<Arc<Target>>,
}

/// One channel.
#[derive(Clone, Debug)]
pub struct Channel {
    /// Its number in records of this host.
    pub id: ChannelId,
    /// Everybody who ever announced it.
    pub members: Vec<Member>,
}

/// What is known of the world.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Channels by name.
    pub channels: HashMap<Arc<str>, Channel>,
    /// Links by node name, up or not: a node that we dial keeps its queue while it is away.
    pub nodes: HashMap<Arc<str>, Vec<Arc<Target>>>,
    /// Links that are up.
    pub up: HashSet<TargetId>,
    /// Every configured connection has had an outcome. Before that, an unknown channel may yet
    /// turn up, and a call waits; afterwards it is `NotFound` at once.
    pub settled: bool,
}

/// What an operation is addressed to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// Any ready member of the channel.
    Channel(Arc<str>),
    /// The node of that name, and no other.
    Node(Arc<str>),
    /// That channel at that node, and at no other: one send of a multicast.
    Member(Arc<str>, Arc<str>),
}

impl Address {
    /// The name without its sort.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Address::Channel(name) | Address::Node(name) | Address::Member(_, name) => name,
        }
    }

    /// It by its names alone.
    pub fn named(&self) -> Named<'_> {
        match self {
            Address::Channel(name) => Named::Channel(name),
            Address::Node(name) => Named::Node(name),
            Address::Member(channel, node) => Named::Member(channel, node),
        }
    }
}

/// As its names, so that either finds the other in a table.
impl Hash for Address {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.named().hash(state);
    }
}

/// An [`Address`] that owns nothing: for looking one up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Named<'a> {
    /// See [`Address::Channel`].
    Channel(&'a str),
    /// See [`Address::Node`].
    Node(&'a str),
    /// See [`Address::Member`].
    Member(&'a str, &'a str),
}

impl From<Named<'_>> for Address {
    fn from(named: Named<'_>) -> Address {
        match named {
            Named::Channel(name) => Address::Channel(name.into()),
            Named::Node(name) => Address::Node(name.into()),
            Named::Member(channel, node) => Address::Member(channel.into(), node.into()),
        }
    }
}

/// What a look at the routes gave.
#[derive(Debug)]
pub enum Found {
    /// This target, for good.
    Target(Arc<Target>, ChannelId),
    /// Nobody yet, but a configured connection is still on its way.
    NotYet,
}

/// One handle's place in the rotation over one address: smooth weighted round robin over members,
/// plain round robin over a member's links. Exact sequences hold per handle.
#[derive(Debug, Default)]
pub struct Rotation {
    /// One credit per member, in the snapshot's order.
    credit: Vec<i64>,
    /// The next link of each member.
    link: Vec<usize>,
    /// The only link there is to select, until the routes change: no name to look up, no rotation.
    only: Option<(Arc<Target>, ChannelId)>,
}

impl Rotation {
    /// The routes have changed.
    pub fn forget(&mut self) {
        self.only = None;
    }

    /// The only link there is to select, if there is no choice.
    #[inline]
    pub fn only(&self) -> Option<&(Arc<Target>, ChannelId)> {
        self.only.as_ref()
    }

    fn fit(&mut self, members: usize) {
        if self.credit.len() != members {
            self.credit = vec![0; members];
            self.link = vec![0; members];
        }
    }

    fn next_link(&mut self, member: usize, links: &[Arc<Target>]) -> Arc<Target> {
        let at = self.link[member] % links.len();
        self.link[member] = at + 1;
        links[at].clone()
    }

    /// Selects one member that is reachable and has a weight, and one of its links.
    fn select(&mut self, members: &[Member]) -> Option<Arc<Target>> {
        self.fit(members.len());
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (i, member) in members.iter().enumerate() {
            if member.weight == 0 || member.links.is_empty() {
                continue;
            }
            self.credit[i] += i64::from(member.weight);
            total += i64::from(member.weight);
            if best.is_none_or(|b| self.credit[i] > self.credit[b]) {
                best = Some(i);
            }
        }
        let best = best?;
        self.credit[best] -= if cfg!(afflux_mutation = "weights_unsmooth") { self.credit[best] } else { total };
        Some(self.next_link(best, &members[best].links))
    }
}

impl Routes {
    /// Fixes the target of an operation that starts now.
    pub fn find(&self, address: &Address, rotation: &mut Rotation) -> Result<Found, Error> {
        if let Some((target, channel)) = &rotation.only {
            return Ok(Found::Target(target.clone(), *channel));
        }
        match address {
            Address::Channel(name) => {
                let Some(channel) = self.channels.get(name) else { return self.unknown(name) };
                match rotation.select(&channel.members) {
                    Some(target) => {
                        if let [Member { links, .. }] = &channel.members[..]
                            && links.len() == 1
                        {
                            rotation.only = Some((target.clone(), channel.id));
                        }
                        Ok(Found::Target(target, channel.id))
                    }
                    None if channel.members.is_empty() => self.unknown(name),
                    None => {
                        let draining = channel.members.iter().any(|m| !m.links.is_empty());
                        let detail = if draining { Detail::Draining } else { Detail::NotConnected };
                        Err(Error::new(ErrorKind::Unavailable, detail).with(|n| n.target = Some(name.clone())))
                    }
                }
            }
            Address::Member(channel, node) => {
                let Some(channel) = self.channels.get(channel) else { return self.unknown(channel) };
                match channel.members.iter().find(|member| member.node == *node) {
                    Some(member) if !member.links.is_empty() => {
                        rotation.fit(1);
                        Ok(Found::Target(rotation.next_link(0, &member.links), channel.id))
                    }
                    Some(_) => Err(away(node)),
                    None => self.unknown(node),
                }
            }
            Address::Node(name) => match self.nodes.get(name) {
                Some(links) if !links.is_empty() => {
                    rotation.fit(1);
                    Ok(Found::Target(rotation.next_link(0, links), ChannelId::NODE))
                }
                // It was here and is away.
                Some(_) => Err(away(name)),
                None => self.unknown(name),
            },
        }
    }

    fn unknown(&self, name: &Arc<str>) -> Result<Found, Error> {
        if self.settled {
            Err(Error::new(ErrorKind::NotFound, Detail::None).with(|n| n.target = Some(name.clone())))
        } else {
            Ok(Found::NotYet)
        }
    }
}

fn away(name: &Arc<str>) -> Error {
    let kind = if cfg!(afflux_mutation = "away_not_found") { ErrorKind::NotFound } else { ErrorKind::Unavailable };
    Error::new(kind, Detail::NotConnected).with(|n| n.target = Some(name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::{ShardId, TargetId};
    use crate::flow::target::{Dialect, TargetSpec};

    fn target(id: u64) -> Arc<Target> {
        Arc::new(Target::new(TargetSpec {
            id: TargetId(id),
            owner: ShardId(0),
            dialled: true,
            dialect: Dialect::Native,
            label: "peer".into(),
            send_mark: 0,
            waiting_ops: 1,
            waiting_bytes: 1,
            requests: 1,
            reply_bytes: 1,
            publications: None,
        }))
    }

    /// Members with these weights, numbered from 0; one with `None` is away.
    fn serve(weights: &[(u32, Option<u64>)]) -> Routes {
        let members = weights.iter().enumerate().map(|(i, (weight, link))| Member {
            node: i.to_string().into(),
            weight: *weight,
            links: link.iter().map(|id| target(*id)).collect(),
        });
        let mut routes = Routes { settled: true, ..Routes::default() };
        routes.channels.insert("c".into(), Channel { id: ChannelId(0), members: members.collect() });
        routes
    }

    fn find(routes: &Routes, address: &Address, rotation: &mut Rotation) -> Result<u64, (ErrorKind, Detail)> {
        match routes.find(address, rotation) {
            Ok(Found::Target(target, _)) => Ok(target.id.0),
            Ok(Found::NotYet) => panic!("the routes are settled"),
            Err(error) => Err((error.kind(), error.detail())),
        }
    }

    /// Contract 54: the sequence is exact, per handle.
    #[test]
    fn turns_follow_the_weights_exactly() {
        let channel = Address::Channel("c".into());
        let sequence = |weights: &[(u32, Option<u64>)], n: usize| -> Vec<u64> {
            let (routes, mut rotation) = (serve(weights), Rotation::default());
            (0..n).map(|_| find(&routes, &channel, &mut rotation).unwrap()).collect()
        };
        assert_eq!(sequence(&[(100, Some(0)), (100, Some(1))], 6), [0, 1, 0, 1, 0, 1]);
        assert_eq!(sequence(&[(300, Some(0)), (100, Some(1))], 8), [0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(sequence(&[(100, Some(0)), (300, Some(1))], 8), [1, 0, 1, 1, 1, 0, 1, 1]);
        assert_eq!(sequence(&[(100, Some(0)), (0, Some(1)), (10_000, None)], 3), [0, 0, 0]);
    }

    /// Contract 46: unknown is one thing, known and away another; both are told at once.
    #[test]
    fn unknown_is_not_away() {
        let mut routes = serve(&[(100, None)]);
        routes.nodes.insert("away".into(), Vec::new());
        let of = |address: Address| find(&routes, &address, &mut Rotation::default()).unwrap_err();
        let (unknown, away) = ((ErrorKind::NotFound, Detail::None), (ErrorKind::Unavailable, Detail::NotConnected));
        assert_eq!(of(Address::Channel("nobody".into())), unknown);
        assert_eq!(of(Address::Node("nobody".into())), unknown);
        assert_eq!(of(Address::Member("c".into(), "nobody".into())), unknown);
        assert_eq!(of(Address::Channel("c".into())), away);
        assert_eq!(of(Address::Node("away".into())), away);
        assert_eq!(of(Address::Member("c".into(), "0".into())), away);
        let draining = find(&serve(&[(0, Some(1))]), &Address::Channel("c".into()), &mut Rotation::default());
        assert_eq!(draining, Err((ErrorKind::Unavailable, Detail::Draining)));
    }
}
