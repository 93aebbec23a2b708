//! The plan: every limit of a host, resolved before anything is bound and never changed after. A
//! pool, a ring or a table takes its size from here and from nowhere else, so that the ledger can
//! be the sum of them.
//!
//! What holds in every plan that [`HostPlan::check`] passes (and `start` refuses all others):
//!
//! ```text
//! shards = shard_cpus.len() = started_per_shard.len() >= 1
//! 1 <= jobs.turn_claims <= 64,   1 <= jobs.share,   jobs.resume_at < jobs.pause_at <= jobs.limit
//! sum(started_per_shard) = max_started,   each >= 1
//! record_max = charge of the largest record <= room.bytes, reply.hold, reply.host
//! per_target <= room,   room - handler part >= 1 operation
//! reply.per_peer <= reply.host,   heartbeat < dead_after,   reconnect_min <= reconnect_max
//! sum(connects.links) <= peers_max
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::base::unit::{METHOD_LEN_MAX, charge};

mod hwm;
mod profile;
mod pubsub;
mod server;
mod sizing;
mod stream;

pub use hwm::{Hwm, HwmPlan, LimitSource};
pub use profile::{HwmProfile, JobQueueProfile, QueueBounds};
pub use pubsub::{PublisherPlan, SlowSubscriber, SubscriberPlan};
pub use server::ClientPlan;
pub use sizing::{
    CELL_BYTES, CELLS_MAX, CHANNEL_LIST_BYTES, CHANNELS_MAX, DESTINATION_BYTES, DESTINATIONS_MAX, ERROR_REPLY_BYTES,
    HANDSHAKE_BYTES, INLINE_RECORD_MIN, JOB_BYTES, KEEPERS_MAX, LARGE_RECORD_BYTES, LINK_STATE_BYTES, LINKS_MAX,
    MARK_MAX, MESSAGE_MAX, METADATA_BYTES, METER_BYTES, Places, QUEUE_CHUNK_BYTES, QUEUE_CHUNKS_KEPT, RING_SLOT_BYTES,
    ROOM_MAX, SHARDS_MAX, SMALL_REPLY_MAX, STARTED_BYTES, SUBSCRIPTION_BYTES, SUBSCRIPTION_LEN_MAX,
    SUBSCRIPTION_TEXT_MAX, SUBSCRIPTIONS_MAX, TICKET_BYTES, WRITE_CHUNK_BYTES,
};
pub use stream::{SESSION_STATE_BYTES, STREAMS_MAX, StreamPlan};

/// Everything that was resolved for one host. Shared as an `Arc`; plain values, no interior
/// mutability.
#[derive(Clone, PartialEq, Debug)]
pub struct HostPlan {
    /// Name of the node, as peers see it: 1..=64 bytes of `[A-Za-z0-9._-]`.
    pub name: Arc<str>,
    /// Which start of that node this is: 128 random bits, told to peers.
    pub instance: u128,

    /// Event loops. 1..=[`SHARDS_MAX`]; default: one per effective processor, one fewer from three on.
    pub shards: u16,
    /// Processors that this process may run on; empty if that is not known.
    pub cpus: Vec<usize>,
    /// Processor of each shard; `None`: not pinned.
    pub shard_cpus: Vec<Option<usize>>,
    /// Processor of the completion thread; `None`: not pinned.
    pub completion_cpu: Option<usize>,
    /// What a thread that cannot be pinned means. Default: best effort.
    pub pinning: Pinning,
    /// How a shard waits when it has nothing to do. The completion thread always parks.
    pub idle: Idle,

    /// Where to listen; may be empty. Port 0: the system chooses.
    pub listen: Vec<SocketAddr>,
    /// Whom to dial; may be empty.
    pub connects: Vec<ConnectPlan>,
    /// Channels that this node serves with their weights (0..=10,000, default 100), in the order
    /// in which they are announced. At most [`CHANNELS_MAX`].
    pub channels: Vec<(Arc<str>, u32)>,
    /// What this node serves to clients, with weights as for channels. At most [`CHANNELS_MAX`].
    pub servers: Vec<(Arc<str>, u32)>,
    /// Whom this host asks as a client. At most [`CHANNELS_MAX`].
    pub clients: Vec<ClientPlan>,
    /// The application's own properties, told to every peer: names that begin with `X-`.
    pub metadata: Vec<(Box<str>, Box<[u8]>)>,
    /// How this host publishes; `None`: not at all, and subscribers are refused.
    pub publisher: Option<PublisherPlan>,
    /// What this host subscribes to.
    pub subscribers: Vec<SubscriberPlan>,
    /// Sockets for end clients; may be empty.
    pub streams: Vec<StreamPlan>,

