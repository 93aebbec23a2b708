//! Promise 2: what is accounted is what is there. Every place that can hold a message is filled, and the bytes
//! that the status tells are laid against those that the allocator gave out; after the drain they are back.
//!
//! A record in a queue is accounted with its charge, which is what it takes: 64 bytes of entry and its own. A
//! record in a ring or a cell has its entry in a pool that is there from the start, so only its payload is
//! new. Alone in its binary, because it counts for the whole process.

#![allow(unsafe_code)]

#[path = "support/mod.rs"]
#[allow(dead_code)] // Shared with the tests of the API, which use all of it.
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use afflux::base::unit::FRAME_OVERHEAD;
use afflux::pattern::topics::Topics;
use afflux::{ByteSize, Channel, Detail, Host, Hwm, Lane, Pending, PublisherOptions, TwoWay};
use bytes::Bytes;

use support::proxy::Proxy;
use support::subscriber::Raw;
use support::{
    Door, address, asked, client_of, connected, kept, link, small, told, until, until_or, until_status, watch_for,
};

const LONG: Duration = Duration::from_secs(300);
const BEAT: Duration = Duration::from_secs(5);

/// Bytes that are out, as they were asked for.
static LIVE: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call goes to `System` as it came, and the count touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// One at a time: the count is the process's.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// What the test itself, its threads and the rounding of growing tables may take.
const SLACK: i64 = 96 << 10;

/// What a shard keeps of queues that were emptied.
const KEPT: i64 = (afflux::plan::QUEUE_CHUNKS_KEPT * afflux::plan::QUEUE_CHUNK_BYTES) as i64;

/// The sizes of records that every row is filled with.
const SIZES: [usize; 4] = [0, 1, 100, 64 << 10];

/// One row's measurement.
struct Row {
    name: &'static str,
    before: i64,
}

impl Row {
    fn begin(name: &'static str) -> Row {
        Row { name, before: live() }
    }

    /// Filled: `accounted` bytes agree with what the allocator gave out since, within a tenth and the slack.
    fn filled(&self, size: usize, records: u64, accounted: u64) {
        let (accounted, observed) = (accounted as i64, live() - self.before);
        let figures = format!("{}, {records} x {size} B: {accounted} accounted, {observed} there", self.name);
        println!("{figures}");
        assert!(observed <= accounted + accounted / 10 + SLACK, "more than accounted: {figures}");
        assert!(observed >= accounted - accounted / 10 - SLACK, "less than accounted: {figures}");
    }

    /// Drained: back at the level before, but for what is kept for the next burst.
    #[track_caller]
    fn drained(&self) {
        until_or(|| live() - self.before <= SLACK + KEPT, || format!("{}: {} left", self.name, live() - self.before));
    }
}

/// What a record of that size without a method is charged with.
fn charge_of(size: usize) -> u64 {
    size as u64 + afflux::base::unit::RECORD_OVERHEAD
}

/// A payload of its own, as an application makes them.
fn payload(size: usize) -> Bytes {
    Bytes::from(vec![0xA5_u8; size])
}

/// Sends until the queue takes no more; returns how many it took.
fn fill(channel: &Channel, size: usize) -> u64 {
    let (mut n, mut refused) = (0, 0);
    until(|| {
        match channel.try_send("", payload(size)) {
            Ok(()) => (n, refused) = (n + 1, 0),
            Err(error) => {
                assert_eq!(error.error().detail(), Detail::NoRoom);
                let figures = error.error().figures();
                let full = figures.used.unwrap() + figures.requested.unwrap() > figures.limit.unwrap();
                refused += if full { 1 } else { 0 };
            }
        }
        while refused == 0 && channel.try_send("", payload(size)).is_ok() {
            n += 1;
        }
        refused > 3
    });
    n
}

