//! What users do: swarm options drawn from the seed, callers with a plan for each operation, and
//! handlers that do what the record tells them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use afflux::base::rng::Rng;
use afflux::engine::seat::{AsyncSeat, HandlerSeat, Seat, SeatFactory};
use afflux::plan::{ConnectPlan, Endpoint, HostPlan, JobsPlan, ReplyPlan, RoomPlan};
use afflux::{Context, Failure, Handler, LocalClient, Message, RemoteResponder, Request};
use bytes::Bytes;

use super::checkers::{Book, Kind, content};
use super::node::address;
use super::world::{Agenda, Event, MS, US, VirtualClock};

/// How large operations are, and what their handlers do: in the first bytes of every payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Script {
    pub op: u32,
    pub act: Act,
    pub reply: u32,
    pub hold_us: u32,
    /// Where a nested request goes.
    pub next: u8,
}

/// What the handler of a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Act {
    /// Answers in its callback.
    Inline,
    /// Keeps the responder; another thread answers later.
    Keep,
    /// Asks another node first.
    Nest,
    /// Forgets it.
    Drop,
    /// Says no.
    Fail,
    /// Panics.
    Panic,
}

pub const ACTS: [Act; 6] = [Act::Inline, Act::Keep, Act::Nest, Act::Drop, Act::Fail, Act::Panic];

/// The shortest payload.
pub const SCRIPT_LEN: usize = 16;

impl Script {
    pub fn encode(self, len: usize) -> Bytes {
        let mut out = Vec::with_capacity(len.max(SCRIPT_LEN));
        out.extend(self.op.to_le_bytes());
        out.extend(self.reply.to_le_bytes());
        out.extend(self.hold_us.to_le_bytes());
        out.extend([self.act as u8, self.next, 0, 0]);
        out.extend((SCRIPT_LEN..len).map(|i| content(self.op, i)));
        out.into()
    }

    pub fn decode(payload: &[u8]) -> Script {
        let word = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
        Script { op: word(0), reply: word(4), hold_us: word(8), act: ACTS[payload[12] as usize], next: payload[13] }
    }
}

/// The options of one seed.
#[derive(Clone, Debug)]
pub struct Swarm {
    pub nodes: usize,
    pub shards: Vec<u16>,
    pub jobs: u32,
    pub started_per_shard: u32,
    pub links: u16,
    pub send_mark: u64,
    pub receive_mark: u64,
    pub max_message: u64,
    pub room_ops: u32,
    pub request_slots: u32,
    pub requests_per_peer: u32,
    pub owned: u64,
    pub reply_per_peer: u64,
    pub reply_hold: u64,
    pub ring_slots: u32,
    pub caller_rings: u32,
    pub ring_records: u32,
    pub turn_bytes: usize,
    pub read_block: usize,
    pub heartbeat_ms: u64,
    pub reconnect_ms: u64,
    pub pipe: usize,
    pub latency_us: (u64, u64),
    pub turn_us: u64,
    pub callers: usize,
    pub ops: usize,
    /// Mean time between two operations of one caller.
    pub interval_us: u64,
    pub burst: u64,
    pub timeout_ms: (u64, u64),
    pub hold_us: u64,
    pub large_percent: u64,
    pub request_percent: u64,
    pub give_up_percent: u64,
    pub try_percent: u64,
    pub nest_percent: u64,
    pub keep_percent: u64,
    pub odd_percent: u64,
    pub faults: Faults,
}

/// Which faults are injected; the mean time between two of them.
#[derive(Clone, Debug)]
pub struct Faults {
    pub interval_us: u64,
    pub cut: bool,
    pub freeze: bool,
    pub refuse: bool,
    pub stuck: bool,
}