    /// Where the marks come from; what is needed to compute them anew when peers come and go.
    pub hwm: HwmPlan,
    /// Mark of a link's send queue at start, bytes; 0 = unlimited.
    pub send_mark: u64,
    /// Mark of a link's receive queue at start, bytes; 0 = unlimited.
    pub receive_mark: u64,
    /// Largest payload of one record between nodes (with stock peers: the sum of its frames),
    /// bytes. Default 16 MiB.
    pub max_message: u64,
    /// The same for STREAM clients. Default 64 KiB.
    pub stream_max_message: u64,
    /// What receive queues of the whole host may hold beyond their marks to take one larger record
    /// each, bytes: 2 x `max_message` x `shards`. The last `max_message` is the oldest drawer's.
    pub oversize_budget: u64,
    /// Records claimed and not finished, charged bytes of the whole host. Default: the budget.
    /// With nothing owned one record of any allowed size passes.
    pub max_owned_bytes: u64,

    /// The job limit and what follows from it.
    pub jobs: JobsPlan,
    /// Handlers started and not finished, of the whole host. Default 4 x `jobs.limit`.
    pub max_started: u32,
    /// The split of `max_started`: no shard has less than one, the first ones have the remainder.
    pub started_per_shard: Vec<u32>,

    /// The room for operations that wait.
    pub room: RoomPlan,
    /// Requests accepted and not ended, of the whole host. Default 65,536.
    pub request_slots: u32,
    /// Requests in flight to one peer. Default 16,384.
    pub requests_per_peer: u32,
    /// Bounds of the completion lane.
    pub reply: ReplyPlan,

    /// Ceiling of a send, whole ms in 1..=i32::MAX. Default 1 s.
    pub send_timeout: Duration,
    /// Ceiling of a request that names none: finding, room and reply together. Whole ms in
    /// 1..=i32::MAX. Default 30 s.
    pub request_timeout: Duration,
    /// Requests whose time is up when their handler could start are answered with an error instead.
    /// Default: they run.
    pub skip_expired_requests: bool,

    /// Rings of calling threads, handle x shard. Default 128; beyond it handles share one per shard.
    pub caller_rings: u32,
    /// Places of one caller's ring, a power of two. Default 1,024.
    pub ring_slots: u32,

    /// Pairs of connections at one time, dialled and accepted; a peer with four links counts four.
    /// Default 10,000.
    pub peers_max: u32,
    /// How peers are recognised: by PLAIN credentials on every connection, dialled and accepted, or not at all.
    /// Default: not at all.
    pub credentials: Option<Credentials>,
    /// Connections in their handshake at one time. Default 256; accepts above it are closed.
    pub handshakes_max: u32,
    /// From the first byte until both lanes are ready. Default 5 s.
    pub handshake_timeout: Duration,
    /// Interval of PING on the completion lane. Default 5 s.
    pub heartbeat: Duration,
    /// Silence of both lanes after which a peer is dead. Default 15 s.
    pub dead_after: Duration,
    /// First wait before dialling again; doubles, with +-50 % jitter. Default 100 ms.
    pub reconnect_min: Duration,
    /// Longest wait before dialling again. Default 5 s.
    pub reconnect_max: Duration,
    /// A record in assembly that gets no byte for this long while we read ends its connection.
    /// Default 30 s.
    pub assembly_timeout: Duration,

    /// Budgets of the phases of one turn.
    pub turn: TurnPlan,
    /// Kernel buffer for sending, bytes; `None`: left to the system.
    pub socket_send_buffer: Option<u32>,
    /// Kernel buffer for receiving, bytes; `None`: left to the system.
    pub socket_receive_buffer: Option<u32>,

    /// What is recorded and logged about single messages.
    pub diagnostics: Level,
    /// Payload of a typical record, bytes: what the ledger's expected sum is made with. Default 1 KiB.
    pub typical_record: u64,
}

