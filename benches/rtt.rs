//! Round trip of one request at a time, between two processes on loopback TCP.
//!
//! Rows: raw sockets over mio on one connection, blocking and spinning 50 us before it blocks (the
//! ceilings), and afflux, called from a thread and from a shard, parking and spinning likewise.

mod common;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use afflux::{Context, Handler, Host, HostBuilder, IdlePolicy, Pinning, Placement, Request, Responder};
use bytes::Bytes;
use common::{Args, Rounds, Sample, Server, Usage, finish, histogram, serve_until_released, serving, timed};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// How long spinning rows look for work before they sleep.
const SPIN: Duration = Duration::from_micros(50);

fn main() {
    let args = Args::get();
    let size = args.size.unwrap_or(64);
    match serving(&args).as_deref() {
        Some("raw park") => raw_serve(size, Duration::ZERO),
        Some("raw spin") => raw_serve(size, SPIN),
        Some("afflux park") => serve(IdlePolicy::Park),
        Some("afflux spin") => serve(IdlePolicy::SpinThenPark(SPIN)),
        Some(other) => panic!("cannot serve {other}"),
        None => {
            let park = IdlePolicy::Park;
            let spin = IdlePolicy::SpinThenPark(SPIN);
            let rounds = Rounds::run(
                &args,
                &[
                    ("raw mio, park", &|| raw_ask(&args, "raw park", size, Duration::ZERO)),
                    ("afflux thread, park", &|| thread_asks(&args, "afflux park", size, park)),
                    ("afflux shard, park", &|| shard_asks(&args, "afflux park", size, park)),
                    ("raw mio, spin then park", &|| raw_ask(&args, "raw spin", size, SPIN)),
                    ("afflux thread, spin", &|| thread_asks(&args, "afflux spin", size, spin)),
                    ("afflux shard, spin", &|| shard_asks(&args, "afflux spin", size, spin)),
                ],
            );
            let ceilings = [
                ("afflux thread, park", "raw mio, park"),
                ("afflux shard, park", "raw mio, park"),
                ("afflux thread, spin", "raw mio, spin then park"),
                ("afflux shard, spin", "raw mio, spin then park"),
            ];
            rounds.report(&args, &format!("rtt {size} B"), &ceilings, |s| s.quantile_us(0.5));
        }
    }
}

// ---- raw

const STREAM: Token = Token(0);

/// One connection that blocks in its poller, after looking for bytes for `spin`.
struct Raw {
    stream: TcpStream,
    poll: Poll,
    events: Events,
    spin: Duration,
}

impl Raw {
    fn new(mut stream: TcpStream, spin: Duration) -> Raw {
        stream.set_nodelay(true).expect("a TCP option");
        let poll = Poll::new().expect("a poller");
        poll.registry().register(&mut stream, STREAM, Interest::READABLE).expect("registers");
        Raw { stream, poll, events: Events::with_capacity(8), spin }
    }

    /// Reads exactly `buf`; false at the end of the stream.
    fn read(&mut self, buf: &mut [u8]) -> bool {
        let mut have = 0;
        let mut since = None;
        while have < buf.len() {
            match self.stream.read(&mut buf[have..]) {
                Ok(0) => return false,
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let spinning = !self.spin.is_zero() && since.get_or_insert_with(Instant::now).elapsed() < self.spin;
                    let timeout = spinning.then_some(Duration::ZERO);
                    if let Err(e) = self.poll.poll(&mut self.events, timeout) {
                        assert_eq!(e.kind(), io::ErrorKind::Interrupted);
                    }
                }
                Err(e) => panic!("raw read: {e}"),
            }
        }
        true
    }
}

fn raw_serve(size: usize, spin: Duration) -> ! {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("one client");
        stream.set_nonblocking(true).expect("a socket option");
        let mut raw = Raw::new(TcpStream::from_std(stream), spin);
        let mut buf = vec![0; size];
        while raw.read(&mut buf) {
            raw.stream.write_all(&buf).expect("a small write into an empty socket");
        }
    });
    serve_until_released(port)
}

fn raw_ask(args: &Args, what: &str, size: usize, spin: Duration) -> Sample {
    let server = Server::spawn(args, what);
    let stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("the server listens");
    stream.set_nonblocking(true).expect("a socket option");
    let mut raw = Raw::new(TcpStream::from_std(stream), spin);
    let mut buf = vec![7; size];
    timed(args, &server, || {
        raw.stream.write_all(&buf).expect("a small write into an empty socket");
        assert!(raw.read(&mut buf));
    })
}

