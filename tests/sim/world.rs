//! The world: hosts, connections and callers under one agenda, faults that befall them, and the checks
//! between two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use afflux::base::error::{Detail, ErrorKind};
use afflux::base::rng::Rng;
use afflux::base::time::Instant;
use afflux::engine::call::{OneWay, Pending, TwoWay};
use afflux::engine::lead::{self, Leader};
use afflux::engine::multicast::Multicast;
use afflux::engine::shared::{HostShared, Life, TAG_FINDING, TAG_REPLY, TAG_REQUEST};
use afflux::flow::target::Target;
use afflux::sync::cell::CellState;
use afflux::sync::gate::Pressure;
use afflux::{Channel, Client, Lane};

use super::agenda::{Agenda, Event, MS, Thread, Trace, US, VirtualClock};
use super::book::{Book, End, Kind, Op};
use super::checkers::{Circumstances, check_losses, check_node, not_at_rest};
use super::coverage::{Coverage, GIVEN_UP};
use super::interrupt::Interrupted;
use super::net::{LaneOf, Net, Shape};
use super::node::{Node, Woken};
use super::script::{Act, Script};
use super::stage::{Stage, seats};
use super::still::check_still;
use super::stock::{Dealer, Heard};
use super::swarm::{Swarm, name, one_of};
use super::tap::Begun;

/// The longest that a world may take to come to rest once the load has ended.
const REST: u64 = 60_000 * MS;

/// The longest that a caller takes to look at what has ended.
const LAZY: u64 = 100 * MS;

/// How late or early a request may be skipped, beside what its link takes.
const EXACT: u64 = 5 * MS;

/// A stock socket on whose connection nothing comes for so many heartbeats gives it up.
const SILENT_BEATS: u64 = 8;

/// How long a caller rests after an operation that did not go out.
const AFTER_FAILURE: u64 = 20 * MS;

struct Caller {
    node: usize,
    /// Which life of the node its channel belongs to.
    life: u32,
    /// `None`: whoever serves the channel.
    to: Option<usize>,
    channel: Channel,
    /// Handled by futures, which take requests alone.
    slow: bool,
    origin: u32,
    /// So many outstanding and no more; `None`: it goes on whatever becomes of them.
    window: Option<u64>,
    outstanding: u64,
    rests_until: u64,
}

enum Started {
    Send(Pending<OneWay>),
    Request(Pending<TwoWay>),
    Multicast(Multicast),
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

/// A thread that waits for a reply leads the lane until then; one that is stuck reads nothing, and one that is
/// dead does not even leave.
struct Leading {
    node: usize,
    life: u32,
    leader: Option<Leader>,
    until: u64,
    stuck: bool,
    dead: bool,
}

/// A host that is being shut down: until when, and what the last quiet look saw.
struct Draining {
    node: usize,
    life: u32,
    until: u64,
    before: Option<(u64, Vec<u64>)>,
}

/// What a host would tell its peers, and its links that are up.
struct Calm {
    life: u32,
    epoch: u64,
    paused: bool,
    /// Peer, link and how often its lane was led in one number, whether its lane of replies is empty, whether the
    /// peer has paused us.
    links: Vec<(Arc<str>, u64, bool, bool)>,
}

impl Calm {
    fn of(node: &Node) -> Calm {
        let (pressure, epoch) = node.shared.gate.pressure();
        let targets = node.shared.targets.lock();
        let up = targets.iter().filter(|t| t.is_up());
        // What is told on a lane that is led or warm is read when its leader comes to it, or the keeper.
        let up = up.filter(|t| !t.lead.is_led() && !t.lead.is_warm());
        let links = up
            .map(|t| {
                (t.label(), t.link.get() << 32 | u64::from(t.lead.count()), t.replies.bytes() == 0, t.mark.is_blocked())
            })
            .collect();
        Calm { life: node.life, epoch, paused: pressure == Pressure::Paused, links }
    }