/// The default of [`HostPlan::max_message`].
pub const MAX_MESSAGE: u64 = 16 << 20;

impl HostPlan {
    /// The plan of all defaults for a node without addresses, with `shards` loops that have a
    /// processor each and one more for the completion thread. `start` puts the options on top.
    pub fn defaults(name: &str, shards: u16) -> HostPlan {
        let shards = shards.max(1);
        let processors = u32::from(shards) + u32::from(shards > 1);
        let jobs = JobsPlan::new(
            JobQueueProfile::Balanced.jobs_per_processor().saturating_mul(processors),
            shards,
            80,
            60,
            processors,
        );
        let max_started = jobs.limit.saturating_mul(4);
        let bounds = HwmProfile::Balanced.general();
        let turn = TurnPlan { claims: jobs.turn_claims, ..TurnPlan::default() };
        HostPlan {
            name: name.into(),
            instance: 0,
            shards,
            cpus: Vec::new(),
            shard_cpus: vec![None; usize::from(shards)],
            completion_cpu: None,
            pinning: Pinning::BestEffort,
            idle: Idle::Park,
            listen: Vec::new(),
            connects: Vec::new(),
            channels: Vec::new(),
            servers: Vec::new(),
            clients: Vec::new(),
            metadata: Vec::new(),
            publisher: None,
            subscribers: Vec::new(),
            streams: Vec::new(),
            hwm: HwmPlan::default(),
            send_mark: bounds.max,
            receive_mark: bounds.max,
            max_message: MAX_MESSAGE,
            stream_max_message: 64 << 10,
            oversize_budget: 2 * MAX_MESSAGE * u64::from(shards),
            max_owned_bytes: HwmProfile::Balanced.cap(),
            max_started,
            started_per_shard: split(max_started, shards),
            jobs,
            room: RoomPlan::new(4096, 64 << 20),
            request_slots: 65_536,
            requests_per_peer: 16_384,
            reply: ReplyPlan::default(),
            send_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(30),
            skip_expired_requests: false,
            caller_rings: 128,
            ring_slots: sizing::CALLER_RING_SLOTS,
            peers_max: 10_000,
            credentials: None,
            handshakes_max: 256,
            handshake_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(5),
            dead_after: Duration::from_secs(15),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            assembly_timeout: Duration::from_secs(30),
            turn,
            socket_send_buffer: None,
            socket_receive_buffer: None,
            diagnostics: Level::Errors,
            typical_record: 1024,
        }
    }

    /// Charge of the largest record that may exist: `max_message`, the longest method name and the
    /// overhead.
    pub fn record_max(&self) -> u64 {
        charge(self.max_message as usize, METHOD_LEN_MAX)
    }

    /// Charge of the declared typical record.
    pub fn record_typical(&self) -> u64 {
        charge(self.typical_record as usize, 16)
    }

    /// Links that the connects, the clients and the subscribers ask for.
    pub fn links_dialled(&self) -> u32 {
        let publishers: usize = self.subscribers.iter().map(|s| s.publishers.len()).sum();
        let servers: usize = self.clients.iter().map(|c| c.servers.len()).sum();
        let others = u32::try_from(publishers + servers).unwrap_or(u32::MAX);
        self.connects.iter().map(|c| u32::from(c.links)).sum::<u32>().saturating_add(others)
    }

    /// The role of a client of that name.
    pub fn client(&self, name: &str) -> Option<&ClientPlan> {
        self.clients.iter().find(|client| *client.name == *name)
    }

    /// End clients connected at one time, of all sockets.
    pub fn sessions(&self) -> u32 {
        self.streams.iter().fold(0, |sum, s| sum.saturating_add(s.sessions))
    }

    /// Sizes of the pools and tables that follow from the limits, as written sums.
    pub fn places(&self) -> Places {
        Places::of(self)
    }