/// Records accepted for a node that is away lie in its send queue.
#[test]
fn send_queue() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    for size in SIZES {
        let proxy = Proxy::to_nobody();
        let client = small("client")
            .connect(proxy.address())
            .named("away")
            .reconnect(Duration::from_millis(20), Duration::from_millis(100))
            .send_hwm(Hwm::Bytes(ByteSize::mib(4)))
            .start()
            .unwrap();
        let away = client.client().node("away");
        // What is made at first use is made.
        away.try_send("", payload(size)).unwrap();
        settle();
        let row = Row::begin("send queue");
        let n = fill(&away, size);
        settle();
        row.filled(size, n, link(&client).queued_bytes - charge_of(size));
        let server = support::server("away").node_handler(told(|m, _| drop(m))).start().unwrap();
        proxy.lead_to(&server);
        until(|| link(&client).queued_bytes == 0 && link(&client).up);
        drop(server);
        until(|| !link(&client).up);
        row.drained();
    }
}

/// Field case 011: a burst to the mark, its drain, and the same again: the second is no higher than the first, and
/// what it took is given back too.
#[test]
fn a_second_burst_is_no_higher() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    let proxy = Proxy::to_nobody();
    let client = small("client")
        .connect(proxy.address())
        .named("away")
        .reconnect(Duration::from_millis(20), Duration::from_millis(100))
        .send_hwm(Hwm::Bytes(ByteSize::mib(4)))
        .start()
        .unwrap();
    let away = client.client().node("away");
    away.try_send("", "").unwrap();
    settle();
    let row = Row::begin("second burst");
    let heights = [(); 3].map(|()| {
        let n = fill(&away, 100);
        settle();
        row.filled(100, n, link(&client).queued_bytes);
        let height = live() - row.before;
        let server = support::server("away").node_handler(told(|m, _| drop(m))).start().unwrap();
        proxy.lead_to(&server);
        until(|| link(&client).queued_bytes == 0 && link(&client).up);
        proxy.lead_to_nobody();
        drop(server);
        until(|| !link(&client).up);
        row.drained();
        height
    });
    assert!(heights[1].max(heights[2]) <= heights[0] + SLACK, "{heights:?}");
}

/// Waits until nothing is taken or given back any more: what is under way has arrived.
fn settle() {
    let mut seen = live();
    let mut quiet = 0;
    until(|| {
        let now = live();
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
        quiet > 40
    });
}

/// Operations that wait for room keep their payload in a cell, and the cells are there from the start.
#[test]
fn waiting_room() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    for size in SIZES {
        let proxy = Proxy::to_nobody();
        let client = small("client")
            .connect(proxy.address())
            .named("away")
            .send_hwm(Hwm::Bytes(ByteSize::bytes(1)))
            .start()
            .unwrap();
        let away = client.client().node("away");
        away.send("", "").wait().unwrap();
        drop((0..1024).map(|_| away.send("", "").timeout(LONG).submit()).collect::<Vec<_>>());
        until_status(&client, |s| s.waiting == 0);
        settle();
        let row = Row::begin("waiting room");
        let mut waiting = Vec::with_capacity(2000);
        let handles = 2000 * size_of::<Pending<afflux::OneWay>>() as u64;
        loop {
            let mut pending = away.send("", payload(size)).timeout(LONG).submit();
            match pending.try_take() {
                None => waiting.push(pending),
                Some(end) => break assert_eq!(end.unwrap_err().error().detail(), Detail::WaitingRoomFull),
            }
        }
        let n = waiting.len() as u64;
        settle();
        assert_eq!(u64::from(client.status().waiting), n);
        let own = n * afflux::base::unit::RECORD_OVERHEAD;
        row.filled(size, n, client.status().waiting_bytes - own + handles);
        drop(waiting);
        until_status(&client, |s| s.waiting == 0);
        row.drained();
    }
}

/// A ring to a shard that is stuck: the places are there from the start, the payloads are not.
#[test]
fn caller_ring() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    for size in SIZES {
        let door = Door::shut();
        let at_door = door.clone();
        let proxy = Proxy::to_nobody();
        let host = support::server("host")
            .connect(proxy.address())
            .named("away")
            .send_hwm(Hwm::Bytes(ByteSize::mib(8)))
            .channel("block", told(move |_, _| at_door.pass()))
            .start()
            .unwrap();
        let caller = client_of(&host);
        let key = door.key();
        let away = host.client().node("away");
        away.try_send("", payload(size)).unwrap();
        caller.client().channel("block").send("", "").wait().unwrap();
        until(|| door.came() == 1);
        settle();
        let before = away_link(&host).queued_bytes;
        let row = Row::begin("caller ring");
        let mut n = 0;
        while away.try_send("", payload(size)).is_ok() {
            n += 1;
        }
        let charged = away_link(&host).queued_bytes - before;
        row.filled(size, n, charged - n * afflux::base::unit::RECORD_OVERHEAD);
        drop((key, caller, host));
        until(|| live() < row.before);
    }
}

