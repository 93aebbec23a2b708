//! A shard on a virtual clock, by itself: what becomes of permits, deadlines and bytes at each step of a job,
//! one turn at a time.

use std::future::{Future, poll_fn};
use std::task::Poll;

use super::*;
use crate::base::time::Clock;
use crate::engine::call::{OneWay, Op, Origin as Caller, Pending, Terminal, TwoWay};
use crate::engine::completion::CompletionEngine;
use crate::engine::handle::Handle;
use crate::engine::handler::{Context, Failure, Handler, LocalClient, RemoteResponder, Request};
use crate::engine::rig::{self, Hand, Pipe};
use crate::engine::seat::{AsyncSeat, HandlerSeat};
use crate::flow::target::TargetSpec;
use crate::pattern::route::{Channel, Member, Named, Routes};
use crate::plan::{HostPlan, JobsPlan};
use crate::sync::gate::GateSnapshot;
use crate::sync::lock::Lock;
use crate::sync::word::Latch;

const S0: ShardId = ShardId(0);
/// Of callers that are meant to wait.
const LONG: Duration = Duration::from_secs(20);

/// A handler whose callback the test wrote.
struct Serve(Arc<Script>);

type Script = dyn Fn(Request, &mut Context<'_, Serve>) + Send + Sync;

impl Handler for Serve {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let script = self.0.clone();
        script(request, cx);
    }
}

fn seat(script: impl Fn(Request, &mut Context<'_, Serve>) + Send + Sync + 'static) -> SeatFactory {
    let script: Arc<Script> = Arc::new(script);
    let factory = Arc::new(move |_: usize| Serve(script.clone()));
    Arc::new(move |shard, seat| Box::new(HandlerSeat::new(factory.clone(), shard, seat)))
}

/// Futures that end when `over` is raised.
fn futures(over: Arc<Latch>, seen: Arc<Seen>) -> SeatFactory {
    let factory = Arc::new(move |_: usize| {
        let (over, seen) = (over.clone(), seen.clone());
        move |request: Request, client: LocalClient| {
            seen.note("future", client.handle.shared());
            let over = over.clone();
            Box::pin(async move {
                poll_fn(|cx| match over.is_raised() {
                    true => Poll::Ready(()),
                    false => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                })
                .await;
                Ok(request.payload().clone())
            }) as std::pin::Pin<Box<dyn Future<Output = Result<Bytes, Failure>>>>
        }
    });
    Arc::new(move |shard, seat| Box::new(AsyncSeat::new(factory.clone(), shard, seat)))
}

/// Panics that are meant are no news, and their backtraces cost seconds.
fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"a planned panic") {
                before(info);
            }
        }));
    });
}

/// What callbacks saw in their first instruction: who it was, and the permits in use.
#[derive(Default)]
struct Seen {
    starts: Lock<Vec<(String, u32)>>,
    owed: Lock<Vec<RemoteResponder>>,
}

impl Seen {
    fn note(&self, who: &str, shared: &Arc<HostShared>) {
        self.starts.lock().push((who.to_owned(), gate(shared).in_use));
    }

    fn started(&self) -> Vec<String> {
        self.starts.lock().iter().map(|(who, _)| who.clone()).collect()
    }

    /// Answers the oldest that is kept.
    fn answer(&self, with: &'static str) {
        let oldest = self.owed.lock().remove(0);
        oldest.reply(with);
    }
}

fn gate(shared: &HostShared) -> GateSnapshot {
    shared.gate.snapshot(shared.clock.now())
}

/// Notes that it was started under the name of its method; then it is as that name says.
fn work(seen: Arc<Seen>) -> SeatFactory {
    seat(move |request, cx| {
        let name = request.method().to_owned();
        seen.note(&name, cx.core.shared());
        match &name[..] {
            "panic" => panic!("a planned panic"),
            "echo" => {
                let payload = request.payload().clone();
                request.reply(cx, payload);
            }
            "ask" | "loop" => {
                let (responder, payload) = request.into_parts();
                let next = if name == "loop" { "loop" } else { "keep" };
                let call = cx.channel("work").request(next, payload);
                call.then(cx, |_, end, cx| responder.reply_with(cx, end));
            }
            _ => seen.owed.lock().push(request.into_parts().0.into_remote()),
        }
    })
}

