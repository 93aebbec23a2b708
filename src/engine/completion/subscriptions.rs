//! Publishers, dialled as SUB or come as PUB, and what they are told; and subscribers that dialled us.

use std::sync::Arc;

use super::stock::{Single, label_of};
use super::{CompletionEngine, ConnKey, Dial, Mode, PeerHello, State, Timer};
use crate::base::id::TargetId;
use crate::base::time::Instant;
use crate::engine::command::ShardCommand;
use crate::engine::lanes;
use crate::flow::backoff::Backoff;
use crate::flow::target::{Dialect, Post, Serves};
use crate::plan::Endpoint;
use crate::wire::command::write_subscription;

/// A publisher that is connected.
pub(super) struct Listening {
    pub(super) target: TargetId,
    link: u64,
    role: usize,
    minor: u8,
}

impl CompletionEngine {
    /// Dials for every role and publisher of the plan.
    pub(super) fn add_subscriptions(&mut self) {
        let plan = self.shared.plan.clone();
        for (role, subscriber) in plan.subscribers.iter().enumerate() {
            for to in &subscriber.publishers {
                self.add_publisher(role, to.clone());
            }
        }
    }

    fn add_publisher(&mut self, role: usize, to: Endpoint) {
        let target = self.new_target(true, Dialect::Publisher(self.seat_of(role)), Serves::Node, to.to_string().into());
        self.command(target.owner, ShardCommand::Adopt(target.clone()));
        let at = self.dials.len() as u32;
        let backoff = Backoff::new(self.shared.plan.reconnect_min, self.shared.plan.reconnect_max);
        self.dials.push(Dial {
            target,
            to,
            name: None,
            slot: 0,
            backoff,
            conns: [None; 2],
            had_outcome: false,
            seen: None,
            role: Some(role),
            pull: false,
            server: None,
        });
        self.set_timer(Instant(0), Timer::Redial(at));
    }

    /// A publisher was dialled and took us for a subscriber.
    pub(super) fn publisher_up(&mut self, key: ConnKey, at: u32, role: usize, peer: PeerHello, carry: Vec<u8>) {
        let dial = &mut self.dials[at as usize];
        dial.backoff.reset();
        dial.had_outcome = true;
        dial.conns = [None; 2];
        dial.target.set_metadata(peer.metadata);
        let single =
            Single { target: dial.target.clone(), dial: Some(at), mode: Mode::Publisher, minor: peer.minor, carry };
        self.listen_to(key, role, single);
    }

    /// A publisher dialled us.
    pub(super) fn publisher_came(&mut self, key: ConnKey, peer: PeerHello, carry: Vec<u8>) {
        let Some(role) = self.shared.plan.subscribers.iter().position(|role| role.accepts) else {
            return self.close(key, "it publishes, and no subscriber here takes publishers that connect");
        };
        let label = label_of(&peer).unwrap_or_else(|| format!("publisher {}", self.next_target).into());
        let target = self.new_target(false, Dialect::Publisher(self.seat_of(role)), Serves::Node, label);
        target.set_metadata(peer.metadata);
        self.listen_to(key, role, Single { target, dial: None, mode: Mode::Publisher, minor: peer.minor, carry });
    }

    /// Seats of roles stand behind those of channels and servers.
    fn seat_of(&self, role: usize) -> u16 {
        (self.shared.plan.channels.len() + self.shared.plan.servers.len() + role) as u16
    }

    /// A publisher is up, and is told what is wanted.
    fn listen_to(&mut self, key: ConnKey, role: usize, up: Single) {
        let (target, minor) = (up.target.clone(), up.minor);
        let Some(link) = self.single_up(key, up) else { return };
        // What changed up to now is told to the others; this one is told everything.
        self.tell_changes();
        self.listening.push(Listening { target: target.id, link, role, minor });
        let frames = self.shared.subscribing.roles[role].frames(minor);
        lanes::post(&self.shared, &target, Post::Subscriptions { link, frames: frames.into() });
    }

    /// Somebody connected who wants our publications.
    pub(super) fn subscriber_up(&mut self, key: ConnKey, peer: PeerHello, carry: Vec<u8>) {
        let Some(conn) = self.conn(key) else { return };
        debug_assert!(matches!(conn.state, State::Connecting(_)), "its handshake is over");
        let label: Arc<str> = match label_of(&peer) {
            Some(label) => label,
            None => format!("subscriber {}", self.next_target).into(),
        };
        let target = self.new_target(false, Dialect::Subscriber, Serves::Node, label);
        target.set_metadata(peer.metadata);
        let up = Single { target: target.clone(), dial: None, mode: Mode::Subscriber, minor: peer.minor, carry };
        if let Some(publishing) = &self.shared.publishing {
            publishing.join(&target);
        }
        self.single_up(key, up);
    }

    /// Tells publishers what is wanted now and was not before.
    pub(super) fn tell_changes(&mut self) {
        if !self.shared.subscribing.changed.lower() {
            return;
        }
        for (role, wanted) in self.shared.subscribing.roles.iter().enumerate() {
            let changes = wanted.take_changes();
            if changes.is_empty() {
                continue;
            }
            for listening in self.listening.iter().filter(|l| l.role == role) {
                let mut frames = Vec::new();
                for (prefix, subscribe) in &changes {
                    write_subscription(listening.minor, *subscribe, prefix, &mut frames);
                }
                if let Some(target) = self.targets.get(&listening.target) {
                    let link = listening.link;
                    lanes::post(&self.shared, target, Post::Subscriptions { link, frames: frames.into() });
                }
            }
        }
    }

    /// What has to be forgotten with a link.
    pub(super) fn unsubscribe(&mut self, id: TargetId) {
        self.listening.retain(|l| l.target != id);
        if let Some(publishing) = &self.shared.publishing {
            publishing.leave(id);
        }
    }
}