impl Swarm {
    pub fn draw(seed: u64, ops: usize) -> Swarm {
        let r = &mut Rng::new(seed ^ 0x5357_4152_4D00_0000);
        let nodes = 2 + r.below(2) as usize;
        let shards: Vec<u16> = (0..nodes).map(|_| 1 + r.below(4) as u16).collect();
        let max_message = one_of(r, &[4 << 10, 16 << 10, 64 << 10]);
        let record_max = max_message + 1024;
        let latency_min = one_of(r, &[5, 20, 200]);
        Swarm {
            nodes,
            jobs: one_of(r, &[1, 2, 5, 16, 64]) as u32,
            started_per_shard: one_of(r, &[1, 2, 8, 64]) as u32,
            links: 1 + r.below(3) as u16 * r.below(2) as u16,
            send_mark: one_of(r, &[512, 2 << 10, 16 << 10, 256 << 10, 0]),
            receive_mark: one_of(r, &[512, 2 << 10, 16 << 10, 256 << 10]),
            max_message,
            room_ops: one_of(r, &[4, 16, 64, 1024]) as u32,
            request_slots: one_of(r, &[4, 32, 1024]) as u32,
            requests_per_peer: one_of(r, &[2, 16, 1024]) as u32,
            owned: one_of(r, &[2 << 10, 64 << 10, 16 << 20]),
            reply_per_peer: one_of(r, &[1 << 10, 16 << 10, 1 << 20]).min(record_max * 2),
            reply_hold: record_max * one_of(r, &[1, 4, 64]),
            ring_slots: one_of(r, &[4, 16, 256]) as u32,
            caller_rings: one_of(r, &[1, 4, 128]) as u32,
            ring_records: one_of(r, &[1, 8, 256]) as u32,
            turn_bytes: one_of(r, &[1 << 10, 16 << 10, 256 << 10]) as usize,
            read_block: one_of(r, &[8 << 10, 64 << 10]) as usize,
            heartbeat_ms: one_of(r, &[10, 50, 1000]),
            reconnect_ms: one_of(r, &[1, 10]),
            pipe: one_of(r, &[700, 4 << 10, 64 << 10]) as usize,
            latency_us: (latency_min, latency_min * (1 + r.below(4))),
            turn_us: one_of(r, &[2, 10, 50]),
            callers: 2 + r.below(8) as usize,
            ops,
            interval_us: one_of(r, &[20, 100, 400]),
            burst: one_of(r, &[1, 4, 32]),
            timeout_ms: (1 + r.below(20), one_of(r, &[30, 200, 1000])),
            hold_us: one_of(r, &[50, 500, 5000]),
            large_percent: one_of(r, &[0, 3, 15]),
            request_percent: one_of(r, &[20, 50, 90]),
            give_up_percent: one_of(r, &[0, 5, 20]),
            try_percent: one_of(r, &[0, 10]),
            nest_percent: one_of(r, &[0, 10, 30]),
            keep_percent: one_of(r, &[10, 50]),
            odd_percent: one_of(r, &[0, 3]),
            faults: Faults {
                interval_us: one_of(r, &[300, 2_000, 10_000]),
                cut: r.below(2) == 0,
                freeze: r.below(2) == 0,
                refuse: r.below(2) == 0,
                stuck: r.below(2) == 0,
            },
            shards,
        }
    }

    /// The plan of one node. Every node dials those after it.
    pub fn plan(&self, node: usize) -> HostPlan {
        let shards = self.shards[node];
        let mut plan = HostPlan::defaults(&name(node), shards);
        let jobs = JobsPlan::new(self.jobs, shards, 80, 60, u32::from(shards));
        plan.instance = node as u128 + 1;
        plan.turn.claims = jobs.turn_claims;
        plan.jobs = jobs;
        plan.started_per_shard = vec![self.started_per_shard; usize::from(shards)];
        plan.max_started = self.started_per_shard * u32::from(shards);
        plan.channels = vec![("svc".into(), 100), ("slow".into(), 100)];
        plan.connects = (node + 1..self.nodes)
            .map(|to| ConnectPlan { addr: Endpoint::Addr(address(to)), name: Some(name(to).into()), links: self.links })
            .collect();
        (plan.send_mark, plan.receive_mark) = (self.send_mark, self.receive_mark);
        plan.max_message = self.max_message;
        plan.oversize_budget = 2 * self.max_message * u64::from(shards);
        plan.max_owned_bytes = self.owned;
        let record_max = plan.record_max();
        plan.room = RoomPlan::new(self.room_ops, (record_max * 4).max(64 << 10));
        (plan.request_slots, plan.requests_per_peer) = (self.request_slots, self.requests_per_peer);
        plan.reply = ReplyPlan {
            per_peer: self.reply_per_peer,
            host: (4 * self.reply_per_peer).max(record_max),
            hold: self.reply_hold.max(record_max),
        };
        plan.send_timeout = Duration::from_millis(self.timeout_ms.1);
        plan.request_timeout = Duration::from_millis(self.timeout_ms.1);
        (plan.ring_slots, plan.caller_rings) = (self.ring_slots, self.caller_rings);
        plan.peers_max = 64;
        plan.heartbeat = Duration::from_millis(self.heartbeat_ms);
        plan.dead_after = Duration::from_millis(self.heartbeat_ms * 3);
        plan.handshake_timeout = Duration::from_millis(500);
        plan.reconnect_min = Duration::from_millis(self.reconnect_ms);
        plan.reconnect_max = Duration::from_millis(self.reconnect_ms * 8);
        plan.assembly_timeout = Duration::from_millis(500);
        plan.turn.ring_records = self.ring_records;
        plan.turn.read_bytes_per_link = self.turn_bytes;
        plan.turn.write_bytes_per_link = self.turn_bytes;
        plan.turn.read_block = self.read_block;
        plan
    }

