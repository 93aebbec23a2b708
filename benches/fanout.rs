//! Publications from a calling thread to 1, 10, 100 and 1,000 subscribers, counted where they arrive, between two
//! processes on loopback TCP; and what finding the subscribers costs among 10, 1,000 and 100,000 subscriptions.
//!
//! Rows: one thread that writes the same bytes to as many sockets, 64 KiB at a time (the ceiling), and afflux, with
//! the policy that drops nothing. The receiver is the same in both: a poll loop that counts bytes.

mod common;

use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afflux::pattern::topics::Topics;
use afflux::{ByteSize, IdlePolicy, PublisherOptions, SlowSubscriber};
use bytes::Bytes;
use common::{Args, Rounds, Sample, Server, Usage, finish, hosts, serve_and_report, serving};
use mio::{Events, Interest, Poll, Token};
use serde_json::json;

const SUBSCRIBERS: [usize; 4] = [1, 10, 100, 1000];
const BATCH: usize = 64 << 10;
const TOPIC: &str = "eur/usd";

type Measure = Box<dyn Fn() -> Sample>;

fn main() {
    let args = Args::get();
    if let Some(what) = serving(&args) {
        let mut words = what.split(' ').map(|word| word.parse().expect("written by connect_all"));
        let (port, subscribers) = (words.next().expect("the port"), words.next().expect("how many"));
        count(port as u16, subscribers, words.next() == Some(1));
    }
    let size = args.size.unwrap_or(64);
    let few = if args.bench { &SUBSCRIBERS[..] } else { &SUBSCRIBERS[..2] };
    let names: Vec<_> = few.iter().map(|n| (format!("raw x {n}"), format!("afflux x {n}"), *n)).collect();
    let mut measures: Vec<(&str, Measure)> = Vec::new();
    for (raw, afflux, n) in &names {
        let (own, n) = (args.clone(), *n);
        measures.push((raw, Box::new(move || write_all(&own, size, n))));
        let own = args.clone();
        measures.push((afflux, Box::new(move || publish(&own, size, n))));
    }
    let rows: Vec<_> = measures.iter().map(|(name, run)| (*name, &**run)).collect();
    let ceilings: Vec<_> = names.iter().map(|(raw, afflux, _)| (&**afflux, &**raw)).collect();
    let rounds = Rounds::run(&args, &rows);
    rounds.report(&args, &format!("fan-out of {size} B, per delivery"), &ceilings, Sample::rate);

    let mut args = args;
    args.json = args.json.map(|path| path.with_extension("topics.json"));
    let finding = |n| {
        let window = args.window() / 4;
        move || find(window, n)
    };
    let rounds = Rounds::run(
        &args,
        &[
            ("find among 10", &finding(10)),
            ("find among 1000", &finding(1000)),
            ("find among 100000", &finding(100_000)),
            ("look at 1000", &|| look(args.window() / 4, 1000)),
        ],
    );
    let against = [
        ("find among 1000", "find among 10"),
        ("find among 100000", "find among 10"),
        ("look at 1000", "find among 1000"),
    ];
    rounds.report(&args, "subscribers of a topic", &against, |s| s.secs / s.count as f64);
}

// ---- the receiver

/// Connects so often, subscribes if it is told to, and counts the bytes of all.
fn count(port: u16, subscribers: usize, subscribe: bool) -> ! {
    let received = Arc::new(AtomicU64::new(0));
    let counted = received.clone();
    let mut poll = Poll::new().expect("a poller");
    let mut sockets = Vec::new();
    for n in 0..subscribers {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the publisher listens");
        if subscribe {
            shake(&mut stream);
        }
        stream.set_nonblocking(true).expect("a socket");
        let mut stream = mio::net::TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(n), Interest::READABLE).expect("a place");
        sockets.push(stream);
    }
    std::thread::spawn(move || {
        let (mut events, mut block) = (Events::with_capacity(1024), vec![0; BATCH]);
        loop {
            poll.poll(&mut events, None).expect("a poller");
            for event in &events {
                let stream = &mut sockets[event.token().0];
                loop {
                    match stream.read(&mut block) {
                        Ok(0) => break,
                        Ok(n) => drop(counted.fetch_add(n as u64, Ordering::Relaxed)),
                        Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                        // The publisher has ended.
                        Err(_) => break,
                    }
                }
            }
        }
    });
    serve_and_report(0, move |_| json!(received.load(Ordering::Relaxed)))
}

/// A subscriber's side of the handshake, and its subscription to everything.
fn shake(stream: &mut TcpStream) {
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xFF, 0x7F, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).expect("connected");
    stream.read_exact(&mut greeting).expect("their greeting");
    stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB").expect("connected");
    let mut head = [0; 2];
    stream.read_exact(&mut head).expect("their READY");
    stream.read_exact(&mut vec![0; head[1].into()]).expect("their READY");
    stream.write_all(b"\x04\x0a\x09SUBSCRIBE").expect("connected");
}