    fn ends(&self, peer: usize) -> Vec<(u64, bool, bool)> {
        let name = name(peer);
        let with = self.links.iter().filter(|(label, ..)| **label == *name);
        with.map(|(_, link, empty, paused)| (*link, *empty, *paused)).collect()
    }
}

pub struct World {
    clock: Arc<VirtualClock>,
    agenda: Agenda,
    rng: Rng,
    net: Arc<Net>,
    nodes: Vec<Node>,
    /// Hosts that are over.
    graves: Vec<Node>,
    woken: Woken,
    stage: Arc<Stage>,
    swarm: Swarm,
    callers: Vec<Caller>,
    made: usize,
    started: BTreeMap<u32, (usize, Started)>,
    wakes: Arc<Wakes>,
    dealers: Vec<Dealer>,
    /// Threads that hold a baton and do not go on, by the number of the interruption.
    interrupted: BTreeMap<usize, Interrupted>,
    interruptions: usize,
    /// At the last look.
    interruptions_seen: usize,
    held_at_look: bool,
    draining: Vec<Draining>,
    leading: Vec<Leading>,
    load_over: Option<u64>,
    faulty: bool,
    /// Until then somebody may not have noticed a death.
    unnoticed: u64,
    /// What every host would have told its peers at the last look.
    calm: Vec<Calm>,
    coverage: Coverage,
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub trace: Trace,
    pub faults: Vec<String>,
    pub operations: usize,
    pub virtual_ms: u64,
    pub turns: u64,
}

impl World {
    pub fn new(seed: u64, swarm: Swarm, verbose: bool) -> World {
        let clock = Arc::new(VirtualClock::default());
        let agenda = Agenda::default();
        let mut rng = Rng::new(seed);
        let shape =
            Shape { capacity: swarm.pipe, latency_min: swarm.latency_us.0 * US, latency_max: swarm.latency_us.1 * US };
        let net = Net::new(clock.clone(), agenda.clone(), rng.bits(), shape, swarm.nodes);
        let stage = Stage::new(clock.clone(), agenda.clone(), swarm.clone(), seed);
        {
            let book = &mut *stage.book.lock().unwrap();
            book.one_way = swarm.links == 1;
            // A clock is known as exactly as half a round trip, in whole milliseconds. That is little unless
            // connections freeze, or replies stand before the PINGs.
            let exact = 2 * swarm.latency_us.1 * US + EXACT;
            let prompt = !swarm.faults.freeze && swarm.pipe > 16 << 10 && swarm.reply_per_peer <= 16 << 10;
            book.exact = (swarm.skip_expired && prompt).then_some(exact);
        }
        let mut world = World {
            clock,
            agenda,
            net,
            nodes: Vec::new(),
            graves: Vec::new(),
            woken: Woken::default(),
            stage,
            callers: Vec::new(),
            made: 0,
            started: BTreeMap::new(),
            wakes: Arc::new(Wakes(Mutex::new(Vec::new()))),
            dealers: Vec::new(),
            interrupted: BTreeMap::new(),
            interruptions: 0,
            interruptions_seen: 0,
            held_at_look: false,
            draining: Vec::new(),
            leading: Vec::new(),
            load_over: None,
            faulty: false,
            unnoticed: 0,
            calm: Vec::new(),
            coverage: Coverage::default(),
            rng,
            swarm,
        };
        for at in 0..world.swarm.nodes {
            let mut node = world.build(at, 0);
            node.verbose = verbose;
            world.nodes.push(node);
        }
        world.begin();
        world
    }

    fn build(&mut self, at: usize, life: u32) -> Node {
        let (channels, own) = seats(&self.stage, at, life);
        let plan = self.swarm.plan(at, life);
        let seats = (&channels[..], own.as_ref());
        let clock = (self.clock.clone(), self.swarm.ahead(at, life));
        Node::new((at, life), plan, clock, &self.woken, seats, self.rng.bits())
    }

    fn begin(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.set_going(node));
        for i in 0..self.swarm.callers {
            let node = self.rng.below(self.nodes.len() as u64) as usize;
            let client = Client::new(self.nodes[node].shared.clone());
            let to = (node + 1 + self.rng.below(self.nodes.len() as u64 - 1) as usize) % self.nodes.len();
            let choice = self.rng.below(4);
            let to = (choice > 1).then_some(to);
            let closed = self.rng.below(100) < self.swarm.closed_percent;
            self.callers.push(Caller {
                node,
                life: 0,
                to,
                channel: channel(&client, to, choice == 1),
                slow: choice == 1,
                origin: i as u32,
                window: closed.then_some(self.swarm.window),
                outstanding: 0,
                rests_until: 0,
            });
            // Some begin before anything is connected.
            let when = if self.rng.below(3) == 0 { 0 } else { 5 * MS } + self.rng.below(5 * MS);
            (0..self.callers[i].window.unwrap_or(1)).for_each(|_| self.agenda.add(when, Event::Call(i)));
        }
        for i in 0..self.swarm.dealers {
            let host = self.rng.below(self.nodes.len() as u64) as usize;
            self.dealers.push(Dealer::new(self.nodes.len() + i, host));
            self.agenda.add(self.rng.below(5 * MS), Event::Stock(i));
        }
        if self.swarm.faults.any() {
            self.agenda.add(self.rng.below(2 * self.swarm.faults.interval_us * US), Event::Fault);
        }
        self.agenda.add(10 * MS, Event::Look);
    }

    fn set_going(&mut self, node: usize) {
        for at in 0..self.nodes[node].threads() {
            let when = self.clock.ns() + self.rng.below(100 * US);
            self.nodes[node].schedule(at, when, &self.agenda);
        }
    }

    pub fn run(mut self) -> (Outcome, Coverage) {
        while let Some((at, event)) = self.agenda.next() {
            let now = at.max(self.clock.ns());
            self.clock.set(now);
            let touched = self.touched(event);
            if self.step(event, now) {
                break;
            }
            self.settle(now);
            let book = &mut *self.stage.book.lock().unwrap();
            for node in &self.nodes[touched] {
                if !node.is_over() {
                    check_still(node, book, &mut self.coverage);
                }
            }
            if !book.faults.is_empty() {
                book.fault(format!("(found {} us after the beginning, after {event:?})", now / US));
                break;
            }
        }
        self.resume(None);
        if self.stage.book.lock().unwrap().exact.is_some() {
            self.coverage.add("requests are skipped exactly", 1);
        }
        self.finish();
        let book = &mut *self.stage.book.lock().unwrap();
        let outcome = Outcome {
            trace: book.trace,
            faults: std::mem::take(&mut book.faults),
            operations: book.ops.len(),
            virtual_ms: self.clock.ns() / MS,
            turns: self.nodes.iter().chain(&self.graves).map(|n| n.turns).sum(),
        };
        (outcome, std::mem::take(&mut self.coverage))
    }

