//! `Target`: one link to a peer, as everybody shares it. Callers admit and write through it, its
//! owner shard keeps its queue, the completion thread decides whether it is up.
//!
//! ```text
//!   admission    mark            one word: bytes, waiters, blocked
//!                waiting         its quarter of the waiting room
//!                in_flight       requests sent and not ended
//!   application  Baton<Writer>   whoever holds it writes; the socket lives in it
//!   completion   PostBaton       replies that found the baton taken lie in its posts
//!   link         0 = down, else the number of the present attach
//! ```
//!
//! What is full: the mark makes senders wait; `waiting` ends a call at once; `in_flight` makes
//! requests wait as for room; `replies` keeps the peer's next requests unclaimed.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::backlog::{Backlog, ChunkPool};
use super::egress::Egress;
use super::publications::Publications;
use super::reader::Reader;
use super::transport::Transport;
use crate::base::id::{CellId, ShardId, TargetId};
use crate::base::record::{Lane, Record};
use crate::base::time::Instant;
use crate::sync::baton::{Baton, PostBaton};
use crate::sync::lead::Lead;
use crate::sync::lock::Lock;
use crate::sync::mark::Mark;
use crate::sync::room::Room;
use crate::sync::tray::Tray;
use crate::sync::word::{Epoch, Gauge, Latch, Luck};
use crate::wire::command::Command;
use crate::wire::ready::Metadata;

/// The write half of a lane: the socket and what it still has to take. Lives inside a baton.
pub struct Writer<R> {
    /// `None` while the link is down.
    pub transport: Option<Arc<dyn Transport>>,
    /// The attach that `transport` belongs to; 0 while down.
    pub link: u64,
    /// A stock peer that we dialled: records go out in its form.
    pub stock: bool,
    /// It takes no requests.
    pub one_way: bool,
    /// What was begun or staged.
    pub egress: Egress<R>,
    /// Local channel number to the peer's number on this link; `NO_CHANNEL` where it serves none.
    pub channels: Vec<u16>,
    /// Such a table of a later list, with its attach: looked at when a channel is missing.
    announced: Arc<Announced>,
    /// Records written whole since the attach.
    pub written: u64,
    /// Records written whole, over all attaches.
    pub written_ever: u64,
    /// Records go out as an end client's frames.
    pub stream: bool,
    /// How many requests had been given up when what is staged was last looked through.
    pub given_up: u64,
}

/// An attach and a table as [`Writer::channels`] of a list that its peer told later.
type Announced = Lock<Option<(u64, Vec<u16>)>>;

/// In [`Writer::channels`]: the peer does not serve it.
pub const NO_CHANNEL: u16 = 0xFFFE;

/// How far a flush came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushed {
    /// Everything was taken.
    Empty,
    /// The transport takes no more now; a readiness event will follow.
    Blocked,
    /// The connection is broken. It was shut down, so that its reader finds out.
    Broken,
}

impl<R: Copy + PartialEq> Writer<R> {
    fn new() -> Self {
        Writer {
            transport: None,
            link: 0,
            stock: false,
            one_way: false,
            egress: Egress::new(),
            channels: Vec::new(),
            announced: Arc::default(),
            written: 0,
            written_ever: 0,
            stream: false,
            given_up: 0,
        }
    }

    /// The peer's number for a local channel.
    #[inline]
    pub fn wire_channel(&mut self, local: u16) -> u16 {
        match self.channels.get(local as usize) {
            Some(channel) if *channel != NO_CHANNEL => *channel,
            _ => self.wire_channel_announced(local),
        }
    }

    #[cold]
    fn wire_channel_announced(&mut self, local: u16) -> u16 {
        let mut announced = self.announced.lock();
        if announced.as_ref().is_some_and(|(link, _)| *link == self.link)
            && let Some((_, channels)) = announced.take()
        {
            self.channels = channels;
        }
        drop(announced);
        self.channels.get(local as usize).copied().unwrap_or(NO_CHANNEL)
    }