    /// The inequalities at the head of this file; the sentence names the first one that is broken.
    pub fn check(&self) -> Result<(), String> {
        let n = usize::from(self.shards);
        let rules: [(bool, &str); 17] = [
            ((1..=SHARDS_MAX).contains(&self.shards), "1 <= shards <= SHARDS_MAX"),
            (self.shard_cpus.len() == n, "one processor entry per shard"),
            (self.started_per_shard.len() == n, "one started bound per shard"),
            ((1..=64).contains(&self.jobs.turn_claims), "1 <= turn_claims <= 64"),
            (self.turn.claims == self.jobs.turn_claims, "the turn claims what the jobs allow"),
            (self.jobs.share >= 1, "share >= 1"),
            ((1..=self.jobs.limit).contains(&self.jobs.per_target), "1 <= per_target <= limit"),
            (self.jobs.resume_at < self.jobs.pause_at, "resume_at < pause_at"),
            (self.jobs.pause_at <= self.jobs.limit, "pause_at <= limit"),
            (self.started_per_shard.iter().all(|s| *s >= 1), "every shard may start one handler"),
            (
                self.started_per_shard.iter().map(|s| u64::from(*s)).sum::<u64>() == u64::from(self.max_started),
                "the started bounds add up",
            ),
            (
                self.record_max() <= self.room.bytes.min(self.reply.hold).min(self.reply.host),
                "one record of any allowed size fits the waiting room, the reply hold and the reply mark",
            ),
            (
                self.room.per_target_ops <= self.room.ops && self.room.per_target_bytes <= self.room.bytes,
                "a target's share of the waiting room is a part of it",
            ),
            (self.room.handler_ops < self.room.ops, "not all of the waiting room is kept for handlers"),
            (self.reply.per_peer <= self.reply.host, "reply mark per peer <= per host"),
            (
                self.heartbeat < self.dead_after && self.reconnect_min <= self.reconnect_max,
                "heartbeat < dead_after, reconnect_min <= reconnect_max",
            ),
            (self.links_dialled() <= self.peers_max, "links dialled <= peers_max"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(format!("the plan of {} breaks: {rule}", self.name)),
            None => Ok(()),
        }
    }
}

/// What a thread that cannot be pinned to its processor means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pinning {
    /// Start fails.
    Required,
    /// Start goes on, the status says so.
    #[default]
    BestEffort,
    /// No thread is pinned.
    Off,
}

/// How a shard waits when it has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Sleep in the kernel until something comes. The only right choice where threads share processors.
    Park,
    /// Look for work for so long, then sleep; ever more rarely where that was in vain.
    SpinThenPark(Duration),
    /// Never sleep: a whole processor, always.
    Spin,
}

/// What is recorded and logged about single messages. Counters and histograms are always on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// Nothing.
    Off,
    /// Operations that ended in an error.
    #[default]
    Errors,
    /// Also operations that had to wait.
    Normal,
    /// Every operation.
    Detailed,
}

/// A peer to dial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectPlan {
    /// Where it listens.
    pub addr: Endpoint,
    /// The node that must be found there; another name in its READY is refused. `None`: any.
    pub name: Option<Arc<str>>,
    /// Pairs of connections, each with its own shard, marks and order. 1..=64, default 1.
    pub links: u16,
    /// A stock PULL socket listens there, and one connection is dialled to it as PUSH. Default: a node, or a
    /// stock ROUTER or REP.
    pub pull: bool,
}

/// What PLAIN shows and wants to see. Its text form does not tell the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name, at most 255 bytes.
    pub user: Box<[u8]>,
    /// The password, at most 255 bytes.
    pub password: Box<[u8]>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &String::from_utf8_lossy(&self.user)).finish_non_exhaustive()
    }
}

/// Where to dial.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// An address.
    Addr(SocketAddr),
    /// A host name, looked up at each attempt, and a port.
    Name(Arc<str>, u16),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Addr(addr) => write!(f, "tcp://{addr}"),
            Endpoint::Name(host, port) => write!(f, "tcp://{host}:{port}"),
        }
    }
}

/// The job limit M and what follows from it. A job is a record that was claimed and whose handler
/// has not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobsPlan {
    /// M, jobs of the whole host. 1..=2,147,483,647; default: the profile's jobs per processor x
    /// effective processors.
    pub limit: u32,
    /// Peers are told to pause at this many jobs or more: ceil(M x P / 100).
    pub pause_at: u32,
    /// Peers are told to go on at this many jobs or fewer: floor(M x R / 100).
    pub resume_at: u32,
    /// P, 1..=100. Default 80.
    pub pause_percent: u8,
    /// R, 0..=99 and below P. Default 60.
    pub resume_percent: u8,
    /// Processors that this process really has: the smallest of what affinity, quota and system say.
    pub effective_processors: u32,
    /// Records that one turn of a shard may claim: max(1, min(64, M / (2 x shards))).
    pub turn_claims: u32,
    /// r, the share of a shard that nobody takes: max(1, M / (4 x shards)).
    pub share: u32,
    /// The most jobs of one target that are claimed and not started, 1..=`limit`; `limit`: no cap.
    pub per_target: u32,
}

