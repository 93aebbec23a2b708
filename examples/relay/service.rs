//! The service: a handler per shard that hands records over to the store's thread, and the sizes of both
//! hosts.

use afflux::base::unit::ByteSize;
use afflux::plan::HostPlan;
use afflux::policy::ledger;
use afflux::{Context, Error, Handler, Host, HostBuilder, IdlePolicy, Pinning, Placement, Request};
use crossbeam_channel::{Sender, TrySendError};

use crate::load::BYTES_OUTSTANDING;
use crate::record::RecordId;
use crate::store::{BATCH, CACHE, Job, code};

/// The channel that records come in on.
pub const CHANNEL: &str = "relay";

/// The most handlers that may wait for the store at once, whatever the job limit: each has a place in the
/// hand-over, and those are allocated at once.
const STARTED_MAX: u64 = 16_384;

/// The numbers that size both hosts; unjudged, the builders' rules decide.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// `--shards`
    pub shards: Option<u64>,
    /// `--jobs`
    pub jobs: Option<u64>,
    /// `--connections`
    pub connections: Option<u64>,
    /// `--outstanding`
    pub outstanding: u64,
}

impl Sizes {
    /// Links between the hosts.
    pub fn links(&self) -> u64 {
        self.connections.unwrap_or(1)
    }

    /// Two hosts and a store share the processors: none of the threads has one of its own, so none is pinned
    /// and none spins.
    fn host(&self, name: &str) -> HostBuilder {
        let host = Host::builder(name).pinning(Pinning::Off).idle(IdlePolicy::Park);
        match self.shards {
            Some(n) => host.shards(Placement::Count(usize::try_from(n).unwrap_or(usize::MAX))),
            None => host,
        }
    }

    /// The host that serves.
    pub fn service(&self) -> HostBuilder {
        let host = self.host("relay-service").listen("tcp://127.0.0.1:0");
        match self.jobs {
            Some(n) => host.max_jobs(n),
            None => host,
        }
    }

    /// The host that asks, but for its connect. Whatever is outstanding finds a place to wait: one link may
    /// have a quarter of the room.
    pub fn client(&self) -> HostBuilder {
        let quarter = ByteSize::bytes(BYTES_OUTSTANDING);
        let room = ByteSize::bytes(4 * quarter.get());
        self.host("relay-load").waiting_room((4 * self.outstanding).max(4096), room)
    }

    /// Places of the hand-over: as many as handlers may be started, so that it is never full.
    pub fn started(&self) -> Result<u64, Error> {
        let plan: HostPlan = self.service().check()?;
        Ok(u64::from(plan.max_started).min(STARTED_MAX))
    }
}

/// Starts the host that serves.
pub fn start(sizes: &Sizes, started: u64, store: Sender<Job>) -> Result<Host, Error> {
    sizes.service().max_started_handlers(started).channel(CHANNEL, move |_shard| Relay { store: store.clone() }).start()
}

/// One per shard.
struct Relay {
    store: Sender<Job>,
}

impl Handler for Relay {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let id = match request.method().parse::<RecordId>() {
            Ok(id) => id,
            Err(rule) => return request.fail(cx, code::MALFORMED, rule),
        };
        let (responder, payload) = request.into_parts();
        let job = Job { id, payload, responder: responder.into_remote() };
        match self.store.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(job)) => job.responder.fail(code::FULL, "the hand-over to the store is full"),
            Err(TrySendError::Disconnected(job)) => job.responder.fail(code::FULL, "the store has ended"),
        }
    }
}

/// What both hosts and the relay's own stages reserve at most. `None`: something was made unlimited.
pub fn ledger_bytes(service: &Host, client: &Host, started: u64, links: u32) -> Option<u64> {
    let host = |host: &Host| ledger::of_links(host.plan(), links).total_maximum();
    let hand_over = started * size_of::<Job>() as u64;
    // The handed-over payloads are in the service's ledger, the outstanding ones are held by the load too.
    let own = hand_over + BATCH.bytes + CACHE as u64 + BYTES_OUTSTANDING;
    Some(host(service)?.saturating_add(host(client)?).saturating_add(own))
}
