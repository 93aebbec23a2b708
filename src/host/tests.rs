//! The Guide's table of ceilings on a virtual clock: seven ways of a message, each of which finds no room and ends at
//! the ceiling of its own socket, to the millisecond, whether those of all the others are shorter or longer.
//!
//! One host of the product's own engines, turned by hand, every one of whose peers takes nothing.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::client::Client;
use crate::base::error::{Detail, ErrorKind, SendError};
use crate::base::id::ShardId;
use crate::base::time::{Clock, Instant};
use crate::engine::call::{OneWay, Pending};
use crate::engine::completion::{CompletionAction, CompletionEngine, ConnKey};
use crate::engine::handler::Context;
use crate::engine::publish::{Publish, Publisher};
use crate::engine::seat::{Seat, SeatFactory};
use crate::engine::session::{Frame, ReplyToken, Session, SessionHandle};
use crate::engine::session_seat::SessionSeat;
use crate::engine::shard::{LinkKey, ShardAction, ShardEngine};
use crate::engine::shared::HostShared;
use crate::flow::transport::Transport;
use crate::plan::{ClientPlan, ConnectPlan, Endpoint, HostPlan, PublisherPlan, RoomPlan, SlowSubscriber, StreamPlan};
use crate::sync::wake::WakeCell;
use crate::wire::command::write_subscription;
use crate::wire::greeting::{Handshake, Security, Side};
use crate::wire::ready::{Hello, Metadata};
use crate::wire::socket::SocketType;

const MS: u64 = 1_000_000;

/// What owns a ceiling, in the order of `World::new`'s argument.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Owner {
    Node,
    Client,
    Publisher,
    FirstSocket,
    SecondSocket,
}

/// The table: a way, and whose ceiling it has. STREAM's two are at different sockets, so that neither can have the
/// other's.
const TABLE: [(&str, Owner); 7] = [
    ("node", Owner::Node),
    ("channel", Owner::Node),
    ("client/server", Owner::Client),
    ("logical multicast", Owner::Node),
    ("classic pub/sub", Owner::Publisher),
    ("STREAM send", Owner::FirstSocket),
    ("STREAM reply", Owner::SecondSocket),
];

#[test]
fn each_way_ends_at_its_own_ceiling_and_at_no_other() {
    for (row, (way, owner)) in TABLE.into_iter().enumerate() {
        let own = 100 + 37 * row as u64;
        for others in [own / 2, own + 1, own * 3] {
            let ceilings = [Owner::Node, Owner::Client, Owner::Publisher, Owner::FirstSocket, Owner::SecondSocket]
                .map(|o| if o == owner { own } else { others });
            let ends = World::new(ceilings).ends_of_all(own.max(others) + 5);
            for ((name, of), end) in TABLE.into_iter().zip(ends) {
                let expected = if of == owner { own } else { others };
                assert_eq!(end, Some(expected), "{name}, while {way} has {own} ms and the others {others} ms");
            }
        }
    }
}

/// A target is selected once. A send that waits for one member's room goes on waiting for it while another has all the
/// room there is, and ends there.
#[test]
fn a_send_that_waits_is_never_given_to_another_member() {
    let mut world = World::new([200; 5]);
    world.all_up();
    let client = Client::new(world.shared.clone());
    let (stuck, news) = (client.node("stuck"), client.channel("news"));
    let full = Bytes::from(vec![0; 32 << 10]);
    while stuck.try_send("", full.clone()).is_ok() {
        world.run();
    }
    let mut sends: Vec<_> = (0..6).map(|_| news.send("", full.clone()).submit()).collect();
    let mut taken = || -> Vec<_> { sends.iter_mut().filter_map(Pending::try_take).collect() };
    let at_once = taken();
    assert!(at_once.len() == 3 && at_once.iter().all(Result::is_ok), "one of two members has room: {at_once:?}");
    for _ in 0..199 {
        world.clock.0.fetch_add(MS, Ordering::SeqCst);
        world.run();
        assert!(taken().is_empty());
    }
    world.clock.0.fetch_add(MS, Ordering::SeqCst);
    world.run();
    let late = taken();
    assert_eq!(late.len(), 3);
    for end in late {
        let error = end.unwrap_err();
        no_room(&error, 200);
        assert_eq!(error.error().figures().target.as_deref(), Some("stuck"));
    }
}

