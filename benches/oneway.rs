//! One-way messages, counted at the receiving handler, between two processes on loopback TCP.
//!
//! Rows: bare sockets with as many messages in a write as fit 64 KiB, and large ones several in a vectored write
//! (the ceilings); and afflux under each idle policy, sent by a thread that waits for room, by a task that
//! awaits it, and by a handler.

mod common;

use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use afflux::{Context, Handler, Host, IdlePolicy, Message, Request, Responder};
use bytes::Bytes;
use common::callers::{By, Idle, Row};
use common::report::Report;
use common::{Args, Rounds, Sample, Server, Usage, finish, hosts, serve_until_released, serving, tasks};

/// What one raw write carries.
const BATCH: usize = 64 << 10;
/// Bodies of one vectored write.
const SLICES: usize = 8;
/// Messages between two looks at the clock.
const STEP: u64 = 64;
/// A send that finds no room for so long is a fault.
const LONG: Duration = Duration::from_secs(30);

const BATCHES: &str = "raw 64 KiB batches";
const VECTORED: &str = "raw writev";

fn main() {
    let args = Args::get();
    let sizes = args.size.map_or_else(|| vec![64, 1024, 64 << 10], |size| vec![size]);
    match serving(&args).as_deref() {
        Some("raw") => raw_serve(),
        Some(idle) => serve(Idle::named(idle).policy()),
        None => {
            let mut report = Report::new(&args);
            for size in sizes {
                let bare = if size < BATCH { BATCHES } else { VECTORED };
                let idles = if args.quick || !args.bench { &Idle::ALL[..2] } else { &Idle::ALL[..] };
                let rows =
                    |idle: &Idle| [By::Thread, By::Async, By::Shard].map(|by| (Row::By(by, *idle).name(), by, *idle));
                let rows: Vec<_> = idles.iter().flat_map(rows).collect();
                let runs: Vec<_> = rows.iter().map(|(_, by, idle)| || send(&args, size, *by, *idle)).collect();
                let batches = || raw_send(&args, size);
                let vectored = || raw_send_vectored(&args, size);
                let mut all: Vec<(&str, &dyn Fn() -> Sample)> = vec![(BATCHES, &batches)];
                if size >= BATCH {
                    all.push((VECTORED, &vectored));
                }
                all.extend(rows.iter().zip(&runs).map(|((name, ..), run)| (&name[..], run as &dyn Fn() -> Sample)));
                let rounds = Rounds::run(&args, &all);
                let ceilings: Vec<_> = rows.iter().map(|(name, ..)| (&name[..], bare)).collect();
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

/// Writes as `write` does until the window is over, and hears how much has come.
fn raw_run(args: &Args, size: usize, mut write: impl FnMut(&mut TcpStream)) -> Sample {
    let server = Server::spawn(args, "raw");
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("the server listens");
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    while begin.elapsed() < args.window() {
        write(&mut stream);
    }
    stream.shutdown(Shutdown::Write).expect("connected");
    let mut total = [0; 8];
    stream.read_exact(&mut total).expect("the server counts");
    let count = u64::from_be_bytes(total) / size as u64;
    finish(count, begin.elapsed().as_secs_f64(), None, before, &server)
}

fn raw_send(args: &Args, size: usize) -> Sample {
    let batch = vec![7; (BATCH / size).max(1) * size];
    raw_run(args, size, |stream| stream.write_all(&batch).expect("the server reads"))
}

/// A header of its own in front of each body, as a message has it.
fn raw_send_vectored(args: &Args, size: usize) -> Sample {
    let (head, body) = ([7; 16], vec![7; size - 16]);
    raw_run(args, size, |stream| {
        let slices: Vec<IoSlice<'_>> = (0..SLICES).flat_map(|_| [IoSlice::new(&head), IoSlice::new(&body)]).collect();
        let mut slices = &mut slices.clone()[..];
        while !slices.is_empty() {
            let n = stream.write_vectored(slices).expect("the server reads");
            IoSlice::advance_slices(&mut slices, n);
        }
    })
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

fn serve(idle: IdlePolicy) -> ! {
    let host = hosts::builder("server", idle).listen("tcp://127.0.0.1:0");
    let host = host.channel("sink", |_| Sink { count: 0 }).start().expect("the server starts");
    serve_until_released(host.addresses()[0].port())
}

/// Sends for as long as it is asked to, then says so.
struct Source {
    payload: Bytes,
    run: Option<(Responder, Instant)>,
}

impl Handler for Source {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let (responder, ms) = request.into_parts();
        let ms = std::str::from_utf8(&ms).ok().and_then(|n| n.parse().ok()).expect("written by send");
        self.run = Some((responder, Instant::now() + Duration::from_millis(ms)));
        self.send(cx);
    }
}

impl Source {
    /// Its own sends are in order: when the last has found room, all have.
    fn send(&mut self, cx: &mut Context<'_, Self>) {
        let sink = cx.channel("sink");
        let message = || sink.send("", self.payload.clone()).own_deadline().timeout(LONG);
        (1..STEP).for_each(|_| message().detach());
        message().then(cx, |source, sent, cx| {
            sent.expect("room within the timeout");
            match &source.run {
                Some((_, until)) if Instant::now() < *until => source.send(cx),
                _ => source.run.take().expect("it runs").0.reply(cx, ""),
            }
        });
    }
}

fn send(args: &Args, size: usize, by: By, idle: Idle) -> Sample {
    let server = Server::spawn(args, &format!("{idle:?}"));
    let payload = Bytes::from(vec![7; size]);
    let source = payload.clone();
    let client = hosts::builder("client", idle.policy())
        .listen("tcp://127.0.0.1:0")
        .channel("source", move |_| Source { payload: source.clone(), run: None });
    let host: Host = hosts::connect_by(&server, client);
    let sink = host.client().channel("sink");
    // The request queues behind every message, so its answer counts them all.
    let count = || -> u64 {
        let reply = sink.request("", Bytes::new()).wait().expect("the count");
        std::str::from_utf8(&reply).ok().and_then(|n| n.parse().ok()).expect("a number")
    };
    let first = count();
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    let message = || sink.send("", payload.clone()).timeout(LONG);
    match by {
        By::Async => tasks::run(vec![Box::pin(async {
            while begin.elapsed() < args.window() {
                for _ in 0..STEP {
                    message().await.expect("room within the timeout");
                }
            }
        })]),
        By::Shard => {
            let source = host.client().channel("source");
            let order = args.window().as_millis().to_string();
            source.request("", order).timeout(LONG).wait().expect("it is told when the time is over");
        }
        _ => {
            while begin.elapsed() < args.window() {
                (0..STEP).for_each(|_| message().wait().expect("room within the timeout"));
            }
        }
    }
    let received = count() - first;
    finish(received, begin.elapsed().as_secs_f64(), None, before, &server)
}
