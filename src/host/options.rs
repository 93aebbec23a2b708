//! Options of a host, as the user states them. Nothing is judged here: a setter keeps what it is given,
//! and `start` judges everything together (`resolve`), so that one attempt shows every mistake. No
//! wrong value is ever replaced by a default.

use std::fmt;
use std::time::Duration;

use super::Roles;
use super::pubsub::{PublisherOptions, SubscriberOption};
use super::server::ClientOption;
use crate::base::error::Violation;
use crate::base::unit::ByteSize;
use crate::plan::{Credentials, Hwm, HwmProfile, JobQueueProfile, Level, MAX_MESSAGE, Pinning};

/// Which shards there are and where they run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Placement {
    /// One shard per effective processor; one fewer from three on, so that the completion thread has a
    /// processor of its own. At least one.
    #[default]
    Auto,
    /// So many shards, on the first allowed processors. More than there are processors: none is pinned.
    Count(usize),
    /// One shard on each of these processors, in this order.
    Cpus(Vec<usize>),
}

/// How a shard waits when it has nothing to do. The completion thread always parks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum IdlePolicy {
    /// `SpinThenPark(50 us)` where every shard and the completion thread have a processor of their own,
    /// `Park` otherwise: two threads that spin on one processor cost ten to twenty times a wake-up.
    #[default]
    Auto,
    /// Sleep at once. Costs a wake-up, some 5 to 50 us by machine, per message on an idle host.
    Park,
    /// Look for work for so long, then sleep. More than zero, at most 1 s. Where looking was in vain several times in
    /// a row it is left out, up to 64 pauses in the traffic: the first messages after a quiet time may meet a sleeper.
    SpinThenPark(Duration),
    /// Never sleep. A whole processor per shard, always.
    Spin,
}

/// What a user stated about one peer to dial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConnectOption {
    pub(crate) addr: String,
    pub(crate) name: Option<String>,
    pub(crate) links: u64,
    pub(crate) pull: bool,
}

/// What a user stated about one socket for end clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StreamOption {
    pub(crate) addr: String,
    pub(crate) sessions: u64,
    pub(crate) send_hwm: Hwm,
    pub(crate) receive_hwm: Hwm,
    pub(crate) send_timeout: Duration,
    pub(crate) idle: Option<Duration>,
}

/// For whom a handler is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    ToNodes,
    ToClients,
}

/// Everything a user stated, unjudged. `None`: not stated, follows from other values.
#[derive(Clone, Debug)]
pub struct HostOptions {
    pub(crate) name: String,
    pub(crate) listen: Vec<String>,
    pub(crate) connects: Vec<ConnectOption>,
    pub(crate) plain: Option<Credentials>,
    pub(crate) channels: Vec<(String, u64)>,
    pub(crate) servers: Vec<(String, u64)>,
    /// Which of the two was stated last.
    pub(crate) served: Option<Served>,
    pub(crate) clients: Vec<ClientOption>,
    pub(crate) metadata: Vec<(String, Vec<u8>)>,
    pub(crate) publisher: Option<PublisherOptions>,
    pub(crate) subscribers: Vec<SubscriberOption>,
    pub(crate) streams: Vec<StreamOption>,
    pub(crate) placement: Placement,
    pub(crate) pinning: Pinning,
    pub(crate) idle: IdlePolicy,
    pub(crate) hwm: HwmProfile,
    pub(crate) memory_limit: Option<ByteSize>,
    pub(crate) hwm_budget: Option<ByteSize>,
    pub(crate) send_hwm: Hwm,
    pub(crate) receive_hwm: Hwm,
    pub(crate) max_message_size: ByteSize,
    pub(crate) stream_max_message_size: ByteSize,
    pub(crate) oversize_budget: Option<ByteSize>,
    pub(crate) max_owned_bytes: Option<ByteSize>,
    pub(crate) jobs: JobQueueProfile,
    pub(crate) max_jobs: Option<u64>,
    pub(crate) pause_percent: u64,
    pub(crate) resume_percent: u64,
    pub(crate) target_job_percent: u64,
    pub(crate) max_started_handlers: Option<u64>,
    pub(crate) room_ops: u64,
    pub(crate) room_bytes: ByteSize,
    pub(crate) request_slots: u64,
    pub(crate) requests_per_peer: u64,
    pub(crate) reply_per_peer: ByteSize,
    pub(crate) reply_host: ByteSize,
    pub(crate) reply_hold: ByteSize,
    pub(crate) send_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) skip_expired_requests: bool,
    pub(crate) max_caller_rings: u64,
    pub(crate) max_peers: u64,
    pub(crate) max_handshakes: u64,
    pub(crate) handshake_timeout: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) dead_after: Duration,
    pub(crate) reconnect_min: Duration,
    pub(crate) reconnect_max: Duration,
    pub(crate) assembly_timeout: Duration,
    pub(crate) socket_buffers: Option<(ByteSize, ByteSize)>,
    pub(crate) diagnostics: Level,
    pub(crate) typical_record: Option<ByteSize>,
    /// Setters that were called in a place where they mean nothing.
    pub(crate) misplaced: Vec<Violation>,
}