impl JobsPlan {
    /// Computes what follows from the limit. The caller has checked the ranges.
    pub fn new(limit: u32, shards: u16, pause_percent: u8, resume_percent: u8, effective_processors: u32) -> Self {
        let (m, shards) = (u64::from(limit), u64::from(shards.max(1)));
        JobsPlan {
            limit,
            pause_at: match cfg!(afflux_mutation = "pause_rounds_down") {
                true => (m * u64::from(pause_percent) / 100) as u32,
                false => (m * u64::from(pause_percent)).div_ceil(100) as u32,
            },
            resume_at: (m * u64::from(resume_percent) / 100) as u32,
            pause_percent,
            resume_percent,
            effective_processors,
            turn_claims: (m / (2 * shards)).clamp(1, 64) as u32,
            share: (m / (4 * shards)).max(1) as u32,
            per_target: limit,
        }
    }

    /// One target has at most this part of the jobs: max(1, floor(M x percent / 100)).
    pub fn with_target_percent(self, percent: u8) -> Self {
        let jobs = u64::from(self.limit) * u64::from(percent.min(100)) / 100;
        JobsPlan { per_target: jobs.max(1) as u32, ..self }
    }

    /// Whether the jobs of one target are capped.
    #[inline]
    pub fn caps_targets(&self) -> bool {
        self.per_target < self.limit
    }
}

/// Room for operations that wait, of the whole host. A share that holds nothing takes one record of
/// any allowed size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoomPlan {
    /// Operations. Default 4,096.
    pub ops: u32,
    /// Charged bytes. Default 64 MiB.
    pub bytes: u64,
    /// Operations that may wait for one target: a quarter, at least one.
    pub per_target_ops: u32,
    /// Charged bytes that may wait for one target: a quarter.
    pub per_target_bytes: u64,
    /// Operations kept for calls made from handlers, because finishing goes before starting: a quarter.
    pub handler_ops: u32,
    /// Charged bytes kept for calls made from handlers: a quarter.
    pub handler_bytes: u64,
}

impl RoomPlan {
    /// A room with its quarters.
    pub fn new(ops: u32, bytes: u64) -> Self {
        RoomPlan {
            ops,
            bytes,
            per_target_ops: (ops / 4).max(1),
            per_target_bytes: bytes / 4,
            handler_ops: ops / 4,
            handler_bytes: bytes / 4,
        }
    }
}

/// Bounds of the completion lane, charged bytes. Outside all ordinary marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyPlan {
    /// Replies not yet written to one peer. Default 4 MiB; an empty lane takes one larger reply.
    pub per_peer: u64,
    /// Replies not yet written to any peer. Default 128 MiB; a peer below host / peers is not refused.
    pub host: u64,
    /// Replies that arrived and were not taken. Default 64 MiB.
    pub hold: u64,
}

impl Default for ReplyPlan {
    fn default() -> Self {
        ReplyPlan { per_peer: 4 << 20, host: 128 << 20, hold: 64 << 20 }
    }
}

/// What one turn of a loop does at most before it goes on to the next phase. A phase that stopped
/// on its budget makes the turn end without sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnPlan {
    /// Finished operations handed to their continuations. 256.
    pub done: u32,
    /// Records taken from one ring. 256.
    pub ring_records: u32,
    /// Timers fired. 256.
    pub timers: u32,
    /// Bytes read from one link. 256 KiB.
    pub read_bytes_per_link: usize,
    /// Time spent on reading and claiming from one link. 200 us.
    pub time: Duration,
    /// Records claimed; see [`JobsPlan::turn_claims`].
    pub claims: u32,
    /// Jobs started. 64.
    pub starts: u32,
    /// Bytes written to one link. 256 KiB.
    pub write_bytes_per_link: usize,
    /// Connections accepted in one turn of the completion thread. 16.
    pub accepts: u32,
    /// Handshake steps in one turn of the completion thread. 64.
    pub handshake_steps: u32,
    /// Size of a thread's read block, the most that one read asks for: 64 KiB. A link at rest has no
    /// buffer; one that stopped in mid-read keeps at most this.
    pub read_block: usize,
    /// The least that one read asks for, however little room is left: 4 KiB.
    pub read_min: usize,
    /// Size of the block in which small records are put together for one write: 64 KiB.
    pub write_block: usize,
}