/// A connection whose other end is the test.
#[derive(Default, Debug)]
struct Wire {
    to_host: Mutex<VecDeque<u8>>,
    from_host: Mutex<Vec<u8>>,
    /// It takes nothing more.
    stuck: AtomicBool,
}

impl Transport for Wire {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut bytes = self.to_host.lock().unwrap();
        if bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = buf.len().min(bytes.len());
        bytes.drain(..n).zip(buf).for_each(|(from, to)| *to = from);
        Ok(n)
    }

    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.stuck.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut taken = self.from_host.lock().unwrap();
        bufs.iter().for_each(|buf| taken.extend_from_slice(buf));
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    fn shutdown(&self) {}

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::SeqCst))
    }
}

/// Hands what it gets to the test.
struct Tells(std::sync::mpsc::Sender<Told>);

enum Told {
    Here(SessionHandle),
    Asks(ReplyToken),
}

impl Session for Tells {
    fn opened(&mut self, session: SessionHandle, _: &mut Context<'_, Self>) {
        self.0.send(Told::Here(session)).unwrap();
    }

    fn frame(&mut self, frame: Frame, _: &mut Context<'_, Self>) {
        self.0.send(Told::Asks(frame.into_parts().0)).unwrap();
    }
}

/// Addresses of the peers: a node that takes nothing, one that takes everything, a server that takes nothing.
const STUCK: u16 = 1;
const QUICK: u16 = 2;
const SERVER: u16 = 3;

fn at(port: u16) -> Endpoint {
    Endpoint::Addr(SocketAddr::from(([127, 0, 0, 1], port)))
}

struct World {
    shared: Arc<HostShared>,
    clock: Arc<Hands>,
    completion: CompletionEngine,
    shard: ShardEngine,
    dials: Vec<(ConnKey, Endpoint)>,
    accepted: Vec<ConnKey>,
    links: HashMap<*const (), LinkKey>,
    told: Receiver<Told>,
}

impl World {
    /// A host with these ceilings in ms, by owner.
    fn new(ceilings: [u64; 5]) -> World {
        let [node, client, publisher, first, second] = ceilings.map(Duration::from_millis);
        let mut plan = HostPlan::defaults("here", 1);
        plan.send_timeout = node;
        // Nobody's send and nobody's reply ends at this one.
        plan.request_timeout = Duration::from_millis(3);
        (plan.max_message, plan.stream_max_message) = (64 << 10, 64 << 10);
        plan.room = RoomPlan::new(64, 4 << 20);
        plan.request_slots = 64;
        let connect = |port, name: &str| ConnectPlan { addr: at(port), name: Some(name.into()), links: 1, pull: false };
        plan.connects = vec![connect(STUCK, "stuck"), connect(QUICK, "quick")];
        plan.clients = vec![ClientPlan { name: "desk".into(), servers: vec![at(SERVER)], send_timeout: client }];
        plan.publisher = Some(PublisherPlan {
            mark: 64 << 10,
            slow: SlowSubscriber::Wait,
            linger: Duration::from_millis(1),
            timeout: publisher,
            table: 1 << 20,
        });
        let stream = |name: &str, send_timeout| StreamPlan {
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            name: name.into(),
            sessions: 4,
            send_mark: 128 << 10,
            receive_mark: 128 << 10,
            max_frame: 64 << 10,
            max_frame_out: 64 << 10,
            send_timeout,
            idle: None,
        };
        plan.streams = vec![stream("first", first), stream("second", second)];
        plan.check().unwrap();

        let clock = Arc::new(Hands(AtomicU64::new(1000 * MS)));
        let wakes = (0..2).map(|_| Arc::new(WakeCell::new(|| {}))).collect();
        let (shared, mut receivers) = HostShared::new(Arc::new(plan), clock.clone(), wakes);
        let (tell, told) = channel();
        let factory = Arc::new(move |_: usize| Tells(tell.clone()));
        let seat: SeatFactory =
            Arc::new(move |shard, seat| -> Box<dyn Seat> { Box::new(SessionSeat::new(factory.clone(), shard, seat)) });
        let shard = ShardEngine::new(shared.clone(), ShardId(0), receivers.shards.remove(0), &[], None);
        let shard = shard.with_streams(&[seat.clone(), seat]);
        let completion = CompletionEngine::new(shared.clone(), receivers.completion, 17);
        let (dials, accepted, links) = (Vec::new(), Vec::new(), HashMap::new());
        World { shared, clock, completion, shard, dials, accepted, links, told }
    }

