//! A host of the product's own engines: the same shared memory, gate, cells, marks and batons; the
//! loops around the engines are those of `runtime`, step by step, with a virtual poller. A thread
//! that went to sleep runs again only when it is woken, when its poller has something, or when the
//! time it asked for has come: what nobody woke it for shows as a hang.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use afflux::base::id::ShardId;
use afflux::base::time::{Clock, Instant};
use afflux::engine::completion::log_line::Line;
use afflux::engine::completion::{CompletionAction, CompletionEngine, ConnKey};
use afflux::engine::lead::IdleLead;
use afflux::engine::seat::SeatFactory;
use afflux::engine::shard::{LinkKey, ShardAction, ShardEngine};
use afflux::engine::shared::{HostShared, Life};
use afflux::flow::target::Target;
use afflux::flow::transport::Transport;
use afflux::plan::{Endpoint, HostPlan, Idle};
use afflux::sync::gate::Standing;
use afflux::sync::wake::WakeCell;

use super::agenda::{Agenda, Event, MS, Thread, US, VirtualClock};
use super::coverage::Coverage;
use super::net::{LaneOf, Net, SimTransport};

enum Engine {
    Shard(Box<ShardEngine>),
    Completion(Box<CompletionEngine>),
}

/// Where a thread is in its loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Turn,
    /// The turn is over and left more: the poller is asked without waiting.
    Again,
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
    idle_since: Option<u64>,
    /// A shard that spins leads the lane of its reply until its next turn.
    lead: Option<IdleLead>,
    /// The next turn takes so much longer: a callback that blocks.
    stuck: u64,
}

/// Wakers that were called, for the world to honour.
pub type Woken = Arc<Mutex<Vec<Thread>>>;

pub struct Node {
    pub at: usize,
    /// How often it was started before.
    pub life: u32,
    pub shared: Arc<HostShared>,
    runners: Vec<Runner>,
    /// A waker was called; remembered until the next poll, like an eventfd.
    notified: Vec<bool>,
    dialling: BTreeMap<(u32, u32), Arc<SimTransport>>,
    /// Every target that there ever was, and those that something may still happen to.
    pub targets: Vec<Known>,
    pub living: Vec<usize>,
    pub turns: u64,
    /// How often a shard that spun has led.
    pub led: u64,
    /// What its completion thread said about links that ended.
    pub ended: Vec<&'static str>,
    /// Say what the host logs.
    pub verbose: bool,
    /// How far its clock is ahead of the world's.
    pub ahead: u64,
    /// The gate's tickets at the last look, and what every shard held.
    line: Vec<Standing>,
    held: Vec<u32>,
}

/// A host's own clock.
#[derive(Debug)]
struct Skewed {
    clock: Arc<VirtualClock>,
    ahead: u64,
}

impl Clock for Skewed {
    fn now(&self) -> Instant {
        Instant(self.clock.ns() + self.ahead)
    }
}

/// A target, and what the world has seen of it.
pub struct Known {
    pub target: Arc<Target>,
    /// The last attach.
    pub link: u64,
    /// Records decoded on attaches before that one, and on it.
    pub decoded_before: u64,
    pub decoded: u64,
    /// The most that could be under its mark when it was last looked at.
    pub admitted: u64,
    limit: u64,
    parked: bool,
    paused: bool,
    /// Replies waited for room at the last look.
    replying: bool,
    up: bool,
    gone_since: Option<u64>,
}

/// After this time nothing comes from a link that was lost.
const AFTERLIFE: u64 = 3_000 * MS;