struct Bench {
    clock: Arc<Hand>,
    shared: Arc<HostShared>,
    shard: ShardEngine,
    completion: CompletionEngine,
    caller: Arc<Handle>,
    keys: Vec<LinkKey>,
    links: u64,
    peers: Vec<(Arc<str>, Arc<Target>)>,
}

impl Bench {
    /// One shard that serves "work" and "later", with so many jobs and so many started handlers.
    fn new(jobs: u32, started: u32, seats: [SeatFactory; 2], change: impl FnOnce(&mut HostPlan)) -> Bench {
        let mut plan = HostPlan::defaults("here", 1);
        plan.channels = ["work", "later"].map(|name| (name.into(), 100)).into();
        plan.jobs = JobsPlan::new(jobs, 1, 80, 60, 1);
        plan.turn.claims = plan.jobs.turn_claims;
        (plan.max_started, plan.started_per_shard) = (started, vec![started]);
        change(&mut plan);
        plan.check().unwrap();
        let (shared, clock, mut receivers) = rig::host(plan);
        let shard = ShardEngine::new(shared.clone(), S0, receivers.shards.remove(0), &seats, None);
        let completion = CompletionEngine::new(shared.clone(), receivers.completion, 1);
        let caller = Arc::new(Handle::new(shared.clone(), Class::Caller));
        let mut bench =
            Bench { clock, shared, shard, completion, caller, keys: Vec::new(), links: 0, peers: Vec::new() };
        bench.turn();
        bench
    }

    fn op<K: Terminal>(&self, to: &str, method: &str, payload: impl Into<Bytes>) -> Op<'static, K> {
        let (slot, held) = self.caller.slot(Named::Channel(to));
        let lineage = Lineage::default();
        Op::new(Caller::Owned { handle: self.caller.clone(), _held: held }, slot, method, payload.into(), LONG, lineage)
    }

    fn ask(&self, method: &str) -> Pending<TwoWay> {
        self.op("work", method, "").submit()
    }

    /// One turn of the shard alone.
    fn shard_turn(&mut self) -> bool {
        let turn = self.shard.turn(self.clock.now());
        while let Some(action) = self.shard.poll_action() {
            if let ShardAction::Watch { link, .. } = action {
                self.keys.push(link);
            }
        }
        turn.again || self.shard.has_work()
    }

    /// Turns until there is nothing to do now, or a future would be polled for ever.
    fn turn(&mut self) {
        for _ in 0..100 {
            self.completion.turn(self.clock.now());
            if !self.shard_turn() {
                return;
            }
        }
    }

    fn at(&mut self, ms: u64) {
        self.clock.0.set(ms * 1_000_000);
        self.turn();
    }

    /// A peer of this dialect, which alone serves the channel of its name. Dialled: its queue is there while it is
    /// away.
    fn peer(&mut self, name: &str, dialect: Dialect, send_mark: u64) -> Arc<Target> {
        let spec = TargetSpec::peer(7 + self.peers.len() as u64);
        let target = Arc::new(Target::new(TargetSpec { dialect, label: name.into(), send_mark, ..spec }));
        self.shared.targets.lock().push(target.clone());
        self.peers.push((name.into(), target.clone()));
        self.routes();
        self.shared.port(S0).command(ShardCommand::Adopt(target.clone())).unwrap();
        self.shard_turn();
        target
    }

    /// Callers are told of the peers as they are now.
    fn routes(&self) {
        let mut routes = Routes { settled: true, ..Routes::default() };
        for (id, (name, target)) in (0..).zip(&self.peers) {
            let member = Member { node: target.label(), weight: 100, links: vec![target.clone()] };
            routes.channels.insert(name.clone(), Channel { id: ChannelId(id), members: vec![member] });
        }
        self.shared.routes.store(Arc::new(routes));
    }

    /// Its next connection is there, and takes so many bytes.
    fn attach(&mut self, target: &Arc<Target>, mode: Mode, takes: usize) -> Arc<Pipe> {
        let pipe = Arc::new(Pipe::default());
        pipe.0.lock().takes = takes;
        self.links += 1;
        target.link.set(self.links);
        let attach = Attach {
            target: target.clone(),
            link: self.links,
            transport: pipe.clone(),
            carry: Vec::new(),
            channels: vec![0, 1],
            mode,
            one_way: false,
        };
        self.shared.port(S0).command(ShardCommand::Attach(Box::new(attach))).unwrap();
        self.shard_turn();
        pipe
    }

    /// Bytes of the last attached peer's are there to be read.
    fn says(&mut self, pipe: &Pipe, bytes: &[u8]) {
        pipe.0.lock().input.extend(bytes);
        self.shard.handle_ready(*self.keys.last().unwrap(), true, false);
    }
}