    /// Writes until nothing is left or the transport takes no more. `done` is told of how many records the
    /// last byte was taken, and their charges.
    pub fn flush(&mut self, mut done: impl FnMut(u64, u64)) -> Flushed {
        let Some(transport) = &self.transport else { return Flushed::Blocked };
        while !self.egress.is_empty() {
            let written = match self.egress.piece() {
                Some(piece) => transport.write(&[io::IoSlice::new(piece)]),
                None => write_gathered(&**transport, &self.egress),
            };
            match written {
                Ok(0) => {
                    transport.shutdown();
                    return Flushed::Broken;
                }
                Ok(taken) => {
                    let (mut whole, mut charges) = (0, 0);
                    self.egress.written(taken, |_, charge, records| {
                        whole += records as u64;
                        charges += records as u64 * charge;
                    });
                    self.written += whole;
                    self.written_ever += whole;
                    done(whole, charges);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Flushed::Blocked,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    transport.shutdown();
                    return Flushed::Broken;
                }
            }
        }
        Flushed::Empty
    }
}

#[inline(never)]
fn write_gathered<R: Copy + PartialEq>(transport: &dyn Transport, egress: &Egress<R>) -> io::Result<usize> {
    let mut slices = [io::IoSlice::new(&[]); 32];
    let n = egress.slices(&mut slices);
    transport.write(&slices[..n])
}

impl<R> fmt::Debug for Writer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("transport", &self.transport).field("written", &self.written).finish()
    }
}

/// The write half of a completion lane, and the replies that it will take when those before them are out.
#[derive(Debug)]
pub struct Replies {
    /// What is staged goes out first.
    pub writer: Writer<()>,
    /// Bounded by the reply marks; only replies to requests of the writer's attach.
    pub waiting: Backlog,
    /// Where `waiting` gets its chunks; keeps none.
    pub chunks: ChunkPool,
}

impl Replies {
    fn new() -> Self {
        Replies { writer: Writer::new(), waiting: Backlog::new(), chunks: ChunkPool::new(0) }
    }
}

/// What may be left for the holder of a completion lane's baton.
#[derive(Debug)]
pub enum Post {
    /// A reply or error to a request that came in on attach `link`.
    Reply {
        /// The attach on which the request came.
        link: u64,
        /// The answer.
        record: Record,
    },
    /// The pair is up: from here on the lane is written to this connection.
    Attach {
        /// The number of the attach.
        link: u64,
        /// The connection.
        transport: Arc<dyn Transport>,
    },
    /// The pair is lost.
    Retire {
        /// Which attach.
        link: u64,
    },
    /// A command, encoded: heartbeats and flow state.
    Command {
        /// The attach that it is meant for.
        link: u64,
        /// The frame.
        frame: Bytes,
    },
    /// What we subscribe to at this peer, encoded. It must not get lost: a peer that does not take it
    /// loses its link, and is told everything on the next.
    Subscriptions {
        /// The attach that it is meant for.
        link: u64,
        /// Whole frames.
        frames: Bytes,
    },
}

/// What a leader read at once and did not deal with itself. Few lie there: who leaves a second leads no more, and
/// nobody leads before the completion thread has taken them.
#[derive(Debug)]
pub struct Left {
    /// The attach on which it came.
    pub link: u64,
    /// In the order in which they came.
    pub commands: Vec<Command>,
    /// Why the link has to end.
    pub over: Option<String>,
}

/// How a peer talks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Another afflux node: two lanes.
    Native,
    /// A stock ZeroMQ peer: one lane carries both directions' everything.
    Stock,
    /// A peer of one lane that subscribed to what we publish.
    Subscriber,
    /// A peer of one lane whose publications go to this seat.
    Publisher(u16),
    /// An end client: one connection with length-prefixed frames and no lanes at all.
    Stream,
    /// This host itself: the same admission, and no connection. What is accepted goes straight to its
    /// owner's receive queue, which the send mark bounds; an answer ends its request where it is made.
    Local,
}

/// What this host does for the peer of a native link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Serves {
    /// It is a node: it may call our channels and ourselves, and we it.
    #[default]
    Node,
    /// It is a client: it calls what we serve to clients, and we only answer.
    Client,
    /// It is a server of ours: we call, and it only answers.
    Nothing,
}

