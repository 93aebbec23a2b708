//! Subscribing: what is wanted of publishers elsewhere, and the seat that gets it.
//!
//! What is wanted is a set of prefixes per role, the same at each of its publishers. It is told whole on
//! every new connection and by its changes afterwards, by the completion thread alone, so a publisher
//! hears each change in order and a reconnect forgets none. Publications take the ordinary way: receive
//! queue, permit, handler.
//!
//! Full: a role has [`SUBSCRIPTIONS_MAX`] prefixes of [`SUBSCRIPTION_LEN_MAX`] bytes each and
//! [`SUBSCRIPTION_TEXT_MAX`] together at most; more are refused with an error. A publisher that does not
//! read what it is told loses its connection and is told everything on the next.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;

use super::core::{ContinuationKey, Core};
use super::handler::Handler;
use super::seat::{HandlerSeat, Seat, Start};
use super::shared::{HostShared, Outcome};
use crate::base::error::{Detail, Error, ErrorKind};
use crate::plan::{SUBSCRIPTION_LEN_MAX, SUBSCRIPTION_TEXT_MAX, SUBSCRIPTIONS_MAX, SubscriberPlan};
use crate::sync::lock::Lock;
use crate::sync::task::TaskKey;
use crate::sync::word::Latch;
use crate::wire::command::write_subscription;
use crate::wire::stock::Publication;

/// A prefix.
pub type Prefix = Arc<[u8]>;

/// All roles of a host that subscribe.
#[derive(Debug)]
pub struct Subscribing {
    /// In the order of the plan.
    pub roles: Vec<Role>,
    /// Some role wants something else than it was told.
    pub changed: Latch,
}

/// What one role wants.
#[derive(Debug)]
pub struct Role {
    /// What the program calls it.
    pub name: Arc<str>,
    wanted: Lock<Wanted>,
}

#[derive(Debug, Default)]
struct Wanted {
    prefixes: BTreeSet<Prefix>,
    /// The sum of their lengths.
    text: usize,
    /// What publishers have not been told: the latest of each prefix.
    changes: BTreeMap<Prefix, bool>,
}

impl Subscribing {
    /// As the plan says.
    pub fn new(plans: &[SubscriberPlan]) -> Self {
        let role = |plan: &SubscriberPlan| {
            let prefixes: BTreeSet<Prefix> = plan.topics.iter().cloned().collect();
            let text = prefixes.iter().map(|p| p.len()).sum();
            let wanted = Wanted { prefixes, text, changes: BTreeMap::new() };
            Role { name: plan.name.clone(), wanted: Lock::new(wanted) }
        };
        Subscribing { roles: plans.iter().map(role).collect(), changed: Latch::new() }
    }
}

impl Role {
    /// Wants a prefix, or no longer. False: that is so already.
    fn change(&self, prefix: &[u8], wanted: bool) -> Result<bool, Error> {
        let mut guard = self.wanted.lock();
        let now = &mut *guard;
        if now.prefixes.contains(prefix) == wanted {
            return Ok(false);
        }
        let limit = |requested: usize, limit: usize, what: &str| {
            let error = Error::new(ErrorKind::CapacityExceeded, Detail::None);
            Err(error.with_text(format!("subscriber {}: {requested} of at most {limit} {what}", self.name)))
        };
        if wanted && prefix.len() > SUBSCRIPTION_LEN_MAX {
            return limit(prefix.len(), SUBSCRIPTION_LEN_MAX, "bytes of one prefix");
        }
        if wanted && now.prefixes.len() == SUBSCRIPTIONS_MAX {
            return limit(now.prefixes.len() + 1, SUBSCRIPTIONS_MAX, "prefixes");
        }
        if wanted && now.text + prefix.len() > SUBSCRIPTION_TEXT_MAX {
            return limit(now.text + prefix.len(), SUBSCRIPTION_TEXT_MAX, "bytes of prefixes");
        }
        if now.changes.len() == SUBSCRIPTIONS_MAX && !now.changes.contains_key(prefix) {
            return limit(now.changes.len() + 1, SUBSCRIPTIONS_MAX, "changes that no publisher was told yet");
        }
        let prefix: Prefix = prefix.into();
        if wanted {
            now.text += prefix.len();
            now.prefixes.insert(prefix.clone());
        } else {
            now.text -= prefix.len();
            now.prefixes.remove(&prefix);
        }
        now.changes.insert(prefix, wanted);
        Ok(true)
    }

    /// What changed since the last time.
    pub(super) fn take_changes(&self) -> BTreeMap<Prefix, bool> {
        take(&mut self.wanted.lock().changes)
    }

    /// Everything that is wanted, as frames for a peer of that minor revision.
    pub(super) fn frames(&self, minor: u8) -> Vec<u8> {
        let mut out = Vec::new();
        for prefix in &self.wanted.lock().prefixes {
            write_subscription(minor, true, prefix, &mut out);
        }
        out
    }

    fn prefixes(&self) -> Vec<Prefix> {
        self.wanted.lock().prefixes.iter().cloned().collect()
    }
}

