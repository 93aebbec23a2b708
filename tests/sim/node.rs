//! A host of the product's own engines: the same shared memory, gate, cells, marks and batons; the
//! loops around the engines are those of `runtime`, step by step, with a virtual poller. A thread
//! that went to sleep runs again only when it is woken, when its poller has something, or when the
//! time it asked for has come: what nobody woke it for shows as a hang.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use afflux::base::id::ShardId;
use afflux::base::time::Instant;
use afflux::engine::completion::{CompletionAction, CompletionEngine, ConnKey};
use afflux::engine::seat::SeatFactory;
use afflux::engine::shard::{LinkKey, ShardAction, ShardEngine};
use afflux::engine::shared::HostShared;
use afflux::flow::target::Target;
use afflux::flow::transport::Transport;
use afflux::plan::{Endpoint, HostPlan};
use afflux::sync::wake::WakeCell;

use super::net::{LaneOf, Net, SimTransport};
use super::world::{Agenda, Event, Thread, US, VirtualClock};

enum Engine {
    Shard(Box<ShardEngine>),
    Completion(Box<CompletionEngine>),
}

/// Where a thread is in its loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Turn,
    /// The turn is over and left nothing; others may act before the sleep is announced.
    Settle,
    Asleep,
    /// Woken, and about to come back from its poller.
    Waking,
}

struct Runner {
    engine: Engine,
    wake: Arc<WakeCell>,
    phase: Phase,
    /// Agenda entries of an older version are void.
    version: u64,
    moved: bool,
    next: Instant,
    /// The next turn takes so much longer: a callback that blocks.
    stuck: u64,
}

/// Wakers that were called, for the world to honour.
pub type Woken = Arc<Mutex<Vec<Thread>>>;

pub struct Node {
    pub at: usize,
    pub shared: Arc<HostShared>,
    runners: Vec<Runner>,
    /// A waker was called; remembered until the next poll, like an eventfd.
    notified: Vec<bool>,
    dialling: BTreeMap<(u32, u32), Arc<SimTransport>>,
    /// Every target that there ever was.
    pub targets: Vec<Arc<Target>>,
    pub turns: u64,
    /// Say what the host logs.
    pub verbose: bool,
}

/// Addresses in the world are numbers of nodes.
pub fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7000))
}

fn node_of(endpoint: &Endpoint) -> usize {
    match endpoint {
        Endpoint::Addr(SocketAddr::V4(addr)) => addr.ip().octets()[3] as usize,
        other => panic!("no such address here: {other}"),
    }
}

impl Node {
    pub fn new(
        at: usize,
        plan: HostPlan,
        clock: Arc<VirtualClock>,
        woken: &Woken,
        channels: &[SeatFactory],
        node: &SeatFactory,
        seed: u64,
    ) -> Node {
        plan.check().unwrap();
        let shards = plan.shards as usize;
        let wakes: Vec<Arc<WakeCell>> = (0..=shards)
            .map(|i| {
                let (woken, thread) = (woken.clone(), Thread { node: at, at: i });
                Arc::new(WakeCell::new(move || woken.lock().unwrap().push(thread)))
            })
            .collect();
        let (shared, receivers) = HostShared::new(Arc::new(plan), clock, wakes.clone());
        let mut engines: Vec<Engine> = receivers
            .shards
            .into_iter()
            .enumerate()
            .map(|(i, receiver)| {
                let engine = ShardEngine::new(shared.clone(), ShardId(i as u16), receiver, channels, Some(node));
                Engine::Shard(Box::new(engine))
            })
            .collect();
        let completion = CompletionEngine::new(shared.clone(), receivers.completion, seed);
        engines.push(Engine::Completion(Box::new(completion)));
        let runners = engines
            .into_iter()
            .zip(wakes)
            .map(|(engine, wake)| Runner {
                engine,
                wake,
                phase: Phase::Turn,
                version: 0,
                moved: false,
                next: Instant(0),
                stuck: 0,
            })
            .collect();
        Node {
            at,
            shared,
            runners,
            notified: vec![false; shards + 1],
            dialling: BTreeMap::new(),
            targets: Vec::new(),
            turns: 0,
            verbose: false,
        }
    }