/// What is fixed when a target is made.
#[derive(Debug)]
pub struct TargetSpec {
    /// Its name for life.
    pub id: TargetId,
    /// The shard that keeps its queue.
    pub owner: ShardId,
    /// Whether we dial it: then it outlives its connections.
    pub dialled: bool,
    /// How it talks.
    pub dialect: Dialect,
    /// What we do for it.
    pub serves: Serves,
    /// What to call it until it has told its name.
    pub label: Arc<str>,
    /// The send mark in bytes; 0 = unlimited.
    pub send_mark: u64,
    /// Its share of the waiting room.
    pub waiting_ops: u32,
    /// The same in bytes.
    pub waiting_bytes: u64,
    /// Requests in flight at most.
    pub requests: u32,
    /// Bytes of replies to it at most.
    pub reply_bytes: u64,
    /// Of a subscriber: the queue of what it has not taken.
    pub publications: Option<Box<Publications>>,
}

#[cfg(test)]
impl TargetSpec {
    /// A native peer that shard 0 dials, with room for a few.
    pub fn peer(id: u64) -> TargetSpec {
        TargetSpec {
            id: TargetId(id),
            owner: ShardId(0),
            dialled: true,
            dialect: Dialect::Native,
            serves: Serves::Node,
            label: "peer".into(),
            send_mark: 1 << 20,
            waiting_ops: 16,
            waiting_bytes: 1 << 20,
            requests: 16,
            reply_bytes: 1 << 20,
            publications: None,
        }
    }
}

/// One link to a peer.
#[derive(Debug)]
pub struct Target {
    /// Its name for life.
    pub id: TargetId,
    /// The shard that keeps its queue.
    pub owner: ShardId,
    /// Whether we dial it.
    pub dialled: bool,
    /// How it talks.
    pub dialect: Dialect,
    /// What we do for it.
    pub serves: Serves,
    label: Lock<Arc<str>>,
    metadata: Lock<Metadata>,
    /// The send mark: who may add to the queue.
    pub mark: Mark,
    /// Operations that wait for room here.
    pub waiting: Room,
    /// Requests that this peer has not answered.
    pub in_flight: Room,
    /// Replies to this peer that it has not taken.
    pub replies: Room,
    /// The read half of the completion lane; `None` while down, and of a stock peer.
    pub reading: Baton<Option<Reader>>,
    /// Who reads it: a caller that waits for its reply, or the completion thread.
    pub lead: Lead,
    /// The connection that is read there, if callers may lead.
    pub lane: Lock<Option<Arc<dyn Transport>>>,
    /// What leaders read that is the completion thread's to deal with.
    pub left: Tray<Left>,
    /// Whether a leader's reply tends to come before it would have fallen asleep.
    pub spins: Luck,
    /// Threads that wait for a reply and do not lead.
    pub followers: Gauge,
    /// The completion thread knows that it was left warm, and comes by.
    pub warmed: Latch,
    /// When a leader last read a byte, in nanoseconds.
    pub led_read_ns: Gauge,
    /// How many milliseconds the peer's link clock is ahead of ours, modulo 2^32.
    pub clock_ahead_ms: Gauge,
    /// The application lane is not read now, because its queue is full.
    pub parked: Latch,
    /// The owner has records of this peer that it may not claim until replies have left.
    pub held: Latch,
    /// Its records that were claimed and whose handlers have not started: each keeps a permit. Its owner's.
    pub jobs: Gauge,
    /// Replies that wait for room on the completion lane, oldest first; bounded by `waiting`.
    pub reply_waiters: Lock<VecDeque<CellId>>,
    /// The write half of the application lane. It remembers each record's local channel: the next link may
    /// have another number for it.
    pub application: Baton<Writer<u16>>,
    /// The write half of the completion lane; of a stock peer's only lane.
    pub completion: PostBaton<Replies, Post>,
    /// What the peer announced later than with the present attach: see [`Writer::wire_channel`].
    announced: Arc<Announced>,
    /// The number of the present attach; 0 while down.
    pub link: Epoch,
    /// Raised for good when the target is removed.
    pub gone: Latch,
    /// In its owner's list of targets to look at.
    pub poked: Latch,
    /// When the last byte of the application lane came, in nanoseconds.
    pub last_read_ns: Gauge,
    /// Application records decoded since the attach, as told to the peer.
    pub decoded: Gauge,
    /// Application records of ours that the peer said it has decoded since the attach.
    pub decoded_by_peer: Gauge,
    /// When the peer told us to pause, in nanoseconds; 0 = it has not.
    paused_ns: Gauge,
    /// The largest payload that the peer takes.
    pub max_message: Gauge,
    /// Of a subscriber: what was published for it, on its way to the completion lane.
    pub publications: Option<Box<Publications>>,
    /// Records accepted for this target, less those that gave up before they were sent.
    pub accepted: Gauge,
    /// Records written whole, over all attaches.
    pub written: Gauge,
    /// Charges of records written to an end client; not kept for peers.
    pub written_charge: Gauge,
    /// Records lost with a link after their first byte had gone.
    pub lost_on_detach: Gauge,
    /// Records written whole on a lost link whose decoding the peer had not told.
    pub in_doubt_on_detach: Gauge,
    /// Accepted requests that ended before an answer came: some may not have left.
    pub given_up: Gauge,
    /// Records that were dropped before their first byte: cancelled requests, unknown channels.
    pub discarded: Gauge,
}

