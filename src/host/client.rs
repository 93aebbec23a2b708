//! Calling: the handles that threads and tasks of a user hold.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::base::error::{Error, SendError};
use crate::base::record::{Kind, Method};
use crate::engine::call::{Lineage, Op, Origin, RequestOp, SendOp};
use crate::engine::handle::{Handle, Order};
use crate::engine::multicast::MulticastOp;
use crate::engine::shared::{Class, HostShared};
use crate::pattern::route::Address;

/// Makes handles for calling. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<HostShared>,
}

impl Client {
    /// Over any host's shared memory: for simulations, which run hosts without threads.
    #[doc(hidden)]
    pub fn new(shared: Arc<HostShared>) -> Self {
        Client { shared }
    }

    /// Any ready member of the channel: one is selected per operation, by smooth weighted round
    /// robin, right before it starts; nothing re-selects it later. Until every configured
    /// connection has had its first outcome, a call to a channel that nobody is known for waits
    /// under its own deadline; afterwards it is `NotFound` at once, and `Unavailable` if members
    /// are known but none is connected.
    pub fn channel(&self, name: &str) -> Channel {
        Channel::new(self.shared.clone(), Address::Channel(name.into()))
    }

    /// Any ready server of a role that this host has by
    /// [`HostBuilder::client_of`](crate::HostBuilder::client_of), selected as for [`channel`](Self::channel); sends end at
    /// the role's own ceiling. `NotConfigured` if the host is no client of that name.
    pub fn server(&self, name: &str) -> Result<Channel, Error> {
        let address = self.shared.server(name)?;
        Ok(Channel::new(self.shared.clone(), address))
    }

    /// The node of that name and no other. If it was configured by `connect(..).named(..)` it may be
    /// called before it was ever seen and while it is away: what is sent waits in its queue.
    pub fn node(&self, name: &str) -> Channel {
        Channel::new(self.shared.clone(), Address::Node(name.into()))
    }
}

/// A handle for one channel, node or role of servers: an origin with a ring of its own to each shard that it uses
/// (while there are any of `max_caller_rings` left). Operations of one handle to one target keep
/// their order, from whatever thread; a clone is a new origin. Threads that share one handle work
/// one at a time, so clone it per thread or task.
pub struct Channel {
    handle: Handle,
    address: Address,
    slot: usize,
    /// Of the socket that its sends go out by.
    send_timeout: Duration,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Channel").field(&self.address).finish()
    }
}

impl Clone for Channel {
    fn clone(&self) -> Self {
        Channel::new(self.handle.shared().clone(), self.address.clone())
    }
}

impl Channel {
    fn new(shared: Arc<HostShared>, address: Address) -> Self {
        let send_timeout = shared.send_ceiling(&address);
        let handle = Handle::new(shared, Class::Caller);
        let slot = handle.slot(&address);
        Channel { handle, address, slot, send_timeout }
    }

    /// A one-way send. Its success says that this host's runtime accepted the record: not that the
    /// peer has it, and not that a handler ran. Its ceiling is the node's send timeout, or that of the client's role.
    /// The method is at most 255 bytes.
    #[inline]
    pub fn send(&self, method: &str, payload: impl Into<Bytes>) -> SendOp<'_> {
        let timeout = self.send_timeout;
        Op::new(Origin::Borrowed(&self.handle), self.slot, method, payload.into(), timeout, Lineage::default())
    }

    /// A request. Its deadline, the host's request timeout unless [`Op::timeout`] says otherwise,
    /// covers finding a member, waiting for room and the reply. A timeout ends the wait, not the
    /// remote handler.
    #[inline]
    pub fn request(&self, method: &str, payload: impl Into<Bytes>) -> RequestOp<'_> {
        let timeout = self.handle.shared().plan.request_timeout;
        Op::new(Origin::Borrowed(&self.handle), self.slot, method, payload.into(), timeout, Lineage::default())
    }

    /// A one-way send to every member of the channel that is reachable when it starts, this host included if it
    /// serves it: an ordinary send each, under a ceiling of its own (the node's send timeout, or
    /// [`MulticastOp::timeout`]), so a slow member holds nobody else. No member is a success. On a handle for
    /// a node or for servers it is one send.
    pub fn multicast(&self, method: &str, payload: impl Into<Bytes>) -> MulticastOp<'_> {
        MulticastOp::new(&self.handle, self.address.clone(), method, payload.into(), self.send_timeout)
    }

    /// Admits a one-way record now or gives it back. Never waits and never overtakes an operation
    /// that does.
    pub fn try_send(&self, method: &str, payload: impl Into<Bytes>) -> Result<(), SendError> {
        let order = Order {
            kind: Kind::Message,
            slot: self.slot,
            method: Method::new(method),
            payload: payload.into(),
            timeout: self.send_timeout,
            inherited: None,
            depth: 0,
        };
        self.handle.try_send(order).map_err(|(error, payload)| SendError::new(error, payload))
    }
}
