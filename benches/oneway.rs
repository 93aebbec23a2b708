//! One-way messages from a calling thread, counted at the receiving handler, between two processes
//! on loopback TCP.
//!
//! Rows: raw sockets with as many messages in a write as fit 64 KiB (the ceiling; a large message is a
//! write of its own), and afflux.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use afflux::{Context, Handler, Host, HostBuilder, IdlePolicy, Message, Pinning, Placement, Request};
use bytes::Bytes;
use common::report::Report;
use common::{Args, Rounds, Sample, Server, Usage, finish, serve_until_released, serving};

/// What one raw write carries.
const BATCH: usize = 64 << 10;

fn main() {
    let args = Args::get();
    let sizes = args.size.map_or_else(|| vec![64, 1024, 64 << 10], |size| vec![size]);
    match serving(&args).as_deref() {
        Some("raw") => raw_serve(),
        Some("afflux") => serve(),
        Some(other) => panic!("cannot serve {other}"),
        None => {
            let mut report = Report::new(&args);
            for size in sizes {
                let rounds = Rounds::run(
                    &args,
                    &[("raw 64 KiB batches", &|| raw_send(&args, size)), ("afflux thread", &|| send(&args, size))],
                );
                let ceilings = [("afflux thread", "raw 64 KiB batches")];
                report.add(&format!("oneway {size} B"), &rounds, &ceilings, Sample::rate);
            }
            report.write();
        }
    }
}

// ---- raw

fn raw_serve() -> ! {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("one client");
        let (mut block, mut total) = (vec![0; BATCH], 0u64);
        while let Ok(n) = stream.read(&mut block)
            && n > 0
        {
            total += n as u64;
        }
        stream.write_all(&total.to_be_bytes()).expect("eight bytes into an empty socket");
    });
    serve_until_released(port)
}

fn raw_send(args: &Args, size: usize) -> Sample {
    let server = Server::spawn(args, "raw");
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("the server listens");
    let batch = vec![7; (BATCH / size).max(1) * size];
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    while begin.elapsed() < args.window() {
        stream.write_all(&batch).expect("the server reads");
    }
    stream.shutdown(Shutdown::Write).expect("connected");
    let mut total = [0; 8];
    stream.read_exact(&mut total).expect("the server counts");
    let count = u64::from_be_bytes(total) / size as u64;
    finish(count, begin.elapsed().as_secs_f64(), None, before, &server)
}

// ---- afflux

struct Sink {
    count: u64,
}

impl Handler for Sink {
    fn message(&mut self, _: Message, _: &mut Context<'_, Self>) {
        self.count += 1;
    }

    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        request.reply(cx, self.count.to_string());
    }
}

fn builder(name: &str) -> HostBuilder {
    // The process is pinned as a whole.
    Host::builder(name).shards(Placement::Count(1)).pinning(Pinning::Off).idle(IdlePolicy::Park)
}

fn serve() -> ! {
    let sink = |_| Sink { count: 0 };
    let host = builder("server").listen("tcp://127.0.0.1:0").channel("sink", sink).start().expect("the server starts");
    serve_until_released(host.addresses()[0].port())
}

fn send(args: &Args, size: usize) -> Sample {
    let server = Server::spawn(args, "afflux");
    let url = format!("tcp://127.0.0.1:{}", server.port);
    let host = builder("client").connect(url).start().expect("the client starts");
    host.ready(Duration::from_secs(5)).expect("the server is there");
    let sink = host.client().channel("sink");
    // The request queues behind every message, so its answer counts them all.
    let count = || -> u64 {
        let reply = sink.request("", Bytes::new()).wait().expect("the count");
        std::str::from_utf8(&reply).ok().and_then(|n| n.parse().ok()).expect("a number")
    };
    let payload = Bytes::from(vec![7; size]);
    let first = count();
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    while begin.elapsed() < args.window() {
        for _ in 0..64 {
            sink.send("", payload.clone()).timeout(Duration::from_secs(30)).wait().expect("room within the timeout");
        }
    }
    let received = count() - first;
    finish(received, begin.elapsed().as_secs_f64(), None, before, &server)
}
