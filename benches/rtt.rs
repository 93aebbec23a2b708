//! Round trip of one request at a time, between two processes on loopback TCP.
//!
//! Rows: raw sockets over mio on one connection, blocking and spinning 50 us before it blocks (the
//! ceilings), and afflux, called from a thread and from a shard, parking and spinning likewise.

mod common;

use std::time::{Duration, Instant};

use afflux::{Context, Handler, IdlePolicy, Request, Responder};
use bytes::Bytes;
use common::hosts::{self, SPIN, builder};
use common::load::Caller;
use common::raw::{self, Raw};
use common::{Args, Rounds, Sample, Server, Usage, finish, histogram, serving, timed};
use hdrhistogram::Histogram;

fn main() {
    let args = Args::get();
    let size = args.size.unwrap_or(64);
    match serving(&args).as_deref() {
        Some("raw park") => raw::serve(size, Duration::ZERO),
        Some("raw spin") => raw::serve(size, SPIN),
        Some("afflux park") => hosts::serve(IdlePolicy::Park),
        Some("afflux spin") => hosts::serve(IdlePolicy::SpinThenPark(SPIN)),
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

fn raw_ask(args: &Args, what: &str, size: usize, spin: Duration) -> Sample {
    let server = Server::spawn(args, what);
    let mut raw = Raw::connect(&server, size, spin);
    timed(args, &server, || raw.ask())
}

fn thread_asks(args: &Args, what: &str, size: usize, idle: IdlePolicy) -> Sample {
    let server = Server::spawn(args, what);
    let host = hosts::connect(&server, idle);
    let mut asker = hosts::Asker::new(&host, size);
    timed(args, &server, || asker.ask())
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
        .connect(hosts::url(&server))
        .channel("ask", move |_| Asker { payload: Bytes::from(vec![7; size]), run: None })
        .start()
        .expect("the client starts");
    client.ready(Duration::from_secs(5)).expect("the server is there");
    let starter = builder("starter", IdlePolicy::Park)
        .connect(format!("tcp://{}", client.addresses()[0]))
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
