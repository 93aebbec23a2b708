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

/// Whom one role of a client asks.
#[derive(Clone, Debug)]
pub struct Servers {
    /// Who of them has ever served it.
    pub channel: Channel,
    /// Every one that is dialled has had an outcome.
    pub settled: bool,
}

/// What is known of the world.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Channels by name.
    pub channels: HashMap<Arc<str>, Channel>,
    /// What this host asks as a client, by role: its servers, and whether every one of them has had an outcome.
    pub servers: HashMap<Arc<str>, Servers>,
    /// Nodes that are here as clients only.
    pub clients: HashSet<Arc<str>>,
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
    /// Any ready server of that role, which this host has as a client.
    Server(Arc<str>),
}

impl Address {
    /// The name without its sort.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Address::Channel(name) | Address::Node(name) | Address::Member(_, name) | Address::Server(name) => name,
        }
    }

    /// It by its names alone.
    pub fn named(&self) -> Named<'_> {
        match self {
            Address::Channel(name) => Named::Channel(name),
            Address::Node(name) => Named::Node(name),
            Address::Member(channel, node) => Named::Member(channel, node),
            Address::Server(name) => Named::Server(name),
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
    /// See [`Address::Server`].
    Server(&'a str),
}

impl From<Named<'_>> for Address {
    fn from(named: Named<'_>) -> Address {
        match named {
            Named::Channel(name) => Address::Channel(name.into()),
            Named::Node(name) => Address::Node(name.into()),
            Named::Member(channel, node) => Address::Member(channel.into(), node.into()),
            Named::Server(name) => Address::Server(name.into()),
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
            let weight = if cfg!(afflux_mutation = "shares_ignored") { 1 } else { member.weight };
            self.credit[i] += i64::from(weight);
            total += i64::from(weight);
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
            Address::Channel(name) => match self.channels.get(name) {
                Some(channel) => select(name, channel, rotation, self.settled),
                None => unknown(name, self.settled),
            },
            Address::Server(name) => match self.servers.get(name) {
                Some(servers) => select(name, &servers.channel, rotation, servers.settled),
                // The role is not this host's. Handles for such are not made, but an address is only a name.
                None => Err(Error::new(ErrorKind::NotConfigured, Detail::None).with(|n| n.target = Some(name.clone()))),
            },
            Address::Member(channel, node) => {
                let Some(channel) = self.channels.get(channel) else { return unknown(channel, self.settled) };
                match channel.members.iter().find(|member| member.node == *node) {
                    Some(member) if !member.links.is_empty() => {
                        rotation.fit(1);
                        Ok(Found::Target(rotation.next_link(0, &member.links), channel.id))
                    }
                    Some(_) => Err(away(node)),
                    None => unknown(node, self.settled),
                }
            }
            Address::Node(name) => match self.nodes.get(name) {
                Some(links) if !links.is_empty() => {
                    rotation.fit(1);
                    Ok(Found::Target(rotation.next_link(0, links), ChannelId::NODE))
                }
                // It was here and is away.
                Some(_) => Err(away(name)),
                None if self.clients.contains(name) => {
                    let error = Error::new(ErrorKind::InvalidOperation, Detail::OnlyClientStarts);
                    Err(error.with(|n| n.target = Some(name.clone())))
                }
                None => unknown(name, self.settled),
            },
        }
    }
}

/// Selects a member of `channel` and one of its links.
fn select(name: &Arc<str>, channel: &Channel, rotation: &mut Rotation, settled: bool) -> Result<Found, Error> {
    match rotation.select(&channel.members) {
        Some(target) => {
            if let [Member { links, .. }] = &channel.members[..]
                && links.len() == 1
            {
                rotation.only = Some((target.clone(), channel.id));
            }
            Ok(Found::Target(target, channel.id))
        }
        None if channel.members.is_empty() => unknown(name, settled),
        None => {
            let draining = channel.members.iter().any(|m| !m.links.is_empty());
            let detail = if draining { Detail::Draining } else { Detail::NotConnected };
            Err(Error::new(ErrorKind::Unavailable, detail).with(|n| n.target = Some(name.clone())))
        }
    }
}

fn unknown(name: &Arc<str>, settled: bool) -> Result<Found, Error> {
    if settled {
        Err(Error::new(ErrorKind::NotFound, Detail::None).with(|n| n.target = Some(name.clone())))
    } else {
        Ok(Found::NotYet)
    }
}

