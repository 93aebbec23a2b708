//! Sessions of a shard on a virtual clock, over pipes: times to the millisecond, and bounds to the byte.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::base::id::ShardId;
use crate::base::time::Clock;
use crate::engine::call::{OneWay, Pending};
use crate::engine::completion::CompletionEngine;
use crate::engine::handler::Context;
use crate::engine::rig::{self, Hand, Pipe};
use crate::engine::session::{Frame, ReplyToken, Session, SessionHandle};
use crate::engine::session_seat::SessionSeat;
use crate::engine::shard::Turn;
use crate::engine::shared::HostShared;
use crate::plan::{HostPlan, StreamPlan};
use crate::sync::lock::Lock;

/// What the sessions of a test leave to it.
#[derive(Debug, Default)]
struct Heard {
    opened: Vec<SessionHandle>,
    tokens: Vec<ReplyToken>,
    frames: Vec<(Vec<u8>, Vec<u8>)>,
    closed: Vec<SessionEnd>,
}

struct Listener(Arc<Lock<Heard>>);

impl Session for Listener {
    fn opened(&mut self, session: SessionHandle, _: &mut Context<'_, Self>) {
        self.0.lock().opened.push(session);
    }

    fn frame(&mut self, frame: Frame, _: &mut Context<'_, Self>) {
        let (token, header, body) = frame.into_parts();
        let mut heard = self.0.lock();
        heard.frames.push((header.to_vec(), body.to_vec()));
        match body.as_ref() {
            b"keep" => heard.tokens.push(token),
            b"echo" => token.reply(vec![0xEC; 400]).detach(),
            _ => {}
        }
    }

    fn closed(&mut self, why: SessionEnd, _: &mut Context<'_, Self>) {
        self.0.lock().closed.push(why);
    }
}

