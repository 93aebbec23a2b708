//! The whole system under a virtual clock: hosts of the product's own engines, connections that
//! tear and freeze, callers and handlers with a will of their own, all drawn from one seed.
//!
//! ```text
//!   cargo test --test sim                       a few seeds
//!   AFFLUX_SEEDS=500 cargo test --test sim      more of them
//!   AFFLUX_SEED=17 cargo test --test sim        that one, and what it does
//! ```
//!
//! The same seed gives the same run. A failure prints its seed and the options drawn from it.

mod checkers;
mod net;
mod node;
mod workload;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use afflux::base::rng::Rng;
use afflux::engine::call::{OneWay, Pending, TwoWay};
use afflux::{Channel, Client};

use checkers::{Book, Coverage, End, Kind, check_losses, check_node, not_at_rest};
use net::{LaneOf, Net, Shape};
use node::{Node, Woken};
use workload::{REST, Script, Stage, Swarm, name, seats};
use world::{Agenda, Event, MS, Thread, Trace, US, VirtualClock};

/// Operations of callers in one run; nested ones come on top.
const OPS: usize = 5_000;

struct Caller {
    node: usize,
    /// `None`: whoever serves the channel.
    to: Option<usize>,
    channel: Channel,
    /// Handled by futures, which take requests alone.
    slow: bool,
    origin: u32,
}

enum Started {
    Send(Pending<OneWay>),
    Request(Pending<TwoWay>),
}

struct Wakes(Mutex<Vec<u32>>);

struct OpWaker {
    op: u32,
    wakes: Arc<Wakes>,
}

impl Wake for OpWaker {
    fn wake(self: Arc<Self>) {
        self.wakes.0.lock().unwrap().push(self.op);
    }
}

struct World {
    clock: Arc<VirtualClock>,
    agenda: Agenda,
    rng: Rng,
    net: Arc<Net>,
    nodes: Vec<Node>,
    woken: Woken,
    stage: Arc<Stage>,
    swarm: Swarm,
    callers: Vec<Caller>,
    made: usize,
    started: BTreeMap<u32, Started>,
    wakes: Arc<Wakes>,
    load_over: Option<u64>,
    faulty: bool,
    coverage: Coverage,
    /// Records decoded by a node from one target on one attach.
    decoded: BTreeMap<(usize, usize, u64), u64>,
    attached: BTreeMap<(usize, usize), u64>,
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    trace: Trace,
    faults: Vec<String>,
    operations: usize,
    virtual_ms: u64,
    turns: u64,
}