impl HostOptions {
    /// The defaults for a node of that name.
    pub fn new(name: impl Into<String>) -> Self {
        HostOptions {
            name: name.into(),
            listen: Vec::new(),
            connects: Vec::new(),
            plain: None,
            channels: Vec::new(),
            servers: Vec::new(),
            served: None,
            clients: Vec::new(),
            metadata: Vec::new(),
            publisher: None,
            subscribers: Vec::new(),
            streams: Vec::new(),
            placement: Placement::Auto,
            pinning: Pinning::BestEffort,
            idle: IdlePolicy::Auto,
            hwm: HwmProfile::Balanced,
            memory_limit: None,
            hwm_budget: None,
            send_hwm: Hwm::Auto,
            receive_hwm: Hwm::Auto,
            max_message_size: ByteSize::bytes(MAX_MESSAGE),
            stream_max_message_size: ByteSize::kib(64),
            oversize_budget: None,
            max_owned_bytes: None,
            jobs: JobQueueProfile::Balanced,
            max_jobs: None,
            pause_percent: 80,
            resume_percent: 60,
            target_job_percent: 100,
            max_started_handlers: None,
            room_ops: 4096,
            room_bytes: ByteSize::mib(64),
            request_slots: 65_536,
            requests_per_peer: 16_384,
            reply_per_peer: ByteSize::mib(4),
            reply_host: ByteSize::mib(128),
            reply_hold: ByteSize::mib(64),
            send_timeout: Duration::from_secs(if cfg!(afflux_mutation = "sends_wait_long") { 3600 } else { 1 }),
            request_timeout: Duration::from_secs(30),
            skip_expired_requests: false,
            max_caller_rings: 128,
            max_peers: 10_000,
            max_handshakes: 256,
            handshake_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(5),
            dead_after: Duration::from_secs(15),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            assembly_timeout: Duration::from_secs(30),
            socket_buffers: None,
            diagnostics: Level::Errors,
            typical_record: None,
            misplaced: Vec::new(),
        }
    }
}

/// Options of a host, one setter each. Start refuses the whole set if one value breaks its rule, and
/// names every value that does.
#[must_use = "a builder does nothing until start()"]
pub struct HostBuilder {
    pub(crate) options: HostOptions,
    pub(crate) roles: Roles,
}

impl fmt::Debug for HostBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl HostBuilder {
    /// Options of a node of that name. Peers know the node by it, so two live nodes of one name refuse
    /// each other. 1 to 64 characters of `A-Z a-z 0-9 . _ -`.
    pub fn new(name: impl Into<String>) -> Self {
        HostBuilder { options: HostOptions::new(name), roles: Roles::default() }
    }

