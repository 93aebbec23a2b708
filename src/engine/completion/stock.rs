//! Stock ZeroMQ peers: one connection carries everything.
//!
//! ```text
//!   they dialled us   DEALER, REQ, PUSH   read by the owner shard, written on the completion lane: requests and answers
//!   we dialled them   ROUTER, REP         read here, written on the application lane: what comes are answers to us
//!                     PULL                the same, and nothing comes
//! ```
//!
//! What is read from a peer that we dialled are answers alone, so it is read like a completion lane: outside
//! permits and marks, while every shard may be stuck.

use std::sync::Arc;

use super::{CompletionAction, CompletionEngine, ConnKey, State, Up};
use crate::engine::command::{Attach, ShardCommand};
use crate::engine::lanes;
use crate::flow::link_clock::{LinkClock, clock_ms};
use crate::flow::liveness::Peer;
use crate::flow::pressure::{Heard, Told};
use crate::flow::reader::Reader;
use crate::flow::target::{Dialect, Post, Serves, Target};
use crate::wire::decode::{Decoder, Mode};
use crate::wire::ready::PeerHello;

/// What a link of one connection is made of.
pub(super) struct Single {
    pub(super) target: Arc<Target>,
    pub(super) dial: Option<u32>,
    pub(super) mode: Mode,
    /// The minor revision that the peer speaks.
    pub(super) minor: u8,
    pub(super) carry: Vec<u8>,
}

/// What a stock peer calls itself, if that can be read.
pub(super) fn label_of(peer: &PeerHello) -> Option<Arc<str>> {
    let text = std::str::from_utf8(&peer.identity).ok()?;
    (!text.is_empty() && text.chars().all(|c| c.is_ascii_graphic())).then(|| text.into())
}

impl CompletionEngine {
    /// A stock peer that dialled us.
    pub(super) fn stock_up(&mut self, key: ConnKey, peer: PeerHello, mode: Mode, carry: Vec<u8>) {
        let label = label_of(&peer).unwrap_or_else(|| "zmq peer".into());
        let target = self.new_target(false, Dialect::Stock, Serves::Node, label);
        target.set_metadata(peer.metadata);
        self.single_up(key, Single { target, dial: None, mode, minor: peer.minor, carry });
    }

    /// A link is up whose owner reads its one connection, and which is written on the completion lane; says
    /// its number.
    pub(super) fn single_up(&mut self, key: ConnKey, single: Single) -> Option<u64> {
        let Single { target, dial, mode, minor, carry } = single;
        let transport = self.remove(key)?.transport?;
        let now = self.shared.clock.now();
        let link = self.attach_number(&target, u64::MAX);
        self.actions.push_back(CompletionAction::Unwatch { transport: transport.clone() });
        lanes::post(&self.shared, &target, Post::Attach { link, transport: transport.clone() });
        self.ups.insert(
            target.id,
            Up {
                target: target.clone(),
                link,
                node: target.label(),
                native: false,
                instance: 0,
                theirs: None,
                completion: None,
                application: transport.clone(),
                dial,
                heard_at: now,
                ended: false,
                beat: None,
                owner_turns: 0,
                channels: Vec::new(),
                liveness: self.liveness(Peer::Stock { pings: minor > 0 }, now),
                clock: LinkClock::new(clock_ms(now), now),
                told: Told::default(),
                heard: Heard::default(),
            },
        );
        target.link.set(link);
        let channels = Vec::new();
        let attach = Attach { target: target.clone(), link, transport, carry, channels, mode, one_way: false };
        self.command(target.owner, ShardCommand::Attach(Box::new(attach)));
        self.came_up(&target, link, now);
        Some(link)
    }

    /// A stock peer at an address that we dial: it gets the dial's target, with its queue.
    pub(super) fn stock_dialled(&mut self, key: ConnKey, at: u32, peer: &PeerHello, carry: Vec<u8>) {
        let now = self.shared.clock.now();
        // A native pair was tried; one connection is all that this peer has use for.
        let others = std::mem::take(&mut self.dials[at as usize].conns);
        for other in others.into_iter().flatten().filter(|other| *other != key) {
            self.let_go(other);
        }
        let dial = &mut self.dials[at as usize];
        dial.backoff.reset();
        dial.had_outcome = true;
        let label = dial.name.clone().unwrap_or_else(|| dial.to.to_string().into());
        dial.seen = Some(label.clone());
        let target = dial.target.clone();
        target.set_metadata(peer.metadata.clone());
        let Some(transport) = self.conn(key).and_then(|conn| conn.transport.clone()) else { return };
        let link = self.attach_number(&target, u64::MAX);
        if let Some(conn) = self.conn(key) {
            conn.state = State::Lane(target.id);
        }
        self.settled(key);
        let decoder = Decoder::new(Mode::StockAnswering, self.shared.plan.max_message);
        self.set_reader(&target, Some(Reader::new(transport.clone(), decoder, carry, link)));
        self.ups.insert(
            target.id,
            Up {
                target: target.clone(),
                link,
                node: label,
                native: false,
                instance: 0,
                theirs: None,
                completion: Some(key),
                application: transport.clone(),
                dial: Some(at),
                heard_at: now,
                ended: false,
                beat: None,
                owner_turns: 0,
                channels: Vec::new(),
                liveness: self.liveness(Peer::Stock { pings: peer.minor > 0 }, now),
                clock: LinkClock::new(clock_ms(now), now),
                told: Told::default(),
                heard: Heard::default(),
            },
        );
        target.link.set(link);
        let mode = Mode::StockAnswering;
        let (carry, channels, one_way) = (Vec::new(), Vec::new(), self.dials[at as usize].pull);
        let attach = Attach { target: target.clone(), link, transport, carry, channels, mode, one_way };
        self.command(target.owner, ShardCommand::Attach(Box::new(attach)));
        self.came_up(&target, link, now);
        self.read_lane(target.id);
    }

    /// Ends a connection of a dial that is under way; it is neither a failure nor tried again.
    pub(super) fn let_go(&mut self, key: ConnKey) {
        let Some(conn) = self.remove(key) else { return };
        self.actions.push_back(match conn.transport {
            Some(transport) => {
                transport.shutdown();
                CompletionAction::Unwatch { transport }
            }
            None => CompletionAction::Forget { conn: key },
        });
    }

    /// Says something by a command. A stock peer that we dialled to ask has one connection, and its owner writes
    /// it.
    pub(super) fn say(&mut self, target: &Arc<Target>, link: u64, frame: Vec<u8>) {
        let ours = target.dialect == Dialect::Native && self.ups.get(&target.id).is_some_and(|up| !up.native);
        if ours {
            let command = ShardCommand::Say { target: target.clone(), link, frame };
            self.command(target.owner, command);
        } else {
            lanes::post(&self.shared, target, Post::Command { link, frame: frame.into() });
        }
    }
}