    /// A payload length.
    pub fn len(&self, r: &mut Rng) -> usize {
        let max = self.max_message;
        let len = match r.below(100) {
            p if p < self.large_percent => one_of(r, &[max, max / 2, self.receive_mark + 1, self.send_mark + 1]),
            p if p < 60 => r.below(200),
            _ => r.below(2000),
        };
        len.clamp(SCRIPT_LEN as u64, max) as usize
    }

    pub fn act(&self, r: &mut Rng) -> Act {
        let mut p = r.below(100);
        for (share, act) in [
            (self.keep_percent, Act::Keep),
            (self.nest_percent, Act::Nest),
            (self.odd_percent, Act::Drop),
            (self.odd_percent, Act::Fail),
            (self.odd_percent, Act::Panic),
        ] {
            if p < share {
                return act;
            }
            p -= share;
        }
        Act::Inline
    }
}

pub fn name(node: usize) -> String {
    format!("n{node}")
}

pub fn one_of(r: &mut Rng, of: &[u64]) -> u64 {
    of[r.below(of.len() as u64) as usize]
}

/// What the world and its handlers share.
pub struct Stage {
    pub clock: Arc<VirtualClock>,
    pub agenda: Agenda,
    pub book: Mutex<Book>,
    pub swarm: Swarm,
    rng: Mutex<Rng>,
    kept: Mutex<Vec<Option<Kept>>>,
    alarms: Mutex<Vec<Option<Waker>>>,
}

struct Kept {
    responder: RemoteResponder,
    reply: Bytes,
}

impl Stage {
    pub fn new(clock: Arc<VirtualClock>, agenda: Agenda, swarm: Swarm, seed: u64) -> Arc<Stage> {
        Arc::new(Stage {
            clock,
            agenda,
            book: Mutex::new(Book::default()),
            swarm,
            rng: Mutex::new(Rng::new(seed ^ 0x4841_4E44)),
            kept: Mutex::new(Vec::new()),
            alarms: Mutex::new(Vec::new()),
        })
    }

    /// A kept responder answers.
    pub fn answer(&self, at: usize) {
        let kept = self.kept.lock().unwrap()[at].take();
        if let Some(Kept { responder, reply }) = kept {
            responder.reply(reply);
        }
    }

    pub fn ring(&self, at: usize) {
        let waker = self.alarms.lock().unwrap()[at].take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// How many responders are kept.
    pub fn kept(&self) -> usize {
        self.kept.lock().unwrap().iter().flatten().count()
    }

    fn keep(&self, responder: RemoteResponder, reply: Bytes, hold_us: u32) {
        let mut kept = self.kept.lock().unwrap();
        kept.push(Some(Kept { responder, reply }));
        self.agenda.add(self.clock.ns() + u64::from(hold_us) * US, Event::Answer(kept.len() - 1));
    }

    /// A nested operation of the handler on `shard` of `node`, with its payload.
    fn nested(&self, node: usize, shard: usize, to: usize, inherited: u32) -> (u32, Bytes, Duration) {
        let r = &mut *self.rng.lock().unwrap();
        let book = &mut *self.book.lock().unwrap();
        // Origins of shards have numbers above those of callers.
        let origin = 1000 + node * 16 + shard;
        let timeout = Duration::from_millis(self.swarm.timeout_ms.0 + r.below(self.swarm.timeout_ms.1));
        let op = book.begin(Kind::Nested, node, to, origin as u32, self.clock.ns(), timeout.as_nanos() as u64);
        let reply = self.swarm.len(r) as u32;
        book.ops[op as usize].parent = Some(inherited);
        book.ops[op as usize].reply = reply;
        let script = Script {
            op,
            act: if r.below(3) == 0 { Act::Keep } else { Act::Inline },
            reply,
            hold_us: r.below(self.swarm.hold_us) as u32,
            next: 0,
        };
        (op, script.encode(self.swarm.len(r)), timeout)
    }

    fn deliver(&self, node: usize, shard: usize, payload: &Bytes, request: bool) -> Script {
        let script = Script::decode(payload);
        self.book.lock().unwrap().on_delivered(script.op, node, shard, payload, request, self.clock.ns());
        script
    }
}

pub fn reply_of(script: Script) -> Bytes {
    let mut out = Vec::with_capacity(script.reply as usize);
    out.extend(script.op.to_le_bytes());
    out.extend((4..script.reply as usize).map(|i| content(!script.op, i)));
    out.into()
}

struct Server {
    stage: Arc<Stage>,
    node: usize,
    shard: usize,
}

impl Handler for Server {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let script = self.stage.deliver(self.node, self.shard, request.payload(), true);
        let reply = reply_of(script);
        match script.act {
            Act::Inline => request.reply(cx, reply),
            Act::Keep => {
                let (responder, _) = request.into_parts();
                self.stage.keep(responder.into_remote(), reply, script.hold_us);
            }
            Act::Nest => {
                let to = script.next as usize;
                let (op, payload, timeout) = self.stage.nested(self.node, self.shard, to, script.op);
                let (responder, _) = request.into_parts();
                let continuation = Continuation { stage: self.stage.clone(), op };
                cx.node(&name(to)).request("nested", payload).timeout(timeout).then(cx, move |server, end, cx| {
                    let stage = &server.stage;
                    stage.book.lock().unwrap().on_reply(op, &end, stage.clock.ns());
                    drop(continuation);
                    match end {
                        Ok(_) => responder.reply(cx, reply),
                        Err(_) => responder.fail(cx, 7, "the nested request failed"),
                    }
                });
            }
            Act::Drop => drop(request),
            Act::Fail => request.fail(cx, 9, "no"),
            Act::Panic => panic!("a planned panic"),
        }
    }

