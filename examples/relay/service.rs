//! The service: connections, receive queues and permits are the host's; behind them the relay's own stages.
//!
//! ```text
//!   handler ─▶ hand-over ─▶ permit ─▶ batch ─▶ bridge ─▶ store's thread ─▶ result ─▶ answers
//!   a shard    a place per  waits     three    queue     commit, fsync                a thread
//!              started                bounds
//! ```
//!
//! A batch has its permit before it is filled: what comes while the store is busy joins it, instead of
//! queueing behind it as one more small batch.
//!
//! The handler never blocks its shard: it hands the record over and is done. Everything between it and the
//! answer is bounded by the handlers that may be started: when they are all out, jobs keep their permits, the
//! receive queues fill, and the sender feels it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant as SystemInstant};

use afflux::policy::Instant;
use afflux::policy::batch::{Batch, ClosedBy, Joined};
use afflux::policy::ledger::{self, Ledger, Reservation, WhenFull};
use afflux::{Bridge, BridgePermit, BridgeTask, Context, Handler, Host, RemoteResponder, Request};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};

use crate::record::RecordId;
use crate::sizes::{BATCH, BRIDGE, Sizes};
use crate::store::{CACHE, Item, Store, Stored};
use crate::tenants::{TENANT_BYTES, TENANTS_MAX, TenantId, Tenants};
use crate::times::{Set, Time, Times};

/// The channel that records come in on.
pub const CHANNEL: &str = "relay";
/// The method that asks for the number of an input; every other method is the id of a record.
pub const INPUT: &str = "input";

/// How long a batch waits for the bridge, and for its result. A store that hangs for longer answers with an
/// error what it may still store later: nobody was told that it is there.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the store's thread may take to end.
const END: Duration = Duration::from_secs(10);

/// Codes of error answers.
mod code {
    /// The request is no record.
    pub const MALFORMED: u16 = 400;
    /// Another line is stored under this id.
    pub const CONFLICT: u16 = 409;
    /// The commit failed.
    pub const FAILED: u16 = 500;
    /// The stages behind the handler take no more.
    pub const FULL: u16 = 507;
}

/// What the service did. `received` is the sum of the four ends and what is held.
#[derive(Clone, Copy, Default, Debug)]
pub struct Served {
    /// Records whose handler ran.
    pub received: u64,
    /// Records stored and answered with their sequence.
    pub stored: u64,
    /// Records that were there before, answered with their earlier sequence.
    pub recognised: u64,
    /// Requests that are no record, or one whose id has another line.
    pub refused: u64,
    /// Records whose commit failed.
    pub failed: u64,
    /// Payload bytes of what was received.
    pub bytes: u64,
    /// Commits with an fsync.
    pub commits: u64,
    /// Commits that failed.
    pub failed_commits: u64,
    /// Batches by what closed them, in the order of [`CLOSED_BY`].
    pub closed_by: [u64; 5],
    /// What is in the batch now, and the most at once.
    pub batch: Filling,
    /// Batches closed so far.
    pub batches: u64,
}

/// The batch that is being filled.
#[derive(Clone, Copy, Default, Debug)]
pub struct Filling {
    /// Items.
    pub items: u64,
    /// Bytes after expansion.
    pub bytes: u64,
    /// The most bytes at once.
    pub bytes_peak: u64,
    /// When its first item came.
    pub since: Option<SystemInstant>,
}

impl Served {
    /// Received and not ended.
    pub fn held(&self) -> u64 {
        self.received - self.stored - self.recognised - self.refused - self.failed
    }
}

/// The names of what closes a batch.
pub const CLOSED_BY: [(ClosedBy, &str); 5] = [
    (ClosedBy::Items, "items"),
    (ClosedBy::Bytes, "bytes"),
    (ClosedBy::Age, "age"),
    (ClosedBy::Deadline, "deadline"),
    (ClosedBy::Flush, "flush"),
];

/// What the stages share with whoever looks at them.
pub struct Flow {
    counts: Mutex<Served>,
    /// Per tenant.
    pub tenants: Tenants,
    /// How long things took.
    pub times: Arc<Times>,
}

