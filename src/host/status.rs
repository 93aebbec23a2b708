//! What can be seen of a host: a snapshot taken without stopping anyone, and the account of a
//! shutdown.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::pubsub::PublisherStatus;
use super::stream::StreamStatus;
use crate::base::unit::grouped;
use crate::engine::shared::HostShared;
use crate::flow::target::{Dialect, Target};
use crate::runtime::boot::Running;
use crate::sync::gate::{GateSnapshot, Pressure};

/// One link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStatus {
    /// The peer's name.
    pub peer: Arc<str>,
    /// The shard that owns it.
    pub shard: usize,
    /// Whether both lanes are attached.
    pub up: bool,
    /// Bytes in the send queue.
    pub queued_bytes: u64,
    /// Its mark now; 0 = unlimited. An automatic one falls when links come and rises when they have gone.
    pub send_mark: u64,
    /// Operations that wait for room.
    pub waiting: u32,
    /// Requests sent and not answered.
    pub in_flight: u32,
    /// Replies that the peer has not taken, in bytes.
    pub reply_bytes: u64,
    /// For how long the peer has told us to pause.
    pub paused_for: Option<Duration>,
    /// Records written whole.
    pub written: u64,
    /// Records lost with a connection after their first byte had gone.
    pub lost_on_detach: u64,
    /// Records written whole to a connection that was lost before the peer told it had decoded them.
    pub in_doubt_on_detach: u64,
}

/// One shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShardStatus {
    /// Whether its thread is pinned.
    pub pinned: bool,
    /// Turns that it has begun.
    pub turns: u64,
    /// Records received and not claimed.
    pub unclaimed: u64,
    /// Jobs claimed and not started.
    pub queued: u64,
    /// Handlers started and not finished.
    pub started: u64,
    /// The most that were started at once.
    pub started_peak: u64,
    /// How often it was really woken from its sleep.
    pub wakes: u64,
    /// Links attached.
    pub links: u64,
    /// Sessions of end clients.
    pub sessions: u64,
}

/// Everything that is counted, at one moment. Numbers of different threads are read one after the
/// other; sums hold at a quiet moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostStatus {
    /// Why the host is over though nobody shut it down: one of its threads is gone. Everything that waited has ended
    /// in `Internal`, and nothing begins any more.
    pub failure: Option<Arc<str>>,
    /// The job limit.
    pub permits: GateSnapshot,
    /// Links, those that are down included. End clients are not among them.
    pub links: Vec<LinkStatus>,
    /// Sockets for end clients, in the order of the options.
    pub streams: Vec<StreamStatus>,
    /// This host as a target of its own calls: one queue per shard, of which the send mark bounds both
    /// halves. None if it serves no channel.
    pub local: Vec<LinkStatus>,
    /// The mark of every link's receive queue now; 0 = unlimited.
    pub receive_mark: u64,
    /// What automatic marks are a division of, in bytes.
    pub budget: u64,
    /// The links there are need more than the budget for their least marks, and have them all the same.
    pub budget_insufficient: bool,
    /// Shards.
    pub shards: Vec<ShardStatus>,
    /// What is published and who subscribed; `None`: this host has no publisher.
    pub publisher: Option<PublisherStatus>,
    /// How often the completion thread was really woken.
    pub completion_wakes: u64,
    /// Operations that wait for room now, and the most at once.
    pub waiting: u32,
    /// See `waiting`.
    pub waiting_peak: u32,
    /// Bytes in the waiting room.
    pub waiting_bytes: u64,
    /// Requests in flight, and the most at once.
    pub requests: u32,
    /// See `requests`.
    pub requests_peak: u32,
    /// Replies arrived and not taken, in bytes, above 2 KiB each.
    pub reply_hold_bytes: u64,
    /// Bytes of records claimed and not finished.
    pub owned_bytes: u64,
    /// The same, the most at once.
    pub owned_bytes_peak: u64,
    /// Replies that peers have not taken, in bytes.
    pub reply_bytes: u64,
    /// Operations that had to wait for room.
    pub waits: u64,
    /// Operations that found the waiting room full.
    pub waiting_room_full: u64,
    /// Operations whose time was up while they waited.
    pub no_room: u64,
    /// Requests whose time was up without a reply.
    pub no_reply: u64,
    /// Requests ended by the loss of their link.
    pub link_lost: u64,
    /// Replies whose request had ended.
    pub late_replies: u64,
    /// Replies that arrived.
    pub replies: u64,
    /// Records received on application lanes.
    pub received: u64,
    /// Records whose handler was started.
    pub delivered: u64,
    /// Requests answered with an error because their time was up before their handler could start;
    /// only with `skip_expired_requests`.
    pub expired_in_queue: u64,
    /// Records without a handler.
    pub no_handler: u64,
    /// Records that made no sense.
    pub malformed: u64,
    /// Handlers that panicked.
    pub handler_panics: u64,
    /// Flow-state commands sent.
    pub flow_frames_sent: u64,
    /// Pairs that came up.
    pub links_up: u64,
    /// Pairs that were lost.
    pub links_lost: u64,
    /// Connections refused or given up before they were up.
    pub handshakes_failed: u64,
    /// Replies thrown away because the hold was full.
    pub reply_hold_refused: u64,
    /// Replies that nobody took by their operation's deadline.
    pub replies_not_taken: u64,
    /// Replies for a link that had gone.
    pub replies_undeliverable: u64,
}