fn quiet(bench: &Bench) {
    let port = bench.shared.port(S0);
    let left = (gate(&bench.shared).in_use, port.started.get(), port.queued.get(), bench.shared.owned.get());
    assert_eq!(left, (0, 0, 0, 0), "permits, started, queued, owned bytes");
}

/// Contract 1, 2, 4: one job for everybody. A permit goes back before the first instruction, whatever the handler
/// then does: keeps its answer, goes on in a continuation, panics, or is a future that does not end. So the next
/// one starts meanwhile, in order, and never is more than the one permit in use.
#[test]
fn a_permit_is_back_before_the_first_instruction() {
    quiet_panics();
    let (seen, over) = (Arc::<Seen>::default(), Arc::new(Latch::new()));
    let mut bench = Bench::new(1, 16, [work(seen.clone()), futures(over.clone(), seen.clone())], |_| {});
    let mut kept: Vec<_> = ["keep", "panic", "ask", "keep"].map(|method| bench.ask(method)).into();
    let mut future = bench.op::<TwoWay>("later", "", "late").submit();
    kept.push(bench.ask("keep"));
    bench.turn();
    let starts = seen.starts.lock().clone();
    // The question of "ask" is the last to come.
    let expected = ["keep", "panic", "ask", "keep", "future", "keep", "keep"];
    assert_eq!(starts, expected.map(|who| (who.to_owned(), 0)));
    assert_eq!((gate(&bench.shared).peak, bench.shared.port(S0).started.get()), (1, 6), "the panic is over");
    assert_eq!(kept.remove(1).try_take().unwrap().unwrap_err().kind(), ErrorKind::Internal);
    assert!(kept.iter_mut().all(|pending| pending.try_take().is_none()) && future.try_take().is_none());
    (0..4).for_each(|_| seen.answer("done"));
    over.raise();
    bench.turn();
    assert!(kept.iter_mut().all(|pending| pending.try_take().unwrap().unwrap() == "done"));
    assert_eq!(future.try_take().unwrap().unwrap(), "late");
    quiet(&bench);
}

/// Contract 3, 13: a job that may not start yet keeps its permit beyond the turn that claimed it, counted once,
/// and gives it back once. Nothing is claimed beyond the permits: the rest waits in its queue.
#[test]
fn a_job_that_may_not_start_keeps_its_permit_until_it_does() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 1, [work(seen.clone()), work(seen.clone())], |_| {});
    let pending: Vec<_> = (0..10).map(|_| bench.ask("keep")).collect();
    bench.turn();
    for started in 1..=10 {
        let port = bench.shared.port(S0);
        let claimed = (10 - started).min(4);
        assert_eq!((seen.started().len() as u64, port.started.get()), (started, 1));
        assert_eq!((u64::from(gate(&bench.shared).in_use), port.queued.get()), (claimed, claimed));
        assert_eq!(port.unclaimed.get(), 10 - started - claimed, "permit first, record second");
        seen.answer("done");
        bench.turn();
    }
    assert_eq!(gate(&bench.shared).peak, 4);
    assert!(pending.into_iter().all(|mut pending| pending.try_take().unwrap().unwrap() == "done"));
    quiet(&bench);
}

/// Contract 23: every permit is held by jobs that may not start, and the handler that asked is not over. The reply
/// to its question ends it all the same.
#[test]
fn a_reply_needs_no_permit() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(2, 2, [work(seen.clone()), work(seen.clone())], |_| {});
    let mut asking = bench.ask("ask");
    bench.turn();
    let mut behind: Vec<_> = (0..5).map(|_| bench.ask("echo")).collect();
    bench.turn();
    assert_eq!((seen.started(), gate(&bench.shared).in_use), (vec!["ask".to_owned(), "keep".to_owned()], 2));
    assert!(gate(&bench.shared).waiters > 0, "and others wait for one");
    seen.answer("through");
    // In this turn of the shard, before anything of those behind.
    bench.shard_turn();
    assert_eq!(asking.try_take().unwrap().unwrap(), "through");
    bench.turn();
    assert!(behind.iter_mut().all(|pending| pending.try_take().unwrap().is_ok()));
    quiet(&bench);
}