    /// Listens on `tcp://host:port`; may be called several times. The host is a number address,
    /// `localhost`, `*` for every interface, or empty for loopback: nothing is reachable from outside
    /// unless you say so. Port 0: the system chooses. Default: no listener. A name, another scheme, or
    /// the same address twice is refused.
    pub fn listen(mut self, addr: impl Into<String>) -> Self {
        self.options.listen.push(addr.into());
        self
    }

    /// Dials the node that listens on `tcp://host:port` and keeps dialling whenever the link is down; may
    /// be called several times. [`named`](Self::named) and [`links`](Self::links) speak of the connect
    /// before them. The same address twice is refused: `links` is what you want.
    pub fn connect(mut self, addr: impl Into<String>) -> Self {
        self.options.connects.push(ConnectOption { addr: addr.into(), name: None, links: 1, pull: false });
        self
    }

    /// The node that must be found at the address of the connect before. It can then be called by this
    /// name before it was ever seen; another name there is refused. Default: any node. Without a
    /// connect before it, with a name twice, or with this host's own name: refused.
    pub fn named(self, node: impl Into<String>) -> Self {
        let node = node.into();
        self.on_connect("named", &node.clone(), |connect| connect.name = Some(node))
    }

    /// A stock ZeroMQ PULL socket listens at the address of the connect before: it is dialled as PUSH and takes
    /// one-way messages (route and payload), addressed to the node that [`named`](Self::named) calls
    /// it, or to its address. A stock ROUTER or REP needs no word: it is recognised by its handshake.
    pub fn pull(self) -> Self {
        self.on_connect("pull", &"a stock socket", |connect| connect.pull = true)
    }

    /// Every connection, dialled and accepted, is recognised by user name and password (ZMTP PLAIN). They travel in
    /// clear text: for loopback and tunnels only. Each at most 255 bytes. Default: nobody is asked.
    pub fn plain(mut self, user: impl Into<Vec<u8>>, password: impl Into<Vec<u8>>) -> Self {
        let (user, password) = (user.into().into(), password.into().into());
        self.options.plain = Some(Credentials { user, password });
        self
    }