fn away_link(host: &Host) -> afflux::LinkStatus {
    host.status().links.into_iter().find(|l| &*l.peer == "away").unwrap()
}

/// What a peer has sent and no permit was left for lies in its receive queue: decoded, claimed by nobody.
#[test]
fn receive_queue() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    const MARK: u64 = 4 << 20;
    for size in SIZES {
        let (keep, held) = kept();
        let server = support::server("server")
            .max_jobs(1)
            .max_started_handlers(1)
            .receive_hwm(Hwm::Bytes(ByteSize::bytes(MARK)))
            .channel("keep", keep)
            .start()
            .unwrap();
        let proxy = Proxy::before(&server);
        let client = connected(small("client").connect(proxy.address()).send_hwm(Hwm::Bytes(ByteSize::mib(8))));
        let channel = client.client().channel("keep");
        // One is started, one holds the permit; told to pause or not, the rest is on its way already.
        let charge = charge_of(size);
        let n = MARK / charge;
        let first = channel.request("", "").timeout(LONG).submit();
        let first_debt = held.recv().unwrap();
        proxy.freeze(Lane::Application);
        settle();
        channel.try_send("", payload(size)).unwrap();
        let row = Row::begin("receive queue");
        let mut sent = 0;
        until(|| {
            while sent < n && channel.try_send("", payload(size)).is_ok() {
                sent += 1;
            }
            sent == n
        });
        proxy.thaw(Lane::Application);
        until_or(|| server.status().received == n + 2, || format!("{:?}", server.status().received));
        until(|| link(&client).queued_bytes == 0 && link(&client).waiting == 0);
        settle();
        // The client's own table of records has grown and is empty; its part is told by `drained`.
        row.filled(size, n, n * charge);
        first_debt.0.reply("");
        first.wait().unwrap();
        until_status(&server, |s| s.delivered == n + 2 && s.owned_bytes == 0);
        row.drained();
    }
}

/// Records that were claimed and are not finished: as many as `max_owned_bytes` says, and no more are claimed.
#[test]
fn owned_bytes() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    const OWNED: u64 = 8 << 20;
    for size in [4 << 10, 64 << 10] {
        let (keep, held) = kept();
        let server = support::server("server")
            .max_jobs(10_000)
            .max_started_handlers(10_000)
            .max_owned_bytes(ByteSize::bytes(OWNED))
            .receive_hwm(Hwm::Bytes(ByteSize::bytes(1)))
            .channel("keep", keep)
            .start()
            .unwrap();
        let client = connected(small("client").connect(address(&server)).send_hwm(Hwm::Bytes(ByteSize::kib(64))));
        let channel = client.client().channel("keep");
        let charge = charge_of(size);
        let n = OWNED / charge;
        let mut pending = Vec::with_capacity(n as usize + 1);
        let mut debts = Vec::with_capacity(n as usize + 1);
        // What is made at first use is made.
        channel.request("", payload(size)).timeout(LONG).submit().detach();
        held.recv().unwrap().0.reply("");
        until_status(&server, |s| s.owned_bytes == 0);
        settle();
        let row = Row::begin("owned bytes");
        for _ in 0..n {
            let one = channel.request("", payload(size)).timeout(LONG).submit();
            debts.push(held.recv().unwrap());
            pending.push(one);
        }
        settle();
        assert_eq!(server.status().owned_bytes, n * charge);
        row.filled(size, n, n * charge);
        // One more would be above the limit: it stays where it is.
        pending.push(channel.request("", payload(size)).timeout(LONG).submit());
        until_status(&server, |s| s.received == n + 2);
        settle();
        assert_eq!((held.try_recv().is_err(), server.status().owned_bytes), (true, n * charge));
        debts.drain(..).for_each(|(debt, _)| debt.reply(""));
        held.recv().unwrap().0.reply("");
        pending.drain(..).for_each(|p| drop(p.wait().unwrap()));
        until_status(&server, |s| s.owned_bytes == 0);
        row.drained();
    }
}