impl Flow {
    /// The counts as they are, all of one moment.
    pub fn served(&self) -> Served {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, change: impl FnOnce(&mut Served)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A batch of items goes in, what became of each comes out, or why the commit failed.
pub type StoreBridge = Bridge<Vec<Item>, Result<Vec<Stored>, String>>;
type StorePermit = BridgePermit<Vec<Item>, Result<Vec<Stored>, String>>;
type Commit = BridgeTask<Vec<Item>, Result<Vec<Stored>, String>>;

/// A running service.
pub struct Service {
    /// Its host.
    pub host: Arc<Host>,
    /// Its numbers.
    pub flow: Arc<Flow>,
    /// Everything that it reserves.
    pub ledger: Ledger,
    /// The bridge to the store's thread.
    pub bridge: Arc<StoreBridge>,
    stages: Vec<JoinHandle<()>>,
}

impl Service {
    /// Starts the stages from the last to the first, then the host.
    pub fn start(
        sizes: &Sizes,
        key: Option<usize>,
        store: Store,
        times: Arc<Times>,
    ) -> Result<Service, Box<dyn std::error::Error>> {
        let started = sizes.started()?;
        let mut ledger = Ledger::new();
        let flow = Arc::new(Flow { counts: Mutex::default(), tenants: Tenants::new(key), times });
        let store = Arc::new(Mutex::new(store));
        let bridge =
            Bridge::start("store", ["store bridge", "store bridge places"], 1, BRIDGE, &mut ledger, move |_| {
                let store = store.clone();
                move |items: Vec<Item>| commit(&store, &items)
            })?;
        let bridge = Arc::new(bridge);
        rows(&mut ledger, started, key);

        let (hand_over, jobs) = bounded(started as usize);
        let (commits, results) = bounded(BRIDGE.jobs as usize);
        let answerer = Answerer { results, flow: flow.clone() };
        let batcher =
            Batcher { jobs, bridge: bridge.clone(), commits, flow: flow.clone(), begin: SystemInstant::now() };
        let stages = vec![
            Builder::new().name("relay-answers".into()).spawn(move || answerer.run())?,
            Builder::new().name("relay-batch".into()).spawn(move || batcher.run())?,
        ];
        let of_handlers = flow.clone();
        let host = sizes
            .service()
            .max_started_handlers(started)
            .channel(CHANNEL, move |_shard| Relay { hand_over: hand_over.clone(), flow: of_handlers.clone() })
            .start()?;
        for row in ledger::of_links(host.plan(), sizes.links() as u32).rows() {
            ledger.add(row.clone());
        }
        Ok(Service { host: Arc::new(host), flow, ledger, bridge, stages })
    }

    /// Ends the host, then the stages behind it; what went wrong, in words.
    pub fn end(self, patience: Duration) -> Vec<String> {
        let mut wrong: Vec<String> = end_host(self.host, patience).into_iter().collect();
        for stage in self.stages {
            let name = stage.thread().name().unwrap_or("a stage").to_owned();
            wrong.extend(stage.join().err().map(|_| format!("{name} panicked")));
        }
        let left = Arc::try_unwrap(self.bridge).map(|bridge| bridge.shutdown(END));
        match left {
            Ok(left) if left.held() == 0 => {}
            Ok(left) => wrong.push(format!("the store's thread still has {} commits", left.held())),
            Err(_) => wrong.push("somebody still holds the bridge".into()),
        }
        wrong
    }
}

/// Shuts a host down; what it could not deliver, in words.
pub fn end_host(host: Arc<Host>, patience: Duration) -> Option<String> {
    let name = host.plan().name.clone();
    match Arc::try_unwrap(host) {
        Ok(host) => {
            let account = host.shutdown(patience);
            (!account.is_clean()).then(|| format!("{name} ended with work left: {account}"))
        }
        Err(_) => Some(format!("somebody still holds {name}")),
    }
}

/// The reservoirs behind the host, but for the bridge, which brought its own rows.
fn rows(ledger: &mut Ledger, started: u64, key: Option<usize>) {
    use WhenFull::{Never, Shed, Wait};
    let answered = "the answer";
    let items = BATCH.items as u64;
    ledger.add(Reservation::overhead("hand-over", started, size_of::<Job>() as u64, "the batch", Never));
    ledger.add(Reservation::payload("batch", 1, BATCH.bytes, "the submission", Wait).expecting(items * 3 * 128));
    let batches = u64::from(BRIDGE.jobs) + 1;
    let each = items * (size_of::<Owed>() + size_of::<Item>() + size_of::<Stored>()) as u64;
    ledger.add(Reservation::overhead("batches and their answers", batches, each, answered, Wait));
    ledger.add(Reservation::overhead("store cache", 1, CACHE as u64, "the database", Never));
    let tenants = if key.is_some() { TENANTS_MAX as u64 + 1 } else { 0 };
    ledger.add(Reservation::overhead("tenants", tenants, TENANT_BYTES, "the end", Shed).expecting(0));
    ledger.add(Reservation::overhead("histograms of the stages", 3, Set::bytes(), "the end", Never));
}

/// Commits in the store's thread. A panic in there leaves the lock poisoned and the database in doubt, so it
/// is closed, and opened again with the next batch.
fn commit(store: &Mutex<Store>, items: &[Item]) -> Result<Vec<Stored>, String> {
    let mut store = match store.lock() {
        Ok(store) => store,
        Err(poisoned) => {
            store.clear_poison();
            let mut store = poisoned.into_inner();
            store.close();
            store
        }
    };
    store.commit(items).map_err(|e| e.to_string())
}

/// One record on its way to the store, and the duty to answer for it.
struct Job {
    item: Item,
    owed: Owed,
}

/// An answer that is owed.
struct Owed {
    responder: RemoteResponder,
    /// `None`: no record.
    tenant: Option<TenantId>,
}

/// One per shard.
struct Relay {
    hand_over: Sender<Job>,
    flow: Arc<Flow>,
}

impl Handler for Relay {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        if request.method() == INPUT {
            let Ok(identity) = String::from_utf8(request.payload().to_vec()) else {
                return request.fail(cx, code::MALFORMED, "the identity of an input is text");
            };
            let (responder, _) = request.into_parts();
            let owed = Owed { responder: responder.into_remote(), tenant: None };
            return self.hand_over(Job { item: Item::Input(identity), owed });
        }
        let bytes = request.payload().len() as u64;
        let id = match request.method().parse::<RecordId>() {
            Ok(id) => id,
            Err(rule) => {
                self.flow.count(|n| (n.received, n.refused) = (n.received + 1, n.refused + 1));
                return request.fail(cx, code::MALFORMED, rule);
            }
        };
        self.flow.count(|n| (n.received, n.bytes) = (n.received + 1, n.bytes + bytes));
        let tenant = Some(self.flow.tenants.came(request.payload()));
        let (responder, payload) = request.into_parts();
        let owed = Owed { responder: responder.into_remote(), tenant };
        self.hand_over(Job { item: Item::Line(id, payload), owed });
    }
}

impl Relay {
    fn hand_over(&self, job: Job) {
        match self.hand_over.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(job)) => fail(&self.flow, vec![job.owed], code::FULL, "the hand-over is full"),
            Err(TrySendError::Disconnected(job)) => {
                fail(&self.flow, vec![job.owed], code::FULL, "the stages behind the handler have ended");
            }
        }
    }
}