    fn message(&mut self, message: Message, _: &mut Context<'_, Self>) {
        self.stage.deliver(self.node, self.shard, message.payload(), false);
    }
}

/// Dropped unrun: its handler's instance panicked.
struct Continuation {
    stage: Arc<Stage>,
    op: u32,
}

impl Drop for Continuation {
    fn drop(&mut self) {
        self.stage.book.lock().unwrap().on_dropped(self.op, self.stage.clock.ns());
    }
}

/// A handler's wait in virtual time.
struct Sleep {
    stage: Arc<Stage>,
    until: u64,
    alarm: Option<usize>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.stage.clock.ns() >= self.until {
            return Poll::Ready(());
        }
        let stage = self.stage.clone();
        let mut alarms = stage.alarms.lock().unwrap();
        match self.alarm {
            Some(at) => alarms[at] = Some(cx.waker().clone()),
            None => {
                alarms.push(Some(cx.waker().clone()));
                self.alarm = Some(alarms.len() - 1);
                stage.agenda.add(self.until, Event::Alarm(alarms.len() - 1));
            }
        }
        Poll::Pending
    }
}

async fn serve(
    stage: Arc<Stage>,
    node: usize,
    shard: usize,
    request: Request,
    client: LocalClient,
) -> Result<Bytes, Failure> {
    let script = stage.deliver(node, shard, request.payload(), true);
    match script.act {
        Act::Inline => {}
        Act::Keep => {
            let until = stage.clock.ns() + u64::from(script.hold_us) * US;
            Sleep { stage: stage.clone(), until, alarm: None }.await;
        }
        Act::Nest => {
            let to = script.next as usize;
            let (op, payload, timeout) = stage.nested(node, shard, to, script.op);
            let end = client.node(&name(to)).request("nested", payload).timeout(timeout).await;
            stage.book.lock().unwrap().on_reply(op, &end, stage.clock.ns());
            end?;
        }
        Act::Drop | Act::Fail => return Err(Failure::new(9, "no")),
        Act::Panic => panic!("a planned panic"),
    }
    Ok(reply_of(script))
}

/// The seats of a node: its channels in the order of the plan, and the node's own.
pub fn seats(stage: &Arc<Stage>, node: usize) -> (Vec<SeatFactory>, SeatFactory) {
    let made = stage.clone();
    let server = Arc::new(move |shard| Server { stage: made.clone(), node, shard });
    let plain: SeatFactory =
        Arc::new(move |shard, seat| -> Box<dyn Seat> { Box::new(HandlerSeat::new(server.clone(), shard, seat)) });
    let made = stage.clone();
    let slow = Arc::new(move |shard| {
        let stage = made.clone();
        move |request, client| serve(stage.clone(), node, shard, request, client)
    });
    let slow: SeatFactory =
        Arc::new(move |shard, seat| -> Box<dyn Seat> { Box::new(AsyncSeat::new(slow.clone(), shard, seat)) });
    (vec![plain.clone(), slow], plain)
}

/// The longest that a world may take to come to rest once the load has ended.
pub const REST: u64 = 60_000 * MS;
