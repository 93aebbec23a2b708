//! The service: connections, receive queues and permits are the host's; behind them the relay's own stages.
//!
//! ```text
//!   handler ─▶ hand-over ─▶ permit ─▶ batch ─▶ bridge ─▶ store's thread ─▶ result ─▶ answers
//!   a shard    a place per  waits     three    queue     commit, fsync                a thread
//!              started                bounds
//! ```
//!
//! The handler never blocks its shard: it hands the record over and is done. Everything between it and the
//! answer is bounded by the handlers that may be started: when they are all out, jobs keep their permits, the
//! receive queues fill, and the sender feels it.

use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant as SystemInstant};

use afflux::policy::ledger::{self, Ledger, Reservation, WhenFull};
use afflux::{Bridge, Context, Handler, Host, Request};
use crossbeam_channel::{Sender, TrySendError, bounded};

use crate::answers::{Answerer, code, fail};
use crate::batcher::{Batcher, Job, Owed, StoreBridge};
use crate::record::RecordId;
use crate::served::Flow;
use crate::sizes::{BATCH, BRIDGE, Sizes};
use crate::store::{CACHE, Item, Store, Stored};
use crate::tenants::{TENANT_BYTES, TENANTS_MAX, Tenants};
use crate::times::{Set, Times};

/// The channel that records come in on.
pub const CHANNEL: &str = "relay";
/// The method that asks for the number of an input; every other method is the id of a record.
pub const INPUT: &str = "input";

/// How long the store's thread may take to end.
const END: Duration = Duration::from_secs(10);

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
        let flow = Arc::new(Flow::new(Tenants::new(key), times));
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
        let tenant = Some(self.flow.tenants.came(request.payload(), SystemInstant::now()));
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
