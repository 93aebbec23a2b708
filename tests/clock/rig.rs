//! Whole hosts of the product's own engines on one thread and a clock that a test moves by hand: what is
//! due at 100 ms happens at 100 ms, and not one step before. Shards can be stuck, lanes frozen and cut.
//! Who wakes whom is not looked at here: every loop has its turn until nothing moves any more.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use afflux::base::id::ShardId;
use afflux::base::time::{Clock, Instant};
use afflux::engine::completion::{CompletionAction, CompletionEngine, ConnKey};
use afflux::engine::seat::{HandlerSeat, Seat, SeatFactory};
use afflux::engine::shard::{LinkKey, ShardAction, ShardEngine};
use afflux::engine::shared::{HostShared, Life};
use afflux::flow::target::Target;
use afflux::flow::transport::Transport;
use afflux::plan::{ConnectPlan, Endpoint, HostPlan};
use afflux::sync::wake::WakeCell;
use afflux::{Channel, Client, Context, ErrorKind, Handler, Lane, Message, Request};

use crate::net::{End, Net};

pub const MS: u64 = 1_000_000;

const PATIENCE: Duration = Duration::from_secs(300);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The clock of a test. Handlers that take time move it.
#[derive(Debug, Default)]
pub struct Hand(AtomicU64);

impl Hand {
    pub fn ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Instant {
        Instant(self.ns())
    }
}

/// The clock of one host: it runs as the test's does, and shows another time.
#[derive(Debug)]
pub struct Skewed {
    hand: Arc<Hand>,
    ahead: u64,
}

impl Clock for Skewed {
    fn now(&self) -> Instant {
        Instant(self.hand.ns() + self.ahead)
    }
}

