//! What the threads of a host share about end clients: the socket they came to, and each one's session.
//! Everything that is sent to a client starts in [`SessionShared::begin`], from whatever thread.
//!
//! ```text
//!   begin ─▶ mark of the client's queue ─┬─ room, nobody waits ─▶ the owner shard's common ring: accepted
//!                                        └─ else ─▶ a cell in the waiting room, to the owner shard
//! ```
//!
//! All sends to one client take the same ring, so they go out in the order in which they were accepted,
//! whoever made them. The ring is emptied every turn into the clients' own queues, which their marks
//! bound: a client that takes nothing keeps nobody else's place.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::handle::{self, Begun, Waiter};
use super::here;
use super::shared::{Class, HostShared, Life, Op};
use crate::base::error::{Detail, Error, ErrorKind, Stage};
use crate::base::id::ChannelId;
use crate::base::record::{Kind, Method, Record};
use crate::base::unit::charge;
use crate::flow::session::SessionEnd;
use crate::flow::target::Target;
use crate::flow::transport::Transport;
use crate::pattern::route::Address;
use crate::plan::StreamPlan;
use crate::sync::lock::Lock;
use crate::sync::room::Room;
use crate::sync::word::{Gauge, Latch};
use crate::wire::stream::STREAM_HEADER_MAX;

/// One address that end clients connect to, and what is counted there.
#[derive(Debug)]
pub struct StreamSocket {
    /// Its limits.
    pub plan: StreamPlan,
    /// Its place among the host's.
    pub index: u16,
    /// The sessions that are here. Full: a client is closed as it comes, and counted.
    pub sessions: Room,
    /// Sessions that began.
    pub opened: Gauge,
    /// Clients that were closed as they came.
    pub refused: Gauge,
    /// Sessions that ended, by [`SessionEnd::ALL`].
    pub ended: [Gauge; SessionEnd::ALL.len()],
    /// Whole frames that came.
    pub frames_in: Gauge,
    /// Bytes that came, prefixes included.
    pub bytes_in: Gauge,
    /// Frames written whole.
    pub frames_out: Gauge,
    /// Their headers and bodies.
    pub bytes_out: Gauge,
    /// Sends and replies that had to wait for room.
    pub waits: Gauge,
    /// Frames accepted for a client that was gone before they were written.
    pub lost: Gauge,
}

impl StreamSocket {
    /// A socket that nobody has come to.
    pub fn new(plan: StreamPlan, index: u16) -> Self {
        StreamSocket {
            sessions: Room::new(plan.sessions, u64::MAX),
            plan,
            index,
            opened: Gauge::default(),
            refused: Gauge::default(),
            ended: Default::default(),
            frames_in: Gauge::default(),
            bytes_in: Gauge::default(),
            frames_out: Gauge::default(),
            bytes_out: Gauge::default(),
            waits: Gauge::default(),
            lost: Gauge::default(),
        }
    }
}

/// A client that was let in, on its way to the shard that has its session from now on.
#[derive(Debug)]
pub struct NewSession {
    /// What is shared of it.
    pub session: Arc<SessionShared>,
    /// Its connection.
    pub transport: Arc<dyn Transport>,
}

/// Rights to answer, and whether anybody waits for the last of them.
#[derive(Debug, Default)]
struct Rights {
    held: u32,
    closing: bool,
}

/// What goes to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Something that this side has to say.
    Send,
    /// The answer to a frame.
    Reply,
}

/// What any thread may know and do of one client's session.
#[derive(Debug)]
pub struct SessionShared {
    /// The host.
    pub shared: Arc<HostShared>,
    /// Its queue and its mark.
    pub target: Arc<Target>,
    /// Where it came in.
    pub socket: Arc<StreamSocket>,
    /// The client's address.
    pub peer: SocketAddr,
    rights: Lock<Rights>,
    /// Somebody wants it closed.
    pub close: Latch,
    /// A callback panicked: nobody is there to take its frames.
    pub panicked: Latch,
}

impl SessionShared {
    /// A session whose queue is `target`.
    pub fn new(shared: Arc<HostShared>, target: Arc<Target>, socket: Arc<StreamSocket>, peer: SocketAddr) -> Self {
        let (close, panicked) = (Latch::new(), Latch::new());
        SessionShared { shared, target, socket, peer, rights: Lock::new(Rights::default()), close, panicked }
    }

    /// Has its shard look at it.
    pub fn poke(&self) {
        self.shared.port(self.target.owner).poke(&self.target);
    }

    fn take_right(&self) {
        self.rights.lock().held += 1;
    }

    fn leave_right(&self) {
        let last = {
            let mut rights = self.rights.lock();
            rights.held -= 1;
            rights.held == 0 && rights.closing
        };
        if last {
            self.poke();
        }
    }