    pub fn threads(&self) -> usize {
        self.runners.len()
    }

    pub fn completion(&self) -> Thread {
        Thread { node: self.at, at: self.runners.len() - 1 }
    }

    /// How many threads do not sleep.
    pub fn awake(&self) -> u32 {
        self.runners.iter().filter(|r| r.phase != Phase::Asleep).count() as u32
    }

    /// Whether every configured link is up.
    pub fn all_up(&self) -> bool {
        self.runners.iter().all(|r| match &r.engine {
            Engine::Completion(engine) => engine.all_up(),
            Engine::Shard(_) => true,
        })
    }

    /// The next turn of this shard begins so much later.
    pub fn stick(&mut self, shard: usize, time: u64) {
        self.runners[shard].stuck = time;
    }

    pub fn schedule(&mut self, at: usize, when: u64, agenda: &Agenda) {
        self.runners[at].version += 1;
        agenda.add(when, Event::Run(Thread { node: self.at, at }, self.runners[at].version));
    }

    /// A waker was called or the poller has something: the thread runs soon if it sleeps.
    pub fn stir(&mut self, at: usize, by_waker: bool, when: u64, agenda: &Agenda) {
        self.notified[at] |= by_waker;
        if self.runners[at].phase == Phase::Asleep {
            self.runners[at].phase = Phase::Waking;
            self.schedule(at, when, agenda);
        }
    }

    /// One step of a thread's loop. `pause`: how long it takes.
    pub fn run(&mut self, at: usize, version: u64, now: u64, pause: u64, net: &Arc<Net>, agenda: &Agenda) {
        if self.runners[at].version != version {
            return;
        }
        let thread = Thread { node: self.at, at };
        match self.runners[at].phase {
            Phase::Asleep | Phase::Waking | Phase::Turn => {
                if self.runners[at].phase != Phase::Turn {
                    self.poll(at, net);
                    self.runners[at].wake.awake();
                    self.runners[at].phase = Phase::Turn;
                }
                self.turns += 1;
                let again = self.turn(at, now, net);
                self.note_targets();
                let pause = pause + std::mem::take(&mut self.runners[at].stuck);
                if again {
                    self.poll(at, net);
                } else {
                    self.runners[at].phase = Phase::Settle;
                }
                self.schedule(at, now + pause, agenda);
            }
            Phase::Settle => {
                let runner = &mut self.runners[at];
                if runner.moved && runner.has_work() {
                    runner.phase = Phase::Turn;
                    return self.schedule(at, now, agenda);
                }
                runner.wake.prepare_sleep();
                if runner.has_work() || !runner.wake.sleep_or_abort() {
                    runner.wake.awake();
                    runner.phase = Phase::Turn;
                    return self.schedule(at, now, agenda);
                }
                let accepts = matches!(runner.engine, Engine::Completion(_)) && net.has_accepts(self.at);
                if matches!(runner.engine, Engine::Completion(_)) {
                    runner.next = runner.next.min(self.shared.cells.next_deadline());
                }
                let next = runner.next;
                runner.phase = Phase::Asleep;
                runner.version += 1;
                if accepts || self.notified[at] || net.has_ready(thread) {
                    self.stir(at, false, now, agenda);
                } else if next != Instant::NEVER {
                    // Pollers count in whole milliseconds, rounded up.
                    let when = now + next.0.saturating_sub(now).div_ceil(1000 * US) * 1000 * US;
                    agenda.add(when, Event::Run(thread, self.runners[at].version));
                }
            }
        }
    }