impl HostStatus {
    pub(crate) fn of(running: &Running) -> Self {
        let shared = &running.shared;
        let now = shared.clock.now();
        let queue = |t: &Arc<Target>| LinkStatus {
            peer: t.label(),
            shard: t.owner.index(),
            up: t.is_up(),
            queued_bytes: t.mark.bytes(),
            send_mark: t.mark.limit(),
            waiting: t.waiting.ops(),
            in_flight: t.in_flight.ops(),
            reply_bytes: t.replies.bytes(),
            paused_for: t.paused_for(now),
            written: t.written.get(),
            lost_on_detach: t.lost_on_detach.get(),
            in_doubt_on_detach: t.in_doubt_on_detach.get(),
        };
        let peers = |t: &&Arc<Target>| t.dialect != Dialect::Stream;
        let links = shared.targets.lock().iter().filter(peers).map(queue).collect();
        let shards = shared
            .shards
            .iter()
            .zip(&running.pinned)
            .map(|(port, pinned)| ShardStatus {
                pinned: *pinned,
                turns: port.turns.get(),
                unclaimed: port.unclaimed.get(),
                queued: port.queued.get(),
                started: port.started.get(),
                started_peak: port.started_peak.get(),
                wakes: port.wake.wakes(),
                links: port.links.get(),
                sessions: port.sessions.get(),
            })
            .collect();
        let counts = &shared.counts;
        HostStatus {
            failure: shared.failure(),
            permits: shared.gate.snapshot(now),
            links,
            streams: shared.streams.iter().map(|socket| StreamStatus::of(socket)).collect(),
            local: shared.locals.iter().map(queue).collect(),
            receive_mark: shared.receive_mark.get(),
            budget: shared.budget.get(),
            budget_insufficient: shared.insufficient.is_raised(),
            shards,
            publisher: PublisherStatus::of(shared),
            completion_wakes: shared.completion.wake.wakes(),
            waiting: shared.room.ops(),
            waiting_peak: shared.room.ops_peak(),
            waiting_bytes: shared.room.bytes(),
            requests: shared.slots.ops(),
            requests_peak: shared.slots.ops_peak(),
            reply_hold_bytes: shared.hold.bytes(),
            owned_bytes: shared.owned.get(),
            owned_bytes_peak: shared.owned.peak(),
            reply_bytes: shared.replies.bytes(),
            waits: counts.waits.get(),
            waiting_room_full: counts.waiting_room_full.get(),
            no_room: counts.no_room.get(),
            no_reply: counts.no_reply.get(),
            link_lost: counts.link_lost.get(),
            late_replies: counts.late_replies.get(),
            replies: counts.replies.get(),
            received: counts.received.get(),
            delivered: counts.delivered.get(),
            expired_in_queue: counts.expired_in_queue.get(),
            no_handler: counts.no_handler.get(),
            malformed: counts.malformed.get(),
            handler_panics: counts.handler_panics.get(),
            flow_frames_sent: counts.flow_frames_sent.get(),
            links_up: counts.links_up.get(),
            links_lost: counts.links_lost.get(),
            handshakes_failed: counts.handshakes_failed.get(),
            reply_hold_refused: counts.reply_hold_refused.get(),
            replies_not_taken: counts.replies_not_taken.get(),
            replies_undeliverable: counts.replies_undeliverable.get(),
        }
    }

    /// Whether peers are told to hold back.
    pub fn is_paused(&self) -> bool {
        self.permits.pressure == Pressure::Paused
    }
}

/// What a shutdown left undone, per peer.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Peers with something undelivered.
    pub peers: Vec<PeerAccount>,
    /// Jobs claimed and not started.
    pub jobs: u64,
    /// Handlers that had not finished.
    pub started: u64,
}

/// What one peer did not get.
#[derive(Clone, Debug)]
pub struct PeerAccount {
    /// Its name.
    pub peer: Arc<str>,
    /// Bytes accepted and not written.
    pub queued_bytes: u64,
    /// Operations that still waited for room; each has ended in `ShuttingDown`.
    pub waiting: u32,
    /// Requests without a reply; each has ended in `ShuttingDown`.
    pub in_flight: u32,
    /// Replies not written, in bytes.
    pub reply_bytes: u64,
}

impl Account {
    pub(crate) fn of(shared: &HostShared) -> Self {
        let targets = shared.targets.lock();
        let peers = targets
            .iter()
            .chain(&shared.locals)
            .map(|t| PeerAccount {
                peer: t.label(),
                queued_bytes: t.mark.bytes(),
                waiting: t.waiting.ops(),
                in_flight: t.in_flight.ops(),
                reply_bytes: t.replies.bytes(),
            })
            .filter(|p| p.queued_bytes + p.reply_bytes > 0 || p.waiting + p.in_flight > 0)
            .collect();
        let sum = |of: fn(&crate::engine::shared::ShardPort) -> u64| shared.shards.iter().map(of).sum();
        Account { peers, jobs: sum(|p| p.queued.get()), started: sum(|p| p.started.get()) }
    }

    /// Whether everything that was accepted was written to its peer, and every record received was
    /// finished. That the peer has decoded it is not known here.
    pub fn is_clean(&self) -> bool {
        self.peers.is_empty() && self.jobs == 0 && self.started == 0
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("everything accepted was written to its peer");
        }
        write!(f, "{} jobs not started, {} handlers not finished", self.jobs, self.started)?;
        for p in &self.peers {
            write!(
                f,
                "; {}: {} bytes not sent, {} operations waiting, {} requests unanswered, {} bytes of replies not taken",
                p.peer,
                grouped(p.queued_bytes),
                p.waiting,
                p.in_flight,
                grouped(p.reply_bytes)
            )?;
        }
        Ok(())
    }
}