/// Handlers that ask each other in a circle deeper than the started bound stand still until the deadline that they
/// inherit; then all of them end, the error names target and stage, and the next call succeeds.
#[test]
fn a_call_cycle_ends_by_the_deadline_that_it_inherits() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(2, 4, [work(seen.clone()), work(seen.clone())], |_| {});
    let mut circle = bench.op::<TwoWay>("work", "loop", "").timeout(Duration::from_millis(700)).submit();
    bench.turn();
    assert_eq!((seen.started().len(), gate(&bench.shared).in_use), (4, 1), "the fifth keeps its permit");
    let mut behind = bench.op::<TwoWay>("work", "echo", "").timeout(Duration::from_millis(300)).submit();
    bench.at(299);
    assert!(behind.try_take().is_none());
    bench.at(300);
    assert_eq!(behind.try_take().unwrap().unwrap_err().error().detail(), Detail::NoReply);
    bench.at(699);
    assert!(circle.try_take().is_none());
    bench.at(700);
    let error = circle.try_take().unwrap().unwrap_err();
    let figures = error.error().figures();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoReply));
    assert_eq!((figures.target.as_deref(), figures.stage), (Some("here"), Some(crate::base::error::Stage::Reply)));
    quiet(&bench);
    let mut next = bench.ask("echo");
    bench.turn();
    assert!(next.try_take().unwrap().is_ok());
    assert!(seen.started().len() <= 7, "whoever came too late asked nobody: {:?}", seen.started());
}

/// Contract 45: room that comes after the deadline of an operation that waits for it does not admit it, whoever
/// notices the time first.
#[test]
fn room_that_comes_after_the_deadline_admits_nobody() {
    for (at, accepted) in [(50, true), (51, false), (900, false)] {
        let seen = Arc::<Seen>::default();
        let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen)], |_| {});
        let peer = bench.peer("news", Dialect::Native, 100);
        let first = bench.op::<OneWay>("news", "", "first").submit().try_take();
        assert!(first.unwrap().is_ok(), "there was room");
        let mut late = bench.op::<OneWay>("news", "", "waits until 50 ms").timeout(Duration::from_millis(50)).submit();
        bench.shard_turn();
        assert_eq!((late.try_take().is_none(), peer.mark.waiters()), (true, 1));
        bench.clock.0.set(at * 1_000_000);
        let pipe = bench.attach(&peer, Mode::NativeApplication, usize::MAX);
        // The shard alone: whoever watches the deadlines has not come by.
        while bench.shard_turn() {}
        let end = late.try_take().expect("it has ended, either way");
        let sent = pipe.0.lock().output.windows(5).any(|bytes| bytes == b"waits");
        assert_eq!((end.is_ok(), sent), (accepted, accepted), "at {at}");
        if let Err(error) = end {
            assert_eq!(error.error().detail(), Detail::NoRoom);
            assert_eq!(error.into_payload(), "waits until 50 ms");
        }
        assert_eq!((peer.mark.bytes(), peer.mark.waiters(), bench.shared.room.ops()), (0, 0, 0));
    }
}

/// A record whose first bytes came and whose others do not ends its connection after the time. What lies there
/// when a busy shard comes back is read before that is judged.
#[test]
fn the_rest_of_a_record_is_read_before_its_time_is_judged() {
    let limit = HostPlan::defaults("n", 1).assembly_timeout.as_millis() as u64;
    for rest_came in [true, false] {
        let seen = Arc::<Seen>::default();
        let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen.clone())], |_| {});
        let peer = bench.peer("news", Dialect::Native, 0);
        let pipe = bench.attach(&peer, Mode::NativeApplication, usize::MAX);
        bench.turn();
        let mut bytes = Vec::new();
        let record = Record { kind: Kind::Request, method: Method::new("keep").unwrap(), ..Record::empty() };
        crate::wire::encode::encode(&Record { payload: vec![7; 90_000].into(), ..record }, 0, &mut bytes);
        bench.says(&pipe, &bytes[..500]);
        bench.turn();
        bench.clock.0.set((limit - 1) * 1_000_000);
        bench.shard_turn();
        assert!(!pipe.0.lock().shut && seen.started().is_empty());
        if rest_came {
            bench.says(&pipe, &bytes[500..]);
        }
        // It was busy until long after.
        bench.clock.0.set((limit + 5000) * 1_000_000);
        bench.turn();
        assert_eq!((seen.started().len(), pipe.0.lock().shut), (usize::from(rest_came), !rest_came));
    }
}