    /// Both threads have turns until neither has work.
    fn run(&mut self) {
        for _ in 0..20 {
            let now = self.clock.now();
            let _ = self.completion.turn(now);
            while let Some(action) = self.completion.poll_action() {
                match action {
                    CompletionAction::Dial { conn, to } => self.dials.push((conn, to)),
                    CompletionAction::Watch { conn, .. } => self.accepted.push(conn),
                    _ => {}
                }
            }
            let _ = self.shard.turn(now);
            while let Some(action) = self.shard.poll_action() {
                if let ShardAction::Watch { link, transport } = action {
                    self.links.insert(Arc::as_ptr(&transport).cast(), link);
                }
            }
        }
    }

    /// Talks to the host until both sides are READY.
    fn shake(&mut self, conn: ConnKey, wire: &Wire, mut peer: Handshake) {
        while peer.outcome().is_none() {
            let said = std::mem::take(&mut *wire.from_host.lock().unwrap());
            assert_eq!(peer.handle_bytes(&said).unwrap(), said.len());
            let mut answer = Vec::new();
            peer.poll_transmit(&mut answer);
            wire.to_host.lock().unwrap().extend(answer);
            self.completion.handle_ready(conn, true, true);
        }
    }

    /// The node or server at that address answers both connections; says which is the application lane.
    fn answer_dial(&mut self, port: u16, node: &str) -> Arc<Wire> {
        let (own, others) = std::mem::take(&mut self.dials).into_iter().partition(|(_, to)| *to == at(port));
        self.dials = others;
        let wires: Vec<_> = own
            .into_iter()
            .map(|(conn, _): (ConnKey, Endpoint)| {
                let wire = Arc::new(Wire::default());
                self.completion.handle_connected(conn, Ok(wire.clone()));
                let hello = Hello {
                    node: node.into(),
                    instance: u128::from(port),
                    max_message: 1 << 20,
                    clock_ms: 0,
                    channels: vec![(if port == STUCK { "work" } else { "rest" }.into(), 100), ("news".into(), 100)],
                    servers: vec![("desk".into(), 100)],
                    metadata: Metadata::default(),
                };
                self.shake(conn, &wire, Handshake::new(Side::Accept, hello, Security::Null));
                wire
            })
            .collect();
        // The application lane is dialled first.
        wires[0].clone()
    }

    fn ready(&mut self, wire: &Wire) {
        let key = self.links[&std::ptr::from_ref(wire).cast()];
        self.shard.handle_ready(key, true, false);
        self.run();
    }

    /// A subscriber to "t" that takes nothing.
    fn stuck_subscriber(&mut self) {
        let wire = Arc::new(Wire::default());
        self.completion.handle_accepted(wire.clone());
        self.run();
        let hello = Hello {
            node: "unsaid".into(),
            instance: 0,
            max_message: 0,
            clock_ms: 0,
            channels: vec![],
            servers: vec![],
            metadata: Metadata::default(),
        };
        let conn = self.accepted[0];
        self.shake(conn, &wire, Handshake::new(Side::DialAs(SocketType::Sub), hello, Security::Null));
        self.run();
        wire.stuck.store(true, Ordering::SeqCst);
        let mut wants = Vec::new();
        write_subscription(1, true, b"t", &mut wants);
        wire.to_host.lock().unwrap().extend(wants);
        self.ready(&wire);
        let publishing = self.shared.publishing.as_ref().unwrap();
        assert_eq!(publishing.subscriptions(), 1);
    }