/// Answers all of them with an error, and counts them.
fn fail(flow: &Flow, owed: Vec<Owed>, code: u16, why: &str) {
    let records = owed.iter().filter(|owed| owed.tenant.is_some()).count() as u64;
    flow.count(|n| n.failed += records);
    flow.tenants.ended(owed.iter().filter_map(|owed| Some((owed.tenant?, false))));
    owed.into_iter().for_each(|owed| owed.responder.fail(code, why));
}

/// A commit that is under way, and who waits for it.
struct Awaited {
    commit: Commit,
    owed: Vec<Owed>,
}

/// Fills batches and submits them.
struct Batcher {
    jobs: Receiver<Job>,
    bridge: Arc<StoreBridge>,
    commits: Sender<Awaited>,
    flow: Arc<Flow>,
    begin: SystemInstant,
}

impl Batcher {
    /// Ends when every handler is gone.
    fn run(self) {
        let mut next = None;
        while let Some(first) = next.take().or_else(|| self.jobs.recv().ok()) {
            let since = SystemInstant::now();
            // No item is larger than a batch may be.
            match self.bridge.permit(BATCH.bytes, PATIENCE) {
                Ok(permit) => {
                    let jobs = self.gather(first, since, &mut next);
                    self.submit(permit, jobs);
                }
                Err(e) => {
                    let late = std::iter::once(first).chain(self.jobs.try_iter()).map(|job| job.owed).collect();
                    fail(&self.flow, late, code::FULL, &format!("the store takes no more: {e}"));
                }
            }
        }
    }

