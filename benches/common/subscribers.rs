//! Publications to many subscribers in another process, counted where they arrive. The receiver is the same whoever
//! publishes: a poll loop that counts bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afflux::{ByteSize, IdlePolicy, PublisherOptions, SlowSubscriber};
use bytes::Bytes;
use mio::{Events, Interest, Poll, Token};
use serde_json::json;

use super::{Args, Sample, Server, Usage, finish, hosts, serve_and_report};

const BATCH: usize = 64 << 10;
/// What is published on.
pub const TOPIC: &str = "eur/usd";

/// What the receiving process is told: to connect to that port so often, and to subscribe where a publisher is.
pub fn receiver(port: u16, subscribers: usize, subscribe: bool) -> String {
    format!("subscribers {port} {subscribers} {}", u8::from(subscribe))
}

/// Receives, if that is what this process was told.
pub fn serve(what: &str) {
    let Some(words) = what.strip_prefix("subscribers ") else { return };
    let mut words = words.split(' ').map(|word| word.parse().expect("written by receiver"));
    let mut next = || words.next().expect("written by receiver");
    let (port, subscribers) = (next() as u16, next());
    count(port, subscribers, next() == 1);
}

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
pub fn arrived(server: &mut Server, bytes: u64) {
    let seen = |server: &mut Server| server.report().as_u64().expect("a number");
    while seen(server) < bytes {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A publication on the wire.
pub fn encoded(size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    afflux::wire::encode::encode_pair_head(TOPIC.as_bytes(), size, &mut out);
    out.resize(out.len() + size, 7);
    out
}

/// One thread that writes the same bytes to as many sockets, 64 KiB at a time: the ceiling.
pub fn write_all(args: &Args, size: usize, subscribers: usize) -> Sample {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    let accept = std::thread::spawn(move || -> Vec<TcpStream> {
        (0..subscribers).map(|_| listener.accept().expect("a subscriber").0).collect()
    });
    let mut server = Server::spawn(args, &receiver(port, subscribers, false));
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

/// A calling thread of a host publishes; who has no room is waited for.
pub fn publish(args: &Args, size: usize, subscribers: usize) -> Sample {
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
    let mut server = Server::spawn(args, &receiver(host.addresses()[0].port(), subscribers, true));
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