    /// Rights to answer that are out.
    pub fn rights(&self) -> u32 {
        self.rights.lock().held
    }

    /// The same of a session that closes: whoever gives back the last of them has the shard look.
    pub fn rights_while_closing(&self) -> u32 {
        let mut rights = self.rights.lock();
        rights.closing = true;
        rights.held
    }

    fn refusal(&self, kind: ErrorKind, detail: Detail) -> Error {
        Error::new(kind, detail).with(|n| n.target = Some(self.target.label()))
    }

    /// Why a frame of these parts is not even begun.
    fn judge(&self, header: usize, body: usize, class: Class, what: What) -> Option<Error> {
        let len = (header as u64).saturating_add(body as u64);
        if self.shared.life() != Life::Serving && class == Class::Caller {
            return Some(self.refusal(ErrorKind::ShuttingDown, Detail::None));
        }
        let too_large = |size: u64, limit: u64| {
            let error = self.refusal(ErrorKind::Rejected, Detail::MessageTooLarge);
            error.with(|n| (n.requested, n.limit) = (Some(size), Some(limit)))
        };
        if header > STREAM_HEADER_MAX {
            return Some(too_large(header as u64, STREAM_HEADER_MAX as u64));
        }
        if len > self.socket.plan.max_frame_out {
            return Some(too_large(len, self.socket.plan.max_frame_out));
        }
        // What was received before it is closed is still answered.
        let closed = self.target.gone.is_raised() || (what == What::Send && self.close.is_raised());
        closed.then(|| self.refusal(ErrorKind::Unavailable, Detail::Detached))
    }

    /// Starts a send: everything that can be decided now is decided now. `timeout` is the end of its wait.
    pub fn begin(&self, what: What, header: &[u8], body: Bytes, timeout: Duration, waiter: Waiter<'_>) -> Begun {
        let class = class_here();
        if let Some(error) = self.judge(header.len(), body.len(), class, what) {
            return Begun::Failed(error, body);
        }
        let (shared, target) = (&self.shared, &self.target);
        let record = record(header, body);
        let refused = {
            let mut producer = shared.port(target.owner).common_ring.lock();
            if producer.free() == 0 {
                target.mark.add_waiter();
                Some(record)
            } else {
                match target.mark.admit_or_wait(record.charge()) {
                    Ok(_) => {
                        handle::push(shared, &mut producer, target, record);
                        None
                    }
                    Err(_) => Some(record),
                }
            }
        };
        let Some(record) = refused else { return Begun::Accepted };
        self.socket.waits.add(1);
        let since = shared.clock.now();
        let address = Address::Node(target.label());
        let op = Op { target: Some(target.clone()), address, record, class, since, link: 0 };
        handle::wait(shared, op, since.after(timeout), waiter)
    }

    /// Admits a frame now or gives it back; never overtakes one that waits.
    pub fn try_send(&self, header: &[u8], body: Bytes) -> Result<(), (Error, Bytes)> {
        if let Some(error) = self.judge(header.len(), body.len(), class_here(), What::Send) {
            return Err((error, body));
        }
        let (shared, target) = (&self.shared, &self.target);
        let charge = charge(body.len(), header.len());
        {
            let mut producer = shared.port(target.owner).common_ring.lock();
            if producer.free() > 0 && target.mark.try_admit(charge).is_ok() {
                handle::push(shared, &mut producer, target, record(header, body));
                return Ok(());
            }
        }
        let error = self.refusal(ErrorKind::DeadlineExceeded, Detail::NoRoom).with(|n| {
            n.stage = Some(Stage::Room);
            n.requested = Some(charge);
            n.used = Some(target.mark.bytes());
            n.limit = Some(target.mark.limit());
            n.waited = Some(Duration::ZERO);
        });
        Err((error, body))
    }
}

/// Work of a shard finishes before work of callers begins: a part of the waiting room is its own.
fn class_here() -> Class {
    if here::is_runtime_thread() { Class::Handler } else { Class::Caller }
}

fn record(header: &[u8], body: Bytes) -> Record {
    Record {
        kind: Kind::Message,
        depth: 0,
        channel: ChannelId::NODE.0,
        correlation: 0,
        expiry_ms: 0,
        method: Method::default(),
        payload: body,
        envelope: (!header.is_empty()).then(|| header.into()),
    }
}

/// The right to answer one frame. A session that closes waits for those that are out.
#[derive(Debug)]
pub struct Right(Arc<SessionShared>);

impl Right {
    /// One more.
    pub fn new(session: Arc<SessionShared>) -> Self {
        session.take_right();
        Right(session)
    }

    /// Of which session.
    pub fn session(&self) -> &Arc<SessionShared> {
        &self.0
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        self.0.leave_right();
    }
}
