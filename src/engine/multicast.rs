//! Logical multicast: one ordinary send per member of a channel, each under a ceiling of its own.
//!
//! ```text
//!   members reachable at the start ─▶ one send each ─▶ accepted, or its own error
//! ```
//!
//! The members are fixed when it starts; who comes later hears nothing of it. A slow member waits for its
//! own room and holds nobody else. No member at all is a success: nobody was told.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;

use super::call::{Lineage, OneWay, Op, Origin, Pending};
use super::handle::Handle;
use super::here;
use crate::base::error::{Detail, Error, ErrorKind, SendError};
use crate::pattern::route::Address;

/// What became of a multicast, member by member.
#[derive(Debug)]
pub struct Told {
    /// Each member's node and how the send to it ended: accepted by this runtime, or an error that gives the
    /// payload back.
    pub members: Vec<(Arc<str>, Result<(), SendError>)>,
}

impl Told {
    /// Members whose send was accepted.
    pub fn accepted(&self) -> usize {
        self.members.iter().filter(|(_, end)| end.is_ok()).count()
    }

    /// Whether no send failed. True also if there was nobody to tell.
    pub fn is_complete(&self) -> bool {
        self.members.iter().all(|(_, end)| end.is_ok())
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} members told", self.accepted(), self.members.len())?;
        for (node, end) in &self.members {
            if let Err(error) = end {
                write!(f, "; {node}: {error}")?;
            }
        }
        Ok(())
    }
}

/// A multicast that was not started yet: `wait()`, `submit()`, `.await` on what `submit()` gives, or `detach()`.
#[must_use = "nothing was sent yet: wait(), submit() or detach() starts it"]
pub struct MulticastOp<'a> {
    handle: &'a Handle,
    address: Address,
    method: String,
    payload: Bytes,
    timeout: Duration,
}

impl fmt::Debug for MulticastOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastOp").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<'a> MulticastOp<'a> {
    pub(crate) fn new(handle: &'a Handle, address: Address, method: &str, payload: Bytes, timeout: Duration) -> Self {
        MulticastOp { handle, address, method: method.to_owned(), payload, timeout }
    }

    /// The longest that each single send may wait for room, in place of the node's send timeout; the rules are those
    /// of [`Op::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Every member that is reachable now.
    fn members(&self) -> Vec<Address> {
        let routes = self.handle.shared().routes.load();
        match &self.address {
            Address::Channel(name) => {
                let members = routes.channels.get(name).map_or(&[][..], |channel| &channel.members);
                let reachable = members.iter().filter(|member| !member.links.is_empty());
                reachable.map(|member| Address::Member(name.clone(), member.node.clone())).collect()
            }
            one => vec![one.clone()],
        }
    }

    /// Starts a send to every member that is reachable now.
    pub fn submit(self) -> Multicast {
        let sends = self.members().into_iter().map(|member| {
            // Held until its send has begun.
            let (slot, _held) = self.handle.slot(member.named());
            let origin = Origin::Borrowed(self.handle);
            let (payload, lineage) = (self.payload.clone(), Lineage::default());
            let send = Op::<OneWay>::new(origin, slot, &self.method, payload, self.timeout, lineage);
            (member.name().clone(), Send::Waits(send.submit()))
        });
        Multicast { sends: sends.collect() }
    }

    /// Starts it and sleeps until every send has ended. On a thread of the runtime nothing is sent, and every
    /// member's end is `InvalidOperation` with the payload.
    pub fn wait(self) -> Told {
        if here::is_runtime_thread() {
            let error = || Error::new(ErrorKind::InvalidOperation, Detail::WaitOnShard);
            let refused = |member: Address| (member.name().clone(), Err(SendError::new(error(), self.payload.clone())));
            return Told { members: self.members().into_iter().map(refused).collect() };
        }
        self.submit().wait()
    }

    /// Starts it and lets it run; nobody hears of the ends.
    pub fn detach(self) {
        for (_, send) in self.submit().sends {
            if let Send::Waits(pending) = send {
                pending.detach();
            }
        }
    }
}

enum Send {
    Waits(Pending<OneWay>),
    Over(Result<(), SendError>),
}

/// A started multicast. Dropped, the sends that still wait for room are cancelled.
#[must_use = "dropping a started multicast cancels the sends that wait; detach() lets them run"]
pub struct Multicast {
    sends: Vec<(Arc<str>, Send)>,
}

impl fmt::Debug for Multicast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multicast").field("members", &self.sends.len()).finish()
    }
}

impl Multicast {
    /// Sleeps until every send has ended. On a thread of the runtime, sends that have not ended are cancelled; see
    /// [`Pending::wait`].
    pub fn wait(self) -> Told {
        let ended = self.sends.into_iter().map(|(node, send)| {
            let end = match send {
                Send::Over(end) => end,
                Send::Waits(pending) => pending.wait(),
            };
            (node, end)
        });
        Told { members: ended.collect() }
    }
}

impl Future for Multicast {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Told> {
        let mut waits = false;
        for (_, send) in &mut self.sends {
            if let Send::Waits(pending) = send {
                match Pin::new(pending).poll(cx) {
                    Poll::Ready(end) => *send = Send::Over(end),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits {
            return Poll::Pending;
        }
        let ended = std::mem::take(&mut self.sends).into_iter().filter_map(|(node, send)| match send {
            Send::Over(end) => Some((node, end)),
            Send::Waits(_) => None,
        });
        Poll::Ready(Told { members: ended.collect() })
    }
}