    /// A client of that socket that takes nothing, and a frame of it that may be answered.
    fn stuck_client(&mut self, socket: u16) -> (SessionHandle, ReplyToken) {
        let wire = Arc::new(Wire::default());
        wire.stuck.store(true, Ordering::SeqCst);
        wire.to_host.lock().unwrap().extend([0, 0, 0, 0, 0, 1, b'?']);
        self.completion.handle_client(socket, wire.clone(), SocketAddr::from(([127, 0, 0, 1], 9)));
        self.run();
        self.ready(&wire);
        let Ok(Told::Here(session)) = self.told.try_recv() else { panic!("no session") };
        let Ok(Told::Asks(token)) = self.told.try_recv() else { panic!("no frame") };
        (session, token)
    }

    /// Every link is up, and of those of two peers nothing is taken.
    fn all_up(&mut self) {
        self.run();
        for (port, name) in [(STUCK, "stuck"), (QUICK, "quick"), (SERVER, "server")] {
            let application = self.answer_dial(port, name);
            application.stuck.store(port != QUICK, Ordering::SeqCst);
        }
        self.run();
    }

    /// Starts all ways at once; says after how many ms each ended, in the order of the table.
    fn ends_of_all(mut self, most: u64) -> [Option<u64>; 7] {
        self.all_up();
        self.stuck_subscriber();
        let (session, _) = self.stuck_client(0);
        let (asking, token) = self.stuck_client(1);

        let client = Client::new(self.shared.clone());
        let (node, server) = (client.node("stuck"), client.server("desk").unwrap());
        let (work, news) = (client.channel("work"), client.channel("news"));
        let full = Bytes::from(vec![0; 32 << 10]);
        while node.try_send("", full.clone()).is_ok() || server.try_send("", full.clone()).is_ok() {
            self.run();
        }
        for session in [&session, &asking] {
            while session.try_send("", full.clone()).is_ok() {
                self.run();
            }
        }
        let publisher = Publisher::new(self.shared.clone()).unwrap();
        let publication = loop {
            let mut publication = publisher.publish("t", full.clone());
            match poll(&mut publication) {
                Poll::Ready(end) => assert_eq!(end.unwrap().queued, 1),
                Poll::Pending => break publication,
            }
            self.run();
        };
        let mut multicast = pin!(news.multicast("", full.clone()).submit());
        let mut ways = [
            Some(Way::Send(node.send("", full.clone()).submit())),
            Some(Way::Send(work.send("", full.clone()).submit())),
            Some(Way::Send(server.send("", full.clone()).submit())),
            None,
            Some(Way::Publish(publication)),
            Some(Way::Send(session.send(full.clone()).submit())),
            Some(Way::Send(token.reply(full.clone()).submit())),
        ];
        let mut ends = [None; 7];
        for ms in 0..=most {
            self.run();
            for (way, end) in ways.iter_mut().zip(&mut ends) {
                if let Some(error) = way.as_mut().and_then(Way::end) {
                    no_room(&error, ms);
                    (*way, *end) = (None, Some(ms));
                }
            }
            // Each target has its own: the quick one had it at once, the other waits for nobody's but its own.
            if ends[3].is_none()
                && let Poll::Ready(told) = multicast.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()))
            {
                assert_eq!((told.members.len(), told.accepted()), (2, 1), "{told}");
                let (name, error) = told.members.into_iter().find_map(|(node, end)| Some((node, end.err()?))).unwrap();
                assert_eq!(&*name, "stuck");
                no_room(&error, ms);
                ends[3] = Some(ms);
            }
            self.clock.0.fetch_add(MS, Ordering::SeqCst);
        }
        ends
    }
}

enum Way {
    Send(Pending<OneWay>),
    Publish(Publish),
}

impl Way {
    fn end(&mut self) -> Option<SendError> {
        match self {
            Way::Send(pending) => pending.try_take().map(Result::unwrap_err),
            Way::Publish(publication) => match poll(publication) {
                Poll::Ready(end) => Some(end.unwrap_err()),
                Poll::Pending => None,
            },
        }
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

#[track_caller]
fn no_room(error: &SendError, ms: u64) {
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom), "{error}");
    assert_eq!(error.error().figures().waited, Some(Duration::from_millis(ms)), "{error}");
}