impl Target {
    /// A target that is down.
    pub fn new(spec: TargetSpec) -> Self {
        let application = Writer::new();
        let announced = application.announced.clone();
        Target {
            id: spec.id,
            owner: spec.owner,
            dialled: spec.dialled,
            dialect: spec.dialect,
            serves: spec.serves,
            label: Lock::new(spec.label),
            metadata: Lock::default(),
            mark: Mark::new(spec.send_mark),
            waiting: Room::new(spec.waiting_ops, spec.waiting_bytes),
            in_flight: Room::new(spec.requests, u64::MAX),
            replies: Room::new(u32::MAX, spec.reply_bytes),
            reading: Baton::new(None),
            lead: Lead::new(),
            lane: Lock::new(None),
            left: Tray::default(),
            spins: Luck::default(),
            followers: Gauge::default(),
            warmed: Latch::new(),
            led_read_ns: Gauge::default(),
            clock_ahead_ms: Gauge::default(),
            parked: Latch::new(),
            held: Latch::new(),
            jobs: Gauge::default(),
            reply_waiters: Lock::new(VecDeque::new()),
            application: Baton::new(application),
            announced,
            completion: PostBaton::new(Replies::new()),
            link: Epoch::new(0),
            gone: Latch::new(),
            poked: Latch::new(),
            last_read_ns: Gauge::default(),
            decoded: Gauge::default(),
            decoded_by_peer: Gauge::default(),
            paused_ns: Gauge::default(),
            max_message: Gauge::new(u64::MAX),
            publications: spec.publications,
            accepted: Gauge::default(),
            written: Gauge::default(),
            written_charge: Gauge::default(),
            lost_on_detach: Gauge::default(),
            in_doubt_on_detach: Gauge::default(),
            given_up: Gauge::default(),
            discarded: Gauge::default(),
        }
    }

    /// The lane that records to it take, as errors name it; an end client has none.
    pub fn lane(&self) -> Option<Lane> {
        (self.dialect != Dialect::Stream).then_some(Lane::Application)
    }

    /// Whether a pair of connections is attached now.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.link.get() != 0
    }

    /// The peer serves more than it did when `link` came up: its numbers by ours.
    pub fn announce(&self, link: u64, channels: Vec<u16>) {
        *self.announced.lock() = Some((link, channels));
    }

    /// The peer's name, or its address until it has told its name.
    pub fn label(&self) -> Arc<str> {
        self.label.lock().clone()
    }

    /// The peer told its name.
    pub fn set_label(&self, label: Arc<str>) {
        *self.label.lock() = label;
    }

    /// The application's own properties that the peer told with its last connection.
    pub fn metadata(&self) -> Metadata {
        self.metadata.lock().clone()
    }

    /// The peer told its properties.
    pub fn set_metadata(&self, metadata: Metadata) {
        *self.metadata.lock() = metadata;
    }

    /// The peer told us to pause or to go on. True: senders wait here and may be admitted now, so
    /// the owner must look.
    pub fn set_paused(&self, paused: bool, now: Instant) -> bool {
        self.paused_ns.set(if paused { now.0.max(1) } else { 0 });
        self.mark.set_blocked(paused)
    }

    /// For how long the peer has been telling us to pause.
    pub fn paused_for(&self, now: Instant) -> Option<Duration> {
        match self.paused_ns.get() {
            0 => None,
            since => Some(now.since(Instant(since))),
        }
    }
}