/// The route that a stock peer's message came with is cut down to its method: what the host owned of it goes back
/// whole all the same.
#[test]
fn a_stock_record_gives_back_what_it_was_owned_with() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen.clone())], |_| {});
    let peer = bench.peer("news", Dialect::Stock, 0);
    let pipe = bench.attach(&peer, Mode::StockPushing, usize::MAX);
    bench.turn();
    for n in 1..=3 {
        bench.says(&pipe, &[&b"\x01\x0awork/tells\x00\x01"[..], &[n]].concat());
        bench.turn();
    }
    assert_eq!(bench.shared.counts.no_handler.get(), 3, "it takes requests alone");
    quiet(&bench);
}

/// Panics where its request says: as it is made, at the first poll, after it has waited, or as it is dropped.
struct Fragile {
    place: Bytes,
    waited: bool,
}

impl Future for Fragile {
    type Output = Result<Bytes, Failure>;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let waited = std::mem::replace(&mut self.waited, true);
        match (&self.place[..], waited) {
            (b"poll", _) | (b"wait", true) => panic!("a planned panic"),
            (b"wait", false) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(Ok(Bytes::new())),
        }
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if self.place == "drop" {
            panic!("a planned panic");
        }
    }
}

/// Field case 028: whatever of a handler panics, and however often: no permit and no started place is lost, the
/// continuations that die with their instance give theirs back, and the next call is served.
#[test]
fn a_thousand_panics_cost_no_permit_and_no_place() {
    quiet_panics();
    let seen = Arc::<Seen>::default();
    let fragile: SeatFactory = Arc::new(|shard, seat| {
        let make = |_: usize| {
            |request: Request, _: LocalClient| {
                let place = request.payload().clone();
                if place == "made" {
                    panic!("a planned panic");
                }
                Fragile { place, waited: false }
            }
        };
        Box::new(AsyncSeat::new(Arc::new(make), shard, seat))
    });
    let mut bench = Bench::new(2, 4, [work(seen.clone()), fragile], |_| {});
    for round in 0..170 {
        let mut asking = bench.ask("ask");
        bench.turn();
        let mut all = vec![bench.ask("panic")];
        all.extend(["made", "poll", "wait"].map(|place| bench.op("later", "", place).submit()));
        let mut whole = [bench.ask("echo"), bench.op("later", "", "drop").submit()];
        bench.turn();
        all.push(asking);
        for mut pending in all {
            let error = pending.try_take().expect("it is answered").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal, "round {round}");
        }
        assert!(whole.iter_mut().all(|pending| pending.try_take().unwrap().is_ok()), "round {round}");
        seen.answer("nobody asks any more");
        asking = bench.ask("echo");
        bench.turn();
        assert!(asking.try_take().unwrap().is_ok());
        quiet(&bench);
    }
}

/// Contract 32, 51: a peer that takes nothing is full, and the records of others go their way, in the same turns.
#[test]
fn a_peer_that_takes_nothing_stops_no_other() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen)], |_| {});
    let [stuck, other] = ["stuck", "other"].map(|name| bench.peer(name, Dialect::Native, 100));
    let _takes_nothing = bench.attach(&stuck, Mode::NativeApplication, 0);
    let pipe = bench.attach(&other, Mode::NativeApplication, usize::MAX);
    for n in 0..50_u8 {
        let mut to_stuck = bench.op::<OneWay>("stuck", "", vec![n]).submit();
        let mut to_other = bench.op::<OneWay>("other", "", vec![n]).submit();
        bench.turn();
        assert_eq!(to_stuck.try_take().is_some(), n == 0, "full from the second on");
        assert!(to_other.try_take().unwrap().is_ok());
        assert_eq!(pipe.0.lock().output.last(), Some(&n), "written in the same turn");
    }
    assert_eq!((other.mark.bytes(), stuck.mark.waiters() > 0), (0, true));
}

/// Contract 27: what is above the largest message is refused whatever room there is, with an error of its own, and
/// the next one goes.
#[test]
fn a_message_that_is_too_large_is_refused_without_a_mark_too() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen)], |plan| plan.max_message = 1000);
    let peer = bench.peer("news", Dialect::Native, 0);
    let mut large = bench.op::<OneWay>("news", "", vec![0; 1001]).submit();
    let error = large.try_take().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Rejected, Detail::MessageTooLarge));
    assert_eq!(error.into_payload().len(), 1001);
    assert!(bench.op::<OneWay>("news", "", vec![0; 1000]).submit().try_take().unwrap().is_ok());
    assert_eq!(peer.mark.bytes(), 1064);
}