    /// Hands over what the poller has.
    fn poll(&mut self, at: usize, net: &Arc<Net>) {
        self.notified[at] = false;
        let thread = Thread { node: self.at, at };
        for ready in net.poll(thread) {
            let (index, generation) = ready.token;
            match &mut self.runners[at].engine {
                Engine::Shard(engine) => {
                    engine.handle_ready(LinkKey { index, generation }, ready.readable, ready.writable);
                }
                Engine::Completion(engine) => {
                    let key = ConnKey { index, generation };
                    if self.dialling.get(&ready.token).is_some_and(|t| t.end == ready.end) {
                        let Some(well) = net.outcome(ready.end) else { continue };
                        let Some(transport) = self.dialling.remove(&ready.token) else { continue };
                        if well {
                            engine.handle_connected(key, Ok(transport));
                        } else {
                            engine.handle_connected(key, Err(std::io::ErrorKind::ConnectionRefused.into()));
                        }
                    } else {
                        engine.handle_ready(key, ready.readable, ready.writable);
                    }
                }
            }
        }
    }

    /// True: there is more to do now.
    fn turn(&mut self, at: usize, now: u64, net: &Arc<Net>) -> bool {
        let thread = Thread { node: self.at, at };
        let now = Instant(now);
        match &mut self.runners[at].engine {
            Engine::Shard(engine) => {
                let turn = engine.turn(now);
                while let Some(action) = engine.poll_action() {
                    match action {
                        ShardAction::Watch { link, transport } => {
                            let end = end_of(&transport);
                            net.set_lane(end, LaneOf::Application);
                            net.watch(end, thread, (link.index, link.generation));
                        }
                        ShardAction::Unwatch { transport } => net.unwatch(end_of(&transport), thread),
                    }
                }
                self.runners[at].moved = turn.moved;
                self.runners[at].next = turn.next;
                turn.again
            }
            Engine::Completion(engine) => {
                let mut accepted = 0;
                while accepted < self.shared.plan.turn.accepts
                    && let Some(transport) = net.accept(self.at)
                {
                    accepted += 1;
                    engine.handle_accepted(transport);
                }
                let (again, next) = engine.turn(now);
                while let Some(action) = engine.poll_action() {
                    match action {
                        CompletionAction::Dial { conn, to } => {
                            let token = (conn.index, conn.generation);
                            let transport = net.dial(thread, token, node_of(&to));
                            self.dialling.insert(token, transport);
                        }
                        CompletionAction::Watch { conn, transport } => {
                            net.watch(end_of(&transport), thread, (conn.index, conn.generation));
                        }
                        CompletionAction::Completion { transport } => {
                            net.set_lane(end_of(&transport), LaneOf::Completion);
                        }
                        CompletionAction::Forget { conn } => {
                            if let Some(transport) = self.dialling.remove(&(conn.index, conn.generation)) {
                                net.unwatch(transport.end, thread);
                            }
                        }
                        CompletionAction::Unwatch { transport } => net.unwatch(end_of(&transport), thread),
                        CompletionAction::Log(line) => {
                            if self.verbose {
                                println!("{:>9} us, node {}: {line:?}", now.0 / 1000, self.at);
                            }
                        }
                    }
                }
                self.shared.panics.lock().clear();
                self.runners[at].next = next;
                again || net.has_accepts(self.at)
            }
        }
    }

    fn note_targets(&mut self) {
        let known = self.shared.targets.lock();
        for target in known.iter() {
            if !self.targets.iter().any(|t| Arc::ptr_eq(t, target)) {
                self.targets.push(target.clone());
            }
        }
    }
}

impl Runner {
    fn has_work(&self) -> bool {
        match &self.engine {
            Engine::Shard(engine) => engine.has_work(),
            Engine::Completion(engine) => engine.has_work(),
        }
    }
}

fn end_of(transport: &Arc<dyn Transport>) -> usize {
    transport.as_any().downcast_ref::<SimTransport>().expect("every connection here is simulated").end
}