    /// The hosts whose memory an event may change.
    fn touched(&self, event: Event) -> Range<usize> {
        let one = |node: usize| node..node + 1;
        match event {
            Event::Run(thread, _) => one(thread.node),
            Event::Call(caller) => one(self.callers[caller].node),
            Event::Lead(at) => one(self.leading[at].node),
            Event::Deliver(_) | Event::Acknowledge(..) | Event::Reset(_) => 0..0,
            Event::Connected(..) | Event::Arrive(..) | Event::Stock(_) => 0..0,
            _ => 0..self.nodes.len(),
        }
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
            Event::Take(op) => self.poll(op as u32, now),
            Event::Lead(at) => self.go_on_leading(at, now),
            Event::Answer(at) => self.stage.answer(at),
            Event::Alarm(at) => self.stage.ring(at),
            Event::Stock(dealer) => self.stock(dealer, now),
            Event::Resume(number) => {
                if let Some(thread) = self.interrupted.remove(&number) {
                    thread.end();
                }
            }
            Event::Fault => self.inject(now),
            Event::Restart(node) => self.restart(node, now),
            Event::Drain(node) => self.drain(node, now),
            Event::Look => return self.look(now),
        }
        false
    }

    fn run_thread(&mut self, thread: Thread, version: u64, now: u64) {
        let pause = 1 + self.rng.below(self.swarm.turn_us * US);
        let node = &mut self.nodes[thread.node];
        if node.life != thread.life || node.is_over() {
            return;
        }
        node.run(thread.at, version, now, pause, &self.net, &self.agenda);
        self.stage.book.lock().unwrap().trace.note(&[now, thread.node as u64, thread.at as u64]);
        self.observe(thread.node, now);
    }

    /// What a step of a host has changed.
    fn observe(&mut self, node: usize, now: u64) {
        let node = &mut self.nodes[node];
        let book = &mut *self.stage.book.lock().unwrap();
        // A peer that was stuck for long enough is taken for dead.
        self.faulty |= !node.ended.is_empty();
        for label in node.look_at_targets(now, &mut self.coverage) {
            if let Some(other) = (0..self.swarm.nodes).find(|at| *name(*at) == *label) {
                book.on_loss(node.at, other);
            }
        }
        for (connection, begun) in self.net.take_begun() {
            match begun {
                Begun::Operation(op) => book.on_begun(op, connection),
                Begun::Reply(op) => book.on_replied(op, connection),
            }
        }
        self.coverage.see("a shard that spins leads", node.led > 0);
        if let Some(text) = node.look_at_line(&mut self.coverage) {
            book.fault(format!("node {}: {text}", node.at));
        }
        check_node(node, book, &mut self.coverage);
    }

    /// Wakers that were called, edges that came, ends that were heard of.
    fn settle(&mut self, now: u64) {
        loop {
            let woken = std::mem::take(&mut *self.woken.lock().unwrap());
            let stirred = self.net.take_stirred();
            let ended = std::mem::take(&mut *self.wakes.0.lock().unwrap());
            if woken.is_empty() && stirred.is_empty() && ended.is_empty() {
                break;
            }
            for (threads, by_waker) in [(woken, true), (stirred, false)] {
                for thread in threads {
                    if let Some(dealer) = thread.node.checked_sub(self.nodes.len()) {
                        self.agenda.add(now + self.rng.below(20 * US), Event::Stock(dealer));
                        continue;
                    }
                    let node = &mut self.nodes[thread.node];
                    if node.life == thread.life {
                        let when = now + self.rng.below(20 * US);
                        node.stir(thread.at, by_waker, when, &self.agenda);
                    }
                }
            }
            for op in ended {
                self.take(op, now);
            }
        }
    }

    /// An operation is said to have ended: its caller looks now, or when he comes to it.
    fn take(&mut self, op: u32, now: u64) {
        let lazy = self.stage.book.lock().unwrap().ops[op as usize].lazy;
        if lazy && self.started.contains_key(&op) {
            self.agenda.add(now + self.rng.below(LAZY), Event::Take(op as usize));
        } else {
            self.poll(op, now);
        }
    }

    fn poll(&mut self, op: u32, now: u64) {
        let waker = Waker::from(Arc::new(OpWaker { op, wakes: self.wakes.clone() }));
        let cx = &mut Context::from_waker(&waker);
        let over = match self.started.get_mut(&op) {
            None => return,
            Some((_, Started::Send(pending))) => match Pin::new(pending).poll(cx) {
                Poll::Pending => false,
                Poll::Ready(end) => {
                    self.stage.book.lock().unwrap().on_send(op, &end, now);
                    true
                }
            },
            Some((_, Started::Multicast(sends))) => match Pin::new(sends).poll(cx) {
                Poll::Pending => false,
                Poll::Ready(told) => {
                    self.coverage.see("multicast accepted for all", told.accepted() > 1 && told.is_complete());
                    self.coverage.see("multicast accepted for some", told.accepted() > 0 && !told.is_complete());
                    self.stage.book.lock().unwrap().on_told(op, &told, now);
                    true
                }
            },
            Some((_, Started::Request(pending))) => match Pin::new(pending).poll(cx) {
                Poll::Pending => false,
                Poll::Ready(end) => {
                    let book = &mut *self.stage.book.lock().unwrap();
                    book.on_reply(op, &end, now);
                    let gate = self.nodes[book.ops[op as usize].from].shared.gate.snapshot(Instant(0));
                    self.coverage
                        .see("reply taken while every permit was out", end.is_ok() && gate.in_use == gate.limit);
                    true
                }
            },
        };
        if over && let Some((caller, _)) = self.started.remove(&op) {
            self.ended(caller, op, now);
        }
    }

    /// An operation of a caller has ended: one with a window makes the next.
    fn ended(&mut self, at: usize, op: u32, now: u64) {
        let caller = &mut self.callers[at];
        if matches!(self.stage.book.lock().unwrap().ops[op as usize].end, Some(End::Unsent(_))) {
            caller.rests_until = now + self.rng.below(AFTER_FAILURE);
        }
        if caller.window.is_some() {
            caller.outstanding -= 1;
            let pause = self.rng.below(2 * self.swarm.think_us * US);
            self.agenda.add(now + pause, Event::Call(at));
        }
    }

    fn call(&mut self, at: usize, now: u64) {
        let Caller { node, life, window, outstanding, rests_until, .. } = self.callers[at];
        let over = self.made >= self.swarm.ops;
        if over || self.nodes[node].life != life || self.nodes[node].is_over() {
            return;
        }
        if now < rests_until {
            return self.agenda.add(rests_until, Event::Call(at));
        }
        match window {
            Some(window) => {
                if outstanding < window {
                    self.call_once(at, now);
                }
            }
            None => {
                let burst = 1 + self.rng.below(self.swarm.burst);
                (0..burst).for_each(|_| self.call_once(at, now));
                let pause = self.rng.below(2 * self.swarm.interval_us * burst * US);
                self.agenda.add(now + pause, Event::Call(at));
            }
        }
    }

    fn call_once(&mut self, at: usize, now: u64) {
        self.made += 1;
        let (r, swarm) = (&mut self.rng, &self.swarm);
        let caller = &mut self.callers[at];
        let request = caller.slow || r.below(100) < swarm.request_percent;
        let timeout = Duration::from_millis(swarm.timeout_ms.0 + r.below(swarm.timeout_ms.1));
        let to = caller.to.unwrap_or(usize::MAX);
        let all = !request && caller.to.is_none() && r.below(100) < swarm.multicast_percent;
        let kind = match request {
            true => Kind::Request,
            false if all => Kind::Multicast,
            false => Kind::Send,
        };
        let reply = swarm.len(r) as u32;
        let op = {
            let book = &mut *self.stage.book.lock().unwrap();
            let from = (caller.node, caller.life);
            let op = book.begin(kind, from, to, caller.origin, now, timeout.as_nanos() as u64);
            book.ops[op as usize].reply = reply;
            book.ops[op as usize].lazy = r.below(100) < swarm.lazy_percent;
            op
        };
        let act = swarm.act(r);
        self.stage.book.lock().unwrap().ops[op as usize].nests = act == Act::Nest;
        let script =
            Script { op, act, reply, hold_us: r.below(swarm.hold_us) as u32, next: r.below(swarm.nodes as u64) as u8 };
        let payload = script.encode(swarm.len(r));
        caller.outstanding += u64::from(caller.window.is_some());
        if !request && !all && r.below(100) < swarm.try_percent {
            let end = caller.channel.try_send("try", payload);
            self.stage.book.lock().unwrap().on_send(op, &end, now);
            return self.ended(at, op, now);
        }
        let started = match request {
            true => Started::Request(caller.channel.request("ask", payload).timeout(timeout).submit()),
            false if all => Started::Multicast(caller.channel.multicast("all", payload).timeout(timeout).submit()),
            false => Started::Send(caller.channel.send("tell", payload).timeout(timeout).submit()),
        };
        let leads = request && swarm.lead_percent > 0 && r.below(100) < swarm.lead_percent;
        self.started.insert(op, (at, started));
        if leads {
            self.lead(at, now);
        }
        let (r, swarm) = (&mut self.rng, &self.swarm);
        if r.below(100) < swarm.give_up_percent {
            // Some soon, while it looks for its target or has not gone out yet.
            let soon = if r.below(2) == 0 { MS } else { timeout.as_nanos() as u64 / 4 };
            let when = now + r.below(soon);
            self.agenda.add(when, Event::GiveUp(op as usize));
        }
        self.poll(op, now);
    }

    /// How far an operation has come, as a name of what is given up now.
    fn stage_of(&self, op: u32) -> &'static str {
        let op_of = |payload: &[u8]| Script::decode(payload).op;
        let Op { from, begun, delivered, replied, .. } = self.stage.book.lock().unwrap().ops[op as usize];
        let shared: &HostShared = &self.nodes[from].shared;
        let mut waits = None;
        shared.cells.scan(|id, state, tag| {
            let is_it = || shared.cells.with_waiting(id, |waiting| op_of(&waiting.record.payload) == op) == Some(true);
            if state == CellState::Waiting && tag & TAG_REPLY == 0 && is_it() {
                waits = Some(tag & !TAG_REQUEST);
            }
        });
        match waits {
            Some(TAG_FINDING) => GIVEN_UP[0],
            Some(_) => GIVEN_UP[1],
            None if delivered > 0 && replied => GIVEN_UP[5],
            None if delivered > 0 => GIVEN_UP[4],
            None if begun.is_some() => GIVEN_UP[3],
            None => GIVEN_UP[2],
        }
    }

    /// The caller's thread waits, and may lead a lane on which something is owed.
    fn lead(&mut self, at: usize, now: u64) {
        let node = &self.nodes[self.callers[at].node];
        let owed: Vec<_> = {
            let targets = node.shared.targets.lock();
            targets.iter().filter(|t| t.in_flight.ops() > 0 && t.lane.lock().is_some()).cloned().collect()
        };
        if owed.is_empty() {
            return;
        }
        let target = &owed[self.rng.below(owed.len() as u64) as usize];
        let leader = Leader::begin(&node.shared, target, Instant(now));
        self.coverage.see("somebody else leads", leader.is_none());
        if leader.is_none() {
            return lead::expect(target);
        }
        let fate = self.rng.below(16);
        let time = one_of(&mut self.rng, &[MS, 5 * MS, 50 * MS]);
        let until = now + self.rng.below(time);
        let leading = Leading { node: node.at, life: node.life, leader, until, stuck: fate < 4, dead: fate < 1 };
        self.agenda.add(now + self.rng.below(100 * US), Event::Lead(self.leading.len()));
        self.leading.push(leading);
    }

    /// It reads, or leaves, or is stuck.
    fn go_on_leading(&mut self, at: usize, now: u64) {
        let leading = &mut self.leading[at];
        let node = &self.nodes[leading.node];
        if node.life != leading.life || node.is_over() {
            leading.leader = None;
            return;
        }
        let Some(leader) = &mut leading.leader else { return };
        let revoked = !leader.leads();
        self.coverage.see("a leader that is stuck was revoked", revoked && leading.stuck);
        self.coverage.see("a leader leads on", !revoked && !leading.stuck);
        if leading.dead && now < leading.until {
            return self.agenda.add(leading.until, Event::Lead(at));
        }
        if leading.dead {
            self.coverage.add("a leader that never leaves", 1);
            return;
        }
        if !leading.stuck {
            leader.settle();
            leader.read(Instant(now), false);
        }
        if now >= leading.until || revoked {
            leading.leader = None;
            return;
        }
        self.agenda.add(now + 1 + self.rng.below(300 * US), Event::Lead(at));
    }

    fn give_up(&mut self, op: u32, now: u64) {
        let Some((caller, started)) = self.started.remove(&op) else { return };
        let stage = self.stage_of(op);
        self.coverage.add(stage, 1);
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
        let begun = self.stage.book.lock().unwrap().ops[op as usize].begun.is_some();
        self.coverage.see("cancelled before it was sent", back.is_some());
        self.coverage.see("let go before it was sent", back.is_none() && !begun);
        self.coverage.see("let go after it was sent", begun);
        let end = if back.is_some() { End::Unsent(Detail::Cancelled) } else { End::LetGo };
        self.stage.book.lock().unwrap().end(op, end, now);
        self.ended(caller, op, now);
    }

    /// A stock socket looks at its connection, and asks if it may.
    fn stock(&mut self, at: usize, now: u64) {
        let silent = SILENT_BEATS * self.swarm.heartbeat_ms * MS;
        let (r, swarm) = (&mut self.rng, &self.swarm);
        let dealer = &mut self.dealers[at];
        let book = &mut *self.stage.book.lock().unwrap();
        if now >= dealer.rests_until && self.load_over.is_none() && r.below(400) == 0 {
            self.coverage.add("fault: stock socket reads nothing", 1);
            dealer.rests_until = now + one_of(r, &[MS, 20 * MS, 300 * MS]);
            self.agenda.add(dealer.rests_until, Event::Stock(at));
        }
        for heard in dealer.step(now, silent, &self.net) {
            match heard {
                Heard::Nonsense(what) => book.fault(format!("stock socket {} was told {what}", dealer.at)),
                Heard::Lost(ops) => {
                    self.coverage.see("stock socket lost its connection with requests", !ops.is_empty());
                    ops.into_iter().for_each(|op| book.end(op, End::LetGo, now));
                    book.on_loss(dealer.at, dealer.host);
                    dealer.redials_at = now + r.below(20 * MS);
                    self.agenda.add(dealer.redials_at, Event::Stock(at));
                }
                Heard::Answer(op, answer) => match (dealer.asked.remove(&op), answer) {
                    (None, _) => book.fault(format!("stock socket {} did not ask {op}, or was answered", dealer.at)),
                    (Some(true), Some(_)) => book.fault(format!("operation {op}, which makes no sense, went well")),
                    (Some(false), Some(payload)) => {
                        self.coverage.add("stock socket was answered", 1);
                        book.on_reply(op, &Ok(payload), now);
                    }
                    (Some(wrong), None) => {
                        self.coverage.see("stock socket asked what makes no sense", wrong);
                        self.coverage.see("stock socket was told of an error", !wrong);
                        book.end(op, End::Failed(Detail::None), now);
                    }
                },
            }
        }
        let mut more = dealer.is_up() && self.load_over.is_none();
        while more && (dealer.asked.len() as u64) < swarm.dealer_window {
            self.made += 1;
            let op = book.begin(Kind::Request, (dealer.at, 0), dealer.host, 500 + at as u32, now, REST / 2);
            let reply = swarm.len(r) as u32;
            book.ops[op as usize].reply = reply;
            let (act, hold_us) = (swarm.act(r), r.below(swarm.hold_us) as u32);
            let script = Script { op, act, reply, hold_us, next: r.below(swarm.nodes as u64) as u8 };
            // The sum of its frames counts.
            let payload = script.encode(swarm.len(r).min(swarm.max_message as usize - 64));
            match r.below(40) {
                0 => dealer.ask(op, &[b"svc/ask"], true),
                1 => dealer.ask(op, &[b"nobody/ask", &payload], true),
                2..12 => dealer.ask(op, &[b"slow/ask", &payload], false),
                _ => dealer.ask(op, &[b"svc/ask", &payload], false),
            }
            more = r.below(2) == 0;
            self.agenda.add(now + r.below(2 * swarm.think_us * US), Event::Stock(at));
        }
    }

    /// A thread of a host takes a baton and is interrupted.
    fn interrupt(&mut self, node: usize, now: u64) {
        let r = &mut self.rng;
        let up: Vec<Arc<Target>> = {
            let targets = self.nodes[node].shared.targets.lock();
            targets.iter().filter(|target| target.is_up()).cloned().collect()
        };
        if up.is_empty() {
            return;
        }
        let target = up[r.below(up.len() as u64) as usize].clone();
        let (lane, what) = match r.below(2) {
            0 => (Lane::Application, "fault: thread interrupted with the baton of a lane of records"),
            _ => (Lane::Completion, "fault: thread interrupted with the baton of a lane of replies"),
        };
        let time = one_of(r, &[20 * US, 300 * US, 3 * MS, 30 * MS]);
        let time = 1 + r.below(time);
        if let Some(thread) = Interrupted::begin(node, self.nodes[node].shared.clone(), target, lane) {
            self.interruptions += 1;
            self.interrupted.insert(self.interruptions, thread);
            self.agenda.add(now + time, Event::Resume(self.interruptions));
            self.coverage.add(what, 1);
        }
    }

    /// Threads that were interrupted go on: those of one host, or all.
    fn resume(&mut self, node: Option<usize>) {
        for (number, thread) in std::mem::take(&mut self.interrupted) {
            if node.is_none_or(|node| thread.node == node) {
                thread.end();
            } else {
                self.interrupted.insert(number, thread);
            }
        }
    }

    fn inject(&mut self, now: u64) {
        if self.load_over.is_some() {
            return;
        }
        let faults = self.swarm.faults.clone();
        let r = &mut self.rng;
        let living = self.net.living();
        let some = (!living.is_empty()).then(|| living[r.below(living.len() as u64) as usize]);
        let node = r.below(self.nodes.len() as u64) as usize;
        match (r.below(28), some) {
            (0..5, Some((connection, lane))) if faults.cut => {
                self.faulty = true;
                self.net.cut(connection);
                let what = match lane {
                    LaneOf::Application => "fault: application lane cut",
                    LaneOf::Completion => "fault: completion lane cut",
                    LaneOf::Unknown => "fault: connection cut in its handshake",
                };
                self.coverage.add(what, 1);
            }
            (5..10, Some((connection, _))) if faults.freeze => {
                // A long freeze is a dead peer.
                self.faulty = true;
                let end = 2 * connection + r.below(2) as usize;
                let time = one_of(r, &[MS, 20 * MS, 400 * MS, 700 * MS]);
                self.net.freeze(end, now + time);
                self.coverage.add("fault: freeze of one direction", 1);
            }
            (10..13, _) if faults.refuse => {
                self.net.refuse(now + r.below(50 * MS));
                self.coverage.add("fault: dials refused", 1);
            }
            (13..18, _) if faults.stuck && !self.nodes[node].is_over() => {
                let shard = r.below(self.nodes[node].threads() as u64 - 1) as usize;
                let time = one_of(r, &[10 * MS, 100 * MS, 100 * MS, 700 * MS]);
                self.nodes[node].stick(shard, r.below(time));
                self.coverage.add("fault: stuck shard", 1);
            }
            (18, _) if faults.kill && !self.nodes[node].is_over() => {
                let told = r.below(2) == 0;
                self.coverage.see("fault: host killed", told);
                self.coverage.see("fault: host gone without a word", !told);
                self.end_node(node, told, now);
            }
            (19, _) if faults.drain && self.nodes[node].serves() => self.begin_drain(node, now),
            (20.., _) if faults.interrupt && !self.nodes[node].is_over() => self.interrupt(node, now),
            _ => {}
        }
        self.agenda.add(now + self.rng.below(2 * faults.interval_us * US), Event::Fault);
    }

    /// A host is over, and what is left of it goes; it starts anew in a while.
    fn end_node(&mut self, at: usize, told: bool, now: u64) {
        self.faulty = true;
        self.resume(Some(at));
        self.net.on_death(at, told);
        if !told {
            self.unnoticed = now + 5 * self.swarm.heartbeat_ms * MS;
        }
        self.nodes[at].bury();
        self.draining.retain(|d| d.node != at);
        let unended = self.stage.book.lock().unwrap().unended(at);
        for op in unended {
            // Its callers died with it.
            self.started.remove(&op);
            self.stage.book.lock().unwrap().end(op, End::LetGo, now);
        }
        let others = self.nodes.len();
        let book = &mut *self.stage.book.lock().unwrap();
        (0..others).for_each(|other| book.on_loss(at, other));
        let when = now + self.rng.below(100 * MS);
        self.agenda.add(when, Event::Restart(at));
    }

    fn restart(&mut self, at: usize, now: u64) {
        let life = self.nodes[at].life + 1;
        let mut node = self.build(at, life);
        node.verbose = self.nodes[at].verbose;
        self.graves.push(std::mem::replace(&mut self.nodes[at], node));
        self.net.on_birth(at);
        self.set_going(at);
        let client = Client::new(self.nodes[at].shared.clone());
        for (i, caller) in self.callers.iter_mut().enumerate().filter(|(_, c)| c.node == at) {
            caller.channel = channel(&client, caller.to, caller.slow);
            (caller.life, caller.outstanding) = (life, 0);
            (0..caller.window.unwrap_or(1)).for_each(|_| self.agenda.add(now, Event::Call(i)));
        }
    }

    /// A shutdown begins; see `Host::shutdown`, whose steps these are.
    fn begin_drain(&mut self, at: usize, now: u64) {
        self.coverage.add("fault: host shut down", 1);
        let node = &self.nodes[at];
        self.coverage.see("shut down while operations wait for room", node.shared.room.ops() > 0);
        self.coverage.see("shut down while requests are in flight", node.shared.slots.ops() > 0);
        node.shared.life.set(Life::Draining as u64);
        let until = now + one_of(&mut self.rng, &[0, 5 * MS, 500 * MS]);
        self.draining.push(Draining { node: at, life: node.life, until, before: None });
        self.agenda.add(now, Event::Drain(at));
    }

    fn drain(&mut self, at: usize, now: u64) {
        let life = self.nodes[at].life;
        let Some(draining) = self.draining.iter_mut().find(|d| d.node == at && d.life == life) else { return };
        let shared = self.nodes[at].shared.clone();
        let turns: Vec<u64> = shared.shards.iter().map(|p| p.turns.get()).collect();
        let received = shared.counts.received.get();
        let quiet = shared.is_quiet();
        let came = draining.before.as_ref().is_none_or(|(before, _)| *before != received);
        let turned = draining.before.as_ref().is_some_and(|(_, then)| turns.iter().zip(then).all(|(n, t)| n > t));
        let over = quiet && !came && turned;
        if !over && now < draining.until {
            if !quiet || came {
                draining.before = quiet.then_some((received, turns));
            }
            shared.shards.iter().for_each(|port| {
                port.wake.wake();
            });
            return self.agenda.add(now + MS, Event::Drain(at));
        }
        self.coverage.see("shutdown found everything done", over);
        self.coverage.see("shutdown at its deadline", !over);
        shared.end_all(ErrorKind::ShuttingDown);
        shared.life.set(Life::Stopped as u64);
        self.nodes[at].stop(now, &self.net);
        shared.end_all(ErrorKind::ShuttingDown);
        let ended = std::mem::take(&mut *self.wakes.0.lock().unwrap());
        self.coverage.see("operation ended by the shutdown", !ended.is_empty());
        ended.into_iter().for_each(|op| self.poll(op, now));
        let lazy: Vec<u32> = {
            let book = self.stage.book.lock().unwrap();
            book.unended(at).into_iter().filter(|op| book.ops[*op as usize].lazy).collect()
        };
        lazy.into_iter().for_each(|op| self.poll(op, now));
        self.observe(at, now);
        {
            let book = &mut *self.stage.book.lock().unwrap();
            let left: Vec<u32> =
                book.unended(at).into_iter().filter(|op| book.ops[*op as usize].kind != Kind::Nested).collect();
            if !left.is_empty() {
                book.fault(format!("node {at} was shut down, and operations {left:?} have not ended"));
            }
        }
        self.end_node(at, true, now);
    }

    fn look(&mut self, now: u64) -> bool {
        let outstanding = {
            let book = &mut *self.stage.book.lock().unwrap();
            book.look_for_hangs(now);
            book.outstanding()
        };
        let faults = &self.swarm.faults;
        if !faults.freeze && !faults.kill {
            self.look_at_pressure();
        }
        if self.made >= self.swarm.ops && self.load_over.is_none() {
            self.load_over = Some(now);
            self.net.heal();
            self.resume(None);
        }
        for at in 0..self.dealers.len() {
            // Silence is noticed by nobody else.
            self.agenda.add(now, Event::Stock(at));
            // Where marks move they leave, so that marks rise again.
            if self.load_over.is_some() && self.swarm.budget > 0 && self.dealers[at].asked.is_empty() {
                self.dealers[at].leave(&self.net);
            }
        }
        if let Some(since) = self.load_over {
            let left: Vec<String> = match outstanding + self.stage.kept() {
                0 => self.nodes.iter().flat_map(not_at_rest).chain(self.net.under_way()).collect(),
                _ => vec![format!("{outstanding} operations, {} kept responders", self.stage.kept())],
            };
            if left.is_empty() && now > self.unnoticed {
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

    /// Between two looks in which a host's pressure did not change and a link had nothing else to carry, the
    /// peer on that link has heard of the pressure.
    fn look_at_pressure(&mut self) {
        let calm: Vec<Calm> = self.nodes.iter().map(Calm::of).collect();
        let before = std::mem::replace(&mut self.calm, calm);
        // Whoever is interrupted with a lane's baton keeps what is left there from leaving.
        let interruptions = std::mem::replace(&mut self.interruptions_seen, self.interruptions);
        let interrupted = interruptions != self.interruptions || !self.interrupted.is_empty();
        let held = std::mem::replace(&mut self.held_at_look, interrupted);
        if before.len() != self.calm.len() || held || interrupted {
            return;
        }
        let same = |at: usize| {
            let (then, now) = (&before[at], &self.calm[at]);
            (then.life, then.epoch) == (now.life, now.epoch) && !self.nodes[at].is_over()
        };
        let book = &mut *self.stage.book.lock().unwrap();
        for (at, peer) in (0..self.nodes.len()).flat_map(|a| (0..self.nodes.len()).map(move |b| (a, b))) {
            let (now, ends) = (&self.calm[at], |calm: &Calm, other: usize| calm.ends(other));
            let quiet = at != peer && same(at) && before[peer].life == self.calm[peer].life;
            let (here, there) = (ends(now, peer), ends(&self.calm[peer], at));
            // Both sides have the links that they had, and nothing that is answered is under way.
            let steady = here == ends(&before[at], peer) && there == ends(&before[peer], at);
            if !quiet || !steady || here.len() != there.len() || here.iter().any(|(_, empty, _)| !empty) {
                continue;
            }
            self.coverage.see("a peer knows of the pressure", now.paused && !there.is_empty());
            if there.iter().any(|(_, _, paused)| *paused != now.paused) {
                book.fault(format!("node {at} is paused: {}, and node {peer} has heard {there:?}", now.paused));
            }
        }
    }

    /// The account, and what the counters say was reached.
    fn finish(&mut self) {
        let book: &mut Book = &mut self.stage.book.lock().unwrap();
        let nodes: Vec<&Node> = self.graves.iter().chain(&self.nodes).collect();
        if book.faults.is_empty() {
            let died: BTreeSet<usize> = self.graves.iter().map(|n| n.at).collect();
            let deaf = &self.swarm.deaf[..];
            check_losses(&Circumstances { nodes: nodes.clone(), died, deaf, faulty: self.faulty }, book);
        }
        for node in nodes {
            let c = &node.shared.counts;
            let gate = node.shared.gate.snapshot(node.shared.clock.now());
            for (what, n) in [
                ("waited for room", c.waits.get()),
                ("found the waiting room full", c.waiting_room_full.get()),
                ("ceiling ended a wait for room", c.no_room.get()),
                ("expired in flight", c.no_reply.get()),
                ("late reply", c.late_replies.get()),
                ("reply not taken in time", c.replies_not_taken.get()),
                ("request ended by its link's loss", c.link_lost.get()),
                ("accepted for a target that was gone", c.lost_with_target.get()),
                ("reply thrown away: hold full", c.reply_hold_refused.get()),
                ("reply for a link that had gone", c.replies_undeliverable.get()),
                ("reply refused room", c.reply_room_refused.get()),
                ("expired in its queue and was skipped", c.expired_in_queue.get()),
                ("record for nobody", c.no_handler.get()),
                ("pressure told", c.flow_frames_sent.get()),
                ("handler panicked", c.handler_panics.get()),
                ("handshake failed", c.handshakes_failed.get()),
                ("link lost", c.links_lost.get()),
                ("ticket filed", gate.waits),
                ("gate paused and resumed", gate.resumes),
                ("record begun and lost", node.targets.iter().map(|t| t.target.lost_on_detach.get()).sum()),
                ("record in doubt", node.targets.iter().map(|t| t.target.in_doubt_on_detach.get()).sum()),
                ("record discarded before its first byte", {
                    node.targets.iter().map(|t| t.target.discarded.get()).sum()
                }),
            ] {
                self.coverage.add(what, n);
            }
        }
        for op in &book.ops {
            let nested = op.kind == Kind::Nested;
            match op.end {
                Some(End::Accepted) => self.coverage.add("end: accepted", 1),
                Some(End::Reply) if nested => self.coverage.add("end: reply to a handler", 1),
                Some(End::Reply) => self.coverage.add("end: reply", 1),
                Some(End::Unsent(detail)) => self.coverage.add(unsent(detail), 1),
                Some(End::Failed(_)) => self.coverage.add("end: failed after it was sent", 1),
                Some(End::LetGo) => self.coverage.add("end: let go", 1),
                None => {}
            }
        }
    }
}

fn unsent(detail: Detail) -> &'static str {
    match detail {
        Detail::WaitingRoomFull => "end: payload back, waiting room full",
        Detail::NoRoom => "end: payload back, no room in time",
        Detail::NotFoundYet => "end: payload back, nobody known in time",
        Detail::NotConnected => "end: payload back, not connected",
        Detail::Detached => "end: payload back, target gone",
        Detail::Cancelled => "end: payload back, cancelled",
        Detail::None => "end: payload back, nobody there",
        Detail::MessageTooLarge => "end: payload back, too large",
        _ => "end: payload back, other",
    }
}

fn channel(client: &Client, to: Option<usize>, slow: bool) -> Channel {
    match to {
        Some(to) => client.node(&name(to)),
        None => client.channel(if slow { "slow" } else { "svc" }),
    }
}
