//! The same workloads for afflux: a host of one shard that serves, and callers of another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use afflux::{
    ByteSize, Channel, Context, Handler, Host, HostBuilder, IdlePolicy, Message, Pending, Pinning, Placement, Request,
    TwoWay,
};
use bytes::Bytes;
use serde_json::{Value, json};

use super::load::{Caller, Sender};
use super::{Server, memory, serve_and_report, threads};

/// How long spinning rows look for work before they sleep.
pub const SPIN: Duration = Duration::from_micros(50);

struct Echo;

impl Handler for Echo {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let payload = request.payload().clone();
        request.reply(cx, payload);
    }
}

struct Sink {
    count: u64,
    received: Arc<AtomicU64>,
}

impl Handler for Sink {
    fn message(&mut self, _: Message, _: &mut Context<'_, Self>) {
        self.count += 1;
        self.received.store(self.count, Ordering::Relaxed);
    }
}

/// One shard, not pinned, because the process is pinned as a whole.
pub fn builder(name: &str, idle: IdlePolicy) -> HostBuilder {
    Host::builder(name).shards(Placement::Count(1)).pinning(Pinning::Off).idle(idle)
}

/// As much room as 1,024 messages of 64 KiB need on their way there and back. What is bounded by default is not
/// the question where only speed is measured.
pub fn roomy(builder: HostBuilder) -> HostBuilder {
    let (peer, all) = (ByteSize::mib(256), ByteSize::mib(1024));
    builder.waiting_room(16_384, all).reply_marks(peer, all).reply_hold(peer)
}

/// See [`serve_by`].
pub fn serve(idle: IdlePolicy) -> ! {
    serve_by(builder("server", idle).listen("tcp://127.0.0.1:0"))
}

/// Serves `echo` and `sink`; reports `addresses` and what it has `received`, and of its threads `threads`,
/// `wakes` and `completion_wakes`; and the `memory` of the process.
pub fn serve_by(builder: HostBuilder) -> ! {
    let received = Arc::new(AtomicU64::new(0));
    let counted = received.clone();
    let alone = threads();
    let host = builder
        .channel("echo", |_| Echo)
        .channel("sink", move |_| Sink { count: 0, received: counted.clone() })
        .start()
        .expect("the server starts");
    let started = threads() - alone;
    let addresses: Vec<String> = host.addresses().iter().map(|a| format!("tcp://{a}")).collect();
    serve_and_report(host.addresses()[0].port(), move |_| {
        let mut report = wakes(&host);
        report["received"] = json!(received.load(Ordering::Relaxed));
        report["threads"] = json!(started);
        report["addresses"] = json!(addresses);
        report["memory"] = json!(memory());
        report
    })
}

/// How often the threads of a host were woken from their sleep by another thread.
pub fn wakes(host: &Host) -> Value {
    let status = host.status();
    json!({"wakes": status.shards.iter().map(|s| s.wakes).sum::<u64>(), "completion_wakes": status.completion_wakes})
}

/// Where a server listens.
pub fn url(server: &Server) -> String {
    format!("tcp://127.0.0.1:{}", server.port)
}

/// A host that is connected to a [`serve`].
pub fn connect(server: &Server, idle: IdlePolicy) -> Host {
    connect_by(server, builder("client", idle))
}

/// As [`connect`], with options.
pub fn connect_by(server: &Server, builder: HostBuilder) -> Host {
    let host = builder.connect(url(server)).start().expect("the client starts");
    host.ready(Duration::from_secs(60)).expect("the server is there");
    host
}

/// Calls from the thread that it is used on.
pub struct Asker {
    echo: Channel,
    payload: Bytes,
    pending: VecDeque<Pending<TwoWay>>,
}

impl Asker {
    pub fn new(host: &Host, size: usize) -> Self {
        Asker { echo: host.client().channel("echo"), payload: vec![7; size].into(), pending: VecDeque::new() }
    }
}

impl Caller for Asker {
    fn send(&mut self, n: usize) {
        for _ in 0..n {
            self.pending.push_back(self.echo.request("", self.payload.clone()).submit());
        }
    }

    fn receive(&mut self, _: usize) -> usize {
        let oldest = self.pending.pop_front().expect("something is outstanding");
        let reply = oldest.wait().expect("an echo");
        assert_eq!(reply.len(), self.payload.len());
        1
    }

    fn ask(&mut self) {
        let reply = self.echo.request("", self.payload.clone()).wait().expect("an echo");
        assert_eq!(reply.len(), self.payload.len());
    }
}

/// One-way messages from the thread that it is used on.
pub struct Teller {
    sink: Channel,
    payload: Bytes,
}

impl Teller {
    pub fn new(host: &Host, size: usize) -> Self {
        Teller { sink: host.client().channel("sink"), payload: vec![7; size].into() }
    }
}

impl Sender for Teller {
    fn send(&mut self, n: usize) {
        for _ in 0..n {
            let sent = self.sink.send("", self.payload.clone()).timeout(Duration::from_secs(30)).wait();
            sent.expect("room within the timeout");
        }
    }
}