impl World {
    fn new(seed: u64, swarm: Swarm) -> World {
        let clock = Arc::new(VirtualClock::default());
        let agenda = Agenda::default();
        let mut rng = Rng::new(seed);
        let shape =
            Shape { capacity: swarm.pipe, latency_min: swarm.latency_us.0 * US, latency_max: swarm.latency_us.1 * US };
        let net = Net::new(clock.clone(), agenda.clone(), rng.bits(), shape, swarm.nodes);
        let stage = Stage::new(clock.clone(), agenda.clone(), swarm.clone(), seed);
        stage.book.lock().unwrap().ordered = swarm.links == 1;
        let woken = Woken::default();
        let nodes: Vec<Node> = (0..swarm.nodes)
            .map(|i| {
                let (channels, own) = seats(&stage, i);
                Node::new(i, swarm.plan(i), clock.clone(), &woken, &channels, &own, rng.bits())
            })
            .collect();
        let mut world = World {
            clock,
            agenda,
            net,
            nodes,
            woken,
            stage,
            callers: Vec::new(),
            made: 0,
            started: BTreeMap::new(),
            wakes: Arc::new(Wakes(Mutex::new(Vec::new()))),
            load_over: None,
            faulty: false,
            coverage: Coverage::default(),
            decoded: BTreeMap::new(),
            attached: BTreeMap::new(),
            rng,
            swarm,
        };
        let verbose = number("AFFLUX_SEED").is_some();
        world.nodes.iter_mut().for_each(|n| n.verbose = verbose);
        world.begin();
        world
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            for at in 0..self.nodes[node].threads() {
                let when = self.rng.below(100 * US);
                self.nodes[node].schedule(at, when, &self.agenda);
            }
        }
        for i in 0..self.swarm.callers {
            let node = self.rng.below(self.nodes.len() as u64) as usize;
            let client = Client::new(self.nodes[node].shared.clone());
            let to = (node + 1 + self.rng.below(self.nodes.len() as u64 - 1) as usize) % self.nodes.len();
            let choice = self.rng.below(4);
            let (to, channel) = match choice {
                0 => (None, client.channel("svc")),
                1 => (None, client.channel("slow")),
                _ => (Some(to), client.node(&name(to))),
            };
            self.callers.push(Caller { node, to, channel, slow: choice == 1, origin: i as u32 });
            // Some begin before anything is connected.
            let when = if self.rng.below(3) == 0 { 0 } else { 5 * MS } + self.rng.below(5 * MS);
            self.agenda.add(when, Event::Call(i));
        }
        let faults = &self.swarm.faults;
        if faults.cut || faults.freeze || faults.refuse || faults.stuck {
            self.agenda.add(self.rng.below(2 * faults.interval_us * US), Event::Fault);
        }
        self.agenda.add(10 * MS, Event::Look);
    }

    fn run(mut self) -> (Outcome, Coverage) {
        let mut operations = 0;
        while let Some((at, event)) = self.agenda.next() {
            let now = at.max(self.clock.ns());
            self.clock.set(now);
            if self.step(event, now) {
                break;
            }
            self.settle(now);
            operations = self.stage.book.lock().unwrap().ops.len();
            if !self.stage.book.lock().unwrap().faults.is_empty() {
                break;
            }
        }
        self.finish();
        let book = &mut *self.stage.book.lock().unwrap();
        let outcome = Outcome {
            trace: book.trace,
            faults: std::mem::take(&mut book.faults),
            operations,
            virtual_ms: self.clock.ns() / MS,
            turns: self.nodes.iter().map(|n| n.turns).sum(),
        };
        (outcome, std::mem::take(&mut self.coverage))
    }

    /// True: everything is over.
    fn step(&mut self, event: Event, now: u64) -> bool {
        match event {
            Event::Run(thread, version) => self.run_thread(thread, version, now),
            Event::Deliver(end) => self.net.on_deliver(end),
            Event::Acknowledge(end, bytes) => self.net.on_acknowledge(end, bytes),
            Event::Reset(end) => self.net.on_reset(end),
            Event::Connected(end, well) => self.net.on_connected(end, well),
            Event::Arrive(node, end) => self.net.on_arrive(node, self.nodes[node].completion(), end),
            Event::Call(caller) => self.call(caller, now),
            Event::GiveUp(op) => self.give_up(op as u32, now),
            Event::Answer(at) => self.stage.answer(at),
            Event::Alarm(at) => self.stage.ring(at),
            Event::Fault => self.inject(now),
            Event::Look => return self.look(now),
        }
        false
    }

    fn run_thread(&mut self, thread: Thread, version: u64, now: u64) {
        let pause = 1 + self.rng.below(self.swarm.turn_us * US);
        let node = &mut self.nodes[thread.node];
        node.run(thread.at, version, now, pause, &self.net, &self.agenda);
        for (i, target) in node.targets.iter().enumerate() {
            let link = target.link.get();
            let attached = self.attached.entry((thread.node, i)).or_default();
            if link != 0 && *attached != link {
                *attached = link;
                self.coverage.add("link attached", 1);
                self.coverage.see("link attached with records in its queue", target.mark.bytes() > 0);
            }
            let decoded = self.decoded.entry((thread.node, i, *attached)).or_default();
            *decoded = (*decoded).max(target.decoded.get());
        }
        let book = &mut *self.stage.book.lock().unwrap();
        // An acceptor's next link is a new origin: what it still has of the lost one may come later.
        book.ordered &= node.shared.counts.links_lost.get() == 0;
        check_node(node, book, &mut self.coverage);
        book.trace.note(&[now, thread.node as u64, thread.at as u64]);
    }

    /// Wakers that were called, edges that came, ends that were heard of.
    fn settle(&mut self, now: u64) {
        loop {
            let woken = std::mem::take(&mut *self.woken.lock().unwrap());
            let stirred = self.net.take_stirred();
            let ended = std::mem::take(&mut *self.wakes.0.lock().unwrap());
            if woken.is_empty() && stirred.is_empty() && ended.is_empty() {
                return;
            }
            for (threads, by_waker) in [(woken, true), (stirred, false)] {
                for thread in threads {
                    let when = now + self.rng.below(20 * US);
                    self.nodes[thread.node].stir(thread.at, by_waker, when, &self.agenda);
                }
            }
            for op in ended {
                self.poll(op, now);
            }
        }
    }

    fn poll(&mut self, op: u32, now: u64) {
        let waker = Waker::from(Arc::new(OpWaker { op, wakes: self.wakes.clone() }));
        let cx = &mut Context::from_waker(&waker);
        let over = match self.started.get_mut(&op) {
            None => return,
            Some(Started::Send(pending)) => match Pin::new(pending).poll(cx) {
                Poll::Pending => false,
                Poll::Ready(end) => {
                    self.stage.book.lock().unwrap().on_send(op, &end, now);
                    true
                }
            },
            Some(Started::Request(pending)) => match Pin::new(pending).poll(cx) {
                Poll::Pending => false,
                Poll::Ready(end) => {
                    let book = &mut *self.stage.book.lock().unwrap();
                    book.on_reply(op, &end, now);
                    let gate =
                        self.nodes[book.ops[op as usize].from].shared.gate.snapshot(afflux::base::time::Instant(now));
                    self.coverage
                        .see("reply taken while every permit was out", end.is_ok() && gate.in_use == gate.limit);
                    true
                }
            },
        };
        if over {
            self.started.remove(&op);
        }
    }

    fn call(&mut self, at: usize, now: u64) {
        if self.made >= self.swarm.ops {
            return;
        }
        let burst = 1 + self.rng.below(self.swarm.burst);
        for _ in 0..burst {
            self.call_once(at, now);
        }
        let pause = self.rng.below(2 * self.swarm.interval_us * burst * US);
        self.agenda.add(now + pause, Event::Call(at));
    }

    fn call_once(&mut self, at: usize, now: u64) {
        self.made += 1;
        let (r, swarm) = (&mut self.rng, &self.swarm);
        let caller = &self.callers[at];
        let request = caller.slow || r.below(100) < swarm.request_percent;
        let timeout = Duration::from_millis(swarm.timeout_ms.0 + r.below(swarm.timeout_ms.1));
        let to = caller.to.unwrap_or(usize::MAX);
        let kind = if request { Kind::Request } else { Kind::Send };
        let reply = swarm.len(r) as u32;
        let op = {
            let book = &mut *self.stage.book.lock().unwrap();
            let op = book.begin(kind, caller.node, to, caller.origin, now, timeout.as_nanos() as u64);
            book.ops[op as usize].reply = reply;
            op
        };
        let script = Script {
            op,
            act: swarm.act(r),
            reply,
            hold_us: r.below(swarm.hold_us) as u32,
            next: r.below(swarm.nodes as u64) as u8,
        };
        let payload = script.encode(swarm.len(r));
        if !request && r.below(100) < swarm.try_percent {
            let end = caller.channel.try_send("try", payload);
            return self.stage.book.lock().unwrap().on_send(op, &end, now);
        }
        let started = match request {
            true => Started::Request(caller.channel.request("ask", payload).timeout(timeout).submit()),
            false => Started::Send(caller.channel.send("tell", payload).timeout(timeout).submit()),
        };
        self.started.insert(op, started);
        if r.below(100) < swarm.give_up_percent {
            let when = now + r.below(timeout.as_nanos() as u64 / 4);
            self.agenda.add(when, Event::GiveUp(op as usize));
        }
        self.poll(op, now);
    }

    fn give_up(&mut self, op: u32, now: u64) {
        let Some(started) = self.started.remove(&op) else { return };
        let how = self.rng.below(3);
        let back = match (how, started) {
            (0, Started::Send(pending)) => pending.cancel(),
            (0, Started::Request(pending)) => pending.cancel(),
            (1, Started::Send(pending)) => {
                pending.detach();
                None
            }
            (1, Started::Request(pending)) => {
                pending.detach();
                None
            }
            (_, started) => {
                drop(started);
                None
            }
        };
        self.coverage.see("cancelled before it was sent", back.is_some());
        let end = if back.is_some() { End::Unsent(afflux::Detail::Cancelled) } else { End::LetGo };
        self.stage.book.lock().unwrap().end(op, end, now);
    }

    fn inject(&mut self, now: u64) {
        if self.load_over.is_some() {
            return;
        }
        let faults = self.swarm.faults.clone();
        let r = &mut self.rng;
        let living = self.net.living();
        let some = (!living.is_empty()).then(|| living[r.below(living.len() as u64) as usize]);
        match (r.below(4), some) {
            (0, Some((connection, lane))) if faults.cut => {
                self.faulty = true;
                self.net.cut(connection);
                let what = match lane {
                    LaneOf::Application => "cut: application lane",
                    LaneOf::Completion => "cut: completion lane",
                    LaneOf::Unknown => "cut: connection in its handshake",
                };
                self.coverage.add(what, 1);
            }
            (1, Some((connection, _))) if faults.freeze => {
                // A long freeze is a dead peer.
                self.faulty = true;
                let end = 2 * connection + r.below(2) as usize;
                let time = workload::one_of(r, &[MS, 20 * MS, 400 * MS]);
                self.net.freeze(end, now + time);
                self.coverage.add("freeze of one direction", 1);
            }
            (2, _) if faults.refuse => {
                self.net.refuse(now + r.below(50 * MS));
                self.coverage.add("dials refused", 1);
            }
            (3, _) if faults.stuck => {
                let node = r.below(self.nodes.len() as u64) as usize;
                let shard = r.below(self.nodes[node].threads() as u64 - 1) as usize;
                self.nodes[node].stick(shard, r.below(100 * MS));
                self.coverage.add("stuck shard", 1);
            }
            _ => {}
        }
        self.agenda.add(now + self.rng.below(2 * faults.interval_us * US), Event::Fault);
    }

    fn look(&mut self, now: u64) -> bool {
        let outstanding = {
            let book = &mut *self.stage.book.lock().unwrap();
            book.look_for_hangs(now);
            book.outstanding()
        };
        if self.made >= self.swarm.ops && self.load_over.is_none() {
            self.load_over = Some(now);
            self.net.heal();
        }
        if let Some(since) = self.load_over {
            let left: Vec<String> = match outstanding + self.stage.kept() {
                0 => self.nodes.iter().flat_map(not_at_rest).chain(self.net.under_way()).collect(),
                _ => vec![format!("{outstanding} operations, {} kept responders", self.stage.kept())],
            };
            if left.is_empty() {
                return true;
            }
            if now > since + REST {
                let book = &mut *self.stage.book.lock().unwrap();
                let some = format!("{:?}", book.some_outstanding());
                book.fault(format!("does not come to rest: {left:#?} {some}"));
                return true;
            }
        }
        self.agenda.add(now + 7 * MS, Event::Look);
        false
    }

    /// The account, and what the counters say was reached.
    fn finish(&mut self) {
        let book: &mut Book = &mut self.stage.book.lock().unwrap();
        if std::env::var("SIM_DBG").is_ok() {
            for n in &self.nodes {
                for t in &n.targets {
                    eprintln!(
                        "node {} target {:?} {} up {} link {} written {} decoded {} told {} lost {} doubt {} disc {} owner {:?}",
                        n.at,
                        t.id,
                        t.label(),
                        t.is_up(),
                        t.link.get(),
                        t.written.get(),
                        t.decoded.get(),
                        t.decoded_by_peer.get(),
                        t.lost_on_detach.get(),
                        t.in_doubt_on_detach.get(),
                        t.discarded.get(),
                        t.owner
                    );
                }
                eprintln!("{:?}", n.shared.counts);
            }
        }
        if book.faults.is_empty() {
            check_losses(&self.nodes, &self.decoded, self.faulty, book);
        }
        for node in &self.nodes {
            let c = &node.shared.counts;
            let gate = node.shared.gate.snapshot(afflux::base::time::Instant(self.clock.ns()));
            for (what, n) in [
                ("waited for room", c.waits.get()),
                ("found the waiting room full", c.waiting_room_full.get()),
                ("expired while waiting", c.no_room.get()),
                ("expired in flight", c.no_reply.get()),
                ("late reply", c.late_replies.get()),
                ("request ended by its link's loss", c.link_lost.get()),
                ("accepted for a target that was gone", c.lost_with_target.get()),
                ("reply thrown away: hold full", c.reply_hold_refused.get()),
                ("reply undeliverable", c.replies_undeliverable.get()),
                ("reply refused room", c.reply_room_refused.get()),
                ("paused told", c.flow_frames_sent.get()),
                ("stale flow state", c.flow_state_stale.get()),
                ("handler panicked", c.handler_panics.get()),
                ("handshake failed", c.handshakes_failed.get()),
                ("link lost", c.links_lost.get()),
                ("ticket filed", gate.waits),
                ("gate paused and resumed", gate.resumes),
                ("record begun and lost", node.targets.iter().map(|t| t.lost_on_detach.get()).sum()),
                ("record in doubt", node.targets.iter().map(|t| t.in_doubt_on_detach.get()).sum()),
                ("record discarded before its first byte", node.targets.iter().map(|t| t.discarded.get()).sum()),
            ] {
                self.coverage.add(what, n);
            }
        }
        for op in &book.ops {
            match op.end {
                Some(End::Accepted) => self.coverage.add("end: accepted", 1),
                Some(End::Reply) => self.coverage.add("end: reply", 1),
                Some(End::Unsent(_)) => self.coverage.add("end: failed, payload back", 1),
                Some(End::Failed(_)) => self.coverage.add("end: failed after it was sent", 1),
                Some(End::LetGo) => self.coverage.add("end: let go", 1),
                None => self.coverage.add("end: none", 1),
            }
        }
    }
}