struct Bench {
    clock: Arc<Hand>,
    shared: Arc<HostShared>,
    shard: ShardEngine,
    completion: CompletionEngine,
    heard: Arc<Lock<Heard>>,
    keys: Vec<LinkKey>,
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Bench {
    fn new(change: impl FnOnce(&mut HostPlan)) -> Bench {
        let mut plan = HostPlan::defaults("here", 1);
        plan.streams.push(StreamPlan {
            addr: ([127, 0, 0, 1], 0).into(),
            name: "tcp://127.0.0.1:0".into(),
            sessions: 2,
            send_mark: 1064,
            receive_mark: 1064,
            max_frame: 1000,
            max_frame_out: 1000,
            send_timeout: ms(300),
            idle: None,
        });
        change(&mut plan);
        plan.check().unwrap();
        let heard = Arc::new(Lock::new(Heard::default()));
        let (shared, clock, mut receivers) = rig::host(plan);
        let to = heard.clone();
        let factory = Arc::new(move |_: usize| Listener(to.clone()));
        let seat: SeatFactory = Arc::new(move |shard, seat| Box::new(SessionSeat::new(factory.clone(), shard, seat)));
        let shard = ShardEngine::new(shared.clone(), ShardId(0), receivers.shards.remove(0), &[], None);
        let completion = CompletionEngine::new(shared.clone(), receivers.completion, 1);
        Bench { clock, shared, shard: shard.with_streams(&[seat]), completion, heard, keys: Vec::new() }
    }

    /// A client that takes `takes` bytes.
    fn client(&mut self, takes: usize) -> Arc<Pipe> {
        let pipe = Arc::new(Pipe::default());
        pipe.0.lock().takes = takes;
        let peer = SocketAddr::from(([127, 0, 0, 1], 1000));
        self.completion.handle_client(0, pipe.clone(), peer);
        self.turn();
        pipe
    }

    /// Turns until there is nothing to do now.
    fn turn(&mut self) -> Turn {
        loop {
            let now = self.clock.now();
            self.completion.turn(now);
            let turn = self.shard.turn(now);
            while let Some(action) = self.shard.poll_action() {
                if let ShardAction::Watch { link, .. } = action {
                    self.keys.push(link);
                }
            }
            if !turn.again && !self.shard.has_work() {
                return turn;
            }
        }
    }

    fn at(&mut self, time: u64) -> Turn {
        self.clock.0.set(time * 1_000_000);
        self.turn()
    }

    fn says(&mut self, client: usize, pipe: &Pipe, bytes: &[u8]) -> Turn {
        pipe.0.lock().input.extend(bytes);
        self.shard.handle_ready(self.keys[client], true, false);
        self.turn()
    }

    fn ends(&mut self, client: usize, pipe: &Pipe) -> Turn {
        pipe.0.lock().ended = true;
        self.shard.handle_end(self.keys[client]);
        self.turn()
    }

    fn closed(&self) -> Vec<SessionEnd> {
        self.heard.lock().closed.clone()
    }

    fn session(&self, client: usize) -> SessionHandle {
        self.heard.lock().opened[client].clone()
    }
}

fn encoded(header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    crate::wire::stream::encode_head(header, body.len(), &mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

fn ended(pending: &mut Pending<OneWay>) -> Option<Option<(Detail, Duration)>> {
    let end = pending.try_take()?;
    Some(end.err().map(|e| (e.error().detail(), e.error().figures().waited.unwrap())))
}

#[test]
fn a_send_a_shorter_send_and_a_reply_end_each_at_its_own_ceiling() {
    // Every other ceiling of the host is somewhere else.
    let mut bench = Bench::new(|plan| (plan.send_timeout, plan.request_timeout) = (ms(7), ms(9)));
    let pipe = bench.client(0);
    bench.says(0, &pipe, &encoded(b"", b"keep"));
    let session = bench.session(0);
    session.try_send("", vec![0; 1000]).unwrap();
    bench.turn();
    bench.at(1000);
    let token = bench.heard.lock().tokens.pop().unwrap();
    let mut send = session.send("send").submit();
    let mut short = session.send("short").timeout(ms(40)).submit();
    let mut long = session.send("long").timeout(ms(4000)).submit();
    let mut reply = token.reply("reply").submit();
    for (at, over) in [(1039, [false; 4]), (1040, [false, true, false, false]), (1299, [false; 4]), (1300, [true; 4])] {
        bench.at(at);
        let waits = [(&mut send, 300), (&mut short, 40), (&mut long, 300), (&mut reply, 300)];
        for ((pending, ceiling), over) in waits.into_iter().zip(over) {
            let expected = (over && !(ceiling == 40 && at == 1300)).then_some(Some((Detail::NoRoom, ms(ceiling))));
            assert_eq!(ended(pending), expected, "{ceiling} at {at}");
        }
    }
    // What failed was not sent; the next finds room once the client takes something.
    pipe.0.lock().takes = usize::MAX;
    bench.shard.handle_ready(bench.keys[0], false, true);
    bench.turn();
    session.try_send("", "after").unwrap();
    bench.turn();
    let expected = [encoded(b"", &[0; 1000]), encoded(b"", b"after")].concat();
    assert_eq!(pipe.0.lock().output, expected);
}

#[test]
fn what_remains_of_three_sends_arrives_in_order() {
    let mut bench = Bench::new(|_| {});
    let pipe = bench.client(0);
    let session = bench.session(0);
    session.try_send("", vec![9; 1000]).unwrap();
    let mut sends: Vec<_> =
        [300, 50, 300].iter().zip(*b"123").map(|(t, n)| session.send(vec![n]).timeout(ms(*t)).submit()).collect();
    bench.at(50);
    assert_eq!(ended(&mut sends[1]), Some(Some((Detail::NoRoom, ms(50)))));
    pipe.0.lock().takes = usize::MAX;
    bench.shard.handle_ready(bench.keys[0], false, true);
    bench.turn();
    assert_eq!((ended(&mut sends[0]), ended(&mut sends[2])), (Some(None), Some(None)));
    assert_eq!(pipe.0.lock().output[1006..], [encoded(b"", b"1"), encoded(b"", b"3")].concat());
}

#[test]
fn a_begun_frame_and_a_silent_client_have_their_times() {
    let mut bench = Bench::new(|plan| {
        plan.assembly_timeout = ms(30);
        plan.streams[0].idle = Some(ms(100));
    });
    let (first, second) = (bench.client(0), bench.client(0));
    bench.at(10);
    bench.says(0, &first, &encoded(b"", b"whole"));
    let turn = bench.says(0, &first, &encoded(b"", b"cut")[..7]);
    assert_eq!(turn.next, Instant(40_000_000), "the shard wakes for it");
    bench.at(39);
    bench.says(0, &first, b"u");
    bench.at(68);
    assert!(bench.closed().is_empty());
    bench.at(69);
    assert_eq!(bench.closed(), [SessionEnd::Unfinished]);
    bench.at(99);
    assert_eq!(bench.closed().len(), 1);
    bench.at(100);
    assert_eq!(bench.closed(), [SessionEnd::Unfinished, SessionEnd::Idle]);
    assert!(first.0.lock().shut && second.0.lock().shut);
    let socket = &bench.shared.streams[0];
    assert_eq!((socket.sessions.ops(), bench.shared.targets.lock().len()), (0, 0));
    assert_eq!(bench.shard.links.iter().flatten().count(), 0, "their places are free");
}

#[test]
fn a_client_that_ended_has_its_time_for_taking_what_is_left() {
    let mut bench = Bench::new(|plan| plan.assembly_timeout = ms(500));
    let (slow, dead) = (bench.client(0), bench.client(0));
    for (n, pipe) in [&slow, &dead].into_iter().enumerate() {
        bench.session(n).try_send("", vec![1; 100]).unwrap();
        bench.says(n, pipe, &encoded(b"", b"last"));
        bench.ends(n, pipe);
    }
    assert_eq!(bench.heard.lock().frames.len(), 2, "what was read is handled");
    slow.0.lock().takes = 50;
    bench.at(400);
    bench.shard.handle_ready(bench.keys[0], false, true);
    bench.turn();
    bench.at(500);
    assert_eq!(bench.closed(), [SessionEnd::Untaken], "the one that takes nothing");
    assert!(dead.0.lock().shut && !slow.0.lock().shut);
    slow.0.lock().takes = 100;
    bench.shard.handle_ready(bench.keys[0], false, true);
    bench.turn();
    assert_eq!(bench.closed(), [SessionEnd::Untaken, SessionEnd::Client]);
    assert!(slow.0.lock().finished);
    assert_eq!(bench.shared.streams[0].lost.get(), 1);
}

#[test]
fn without_permits_a_queue_fills_to_its_mark_and_the_rest_stays_with_the_client() {
    let mut bench = Bench::new(|_| {});
    let pipe = bench.client(0);
    let all = bench.shared.plan.jobs.limit;
    let held = bench.shared.gate.acquire(ShardId(0), all, Instant(0));
    assert!(held > 0);
    let more = encoded(b"h", &[5; 199]).repeat(100);
    bench.says(0, &pipe, &more);
    // Marks of links move; a client's does not.
    bench.shared.port(ShardId(0)).look_again.raise();
    bench.says(0, &pipe, &[]);
    let (_, origin, _) = bench.shard.origins().next().unwrap();
    // Four of 264 each; the mark is 1064.
    assert_eq!((origin.len(), origin.outstanding(), origin.is_parked()), (4, 1056, true));
    assert!(pipe.0.lock().input.len() > more.len() - 8192, "one read at most beyond the queue");
    assert!(bench.heard.lock().frames.is_empty());
    let _ = bench.shared.gate.release(ShardId(0), held, Instant(0));
    bench.turn();
    let heard = bench.heard.lock();
    assert_eq!(heard.frames, vec![(b"h".to_vec(), vec![5; 199]); 100]);
}

#[test]
fn a_client_that_takes_no_answers_gets_no_more_of_its_frames_handled() {
    let mut bench = Bench::new(|_| {});
    let (flood, honest) = (bench.client(0), bench.client(usize::MAX));
    bench.says(0, &flood, &encoded(b"", b"echo").repeat(10));
    // Two answers fill the mark of 1064, the third waits, and that is all.
    assert_eq!((bench.heard.lock().frames.len(), bench.shared.room.ops()), (3, 1));
    bench.says(1, &honest, &encoded(b"", b"echo"));
    assert_eq!(honest.0.lock().output, encoded(b"", &[0xEC; 400]));
    bench.at(300);
    assert_eq!((bench.heard.lock().frames.len(), bench.shared.room.ops()), (5, 1), "one more, beside the honest one's");
    flood.0.lock().takes = usize::MAX;
    bench.shard.handle_ready(bench.keys[0], false, true);
    bench.turn();
    assert_eq!(bench.heard.lock().frames.len(), 11);
    assert_eq!(flood.0.lock().output, encoded(b"", &[0xEC; 400]).repeat(9), "the one whose time was up is missing");
}

/// Contract 50: the token of a frame is used up by the first reply that is started, also if that fails.
#[test]
fn a_token_is_used_up_by_a_reply_that_fails() {
    let mut bench = Bench::new(|_| {});
    let pipe = bench.client(usize::MAX);
    bench.says(0, &pipe, &encoded(b"h", b"keep"));
    let token = bench.heard.lock().tokens.pop().unwrap();
    let mut too_large = token.reply(vec![0; 5000]).submit();
    assert_eq!(too_large.try_take().unwrap().unwrap_err().error().detail(), Detail::MessageTooLarge);
    let mut again = token.clone().reply("again").submit();
    assert_eq!(again.try_take().unwrap().unwrap_err().error().detail(), Detail::TokenUsed);
    bench.turn();
    assert_eq!(pipe.0.lock().output, b"");
}

#[test]
fn a_half_closed_client_is_kept_for_the_answers_that_are_elsewhere() {
    let mut bench = Bench::new(|plan| plan.assembly_timeout = ms(50));
    let pipe = bench.client(usize::MAX);
    // Frames and the end come in one event; nothing else will be told.
    pipe.0.lock().input.extend([encoded(b"a", b"keep"), encoded(b"b", b"keep")].concat());
    bench.ends(0, &pipe);
    let tokens = std::mem::take(&mut bench.heard.lock().tokens);
    assert_eq!((tokens.len(), bench.closed()), (2, vec![]));
    bench.at(49);
    tokens[1].reply("second").detach();
    bench.turn();
    assert_eq!(pipe.0.lock().output, encoded(b"b", b"second"));
    bench.at(98);
    tokens[0].reply("first").detach();
    bench.turn();
    assert_eq!(bench.closed(), [], "the tokens are still held");
    drop(tokens);
    bench.turn();
    assert_eq!(bench.closed(), [SessionEnd::Client]);
    assert_eq!(pipe.0.lock().output, [encoded(b"b", b"second"), encoded(b"a", b"first")].concat());
}

#[test]
fn a_client_that_is_closed_is_told_and_its_end_awaited() {
    let mut bench = Bench::new(|plan| plan.assembly_timeout = ms(50));
    let (polite, rude) = (bench.client(usize::MAX), bench.client(usize::MAX));
    for (n, pipe) in [&polite, &rude].into_iter().enumerate() {
        bench.says(n, pipe, &encoded(b"", b"echo"));
        bench.session(n).close();
        bench.turn();
        bench.says(n, pipe, &[7; 3000]);
        let pipe = pipe.0.lock();
        assert_eq!((pipe.output.len(), pipe.input.len(), pipe.finished, pipe.shut), (406, 0, true, false));
    }
    assert_eq!(bench.session(0).try_send("", "x").unwrap_err().kind(), ErrorKind::Unavailable);
    bench.ends(0, &polite);
    assert_eq!(bench.closed(), [SessionEnd::Closed]);
    bench.at(49);
    assert_eq!(bench.closed().len(), 1);
    bench.at(50);
    assert_eq!(bench.closed(), [SessionEnd::Closed; 2]);
    assert_eq!(bench.shared.streams[0].frames_in.get(), 2, "what came after is nobody's frame");
}

#[test]
fn a_client_too_many_is_closed_and_a_place_is_given_again() {
    let mut bench = Bench::new(|_| {});
    let first = bench.client(0);
    bench.client(0);
    let third = bench.client(0);
    assert!(third.0.lock().shut);
    bench.ends(0, &first);
    let fourth = bench.client(0);
    assert!(!fourth.0.lock().shut);
    let socket = &bench.shared.streams[0];
    assert_eq!((socket.opened.get(), socket.refused.get(), socket.sessions.ops()), (3, 1, 2));
    bench.shard.stop();
    assert_eq!(bench.closed(), [SessionEnd::Client, SessionEnd::Shutdown, SessionEnd::Shutdown]);
}

/// What a session without a byte takes besides its kernel socket and what the user keeps in it.
#[test]
fn the_state_of_a_session_is_what_the_ledger_says() {
    use crate::flow::target::Target;
    let parts = [size_of::<Target>(), size_of::<Link>(), size_of::<Client>(), size_of::<SessionShared>()];
    let sum: usize = parts.iter().sum();
    assert!(sum as u64 + 512 <= crate::plan::SESSION_STATE_BYTES, "{parts:?}");
}