fn away(name: &Arc<str>) -> Error {
    let kind = if cfg!(afflux_mutation = "away_not_found") { ErrorKind::NotFound } else { ErrorKind::Unavailable };
    Error::new(kind, Detail::NotConnected).with(|n| n.target = Some(name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::flow::target::TargetSpec;

    fn target(id: u64) -> Arc<Target> {
        Arc::new(Target::new(TargetSpec::peer(id)))
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

    /// A member of that weight with so many links; its links' ids are ten times its name and up.
    fn member(name: u64, weight: u32, links: u64) -> Member {
        Member { node: format!("{name}").into(), weight, links: (0..links).map(|i| target(10 * name + i)).collect() }
    }

    fn serving(members: Vec<Member>) -> Routes {
        let mut routes = Routes { settled: true, ..Routes::default() };
        routes.channels.insert("work".into(), Channel { id: ChannelId(3), members });
        routes
    }

    fn work() -> Address {
        Address::Channel("work".into())
    }

    /// The links of so many operations in a row.
    fn turns(routes: &Routes, rotation: &mut Rotation, n: usize) -> Vec<u64> {
        let mut turn = || match routes.find(&work(), rotation) {
            Ok(Found::Target(target, ChannelId(3))) => target.id.0,
            other => panic!("{other:?}"),
        };
        (0..n).map(|_| turn()).collect()
    }

    fn sequence(members: Vec<Member>, n: usize) -> Vec<u64> {
        turns(&serving(members), &mut Rotation::default(), n)
    }

    #[test]
    fn several_weights_have_an_exact_sequence_too() {
        let of = |weights: &[u32]| {
            let members = weights.iter().zip(1..).map(|(weight, name)| member(name, *weight, 1)).collect();
            sequence(members, 8)
        };
        assert_eq!(of(&[100, 100]), [10, 20, 10, 20, 10, 20, 10, 20]);
        assert_eq!(of(&[1, 1, 2]), [30, 10, 20, 30, 30, 10, 20, 30]);
        assert_eq!(of(&[10_000, 0]), [10; 8], "weight 0 is given nothing");
        assert_eq!(of(&[7]), [10; 8]);
    }

    /// Over any full round every member has exactly its weight's share, wherever the round begins.
    #[test]
    fn every_round_gives_each_its_share() {
        let weights = [5, 1, 3];
        let members = weights.iter().zip(1..).map(|(weight, name)| member(name, *weight, 1)).collect();
        let turns = sequence(members, 90);
        for round in turns.windows(9) {
            for (weight, name) in weights.iter().zip(1..) {
                assert_eq!(round.iter().filter(|id| **id == 10 * name).count() as u32, *weight, "{round:?}");
            }
        }
    }

    /// A member's links take turns; how many it has changes nothing of its share.
    #[test]
    fn links_do_not_weigh() {
        assert_eq!(sequence(vec![member(1, 100, 2), member(2, 100, 1)], 8), [10, 20, 11, 20, 10, 20, 11, 20]);
    }

    /// Two handles have a rotation each.
    #[test]
    fn a_handle_has_its_own_sequence() {
        let routes = serving(vec![member(1, 300, 1), member(2, 100, 1)]);
        let (mut a, mut b) = (Rotation::default(), Rotation::default());
        assert_eq!(turns(&routes, &mut a, 3), [10, 10, 20]);
        assert_eq!(turns(&routes, &mut b, 3), [10, 10, 20]);
    }

    /// Who is not reachable, or drains, is passed over; the others keep their proportion.
    #[test]
    fn only_ready_members_are_selected() {
        let away = member(1, 500, 0);
        let drained = member(2, 0, 1);
        let turns = sequence(vec![away, drained, member(3, 300, 1), member(4, 100, 1)], 8);
        assert_eq!(turns, [30, 30, 40, 30, 30, 30, 40, 30]);
    }

    fn ends(routes: &Routes, address: &Address) -> (ErrorKind, Detail) {
        let error = routes.find(address, &mut Rotation::default()).unwrap_err();
        assert_eq!(error.figures().target.as_ref(), Some(address.name()));
        (error.kind(), error.detail())
    }

    /// Never announced is `NotFound`; known and not to be had is `Unavailable`, with the reason.
    #[test]
    fn not_found_is_not_unavailable() {
        let nobody = Routes { settled: true, ..Routes::default() };
        assert_eq!(ends(&nobody, &work()), (ErrorKind::NotFound, Detail::None));
        assert_eq!(ends(&serving(vec![]), &work()), (ErrorKind::NotFound, Detail::None));
        let away = (ErrorKind::Unavailable, Detail::NotConnected);
        assert_eq!(ends(&serving(vec![member(1, 100, 0)]), &work()), away);
        assert_eq!(ends(&serving(vec![member(1, 0, 0)]), &work()), away);
        let draining = (ErrorKind::Unavailable, Detail::Draining);
        assert_eq!(ends(&serving(vec![member(1, 0, 1)]), &work()), draining);
        assert_eq!(ends(&serving(vec![member(1, 100, 0), member(2, 0, 1)]), &work()), draining);

        let mut routes = serving(vec![member(1, 100, 1)]);
        routes.nodes.insert("seen".into(), vec![]);
        routes.clients.insert("guest".into());
        let node = |name: &str| Address::Node(name.into());
        assert_eq!(ends(&routes, &node("nobody")), (ErrorKind::NotFound, Detail::None));
        assert_eq!(ends(&routes, &node("seen")), away);
        assert_eq!(ends(&routes, &node("guest")), (ErrorKind::InvalidOperation, Detail::OnlyClientStarts));
        let server = Address::Server("desk".into());
        assert_eq!(ends(&routes, &server), (ErrorKind::NotConfigured, Detail::None));
    }

    /// While a connection may yet bring somebody, what is not known is waited for; what is known is not.
    #[test]
    fn before_the_first_outcome_the_unknown_is_waited_for() {
        let mut routes = Routes::default();
        for address in [work(), Address::Node("a".into()), Address::Member("work".into(), "a".into())] {
            assert!(matches!(routes.find(&address, &mut Rotation::default()), Ok(Found::NotYet)), "{address:?}");
        }
        // Each role of a client waits for its own servers.
        let channel = || Channel { id: ChannelId(0), members: vec![] };
        for (name, settled) in [("desk", false), ("till", true)] {
            routes.servers.insert(name.into(), Servers { channel: channel(), settled });
        }
        let desk = Address::Server("desk".into());
        assert!(matches!(routes.find(&desk, &mut Rotation::default()), Ok(Found::NotYet)));
        assert_eq!(ends(&routes, &Address::Server("till".into())), (ErrorKind::NotFound, Detail::None));
        routes.channels.insert("work".into(), Channel { id: ChannelId(3), members: vec![member(1, 100, 0)] });
        assert_eq!(ends(&routes, &work()), (ErrorKind::Unavailable, Detail::NotConnected));
    }
}
