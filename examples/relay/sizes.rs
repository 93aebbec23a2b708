//! The sizes of both hosts and of what lies between them: what an operator would decide once, with the reason.

use std::time::Duration;

use afflux::base::unit::ByteSize;
use afflux::policy::batch::BatchLimits;
use afflux::policy::bridge::BridgeLimits;
use afflux::{Error, Host, HostBuilder, Hwm, IdlePolicy, Pinning, Placement};

/// The longest line. A log line of a megabyte is a mistake of whoever wrote it, and everything that must hold
/// one record of any size is as small as that allows.
pub const LINE_MAX: u64 = 1 << 20;
/// The mark of a link's queue, on both sides: several hundred short lines, which the store takes in a few
/// milliseconds. Longer queues would only make everybody wait longer, and after a standstill what they hold
/// must be served well within the time of a request, or all that comes later is too late as well.
const MARK: ByteSize = ByteSize::kib(64);
/// The system's own buffers: what lies there is a queue too, and nobody sees it.
const SOCKET: ByteSize = ByteSize::kib(32);
/// Links between the hosts: enough that every shard has some of them.
const LINKS: u64 = 4;
/// Bytes of the records that the load has outstanding; one record always passes.
pub const BYTES_OUTSTANDING: u64 = 8 << 20;
/// Requests that an open loop may have in flight. All places in front of the store together hold fewer.
const SLOTS: u64 = 16_384;
/// Operations that may wait for room; a quarter of it is for one link.
const ROOM: u64 = 4096;
/// The most handlers that may wait for the store at once, whatever the job limit: each has a place in the
/// hand-over, and those are allocated at once.
const STARTED_MAX: u64 = 16_384;
/// A dead peer is found after so long, a service that stood still for a shorter time is not dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// The bounds of one commit. Longer than the age nobody waits for company; a larger batch makes everybody in it
/// wait for the last one's bytes.
pub const BATCH: BatchLimits =
    BatchLimits { items: 512, bytes: 4 << 20, age: Duration::from_millis(1), reserve: Duration::ZERO };
/// The largest item is no larger than a batch: see [`crate::store::Item::expanded`].
const _: () = assert!(3 * (LINE_MAX + 64) <= BATCH.bytes);
/// Batches from their permit to their answers: one is written and one is filled meanwhile. More would only be
/// smaller ones.
pub const BRIDGE: BridgeLimits = BridgeLimits { jobs: 2, bytes: 2 * BATCH.bytes, waiters: 1 };

/// How long a batch waits for the bridge, and for its result. A store that hangs for longer answers with an
/// error what it may still store later: nobody was told that it is there.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The numbers that size both hosts; unjudged, the builders' rules decide.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// `--shards`
    pub shards: Option<u64>,
    /// `--jobs`
    pub jobs: Option<u64>,
    /// `--connections`
    pub connections: Option<u64>,
    /// Records outstanding at a time, in a closed loop.
    pub outstanding: Option<u64>,
    /// `--timeout`
    pub timeout: Duration,
    /// `--listen`, or an address that only this process knows.
    pub listen: String,
}

impl Sizes {
    /// Links between the hosts.
    pub fn links(&self) -> u64 {
        self.connections.unwrap_or(LINKS)
    }

    /// Two hosts and a store share the processors: none of the threads has one of its own, so none is pinned
    /// and none spins.
    fn host(&self, name: &str) -> HostBuilder {
        let host = Host::builder(name)
            .pinning(Pinning::Off)
            .idle(IdlePolicy::Park)
            .max_message_size(ByteSize::bytes(LINE_MAX))
            .typical_record(ByteSize::bytes(128))
            .socket_buffers(SOCKET, SOCKET)
            .max_caller_rings(4)
            .heartbeat(DEAD_AFTER / 3, DEAD_AFTER);
        match self.shards {
            Some(n) => host.shards(Placement::Count(usize::try_from(n).unwrap_or(usize::MAX))),
            None => host,
        }
    }

    /// The host that serves. It asks nobody, so it has next to no room for requests of its own.
    pub fn service(&self) -> HostBuilder {
        let host = self
            .host("relay-service")
            .listen(&self.listen)
            .receive_hwm(Hwm::Bytes(MARK))
            .max_owned_bytes(ByteSize::mib(16))
            .request_slots(16)
            .waiting_room(1024, ByteSize::mib(8))
            .reply_marks(ByteSize::mib(1), ByteSize::mib(8))
            .reply_hold(ByteSize::mib(2))
            .max_peers(256)
            .handshakes(64, Duration::from_secs(5));
        match self.jobs {
            Some(n) => host.max_jobs(n),
            None => host,
        }
    }

    /// The host that asks, but for its connect. In a closed loop whatever is outstanding finds a place to wait.
    pub fn client(&self) -> HostBuilder {
        let (slots, room, bytes) = match self.outstanding {
            Some(n) => (n.max(1), (4 * n).max(ROOM), 4 * BYTES_OUTSTANDING),
            None => (SLOTS, ROOM, BYTES_OUTSTANDING),
        };
        self.host("relay-load")
            .send_hwm(Hwm::Bytes(MARK))
            .request_timeout(self.timeout)
            .request_slots(slots)
            .waiting_room(room, ByteSize::bytes(bytes))
            .reply_marks(ByteSize::mib(1), ByteSize::mib(2))
            .reply_hold(ByteSize::mib(2))
            .max_owned_bytes(ByteSize::mib(2))
            .max_peers(64)
            .handshakes(64, Duration::from_secs(5))
            .reconnect(Duration::from_millis(50), Duration::from_millis(500))
    }

    /// The host that asks, connected.
    pub fn dialled(&self, address: &str) -> HostBuilder {
        self.client().connect(address).links(self.links())
    }

    /// Places of the hand-over: as many as handlers may be started, so that it is never full.
    pub fn started(&self) -> Result<u64, Error> {
        Ok(u64::from(self.service().check()?.max_started).min(STARTED_MAX))
    }
}
