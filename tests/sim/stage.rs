//! What users do on the answering side: handlers that answer, keep, ask on, sleep, fail and panic.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use afflux::base::rng::Rng;
use afflux::engine::seat::{AsyncSeat, HandlerSeat, Seat, SeatFactory};
use afflux::{Context, Failure, Handler, LocalClient, Message, RemoteResponder, Request};
use bytes::Bytes;

use super::agenda::{Agenda, Event, US, VirtualClock};
use super::book::{Book, Kind, Place};
use super::script::{Act, Script, reply_of};
use super::swarm::{Swarm, name};

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
    fn nested(&self, place: Place, to: usize, inherited: u32) -> (u32, Bytes, Duration) {
        let r = &mut *self.rng.lock().unwrap();
        let book = &mut *self.book.lock().unwrap();
        // Origins of shards have numbers above those of callers.
        let origin = 1000 + place.node * 16 + place.shard;
        let timeout = Duration::from_millis(1 + r.below(self.swarm.nested_ms));
        let from = (place.node, place.life);
        let op = book.begin(Kind::Nested, from, to, origin as u32, self.clock.ns(), timeout.as_nanos() as u64);
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

    fn deliver(&self, place: Place, payload: &Bytes, request: bool) -> Script {
        let script = Script::decode(payload);
        self.book.lock().unwrap().on_delivered(script.op, place, payload, request, self.clock.ns());
        script
    }
}

struct Server {
    stage: Arc<Stage>,
    place: Place,
}

impl Handler for Server {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let script = self.stage.deliver(self.place, request.payload(), true);
        let reply = reply_of(script);
        match script.act {
            Act::Inline => request.reply(cx, reply),
            Act::Keep => {
                let (responder, _) = request.into_parts();
                self.stage.keep(responder.into_remote(), reply, script.hold_us);
            }
            Act::Nest => {
                let to = script.next as usize;
                let (op, payload, timeout) = self.stage.nested(self.place, to, script.op);
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
        self.stage.deliver(self.place, message.payload(), false);
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

async fn serve(stage: Arc<Stage>, place: Place, request: Request, client: LocalClient) -> Result<Bytes, Failure> {
    let script = stage.deliver(place, request.payload(), true);
    match script.act {
        Act::Inline => {}
        Act::Keep => {
            let until = stage.clock.ns() + u64::from(script.hold_us) * US;
            Sleep { stage: stage.clone(), until, alarm: None }.await;
        }
        Act::Nest => {
            let to = script.next as usize;
            let (op, payload, timeout) = stage.nested(place, to, script.op);
            let end = client.node(&name(to)).request("nested", payload).timeout(timeout).await;
            stage.book.lock().unwrap().on_reply(op, &end, stage.clock.ns());
            end?;
        }
        Act::Drop | Act::Fail => return Err(Failure::new(9, "no")),
        Act::Panic => panic!("a planned panic"),
    }
    Ok(reply_of(script))
}

/// The seats of a node: its channels in the order of the plan, and the node's own if it has one.
pub fn seats(stage: &Arc<Stage>, node: usize, life: u32) -> (Vec<SeatFactory>, Option<SeatFactory>) {
    let made = stage.clone();
    let server = Arc::new(move |shard| Server { stage: made.clone(), place: Place { node, life, shard } });
    let plain: SeatFactory =
        Arc::new(move |shard, seat| -> Box<dyn Seat> { Box::new(HandlerSeat::new(server.clone(), shard, seat)) });
    let made = stage.clone();
    let slow = Arc::new(move |shard| {
        let stage = made.clone();
        move |request, client| serve(stage.clone(), Place { node, life, shard }, request, client)
    });
    let slow: SeatFactory =
        Arc::new(move |shard, seat| -> Box<dyn Seat> { Box::new(AsyncSeat::new(slow.clone(), shard, seat)) });
    let own = (!stage.swarm.deaf[node]).then(|| plain.clone());
    (vec![plain, slow], own)
}