/// Replies that a peer does not take wait on the answering side, under their own mark.
#[test]
fn large_replies() {
    replies(&SIZES[3..]);
}

#[test]
fn small_replies() {
    replies(&SIZES[..3]);
}

/// So many requests are under way at most while replies are piled up.
const AT_ONCE: usize = 128;

fn replies(sizes: &[usize]) {
    let _turn = alone();
    let _dog = watch_for(LONG);
    for &size in sizes {
        let server = support::server("server")
            .reply_marks(ByteSize::mib(4), ByteSize::mib(128))
            .heartbeat(BEAT, LONG)
            .max_message_size(ByteSize::mib(1))
            .socket_buffers(ByteSize::kib(8), ByteSize::kib(8))
            .channel("make", asked(move |request, cx| request.reply(cx, payload(size))))
            .start()
            .unwrap();
        let proxy = Proxy::before(&server);
        let client = connected(
            small("client").connect(proxy.address()).heartbeat(BEAT, LONG).max_message_size(ByteSize::mib(1)),
        );
        let make = client.client().channel("make");
        make.request("", "").wait().unwrap();
        let mut pending: Vec<Pending<TwoWay>> = Vec::with_capacity(16_384);
        proxy.freeze(Lane::Completion);
        settle();
        let row = Row::begin("replies");
        let n = ((3 << 20) / charge_of(size)).min(16_000);
        while (pending.len() as u64) < n {
            let mut one = make.request("", "").timeout(LONG).submit();
            match one.try_take() {
                // Faster than the shard: the ring and this peer's part of the room are full.
                Some(end) => assert_eq!(end.unwrap_err().error().detail(), Detail::WaitingRoomFull),
                None => pending.push(one),
            }
            // A burst of requests would leave chunks with the shards, which are another row's.
            if pending.len().is_multiple_of(AT_ONCE) {
                until_status(&server, |s| s.delivered == pending.len() as u64 + 1);
            }
        }
        until_status(&server, |s| s.delivered == n + 1 && s.owned_bytes == 0);
        settle();
        let bytes = server.status().reply_bytes;
        row.filled(size, bytes / charge_of(size), bytes);
        proxy.thaw(Lane::Completion);
        for pending in pending.drain(..) {
            pending.wait().unwrap();
        }
        until_status(&server, |s| s.reply_bytes == 0);
        row.drained();
    }
}

/// Replies that have arrived and were not taken: the large ones in the hold, the small ones bounded by their
/// slots.
#[test]
fn reply_hold() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    for size in [0, 1, 100, 2048, 64 << 10] {
        // However late the client reads, none of the replies waits for room.
        let server = support::server("server")
            .reply_marks(ByteSize::mib(64), ByteSize::mib(128))
            .channel("make", asked(move |r, cx| r.reply(cx, payload(size))))
            .start()
            .unwrap();
        let client = connected(small("client").connect(address(&server)).reply_hold(ByteSize::mib(32)));
        let make = client.client().channel("make");
        let mut pending = Vec::with_capacity(1000);
        make.request("", "").wait().unwrap();
        // The first turn of all tables.
        (0..500).for_each(|_| pending.push(make.request("", "").timeout(LONG).submit()));
        pending.drain(..).for_each(|p| drop(p.wait().unwrap()));
        settle();
        let row = Row::begin("reply hold");
        (0..500).for_each(|_| pending.push(make.request("", "").timeout(LONG).submit()));
        until_status(&client, |s| s.requests == 0);
        until_status(&server, |s| s.owned_bytes == 0 && s.reply_bytes == 0);
        settle();
        let status = client.status();
        let large = size > 2048;
        assert_eq!(status.reply_hold_bytes, if large { 500 * size as u64 } else { 0 });
        assert_eq!(status.reply_hold_refused, 0);
        row.filled(size, 500, 500 * size as u64);
        drop(pending);
        until_status(&client, |s| s.reply_hold_bytes == 0);
        row.drained();
    }
}