/// Reasons of the completion thread that are states to be reached.
const REASONS: [&str; 3] =
    ["no byte on either lane in time", "a record in assembly got no byte in time", "the handshake took too long"];

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
        (at, life): (usize, u32),
        plan: HostPlan,
        (clock, ahead): (Arc<VirtualClock>, u64),
        woken: &Woken,
        (channels, node): (&[SeatFactory], Option<&SeatFactory>),
        seed: u64,
    ) -> Node {
        plan.check().unwrap();
        let shards = plan.shards as usize;
        let wakes: Vec<Arc<WakeCell>> = (0..=shards)
            .map(|i| {
                let (woken, thread) = (woken.clone(), Thread { node: at, life, at: i });
                Arc::new(WakeCell::new(move || woken.lock().unwrap().push(thread)))
            })
            .collect();
        let (shared, receivers) = HostShared::new(Arc::new(plan), Arc::new(Skewed { clock, ahead }), wakes.clone());
        let mut engines: Vec<Engine> = receivers
            .shards
            .into_iter()
            .enumerate()
            .map(|(i, receiver)| {
                let engine = ShardEngine::new(shared.clone(), ShardId(i as u16), receiver, channels, node);
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
                idle_since: None,
                lead: None,
                stuck: 0,
            })
            .collect();
        Node {
            at,
            life,
            shared,
            runners,
            notified: vec![false; shards + 1],
            dialling: BTreeMap::new(),
            targets: Vec::new(),
            living: Vec::new(),
            turns: 0,
            led: 0,
            ended: Vec::new(),
            verbose: false,
            ahead,
            line: Vec::new(),
            held: vec![0; shards],
        }
    }

    pub fn threads(&self) -> usize {
        self.runners.len()
    }

    pub fn completion(&self) -> Thread {
        self.thread(usize::from(self.shared.plan.shards))
    }

    pub fn thread(&self, at: usize) -> Thread {
        Thread { node: self.at, life: self.life, at }
    }

    /// How many threads do not sleep.
    pub fn awake(&self) -> u32 {
        self.runners.iter().filter(|r| r.phase != Phase::Asleep).count() as u32
    }

    pub fn sleeps(&self, at: usize) -> bool {
        self.runners[at].phase == Phase::Asleep
    }

    /// A thread that sleeps although something was left for it.
    pub fn overslept(&self) -> Option<usize> {
        (0..self.runners.len()).find(|at| self.sleeps(*at) && !self.notified[*at] && self.runners[*at].has_work())
    }

    /// The shards' engines.
    pub fn shards(&self) -> impl Iterator<Item = &ShardEngine> {
        self.runners.iter().filter_map(|r| match &r.engine {
            Engine::Shard(engine) => Some(&**engine),
            Engine::Completion(_) => None,
        })
    }

    /// The last turn of every thread of a host that was stopped.
    pub fn stop(&mut self, now: u64, net: &Arc<Net>) {
        for at in 0..self.runners.len() {
            self.turn(at, now, net);
            if let Engine::Completion(engine) = &mut self.runners[at].engine {
                engine.close_all();
            }
        }
    }

    pub fn serves(&self) -> bool {
        !self.is_over() && self.shared.life() == Life::Serving
    }

    pub fn is_over(&self) -> bool {
        self.runners.is_empty()
    }

    /// The engines go, with everything that they hold.
    pub fn bury(&mut self) {
        self.runners.clear();
        self.dialling.clear();
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
        agenda.add(when, Event::Run(self.thread(at), self.runners[at].version));
    }

    /// A waker was called or the poller has something: the thread runs soon if it sleeps.
    pub fn stir(&mut self, at: usize, by_waker: bool, when: u64, agenda: &Agenda) {
        if self.is_over() {
            return;
        }
        self.notified[at] |= by_waker;
        if self.runners[at].phase == Phase::Asleep {
            self.runners[at].phase = Phase::Waking;
            self.schedule(at, when, agenda);
        }
    }

    /// One step of a thread's loop. `pause`: how long it takes.
    pub fn run(&mut self, at: usize, version: u64, now: u64, pause: u64, net: &Arc<Net>, agenda: &Agenda) {
        if self.runners.get(at).is_none_or(|runner| runner.version != version) {
            return;
        }
        let thread = self.thread(at);
        match self.runners[at].phase {
            Phase::Asleep | Phase::Waking | Phase::Again | Phase::Turn => {
                match self.runners[at].phase {
                    Phase::Turn => {}
                    Phase::Again => {
                        if let Some(mut lead) = self.runners[at].lead.take() {
                            self.led += 1;
                            lead.read(Instant(now + self.ahead));
                        }
                        self.poll(at, net);
                    }
                    _ => {
                        self.poll(at, net);
                        self.runners[at].wake.awake();
                    }
                }
                self.turns += 1;
                let again = self.turn(at, now, net);
                let pause = pause + std::mem::take(&mut self.runners[at].stuck);
                let spins = self.spins(at, now, again);
                let on = spins || again;
                let (runner, ahead) = (&mut self.runners[at], self.ahead);
                if let (Engine::Shard(engine), false) = (&mut runner.engine, again) {
                    if spins {
                        runner.lead = engine.lead_while_idle(Instant(now + ahead));
                    } else {
                        engine.expect_reply();
                    }
                }
                self.runners[at].phase = if on { Phase::Again } else { Phase::Settle };
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
                runner.idle_since = None;
                runner.version += 1;
                if accepts || self.notified[at] || net.has_ready(thread) {
                    self.stir(at, false, now, agenda);
                } else if next != Instant::NEVER {
                    // Pollers count in whole milliseconds, rounded up.
                    let when = now + next.0.saturating_sub(now + self.ahead).div_ceil(1000 * US) * 1000 * US;
                    agenda.add(when, Event::Run(thread, self.runners[at].version));
                }
            }
        }
    }

    /// Whether an idle shard looks for work a little longer before it sleeps.
    fn spins(&mut self, at: usize, now: u64, again: bool) -> bool {
        let runner = &mut self.runners[at];
        if again || runner.moved {
            runner.idle_since = None;
        }
        match self.shared.plan.idle {
            Idle::SpinThenPark(time) if matches!(runner.engine, Engine::Shard(_)) => {
                now - *runner.idle_since.get_or_insert(now) < time.as_nanos() as u64
            }
            _ => false,
        }
    }

    /// Hands over what the poller has.
    fn poll(&mut self, at: usize, net: &Arc<Net>) {
        self.notified[at] = false;
        let thread = self.thread(at);
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
        let thread = self.thread(at);
        let (own, now) = (now, Instant(now + self.ahead));
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
                        CompletionAction::Dial { conn, to, .. } => {
                            let token = (conn.index, conn.generation);
                            let transport = net.dial(thread, token, node_of(&to));
                            self.dialling.insert(token, transport);
                        }
                        CompletionAction::Watch { conn, transport } => {
                            net.watch(end_of(&transport), thread, (conn.index, conn.generation));
                        }
                        CompletionAction::Completion { transport, .. } => {
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
                                println!("{:>9} us, node {}: {line:?}", own / 1000, self.at);
                            }
                            let (Line::Info(text) | Line::Warn(text)) = line;
                            self.ended.extend(REASONS.iter().find(|reason| text.contains(**reason)));
                        }
                    }
                }
                self.shared.panics.lock().clear();
                self.runners[at].next = next;
                again || net.has_accepts(self.at)
            }
        }
    }

    /// Whether the gate gave its permits to the oldest: a ticket that was granted since the last look, with an
    /// older one left of a shard that may have any free permit, is an injustice.
    pub fn look_at_line(&mut self, coverage: &mut Coverage) -> Option<String> {
        let gate = &self.shared.gate;
        let line = gate.standing();
        if line.is_empty() {
            // Mostly.
            self.line.clear();
            return None;
        }
        let held = gate.held_by_shard();
        let before = std::mem::replace(&mut self.line, line);
        let held_before = std::mem::replace(&mut self.held, held);
        let waited = |t: &Standing| before.iter().any(|b| b.ticket == t.ticket && !b.granted);
        let share = gate.share();
        let poor = |t: &Standing| held_before[t.shard.index()] < share && self.held[t.shard.index()] < share;
        let mut left = self.line.iter().filter(|t| !t.granted && waited(t));
        let granted =
            self.line.iter().filter(|t| t.granted && !before.iter().any(|b| b.ticket == t.ticket && b.granted));
        let youngest = granted.max_by_key(|t| t.rank)?;
        coverage.see("ticket granted while others wait", self.line.iter().any(|t| !t.granted));
        coverage.see("ticket granted past an older one of a shard with its share", {
            left.clone().any(|t| t.rank < youngest.rank && !poor(t))
        });
        let passed = left.find(|t| t.rank < youngest.rank && poor(t))?;
        Some(format!("{youngest:?} was granted before {passed:?}; shards hold {:?}", self.held))
    }

    /// Notes what became of targets since the last look, and which states they passed.
    /// Returns the peers of links that were lost.
    pub fn look_at_targets(&mut self, now: u64, coverage: &mut Coverage) -> Vec<Arc<str>> {
        let mut lost = Vec::new();
        let newest = self.targets.last().map_or(0, |known| known.target.id.0);
        for target in self.shared.targets.lock().iter().filter(|t| t.id.0 > newest) {
            self.living.push(self.targets.len());
            self.targets.push(Known {
                target: target.clone(),
                link: 0,
                decoded_before: 0,
                decoded: 0,
                admitted: 0,
                limit: target.mark.limit(),
                parked: false,
                paused: false,
                replying: false,
                up: false,
                gone_since: None,
            });
        }
        for name in self.ended.drain(..) {
            coverage.add(name, 1);
        }
        let shared = &self.shared;
        let known = &mut self.targets;
        self.living.retain(|at| {
            let Known {
                target,
                link,
                decoded_before,
                decoded,
                admitted,
                limit,
                parked,
                paused,
                replying,
                up,
                gone_since,
            } = &mut known[*at];
            let (before, now_limit) = (std::mem::replace(limit, target.mark.limit()), target.mark.limit());
            coverage.see("send mark lowered", now_limit < before);
            coverage.see("send mark raised", now_limit > before);
            // Until this look it was the one of before.
            *admitted = (*admitted).max(before).min(target.mark.bytes());
            let present = target.link.get();
            if present != 0 && present != *link {
                *decoded_before += std::mem::take(decoded);
                let again = std::mem::replace(link, present) != 0;
                coverage.see("link attached", true);
                coverage.see("link attached again", again);
                coverage.see("link attached with records in its queue", target.mark.bytes() > 0);
                coverage.see("link attached with operations that wait", target.mark.waiters() > 0);
            }
            *decoded = (*decoded).max(target.decoded.get());
            if std::mem::replace(up, present != 0) && present == 0 {
                lost.push(target.label());
                coverage.see("link lost with records in its queue", target.mark.bytes() > 0);
                coverage.see("link lost while operations wait for room", target.mark.waiters() > 0);
                coverage.see("link lost while its peer has us paused", *paused);
                coverage.see("link lost while it is parked", target.parked.is_raised());
                coverage.see("link lost while replies wait for room", *replying);
            }
            *replying = !target.reply_waiters.lock().is_empty();
            let (was_parked, was_paused) = (*parked, *paused);
            (*parked, *paused) = (target.parked.is_raised(), target.mark.is_blocked());
            coverage.see("link parked", *parked && !was_parked);
            coverage.see("link un-parked", was_parked && !*parked && present != 0);
            coverage.see("paused by its peer", *paused && !was_paused);
            coverage.see("resumed by its peer", was_paused && !*paused && present != 0);
            if target.gone.is_raised() {
                let over = *gone_since.get_or_insert(now) + AFTERLIFE < now;
                let empty = target.mark.bytes() == 0 && target.mark.waiters() == 0 && target.jobs.get() == 0;
                return !over || !empty;
            }
            true
        });
        coverage.see("oversize budget drawn", shared.oversize.ops() > 0);
        coverage.see("oversize budget drawn by two", shared.oversize.ops() > 1);
        lost
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