/// Waits until so many bytes have arrived.
fn arrived(server: &mut Server, bytes: u64) {
    let seen = |server: &mut Server| server.report().as_u64().expect("a number");
    while seen(server) < bytes {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A publication on the wire.
fn encoded(size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    afflux::wire::encode::encode_pair_head(TOPIC.as_bytes(), size, &mut out);
    out.resize(out.len() + size, 7);
    out
}

// ---- raw

fn write_all(args: &Args, size: usize, subscribers: usize) -> Sample {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    let accept = std::thread::spawn(move || -> Vec<TcpStream> {
        (0..subscribers).map(|_| listener.accept().expect("a subscriber").0).collect()
    });
    let mut server = Server::spawn(args, &format!("{port} {subscribers} 0"));
    let mut streams = accept.join().expect("all have come");
    let (one, mut batch) = (encoded(size), Vec::new());
    while batch.len() + one.len() <= BATCH || batch.is_empty() {
        batch.extend_from_slice(&one);
    }
    let before = (Usage::own(), server.usage());
    let (begin, mut batches) = (Instant::now(), 0);
    while begin.elapsed() < args.window() {
        for stream in &mut streams {
            stream.write_all(&batch).expect("the subscriber reads");
        }
        batches += subscribers as u64;
    }
    let bytes = batches * batch.len() as u64;
    arrived(&mut server, bytes);
    finish(bytes / one.len() as u64, begin.elapsed().as_secs_f64(), None, before, &server)
}

// ---- afflux

fn publish(args: &Args, size: usize, subscribers: usize) -> Sample {
    let options = PublisherOptions::new()
        .hwm(ByteSize::mib(1))
        .slow_subscriber(SlowSubscriber::Wait)
        .timeout(Duration::from_secs(30));
    let builder = hosts::builder("publisher", IdlePolicy::Park).listen("tcp://127.0.0.1:0").publisher(options);
    // Heartbeats would be counted.
    let host = builder
        .heartbeat(Duration::from_secs(3600), Duration::from_secs(7200))
        .handshakes(2 * subscribers as u64 + 16, Duration::from_secs(60))
        .start()
        .expect("the publisher starts");
    let mut server = Server::spawn(args, &format!("{} {subscribers} 1", host.addresses()[0].port()));
    let subscribed = || host.status().publisher.map_or(0, |p| p.subscriptions);
    while subscribed() < subscribers as u64 {
        std::thread::sleep(Duration::from_micros(200));
    }
    let publisher = host.publisher().expect("it has one");
    let payload = Bytes::from(vec![7; size]);
    let before = (Usage::own(), server.usage());
    let (begin, mut published) = (Instant::now(), 0u64);
    while begin.elapsed() < args.window() {
        for _ in 0..16 {
            publisher.publish(TOPIC, payload.clone()).wait().expect("room within the timeout");
        }
        published += 16;
    }
    let deliveries = published * subscribers as u64;
    arrived(&mut server, deliveries * encoded(size).len() as u64);
    finish(deliveries, begin.elapsed().as_secs_f64(), None, before, &server)
}

// ---- finding

/// The n-th of many topics: some hundred venues, the rest instruments.
fn topic(n: u32) -> String {
    format!("prices/{:03}/{:08x}/", n % 300, n.wrapping_mul(0x9E37_79B9))
}

/// Topics in an order that no cache knows before.
fn asked(n: u32) -> Vec<String> {
    let mut order = 0u32;
    let next = |_| {
        order = order.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        format!("{}bid", topic((order >> 8) % n))
    };
    (0..4096).map(next).collect()
}

/// Each subscription is somebody else's, and each topic has one subscriber.
fn find(window: Duration, n: u32) -> Sample {
    let mut topics = Topics::new();
    for who in 0..n {
        topics.subscribe(who, topic(who).as_bytes());
    }
    let asked = asked(n);
    let (begin, mut found, mut walks) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < window {
        for topic in &asked {
            topics.matches(topic.as_bytes(), |who| found += u64::from(black_box(who) < n));
        }
        walks += asked.len() as u64;
    }
    assert_eq!(found, walks);
    Sample::plain(walks, begin.elapsed().as_secs_f64())
}

/// What it would be to compare with each prefix.
fn look(window: Duration, n: u32) -> Sample {
    let prefixes: Vec<String> = (0..n).map(topic).collect();
    let asked = asked(n);
    let (begin, mut found, mut looks) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < window {
        for topic in &asked[..64] {
            found += black_box(&prefixes).iter().filter(|prefix| topic.starts_with(prefix.as_str())).count() as u64;
        }
        looks += 64;
    }
    assert_eq!(found, looks);
    Sample::plain(looks, begin.elapsed().as_secs_f64())
}