/// Threads that ask read their replies themselves, one after the other. All stay, and so many of them keep what they
/// read into.
#[test]
fn threads_that_call() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    let server = support::server("server").channel("echo", asked(support::echo)).start().unwrap();
    let client = client_of(&server);
    let echo = client.client().channel("echo");
    echo.request("", "").wait().unwrap();
    settle();
    let row = Row::begin("threads that call");
    let keepers = i64::from(afflux::plan::KEEPERS_MAX);
    let threads = keepers + keepers / 2;
    let door = support::Door::shut();
    let key = door.key();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (answered, came) = std::sync::mpsc::channel();
            let (echo, door) = (&echo, door.clone());
            scope.spawn(move || {
                answered.send(echo.request("", "hello").timeout(LONG).wait()).unwrap();
                door.pass();
            });
            assert_eq!(came.recv().unwrap().unwrap(), "hello");
        }
        let there = live() - row.before;
        // A block of 64 KiB and a chunk of 1 KiB each; what else a thread of the standard library's has is small.
        let most = keepers * (65 << 10) + threads * (4 << 10);
        println!("{threads} threads that call, {keepers} keepers: {there} there");
        assert!((most / 2..=most + SLACK).contains(&there), "{there} there, {most} at the most");
        drop(key);
    });
    row.drained();
}

/// What a subscriber does not take lies in its queue. Charged are 32 bytes for the second frame, of which the heads
/// of both frames are there.
#[test]
fn subscription_queue() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    const MARK: u64 = 4 << 20;
    for size in SIZES {
        let ticker = support::server("ticker")
            .heartbeat(BEAT, LONG)
            .socket_buffers(ByteSize::kib(8), ByteSize::kib(8))
            .publisher(PublisherOptions::new().hwm(ByteSize::bytes(MARK)))
            .start()
            .unwrap();
        let publisher = ticker.publisher().unwrap();
        let mut stuck = Raw::subscribe(&ticker, "t");
        let of = |host: &Host| host.status().publisher.unwrap();
        until(|| of(&ticker).subscriptions == 1);
        publisher.publish("t", payload(size)).wait().unwrap();
        stuck.read(1);
        settle();
        let row = Row::begin("subscription queue");
        // A writer that is late leaves room in the kernel, and the queue goes there.
        let mut status;
        let mut queued;
        loop {
            while publisher.publish("t", payload(size)).wait().unwrap().dropped == 0 {}
            settle();
            status = of(&ticker);
            queued = status.subscribers[0].queued;
            if queued.bytes > MARK / 4 * 3 {
                break;
            }
        }
        assert_eq!(queued.bytes, queued.records * (charge_of(size) + 1 + FRAME_OVERHEAD));
        let heads = if size > 255 { 2 + 9 } else { 2 + 2 };
        row.filled(size, queued.records, queued.records * (charge_of(size) + 1 + heads));
        let dropped = status.dropped.total().records;
        stuck.read((status.matched - dropped - 1) as usize);
        until(|| of(&ticker).subscribers[0].queued.records == 0);
        row.drained();
    }
}

/// Subscriptions are charged with what they take at the most: short prefixes and long ones, of few subscribers
/// and of many.
#[test]
fn subscriptions() {
    let _turn = alone();
    type Prefix = fn(u32) -> Vec<u8>;
    let shapes: [(&str, Prefix); 4] = [
        ("four bytes", |n| n.wrapping_mul(0x9E37_79B9).to_be_bytes().to_vec()),
        ("a path", |n| format!("prices/spot/{n:08}/").into_bytes()),
        ("of any length", |n| vec![b'x'; n as usize % 500]),
        ("two bytes", |n| (n as u16).to_be_bytes().to_vec()),
    ];
    for (shape, prefix) in shapes {
        for subscribers in [1, 100, 10_000] {
            let before = live();
            let (mut topics, mut charged) = (Topics::new(), 0);
            for n in 0..20_000 {
                let prefix = prefix(n);
                if topics.subscribe(n % subscribers, &prefix) {
                    charged += Topics::cost(&prefix) as i64;
                }
            }
            let there = live() - before;
            println!("{}, {subscribers} subscribers, {shape}: {charged} charged, {there} there", topics.len());
            assert!(there <= charged + SLACK, "{shape}, {subscribers} subscribers: {there} of {charged}");
            for who in 0..subscribers {
                topics.leave(who);
            }
            assert_eq!((topics.len(), topics.prefixes()), (0, 0));
        }
    }
}