    /// Jobs until one of the bounds says that it is enough. A job that does not fit is left in `next`.
    fn gather(&self, first: Job, since: SystemInstant, next: &mut Option<Job>) -> Vec<Job> {
        let mut batch = Batch::new(BATCH);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        let mut job = first;
        let by = loop {
            let size = job.item.expanded();
            match batch.offer(size, Instant::NEVER, self.now()) {
                Joined::Open => jobs.push(job),
                Joined::Closed(by) => {
                    bytes += size;
                    jobs.push(job);
                    break by;
                }
                Joined::Refused(by) => {
                    *next = Some(job);
                    break by;
                }
            }
            bytes += size;
            self.flow.count(|n| {
                let bytes_peak = n.batch.bytes_peak.max(bytes);
                n.batch = Filling { items: jobs.len() as u64, bytes, bytes_peak, since: Some(since) };
            });
            let left = batch.due().map_or(Duration::ZERO, |due| due.since(self.now()));
            job = match self.jobs.recv_timeout(left) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => break ClosedBy::Age,
                Err(RecvTimeoutError::Disconnected) => break ClosedBy::Flush,
            };
        };
        self.flow.times.record(Time::BatchAge, since.elapsed());
        self.flow.count(|n| {
            n.batches += 1;
            n.closed_by[CLOSED_BY.iter().position(|(closed, _)| *closed == by).unwrap_or(0)] += 1;
            n.batch = Filling { bytes_peak: n.batch.bytes_peak.max(bytes), ..Filling::default() };
        });
        jobs
    }

    fn submit(&self, permit: StorePermit, jobs: Vec<Job>) {
        let (items, owed): (Vec<Item>, Vec<Owed>) = jobs.into_iter().map(|job| (job.item, job.owed)).unzip();
        let awaited = Awaited { commit: permit.submit(items), owed };
        // As many places as permits: never full. Gone: the answers' thread has panicked.
        if let Err(refused) = self.commits.send(awaited) {
            fail(&self.flow, refused.into_inner().owed, code::FULL, "the answers' thread has ended");
        }
    }

    fn now(&self) -> Instant {
        Instant(self.begin.elapsed().as_nanos() as u64)
    }
}

/// Takes results in the order of the commits, and answers.
struct Answerer {
    results: Receiver<Awaited>,
    flow: Arc<Flow>,
}

impl Answerer {
    /// Ends when the batcher is gone and everything is answered.
    fn run(self) {
        for Awaited { commit, owed } in &self.results {
            match commit.wait(PATIENCE) {
                Ok((Ok(stored), times)) => {
                    self.flow.times.record(Time::BridgePermitWait, times.permit_wait);
                    self.flow.times.record(Time::BridgeQueueWait, times.queue_wait);
                    self.flow.times.record(Time::StoreCommit, times.service);
                    self.flow.times.record(Time::BridgeResultWait, times.result_wait);
                    self.answer(owed, &stored);
                }
                Ok((Err(why), _)) => self.failed(owed, &format!("the commit failed: {why}")),
                Err(e) => self.failed(owed, &format!("the commit has no result: {e}")),
            }
        }
    }

    fn failed(&self, owed: Vec<Owed>, why: &str) {
        self.flow.count(|n| n.failed_commits += 1);
        fail(&self.flow, owed, code::FAILED, why);
    }

    fn answer(&self, owed: Vec<Owed>, stored: &[Stored]) {
        self.flow.count(|n| {
            n.commits += 1;
            for stored in stored {
                match stored {
                    Stored::Now(_) => n.stored += 1,
                    Stored::Before(_) => n.recognised += 1,
                    Stored::Conflict => n.refused += 1,
                    Stored::Input(_) => {}
                }
            }
        });
        let ends = owed.iter().zip(stored);
        self.flow.tenants.ended(ends.filter_map(|(owed, end)| Some((owed.tenant?, *end != Stored::Conflict))));
        for (Owed { responder, .. }, stored) in owed.into_iter().zip(stored) {
            match stored {
                Stored::Now(sequence) | Stored::Before(sequence) => responder.reply(sequence.to_be_bytes().to_vec()),
                Stored::Input(number) => responder.reply(number.to_be_bytes().to_vec()),
                Stored::Conflict => responder.fail(code::CONFLICT, "another line is stored under this id"),
            }
        }
    }
}