type OnRequest = dyn Fn(Request, &mut Context<'_, Play>) + Send + Sync;
type OnMessage = dyn Fn(Message, &mut Context<'_, Play>) + Send + Sync;

/// A handler made of closures.
#[derive(Clone)]
pub struct Play(Arc<OnRequest>, Arc<OnMessage>);

impl Handler for Play {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        (self.0.clone())(request, cx);
    }

    fn message(&mut self, message: Message, cx: &mut Context<'_, Self>) {
        (self.1.clone())(message, cx);
    }
}

pub fn serving(
    request: impl Fn(Request, &mut Context<'_, Play>) + Send + Sync + 'static,
    message: impl Fn(Message, &mut Context<'_, Play>) + Send + Sync + 'static,
) -> SeatFactory {
    let play = Play(Arc::new(request), Arc::new(message));
    let factory = Arc::new(move |_shard: usize| play.clone());
    Arc::new(move |shard, seat| -> Box<dyn Seat> { Box::new(HandlerSeat::new(factory.clone(), shard, seat)) })
}

pub fn asked(request: impl Fn(Request, &mut Context<'_, Play>) + Send + Sync + 'static) -> SeatFactory {
    serving(request, |message, _| drop(message))
}

pub fn told(message: impl Fn(Message, &mut Context<'_, Play>) + Send + Sync + 'static) -> SeatFactory {
    serving(|request, cx| request.fail(cx, 1, "one-way only"), message)
}

pub fn echo() -> SeatFactory {
    asked(|request, cx| {
        let payload = request.payload().clone();
        request.reply(cx, payload);
    })
}

/// What a host of a test is made from.
pub struct Spec {
    pub plan: HostPlan,
    channels: Vec<SeatFactory>,
    node: Option<SeatFactory>,
    ahead: u64,
}

impl Spec {
    pub fn new(name: &str, shards: u16) -> Spec {
        Spec { plan: HostPlan::defaults(name, shards), channels: Vec::new(), node: None, ahead: 0 }
    }

    /// Its clock shows so many milliseconds more than the test's.
    pub fn ahead(mut self, time: u64) -> Spec {
        self.ahead = time * MS;
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut HostPlan)) -> Spec {
        change(&mut self.plan);
        self
    }

    pub fn channel(mut self, name: &str, seat: SeatFactory) -> Spec {
        self.plan.channels.push((name.into(), 100));
        self.channels.push(seat);
        self
    }

    pub fn node_handler(mut self, seat: SeatFactory) -> Spec {
        self.node = Some(seat);
        self
    }

    /// Dials the node at this place, by `links` pairs; `name`: whom it expects there.
    pub fn connect(mut self, to: usize, name: Option<&str>, links: u16) -> Spec {
        let addr = Endpoint::Addr(address(to));
        self.plan.connects.push(ConnectPlan { addr, name: name.map(Into::into), links, pull: false });
        self
    }

    /// Marks of a fixed size.
    pub fn marks(self, send: u64, receive: u64) -> Spec {
        self.with(|plan| {
            (plan.send_mark, plan.receive_mark) = (send, receive);
            plan.hwm.send = afflux::Hwm::Bytes(afflux::ByteSize::bytes(send));
            plan.hwm.receive = afflux::Hwm::Bytes(afflux::ByteSize::bytes(receive));
        })
    }

    /// The host's job limit, and how many handlers each shard may have started.
    pub fn jobs(self, limit: u32, started: u32) -> Spec {
        self.with(|plan| {
            plan.jobs = afflux::plan::JobsPlan::new(limit, plan.shards, 80, 60, u32::from(plan.shards));
            plan.turn.claims = plan.jobs.turn_claims;
            plan.max_started = started * u32::from(plan.shards);
            plan.started_per_shard = vec![started; usize::from(plan.shards)];
        })
    }
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (node >> 8) as u8, node as u8], 7000))
}

pub struct Node {
    at: usize,
    clock: Arc<Skewed>,
    pub shared: Arc<HostShared>,
    pub shards: Vec<ShardEngine>,
    pub completion: CompletionEngine,
    dialling: BTreeMap<(u32, u32), Arc<End>>,
    pub turns: u64,
    pub dials: Vec<u64>,
    pub log: Vec<String>,
}

/// See the module.
pub struct Rig {
    pub clock: Arc<Hand>,
    pub net: Arc<Net>,
    pub nodes: Vec<Node>,
    pub stuck: BTreeSet<(usize, usize)>,
    /// Hosts of which no thread runs.
    pub dead: BTreeSet<usize>,
}

impl Rig {
    pub fn new(specs: Vec<Spec>) -> Rig {
        watch();
        let clock = Arc::new(Hand::default());
        clock.advance(ms(1000));
        let net = Net::new(specs.len() + 4, 64 << 10);
        let nodes = specs
            .into_iter()
            .enumerate()
            .map(|(at, spec)| Node::new(at, at as u128 + 1, spec, clock.clone()))
            .collect();
        Rig { clock, net, nodes, stuck: BTreeSet::new(), dead: BTreeSet::new() }
    }

    /// The same, when every configured link is up.
    pub fn up(specs: Vec<Spec>) -> Rig {
        let mut rig = Rig::new(specs);
        rig.settle();
        assert!(rig.nodes.iter().all(|node| node.completion.all_up()), "every link is up");
        // Until the clocks of the links are known.
        rig
    }

    /// Another instance in place of the host that is there, which dies without a word.
    pub fn replace(&mut self, at: usize, instance: u128, spec: Spec) {
        self.nodes[at] = Node::new(at, instance, spec, self.clock.clone());
    }

    pub fn now(&self) -> u64 {
        self.clock.ns() / MS
    }

    pub fn client(&self, at: usize) -> Client {
        Client::new(self.nodes[at].shared.clone())
    }

    pub fn channel(&self, at: usize, name: &str) -> Channel {
        self.client(at).channel(name)
    }

    /// The target of `at` that is called `label`.
    pub fn target(&self, at: usize, label: &str) -> Arc<Target> {
        let targets = self.nodes[at].shared.targets.lock();
        let found = targets.iter().rfind(|target| &*target.label() == label && !target.gone.is_raised());
        found.unwrap_or_else(|| panic!("no target {label}")).clone()
    }

    /// Every loop has its turn, again and again, until nothing moves at this moment.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 100_000, "something moves for ever");
            if !self.round() {
                return;
            }
        }
    }

    /// One turn of every loop. True if anything moved or has more to do.
    pub fn round(&mut self) -> bool {
        let before = self.net.moves();
        let mut more = false;
        for node in self.nodes.iter_mut().filter(|node| !self.dead.contains(&node.at)) {
            for shard in 0..node.shards.len() {
                if !self.stuck.contains(&(node.at, shard)) {
                    more |= node.turn_shard(shard, &self.net);
                }
            }
            more |= node.turn_completion(&self.net, true);
        }
        more || self.net.moves() != before
    }

    /// Time passes, millisecond by millisecond.
    pub fn run(&mut self, time: u64) {
        for _ in 0..time {
            self.clock.advance(ms(1));
            self.settle();
        }
    }

    /// The host's threads did not run for so long, and its completion thread goes on where it was: after its poll,
    /// before its turn.
    pub fn oversleep(&mut self, at: usize, time: u64) {
        self.dead.insert(at);
        self.run(time);
        self.dead.remove(&at);
        self.nodes[at].turn_completion(&self.net, false);
        self.settle();
    }

    /// Runs until it holds, at most for so long.
    #[track_caller]
    pub fn until(&mut self, limit: u64, mut holds: impl FnMut(&mut Rig) -> bool) {
        self.settle();
        for _ in 0..=limit {
            if holds(self) {
                return;
            }
            self.run(1);
        }
        panic!("not within {limit} ms");
    }

    /// Ends every operation of a host as its shutdown does.
    pub fn shut_down(&mut self, at: usize) {
        self.nodes[at].shared.life.set(Life::Draining as u64);
        self.nodes[at].shared.end_all(ErrorKind::ShuttingDown);
        self.settle();
    }

    /// Nothing is held anywhere: no permit, no place, no byte.
    #[track_caller]
    pub fn assert_at_rest(&mut self) {
        self.settle();
        for node in self.nodes.iter().filter(|node| !self.dead.contains(&node.at)) {
            let shared = &node.shared;
            let gate = shared.gate.snapshot(shared.clock.now());
            let cells = shared.cells.counts();
            let mut left = vec![
                ("permits", u64::from(gate.in_use)),
                ("tickets", u64::from(gate.waiters)),
                ("cells", u64::from(cells.waiting) + u64::from(cells.claimed) + u64::from(cells.done)),
                ("waiting operations", shared.room.ops().into()),
                ("waiting bytes", shared.room.bytes()),
                ("callers' operations", shared.callers_room.ops().into()),
                ("request slots", shared.slots.ops().into()),
                ("reply hold", shared.hold.bytes()),
                ("owned bytes", shared.owned.get()),
                ("oversize draws", shared.oversize.ops().into()),
                ("replies not taken", shared.replies.bytes()),
            ];
            for port in &shared.shards {
                left.push(("started handlers", port.started.get()));
                left.push(("queued jobs", port.queued.get()));
                left.push(("unclaimed records", port.unclaimed.get()));
            }
            for target in shared.targets.lock().iter().filter(|target| target.is_up()) {
                left.push(("bytes under a mark", target.mark.bytes()));
                left.push(("waiters at a mark", target.mark.waiters().into()));
                left.push(("requests in flight", target.in_flight.ops().into()));
                left.push(("blocked marks", target.mark.is_blocked().into()));
            }
            left.retain(|(_, n)| *n > 0);
            assert!(left.is_empty(), "{} holds {left:?}", shared.plan.name);
        }
    }
}