/// Contract 47: a host that ends takes nothing more and ends what waits, with its payload; room that comes later
/// delivers none of it.
#[test]
fn a_host_that_ends_is_sealed() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen)], |_| {});
    let peer = bench.peer("news", Dialect::Native, 100);
    assert!(bench.op::<OneWay>("news", "", "first").submit().try_take().unwrap().is_ok());
    let mut waits = bench.op::<OneWay>("news", "", "waits").submit();
    bench.turn();
    bench.shared.life.set(crate::engine::shared::Life::Draining as u64);
    let mut late = bench.op::<OneWay>("news", "", "late").submit();
    let error = late.try_take().expect("at once").unwrap_err();
    assert_eq!((error.kind(), error.into_payload()), (ErrorKind::ShuttingDown, "late".into()));
    assert!(waits.try_take().is_none(), "what was begun may yet go out");
    bench.shared.end_all(ErrorKind::ShuttingDown);
    let error = waits.try_take().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.into_payload()), (ErrorKind::ShuttingDown, "waits".into()));
    let pipe = bench.attach(&peer, Mode::NativeApplication, usize::MAX);
    bench.turn();
    let output = pipe.0.lock().output.clone();
    let sent = |text: &[u8]| output.windows(5).any(|bytes| bytes == text);
    assert!(sent(b"first") && !sent(b"waits"), "what was accepted goes out, and nothing else");
}

/// Contract 44, 48: an operation that waits stays with its target, whatever the routes say meanwhile, and is
/// accepted there once when there is room; a new one goes where they lead now.
#[test]
fn an_operation_that_waits_is_never_moved() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen)], |_| {});
    let first = bench.peer("news", Dialect::Native, 100);
    assert!(bench.op::<OneWay>("news", "", "fills").submit().try_take().unwrap().is_ok());
    let mut waits = bench.op::<OneWay>("news", "", "waits").submit();
    bench.turn();
    let second = bench.peer("other", Dialect::Native, 100);
    bench.peers.swap(0, 1);
    bench.peers[0].0 = "news".into();
    bench.peers.truncate(1);
    bench.routes();
    assert!(bench.op::<OneWay>("news", "", "newer").submit().try_take().unwrap().is_ok());
    bench.turn();
    assert!(waits.try_take().is_none());
    let waiting = |target: &Target| (target.mark.bytes(), target.mark.waiters());
    assert_eq!((waiting(&first), waiting(&second)), ((69, 1), (69, 0)));
    let pipe = bench.attach(&first, Mode::NativeApplication, usize::MAX);
    bench.turn();
    assert!(waits.try_take().unwrap().is_ok());
    let output = pipe.0.lock().output.clone();
    assert_eq!(output.windows(5).filter(|bytes| bytes == b"waits").count(), 1);
    assert_eq!((waiting(&first), waiting(&second)), ((0, 0), (69, 0)));
}

/// Field case 038: every combination of the smallest limits makes progress: jobs, started handlers, the places of a
/// ring, and a mark of one record.
#[test]
fn the_smallest_limits_make_progress_together() {
    for (jobs, started, ring) in (1..=4).flat_map(|j| (1..=3).flat_map(move |s| [1, 2, 4].map(|r| (j, s, r)))) {
        let seen = Arc::<Seen>::default();
        let mut bench = Bench::new(jobs, started, [work(seen.clone()), work(seen)], |plan| {
            (plan.ring_slots, plan.send_mark) = (ring, 68);
        });
        let mut storm: Vec<_> = (0..40).map(|_| bench.ask("echo")).collect();
        bench.turn();
        let answered = storm.iter_mut().filter_map(Pending::try_take).filter(Result::is_ok).count();
        let mut told: Vec<_> = (0..40).map(|_| bench.op::<OneWay>("work", "", "").submit()).collect();
        bench.turn();
        let accepted = told.iter_mut().filter_map(Pending::try_take).filter(Result::is_ok).count();
        assert_eq!((answered, accepted), (40, 40), "{jobs} jobs, {started} started, rings of {ring}");
        quiet(&bench);
    }
}

