//! The workloads for libzmq: DEALER against ROUTER, PUSH against PULL, PUB to many subscribers, and a stock client's
//! calls, which a ROUTER and an afflux host both answer.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;

use crate::common::load::{Caller, Sender};
use crate::common::{Args, Sample, Server, Usage, finish, hosts, serve_and_report, serve_until_released, subscribers};

/// Messages that a socket may hold for its peer. With the default of 1,000 a ROUTER silently drops answers
/// when 1,024 are outstanding; this is what an afflux host allows one peer.
pub const HIGH_WATER: i32 = 16_384;

/// How many frames a message has before its payload, as they travel between client and server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The payload alone: the least that libzmq can carry.
    Bare,
    /// Request id, empty frame, route, as an afflux host wants it.
    Call,
}

/// With the default mark if none is given.
fn socket(kind: zmq::SocketType, mark: Option<i32>) -> zmq::Socket {
    let socket = zmq::Context::new().socket(kind).expect("a socket");
    if let Some(mark) = mark {
        socket.set_sndhwm(mark).expect("an option");
        socket.set_rcvhwm(mark).expect("an option");
    }
    // What is still queued at the end of a run goes with it.
    socket.set_linger(0).expect("an option");
    socket
}

fn bind(socket: &zmq::Socket) -> u16 {
    socket.bind("tcp://127.0.0.1:*").expect("loopback");
    let endpoint = socket.get_last_endpoint().expect("an option").expect("text");
    endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).expect("tcp://address:port")
}

/// A socket with that mark on a server.
pub fn connect(server: &Server, kind: zmq::SocketType, mark: impl Into<Option<i32>>) -> zmq::Socket {
    let socket = socket(kind, mark.into());
    socket.connect(&hosts::url(server)).expect("the server listens");
    socket
}

/// Sends every message back to whoever sent it; in a call, `ok` instead of the route.
pub fn serve(shape: Shape) -> ! {
    serve_worker(shape, HIGH_WATER, || {})
}

/// The same, with a mark of its own and work before each answer.
pub fn serve_worker(shape: Shape, mark: i32, work: impl Fn() + Send + 'static) -> ! {
    let socket = socket(zmq::ROUTER, Some(mark));
    let port = bind(&socket);
    std::thread::spawn(move || {
        loop {
            // The ROUTER puts the client's identity in front.
            let route = if shape == Shape::Call { 3 } else { usize::MAX };
            for at in 0.. {
                let frame = socket.recv_msg(0).expect("a frame");
                let more = frame.get_more();
                let flags = if more { zmq::SNDMORE } else { 0 };
                if at == route {
                    socket.send("ok", flags).expect("the client is there");
                } else {
                    socket.send(frame, flags).expect("the client is there");
                }
                if at == 0 {
                    work();
                }
                if !more {
                    break;
                }
            }
        }
    });
    serve_until_released(port)
}

/// A PULL that counts.
pub fn count() -> ! {
    let socket = socket(zmq::PULL, None);
    let port = bind(&socket);
    let received = Arc::new(AtomicU64::new(0));
    let counted = received.clone();
    std::thread::spawn(move || {
        let mut message = zmq::Message::new();
        for n in 1.. {
            socket.recv(&mut message, 0).expect("a message");
            counted.store(n, Ordering::Relaxed);
        }
    });
    serve_and_report(port, move |_| json!({"received": received.load(Ordering::Relaxed)}))
}

/// A DEALER.
pub struct Dealer {
    socket: zmq::Socket,
    shape: Shape,
    body: Vec<u8>,
    sent: u64,
    answered: u64,
    frame: zmq::Message,
}

impl Dealer {
    pub fn connect(server: &Server, size: usize, shape: Shape) -> Dealer {
        let (socket, frame) = (connect(server, zmq::DEALER, HIGH_WATER), zmq::Message::new());
        Dealer { socket, shape, body: vec![7; size], sent: 0, answered: 0, frame }
    }

    fn frame(&mut self) -> &zmq::Message {
        self.socket.recv(&mut self.frame, 0).expect("a frame");
        &self.frame
    }
}

impl Caller for Dealer {
    fn send(&mut self, n: usize) {
        for _ in 0..n {
            if self.shape == Shape::Call {
                self.socket.send(&self.sent.to_le_bytes()[..], zmq::SNDMORE).expect("a frame");
                self.socket.send("", zmq::SNDMORE).expect("a frame");
                self.socket.send("echo", zmq::SNDMORE).expect("a frame");
            }
            self.socket.send(&self.body[..], 0).expect("a frame");
            self.sent += 1;
        }
    }

    fn receive(&mut self, _: usize) -> usize {
        if self.shape == Shape::Call {
            let id = self.answered.to_le_bytes();
            assert_eq!(&self.frame()[..], id, "in order");
            assert!(self.frame().is_empty());
            assert_eq!(&self.frame()[..], b"ok");
        }
        let size = self.body.len();
        assert_eq!(self.frame().len(), size);
        self.answered += 1;
        1
    }
}

/// A PUSH.
pub struct Push {
    socket: zmq::Socket,
    body: Vec<u8>,
}

impl Push {
    pub fn connect(server: &Server, size: usize) -> Push {
        Push { socket: connect(server, zmq::PUSH, None), body: vec![7; size] }
    }
}

impl Sender for Push {
    fn send(&mut self, n: usize) {
        for _ in 0..n {
            self.socket.send(&self.body[..], 0).expect("a message");
        }
    }
}

unsafe extern "C" {
    /// For the one option that the crate has no method for.
    fn zmq_setsockopt(socket: *mut c_void, option: c_int, value: *const c_void, len: usize) -> c_int;
}

/// ZMQ_XPUB_NODROP: a publication that finds no room somewhere is waited for.
const NODROP: c_int = 69;

/// A PUB that drops nothing, as the afflux publisher beside it; the subscribers are the same.
pub fn publish(args: &Args, size: usize, count: usize) -> Sample {
    // One that hears when somebody subscribes.
    let mut socket = socket(zmq::XPUB, Some(HIGH_WATER));
    let on: c_int = 1;
    // SAFETY: the socket lives, and the option is an int of this size.
    let set = unsafe { zmq_setsockopt(socket.as_mut_ptr(), NODROP, (&raw const on).cast(), size_of::<c_int>()) };
    assert_eq!(set, 0, "an option");
    socket.set_xpub_verbose(true).expect("an option");
    let port = bind(&socket);
    let mut server = Server::spawn(args, &subscribers::receiver(port, count, true));
    for _ in 0..count {
        socket.recv_msg(0).expect("a subscription");
    }
    let body = vec![7; size];
    let before = (Usage::own(), server.usage());
    let (begin, mut published) = (Instant::now(), 0u64);
    while begin.elapsed() < args.window() {
        for _ in 0..16 {
            socket.send(subscribers::TOPIC, zmq::SNDMORE).expect("a frame");
            socket.send(&body[..], 0).expect("a frame");
        }
        published += 16;
    }
    let deliveries = published * count as u64;
    subscribers::arrived(&mut server, deliveries * subscribers::encoded(size).len() as u64);
    finish(deliveries, begin.elapsed().as_secs_f64(), None, before, &server)
}
