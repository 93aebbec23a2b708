//! Routes: which targets a name stands for now. The snapshot is immutable and replaced whole, by
//! the completion thread alone; a handle keeps one and looks at a version word per operation.
//!
//! A target is fixed once, when an operation starts. Nothing that happens later re-selects it.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::base::error::{Detail, Error, ErrorKind};
use crate::base::id::ChannelId;
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
        self.credit[best] -= total;
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
    Error::new(ErrorKind::Unavailable, Detail::NotConnected).with(|n| n.target = Some(name.clone()))
}