/// A record larger than its queue's mark: its bytes are counted as they arrive, not as they are announced, and
/// are gone with it.
#[test]
fn oversize() {
    let _turn = alone();
    let _dog = watch_for(LONG);
    const SIZE: usize = 8 << 20;
    let (keep, held) = kept();
    let server =
        support::server("server").receive_hwm(Hwm::Bytes(ByteSize::kib(64))).channel("keep", keep).start().unwrap();
    let client = client_of(&server);
    let keep = client.client().channel("keep");
    let first = keep.request("", "").submit();
    held.recv().unwrap().0.reply("");
    first.wait().unwrap();
    for _ in 0..2 {
        settle();
        let row = Row::begin("oversize");
        let pending = keep.request("", payload(SIZE)).timeout(LONG).submit();
        let debt = held.recv().unwrap();
        until(|| link(&client).queued_bytes == 0);
        until_status(&server, |s| s.owned_bytes > 0);
        settle();
        row.filled(SIZE, 1, server.status().owned_bytes);
        debt.0.reply("");
        drop(debt.1);
        pending.wait().unwrap();
        until_status(&server, |s| s.owned_bytes == 0);
        row.drained();
    }
}

/// A session of an end client that says nothing takes no more than the ledger reserves, one that announces a large
/// frame and withholds it takes what came of it (field case 112), and a full send queue is its charges.
#[test]
fn end_clients() {
    use afflux::{Context, Frame, Session, SessionHandle};
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc::Sender;

    struct Silent(Sender<SessionHandle>);

    impl Session for Silent {
        fn opened(&mut self, session: SessionHandle, _: &mut Context<'_, Self>) {
            self.0.send(session).unwrap();
        }

        fn frame(&mut self, _: Frame, _: &mut Context<'_, Self>) {}
    }

    let _turn = alone();
    let _dog = watch_for(LONG);
    const CLIENTS: usize = 500;
    let (sessions, session) = std::sync::mpsc::channel();
    let host = small("host")
        .stream("tcp://127.0.0.1:0", move |_| Silent(sessions.clone()))
        .stream_max_message_size(ByteSize::mib(1))
        .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
        .start()
        .unwrap();
    let to = host.stream_addresses()[0];
    let sessions = |host: &Host| host.status().streams[0].sessions as usize;
    let mut clients: Vec<TcpStream> = Vec::with_capacity(CLIENTS);
    let mut handles: Vec<SessionHandle> = Vec::with_capacity(CLIENTS);
    for round in 0..3 {
        settle();
        // Later rounds find the tables as large as they have to be.
        let row = Row::begin("sessions");
        clients.extend((0..CLIENTS).map(|_| {
            // Its window does not grow while it is not read.
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(16 << 10).unwrap();
            socket.connect(&to.into()).unwrap();
            TcpStream::from(socket)
        }));
        handles.extend((0..CLIENTS).map(|_| session.recv().unwrap()));
        settle();
        let each = (live() - row.before) / CLIENTS as i64;
        println!("a session at rest: {each} bytes");
        assert!((1000..=afflux::plan::SESSION_STATE_BYTES as i64).contains(&each), "{each}");

        let announced = Row::begin("announced frames");
        for client in &mut clients {
            client.write_all(&[0, 0, 0, 0x10, 0, 0]).unwrap();
        }
        until(|| host.status().streams[0].bytes_in.is_multiple_of(6 * CLIENTS as u64));
        settle();
        assert!(live() - announced.before <= SLACK, "{} bytes for lengths", live() - announced.before);

        if round == 0 {
            // Later the shard has kept chunks of a queue like this.
            let queue = Row::begin("a client's send queue");
            let (mut n, mut refused) = (0, 0);
            until(|| {
                match handles[0].try_send("", payload(1000)) {
                    Ok(()) => (n, refused) = (n + 1, 0),
                    Err(_) => refused += 1,
                }
                refused > 1000
            });
            settle();
            let limit = host.plan().streams[0].send_mark;
            let held = limit - limit % charge_of(1000);
            queue.filled(1000, held / charge_of(1000), held);
            let mut left = vec![0; n * 1006];
            clients[0].read_exact(&mut left).unwrap();
            drop(left);
            settle();
            queue.drained();
        }

        clients.clear();
        until(|| sessions(&host) == 0);
        handles.clear();
        if round > 0 {
            row.drained();
        }
    }
}