fn simulate(seed: u64, ops: usize) -> (Outcome, Coverage) {
    World::new(seed, Swarm::draw(seed, ops)).run()
}

/// Panics that handlers are told to have are no news.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"a planned panic") {
                before(info);
            }
        }));
    });
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

#[test]
fn promises_hold_whatever_happens() {
    quiet_panics();
    let one = number("AFFLUX_SEED");
    let seeds: Vec<u64> = match one {
        Some(seed) => vec![seed],
        None => (0..number("AFFLUX_SEEDS").unwrap_or(8)).collect(),
    };
    let ops = number("AFFLUX_OPS").map_or(OPS, |n| n as usize);
    let mut coverage = Coverage::default();
    let mut failed = BTreeSet::new();
    let (mut operations, mut turns) = (0, 0);
    let began = std::time::Instant::now();
    for seed in seeds {
        if one.is_some() {
            println!("{:#?}", Swarm::draw(seed, ops));
        }
        let (outcome, seen) = simulate(seed, ops);
        coverage.merge(&seen);
        operations += outcome.operations;
        turns += outcome.turns;
        if !outcome.faults.is_empty() {
            println!("seed {seed}: {:#?}\n{:?}", outcome.faults, Swarm::draw(seed, ops));
            failed.insert(seed);
        } else if one.is_some() {
            println!("{outcome:?}");
        }
    }
    let rate = operations as f64 / began.elapsed().as_secs_f64();
    println!("{operations} operations, {turns} turns, {rate:.0} operations per second\nreached:");
    coverage.print();
    assert!(failed.is_empty(), "seeds {failed:?} break a promise; AFFLUX_SEED=n replays one");
}

#[test]
fn a_seed_is_a_run() {
    quiet_panics();
    for seed in [3, 5] {
        let (first, second) = (simulate(seed, 1_000).0, simulate(seed, 1_000).0);
        assert_eq!(first.trace, second.trace, "seed {seed} went two ways");
        assert_ne!(first.trace, simulate(seed + 100, 1_000).0.trace);
    }
}