// ---- afflux

struct Echo;

impl Handler for Echo {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let payload = request.payload().clone();
        request.reply(cx, payload);
    }
}

fn builder(name: &str, idle: IdlePolicy) -> HostBuilder {
    // The process is pinned as a whole.
    Host::builder(name).shards(Placement::Count(1)).pinning(Pinning::Off).idle(idle)
}

fn serve(idle: IdlePolicy) -> ! {
    let host = builder("server", idle)
        .listen("tcp://127.0.0.1:0")
        .channel("echo", |_| Echo)
        .start()
        .expect("the server starts");
    serve_until_released(host.addresses()[0].port())
}

fn url(port: u16) -> String {
    format!("tcp://{}", SocketAddr::from(([127, 0, 0, 1], port)))
}

fn thread_asks(args: &Args, what: &str, size: usize, idle: IdlePolicy) -> Sample {
    let server = Server::spawn(args, what);
    let host = builder("client", idle).connect(url(server.port)).start().expect("the client starts");
    host.ready(Duration::from_secs(5)).expect("the server is there");
    let echo = host.client().channel("echo");
    let payload = Bytes::from(vec![7; size]);
    timed(args, &server, || {
        echo.request("", payload.clone()).wait().expect("an echo");
    })
}

/// Asks again in each continuation, for as long as it is told to.
struct Asker {
    payload: Bytes,
    run: Option<Run>,
}

struct Run {
    responder: Responder,
    times: Histogram<u64>,
    warm_until: Instant,
    until: Instant,
    last: Instant,
}

impl Handler for Asker {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let ms = |at: usize| {
            let text = std::str::from_utf8(request.payload()).expect("written below");
            Duration::from_millis(text.split(' ').nth(at).and_then(|n| n.parse().ok()).expect("written below"))
        };
        let now = Instant::now();
        let (warm, window) = (ms(0), ms(1));
        let (responder, _) = request.into_parts();
        let warm_until = now + warm;
        self.run = Some(Run { responder, times: histogram(), warm_until, until: warm_until + window, last: now });
        self.ask(cx);
    }
}

impl Asker {
    fn ask(&mut self, cx: &mut Context<'_, Self>) {
        cx.channel("echo").request("", self.payload.clone()).own_deadline().then(cx, |asker, reply, cx| {
            reply.expect("an echo");
            let Some(run) = &mut asker.run else { return };
            let now = Instant::now();
            if now >= run.warm_until {
                run.times.saturating_record((now - run.last).as_nanos() as u64);
            }
            run.last = now;
            if now < run.until {
                return asker.ask(cx);
            }
            if let Some(Run { responder, times, .. }) = asker.run.take() {
                let numbers: Vec<String> = times
                    .iter_recorded()
                    .map(|v| format!("{}:{}", v.value_iterated_to(), v.count_at_value()))
                    .collect();
                responder.reply(cx, numbers.join(" "));
            }
        });
    }
}

fn shard_asks(args: &Args, what: &str, size: usize, idle: IdlePolicy) -> Sample {
    let server = Server::spawn(args, what);
    let client = builder("client", idle)
        .listen("tcp://127.0.0.1:0")
        .connect(url(server.port))
        .channel("ask", move |_| Asker { payload: Bytes::from(vec![7; size]), run: None })
        .start()
        .expect("the client starts");
    client.ready(Duration::from_secs(5)).expect("the server is there");
    let starter = builder("starter", IdlePolicy::Park)
        .connect(url(client.addresses()[0].port()))
        .start()
        .expect("the starter starts");
    starter.ready(Duration::from_secs(5)).expect("the client is there");
    let order = format!("{} {}", args.warm_up().as_millis(), args.window().as_millis());
    let before = (Usage::own(), server.usage());
    let ask = starter.client().channel("ask");
    let numbers = ask.request("", order).timeout(Duration::from_secs(600)).wait().expect("the run ends");
    let mut times = histogram();
    for pair in std::str::from_utf8(&numbers).expect("written above").split(' ').filter(|p| !p.is_empty()) {
        let (value, count) = pair.split_once(':').expect("written above");
        times.saturating_record_n(value.parse().expect("a number"), count.parse().expect("a number"));
    }
    finish(times.len(), args.window().as_secs_f64(), Some(times), before, &server)
}