/// Contract 41, promise 3: a peer that told us to pause, and whose queue is full, gets the answers to its requests.
#[test]
fn an_answer_leaves_while_its_peer_is_paused_and_its_queue_full() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen.clone())], |_| {});
    let peer = bench.peer("news", Dialect::Native, 100);
    let application = bench.attach(&peer, Mode::NativeApplication, 0);
    let completion = Arc::new(Pipe::default());
    completion.0.lock().takes = usize::MAX;
    lanes::post(&bench.shared, &peer, Post::Attach { link: 1, transport: completion.clone() });
    let mut bytes = Vec::new();
    let record = Record { kind: Kind::Request, method: Method::new("keep").unwrap(), ..Record::empty() };
    crate::wire::encode::encode(&Record { correlation: 77, ..record }, 0, &mut bytes);
    bench.says(&application, &bytes);
    assert!(bench.op::<OneWay>("news", "", "fills").submit().try_take().unwrap().is_ok());
    let _waits = bench.op::<OneWay>("news", "", "waits").submit();
    bench.turn();
    assert!(!peer.set_paused(true, bench.clock.now()));
    assert!(completion.0.lock().output.is_empty());
    seen.answer("answered");
    bench.turn();
    assert!(completion.0.lock().output.ends_with(b"answered"));
    assert_eq!(application.0.lock().output, b"", "nothing else goes");
    quiet(&bench);
}

/// Contract 36: the mark and the peer's pause are two reasons to wait, and the end of one of them admits nobody.
#[test]
fn a_pause_and_a_full_queue_are_two_reasons_to_wait() {
    for pause_ends_first in [false, true] {
        let seen = Arc::<Seen>::default();
        let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen)], |_| {});
        let peer = bench.peer("news", Dialect::Native, 100);
        assert!(bench.op::<OneWay>("news", "", "fills").submit().try_take().unwrap().is_ok());
        let mut waits = bench.op::<OneWay>("news", "", "waits").submit();
        bench.turn();
        let _ = peer.set_paused(true, bench.clock.now());
        let resume = |bench: &mut Bench| {
            assert!(peer.set_paused(false, bench.clock.now()), "somebody waits, and is to be looked at");
            bench.shared.port(S0).poke(&peer);
        };
        let drain = |bench: &mut Bench| drop(bench.attach(&peer, Mode::NativeApplication, usize::MAX));
        if pause_ends_first {
            resume(&mut bench)
        } else {
            drain(&mut bench)
        }
        bench.turn();
        assert!(waits.try_take().is_none());
        if pause_ends_first {
            drain(&mut bench)
        } else {
            resume(&mut bench)
        }
        bench.turn();
        assert!(waits.try_take().unwrap().is_ok());
    }
}

/// Field case 035: links that go with full queues and half a large record, again and again: what was drawn, owned
/// and charged for them is whole again each time.
#[test]
fn lost_links_leave_nothing_drawn_or_owned() {
    let seen = Arc::<Seen>::default();
    let mut bench = Bench::new(4, 4, [work(seen.clone()), work(seen.clone())], |plan| plan.receive_mark = 4096);
    let peer = bench.peer("news", Dialect::Native, 0);
    let mut now = 0;
    for _ in 0..1000 {
        let pipe = bench.attach(&peer, Mode::NativeApplication, usize::MAX);
        let (mut bytes, mut large) = (Vec::new(), Vec::new());
        let echo = Record { kind: Kind::Request, method: Method::new("echo").unwrap(), ..Record::empty() };
        (0..20).for_each(|_| crate::wire::encode::encode(&echo, 0, &mut bytes));
        crate::wire::encode::encode(&Record { payload: vec![7; 90_000].into(), ..echo }, 0, &mut large);
        bytes.extend_from_slice(&large[..50_000]);
        bench.says(&pipe, &bytes);
        bench.turn();
        assert!(bench.shared.oversize.bytes() > 40_000, "{}", bench.shared.oversize.bytes());
        peer.link.set(0);
        let detach = ShardCommand::Detach {
            target: peer.clone(),
            link: bench.links,
            forget: false,
            lost_at: bench.shared.clock.now(),
        };
        bench.shared.port(S0).command(detach).unwrap();
        bench.turn();
        now += 1100;
        bench.at(now);
        assert_eq!((bench.shared.oversize.bytes(), bench.shared.oversize.ops()), (0, 0));
        assert_eq!((bench.shared.replies.bytes(), peer.replies.bytes()), (0, 0));
        quiet(&bench);
    }
    assert_eq!(seen.started().len(), 20_000);
}