/// A role that subscribes, at run time. Cheap to clone, for any thread.
#[derive(Clone, Debug)]
pub struct Subscriber {
    shared: Arc<HostShared>,
    role: usize,
}

impl Subscriber {
    /// The role of that name; else `NotConfigured`.
    pub(crate) fn new(shared: Arc<HostShared>, name: &str) -> Result<Self, Error> {
        match shared.subscribing.roles.iter().position(|role| &*role.name == name) {
            Some(role) => Ok(Subscriber { shared, role }),
            None => Err(Error::new(ErrorKind::NotConfigured, Detail::None)
                .with_text(format!("this host has no subscriber {name:?}: HostBuilder::subscriber makes one"))),
        }
    }

    fn role(&self) -> &Role {
        &self.shared.subscribing.roles[self.role]
    }

    /// Wants publications whose topic begins with `prefix`, from all publishers of the role and on every
    /// later connection. Empty: all of them. False: it does so already, prefixes are a set. Returns
    /// before any publisher knows, and what was published before it knows does not come. At most 16,384
    /// prefixes of 4 KiB each and 1 MiB together: `CapacityExceeded` beyond.
    pub fn subscribe(&self, prefix: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.change(prefix.as_ref(), true)
    }

    /// No longer wants exactly this prefix; others that fit the same topics stay. False: it was not
    /// subscribed to. Publications that are under way still come.
    pub fn unsubscribe(&self, prefix: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.change(prefix.as_ref(), false)
    }

    /// What is subscribed to, in order.
    pub fn subscriptions(&self) -> Vec<Prefix> {
        self.role().prefixes()
    }

    fn change(&self, prefix: &[u8], wanted: bool) -> Result<bool, Error> {
        let changed = self.role().change(prefix, wanted)?;
        if changed {
            self.shared.subscribing.changed.raise();
            self.shared.completion.wake.wake();
        }
        Ok(changed)
    }
}

/// The seat of a role that subscribes: one handler per shard, as for a channel.
pub struct SubscriberSeat<H: Handler, F>(HandlerSeat<H, F>);

impl<H: Handler, F: Fn(usize) -> H> SubscriberSeat<H, F> {
    /// An empty seat: the instance is made at its first publication.
    pub fn new(factory: Arc<F>, shard: usize, seat: u16) -> Self {
        SubscriberSeat(HandlerSeat::new(factory, shard, seat))
    }
}

impl<H: Handler, F: Fn(usize) -> H> Seat for SubscriberSeat<H, F> {
    fn start(&mut self, core: &mut Core, start: Start<'_>) {
        let Start { record, peer, place, lineage, .. } = start;
        match Publication::of(take(&mut record.payload)) {
            Some(publication) => {
                self.0.call(core, place, lineage, peer.clone(), |handler, cx| handler.publication(publication, cx));
            }
            None => debug_assert!(false, "decoded as a publication"),
        }
        core.leave_place(place);
    }

    fn resume(&mut self, core: &mut Core, key: ContinuationKey, outcome: Outcome) {
        self.0.resume(core, key, outcome);
    }

    fn poll(&mut self, core: &mut Core, key: TaskKey) {
        self.0.poll(core, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(topics: &[&str]) -> Role {
        let plan = SubscriberPlan {
            name: "ticks".into(),
            publishers: Vec::new(),
            accepts: false,
            topics: topics.iter().map(|t| t.as_bytes().into()).collect(),
        };
        Subscribing::new(&[plan]).roles.remove(0)
    }

    #[test]
    fn a_new_connection_is_told_everything_and_the_others_the_changes() {
        let role = role(&["a", "b"]);
        assert!(!role.change(b"a", true).unwrap());
        assert!(role.change(b"c", true).unwrap());
        assert!(role.change(b"b", false).unwrap());
        assert!(role.change(b"d", true).unwrap() && role.change(b"d", false).unwrap());
        assert_eq!(role.frames(1), b"\x04\x0b\x09SUBSCRIBEa\x04\x0b\x09SUBSCRIBEc");
        assert_eq!(role.frames(0), b"\0\x02\x01a\0\x02\x01c");
        let changes: Vec<_> = role.take_changes().into_iter().map(|(p, wanted)| (p[0], wanted)).collect();
        assert_eq!(changes, [(b'b', false), (b'c', true), (b'd', false)]);
        assert!(role.take_changes().is_empty());
    }

    #[test]
    fn limits_are_named() {
        let role = role(&[]);
        let e = role.change(&[0; SUBSCRIPTION_LEN_MAX + 1], true).unwrap_err();
        assert!(e.to_string().contains("4097 of at most 4096 bytes of one prefix"), "{e}");
        for i in 0..SUBSCRIPTIONS_MAX as u32 {
            role.change(&i.to_be_bytes(), true).unwrap();
        }
        let e = role.change(b"one more", true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::CapacityExceeded);
        role.take_changes();
        assert!(role.change(&0_u32.to_be_bytes(), false).unwrap());
        assert!(role.change(b"one more", true).unwrap());
    }
}