impl Default for TurnPlan {
    fn default() -> Self {
        TurnPlan {
            done: 256,
            ring_records: 256,
            timers: 256,
            read_bytes_per_link: 256 << 10,
            time: Duration::from_micros(200),
            claims: 64,
            starts: 64,
            write_bytes_per_link: 256 << 10,
            accepts: 16,
            handshake_steps: 64,
            read_block: 64 << 10,
            read_min: 4 << 10,
            write_block: 64 << 10,
        }
    }
}

/// Splits `total` over `parts` as evenly as whole numbers allow; the first ones get the remainder.
pub fn split(total: u32, parts: u16) -> Vec<u32> {
    let n = u32::from(parts.max(1));
    (0..n).map(|i| total / n + u32::from(i < total % n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_keep_every_inequality() {
        for shards in [1, 2, 3, 7, 64, SHARDS_MAX] {
            HostPlan::defaults("n", shards).check().unwrap();
        }
    }

    #[test]
    fn thresholds_round_away_from_flapping() {
        let at = |m| {
            let jobs = JobsPlan::new(m, 1, 80, 60, 1);
            (jobs.pause_at, jobs.resume_at)
        };
        assert_eq!(at(17), (14, 10));
        assert_eq!(at(7), (6, 4));
        assert_eq!(at(1), (1, 0));
        assert_eq!(at(i32::MAX as u32), (1_717_986_918, 1_288_490_188));
    }

    /// Field case 016: the pause count rounds up, the resume count down, and between them is room for every legal
    /// pair of percentages; a gate with these counts reports each crossing once.
    #[test]
    fn every_pair_of_percentages_leaves_room_between_its_counts() {
        for limit in 1..=64_u32 {
            for (pause, resume) in (1..=100_u8).flat_map(|pause| (0..pause).map(move |resume| (pause, resume))) {
                let jobs = JobsPlan::new(limit, 1, pause, resume, 1);
                let exact = |percent: u8| f64::from(limit) * f64::from(percent) / 100.0;
                assert_eq!(f64::from(jobs.pause_at), exact(pause).ceil(), "{pause} % of {limit}");
                assert_eq!(f64::from(jobs.resume_at), exact(resume).floor(), "{resume} % of {limit}");
                assert!(jobs.resume_at < jobs.pause_at && (1..=limit).contains(&jobs.pause_at));
            }
        }
    }

    #[test]
    fn a_turn_never_takes_more_than_half_of_an_even_share() {
        let of = |m, shards| {
            let jobs = JobsPlan::new(m, shards, 80, 60, 1);
            (jobs.turn_claims, jobs.share)
        };
        assert_eq!(of(1024, 8), (64, 32));
        assert_eq!(of(512, 8), (32, 16));
        assert_eq!(of(8, 8), (1, 1));
        assert_eq!(of(1, 8), (1, 1));
        assert_eq!(of(i32::MAX as u32, 1), (64, 536_870_911));
    }

    #[test]
    fn a_split_adds_up_and_is_even() {
        assert_eq!(split(10, 4), [3, 3, 2, 2]);
        assert_eq!(split(3, 4), [1, 1, 1, 0]);
        assert_eq!(split(u32::MAX, 1), [u32::MAX]);
    }

    #[test]
    fn a_small_waiting_room_still_serves_everybody() {
        let room = RoomPlan::new(1, 1 << 20);
        assert_eq!((room.per_target_ops, room.handler_ops), (1, 0));
        let room = RoomPlan::new(4096, 64 << 20);
        assert_eq!((room.per_target_ops, room.handler_ops), (1024, 1024));
        assert_eq!((room.per_target_bytes, room.handler_bytes), (16 << 20, 16 << 20));
    }

    #[test]
    fn a_broken_plan_names_the_rule() {
        let mut plan = HostPlan::defaults("n", 2);
        plan.started_per_shard[0] = 0;
        assert_eq!(plan.check().unwrap_err(), "the plan of n breaks: every shard may start one handler");
    }
}