impl Node {
    fn new(at: usize, instance: u128, spec: Spec, hand: Arc<Hand>) -> Node {
        let Spec { mut plan, channels, node, ahead } = spec;
        let clock = Arc::new(Skewed { hand, ahead });
        plan.instance = instance;
        plan.check().unwrap();
        let shards = plan.shards;
        let wakes = (0..=shards).map(|_| Arc::new(WakeCell::new(|| {}))).collect();
        let (shared, receivers) = HostShared::new(Arc::new(plan), clock.clone(), wakes);
        let shards = (0..shards)
            .zip(receivers.shards)
            .map(|(i, receiver)| ShardEngine::new(shared.clone(), ShardId(i), receiver, &channels, node.as_ref()))
            .collect();
        let completion = CompletionEngine::new(shared.clone(), receivers.completion, instance as u64);
        let (dialling, dials, log) = (BTreeMap::new(), Vec::new(), Vec::new());
        Node { at, clock, shared, shards, completion, dialling, turns: 0, dials, log }
    }

    fn turn_shard(&mut self, at: usize, net: &Arc<Net>) -> bool {
        let thread = (self.at, at);
        let engine = &mut self.shards[at];
        for ready in net.poll(thread) {
            let key = LinkKey { index: ready.token.0, generation: ready.token.1 };
            engine.handle_ready(key, ready.readable, ready.writable);
        }
        self.turns += 1;
        let turn = engine.turn(self.clock.now());
        while let Some(action) = engine.poll_action() {
            match action {
                ShardAction::Watch { link, transport } => {
                    net.set_lane(end(&transport), Lane::Application);
                    net.watch(end(&transport), thread, (link.index, link.generation));
                }
                ShardAction::Unwatch { transport } => net.unwatch(end(&transport), thread),
            }
        }
        turn.again || engine.has_work()
    }