    /// A property that every peer is told in its handshake: node, client, stock socket. A peer reads it with
    /// [`Context::metadata`](crate::Context::metadata), pyzmq with `message.get("X-Region")`. The name begins with
    /// `X-`, not with `X-Afflux-`, and has at most 255 visible ASCII characters; libzmq reads values as text up to a
    /// zero byte. All together at most 2 KiB and 32, each name once. Default: none.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.options.metadata.push((name.into(), value.into()));
        self
    }

    /// Pairs of connections of the connect before, 1..=64, default 1. Each is handled by one shard in
    /// its own order: more links are more parallelism and less order. Every link costs its two marks.
    pub fn links(self, n: u64) -> Self {
        self.on_connect("links", &n, |connect| connect.links = n)
    }

    /// Shards and where they run; see [`Placement`]. Default `Auto`: affinity and the control group's
    /// quota are respected: with E effective processors E shards for E = 1, 2 and E - 1 from 3 on. A
    /// stated number is an upper bound of E for the job limit too. 0 shards, more than 256, or a processor twice is refused.
    pub fn shards(mut self, placement: Placement) -> Self {
        self.options.placement = placement;
        self
    }

    /// What it means if a thread cannot be pinned. Default `BestEffort`: start goes on and the status
    /// says so. `Required` is refused where the allowed processors are unknown or too few, and by start
    /// where the system then declines.
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.options.pinning = pinning;
        self
    }

    /// How shards wait; see [`IdlePolicy`]. Default `Auto`. `SpinThenPark` of zero or more than 1 s is
    /// refused.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.options.idle = idle;
        self
    }

    /// How much memory ordinary queues may have; see [`HwmProfile`]. Default `Balanced`: 5 % of the
    /// memory limit, at most 512 MiB unless the queues' minima need more, between 64 KiB and 1 MiB for
    /// each queue. Says nothing about jobs.
    pub fn hwm(mut self, profile: HwmProfile) -> Self {
        self.options.hwm = profile;
        self
    }

    /// The memory that the profile takes its percentage of, bytes. Default: the control group's limit,
    /// else the machine's memory. 0, or more than the control group's limit, is refused.
    pub fn memory_limit(mut self, limit: ByteSize) -> Self {
        self.options.memory_limit = Some(limit);
        self
    }

    /// The budget itself, bytes: no percentage and no cap are applied. Wins over
    /// [`memory_limit`](Self::memory_limit). Default: computed. 0, or more than the control group's
    /// limit, is refused. Not a bound of the process: [`report`](crate::policy::ledger::report) is.
    pub fn hwm_budget(mut self, budget: ByteSize) -> Self {
        self.options.hwm_budget = Some(budget);
        self
    }

    /// The mark of each link's send queue, charged bytes (payload + method + 64 per record), at most
    /// 32 GiB. Default `Auto`. `Bytes(0)` is refused, write `Unlimited`; so is a mark that does not fit
    /// the budget together with the minima of the links that are dialled.
    pub fn send_hwm(mut self, mark: Hwm) -> Self {
        self.options.send_hwm = mark;
        self
    }

    /// The mark of each link's receive queue. As [`send_hwm`](Self::send_hwm), on its own.
    pub fn receive_hwm(mut self, mark: Hwm) -> Self {
        self.options.receive_hwm = mark;
        self
    }

    /// Largest payload of one record between nodes, bytes, 1..=1 GiB, default 16 MiB. Peers are told. A
    /// larger one is refused at the call, and a peer that sends one is disconnected. The waiting room,
    /// the reply mark and the reply hold must each hold one record of this size.
    pub fn max_message_size(mut self, size: ByteSize) -> Self {
        self.options.max_message_size = size;
        self
    }

    /// Largest frame of an end client, header and body without the prefix, bytes, 1..=1 GiB, default 64 KiB.
    /// A client that announces a larger one is closed before anything is allocated for it.
    pub fn stream_max_message_size(mut self, size: ByteSize) -> Self {
        self.options.stream_max_message_size = size;
        self
    }

    /// What all receive queues together may hold beyond their marks, to take one larger record each,
    /// bytes. Default 2 x `max_message_size` x shards. Less than one such record per shard is refused.
    pub fn oversize_budget(mut self, size: ByteSize) -> Self {
        self.options.oversize_budget = Some(size);
        self
    }

    /// Charged bytes of records that were claimed and are not finished, of the whole host,
    /// 1..=512 GiB. Default: the budget. One record always passes. Lower it, rather than the profile,
    /// where handlers keep large payloads for long.
    pub fn max_owned_bytes(mut self, size: ByteSize) -> Self {
        self.options.max_owned_bytes = Some(size);
        self
    }

    /// Jobs per effective processor; see [`JobQueueProfile`]. Default `Balanced`: 128 x effective
    /// processors. Says nothing about bytes.
    pub fn jobs(mut self, profile: JobQueueProfile) -> Self {
        self.options.jobs = profile;
        self
    }

    /// Exactly so many records may be claimed and wait for their handler, of the whole host,
    /// 1..=2,147,483,647. Wins over the profile. 0 is refused: there is no "unlimited".
    pub fn max_jobs(mut self, jobs: u64) -> Self {
        self.options.max_jobs = Some(jobs);
        self
    }

    /// Peers are told to pause at ceil(M x `pause` / 100) jobs and to go on at
    /// floor(M x `resume` / 100). Percent; `pause` in 1..=100, `resume` in 0..=99 and below `pause`;
    /// default 80 and 60. With M = 17: 14 and 10.
    pub fn pause_resume(mut self, pause: u64, resume: u64) -> Self {
        (self.options.pause_percent, self.options.resume_percent) = (pause, resume);
        self
    }

    /// The most of the jobs that one target may have, in percent of M, 1..=100; default 100: no cap. A target
    /// is one link of a peer, or one shard's callers in this process. Capped, it has at most
    /// max(1, floor(M x percent / 100)) records claimed whose handlers have not started; its others stay in
    /// their queue, without a ticket and with their age, while permits are left for everybody else. It matters
    /// when handlers do not finish and the started bound is reached: then a hot target would take every permit
    /// that comes back, in the order of arrival.
    pub fn target_job_share(mut self, percent: u64) -> Self {
        self.options.target_job_percent = percent;
        self
    }

    /// Handlers started and not finished (answered, with no continuation and no future left), of the
    /// whole host, split over the shards. At most 2^32 - 1. Default 4 x M, at least one per shard. Fewer
    /// than one per shard is refused: that shard could never start anything.
    pub fn max_started_handlers(mut self, handlers: u64) -> Self {
        self.options.max_started_handlers = Some(handlers);
        self
    }

    /// Operations that wait for room, of the whole host: how many (1..=1,048,574) and with how many
    /// charged bytes (one record of the largest size up to 512 GiB). Default 4,096 and 64 MiB. One
    /// target takes at most a quarter; a quarter is kept for calls made from handlers. Full, a call fails
    /// at once and gives its payload back. Operations and `request_slots` together: at most 1,048,575.
    pub fn waiting_room(mut self, operations: u64, bytes: ByteSize) -> Self {
        (self.options.room_ops, self.options.room_bytes) = (operations, bytes);
        self
    }

    /// Requests accepted and not ended, of the whole host, 1..=1,048,574, default 65,536. Beyond it a
    /// request waits as for room. Each costs a cell and up to 2 KiB of reply.
    pub fn request_slots(mut self, slots: u64) -> Self {
        self.options.request_slots = slots;
        self
    }

    /// Requests in flight to one peer, 1..=1,048,574, default 16,384. Beyond it a request waits as for
    /// room. More than `request_slots` is allowed and never reached.
    pub fn requests_per_peer(mut self, requests: u64) -> Self {
        self.options.requests_per_peer = requests;
        self
    }

    /// Charged bytes of replies not yet written to one peer and to all, default 4 MiB and 128 MiB, the
    /// second at most 512 GiB. A peer above its mark gets no more of its requests started. The mark per
    /// peer above the host's, or a host mark below one record of the largest size, is refused.
    pub fn reply_marks(mut self, per_peer: ByteSize, host: ByteSize) -> Self {
        (self.options.reply_per_peer, self.options.reply_host) = (per_peer, host);
        self
    }

    /// Replies larger than 2 KiB that arrived and were not taken, charged bytes of the whole host, at
    /// most 512 GiB, default 64 MiB. Full, such a reply is thrown away unless its taker waits right now,
    /// and its operation ends in `CapacityExceeded(ReplyHold)`. Less than one record of the largest size
    /// is refused.
    pub fn reply_hold(mut self, bytes: ByteSize) -> Self {
        self.options.reply_hold = bytes;
        self
    }

    /// Ceiling of a send that names none, and the most that a per-call value can shorten. Rounded up to
    /// ms, 1..=2,147,483,647 ms, default 1 s. Zero, or longer, is refused: no wait is without an end.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.options.send_timeout = timeout;
        self
    }

    /// Ceiling of a request that names none: finding, room and reply together. Rounded up to ms,
    /// 1..=2,147,483,647 ms, default 30 s. Zero, or longer, is refused.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.options.request_timeout = timeout;
        self
    }

    /// Answers a request whose time is up with an error before its handler starts, and counts it.
    /// Default: it runs, because only the handler knows whether its effect is still wanted. One-way
    /// messages are never skipped.
    pub fn skip_expired_requests(mut self) -> Self {
        self.options.skip_expired_requests = true;
        self
    }

    /// Rings of calling handles, handle x shard, 1..=65,536, default 128. Beyond it handles share one
    /// ring per shard behind a lock: correct, slower. Each costs 1,024 places.
    pub fn max_caller_rings(mut self, rings: u64) -> Self {
        self.options.max_caller_rings = rings;
        self
    }

    /// Pairs of connections at one time, 1..=1,000,000, default 10,000; a peer with four links counts
    /// four. Accepts beyond it are closed. Fewer than the links that are dialled is refused.
    pub fn max_peers(mut self, pairs: u64) -> Self {
        self.options.max_peers = pairs;
        self
    }

    /// Connections in their handshake at one time (1..=65,536, default 256; accepts beyond it are
    /// closed) and the time that each has until both its lanes are ready (whole ms, default 5 s).
    pub fn handshakes(mut self, at_once: u64, timeout: Duration) -> Self {
        (self.options.max_handshakes, self.options.handshake_timeout) = (at_once, timeout);
        self
    }

    /// Interval of PING on the completion lane and the silence of both lanes after which a peer is dead.
    /// Whole ms; default 5 s and 15 s. A `dead_after` that is not longer than the interval is refused:
    /// it would call every idle peer dead.
    pub fn heartbeat(mut self, interval: Duration, dead_after: Duration) -> Self {
        (self.options.heartbeat, self.options.dead_after) = (interval, dead_after);
        self
    }

    /// First and longest wait before dialling again; it doubles, with +-50 % jitter. Whole ms; default
    /// 100 ms and 5 s. A first wait above the longest is refused.
    pub fn reconnect(mut self, first: Duration, longest: Duration) -> Self {
        (self.options.reconnect_min, self.options.reconnect_max) = (first, longest);
        self
    }

    /// A record of which nothing more comes for this long, while we read, ends its connection. Whole
    /// ms, default 30 s.
    pub fn assembly_timeout(mut self, timeout: Duration) -> Self {
        self.options.assembly_timeout = timeout;
        self
    }

    /// Kernel buffers of each connection for sending and receiving, bytes, 4 KiB..=1 GiB each. Default:
    /// left to the system, which adapts them; fixed ones bound what the kernel holds for a slow peer.
    pub fn socket_buffers(mut self, send: ByteSize, receive: ByteSize) -> Self {
        self.options.socket_buffers = Some((send, receive));
        self
    }

    /// What is recorded and logged about single messages; see [`Level`]. Default `Errors`. Counters and
    /// histograms are always on.
    pub fn diagnostics(mut self, level: Level) -> Self {
        self.options.diagnostics = level;
        self
    }

    /// Payload of a typical record, bytes, at most `max_message_size`; default 1 KiB, or that if it is
    /// smaller. Changes nothing but the ledger's expected sum.
    pub fn typical_record(mut self, size: ByteSize) -> Self {
        self.options.typical_record = Some(size);
        self
    }

    /// How much of a channel's traffic comes here, beside its other members, 0..=10,000, default 100; of
    /// the channel or [`server`](Self::server) before. 0: known, but given nothing. Without one before it: refused.
    pub fn weight(mut self, weight: u64) -> Self {
        let served = match self.options.served {
            Some(Served::ToClients) => &mut self.options.servers,
            _ => &mut self.options.channels,
        };
        match served.last_mut() {
            Some((_, of_channel)) => *of_channel = weight,
            None => self.options.misplaced.push(Violation {
                option: "weight",
                value: weight.to_string(),
                rule: "speaks of the channel before it, and there is none".into(),
            }),
        }
        self
    }

    /// What was stated so far.
    pub fn options(&self) -> &HostOptions {
        &self.options
    }

    fn on_connect(
        mut self,
        option: &'static str,
        value: &dyn fmt::Display,
        set: impl FnOnce(&mut ConnectOption),
    ) -> Self {
        match self.options.connects.last_mut() {
            Some(connect) => set(connect),
            None => self.options.misplaced.push(Violation {
                option,
                value: value.to_string(),
                rule: "speaks of the connect before it, and there is none".into(),
            }),
        }
        self
    }
}