    fn turn_completion(&mut self, net: &Arc<Net>, polled: bool) -> bool {
        let thread = (self.at, self.shards.len());
        let engine = &mut self.completion;
        for ready in if polled { net.poll(thread) } else { Vec::new() } {
            let key = ConnKey { index: ready.token.0, generation: ready.token.1 };
            let dialled = self.dialling.get(&ready.token).is_some_and(|end| end.wire == ready.wire);
            if dialled && net.is_established(ready.wire) {
                let end = self.dialling.remove(&ready.token).unwrap();
                engine.handle_connected(key, Ok(end));
            }
            engine.handle_ready(key, ready.readable, ready.writable);
        }
        while let Some(end) = net.accept(self.at) {
            engine.handle_accepted(end);
        }
        self.turns += 1;
        let (mut again, _) = engine.turn(self.clock.now());
        while let Some(action) = engine.poll_action() {
            match action {
                CompletionAction::Dial { conn, to } => {
                    let token = (conn.index, conn.generation);
                    self.dials.push(self.clock.now().0);
                    again = true;
                    match net.dial(thread, token, node_of(&to)) {
                        Ok(end) => drop(self.dialling.insert(token, end)),
                        Err(e) => engine.handle_connected(conn, Err(e)),
                    }
                }
                CompletionAction::Watch { conn, transport } => {
                    net.watch(end(&transport), thread, (conn.index, conn.generation));
                }
                CompletionAction::Completion { transport, .. } => net.set_lane(end(&transport), Lane::Completion),
                CompletionAction::Forget { conn } => {
                    if let Some(end) = self.dialling.remove(&(conn.index, conn.generation)) {
                        net.unwatch(&end, thread);
                    }
                }
                CompletionAction::Unwatch { transport } => net.unwatch(end(&transport), thread),
                CompletionAction::Log(line) => self.log.push(format!("{line:?}")),
            }
        }
        again || engine.has_work()
    }
}

fn end(transport: &Arc<dyn Transport>) -> &End {
    transport.as_any().downcast_ref().expect("every connection here is one of the test's")
}

fn node_of(to: &Endpoint) -> usize {
    match to {
        Endpoint::Addr(SocketAddr::V4(addr)) => {
            let octets = addr.ip().octets();
            usize::from(octets[2]) << 8 | usize::from(octets[3])
        }
        other => panic!("no such address here: {other}"),
    }
}

/// Ends the process if a thread with a test on it is stuck: a callback that waits for a lock that is its own.
fn watch() {
    thread_local! {
        static WATCHED: RefCell<Option<mpsc::Sender<()>>> = const { RefCell::new(None) };
    }
    WATCHED.with_borrow_mut(|watched| {
        watched.get_or_insert_with(|| {
            let name = thread::current().name().unwrap_or("a test").to_owned();
            let (over, ended) = mpsc::channel::<()>();
            thread::spawn(move || {
                if ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                    eprintln!("watchdog: {name} is not over after {PATIENCE:?}");
                    std::process::abort();
                }
            });
            over
        });
    });
}

/// A number as a payload of `len` bytes, and back.
pub fn padded(n: u64, len: usize) -> Vec<u8> {
    let mut payload = n.to_le_bytes().to_vec();
    payload.resize(len.max(8), 0x5A);
    payload
}

pub fn as_number(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"))
}
